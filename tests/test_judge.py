"""The judge of a move: keeps its level, sees what differs, and says when it cannot judge."""

import math
import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t
from torch import Tensor
from torch.nn.functional import interpolate

from operant import Samples, results, spawn
from operant.measure import Judge, appearance, fit_judge, fit_naturalness
from operant.measure import judge as judge_module
from operant.measure.conformal import fit_conformal
from operant.measure.judge import FoldJudge, too_few
from operant.networks.perceptron import Perceptron, fit_perceptron

UNBOUNDED = (-math.inf, math.inf)


@pytest.fixture(autouse=True)
def _short_training(monkeypatch):
    """The convolutional network learns these images in a few steps."""
    monkeypatch.setattr("operant.measure.judge.NETWORK_STEPS", 12)


def images(n: int, seed: int, *, channels: int = 1, side: int = 10) -> Tensor:
    """Smooth pictures with a little noise, in (0, 1)."""
    coarse = torch.rand(n, channels, 4, 4, generator=spawn(seed, "coarse"))
    smooth = interpolate(coarse, size=side, mode="bilinear", align_corners=False)
    return (0.1 + 0.8 * smooth + 0.02 * torch.randn(smooth.shape, generator=spawn(seed, "noise"))).clamp(0, 1)


def rows(n: int, seed: int) -> Tensor:
    return torch.randn(n, 4, generator=spawn(seed, "table"))


def fitted(x: Tensor, draws: Tensor, seed: int = 0, **options: object) -> Judge:
    return fit_judge(Samples(x), Samples(draws), generator=spawn(seed, "judge"), progress=False, **options)


CHANGES = {
    "too dark": lambda x: 0.5 * x,
    "noise": lambda x: (x + 0.1 * torch.randn(x.shape, generator=spawn(0, "more"))).clamp(0, 1),
}


@pytest.fixture(scope="module")
def dark() -> Judge:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("operant.measure.judge.NETWORK_STEPS", 12)
        return fitted(images(300, 0), CHANGES["too dark"](images(120, 1)))


# The level


def test_genuine_rows_are_rejected_no_more_often_than_the_level(monkeypatch):
    """Over 20 fits of 100 field inputs; the draws differ, overlap or are as the field, so folds agree more or less."""
    monkeypatch.setattr("operant.networks.perceptron.STEPS", 60)
    rates = []
    for seed in range(20):
        judge = fitted(rows(100, 2 * seed), rows(60, 1000 + seed) + (seed % 3), seed, bounds=UNBOUNDED)
        rates.append(float((judge(rows(400, 2 * seed + 1)) < 0.05).double().mean()))
    shares = torch.tensor(rates)
    assert float(shares.mean()) <= 0.05 + t.ppf(0.99, 19) * float(shares.std()) / 20**0.5
    assert float(shares[2::3].mean()) > 0.02  # by calibration, not by accepting everything


@given(
    calibration=st.lists(st.lists(st.integers(-5, 5), min_size=1, max_size=8), min_size=2, max_size=2),
    score=st.integers(-6, 6),
)
def test_the_p_value_counts_calibration_inputs_that_are_as_strange(calibration, score):
    """A perceptron that returns the first value with its sign changed: strangeness is that value."""
    line = Perceptron(
        centre=torch.zeros(1), scale=torch.ones(1), hidden=torch.tensor([[[1.0, -1.0]]]),
        hidden_bias=torch.zeros(1, 1, 2), last=torch.tensor([[[-1.0], [1.0]]]), last_bias=torch.zeros(1, 1, 1),
    )  # fmt: skip
    folds = tuple(
        FoldJudge(
            network={}, perceptron=line, spreads=(1.0,), calibration=fit_conformal(torch.tensor(c).float().asinh())
        )
        for c in calibration
    )
    judge = Judge(shape=(1,), bounds=UNBOUNDED, rounds=False, folds=folds, accepted=1.0, field_inputs=2, draws=2)
    known = [a for c in calibration for a in c]
    expected = (1 + sum(a >= score for a in known)) / (1 + len(known))
    assert float(judge(torch.tensor([[float(score)]]))) == pytest.approx(expected)


