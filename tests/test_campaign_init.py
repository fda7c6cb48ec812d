"""`operant init`: the example file fits the files of a folder, and is valid."""

import tomllib

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from operant import Samples
from operant.campaign import init
from operant.campaign.build import build
from operant.campaign.config import TABLES, load_config
from operant.cli import app
from operant.conditions import CONDITIONS
from operant.networks import load_weights
from operant.networks.weights import conversion

runner = CliRunner()


def test_the_example_fits_the_files_and_is_never_overwritten(user):
    (user.path / "operant.toml").unlink()
    (user.path / "net.py").write_text(user.net + "\nraise RuntimeError('init must not import this')\n")
    path, found = init.write_example(user.path)
    config = load_config(path)
    assert found.missing == []
    assert (config.model.module, config.model.weights) == ("net.py:Net", "net.safetensors")
    assert (config.data.train, config.data.clean, config.data.field) == ("train.npz", "clean.npz", "field.npz")
    assert config.labels.file == "field.npz"  # it holds labels
    (user.path / "net.py").write_text(user.net)
    assert len(build(config).train) == 60
    text = path.read_text()
    with pytest.raises(ValueError, match="exists already and was not changed"):
        init.write_example(user.path)
    assert path.read_text() == text


@pytest.mark.parametrize("name", ["labels.npz", "field_labels.npz", "labels.csv", "known_labels.csv"])
def test_labels_beside_the_data_are_found(user, name):
    (user.path / "operant.toml").unlink()
    user.write("field.npz", Samples(user.samples(40, "field").x))
    user.write("train_labels.npz", user.samples(5, "no field labels"))
    assert init.search_folder(user.path).values["labels", "folder"] == "to_label"
    if name.endswith("npz"):
        user.write(name, user.samples(40, "field"))
    else:
        (user.path / name).write_text("file,label\n" if name.startswith("known") else "name,label\n")
    path, found = init.write_example(user.path)
    assert load_config(path).labels.file == name
    assert ("labels", "folder") not in found.values
    assert found.values["data", "train"] == "train.npz"


@pytest.mark.parametrize("name", ["net.pt", "runs/best.pth"])
def test_pickled_weights_are_reported_with_how_to_convert_them(user, name):
    (user.path / "operant.toml").unlink()
    weights, module = (user.path / name), nn.Linear(64, 3)
    weights.parent.mkdir(exist_ok=True)
    torch.save(module.state_dict(), weights)
    assert "converted" not in init.example(init.search_folder(user.path))  # there are others
    (user.path / "net.safetensors").unlink()
    done = runner.invoke(app, ["init", str(user.path)])
    assert f"[model] weights: found {name}; convert it" in done.stdout
    text = (user.path / "operant.toml").read_text()
    converted = name.replace(weights.suffix, ".safetensors")
    line = f'save_weights(module, "{converted}")'
    assert line in done.stdout
    assert f"#   {line}\n" in text
    assert load_config(user.path).model.weights is None
    exec(conversion(weights), {"torch": torch, "module": nn.Linear(64, 3)})
    kept = load_weights(nn.Linear(64, 3), user.path / converted)
    assert torch.equal(kept.weight, module.weight)


def test_every_condition_is_in_the_example_with_its_unit(tmp_path):
    text = init.example(init.search_folder(tmp_path))
    assert init.SEVERITIES.keys() == {name for name in CONDITIONS if "/" not in name}
    for name in init.SEVERITIES:
        assert f"\n# {name} = " in text
        assert CONDITIONS[name].meaning in text
    page = "\n".join(f"{name} = {severity}" for name, severity in init.SEVERITIES.items())
    TABLES["conditions"].model_validate(tomllib.loads(page))


def test_missing_values_are_marked(tmp_path):
    path, found = init.write_example(tmp_path)
    assert found.missing == ["[model] module", "[data] train", "[data] field"]
    assert path.read_text().count("NOT FOUND: ") == 3
    with pytest.raises(ValueError, match=r"(?s)\[model\] module is missing.*\[data\] train is missing"):
        load_config(path)
    with pytest.raises(ValueError, match="there is no folder"):
        init.write_example(tmp_path / "nothere")


