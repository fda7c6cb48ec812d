"""Smaller batches when memory runs out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

from operant.model import MIN_ROWS, Classifier

R = TypeVar("R")
NO_MEMORY = "there is not enough memory"
ADVICE = "use fewer workers, close other programs, or use a machine with more memory"
OUT_OF_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "not enough memory", "cannot allocate memory")


def with_smaller_batches(work: Callable[[int], R], batch_size: int, *, floor: int = MIN_ROWS) -> tuple[R, int]:
    """The result of ``work(batch_size)`` and the batch size that was used; it is halved whenever memory runs out.

    The batch size decides how many rows are computed at once, not the result: models pad batches to `MIN_ROWS`, the
    floor.

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
            if not is_out_of_memory(error):
                raise
            if batch_size <= floor:
                raise MemoryError(
                    f"{NO_MEMORY} even for batches of {batch_size} rows ({_first_line(error)}); {ADVICE}"
                ) from error
        batch_size = max(batch_size // 2, floor)  # outside the except block, where the error no longer holds memory


def in_batches(model: Classifier, batch_size: int) -> Classifier:
    """The same model with another batch size."""
    same = copy.copy(model)
    same.batch_size = batch_size
    return same


def memory_message(error: BaseException) -> str:
    """What to tell the user when memory ran out."""
    text = str(error)
    smaller = "use a smaller batch_size or less data"
    return text if text.startswith(NO_MEMORY) else f"{NO_MEMORY} ({_first_line(error)}); {smaller}, {ADVICE}"


def is_out_of_memory(error: BaseException) -> bool:
    """torch raises a plain RuntimeError when the CPU allocator fails, so its text is all there is to go by."""
    text = str(error).lower()
    raised_by_torch = isinstance(error, RuntimeError) and any(part in text for part in OUT_OF_MEMORY_TEXTS)
    return isinstance(error, MemoryError) or raised_by_torch


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
