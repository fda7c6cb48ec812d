"""`operant field`: what it prints and writes, what it compares with, and its page."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from operant import Samples, results, spawn
from operant.campaign.observers.field_description import DescriptionOfField, section_values
from operant.cli import app
from operant.conditions import Recipe, uniform
from operant.formatting import percent
from operant.model import Finding
from operant.profile import ErrorEstimate, FieldDescription, FittedConditions, Parameter, Priors, describe_field
from operant.report.field import render_field, write_field
from report_folder import HOSTILE, Page

runner = CliRunner()


@pytest.fixture
def here(user, monkeypatch):
    """The user's folder as current folder, with enough field inputs to estimate conditions."""
    monkeypatch.chdir(user.path)
    user.write("field.npz", user.samples(120, "field"))
    return user


def found(recipe: Recipe, *names: str) -> FittedConditions:
    parameters = tuple(
        Parameter(condition=n, name="std", value=0.5, lower=0.25, upper=0.75, limits=(0.0, 1.0)) for n in names
    )
    distances = {"before": 4.0, "after": 1.5, "floor": 0.9, "floor_high": 1.1}
    severities = {name: uniform(0, 0.5) for name in names}
    return FittedConditions(
        recipe=replace(recipe, severities=severities), parameters=parameters, **distances, priors=(), confidence=0.95,
        findings=(),
    )  # fmt: skip


@pytest.fixture
def quick(monkeypatch):
    """An estimate that takes no time; the recipes that limited it."""
    limits = []

    def fit(field, clean, *, widest, generator, progress):
        limits.append(widest)
        return found(widest, "rotation")

    monkeypatch.setattr("operant.profile._conditions.fit_conditions", fit)
    return limits


def run(*options: str):
    return runner.invoke(app, ["field", *options])


# The command


def test_the_field_of_the_configuration_is_described(here, quick):
    done = run()
    assert done.exit_code == 0, done.output
    assert "120 field inputs, grey images of 8 x 8 pixels, from field.npz (120)." in done.stdout
    for words in ("rotation std 0.5 [0.25, 0.75]", "Unexplained share: ", "Class shares in the field", "first descr"):
        assert words in done.stdout
    assert "page: operant-field/field.html" in done.stdout
    stored = results.load("operant-field/field.json", FieldDescription)
    assert stored.inputs == 120
    assert json.loads((here.path / "operant-field" / "field.json").read_text())["type"] == "FieldDescription"
    assert "rotation" in quick[0].severities


def test_the_second_run_compares_with_the_first(here, quick):
    run()
    later = here.samples(60, "later")
    here.write("field2.npz", Samples(later.x * 0.3))
    done = run("--field", "field2.npz")
    assert done.exit_code == 0, done.output
    assert "60 of 60 inputs are new since last time; they were compared with 120 of the 120 inputs" in done.stdout
    assert "Drift (p = " in done.stdout
    assert "last time: operant-field/field.json" in done.stdout
    page = (here.path / "operant-field" / "field.html").read_text()
    assert "Changed:" in page
    assert "new inputs differ from those of last time" in page
    again = run("--field", "field2.npz")  # described again, the comparison stays
    assert "Drift (p = " in again.stdout


def test_a_campaign_is_the_last_time_if_there_is_no_other(here, quick):
    place = here.path / "operant-run" / "round-000"
    job = here.build("[conditions]\nestimate = false\n")
    described = describe_field(
        job.model, job.field(0), train=job.train, labelled=job.clean, estimate=False, generator=spawn(0), progress=False
    )
    results.save(described, place / f"{DescriptionOfField.name}.json")
    here.write("field.npz", Samples(here.samples(90, "other").x * 0.2))
    done = run("--no-conditions")
    assert done.exit_code == 0, done.output
    assert f"last time: {place / DescriptionOfField.name}.json" in done.stdout
    assert "90 of 90 inputs are new since last time" in done.stdout


def test_conditions_follow_the_option_and_the_configuration(here, quick):
    for text, options, names in (
        ("[conditions]\nestimate = false\n", (), None),
        ("[conditions]\nestimate = false\n", ("--conditions",), 8),
        ("", ("--no-conditions",), None),
        ("[conditions]\nestimate = true\nblur = {uniform = [0, 2]}\n", (), 1),
        ("[conditions]\nblur = {fixed = 2}\n", (), 8),
        ('[conditions]\npadding = "zeros"\n', (), 8),
    ):
        quick.clear()
        here.configure(text)
        done = run(*options, "--out", "again")
        assert done.exit_code == 0, done.output
        if names is None:
            assert quick == []
            assert "Conditions were not estimated." in done.stdout
        else:
            assert len(quick[0].severities) == names if names == 1 else len(quick[0].severities) >= names
    assert quick[0].padding == "zeros"


