"""`operant.toml`: what it may say, what is told where it is wrong, what is built from it; init and progress."""

import json
import sys
import time
import tomllib
from dataclasses import fields, replace
from io import StringIO

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

from operant import Classifier, Samples, spawn
from operant.campaign import building, initial
from operant.campaign.assessment import SequentialAssessment
from operant.campaign.build import build
from operant.campaign.campaign import Campaign
from operant.campaign.config import TABLES, load_config
from operant.campaign.progress import (
    ProgressBar,
    ProgressLines,
    ProgressState,
    event_json,
    result_json,
    seconds_of,
    show_progress,
    told_times,
)
from operant.campaign.result import CampaignResult, Round
from operant.cli import app
from operant.conditions import CONDITIONS, Recipe, fixed, half_normal, normal, uniform
from operant.data import LabelFolder, LabelsMissing
from operant.data.labels import name_of
from operant.execution.events import Event
from operant.execution.interrupt import Interrupted
from operant.execution.run_folder import RunFolder
from operant.execution.signature import signature_of
from operant.generate import PGD
from operant.model.hashing import described
from operant.networks import load_weights, save_weights
from operant.networks.weights import conversion
from operant.profile import FittedConditions
from operant.retrain import OperationalFinetune

runner = CliRunner()

SHORT = """
[model]
module = "net.py:Net"
weights = "net.safetensors"
[data]
train = "train.npz"
clean = "clean.npz"
field = "field.npz"
[requirement]
pmi = 0.1
"""
NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(x.flatten(1))


def label(asked):
    return asked.x.flatten(1)[:, :3].argmax(1)


def number():
    return 3


def nonsense(asked):
    return asked.x.flatten(1).sum(1)


def breaks(asked):
    return {}["no such\\nservice"]


def later(asked):
    from operant.data import LabelsMissing

    raise LabelsMissing("come back tomorrow")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder: code, weights and images 8 by 8, of three classes told by the largest of three pixels."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)
    (tmp_path / "net.py").write_text(NET)
    net = nn.Sequential()
    net.head = nn.Linear(64, 3)
    nn.init.zeros_(net.head.weight)
    nn.init.zeros_(net.head.bias)
    with torch.no_grad():
        net.head.weight[:, :3] = 20 * torch.eye(3)
    save_weights(net, tmp_path / "net.safetensors")
    for name, n in (("train", 60), ("clean", 30), ("field", 40)):
        write(tmp_path / f"{name}.npz", samples(n, name))
    (tmp_path / "operant.toml").write_text(SHORT)
    yield tmp_path
    for name in set(sys.modules) - known:
        if name.startswith("net"):
            del sys.modules[name]


def samples(n: int, name: str) -> Samples:
    x = torch.rand(n, 1, 8, 8, generator=spawn(0, name))
    return Samples(x, x.flatten(1)[:, :3].argmax(1))


def write(path, data: Samples, **more) -> None:
    np.savez(path, x=data.x.numpy(), **({} if data.y is None else {"y": data.y.numpy()}), **more)


def configured(folder, text: str = "", start: str = SHORT):
    path = folder / "operant.toml"
    path.write_text(start + text)
    return load_config(path)


# What it may say


def test_what_is_left_out_has_the_librarys_own_defaults(tmp_path):
    config, options = configured(tmp_path), {f.name: f.default for f in fields(Campaign)}
    finetune = {f.name: f.default for f in fields(OperationalFinetune)}
    given = {**config.budget.model_dump(), **config.run.model_dump(), **config.generate.model_dump()}
    given |= {"confidence": config.requirement.confidence, "max_drop": config.requirement.max_drop}
    shared = given.keys() & options.keys()
    assert len(shared) == 14
    assert {name: given[name] for name in shared} == {name: options[name] for name in shared}
    retrain = config.retrain.model_dump()
    assert retrain == {name: finetune[name] for name in retrain}


KEYS = [(t, k) for t, kind in TABLES.items() for k in kind.model_fields if k != "severities"]


