"""Laws of chunks: computed once, saved at once, the same on any engine, after Ctrl-C and with little memory."""

import errno
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from operant import Classifier, load_digits, spawn
from operant.execution.chunks import run_chunks
from operant.execution.engines import Engine, WorkerDied, one_thread, pool, serial
from operant.execution.interrupt import Interrupted, defer_interrupt
from operant.execution.memory import in_batches, with_smaller_batches
from operant.execution.run_folder import DiskFull, RunFolder
from operant.generate import PGD
from operant.networks import LeNet5, initialise
from operant.signals import Stopped, exit_code
from operant.suite import Suite

ROOT = Path(__file__).parents[1]
CHUNKS = 5

digits = cache(partial(load_digits, size=28))


@dataclass(frozen=True)
class Fuzzing:
    """A chunk of twenty seeds; with ``most``, larger batches do not fit into memory."""

    model: Classifier
    most: int = 10**9

    def __call__(self, chunk: int, batch_size: int) -> Suite:
        if batch_size > self.most:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: 12 bytes")
        seeds = digits().train[20 * chunk :][:20]
        return PGD(radius=0.1, steps=2)(in_batches(self.model, batch_size), seeds, generator=spawn(0, chunk))


def model() -> Classifier:
    return Classifier(initialise(LeNet5, generator=spawn(0, "weights")))


def opened(path: Path) -> RunFolder:
    return RunFolder(path, signature={"seed": "0"})


def whole(path: Path, work: Any = None, **options: Any) -> tuple[str, str]:
    """Run all chunks in a folder; returns the digests of folder and suite."""
    with opened(path) as run:
        suite = run_chunks(run, "round-000/suite", work or Fuzzing(model()), CHUNKS, **{"batch_size": 64, **options})
        return run.digest(), suite.digest()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return whole(tmp_path_factory.mktemp("expected"))


