"""The study of cases: its kinds are what they claim, its scores are correct, and it runs and resumes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from operant import load_digits, spawn
from operant.generate import RecipeDraws
from operant.model import Classifier
from operant.networks import LeNet5, initialise
from operant_studies import cases
from operant_studies.cases import claims, judging, kinds, outcome, ranking, rivals, selection, tables
from operant_studies.cases.judging import FreshRejects, KindJudged, ShownCases
from operant_studies.cases.pictures import draw_cases, draw_lifts
from operant_studies.cases.ranking import MOVES, RISK, MoveRanked, Ranked, RiskCost
from operant_studies.cases.rivals import RIVALS
from operant_studies.cases.selection import CASES, LABEL_DRAWS, PREDICTORS, Compared
from operant_studies.cases.settings import BAD, ESTIMATED, KINDS, TRUE, WRONG, settings
from operant_studies.cases.unit import steps_of
from operant_studies.field.settings import SHAPES, conditions
from operant_studies.operational_fuzz.sheets import fingerprint
from operant_studies.shared import HELD, NOT_DECIDED, NOT_HELD

SMOKE, SMALL = settings("smoke"), settings("small")
DIGITS = load_digits(size=28)

# Settings


def test_the_fields_are_those_of_the_plan() -> None:
    assert [case.name for case in SMALL.inputs.cases] == ["zipf", "dusk", "usps", "tinyimagenet", "mild"]
    assert SMALL.judged == ("zipf", "dusk", "usps", "tinyimagenet")
    assert SMALL.seeds == (0, 1, 2, 3, 4)
    for each in SMALL.selections:
        names = [checkpoint.name for checkpoint in each.checkpoints]
        assert len(set(names)) == len(names) >= 15


def test_fits_that_count_rejects_share_no_image() -> None:
    images = SMALL.fits * (SMALL.fit_field + SMALL.fresh + SMALL.fit_draws)
    assert images <= 50_000  # training images of the smallest data set
    assert SMALL.fit_field >= 500
    assert SMALL.fits >= 20


# Kinds


def test_too_strong_recipes_have_twice_the_severities() -> None:
    recipe = conditions("mnist", rotation=(10, 2), gaussian_noise=(0.1, 0.02))
    twice = kinds.doubled(recipe)
    assert twice.severities["rotation"].mean == 20
    assert twice.severities["gaussian_noise"].std == pytest.approx(0.04)
    for case in SMALL.inputs.cases:
        if case.recipe is not None:
            x = torch.rand(4, *SHAPES[case.dataset], generator=spawn(0, "x"))
            drawn = kinds.doubled(case.recipe).draw(len(x), generator=spawn(0, "drawn"))
            assert drawn.values.isfinite().all()
    assert set(kinds.darker(recipe).names) == {"rotation", "gaussian_noise", "exposure"}


def test_the_hardest_case_of_each_seed_is_kept() -> None:
    model, seeds = Classifier(initialise(LeNet5, generator=spawn(0, "w"))), DIGITS.train[:20]
    recipe = conditions("digits", rotation=(15, 8))
    suite = RecipeDraws(recipe=recipe, per_seed=5)(model, seeds, generator=spawn(0, "draws"))
    kept = ranking.hardest(suite)
    assert len(kept) == 20
    assert sorted(kept.seed.tolist()) == sorted(seeds.ids.tolist())
    best = {
        int(s): max(float(m) for m, t in zip(suite["margin"], suite.seed, strict=True) if t == s) for s in seeds.ids
    }
    assert all(float(m) == best[int(s)] for m, s in zip(kept["margin"], kept.seed, strict=True))


def test_margins_are_differences_of_the_two_largest_logits() -> None:
    assert rivals.margins(torch.tensor([[1.0, 4.0, 2.0], [3.0, 3.0, 0.0]])).tolist() == [2.0, 0.0]


# Scores


def compared(pmi: float, by_cases: float, other: float) -> Compared:
    predicted = dict.fromkeys(PREDICTORS, other) | {CASES: by_cases}
    return Compared(name="", pmi=pmi, predicted=predicted, labels=(pmi,) * LABEL_DRAWS)


RUNS = [[compared(i / 20, i / 18, (7 * i % 16) / 20) for i in range(16)] for _ in range(2)]


def test_rank_correlation_needs_the_same_order() -> None:
    rising = np.arange(5.0)
    pairs = [np.exp(rising), -rising, np.ones(5)]
    assert selection.spearman(np.stack([rising] * 3), np.stack(pairs)) == pytest.approx([1, -1, 0])
    found = selection.correlations(RUNS)
    assert [found[CASES].value, found[CASES].lower, found[selection.LABELS].value] == pytest.approx([1, 1, 1])
    gain = selection.difference(RUNS, CASES, selection.without_cases(RUNS))
    assert gain.value == pytest.approx(1 - found[selection.ATC].value)
    assert gain.lower <= gain.value <= gain.upper


def rejecting(*counts: int) -> list[FreshRejects]:
    return [FreshRejects(rejected=c, n=500, accepted=0.9, seconds=4.0) for c in counts]


def test_rejects_are_tested_over_fits() -> None:
    assert outcome.too_many_rejects(rejecting(20, 25, 30, 27)) > 0.1
    assert outcome.too_many_rejects(rejecting(50, 45, 52, 47)) < 0.01
    assert outcome.too_many_rejects(rejecting(25, 25)) == 1
    assert outcome.too_many_rejects(rejecting(26, 26)) == 0


def test_a_claim_about_several_fields_needs_all_of_them() -> None:
    assert outcome.together([HELD, HELD]) == HELD
    assert outcome.together([HELD, NOT_DECIDED]) == NOT_DECIDED
    assert outcome.together([NOT_DECIDED, NOT_HELD]) == NOT_HELD
    assert outcome.together([]) == NOT_DECIDED


# Tables with made-up results

TWO = replace(
    SMOKE,
    inputs=replace(SMOKE.inputs, seeds=(0, 1)),
    judge_seeds=(0, 1),
    move_seeds=(0, 1),
    kinds=KINDS,
    selections=(replace(SMOKE.selections[0], seeds=(0, 1), checkpoints=(SMOKE.selections[0].checkpoints[0],) * 16),),
)


def made_up(folder: Path) -> outcome.Outcome:
    case = TWO.inputs.cases[0]
    for seed in TWO.seeds:
        steps = steps_of(folder, case, seed)
        for kind in KINDS:
            share = (0.9 if kind not in BAD else 0.05 if kind == WRONG else 0.5) + 0.01 * seed
            judged = KindJudged(
                kind=kind, n=60, scores=0.95, judge=share, scores_rejects=0.05, judge_rejects=0.04, seconds=9.0
            )
            steps.step(judging.kind_step(kind), KindJudged, lambda judged=judged: judged)
        lifts = {RISK: 4.0 + seed / 10} | {rival: 2 + i / 10 for i, rival in enumerate(RIVALS)}
        ratio = dict.fromkeys(lifts, 1.6 + seed / 100)
        ranked = Ranked(n=200, failures=40, pmi=0.2, failing=0.3, lift5=lifts, lift10=lifts, ratio=ratio, findings=())
        steps.step("ranked", Ranked, lambda ranked=ranked: ranked)
        for i in range(len(MOVES)):
            move = MoveRanked(failing=0.1 * i, lift5=3.0, lift10=2.0, ratio=1.5, seconds=2.0)
            steps.step(ranking.move_step(i), MoveRanked, lambda move=move: move)
        for i, each in enumerate(RUNS[seed]):
            steps.step(selection.checkpoint_step(i), Compared, lambda each=each: each)
    for i, fit in enumerate(rejecting(24, 23)):
        judging.fresh_steps(folder, case).step(f"fit-{i}", FreshRejects, lambda fit=fit: fit)
    cost = RiskCost(cases=300, inputs=1000, fit=5.0, rate=20.0, passes=9.0)
    ranking.cost_steps(folder).step("risk", RiskCost, lambda: cost)
    judging.shown_steps(folder).step(case.name, ShownCases, lambda: SHOWN)
    return outcome.Outcome(TWO, folder)


X = torch.rand(12, 1, 28, 28, generator=spawn(0, "x"))
SHOWN = ShownCases(seeds=X, cases=X / 2, labels=torch.arange(12) % 10, predictions=torch.zeros(12, dtype=torch.long))


def verdicts(found: outcome.Outcome) -> dict[str, str]:
    lines = [line for line in claims.claims(found).splitlines() if "**" in line]
    return {line.split("|")[1].strip(): line.split("**")[1] for line in lines}


def test_claims_are_decided_by_the_numbers(tmp_path) -> None:
    rows = verdicts(made_up(tmp_path))
    wanted = {
        "the judge accepts at least 80 %": HELD,
        f"at most 10 % of: {BAD[0]}": NOT_HELD,
        "rejects at most 5 %": HELD,
        "right label": NOT_DECIDED,
        "lift at 5 % above that of the best rival, shifted copies": HELD,
        "on at least 4 fields": NOT_HELD,
        "at least 1.5 times as often": HELD,
        "ranks checkpoints better": HELD,
        "fitting a judge takes": HELD,
        "a risk map takes less": HELD,
    }
    assert {words: next(v for claim, v in rows.items() if words in claim) for words in wanted} == wanted


def test_right_labels_count_for_the_sheet_that_was_read(tmp_path) -> None:
    found, file = made_up(tmp_path), tmp_path / outcome.READ_FILE
    assert found.right_labels("digits") is None
    file.write_text(json.dumps({"digits": {"sheet": "00000000", "right": 12}}))
    assert found.right_labels("digits") is None
    file.write_text(json.dumps({"digits": {"sheet": fingerprint(SHOWN.cases), "right": 11}}))
    assert found.right_labels("digits") == (11, 12)
    row = next(v for claim, v in verdicts(found).items() if "right label" in claim)
    assert row == NOT_HELD


def test_tables_state_the_numbers_of_every_part(tmp_path) -> None:
    found = made_up(tmp_path)
    judge = tables.judge_section(found)
    assert f"| {TRUE} | 95.0 [95.0, 95.0] | 90.5 [84.1, 96.9] |" in judge
    assert "| digits | 2 | 4.7 [3.4, 6.0] | 4.8 |" in judge
    risk = tables.risk_section(found)
    assert "| digits: turned, noisy | 200 | 20.0 [20.0, 20.0] |" in risk
    assert f"| {RISK} | 4.05 | 4.05 |" in risk
    assert f"| {MOVES[3]} | 3.00 | 1.50 | 30.0 | 2.0 |" in risk
    assert f"| {CASES} | 1.00 [1.00, 1.00] |" in tables.selection_section(found)
    assert "| risk map, rate 1000 inputs | 20.0 |" in tables.cost_section(found)
    draw_lifts(found, tmp_path / "lift.svg")
    assert "<svg" in (tmp_path / "lift.svg").read_text()


def test_sheets_show_each_case_beside_its_seed(tmp_path) -> None:
    draw_cases(SHOWN, "digits", tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 10 * 2 * (28 + 1 + 28)
        assert sheet.height > 2 * 2 * 28


# The study


def test_missing_files_are_named_before_the_study_starts(tmp_path) -> None:
    with pytest.raises(ValueError, match="--data"):
        cases.run_study(tmp_path, data=None, scale="small", workers=1, console=Console(quiet=True))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_study_runs_resumes_and_writes_its_page(tmp_path, monkeypatch) -> None:
    run = {"data": None, "scale": "smoke", "workers": 1, "console": Console(quiet=True)}
    path = cases.run_study(tmp_path, **run)
    first = path.read_text()
    for words in ("What held", "## The judge", "## The risk map", "## Models without labels", "## Cost"):
        assert words in first
    assert "| nan" not in first
    assert f"| {ESTIMATED} |" in first
    assert (tmp_path / "cases-digits.png").exists()
    ranked = steps_of(tmp_path, SMOKE.inputs.cases[0], 0).read("ranked", Ranked)
    assert set(ranked.lift5) == {RISK, *RIVALS}

    monkeypatch.setattr("operant_studies.cases.unit.make_inputs", lambda *_: pytest.fail("computed twice"))
    assert cases.run_study(tmp_path, **run).read_text() == first
    monkeypatch.setattr(cases, "check_data", lambda *_: None)
    monkeypatch.setattr(cases, "read_dataset", lambda *_: None)
    with pytest.raises(ValueError, match="another scale"):
        cases.run_study(tmp_path, **{**run, "scale": "small"})