@pytest.mark.parametrize(("table", "key"), KEYS)
def test_a_misspelt_key_is_refused_and_the_right_one_suggested(tmp_path, table, key):
    with pytest.raises(ValueError) as told:
        configured(tmp_path, f"[{table}]\n{key}s = 1\n", start="")
    assert f"(did you mean {key}?)" in str(told.value)
    assert f"[{table}]" in str(told.value)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("[modle]\nmodule = 1", ["there is no table [modle] (did you mean [model]?)", "[model] is missing"]),
        ("[model]\nweights = 'a'", ["[model] module is missing: what builds the torch module"]),
        ("[budget]\npmi = 0.1", ["[budget] has no key pmi; the key pmi belongs to [requirement]"]),
        ("rounds = 3", ["there is no table [rounds]; the key rounds belongs to [budget]"]),
        ("[requirement]\npmi = 1.5", ["[requirement] pmi must be less than 1, got 1.5"]),
        ("[requirement]\npmi = '1 %'", ["[requirement] pmi must be a number, got '1 %'"]),
        ("[budget]\nrounds = 2.5", ["[budget] rounds must be a whole number, got 2.5"]),
        ("[budget]\nrounds = 0", ["[budget] rounds must be greater than or equal to 1, got 0"]),
        ("[budget]\nrounds = true", ["[budget] rounds must be a whole number, got True"]),
        ("[model]\nbounds = [0]", ["[model] bounds must be a list of two numbers, got"]),
        ("[model]\nbounds = [0, 1, 2]", ["[model] bounds must be a list of two numbers, got [0, 1, 2]"]),
        ("[model]\nbounds = [0, '1']", ["[model] bounds must be a number, got '1'"]),
        ("[model]\nmean = 'x'", ["[model] mean must be a number or a list, got 'x'"]),
        ("[data]\nfield = 3", ["[data] field must be a word in quotes or a list, got 3"]),
        ("[labels]", ["[labels]: must have exactly one of file, callable and folder, got 0"]),
        ("[labels]\nfile = 'a'\nfolder = 'b'", ["exactly one of file, callable and folder, got 2"]),
        ("[run]\nwhen_drifted = 'go'", ["[run] when_drifted must be 'update' or 'stop', got 'go'"]),
        ("[run]\nfeedback = 'yes'", ["[run] feedback must be true or false, got 'yes'"]),
        ("[generate]\nradii = [0.1, -1]", ["[generate] radii must be greater than 0, got -1"]),
        ("[conditions]\nestimate = true", ["[conditions]: must name at least one condition"]),
        ("[conditions]\nrotate = {normal = 1}", ["no condition rotate (did you mean rotation?); there are rotation"]),
        ("[conditions]\nrotation = 12", ["[conditions] rotation must be a table such as {normal = 12}, got 12"]),
        ("[conditions]\nblur = {norml = 1}", ["[conditions] blur has no key norml (did you mean normal?)"]),
        ("[conditions]\nblur = {normal = -1}", ["[conditions] blur.normal must be greater than 0, got -1"]),
        ("[conditions]\nblur = {uniform = [2, 1]}", ["[conditions] blur: a severity's low must not exceed its high"]),
        ("[conditions]\nblur = {fixed = 1, mean = 2}", ["blur: fixed can have absent, got mean"]),
        ("[conditions]\nblur = {absent = 0.5}", ["blur: must have exactly one of normal, half_normal, uniform, fixed"]),
        ("[model]\nmodule = net", ["is not readable TOML", "line 2", "words stand in quotes"]),
        ("[run]\nseed = 1\n[model]\n[run]", ["line 4", "a table stands in the file once: change the keys of the one"]),
        ("[run]\nseed = 1\nseed = 2\n", ["line 3", "a key stands in its table once: change the one that is there"]),
    ],
)
def test_what_is_wrong_is_told_with_its_key(tmp_path, text, sentences):
    with pytest.raises(ValueError) as told:
        configured(tmp_path, text, start="")
    for sentence in ("operant.toml", *sentences):
        assert sentence in str(told.value)


def test_everything_that_is_wrong_is_told_at_once(tmp_path):
    with pytest.raises(ValueError) as told:
        configured(tmp_path, "[budget]\nround = 1\nlabels = 'x'\n[run]\nsed = 1\n")
    assert len(str(told.value).splitlines()) == 4


def test_a_file_that_is_not_there_is_told_with_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="there is no .*; `operant init` writes one"):
        load_config(tmp_path / "operant.toml")


def test_paths_are_relative_to_the_file_and_a_folder_stands_for_the_file_in_it(folder, monkeypatch):
    monkeypatch.chdir("/")
    config = load_config(folder)
    assert config.path("a/b.npz") == folder / "a" / "b.npz"
    assert config.path("/a/b.npz").as_posix() == "/a/b.npz"


def test_conditions_are_read_as_they_would_be_written_in_python(folder):
    text = """[conditions]
padding = "zeros"
rotation = {normal = 12, mean = 3, low = -20, high = 30, absent = 0.25}
blur = {uniform = [0, 1.3]}
gaussian_noise = {half_normal = 0.1, high = 0.2}
"c/fog" = {fixed = 2}
"""
    move = build(configured(folder, text)).campaign.moves["conditions"]
    severities = {
        "rotation": normal(12, mean=3, low=-20, high=30, absent=0.25),
        "blur": uniform(0, 1.3),
        "gaussian_noise": half_normal(0.1, high=0.2),
        "c/fog": fixed(2),
    }
    assert move.keywords["recipe"] == Recipe(severities=severities, padding="zeros")


# What is built


def test_a_short_file_builds_a_campaign(folder):
    ready = build(configured(folder))
    assert (len(ready.train), len(ready.clean), len(ready.field(0))) == (60, 30, 40)
    assert ready.model.accuracy(ready.clean) == 1
    assert ready.folder == folder / "operant-run"
    assert ready.field(0).y is None  # what is known of field labels, the labeller tells
    assert list(ready.campaign.moves) == ["gradient-0.16", "gradient-0.4"]
    assert ready.campaign.moves["gradient-0.4"](naturalness=None).norm == "l2"
    assert any("radii is not given: [0.16, 0.4]" in note for note in ready.notes)
    assert any("field holds 40 inputs, which is few" in note for note in ready.notes)


def test_options_reach_the_campaign(folder):
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
    ready = build(configured(folder, text))
    campaign = ready.campaign
    assert (campaign.rounds, campaign.labels, campaign.level) == (2, 90, 0.1)
    assert (campaign.feedback, campaign.when_drifted, campaign.requirement) == (False, "stop", 0.1)
    assert campaign.finetune == OperationalFinetune(epochs=4, optimiser="sgd", ema=0.9, progress=False)
    assert {name: make.keywords["radius"] for name, make in campaign.moves.items()}.keys() == {
        "gradient-0.3",
        "genetic",
    }
    assert campaign.moves["gradient-0.3"].keywords["norm"] == "linf"
    assert (ready.folder, ready.seed, ready.workers) == (folder / "elsewhere" / "run", 7, 2)
    assert build(load_config(folder), workers=5).workers == 5


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


