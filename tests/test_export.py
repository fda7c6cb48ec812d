"""`operant export`: the transform, class weights, inputs to label and failures, as files for other training code."""

import csv
import importlib.util
import json
import math
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset
from typer.testing import CliRunner

from operant import Classifier, Samples, read_samples, results, spawn
from operant.campaign.build import CONDITIONS, ESTIMATED
from operant.campaign.risk import DRAWS, TEACHING
from operant.cli import app
from operant.conditions import Recipe, fixed, normal, uniform
from operant.data.samples import name_of
from operant.execution.round_state import LabelBatch
from operant.execution.run_folder import RunFolder
from operant.export import (
    ExportContents,
    ExportPlan,
    FieldTransform,
    choose_to_label,
    class_weights,
    labelled_ids,
    learning_half,
    read_failures,
    write_export,
)
from operant.export.stored import campaign_conditions, retrained_model
from operant.export.writing import ExportRecord, check_replaceable
from operant.generate import RecipeDraws
from operant.networks import load_weights, save_weights
from operant.profile import FieldDescription, FittedConditions, Parameter, Priors
from operant.seeds.strategies import AtRandom
from report_folder import SETTINGS, campaign_folder, classifier

runner = CliRunner()
RECIPE = Recipe(severities={"rotation": normal(12), "blur": uniform(0.2, 1.0), "motion_angle": fixed(40)})
NO_IDS = torch.empty(0, dtype=torch.int64)


def load_module(folder: Path):
    """The exported file, as a user imports it: nothing else is on the path."""
    spec = importlib.util.spec_from_file_location("field_transform", folder / "field_transform.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["field_transform"] = module  # pickle finds classes by the name of their module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def exported(tmp_path):
    """The exported module for RECIPE."""
    write_export(ExportContents(recipe=RECIPE, recipe_from="declared"), tmp_path / "out")
    yield load_module(tmp_path / "out")
    del sys.modules["field_transform"]


def table(path: str | Path) -> list[dict[str, str]]:
    return list(csv.DictReader(Path(path).read_text().splitlines()))


# The transform


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 7), (2, 3, 8, 8), (5, 1, 8, 8)])
def test_the_transform_keeps_shape_type_and_bounds(exported, shape):
    for dtype in (torch.float32, torch.float64):
        x = torch.rand(shape, dtype=dtype, generator=spawn(0))
        made = exported.FieldTransform()(x)
        assert made.shape == x.shape
        assert made.dtype == dtype
        assert 0 <= float(made.min()) <= float(made.max()) <= 1
        assert not torch.equal(made, x)


def test_every_call_and_every_image_has_its_own_draw(exported):
    transform, x = exported.FieldTransform(), torch.rand(1, 8, 8, generator=spawn(0))
    assert not torch.equal(transform(x), transform(x))
    first, second = transform(x.expand(2, 1, 8, 8))
    assert not torch.equal(first, second)


def test_equal_generators_give_equal_images(exported):
    transform, x = exported.FieldTransform(), torch.rand(3, 1, 8, 8, generator=spawn(0))
    assert torch.equal(transform(x, generator=spawn(1)), transform(x, generator=spawn(1)))
    assert not torch.equal(transform(x, generator=spawn(1)), transform(x, generator=spawn(2)))
    torch.random.manual_seed(5)
    once = transform(x)
    torch.random.manual_seed(5)
    assert torch.equal(once, transform(x))


def test_the_recipe_round_trips(exported):
    assert exported.FieldTransform().recipe == RECIPE
    assert exported.FieldTransform() == exported.FieldTransform(recipe=RECIPE)


@given(seed=st.integers(0, 2**32 - 1), strength=st.floats(0, 1))
def test_strength_is_between_no_change_and_the_field(seed, strength):
    x = torch.rand(2, 1, 8, 8, dtype=torch.float64, generator=spawn(seed))
    bright = Recipe(severities={"brightness": uniform(0, 0.5)})
    full, part = (
        FieldTransform(recipe=bright, strength=s)(0.5 * x, generator=spawn(seed)) - 0.5 * x for s in (1, strength)
    )
    assert torch.allclose(part, strength * full)


