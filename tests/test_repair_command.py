"""`operant repair`: what it keeps and refuses, that it resumes, and that workers change nothing."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

from operant import Samples, load_digits, read_samples, results, spawn
from operant.cli import app
from operant.cli.repair import STEPS
from operant.conditions import Recipe, apply, fixed
from operant.export import learning_half
from operant.networks import LeNet5, fit, initialise, load_weights, save_weights
from operant.profile import FieldDescription, FittedConditions, Parameter
from operant.repairing import RepairRecord, repair_inputs
from operant.repairing.record import WIDTH
from operant.retrain import Schedule, judge_labels
from operant.retrain._checkpoint import Checkpoint
from operant.retrain.default_arms import DEFAULT, FAILURES
from operant.retrain.repairing import MIN_JUDGES
from report_folder import campaign_folder

runner = CliRunner()
NET = "from operant.networks import LeNet5\ndef net():\n    return LeNet5(size=8)\n"
OWN = """
import torch

def train(module, known, generator):
    optimiser = torch.optim.Adam(module.parameters(), lr=3e-3)
    for _ in range(20):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module(known.labels.x), known.labels.labels).backward()
        optimiser.step()
    return module

def fails(module, known, generator):
    raise ValueError("no such optimiser")
"""
MODEL = ("net.py:net", "--weights", "net.safetensors", "--train", "train.npz", "--clean", "clean.npz")
QUICK = (*MODEL, "--field", "field.npz", "--no-conditions", "--steps", "60")
JUDGED = (*QUICK, "--labels-file", "labels.csv", "--drawn", "random")
ROTATED = Recipe(severities={"rotation": fixed(30)})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A user's folder: a network for digits, and a field in which they are rotated."""
    place = tmp_path_factory.mktemp("repair")
    digits = load_digits()
    parts = digits.train.split(train=0.5, field=0.5)
    start = initialise(lambda: LeNet5(size=8), generator=spawn(0, "weights"))
    options = {"epochs": 6, "learning_rate": 4e-3, "progress": False}
    save_weights(fit(start, parts["train"], **options, generator=spawn(0)).module, place / "net.safetensors")
    field = parts["field"]
    x = apply(field.x, ROTATED.draw(len(field), generator=spawn(0)))
    (place / "net.py").write_text(NET)
    (place / "own.py").write_text(OWN)
    np.savez(place / "train.npz", x=parts["train"].x, y=parts["train"].y)
    np.savez(place / "clean.npz", x=digits.test.x, y=digits.test.y)
    np.savez(place / "field.npz", x=x)
    np.save(place / "truth.npy", field.labels.numpy())
    return place


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """The same files in a folder of their own, which is the current one, and 100 labels."""
    for file in made.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_labels(range(100))
    yield tmp_path
    for name in ("net", "own", "four"):
        sys.modules.pop(name, None)


def write_labels(rows, file="labels.csv"):
    truth = np.load("truth.npy")
    lines = [f"field.npz[{i}],{truth[i]}" for i in rows]
    Path(file).write_text("\n".join(["name,label", *lines, ""]))


def run(*options):
    return runner.invoke(app, ["repair", *options])


def words(done) -> str:
    return " ".join(done.output.split())


def record(folder="operant-repair") -> RepairRecord:
    return results.load(Path(folder) / "repair.json", RepairRecord)


def weights(folder="operant-repair") -> dict[str, torch.Tensor]:
    return load_file(Path(folder) / "model.safetensors")


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def error_in_field(file: str | Path) -> float:
    net = load_weights(LeNet5(size=8), file).eval()
    x = read_samples("field.npz").x
    return float((net(x).argmax(1).numpy() != np.load("truth.npy")).mean())


# With judge labels


def test_a_model_is_repaired_and_everything_is_said(here):
    done = run(*JUDGED)
    assert done.exit_code == 0, done.output
    kept = record()
    assert kept.changed
    assert kept.judges == len(kept.judge_names) == judge_labels(100) > 0
    assert kept.taught == 100 - kept.judges
    assert error_in_field("operant-repair/model.safetensors") < error_in_field("net.safetensors") - 0.05
    for part in (
        "model: operant-repair/model.safetensors",
        "record: operant-repair/repair.json",
        "Next: operant assess",
    ):
        assert part in done.output
    assert "Labels that taught or judged must not be used for a bound" in words(done)
    assert max(map(len, str(kept).splitlines())) <= WIDTH
    assert "nan" not in str(kept)
    assert not Path("operant-repair/race").exists()