def test_tables_are_searched_by_gradients_alone(folder):
    for name in ("train", "clean", "field"):
        data = samples(20, name)
        write(folder / f"{name}.npz", Samples(data.x.flatten(1), data.y))
    moves = build(configured(folder)).campaign.moves
    assert len(moves) == 2
    assert all(name.startswith("gradient-") for name in moves)
    for text in ("[conditions]\nblur = {fixed = 1}", "[generate]\ngenetic = true"):
        with pytest.raises(ValueError, match="for images, and inputs have the shape"):
            build(configured(folder, text))


def test_patterns_of_uncertainty_are_moves_of_a_model_with_dropout(folder):
    text = '[generate]\nradii = []\npatterns = ["HL", "HH", "HL"]\n'
    with pytest.raises(ValueError, match=r"\[generate\] patterns: the model ran without any dropout"):
        build(configured(folder, text))
    with pytest.raises(ValueError, match=r"\[generate\] patterns must be 'HL', 'HH' or 'LL', got 'LH'"):
        configured(folder, text.replace("HH", "LH"))
    dropping = NET.replace("x.flatten(1))", "nn.functional.dropout(x.flatten(1), 0.5, training=self.training))", 1)
    (folder / "net.py").write_text(dropping)
    del sys.modules["net"]
    moves = build(configured(folder, text)).campaign.moves
    assert list(moves) == ["uncertainty-HL", "uncertainty-HH"]
    fuzz = moves["uncertainty-HL"](naturalness=None)
    assert (fuzz.pattern, fuzz.radius) == ("HL", pytest.approx(0.1, rel=0.02))
    assert described(moves) != described(build(configured(folder, text.replace('"HH", ', ""))).campaign.moves)


def test_the_same_file_gives_the_same_signature_and_a_changed_one_is_noticed(folder):
    text = "[conditions]\nblur = {fixed = 1}\n[generate]\nradii = [0.3]\n"
    one, same = (build(configured(folder, text)).campaign for _ in range(2))
    other = build(configured(folder, text.replace("0.3", "0.2"))).campaign
    assert described(one.moves) == described(same.moves) != described(other.moves)
    with RunFolder(folder / "run", signature=signature_of(one)):
        pass
    with (
        pytest.raises(ValueError, match="other settings: moves"),
        RunFolder(folder / "run", signature=signature_of(other)),
    ):
        pass


def test_clean_data_that_are_not_given_are_held_out_and_that_is_said(folder):
    ready = build(configured(folder, "clean_share = 0.3", start=SHORT.split("[data]")[0] + REST))
    assert len(ready.train) + len(ready.clean) == 60
    assert 5 < len(ready.clean) < 40
    assert not torch.isin(ready.clean.ids, ready.train.ids).any()
    assert any(f"clean is not given: {len(ready.clean)} of 60 training inputs" in note for note in ready.notes)


REST = '[requirement]\npmi = 0.1\n[data]\ntrain = "train.npz"\nfield = "field.npz"\n'


def test_parts_of_one_file_are_told_apart(folder):
    parts = {name: samples(20, name) for name in ("train", "test", "field")}
    arrays = {f"x_{name}": part.x.numpy() for name, part in parts.items()}
    np.savez(folder / "all.npz", **arrays, y_train=parts["train"].y.numpy(), y_test=parts["test"].y.numpy())
    start = SHORT.replace("train.npz", "all.npz").replace("clean.npz", "all.npz").replace("field.npz", "all.npz")
    ready = build(configured(folder, start=start))
    assert ready.train.ids.equal(parts["train"].ids)
    assert ready.clean.ids.equal(parts["test"].ids)
    assert ready.field(0).ids.equal(parts["field"].ids)


def test_field_files_that_arrive_are_read_in_the_next_round(folder):
    (folder / "field").mkdir()
    write(folder / "field" / "b.npz", samples(30, "b"))
    for place in ("field/*.npz", "field"):  # a folder of npz files stands for them
        (folder / "field" / "a.npz").unlink(missing_ok=True)
        ready = build(configured(folder, start=SHORT.replace("field.npz", place)))
        assert len(ready.field(0)) == 30
        write(folder / "field" / "a.npz", Samples(samples(10, "a").x))
        assert ready.field(1).ids.equal(torch.cat([samples(10, "a").ids, samples(30, "b").ids]))


def test_pictures_are_field_data_too(folder):
    (folder / "shots").mkdir()
    for i in range(6):
        pixels = np.full((16, 16), 40 * i, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "shots" / f"{i}.png")
    start = SHORT.replace('"field.npz"', '["field.npz", "shots"]\nsize = [8, 8]')
    assert len(build(configured(folder, start=start)).field(0)) == 46


def test_a_module_in_double_precision_gets_its_data_so(folder):
    (folder / "net_double.py").write_text(NET + "\n\ndef double():\n    return Net().double()\n")
    ready = build(configured(folder, start=SHORT.replace("net.py:Net", "net_double.py:double")))
    assert {ready.train.x.dtype, ready.clean.x.dtype, ready.field(0).x.dtype} == {torch.float64}
    assert ready.train.ids.equal(samples(60, "train").ids)


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
        ("train.npz", "small.npz", "[data] train: the module must run on the inputs, and on shape (1, 4, 4)"),
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
def test_what_the_file_names_is_checked_and_told_with_its_key(folder, old, new, sentence):
    (folder / "net_broken.py").write_text("raise RuntimeError('not today')")
    write(folder / "small.npz", Samples(torch.rand(20, 1, 4, 4, generator=spawn(1)), torch.arange(20) % 3))
    write(folder / "unlabelled.npz", Samples(samples(20, "u").x))
    for name in ("net.pt", "renamed.safetensors"):
        torch.save(nn.Linear(64, 3).state_dict(), folder / name)
    write(folder / "classes.npz", Samples(samples(8, "c").x, torch.arange(8)))
    with pytest.raises(ValueError) as told:
        build(configured(folder, start=SHORT.replace(old, new)))
    place = 0
    for part in sentence.split(".*"):
        assert part in str(told.value)[place:], str(told.value)
        place = str(told.value).index(part, place)