def test_options_are_enough_without_a_configuration(here, quick):
    (here.path / "operant.toml").unlink()
    data = ("--field", "field.npz", "--train", "train.npz", "--clean", "clean.npz")
    done = run("net.py:Net", "--weights", "net.safetensors", *data)
    assert done.exit_code == 0, done.output
    assert "120 field inputs" in done.stdout
    here.write("train.npz", here.samples(600, "train"))
    held_out = run("net.py:Net", "--weights", "net.safetensors", *data[:4])
    assert held_out.exit_code == 0, held_out.output
    assert "clean is not given: " in held_out.stdout
    assert "the model has learned from them" in (here.path / "operant-field" / "field.html").read_text()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "there is no model: name one, or run this in a folder with operant.toml"),
        (("net.py:Net",), "there are no training data: give --train"),
        (("net.py:Net", "--train", "train.npz"), "there are no field data: give --field"),
        (("net.py:Net", "--train", "train.npz", "--field", "x"), "there is no x"),
    ],
)
def test_missing_data_are_named(here, options, sentence):
    (here.path / "operant.toml").unlink()
    done = run(*options)
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_a_damaged_description_is_rejected_with_advice(here, quick):
    run()
    (here.path / "operant-field" / "field.json").write_text("{}")
    done = run()
    assert done.exit_code == 2
    assert "field.json is not a format-1 FieldDescription" in done.stderr
    assert "To begin anew, delete operant-field/field.json" in done.stderr


def test_a_file_in_place_of_the_folder_is_reported(here, quick):
    (here.path / "taken").write_text("")
    done = run("--out", "taken")
    assert done.exit_code == 2
    assert "taken is a file; choose another" in done.stderr


# Bad input


def test_forty_inputs_are_described(here):
    here.write("field.npz", here.samples(40, "few"))
    done = run()
    assert done.exit_code == 0, done.output
    assert "Conditions were not estimated: at least 50 field images are needed, got 40; give more." in done.stdout


def test_black_images_are_described(here):
    here.write("field.npz", Samples(torch.zeros(80, 1, 8, 8)))
    done = run()
    assert done.exit_code == 0, done.output
    assert "Conditions were not estimated: each field image has one value throughout" in done.stdout
    assert "blank inputs: 80 of 80 field inputs have one value throughout (all black, say), such as " in done.stdout


def test_campaigns_say_what_is_wrong_with_the_field(here):
    for x, words in (
        (torch.zeros(600, 1, 8, 8), ("blank inputs: 600 of 600", "599 of 600 field inputs are copies of others")),
        (here.samples(40, "few").x, ("at least 50 field images are needed, got", "needs about 500 field inputs")),
        (here.samples(60, "train").x, ("must contain inputs that are not in train or clean, got none",)),
    ):
        here.write("field.npz", Samples(x))
        done = runner.invoke(app, ["run"])
        assert done.exit_code == 2
        assert all(sentence in done.output for sentence in words), done.output
        shutil.rmtree(here.path / "operant-run", ignore_errors=True)


def test_a_field_of_training_inputs_is_described_and_said_so(here, quick):
    here.write("field.npz", here.samples(60, "train"))
    done = run()
    assert done.exit_code == 0, done.output
    assert "training inputs in the field: 60 of 60 field inputs are among the training" in done.stdout


def test_one_class_is_said(here, quick):
    x = torch.rand(80, 1, 8, 8, generator=spawn(3))
    x[:, 0, 0, 0] = 1.0
    here.write("field.npz", Samples(x))
    done = run()
    assert done.exit_code == 0, done.output
    assert "one class: the model predicts class 0 for all 80 field inputs" in done.stdout


def test_colour_pictures_among_grey_ones_are_reported(here):
    (here.path / "shots").mkdir()
    for i in range(6):
        kind = (8, 8, 3) if i == 3 else (8, 8)
        pixels = np.random.default_rng(i).integers(255, size=kind, dtype=np.uint8)
        Image.fromarray(pixels).save(here.path / "shots" / f"{i}.png")
    here.configure(start=here.toml.replace("field.npz", "shots"))
    for done in (run(), runner.invoke(app, ["run", "--quiet"])):
        assert done.exit_code == 2
        assert "[data] field: must contain grey images like the training data, got colour ones; a folder" in done.stderr


