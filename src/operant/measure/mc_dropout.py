"""Monte Carlo dropout: many passes of a model with its dropout left on; what comes before the first one runs once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from operant.measure._masks import Dropout, Function, Masks, Place, dropout_of
from operant.measure._tape import Diverged, Tape
from operant.model import MIN_ROWS, Classifier
from operant.rng import global_streams, spawn

TOGETHER = 2**21  # numbers that the largest tensor of passes run together may hold
FEWEST_TOGETHER = 4

Source = Callable[[Dropout, int], Tensor]
"""``(dropout, its place in the pass) -> its mask``."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Passes:
    """What many passes with dropout said.

    Attributes:
        probs: class probabilities ``(T, N, classes)``.
        note: what ran once and what in every pass, and why; how masks were shared.
    """

    probs: Tensor = field(repr=False)
    note: str


def mc_dropout(
    model: Classifier,
    x: Tensor,
    *,
    passes: int,
    generator: torch.Generator,
    independent: bool = False,
    cache: bool = True,
) -> Passes:
    """Class probabilities of ``passes`` passes with dropout on, each with another part of the network missing.

    Every dropout that the module calls is on, whatever its mode; one that it calls only while training stays out. What
    comes before the first dropout runs once per batch. Should the module change that in place afterwards, or make other
    calls in a later pass, then all is run again in full, and ``note`` says so.

    The papers draw a mask for every input. Here one mask for each pass and dropout serves all rows, unless asked
    otherwise, for most of the time would go into random numbers: a row still meets as many independent masks as there
    are passes, so each measure of a row has the same distribution; but the rows' measures are no longer independent.

    Masks depend on the generator's state, the pass, the place among its dropouts and the shape of one row, and on
    nothing else: the same state gives the same networks again, for other inputs too.

    Args:
        model: one with dropout; `with_dropout` puts it into others.
        x: inputs ``(N, *shape)``.
        passes: T, at least 2.
        generator: is asked for one number.
        independent: fresh masks for every row.
        cache: False runs every pass in full, which gives the same numbers later.

    References:
        | Dropout as a Bayesian Approximation: Representing Model Uncertainty in Deep Learning (Gal & Ghahramani, 2016)
        | https://arxiv.org/abs/1506.02142
    """
    check_passes(passes)
    model.check_inputs(x)
    seed = int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
    with torch.inference_mode(False), torch.no_grad(), global_streams(spawn(seed, "survey")):
        model.prepare(x)  # passes that must not be taken for ours
        places = _places(model, x)
        run = _Run(model, x, passes, lambda: Masks(seed, places, independent=independent))
        return run.from_tape() if cache else run.in_full("it was asked for")


def check_passes(passes: int) -> None:
    """Refuse fewer than two passes, which cannot disagree."""
    if passes < 2:
        raise ValueError(f"passes must be at least 2, got {passes}; 50 to 100 are usual")


class _Apart(Exception):
    """Passes cannot be run together."""


