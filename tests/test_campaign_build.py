"""From `operant.toml` to a campaign: model, data, moves, retrainer and observers; errors name the key."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from operant import Samples, Suite, files, spawn
from operant.campaign import build as building
from operant.campaign.build import build
from operant.campaign.config import load_config
from operant.campaign.observers import OBSERVERS
from operant.cli import app
from operant.conditions import Recipe, fixed, normal
from operant.execution.engines import serial
from operant.execution.run_folder import RunFolder
from operant.execution.signature import signature_of
from operant.model import Finding
from operant.model.hashing import described
from operant.networks import load_weights
from operant.profile import FittedConditions, Parameter
from operant.report import load_evidence, write_report
from operant.retrain import OperationalFinetune


def test_a_short_file_builds_a_campaign(user):
    job = user.build()
    assert (len(job.train), len(job.clean), len(job.field(0))) == (60, 30, 40)
    assert job.model.accuracy(job.clean) == 1
    assert job.folder == user.path / "operant-run"
    assert job.field(0).y is None  # labels come from the labeller alone
    assert list(job.campaign.moves) == ["gradient-0.16", "gradient-0.4"]
    assert job.campaign.moves["gradient-0.4"](naturalness=None).norm == "l2"
    assert any(
        "radii is not given: [0.16, 0.4] in l2, which fit the range of the training inputs" in note
        for note in job.notes
    )
    assert any("field contains only 40 inputs" in note for note in job.notes)


def test_options_reach_the_campaign(user):
    text = """[budget]