@pytest.fixture(scope="module")
def two() -> Iterator[Engine]:
    """Two workers that can import this file; started once, since they import torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        patch.syspath_prepend(str(ROOT / "tests"))
        yield pool(2)


# Chunks ---------------------------------------------------------------------------------------------------------------


def test_chunks_are_those_of_one_call_each(tmp_path: Path, expected: tuple[str, str]) -> None:
    one_by_one = Suite.concat([Fuzzing(model())(i, 64) for i in range(CHUNKS)])
    assert one_by_one.digest() == expected[1]
    assert len(one_by_one) == 20 * CHUNKS
    assert whole(tmp_path) == expected
    assert sorted(p.name for p in (tmp_path / "round-000" / "suite").glob("chunk-*")) == [
        f"chunk-{i:04d}" for i in range(CHUNKS)
    ]


def test_finished_chunks_are_not_computed_again(tmp_path: Path, expected: tuple[str, str]) -> None:
    worked: list[int] = []

    def work(chunk: int, batch_size: int) -> Suite:
        worked.append(chunk)
        if chunk == 3 and len(worked) == 4:
            raise RuntimeError("a mistake")
        return Fuzzing(model())(chunk, batch_size)

    with pytest.raises(RuntimeError, match="a mistake"):
        whole(tmp_path, work)
    assert worked == [0, 1, 2, 3]
    assert whole(tmp_path, work) == expected
    assert worked == [0, 1, 2, 3, 3, 4]
    assert whole(tmp_path, work) == expected
    assert len(worked) == 6


def test_any_engine_and_order_will_do(tmp_path: Path, expected: tuple[str, str]) -> None:
    def backwards(work: Any, items: Any) -> Iterator[tuple[int, Any]]:
        return iter([(i, work(item)) for i, item in reversed(list(enumerate(items)))])

    assert whole(tmp_path, engine=backwards) == expected


def test_progress_is_reported_after_every_chunk(tmp_path: Path) -> None:
    calls: list[tuple[int, int, dict[str, int]]] = []

    def progress(done: int, total: int, **details: int) -> None:
        calls.append((done, total, details))

    whole(tmp_path, progress=progress)
    assert [(done, total) for done, total, _ in calls] == [(i, CHUNKS) for i in range(CHUNKS + 1)]
    assert [details["cases"] for _, _, details in calls] == [20 * i for i in range(CHUNKS + 1)]
    with opened(tmp_path) as run:
        suite = run_chunks(run, "round-000/suite", Fuzzing(model()), CHUNKS, batch_size=64, progress=progress)
    assert calls[-1] == calls[-2]  # reported once, since all chunks were finished
    assert calls[-1][2]["failures"] == int((suite.prediction != suite.label).sum()) > 0
    with opened(tmp_path) as run:
        assert run.times()["round-000/suite"] > 0


def test_searches_that_find_nothing_in_a_chunk_fit_in(tmp_path: Path) -> None:
    def work(chunk: int, batch_size: int) -> Suite:
        cases = Fuzzing(model())(chunk, batch_size)
        return cases[: 20 * (chunk % 2)]

    with opened(tmp_path) as run:
        suite = run_chunks(run, "a", work, 3, batch_size=64)
    assert (len(suite), suite.attempted) == (20, 60)


def test_no_chunks_are_rejected(tmp_path: Path) -> None:
    with opened(tmp_path) as run, pytest.raises(ValueError, match="n_chunks must be at least 1, got 0"):
        run_chunks(run, "a", Fuzzing(model()), 0, batch_size=64)


def test_a_full_disk_keeps_finished_chunks(
    tmp_path: Path, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Suite.save

    def fills_up(suite: Suite, path: Path) -> Path:
        save(suite, path)
        if sum(1 for _ in tmp_path.rglob("chunk-????")) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return path

    monkeypatch.setattr(Suite, "save", fills_up)
    with pytest.raises(DiskFull, match="round-000/suite could not be written.*free some space and run again"):
        whole(tmp_path)
    monkeypatch.undo()
    assert not list(tmp_path.rglob("*tmp"))
    assert sum(1 for _ in tmp_path.rglob("chunk-????")) == 2
    assert whole(tmp_path) == expected


# Little memory --------------------------------------------------------------------------------------------------------


def test_smaller_batches_give_the_same_bits(tmp_path: Path, expected: tuple[str, str]) -> None:
    sizes: list[int | None] = []

    def progress(done: int, total: int, **details: int) -> None:
        sizes.append(details.get("batch_size"))

    assert whole(tmp_path, Fuzzing(model(), most=30), progress=progress, batch_size=256) == expected
    assert sizes == [None, 16, None, None, None, None]  # later chunks start small


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_batches_shrink_to_the_floor_before_an_error(error: Exception) -> None:
    tried: list[int] = []

    def work(rows: int) -> None:
        tried.append(rows)
        raise error

    with pytest.raises(MemoryError, match="not enough memory even for batches of 16 rows .*; use fewer workers"):
        with_smaller_batches(work, 200)
    assert tried == [200, 100, 50, 25, 16]


def test_other_errors_are_not_mistaken_for_a_lack_of_memory() -> None:
    tried: list[int] = []

    def work(rows: int) -> None:
        tried.append(rows)
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes do not fit"):
        with_smaller_batches(work, 200)
    assert tried == [200]


def test_the_same_model_in_other_batches() -> None:
    one = model()
    other = in_batches(one, 16)
    assert (one.batch_size, other.batch_size) == (256, 16)
    x = digits().test.x[:50]
    assert torch.equal(one.batched_logits(x), other.batched_logits(x))
    assert in_batches(one, 16).notes == one.notes  # checks are not repeated


# Ctrl-C ---------------------------------------------------------------------------------------------------------------


def presses(when: int, times: int = 1, number: int = signal.SIGINT) -> Any:
    """A progress callback that presses Ctrl-C, or sends another signal, when this many chunks are finished."""

    def progress(done: int, total: int, **details: int) -> None:
        if done == when:
            for _ in range(times):
                signal.raise_signal(number)

    return progress


def test_ctrl_c_finishes_the_chunk_and_says_how_to_resume(tmp_path: Path, expected: tuple[str, str]) -> None:
    before = signal.getsignal(signal.SIGINT)

    def work(chunk: int, batch_size: int) -> Suite:
        if chunk == 2:
            signal.raise_signal(signal.SIGINT)
        return Fuzzing(model())(chunk, batch_size)

    with pytest.raises(Interrupted) as raised:
        whole(tmp_path, work)
    assert isinstance(raised.value, KeyboardInterrupt)
    assert raised.value.done == f"3 of 5 chunks of round-000/suite are finished and saved in {tmp_path}"
    assert str(raised.value) == f"interrupted: {raised.value.done}. Run again with the same folder to resume"
    assert signal.getsignal(signal.SIGINT) is before
    assert not (tmp_path / "lock").exists()
    assert whole(tmp_path) == expected


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path, expected: tuple[str, str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as raised:
        whole(tmp_path, progress=presses(1, times=2))
    assert not isinstance(raised.value, Interrupted)
    assert signal.getsignal(signal.SIGINT) is before
    assert sum(1 for _ in tmp_path.rglob("chunk-????")) == 1
    assert whole(tmp_path) == expected


def test_signal_handlers_of_others_are_left_alone(tmp_path: Path, expected: tuple[str, str]) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(whole(tmp_path)))
    thread.start()
    thread.join()
    assert found == [expected]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with defer_interrupt() as asked:
            signal.raise_signal(signal.SIGINT)
            assert not asked()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


# Engines --------------------------------------------------------------------------------------------------------------


def test_serial_computes_on_one_thread_and_puts_it_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert list(serial(lambda item: (item, torch.get_num_threads()), "ab")) == [(0, ("a", 1)), (1, ("b", 1))]
        with pytest.raises(RuntimeError), one_thread():
            raise RuntimeError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_a_pool_gives_what_serial_gives(two: Engine) -> None:
    assert sorted(two(math.factorial, range(7))) == list(serial(math.factorial, range(7)))
    assert list(two(math.factorial, [])) == []
    assert [r for _, r in two(os.getenv, ["OMP_NUM_THREADS"])] == ["1"]
    assert {r for _, r in two(_threads, range(4))} == {1}


def _threads(_: int) -> int:
    return torch.get_num_threads()


def test_two_workers_and_one_give_the_same_hashes(two: Engine, tmp_path: Path, expected: tuple[str, str]) -> None:
    assert whole(tmp_path / "a", engine=two) == expected
    calls: list[tuple[int, dict[str, int]]] = []

    def progress(done: int, total: int, **details: int) -> None:
        calls.append((done, details))

    assert whole(tmp_path / "b", Fuzzing(model(), most=30), engine=two, progress=progress) == expected
    assert calls[-1][0] == CHUNKS
    assert [details["batch_size"] for _, details in calls if "batch_size" in details] == [16]


def test_ctrl_c_in_a_pool_finishes_the_chunks_in_progress(
    two: Engine, tmp_path: Path, expected: tuple[str, str]
) -> None:
    with pytest.raises(Interrupted, match="[23] of 5 chunks"):
        whole(tmp_path, engine=two, progress=presses(1))
    assert whole(tmp_path, engine=two) == expected


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_finish_the_chunk_like_ctrl_c(tmp_path: Path, expected: tuple[str, str], number: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as raised:
        whole(tmp_path, progress=presses(2, number=number))
    assert (raised.value.number, exit_code(raised.value)) == (number, 128 + number)
    assert "2 of " in raised.value.done
    assert signal.getsignal(number) == before
    with pytest.raises(Stopped):
        whole(tmp_path, progress=presses(3, times=2, number=number))
    assert whole(tmp_path) == expected


def test_ignored_signals_stay_ignored(tmp_path: Path, expected: tuple[str, str]) -> None:
    """As nohup wants it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert whole(tmp_path, progress=presses(2, number=signal.SIGHUP)) == expected
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_ctrl_c_ends_the_workers(two: Engine, tmp_path: Path, expected: tuple[str, str]) -> None:
    list(two(abs, [1, 2]))
    before = {process.pid for process in multiprocessing.active_children()}
    with pytest.raises(KeyboardInterrupt) as raised:
        whole(tmp_path, engine=two, progress=presses(1, times=2))
    assert not isinstance(raised.value, Interrupted)
    assert not before & {process.pid for process in multiprocessing.active_children()}
    assert whole(tmp_path, engine=two) == expected