def test_a_weaker_transform_keeps_directions():
    x, moving = torch.rand(1, 16, 16, generator=spawn(0)), {"motion_blur": fixed(4.0), "motion_angle": fixed(90.0)}
    weak = FieldTransform(recipe=Recipe(severities=moving), strength=0.5)
    same = FieldTransform(recipe=Recipe(severities=moving | {"motion_blur": fixed(2.0)}))
    assert torch.equal(weak(x, generator=spawn(0)), same(x, generator=spawn(0)))


@pytest.mark.parametrize(
    "x", [torch.zeros(8, 8), torch.zeros(1, 8, 8, dtype=torch.uint8), np.zeros((1, 8, 8)), torch.zeros(1, 1, 1, 8, 8)]
)
def test_what_is_no_image_is_refused(x):
    with pytest.raises(ValueError, match=r"must be a floating-point tensor \(C, H, W\) or \(N, C, H, W\), got"):
        FieldTransform(recipe=RECIPE)(x)


def test_normalised_images_and_wrong_strengths_are_refused():
    with pytest.raises(ValueError, match="images must lie"):
        FieldTransform(recipe=RECIPE)(torch.full((1, 8, 8), -2.0))
    for strength in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match="strength must be between 0 and 1"):
            FieldTransform(recipe=RECIPE, strength=strength)


def test_no_conditions_change_nothing():
    x = torch.rand(2, 1, 8, 8, generator=spawn(0))
    assert torch.equal(FieldTransform(recipe=Recipe(severities={}))(x), x)


class Images(Dataset):
    """The same image again and again, through a transform."""

    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return self.transform(torch.full((1, 8, 8), 0.5).tril())


def test_workers_and_epochs_draw_different_conditions(exported):
    transform = pickle.loads(pickle.dumps(exported.FieldTransform()))
    assert transform == exported.FieldTransform()
    loader = DataLoader(Images(transform), batch_size=None, num_workers=2)
    seen = [x for _ in range(2) for x in loader]
    assert len({x.numpy().tobytes() for x in seen}) == len(seen) == 8


# Class weights


def priors(values, interval=0.05):
    values = tuple(v / sum(values) for v in values)
    return Priors(
        values=values, lower=tuple(v - interval for v in values), upper=tuple(v + interval for v in values),
        confidence=0.95, method="mlls", labelled=values, check=values, findings=(),
    )  # fmt: skip


@given(
    st.lists(st.tuples(st.floats(0.01, 1), st.integers(1, 10_000)), min_size=2, max_size=8),
)
def test_weighted_training_shares_sum_to_one(classes):
    shares, counts = zip(*classes, strict=True)
    weights = class_weights(priors(shares), counts, [str(i) for i in range(len(counts))])
    assert sum(w.weight * w.train for w in weights) == pytest.approx(1)
    assert sum(w.train for w in weights) == pytest.approx(1)


def test_the_table_has_intervals_where_there_are_any(tmp_path):
    for interval, known in ((0.05, True), (math.nan, False)):
        weights = class_weights(priors((3, 1), interval), (10, 10), ("cat", "=dog"))
        page = write_export(ExportContents(weights=weights, weights_from="estimated"), tmp_path / str(known))
        rows = table(page.parent / "class_weights.csv")
        assert [row["class"] for row in rows] == ["cat", "'=dog"]
        assert [float(row["weight"]) for row in rows] == [1.5, 0.5]
        assert all(bool(row["lower"] and row["upper"]) == known for row in rows)
        assert ("withheld" in page.read_text()) == (not known)


def test_a_class_without_training_inputs_has_no_weight(tmp_path):
    weights = class_weights(priors((3, 1)), (10, 0), ("cat", "dog"))
    page = write_export(ExportContents(weights=weights), tmp_path / "out")
    assert math.isnan(weights[1].weight)
    assert "No training input has the class dog" in page.read_text()
    with pytest.raises(ValueError, match="one count and name per class"):
        class_weights(priors((3, 1)), (10,), ("cat", "dog"))


# Inputs to label


def field_inputs(n=60, groups=None):
    x = torch.rand(n, 1, 8, 8, generator=spawn(0, "field"))
    return Samples(x, names=tuple(f"field/{i}.png" for i in range(n)), groups=groups)