def test_field_inputs_are_rated_by_the_fold_that_has_not_learned_from_them(dark):
    """Their ranks among themselves: exactly uniform in each half."""
    field = Samples(images(300, 0))
    p = dark.of_field(field)
    for level in (0.1, 0.3, 0.5):
        assert float((p <= level).double().mean()) == pytest.approx(level, abs=0.02)


# What it sees


@pytest.mark.parametrize("kind", CHANGES)
def test_changed_images_are_rejected_and_genuine_ones_are_not(kind, dark):
    judge = dark if kind == "too dark" else fitted(images(300, 0), CHANGES[kind](images(120, 1)))
    assert float((judge(CHANGES[kind](images(100, 3))) >= 0.05).double().mean()) <= 0.1
    assert float((judge(images(200, 4)) >= 0.05).double().mean()) >= 0.85
    assert judge.accepted <= 0.1
    assert not judge.trusted
    assert [f.name for f in judge.findings] == ["draws unlike the field"]
    assert "recipe or radius is wrong" in str(judge)


def test_draws_like_the_field_are_accepted():
    judge = fitted(images(300, 0), images(120, 1))
    assert judge.accepted >= 0.85
    assert judge.trusted
    assert judge.findings == ()
    assert float((judge(images(200, 3)) >= 0.05).double().mean()) >= 0.9


@pytest.mark.parametrize(
    ("accepted", "name"),
    [
        (0.4999, "draws unlike the field"),
        (0.5, "some draws unlike the field"),
        (0.7999, "some draws unlike the field"),
        (0.8, None),
    ],
)
def test_acceptance_below_four_fifths_is_a_finding_and_only_below_half_distrusted(dark, accepted, name):
    judge = replace(dark, accepted=accepted)
    found = judge_module._findings(judge, Samples(images(120, 1)))
    assert [finding.name for finding in found] == ([name] if name else [])
    assert judge.trusted == (accepted >= 0.5)
    shown = float(str(judge).split(" %")[0]) / 100
    assert (shown < 0.5, shown < 0.8) == (accepted < 0.5, accepted < 0.8)


def test_differences_below_a_grey_level_are_not_seen(dark):
    x = (images(50, 5) * 255).round() / 255
    assert torch.equal(dark(x), dark((x + 0.4 / 255 * torch.rand(x.shape, generator=spawn(0))).clamp(0, 1)))


def test_a_table_with_a_changed_relation_is_rejected():
    def table(n: int, seed: int) -> Tensor:
        z = rows(n, seed)
        return torch.cat([z, z[:, :1] + 0.1 * z[:, 1:2]], 1) * torch.tensor([1.0, 1e3, 1e-3, 1.0, 10.0]) + 50

    draws, cases = table(300, 1), table(200, 2)
    draws[:, 4], cases[:, 4] = draws[:, 4].flip(0), cases[:, 4].flip(0)
    judge = fitted(table(500, 0), draws, bounds=UNBOUNDED)
    assert all(not fold.network for fold in judge.folds)
    assert float((judge(table(300, 3)) >= 0.05).double().mean()) >= 0.9
    assert float((judge(cases) >= 0.05).double().mean()) <= 0.4


# Rows, randomness, gradients


def test_rows_do_not_see_each_other_and_batches_change_nothing(dark, monkeypatch):
    x = torch.cat([images(30, 6), CHANGES["noise"](images(30, 7))])
    whole, one = dark(x), 1.5 / dark.calibration_size
    torch.testing.assert_close(dark(x.flip(0)).flip(0), whole, atol=one, rtol=0)
    for n in (1, 15, 17):
        torch.testing.assert_close(dark(x[:n]), whole[:n], atol=one, rtol=0)
    monkeypatch.setattr("operant.measure.judge.ROWS", 7)
    torch.testing.assert_close(dark(x), whole, atol=one, rtol=0)
    assert dark(x[:0]).shape == dark.surrogate(x[:0]).shape == (0,)
    assert whole.dtype == torch.float64


