"""From `operant.toml` to a campaign: model, data, moves, retrainer and observers; errors name the key."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from operant import Samples, spawn
from operant.campaign import build as building
from operant.campaign.build import build
from operant.campaign.config import load_config
from operant.conditions import fixed, normal
from operant.execution.run_folder import RunFolder
from operant.execution.signature import signature_of
from operant.model.hashing import described
from operant.profile import FittedConditions
from operant.retrain import OperationalFinetune


def test_a_short_file_builds_a_campaign(user):
    job = user.build()
    assert (len(job.train), len(job.clean), len(job.field(0))) == (60, 30, 40)
    assert job.model.accuracy(job.clean) == 1
    assert job.folder == user.path / "operant-run"
    assert job.field(0).y is None  # what is known of field labels, the labeller tells
    assert list(job.campaign.moves) == ["gradient-0.16", "gradient-0.4"]
    assert job.campaign.moves["gradient-0.4"](naturalness=None).norm == "l2"
    assert any("radii is not given: [0.16, 0.4]" in note for note in job.notes)
    assert any("field holds 40 inputs, which is few" in note for note in job.notes)


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
    assert campaign.finetune == OperationalFinetune(epochs=4, optimiser="sgd", ema=0.9, progress=False)
    assert {name: make.keywords["radius"] for name, make in campaign.moves.items()}.keys() == {
        "gradient-0.3",
        "genetic",
    }
    assert campaign.moves["gradient-0.3"].keywords["norm"] == "linf"
    assert (job.folder, job.seed, job.workers) == (user.path / "elsewhere" / "run", 7, 2)
    assert build(load_config(user.path), workers=5).workers == 5


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("shape", [(20,), (1, 4, 5)])
def test_default_radii_grow_with_the_inputs(norm, shape):
    x = torch.rand(50, *shape, generator=spawn(0, "x"))
    one, three = (building.default_radii(Samples(k * x), norm, []) for k in (1, 3))
    assert 0 < one[0] < one[1]
    assert three == pytest.approx([3 * r for r in one], rel=0.06)  # two digits are kept


@pytest.mark.parametrize("columns", [4, 40])
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_cases_of_tables_keep_their_labels_at_the_default_radii(columns, norm):
    """Two Gaussian classes, and as many columns of noise with heavy tails; what is attacked is the best rule itself."""
    generator, n = spawn(0, "table"), 2000
    y = torch.randint(2, (n,), generator=generator)
    apart = torch.full((columns,), 2.2 / columns**0.5)  # from the rule, in standard deviations
    z = (2 * y[:, None] - 1) * apart + torch.randn(n, columns, generator=generator)
    noise = torch.tan(1.5 * (2 * torch.rand(n, columns, generator=generator) - 1))
    x = torch.cat([z, noise], 1)
    table = Samples((x - x.mean(0)) / x.std(0), y)
    rule = nn.Linear(2 * columns, 2)
    with torch.no_grad():
        weight = torch.cat([apart, torch.zeros(columns)]) * x.std(0)
        rule.weight.copy_(torch.stack([-weight, weight]))
        rule.bias.copy_(torch.stack([-(weight / x.std(0)) @ x.mean(0), (weight / x.std(0)) @ x.mean(0)]))
    model = Classifier(rule, bounds=(-100, 100))
    assert model.accuracy(table) > 0.97
    notes: list[str] = []
    radii = building.default_radii(table, norm, notes)
    assert "fits the spread of a column" in notes[0]
    seeds = model.correct(table)
    for radius in radii:
        cases = PGD(radius=radius, norm=norm, steps=5)(model, seeds, generator=spawn(0, "pgd"))
        assert len(cases.failures()) < 0.05 * len(seeds)  # each of which has lost its label
    by_range = 0.05 * float(table.x.max() - table.x.min()) * (2 * columns) ** 0.5
    cases = PGD(radius=by_range, norm="l2", steps=5)(model, seeds, generator=spawn(0, "pgd"))
    assert len(cases.failures()) > 0.2 * len(seeds)


def test_columns_that_hardly_vary_do_not_make_radii_vanish():
    """Columns of nothing but zeros, and of rare ones, have no interquartile range."""
    x = torch.zeros(100, 4)
    x[::10, 1] = 1
    assert building.default_radii(Samples(x), "l2", []) == pytest.approx([0.015, 0.03], rel=0.06)
    x[:, 0] = torch.linspace(0, 8, 100)
    assert building.default_radii(Samples(x), "l2", []) == pytest.approx([0.2, 0.4], rel=0.06)
    with pytest.raises(ValueError, match=r"\[data\] train: inputs must differ"):
        building.default_radii(Samples(torch.ones(9, 4)), "l2", [])


def test_tables_are_searched_by_gradients_alone(user):
    for name in ("train", "clean", "field"):
        data = user.samples(20, name)
        user.write(f"{name}.npz", Samples(data.x.flatten(1), data.y))
    moves = user.build().campaign.moves
    assert len(moves) == 2
    assert all(name.startswith("gradient-") for name in moves)
    for text in ("[conditions]\nblur = {fixed = 1}", "[generate]\ngenetic = true"):
        with pytest.raises(ValueError, match="for images, and inputs have the shape"):
            user.build(text)


def test_patterns_of_uncertainty_are_moves_of_a_model_with_dropout(user):
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


def test_the_same_file_gives_the_same_signature_and_a_changed_one_is_noticed(user):
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


def test_clean_data_that_are_not_given_are_held_out_and_that_is_said(user):
    job = user.build("clean_share = 0.3", start=user.toml.split("[data]")[0] + REST)
    assert len(job.train) + len(job.clean) == 60
    assert 5 < len(job.clean) < 40
    assert not torch.isin(job.clean.ids, job.train.ids).any()
    assert any(f"clean is not given: {len(job.clean)} of 60 training inputs" in note for note in job.notes)


REST = '[requirement]\npmi = 0.1\n[data]\ntrain = "train.npz"\nfield = "field.npz"\n'


def test_parts_of_one_file_are_told_apart(user):
    parts = {name: user.samples(20, name) for name in ("train", "test", "field")}
    arrays = {f"x_{name}": part.x.numpy() for name, part in parts.items()}
    np.savez(user.path / "all.npz", **arrays, y_train=parts["train"].y.numpy(), y_test=parts["test"].y.numpy())
    start = user.toml.replace("train.npz", "all.npz").replace("clean.npz", "all.npz").replace("field.npz", "all.npz")
    job = user.build(start=start)
    assert job.train.ids.equal(parts["train"].ids)
    assert job.clean.ids.equal(parts["test"].ids)
    assert job.field(0).ids.equal(parts["field"].ids)


def test_field_files_that_arrive_are_read_in_the_next_round(user):
    (user.path / "field").mkdir()
    user.write("field" / "b.npz", user.samples(30, "b"))
    for place in ("field/*.npz", "field"):  # a folder of npz files stands for them
        (user.path / "field" / "a.npz").unlink(missing_ok=True)
        job = user.build(start=user.toml.replace("field.npz", place))
        assert len(job.field(0)) == 30
        user.write("field" / "a.npz", Samples(user.samples(10, "a").x))
        assert job.field(1).ids.equal(torch.cat([user.samples(10, "a").ids, user.samples(30, "b").ids]))


def test_pictures_are_field_data_too(user):
    (user.path / "shots").mkdir()
    for i in range(6):
        pixels = np.full((16, 16), 40 * i, dtype=np.uint8)
        Image.fromarray(pixels).save(user.path / "shots" / f"{i}.png")
    start = user.toml.replace('"field.npz"', '["field.npz", "shots"]\nsize = [8, 8]')
    assert len(user.build(start=start).field(0)) == 46


def test_a_module_in_double_precision_gets_its_data_so(user):
    (user.path / "net_double.py").write_text(user.net + "\n\ndef double():\n    return Net().double()\n")
    job = user.build(start=user.toml.replace("net.py:Net", "net_double.py:double"))
    assert {job.train.x.dtype, job.clean.x.dtype, job.field(0).x.dtype} == {torch.float64}
    assert job.train.ids.equal(user.samples(60, "train").ids)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("net.py:Net", "net", '[model] module: must be "package.module:callable" or "file.py:callable", got'),
        ("net.py:Net", "nothere.py:Net", "[model] module: there is no .*nothere.py; beside it are net.py, net_"),
        ("net.py:Net", "nothere:Net", "[model] module: there is no module nothere"),
        ("net.py:Net", "net_broken.py:Net", "[model] module: importing net_broken failed: RuntimeError: not today"),
        ("net.py:Net", "net.py:Nit", "[model] module: net has no Nit; it has Net, label"),
        ("net.py:Net", "net.py:number", "[model] module: net:number() must return a torch.nn.Module, got int"),
        ("net.py:Net", "net.py:label", "[model] module: net:label() must build the model without arguments"),
        ("net.py:Net", "json.py:Net", "[model] module: there is no .*json.py"),
        ("net.safetensors", "nothere.safetensors", "[model] weights: there is no .*; beside it are net.safetensors"),
        ("net.safetensors", "train.npz", "[model] weights: .*train.npz is not a readable safetensors file"),
        ("[data]", "bounds = [1, 0]\n[data]", "[model]: bounds must be (low, high) with low < high"),
        ("[data]", "bounds = [0, 0.5]\n[data]", "[data] train: inputs must lie within bounds (0.0, 0.5), got values"),
        ("[data]", "bounds = [0, 0.5]\n[data]", "rescale them, or set [model] bounds to the bounds of your data"),
        ("net.safetensors", "net.pt", "[model] weights: .*net.pt is a file of torch.save"),
        ("net.safetensors", "renamed.safetensors", '; save_weights(module, "renamed.safetensors")'),
        ("train.npz", "nothere.npz", "[data] train: there is no .*nothere.npz; beside it are classes.npz, clean.npz"),
        ("train.npz", "net.py", "[data] train: .*net.py must be an npz file, or a folder of pictures"),
        ("train.npz", "unlabelled.npz", "[data] train: holds no labels, and needs them"),
        ("train.npz", "small.npz", "[data] train: the module fails on inputs of shape (1, 4, 4)"),
        ("clean.npz", "small.npz", "[data] clean: must hold inputs of the training data's shape (1, 8, 8), got (1, 4"),
        ("clean.npz", "classes.npz", "[data] clean: labels must be below the model's 3 classes, got 7"),
        ("field.npz", "small.npz", "[data] field: must hold inputs of the training data's shape (1, 8, 8), got (1, 4"),
        ("field.npz", "incoming/*.npz", "[data] field: there is no .*incoming/*.npz; put inputs from use there"),
        (
            "field.npz",
            "clean.npz",
            "[data] field: must hold inputs that are not in train or clean, which say nothing new",
        ),
        (
            "[requirement]",
            "[run]\nfolder = 'net.py/run'\n[requirement]",
            "[run] folder: .* cannot be made (Not a direc",
        ),
        (
            "[requirement]",
            "[generate]\nradii = []\n[requirement]",
            "[generate]: there must be something to search with",
        ),
        ("[requirement]", "[labels]\nfile = 'nothere.npz'\n[requirement]", "[labels]: there is no .*nothere.npz"),
        (
            "[requirement]",
            "[labels]\nfile = 'net.py'\n[requirement]",
            "[labels]: file must be an npz file with x and y",
        ),
        ("[requirement]", "[labels]\ncallable = 'net.py:no'\n[requirement]", "[labels]: net has no no; it has"),
    ],
)
def test_what_the_file_names_is_checked_and_told_with_its_key(user, old, new, sentence):
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


def test_a_file_with_the_name_of_another_module_is_refused(user):
    (user.path / "json.py").write_text(user.net)
    with pytest.raises(ValueError, match="json.py has the name of another module, .*; rename the file"):
        user.build(start=user.toml.replace("net.py:Net", "json.py:dumps"))


# Estimated conditions


def test_conditions_are_estimated_once_and_kept(user, monkeypatch):
    asked = []

    def fitted(field, clean, *, widest, generator, progress):
        asked.append(field)
        severities = {"rotation": normal(4), "blur": fixed(0.0)}
        return FittedConditions(
            recipe=replace(widest, severities=severities),
            parameters=(),
            before=1.0,
            after=0.5,
            floor=0.5,
            floor_high=0.6,
            priors=(),
            confidence=0.95,
            findings=(),
        )

    monkeypatch.setattr(building, "fit_conditions", fitted)
    text = "[conditions]\nestimate = true\nrotation = {normal = 12}\nblur = {uniform = [0, 2]}\n"
    first, again = (user.build(text) for _ in range(2))
    assert len(asked) == 1
    half = first.field(0).split(profile=0.5, assessment=0.5)["profile"]  # what is assessed with is not looked at
    assert asked[0].ids.equal(half.ids)
    recipe = first.campaign.moves["conditions"].keywords["recipe"]
    assert recipe.severities == {"rotation": normal(4)}  # what the field does not ask for is left out
    assert again.campaign.moves["conditions"].keywords["recipe"] == recipe
    with pytest.raises(ValueError, match=r"\[conditions\]: .* other settings: estimated within"):
        user.build(text.replace("12", "15"))