rounds = 2
labels = 90
[generate]
radii = [0.3]
norm = "linf"
level = 0.1
genetic = true
[retrain]
epochs = 4
optimiser = "sgd"
ema = 0.9
[run]
folder = "elsewhere/run"
seed = 7
workers = 2
feedback = false
when_drifted = "stop"
"""
    job = user.build(text)
    campaign = job.campaign
    assert (campaign.rounds, campaign.labels, campaign.level) == (2, 90, 0.1)
    assert (campaign.feedback, campaign.when_drifted, campaign.requirement) == (False, "stop", 0.1)
    assert campaign.retrainer == OperationalFinetune(epochs=4, optimiser="sgd", ema=0.9, progress=False)
    assert {name: make.keywords["radius"] for name, make in campaign.moves.items()}.keys() == {
        "gradient-0.3",
        "genetic",
    }
    assert campaign.moves["gradient-0.3"].keywords["norm"] == "linf"
    assert (job.folder, job.seed, campaign.engine.workers) == (user.path / "elsewhere" / "run", 7, 2)
    assert build(load_config(user.path), workers=5).campaign.engine.workers == 5
    assert build(load_config(user.path), workers=1).campaign.engine is serial


def test_training_inputs_that_are_all_equal_have_no_default_radii(user):
    for name in ("clean", "field"):
        user.write(f"{name}.npz", Samples(user.samples(20, name).x.flatten(1), torch.arange(20) % 3))
    user.write("train.npz", Samples(torch.ones(9, 64), torch.arange(9) % 3))
    with pytest.raises(ValueError, match=r"\[generate\] radii: training inputs must differ"):
        user.build()


def test_tables_are_searched_with_gradients_only(user):
    for name in ("train", "clean", "field"):
        data = user.samples(20, name)
        user.write(f"{name}.npz", Samples(data.x.flatten(1), data.y))
    moves = user.build().campaign.moves
    assert len(moves) == 2
    assert all(name.startswith("gradient-") for name in moves)
    assert any("which fit the spread of a column (interquartile range)" in note for note in user.build().notes)
    for text, name in (
        ("[conditions]\nblur = {fixed = 1}", "conditions are"),
        ("[generate]\ngenetic = true", "genetic is"),
    ):
        with pytest.raises(ValueError, match=rf"{name} for images, but inputs have the shape \(64,\)"):
            user.build(text)


def test_patterns_need_a_model_with_dropout(user):
    text = '[generate]\nradii = []\npatterns = ["HL", "HH", "HL"]\n'
    with pytest.raises(ValueError, match=r"\[generate\] patterns: the model ran without any dropout"):
        user.build(text)
    with pytest.raises(ValueError, match=r"\[generate\] patterns must be 'HL', 'HH' or 'LL', got 'LH'"):
        user.configure(text.replace("HH", "LH"))
    dropping = user.net.replace("x.flatten(1))", "nn.functional.dropout(x.flatten(1), 0.5, training=self.training))", 1)
    (user.path / "net.py").write_text(dropping)
    del sys.modules["net"]
    moves = user.build(text).campaign.moves
    assert list(moves) == ["uncertainty-HL", "uncertainty-HH"]
    fuzz = moves["uncertainty-HL"](naturalness=None)
    assert (fuzz.pattern, fuzz.radius) == ("HL", pytest.approx(0.1, rel=0.02))
    assert described(moves) != described(user.build(text.replace('"HH", ', "")).campaign.moves)


def test_the_same_file_gives_the_same_signature_and_a_changed_one_another(user):
    text = "[conditions]\nblur = {fixed = 1}\n[generate]\nradii = [0.3]\n"
    one, same = (user.build(text).campaign for _ in range(2))
    other = user.build(text.replace("0.3", "0.2")).campaign
    assert described(one.moves) == described(same.moves) != described(other.moves)
    with RunFolder(user.path / "run", signature=signature_of(one)):
        pass
    with (
        pytest.raises(ValueError, match="other settings: moves"),
        RunFolder(user.path / "run", signature=signature_of(other)),
    ):
        pass


def test_missing_clean_data_are_held_out_with_a_note(user):
    job = user.build("clean_share = 0.3", start=user.toml.split("[data]")[0] + REST)
    assert len(job.train) + len(job.clean) == 60
    assert 5 < len(job.clean) < 40
    assert not torch.isin(job.clean.ids, job.train.ids).any()
    assert any(f"clean is not given: {len(job.clean)} of 60 training inputs" in note for note in job.notes)


REST = '[requirement]\npmi = 0.1\n[data]\ntrain = "train.npz"\nfield = "field.npz"\n'


def test_paths_in_notes_start_from_the_folder_of_the_file(user, monkeypatch):
    def noted(config, notes):
        notes.append(f"{config.path('tables/labels.csv')}: 1 row is ignored; see {Path('/elsewhere/a.csv')}")
        return make(config, notes)

    make = building.build_model
    monkeypatch.setattr(building, "build_model", noted)
    assert f"tables/labels.csv: 1 row is ignored; see {Path('/elsewhere/a.csv')}" in user.build().notes


def test_one_file_may_hold_all_parts(user):
    parts = {name: user.samples(20, name) for name in ("train", "test", "field")}
    arrays = {f"x_{name}": part.x.numpy() for name, part in parts.items()}
    np.savez(user.path / "all.npz", **arrays, y_train=parts["train"].y.numpy(), y_test=parts["test"].y.numpy())
    start = user.toml.replace("train.npz", "all.npz").replace("clean.npz", "all.npz").replace("field.npz", "all.npz")
    job = user.build(start=start)
    assert job.train.ids.equal(parts["train"].ids)
    assert job.clean.ids.equal(parts["test"].ids)
    assert job.field(0).ids.equal(parts["field"].ids)


def test_the_file_may_limit_what_files_unpack_to(user, monkeypatch):
    monkeypatch.setattr(files, "_configured", None)  # restored afterwards
    monkeypatch.setattr(files, "MAX_RATIO", 0)
    size = user.toml.replace("[data]", "[data]\nmax_bytes = {}")
    with pytest.raises(ValueError, match=r"\[data\] train: .*limit of 1e-06 GB .*or \[data\] max_bytes"):
        user.build(start=size.format(1000))
    assert len(user.build(start=size.format(10**8)).field(0)) == 40  # in every round
    user.build()
    assert files.max_bytes() == files.MAX_BYTES, "the limit is that of the file"
    monkeypatch.setenv(files.VARIABLE, str(10**8))
    user.build(start=size.format(1000))
    monkeypatch.setenv(files.VARIABLE, "1000")
    with pytest.raises(ValueError, match="limit of 1e-06 GB"):
        user.build(start=size.format(10**8))


def test_new_field_files_are_read_in_the_next_round(user):
    (user.path / "field").mkdir()
    user.write("field/b.npz", user.samples(30, "b"))
    for place in ("field/*.npz", "field"):  # a pattern, or the folder of the files
        (user.path / "field" / "a.npz").unlink(missing_ok=True)
        job = user.build(start=user.toml.replace("field.npz", place))
        assert len(job.field(0)) == 30
        user.write("field/a.npz", Samples(user.samples(10, "a").x))
        assert job.field(1).ids.equal(torch.cat([user.samples(10, "a").ids, user.samples(30, "b").ids]))


def test_a_folder_of_images_can_be_field_data(user):
    (user.path / "shots").mkdir()
    for i in range(6):
        pixels = np.full((16, 16), 40 * i, dtype=np.uint8)
        Image.fromarray(pixels).save(user.path / "shots" / f"{i}.png")
    start = user.toml.replace('"field.npz"', '["field.npz", "shots"]\nsize = [8, 8]')
    assert len(user.build(start=start).field(0)) == 46


def test_a_module_in_double_precision_gets_data_in_double_precision(user):
    (user.path / "net_double.py").write_text(user.net + "\n\ndef double():\n    return Net().double()\n")
    job = user.build(start=user.toml.replace("net.py:Net", "net_double.py:double"))
    assert {job.train.x.dtype, job.clean.x.dtype, job.field(0).x.dtype} == {torch.float64}
    assert job.train.ids.equal(user.samples(60, "train").ids)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "net.py:Net",
            "net",
            "[model] module: a callable must be given as package.module:callable",
        ),
        ("net.py:Net", "nothere.py:Net", "[model] module: there is no .*nothere.py; beside it are net.py, net_"),
        ("net.py:Net", "nothere:Net", "[model] module: there is no module nothere"),
        ("net.py:Net", "net_broken.py:Net", "[model] module: importing net_broken failed: RuntimeError: not today"),
        ("net.py:Net", "net.py:Nit", "[model] module: net has no Nit; it has Net, label"),
        ("net.py:Net", "net.py:number", "[model] module: net.py:number() must return a torch.nn.Module, got int"),
        ("net.py:Net", "net.py:label", "[model] module: net.py:label() must build the model without arguments"),
        ("net.py:Net", "json.py:Net", "[model] module: there is no .*json.py"),
        ("net.safetensors", "nothere.safetensors", "[model] weights: there is no .*; beside it are net.safetensors"),
        ("net.safetensors", "train.npz", "[model] weights: .*train.npz is not a readable safetensors file"),
        ("[data]", "bounds = [1, 0]\n[data]", "[model]: bounds must be (low, high) with low < high"),
        ("[data]", "bounds = [0, 0.5]\n[data]", "[data] train: inputs must lie within bounds (0.0, 0.5), got values"),
        ("[data]", "bounds = [0, 0.5]\n[data]", "rescale them, or set the model's bounds to those of your data"),
        ("net.safetensors", "net.pt", "[model] weights: .*net.pt is a file of torch.save"),
        ("net.safetensors", "renamed.safetensors", '; save_weights(module, "renamed.safetensors")'),
        ("train.npz", "nothere.npz", "[data] train: there is no .*nothere.npz; beside it are classes.npz, clean.npz"),
        ("train.npz", "net.py", "[data] train: .*net.py must be an npz file, or a folder of pictures"),
        ("train.npz", "unlabelled.npz", "[data] train: has no labels, but needs them"),
        ("train.npz", "small.npz", "[data] train: the module fails on inputs of shape (1, 4, 4)"),
        (
            "clean.npz",
            "small.npz",
            "[data] clean: must contain inputs of the training data's shape (1, 8, 8), got (1, 4",
        ),
        ("clean.npz", "classes.npz", "[data] clean: labels must be below the model's 3 classes, got 7"),
        (
            "field.npz",
            "small.npz",
            "[data] field: must contain inputs of the training data's shape (1, 8, 8), got (1, 4",
        ),
        ("field.npz", "incoming/*.npz", "[data] field: there is no .*incoming/*.npz; put field inputs there"),
        (
            "field.npz",
            "clean.npz",
            "[data] field: must contain inputs that are not in train or clean, got none",
        ),
        (
            "[requirement]",
            "[run]\nfolder = 'net.py/run'\n[requirement]",
            "[run] folder: .* cannot be created (Not a direc",
        ),
        (
            "[requirement]",
            "[generate]\nradii = []\n[requirement]",
            "[generate]: there must be a move to search with",
        ),
        ("[requirement]", "[labels]\nfile = 'nothere.npz'\n[requirement]", "[labels] file: there is no .*nothere.npz"),
        (
            "[requirement]",
            "[labels]\nfile = 'net.py'\n[requirement]",
            "[labels] file: must be an npz file with x and y",
        ),
        ("[requirement]", "[labels]\ncallable = 'net.py:no'\n[requirement]", "[labels] callable: net has no no"),
    ],
)
def test_bad_models_data_and_labels_are_rejected_with_their_key(user, old, new, sentence):
    (user.path / "net_broken.py").write_text("raise RuntimeError('not today')")
    user.write("small.npz", Samples(torch.rand(20, 1, 4, 4, generator=spawn(1)), torch.arange(20) % 3))
    user.write("unlabelled.npz", Samples(user.samples(20, "u").x))
    for name in ("net.pt", "renamed.safetensors"):
        torch.save(nn.Linear(64, 3).state_dict(), user.path / name)
    user.write("classes.npz", Samples(user.samples(8, "c").x, torch.arange(8)))
    with pytest.raises(ValueError) as error:
        user.build(start=user.toml.replace(old, new))
    place = 0
    for part in sentence.split(".*"):
        assert part in str(error.value)[place:], str(error.value)
        place = str(error.value).index(part, place)


def test_a_file_with_the_name_of_another_module_is_rejected(user):
    (user.path / "json.py").write_text(user.net)
    with pytest.raises(ValueError, match="json.py has the same name as another module, .*; rename the file"):
        user.build(start=user.toml.replace("net.py:Net", "json.py:dumps"))


# Estimated conditions


UNEXPLAINED = Finding(name="conditions do not explain the field", problem="a third remains", advice="Declare others")


def test_doubts_about_conditions_and_notes_are_in_the_report(user, monkeypatch):
    """And on the error stream, also of a quiet run."""
    recipe = Recipe(severities={"rotation": normal(4)})
    values = {"parameters": (), "before": 1.0, "after": 0.5, "floor": 0.5, "floor_high": 0.6, "priors": ()}
    found = FittedConditions(recipe=recipe, **values, confidence=0.95, findings=(UNEXPLAINED,))
    monkeypatch.setattr("operant.profile._conditions.fit_conditions", lambda *_, **__: found)
    monkeypatch.setattr("operant.campaign.build.check_field_size", lambda inputs: None)  # refused after the estimate
    user.write("field.npz", user.samples(140, "field"))
    user.configure("[conditions]\nestimate = true\nrotation = {normal = 12}\n")
    done = CliRunner().invoke(app, ["run", str(user.path), "--quiet"])
    assert done.stdout == ""
    assert str(UNEXPLAINED) in done.stderr
    assert "a campaign needs about 500 field inputs" in done.stderr
    page = write_report(user.path / "operant-run")
    assert ("conditions", UNEXPLAINED) in load_evidence(page.with_suffix(".json")).findings
    for text in (page.read_text(), page.with_suffix(".md").read_text()):
        assert "a third remains" in text
        assert "field contains only 140 inputs" in text.replace("\\", "")


def test_quick_checks_come_before_conditions_are_estimated(user, monkeypatch):
    def rejected(model, clean):
        raise ValueError(f"the model fails on {len(clean)} samples")

    def never(*_arguments):
        raise AssertionError("conditions were estimated")

    monkeypatch.setattr("operant.campaign.build.find_recipe", never)
    with pytest.raises(ValueError, match="the model fails on"):
        build(load_config(user.path), check=rejected)


@pytest.mark.parametrize("asked", ["", "[conditions]\nestimate = true\nrotation = {normal = 12}\n"])
def test_too_few_field_inputs_are_refused_before_conditions_are_estimated(user, monkeypatch, asked):
    monkeypatch.setattr("operant.campaign.build.estimate_conditions", lambda *_, **__: pytest.fail("estimated"))
    user.write("field.npz", user.samples(140, "field"))
    user.configure(asked)
    done = CliRunner().invoke(app, ["run", str(user.path)])
    assert done.exit_code == 2
    said = " ".join(done.output.split())
    assert "cannot run: a campaign needs about 500 field inputs" in said
    assert "got 140; collect more. `operant field` and `fit_risk` work with fewer" in said


def test_conditions_are_estimated_once(user, monkeypatch):
    asked = []

    def fitted(field, clean, *, widest, generator, progress):
        asked.append(field)
        time.sleep(0.02)
        severities = {"rotation": normal(4), "jpeg": fixed(2.0)}  # what was found, and what is known
        angle = Parameter(condition="rotation", name="std", value=4.0, lower=3.0, upper=5.0, limits=(0.0, 12.0))
        return FittedConditions(
            recipe=replace(widest, severities=severities),
            parameters=(angle,),
            before=1.0,
            after=0.5,
            floor=0.5,
            floor_high=0.6,
            priors=(),
            confidence=0.95,
            findings=(UNEXPLAINED,),
        )

    monkeypatch.setattr("operant.profile._conditions.fit_conditions", fitted)
    user.write("field.npz", user.samples(600, "field"))
    text = "[conditions]\nestimate = true\nrotation = {normal = 12}\nblur = {uniform = [0, 2]}\n"
    first, again = (user.build(text) for _ in range(2))
    assert len(asked) == 1
    half = first.field(0).split(profile=0.5, assessment=0.5)["profile"]  # the half for assessment is not used
    assert asked[0].ids.equal(half.ids)
    recipe = first.campaign.moves["conditions"].args[0].recipe
    assert recipe.severities == {"rotation": normal(4), "jpeg": fixed(2.0)}
    assert again.campaign.moves["conditions"].args[0].recipe == recipe
    assert RunFolder(first.folder).times() == {}  # written once the campaign holds the lock
    with RunFolder(first.folder, signature={}, stopwatch=first.stopwatch) as run:
        assert run.times()["conditions"] >= 0.02
    assert first.findings == again.findings == (UNEXPLAINED,)
    assert not any(UNEXPLAINED.problem in note for note in first.notes)
    with pytest.raises(ValueError, match=r"\[conditions\]: .* other settings: estimated within"):
        user.build(text.replace("12", "15"))


def test_conditions_are_estimated_for_images_unless_switched_off(user, monkeypatch):
    """Without [conditions], a palette of usual ones limits the estimate; what was found is a note, and searched."""
    limits = []

    def fitted(field, clean, *, widest, generator, progress):
        limits.append(widest)
        recipe = replace(widest, severities={"rotation": normal(4)})
        angle = Parameter(condition="rotation", name="std", value=4.0, lower=3.0, upper=5.0, limits=(0.0, 9.0))
        values = {"parameters": (angle,), "before": 2.0, "after": 0.6, "floor": 0.5, "floor_high": 0.7, "priors": ()}
        return FittedConditions(recipe=recipe, **values, confidence=0.95, findings=(UNEXPLAINED,))

    monkeypatch.setattr("operant.profile._conditions.fit_conditions", fitted)
    user.write("field.npz", user.samples(600, "field"))
    first, again = user.build(), user.build()
    assert len(limits) == 1  # a resumed campaign keeps them
    assert len(limits[0].severities) > 5
    assert limits[0].bounds == (0.0, 1.0)
    for job in (first, again):
        assert job.campaign.moves["conditions"].args[0].recipe.severities == {"rotation": normal(4)}
        assert job.conditions is not None
        assert job.findings == (UNEXPLAINED,)
        assert any("rotation std 4 [3, 5]" in note and "Unexplained share: " in note for note in job.notes)
    assert described(first.campaign.moves) == described(again.campaign.moves)
    asked = user.build('[run]\nfolder = "asked"\n[conditions]\nestimate = true\n')
    assert len(limits) == 2
    assert "conditions" in asked.campaign.moves
    for number, text in enumerate(("[conditions]\nestimate = false\n", "[conditions]\nblur = {fixed = 1}\n")):
        other = user.build(f'[run]\nfolder = "off-{number}"\n{text}')
        assert ("conditions" in other.campaign.moves) == bool(number)
        assert other.conditions is None
        assert not (other.folder / "conditions").exists()
    assert len(limits) == 2


def test_no_condition_found_is_said_and_nothing_is_searched_with(user, monkeypatch):
    nothing = Recipe(severities={})
    values = {"parameters": (), "before": 0.5, "after": 0.5, "floor": 0.5, "floor_high": 0.6, "priors": ()}
    found = FittedConditions(recipe=nothing, **values, confidence=0.95, findings=())
    monkeypatch.setattr("operant.profile._conditions.fit_conditions", lambda *_, **__: found)
    user.write("field.npz", user.samples(600, "field"))
    job = user.build()
    assert "conditions" not in job.campaign.moves
    assert any(note.startswith("No condition was found: ") for note in job.notes)


def test_a_campaign_goes_on_without_conditions_that_cannot_be_estimated(user, monkeypatch):
    note = "conditions were not estimated, from the half of the field inputs for the profile: "
    assert any(f"{note}at least 50 field images are needed, got " in n for n in user.build().notes)
    with pytest.raises(ValueError, match=r"\[conditions\]: at least 50 field images are needed, got "):
        user.build("[conditions]\nestimate = true\n")

    def fails(*_, **__):
        raise ValueError("it is too hard; simplify it")

    monkeypatch.setattr("operant.profile._conditions.fit_conditions", fails)
    user.write("field.npz", user.samples(600, "field"))
    job = user.build()
    assert any(n == f"{note}it is too hard; simplify it" for n in job.notes)
    assert "conditions" not in job.campaign.moves
    user.write("field.npz", Samples(torch.zeros(140, 1, 8, 8)))
    job = user.build('[run]\nfolder = "black"\n')
    assert any("each field image has one value throughout" in n for n in job.notes)
    assert {f.name for f in job.findings} == {"blank inputs", "repeated inputs", "one class"}


def test_a_resumed_campaign_does_not_ignore_other_limits_of_its_conditions(user, monkeypatch):
    """Only what the inputs cannot give is a note; a changed setting is an error, whether asked for or not."""
    found = FittedConditions(
        recipe=Recipe(severities={"rotation": normal(4)}), parameters=(), before=1.0, after=0.5, floor=0.5,
        floor_high=0.6, priors=(), confidence=0.95, findings=(),
    )  # fmt: skip
    monkeypatch.setattr("operant.profile._conditions.fit_conditions", lambda *_, **__: found)
    user.write("field.npz", user.samples(600, "field"))
    user.build()
    with pytest.raises(ValueError, match=r"\[conditions\]: .* other settings: seed"):
        user.build("[run]\nseed = 3\n")


def test_one_class_in_the_field_is_printed_by_a_campaign(user):
    x = torch.rand(40, 1, 8, 8, generator=spawn(3))
    x[:, 0, 0, 0] = 1.0
    user.write("field.npz", Samples(x))
    done = CliRunner().invoke(app, ["run", str(user.path), "--quiet"])
    assert "one class: the model predicts class 0 for all of 40 field inputs" in done.stderr


# Parts of the user's own

MOVES = """
from dataclasses import dataclass

