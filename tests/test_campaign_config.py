"""`operant.toml`: its keys and defaults, and the messages when something is wrong."""

from dataclasses import fields

import pytest

from operant.campaign.campaign import Campaign
from operant.campaign.config import TABLES, load_config
from operant.conditions import Recipe, fixed, half_normal, normal, uniform
from operant.retrain import OperationalFinetune


def test_missing_keys_have_the_defaults_of_the_library(user):
    config, options = user.configure(), {f.name: f.default for f in fields(Campaign)}
    finetune = {f.name: f.default for f in fields(OperationalFinetune)}
    given = {**config.budget.model_dump(), **config.run.model_dump(), **config.generate.model_dump()}
    given |= {"confidence": config.requirement.confidence, "max_drop": config.requirement.max_drop}
    assert given.pop("moves") == {}  # further moves
    assert given.pop("observers") == [observer.name for observer in options["observers"]]
    shared = given.keys() & options.keys()
    assert len(shared) == 16
    assert {name: given[name] for name in shared} == {name: options[name] for name in shared}
    retrain = config.retrain.model_dump(exclude={"method"})
    assert retrain == {name: finetune[name] for name in retrain}


KEYS = [(t, k) for t, kind in TABLES.items() for k in kind.model_fields if k != "severities"]


@pytest.mark.parametrize(("table", "key"), KEYS)
def test_a_misspelt_key_is_rejected_and_the_right_one_suggested(user, table, key):
    with pytest.raises(ValueError) as error:
        user.configure(f"[{table}]\n{key}s = 1\n", start="")
    assert f"(did you mean {key}?)" in str(error.value)
    assert f"[{table}]" in str(error.value)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("[modle]\nmodule = 1", ["there is no table [modle] (did you mean [model]?)", "[model] is missing"]),
        ("[model]\nweights = 'a'", ["[model] module is missing: builds the torch module"]),
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
        ("[data]\nfield = 3", ["[data] field must be a string in quotes or a list, got 3"]),
        *(
            (f"{key.replace(' ', chr(10))} = {empty}", [f"{key}: must name a file or folder, got "])
            for key in (
                "[model] weights",
                "[data] train",
                "[data] clean",
                "[data] field",
                "[data] groups",
                "[labels] file",
                "[labels] folder",
            )
            for empty in ("''", "' '", '"a\\u0000b"')
        ),
        ("[run]\nfolder = ''", ["operant.toml", "[run] folder: must name a file or folder, got ''; fill it in"]),
        ("[data]\nfield = []", ["[data] field: must name a file or folder, got []"]),
        ("[data]\nfield = ['a', '']", ["[data] field: must name a file or folder, got ['a', '']"]),
        (
            "[model]\nstd = 1e308",
            ["operant.toml", "[model] std: must fit the bounds, [0, 1], and lie between 1e-06 "],
        ),
        ("[model]\nstd = [0.2, 0.0]", ["[model] std: must fit the bounds", "got [0.2, 0.0]; give it in the unit"]),
        ("[model]\nstd = -1.0", ["[model] std: must fit"]),
        ("[model]\nstd = nan", ["[model] std: must fit"]),
        ("[model]\nmean = 1e308", ["[model] mean: must fit the bounds, [0, 1], and lie between -1e+06 and 1e+06"]),
        ("[model]\nmean = inf", ["[model] mean: must fit"]),
        ("[model]\nbounds = [0, 255]\nstd = 1e9", ["[model] std: must fit the bounds, [0, 255]"]),
        ("[labels]", ["[labels]: must have exactly one of file, callable and folder, got 0"]),
        ("[labels]\nfile = 'a'\nfolder = 'b'", ["exactly one of file, callable and folder, got 2"]),
        ("[run]\nwhen_drifted = 'go'", ["[run] when_drifted must be 'update' or 'stop', got 'go'"]),
        ("[run]\nfeedback = 'yes'", ["[run] feedback must be true or false, got 'yes'"]),
        ("[generate]\nradii = [0.1, -1]", ["[generate] radii must be greater than 0, got -1"]),
        ("[conditions]\nestimate = 'yes'", ["[conditions] estimate must be true or false, got 'yes'"]),
        ("[conditions]\nrotate = {normal = 1}", ["no condition rotate (did you mean rotation?); there are rotation"]),
        ("[conditions]\nrotation = 12", ["[conditions] rotation must be a table such as {normal = 12}, got 12"]),
        ("[conditions]\nblur = {norml = 1}", ["[conditions] blur has no key norml (did you mean normal?)"]),
        ("[conditions]\nblur = {normal = -1}", ["[conditions] blur.normal must be greater than 0, got -1"]),
        ("[conditions]\nblur = {uniform = [2, 1]}", ["[conditions] blur: a severity's low must not exceed its high"]),
        ("[conditions]\nblur = {fixed = 1, mean = 2}", ["blur: fixed can have absent, got mean"]),
        ("[conditions]\nblur = {absent = 0.5}", ["blur: must have exactly one of normal, half_normal, uniform, fixed"]),
        ("[model]\nmodule = net", ["is not readable TOML", "line 2", "strings are in quotes"]),
        ("[run]\nseed = 1\n[model]\n[run]", ["line 4", "a table may appear only once: change the keys of the first"]),
        ("[run]\nseed = 1\nseed = 2\n", ["line 3", "a key may appear only once per table"]),
    ],
)
def test_errors_name_the_key(user, text, sentences):
    with pytest.raises(ValueError) as error:
        user.configure(text, start="")
    for sentence in ("operant.toml", *sentences):
        assert sentence in str(error.value)