def test_the_same_command_reads_the_finished_repair(here, monkeypatch):
    first = run(*JUDGED)
    before = weights()
    monkeypatch.setattr("operant.repairing.job.repair", None)
    again = run(*JUDGED)
    assert again.exit_code == 0, again.output
    assert equal(weights(), before)
    assert first.output.splitlines()[-4:] == again.output.splitlines()[-4:]


def test_workers_change_nothing(here):
    assert run(*JUDGED, "--out", "one").exit_code == 0
    done = run(*JUDGED, "--out", "two", "--workers", "2")
    assert done.exit_code == 0, done.output
    assert equal(weights("one"), weights("two"))
    assert [a.brier for a in record("one").arms] == pytest.approx([a.brier for a in record("two").arms], nan_ok=True)


@pytest.mark.parametrize("writes", [1, 3, 5, 7])
def test_a_killed_repair_resumes_with_the_same_weights(here, monkeypatch, writes):
    assert run(*JUDGED, "--out", "whole").exit_code == 0
    left, write = [writes], Checkpoint.write

    def killed(self, kept):
        write(self, kept)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "write", killed)
    stopped = run(*JUDGED)
    assert stopped.exit_code == 130, stopped.output
    assert "finished work is kept. To resume: run the same command again (folder operant-repair)" in words(stopped)
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert run(*JUDGED).exit_code == 0
    assert equal(weights(), weights("whole"))
    whole, resumed = record("whole"), record()
    assert [replace(a, seconds=0.0, brier=0.0, gain=0.0, gain_error=0.0, error=0.0) for a in whole.arms] == [
        replace(a, seconds=0.0, brier=0.0, gain=0.0, gain_error=0.0, error=0.0) for a in resumed.arms
    ]


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        (("--max-drop", "0.2"), "max_drop (0.05 -> 0.2)"),
        (("--steps", "40"), "schedule"),
        (("--seed", "1"), "seed (0 -> 1)"),
        (("--drawn", "chosen"), "drawn ('at random' -> 'chosen')"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(here, options, setting):
    assert run(*JUDGED).exit_code == 0
    done = run(*JUDGED, *options)
    assert done.exit_code == 2
    assert "operant-repair contains a run with other settings" in words(done)
    assert setting in words(done)


def test_other_labels_in_the_same_folder_are_refused(here):
    assert run(*JUDGED).exit_code == 0
    write_labels(range(101))
    done = run(*JUDGED)
    assert done.exit_code == 2
    assert "other settings: labels" in words(done)


def test_nothing_is_kept_that_costs_too_much(here):
    done = run(*QUICK, "--labels-file", "labels.csv", "--max-drop", "0", "--learning-rate", "3")
    assert done.exit_code == 0, done.output
    assert not record().changed
    assert not Path("operant-repair/model.safetensors").exists()
    assert "Kept the original model" in done.output
    assert "Next: operant export net.py:net" in done.output


@pytest.mark.parametrize(
    ("options", "rate", "optimiser"),
    [((), 0.002, "sgd"), (("--learning-rate", "0.004", "--optimiser", "adam"), 0.004, "adam")],
)
def test_learning_rate_and_optimiser_may_stand_in_the_configuration(here, options, rate, optimiser):
    (here / "operant.toml").write_text(
        '[model]\nmodule = "net.py:net"\nweights = "net.safetensors"\n'
        '[data]\ntrain = "train.npz"\nclean = "clean.npz"\nfield = "field.npz"\n'
        "[requirement]\npmi = 0.1\n"
        '[retrain]\nlearning_rate = 0.002\noptimiser = "sgd"\n'
    )
    done = run("--labels-file", "labels.csv", "--no-conditions", "--steps", "20", *options)
    assert done.exit_code == 0, done.output
    assert record().learning_rate == rate
    assert f"optimiser='{optimiser}'" in Path("operant-repair/run.json").read_text()


def test_json_lines_end_with_the_result(here):
    done = run(*JUDGED, "--json")
    assert done.exit_code == 0, done.output
    result = [json.loads(line) for line in done.stdout.splitlines()][-1]["result"]
    assert result["kept"] == record().kept
    assert result["model"] == "operant-repair/model.safetensors"
    assert [arm["name"] for arm in result["arms"]] == [arm.name for arm in record().arms]


# Own arms


def test_an_arm_trains_as_long_as_in_python():
    assert Schedule().steps == STEPS


def test_an_own_training_function_races(here):
    done = run(*JUDGED, "--arm", "own.py:train", "--arm", "own.py:fails", "--workers", "2")
    assert done.exit_code == 0, done.output
    arms = {arm.name: arm for arm in record().arms}
    assert arms["own.py:train"].trained == 1
    assert arms["own.py:train"].gain > 0
    assert arms["own.py:fails"].verdict == "no such optimiser"
    Path("own.py").write_text(OWN.replace("range(20)", "range(30)"))
    assert "other settings: own_version" in words(run(*JUDGED, "--arm", "own.py:train", "--arm", "own.py:fails"))


def test_without_judges_an_own_arm_does_not_run_and_this_is_said(here):
    done = run(*QUICK, "--labels-file", "labels.csv", "--arm", "own.py:train")
    assert done.exit_code == 0, done.output
    assert "Your own arm did not run" in done.output
    enough = int(re.findall(r"at least (\d+) inputs", words(done))[0])
    assert judge_labels(enough - 1) < MIN_JUDGES <= judge_labels(enough)
    assert [arm.name for arm in record().arms] == [DEFAULT]


# Labels


def test_chosen_labels_teach_and_none_judge(here):
    assert run(*QUICK, "--labels-file", "labels.csv").exit_code == 0
    found = record()
    assert (found.taught, found.judges) == (100, 0)
    assert "on teaching labels that it did not learn from" in found.reason


def test_chosen_labels_teach_and_random_ones_beside_them_judge(here):
    write_labels(range(80))
    write_labels(range(70, 100), "random.csv")
    done = run(*QUICK, "--labels-file", "labels.csv", "--random-labels-file", "random.csv")
    assert done.exit_code == 0, done.output
    kept = record()
    assert kept.judges == judge_labels(100)
    assert kept.taught == 100 - kept.judges  # ten inputs are in both files
    assert set(kept.judge_names) <= {f"field.npz[{i}]" for i in range(70, 100)}


def test_labels_may_be_arrays(here):
    truth, x = np.load("truth.npy"), np.load("field.npz")["x"]
    np.savez("labels.npz", x=x[:100], y=truth[:100])
    assert run(*QUICK, "--labels-file", "labels.npz", "--out", "arrays").exit_code == 0
    assert run(*QUICK, "--labels-file", "labels.csv", "--out", "table").exit_code == 0
    assert equal(weights("arrays"), weights("table"))


def test_without_labels_and_conditions_the_original_is_kept(here):
    done = run(*QUICK)
    assert done.exit_code == 0, done.output
    assert not record().changed
    assert record().taught == 0
    assert "unexplained" in record().reason


def test_a_class_without_labels_is_named(here):
    truth = np.load("truth.npy")
    write_labels([i for i in range(200) if truth[i] not in (3, 7)])
    done = run(*QUICK, "--labels-file", "labels.csv")
    assert done.exit_code == 0, done.output
    assert "2 of 10 classes have no label (3, 7); training data teach these classes alone." in words(done)
    assert record().notes[0].startswith("2 of 10 classes")


def test_labels_of_one_class_are_refused(here):
    truth = np.load("truth.npy")
    write_labels([i for i in range(200) if truth[i] == 3])
    done = run(*QUICK, "--labels-file", "labels.csv")
    assert done.exit_code == 2
    assert "labels must be of two classes at least" in words(done)
    assert "of class number 3" in words(done)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("name,label\nother.png,3\nanother.png,4\n", "labels.csv must name inputs, but none of its 2 rows names one"),
        ("name,label\nfield.npz[0],12\n", "labels.csv"),
        ("name,label\n", "labels.csv"),
    ],
)
def test_faulty_labels_are_refused(here, table, problem):
    Path("labels.csv").write_text(table)
    done = run(*QUICK, "--labels-file", "labels.csv")
    assert done.exit_code == 2, done.output
    assert problem in words(done)
    assert not Path("operant-repair/repair.json").exists()