import torch
from operant import Suite


@dataclass(frozen=True)
class Fog:
    pixels: int

    def __call__(self, model, seeds, *, generator):
        x = seeds.x.clone()
        x[..., 0, : self.pixels] = x[..., 0, : self.pixels].roll(1, -1)
        origin = torch.arange(len(seeds))
        return Suite.of(x, seeds=seeds, origin=origin, prediction=model.predict(x), method="my fog")


def fog(*, naturalness):
    assert naturalness is not None
    return Fog(3)
"""
TRAINING = """
import copy

import torch
from operant.retrain import FinetuneEpoch, FinetuneRecord, Retrained


def retrain(
    model, train, cases, *, validation, monitor=None, max_drop=None, generator, checkpoint=None, on_epoch=None
):
    module = copy.deepcopy(model.unwrap())
    with torch.no_grad():
        module.head.weight.mul_(2)
    epoch = FinetuneEpoch(epoch=1, loss=0.0, accuracy=1.0, monitor=monitor(model), kept=True, why="the only one")
    on_epoch(epoch)
    record = FinetuneRecord(
        best_epoch=1, reason=f"doubled, with {len(validation)} clean inputs", n_train=len(train), n_cases=len(cases),
        accuracy_before=1.0, history=(epoch,), monitor_before=None, train_rows=0, case_rows=0, effective_cases=0.0,
        stopped_early=False,
    )
    return Retrained(model=model.rewrap(module), record=record)
