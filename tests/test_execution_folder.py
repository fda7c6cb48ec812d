"""Laws of a run folder: one process at a time, one set of settings, nothing computed twice, nothing torn.

Run as a script, this file lets processes race for the lock of a dead one, and kills runs at chosen moments.
"""

import errno
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from operant import Classifier, Samples, load_digits, results, spawn
from operant.execution import lock as lock_module
from operant.execution.chunks import run_chunks
from operant.execution.lock import Holder, take_lock
from operant.execution.memory import in_batches
from operant.execution.run_folder import Damaged, DiskFull, RunFolder
from operant.execution.signature import difference, signature_of
from operant.execution.timing import Stopwatch
from operant.generate import PGD
from operant.model.hashing import described, fingerprint, hash_of
from operant.networks import LeNet5, fit, initialise
from operant.results import TEMPORARY
from operant.retrain import Finetune
from operant.suite import Suite

RACERS, RACES = 4, 25


@dataclass(frozen=True, kw_only=True)
class Result:
    """A result with a number, a string and a tensor."""

    number: float
    word: str
    values: Tensor


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


@pytest.fixture(scope="module")
def model() -> Classifier:
    start = initialise(linear, generator=spawn(0, "weights"))
    return Classifier(fit(start, load_digits().train, epochs=2, generator=spawn(0, "fit"), progress=False).module)


@pytest.fixture(scope="module")
def cases(model: Classifier) -> Suite:
    return PGD(radius=0.1, steps=3)(model, load_digits().test[:40], generator=spawn(0, "cases"))


def opened(path: Path, **signature: str) -> RunFolder:
    return RunFolder(path, signature={"seed": "0", **signature})


def never() -> NoReturn:
    raise AssertionError("a finished step must not be computed again")


def short_run(path: Path, model: Classifier, cases: Suite) -> str:
    """A run with a step of each kind; its digest."""
    result = Result(number=0.1 + 0.2, word="a", values=torch.arange(5) / 3)
    with opened(path) as run:
        run.step("first", Result, lambda: result)
        run.suite("round-000/cases", lambda: cases)
        run.weights("round-000/weights", model, partial(retrained, model, cases, 0))
        run.step("round-000/round", Result, lambda: replace(result, word="b"))
        return run.digest()


# Steps ----------------------------------------------------------------------------------------------------------------


def test_every_kind_of_step_is_restored_and_computed_once(tmp_path, model, cases) -> None:
    short_run(tmp_path, model, cases)
    with opened(tmp_path) as run:
        result = run.step("first", Result, never)
        suite = run.suite("round-000/cases", never)
        learned = run.weights("round-000/weights", model, never)
    assert (result.number, result.word) == (0.1 + 0.2, "a")
    assert torch.equal(result.values, torch.arange(5) / 3)
    assert suite.digest() == cases.digest()
    x = load_digits().test.x
    assert not torch.equal(learned.batched_logits(x), model.batched_logits(x))
    assert learned.bounds == model.bounds


def test_values_are_read_back_from_disk(tmp_path, model, cases) -> None:
    value = Result(number=1.0, word="a", values=torch.ones(3))
    with opened(tmp_path) as run:
        first = run.step("a", Result, lambda: value)
        suite = run.suite("b", lambda: cases)
        learned = run.weights("c", model, lambda: model)
    assert first is not value
    assert suite is not cases
    assert suite.digest() == cases.digest()
    assert learned is not model
    with opened(tmp_path) as run:
        x = load_digits().test.x
        assert torch.equal(run.weights("c", model, never).batched_logits(x), learned.batched_logits(x))


def test_steps_of_different_kinds_may_share_a_name(tmp_path, model, cases) -> None:
    with opened(tmp_path) as run:
        assert not run.has("a/b")
        run.step("a/b", Result, lambda: Result(number=1, word="", values=torch.ones(1)))
        run.suite("a/b", lambda: cases)
        run.weights("a/b", model, lambda: model)
        assert run.has("a/b")
        assert not run.has("a/c")
        assert len(run.suite("a/b", never)) == len(cases)