def test_rows_of_unknown_names_are_ignored_and_this_is_said(here):
    with open("labels.csv", "a") as file:
        file.write("other.png,3\n")
    done = run(*QUICK, "--labels-file", "labels.csv")
    assert done.exit_code == 0, done.output
    assert "1 of 101 rows are ignored" in words(done)
    assert record().taught == 100


def test_labels_of_other_inputs_are_refused(here):
    np.savez("labels.npz", x=np.full((4, 1, 8, 8), 0.5, dtype=np.float32), y=np.arange(4))
    done = run(*QUICK, "--labels-file", "labels.npz")
    assert done.exit_code == 2
    assert "labels.npz has no label of a field input" in words(done)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--drawn", "somehow"), "drawn must be"),
        (("--max-drop", "5"), "max_drop"),
        (("--optimiser", "lion"), "optimiser"),
        (("--arm", "own.py:missing"), "own has no missing"),
        (("--arm", "nowhere.py:train"), "nowhere.py"),
        (("--labels-file", "nowhere.csv"), "nowhere.csv"),
        (("--run", "nowhere"), "nowhere is not a campaign's folder"),
    ],
)
def test_bad_options_are_refused(here, options, problem):
    done = run(*QUICK, *options)
    assert done.exit_code == 2, done.output
    assert problem in words(done)
    assert not Path("operant-repair/repair.json").exists()


