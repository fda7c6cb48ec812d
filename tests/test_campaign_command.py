"""`operant run`: exit codes, messages, JSON, and folders that cannot be resumed."""

import json
import os
import pty
import re
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from operant import Classifier, Samples
from operant.campaign import build as building
from operant.campaign.assessing import SequentialAssessment
from operant.campaign.progress import event_json, result_json
from operant.campaign.records import CampaignResult, Round
from operant.cli import app
from operant.data import LabelsMissing
from operant.execution.engines import WorkerDied
from operant.execution.events import Event
from operant.execution.interrupt import Interrupted
from operant.execution.run_folder import RunFolder
from operant.execution.signature import signature_of
from operant.model import Finding
from operant.signals import Stopped

runner = CliRunner()


ROUND = Event(step="round", round=0, done=0, total=5, details={"record": "round 0: clean [99%]"})


def delivered(*, met: bool, rounds: int = 2) -> CampaignResult:
    assessed = SequentialAssessment(labels=100, failures=1, upper=0.04, confidence=0.975, reason="")
    records = [Round(number=i, arrived=40, clean=0.9, assessment=None if i else assessed) for i in range(rounds)]
    model = Classifier(nn.Linear(64, 3))
    return CampaignResult(
        model=model, met=met, reason="It ended.", assessment=assessed, suite=None, rounds=tuple(records)
    )


@pytest.fixture
def ending(user, monkeypatch):
    """Runs `operant run` on the user's folder with a campaign that returns a result or raises an error."""

    def run(end, *options):
        def campaign(self, *, on_event):
            if isinstance(end, BaseException):
                raise end
            signature = signature_of(self.campaign)
            with RunFolder(self.folder, signature=signature, stopwatch=self.stopwatch) as run:
                on_event(ROUND)
                with run.timed("round-000/suite"):
                    time.sleep(0.02)
                run.deliver(end.model, end.suite)
            return end

        monkeypatch.setattr(building.CampaignJob, "run", campaign)
        return runner.invoke(app, ["run", str(user.path / "operant.toml"), *options])

    return run


def test_exit_codes_and_messages_say_how_it_ended(ending, user):
    done = ending(delivered(met=True))
    assert (done.exit_code, "met: It ended." in done.stdout) == (0, True)
    assert "round 0: clean [99%]" in done.stdout
    assert (user.path / "operant-run" / "model.safetensors").exists()
    done = ending(delivered(met=False))
    assert (done.exit_code, "not met: It ended." in done.stdout) == (1, True)
    done = ending(delivered(met=True, rounds=1))
    assert (done.exit_code, "already met" in done.stdout) == (0, True)
    assert "initial model was good enough" in done.stdout
    assert re.search(r"time: \d+ s", done.stdout)


def finish_a_step(folder):
    """What a finished step of a round leaves in the folder of a run."""
    (folder / "round-000").mkdir(parents=True)
    for name in ("field.json", ".field.json.seal"):
        (folder / "round-000" / name).touch()


def test_missing_labels_and_ctrl_c_are_reported_with_how_to_resume(ending, user):
    finish_a_step(user.path / "operant-run")
    done = ending(LabelsMissing("write them into labels.csv, and run this again"))
    assert done.exit_code == 2
    assert "labels needed: write them into labels.csv" in done.stderr
    assert "requested in batches of 25, at most 400 in all rounds ([budget] label" in done.stderr
    assert "To resume: operant run" in done.stderr
    for stop, what in (
        (Interrupted("1 of 2 chunks are done"), "1 of 2 chunks are done"),
        (KeyboardInterrupt(), "finished work is kept"),
    ):
        done = ending(stop)
        assert done.exit_code == 130
        assert f"stopped: {what}. To resume: operant run" in done.stderr
        assert done.stderr.lower().count("stopped") == done.stderr.lower().count("to resume") == 1


def test_notes_and_warnings_about_conditions_are_printed_once(user, ending, monkeypatch):
    make = building.build
    finding = Finding(name="odd conditions", problem="odd", advice="look", severity="warning")

    def noted(*arguments, **options):
        return replace(make(*arguments, **options), notes=("Conditions: blur",), findings=(finding,))

    monkeypatch.setattr(building, "build", noted)
    first = ending(delivered(met=True))
    assert "Conditions: blur" in first.stdout
    assert "odd conditions" in first.stderr
    for name in ("info.json", ".info.json.seal"):  # the campaign has begun
        (user.path / "operant-run" / name).touch()
    again = ending(KeyboardInterrupt())
    assert "Conditions: blur" not in again.stdout
    assert "odd conditions" not in again.stderr


