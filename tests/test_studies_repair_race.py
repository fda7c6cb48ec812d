"""The study of repair: its methods differ in what they say, its claims follow from the numbers, and it runs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from operant.data import Samples
from operant.results import save
from operant.rng import spawn
from operant_studies import repair
from operant_studies.repair.hard import KINDS, WRONG_LABELS, HardRun, hard_parts, in_hard_field, spoiled, unique
from operant_studies.repair.methods import ARMS, CONSTANT
from operant_studies.repair.outcome import Outcome
from operant_studies.repair.page import write_page
from operant_studies.repair.settings import (
    AUGMENTED_BADGE,
    BADGE_FT,
    BATCH_NORM,
    CAMPAIGN,
    FAILURES_ALONE,
    MORE_JUDGES,
    PARTS,
    REPAIR,
    RIVALS,
    settings,
)
from operant_studies.repair.unit import BudgetPoint, FieldBefore, MethodCurve, steps_of
from operant_studies.shared import slug
from operant_studies.subjects import read_dataset

SMALL, SMOKE = settings("small"), settings("smoke")
SMALLEST = replace(
    SMOKE, budgets=(20, 80), methods=(BADGE_FT, AUGMENTED_BADGE, REPAIR), seeds=(0, 1), part_seeds=(0, 1)
)


def test_every_method_is_known() -> None:
    assert {*RIVALS, *PARTS} - {BATCH_NORM, CAMPAIGN, FAILURES_ALONE, MORE_JUDGES} == set(ARMS)
    assert set(CONSTANT) <= set(RIVALS)


def test_rivals_know_no_class_shares_and_learn_from_no_unlabelled_input_but_shot() -> None:
    rivals = [ARMS[name] for name in RIVALS if name in ARMS]
    assert not any(arm.priors for arm in rivals)
    assert sum(arm.information > 0 for arm in rivals) == 1


def test_fields_of_the_study() -> None:
    assert [case.name for case in SMALL.inputs.cases] == ["zipf", "f4", "usps", "mild", "dusk", "tinyimagenet"]
    assert SMALL.budgets == (50, 100, 250, 500)
    assert len(SMALL.seeds) == 3


def written(out: Path, errors: dict[str, tuple[float, ...]], best: float | None = None) -> Outcome:
    """An outcome with these errors at 0, 20 and 80 labels, the same for both seeds."""
    setting = SMALLEST
    case = setting.inputs.cases[0]
    for seed in setting.seeds:
        folder = steps_of(out, case, seed).folder
        folder.mkdir(parents=True)
        before = FieldBefore(pmi=0.3, clean=0.95, n=200, unexplained=0.1, active=("rotation",), shares_apart=0.05)
        save(before, folder / "before.json")
        for name, values in errors.items():
            points = tuple(
                BudgetPoint(labels=n, pmi=v, clean=0.9, seconds=1.0, best=best if name == REPAIR else None)
                for n, v in zip((0, 20, 80), values, strict=True)
            )
            save(MethodCurve(method=name, points=points), folder / f"{slug(name)}.json")
    hard = out / "steps" / "hard"
    hard.mkdir()
    for i in range(setting.hard_runs):
        after = 0.2 if i else 0.35
        save(HardRun(kind=KINDS[i], labels=10, before=0.3, after=after, kept="an arm"), hard / f"run-{i}.json")
    return Outcome(setting=setting, out=out)


def test_claims_follow_from_the_numbers(tmp_path: Path) -> None:
    errors = {BADGE_FT: (0.3, 0.2, 0.1), AUGMENTED_BADGE: (0.2, 0.18, 0.12), REPAIR: (0.2, 0.17, 0.104)}
    outcome = written(tmp_path, errors, best=0.1)
    assert outcome.best_rival(SMALLEST.inputs.cases[0], 80) == (BADGE_FT, pytest.approx(0.1))
    assert outcome.too_far() == []  # 0.104 is within half a point of 0.1
    assert sum(outcome.regrets()) / len(outcome.regrets()) == pytest.approx((0.1 + 0.07 + 0.004) / 3)
    text = write_page(tmp_path, SMALLEST, scale="smoke").read_text()
    assert "lowest mean over fields at 20 labels | held" in text
    assert "lowest mean over fields at 80 labels | not held" in text
    assert "1 of 6" in text  # hard runs that became worse
    assert (tmp_path / "repair-error.svg").stat().st_size > 1000


def test_a_field_where_repair_is_too_far_is_named(tmp_path: Path) -> None:
    errors = {BADGE_FT: (0.3, 0.2, 0.1), AUGMENTED_BADGE: (0.2, 0.18, 0.12), REPAIR: (0.2, 0.17, 0.11)}
    far = written(tmp_path, errors).too_far()
    assert [(case.name, labels) for case, labels, *_ in far] == [("digits", 80)]


def test_hard_fields_are_what_they_say() -> None:
    parts = hard_parts(read_dataset("digits", None), 0)
    assert not torch.isin(parts["field"].ids, parts["truth"].ids).any()
    one = in_hard_field(KINDS[0], parts["field"], 0, "field")
    assert (one.labels == 0).double().mean() > 0.5
    assert len(unique(one).ids.unique()) == len(unique(one))


def test_a_tenth_of_labels_is_spoiled() -> None:
    samples = Samples(torch.rand(2000, 3), torch.arange(2000) % 10)
    wrong = (spoiled(samples, WRONG_LABELS, spawn(0)).labels != samples.labels).double().mean()
    assert 0.07 < wrong < 0.13
    assert torch.equal(spoiled(samples, KINDS[0], spawn(0)).labels, samples.labels)


@pytest.mark.slow
def test_the_study_runs_and_resumes(tmp_path: Path) -> None:
    page = repair.run_study(tmp_path, data=None, scale="smoke", workers=2, console=Console(quiet=True))
    text = page.read_text()
    assert "## Claims" in text
    times = {file: file.stat().st_mtime_ns for file in (tmp_path / "steps").rglob("*.json")}
    repair.run_study(tmp_path, data=None, scale="smoke", workers=2, console=Console(quiet=True))
    assert times == {file: file.stat().st_mtime_ns for file in (tmp_path / "steps").rglob("*.json")}
