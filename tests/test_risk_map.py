"""The risk map: neighbours against another library, calibration where the truth is known, and all fallbacks."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn

from operant import Classifier, Samples, Suite, results, spawn
from operant.measure import lift
from operant.model.hashing import content_hash
from operant.profile import RiskMap, fit_risk
from operant.profile import risk_map as module_under_test
from operant.profile._risk_terms import (
    SMOOTHING,
    Known,
    Outputs,
    disagreeing_share,
    failing_share,
    fit_correction,
    fit_head,
    folds_of,
)
from operant.seeds import risk_of

# A field whose failures are known: the model reads u and ignores v, the labels depend on both ------------------------


class Blind(nn.Module):
    """Passes two values on and decides by the first: logits (0, slope · u)."""

    def __init__(self, slope: float = 3.0, bias: float = 0.0) -> None:
        super().__init__()
        self.pass_on, self.last = nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
        with torch.no_grad():
            self.pass_on.weight.copy_(torch.eye(2))
            self.last.weight.copy_(torch.tensor([[0.0, 0.0], [slope, 0.0]]))
            self.last.bias.copy_(torch.tensor([0.0, bias]))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.pass_on(x))


def blind(slope: float = 3.0, bias: float = 0.0) -> Classifier:
    return Classifier(Blind(slope, bias), bounds=(-10, 10))


def inputs(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, labels, and the probability of class 1, which depends on both values."""
    g = spawn(seed, "inputs")
    x = torch.randn(n, 2, generator=g)
    p = (2 * x[:, 0] + 3 * x[:, 1]).double().sigmoid()
    return x, (torch.rand(n, generator=g, dtype=torch.float64) < p).long(), p


def suite_of(model: Classifier, x: Tensor, y: Tensor, *, per_seed: int = 1) -> Suite:
    """Cases of seeds that are not looked at."""
    origin = torch.arange(len(x)) // per_seed
    groups = origin.unique()
    seeds = Samples(torch.zeros(len(groups), 2), y[::per_seed][: len(groups)], groups)
    suite = Suite.of(x, seeds=seeds, origin=origin, prediction=model.predict(x), method="draws")
    return replace(suite, label=y)


def cases(n: int = 4000, *, seed: int = 0, per_seed: int = 1) -> Suite:
    x, y, _ = inputs(n, seed)
    return suite_of(blind(), x, y, per_seed=per_seed)


@pytest.fixture(scope="module")
def risk() -> RiskMap:
    return fit_risk(blind(), cases())


# What it promises ----------------------------------------------------------------------------------------------------


def test_it_is_calibrated_where_the_probability_of_failing_is_known(risk: RiskMap) -> None:
    x, _, p = inputs(20_000, 1)
    truth = torch.where(blind().predict(x) == 1, 1 - p, p)
    rated = risk(blind(), x)
    assert float((rated - truth).abs().mean()) < 0.05
    for part in rated.argsort().chunk(10):
        assert float(rated[part].mean()) == pytest.approx(float(truth[part].mean()), abs=0.04)
    assert float(rated.mean()) == pytest.approx(float(truth.mean()), abs=0.02)


def test_it_knows_more_than_the_margin_where_features_do(risk: RiskMap) -> None:
    model = blind()
    x, y, _ = inputs(6000, 2)
    rated, logits = risk(model, x), model.batched_logits(x)
    margin = (logits[:, 0] - logits[:, 1]).abs()
    found = lift(
        rated, logits.argmax(1) != y, margin=margin, predicted=logits.argmax(1), resamples=100, generator=spawn(0)
    )
    assert found.at[0].gain_lower > 0
    assert found.ratio_lower > 1.5


@pytest.mark.parametrize("n", [1, 7, 300])
def test_probabilities_are_inside_0_and_1_and_do_not_depend_on_other_rows(risk: RiskMap, n: int) -> None:
    x = 3 * torch.randn(n, 2, generator=spawn(n)).clamp(-3, 3)
    order = torch.randperm(n, generator=spawn(1))
    rated = risk(blind(), x)
    assert rated.shape == (n,)
    assert rated.dtype == torch.float64
    assert bool(((rated > 0) & (rated < 1)).all())
    assert torch.allclose(risk(blind(), x[order]), rated[order], rtol=0, atol=1e-9)


