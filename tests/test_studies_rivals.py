"""The study of rivals: runs on digits, resumes, compares at equal rows, and claims only what intervals allow."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from operant import results, spawn
from operant.generate.baselines import DeepHunter
from operant.networks import fit
from operant_studies import rivals, subjects
from operant_studies.operational_fuzz.finding import SearchResult, load_results
from operant_studies.rivals import curves, finding, models
from operant_studies.rivals.contests import CONTESTS, WHY, Contest, ContestArm, PartedHunter, build, logit_move
from operant_studies.rivals.curves import CoverageCurve, CoverageCurves
from operant_studies.rivals.finding import arm_names
from operant_studies.rivals.outcome import RivalsOutcome, answer, pair
from operant_studies.rivals.page import write_page
from operant_studies.rivals.settings import settings

SMOKE = settings("smoke")[0]
FIELD = replace(SMOKE.field, seeds=(0,), train=300, truth=200, hunted=20, genetic=1, radii=(0.1, 0.3))
SETTING = replace(SMOKE, field=FIELD, explored=8, rows=9, profiled=100, hunted=6, hunted_rows=8)

QUICK = {"epochs": 2, "batch_size": 32, "learning_rate": 4e-3}


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("rivals")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subjects, "fit", lambda start, train, **kw: fit(start, train[:800], **kw | QUICK))
        for number in range(models.NETWORKS):
            models.prepare(SETTING, None, number, out / "networks")
    curves.run(SETTING, None, out, 0)
    finding.run(SETTING, None, out, 0)
    return out


@pytest.mark.slow
def test_the_page_has_every_search_and_every_verdict(out: Path) -> None:
    page = write_page(out, [SETTING], scale="smoke").read_text()
    for contest in CONTESTS:
        assert f"### {contest.title}" in page
        for arm in contest.arms:
            assert f"| {arm.name} |" in page
    for name in arm_names(SETTING):
        assert f"| {name} |" in page
    verdicts = [line.split("|")[-2].strip(" *") for line in page.splitlines() if line.endswith("** |")]
    assert len(verdicts) == sum(len(contest.arms) for contest in CONTESTS)
    assert set(verdicts) <= {"beats random", "loses to random", "does not beat random (not decided)"}
    assert "nan" not in page.lower()
    for picture in ("rivals-digits.svg", "rivals-finding.svg"):
        assert "<svg" in (out / picture).read_text()
        assert picture in page


@pytest.mark.slow
def test_finished_steps_do_not_run_again(out: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in out.glob("steps/*/*.json")}
    assert len(before) == 1 + len(CONTESTS) + 1 + len(arm_names(SETTING))
    curves.run(SETTING, None, out, 0)
    finding.run(SETTING, None, out, 0)
    assert {path: path.stat().st_mtime_ns for path in out.glob("steps/*/*.json")} == before


@pytest.mark.slow
def test_a_contest_is_reproducible_and_stays_within_its_budget(out: Path) -> None:
    field = curves.make_field(FIELD, None, 0, out / "networks")
    context, seeds = curves.prepare_contests(SETTING, None, field, out)
    assert all(bool((m.predict(seeds.x) == seeds.labels).all()) for m in (field.model, *context.others))
    for contest in CONTESTS:
        assert set(contest.names) <= build(contest.key, context).keys()
        of = curves.steps_of(SETTING, out, 0).read(contest.key, CoverageCurves).of
        assert all(curve.rows[-1] <= SETTING.rows for curve in of.values())
        for arm in contest.arms:
            assert of[arm.name].coverage[0] == of[arm.controls[0]].coverage[0], "all start from the same inputs"
    again = curves.run_contest(CONTESTS[0], context, field, seeds).of
    before = curves.steps_of(SETTING, out, 0).read(CONTESTS[0].key, CoverageCurves).of
    assert {name: (c.rows, c.coverage) for name, c in again.items()} == {
        name: (c.rows, c.coverage) for name, c in before.items()
    }


@pytest.mark.slow
def test_failures_are_counted_as_the_search_finds_them(out: Path) -> None:
    found = load_results([finding.steps_of(SETTING, out, 0)], arm_names(SETTING))
    assert tuple(found) == arm_names(SETTING)
    for name, (each,) in found.items():
        assert isinstance(each, SearchResult)
        assert 0 <= each.natural <= each.failures
        assert each.seconds > 0, name
    assert sum(each.failures for (each,) in found.values()) > 0


def test_the_two_ideas_of_deephunter_can_be_separated(lenet, digits28) -> None:
    """With both it is DeepHunter; without guidance every mutant that does not fail joins the queue."""
    seeds = lenet.correct(digits28.test[:12])
    whole, parted = (
        fuzz(rows_per_seed=6).explore(lenet, seeds, generator=spawn(0, "hunt")) for fuzz in (DeepHunter, PartedHunter)
    )
    assert torch.equal(whole.coverage, parted.coverage)
    assert torch.equal(whole.suite.x, parted.suite.x)
    for changed in ({"fading": False}, {"guided": False}):
        other = PartedHunter(rows_per_seed=6, **changed).explore(lenet, seeds, generator=spawn(0, "hunt"))
        assert float(other.coverage[0, 0]) == float(whole.coverage[0, 0])
        assert not torch.equal(other.coverage, whole.coverage)


def test_noise_moves_logits_more_the_larger_it_is(lenet, digits28) -> None:
    seeds = digits28.test[:30]
    moves = [logit_move(lenet, seeds, std, generator=spawn(0)) for std in (1e-4, 0.05, 0.2)]
    assert 0 < moves[0] < moves[1] < moves[2]


# Sentences


def curve(rows: list[float], coverage: list[float]) -> CoverageCurve:
    return CoverageCurve(rows=tuple(rows), coverage=tuple(coverage), failures=0, seconds=1.0)


def test_pairs_are_compared_after_equally_many_rows_with_the_best_control() -> None:
    of = {
        "ours": curve([1.0, 5.0], [0.1, 0.5]),
        "poor": curve([1.0, 9.0], [0.1, 0.1]),
        "good": curve([1.0, 9.0], [0.1, 0.5]),
    }
    compared = pair(of, ContestArm(name="ours", controls=("poor", "good")))
    assert (compared.rows, compared.covered, compared.control) == pytest.approx((5.0, 0.5, 0.3))
    assert compared.lead == pytest.approx(2 / 3)
    assert pair(of, ContestArm(name="poor", controls=("ours",))).rows == 5.0


ONE = Contest(
    key="one",
    title="A rival",
    criterion="something",
    arms=tuple(ContestArm(name=name, controls=("random",)) for name in ("first", "second", "third")),
)


def outcome(covered: dict[str, list[float]]) -> RivalsOutcome:
    o = RivalsOutcome(replace(SETTING, field=replace(FIELD, seeds=(0, 1, 2))), Path("nowhere"))
    of = [{name: curve([1.0, 2.0], [0.1, values[i]]) for name, values in covered.items()} for i in range(3)]
    o.__dict__["curves"] = {"one": of}
    return o


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ([0.600, 0.601, 0.602], [0.5, 0.5, 0.5], r"beats random: lead 20.2 \S+ \S+ %\.$"),
        ([0.57, 0.61, 0.64], [0.5, 0.5, 0.5], "beats random: lead .* though not after correction for all 7 answers"),
        (
            [0.400, 0.401, 0.399],
            [0.600, 0.601, 0.602],
            r"loses to random: .*second., by 40.2 \S+ \S+ points, which beats random. Reason found: it is so\.",
        ),
        (
            [0.40, 0.41, 0.39],
            [0.45, 0.48, 0.44],
            r"loses to random: .*second., by 11.3 \S+ \S+ points. A hint at the reason: it is so\.",
        ),
        (
            [0.40, 0.41, 0.39],
            [0.40, 0.40, 0.40],
            "loses to random: .*reason is not found. They differ by 25.0% at most",
        ),
        ([0.40, 0.50, 0.70], [0.60, 0.61, 0.62], r"not beat random \(not decided\).*beats random, but .* not found"),
    ],
)
def test_a_reason_needs_a_change_of_the_lead(first, second, words, monkeypatch) -> None:
    monkeypatch.setitem(WHY, "second", "it is so")
    o = outcome({"random": [0.5] * 3, "first": first, "second": second, "third": [0.3, 0.31, 0.3]})
    assert re.search(words, answer(o, ONE, models=1)), answer(o, ONE, models=1)


def test_a_change_that_explains_nothing_gives_no_reason() -> None:
    o = outcome({"random": [0.5] * 3, "first": [0.4, 0.41, 0.39], "second": [0.6, 0.61, 0.62], "third": [0.3] * 3})
    assert answer(o, ONE, models=1).endswith("The reason is open.")


def test_reasons_name_existing_searches() -> None:
    assert set(WHY) <= {arm.name for contest in CONTESTS for arm in contest.arms[1:]}


def test_curves_round_trip(tmp_path: Path) -> None:
    kept = CoverageCurves(of={"a": curve([1.0, 2.0], [0.1, 0.2])})
    results.save(kept, tmp_path / "curves.json")
    assert results.load(tmp_path / "curves.json", CoverageCurves) == kept
    assert kept.of["a"].at(1.5) == pytest.approx(0.15)


def test_impossible_runs_raise(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="scale must be smoke or small, got 'paper'"):
        rivals.run_study(tmp_path, data=None, scale="paper", workers=1, console=Console(quiet=True))
    with pytest.raises(ValueError, match="name its folder with --data"):
        rivals.run_study(tmp_path, data=None, scale="small", workers=1, console=Console(quiet=True))
    with pytest.raises(ValueError, match="run the study to its end first"):
        _ = RivalsOutcome(SETTING, tmp_path).facts
