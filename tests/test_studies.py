"""Studies run and resume; intervals and verdicts are correct."""

import json
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy import stats
from typer.testing import CliRunner

from operant import results
from operant.cli import app
from operant.networks import save_weights
from operant_studies.robot.mnist_networks import NetworkRobustness, attack_network
from operant_studies.robot.rivals import make_rival
from operant_studies.robot.settings import RIVALS, settings
from operant_studies.robot.unit import quantiles
from operant_studies.shared import Mean, Steps, mean, run_units, sign_folder, table, verdict
from operant_studies.subjects import MNIST_FILES, find_mnist_networks, mnist_network


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("study") / "robot"
    done = CliRunner().invoke(app, ["study", "robot", "--scale", "smoke", "--out", str(out), "--workers", "1"])
    assert done.exit_code == 0, done.output
    return out


@pytest.mark.slow
def test_the_robot_study_writes_a_page_that_answers_every_question(study: Path) -> None:
    page = (study / "robot.md").read_text()
    for words in (
        "What held",
        "RQ1",
        "Fig. 4",
        "RQ2",
        "Table III",
        "Table IV",
        "RQ3",
        "What was run",
        "clean data alone",
    ):
        assert words in page
    for claim in ("FOL is smaller", "PGD cases have smaller FOL", "BE-ST is above DeepGini", "FOL-Fuzz is above ADAPT"):
        rows = [line for line in page.splitlines() if line.startswith(f"| {claim}")]
        assert rows
        assert all(line.split("|")[-2].strip() in ("**held**", "**not held**", "**not decided**") for line in rows)
    assert "nan" not in page.lower().replace("nanoseconds", "")
    for picture in ("robot-selection.svg", "robot-loss.svg", "robot-fol.svg"):
        assert "<svg" in (study / picture).read_text()
        assert picture in page
    numbers = json.loads((study / "robot.json").read_text())
    assert numbers["digits-0.2-seed0/judged-be-st-10"]["strategy"] == "be-st"


@pytest.mark.slow
def test_a_study_resumes_where_it_stopped(study: Path) -> None:
    page = (study / "robot.md").read_bytes()
    steps = {file: file.stat().st_mtime_ns for file in study.glob("steps/*/*.json")}
    lost = [file for file in steps if file.name in ("judged-km-st-5.json", "fol-be-st-10.json")]
    before = {file: file.read_bytes() for file in lost}
    for file in lost:
        file.unlink()
    done = CliRunner().invoke(app, ["study", "robot", "--scale", "smoke", "--out", str(study), "--workers", "1"])
    assert done.exit_code == 0, done.output
    assert {file: file.read_bytes() for file in lost} == before, "a step computed again must be the same"
    assert all(file.stat().st_mtime_ns == steps[file] for file in steps if file not in lost)
    assert (study / "robot.md").read_bytes() == page


