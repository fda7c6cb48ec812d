"""Lift of rankings: closed forms, ties, mass, and what the margin already knows."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from operant import results, spawn
from operant.measure import Lift, lift


def field(n: int = 4000, *, seed: int = 0, classes: int = 3) -> tuple[torch.Tensor, ...]:
    """Failures that depend on the margin and on something that the margin does not know."""
    g = spawn(seed, "field")
    margin, hidden = torch.rand(2, n, generator=g, dtype=torch.float64)
    failed = torch.rand(n, generator=g, dtype=torch.float64) < 0.3 * (1 - margin) * 2 * hidden
    return margin, hidden, failed, torch.randint(classes, (n,), generator=g)


def measured(score: torch.Tensor, failed: torch.Tensor, **options: object) -> Lift:
    options = {
        "margin": torch.rand(len(score), generator=spawn(1)),
        "predicted": torch.zeros(len(score)).long(),
    } | options
    return lift(score, failed, resamples=20, generator=spawn(2), **options)  # type: ignore[arg-type]


def test_a_perfect_ranking_reaches_the_ceiling() -> None:
    failed = torch.arange(1000) < 30
    found = measured(failed.double() + torch.rand(1000, generator=spawn(0)) / 2, failed)
    assert found.pmi == pytest.approx(0.03)
    assert [a.ceiling for a in found.at] == pytest.approx([20, 10])  # 1 / share: fewer inputs fail than are taken
    assert [a.lift for a in found.at] == pytest.approx([20, 10])
    assert [a.precision for a in found.at] == pytest.approx([0.6, 0.3])
    many = measured((torch.arange(1000) < 500).double(), torch.arange(1000) < 500)
    assert many.at[0].lift == pytest.approx(many.at[0].ceiling) == pytest.approx(2)


def test_a_constant_score_has_lift_one_whatever_the_order_of_inputs() -> None:
    failed = torch.arange(200) < 50
    for order in (torch.arange(200), torch.arange(199, -1, -1)):
        assert [a.lift for a in measured(torch.ones(200), failed[order]).at] == pytest.approx([1, 1])


@given(seed=st.integers(0, 2**31), levels=st.integers(2, 9))
def test_order_of_inputs_and_scale_of_the_score_do_not_matter(seed: int, levels: int) -> None:
    g = spawn(seed)
    score = torch.randint(levels, (60,), generator=g).double()
    failed = torch.rand(60, generator=g) < 0.4
    failed[:2] = torch.tensor([True, False])
    order = torch.randperm(60, generator=g)
    options = {"margin": torch.rand(60, generator=g), "predicted": torch.zeros(60).long()}
    a = measured(score, failed, **options)
    b = measured(score[order].mul(3).exp(), failed[order], margin=options["margin"][order])
    assert [v.lift for v in a.at] == pytest.approx([v.lift for v in b.at])
    assert a.ratio == pytest.approx(b.ratio, nan_ok=True)


def test_mass_counts_as_copies_do() -> None:
    score, failed = torch.rand(300, generator=spawn(3)), torch.arange(300) % 4 == 0
    copies = torch.randint(1, 4, (300,), generator=spawn(4))
    weighted = measured(score, failed, mass=copies.double())
    repeated = measured(score.repeat_interleave(copies), failed.repeat_interleave(copies))
    assert [a.lift for a in weighted.at] == pytest.approx([a.lift for a in repeated.at])


def test_the_margin_gains_nothing_over_itself() -> None:
    margin, _, failed, predicted = field()
    found = lift(-margin, failed, margin=margin, predicted=predicted, generator=spawn(0))
    assert all(a.gain == a.gain_lower == a.gain_upper == 0 for a in found.at)
    assert found.ratio == found.margin_ratio < 1.3


def test_what_the_margin_does_not_know_is_a_gain() -> None:
    margin, hidden, failed, predicted = field()
    both = lift(hidden * (1 - margin), failed, margin=margin, predicted=predicted, generator=spawn(0))
    assert all(a.gain_lower > 0 for a in both.at)
    alone = lift(hidden, failed, margin=margin, predicted=predicted, generator=spawn(0))
    assert alone.ratio_lower < 3 < alone.ratio_upper  # P(fail) is 2 hidden times the rest: 3/4 against 1/4 on average


def test_intervals_cover_the_lift_of_the_population() -> None:
    margin, hidden, failed, predicted = field(200_000)
    truth = measured(hidden, failed, margin=margin, predicted=predicted).at[0].lift
    hits = 0
    for seed in range(100):
        m, h, f, p = field(1500, seed=100 + seed)
        at = lift(h, f, margin=m, predicted=p, resamples=200, generator=spawn(seed)).at[0]
        hits += at.lower <= truth <= at.upper
    assert hits >= 89  # not rejected at .01 against 95 %


def test_lift_round_trips_and_prints(tmp_path: Path) -> None:
    margin, hidden, failed, predicted = field(400)
    found = lift(hidden, failed, margin=margin, predicted=predicted, generator=spawn(0))
    results.save(found, tmp_path / "lift.json")
    assert results.load(tmp_path / "lift.json", Lift) == found
    assert "riskiest 5 %" in str(found)
    assert "times as often" in str(found)


def test_a_ratio_without_failures_in_the_safer_halves_is_said_in_words() -> None:
    n = torch.arange(400)
    failed = n >= 390
    safe = {"margin": torch.zeros(400), "predicted": torch.zeros(400).long(), "generator": spawn(0)}
    found = lift(n.double(), failed, **safe)
    assert found.ratio == math.inf
    assert str(found).endswith("oftener riskier inputs fail cannot be computed: no failure in the safer halves")
    none = lift(torch.zeros(400), failed, **safe)
    assert math.isnan(none.ratio)
    assert str(none).endswith("cannot be computed: no failure in either half")
    assert "nan" not in str(found) + str(none)


def test_bad_input() -> None:
    margin, hidden, failed, predicted = field(50)
    options = {"margin": margin, "predicted": predicted}
    with pytest.raises(ValueError, match="inputs that fail and inputs that pass, 0 of 50 fail"):
        measured(hidden, torch.zeros(50, dtype=torch.bool), **options)
    with pytest.raises(ValueError, match="margin must have one value for each of 50 inputs"):
        measured(hidden, failed, margin=margin[:3], predicted=predicted)
    with pytest.raises(ValueError, match="NaN"):
        measured(hidden * torch.nan, failed, **options)
    with pytest.raises(ValueError, match="mass"):
        measured(hidden, failed, mass=-torch.ones(50), **options)
