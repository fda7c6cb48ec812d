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
from multiprocessing.util import Finalize
from typing import Any, NoReturn, TypeVar

import torch

from operant.engine import Engine as Engine
from operant.engine import closing_results as closing_results
from operant.engine import one_thread as one_thread
from operant.engine import serial as serial
from operant.signals import ENDING

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
    """A worker process ended before its work was finished."""


def pool(workers: int) -> Engine:
    """An engine that spreads items over processes of one thread each; the processes are reused for the next work.

    Work, items and results are sent between processes, so they must be made of what another process can import: no
    lambdas, no functions inside functions. With one worker everything runs in this process.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    return serial if workers == 1 else ProcessPool(workers)


class ProcessPool:
    """The engine that `pool` returns."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.idle: list[_Worker] = []

    def __call__(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[int, R]]:
        message, numbered = _pack(work), enumerate(items)
        first = list(islice(numbered, self.workers))
        workers, finished = self._take_workers(len(first)), False
        try:
            for worker in workers:  # all have been started by now, so none waits for another to start
                worker.send(WORK, message)
            failure = yield from _distribute(workers, first, numbered)
            finished = True
            if failure is not None:
                raise failure
        finally:
            if not finished:  # nobody takes their results any more, and pipes may hold half a message
                for worker in workers:
                    worker.end()
            self.idle += [worker for worker in workers if worker.process.is_alive()]

    def _take_workers(self, n: int) -> list[_Worker]:
        """This many live workers, idle ones first."""
        self.idle = [worker for worker in self.idle if worker.process.is_alive()]
        taken, self.idle = self.idle[:n], self.idle[n:]
        with _worker_environment():
            return taken + [_Worker() for _ in range(n - len(taken))]


def _distribute(
    workers: list[_Worker], first: list[tuple[int, T]], more: Iterator[tuple[int, T]]
) -> Generator[tuple[int, Any], None, Exception | None]:
    """Yield each result and give its worker the next item; after a failure, which is returned, give no more."""
    busy: dict[connection.Connection, tuple[_Worker, int]] = {}
    failure: Exception | None = None

    def give(worker: _Worker, number: int, item: T) -> None:
        worker.send(ITEM, _pack(item))
        busy[worker.connection] = worker, number

    for worker, (number, item) in zip(workers, first, strict=True):
        give(worker, number, item)
    while busy:
        for ready in connection.wait(list(busy)):
            worker, number = busy.pop(ready)  # type: ignore[call-overload]
            try:
                result = worker.receive()
            except Exception as error:
                failure = failure or error
                continue
            if failure is None and (following := next(more, None)) is not None:
                give(worker, *following)
            yield number, result
    return failure


class _Worker:
    """A process with a pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_worker_main, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        Finalize(self, _kill, args=[self.process], exitpriority=1)  # it ignores the signal that would end it at exit

    def send(self, kind: bytes, message: bytes) -> None:
        with suppress(OSError):  # the process has died; `receive` will raise
            self.connection.send_bytes(kind)
            self.connection.send_bytes(message)

    def receive(self) -> Any:
        """The result of the current item, or its error, raised."""
        try:
            done, value = ForkingPickler.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.process.join()
            raise WorkerDied(_exit_message(self.process.exitcode)) from None
        if not done:
            raise value
        return value

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _kill(process: multiprocessing.process.BaseProcess) -> None:
    with suppress(OSError, ValueError):  # it is dead, or closed
        process.kill()


def _exit_message(code: int | None) -> str:
    if code is not None and code < 0:
        how = f"was killed by signal {-code}; if memory ran out, use fewer workers"
    else:
        how = (
            f"exited with code {code} during its work; its output above may say why. A script must start runs under "
            '`if __name__ == "__main__":`'
        )
    return f"a worker {how}. Finished work is saved; run again with the same folder to resume"


class _Plain(ForkingPickler):
    """Sends tensors by value: shared memory is scarce on many machines, and runs out without a message."""

    _extra_reducers: dict[type, Any] = {}  # noqa: RUF012  # otherwise torch adds its own


def _pack(value: object) -> bytes:
    try:
        buffer = io.BytesIO()
        _Plain(buffer, -1).dump(value)
    except Exception as error:  # a user's class may raise anything
        raise TypeError(
            f"work, items and results must be sendable to other processes, and one is not ({error}); define its "
            "functions and classes at the top of a module, or use workers=1"
        ) from error
    return buffer.getvalue()


@contextmanager
def _worker_environment() -> Iterator[None]:
    """Processes started inside compute on one thread each and ignore Ctrl-C and the like: their parent handles them."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    resource_tracker.ensure_running()  # started later, it would receive Ctrl-C
    masked = hasattr(signal, "pthread_sigmask")
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING) if masked else None
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _worker_main(pipe: connection.Connection) -> None:
    """Worker main loop: receive work, then one item at a time, until the pipe is closed."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    work: Callable[[Any], Any] = partial(_raise, RuntimeError("no work was received"))
    with suppress(EOFError, OSError):
        while True:
            kind, message = pipe.recv_bytes(), pipe.recv_bytes()
            if kind == WORK:
                work = _unpack_work(message)
            else:
                pipe.send_bytes(_answer(work, message))


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _unpack_work(message: bytes) -> Callable[[Any], Any]:
    """The work; if this process cannot import it, work that raises an error saying so."""
    try:
        work: Callable[[Any], Any] = ForkingPickler.loads(message)
    except Exception as error:
        why = f"another process cannot import the work ({type(error).__name__}: {error})"
        return partial(_raise, RuntimeError(f"{why}; define it in an importable module, or use workers=1"))
    return work


def _raise(error: Exception, _item: object) -> NoReturn:
    raise error


def _answer(work: Callable[[Any], Any], message: bytes) -> bytes:
    try:
        return _pack((True, work(ForkingPickler.loads(message))))
    except Exception as error:
        error.add_note(f"In a worker: {traceback.format_exc()}")
        try:
            answer = _pack((False, error))
            ForkingPickler.loads(answer)  # not every error can be sent
        except Exception:
            answer = _pack((False, RuntimeError(f"{type(error).__name__}: {error}")))
        return answer
