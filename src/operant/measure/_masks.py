"""Dropout calls as torch's functions make them, and the masks that stand for what these would draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from operant.model import MIN_ROWS
from operant.rng import spawn

Function = Callable[..., Any]

PLAIN: tuple[Function, ...] = (F.dropout, torch.dropout, torch.dropout_)
CHANNELS: tuple[Function, ...] = (F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout, torch.feature_dropout_)
ALPHA: tuple[Function, ...] = (F.alpha_dropout, torch.alpha_dropout, torch.alpha_dropout_)
ALPHA_CHANNELS: tuple[Function, ...] = (
    F.feature_alpha_dropout,
    torch.feature_alpha_dropout,
    torch.feature_alpha_dropout_,
)
DROPOUTS = frozenset((*PLAIN, *CHANNELS, *ALPHA, *ALPHA_CHANNELS))
ATTENTION: tuple[Function, ...] = (F.multi_head_attention_forward, F.scaled_dot_product_attention)
RECURRENT: tuple[Function, ...] = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
FUSED = frozenset((*ATTENTION, *RECURRENT))  # these drop inside one call
UNBATCHED: dict[Function, int] = {F.dropout1d: 2, F.dropout3d: 4}  # of so many dimensions the first is the channel
FLOOR = -1.7580993408473766  # what SELU tends to for small inputs; alpha dropout puts it in place of what it drops


@dataclass(frozen=True)
class Dropout:
    """A call of dropout that is on, but for its input.

    Attributes:
        shape: of the input.
        rate: share of the values to drop.
        channels: whole channels (the second dimension) are dropped, not single values.
        alpha: what is dropped becomes `FLOOR`, and all is moved and scaled to the mean and variance it had.
        in_place: the input itself is to change.
    """

    shape: tuple[int, ...]
    rate: float
    channels: bool
    alpha: bool
    in_place: bool

    def apply(self, x: Tensor, keep: Tensor) -> Tensor:
        """The call's result for a mask that is true where values stay."""
        out = self._moved(x, keep) if self.alpha and self.rate < 1 else x * self._scale(x, keep)
        return x.copy_(out) if self.in_place else out

    def _scale(self, x: Tensor, keep: Tensor) -> Tensor:
        """1 / (1 - rate) where values stay and 0 elsewhere, laid out in memory as ``x`` is."""
        scale = keep.to(x.device, x.dtype)
        if x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last):
            scale = scale.contiguous(memory_format=torch.channels_last)
        return scale / (1 - self.rate) if self.rate < 1 else scale

    def _moved(self, x: Tensor, keep: Tensor) -> Tensor:
        scale: float = ((FLOOR**2 * self.rate + 1) * (1 - self.rate)) ** -0.5
        return scale * (x.where(keep.to(x.device), FLOOR) - FLOOR * self.rate)


def dropout_of(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Dropout] | None:
    """The input and the dropout that a call is, on whatever ``training`` says; None if it drops nothing.

    What drops where no mask can reach is refused.
    """
    if function in FUSED and (rate := _fused_rate(args, kwargs)) > 0:
        raise ValueError(
            f"{function.__name__} drops {rate:.3g} of its values inside one call, where no mask can be given; "
            "set that layer's dropout to 0 and put dropout layers around it"
        )
    if function not in DROPOUTS:
        return None
    x, rate = args[0] if args else kwargs["input"], kwargs["p"] if "p" in kwargs else args[1]
    if not 0 < rate <= 1:
        return None  # what is no share, torch itself refuses
    if x.ndim == UNBATCHED.get(function):
        raise ValueError(
            f"{function.__name__} takes the rows of its input for channels, so that it drops whole rows of shape "
            f"{tuple(x.shape[1:])}; give it the dimensions it is made for, or use dropout"
        )
    return x, Dropout(
        shape=tuple(x.shape),
        rate=float(rate),
        channels=function in CHANNELS or function in ALPHA_CHANNELS,
        alpha=function in ALPHA or function in ALPHA_CHANNELS,
        in_place=bool(kwargs.get("inplace", False)) or function.__name__.endswith("_"),
    )