def test_anything_that_saves_itself_can_be_cached(tmp_path) -> None:
    def save(text: str, path: Path) -> None:
        path.write_text(text)

    with opened(tmp_path) as run:
        assert run.cached("words.txt", lambda: "some words", save=save, load=Path.read_text) == "some words"
        assert run.cached("words.txt", never, save=save, load=Path.read_text) == "some words"


def test_a_draft_survives_kills_until_its_step_is_finished(tmp_path, monkeypatch) -> None:
    value, seal = Result(number=1, word="", values=torch.ones(1)), RunFolder._write_seal

    def work(run: RunFolder) -> Result:
        draft = run.draft("round-000/a")
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(draft.read_text() + "more" if draft.exists() else "some")
        return value

    def killed(run: RunFolder, main: Path) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "_write_seal", killed)  # when everything but the seal is written
    with pytest.raises(KeyboardInterrupt), opened(tmp_path) as run:
        run.step("round-000/a", Result, partial(work, run))
    monkeypatch.setattr(RunFolder, "_write_seal", seal)
    with opened(tmp_path) as run:
        assert run.draft("round-000/a").read_text() == "some"
        run.step("round-000/b", Result, lambda: value)
        assert run.draft("round-000/a").exists()
        run.step("round-000/a", Result, partial(work, run))
        assert not run.draft("round-000/a").exists()
        before = run.digest()
        run.draft("round-000/a").write_text("left by a kill after the seal")
        run.step("round-000/a", Result, never)
        assert run.digest() == before


def test_a_newer_result_of_the_run_replaces_the_older(tmp_path, model, cases) -> None:
    other = model.rewrap(initialise(linear, generator=spawn(1, "weights")))
    x, digests = load_digits().test.x, []
    for path, several in (
        (tmp_path / "at once", [(model, cases)]),
        (tmp_path / "later", [(other, None), (model, cases)]),
    ):
        for delivered in several:
            with opened(path) as run:
                run.deliver(*delivered)
                digest = run.digest()
        digests.append(digest)
    assert digests[0] == digests[1]
    assert Suite.open(path / "cases").digest() == cases.digest()
    with opened(path) as run:
        assert torch.equal(run.weights("model", other, never).batched_logits(x), model.batched_logits(x))
        run.deliver(other, None)
    assert not (path / "cases").exists()


def test_work_that_fails_leaves_nothing(tmp_path) -> None:
    def fails() -> Result:
        raise RuntimeError("no")

    with opened(tmp_path) as run:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no"):
                run.step("a", Result, fails)
        assert not run.has("a")
    assert {file.name for file in tmp_path.iterdir()} - {"timing.jsonl"} == {"run.json", ".lock.guard"}


def test_unfinished_steps_are_replaced(tmp_path, cases) -> None:
    """As a kill leaves them: without the seal, or a part, and temporary files."""
    shorter = cases[:7]
    with opened(tmp_path) as run:
        cases.save(tmp_path / "a")
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "manifest.json").write_text("{")
        (tmp_path / f".x{TEMPORARY}").mkdir()
        assert run.suite("a", lambda: shorter).digest() == shorter.digest()
        assert run.suite("b", lambda: shorter).digest() == shorter.digest()
    with opened(tmp_path) as run:
        assert run.suite("a", never).digest() == shorter.digest()
    assert not list(tmp_path.rglob(f"*{TEMPORARY}*"))


def test_an_old_half_written_chunk_does_no_harm(tmp_path, cases) -> None:
    """A kill inside a chunk leaves its staged files, which are old when the run is resumed hours later."""
    with opened(tmp_path) as run:
        staged = run.stage()
    cases.save(staged)
    for old in (*staged.iterdir(), staged):
        os.utime(old, (0, 0))
    with opened(tmp_path) as run:
        assert run.suite("a", lambda: cases).digest() == cases.digest()
    assert not list(tmp_path.rglob(f"*{TEMPORARY}*"))


@pytest.mark.parametrize("name", ["", "/a", "a//b", "../a", "a/..", ".a", "a/.b", "a b", "run", "a\\b", "a\n"])
def test_names_cannot_leave_the_folder(tmp_path, name) -> None:
    with opened(tmp_path) as run, pytest.raises(ValueError, match="a step's name must consist"):
        run.step(name, Result, never)


