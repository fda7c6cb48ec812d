"""Engines run independent work items: one after the other in this process, or spread over several."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from multiprocessing import connection, resource_tracker
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn, Protocol, TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}
WORK, ITEM = b"work", b"item"  # message types on the pipe to a worker


class WorkerDied(RuntimeError):
    """A process ended that had work to do."""


class Engine(Protocol):
    """Does work on items, wherever: an item's number and result as each is done, in any order.

    Items are taken one by one, when there is room for one more; when there are no more, what was begun is finished. If
    the work fails on an item, what was begun is finished before the error is raised.
    """

    def __call__(self, work: Callable[[T], R], items: Iterable[T], /) -> Iterator[tuple[int, R]]: ...


@contextmanager
def closed(results: Iterator[T]) -> Iterator[Iterator[T]]:
    """Results of which nobody wants more than were taken."""
    try:
        yield results
    finally:
        if hasattr(results, "close"):
            results.close()


def serial(work: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[int, R]]:
    """One item after the other, in this process, on one thread as in a `pool`, so that rounding is the same."""
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


def pool(workers: int) -> Engine:
    """Items spread over so many processes of one thread each; they stay for the next work as long as the pool does.

    Work, items and results travel, so they must be made of what other processes can import: no lambdas, no functions
    inside functions. With one worker there is nothing to spread, and work is done right here.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    return serial if workers == 1 else _Pool(workers)


class _Pool:
    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.idle: list[_Worker] = []

    def __call__(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[int, R]]:
        message, numbered = _packed(work), enumerate(items)
        first = list(islice(numbered, self.workers))
        staff, finished = self._staff(len(first)), False
        try:
            for worker in staff:  # all have been started by now: none waits for another to come up
                worker.give(WORK, message)
            failure = yield from _served(staff, first, numbered)
            finished = True
            if failure is not None:
                raise failure
        finally:
            if not finished:  # nobody waits any more, and lines may hold half a message
                for worker in staff:
                    worker.end()
            self.idle += [worker for worker in staff if worker.process.is_alive()]

    def _staff(self, n: int) -> list[_Worker]:
        """So many workers that live; those of earlier work first."""
        self.idle = [worker for worker in self.idle if worker.process.is_alive()]
        taken, self.idle = self.idle[:n], self.idle[n:]
        with _undisturbed():
            return taken + [_Worker() for _ in range(n - len(taken))]


def _served(
    staff: list[_Worker], first: list[tuple[int, T]], more: Iterator[tuple[int, T]]
) -> Generator[tuple[int, Any], None, Exception | None]:
    """Each worker's result, and then the next item for it; after a failure, which is returned, no more are begun."""
    busy: dict[connection.Connection, tuple[_Worker, int]] = {}
    failure: Exception | None = None

    def give(worker: _Worker, number: int, item: T) -> None:
        worker.give(ITEM, _packed(item))
        busy[worker.connection] = worker, number

    for worker, (number, item) in zip(staff, first, strict=True):
        give(worker, number, item)
    while busy:
        for ready in connection.wait(list(busy)):
            worker, number = busy.pop(ready)  # type: ignore[call-overload]
            try:
                result = worker.take()
            except Exception as error:
                failure = failure or error
                continue
            if failure is None and (following := next(more, None)) is not None:
                give(worker, *following)
            yield number, result
    return failure


class _Worker:
    """A process with a line to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, word: bytes, message: bytes) -> None:
        with suppress(OSError):  # it has died, and `take` will say so
            self.connection.send_bytes(word)
            self.connection.send_bytes(message)

    def take(self) -> Any:
        """The result of the item that was given; or what went wrong, raised."""
        try:
            done, value = ForkingPickler.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.process.join()
            raise WorkerDied(_obituary(self.process.exitcode)) from None
        if not done:
            raise value
        return value

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _obituary(code: int | None) -> str:
    if code is not None and code < 0:
        how = f"was killed by signal {-code}; if memory ran out, use fewer workers"
    else:
        how = (
            f"ended with code {code} in the midst of work; what it wrote above may tell why. A script must start runs "
            'under `if __name__ == "__main__":`'
        )
    return f"a worker {how}. What was finished is kept; run again with the same folder to go on"


class _Plain(ForkingPickler):
    """Sends tensors by value: shared memory is scarce on many machines, and runs out without a message."""

    _extra_reducers: dict[type, Any] = {}  # noqa: RUF012  # torch fills in its own otherwise


def _packed(value: object) -> bytes:
    try:
        buffer = io.BytesIO()
        _Plain(buffer, -1).dump(value)
    except Exception as error:  # whatever the user's class raises
        raise TypeError(
            f"work, items and results must be able to travel to other processes, and one cannot ({error}); define its "
            "functions and classes at the top of a module, or use workers=1"
        ) from error
    return buffer.getvalue()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Processes started in here compute on one thread each and hear no Ctrl-C: only their parent does."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    resource_tracker.ensure_running()  # which would hear Ctrl-C again if it were started later
    masked = hasattr(signal, "pthread_sigmask")
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]) if masked else None
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _serve(line: connection.Connection) -> None:
    """The life of a worker: take work, then an item at a time, until the line is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work: Callable[[Any], Any] = partial(_raise, RuntimeError("there is no work"))
    with suppress(EOFError, OSError):
        while True:
            word, message = line.recv_bytes(), line.recv_bytes()
            if word == WORK:
                work = _loaded(message)
            else:
                line.send_bytes(_answer(work, message))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _loaded(message: bytes) -> Callable[[Any], Any]:
    """The work; if this process cannot make sense of it, work that says so."""
    try:
        work: Callable[[Any], Any] = ForkingPickler.loads(message)
    except Exception as error:
        told = f"the work means nothing to another process ({type(error).__name__}: {error})"
        return partial(_raise, RuntimeError(f"{told}; define it in a module that can be imported, or use workers=1"))
    return work


def _raise(error: Exception, _item: object) -> NoReturn:
    raise error


def _answer(work: Callable[[Any], Any], message: bytes) -> bytes:
    try:
        return _packed((True, work(ForkingPickler.loads(message))))
    except Exception as error:
        error.add_note(f"In a worker: {traceback.format_exc()}")
        try:
            answer = _packed((False, error))
            ForkingPickler.loads(answer)  # not every error survives the way
        except Exception:
            answer = _packed((False, RuntimeError(f"{type(error).__name__}: {error}")))
        return answer