@pytest.mark.parametrize("groups", [None, tuple(f"g{i // 3}" for i in range(60))])
@pytest.mark.parametrize("seed", range(3))
def test_no_input_of_the_assessment_half_is_listed(groups, seed):
    inputs = field_inputs(groups=groups)
    kept = inputs.split(profile=0.5, assessment=0.5)["assessment"]
    chosen = choose_to_label(classifier(), inputs, 100, already=NO_IDS, generator=spawn(seed))
    assert not torch.isin(chosen.inputs.ids, kept.ids).any()
    assert len(chosen.inputs) + len(kept) == len(inputs)  # 100 were wanted, so all others are listed
    assert chosen.acquired.use == "teaching only"


def test_a_copy_in_another_group_is_for_assessment():
    one = field_inputs(40)
    twice = Samples.concat([replace(one, groups=("a",) * 40), replace(one, groups=tuple(f"b{i}" for i in range(40)))])
    halves = twice.split(profile=0.5, assessment=0.5)
    assert torch.isin(halves["profile"].ids, halves["assessment"].ids).any()
    assert not torch.isin(learning_half(twice).ids, halves["assessment"].ids).any()


def test_labelled_inputs_are_not_listed(tmp_path):
    inputs = field_inputs()
    half = learning_half(inputs)
    with RunFolder(tmp_path / "run", signature=SETTINGS) as run:
        for i, ids in enumerate((half.ids[:4], half.ids[4:7])):
            run.step(f"round-{i:03d}/labels-000", LabelBatch, lambda ids=ids: LabelBatch(ids=ids, labels=0 * ids))
    already = labelled_ids(tmp_path / "run")
    assert torch.equal(already, half.ids[:7])
    chosen = choose_to_label(classifier(), inputs, 100, already=already, generator=spawn(0))
    assert sorted(chosen.inputs.ids.tolist()) == sorted(half.ids[7:].tolist())
    assert choose_to_label(classifier(), inputs, 5, already=half.ids, generator=spawn(0)) is None
    assert len(labelled_ids(tmp_path / "nothing")) == 0


def test_random_inputs_may_be_used_for_estimates(tmp_path):
    chosen = choose_to_label(
        classifier(), field_inputs(), 5, strategy=AtRandom(), already=NO_IDS, root=tmp_path, generator=spawn(0)
    )
    page = write_export(ExportContents(to_label=chosen), tmp_path / "out")
    rows = table(tmp_path / "out" / "to_label.csv")
    assert [int(row["rank"]) for row in rows] == [1, 2, 3, 4, 5]
    assert [row["id"] for row in rows] == [name_of(i) for i in chosen.inputs.ids.tolist()]
    assert {row["use"] for row in rows} == {"teaching, judging and estimates"}
    assert {row["file"] for row in rows} == {""}  # there is no such file
    assert "Use their labels for teaching, judging and estimates" in page.read_text()


# Failures


def test_failures_are_pictures_and_arrays(tmp_path):
    names = ("cat", "dog", "a/b", "x")
    found = read_failures(campaign_folder(tmp_path / "run", names=names))
    page = write_export(ExportContents(failures=found), tmp_path / "out")
    with np.load(tmp_path / "out" / "failures.npz") as arrays:
        assert {"x", "y", "names", "naturalness", "mass", "classes", "prediction", "round"} <= set(arrays)
        x, y, files = arrays["x"], arrays["y"], arrays["names"]
        assert (arrays["naturalness"] >= 0.05).all()
        assert (arrays["prediction"] != y).all()
    assert torch.equal(torch.from_numpy(x), found.suite.x)
    drawn = sorted(p.relative_to(tmp_path / "out" / "failures").as_posix() for p in (tmp_path / "out").rglob("*.png"))
    assert drawn == sorted(files)
    folders = {label: file.split("/")[0] for label, file in zip(y.tolist(), files, strict=True)}
    assert folders == dict(enumerate(("cat", "dog", "a_b", "x")))
    pictures = read_samples(tmp_path / "out" / "failures")
    assert len(pictures) == len(x)
    again = read_samples(tmp_path / "out" / "failures.npz")
    assert torch.equal(again.labels, found.suite.label)
    assert f"{len(x)} inputs that the model gets wrong" in page.read_text()


