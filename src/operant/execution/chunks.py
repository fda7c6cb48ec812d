"""Work cut into chunks, each on disk as soon as it is finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from operant.execution.engines import Engine, closed, serial
from operant.execution.events import Event, EventHandler
from operant.execution.interrupt import Interrupted, defer_interrupt
from operant.execution.memory import with_smaller_batches
from operant.execution.run_folder import RunFolder, save_suite
from operant.suite import Suite


def run_chunks(
    run: RunFolder,
    name: str,
    work: Callable[[int, int], Suite],
    n_chunks: int,
    *,
    batch_size: int,
    engine: Engine | None = None,
    watch: EventHandler | None = None,
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
    with defer_interrupt() as asked, run.writing(name), run.timed(name):
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


def _tell(watch: EventHandler | None, step: str, total: int, done: Mapping[int, Suite], **more: object) -> None:
    if watch is not None:
        failures = sum(int((suite.prediction != suite.label).sum()) for suite in done.values())
        told = {"cases": sum(map(len, done.values())), "failures": failures, **more}
        watch(Event(step=step, done=len(done), total=total, told=told))


def _not_to_do() -> NoReturn:
    raise AssertionError("a finished chunk must not be worked out again")