def test_parts_and_blocks_change_nothing(risk: RiskMap, monkeypatch: pytest.MonkeyPatch) -> None:
    x, _, _ = inputs(500, 3)
    whole = risk(blind(), x)
    monkeypatch.setattr(module_under_test, "ROWS", 33)
    monkeypatch.setattr("operant.profile._risk_terms.BLOCK", 5000)
    assert torch.allclose(risk(blind(), x), whole, rtol=0, atol=1e-9)


def test_it_is_a_score_and_the_order_of_cases_does_not_matter(risk: RiskMap) -> None:
    x, y, _ = inputs(200, 4)
    assert torch.equal(risk_of(blind(), Samples(x, y), risk), risk(blind(), x, y))
    order = torch.randperm(4000, generator=spawn(0))
    again = fit_risk(blind(), cases()[order])
    assert torch.allclose(again(blind(), x), risk(blind(), x), rtol=0, atol=2e-3)  # the solvers stop elsewhere


def test_it_can_be_saved_loaded_and_sent(risk: RiskMap, tmp_path: Path) -> None:
    x, _, _ = inputs(300, 5)
    results.save(risk, tmp_path / "risk.json")
    loaded, sent = results.load(tmp_path / "risk.json", RiskMap), pickle.loads(pickle.dumps(risk))
    assert str(loaded) == str(risk)
    assert torch.equal(loaded(blind(), x), risk(blind(), x))
    assert torch.equal(sent(blind(), x), risk(blind(), x))


# Its parts -----------------------------------------------------------------------------------------------------------


def known_of(x: Tensor, label: Tensor, *, group: Tensor | None = None, weight: Tensor | None = None) -> Known:
    n = len(x)
    outputs = Outputs(logits=blind(bias=0.2).batched_logits(x.float()).double(), features=x.double())
    return Known(
        outputs=outputs,
        label=label,
        group=torch.arange(n) if group is None else group,
        weight=torch.ones(n, dtype=torch.float64) if weight is None else weight,
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), k=st.integers(1, 9), n=st.integers(30, 80))
def test_neighbours_are_those_of_scikit_learn(seed: int, k: int, n: int) -> None:
    g = spawn(seed)
    x, label, weight = torch.randn(n, 2, generator=g), torch.randint(2, (n,), generator=g), torch.rand(n, generator=g)
    known = known_of(x, label, weight=weight.double() + 0.1)
    asked = known_of(torch.randn(20, 2, generator=g), torch.zeros(20).long()).outputs
    share = failing_share(known, asked, k=k)
    for row in range(20):
        pool = (known.outputs.predicted == asked.predicted[row]).nonzero().flatten()
        pool = pool if len(pool) >= k else torch.arange(n)
        found = NearestNeighbors(n_neighbors=k).fit(known.outputs.features[pool]).kneighbors(asked.features[row, None])
        near = pool[torch.tensor(found[1][0])]
        w, f = known.weight, known.failed
        base, extra = (w[pool] * f[pool]).sum() / w[pool].sum(), SMOOTHING * w[pool].mean()
        expected = ((w[near] * f[near]).sum() + extra * base) / (w[near].sum() + extra)
        assert float(share[row]) == pytest.approx(float(expected), abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), k=st.integers(1, 9), n=st.integers(30, 80))
def test_labels_around_are_those_of_scikit_learns_neighbours(seed: int, k: int, n: int) -> None:
    g = spawn(seed)
    x, label, weight = torch.randn(n, 2, generator=g), torch.randint(2, (n,), generator=g), torch.rand(n, generator=g)
    known = known_of(x, label, weight=weight.double() + 0.1)
    asked = known_of(torch.randn(20, 2, generator=g), torch.zeros(20).long()).outputs
    share, w = disagreeing_share(known, asked, k=k), known.weight
    found = NearestNeighbors(n_neighbors=k).fit(known.outputs.features).kneighbors(asked.features)[1]
    base, extra = (w * known.failed).sum() / w.sum(), SMOOTHING * w.mean()
    for row, near in enumerate(torch.tensor(found)):
        other = (label[near] != asked.predicted[row]).double()
        expected = ((w[near] * other).sum() + extra * base) / (w[near].sum() + extra)
        assert float(share[row]) == pytest.approx(float(expected), abs=1e-9)


