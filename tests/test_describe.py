"""Describing the field: counts are exact, estimates are left out with a reason, and the next description compares."""

import math
import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from operant import Classifier, Samples, load_digits, results, spawn
from operant.campaign.observers.field_description import campaign_lines, compare_error
from operant.conditions import Recipe, apply, fixed, uniform
from operant.model import Finding
from operant.networks import fit, initialise
from operant.profile import ErrorEstimate, FittedConditions, Parameter, Priors, describe_field
from operant.profile import describe as describing
from operant.profile._conditions import NoConditions, check_estimable, estimate_conditions, usual_conditions
from operant.profile._words import (
    ERROR_TERMS,
    describe_conditions,
    describe_error,
    describe_shares,
    describe_terms,
    describe_unexplained,
)
from operant.profile.describe import MAX_LISTED, SHOWN, FieldDescription, packed, unpacked
from operant.profile.error_estimate import METHODS, ON_CLEAN, REWEIGHTED, SIMULATED

DIGITS = load_digits()
PARTS = DIGITS.train.split(train=0.5, field=0.5)
TRAIN, LABELLED = PARTS["train"], DIGITS.test


def unlabelled(x: Tensor, **options) -> Samples:
    return Samples(x, **options)


FIELD = unlabelled(PARTS["field"].x)
QUICK = {"resamples": 20, "estimate": False, "progress": False}


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@pytest.fixture(scope="module")
def model() -> Classifier:
    start = initialise(network, generator=spawn(0, "weights"))
    options = {"epochs": 15, "learning_rate": 5e-3, "progress": False}
    return Classifier(fit(start, TRAIN, **options, generator=spawn(0, "training")).module)


def describe(model: Classifier, field: Samples, **options) -> FieldDescription:
    given = {"train": TRAIN, "labelled": LABELLED, **QUICK, **options}
    return describe_field(model, field, **given, generator=spawn(1))


def fitted(recipe: Recipe, *, before=4.0, after=1.0, floor=0.9, floor_high=1.1) -> FittedConditions:
    found = [(name, s) for name, s in recipe.severities.items() if s.low < 0 or s.high > 0]
    parameters = tuple(
        Parameter(condition=name, name="high", value=s.high, lower=s.high / 2, upper=2 * s.high, limits=(0.0, 9.0))
        for name, s in found
    )
    distances = {"before": before, "after": after, "floor": floor, "floor_high": floor_high}
    return FittedConditions(recipe=recipe, parameters=parameters, **distances, priors=(), confidence=0.95, findings=())


BLURRED = fitted(Recipe(severities={"blur": uniform(0, 0.7)}))
NOTHING = fitted(Recipe(severities={}), before=1.0, after=1.0)


def names(d: FieldDescription) -> list[str]:
    return [finding.name for _, finding in d.doubts]


# Counts


def test_inputs_sources_and_groups_are_counted(model):
    x = torch.cat([FIELD.x[:30], FIELD.x[:10], torch.zeros(5, 1, 8, 8), TRAIN.x[:4]])
    places = [f"monday/{i}.png" for i in range(19)] + ["0.png"] + [f"b.npz[{i}]" for i in range(28)] + [""]
    d = describe(model, Samples(x, names=tuple(places), groups=("left",) * 40 + ("",) * 9))
    assert (d.inputs, d.copies, d.blank, d.known, d.grey) == (49, 14, 5, 4, 0)
    assert [(s.name, s.inputs) for s in d.sources] == [
        ("b.npz", 28),
        ("monday", 19),
        ("one folder", 1),
        ("not known", 1),
    ]
    assert [(g.name, g.inputs) for g in d.groups] == [("left", 40), ("no group", 9)]
    assert d.shape == (1, 8, 8)
    assert d.overview.startswith(
        "49 field inputs, grey images of 8 x 8 pixels, from b.npz (28), monday (19), one folder"
    )
    assert "14 copies of others, 5 blank, 4 among the training or labelled inputs" in d.overview
    assert names(d)[:3] == ["blank inputs", "repeated inputs", "training inputs in the field"]


def test_many_sources_are_counted_together(model):
    n = 3 * MAX_LISTED
    d = describe(model, Samples(FIELD.x[:n], names=tuple(f"day {i % (n // 2)}/{i}.png" for i in range(n))))
    assert len(d.sources) == MAX_LISTED + 1
    assert sum(s.inputs for s in d.sources) == n
    assert d.sources[-1].name == f"{n // 2 - MAX_LISTED} others"


