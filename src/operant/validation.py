"""Checks of arguments: each raises a `ValueError` that names the argument, what must hold, and the given value.

Values are passed by name, ``check_at_least(1, epochs=epochs, batch_size=batch_size)``. None and NaN pass no check; an
option that may be None is checked only where it is given, ``if width is not None: check_positive(width=width)``.
``advice`` is added to the message: what to do, or what is usual.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sized
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Bounds = tuple[float, float]


# Numbers -------------------------------------------------------------------------------------------------------------


def check_at_least(least: float, *, advice: str = "", **values: float) -> None:
    """
    >>> check_at_least(1, epochs=2, batch_size=0)
    Traceback (most recent call last):
    ValueError: batch_size must be at least 1, got 0
    """
    _check(values, lambda v: v >= least, f"at least {least}", advice)


def check_positive(*, finite: bool = True, advice: str = "", **values: float) -> None:
    """``finite``: infinity is rejected; it is allowed where it means no limit."""
    if finite:
        _check(values, lambda v: 0 < v < math.inf, "positive and finite", advice)
    else:
        _check(values, lambda v: v > 0, "positive", advice)


def check_nonnegative(*, advice: str = "", **values: float) -> None:
    _check(values, lambda v: 0 <= v < math.inf, "0 or more and finite", advice)


def check_share(*, advice: str = "", **values: float) -> None:
    """From 0 to 1, both allowed; `check_between` for a level or a confidence."""
    _check(values, lambda v: 0 <= v <= 1, "a share from 0 to 1", advice)


def check_between(low: float, high: float, *, advice: str = "", **values: float) -> None:
    """``low < value < high``."""
    _check(values, lambda v: low < v < high, f"between {low} and {high}", advice)


def check_from_to(low: float, high: float, *, advice: str = "", **values: float) -> None:
    """``low <= value <= high``."""
    _check(values, lambda v: low <= v <= high, f"from {low} to {high}", advice)


def check_from_below(low: float, high: float, *, advice: str = "", **values: float) -> None:
    """``low <= value < high``."""
    _check(values, lambda v: low <= v < high, f"from {low} to below {high}", advice)


def check_above_to(low: float, high: float, *, advice: str = "", **values: float) -> None:
    """``low < value <= high``."""
    _check(values, lambda v: low < v <= high, f"above {low} and at most {high}", advice)


def _check(values: dict[str, float], holds: Callable[[float], bool], what: str, advice: str) -> None:
    for name, value in values.items():
        if value is None or not holds(value):
            _fail(f"{name} must be {what}, got {value}", advice)


def _fail(message: str, advice: str) -> None:
    raise ValueError(f"{message}; {advice}" if advice else message)


# Words and pairs -----------------------------------------------------------------------------------------------------


def check_one_of(choices: Collection[object], *, advice: str = "", **values: object) -> None:
    """
    >>> check_one_of(("l2", "linf"), norm="l1")
    Traceback (most recent call last):
    ValueError: norm must be one of l2, linf, got 'l1'
    """
    for name, value in values.items():
        if value not in choices:
            _fail(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}", advice)


def check_ascending(*, finite: bool = True, advice: str = "", **pairs: Bounds) -> None:
    """A pair (low, high) with low < high; ``finite``: infinity is rejected."""
    for name, pair in pairs.items():
        if pair is None or not (pair[0] < pair[1] and (not finite or math.isfinite(pair[1] - pair[0]))):
            _fail(f"{name} must be (low, high) with low < high{', both finite' * finite}, got {pair}", advice)


# Rows and tensors ----------------------------------------------------------------------------------------------------


def check_not_empty(*, advice: str = "give at least one", **rows: Sized) -> None:
    for name, value in rows.items():
        if value is None or len(value) == 0:
            _fail(f"{name} must not be empty{', got None' * (value is None)}", advice)


def check_row_shape(shape: tuple[int, ...], *, advice: str = "", **tensors: Tensor) -> None:
    """One row of ``shape`` for each input, of any number of inputs: a tensor (N, *shape)."""
    _check_given(tensors)
    for name, x in tensors.items():
        if x.ndim == 0 or tuple(x.shape[1:]) != tuple(shape):
            _fail(f"{name} must have shape (N, {', '.join(map(str, shape))}), got {tuple(x.shape)}", advice)


def check_finite(*, advice: str = "remove them", **tensors: Tensor) -> None:
    """No NaN and no infinity; the message counts the rows that have some."""
    _check_given(tensors)
    for name, x in tensors.items():
        if not (finite := x.detach().isfinite()).all():
            bad = int((~finite).reshape(len(x), -1).any(1).sum())
            _fail(f"{name} must be finite, got NaN or infinity in {bad} of {len(x)} rows", advice)


def check_within(bounds: Bounds, *, slack: float = 0.0, advice: str = "", **tensors: Tensor) -> None:
    """Every value lies in ``bounds``, give or take ``slack`` (`operant.model.slack_of`), and none is NaN."""
    _check_given(tensors)
    for name, x in tensors.items():
        if x.numel() == 0:
            continue
        low, high = float(x.detach().min()), float(x.detach().max())
        if math.isnan(low):
            bad = int(x.reshape(len(x), -1).isnan().any(1).sum())
            _fail(f"{name} contain NaN in {bad} of {len(x)} rows", "remove them")
        if not (bounds[0] - slack <= low and high <= bounds[1] + slack):
            _fail(f"{name} must lie within bounds {bounds}, got values from {low:.4g} to {high:.4g}", advice)


def _check_given(tensors: dict[str, Tensor]) -> None:
    for name, x in tensors.items():
        if x is None:
            raise ValueError(f"{name} must be a tensor, got None")