@pytest.mark.parametrize("share_of", [failing_share, disagreeing_share])
def test_cases_of_the_own_seed_are_no_neighbours(share_of: Callable[..., Tensor]) -> None:
    """Three copies per seed with labels by coin: with its own copies an input would know its outcome."""
    g = spawn(0)
    x, coin = torch.randn(600, 2, generator=g), torch.randint(2, (600,), generator=g)
    group = torch.arange(600).repeat(3)
    known = known_of(x.repeat(3, 1), coin.repeat(3), group=group)
    inside = share_of(known, known.outputs, k=3)
    outside = share_of(known, known.outputs, k=3, group=group)
    failed = known.failed > 0
    assert float(inside[failed].mean()) > float(inside[~failed].mean()) + 0.5
    assert float(outside[failed].mean()) == pytest.approx(float(outside[~failed].mean()), abs=0.15)
    folds = folds_of(known, 5)
    assert torch.equal(folds[:600], folds[600:1200])
    assert all(bool(known.failed[folds == fold].any()) for fold in range(5))


def test_copies_of_cases_are_not_mistaken_for_evidence() -> None:
    """Labels by coin, four cases per seed: nobody can rank, so the risks must be near the failure rate."""
    g = spawn(1)
    x = torch.randn(500, 2, generator=g).repeat_interleave(4, 0) + 0.01 * torch.randn(2000, 2, generator=g)
    y = torch.randint(2, (500,), generator=g).repeat_interleave(4)
    rated = fit_risk(blind(), suite_of(blind(), x, y, per_seed=4))(blind(), torch.randn(500, 2, generator=g))
    assert float((rated - 0.5).abs().mean()) < 0.1


def test_corrected_confidence_recovers_a_temperature_and_a_bias() -> None:
    g = spawn(2)
    x = torch.randn(20_000, 2, generator=g)
    truth = (0.5 * 3 * x[:, 0] + 1.0).double().sigmoid()
    y = (torch.rand(20_000, generator=g, dtype=torch.float64) < truth).long()
    found = fit_correction(known_of(x, y))
    assert float(found.log_slope.exp()) == pytest.approx(0.5, rel=0.1)
    assert float(found.bias[1] - found.bias[0]) == pytest.approx(1.0 - 0.5 * 0.2, abs=0.1)


def test_the_second_head_has_the_log_odds_of_failing() -> None:
    x, y, p = inputs(8000, 6)
    known = known_of(x, y)
    odds = fit_head(known).log_odds(known.outputs)
    truth = torch.where(known.outputs.predicted == 1, -p.logit(), p.logit())
    assert float((odds - truth).abs().mean()) < 0.3


# Models, priors and labels -------------------------------------------------------------------------------------------


def test_for_another_model_it_is_what_a_new_fit_would_be(risk: RiskMap) -> None:
    x, _, _ = inputs(200, 7)
    other = blind(slope=-2.0, bias=0.5)
    fresh = fit_risk(other, cases())
    assert torch.equal(risk(other, x), fresh(other, x))
    assert risk.for_model(other) is risk.for_model(other)  # fitted once
    assert risk.for_model(blind()) is risk
    assert risk.for_model(other).failing == fresh.failing != risk.failing
    assert torch.equal(risk(blind(), x), fit_risk(blind(), cases())(blind(), x))