# Laws


def test_a_description_can_be_stored(model, tmp_path):
    d = describe(model, FIELD, conditions=BLURRED)
    results.save(d, tmp_path / "field.json")
    again = results.load(tmp_path / "field.json", FieldDescription)
    assert str(again) == str(d)
    assert (again.priors, again.conditions, again.findings) == (d.priors, d.conditions, d.findings)
    for name in ("ids", "kept", "simulated"):
        assert torch.equal(getattr(again, name), getattr(d, name))


def test_the_same_generator_gives_the_same_description_and_labels_are_ignored(model):
    one, same = (describe(model, f, conditions=BLURRED) for f in (FIELD, FIELD.with_labels(PARTS["field"].y)))
    assert str(one) == str(same)
    assert torch.equal(one.simulated, same.simulated)


def test_kept_inputs_are_a_random_part_of_the_field_and_the_first_of_them_are_shown(model, monkeypatch):
    monkeypatch.setattr(describing, "MAX_KEPT", 100)
    d = describe(model, FIELD)
    assert d.kept.shape == (100, 1, 8, 8)
    known = {row.numpy().tobytes() for row in packed(FIELD.x, (0.0, 1.0))}
    assert all(row.numpy().tobytes() in known for row in d.kept)
    assert d.kept[:SHOWN].unique(dim=0).shape[0] > 1
    assert len(d.simulated) == SHOWN


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-2.0, 6.0)])
def test_images_are_kept_to_half_a_grey_level(bounds):
    low, high = bounds
    x = low + (high - low) * torch.rand(7, 3, 5, 4, generator=spawn(0))
    error = (unpacked(packed(x, bounds), bounds) - x).abs().max()
    assert error <= (high - low) / 510 + 1e-6
    eight_bits = low + (high - low) * torch.arange(60).view(1, 3, 5, 4) / 255
    assert unpacked(packed(eight_bits, bounds), bounds) == pytest.approx(eight_bits, abs=1e-6)


def test_tables_are_kept_as_they_are():
    x = torch.randn(5, 9, generator=spawn(0))
    assert torch.equal(unpacked(packed(x, (0.0, 1.0)), (0.0, 1.0)), x)


def test_training_inputs_are_shown_in_the_estimated_class_shares(model, monkeypatch):
    shares = tuple(float(c == 3) for c in range(10))
    only = Priors(
        values=shares, lower=shares, upper=shares, confidence=0.95, method="mlls", labelled=(0.1,) * 10, check=shares,
        findings=(),
    )  # fmt: skip
    monkeypatch.setattr(describing, "estimate_priors", lambda *_, **__: only)
    d = describe(model, FIELD)
    threes = {row.numpy().tobytes() for row in packed(TRAIN.x[TRAIN.labels == 3], (0.0, 1.0))}
    assert all(row.numpy().tobytes() in threes for row in d.simulated)


def test_training_inputs_are_shown_under_the_conditions_found(model):
    recipe = Recipe(severities={"brightness": fixed(1.0), "blur": fixed(0.0)})  # all white
    d = describe(model, FIELD, conditions=fitted(recipe))
    assert bool((d.simulated == 255).all())
    assert [p.condition for p in d.active] == ["brightness"]
    plain = describe(model, FIELD, conditions=NOTHING)
    known = {row.numpy().tobytes() for row in packed(TRAIN.x, (0.0, 1.0))}
    assert all(row.numpy().tobytes() in known for row in plain.simulated)


def test_estimates_use_a_limited_number_of_inputs(model, monkeypatch):
    seen = []
    share = describing.estimate_priors
    monkeypatch.setattr(
        describing, "estimate_priors", lambda m, a, b, *rest, **kw: (seen.append(b), share(m, a, b, *rest, **kw))[1]
    )
    d = describe(model, FIELD, rows=50)
    assert len(seen[0]) == 50
    assert d.inputs == len(FIELD)


def test_the_error_without_labels_is_part_of_the_description(model, monkeypatch):
    found = ErrorEstimate(value=0.25, lower=0.2, upper=0.3, method="thresholds", by_method={"thresholds": 0.25})
    monkeypatch.setattr(describing, "estimate_error", lambda *_, **__: found)
    d = describe(model, FIELD)
    assert d.error == found
    assert "estimated to get 25 % of field inputs wrong (20 % to 30 %)" in str(d)
    assert "not a bound" in str(d)

    def fails(*_, **__):
        raise ValueError("too few labelled inputs; give more")

    monkeypatch.setattr(describing, "estimate_error", fails)
    d = describe(model, FIELD)
    assert d.error is None
    assert "The error was not estimated: too few labelled inputs; give more." in d.notes