def test_errors_in_a_worker_are_raised_and_finished_work_is_kept(two: Engine) -> None:
    results = two(int, ["1", "2", "no number", "4", "5", "6"])
    kept = []
    with pytest.raises(ValueError, match="invalid literal for int") as raised:
        kept.extend(results)
    assert "In a worker: Traceback" in "".join(raised.value.__notes__)
    assert {(0, 1), (1, 2)} <= set(kept)  # and the one in progress, if there was one
    assert sorted(two(int, ["7"])) == [(0, 7)]  # the workers still run


@pytest.mark.parametrize("lost", [lambda item: item, partial(print, threading.Lock())])
def test_what_cannot_be_sent_is_an_error(two: Engine, lost: Any) -> None:
    with pytest.raises(TypeError, match="must be sendable to other processes.*or use workers=1"):
        list(two(lost, [1, 2]))
    with pytest.raises(TypeError, match="must be sendable"):
        list(two(str, [lost]))


@pytest.mark.slow
def test_a_worker_that_dies_is_an_error_and_replaced(two: Engine) -> None:
    with pytest.raises(WorkerDied, match=r"exited with code 3 during its work.*__main__.*run again"):
        list(two(os._exit, [3]))
    assert sorted(two(abs, [-1])) == [(0, 1)]