class Weightless(nn.Module):
    """Decides by the first value, without weights."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([0 * x[:, 0], self.slope * x[:, 0]], 1)


@pytest.mark.parametrize("of", [blind, lambda slope: Classifier(Weightless(slope), bounds=(-10, 10))])
def test_the_smallest_change_of_a_model_is_noticed(of: Callable[[float], Classifier], tmp_path: Path) -> None:
    risk = fit_risk(of(3.0), cases(300))
    results.save(risk, tmp_path / "risk.json")
    for known in (risk, results.load(tmp_path / "risk.json", RiskMap), pickle.loads(pickle.dumps(risk))):
        same, changed = of(3.0), of(3.0 + 1e-6)
        assert known.for_model(same) is known
        assert known.for_model(replaced_batch(same, 8)) is known
        assert known.for_model(changed) is not known


def replaced_batch(model: Classifier, batch_size: int) -> Classifier:
    return Classifier(model.unwrap(), bounds=model.bounds, batch_size=batch_size)


def test_normalisation_is_part_of_a_model() -> None:
    plain, shifted = blind(), Classifier(Blind(), bounds=(-10, 10), mean=1e-7)
    assert content_hash(plain) == content_hash(blind()) != content_hash(shifted)
    assert content_hash(Classifier(Weightless(1.0))) == ""
    assert fit_risk(plain, cases(300)).for_model(shifted).model == content_hash(shifted)


def test_probabilities_follow_the_priors() -> None:
    x, y, p = inputs(8000, 8)
    model, share = blind(), float(y.double().mean())
    weighted = fit_risk(model, suite_of(model, x, y), priors=[0.9, 0.1])
    odds = (1 - p) / p * (0.9 / (1 - share)) / (0.1 / share)  # of class 0 in that field
    truth = torch.where(model.predict(x) == 1, odds / (1 + odds), 1 / (1 + odds))
    assert float(weighted(model, x) @ (w := torch.tensor([0.9 / (1 - share), 0.1 / share])[y].double()) / w.sum()) == (
        pytest.approx(float(truth @ w / w.sum()), abs=0.03)
    )
    assert fit_risk(model, suite_of(model, x, y), priors=[1 - share, share]).failing == pytest.approx(
        fit_risk(model, suite_of(model, x, y)).failing
    )


def test_a_prior_that_is_wrongly_small_hardly_changes_the_ranking(risk: RiskMap) -> None:
    x, y, _ = inputs(6000, 13)
    model = blind()
    failed = model.predict(x) != y

    def top(risk: RiskMap) -> float:
        return float(failed[risk(model, x).argsort(descending=True)[:600]].double().mean())

    assert top(fit_risk(model, cases(), priors=[0.8, 0.2])) > 0.97 * top(risk)
    assert top(fit_risk(model, cases(), priors=[0.999, 0.001])) > 0.85 * top(risk)


def test_field_labels_correct_cases_of_a_wrong_recipe() -> None:
    """In the field the labels depend on -v: cases alone mislead."""
    x, _, _ = inputs(4000, 9)
    p = (2 * x[:, 0] - 3 * x[:, 1]).double().sigmoid()
    y = (torch.rand(4000, generator=spawn(9), dtype=torch.float64) < p).long()
    taught, rest, model = Samples(x[:1500], y[:1500]), slice(1500, None), blind()
    failed = (model.predict(x[rest]) != y[rest]).double()

    def error(risk: RiskMap) -> float:
        return float((risk(model, x[rest]) - failed).square().mean())

    alone, both = fit_risk(model, cases()), fit_risk(model, cases(), taught=taught)
    assert error(both) < 0.8 * error(alone)
    assert both.cases.taught == 1500
    assert "1500 labelled field inputs" in str(both)


# Wider conditions ----------------------------------------------------------------------------------------------------


def wider_cases(n: int = 2000, *, seed: int = 20) -> Suite:
    """Labels that mostly contradict the model: most of these cases fail, whatever it reads."""
    x, _, _ = inputs(n, seed)
    y = (2 * x[:, 0] - 6 * x[:, 1] + torch.randn(n, generator=spawn(seed)) < 0).long()
    return suite_of(blind(), x, y)


def easy_cases(n: int = 3000, *, failing: int = 0, seed: int = 21) -> Suite:
    """Cases that pass, except for the first few."""
    x, _, _ = inputs(n, seed)
    y = blind().predict(x)
    y[:failing] = 1 - y[:failing]
    return suite_of(blind(), x, y)


def test_without_wider_cases_nothing_changes(risk: RiskMap) -> None:
    x, _, _ = inputs(300, 22)
    empty = fit_risk(blind(), cases(), wider=wider_cases()[:0])
    assert torch.equal(empty(blind(), x), risk(blind(), x))
    assert empty.cases.wider == risk.cases.wider == 0
    assert "wider" not in str(empty)


def test_probabilities_follow_cases_of_the_recipe_although_wider_cases_fail_far_more_often(risk: RiskMap) -> None:
    model, more = blind(), wider_cases()
    assert float((more.prediction != more.label).double().mean()) > 0.5
    both = fit_risk(model, cases(), wider=more)
    x, y, _ = inputs(20_000, 23)
    assert float(both(model, x).mean()) == pytest.approx(float((model.predict(x) != y).double().mean()), abs=0.02)
    assert both.failing == risk.failing < 0.4
    assert (both.cases.wider, len(both.cases)) == (2000, 6000)
    assert not both.findings
    assert "from 4000 cases and 2000 of wider conditions: " in str(both)


@pytest.mark.parametrize("failing", [0, 9])
def test_where_cases_of_the_recipe_hardly_fail_wider_ones_teach_and_the_level_is_doubted(failing: int) -> None:
    model = blind()
    x, y, _ = inputs(6000, 24)
    failed = model.predict(x) != y
    x_wider, y_wider, _ = inputs(2000, 25)
    both = fit_risk(model, easy_cases(failing=failing), wider=suite_of(model, x_wider, y_wider))
    assert both.learned
    assert found(both) == {"level of wider conditions"}
    assert both.failing == pytest.approx(failing / 3000)
    top = both(model, x).argsort(descending=True)[:600]
    assert float(failed[top].double().mean()) > 2 * float(failed.double().mean())


def test_enough_failures_of_the_recipe_leave_no_doubt_about_the_level() -> None:
    both = fit_risk(blind(), easy_cases(failing=30), wider=wider_cases())
    assert both.learned
    assert not both.findings
    assert float(both(blind(), inputs(6000, 26)[0]).mean()) == pytest.approx(0.01, abs=0.01)


def test_cases_of_one_seed_in_both_suites_are_one_group() -> None:
    few, more = cases(600, per_seed=3), wider_cases(400)
    joined = fit_risk(blind(), few, wider=more).cases  # both number their seeds from 0
    assert int(joined.group.max()) + 1 == 400
    for seed in (0, 7, 199):
        assert joined.group[:600][few.seed == seed].unique().tolist() == joined.group[600:][more.seed == seed].tolist()


def test_a_map_with_wider_cases_survives_saving_and_another_model(tmp_path: Path) -> None:
    x, _, _ = inputs(200, 27)
    both, other = fit_risk(blind(), cases(600), wider=wider_cases(300)), blind(slope=-2.0, bias=0.5)
    results.save(both, tmp_path / "risk.json")
    loaded = results.load(tmp_path / "risk.json", RiskMap)
    assert str(loaded) == str(both)
    assert loaded.cases.wider == 300
    assert torch.equal(loaded(blind(), x), both(blind(), x))
    fresh = fit_risk(other, cases(600), wider=wider_cases(300))
    assert torch.equal(loaded(other, x), fresh(other, x))


# Fallbacks and bad input ---------------------------------------------------------------------------------------------


def found(risk: RiskMap) -> set[str]:
    return {finding.name for finding in risk.findings}


def test_with_enough_cases_there_is_nothing_to_report(risk: RiskMap) -> None:
    assert not risk.findings
    assert "4000 cases" in str(risk)


def test_few_cases_are_reported() -> None:
    few = fit_risk(blind(), cases(200))
    assert found(few) == {"few cases"}
    assert "3000" in str(few)


@pytest.mark.parametrize("fails", [True, False])
def test_cases_that_all_pass_or_all_fail_leave_the_margin(fails: bool) -> None:
    model = blind()
    x, _, _ = inputs(3000, 10)
    y = model.predict(x)
    only = fit_risk(model, suite_of(model, x, 1 - y if fails else y))
    assert found(only) == {"too few failures or passes"}
    assert "inputs are ranked by the margin alone" in str(only)
    assert not only.learned
    assert only.failing == float(fails)
    rated, margin = only(model, x[:300]), (model.batched_logits(x[:300]) @ torch.tensor([1.0, -1.0])).abs()
    assert torch.equal(rated.argsort(stable=True), margin.double().neg().argsort(stable=True))
    assert bool(((rated > 0) & (rated < 1)).all())


class Wide(nn.Module):
    """Four classes, the last never predicted."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, 0], -x[:, 0], x[:, 1], -9 + 0 * x[:, 0]], 1)


