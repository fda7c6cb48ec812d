"""The guided proof: fair bets by enumeration, bounds that hold by simulation, and a state that can be resumed."""

import math
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from operant.assess.betting import (
    best_bet,
    corrected_failure,
    draw_weights,
    error_rates,
    lower_bound,
    upper_bound,
)
from operant.assess.blocks import block_pool, block_size
from operant.assess.bounds import confidence_sequence
from operant.assess.evidence import MAX_LOSS_WITHOUT_FAILURE, SeenBlock, guided_evidence
from operant.assess.forecast import plan_labels
from operant.assess.proof_state import ErrorBudget, ProofOptions, ProofState
from operant.assess.scored import RatePrior, ranking, scored_model
from operant.assess.sequential import Proof, begin_proof, resume_proof
from operant.results import load, save
from operant_studies.simulated_proofs import binormal, labels_until_met, regimes

CLASSES = 10
OPTIONS = ProofOptions(requirement=0.1, labels=80, classes=CLASSES, seed=3)
seeds = st.integers(0, 2**32 - 1)


def known_field(n=2000, *, pmi=0.05, auc=0.95, seed=0):
    """True labels, a model with its risks for n inputs, and what a proof sees of it."""
    g = np.random.default_rng(seed)
    truth = g.integers(0, CLASSES, n)
    failed = g.random(n) < pmi
    score = g.normal(size=n) + 2.3 * failed
    predictions = np.where(failed, (truth + 1) % CLASSES, truth)
    risk = 1 / (1 + np.exp(-(2 * score - 4)))
    profile = g.normal(size=500) + 2.3 * (g.random(500) < pmi)
    return truth, scored_model(predictions, risk, profile_risk=1 / (1 + np.exp(-(2 * profile - 4))), auc=auc)


def other_model(truth, seed):
    """Another model of the same inputs."""
    _, model = known_field(len(truth), seed=seed)
    predictions = np.where(np.random.default_rng(seed).random(len(truth)) < 0.06, (truth + 3) % CLASSES, truth)
    return replace(model, predictions=predictions)


def begun(model, options=OPTIONS, **pool) -> Proof:
    return begin_proof(options, block_pool(range(len(model)), seed=1, **pool), model)


def answered(proof: Proof, truth, labels: int, batch: int | None = None) -> Proof:
    """With this many labels more."""
    goal = len(proof.state.blocks) + labels
    while len(proof.state.blocks) < goal:
        proof = proof.ask(min(batch or 25, goal - len(proof.state.blocks)))
        proof = proof.answer({i: int(truth[i]) for i in proof.asked})
    return proof


def same_evidence(a: Proof, b: Proof) -> bool:
    return a.bound == b.bound and all(
        np.array_equal(getattr(a.evidence, name), getattr(b.evidence, name))
        for name in ("up", "down", "bin_failures", "sum")
        if hasattr(a.evidence, name)
    )


# Fair bets, exactly ---------------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(seed=seeds, m=st.integers(1, 6), active=st.floats(0, 0.9), most=st.floats(0, 1))
def test_the_corrected_failure_is_unbiased_for_every_block(seed, m, active, most):
    g = np.random.default_rng(seed)
    rates, sizes, failed = g.random(m), g.random(m) + 0.01, (g.random(m) < 0.5).astype(float)
    weights = draw_weights(g.random(m), sizes, active)
    chances = sizes / weights / sizes.sum()
    z = [
        corrected_failure(rates, sizes, np.array(i), weights[i], failed[i], np.array(most)) for i in range(m)
    ]  # (2) for every input that may be drawn
    assert chances.sum() == pytest.approx(1)
    assert weights.max() <= 1 / (1 - active) * (1 + 1e-12)
    assert chances @ z == pytest.approx((sizes * failed).sum() / sizes.sum())
    assert max(z) <= most + 1 / (1 - active) + 1e-12


