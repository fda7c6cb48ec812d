"""Chunks of work, one after the other or spread over processes, each on disk as soon as it is done."""

from __future__ import annotations

import copy
import io
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from multiprocessing import connection, resource_tracker
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import torch

from operant.campaign.folder import RunFolder, save_suite
from operant.model import MIN_ROWS, Classifier
from operant.suite import Suite

T = TypeVar("T")
R = TypeVar("R")

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}
WORK, ITEM = b"work", b"item"  # what comes next on the line to a worker
SHORT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "cannot allocate memory")


class Interrupted(KeyboardInterrupt):
    """Somebody asked to stop; what was begun is finished and kept, as ``done`` says."""

    def __init__(self, done: str) -> None:
        super().__init__(f"stopped as asked: {done}. Run again with the same folder to go on")
        self.done = done


class WorkerDied(RuntimeError):
    """A process ended that had work to do."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """What has happened: how much of a step is done, and a few words by name."""

    step: str
    done: int
    total: int
    told: Mapping[str, Any] = field(default_factory=dict)


Watch = Callable[[Event], None]
"""Is told what happens."""


class Engine(Protocol):
    """Does work on items, wherever: an item's number and result as each is done, in any order.

    Items are taken one by one, when there is room for one more; when there are no more, what was begun is finished. If
    the work fails on an item, what was begun is finished before the error is raised.
    """

    def __call__(self, work: Callable[[T], R], items: Iterable[T], /) -> Iterator[tuple[int, R]]: ...


# Chunks ---------------------------------------------------------------------------------------------------------------


def run_chunks(
    run: RunFolder,
    name: str,
    work: Callable[[int, int], Suite],
    n_chunks: int,
    *,
    batch_size: int,
    engine: Engine | None = None,
    watch: Watch | None = None,
) -> Suite:
    """The suites of all chunks, in order; those that are on disk are not worked out again.

    On Ctrl-C the chunks in work are finished and kept, then `Interrupted` is raised; a second Ctrl-C stops at once.
    Where memory is short, a chunk is worked out in smaller batches; what comes out is the same.

    Args:
        run: where chunks are kept, as ``name/chunk-0000`` and so on.
        name: of the step.
        work: from a chunk's number and the rows to compute at once (see `in_batches`) to its cases. All it draws must
            come from a generator that it makes from the chunk's number.
        n_chunks: how many.
        batch_size: rows to compute at once, as long as memory lasts.
        engine: where work is done: `serial`, the default, or a `pool`.
        watch: is told of every chunk: ``cases`` and ``failures`` so far, ``batch_size`` where it had to shrink.
    """
    if n_chunks < 1:
        raise ValueError(f"n_chunks must be at least 1, got {n_chunks}")
    names = [f"{name}/chunk-{i:04d}" for i in range(n_chunks)]
    done = {i: run.suite(chunk, _not_to_do) for i, chunk in enumerate(names) if run.has(chunk)}
    tell = partial(_tell, watch, name, n_chunks, done)
    todo, rows = [i for i in range(n_chunks) if i not in done], batch_size
    rooms = {i: run.room() for i in todo}
    with patient() as asked, run.writing(name), run.timed(name):
        tell()
        items = ((i, rooms[i], rows) for i in todo if not asked())  # taken as late as can be
        with closed((engine or serial)(_Chunk(work), items)) as finished:
            for number, needed in finished:
                done[todo[number]] = run.adopt(names[todo[number]], rooms[todo[number]])
                tell(**({"batch_size": needed} if needed < rows else {}))
                rows = min(rows, needed)
    if asked():
        raise Interrupted(f"{len(done)} of {n_chunks} chunks of {name} are done and kept in {run.path}")
    return Suite.concat([done[i] for i in range(n_chunks)])


@dataclass(frozen=True)
class _Chunk:
    """Works out a chunk in whatever process and writes it where it is told to; gives the batch size it took."""

    work: Callable[[int, int], Suite]

    def __call__(self, item: tuple[int, Path, int]) -> int:
        chunk, room, rows = item
        suite, needed = with_smaller_batches(partial(self.work, chunk), rows)
        save_suite(suite, room)
        return needed


def _tell(watch: Watch | None, step: str, total: int, done: Mapping[int, Suite], **more: object) -> None:
    if watch is not None:
        failures = sum(int((suite.prediction != suite.label).sum()) for suite in done.values())
        told = {"cases": sum(map(len, done.values())), "failures": failures, **more}
        watch(Event(step=step, done=len(done), total=total, told=told))


def _not_to_do() -> NoReturn:
    raise AssertionError("a finished chunk must not be worked out again")


@contextmanager
def closed(results: Iterator[T]) -> Iterator[Iterator[T]]:
    """Results of which nobody wants more than were taken."""
    try:
        yield results
    finally:
        if hasattr(results, "close"):
            results.close()


# Short of memory ------------------------------------------------------------------------------------------------------


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


# Ctrl-C ---------------------------------------------------------------------------------------------------------------


@contextmanager
def patient() -> Iterator[Callable[[], bool]]:
    """Whether somebody pressed Ctrl-C in the meantime; the second time is not waited for.

    Outside the main thread, or where Ctrl-C is ignored, nothing changes.
    """
    pressed: list[int] = []

    def note(number: int, _frame: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)
        with suppress(OSError):
            os.write(2, b"\nStopping as soon as the chunks in work are done; Ctrl-C again stops at once.\n")

    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main else None
    if before is None or before is signal.SIG_IGN:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


# Engines --------------------------------------------------------------------------------------------------------------


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