def test_a_folder_must_be_open(tmp_path) -> None:
    run = opened(tmp_path)
    with pytest.raises(ValueError, match="is not open; use it as `with"):
        run.step("a", Result, never)
    with run:
        pass
    with pytest.raises(ValueError, match="is not open"):
        run.suite("a", never)


# The lock -------------------------------------------------------------------------------------------------------------


def lock(path: Path, **change: object) -> None:
    """Write the lock of the process that started the tests, or of another one."""
    holder = Holder(pid=os.getppid(), host=socket.gethostname(), started=lock_module._start_time(os.getppid()) or "")
    path.mkdir(exist_ok=True)
    (path / "lock").write_text(json.dumps(vars(replace(holder, **change))))


def test_a_living_process_keeps_others_out(tmp_path) -> None:
    lock(tmp_path)
    with (
        pytest.raises(ValueError, match=f"{tmp_path} is in use by process {os.getppid()}; wait until"),
        opened(tmp_path),
    ):
        pass
    assert (tmp_path / "lock").exists()
    assert not (tmp_path / "run.json").exists()


def test_a_process_cannot_enter_twice(tmp_path) -> None:
    with opened(tmp_path) as run:
        with pytest.raises(ValueError, match="in use by this process"), opened(tmp_path):
            pass
        run.step("still-mine", Result, lambda: Result(number=1, word="", values=torch.ones(1)))
    with opened(tmp_path):
        assert (tmp_path / "lock").exists()
    assert not (tmp_path / "lock").exists()


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path) -> None:
    with subprocess.Popen(["true"]) as dead:
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
        lock(tmp_path, pid=dead.pid, started="whenever")  # a zombie, whose exit code was not read yet
        with opened(tmp_path):
            assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    lock(tmp_path, pid=dead.pid, started="whenever")
    with opened(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_a_reused_process_id_does_not_hold_the_lock(tmp_path) -> None:
    lock(tmp_path, started="long ago")
    with opened(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_the_lock_of_another_machine_is_respected(tmp_path) -> None:
    lock(tmp_path, host="elsewhere", pid=17)
    with (
        pytest.raises(ValueError, match=r"process 17 on elsewhere.*if that run is dead, delete .*lock"),
        opened(tmp_path),
    ):
        pass
    (tmp_path / "lock").unlink()
    with opened(tmp_path):
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"pid": "x", "host": "h", "started": ""}', "null"])
def test_a_damaged_lock_is_an_error(tmp_path, content) -> None:
    (tmp_path / "lock").write_text(content)
    with (
        pytest.raises(ValueError, match="lock is damaged; if no run uses this folder, delete it"),
        opened(tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    "pid", [0, -1, pytest.param(-os.getpid(), id="own"), 2**22 + 1, 2**31, 2**40, 10**30, "-7", 5e6]
)
@pytest.mark.parametrize("started", ["", "whenever"])
def test_the_lock_of_an_impossible_process_is_taken_over(tmp_path, pid, started) -> None:
    """To `os.kill`, 0 and negative numbers mean groups of processes, which exist."""
    lock(tmp_path, pid=pid, started=started)
    with opened(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("content", ['{"pid": 1e400, "host": "h", "started": ""}', '{"pid": NaN, "host": "h"}', "\x00"])
def test_a_lock_with_nonsense_is_an_error(tmp_path, content) -> None:
    (tmp_path / "lock").write_text(content)
    with pytest.raises(ValueError, match="lock is damaged; if no run uses this folder, delete it"), opened(tmp_path):
        pass


def test_the_own_process_id_of_an_earlier_life_does_not_hold_the_lock(tmp_path) -> None:
    """In a container every run may have the same id."""
    lock(tmp_path, pid=os.getpid(), started="long ago")
    with opened(tmp_path):
        pass


def test_the_process_of_another_user_holds_the_lock_only_if_it_is_the_same(tmp_path, monkeypatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError

    started = lock_module._start_time(os.getppid())
    monkeypatch.setattr(os, "kill", denied)
    lock(tmp_path, started=started)
    with pytest.raises(ValueError, match=r"If that process does not run Operant, delete .*lock"), opened(tmp_path):
        pass
    lock(tmp_path, started="long ago")
    with opened(tmp_path):
        pass


def test_the_lock_is_released_after_an_error(tmp_path) -> None:
    with pytest.raises(RuntimeError), opened(tmp_path):
        raise RuntimeError
    with pytest.raises(KeyboardInterrupt), opened(tmp_path):
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="other settings"), opened(tmp_path, seed="1"):
        pass
    assert not (tmp_path / "lock").exists()


def test_without_gates_the_lock_still_works(tmp_path, monkeypatch) -> None:
    """The lock also works on systems without fcntl."""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    spec = importlib.util.spec_from_file_location("results_elsewhere", results.__file__)
    assert spec is not None
    assert spec.loader is not None
    elsewhere = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "results_elsewhere", elsewhere)
    spec.loader.exec_module(elsewhere)
    assert elsewhere.fcntl is None
    monkeypatch.setattr(lock_module, "locked", elsewhere.locked)
    holder = take_lock(tmp_path)
    with pytest.raises(ValueError, match="in use by this process"):
        take_lock(tmp_path)
    lock_module.release_lock(tmp_path, holder)
    assert not (tmp_path / "lock").exists()


@pytest.mark.slow
def test_only_one_process_replaces_a_dead_lock(script: dict[str, Any]) -> None:
    assert script["winners"] == [1] * RACES


def race(path: Path) -> int:
    """Let processes try to replace a dead lock at the same time; returns how many succeed."""
    lock(path, pid=2**22 + 1, started="long ago")
    (start, go), (reader, writer), (wait, end) = os.pipe(), os.pipe(), os.pipe()
    children = []
    for _ in range(RACERS):
        if (child := os.fork()) == 0:
            os.close(go), os.close(end)
            os.read(start, 1)
            try:
                take_lock(path)
                os.write(writer, b"1")
            except ValueError:
                os.write(writer, b"0")
            os.read(wait, 1)  # wait until all have tried
            os._exit(0)
        children.append(child)
    os.close(go)
    answers = b"".join(os.read(reader, 1) for _ in children)
    os.close(end)
    for child in children:
        os.waitpid(child, 0)
    return answers.count(b"1")


# Settings -------------------------------------------------------------------------------------------------------------


def test_other_settings_are_rejected_and_named(tmp_path) -> None:
    long = "PGD(" + ", ".join(f"option{i}={i}" for i in range(40))
    with RunFolder(tmp_path, signature={"seed": "0", "fuzz": f"{long}, steps=3)", "old": "x", "same": "s"}):
        pass
    with (
        pytest.raises(ValueError) as raised,
        RunFolder(tmp_path, signature={"seed": "1", "fuzz": f"{long}, steps=5)", "new": "y" * 500, "same": "s"}),
    ):
        pass
    assert "seed (0 -> 1); fuzz (steps=3 -> steps=5); old (x -> nothing); new. Restore them" in str(raised.value)
    assert "same" not in str(raised.value).partition("settings:")[2]


def test_a_folder_can_be_opened_without_a_signature(tmp_path) -> None:
    value = Result(number=1, word="", values=torch.ones(1))
    with opened(tmp_path, more="x") as run:
        run.step("a", Result, lambda: value)
        before = run.digest()
    with RunFolder(tmp_path) as run:
        assert run.step("a", Result, never).number == 1
        assert run.digest() == before
        run.step("b", Result, lambda: value)
    with opened(tmp_path, more="x") as run:
        assert run.step("b", Result, never).number == 1
    with pytest.raises(ValueError, match="nothere contains no run"), RunFolder(tmp_path / "nothere"):
        pass
    assert not (tmp_path / "nothere").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_signature_loses_nothing(tmp_path, content) -> None:
    value = Result(number=1, word="", values=torch.ones(1))
    with opened(tmp_path) as run:
        run.step("a", Result, lambda: value)
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(Damaged, match=r"run.json is damaged; delete it and run again"), opened(tmp_path):
        pass
    (tmp_path / "run.json").unlink()
    with opened(tmp_path, seed="1") as run, pytest.raises(Damaged, match="a.json was made with other settings; delete"):
        run.step("a", Result, never)
    (tmp_path / "run.json").unlink()
    with opened(tmp_path) as run:
        assert run.step("a", Result, never).number == 1


def test_a_path_that_cannot_be_a_folder_is_an_error(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="must be a folder, but is a file; choose another"), opened(tmp_path / "file"):
        pass
    with pytest.raises(ValueError, match="cannot be created .*; choose another"), opened(tmp_path / "file" / "below"):
        pass


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_read_only_folder_is_an_error(tmp_path, monkeypatch, number) -> None:
    def fails(descriptor: int) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fails)
    with (
        pytest.raises(ValueError, match=f"could not be written to {tmp_path}.*; make the folder writable, or choose"),
        opened(tmp_path),
    ):
        pass


# Damage ---------------------------------------------------------------------------------------------------------------


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_any_damaged_file_is_named_and_can_be_computed_again(
    tmp_path: Path, model: Classifier, cases: Suite, damage: Callable[[Path], None]
) -> None:
    digest = short_run(tmp_path / "well", model, cases)
    whole = [file.relative_to(tmp_path / "well") for file in (tmp_path / "well").rglob("*") if file.is_file()]
    steps = [file for file in whole if file.name not in ("run.json", "timing.jsonl", ".lock.guard")]
    assert len(steps) == 4 + 4 + 2 + 1  # seals; two results and their tensors; manifest and shard; weights
    for number, file in enumerate(steps):
        shutil.copytree(tmp_path / "well", path := tmp_path / str(number))
        damage(path / file)
        is_seal, is_main = file.suffix == ".seal", file.suffix == ".json" or file.stem == "weights"
        if damage is not Path.unlink or not (is_seal or (is_main and file.stem != "manifest")):
            with pytest.raises(Damaged) as raised:
                short_run(path, model, cases)
            assert is_seal or str(path / file) in str(raised.value)
            delete(path / file if "it " in raised.value.args[0].partition("delete ")[2][:3] else advised(raised.value))
        assert short_run(path, model, cases) == digest  # without its seal, or the file itself, a step was not finished


def advised(error: Damaged) -> Path:
    match = re.search(r"elete (\S+) to compute it again", str(error))
    assert match is not None
    return Path(match[1])


def delete(place: Path) -> None:
    shutil.rmtree(place) if place.is_dir() else place.unlink()


def test_a_foreign_file_is_an_error(tmp_path, cases) -> None:
    with opened(tmp_path) as run:
        run.suite("a", lambda: cases)
    cases.append_to(tmp_path / "a")
    with opened(tmp_path) as run, pytest.raises(Damaged, match="shard-000001.safetensors does not belong here; delete"):
        run.suite("a", never)


def test_another_kind_of_result_is_an_error(tmp_path, model) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Other:
        number: float

    with opened(tmp_path) as run:
        run.step("a", Other, lambda: Other(number=1))
        with pytest.raises(Damaged, match=r"it holds format 1 Other.*Delete .*a.json to compute it again"):
            run.step("a", Result, never)
        run.weights("w", model, lambda: model)
        with pytest.raises(Damaged, match=r"does not hold the weights.*Delete .*w.safetensors to compute it"):
            run.weights("w", Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 3))), never)