@settings(max_examples=40, deadline=None)
@given(seed=seeds, inputs=st.integers(2, 4), active=st.sampled_from([0.0, 0.16, 0.5]), past=st.integers(0, 30))
def test_no_bet_can_be_expected_to_win_at_the_truth(seed, inputs, active, past):
    """All blocks of two inputs from a small field, with groups of any size, and all draws from them."""
    g = np.random.default_rng(seed)
    bins, failed = g.integers(0, 3, inputs), (g.random(inputs) < 0.5).astype(float)
    sizes = g.integers(1, 5, inputs) / 4
    pmi = float(sizes @ failed / sizes.sum())  # per use
    uncertainty = g.random(3)  # of whichever model drew
    grid = np.unique(np.append(error_rates(0.2)[::8], min(max(pmi, 1e-6), 1 - 1e-6)))

    blocks = np.array(list(product(range(inputs), repeat=2)))
    blocks, drawn = np.repeat(blocks, 2, 0), np.tile([0, 1], len(blocks))
    weights = draw_weights(uncertainty[bins[blocks]], sizes[blocks], active)
    chances = (sizes[blocks] / weights / sizes[blocks].sum(1, keepdims=True))[np.arange(len(drawn)), drawn]
    seen = SeenBlock(
        bins=bins[blocks], sizes=sizes[blocks], drawn=drawn, weight=weights[np.arange(len(drawn)), drawn],
        active=active, failed=failed[blocks[np.arange(len(drawn)), drawn]],
    )  # fmt: skip
    prior = RatePrior.of(np.array([0.5, 0.3, 0.2]), g.random(3), requirement=0.2)
    before = guided_evidence(prior, requirement=0.2, block=2, grid=grid, shape=drawn.shape)
    for row in g.integers(0, len(drawn), past):  # the same past for all
        before = before.add(SeenBlock(**{
            name: value if name == "active" else np.repeat(value[row][None], len(drawn), 0)
            for name, value in vars(seen).items()
        }))  # fmt: skip
    after = before.add(seen)
    for factor, fair in ((after.up - before.up, grid <= pmi), (after.down - before.down, grid >= pmi)):
        expected = chances @ np.exp(factor) / inputs**2
        assert (expected[fair] <= 1 + 1e-9).all()
        assert np.exp(factor).min() >= 1 - MAX_LOSS_WITHOUT_FAILURE - 1e-9


@given(seed=seeds)
def test_the_best_bet_is_the_best(seed):
    g = np.random.default_rng(seed)
    gains, chances = g.uniform(-1, 1, (3, 6)), g.dirichlet(np.ones(6), 3)
    limit = np.full(3, 0.9)
    stakes = best_bet(gains, chances, limit)
    tried = np.linspace(0, 0.9, 400)
    growth = (chances[:, None] * np.log1p(tried[:, None] * gains[:, None])).sum(-1)
    own = (chances * np.log1p(stakes[:, None] * gains)).sum(-1)
    assert (own >= growth.max(1) - 1e-6).all()


# Bounds ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("requirement", [0.001, 0.02, 0.1, 0.5, 0.99])
def test_the_requirement_is_on_the_grid(requirement):
    grid = error_rates(requirement)
    assert requirement in grid
    assert (np.diff(grid) > 0).all()
    assert grid[0] <= requirement / 18
    assert 0 < grid[-1] < 1


def test_bounds_are_where_every_rate_beyond_is_rejected():
    grid, rejected = np.array([0.1, 0.2, 0.3]), 9.0
    wealth = np.array([[rejected, 0, rejected], [0, 0, 0], [rejected] * 3, [0, rejected, 0]])
    assert upper_bound(wealth, grid, 0.05).tolist() == [0.3, 1.0, 0.1, 1.0]
    assert lower_bound(wealth, grid, 0.05).tolist() == [0.1, 0.0, 0.3, 0.0]


@pytest.mark.parametrize("auc", [0.95, 0.5])
@pytest.mark.parametrize("pmi", [0.0, 0.05, 0.5])
def test_bounds_only_improve_and_hold_on_a_known_field(auc, pmi):
    truth, model = known_field(pmi=pmi, auc=auc)
    proof = begun(model)
    uppers, lowers = [1.0], [0.0]
    for _ in range(8):
        proof = answered(proof, truth, 10)
        uppers.append(proof.bound.upper)
        lowers.append(proof.bound.lower)
    assert uppers == sorted(uppers, reverse=True)
    assert lowers == sorted(lowers)
    assert lowers[-1] <= np.mean(model.predictions != truth) <= uppers[-1]
    assert (proof.bound.met, proof.bound.missed) == (pmi == 0, pmi == 0.5) or pmi == 0.05
    assert ("met" in str(proof.bound)) == proof.bound.met


