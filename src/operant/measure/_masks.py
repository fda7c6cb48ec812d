"""Recognises calls of torch's dropout functions and draws the masks that replace their random numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from operant.model import MIN_ROWS
from operant.rng import spawn

Function = Callable[..., Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]

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
FUSED = frozenset((*ATTENTION, *RECURRENT))  # these drop values inside one call
UNBATCHED: dict[Function, int] = {F.dropout1d: 2, F.dropout3d: 4}  # with this many dimensions the first is the channel
SELU_LIMIT = -1.7580993408473766  # SELU's limit for small inputs; alpha dropout replaces dropped values by it


@dataclass(frozen=True)
class DropoutCall:
    """An active call of a dropout function, without its input."""

    shape: tuple[int, ...]  # of the input
    rate: float  # share of the values to drop
    channels: bool  # drop whole channels (the second dimension) instead of single values
    alpha: bool  # replace dropped values by `SELU_LIMIT`, then restore the input's mean and variance
    in_place: bool  # overwrite the input

    def apply(self, x: Tensor, keep: Tensor) -> Tensor:
        """The call's result for a mask that is true where values are kept."""
        out = self._alpha(x, keep) if self.alpha and self.rate < 1 else x * self._scale(x, keep)
        return x.copy_(out) if self.in_place else out

    def _scale(self, x: Tensor, keep: Tensor) -> Tensor:
        """1 / (1 - rate) where values are kept and 0 elsewhere, in the memory layout of ``x``."""
        scale = keep.to(x.device, x.dtype)
        if x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last):
            scale = scale.contiguous(memory_format=torch.channels_last)
        return scale / (1 - self.rate) if self.rate < 1 else scale

    def _alpha(self, x: Tensor, keep: Tensor) -> Tensor:
        scale: float = ((SELU_LIMIT**2 * self.rate + 1) * (1 - self.rate)) ** -0.5
        return scale * (x.where(keep.to(x.device), SELU_LIMIT) - SELU_LIMIT * self.rate)


def dropout_call(function: Function, args: Args, kwargs: Kwargs) -> tuple[Tensor, DropoutCall] | None:
    """The input and the `DropoutCall` of a call, active whatever its ``training`` argument; None if it drops nothing.

    Raises if the call drops values where no mask can be applied.
    """
    if function in FUSED and (rate := _fused_rate(args, kwargs)) > 0:
        raise ValueError(
            f"{function.__name__} drops {rate:.3g} of its values inside one call, where no mask can be applied; "
            "set that layer's dropout to 0 and put dropout layers around it"
        )
    if function not in DROPOUTS:
        return None
    x, rate = args[0] if args else kwargs["input"], kwargs["p"] if "p" in kwargs else args[1]
    if not 0 < rate <= 1:
        return None  # torch itself rejects invalid rates
    if x.ndim == UNBATCHED.get(function):
        raise ValueError(
            f"{function.__name__} treats the rows of its input as channels, so it drops whole rows of shape "
            f"{tuple(x.shape[1:])}; give it an input with a batch dimension, or use dropout"
        )
    return x, DropoutCall(
        shape=tuple(x.shape),
        rate=float(rate),
        channels=function in CHANNELS or function in ALPHA_CHANNELS,
        alpha=function in ALPHA or function in ALPHA_CHANNELS,
        in_place=bool(kwargs.get("inplace", False)) or function.__name__.endswith("_"),
    )


def _fused_rate(args: Args, kwargs: Kwargs) -> float:
    """The rate of a fused call: its only float argument, apart from some that are always passed by name."""
    values = (*args, kwargs.get("dropout_p"), kwargs.get("dropout"))
    return max((v for v in values if isinstance(v, float)), default=0.0)


@dataclass(frozen=True)
class RowAxis:
    """Which dimension of a dropout's input counts rows."""

    axis: int | None  # None if no dimension counts rows alone
    others: tuple[int, ...]  # sizes of the other dimensions, to recognise the same input later

    @staticmethod
    def of(smaller: tuple[int, ...], larger: tuple[int, ...]) -> "RowAxis":
        """From the input shapes of one call in batches of `MIN_ROWS` and `MIN_ROWS` + 1 rows."""
        grown = [i for i, (a, b) in enumerate(zip(smaller, larger, strict=False)) if a != b]
        if len(smaller) == len(larger) and len(grown) == 1:
            axis = grown[0]
            if (smaller[axis], larger[axis]) == (MIN_ROWS, MIN_ROWS + 1):
                return RowAxis(axis, _without(smaller, axis))
        return RowAxis(None, ())


class Masks:
    """Which values every dropout of every pass keeps.

    A mask is drawn from the random stream of its pass and its position among the pass's dropouts, independently of how
    inputs are split into batches. With ``independent`` every row gets a mask of its own.
    """

    def __init__(self, seed: int, row_axes: Sequence[RowAxis], *, independent: bool) -> None:
        self.seed, self.row_axes, self.independent = seed, row_axes, independent
        self.used = self.unshared = False
        self._streams: dict[tuple[int, int], torch.Generator] = {}

    @property
    def note(self) -> str:
        if self.independent:
            return "new masks for every row"
        exception = ", except where a dropout's input has no dimension of rows" if self.unshared else ""
        return f"masks shared by all rows{exception}"

    def source(self, number: int, *, rows: int) -> Callable[[DropoutCall, int], Tensor]:
        """The masks of one pass over one batch, as a function of a dropout and its position in the pass."""
        return lambda dropout, place: self.keep(dropout, number=number, place=place, rows=rows)

    def keep(self, dropout: DropoutCall, *, number: int, place: int, rows: int) -> Tensor:
        """The mask of a dropout, which broadcasts with its input; rows after the first ``rows`` are padding."""
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
        """The dimension of rows: the first one if this pass calls other dropouts than the survey did."""
        surveyed = self.row_axes[place] if place < len(self.row_axes) else RowAxis(0, _without(shape, 0))
        axis = surveyed.axis
        if axis is not None and (len(shape) <= axis or _without(shape, axis) != surveyed.others):
            axis = 0
        return axis if axis is not None and shape[axis] == max(rows, MIN_ROWS) else None

    def _stream(self, number: int, place: int, shape: Sequence[int]) -> Tensor:
        """Uniform numbers that continue where the previous batch stopped."""
        if (number, place) not in self._streams:
            self._streams[number, place] = spawn(self.seed, number, place)
        return _uniform(shape, self._streams[number, place])


def _uniform(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float32)  # independent of torch's default dtype


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])
