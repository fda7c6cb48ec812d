"""Monte Carlo dropout: many passes of a model with dropout active; the part before the first dropout runs once."""

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

from operant.measure._masks import DropoutCall, Function, Masks, RowAxis, dropout_call
from operant.measure._tape import Tape, TapeMismatch
from operant.model import MIN_ROWS, Classifier
from operant.rng import global_streams, spawn
from operant.validation import check_at_least, check_between

MAX_STACKED = 2**21  # values in the largest tensor of passes that run together
MIN_STACKED_PASSES = 4  # fewer do not pay off

MaskSource = Callable[[DropoutCall, int], Tensor]
"""``(dropout, its position in the pass) -> its mask``."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Passes:
    """Class probabilities of many passes with dropout."""

    probs: Tensor = field(repr=False)  # (T, N, classes)
    note: str  # what ran once and what in every pass, and why; how masks were shared


def mc_dropout(
    model: Classifier,
    x: Tensor,
    *,
    passes: int,
    generator: torch.Generator,
    independent: bool = False,
    cache: bool = True,
) -> Passes:
    """Class probabilities of ``passes`` passes with dropout active, each with other values dropped.

    Every dropout that the module calls is active, in training and in eval mode; dropouts that it calls only while
    training are not. Calls before the first dropout run once per batch. If the module changes their results in place,
    or makes other calls in a later pass, every pass is run in full and ``note`` says so.

    The papers draw a mask for every input. Here, by default, all rows share one mask per pass and dropout, because
    random numbers would take most of the time. Each row still gets one independent mask per pass, so each measure of a
    row has the same distribution; but the measures of different rows are no longer independent.

    Masks depend only on the generator's state, the pass, the position among its dropouts and the shape of one row: the
    same state gives the same networks, for other inputs too.

    Args:
        model: one with dropout; `with_dropout` adds it to others.
        x: inputs ``(N, *shape)``.
        passes: T, at least 2.
        generator: one number is drawn from it.
        independent: draw new masks for every row.
        cache: False runs every pass in full: slower, with the same result.

    References:
        | Dropout as a Bayesian Approximation: Representing Model Uncertainty in Deep Learning (Gal & Ghahramani, 2016)
        | https://arxiv.org/abs/1506.02142
    """
    check_passes(passes)
    model.check_inputs(x)
    seed = int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
    with torch.inference_mode(False), torch.no_grad(), global_streams(spawn(seed, "survey")):
        model.prepare(x)  # this runs passes of its own, which must not be mistaken for ours
        row_axes = _row_axes(model, x)
        run = _Run(model, x, passes, lambda: Masks(seed, row_axes, independent=independent))
        return run.from_tape() if cache else run.in_full("cache=False")


def check_passes(passes: int) -> None:
    """Raise if there are fewer than two passes, which cannot disagree."""
    check_at_least(2, passes=passes, advice="50 to 100 are usual")


class _NotStackable(Exception):
    """Passes cannot run together."""


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
        """Run the part before the first dropout once per batch; the rest for several passes together, if small."""
        masks, notes = self.new_masks(), set[str]()

        def logits(part: Tensor) -> list[Tensor]:
            tape = Tape()
            first, seen = self._pass(part, masks.source(0, rows=len(part)), tape)
            if not tape.ended:  # no dropout was called, so all passes are equal
                return [first] * self.passes
            notes.add(f"{len(tape.calls)} calls before the first dropout ran once per batch")
            if together and seen.largest * MIN_STACKED_PASSES <= MAX_STACKED and not seen.convolves:
                notes.add("passes ran together after that")
                return self._together(part, masks, tape, first, seen)
            rest = (masks.source(t, rows=len(part)) for t in range(1, self.passes))
            return [first, *(self._again(part, source, tape) for source in rest)]

        try:
            return Passes(probs=self._probs(logits, masks), note="; ".join([*sorted(notes), masks.note]))
        except _NotStackable:
            return self.from_tape(together=False)
        except TapeMismatch as reason:
            return self.in_full(str(reason))

    def _probs(self, logits: Callable[[Tensor], list[Tensor]], masks: Masks) -> Tensor:
        parts = self.x.split(self.model.batch_size)
        with global_streams(spawn(masks.seed, "module")):  # the module's own random numbers are equal in every attempt
            probs = torch.cat([torch.stack(logits(part)).softmax(2).to(self.x.device) for part in parts], 1)
        if not masks.used:
            raise ValueError("the model ran without any dropout; add some: with_dropout(model, before=[...], rate=...)")
        if not bool(torch.isfinite(probs).all()):
            bad = int((~torch.isfinite(probs)).any(2).any(0).sum())
            raise ValueError(f"the module returned NaN or infinite logits for {bad} of {len(self.x)} inputs")
        return probs

    def _pass(self, part: Tensor, source: MaskSource, tape: Tape | None = None) -> "tuple[Tensor, _MaskedDropout]":
        """The logits of one batch in one pass, and a record of its dropouts."""
        mode = _MaskedDropout(source, tape)
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
        if tape.reason:  # the module may have swallowed or replaced the exception
            raise TapeMismatch(tape.reason)
        tape.check()
        return logits, mode

    def _again(self, part: Tensor, source: MaskSource, tape: Tape) -> Tensor:
        """The logits of a later pass. An error that the first pass did not raise is blamed on the tape."""
        try:
            return self._pass(part, source, tape)[0]
        except (TapeMismatch, _NotStackable):
            raise
        except Exception as error:
            raise TapeMismatch(f"a later pass ended in {type(error).__name__}") from error

    def _together(self, part: Tensor, masks: Masks, tape: Tape, first: Tensor, seen: "_MaskedDropout") -> list[Tensor]:
        """The logits of all passes over one batch by `torch.vmap`; two of them are checked bit for bit."""
        sources = [masks.source(t, rows=len(part)) for t in range(1, self.passes)]
        drawn = [seen.masks, *([source(d, k) for k, d in enumerate(seen.dropouts)] for source in sources)]
        stacked = [torch.stack(of_place) for of_place in zip(*drawn, strict=True)]
        chunks = zip(*(s.split(MAX_STACKED // max(seen.largest, 1)) for s in stacked), strict=True)

        def one(*given: Tensor) -> Tensor:
            return self._pass(part, partial(_given, seen.dropouts, given), tape)[0]

        try:
            with warnings.catch_warnings(action="error"):  # one of them says that vmap would be slow
                logits = torch.cat([torch.vmap(one)(*chunk) for chunk in chunks])
        except TapeMismatch:
            raise
        except Exception as error:  # the user's code may raise anything for vmap's tensors
            raise _NotStackable from error
        second = self._again(part, partial(_given, seen.dropouts, drawn[1]), tape)
        if not torch.equal(logits[0], first) or not torch.equal(logits[1], second):
            raise _NotStackable
        return list(logits)


def _given(expected: Sequence[DropoutCall], masks: Sequence[Tensor], dropout: DropoutCall, place: int) -> Tensor:
    """A mask drawn in advance; every pass must call the dropouts of the first."""
    if place >= len(expected) or dropout != expected[place]:
        raise _NotStackable
    return masks[place]


class _MaskedDropout(TorchFunctionMode):
    """Runs one pass in which dropouts use our masks and the calls before the first of them go through a tape.

    Without a source of masks, dropouts are recorded and do nothing.
    """

    def __init__(self, source: MaskSource | None = None, tape: Tape | None = None) -> None:
        super().__init__()
        self.source, self.tape = source, tape
        self.dropouts: list[DropoutCall] = []
        self.masks: list[Tensor] = []
        self.largest, self.convolves = 0, False  # among the calls that are not on the tape

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found = dropout_call(func, args, kwargs)
        if found is not None:
            if self.tape is not None:
                self.tape.end(func, args, kwargs)
                self.tape = None
            return self._drop(*found)
        if self.tape is not None:
            return self.tape.call(func, args, kwargs)
        out = FASTER.get(func, func)(*args, **kwargs)
        self.convolves = self.convolves or "conv" in getattr(func, "__name__", "")
        self._measure(out)
        return out

    def _drop(self, x: Tensor, dropout: DropoutCall) -> Tensor:
        self.dropouts.append(dropout)
        if self.source is None:
            return x
        self.masks.append(self.source(dropout, len(self.dropouts) - 1))
        out = dropout.apply(x, self.masks[-1])
        self._measure(out)
        return out

    def _measure(self, out: Any) -> None:
        if isinstance(out, Tensor):
            self.largest = max(self.largest, out.numel())


def _max_pool(x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, *args: Any, **kwargs: Any) -> Any:
    """`max_pool2d`; for 2 x 2 squares by maxima of rows and then of columns, which is several times faster."""
    squares = kernel_size in (2, (2, 2)) and stride in (None, 2, (2, 2)) and padding in (0, (0, 0))
    if not squares or x.ndim != 4 or args or kwargs.get("dilation", 1) != 1 or any(map(kwargs.get, POOL_OPTIONS)):
        return F.max_pool2d(x, kernel_size, stride, padding, *args, **kwargs)
    height, width = (size - size % 2 for size in x.shape[2:])
    rows = torch.maximum(x[:, :, 0:height:2], x[:, :, 1:height:2])
    return torch.maximum(rows[..., 0:width:2], rows[..., 1:width:2])


POOL_OPTIONS = ("ceil_mode", "return_indices")
FASTER: dict[Function, Function] = {F.max_pool2d: _max_pool}


def _row_axes(model: Classifier, x: Tensor) -> list[RowAxis]:
    """The row dimension of each dropout's input: the one that grows when a row is added.

    Cached per input shape, because it takes two passes and searches call it thousands of times.
    """
    known = SURVEYED.setdefault(model, {})
    if x.shape[1:] not in known:
        shapes = []
        for rows in (MIN_ROWS, MIN_ROWS + 1):
            with _MaskedDropout() as survey:
                model.logits(x[torch.arange(rows, device=x.device) % len(x)])
            shapes.append([dropout.shape for dropout in survey.dropouts])
        known[x.shape[1:]] = [RowAxis.of(smaller, larger) for smaller, larger in zip(*shapes, strict=False)]
    return known[x.shape[1:]]


SURVEYED: WeakKeyDictionary[Classifier, dict[torch.Size, list[RowAxis]]] = WeakKeyDictionary()


def with_dropout(model: Classifier, *, before: Sequence[str], rate: float) -> Classifier:
    """A copy of the classifier with dropout in front of the named layers, for `mc_dropout`.

    Predictions do not change, and ``features`` still returns a layer's output by its name. The parameters of a layer
    ``fc`` move to ``fc.layer``.

    Args:
        before: names from ``model.layers``.
        rate: share of the values to drop.

    >>> plain = Classifier(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    >>> model = with_dropout(plain, before=["2"], rate=0.2)
    >>> mc_dropout(model, torch.rand(5, 4), passes=7, generator=spawn(0, "masks")).probs.shape
    torch.Size([7, 5, 3])
    """
    if isinstance(before, str):
        raise ValueError(f"before must be a list of names, got the single string {before!r}; write [{before!r}]")
    if unknown := [name for name in before if name not in model.layers]:
        raise ValueError(f"no layer named {', '.join(unknown)}; this model has {', '.join(model.layers)}")
    if not before:
        raise ValueError(f"before must name at least one layer; this model has {', '.join(model.layers)}")
    check_between(0, 1, rate=rate)
    module = model.unwrap()
    for name in sorted(set(before), key=lambda n: -n.count(".")):  # layers inside others first
        parent, _, child = name.rpartition(".")
        setattr(module.get_submodule(parent), child, _DropoutBefore(module.get_submodule(name), rate))
    return model.rewrap(module)


class _DropoutBefore(nn.Module):
    """A layer preceded by dropout."""

    def __init__(self, layer: nn.Module, rate: float) -> None:
        super().__init__()
        self.dropout, self.layer = nn.Dropout(rate), layer

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.layer(self.dropout(x), *args, **kwargs)