def test_the_error_is_estimated_with_the_class_shares_and_conditions_of_the_description(model, monkeypatch):
    seen = []
    estimate = describing.estimate_error
    monkeypatch.setattr(describing, "estimate_error", lambda *a, **kw: (seen.append(kw), estimate(*a, **kw))[1])
    d = describe(model, FIELD, conditions=BLURRED)
    assert seen[0]["priors"] == d.priors
    assert seen[0]["conditions"] == BLURRED
    assert {"atc", "confidence", "cot", "simulated", "atc on clean inputs"} == set(d.error.by_method)
    plain = describe(model, FIELD)
    assert "reweighted" in plain.error.by_method
    truth = 1 - model.accuracy(PARTS["field"])
    assert plain.error.lower <= truth <= plain.error.upper


# Conditions


def test_a_hidden_condition_is_found_and_named(model):
    blurred = apply(FIELD.x, Recipe(severities={"blur": fixed(1.2)}).draw(len(FIELD), generator=spawn(0)))
    widest = Recipe(severities={"blur": uniform(0, 3), "rotation": uniform(-40, 40)})
    d = describe(model, unlabelled(blurred), estimate=True, widest=widest)
    assert "blur" in {p.condition for p in d.active}
    assert d.unexplained is not None
    assert 0 <= d.unexplained < 1
    assert re.search(r"Conditions found, with 95 % intervals:\n(.*\n)*  blur high .*pixels", str(d))
    assert "Unexplained share: " in str(d)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (0.9, "can stand in for them"),
        (1.0, "can stand in"),
        (1.5, "something is missing"),
        (3.0, "no condition imitat"),
    ],
)
def test_the_unexplained_share_is_put_into_words(after, words):
    found = replace(BLURRED, after=after)
    assert words in describe_unexplained(found)
    assert "blur high 0.7 [0.35, 1.4]" in describe_conditions(found)


def test_no_condition_is_said_in_words():
    assert describe_conditions(NOTHING).startswith("No condition was found: in what they look like")
    different = replace(NOTHING, before=5.0, after=5.0)
    assert "although field inputs look different" in describe_conditions(different)


def test_usual_conditions_hold_no_change_and_keep_bounds_and_padding():
    recipe = usual_conditions((3, 32, 32), (-1.0, 1.0), padding="zeros")
    assert (recipe.bounds, recipe.padding) == ((-1.0, 1.0), "zeros")
    assert all(s.low <= 0 <= s.high for s in recipe.severities.values())


# Inputs that are not images


def test_tables_are_described_without_conditions():
    x = torch.randn(400, 6, generator=spawn(0))
    y = (x[:, 0] > 0).long()
    linear = nn.Linear(6, 2)
    with torch.no_grad():
        linear.weight.zero_()
        linear.weight[1, 0], linear.weight[0, 0] = 3.0, -3.0
    model = Classifier(linear, bounds=(-float("inf"), float("inf")))
    moved = x[200:] + torch.tensor([0, 0, 2.0, 0, -1.0, 0])
    train, labelled = Samples(x[:100], y[:100]), Samples(x[100:200], y[100:200])
    d = describe_field(model, Samples(moved), train=train, labelled=labelled, generator=spawn(1), progress=False)
    assert d.conditions is None
    assert d.unexplained is None
    assert d.notes == ("Conditions are for images: none were estimated.",)
    assert d.priors is not None
    assert [v.name for v in d.moved[:2]] == ["value 2", "value 4"]
    spread = train.x.double().std(0, correction=0)[2]
    assert d.moved[0].moved == pytest.approx(float((moved.double().mean(0) - train.x.double().mean(0))[2] / spread))
    assert "rows of 6 values" in str(d)


def test_a_column_without_spread_has_moved_infinitely_or_not_at_all(model):
    train, field = Samples(torch.ones(4, 2)), Samples(torch.tensor([[1.0, 3.0]] * 3))
    values = {v.name: v.moved for v in describing._moved(field, train)}
    assert values == {"value 0": 0.0, "value 1": float("inf")}


# Last time