# Full disks -----------------------------------------------------------------------------------------------------------


def test_a_full_disk_at_any_moment_loses_no_finished_work(
    tmp_path: Path, model: Classifier, cases: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, flush = short_run(tmp_path / "well", model, cases), os.fsync
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(flush(descriptor)))
    short_run(tmp_path / "counted", model, cases)
    for nth in [*range(4), *range(4, len(flushed), 3)]:
        left, full = iter(range(nth)), [(n, os.strerror(n)) for n in (errno.ENOSPC, errno.EDQUOT)][nth % 2]

        def fills_up(descriptor: int, left=left, full=full) -> None:
            if next(left, None) is None:
                raise OSError(*full)
            flush(descriptor)

        path = tmp_path / str(nth)
        monkeypatch.setattr(os, "fsync", fills_up)
        with pytest.raises(DiskFull, match="the disk is full: .*is saved there; free some space and run again"):
            short_run(path, model, cases)
        assert not list(path.rglob(f"*{TEMPORARY}*"))
        assert not (path / "lock").exists()
        monkeypatch.setattr(os, "fsync", flush)
        assert short_run(path, model, cases) == digest
    assert len(flushed) > 20


# Digests --------------------------------------------------------------------------------------------------------------


def test_every_second_of_all_sessions_belongs_to_one_part(tmp_path) -> None:
    """Also if blocks are nested, a session starts before its folder is opened, or a clock gives many digits."""
    now, passed = 100.0, 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0004
        return now

    for _ in range(3):
        start = now
        stopwatch = Stopwatch(started=start, clock=clock)
        with stopwatch.timed("conditions"):
            clock()
        with RunFolder(tmp_path, signature={"a": "1"}, stopwatch=stopwatch) as run:
            stopwatch.start_is_over()
            with run.timed("outer"), run.timed("inner"):
                run.step("step", Result, lambda: Result(number=clock(), word="", values=torch.zeros(1)))
            clock()
        with stopwatch.timed("report"):
            clock()
        passed += now - start
        now += 50  # between two sessions
    times = run.times()
    assert set(times) == {"start", "conditions", "outer", "report", "other"}
    assert sum(times.values()) == pytest.approx(passed, abs=0.01)
    assert times["conditions"] == pytest.approx(3 * 2 * 1.0004, abs=0.01)