"""
SMALL = """
[budget]
rounds = 1
labels = 60
seeds_per_round = 30
cases_per_round = 10
[labels]
file = "field.npz"
[conditions]
estimate = false
"""


@pytest.fixture
def small(user):
    """Builds a campaign of seconds, whose labels cannot meet the requirement in round 0."""
    (user.path / "my_moves.py").write_text(MOVES)
    (user.path / "my_training.py").write_text(TRAINING)
    user.write("field.npz", user.samples(520, "field"))
    start = user.toml.replace("pmi = 0.1", "pmi = 0.001") + SMALL
    return lambda text: user.build(text, start)


def test_a_campaign_searches_with_a_move_of_the_user(small, user):
    job = small('[generate]\nradii = [0.3]\n[generate.moves]\nfog = "my_moves.py:fog"\n')
    assert list(job.campaign.moves) == ["gradient-0.3", "fog"]
    last = job.run().rounds[1]
    assert last.by_move["fog"] > 0
    assert sum(last.by_move.values()) == last.operational
    cases = Suite.open(user.path / "operant-run" / "cases")
    by_fog = cases[torch.from_numpy(cases["move"] == "fog")]
    assert 0 < len(by_fog) <= last.chosen
    assert cases.method.tolist().count("my fog") == by_fog.method.tolist().count("my fog") == len(by_fog)


def test_a_move_of_the_user_may_be_the_only_one(small):
    job = small('[generate]\nradii = []\nmoves = {fog = "my_moves.py:fog"}\n')
    assert list(job.campaign.moves) == ["fog"]


@pytest.mark.parametrize(
    ("moves", "sentence"),
    [
        ('fog = "my_moves.py:smog"', r"\[generate\] moves: my_moves has no smog; it has .*fog"),
        ('fog = "nothere.py:fog"', r"\[generate\] moves: there is no .*nothere.py; beside it are my_moves.py"),
        ('fog = "fog"', r"\[generate\] moves: .* package.module:callable or file.py:callable, got 'fog'"),
        ("fog = 3", r"\[generate\] moves must be a string in quotes, got 3"),
        ('"gradient-0.3" = "my_moves.py:fog"', r"\[generate\]: own moves must have names of their own, got gradient-0"),
    ],
)
def test_bad_moves_of_the_user_are_rejected(small, moves, sentence):
    with pytest.raises(ValueError, match=sentence):
        small(f"[generate]\nradii = [0.3]\n[generate.moves]\n{moves}\n")


def test_a_campaign_retrains_with_a_retrainer_of_the_user(small, user):
    job = small('[generate]\njudge_draws = 0\n[retrain]\nmethod = "my_training.py:retrain"\n')
    result = job.run()
    last = result.rounds[1]
    assert last.changed
    assert last.retraining.reason == "doubled, with 30 clean inputs"
    assert (last.retraining.n_train, last.retraining.n_cases) == (60, last.chosen)
    before, after = (m.unwrap().head.weight for m in (job.model, result.model))
    assert torch.equal(after, 2 * before)
    kept = load_weights(sys.modules["net"].Net(), user.path / "operant-run" / "model.safetensors")
    assert torch.equal(kept.head.weight, after)


def test_a_bad_retrainer_of_the_user_is_rejected(small):
    for name, sentence in (("my_training.py:train", "my_training has no train"), ("retrain", "file.py:callable")):
        with pytest.raises(ValueError, match=rf"\[retrain\] method: .*{sentence}"):
            small(f'[retrain]\nmethod = "{name}"\n')
    with pytest.raises(ValueError, match=r"\[retrain\]: method replaces the other keys, got ema, epochs too; set"):
        small('[retrain]\nmethod = "my_training.py:retrain"\nepochs = 4\nema = 0.0\n')


def test_observers_can_be_switched_off(small, user):
    names = {observer.name for observer in OBSERVERS}
    small("").run()
    recorded = {path.stem for path in (user.path / "operant-run").glob("round-*/*.json")}
    assert names & recorded
    job = small('[run]\nfolder = "without"\nobservers = []\n')
    assert job.campaign.observers == []
    job.run()
    assert {path.stem for path in (user.path / "without").glob("round-*/*.json")} == recorded - names
    assert write_report(user.path / "without").exists()


def test_observers_are_chosen_by_name(user):
    names = [observer.name for observer in OBSERVERS]
    assert list(user.build().campaign.observers) == list(OBSERVERS)
    some = user.build(f'[run]\nobservers = ["{names[2]}", "{names[0]}"]\n').campaign.observers
    assert [observer.name for observer in some] == [names[0], names[2]]  # in the order of the report
    with pytest.raises(ValueError, match=rf"\[run\] observers: there is no maps; there are {', '.join(names)}"):
        user.build(f'[run]\nobservers = ["{names[0]}", "maps"]\n')
