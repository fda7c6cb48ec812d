"""Checks of options, by their names; None is allowed where an option may be None."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def check_counts(options: object, *names: str) -> None:
    _check(options, names, lambda v: v >= 1, "at least 1")


def check_positive(options: object, *names: str) -> None:
    _check(options, names, lambda v: 0 < v < math.inf, "positive and finite")


def check_nonnegative(options: object, *names: str) -> None:
    _check(options, names, lambda v: 0 <= v < math.inf, "0 or more and finite")


def check_shares(options: object, *names: str) -> None:
    _check(options, names, lambda v: 0 <= v <= 1, "from 0 to 1")


def check_choice(options: object, name: str, choices: tuple[str, ...]) -> None:
    *others, last = (f'"{choice}"' for choice in choices)
    if (value := getattr(options, name)) not in choices:
        raise ValueError(f"{name} must be {', '.join(others)} or {last}, got {value!r}")


def _check(options: object, names: tuple[str, ...], valid: Callable[[Any], bool], what: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None and not valid(value):
            raise ValueError(f"{name} must be {what}, got {value}")