def test_a_file_with_the_name_of_another_module_is_refused(folder):
    (folder / "json.py").write_text(NET)
    with pytest.raises(ValueError, match="json.py has the name of another module, .*; rename the file"):
        build(configured(folder, start=SHORT.replace("net.py:Net", "json.py:dumps")))


# Labels


@pytest.mark.parametrize("how", ["file = 'field.npz'", "file = 'known.csv'", "callable = 'net.py:label'"])
def test_labels_come_from_where_the_file_says(folder, how):
    field = samples(40, "field")
    rows = [f"{name_of(i)},{y}" for i, y in zip(field.ids.tolist(), field.y.tolist(), strict=True)]
    (folder / "known.csv").write_text("\n".join(["name,label", *rows]))
    ready = build(configured(folder, f"[labels]\n{how}"))
    order = torch.randperm(40, generator=spawn(0, "order"))
    asked = ready.field(0)[order]
    assert ready.labeller(asked).equal(field.y[order])


@pytest.fixture
def pictures(folder):
    """Field inputs as pictures, and a table that is called as the test says."""
    for day in ("field/mon", "field/tue"):
        (folder / day).mkdir(parents=True)
        for i in range(4):
            pixels = np.full((8, 8), 20 * i + (5 if "tue" in day else 0), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / day / (f"Img_{i}.png" if i else f"only in {day[-3:]}.bmp"))

    def labelled(*rows: str) -> building.CampaignJob:
        (folder / "labels.csv").write_text("\n".join(["name,label", *rows]))
        start = SHORT.replace('"field.npz"', '["field/mon", "field/tue"]')
        return build(configured(folder, "[labels]\nfile = 'labels.csv'", start=start))

    return labelled


def test_a_table_may_name_pictures_by_their_files(pictures):
    ready = pictures(
        "field/mon/Img_1.png,1", "mon/img_2,2", "mon/IMG_3.png,0", "tue/Img_1.png,2", "tue/Img_2.png,1",
        "tue/Img_3.png,1", "only in mon.bmp,0", "field/tue/only in tue.bmp,2",
    )  # fmt: skip
    field = ready.field(0)
    assert ready.labeller(field).tolist() == [1, 2, 0, 0, 2, 1, 1, 2]
    assert ready.labeller(field[[5, 0]]).tolist() == [1, 1]


def test_pictures_without_a_label_are_asked_for_by_their_files(pictures):
    ready = pictures("Img_1.png,1", "mon/Img_2.png,", "mon/Img_3.png,2")  # there are two Img_1, one is not told
    for row, name in ((0, "mon/Img_1.png"), (1, "mon/Img_2.png"), (3, "only in mon.bmp")):
        with pytest.raises(LabelsMissing, match=f"1 of 2 inputs have no label .* rows such as {name},3"):
            ready.labeller(ready.field(0)[[row, 2]])


def test_ids_serve_beside_the_names_of_files(pictures):
    ids = pictures().field(0).ids.tolist()
    ready = pictures(*(f"{name_of(i)},{row % 3}" for row, i in enumerate(ids)))
    assert ready.labeller(ready.field(0)).tolist() == [row % 3 for row in range(8)]


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        (torch.arange(40), "must hold labels from 0 to 2, the model's classes, got 39"),
        (torch.arange(40) - 1, "must be labels of 0 or more, got -1"),
        (torch.rand(40), "must be 40 integer labels"),
        (torch.zeros(40, 3, dtype=torch.int64), "must be 40 integer labels"),
        (None, "holds no labels"),
    ],
)
def test_labels_of_a_file_that_are_no_classes_are_refused(folder, y, sentence):
    x = samples(40, "field").x.numpy()
    np.savez(folder / "labels.npz", x=x, **({} if y is None else {"y": y.numpy()}))
    ready = build(configured(folder, "[labels]\nfile = 'labels.npz'"))
    with pytest.raises(ValueError) as told:
        ready.labeller(ready.field(0))
    assert str(told.value).startswith("[labels] file: ")
    assert sentence in str(told.value)


def test_labels_of_inputs_of_another_shape_are_refused(folder):
    write(folder / "labels.npz", Samples(samples(40, "field").x.flatten(1), torch.zeros(40, dtype=torch.int64)))
    ready = build(configured(folder, "[labels]\nfile = 'labels.npz'"))
    with pytest.raises(ValueError, match=r"must hold inputs of the field data's shape \(1, 8, 8\), got \(64,\)"):
        ready.labeller(ready.field(0))


@pytest.mark.parametrize("how", ["file = 'field.npz'", "file = 'labels.csv'", "folder = 'mine'"])
def test_missing_labels_are_asked_for(folder, how):
    (folder / "labels.csv").write_text("name,label\n")
    ready = build(configured(folder, f"[labels]\n{how}"))
    with pytest.raises(LabelsMissing, match="12 of 12 inputs .* run this again"):
        ready.labeller(Samples(samples(12, "others").x))
    assert (folder / "mine" / "labels.csv").exists() == ("folder" in how)