def test_the_digest_covers_everything_but_timing_and_lock(tmp_path, cases) -> None:
    with opened(tmp_path) as run:
        run.suite("a", lambda: cases)
        before = run.digest()
        for name in ("fuzz", "fuzz", "retrain"):
            with run.timed(name):
                time.sleep(0.02)
        (tmp_path / f".y{TEMPORARY}").write_text("half")
        assert run.digest() == before
        times = run.times()
        assert [name for name in times if name in ("fuzz", "retrain")] == ["fuzz", "retrain"]
        assert times["fuzz"] >= 0.04
        with open(tmp_path / "timing.jsonl", "a") as file:
            file.write('3\n{"fuzz": [1]}\n{"fuzz": 2}\n{"fuz')
        again = run.times()
        assert again["fuzz"] == pytest.approx(times["fuzz"] + 2)
        assert again["retrain"] == times["retrain"]
        with opened(tmp_path / "inner") as inner:
            inner.suite("b", lambda: cases)
            before = run.digest()
            with inner.timed("fuzz"):
                time.sleep(0.02)
        assert run.digest() == before
        (tmp_path / "more").write_text("")
        assert run.digest() != before


def test_the_digest_does_not_depend_on_the_order_of_writing(tmp_path, cases) -> None:
    digests = []
    for order in ("ab", "ba"):
        with opened(tmp_path / order) as run:
            for name in order:
                run.suite(name, lambda name=name: cases[: 5 if name == "a" else 9])
            digests.append(run.digest())
    assert digests[0] == digests[1]


