"""The study of the field: its fields are what they claim, its scores are correct, and it runs and resumes."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console

from operant import load_digits, results, spawn
from operant.conditions import Recipe, default_palette, half_normal, normal
from operant.profile import FittedConditions, Parameter
from operant_studies import field
from operant_studies.field import claims, downstream, scores, tables, unit
from operant_studies.field.fields import in_field, in_shares, make_inputs, waved
from operant_studies.field.large import LargeFit
from operant_studies.field.outcome import FieldOutcome, at_most
from operant_studies.field.pictures import draw_errors, draw_sheet
from operant_studies.field.settings import SHAPES, VARIANTS, WAYS, FieldCase, conditions, settings
from operant_studies.field.unit import (
    ALONE,
    COMBINED,
    FITTED,
    MODEL,
    UNCORRECTED,
    FieldError,
    FieldShares,
    ShareEstimate,
)
from operant_studies.operational.unit import LoopCurve, LoopPoint, TimedConditions, TimedRecipe
from operant_studies.shared import HELD, NOT_DECIDED, NOT_HELD

SMOKE, SMALL = settings("smoke"), settings("small")
MADE = [case for case in SMALL.cases if case.recipe is not None]
DIGITS = load_digits(size=28)

# Fields


def test_twelve_fields_are_made_and_two_are_real() -> None:
    assert len(MADE) == 12
    assert len({case.name for case in SMALL.cases}) == len(SMALL.cases) == 14
    assert SMALL.seeds == (0, 1, 2)
    assert [case.name for case in MADE if case.zipf] == ["m2", "m4", "f1", "f3", "c1", "c4"]


@pytest.mark.parametrize("case", MADE, ids=lambda case: case.name)
def test_the_palette_holds_the_conditions_of_made_fields(case: FieldCase) -> None:
    palette = default_palette(SHAPES[case.dataset]).severities
    for name, severity in case.recipe.severities.items():
        widest = palette[name]
        assert widest.low <= severity.low < severity.high <= widest.high
        assert abs(severity.mean - widest.mean) < widest.std
        assert severity.std < widest.std


@pytest.mark.parametrize("case", MADE, ids=lambda case: case.name)
def test_made_fields_differ_from_clean_images_and_repeat_with_their_seed(case: FieldCase) -> None:
    images = torch.rand(6, *SHAPES[case.dataset], generator=spawn(0, "images"))
    clean = DIGITS.test[:6] if case.dataset != "cifar10" else replace_images(DIGITS.test[:6], images)
    first, again, other = (in_field(case, clean, generator=spawn(seed, "field")).x for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert float(first.min()) >= 0
    assert float(first.max()) <= 1
    moved = (first - clean.x).abs().flatten(1).mean(1)
    if case.name == "c4":  # class shares alone
        assert bool((moved == 0).all())
    else:
        assert bool((moved > 0.005).all())
        assert not torch.equal(first, other)


def replace_images(samples, x):
    return type(samples)(x, samples.labels)


def test_waves_move_rows_by_at_most_their_amplitude() -> None:
    x = torch.zeros(5, 1, 28, 28)
    x[:, :, :, 14] = 1
    places = torch.arange(28.0)
    y = waved(x, generator=spawn(0, "waves"))
    centre = (y[:, 0] * places).sum(2) / y[:, 0].sum(2)
    assert float((centre - 14).abs().max()) <= 2.0 + 1e-4
    assert float((centre.amax(1) - centre.amin(1)).min()) > 1.5
    assert torch.allclose(y.sum(3), torch.ones(5, 1, 28), atol=1e-4)  # nothing is lost


def test_shares_are_kept_and_images_repeat_as_late_as_possible() -> None:
    shares = torch.tensor([0.7, 0.3] + [0.0] * 8, dtype=torch.float64)
    drawn = in_shares(DIGITS.test, 200, shares, generator=spawn(0, "shares"))
    counts = torch.bincount(drawn.labels, minlength=10)
    assert counts[2:].sum() == 0
    assert abs(int(counts[0]) - 140) < 30
    times = drawn[drawn.labels == 0].x.flatten(1).unique(dim=0, return_counts=True)[1]
    assert int(times.max() - times.min()) <= 1


@pytest.mark.parametrize("case", SMOKE.cases, ids=lambda case: case.name)
def test_no_image_has_two_roles(case: FieldCase) -> None:
    setting = replace(SMOKE, truth=60)
    plain = replace(case, recipe=Recipe(severities={}))  # so that images can be recognised
    inputs = make_inputs(setting, plain, None, 3)
    roles = [inputs.clean, inputs.fresh, inputs.labelled, inputs.seen, inputs.truth]
    known = [{tuple(row) for row in role.x.flatten(1).tolist()} for role in roles]
    for i, one in enumerate(known):
        for other in known[i + 1 :]:
            assert not one & other
    again = make_inputs(setting, case, None, 3)
    assert torch.equal(again.seen.x, make_inputs(setting, case, None, 3).seen.x)
    assert torch.equal(again.unchanged.labels, again.truth.labels)
    assert sum(inputs.shares) == pytest.approx(1)


# Scores


def parameter(condition: str, name: str, lower: float, upper: float) -> Parameter:
    value = (lower + upper) / 2
    return Parameter(condition=condition, name=name, value=value, lower=lower, upper=upper, limits=(-9, 9))


def fitted(*parameters: Parameter) -> FittedConditions:
    recipe = Recipe(severities={p.condition: half_normal(0.1) for p in parameters})
    return FittedConditions(
        recipe=recipe,
        parameters=parameters,
        before=3.0,
        after=0.6,
        floor=0.5,
        floor_high=0.7,
        priors=(0.5, 0.5),
        confidence=0.95,
        findings=(),
    )


TRUTH = Recipe(severities={"motion_blur": normal(1, mean=3), "motion_angle": normal(9, mean=20), "tint": normal(0.1)})
FOUND = fitted(
    parameter("defocus", "mean", 0, 1),
    parameter("motion_blur", "mean", 2, 4),
    parameter("motion_blur", "std", 1.5, 2),
    parameter("motion_angle", "mean", 10, 30),
)


def test_conditions_are_counted_by_name_and_by_kind() -> None:
    assert scores.counts(FOUND, TRUTH) == scores.Counts(right=1, found=2, true=2)
    assert scores.counts(FOUND, TRUTH, kinds=True) == scores.Counts(right=1, found=1, true=2)
    assert scores.Counts().precision == scores.Counts().recall == 1
    assert [inside for *_, inside in scores.inside(FOUND, TRUTH)] == [True, False, True]


def test_coverage_is_judged_as_the_design_says() -> None:
    for hits, n in ((89, 100), (182, 200), (1877, 2000)):
        assert scores.coverage_verdict(hits, n) == HELD
        assert scores.coverage_verdict(hits - 1, n) == NOT_HELD
    assert scores.coverage_verdict(1, 3) == NOT_DECIDED


def test_shares_are_compared_by_half_their_absolute_differences() -> None:
    assert scores.total_variation((0.5, 0.5), (0.2, 0.8)) == pytest.approx(0.3)
    assert scores.total_variation((1.0,), (0.5, 0.5)) == pytest.approx(0.5)


def shares_of(name: str, first: float, width: float = 0.1) -> ShareEstimate:
    values = (first, 1 - first)
    lower, upper = (tuple(v + s * width / 2 for v in values) for s in (-1, 1))
    return ShareEstimate(name=name, values=values, lower=lower, upper=upper)


def test_withheld_and_doubted_intervals_are_recognised() -> None:
    plain, wide, none = shares_of("a", 0.5), shares_of("b", 0.5, 0.3), shares_of("c", 0.5, math.nan)
    assert scores.withheld(none)
    assert scores.withheld(ShareEstimate(name="d", values=(0.5, 0.5)))
    assert not scores.withheld(wide)
    assert scores.withheld(shares_of("e", 0.5, 2.0))
    assert scores.doubted(replace(wide, findings=("not pure label shift",)))
    assert not scores.doubted(replace(none, findings=("not pure label shift",)))
    assert not scores.doubted(plain)
    assert scores.covered(plain, (0.6, 0.4)) == (0, 2)
    assert scores.covered(wide, (0.6, 0.4)) == (2, 2)
    assert scores.covered(none, (0.6, 0.4)) == (0, 0)


def test_limits_hold_with_their_whole_interval() -> None:
    assert at_most([0.5, 0.51, 0.52], 0.6)[1] == HELD
    assert at_most([0.7, 0.71, 0.72], 0.6)[1] == NOT_HELD
    assert at_most([0.4, 0.6, 0.8], 0.6)[1] == NOT_DECIDED


# Tables with made-up results


def error_of(true: float, value: float, *findings: str) -> FieldError:
    return FieldError(
        true=true,
        n=1000,
        clean=0.02,
        value=value,
        lower=value - 0.02,
        upper=value + 0.02,
        method="atc",
        by_method={"atc": value, "confidence": value + 0.05},
        findings=("few errors", *findings),
        unreliable=findings,
        seconds=1.0,
    )


def made_up(folder: Path) -> list[FieldOutcome]:
    """A made field that is known well, and a real one that is not."""
    made = FieldCase(name="a", title="first", dataset="mnist", recipe=TRUTH)
    real = FieldCase(name="b", title="second", dataset="mnist")
    for case, value, findings in ((made, 0.11, ()), (real, 0.3, ("not explained",))):
        steps = unit.steps_of(folder, case, 0)
        steps.step("conditions", TimedConditions, lambda: TimedConditions(conditions=FOUND, seconds=12.0))
        true = None if case.recipe is None else 0.5
        likeness = unit.Likeness(before=0.9, fitted=0.55, true=true, n=1200)
        steps.step("likeness", unit.Likeness, lambda likeness=likeness: likeness)
        estimates = (
            ShareEstimate(name=UNCORRECTED, values=(0.9, 0.1)),
            ShareEstimate(name=FITTED, values=(0.6, 0.4)),
            ShareEstimate(name=MODEL, values=(0.2, 0.8)),
            shares_of(ALONE, 0.3),
            shares_of(COMBINED, 0.52),
        )
        shares = FieldShares(true=(0.5, 0.5), estimates=estimates)
        steps.step("shares", FieldShares, lambda shares=shares: shares)
        error = error_of(0.1, value, *findings)
        if case is real:  # a method that applies to one field alone
            error = replace(error, by_method={**error.by_method, "simulated": 0.1})
        steps.step("error", FieldError, lambda error=error: error)
    return [FieldOutcome(made, (0,), folder), FieldOutcome(real, (0,), folder)]


def curve(*pmi: float) -> LoopCurve:
    points = [LoopPoint(round=i, cases=0, labels=0, seconds=9.0, pmi=p, clean=0.9) for i, p in enumerate(pmi)]
    return LoopCurve(variant="", points=tuple(points))


CURVES = {
    v: {"before": [curve(0.4, 0.3), curve(0.4, 0.31)], "palette": [curve(0.4, 0.2), curve(0.4, 0.22)]} for v in VARIANTS
}
LARGE = LargeFit(side=224, images=250, found=("exposure",), unexplained=0.1, seconds=70.0, memory=2 * 10**9)


def test_tables_state_the_numbers_of_every_field(tmp_path) -> None:
    outcomes = made_up(tmp_path)
    found = tables.conditions_section(outcomes)
    assert "precision is 50 % (1 of 2" in found
    assert "| first | motion_blur, tint | tint (1) | defocus (1) | 2 of 3 |" in found
    assert "| second | 0.900 | 0.550 |  |" in found
    shares = tables.shares_section(outcomes)
    assert "| first | 0.400 | 0.100 | 0.300 | 0.200 | 0.020 |" in shares
    errors = tables.errors_section(outcomes)
    assert "| second | 1000 | 10.0 | 20.0 | 25.0 | 0.0 | 20.0 | 0 of 1 | few errors (1), not explained (1) |" in errors
    assert "Off by more than 3 points: 1 of 2. The program called 1 of 1" in errors
    down = tables.downstream_section(outcomes[0].case, CURVES)
    assert "30.5 [24.1, 36.9]" in down
    control = {"mnist": [TimedConditions(conditions=FOUND, seconds=3.0)]}
    assert "| mnist | 1 of 1" in tables.control_section(control)
    assert "| 70 | 70 | 1 | 2.00 | exposure (1) |" in tables.cost_section(outcomes, [LARGE])


def test_claims_are_decided_by_the_numbers(tmp_path) -> None:
    outcomes = made_up(tmp_path)
    control = {"mnist": [TimedConditions(conditions=fitted(), seconds=3.0)]}
    text = claims.claims(outcomes, control, [LARGE], CURVES)
    rows = {line.split("|")[1].strip(): line.split("**")[1] for line in text.splitlines() if "**" in line}
    assert set(rows.values()) <= {HELD, NOT_HELD, NOT_DECIDED}
    verdicts = {words: next(v for claim, v in rows.items() if words in claim) for words in (
        "conditions are found", "in every field", "where it is off by more", "at 224 x 224", "stays below 3 GB",
        "no condition is found", "the loop ends with a lower error",
    )}  # fmt: skip
    assert verdicts == {
        "conditions are found": NOT_HELD,
        "in every field": HELD,
        "where it is off by more": HELD,
        "at 224 x 224": NOT_HELD,
        "stays below 3 GB": HELD,
        "no condition is found": HELD,
        "the loop ends with a lower error": HELD,
    }
    assert float(claims.lowered(CURVES, VARIANTS[0]).value) == pytest.approx(0.095)


def test_pictures_show_dark_fields_a_second_time(tmp_path) -> None:
    x = torch.rand(10, 3, 8, 8, generator=spawn(0, "x"))
    bright, dark = (unit.ShownInputs(field=f * x, simulated=f * x) for f in (1.0, 0.1))
    draw_sheet({"bright": bright}, tmp_path / "one.png")
    draw_sheet({"dark": dark}, tmp_path / "two.png")
    with Image.open(tmp_path / "one.png") as one, Image.open(tmp_path / "two.png") as two:
        assert two.height == 2 * one.height
    draw_errors(made_up(tmp_path), tmp_path / "errors.svg")
    assert "<svg" in (tmp_path / "errors.svg").read_text()


def test_the_recipe_of_before_may_come_from_an_older_version(tmp_path) -> None:
    steps = unit.steps_of(tmp_path, downstream.case_of(SMOKE), 0)
    steps.step("before", TimedConditions, lambda: TimedConditions(conditions=FOUND, seconds=1.0))
    assert downstream.recipe_of(SMOKE, tmp_path, 0, "before").recipe.names == FOUND.recipe.names
    given = TimedRecipe(recipe=conditions("digits", blur=(1.0, 0.2)), seconds=99.0)
    results.save(given, downstream.before_file(SMOKE.downstream, tmp_path, 0))
    assert downstream.recipe_of(SMOKE, tmp_path, 0, "before") == given


# The study


def test_missing_files_are_named_before_the_study_starts(tmp_path) -> None:
    with pytest.raises(ValueError, match="--data"):
        field.run_study(tmp_path, data=None, scale="small", workers=1, console=Console(quiet=True))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_study_runs_resumes_and_writes_its_page(tmp_path, monkeypatch) -> None:
    run = {"data": None, "scale": "smoke", "workers": 1, "console": Console(quiet=True)}
    path = field.run_study(tmp_path, **run)
    first = path.read_text()
    for words in ("What held", "## Conditions", "## Class shares", "## Downstream", "## Cost", "## Control"):
        assert words in first
    for case in SMOKE.cases:
        assert f"| {case.title} |" in first
    assert "nan" not in first
    assert (tmp_path / "field-sheet.jpg").stat().st_size > 5000
    for way in WAYS:
        (each,) = [downstream.arm_steps(SMOKE.downstream, tmp_path, seed, way) for seed in SMOKE.downstream.seeds]
        assert len(each.read("augmentation-no-cases", LoopCurve).points) == SMOKE.downstream.loop.rounds + 1

    monkeypatch.setattr(unit, "make_inputs", lambda *_: pytest.fail("computed twice"))
    assert field.run_study(tmp_path, **run).read_text() == first
    monkeypatch.setattr(field, "check_data", lambda *_: None)
    with pytest.raises(ValueError, match="another scale"):
        field.run_study(tmp_path, **{**run, "scale": "small"})