def test_one_worker_needs_no_pool() -> None:
    assert pool(1) is serial
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        pool(0)


# In processes of their own --------------------------------------------------------------------------------------------


def started(folder: Path, workers: int) -> "subprocess.Popen[str]":
    command = [sys.executable, __file__, str(folder), str(workers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(process: "subprocess.Popen[str]", chunks: int) -> None:
    assert process.stdout is not None
    while process.stdout.readline().strip() != f"{chunks} done":
        assert process.poll() is None, process.communicate()[1]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_all_processes(tmp_path: Path, expected: tuple[str, str], workers: int, number: int) -> None:
    """Terminals and batch systems send it to workers too; all end, which closes the pipe."""
    with started(tmp_path, workers) as process:
        wait_for(process, 1)
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 128 + number
    assert not (tmp_path / "lock").exists()
    assert "Stopping when the chunks in progress are finished" in err
    assert "Traceback" not in err
    assert "interrupted" in out
    assert whole(tmp_path) == expected


@pytest.mark.slow
def test_a_killed_pool_leaves_no_worker_and_can_be_resumed(tmp_path: Path, expected: tuple[str, str]) -> None:
    with started(tmp_path, 2) as process:
        wait_for(process, 1)
        process.kill()
        out, _ = process.communicate(timeout=300)  # the pipe ends when the last worker does
    assert process.returncode == -signal.SIGKILL
    assert "all done" not in out
    assert whole(tmp_path) == expected


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        found = whole(
            Path(sys.argv[1]),
            engine=pool(int(sys.argv[2])),
            progress=lambda done, total, **details: print(f"{done} done", flush=True),
        )
    except Interrupted as stopped:
        print(stopped, flush=True)
        sys.exit(exit_code(stopped))
    print("all done", found, flush=True)