def test_all_errors_are_reported_together(user):
    with pytest.raises(ValueError) as error:
        user.configure("[budget]\nround = 1\nlabels = 'x'\n[run]\nsed = 1\n")
    assert len(str(error.value).splitlines()) == 4


def test_a_missing_file_is_reported_with_advice(tmp_path):
    with pytest.raises(ValueError, match="there is no .*; `operant init` writes one"):
        load_config(tmp_path / "operant.toml")


def test_paths_are_relative_to_the_file_which_may_be_named_by_its_folder(user, monkeypatch):
    monkeypatch.chdir("/")
    config = load_config(user.path)
    assert config.path("a/b.npz") == user.path / "a" / "b.npz"
    assert config.path("/a/b.npz").as_posix() == "/a/b.npz"


def test_conditions_equal_those_written_in_python(user):
    text = """[conditions]
padding = "zeros"
rotation = {normal = 12, mean = 3, low = -20, high = 30, absent = 0.25}
blur = {uniform = [0, 1.3]}
gaussian_noise = {half_normal = 0.1, high = 0.2}
"c/fog" = {fixed = 2}
"""
    move = user.build(text).campaign.moves["conditions"]
    severities = {
        "rotation": normal(12, mean=3, low=-20, high=30, absent=0.25),
        "blur": uniform(0, 1.3),
        "gaussian_noise": half_normal(0.1, high=0.2),
        "c/fog": fixed(2),
    }
    assert move(naturalness=None).recipe == Recipe(severities=severities, padding="zeros")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings_are_named(tmp_path, encoding):
    (tmp_path / "operant.toml").write_bytes('[model]\nmodule = "net.py:build"\n'.encode(encoding))
    with pytest.raises(ValueError, match=r"operant.toml is not readable TOML: .*; save it as UTF-8"):
        load_config(tmp_path)


@pytest.mark.parametrize("depth", [200, 400, 2_000, 100_000])
@pytest.mark.parametrize(("before", "after"), [("[", "]"), ("{a = ", "}")])
def test_deeply_nested_values_are_rejected_by_name(tmp_path, depth, before, after):
    (tmp_path / "operant.toml").write_text(f"[model]\nmean = {before * depth}1{after * depth}\n")
    with pytest.raises(ValueError, match=r"operant.toml"):
        load_config(tmp_path)


def test_numbers_that_are_too_long_are_rejected_by_name(tmp_path):
    (tmp_path / "operant.toml").write_text(f"[run]\nseed = {'9' * 5000}\n")
    with pytest.raises(ValueError, match=r"operant.toml is not readable TOML"):
        load_config(tmp_path)