def test_every_key_of_the_example_is_valid_once_uncommented(tmp_path):
    page = tomllib.loads("\n".join(_uncommented(init.example(init.search_folder(tmp_path)))))
    assert {name: set(page[name]) - set(init.SEVERITIES) for name in page} == {
        name: set(kind.model_fields) - {"severities"} for name, kind in TABLES.items()
    }
    page["labels"] = {"folder": "to_label"}  # one of three
    TABLES["retrain"].model_validate({"method": page["retrain"].pop("method")})  # replaces the other keys
    for name, kind in TABLES.items():
        kind.model_validate(page[name])


def _uncommented(text):
    """Tables and keys, including those that are commented out."""
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
        ("not python code", []),
    ],
)
def test_code_that_builds_a_model_is_found_without_running_it(tmp_path, source, names):
    (tmp_path / "code.py").write_text(source)
    assert init._builders(tmp_path / "code.py") == names


def test_data_are_found_by_content_and_by_name(tmp_path, user):
    for name in ("train", "clean", "field"):
        (tmp_path / f"{name}.npz").unlink()
    some = user.samples(12, "some")
    np.savez(tmp_path / "set.npz", x_train=5 * some.x.numpy() - 2, y_train=some.y.numpy(), x_test=some.x.numpy())
    (tmp_path / "field").mkdir()
    user.write("field/monday.npz", Samples(some.x))
    user.write("field/tuesday.npz", Samples(some.x))
    (tmp_path / "broken.npz").write_text("not an npz file")
    for label in "ab":
        (tmp_path / "test" / label).mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "test" / label / "0.png")
    values = init.search_folder(tmp_path).values
    assert values["data", "train"] == "set.npz"
    assert values["data", "clean"] == "test"
    assert values["data", "field"] == "field/*.npz"
    assert values["model", "bounds"] == [-2.0, 3.0]
    assert values["labels", "folder"] == "to_label"


@pytest.mark.parametrize("flat", [("field",), ("clean", "field"), ("train", "clean", "field"), ()])
def test_folders_named_by_their_role_are_preferred_to_their_parent(tmp_path, flat):
    for role in ("train", "clean", "field"):
        for label in ("",) if role in flat else ("cat", "dog"):
            place = tmp_path / "data" / role / label
            place.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8)).save(place / "0.png")
    found = init.search_folder(tmp_path)
    for role in ("train", "clean"):
        assert found.values.get(("data", role)) == (None if role in flat else f"data/{role}")
    assert found.values["data", "field"] == "data/field"
    assert not any(key[0] == "data" for key in found.others)


def test_files_of_operant_are_never_offered(user):
    (user.path / "operant.toml").unlink()
    weights = (user.path / "net.safetensors").read_bytes()
    for place in ("mine", "operant-run/round-001", "operant-field", "described", "mine/round-000"):
        (user.path / place).mkdir(parents=True)
    own = ("mine/model", "operant-run/model", "operant-field/a", "described/field.json.0123456789ab", "shard-000000")
    for name in own:
        (user.path / f"{name}.safetensors").write_bytes(weights)
    (user.path / "mine" / "info.json").write_text("{}")
    found = init.search_folder(user.path)
    assert found.values["model", "weights"] == "net.safetensors"
    assert found.others == {}


def test_the_command_writes_the_file_once(user):
    (user.path / "operant.toml").unlink()
    done = runner.invoke(app, ["init", str(user.path)])
    assert done.exit_code == 0
    for part in ("wrote ", "[data] train = train.npz", "yours to decide", "operant run "):
        assert part in done.stdout
    done = runner.invoke(app, ["init", str(user.path)])
    assert done.exit_code == 2
    assert "exists already" in done.stderr