@pytest.mark.slow
def test_rivals_join_a_study_that_was_run_without_them(study: Path) -> None:
    steps = {file: file.stat().st_mtime_ns for file in study.glob("steps/*/*.json")}
    arguments = ["study", "robot", "--rivals", "--scale", "smoke", "--out", str(study), "--workers", "1"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert all(file.stat().st_mtime_ns == before for file, before in steps.items())
    page = (study / "robot.md").read_text()
    for rival in RIVALS:
        raced, chosen, judged = (
            [line for line in page.splitlines() if f"| {rival} | {cell}" in line] for cell in ("", "be-st", "control")
        )
        assert len(raced) >= 2
        assert len(chosen) == 2
        assert len(judged) == 1
    assert "nan" not in page.lower()


def test_rivals_do_not_change_the_signature_of_a_folder() -> None:
    plain = settings("smoke", None)[0]
    joined = replace(plain, rivals=RIVALS)
    assert str(joined) == str(plain)
    assert joined.racers == (*plain.racers, *RIVALS)
    unused = pytest.fail
    for name in set(RIVALS) - {"deepxplore"}:
        fuzzer, chunk = make_rival(name, joined, unused)
        assert callable(fuzzer)
        assert chunk >= 1


def test_wrong_arguments_are_rejected_with_a_message(tmp_path: Path) -> None:
    for arguments, words in (
        (["study", "robt"], "there is no study named robt"),
        (
            ["study", "seeds", "--rivals", "--out", str(tmp_path / "a")],
            "--rivals is an option of robot alone, not of seeds",
        ),
        (["study", "robot", "--scale", "tiny", "--out", str(tmp_path / "a")], "scale must be smoke, small or paper"),
        (["study", "robot", "--workers", "1", "--out", str(tmp_path / "b")], "needs mnist"),
        (["study", "robot", "--data", str(tmp_path), "--workers", "1", "--out", str(tmp_path / "c")], "no mnist under"),
    ):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 2
        assert words in " ".join(done.output.split())


def test_small_never_falls_below_what_the_study_promises() -> None:
    small = {s.name: s for s in settings("small", None)}
    assert set(small) == {"mnist-0.3", "fashion-mnist-0.3", "fashion-mnist-0.03"}
    for s in small.values():
        assert s.train >= 20_000
        assert s.finetune.epochs == 10
        assert set(s.shares) >= {1, 5, 10}
        assert set(s.strategies) == {"be-st", "km-st", "deepgini", "random"}
        assert len(s.seeds) >= 3


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_units_run_here_or_elsewhere(tmp_path: Path, workers: int) -> None:
    units = [(str(n), partial(_write_threads, tmp_path / str(n))) for n in range(3)]
    run_units(units, workers=workers, console=Console(quiet=True))
    written = [(tmp_path / str(n)).read_text().split() for n in range(3)]
    assert all(threads == "1" for threads, _ in written)
    assert all((int(pid) == os.getpid()) == (workers == 1) for _, pid in written)


def _write_threads(path: Path) -> None:
    path.write_text(f"{torch.get_num_threads()} {os.getpid()}")


def test_a_step_is_computed_once(tmp_path: Path) -> None:
    steps, calls = Steps(tmp_path / "unit"), []

    def work() -> Mean:
        calls.append(1)
        return Mean(value=0.5, lower=0.1, upper=0.9, n=3)

    assert steps.step("a", Mean, work) == steps.step("a", Mean, work)
    assert len(calls) == 1
    assert steps.done("a")
    assert not steps.done("b")


def test_means_have_students_interval() -> None:
    x = [0.3, 0.1, 0.6, 0.4]
    low, high = stats.t.interval(0.95, 3, loc=np.mean(x), scale=stats.sem(x))
    assert (mean(x).lower, mean(x).upper) == pytest.approx((low, high))
    assert mean([0.2]).lower == -np.inf


def test_verdicts() -> None:
    assert verdict(Mean(value=1, lower=0.5, upper=1.5, n=3)) == "held"
    assert verdict(Mean(value=-1, lower=-1.5, upper=-0.5, n=3)) == "not held"
    assert verdict(Mean(value=0, lower=0, upper=0, n=3)) == "not decided"


def test_tables_and_spreads() -> None:
    assert table(["a", "b"], [[1, "x"]]) == "| a | b |\n| --- | --- |\n| 1 | x |\n"
    assert quantiles(torch.arange(101.0)).quantiles == pytest.approx((5.0, 25.0, 50.0, 75.0, 95.0))
    assert quantiles(torch.zeros(0)).n == 0


# Networks of known robustness


def test_given_networks_are_judged_on_mnist(tmp_path: Path) -> None:
    """With stand-ins: a network with random weights, and one that no attack can change, since it hardly varies."""
    rng = np.random.default_rng(0)
    images = {f"x_{part}": rng.integers(0, 256, (30, 28, 28), dtype=np.uint8) for part in ("train", "test")}
    np.savez(tmp_path / "mnist.npz", **images, y_train=np.arange(30) % 10, y_test=np.zeros(30, dtype=np.int64))
    assert find_mnist_networks(tmp_path) == {}
    for kind, name in MNIST_FILES.items():
        network = mnist_network()
        with torch.no_grad():
            network.linear2.bias.copy_(torch.eye(10)[0] * (0.1 if kind == "plain" else 50.0))
            network.linear2.weight.mul_(1.0 if kind == "plain" else 1e-6)
        save_weights(network, tmp_path / "weights" / name)
    found = find_mnist_networks(tmp_path)
    judged = {kind: attack_network(kind, path, tmp_path, n=20) for kind, path in found.items()}
    assert set(judged) == {"plain", "robust"}
    assert judged["robust"].pgd40.value == 1
    assert judged["robust"].pgd.n == 0
    assert judged["plain"].pgd40.n == 20
    assert judged["plain"].pgd40.value <= judged["plain"].clean.value
    for network in judged.values():
        results.save(network, tmp_path / f"{network.kind}.json")
        assert results.load(tmp_path / f"{network.kind}.json", NetworkRobustness) == network


def test_two_studies_do_not_mix(tmp_path: Path) -> None:
    sign_folder(tmp_path, scale="smoke", settings=1)
    sign_folder(tmp_path, scale="smoke", settings=1)
    with pytest.raises(ValueError, match="another scale"):
        sign_folder(tmp_path, scale="small", settings=1)


@pytest.mark.slow
def test_a_unit_that_fails_stops_the_others(tmp_path: Path) -> None:
    units = [("bad", _fail), *((str(n), partial(_write_slowly, tmp_path / str(n))) for n in range(30))]
    with pytest.raises(ValueError, match="this unit fails"):
        run_units(units, workers=2, console=Console(quiet=True))
    assert len(list(tmp_path.iterdir())) < 30


def _write_slowly(path: Path) -> None:
    time.sleep(0.2)
    path.touch()


def _fail() -> None:
    raise ValueError("this unit fails")