def test_fingerprints_ignore_the_order_of_keys_but_not_the_content(tmp_path) -> None:
    def file(name: str, header: str, data: bytes) -> str:
        path = tmp_path / name
        path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + data)
        return fingerprint(path)

    one = file("1.safetensors", '{"a": {"x": 1}, "b": 2}', b"data")
    assert file("2.safetensors", '{"b": 2, "a": {"x": 1}}  ', b"data") == one
    assert file("3.safetensors", '{"b": 2, "a": {"x": 1}}', b"date") != one
    assert file("4.safetensors", '{"b": 3, "a": {"x": 1}}', b"data") != one
    assert file("5.json", '{"b": 2, "a": {"x": 1}}', b"data") != one


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_hashes_separate_their_parts(a: list[bytes], b: list[bytes]) -> None:
    assert (hash_of(*a) == hash_of(*b)) == (a == b)


def test_signatures_contain_what_counts_and_nothing_else(model) -> None:
    digits = load_digits()

    def signed(fuzz: object = PGD(radius=0.1), **change: object) -> dict[str, str]:
        parts = {"model": model, "train": digits.train, "seed": 0, "fuzz": fuzz, **change}
        return signature_of(Finetune(progress=bool(change)), free=["epochs"], **parts)

    same = signed()
    assert signed(model=model.rewrap(model.unwrap()), train=digits.train[:], fuzz=PGD(radius=0.1)) == same
    assert "epochs" not in same
    assert same["fuzz"].startswith("PGD(radius=0.1, norm='linf', steps=10")
    y = digits.train.labels
    for name, other in {
        "model": Classifier(model.unwrap(), mean=0.5),
        "train": Samples(digits.train.x, (y + 1) % 10, digits.train.ids),
        "seed": 1,
        "fuzz": PGD(radius=0.2),
    }.items():
        changed = signed(**{name: other})
        assert [n for n in same if changed[n] != same[n]] == [name]