def test_the_same_generator_gives_the_same_judge():
    x, draws, before = images(80, 0), images(40, 1), torch.random.get_rng_state()
    a, b, other = (fitted(x, draws, seed) for seed in (0, 0, 1))
    assert torch.equal(a.surrogate(x), b.surrogate(x))
    assert not torch.equal(a.surrogate(x), other.surrogate(x))
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_surrogate_leads_to_field_inputs(dark):
    x = CHANGES["too dark"](images(20, 8))
    start = dark.surrogate(x).mean()
    for _ in range(10):
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(dark.surrogate(x).sum(), x)
        assert bool(gradient.isfinite().all() and (gradient.flatten(1).abs().amax(1) > 0).all())
        x = (x.detach() + 0.01 * gradient.sign()).clamp(0, 1)
    assert float(dark.surrogate(x).mean()) > float(start) + 1
    assert not dark(x).requires_grad


def test_a_judge_round_trips_and_travels(dark, tmp_path):
    x = torch.cat([images(20, 6), CHANGES["too dark"](images(20, 7))])
    results.save(dark, tmp_path / "judge.json")
    for again in (results.load(tmp_path / "judge.json", Judge), pickle.loads(pickle.dumps(dark))):
        assert torch.equal(again(x), dark(x))
        assert torch.equal(again.surrogate(x), dark.surrogate(x))
        assert (again.accepted, again.findings) == (dark.accepted, dark.findings)