def test_tables_are_described(here):
    for name, n in (("train", 60), ("clean", 30), ("field", 70)):
        data = here.samples(n, name)
        here.write(f"{name}.npz", Samples(data.x.flatten(1), data.y))
    done = run()
    assert done.exit_code == 0, done.output
    assert "rows of 64 values" in done.stdout
    assert "Conditions are for images: none were estimated." in done.stdout
    page = (here.path / "operant-field" / "field.html").read_text()
    assert "Values that differ most from training inputs" in page
    assert "<img" not in page


# The page


def description(user, **changes) -> FieldDescription:
    """A description with everything in it."""
    job = user.build("[conditions]\nestimate = false\n")
    field = job.field(0)
    dark = Samples(field.x * 0.1, names=tuple(f"{i}[{i}]" for i in range(len(field))))
    conditions = found(Recipe(severities={}), "rotation", "gaussian_noise")
    d = describe_field(
        job.model, dark, train=job.train, labelled=job.clean, conditions=conditions, resamples=20, generator=spawn(0),
        progress=False,
    )  # fmt: skip
    error = ErrorEstimate(value=0.2, lower=0.1, upper=0.3, method="thresholds", by_method={"thresholds": 0.2, "b": 0.3})
    return replace(d, error=error, **changes)


def test_the_page_shows_everything_and_loads_nothing(user, tmp_path):
    d = description(user)
    page = Page(render_field(d))
    text = page.text
    for words in (
        "Field inputs", "Training inputs under the conditions found, in the estimated class shares", "Conditions",
        "Unexplained share", "Class shares without labels", "Error without labels", "Since last time",
        "Where inputs come from", "dark or pale; with more contrast",
    ):  # fmt: skip
        assert words in text, words
    images = [a["src"] for a in page.all("img")]
    assert len(images) >= 2 * 24 + 24  # both sides, and the dark ones of the field again
    assert all(source.startswith("data:image/png;base64,") for source in images)
    assert not page.all("script")
    assert not page.all("link")
    assert all(not a.get("href", "#").startswith("http") for a in page.all("a"))
    assert all(a.get("alt") for a in page.all("img"))
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:")
    path = write_field(d, tmp_path / "out")
    assert path.read_text(encoding="utf-8") == render_field(d)
    assert path.stat().st_size < 400_000


def test_names_with_markup_are_text(user):
    finding = Finding(name=HOSTILE, problem=HOSTILE, advice=HOSTILE)
    d = description(user, classes=(HOSTILE, "b", "c"), notes=(HOSTILE,), findings=(finding,), comparison=HOSTILE)
    d = replace(d, sources=tuple(replace(s, name=HOSTILE) for s in d.sources))
    page = render_field(d)
    assert "<script" not in page
    assert "onerror=alert(1)>" not in page
    assert not Page(page).all("script")


def test_large_images_are_shown_small_and_the_page_stays_small(user):
    d = description(user)
    kept = torch.randint(256, (24, 3, 300, 200), dtype=torch.uint8, generator=spawn(0))
    large = replace(d, shape=(3, 300, 200), kept=kept, simulated=kept)
    assert len(render_field(large)) < 4_000_000
    assert len(section_values(large)["sheets"][0]["pictures"]) == 24


def test_values_of_a_section_are_plain(user):
    d = description(user)
    assert d.priors is not None
    withheld = replace(d.priors, lower=(float("nan"),) * 3, upper=(float("nan"),) * 3)
    values = section_values(replace(d, priors=withheld))
    json.dumps(values, allow_nan=False)
    assert [row["lower"] for row in values["shares"]] == [None] * 3
    assert ", intervals withheld); the tick" in render_field(replace(d, priors=withheld))
    stated = replace(d.priors, lower=(0.0,) * 3, upper=(1.0,) * 3, confidence=0.9)
    assert "90 % intervals); the tick" in render_field(replace(d, priors=stated)).replace("\xa0", " ")


def test_shares_and_severities_are_drawn_with_their_intervals(user):
    d = description(user)
    assert isinstance(d.priors, Priors)
    page = render_field(d)
    assert "gaussian noise std: 0.5 [0.25, 0.75]" in page
    for name, value in zip(d.names, d.priors.values, strict=True):
        assert f"{name}: {percent(round(value, 4))}" in page


def test_a_field_without_conditions_says_so_on_the_page(user):
    d = replace(description(user), conditions=found(Recipe(severities={"blur": uniform(0, 1)})))
    assert "No condition was found" in Page(render_field(d)).text