def _fused_rate(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The rate of a fused call: the only float among its arguments, but for some that always come by name."""
    values = (*args, kwargs.get("dropout_p"), kwargs.get("dropout"))
    return max((v for v in values if isinstance(v, float)), default=0.0)


@dataclass(frozen=True)
class Place:
    """Where a pass's dropout finds the rows in its input.

    Attributes:
        axis: the dimension that counts rows, or None if there is no such one (rows and something else in one).
        others: the other dimensions, by which the place is known again.
    """

    axis: int | None
    others: tuple[int, ...]

    @staticmethod
    def of(few: tuple[int, ...], more: tuple[int, ...]) -> Place:
        """From the shapes of one call's input in batches of two sizes, which are `MIN_ROWS` and one more."""
        grown = [i for i, (a, b) in enumerate(zip(few, more, strict=False)) if a != b]
        if len(few) == len(more) and len(grown) == 1 and few[grown[0]] == MIN_ROWS and more[grown[0]] == MIN_ROWS + 1:
            return Place(grown[0], _without(few, grown[0]))
        return Place(None, ())


class Masks:
    """Which values every dropout of every pass keeps.

    A mask is drawn from the stream of its pass and its place among the pass's dropouts, as if the batches were one.

    Args:
        seed: of all streams.
        places: by number, as far as known.
        independent: fresh masks for every row instead of one for all.
    """

    def __init__(self, seed: int, places: Sequence[Place], *, independent: bool) -> None:
        self.seed, self.places, self.independent = seed, places, independent
        self.used = self.unshared = False
        self._streams: dict[tuple[int, int], torch.Generator] = {}

    @property
    def note(self) -> str:
        if self.independent:
            return "fresh masks for every row"
        elsewhere = ", except where a dropout's input has no dimension of rows" if self.unshared else ""
        return f"masks shared by all rows{elsewhere}"

    def source(self, number: int, *, rows: int) -> Callable[[Dropout, int], Tensor]:
        """The masks of one pass over one batch: from a dropout and its place in the pass to what it keeps."""
        return lambda dropout, place: self.keep(dropout, number=number, place=place, rows=rows)

    def keep(self, dropout: Dropout, *, number: int, place: int, rows: int) -> Tensor:
        """The mask of a dropout, fit to multiply with its input; rows from ``rows`` on are padding."""
        self.used = True
        shape = list(dropout.shape)
        if dropout.channels:
            shape[2:] = [1] * len(shape[2:])
        axis = self._axis(dropout.shape, place, rows)
        if axis is None or (dropout.channels and axis > 1):
            self.unshared = True
            return self._stream(number, place, shape) >= dropout.rate
        if not self.independent:
            shape[axis] = 1
            return _uniform(shape, spawn(self.seed, number, place)) >= dropout.rate
        padding = shape.pop(axis) - rows
        drawn = self._stream(number, place, [rows, *shape]) >= dropout.rate
        return torch.cat([drawn, drawn[:1].expand(padding, *shape)]).movedim(0, axis)

    def _axis(self, shape: tuple[int, ...], place: int, rows: int) -> int | None:
        """The dimension of rows; where a pass took another way than was seen before, it is taken to be the first."""
        batch = max(rows, MIN_ROWS)
        known = self.places[place] if place < len(self.places) else Place(0, _without(shape, 0))
        if known.axis is not None and (len(shape) <= known.axis or _without(shape, known.axis) != known.others):
            known = Place(0, _without(shape, 0))
        return known.axis if known.axis is not None and shape[known.axis] == batch else None

    def _stream(self, number: int, place: int, shape: Sequence[int]) -> Tensor:
        """Uniform numbers that continue where the last batch stopped."""
        if (number, place) not in self._streams:
            self._streams[number, place] = spawn(self.seed, number, place)
        return _uniform(shape, self._streams[number, place])


def _uniform(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float32)  # whatever torch's default type is


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])