def test_unless_given_people_label_in_a_folder_beside_the_file(folder):
    with pytest.raises(LabelsMissing, match="write each one's class .0 to 2. into .*to_label/labels.csv"):
        build(configured(folder)).labeller(Samples(samples(12, "others").x))
    assert len(list((folder / "to_label").glob("*.png"))) == 12


def test_a_function_that_tells_no_labels_is_refused(folder):
    ready = build(configured(folder, "[labels]\ncallable = 'net.py:nonsense'"))
    with pytest.raises(ValueError, match="nonsense must return 40 whole numbers from 0 to 2.*float32"):
        ready.labeller(ready.field(0))


def test_a_function_that_fails_is_told_with_what_it_was_asked(folder):
    asked = samples(12, "others")
    ready = build(configured(folder, "[labels]\ncallable = 'net.py:breaks'"))
    with pytest.raises(ValueError) as told:
        ready.labeller(asked)
    first = name_of(int(asked.ids[0]))
    assert str(told.value).startswith(
        "[labels] callable: net.py:breaks failed on 12 inputs of shape (1, 8, 8), " + first
    )
    assert "KeyError: 'no such" in str(told.value)
    assert isinstance(told.value.__cause__, KeyError)
    with pytest.raises(LabelsMissing, match="come back tomorrow"):
        build(configured(folder, "[labels]\ncallable = 'net.py:later'")).labeller(asked)


@pytest.mark.parametrize(("shape", "size"), [((1, 8, 8), (224, 224)), ((3, 28, 14), (112, 224)), ((1, 300, 200), None)])
def test_small_pictures_are_enlarged_so_that_people_can_read_them(tmp_path, shape, size):
    asked = Samples((torch.rand(2, *shape, generator=spawn(0, "x")) * 255).round() / 255)
    with pytest.raises(LabelsMissing, match=f"into {tmp_path}/mine.csv"):
        LabelFolder(folder=tmp_path, classes=3, table="mine.csv")(asked)
    for x, identity in zip(asked.x, asked.ids.tolist(), strict=True):
        with Image.open(tmp_path / f"{name_of(identity)}.png") as picture:
            assert picture.size == (size or (shape[2], shape[1]))
            small = picture.resize((shape[2], shape[1]), Image.Resampling.NEAREST)
            pixels = torch.from_numpy(np.asarray(small).copy()).reshape(*shape[1:], shape[0]).permute(2, 0, 1)
            assert torch.equal(pixels, (x * 255).round().to(torch.uint8))


# Estimated conditions


def test_conditions_are_estimated_once_and_kept(folder, monkeypatch):
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
    first, again = (build(configured(folder, text)) for _ in range(2))
    assert len(asked) == 1
    half = first.field(0).split(profile=0.5, assessment=0.5)["profile"]  # what is assessed with is not looked at
    assert asked[0].ids.equal(half.ids)
    recipe = first.campaign.moves["conditions"].keywords["recipe"]
    assert recipe.severities == {"rotation": normal(4)}  # what the field does not ask for is left out
    assert again.campaign.moves["conditions"].keywords["recipe"] == recipe
    with pytest.raises(ValueError, match=r"\[conditions\]: .* other settings: estimated within"):
        build(configured(folder, text.replace("12", "15")))


# init


def test_the_example_fits_the_files_and_is_never_overwritten(folder):
    (folder / "operant.toml").unlink()
    (folder / "net.py").write_text(NET + "\nraise RuntimeError('init must not import this')\n")
    path, found = initial.write_example(folder)
    config = load_config(path)
    assert found.missing == []
    assert (config.model.module, config.model.weights) == ("net.py:Net", "net.safetensors")
    assert (config.data.train, config.data.clean, config.data.field) == ("train.npz", "clean.npz", "field.npz")
    assert config.labels.file == "field.npz"  # it holds labels
    (folder / "net.py").write_text(NET)
    assert len(build(config).train) == 60
    text = path.read_text()
    with pytest.raises(ValueError, match="is already there and stays as it is"):
        initial.write_example(folder)
    assert path.read_text() == text


@pytest.mark.parametrize("name", ["labels.npz", "field_labels.npz", "labels.csv"])
def test_labels_beside_the_data_are_found(folder, name):
    (folder / "operant.toml").unlink()
    write(folder / "field.npz", Samples(samples(40, "field").x))
    write(folder / "train_labels.npz", samples(5, "no field labels"))
    assert initial.look(folder).values["labels", "folder"] == "to_label"
    if name.endswith("npz"):
        write(folder / name, samples(40, "field"))
    else:
        (folder / name).write_text("name,label\n")
    path, found = initial.write_example(folder)
    assert load_config(path).labels.file == name
    assert ("labels", "folder") not in found.values
    assert found.values["data", "train"] == "train.npz"