def test_a_module_without_layers_is_rated_by_its_logits() -> None:
    model = Classifier(Wide(), bounds=(-10, 10), strict=False)
    x, _, _ = inputs(3000, 11)
    label = torch.where(torch.rand(3000, generator=spawn(11)) < 0.2, 0, model.predict(x))
    map_ = fit_risk(model, suite_of(model, x, label))
    assert {"no penultimate layer", "class without cases", "class with few cases"} <= found(map_)
    assert "no linear or convolutional layer of the model can be observed, so neighbours are found by logits" in str(
        map_
    )
    assert torch.equal(map_.features, map_.logits)
    rated = map_(model, x)
    assert bool(((rated > 0) & (rated < 1)).all())
    assert float(rated[model.predict(x) == 0].mean()) < 0.05 < float(rated[model.predict(x) == 1].mean())


def test_a_traced_module_is_rated_by_its_logits_and_known_again() -> None:
    x, y, _ = inputs(600, 11)
    with pytest.warns(DeprecationWarning, match=r"torch\.jit\.trace"):
        one, other, changed = (torch.jit.trace(Blind(slope), x[:16]) for slope in (3.0, 3.0, 3.0 + 1e-6))
    model = Classifier(one, bounds=(-10, 10))
    map_ = fit_risk(model, suite_of(model, x, y))
    assert {"no penultimate layer", "few cases"} == found(map_)
    assert bool(map_(model, x).isfinite().all())
    assert map_.for_model(Classifier(other, bounds=(-10, 10))) is map_
    assert map_.for_model(Classifier(changed, bounds=(-10, 10))) is not map_


