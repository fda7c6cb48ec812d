"""What an engine is, and the engine that runs one item after the other in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


class Engine(Protocol):
    """Runs work on items, anywhere: yields each item's number and result when it is finished, in any order.

    Items are taken one by one, as late as possible. When there are no more, the work in progress is finished. If the
    work fails on an item, the work in progress is finished before the error is raised.
    """

    def __call__(self, work: Callable[[T], R], items: Iterable[T], /) -> Iterator[tuple[int, R]]: ...


@contextmanager
def closing_results(results: Iterator[T]) -> Iterator[Iterator[T]]:
    """Close an engine's results when the block ends, also if some were not taken."""
    try:
        yield results
    finally:
        if hasattr(results, "close"):
            results.close()


def serial(work: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[int, R]]:
    """An engine that runs one item after the other in this process, on one thread like a `pool`: equal rounding."""
    for number, item in enumerate(items):
        with one_thread():
            result = work(item)
        yield number, result


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