def test_changed_inputs_are_noticed_and_unchanged_ones_are_not(model, tmp_path):
    first, later = FIELD[: len(FIELD) // 2], FIELD[len(FIELD) // 2 :]
    results.save(describe(model, first), tmp_path / "field.json")
    last = results.load(tmp_path / "field.json", FieldDescription)
    assert "first description" in last.comparison
    dark = describe(model, Samples.concat([first, Samples(later.x * 0.4)]), last=last)
    assert dark.drift is not None
    assert dark.drift.alarm
    assert dark.drift.sizes == (len(first), len(later))
    assert f"{len(later)} of {len(FIELD)} inputs are new since last time" in dark.comparison
    mixed = FIELD[torch.randperm(len(FIELD), generator=spawn(3))]
    half = len(FIELD) // 2
    same = describe(model, mixed[half:], last=describe(model, mixed[:half]))
    assert same.drift is not None
    assert not same.drift.alarm


def test_the_same_inputs_described_again_keep_the_comparison(model):
    first = describe(model, FIELD[:200])
    second = describe(model, Samples(FIELD.x[:260] * 0.5), last=first)
    again = describe(model, Samples(FIELD.x[:260] * 0.5), last=second)
    assert again.drift == second.drift is not None
    assert (again.comparison, again.changes) == (second.comparison, second.changes)


def test_too_few_new_inputs_and_other_inputs_are_not_compared(model):
    first = describe(model, FIELD[:100])
    few = describe(model, FIELD[:107], last=first)
    assert few.drift is None
    assert "7 of 107 inputs are new since last time, when there were 100: too few to test for drift" in few.comparison
    other = describe(model, FIELD[:107], last=replace(first, shape=(3, 8, 8)))
    assert other.comparison.startswith("Nothing is compared: last time, inputs had the shape (3, 8, 8)")


def test_conditions_and_class_shares_that_changed_are_named(model):
    first = describe(model, FIELD[:200], conditions=BLURRED)
    assert first.priors is not None
    high = replace(first.priors, lower=(0.9,) * 10, values=(0.95,) * 10, upper=(1.0,) * 10)
    noise = fitted(Recipe(severities={"gaussian_noise": uniform(0, 0.2)}))
    now = describe(model, FIELD[:210], conditions=noise, last=replace(first, priors=high))
    assert "New since last time: gaussian_noise." in now.changes
    assert "No longer found since last time: blur." in now.changes
    assert any(c.startswith("Class shares changed since last time: 0 from 95 % to ") for c in now.changes)
    assert describe(model, FIELD[:210], conditions=BLURRED, last=first).changes == ()


def test_class_shares_without_intervals_are_not_compared(model):
    first = describe(model, FIELD[:200], conditions=BLURRED)
    assert first.priors is not None
    withheld = replace(first.priors, lower=(math.nan,) * 10, values=(0.95,) * 10, upper=(math.nan,) * 10)
    now = describe(model, FIELD[:210], conditions=BLURRED, last=replace(first, priors=withheld))
    assert now.changes == ("Class shares are not compared with last time: there are no intervals to compare.",)
    assert "intervals withheld" in describe_shares(withheld, first.names)


# Bad input


def test_forty_inputs_are_described_without_conditions(model):
    d = describe(model, FIELD[:40], estimate=True)
    assert d.conditions is None
    assert d.notes == ("Conditions were not estimated: at least 50 field images are needed, got 40; give more.",)
    assert d.priors is not None


def test_advice_on_forty_other_inputs_can_be_followed(model):
    d = describe(model, Samples(1 - FIELD.x[:40]), estimate=True)
    assert "not pure label shift" in names(d)
    text = str(d)
    assert "Label all 40 field inputs and count" in text
    assert "fit_conditions" not in text
    assert text.count("area under the curve") == 1  # a fact is said once


def test_black_images_are_a_finding(model):
    d = describe(model, Samples(torch.zeros(80, 1, 8, 8)), estimate=True)
    assert d.conditions is None
    assert "Conditions were not estimated: each field image has one value throughout" in d.notes[0]
    assert {"blank inputs", "repeated inputs", "one class"} <= set(names(d))
    assert d.priors is d.error is None
    assert "different field inputs that are not blank are needed, got 0" in d.notes[1]


def test_images_that_hardly_differ_are_reported(model):
    x = torch.zeros(80, 1, 8, 8)
    x[0, 0, 0, 0] = 1.0
    d = describe(model, Samples(x), estimate=True, widest=Recipe(severities={"blur": uniform(0, 1)}))
    assert d.unexplained > 0.9
    assert {"blank inputs", "conditions do not explain the field"} <= set(names(d))
    d = describe(model, Samples(FIELD.x[:1].repeat(80, 1, 1, 1)), estimate=True)
    assert "Conditions were not estimated: field or clean images hardly differ from each other" in d.notes[0]
    assert {"repeated inputs", "one class"} <= set(names(d))
    assert d.notes[1].startswith("Class shares and the error were not estimated: at least 10 different field inputs")
    assert d.priors is d.error is None


def test_a_field_equal_to_the_training_data_has_no_conditions_and_says_so(model):
    widest = Recipe(severities={"blur": uniform(0, 2), "rotation": uniform(-30, 30)})
    d = describe(model, Samples(TRAIN.x), estimate=True, widest=widest)
    assert d.active == ()
    assert d.unexplained == 0
    assert "No condition was found" in str(d)
    assert names(d)[0] == "training inputs in the field"


def test_one_class_in_the_field_is_a_finding(model):
    field = PARTS["field"]
    ones = unlabelled(field.x[(field.labels == 0) & (model.predict(field.x) == 0)])
    assert "one class" in names(describe(model, ones))


def test_one_class_among_labelled_inputs_is_a_note(model):
    one = LABELLED[LABELLED.labels == 3]
    d = describe(model, FIELD, labelled=one)
    assert d.priors is None
    assert any("every class must occur in the labelled data" in note for note in d.notes)


def test_a_model_no_better_than_chance_says_nothing_about_class_shares():
    untrained = Classifier(initialise(network, generator=spawn(5)))
    d = describe(untrained, FIELD)
    assert d.priors is None
    assert re.search(r"right on \d+ of \d+ labelled inputs, hardly more often than by chance", d.notes[-1])


def test_grey_images_among_colour_ones_are_a_finding():
    x = torch.rand(200, 3, 8, 8, generator=spawn(0))
    y = torch.arange(200) % 2
    torch.random.manual_seed(0)
    model = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(192, 2)))
    mixed = torch.cat([x[100:150], x[150:, :1].expand(-1, 3, -1, -1)])
    options = {"train": Samples(x[:60], y[:60]), "labelled": Samples(x[60:100], y[60:100])}
    d = describe(model, Samples(mixed), **options)
    assert d.grey == 50
    assert "grey and colour mixed" in names(d)
    assert "50 of 100 field inputs are grey images read as colour, of the training inputs 0 of 60" in str(d)
    assert "grey and colour mixed" not in names(describe(model, Samples(x[100:]), **options))