@pytest.mark.parametrize("name", ["net.pt", "runs/best.pth"])
def test_weights_of_torch_save_are_told_with_how_to_convert_them(folder, name):
    (folder / "operant.toml").unlink()
    weights, module = (folder / name), nn.Linear(64, 3)
    weights.parent.mkdir(exist_ok=True)
    torch.save(module.state_dict(), weights)
    assert "converted" not in initial.example(initial.look(folder))  # there are others
    (folder / "net.safetensors").unlink()
    done = runner.invoke(app, ["init", str(folder)])
    assert f"[model] weights: found {name}; convert it" in done.stdout
    text = (folder / "operant.toml").read_text()
    converted = name.replace(weights.suffix, ".safetensors")
    line = f'save_weights(module, "{converted}")'
    assert line in done.stdout
    assert f"#   {line}\n" in text
    assert load_config(folder).model.weights is None
    exec(conversion(weights), {"torch": torch, "module": nn.Linear(64, 3)})
    kept = load_weights(nn.Linear(64, 3), folder / converted)
    assert torch.equal(kept.weight, module.weight)


def test_every_condition_is_in_the_example_with_its_unit(tmp_path):
    text = initial.example(initial.look(tmp_path))
    assert initial.SEVERITIES.keys() == {name for name in CONDITIONS if "/" not in name}
    for name in initial.SEVERITIES:
        assert f"\n# {name} = " in text
        assert CONDITIONS[name].meaning in text
    page = "\n".join(f"{name} = {severity}" for name, severity in initial.SEVERITIES.items())
    TABLES["conditions"].model_validate(tomllib.loads(page))


def test_what_is_not_found_is_marked(tmp_path):
    path, found = initial.write_example(tmp_path)
    assert found.missing == ["[model] module", "[data] train", "[data] field"]
    assert path.read_text().count("NOT FOUND: ") == 3
    with pytest.raises(ValueError, match=r"(?s)\[model\] module is missing.*\[data\] train is missing"):
        load_config(path)
    with pytest.raises(ValueError, match="there is no folder"):
        initial.write_example(tmp_path / "nothere")


def test_every_key_of_the_example_is_right_once_it_is_not_a_comment(tmp_path):
    page = tomllib.loads("\n".join(_uncommented(initial.example(initial.look(tmp_path)))))
    assert {name: set(page[name]) - set(initial.SEVERITIES) for name in page} == {
        name: set(kind.model_fields) - {"severities"} for name, kind in TABLES.items()
    }
    page["labels"] = {"folder": "to_label"}  # one of three
    for name, kind in TABLES.items():
        kind.model_validate(page[name])


def _uncommented(text):
    """Tables and keys, whether or not they stand in a comment."""
    bare = [line.removeprefix("# ") for line in text.splitlines()]
    return [b for b in bare if b.startswith("[") or (" = " in b and b.partition(" = ")[0].isidentifier())]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("class A(nn.Module): pass\nclass B(A):\n    def __init__(self, n=3): pass", ["B", "A"]),
        ("class A(nn.Module):\n    def __init__(self, n): pass\ndef make():\n    return A(3)", ["make"]),
        ("def mlp():\n    return nn.Sequential(nn.Linear(3, 2))\ndef other(): return 3", ["mlp"]),
        ("def build_model(): return secret()\ndef build_model_of(n): return nn.Linear(n, 2)", ["build_model"]),
        ("def a() -> nn.Module: ...\ndef b(*, n) -> nn.Module: ...\ndef c(*, n=1) -> torch.nn.Module: ...", ["a", "c"]),
        ("def _net(): return nn.Linear(1, 2)\nclass A: pass\ndef train(): return 3", []),
        ("class A(nn.Sequential): pass", ["A"]),
        ("this is no python", []),
    ],
)
def test_code_that_builds_a_model_is_found_without_running_it(tmp_path, source, names):
    (tmp_path / "code.py").write_text(source)
    assert initial._builders(tmp_path / "code.py") == names


def test_data_are_found_by_what_they_hold_and_by_their_names(tmp_path):
    some = samples(12, "some")
    np.savez(tmp_path / "set.npz", x_train=5 * some.x.numpy() - 2, y_train=some.y.numpy(), x_test=some.x.numpy())
    (tmp_path / "field").mkdir()
    write(tmp_path / "field" / "monday.npz", Samples(some.x))
    write(tmp_path / "field" / "tuesday.npz", Samples(some.x))
    (tmp_path / "broken.npz").write_text("this is none")
    for label in "ab":
        (tmp_path / "test" / label).mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "test" / label / "0.png")
    values = initial.look(tmp_path).values
    assert values["data", "train"] == "set.npz"
    assert values["data", "clean"] == "test"
    assert values["data", "field"] == "field/*.npz"
    assert values["model", "bounds"] == [-2.0, 3.0]
    assert values["labels", "folder"] == "to_label"


# Progress


PMI = "pmi 4.00% on 50 labels, at most 13% (97.50% conf)"
EVENTS = [
    Event(step="round-000/profile", done=0, total=5),
    Event(step="round-000/assess", done=0, total=400),
    Event(step="round-000/assess", done=25, total=400),
    Event(step="round-000/assess", done=50, total=50, told={"assessed": PMI}),
    Event(step="round", done=0, total=5, told={"round": "round 0: clean [99%]"}),
    Event(step="round-001/profile", done=1, total=5),
    Event(step="round-001/decide", done=1, total=1, told={"moves": "moves: 1 -> 2"}),
    Event(step="round-001/suite", done=1, total=4, told={"cases": 10, "failures": 7}),
    Event(step="round-001/suite", done=3, total=4, told={"cases": 30, "failures": 21, "batch_size": 64}),
    Event(step="round-001/retrain", done=0, total=1, told={"cases": "21"}),
    Event(step="round-001/retrain", done=1, total=1, told={"record": "2 epochs"}),
    Event(step="round", done=1, total=5, told={"round": "round 1: clean [98%]"}),
]