# Conditions


def estimated(recipe: Recipe = ROTATED) -> FittedConditions:
    parameters = (
        Parameter(condition="rotation", name="mean", value=30.0, lower=25.0, upper=35.0, limits=(-45.0, 45.0)),
    )
    distances = {"before": 4.0, "after": 0.9, "floor": 0.9, "floor_high": 1.1}
    return FittedConditions(
        recipe=recipe, parameters=parameters, **distances, priors=(), confidence=0.95, findings=()
    )  # fmt: skip


@pytest.fixture
def quick(monkeypatch):
    """An estimate that takes no time; the number of field inputs of each."""
    sizes = []

    def fit(field, clean, *, widest, generator, progress):
        sizes.append(len(field))
        return estimated()

    monkeypatch.setattr("operant.profile._conditions.fit_conditions", fit)
    return sizes


def test_conditions_are_estimated_once_and_replace_labels(here, quick):
    options = (*MODEL, "--field", "field.npz", "--steps", "60")
    done = run(*options)
    assert done.exit_code == 0, done.output
    assert len(quick) == 1
    assert record().changed
    assert record().unexplained == 0
    assert "simulated field inputs" in record().reason
    assert error_in_field("operant-repair/model.safetensors") < error_in_field("net.safetensors") - 0.05
    assert run(*options).exit_code == 0
    assert len(quick) == 1


def test_the_description_of_operant_field_is_used(here, quick):
    data = (*MODEL, "--field", "field.npz")
    assert runner.invoke(app, ["field", *data]).exit_code == 0
    assert isinstance(results.load("operant-field/field.json", FieldDescription), FieldDescription)
    quick.clear()
    done = run(*data, "--steps", "60")
    assert done.exit_code == 0, done.output
    assert quick == []
    assert "Conditions and class shares were read from operant-field/field.json." in done.output


# Campaigns


@pytest.fixture
def campaign(user, monkeypatch):
    """A folder with a finished campaign of four classes; the options of a command for it."""
    monkeypatch.chdir(user.path)
    field = user.samples(240, "field")
    user.write("field.npz", field)
    campaign_folder(user.path / "operant-run")
    source = "from torch import nn\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))\n"
    (user.path / "four.py").write_text(source)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    with torch.no_grad():
        net[1].weight.copy_(20 * torch.eye(64)[:4] * torch.tensor([1.0, 1.0, 1.0, 0.0])[:, None])
        net[1].bias.zero_()
    save_weights(net, user.path / "four.safetensors")
    (user.path / "operant.toml").unlink()
    data = ("--field", "field.npz", "--train", "train.npz", "--clean", "clean.npz", "--no-conditions")
    lines = [f"field.npz[{i}],{int(y)}" for i, y in enumerate(field.labels)]
    Path("labels.csv").write_text("\n".join(["name,label", *lines, ""]))
    return ("four.py:net", "--weights", "four.safetensors", *data, "--steps", "40")


def test_a_campaign_keeps_its_half_and_gives_its_failures(campaign):
    done = run(*campaign, "--labels-file", "labels.csv", "--drawn", "random")
    assert done.exit_code == 0, done.output
    field = read_samples("field.npz", part="field")
    half = learning_half(replace(field, y=None))
    found = record()
    assert found.taught + found.judges == len(half.ids.unique())
    assert "labels are not used: the campaign in operant-run assesses with these inputs" in words(done)
    assert FAILURES in [arm.name for arm in found.arms]


def test_no_reserved_input_is_learned_from():
    field = Samples(torch.rand(80, 3, generator=spawn(0)))
    train = Samples(torch.rand(20, 3, generator=spawn(1)), torch.arange(20) % 2)
    clean = Samples(torch.rand(10, 3, generator=spawn(2)), torch.arange(10) % 2)
    labels = {int(i): n % 2 for n, i in enumerate(field.ids)}
    mixed = Samples.concat([field, train.with_labels(None), clean.with_labels(None)])
    alone = repair_inputs(train=train, clean=clean, field=mixed, labels=labels, classes=2)
    assert torch.equal(alone.field.ids, field.ids)
    assert alone.reserved is None
    assert len(alone.taught[0]) == 80
    assert not alone.taught[0].random
    assert "30 of 110 field inputs are left out" in alone.notes[0]
