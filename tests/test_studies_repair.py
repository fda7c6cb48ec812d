"""The study of repair: arms run on digits, and the number of cases that each needs is computed correctly."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from operant import results
from operant_studies.operational_fuzz.fields import make_field
from operant_studies.operational_fuzz.instruments import FieldInstruments
from operant_studies.operational_fuzz.repair import (
    AUGMENTED,
    CONTROL,
    DECLARED,
    FOL_CASES,
    GINI,
    LABELLED,
    PGD_CASES,
    ROUNDS,
    RepairResult,
    RepairUnit,
    names,
    steps_of,
)
from operant_studies.operational_fuzz.repair_tables import cases_needed, crossing, section
from operant_studies.operational_fuzz.settings import settings

SETTING = settings("smoke")[0]
SIZES = [10, 100, 1000]


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("repair")


@pytest.fixture(scope="module")
def unit(out: Path) -> RepairUnit:
    field = make_field(SETTING, None, 0, out / "networks")
    return RepairUnit(field, FieldInstruments(field, out / "instruments"), steps_of(SETTING, 0, out), out / "steps")


@pytest.mark.slow
def test_roles_of_a_field_share_no_input(unit: RepairUnit) -> None:
    field = unit.field
    roles = [field.train, field.clean, field.seen, field.judging, field.watched, field.truth]
    ids = torch.cat([role.ids.unique() for role in roles])
    assert len(ids.unique()) == len(ids)


@pytest.mark.slow
@pytest.mark.parametrize("arm", [DECLARED, PGD_CASES, FOL_CASES, LABELLED, GINI])
def test_an_arm_gives_the_requested_cases_with_labels(unit: RepairUnit, arm: str) -> None:
    cases = unit._cases(arm, 20)
    assert 1 <= len(cases) <= 20
    assert not torch.isin(cases.ids, unit.field.truth.ids).any()
    assert not torch.isin(cases.ids, unit.field.watched.ids).any()
    if arm == DECLARED:
        assert (unit.field.model.predict(cases.x) != cases.labels).all()


@pytest.mark.slow
def test_deepgini_takes_what_the_model_is_least_sure_of(unit: RepairUnit) -> None:
    cases, pool = unit._cases(GINI, 20), torch.cat([unit.field.seen.x, unit.field.judging.x])
    impurity = 1 - unit.field.model.probs(pool).square().sum(1)
    chosen = 1 - unit.field.model.probs(cases.x).square().sum(1)
    torch.testing.assert_close(chosen.sort().values, impurity.topk(20).values.sort().values)


@pytest.mark.slow
def test_rounds_give_the_requested_cases(unit: RepairUnit) -> None:
    few = unit._cases(ROUNDS, 20)
    assert len(few) == 20


@pytest.mark.slow
def test_the_control_learns_from_no_case(unit: RepairUnit) -> None:
    done = unit.outcome(CONTROL, 0)
    assert done.cases == 0
    assert done.epoch >= 1


# The page


@pytest.mark.slow
def test_the_section_has_every_arm_and_verdict(out: Path) -> None:
    """From invented results in which undeclared failures need a tenth of what random conditions need."""
    for seed in SETTING.seeds:
        folder = steps_of(SETTING, seed, out / "made-up").folder
        folder.mkdir(parents=True)
        for name, (arm, n) in names(SETTING).items():
            pmi = 0.05 if "Operational" in arm or arm == ROUNDS else 0.1 if n else 0.2
            made = RepairResult(arm=arm, n=n, cases=n, pmi=pmi, clean=0.9, monitor=pmi, epoch=1, seconds=0.0)
            results.save(made, folder / f"{name}.json")
    text = section(settings("smoke"), out / "made-up")
    for arm, _ in names(SETTING).values():
        assert arm in text or arm in ("before", CONTROL, AUGMENTED)
    assert "≤ 20" in text
    assert (out / "made-up" / "operational-fuzz-repair.svg").exists()


@given(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), st.floats(0.01, 1), st.floats(0.01, 1))
def test_a_harder_target_needs_no_fewer_cases(curve: list[float], a: float, b: float) -> None:
    values = np.array(curve)
    assert crossing(values, max(a, b), SIZES) <= crossing(values, min(a, b), SIZES)


def test_the_crossing_is_linear_in_log_n() -> None:
    curve = np.array([0.4, 0.3, 0.2])
    assert crossing(curve, 0.5, SIZES) == 10
    assert crossing(curve, 0.3, SIZES) == pytest.approx(100)
    assert crossing(curve, 0.25, SIZES) == pytest.approx(100 * 10**0.5)
    assert crossing(curve, 0.1, SIZES) == 10_000


def test_seeds_that_agree_have_an_interval_of_no_width() -> None:
    curves = np.array([[0.4, 0.3, 0.2]] * 4)
    count, low, high = cases_needed(curves, np.full(4, 0.3), SIZES)
    assert count == pytest.approx(100)
    assert low == pytest.approx(high)


def test_seeds_that_differ_widen_it() -> None:
    curves = np.array([[0.4, 0.3, 0.2], [0.4, 0.2, 0.1], [0.4, 0.35, 0.3]])
    count, low, high = cases_needed(curves, np.full(3, 0.3), SIZES)
    assert low <= count <= high
    assert high > low