def test_bad_arguments_are_rejected_with_a_sentence(model):
    for field, options, words in (
        (FIELD[:0], {}, "field must not be empty"),
        (Samples(torch.rand(30, 1, 9, 9)), {}, "field and training inputs must have one shape"),
        (Samples(torch.rand(30, 1, 8, 8) * 3), {}, "must lie within bounds"),
        (FIELD, {"rows": 3}, "rows must be at least 20"),
        (FIELD, {"labelled": FIELD}, "labels"),
        (FIELD, {"resamples": 3}, "resamples must be at least 20"),
    ):
        with pytest.raises(ValueError, match=words):
            describe(model, field, **options)


def test_conditions_cannot_be_estimated_from_these():
    with pytest.raises(NoConditions, match="the bounds are .*inf.*; set finite ones"):
        usual_conditions((1, 9, 9), (0.0, float("inf")))
    with pytest.raises(NoConditions, match=r"conditions are for images, and inputs have the shape \(9,\)"):
        usual_conditions((9,), (0.0, 1.0))
    good = Samples(torch.rand(60, 1, 9, 9, generator=spawn(0)))
    for field, train, words in (
        (Samples(torch.rand(60, 7)), good, r"images of at least 8 by 8 pixels, and inputs have the shape \(7,\)"),
        (Samples(torch.rand(60, 1, 6, 9)), good, r"at least 8 by 8 pixels, .* \(1, 6, 9\)"),
        (good[:20], good, "at least 50 field images are needed, got 20"),
        (good, good[:30], "at least 50 training images are needed, got 30"),
        (Samples(torch.full((60, 1, 9, 9), 0.5)), good, "each field image has one value throughout"),
    ):
        with pytest.raises(NoConditions, match=words):
            check_estimable(field, train)

    copies, widest = Samples(good.x[:1].repeat(60, 1, 1, 1)), usual_conditions((1, 9, 9), (0.0, 1.0))
    with pytest.raises(NoConditions, match="field or clean images hardly differ from each other"):
        estimate_conditions(copies, good, widest=widest, generator=spawn(0))