def test_missing_labels_are_reported_with_the_state_of_the_round(user, monkeypatch):
    def campaign(self, *, on_event):
        for done in (0, 25):
            on_event(Event(step="assess", round=0, done=done, total=400))
        raise LabelsMissing("write them into labels.csv")

    monkeypatch.setattr(building.CampaignJob, "run", campaign)
    done = runner.invoke(app, ["run", str(user.path)])
    message = "labels needed: write them into labels.csv. Round 0, assessing: 25 of at most 400 labels. Labels are"
    assert message in done.stderr


def test_ctrl_c_says_that_work_is_kept_only_if_some_is(user, monkeypatch):
    def pressed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "read_data", pressed)
    folder = user.path / "operant-run"
    folder.mkdir()
    for name in ("info.json", ".info.json.seal"):  # describes the campaign, and costs nothing
        (folder / name).touch()
    done = runner.invoke(app, ["run", str(user.path)])
    assert done.exit_code == 130
    assert done.stderr.startswith("stopped: nothing was finished yet. To start again: operant run ")
    finish_a_step(folder)
    done = runner.invoke(app, ["run", str(user.path)])
    assert done.exit_code == 130
    assert done.stderr.startswith("stopped: finished work is kept. To resume: operant run ")


def test_warnings_of_the_doctor_are_counted_on_resume(ending, user, monkeypatch):
    kinds = ("warning", "warning")
    findings = [Finding(name=f"odd {i}", problem="p", advice="a", severity=k) for i, k in enumerate(kinds)]
    monkeypatch.setattr(Classifier, "doctor", lambda *_, **__: findings)
    first = ending(delivered(met=True))
    assert "odd 0" in first.stderr
    assert "odd 1" in first.stderr
    for name in ("info.json", ".info.json.seal"):  # the campaign has begun
        (user.path / "operant-run" / name).touch()
    again = ending(KeyboardInterrupt())
    assert "odd" not in again.output
    assert again.stdout.count("The doctor has 2 warnings, as when this run began; `operant doctor` prints them.") == 1
    findings.append(Finding(name="broken", problem="p", advice="a", severity="error"))
    refused = ending(delivered(met=True))
    assert "odd 0" in refused.stderr
    assert "broken" in refused.stderr
    assert refused.exit_code == 2


@pytest.mark.parametrize(
    "error",
    [ValueError("the run was begun with others"), OSError("the disk is full"), WorkerDied("a worker was killed")],
)
def test_expected_errors_are_one_sentence(ending, error):
    done = ending(error)
    assert (done.exit_code, done.stderr) == (2, f"cannot run: {error}\n")


@pytest.mark.parametrize("error", [KeyError("layer"), RuntimeError("x"), ZeroDivisionError(), AssertionError("no")])
def test_the_traceback_of_an_unexpected_error_is_in_a_file(ending, error, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = ending(error)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"cannot run: {type(error).__name__}{f': {error}' if str(error) else ''}. This is")
    [file] = tmp_path.glob("operant-traceback-*.txt")
    assert f"the traceback is in {file}" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in file.read_text()
    assert type(error).__name__ in file.read_text()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert "here is the traceback:\nTraceback" in ending(error).stderr


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        torch.OutOfMemoryError("CUDA out of memory"),
    ],
)
def test_too_little_memory_is_a_sentence(ending, error):
    done = ending(error)
    assert done.exit_code == 2
    assert done.stderr.startswith("cannot run: there is not enough memory (")
    assert "use a smaller batch_size or less data, use fewer workers" in done.stderr
    assert "raceback" not in done.stderr


def test_too_little_memory_behind_another_error_is_the_reason(ending):
    error = ValueError("[model] module: net:Net() must build the model without arguments, but raised ...")
    error.__cause__ = RuntimeError("DefaultCPUAllocator: can't allocate memory")
    assert "there is not enough memory (DefaultCPUAllocator: can't" in ending(error).stderr