@dataclass(frozen=True)
class _Run:
    """All passes of all inputs, batch by batch."""

    model: Classifier
    x: Tensor
    passes: int
    new_masks: Callable[[], Masks]

    def in_full(self, reason: str) -> Passes:
        masks = self.new_masks()

        def logits(part: Tensor) -> list[Tensor]:
            return [self._pass(part, masks.source(t, rows=len(part)))[0] for t in range(self.passes)]

        return Passes(probs=self._probs(logits, masks), note=f"every pass ran in full: {reason}; {masks.note}")

    def from_tape(self, *, together: bool = True) -> Passes:
        """What comes before the first dropout once per batch; the rest of several passes together, if it is small."""
        masks, notes = self.new_masks(), set[str]()

        def logits(part: Tensor) -> list[Tensor]:
            tape = Tape()
            first, seen = self._pass(part, masks.source(0, rows=len(part)), tape)
            if not tape.ended:  # no dropout was met, so all passes are alike
                return [first] * self.passes
            notes.add(f"{len(tape.calls)} calls before the first dropout ran once per batch")
            if together and seen.largest * FEWEST_TOGETHER <= TOGETHER and not seen.convolves:
                notes.add("passes ran together from there on")
                return self._together(part, masks, tape, first, seen)
            rest = (masks.source(t, rows=len(part)) for t in range(1, self.passes))
            return [first, *(self._again(part, source, tape) for source in rest)]

        try:
            return Passes(probs=self._probs(logits, masks), note="; ".join([*sorted(notes), masks.note]))
        except _Apart:
            return self.from_tape(together=False)
        except Diverged as reason:
            return self.in_full(str(reason))

    def _probs(self, logits: Callable[[Tensor], list[Tensor]], masks: Masks) -> Tensor:
        parts = self.x.split(self.model.batch_size)
        with global_streams(spawn(masks.seed, "module")):  # what else the module draws is the same in every attempt
            probs = torch.cat([torch.stack(logits(part)).softmax(2).to(self.x.device) for part in parts], 1)
        if not masks.used:
            raise ValueError(
                "the model ran without any dropout, so its passes would all be alike; put some in: "
                "with_dropout(model, before=[...], rate=...)"
            )
        if not bool(torch.isfinite(probs).all()):
            bad = int((~torch.isfinite(probs)).any(2).any(0).sum())
            raise ValueError(f"the module returned NaN or infinite logits for {bad} of {len(self.x)} inputs")
        return probs

    def _pass(self, part: Tensor, source: Source, tape: Tape | None = None) -> tuple[Tensor, _Dropping]:
        """The logits of one batch in one pass, and what was seen on the way."""
        mode = _Dropping(source, tape)
        if tape is None:
            with mode:
                return self.model.logits(part), mode
        tape.rewind()
        try:
            with mode:
                logits = self.model.logits(part)
        except Exception:
            if not tape.reason:
                raise
        if tape.reason:  # the module may have swallowed the exception, or made it another one
            raise Diverged(tape.reason)
        tape.check()
        return logits, mode

    def _again(self, part: Tensor, source: Source, tape: Tape) -> Tensor:
        """The logits of a later pass. What made no trouble in the first must be the tape's fault, if it does now."""
        try:
            return self._pass(part, source, tape)[0]
        except (Diverged, _Apart):
            raise
        except Exception as error:
            raise Diverged(f"a later pass ended in {type(error).__name__}") from error

    def _together(self, part: Tensor, masks: Masks, tape: Tape, first: Tensor, seen: _Dropping) -> list[Tensor]:
        """The logits of all passes over one batch by `torch.vmap`; two of them are compared, bit for bit."""
        sources = [masks.source(t, rows=len(part)) for t in range(1, self.passes)]
        drawn = [seen.masks, *([source(d, k) for k, d in enumerate(seen.dropouts)] for source in sources)]
        stacked = [torch.stack(of_place) for of_place in zip(*drawn, strict=True)]
        chunks = zip(*(s.split(TOGETHER // max(seen.largest, 1)) for s in stacked), strict=True)

        def one(*given: Tensor) -> Tensor:
            return self._pass(part, partial(_given, seen.dropouts, given), tape)[0]

        try:
            with warnings.catch_warnings(action="error"):  # among them, that vmap would be slow
                logits = torch.cat([torch.vmap(one)(*chunk) for chunk in chunks])
        except Diverged:
            raise
        except Exception as error:  # the user's code may raise anything when it meets vmap's tensors
            raise _Apart from error
        second = self._again(part, partial(_given, seen.dropouts, drawn[1]), tape)
        if not torch.equal(logits[0], first) or not torch.equal(logits[1], second):
            raise _Apart
        return list(logits)


def _given(known: Sequence[Dropout], masks: Sequence[Tensor], dropout: Dropout, place: int) -> Tensor:
    """Masks drawn beforehand for the dropouts of the first pass, which must be those of every pass."""
    if place >= len(known) or dropout != known[place]:
        raise _Apart
    return masks[place]


class _Dropping(TorchFunctionMode):
    """One pass in which dropouts use our masks and the calls before the first of them go through a tape."""

    def __init__(self, source: Source, tape: Tape | None = None) -> None:
        super().__init__()
        self.source, self.tape = source, tape
        self.dropouts: list[Dropout] = []
        self.masks: list[Tensor] = []
        self.largest, self.convolves = 0, False  # of what is not on the tape

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found = dropout_of(func, args, kwargs)
        if found is not None:
            if self.tape is not None:
                self.tape.end(func, args, kwargs)
                self.tape = None
            return self._drop(*found)
        if self.tape is not None:
            return self.tape.call(func, args, kwargs)
        out = FASTER.get(func, func)(*args, **kwargs)
        self._see(func, out)
        return out

    def _drop(self, x: Tensor, dropout: Dropout) -> Tensor:
        self.masks.append(self.source(dropout, len(self.dropouts)))
        self.dropouts.append(dropout)
        out = dropout.apply(x, self.masks[-1])
        self._see(F.dropout, out)
        return out

    def _see(self, function: Function, out: Any) -> None:
        self.convolves = self.convolves or "conv" in getattr(function, "__name__", "")
        if isinstance(out, Tensor) and out.numel() > self.largest:
            self.largest = out.numel()


def _max_pool(x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, *args: Any, **kwargs: Any) -> Any:
    """`max_pool2d`; for squares of two as maxima of rows and then of columns, which take a fraction of the time."""
    squares = kernel_size in (2, (2, 2)) and stride in (None, 2, (2, 2)) and padding in (0, (0, 0))
    if not squares or x.ndim != 4 or args or kwargs.get("dilation", 1) != 1 or any(map(kwargs.get, POOL_OPTIONS)):
        return F.max_pool2d(x, kernel_size, stride, padding, *args, **kwargs)
    height, width = (size - size % 2 for size in x.shape[2:])
    rows = torch.maximum(x[:, :, 0:height:2], x[:, :, 1:height:2])
    return torch.maximum(rows[..., 0:width:2], rows[..., 1:width:2])


POOL_OPTIONS = ("ceil_mode", "return_indices")
FASTER: dict[Function, Function] = {F.max_pool2d: _max_pool}


class _Survey(TorchFunctionMode):
    """One pass in which dropouts do nothing but tell what they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.met: list[Dropout] = []

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = dropout_of(func, args, kwargs or {})
        if found is None:
            return func(*args, **(kwargs or {}))
        self.met.append(found[1])
        return found[0]


def _places(model: Classifier, x: Tensor) -> list[Place]:
    """Where the dropouts of a pass find the rows: the dimension that grows when a row is added.

    Asked once for inputs of a shape, as it takes two passes; searches ask thousands of times.
    """
    known = SURVEYED.setdefault(model, {})
    if x.shape[1:] not in known:
        shapes = []
        for rows in (MIN_ROWS, MIN_ROWS + 1):
            with _Survey() as survey:
                model.logits(x[torch.arange(rows, device=x.device) % len(x)])
            shapes.append([dropout.shape for dropout in survey.met])
        known[x.shape[1:]] = [Place.of(few, more) for few, more in zip(*shapes, strict=False)]
    return known[x.shape[1:]]


SURVEYED: WeakKeyDictionary[Classifier, dict[torch.Size, list[Place]]] = WeakKeyDictionary()


def with_dropout(model: Classifier, *, before: Sequence[str], rate: float) -> Classifier:
    """The same classifier with dropout in front of the named layers, for `mc_dropout`.

    Predictions do not change, and names keep their meaning: ``features`` taps a layer's output as before. Parameters of
    a layer ``fc`` are found one step further down, under ``fc.layer``.

    Args:
        model: left as it is.
        before: names out of ``model.layers``.
        rate: share of the values to drop.

    >>> plain = Classifier(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    >>> model = with_dropout(plain, before=["2"], rate=0.2)
    >>> mc_dropout(model, torch.rand(5, 4), passes=7, generator=spawn(0, "masks")).probs.shape
    torch.Size([7, 5, 3])
    """
    if isinstance(before, str):
        raise ValueError(f"before must be several names, got the single string {before!r}; write [{before!r}]")
    if unknown := [name for name in before if name not in model.layers]:
        raise ValueError(f"no layer named {', '.join(unknown)}; this model has {', '.join(model.layers)}")
    if not before:
        raise ValueError(f"before must name at least one layer; this model has {', '.join(model.layers)}")
    if not 0 < rate < 1:
        raise ValueError(f"rate must be between 0 and 1, got {rate}")
    module = model.unwrap()
    for name in sorted(set(before), key=lambda n: -n.count(".")):  # layers inside others first
        parent, _, child = name.rpartition(".")
        setattr(module.get_submodule(parent), child, _DropoutBefore(module.get_submodule(name), rate))
    return model.rewrap(module)


class _DropoutBefore(nn.Module):
    """A layer that first drops some of its input."""

    def __init__(self, layer: nn.Module, rate: float) -> None:
        super().__init__()
        self.dropout, self.layer = nn.Dropout(rate), layer

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.layer(self.dropout(x), *args, **kwargs)
