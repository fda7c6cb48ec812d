"""The demo: its files and its output are right, it can be run again, and it never touches other files."""

import contextlib
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from operant import Classifier, cli
from operant.demo import CAMERA, DEMO_FILES, WIDEST, DemoResult, DemoSize, make_data, meter_priors, run_demo, snippet
from operant.formatting import at_most, percent
from operant.networks import LeNet5, load_weights
from operant.report import load_evidence
from operant.results import TEMPORARY, load

SMALL = DemoSize(
    epochs=2,
    field=620,
    truth=400,
    simulated=100,
    rounds=1,
    seeds_per_round=30,
    cases_per_round=10,
    labels=100,
    draws=300,
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> tuple[Path, DemoResult, str]:
    """A small demo: its folder, its result, and what it printed."""
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    text = io.StringIO()
    result = run_demo(out, size=SMALL, requirement=0.01, console=Console(file=text, width=100, highlight=False))
    return out, result, text.getvalue()


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def quiet() -> Console:
    return Console(file=io.StringIO())


# Data


def test_nothing_of_one_part_is_in_another() -> None:
    data = make_data(0, SMALL)
    ids = [part.ids for part in (data.train, data.clean, data.field, data.truth)]
    assert len(torch.cat(ids).unique()) == sum(len(part.unique()) for part in ids)
    assert torch.equal(torch.bincount(data.train.labels), torch.full((10,), 90))


def test_the_field_has_what_meters_show() -> None:
    truth = make_data(0, replace(SMALL, truth=20_000)).truth
    seen = torch.bincount(truth.labels, minlength=10) / len(truth)
    assert torch.allclose(seen, meter_priors(), atol=0.012)  # four standard deviations
    assert float(meter_priors().sum()) == pytest.approx(1)


def test_what_the_camera_does_lies_within_what_it_may_do() -> None:
    for name, severity in CAMERA.severities.items():
        widest = WIDEST.severities[name]
        assert widest.low <= severity.low
        assert severity.high <= widest.high
    assert set(CAMERA.names) < set(WIDEST.names)  # the method does not know which there are


# What it writes


def test_the_folder_holds_the_files_of_its_readme(ran) -> None:
    out, _, _ = ran
    assert sorted(file.name for file in out.iterdir()) == sorted([*DEMO_FILES, "README.txt"])
    readme = (out / "README.txt").read_text()
    assert all(name in readme for name in DEMO_FILES)


def test_the_truth_is_that_of_the_weights(ran) -> None:
    out, result, _ = ran
    truth = make_data(0, SMALL).truth
    weights = sorted((out / "run").glob("round-*/weights.safetensors"))
    assert weights, "the first retraining is expected to help"
    model = Classifier(load_weights(LeNet5(), weights[-1]))
    if load(out / "demo.json", DemoResult).after.before == 0:
        assert result.true_after == pytest.approx(1 - model.accuracy(truth))
    assert 0.1 < result.true_before < 0.9


def test_the_result_and_the_report_agree(ran) -> None:
    out, result, _ = ran
    assert load(out / "demo.json", DemoResult) == result
    evidence = load_evidence(out / "report.json")
    assert evidence.met == result.met
    assert evidence.latest == result.after
    assert evidence.labels == result.labels <= SMALL.labels
    assert evidence.info is not None
    assert evidence.info.classes[7] == "seven"
    assert re.search("https?:", (out / "report.html").read_text().replace("http://www.w3.org", "")) is None


# What it prints


def test_it_prints_the_steps_the_result_and_the_next_steps(ran) -> None:
    out, result, text = ran
    words = [line.split()[0] for line in text.splitlines() if line]
    assert words[:4] == ["model", "field", "estimate", "campaign"]
    for step in ("before", "after", "verdict", "done", "report", "next"):
        assert step in words
    assert f"true error rate on 400 further pictures: {percent(result.true_after)}" in text
    assert f"at most {at_most(result.after.upper)}; true" in text
    assert "at most 1 % with 95 % confidence: not met" in text
    assert f"open {out / 'report.html'} in a browser" in text
    assert "\x1b" not in text


def test_the_printed_code_runs(ran) -> None:
    out, _, text = ran
    code = snippet(out)
    assert "\n".join(f"  {line}" for line in code.splitlines()) in text
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, {})
    assert said.getvalue().startswith("Not met: up to")


# Second runs, and folders with other files


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_in_the_same_folder(ran) -> None:
    out, first, _ = ran
    (out / "notes.txt").write_text("mine")
    (out / f".x{TEMPORARY}").write_bytes(b"")
    again = run_demo(out, size=SMALL, requirement=0.01, console=quiet())
    assert replace(again, cpu_seconds=first.cpu_seconds) == first
    assert (out / "notes.txt").read_text() == "mine"
    (out / "notes.txt").unlink()
    (out / f".x{TEMPORARY}").unlink()


@pytest.mark.parametrize("name", ["report.html", "README.txt", "notes.txt"])
def test_a_folder_with_other_files_is_rejected_and_stays_unchanged(tmp_path, name) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match="must be new, empty or made by a demo"):
        run_demo(tmp_path, console=quiet())
    assert files(tmp_path) == {name: b"mine"}


def test_what_cannot_be_a_folder_is_rejected(tmp_path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is a file, not a folder"):
        run_demo(tmp_path / "file", console=quiet())
    with pytest.raises(ValueError, match="cannot be created"):
        run_demo(tmp_path / "file" / "below", console=quiet())


@pytest.mark.parametrize(("named", "expected"), [(None, 1), ("3", 3)])
def test_one_thread_is_used_unless_the_environment_names_a_number(tmp_path, monkeypatch, named, expected) -> None:
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if named:
        monkeypatch.setenv("OMP_NUM_THREADS", named)
    seen = []

    def counting(*_: object, **__: object) -> None:
        seen.append(torch.get_num_threads())
        raise KeyboardInterrupt

    monkeypatch.setattr("operant.demo.fit", counting)
    torch.set_num_threads(3)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_demo(tmp_path, size=SMALL, console=quiet())
        assert seen == [expected]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)


# The command


def test_the_command_passes_its_options_on(monkeypatch) -> None:
    called = []
    monkeypatch.setattr("operant.demo.run_demo", lambda out, *, seed: called.append((out, seed)))
    for arguments in (["demo"], ["demo", "--out", "there", "--seed", "7"]):
        assert CliRunner().invoke(cli.app, arguments).exit_code == 0
    assert called == [(Path("operant-demo"), 0), (Path("there"), 7)]


def test_the_command_explains_why_it_cannot_run(tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "choose another with --out" in " ".join(result.output.split())
    assert "Traceback" not in result.output


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, DemoResult]:
    """The demo as users run it: its folder and its result."""
    out = tmp_path_factory.mktemp("whole") / "out"
    ended = CliRunner().invoke(cli.app, ["demo", "--out", str(out)])
    assert ended.exit_code == 0
    return out, load(out / "demo.json", DemoResult)


@pytest.mark.slow
def test_the_whole_demo_runs(whole) -> None:
    out, demo = whole
    assert demo.true_after < demo.true_before
    assert demo.after.upper >= demo.true_after  # as 95 of 100 would
    assert demo.labels <= 500
    assert (out / "report.html").stat().st_size < 10_000_000


@pytest.mark.slow
def test_the_whole_demo_removes_two_errors_of_five(whole) -> None:
    _, demo = whole
    assert demo.true_after < 0.6 * demo.true_before