def test_the_part_of_a_model_that_changed_is_named() -> None:
    module = nn.Linear(2, 2)
    more = nn.Linear(2, 2)
    more.load_state_dict({name: v + 1 for name, v in module.state_dict().items()})
    old = Classifier(module, mean=(0.5, 0.25), bounds=(0, 1))
    changes = {
        r"mean=0.5 0.25 -> mean=0.5 0.125": Classifier(module, mean=(0.5, 0.125), bounds=(0, 1)),
        r"std=None -> std=0.5": Classifier(module, mean=(0.5, 0.25), std=0.5, bounds=(0, 1)),
        r"bounds=\S+ \S+ -> bounds=\S+ \S+": Classifier(module, mean=(0.5, 0.25), bounds=(0, 2)),
        r"weights=\w+ -> weights=\w+": Classifier(more, mean=(0.5, 0.25), bounds=(0, 1)),
    }
    for what, new in changes.items():
        assert re.fullmatch(rf"model \({what}\)", difference("model", described(old), described(new)))
    wider = Classifier(nn.Sequential(module), mean=(0.5, 0.25), bounds=(0, 1))
    assert "module=" in difference("model", described(old), described(wider))


def top_level(naturalness: object) -> None:
    """A move that can be restored."""


def test_functions_that_cannot_be_restored_are_rejected() -> None:
    @dataclass(frozen=True)
    class Local:
        radius: float = 0.1

    @dataclass(frozen=True)
    class Options:
        moves: dict[str, object]

    assert signature_of(Options({"a": top_level, "b": partial(PGD, radius=0.1)}))["moves"] == (
        "{a: top_level, b: PGD(radius=0.1)}"
    )
    here = "test_functions_that_cannot_be_restored_are_rejected.<locals>."
    for move, name in (
        (lambda naturalness: 3, f"{here}<lambda>"),
        (partial(lambda naturalness: 3), f"{here}<lambda>"),
        (Local(), f"{here}Local"),
        (Local, f"{here}Local"),
    ):
        with pytest.raises(ValueError) as error:
            signature_of(Options({"a": top_level, "b": move}))
        message = f"moves must use functions and classes defined at the top of a module, got {name}, which"
        assert message in str(error.value)


def test_descriptions_have_no_memory_addresses_and_include_contents() -> None:
    moves = {"a": partial(PGD, radius=0.1), "b": [LeNet5, described, lambda: 3], "c": object()}
    assert "0x" not in described(moves)
    assert described(moves) == described({**moves, "c": object()})
    assert "PGD(radius=0.1)" in described(moves)
    many = torch.arange(10_000.0)
    changed = many.clone()
    changed[5000] += 1
    assert described(partial(PGD, radius=many)) == described(partial(PGD, radius=many.clone()))
    assert described(partial(PGD, radius=many)) != described(partial(PGD, radius=changed))
    assert described([many.numpy()]) != described([changed.numpy()])
    assert described(nn.Linear(2, 2)) != described(nn.Linear(2, 2))
    frozen = nn.Linear(2, 2)
    before = described(frozen)
    frozen.weight.requires_grad = False
    assert described(frozen) != before