def test_cases_of_one_class_are_reported() -> None:
    x, _, _ = inputs(3000, 12)
    one = fit_risk(blind(), suite_of(blind(), x, torch.ones(3000).long()))
    assert found(one) == {"cases of one class"}
    assert (
        "all cases are of class 1. Draw cases of every class that occurs in the field; risks of the others are"
        in str(one)
    )
    assert bool(one(blind(), x).isfinite().all())


def test_inputs_are_no_cases() -> None:
    with pytest.raises(TypeError, match="cases must be a Suite of cases, got Samples; draw cases from labelled inputs"):
        fit_risk(blind(), Samples(torch.zeros(4, 2), torch.zeros(4).long()))


def of_three_values() -> Suite:
    seeds, zeros = Samples(torch.zeros(4, 3), torch.zeros(4).long()), torch.zeros(4).long()
    return Suite.of(seeds.x, seeds=seeds, origin=torch.arange(4), prediction=zeros, method="draws")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda m, c: fit_risk(m, c, k=0), "k must be at least 1"),
        (lambda m, c: fit_risk(m, c[:0]), "RecipeDraws"),
        (lambda m, c: fit_risk(m, c, priors=[1.0]), "one value for each of the model's 2 classes"),
        (lambda m, c: fit_risk(m, c, priors=[0.5, 0.6]), "sum to 1"),
        (lambda m, c: fit_risk(m, c[c.label == 0], priors=[0.0, 1.0]), "no case has a class with a positive prior"),
        (lambda m, c: fit_risk(m, c, taught=Samples(torch.zeros(3, 2))), "label"),
        (
            lambda m, c: fit_risk(m, c, taught=Samples(torch.zeros(3, 2), torch.tensor([0, 1, 2]))),
            "below the model's 2",
        ),
        (
            lambda m, c: fit_risk(m, c, wider=of_three_values()),
            r"wider must have shape \(N, 2\), got \(4, 3\); draw them",
        ),
        (lambda m, c: fit_risk(m, c)(m, torch.full((3, 2), torch.nan)), "NaN"),
        (lambda m, c: fit_risk(m, c)(m, torch.zeros(0, 2)), "at least one row"),
    ],
)
def test_bad_input_is_refused(call: Callable[[Classifier, Suite], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call(blind(), cases(600))


# Groups, many classes, large heads


def test_cases_of_one_group_of_seeds_are_neither_neighbours_nor_in_two_folds() -> None:
    suite = cases()
    seeds = Samples(suite.x, suite.label, suite.seed, groups=tuple(str(i % 40) for i in range(len(suite))))
    table = fit_risk(blind(), suite, seeds=seeds).cases
    assert len(table.group.unique()) == 40
    for of in seeds.units.unique()[:5]:
        assert len(table.group[seeds.units == of].unique()) == 1
    with pytest.raises(ValueError, match="every input that cases were drawn from"):
        fit_risk(blind(), suite, seeds=seeds[:-1])


def test_groups_of_like_seeds_do_not_make_the_map_too_sure() -> None:
    """Ten copies of each seed, nearly equal: out of fold the map must not learn from the copies."""
    x, y, _ = inputs(300, 21)
    copies = (x.repeat_interleave(10, 0) + 1e-4 * torch.randn(3000, *x.shape[1:], generator=spawn(3))).clamp(-10, 10)
    grouped = Samples(copies, y.repeat_interleave(10), groups=tuple(str(i // 10) for i in range(3000)))
    model = blind()
    suite = Suite.of(copies, seeds=grouped, origin=torch.arange(3000), prediction=model.predict(copies), method="m")
    fresh, labels, _ = inputs(4000, 22)
    failed = (model.predict(fresh) != labels).double()
    brier = [
        float((fit_risk(model, suite, seeds=seeds)(model, fresh) - failed).square().mean()) for seeds in (grouped, None)
    ]
    assert brier[0] < brier[1]


def test_a_head_that_is_too_large_is_left_out_everywhere_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = cases()
    known = fit_risk(blind(), suite)
    full = known.features.numel() * known.logits.shape[1]
    monkeypatch.setattr("operant.profile._risk_terms.MAX_HEAD", int(0.9 * full))  # folds alone would be small enough
    found = fit_risk(blind(), suite)
    assert "no second head" in [finding.name for finding in found.findings]
    assert float(found.coefficients[2]) == pytest.approx(0, abs=1e-9)
    fresh, labels, _ = inputs(4000, 23)
    failed = (blind().predict(fresh) != labels).double()
    assert float(found(blind(), fresh).mean()) == pytest.approx(float(failed.mean()), abs=0.04)


def test_with_many_classes_probabilities_hold_out_of_fold() -> None:
    """One bias per class is easily fitted to the cases themselves; then risks would be too sure."""
    classes, n = 200, 3000
    generator = spawn(5)
    centres = torch.randn(classes, 16, generator=generator)
    linear = nn.Linear(16, classes)
    with torch.no_grad():
        linear.weight.copy_(centres)
        linear.bias.copy_(-centres.square().sum(1) / 2)
    model = Classifier(linear, bounds=(-20, 20))

    def draw(count: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (count,), generator=generator)
        return (centres[y] + 1.1 * torch.randn(count, 16, generator=generator)).clamp(-20, 20), y

    x, y = draw(n)
    suite = Suite.of(x, seeds=Samples(x, y), origin=torch.arange(n), prediction=model.predict(x), method="m")
    risk = fit_risk(model, suite)
    fresh, labels = draw(6000)
    values, failed = risk(model, fresh), (model.predict(fresh) != labels).double()
    for rows in (values > values.quantile(0.8), values < values.quantile(0.3)):
        assert float(values[rows].mean()) == pytest.approx(float(failed[rows].mean()), abs=0.05)


def test_calibration_does_not_speak_of_wider_cases_where_there_are_none() -> None:
    found = fit_risk(blind(), cases(), priors=[1.0, 0.0])
    assert "level of wider conditions" not in [finding.name for finding in found.findings]