def test_a_report_that_fails_does_not_change_how_the_campaign_ended(ending, monkeypatch):
    def fails(*_, **__):
        raise KeyError("a bug")

    monkeypatch.setattr("operant.report.write_report", fails)
    done = ending(delivered(met=True))
    assert (done.exit_code, "met: It ended." in done.stdout) == (0, True)
    assert "the report could not be written: KeyError: 'a bug'" in done.stderr


def test_a_program_that_ends_itself_has_not_missed_the_requirement(ending):
    done = ending(SystemExit(1))
    assert done.exit_code == 2
    assert "ended from within, with exit code 1" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_signals_end_the_command_with_their_own_code(ending, number, code):
    done = ending(Interrupted("1 of 2 chunks are done", number))
    assert (done.exit_code, done.stderr.count("\n")) == (code, 1)
    assert done.stderr.startswith("stopped: 1 of 2 chunks are done. To resume: operant run")


def test_an_error_that_a_signal_caused_is_not_the_reason(ending):
    """A terminal that is gone, or an import that was interrupted, fails after the signal."""
    error = OSError(5, "Input/output error")
    error.__context__ = Stopped(signal.SIGHUP)
    done = ending(error)
    assert done.exit_code == 129
    assert done.stderr.startswith("stopped: nothing was finished yet")


def test_json_and_quiet(ending):
    *notes, event, result = objects(ending(delivered(met=True), "--json"))
    assert [list(note) for note in notes] == [["note"]] * len(notes)
    assert any("radii is not given" in note["note"] for note in notes)
    assert event == event_json(ROUND)
    assert result["result"]["met"] is True
    assert result["result"]["model"].endswith("model.safetensors")
    more = {name: result["result"][name] for name in ("model", "seconds", "report")}
    assert {"start", "generate", "report", "total"} <= set(more["seconds"])
    *parts, total = more["seconds"].values()
    assert sum(parts) == pytest.approx(total)
    assert result == result_json(delivered(met=True), **more)
    done = ending(delivered(met=True), "--quiet")
    assert done.stdout.startswith("met: It ended.")


def objects(done):
    """All JSON objects that a command printed; it printed nothing else."""
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("end", "code", "what", "why"),
    [
        (ValueError("others [1]"), 2, "cannot run", "others [1]"),
        (LabelsMissing("write them"), 2, "labels needed", "write them. Labels are requested in batches of 25"),
        (Interrupted("1 of 2 are done"), 130, "stopped", "1 of 2 are done. To resume: operant run"),
    ],
)
def test_errors_are_json_too(ending, end, code, what, why):
    done = ending(end, "--json")
    error = objects(done)[-1]["error"]
    assert done.exit_code == error["exit_code"] == code
    assert error["what"] == what
    assert error["why"].startswith(why)


def test_findings_of_the_doctor_are_json_too(ending, user):
    wrong = user.samples(30, "clean")
    user.write("clean.npz", Samples(wrong.x, (wrong.y + 1) % 3))
    *notes, end = objects(ending(delivered(met=True), "--json"))
    assert all("note" in note for note in notes)
    assert "the doctor found errors" in end["error"]["why"]


def test_a_delivered_model_replaces_the_earlier_one(ending, user):
    two = [delivered(met=False) for _ in range(2)]
    for one in two:
        assert ending(one).exit_code == 1
    with RunFolder(user.path / "operant-run") as run:
        kept = run.weights("model", two[0].model, pytest.fail)
    x = user.samples(5, "x").x.flatten(1)
    assert torch.equal(kept.logits(x), two[1].model.logits(x))
    assert not torch.equal(kept.logits(x), two[0].model.logits(x))


# Signals to a running command

SMALL = """[budget]
rounds = 1
labels = 30
seeds_per_round = 40
cases_per_round = 10
chunk = 5
[labels]
file = "field.npz"
"""


