"""Smaller batches when memory runs out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

from operant.model import MIN_ROWS, Classifier

R = TypeVar("R")
SHORT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "cannot allocate memory")


def with_smaller_batches(work: Callable[[int], R], batch_size: int, *, floor: int = MIN_ROWS) -> tuple[R, int]:
    """What ``work`` makes of a batch size, which is halved whenever memory runs out; and the size that it took.

    Batches decide how many rows are computed at once, not what comes out: models pad theirs to `MIN_ROWS`, the floor.

    >>> def work(rows):
    ...     if rows > 100:
    ...         raise MemoryError
    ...     return "done"
    >>> with_smaller_batches(work, 256)
    ('done', 64)
    """
    while True:
        try:
            return work(batch_size), batch_size
        except (MemoryError, RuntimeError) as error:
            if not _is_short_of_memory(error):
                raise
            if batch_size <= floor:
                raise MemoryError(
                    f"memory does not suffice, not even for {batch_size} rows at once ({_first_line(error)}); use "
                    "fewer workers, close other programs, or take a machine with more"
                ) from error
        batch_size = max(batch_size // 2, floor)  # out here, where the error holds on to nothing any more


def in_batches(model: Classifier, batch_size: int) -> Classifier:
    """The same model, computing so many rows at once."""
    same = copy.copy(model)
    same.batch_size = batch_size
    return same


def _is_short_of_memory(error: Exception) -> bool:
    told = str(error).lower()
    return isinstance(error, MemoryError) or any(words in told for words in SHORT_OF_MEMORY)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