def test_plain_lines_tell_step_chunk_failures_time_left_and_pmi_when_it_is_new():
    assert lines_told(EVENTS) == [
        "round 0, learning what the field is like",
        "round 0, assessing: 0 of at most 400 labels",
        "round 0: clean [99%]",
        "round 1, learning what the field is like: pmi 4.00% on 50 labels, at most 13%",
        "moves: 1 -> 2",
        "round 1, searching failures: chunk 1 of 4, 7 failures so far",
        "round 1, searching failures: chunk 3 of 4, 21 failures so far, memory is short, 64 rows at once, about 5 s "
        "left",
        "round 1, retraining: 0 of at most 1 epochs",
        "round 1: clean [98%]",
    ]


def test_what_a_rounds_line_has_told_is_not_told_again():
    told = replace(EVENTS[4], told={"round": f"round 0: clean [99%], {PMI}"})
    assert lines_told([*EVENTS[:4], told, EVENTS[5], EVENTS[7]])[2:] == [
        f"round 0: clean [99%], {PMI}",
        "round 1, learning what the field is like",
        "round 1, searching failures: chunk 1 of 4, 7 failures so far",
    ]


def lines_told(events: list[Event]) -> list[str]:
    out, clock = StringIO(), iter(range(0, 1000, 10))
    lines = ProgressLines(console=Console(file=out, width=40), seen=ProgressState(clock=lambda: next(clock)))
    for event in events:
        lines(event)
    return out.getvalue().splitlines()


def test_right_after_it_was_gone_on_with_the_last_pmi_is_told():
    """Finished rounds are read: of their steps nothing is heard but what they came to."""
    read = Event(step="round", done=3, total=5, told={"round": "round 3: clean 99%", "assessed": PMI})
    later = Event(step="round-004/suite", done=2, total=4, told={"cases": 10, "failures": 7})
    assert lines_told([read, later])[1:] == [
        "round 4, searching failures: chunk 2 of 4, 7 failures so far, pmi 4.00% on 50 labels, at most 13%"
    ]


def test_times_are_summed_over_rounds_and_told_by_step():
    times = {f"round-00{i}/{name}": 50.0 for i in (1, 2) for name in ("suite", "retraining.json", "round.json")}
    seconds = seconds_of({**times, "round-000/profile.json": 3.0, "round-000/naturalness.json": 4.5, "other": 1.0})
    assert seconds == {"suite": 100.0, "retrain": 100.0, "profile": 7.5}
    assert told_times(seconds) == "searching failures 2 min, retraining 2 min, learning what the field is like 8 s"


def test_on_a_terminal_there_is_a_bar_and_what_is_done_stays():
    out = StringIO()
    with show_progress(Console(file=out, force_terminal=True, width=150, highlight=False)) as watch:
        assert isinstance(watch, ProgressBar)
        for event in EVENTS:
            watch(event)
            watch.progress.refresh()
    shown = out.getvalue()
    assert "round 0: clean [99%]" in shown
    assert "retraining" in shown
    assert "25 of at most 400 labels" in shown
    assert "chunk 3 of 4, 21 failures so far" in shown
    assert "round 1: clean [98%]" in shown


def test_json_is_one_object_a_line_and_quiet_is_nothing():
    out = StringIO()
    with show_progress(Console(file=out, width=20), as_json=True) as watch:
        for event in EVENTS:
            watch(event)
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [event_json(event) for event in EVENTS]
    out = StringIO()
    with show_progress(Console(file=out), quiet=True) as watch:
        watch(EVENTS[0])
    assert out.getvalue() == ""


# The commands


ROUND = Event(step="round", done=0, total=5, told={"round": "round 0: clean [99%]"})


def delivered(*, met: bool, rounds: int = 2) -> CampaignResult:
    assessed = SequentialAssessment(labels=100, failures=1, upper=0.04, confidence=0.975, reason="")
    told = [Round(number=i, arrived=40, clean=0.9, assessment=assessed if i == 0 else None) for i in range(rounds)]
    model = Classifier(nn.Linear(64, 3))
    return CampaignResult(model=model, met=met, reason="It ended.", assessment=assessed, suite=None, rounds=tuple(told))


@pytest.fixture
def ending(folder, monkeypatch):
    """`operant run` on the user's folder with another end: what the campaign returns or raises."""

    def run(end, *options):
        def campaign(self, *, watch):
            if isinstance(end, BaseException):
                raise end
            signature = signature_of(self.campaign)
            with RunFolder(self.folder, signature=signature) as begun, begun.timed("round-000/suite"):
                watch(ROUND)
                time.sleep(0.02)
                begun.deliver(end.model, end.suite)
            return end

        monkeypatch.setattr(building.CampaignJob, "run", campaign)
        return runner.invoke(app, ["run", str(folder / "operant.toml"), *options])

    return run


def test_exit_codes_tell_how_it_ended(ending, folder):
    done = ending(delivered(met=True))
    assert (done.exit_code, "met: It ended." in done.stdout) == (0, True)
    assert "round 0: clean [99%]" in done.stdout
    assert (folder / "operant-run" / "model.safetensors").exists()
    done = ending(delivered(met=False))
    assert (done.exit_code, "not met: It ended." in done.stdout) == (1, True)
    done = ending(delivered(met=True, rounds=1))
    assert (done.exit_code, "already met" in done.stdout) == (0, True)
    assert "initial model was good enough" in done.stdout
    assert "time: searching failures 1 s" in done.stdout


def test_missing_labels_and_ctrl_c_tell_how_to_go_on(ending):
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