# Words


def test_many_classes_are_shortened_to_those_that_differ_most():
    n = 2 * MAX_LISTED
    values = [1.0 / n] * n
    values[7], values[9] = 0.3, values[7] + values[9] - 0.3 if values[7] + values[9] > 0.3 else 0.0
    priors = Priors(
        values=tuple(values), lower=(0.0,) * n, upper=(float("nan"),) * n, confidence=0.95, method="mlls",
        labelled=(1.0 / n,) * n, check=tuple(values), findings=(),
    )  # fmt: skip
    text = describe_shares(priors, [f"class {c}" for c in range(n)])
    assert len(text.splitlines()) == MAX_LISTED + 3
    assert re.search(r"class 7 +30 %  \[ +0 %, +\u2013\]", text)
    assert f"\n  and {n - MAX_LISTED} classes that differ less\n  mlls: " in text


def test_an_error_is_called_an_estimate():
    error = ErrorEstimate(value=0.1, lower=0.05, upper=0.2, method="m")
    assert describe_error(error, 40).endswith("(5 % to 20 %). This is an estimate, not a bound.")


@pytest.mark.parametrize(
    ("inputs", "words"), [(40, "label all 40 field inputs, and give"), (2000, "label 250 of the 2000")]
)
def test_no_more_labels_are_advised_than_there_are_inputs(inputs, words):
    doubt = Finding(name="field not explained", problem="a long sentence", advice="")
    error = ErrorEstimate(value=0.1, lower=0.05, upper=0.2, method="m", findings=(doubt,))
    assert error.labels == 250
    assert words in describe_error(error, inputs)
    assert "a long sentence" not in describe_error(error, inputs)  # it is said once, among the findings


@pytest.mark.parametrize(
    ("value", "requirement", "words"),
    [
        (0.4, 0.05, "The requirement is 5 %, so it is probably not met yet."),
        (0.4, 0.4, "The requirement is 40 %, within that range, so it is open whether it is met."),
        (0.4, 0.6, "The requirement is 60 %, so it is probably met; only labels can show it."),
    ],
)
def test_a_campaign_compares_the_error_without_labels_with_its_requirement(value, requirement, words):
    error = ErrorEstimate(value=value, lower=value - 0.1, upper=value + 0.1, method="atc")
    assert compare_error(error, requirement) == words
    doubted = replace(error, findings=(Finding(name="methods disagree", problem="", advice=""),))
    assert compare_error(doubted, requirement).endswith("this estimate cannot tell whether it is met.")


def test_a_campaign_prints_class_shares_and_the_error_of_its_field(model):
    d = describe(model, FIELD[:300])
    shares, error = campaign_lines(d, 0.05)
    assert shares.startswith("Class shares in the field (")
    assert error.startswith("Without labels, the model is estimated")
    assert "The requirement is 5 %" in error
    assert shares in str(d)


def test_words_of_methods_and_logs_are_explained():
    exposure = Parameter(condition="exposure", name="mean", value=-0.6, lower=-0.7, upper=-0.5, limits=(-4.0, 4.0))
    angle = Parameter(condition="motion_angle", name="std", value=80.0, lower=50.0, upper=90.0, limits=(0.0, 90.0))
    blur = Parameter(condition="motion_blur", name="mean", value=3.0, lower=2.0, upper=4.0, limits=(0.0, 9.0))
    text = describe_conditions(replace(BLURRED, parameters=(exposure, blur, angle)))
    assert "exposure mean -0.6 [-0.7, -0.5]  (log of the gain; negative is darker; x 0.55)" in text
    assert "any direction)" in text
    assert "Each interval holds if these are the right conditions" in text
    assert "can stand in for each other" in text
    assert "stand in for each other" not in describe_conditions(replace(BLURRED, parameters=(exposure,)))
    assert "any direction" not in describe_conditions(replace(BLURRED, parameters=(replace(angle, value=20.0),)))
    assert describe_terms("mean of mlls and bbse under the conditions").count(": ") == 3
    assert {*METHODS, SIMULATED, REWEIGHTED, ON_CLEAN} == set(ERROR_TERMS)