# Kills ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_killed_at_any_moment_and_resumed_ends_the_same(script: dict[str, Any]) -> None:
    """Kills one after the other in one folder, each a few moments further; then one kill in each of many folders."""
    assert len(script["digests"]) > 5
    assert len(set(script["digests"])) == 1
    assert script["killed"] > 8
    assert script["torn"] == []


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of this file as a script, run once: it imports torch, then forks."""
    return run_script(tmp_path_factory.mktemp("script"), step=29)


@pytest.mark.slow
def test_a_run_killed_at_each_single_moment_ends_the_same(tmp_path: Path) -> None:
    found = run_script(tmp_path, step=1)
    assert len(found["digests"]) > 120
    assert len(set(found["digests"])) == 1
    assert found["torn"] == []


def run_script(folder: Path, step: int) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, folder, str(step)], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


digits = cache(load_digits)


@dataclass(frozen=True)
class Fuzzing:
    """A chunk of ten seeds."""

    model: Classifier
    number: int

    def __call__(self, chunk: int, batch_size: int) -> Suite:
        seeds = digits().train[30 * self.number + 10 * chunk :][:10]
        moment("in a chunk")
        return PGD(radius=0.1, steps=2)(
            in_batches(self.model, batch_size), seeds, generator=spawn(0, self.number, chunk)
        )


def whole_run(path: Path) -> str:
    """Two rounds of fuzzing in chunks and retraining; the digest."""
    model = Classifier(initialise(linear, generator=spawn(0, "weights")))
    with opened(path) as run:
        for number in range(2):
            place = f"round-{number:03d}"
            cases = run_chunks(run, f"{place}/suite", Fuzzing(model, number), 3, batch_size=64)
            model = run.weights(f"{place}/weights", model, partial(retrained, model, cases, number))
            result = Result(number=model.accuracy(digits().test), word=place, values=cases["margin"])
            run.step(f"{place}/round", Result, lambda result=result: result)
        return run.digest()


def retrained(model: Classifier, cases: Suite, number: int) -> Classifier:
    moment("in retraining")
    return model.rewrap(fit(model.unwrap(), cases.samples(), epochs=1, generator=spawn(number), progress=False).module)


left = [10**9]  # moments until the kill


def moment(_: object = None) -> None:
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)


def around(call: Callable[..., object]) -> Callable[..., object]:
    """Moments before and after something happens on disk."""

    def called(*arguments: object, **options: object) -> object:
        moment()
        result = call(*arguments, **options)
        moment()
        return result

    return called


def attempt(path: Path, moments: int) -> str | None:
    """The digest of a run in a process of its own; None if it was killed after this many moments."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        left[0] = moments
        os.write(writer, whole_run(path).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        digest = pipe.read()
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == (0 if digest else signal.SIGKILL)
    return digest or None


def kills(path: Path, step: int) -> dict[str, object]:
    """The digests of undisturbed runs, of one killed often, and of runs killed once, at regular moments."""
    digests, killed, torn = [whole_run(path / "undisturbed")], 0, []  # here, so that later ones need no imports
    for name in ("rename", "replace", "link"):
        setattr(os, name, around(getattr(os, name)))
    os.fsync = moment  # written data outlive a process anyway
    while (digest := attempt(path / "often", 5 + 7 * killed)) is None:
        killed += 1
    digests.append(digest)
    for moments in range(0, 10**9, step):
        place = path / str(moments)
        if (digest := attempt(place, moments)) is None:
            killed += 1
            torn += [str(file) for file in place.rglob("*.json") if not readable(file)]
            digest = attempt(place, 10**9)
            digests.append(digest)
        else:
            return {"digests": [*digests, digest], "killed": killed, "torn": torn}
    raise AssertionError


def readable(file: Path) -> bool:
    try:
        json.loads(file.read_bytes())
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    torch.set_num_threads(1)
    here = Path(sys.argv[1])
    print(json.dumps({"winners": [race(here / "race") for _ in range(RACES)], **kills(here, int(sys.argv[2]))}))