def test_without_guidance_the_bound_is_the_confidence_sequence():
    truth, model = known_field(auc=0.5)
    proof = begun(model)
    assert not proof.listed.guided
    smallest = 1.0
    for n in range(1, 61):
        proof = answered(proof, truth, 1)
        k = proof.bound.failures
        smallest = min(smallest, confidence_sequence(k, n, confidence=0.975).upper)
        assert proof.bound.upper == pytest.approx(smallest, rel=1e-9)


def test_few_inputs_leave_no_room_for_blocks():
    truth, model = known_field(200)
    proof = answered(begun(model, replace(OPTIONS, labels=60)), truth, 20)
    assert not proof.listed.guided
    assert {block.size for block in proof.state.blocks} == {1}
    assert [block_size(n, 100) for n in (100, 399, 400, 2499, 99999)] == [1, 1, 4, 24, 25]


# Batches, resuming ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("auc", [0.95, 0.5])
def test_the_bound_does_not_depend_on_batches(auc):
    truth, model = known_field(auc=auc)
    single, many = (answered(begun(model), truth, 50, batch) for batch in (1, 25))
    assert [b.drawn for b in single.state.blocks] == [b.drawn for b in many.state.blocks]
    assert same_evidence(single, many)


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("auc", [0.95, 0.5])
def test_a_proof_resumes_from_every_moment(tmp_path, active, auc):
    truth, model = known_field(auc=auc)
    proof = other = begun(model, replace(OPTIONS, labels=300, active=active))
    for step in range(12):
        proof, other = proof.ask(), other.ask()
        part = proof.asked[: len(proof.asked) // 2] if step % 3 == 1 else proof.asked
        proof, other = (p.answer({i: int(truth[i]) for i in part}) for p in (proof, other))
        save(other.state, tmp_path / "proof.json")
        other = resume_proof(load(tmp_path / "proof.json", ProofState), other.pool, model)
        assert proof.state == other.state
        assert same_evidence(proof, other)
    assert proof.forecast == other.forecast


def test_half_a_batch_does_not_count():
    truth, model = known_field()
    proof = begun(model).ask(10)
    half = proof.answer({i: int(truth[i]) for i in proof.asked[5:]})
    assert half.bound == proof.bound
    assert half.asked == proof.asked[:5]
    assert half.ask() is half
    whole = half.answer({i: int(truth[i]) for i in half.asked})
    assert same_evidence(whole, proof.answer({i: int(truth[i]) for i in proof.asked}))


def test_blocks_are_fresh_and_draws_fair():
    truth, model = known_field(20_000)
    proof = answered(begun(model, replace(OPTIONS, labels=700)), truth, 700)
    spans = [(b.start, b.start + b.size) for b in proof.state.blocks]
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert len(proof.held) == spans[-1][1] <= len(model)
    places = [
        proof.pool.order[a:b].tolist().index(x.drawn) for (a, b), x in zip(spans, proof.state.blocks, strict=True)
    ]
    assert np.bincount(places, minlength=25).max() < 700 / 25 + 5 * math.sqrt(700 / 25)


def test_active_draws_are_weighted_back():
    truth, model = known_field(20_000, pmi=0.08)
    proof = answered(begun(model, replace(OPTIONS, labels=400, active=True)), truth, 400, 10)
    blocks = proof.state.blocks
    assert any(block.active > 0 for block in blocks)
    assert all(0 < b.weight <= 1 / (1 - b.active) + 1e-9 for b in blocks)
    own = np.array([model.bins[b.drawn] for b in blocks])
    assert own.mean() > model.bins.mean()  # riskier than the field
    weights = np.array([b.weight for b in blocks])
    assert weights.mean() == pytest.approx(1, abs=0.1)


# Later models ---------------------------------------------------------------------------------------------------------


def test_all_labels_count_for_a_later_model():
    truth, model = known_field()
    later = other_model(truth, 5)
    proof = answered(begun(model), truth, 60).next_model(later)
    assert (proof.bound.labels, proof.bound.position) == (60, 2)
    assert proof.alpha == pytest.approx(0.05 / 6)
    first = answered(begun(later), truth, 60)  # without guided draws, blocks do not depend on the model
    assert [b.drawn for b in first.state.blocks] == [b.drawn for b in proof.state.blocks]
    assert np.array_equal(first.evidence.up, proof.evidence.up)
    assert proof.bound.upper >= first.bound.upper  # at a smaller share of the error


def test_an_unchanged_model_keeps_its_share_and_skipped_ones_are_charged():
    truth, model = known_field()
    proof = answered(begun(model), truth, 30)
    again = proof.next_model(replace(model, auc=0.97))  # more teaching labels, the same model
    assert (again.bound, again.alpha) == (proof.bound, proof.alpha)
    third = proof.next_model(other_model(truth, 1)).next_model(other_model(truth, 2))
    assert (third.listed.position, third.alpha) == (3, pytest.approx(0.05 / 12))
    back = third.next_model(model)
    assert back.listed == proof.listed
    assert len(back.state.models) == 3


def test_after_drift_old_labels_stop_counting_and_the_list_goes_on():
    truth, model = known_field()
    proof = answered(begun(model), truth, 30)
    pool = block_pool(range(5000, 7000), seed=2)
    new = proof.start_over(proof.state.options, pool, model)
    assert (new.bound.labels, new.bound.upper, new.listed.position, new.labels_left) == (0, 1.0, 2, 50)
    assert new.state.model(model.digest) == new.listed
    with pytest.raises(ValueError, match="needs inputs that no block held"):
        proof.start_over(proof.state.options, proof.pool, model)
    with pytest.raises(ValueError, match="confidence and models must stay"):
        proof.start_over(replace(OPTIONS, confidence=0.9), pool, model)


def test_labels_can_be_added():
    truth, model = known_field(500)
    proof = answered(begun(model), truth, 80)
    with pytest.raises(ValueError, match="all 80 proof labels are spent"):
        proof.ask()
    with pytest.raises(ValueError, match="needs as many inputs"):
        proof.more_labels(300)
    with pytest.raises(ValueError, match="labels can only be added"):
        proof.more_labels(79)
    more = proof.more_labels(83)
    assert same_evidence(more, proof)
    assert answered(more, truth, 3).bound.labels == 83


@given(confidence=st.floats(0.5, 0.999), models=st.none() | st.integers(1, 50))
def test_the_error_budget_is_never_exceeded(confidence, models):
    budget = ErrorBudget(alpha=1 - confidence, models=models)
    shares = [budget.share(r) for r in range(1, (models or 2000) + 1)]
    assert sum(shares) <= budget.alpha * (1 + 1e-9)
    assert sum(shares) >= budget.alpha * 0.99
    if models:
        with pytest.raises(ValueError, match=f"position must be at most {models}"):
            budget.share(models + 1)


# Groups ---------------------------------------------------------------------------------------------------------------


def test_a_block_holds_distinct_groups_and_spends_them_whole():
    truth, model = known_field()
    groups = np.repeat(np.arange(1000), 2).tolist()
    proof = answered(begun(model, replace(OPTIONS, labels=50), groups=groups, max_group_size=2), truth, 20)
    used = [groups[i] for i in proof.pool.order[: proof.state.places]]
    assert len(set(used)) == len(used)
    assert len(proof.held) == 2 * len(used)


def test_the_rate_is_per_use():
    """Groups of nine fail and groups of one do not: nine tenths of all uses fail, half of all groups."""
    sizes = np.tile([9, 1], 600)
    groups = np.repeat(np.arange(1200), sizes)
    truth = np.zeros(len(groups), dtype=int)
    model = scored_model((sizes[groups] == 9).astype(int), np.ones(len(groups)), profile_risk=np.ones(9), auc=0.5)
    proof = begin_proof(
        ProofOptions(requirement=0.7, labels=250, classes=2),
        block_pool(range(len(groups)), groups=groups.tolist(), max_group_size=10, seed=0),
        model,
    )
    bound = answered(proof, truth, 250).bound
    assert bound.estimate == pytest.approx(0.9, abs=0.06)
    assert bound.missed
    assert bound.upper > 0.9 > bound.lower


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("requirement", [0, 1, -0.1, math.nan])
def test_requirements_that_cannot_be_shown(requirement):
    with pytest.raises(ValueError, match="requirement must be between 0 and 1"):
        replace(OPTIONS, requirement=requirement)


def test_wrong_answers():
    truth, model = known_field()
    proof = begun(model).ask(5)
    stranger = next(i for i in range(len(truth)) if i not in proof.asked)
    with pytest.raises(ValueError, match=f"got one of input {stranger}"):
        proof.answer({stranger: 0})
    for label in (-1, CLASSES, 0.5, math.nan):
        with pytest.raises(ValueError, match="labels must be classes from 0 to 9"):
            proof.answer({proof.asked[0]: label})
    done = proof.answer(dict.fromkeys(proof.asked, 1))
    with pytest.raises(ValueError, match="asked for"):
        done.answer({proof.asked[0]: 2})


def test_pools_that_are_too_small_or_depend_on_each_other():
    _, model = known_field(60)
    with pytest.raises(ValueError, match="with 80 labels needs as many inputs, got 60"):
        begun(model)
    with pytest.raises(ValueError, match="with 80 labels needs as many groups of inputs, got 2"):
        begun(model, groups=["scene"] * 59 + ["other"], max_group_size=100)
    with pytest.raises(ValueError, match="the largest group, 59, got 10"):
        begun(model, groups=["scene"] * 59 + ["other"], max_group_size=10)
    with pytest.raises(ValueError, match="max_group_size"):
        begun(model, groups=["scene"] * 60)
    with pytest.raises(ValueError, match="ids must differ, got 1 repeated"):
        block_pool([1, 2, 2], seed=0)


def test_risks_that_are_no_numbers():
    for bad in (math.nan, math.inf, -1.0):
        with pytest.raises(ValueError, match="in 1 of 3 rows"):
            scored_model(np.zeros(3), np.array([0.1, bad, 0.2]), profile_risk=np.ones(4), auc=0.9)
        with pytest.raises(ValueError, match="profile_risk must be finite"):
            scored_model(np.zeros(2), np.ones(2), profile_risk=np.array([bad, 0.2]), auc=0.9)
    with pytest.raises(ValueError, match="risk must be one number per"):
        scored_model(np.zeros(3), np.ones(2), profile_risk=np.ones(4), auc=0.9)
    with pytest.raises(ValueError, match="auc must be"):
        scored_model(np.zeros(2), np.ones(2), profile_risk=np.ones(4), auc=math.nan)


def test_another_pool_or_model_is_refused():
    truth, model = known_field()
    proof = begun(model)
    with pytest.raises(ValueError, match="the pool must be the one of the proof"):
        resume_proof(proof.state, block_pool(range(len(model)), seed=9), model)
    with pytest.raises(ValueError, match="one of the proof's list"):
        resume_proof(proof.state, proof.pool, other_model(truth, 1))
    with pytest.raises(ValueError, match="a prediction per input"):
        proof.next_model(known_field(100)[1])


def test_a_state_changed_by_hand_is_refused():
    truth, model = known_field()
    state = answered(begun(model), truth, 10).state
    with pytest.raises(ValueError, match="blocks must not share inputs"):
        replace(state, blocks=(state.blocks[0], *state.blocks))
    with pytest.raises(ValueError, match="numbered from 1"):
        replace(state, models=(replace(state.models[0], position=2),))
    with pytest.raises(ValueError, match="weight must be"):
        replace(state.blocks[0], weight=2.0)
    moved = replace(state, blocks=(replace(state.blocks[0], drawn=int(state.blocks[1].drawn)),))
    with pytest.raises(ValueError, match="must hold a drawn input"):
        resume_proof(moved, block_pool(range(len(model)), seed=1), model)


# Risks and plans ------------------------------------------------------------------------------------------------------


def test_constant_risks_make_one_bin():
    model = scored_model(np.zeros(5), np.full(5, 0.2), profile_risk=np.full(7, 0.2), auc=0.9)
    assert model.masses.tolist() == [1.0]
    zero = RatePrior.of(np.ones(1), np.zeros(1), requirement=0.1)
    assert 0 < zero.estimate(np.zeros(1), np.zeros(1))[0] < 0.1


def test_ranking_is_the_share_of_ordered_pairs(generator):
    g = np.random.default_rng(0)
    risk, failed = g.integers(0, 5, 40) / 5, g.random(40) < 0.3
    pairs = [(a > b) + 0.5 * (a == b) for a in risk[failed] for b in risk[~failed]]
    assert ranking(risk, failed) == pytest.approx(np.mean(pairs))
    assert ranking(risk, np.zeros(40, dtype=bool)) == 0.5


@pytest.mark.parametrize("auc", [0.95, 0.5])
def test_a_forecast_is_about_right(auc):
    """On the way, the labels that are still needed are on average about those that were forecast."""
    truth, model = known_field(30_000, pmi=0.03, auc=auc)
    proof = answered(begun(model, replace(OPTIONS, labels=1000)), truth, 25)
    first = proof.forecast
    while not proof.bound.met:
        proof = answered(proof, truth, 5)
    assert 0 < first.least <= first.mean <= first.high
    assert len(proof.state.blocks) - 25 < 4 * first.mean
    assert proof.forecast.mean == 0


def test_a_proof_that_cannot_succeed_says_so():
    truth, model = known_field(pmi=0.4)
    proof = answered(begun(model), truth, 40)
    assert math.isinf(proof.forecast.mean)
    assert "will not be met" in str(proof.forecast)
    assert proof.bound.missed


def test_plans_follow_the_simulations():
    assert plan_labels(0.1, guided=True) == 400
    assert plan_labels(0.01, guided=False) == 7500


# Validity and price, by simulation ------------------------------------------------------------------------------------


REGIMES = list(regimes(0.1))


def claims(name: str, *, repetitions: int, most: int, **options) -> int:
    """How often the requirement is said to be met although pmi is equal to it."""
    g = np.random.default_rng([REGIMES.index(name), repetitions])
    labels = labels_until_met(
        regimes(0.1)[name], 0.1, alpha=0.05, repetitions=repetitions, most=most, generator=g, **options
    )
    return int(np.isfinite(labels).sum())


@pytest.mark.parametrize("name", REGIMES)
@pytest.mark.parametrize("active", [0.0, 0.25])
def test_a_requirement_is_rarely_met_wrongly(name, active):
    assert claims(name, repetitions=300, most=200, batch=25, active=active) <= binom.ppf(0.99, 300, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", REGIMES)
@pytest.mark.parametrize(("active", "block"), [(0.0, 25), (0.0, 4), (0.35, 25)])
def test_a_requirement_is_rarely_met_wrongly_in_long_proofs(name, active, block):
    found = claims(name, repetitions=2000, most=1000, batch=25, active=active, block=block)
    assert found <= binom.ppf(0.99, 2000, 0.05)


def test_good_risks_save_labels():
    means = {}
    for guided in (True, False):
        g = np.random.default_rng(1)
        found = labels_until_met(
            binormal(0.95, 0.05), 0.1, alpha=0.025, repetitions=200, most=5000, generator=g, guided=guided
        )
        means[guided] = found.mean()
    assert means[True] < 0.75 * means[False]


@pytest.mark.slow
def test_bounds_of_all_models_hold_together():
    """Three models at the requirement share their labels; every bound is looked at after every batch."""
    wrong, runs = 0, 150
    for seed in range(runs):
        g = np.random.default_rng(seed)
        truth, first = known_field(4000, pmi=0.1, seed=seed)
        others = [known_field(4000, pmi=0.1, seed=1000 * k + seed) for k in (1, 2)]
        proof, said = begun(first, replace(OPTIONS, labels=160)), False
        for other in (None, *others):
            if other is not None:
                model = replace(other[1], predictions=(truth + other[1].predictions - other[0]) % CLASSES)
                assert np.mean(model.predictions != truth) == np.mean(other[1].predictions != other[0])
                proof = proof.next_model(model)
            for _ in range(2):
                proof = answered(proof, truth, int(g.integers(5, 26)))
                said |= proof.bound.upper < 0.1
        wrong += said
    assert wrong <= binom.ppf(0.99, runs, 0.05)