def test_classes_with_equal_names_have_different_folders(tmp_path):
    found = read_failures(campaign_folder(tmp_path / "run", names=("a/b", "a_b", "A_B", "?")))
    write_export(ExportContents(failures=found), tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out" / "failures").iterdir()) == ["0-a_b", "1-a_b", "2-A_B", "3-_"]


def test_failures_that_are_no_pictures_are_arrays_only(tmp_path):
    run = campaign_folder(tmp_path / "run", shape=(5,))
    found = read_failures(run)
    page = write_export(ExportContents(failures=found), tmp_path / "out")
    assert (tmp_path / "out" / "failures.npz").is_file()
    assert not (tmp_path / "out" / "failures").exists()
    contents = ExportPlan(run=run)._failures()
    assert "inputs of the shape (5,) are not pictures" in contents.missing[0].why
    assert "failures/" not in page.read_text()


def test_a_campaign_without_failures_has_none(tmp_path):
    assert read_failures(campaign_folder(tmp_path / "run", n=0)) is None


# The folder


def files_in(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_a_second_export_replaces_the_first(tmp_path):
    out = tmp_path / "deep" / "out"
    weights = class_weights(priors((3, 1)), (10, 10), ("cat", "dog"))
    write_export(ExportContents(recipe=RECIPE, weights=weights), out)
    assert files_in(out) == {"field_transform.py", "recipe.json", "class_weights.csv", "README.md", "export.json"}
    (out / "__pycache__").mkdir()
    (out / "__pycache__" / "field_transform.pyc").write_bytes(b"x")  # it was imported
    write_export(ExportContents(weights=weights), out)
    assert files_in(out) == {"class_weights.csv", "README.md", "export.json"}
    assert [p.name for p in out.parent.iterdir()] == ["out"]
    assert set(results.load(out / "export.json", ExportRecord).files) == {"class_weights.csv", "README.md"}


def test_only_an_export_is_replaced(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and holds no export"):
        write_export(ExportContents(), tmp_path)
    with pytest.raises(ValueError, match="is a file"):
        write_export(ExportContents(), tmp_path / "notes.txt")
    assert files_in(tmp_path) == {"notes.txt"}
    (tmp_path / "empty").mkdir()
    assert write_export(ExportContents(), tmp_path / "empty").is_file()


@pytest.mark.parametrize("file", ["class_weights.csv", "labels.csv"])
def test_work_in_an_export_is_not_lost(tmp_path, file):
    write_export(ExportContents(weights=class_weights(priors((3, 1)), (10, 10), ("cat", "dog"))), tmp_path / "out")
    (tmp_path / "out" / file).write_text("name,label\n")
    with pytest.raises(ValueError, match=f"have changed since: {file}; move them elsewhere"):
        check_replaceable(tmp_path / "out")
    assert (tmp_path / "out" / file).read_text() == "name,label\n"


def test_an_error_leaves_the_earlier_export(tmp_path, monkeypatch):
    write_export(ExportContents(recipe=RECIPE), tmp_path / "out")
    before = files_in(tmp_path)
    monkeypatch.setattr("operant.export.writing.readme", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_export(ExportContents(), tmp_path / "out")
    assert files_in(tmp_path) == before


# What is known already


def estimated(*names: str) -> FittedConditions:
    parameters = tuple(
        Parameter(condition=n, name="high", value=0.5, lower=0.25, upper=0.75, limits=(0.0, 1.0)) for n in names
    )
    return FittedConditions(
        recipe=Recipe(severities={name: uniform(0, 0.5) for name in names}), parameters=parameters, before=4.0,
        after=1.5, floor=0.9, floor_high=1.1, priors=(), confidence=0.95, findings=(),
    )  # fmt: skip


def test_a_campaign_knows_its_conditions_and_its_retrained_model(tmp_path):
    run = campaign_folder(tmp_path / "run")
    assert campaign_conditions(run) is None
    with RunFolder(run / CONDITIONS, signature={}) as folder:
        folder.step(ESTIMATED, FittedConditions, lambda: estimated("blur"))
    found = campaign_conditions(run)
    assert found is not None
    assert found.recipe.names == ("blur",)
    assert retrained_model(run, classifier(seed=3)) is not None
    assert retrained_model(tmp_path / "nothing", classifier()) is None


# The command


@pytest.fixture
def here(user, monkeypatch):
    """The user's folder as current folder, with enough field inputs to estimate conditions."""
    monkeypatch.chdir(user.path)
    user.write("field.npz", user.samples(240, "field"))
    return user


@pytest.fixture
def quick(monkeypatch):
    """An estimate that takes no time; the number of field inputs of each."""
    sizes = []

    def fit(field, clean, *, widest, generator, progress):
        sizes.append(len(field))
        return estimated("rotation")

    monkeypatch.setattr("operant.profile._conditions.fit_conditions", fit)
    return sizes


def run(*options: str, command: str = "export"):
    return runner.invoke(app, [command, *options])


def words(done) -> str:
    return " ".join(done.output.split())


def test_the_configuration_is_enough(here, quick):
    done = run("--labels", "20")
    assert done.exit_code == 0, done.output
    place = here.path / "operant-export"
    expected = {"field_transform.py", "recipe.json", "class_weights.csv", "to_label.csv", "README.md", "export.json"}
    assert files_in(place) == expected
    assert results.load(place / "recipe.json", Recipe).names == ("rotation",)
    assert "failures.npz is missing: there is no campaign; `operant run` searches for failures" in words(done)
    text = (place / "README.md").read_text()
    assert "Use their labels for teaching only" in text
    assert "- `failures.npz`: there is no campaign" in text
    rows = table(place / "to_label.csv")
    field = read_samples("field.npz")
    learned = learning_half(field)
    assert quick == [len(learned)]  # estimates do not see the half to assess with either
    assert {row["id"] for row in rows} <= {name_of(i) for i in learned.ids.tolist()}
    assert all(row["name"].startswith("field.npz[") and row["file"] == "field.npz" for row in rows)
    assert not any(str(here.path) in file.read_text() for file in place.iterdir())
    weights = table(place / "class_weights.csv")
    assert sum(float(row["weight"]) * float(row["training share"]) for row in weights) == pytest.approx(1)


def test_the_example_of_the_readme_runs(here, quick):
    run()
    code = (here.path / "operant-export" / "README.md").read_text().split("```python\n")[1].split("```")[0]
    names = {"x": torch.rand(2, 1, 8, 8)}
    try:
        exec(code, names)
    finally:
        sys.modules.pop("field_transform", None)
    assert names["x"].shape == (2, 1, 8, 8)
    assert len(names["loss"].weight) == 3
    assert len(code.splitlines()) <= 12


def test_the_description_of_operant_field_is_used(here, quick):
    assert run(command="field").exit_code == 0
    done = run()
    assert done.exit_code == 0, done.output
    assert len(quick) == 1
    assert "estimated in operant-field/field.json" in words(done)
    stored = results.load("operant-field/field.json", FieldDescription)
    rows = table(here.path / "operant-export" / "class_weights.csv")
    assert [float(row["field share"]) for row in rows] == pytest.approx(stored.priors.values)
    here.write("field.npz", here.samples(300, "other"))  # another field
    again = run()
    assert len(quick) == 2
    assert (
        "was not used: it is about only 0 of 300 field inputs" in (here.path / "operant-export/README.md").read_text()
    )
    assert again.exit_code == 0, again.output


def test_conditions_can_be_left_out_or_declared(here, quick):
    done = run("--no-conditions")
    assert "field_transform.py is missing: Conditions were not estimated" in words(done)
    here.configure("[conditions]\nblur = {fixed = 0.5}\n")
    assert run().exit_code == 0
    assert quick == []
    place = here.path / "operant-export"
    assert results.load(place / "recipe.json", Recipe).severities == {"blur": fixed(0.5)}
    assert "declared in [conditions] of operant.toml" in (place / "README.md").read_text()


def test_options_are_enough_without_a_configuration(here, quick):
    (here.path / "operant.toml").unlink()
    data = ("--field", "field.npz", "--train", "train.npz", "--clean", "clean.npz", "--out", "there", "--labels", "5")
    for strategy in ("badge", "clue", "margin", "random"):
        done = run("net.py:Net", "--weights", "net.safetensors", *data, "--strategy", strategy)
        assert done.exit_code == 0, done.output
        assert len(table("there/to_label.csv")) == 5


def test_equal_seeds_list_equal_inputs(here, quick):
    tables = []
    for seed in ("0", "0", "1"):
        assert run("--seed", seed, "--strategy", "random").exit_code == 0
        tables.append(Path("operant-export/to_label.csv").read_text())
    assert tables[0] == tables[1] != tables[2]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--strategy", "risk-badge"), "--strategy risk-badge needs the risk map of a campaign with conditions"),
        (("--strategy", "disagreement"), "compares the model with its retrained one, and this folder has none"),
        (("--strategy", "best"), "--strategy must be one of badge, risk-badge, clue, margin, random, disagreement"),
        (("--run", "nothing"), "nothing is not a campaign's folder: it has no run.json"),
        (("--out", "."), ". is not empty and holds no export"),
        (("--out", "net.py"), "but net.py is a file"),
        (("--field", "nothing.npz"), "there is no nothing.npz"),
        (("--labels", "0"), "greater than or equal to 1"),
    ],
)
def test_bad_options_are_refused(here, quick, options, problem):
    done = run(*options)
    assert done.exit_code == 2
    assert problem in words(done)
    assert not (here.path / "operant-export").exists()


def test_a_table_has_no_conditions(here):
    (here.path / "line.py").write_text("from torch import nn\ndef net():\n    return nn.Linear(4, 3)\n")
    g = spawn(0)
    for name, n in (("train", 60), ("clean", 40), ("field", 80)):
        x = torch.rand(n, 4, generator=g)
        np.savez(f"{name}_table.npz", x=x, y=x[:, :3].argmax(1))
    (here.path / "operant.toml").unlink()
    data = ("--field", "field_table.npz", "--train", "train_table.npz", "--clean", "clean_table.npz")
    done = run("line.py:net", *data, "--labels", "5")
    assert done.exit_code == 0, done.output
    assert "field_transform.py is missing: Conditions are for images" in words(done)
    assert json.loads(Path("operant-export/export.json").read_text())["type"] == "ExportRecord"


@pytest.fixture
def campaign(here):
    """The user's folder after a campaign with four classes; the options of a command for it."""
    campaign_folder(here.path / "operant-run")
    (here.path / "four.py").write_text(
        "from torch import nn\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))\n"
    )
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    with torch.no_grad():
        net[1].weight.copy_(20 * torch.eye(64)[:4] * torch.tensor([1.0, 1.0, 1.0, 0.0])[:, None])
        net[1].bias.zero_()
    save_weights(net, here.path / "four.safetensors")
    (here.path / "operant.toml").unlink()
    data = ("--field", "field.npz", "--train", "train.npz", "--clean", "clean.npz", "--no-conditions")
    return ("four.py:net", "--weights", "four.safetensors", *data, "--labels", "7")


def test_a_campaign_gives_its_failures_and_its_retrained_model(campaign):
    done = run(*campaign, "--strategy", "disagreement")
    assert done.exit_code == 0, done.output
    assert files_in(Path("operant-export")) >= {"failures.npz", "to_label.csv"}
    with np.load("operant-export/failures.npz") as arrays:
        assert len(arrays["x"]) == len(read_failures(Path("operant-run")).suite)
    rows = table("operant-export/to_label.csv")
    assert len(rows) == 7
    assert "by disagreement" in rows[0]["why"]
    refused = run(*campaign, "--strategy", "risk-badge")
    assert refused.exit_code == 2
    assert "and the campaign in operant-run has none; choose another strategy" in words(refused)


def test_a_campaign_with_a_risk_map_chooses_by_it(campaign):
    train = read_samples("train.npz")
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    load_weights(net, Path("four.safetensors"))
    draws = RecipeDraws(recipe=Recipe(severities={"gaussian_noise": uniform(0, 0.5)}))
    cases = draws(Classifier(net), train[torch.arange(300) % len(train)], generator=spawn(0))
    with RunFolder("operant-run", signature=SETTINGS) as folder:
        folder.suite(f"{DRAWS}/{TEACHING}", lambda: cases)
    done = run(*campaign, "--strategy", "risk-badge")
    assert done.exit_code == 0, done.output
    assert "by BADGE times risk" in table("operant-export/to_label.csv")[0]["why"]