def started(user, *, terminal):
    """`operant run` with two workers, in a process group or a terminal of its own, after its first chunk."""
    user.write("field.npz", user.samples(520, "field"))
    user.configure(SMALL, user.toml.replace("pmi = 0.1", "pmi = 0.001"))
    arguments = [sys.executable, "-m", "operant", "run", str(user.path), "--workers", "2"]
    if terminal:
        pid, output = pty.fork()
    else:
        output, write = os.pipe()
        pid = os.fork()
    if pid == 0:
        if not terminal:
            os.setsid()
            os.dup2(write, 1)
            os.dup2(write, 2)
        os.execv(sys.executable, arguments)
    if not terminal:
        os.close(write)
    text = b""
    while not re.search(rb"chunk [1-6] of", text):
        text += os.read(output, 1000)
    return pid, output


def wait_until(holds):
    for _ in range(3000):
        if holds():
            return
        time.sleep(0.01)
    pytest.fail("it did not happen within half a minute")


def processes_in_session(session):
    """The processes of a session that still run."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, *rest = place.read_text().rpartition(")")[2].split()
            found += [place] * (int(rest[2]) == session and state not in "ZX")
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGTERM to all", 143), ("terminal closed", 129)]
)
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="lists processes in /proc")
def test_signals_finish_the_chunk_and_leave_neither_lock_nor_workers(user, how, code):
    pid, output = started(user, terminal=how == "terminal closed")
    if how == "terminal closed":
        os.close(output)
    elif how.endswith("to all"):
        os.killpg(pid, signal.SIGTERM)
    else:
        os.kill(pid, getattr(signal, how))
    text = b""
    while how != "terminal closed" and (part := os.read(output, 1000)):  # ends with the last process that writes
        text += part
    status = os.waitpid(pid, 0)[1]
    assert os.waitstatus_to_exitcode(status) == code, text.decode()
    assert not (user.path / "operant-run" / "lock").exists()
    wait_until(lambda: processes_in_session(pid) == [])  # multiprocessing's own helper ends a little later
    if text:
        assert text.count(b"Stopping when the chunks in progress are finished.") == 1
        assert text.count(b"stopped: ") == 1
        assert b"Traceback" not in text
    done = runner.invoke(app, ["run", str(user.path)])
    assert done.exit_code == 1, done.output
    assert "not met" in done.stdout


# Folders that cannot be resumed


def error_of(user):
    done = runner.invoke(app, ["run", str(user.path)])
    assert done.exit_code == 2
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_run_with_other_settings_is_rejected(user):
    assert "cannot run: a campaign needs about 500 field inputs" in error_of(user)  # after it has begun
    user.configure("[run]\nseed = 3\n[retrain]\nepochs = 4\n")
    error = error_of(user)
    assert (
        "operant-run contains a run with other settings: retrainer (epochs=10 -> epochs=4); seed (0 -> 3). Res" in error
    )


def test_a_refused_session_adds_no_time(user):
    folder = user.path / "operant-run"
    with RunFolder(folder, signature={}) as run:
        run.stopwatch.lap()
        before = run.times()
        assert "is in use by this process" in error_of(user)
        assert run.times() == before
    assert run.times().keys() == {"start"}


def test_a_damaged_file_is_reported_with_how_to_resume(user):
    error_of(user)
    run = user.path / "operant-run"
    (run / "round-000" / "field.json").write_text("{")
    error = error_of(user)
    assert f"a finished step cannot be read: {run / 'round-000' / 'field.json'} has changed; delete " in error
    assert "to compute it again" in error
    (run / "run.json").write_text("{")
    assert f"{run / 'run.json'} is damaged; delete it and run again" in error_of(user)


def test_a_folder_that_cannot_be_written_is_reported(user, monkeypatch):
    def denied(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.fsync", denied)
    assert f"could not be written to {user.path / 'operant-run'} (Permission denied); make the folder" in error_of(user)


def test_errors_of_the_doctor_stop_the_command(ending, user):
    wrong = user.samples(30, "clean")
    user.write("clean.npz", Samples(wrong.x, (wrong.y + 1) % 3))
    done = ending(delivered(met=True))
    assert done.exit_code == 2
    assert "the doctor found errors" in done.stderr


def test_errors_of_the_file_are_reported_by_the_command(user):
    (user.path / "operant.toml").write_text(user.toml + "[budget]\nround = 3\n")
    done = runner.invoke(app, ["run", str(user.path)])
    assert done.exit_code == 2
    assert "cannot run: " in done.stderr
    assert "[budget] has no key round (did you mean rounds?)" in done.stderr