# The numbers


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 20), (2, 100, 70), (5, 16, 16)])
def test_numbers_are_finite_differentiable_and_the_same_in_other_bounds(shape):
    x = torch.rand(20, *shape, generator=spawn(0))
    x[0], x[1] = 0.0, 1.0
    numbers = appearance(x)
    assert bool(numbers.isfinite().all())
    assert numbers.shape[0] == 20
    assert 70 <= numbers.shape[1] <= 140
    torch.testing.assert_close(appearance(x * 4 - 2, bounds=(-2.0, 2.0)), numbers, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(appearance(x[2:5]), numbers[2:5], atol=1e-4, rtol=1e-4)
    few = x[:4].requires_grad_()
    torch.testing.assert_close(appearance(few), numbers[:4], atol=1e-4, rtol=1e-4)
    (gradient,) = torch.autograd.grad(appearance(few).sum(), few)
    assert bool(gradient.isfinite().all())


def test_the_perceptron_separates_a_ring_and_reads_any_units():
    inner, outer = (rows(200, s) / rows(200, s).norm(dim=1, keepdim=True) * r for s, r in ((0, 1.0), (1, 2.0)))
    units = torch.tensor([1.0, 1e4, 1e-4, 1.0])
    learned = fit_perceptron(inner * units + 5, outer * units + 5, generator=spawn(0))
    assert float((learned(inner * units + 5) > 0).double().mean()) > 0.9
    assert float((learned(outer * units + 5) < 0).double().mean()) > 0.9


# Within naturalness


@pytest.fixture(scope="module")
def plain():
    return fit_naturalness(Samples(images(300, 0)), generator=spawn(0), epochs=1, progress=False)


def test_a_move_with_draws_has_a_judge_and_the_scores_stay_as_they_are(plain, tmp_path):
    dark, field = CHANGES["too dark"], Samples(images(300, 0))
    draws = {"conditions": Samples(dark(images(120, 1)))}
    both = fit_naturalness(field, generator=spawn(0), epochs=1, draws=draws, progress=False)
    x = torch.cat([images(30, 3), dark(images(30, 4))])
    assert torch.equal(both(x), plain(x))
    assert torch.equal(both(x, move="gradient"), plain(x))
    assert torch.equal(both(x, move="conditions"), both.judges["conditions"](x))
    assert torch.equal(plain(x, move="conditions"), plain(x))
    assert plain.judges == {}
    assert [f.name for f in both.findings] == ["draws unlike the field"]
    assert both.findings[0].problem.startswith("conditions: only")
    both.save(tmp_path / "naturalness.json")
    again = results.load(tmp_path / "naturalness.json", type(both))
    assert torch.equal(again(x, move="conditions"), both(x, move="conditions"))
    with pytest.raises(ValueError, match="inputs must have shape"):
        both(x[:, :, 1:], move="conditions")


def test_with_few_field_inputs_the_scores_decide_and_a_finding_says_so():
    field, draws = Samples(images(245, 0)), {"conditions": Samples(images(100, 1))}
    natural = fit_naturalness(field, generator=spawn(0), epochs=1, calibration=0.5, draws=draws, progress=False)
    assert natural.judges == {}
    assert natural.findings[0].name == "no judge"
    assert "245 distinct field inputs are too few for judges; the five scores rate the cases of conditions" in str(
        natural.findings[0]
    )
    assert torch.equal(natural(field.x, move="conditions"), natural(field.x))


def test_copies_and_groups_do_not_make_field_inputs_many():
    x = rows(300, 0)
    assert not too_few(Samples(x))
    assert too_few(Samples(x[:200].repeat(2, 1)))
    assert too_few(Samples(x, groups=("one",) * 299 + ("other",)))


# Rejected and degenerate input


def test_few_inputs_and_equal_draws_are_named():
    judge = fitted(rows(60, 0), torch.full((20, 4), 5.0), bounds=UNBOUNDED)
    assert [f.name for f in judge.findings] == ["few field inputs", "few draws", "draws unlike the field"]
    assert float((judge(rows(200, 2)) < 0.05).double().mean()) <= 0.15


def test_one_pixel_images_are_judged_by_their_value():
    field, draws = (0.5 + 0.1 * rows(n, s)[:, :1, None, None].clamp(-4, 4) for n, s in ((300, 0), (120, 1)))
    judge = fitted(field, (draws + 0.3).clamp(0, 1))
    assert judge.accepted < 0.3
    assert float((judge(field) >= 0.05).double().mean()) > 0.9


def test_a_judge_that_sees_no_difference_rejects_nothing_and_has_no_slope():
    judge = fitted(rows(100, 0), rows(50, 1), bounds=UNBOUNDED)
    blind = replace(judge, folds=tuple(replace(f, calibration=fit_conformal(torch.zeros(9))) for f in judge.folds))
    x = rows(5, 2).requires_grad_()
    (gradient,) = torch.autograd.grad(blind.surrogate(x).sum(), x)
    assert float(gradient.abs().max()) == 0.0


def test_images_without_bounds_are_scaled_by_their_range():
    field, draws = 40 * images(120, 0) - 7, 40 * CHANGES["too dark"](images(100, 1)) - 7
    judge = fitted(field, draws, bounds=UNBOUNDED)
    assert not judge.rounds
    assert judge.accepted < 0.3


def test_wrong_input_is_rejected():
    x = images(100, 0)
    with pytest.raises(ValueError, match="draws must be at least 4, got 0; give a few hundred unselected draws"):
        fitted(x, x[:0])
    with pytest.raises(ValueError, match=r"draws must have shape \(N, 1, 10, 10\), got \(50, 1, 9, 10\)"):
        fitted(x, x[:50, :, 1:])
    with pytest.raises(ValueError, match=r"draws must lie within bounds .* they must have the bounds of the field"):
        fitted(x, 255 * x)
    with pytest.raises(ValueError, match="draws must be finite"):
        fitted(x, torch.full_like(x, math.nan))
    with pytest.raises(ValueError, match="inputs must lie within bounds"):
        fitted(2 * x, x)
    with pytest.raises(ValueError, match="are all equal"):
        fitted(x[:1].expand(100, -1, -1, -1), x)
    with pytest.raises(ValueError, match="at least 40 inputs are needed to learn from, got 39"):
        fitted(x[:39], x)
    with pytest.raises(ValueError, match="needs 20 distinct field inputs in each half, got"):
        fit_judge(Samples(x, groups=("one",) * 100), Samples(x), generator=spawn(0), progress=False)