def test_missing_labels_are_told_with_the_round_and_how_many_it_may_take(folder, monkeypatch):
    def campaign(self, *, watch):
        for event in EVENTS[:3]:
            watch(event)
        raise LabelsMissing("write them into labels.csv")

    monkeypatch.setattr(building.CampaignJob, "run", campaign)
    done = runner.invoke(app, ["run", str(folder)])
    told = "labels needed: write them into labels.csv. Round 0, assessing: 25 of at most 400 labels. Labels are"
    assert told in done.stderr


def test_ctrl_c_before_the_campaign_begins_is_told_alike(folder, monkeypatch):
    def pressed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "read_data", pressed)
    done = runner.invoke(app, ["run", str(folder)])
    assert done.exit_code == 130
    assert done.stderr.startswith("stopped: finished work is kept. To resume: operant run ")


@pytest.mark.parametrize(
    "error",
    [ValueError("the run was begun with others"), OSError("the disk is full"), MemoryError(), RuntimeError("x")],
)
def test_what_goes_wrong_is_told_without_a_traceback(ending, error):
    done = ending(error)
    assert done.exit_code == 2
    assert f"cannot run: {str(error) or 'MemoryError'}" in done.stderr
    assert "Traceback" not in done.stderr


def test_json_and_quiet(ending):
    *notes, event, result = objects(ending(delivered(met=True), "--json"))
    assert [list(note) for note in notes] == [["note"]] * len(notes)
    assert any("radii is not given" in note["note"] for note in notes)
    assert event == event_json(ROUND)
    assert result["result"]["met"] is True
    assert result["result"]["model"].endswith("model.safetensors")
    more = {name: result["result"][name] for name in ("model", "seconds", "report")}
    assert list(more["seconds"]) == ["suite"]
    assert result == result_json(delivered(met=True), **more)
    done = ending(delivered(met=True), "--quiet")
    assert done.stdout.startswith("met: It ended.")


def objects(done):
    """All that a command told programs, which is all that it told."""
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
def test_json_tells_what_is_wrong_too(ending, end, code, what, why):
    done = ending(end, "--json")
    told = objects(done)[-1]["error"]
    assert done.exit_code == told["exit_code"] == code
    assert told["what"] == what
    assert told["why"].startswith(why)


def test_json_tells_what_the_doctor_found(ending, folder):
    wrong = samples(30, "clean")
    write(folder / "clean.npz", Samples(wrong.x, (wrong.y + 1) % 3))
    *notes, end = objects(ending(delivered(met=True), "--json"))
    assert all("note" in note for note in notes)
    assert "the doctor found errors" in end["error"]["why"]


def test_what_is_delivered_replaces_what_was(ending, folder):
    two = [delivered(met=False) for _ in range(2)]
    for one in two:
        assert ending(one).exit_code == 1
    with RunFolder(folder / "operant-run") as run:
        kept = run.weights("model", two[0].model, pytest.fail)
    x = samples(5, "x").x.flatten(1)
    assert torch.equal(kept.logits(x), two[1].model.logits(x))
    assert not torch.equal(kept.logits(x), two[0].model.logits(x))


# Folders that cannot be gone on with


def invoked(folder):
    done = runner.invoke(app, ["run", str(folder)])
    assert done.exit_code == 2
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_folder_begun_with_other_settings_is_told_by_the_command(folder):
    assert "cannot run: a campaign needs about 500 field inputs" in invoked(folder)  # which it began to find out
    configured(folder, "[run]\nseed = 3\n[retrain]\nepochs = 4\n")
    told = invoked(folder)
    assert "operant-run holds a run with other settings: finetune (epochs=10 -> epochs=4); seed (0 -> 3). Put" in told


def test_a_damaged_state_is_told_by_the_command_with_from_where_it_can_go_on(folder):
    invoked(folder)
    run = folder / "operant-run"
    (run / "round-000" / "field.json").write_text("{")
    told = invoked(folder)
    assert f"a finished step cannot be read: {run / 'round-000' / 'field.json'} has changed; delete " in told
    assert "to have it worked out again" in told
    (run / "run.json").write_text("{")
    assert f"{run / 'run.json'} is damaged; delete it and run again" in invoked(folder)


def test_a_folder_that_cannot_be_written_is_told_by_the_command(folder, monkeypatch):
    def refused(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.fsync", refused)
    assert f"could not be written to {folder / 'operant-run'} (Permission denied); make the folder" in invoked(folder)


def test_the_doctor_stops_what_would_mean_nothing(ending, folder):
    wrong = samples(30, "clean")
    write(folder / "clean.npz", Samples(wrong.x, (wrong.y + 1) % 3))
    done = ending(delivered(met=True))
    assert done.exit_code == 2
    assert "the doctor found errors" in done.stderr


def test_bad_files_are_told_by_the_command_too(folder):
    (folder / "operant.toml").write_text(SHORT + "[budget]\nround = 3\n")
    done = runner.invoke(app, ["run", str(folder)])
    assert done.exit_code == 2
    assert "cannot run: " in done.stderr
    assert "[budget] has no key round (did you mean rounds?)" in done.stderr


def test_init_writes_tells_and_refuses(folder):
    (folder / "operant.toml").unlink()
    done = runner.invoke(app, ["init", str(folder)])
    assert done.exit_code == 0
    for part in ("wrote ", "[data] train = train.npz", "yours to decide", "operant run "):
        assert part in done.stdout
    done = runner.invoke(app, ["init", str(folder)])
    assert done.exit_code == 2
    assert "already there" in done.stderr
