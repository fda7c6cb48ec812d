"""Work cut into chunks, each on disk as soon as it is finished."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from operant.execution.engines import Engine, closing_results, serial
from operant.execution.interrupt import Interrupted, defer_interrupt
from operant.execution.memory import with_smaller_batches
from operant.execution.run_folder import RunFolder, require_existing, save_suite
from operant.suite import Suite

Progress = Callable[..., None]
"""Called as ``progress(done, total, **details)``."""


def run_chunks(
    run: RunFolder,
    name: str,
    work: Callable[[int, int], Suite],
    n_chunks: int,
    *,
    batch_size: int,
    engine: Engine = serial,
    progress: Progress = lambda done, total, **details: None,
) -> Suite:
    """The suites of all chunks, joined in order; chunks that are on disk are read, not computed again.

    On Ctrl-C the chunks in progress are finished and saved, then `Interrupted` is raised; a second Ctrl-C stops at
    once. When memory runs out, a chunk is computed in smaller batches, with the same result.

    Args:
        run: keeps the chunks as ``name/chunk-0000`` and so on.
        name: of the step.
        work: from a chunk's number and a batch size (see `in_batches`) to the chunk's cases. All its random numbers
            must come from a generator that it makes from the chunk's number.
        n_chunks: number of chunks.
        batch_size: rows computed at once, as long as memory suffices.
        engine: runs the chunks (default: `serial`).
        progress: called after every chunk with ``cases`` and ``failures`` so far, and ``batch_size`` if it had to
            shrink.
    """
    if n_chunks < 1:
        raise ValueError(f"n_chunks must be at least 1, got {n_chunks}")
    names = [chunk_name(name, i) for i in range(n_chunks)]
    missing = require_existing(run.path / name)
    done = {i: run.suite(chunk, missing) for i, chunk in enumerate(names) if run.has(chunk)}
    todo, rows = [i for i in range(n_chunks) if i not in done], batch_size
    staged = {i: run.stage() for i in todo}

    def report(**details: int) -> None:
        failures = sum(int((suite.prediction != suite.label).sum()) for suite in done.values())
        progress(len(done), n_chunks, cases=sum(map(len, done.values())), failures=failures, **details)

    with defer_interrupt() as interrupted, run.writing(name), run.timed(name):
        report()
        items = ((i, staged[i], rows) for i in todo if not interrupted())  # evaluated lazily, to notice Ctrl-C
        with closing_results(engine(_Chunk(work), items)) as finished:
            for item, needed in finished:
                i = todo[item]
                done[i] = run.commit(names[i], staged[i])
                report(**({"batch_size": needed} if needed < rows else {}))
                rows = min(rows, needed)
    if number := interrupted():
        raise Interrupted(f"{len(done)} of {n_chunks} chunks of {name} are finished and saved in {run.path}", number)
    return Suite.concat([done[i] for i in range(n_chunks)])


def chunk_name(name: str, i: int) -> str:
    """The name of chunk i of a step."""
    return f"{name}/chunk-{i:04d}"


@dataclass(frozen=True)
class _Chunk:
    """Computes a chunk in any process and writes it to the given place; returns the batch size it used."""

    work: Callable[[int, int], Suite]

    def __call__(self, item: tuple[int, Path, int]) -> int:
        chunk, staged, rows = item
        suite, needed = with_smaller_batches(partial(self.work, chunk), rows)
        save_suite(suite, staged)
        return needed
