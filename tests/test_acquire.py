"""Which inputs to label: laws that every strategy keeps, BADGE against its formula, and pools with known answers."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from operant import Classifier, Samples, Suite, spawn
from operant.profile import fit_risk
from operant.results import load, save
from operant.seeds import (
    Acquired,
    AtRandom,
    Badge,
    ByDisagreement,
    ByMassAndWeakness,
    ByRisk,
    Choice,
    Clue,
    DiverseMargin,
    RiskBadge,
    Strategy,
    acquire,
    clusters,
    margin_risk,
    risk_of,
)

FEATURES, CLASSES = 6, 4


def network(seed: int = 0, *, batch_size: int = 256) -> Classifier:
    """Two layers with random weights, in double precision."""
    module = nn.Sequential(nn.Linear(5, FEATURES), nn.Tanh(), nn.Linear(FEATURES, CLASSES)).double()
    for values in module.parameters():
        nn.init.normal_(values, generator=spawn(seed, "weights"))
    return Classifier(module, bounds=(-10, 10), batch_size=batch_size)


def pool_of(n: int = 120, seed: int = 0) -> Samples:
    return Samples(torch.randn(n, 5, generator=spawn(seed, "pool"), dtype=torch.float64).clamp(-9, 9))


def first_value(model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    """A score that reads the first value of an input."""
    return x.flatten(1)[:, 0].abs()


def mass_of(pool: Samples) -> Tensor:
    return pool.x[:, 1].abs()


STRATEGIES: dict[str, Strategy] = {
    "badge": Badge(),
    "risk badge": RiskBadge(risk=first_value),
    "clue": Clue(),
    "diverse margin": DiverseMargin(candidates_per_label=3),
    "risk": ByRisk(risk=first_value),
    "mass and weakness": ByMassAndWeakness(mass=mass_of),
    "disagreement": ByDisagreement(original=network(1)),
    "random": AtRandom(),
}
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)


# Laws of all ----------------------------------------------------------------------------------------------------------


@every_strategy
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40), labelled=st.integers(0, 30), copies=st.integers(0, 20))
@settings(max_examples=15)
def test_rows_are_different_inputs_that_are_not_labelled(strategy, seed, n, labelled, copies):
    pool = pool_of(80, seed)
    pool = Samples.concat([pool, pool[:copies], pool[40 : 40 + copies]])
    already = pool.ids[torch.randperm(80, generator=spawn(seed))[:labelled]]
    chosen = acquire(network(), pool, n, strategy=strategy, already=already, generator=spawn(seed))
    assert chosen.rows.shape == chosen.ids.shape == (n,) == (len(chosen),)
    assert torch.equal(pool.ids[chosen.rows], chosen.ids)
    assert len(chosen.ids.unique()) == n
    assert not bool(torch.isin(chosen.ids, already).any())
    assert (chosen.candidates, chosen.pool_size) == (80 - labelled, len(pool))


@every_strategy
def test_the_same_generator_gives_the_same_rows_and_the_global_stream_is_left_alone(strategy):
    model, before = network(), torch.random.get_rng_state()
    one, two = (acquire(model, pool_of(), 20, strategy=strategy, generator=spawn(3)) for _ in range(2))
    assert torch.equal(one.rows, two.rows)
    assert torch.equal(torch.random.get_rng_state(), before)


@every_strategy
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_a_permuted_pool_gives_the_same_inputs(strategy, seed):
    pool, order = pool_of(), torch.randperm(120, generator=spawn(seed))
    whole, permuted = (acquire(network(), p, 20, strategy=strategy, generator=spawn(seed)) for p in (pool, pool[order]))
    assert torch.equal(whole.ids, permuted.ids)
    assert torch.equal(whole.rows, order[permuted.rows])


@every_strategy
def test_batches_and_labels_change_nothing(strategy):
    pool = pool_of()
    labelled = pool.with_labels(torch.arange(len(pool)) % CLASSES)
    chosen = acquire(network(), pool, 20, strategy=strategy, generator=spawn(3))
    for model, inputs in ((network(batch_size=17), pool), (network(), labelled)):
        assert torch.equal(acquire(model, inputs, 20, strategy=strategy, generator=spawn(3)).rows, chosen.rows)


@every_strategy
def test_all_inputs_can_be_asked_for(strategy):
    chosen = acquire(network(), pool_of(), 120, strategy=strategy, generator=spawn(3))
    assert chosen.rows.sort().values.tolist() == list(range(120))


@every_strategy
def test_only_random_draws_allow_estimates(strategy):
    chosen = acquire(network(), pool_of(), 20, strategy=strategy, generator=spawn(3))
    random = isinstance(strategy, AtRandom)
    assert chosen.use == ("teaching, judging and estimates" if random else "teaching only")
    assert f"20 of 120 inputs to label, {chosen.reason}. Use their labels for {chosen.use}" in str(chosen)
    assert chosen.findings == ()


@every_strategy
def test_a_choice_survives_saving_and_knows_its_pool(strategy, tmp_path: Path):
    pool = pool_of()
    chosen = acquire(network(), pool, 20, strategy=strategy, already=pool.ids[:30], generator=spawn(3))
    save(chosen, tmp_path / "acquired.json")
    again = load(tmp_path / "acquired.json", Acquired)
    assert str(again) == str(chosen)
    assert repr(again) == repr(chosen)
    assert torch.equal(again.samples(pool).x, pool.x[chosen.rows])
    for other in (pool[:50], pool_of(seed=1)):
        with pytest.raises(ValueError, match="were chosen from another pool, of 120 inputs"):
            again.samples(other)


class Sizes(TorchDispatchMode):
    """Records how large tensors become."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, Tensor) and value.untyped_storage().nbytes():
                self.largest = max(self.largest, value.untyped_storage().nbytes() // value.element_size())
        return result


@every_strategy
def test_memory_is_linear_in_the_pool(strategy, monkeypatch: pytest.MonkeyPatch):
    size, n = 3000, 40
    monkeypatch.setattr(clusters, "MAX_PAIRS", 2000)
    pool = pool_of(size)
    with Sizes() as seen:
        acquire(network(), pool, n, strategy=strategy, generator=spawn(3))
    assert size <= seen.largest <= size * (FEATURES + CLASSES)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch):
    whole = acquire(network(), pool_of(500), 30, strategy=Clue(), generator=spawn(3))
    monkeypatch.setattr(clusters, "MAX_PAIRS", 100)
    assert torch.equal(acquire(network(), pool_of(500), 30, strategy=Clue(), generator=spawn(3)).rows, whole.rows)


# BADGE is its formula -------------------------------------------------------------------------------------------------


def last_layer_gradients(model: Classifier, x: Tensor) -> Tensor:
    """By autograd: the gradient of the loss in the last layer's weights, one row per input, its prediction as label."""
    module, rows = model.unwrap(), []
    for row in x:
        logits = module(row[None])
        (g,) = torch.autograd.grad(cross_entropy(logits, logits.argmax(1)), [module[2].weight])
        rows.append(g.flatten())
    return torch.stack(rows)


def plain_seeding(g: Tensor, weights: Tensor, n: int, generator: torch.Generator) -> list[int]:
    """k-means++ on vectors that are all there, from the largest."""
    rows = [int((weights * g.square().sum(1)).argmax())]
    for u in torch.rand(n - 1, generator=generator, dtype=torch.float64):
        chances = weights * (g[:, None] - g[rows]).square().sum(2).amin(1)
        rows.append(int(torch.searchsorted(chances.cumsum(0), u * chances.sum(), right=True)))
    return rows


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 30), power=st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=25)
def test_badge_is_k_means_plus_plus_on_gradients(seed, n, power):
    model, pool = network(seed % 7), pool_of(60, seed)
    pool = pool[pool.ids.argsort()]  # the order that strategies see
    g, weights = last_layer_gradients(model, pool.x), first_value(model, pool.x, pool.ids) ** power
    strategy = RiskBadge(risk=first_value, risk_power=power) if power else Badge()
    chosen = acquire(model, pool, n, strategy=strategy, generator=spawn(seed))
    assert chosen.rows.tolist() == plain_seeding(g, weights, n, spawn(seed))


def test_without_risk_the_weighted_badge_is_badge():
    weighted = RiskBadge(risk=first_value, risk_power=0)
    one, two = (acquire(network(), pool_of(), 20, strategy=s, generator=spawn(3)) for s in (Badge(), weighted))
    assert torch.equal(one.rows, two.rows)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e25])
def test_the_scale_of_features_does_not_matter(scale):
    h = torch.randn(200, 5, generator=spawn(0))

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(5, 3, bias=False)
            nn.init.normal_(self.last.weight, std=1 / scale, generator=spawn(1))

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x * scale)

    chosen = acquire(Classifier(Scaled(), bounds=(-10, 10)), Samples(h), 20, generator=spawn(0))
    assert chosen.findings == ()
    assert len(chosen.rows.unique()) == 20


# k-means against another library --------------------------------------------------------------------------------------


def test_weighted_k_means_agrees_with_scikit_learn(monkeypatch: pytest.MonkeyPatch):
    g = spawn(0)
    h, w = (torch.rand(shape, generator=g, dtype=torch.float64) for shape in ((400, 3), (400,)))
    monkeypatch.setattr(clusters, "MIN_GAIN", 0.0)
    monkeypatch.setattr(clusters, "MAX_STEPS", 200)
    theirs = KMeans(8, init=h[:8].numpy(), n_init=1, tol=0).fit(h.numpy(), sample_weight=w.numpy())
    ours = clusters.kmeans_centres(h, h[:8], weights=w)
    assert torch.allclose(ours, torch.tensor(theirs.cluster_centers_), atol=1e-9)


def test_each_centre_gets_a_row_of_its_own():
    h = torch.tensor([[0.0], [1.0], [5.0], [9.0]])
    centres = torch.tensor([[0.9], [1.1], [0.2], [7.1]])
    assert clusters.nearest_rows(h, centres).tolist() == [1, 0, 2, 3]


# Pools with known answers ---------------------------------------------------------------------------------------------


class Corner(nn.Module):
    """Logits are features, so that every gradient can be written down."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 3, bias=False)
        nn.init.eye_(self.last.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x)


CORNER = Classifier(Corner(), bounds=(-100, 100))
CENTRES = [[60.0, 0, 0], [0, 60, 0], [9, 8, 0], [9, 0, 8], [0, 9, 8]]  # sure, sure, and three kinds of doubt


def crowds(counts: tuple[int, ...] = (50, 50, 4, 10, 20)) -> tuple[Samples, Tensor]:
    """A tight crowd of inputs around each centre, and the crowd of each input."""
    crowd = torch.arange(len(CENTRES)).repeat_interleave(torch.tensor(counts))
    x = torch.tensor(CENTRES)[crowd]
    return Samples(x + 1e-4 * torch.randn(x.shape, generator=spawn(0, "crowds"))), crowd


@pytest.mark.parametrize("seed", range(5))
def test_badge_takes_one_of_each_kind_of_doubt_and_one_sure_input(seed):
    """In sure inputs there is no gradient, so they are one crowd, whatever their features are."""
    pool, crowd = crowds()
    chosen = acquire(CORNER, pool, 4, generator=spawn(seed))
    assert sorted(crowd[chosen.rows].clamp_min(1).tolist()) == [1, 2, 3, 4]
    assert int(crowd[chosen.rows[0]]) >= 2


@pytest.mark.parametrize("seed", range(5))
def test_badge_by_risk_leaves_out_what_has_no_risk(seed):
    pool, crowd = crowds()
    risky = RiskBadge(risk=lambda model, x, y: (x[:, 2] > 1).double())
    assert sorted(crowd[acquire(CORNER, pool, 2, strategy=risky, generator=spawn(seed)).rows].tolist()) == [3, 4]


@pytest.mark.parametrize("strategy", [Clue(), DiverseMargin(candidates_per_label=11)], ids=["clue", "diverse margin"])
@pytest.mark.parametrize("seed", range(5))
def test_uncertain_crowds_get_one_label_each(strategy, seed):
    """The margins of 33 inputs are the smallest; the entropies of sure inputs are next to nothing."""
    pool, crowd = crowds()
    assert sorted(crowd[acquire(CORNER, pool, 3, strategy=strategy, generator=spawn(seed)).rows].tolist()) == [2, 3, 4]


def test_clue_takes_the_input_nearest_to_the_weighted_mean():
    model, pool = network(), pool_of()
    probs, h = model.probs(pool.x), model.penultimate(pool.x)
    w = torch.special.entr(probs).sum(1)
    centre = (w[:, None] * h).sum(0) / w.sum()
    chosen = acquire(model, pool, 1, strategy=Clue(), generator=spawn(0))
    assert chosen.rows.tolist() == [int((h - centre).square().sum(1).argmin())]


def test_a_high_temperature_makes_all_inputs_count_alike():
    model, pool = network(), pool_of()
    h = model.penultimate(pool.x)
    chosen = acquire(model, pool, 1, strategy=Clue(temperature=1e6), generator=spawn(0))
    assert chosen.rows.tolist() == [int((h - h.mean(0)).square().sum(1).argmin())]


def test_with_one_candidate_per_label_the_smallest_margins_are_taken():
    model, pool = network(), pool_of()
    chosen = acquire(model, pool, 15, strategy=DiverseMargin(candidates_per_label=1), generator=spawn(0))
    assert set(chosen.rows.tolist()) == set(risk_of(model, pool, margin_risk).topk(15).indices.tolist())


def test_rankings_take_the_largest_values_first():
    model, pool = network(), pool_of()
    values = {
        "risk": pool.x[:, 0].abs(),
        "mass and weakness": pool.x[:, 1].abs() * risk_of(model, pool, margin_risk),
        "disagreement": (network(1).probs(pool.x) - model.probs(pool.x)).abs().sum(1),
    }
    for name, value in values.items():
        chosen = acquire(model, pool, 15, strategy=STRATEGIES[name], generator=spawn(0))
        assert chosen.rows.tolist() == value.topk(15).indices.tolist()


def test_a_risk_map_of_cases_guides_the_choice():
    """The model is wrong wherever the second value is large, and its probabilities do not show it."""
    x = torch.randn(600, 5, generator=spawn(5), dtype=torch.float64)
    model = network()
    predicted = model.predict(x)
    y = torch.where(x[:, 1] > 0.5, (predicted + 1) % CLASSES, predicted)
    seeds = Samples(x, y)
    cases = Suite.of(x, seeds=seeds, origin=torch.arange(600), prediction=predicted, method="draws")
    risk, pool = fit_risk(model, cases), pool_of(400)
    strategies = (AtRandom(), Badge(), RiskBadge(risk=risk), ByRisk(risk=risk))
    found = [acquire(model, pool, 50, strategy=s, generator=spawn(0)).samples(pool).x for s in strategies]
    shares = [float((x[:, 1] > 0.5).double().mean()) for x in found]
    assert shares[3] > shares[2] > max(shares[:2])


def test_equal_values_are_taken_in_random_order():
    halves = ByRisk(risk=lambda model, x, y: (x[:, 0] > 0).double())
    pool = pool_of(400)
    found = [set(acquire(network(), pool, 10, strategy=halves, generator=spawn(s)).rows.tolist()) for s in range(2)]
    assert all(bool((pool.x[list(rows), 0] > 0).all()) for rows in found)
    assert len(found[0] & found[1]) < 5


def test_at_random_every_input_has_the_same_chance():
    """Within five standard errors, for each of 20 inputs."""
    runs, model, pool, g = 2000, network(), pool_of(20), spawn(0)
    rows = torch.cat([acquire(model, pool, 5, strategy=AtRandom(), generator=g).rows for _ in range(runs)])
    shares = rows.bincount(minlength=20) / runs
    assert float((shares - 0.25).abs().max()) < 5 * (0.25 * 0.75 / runs) ** 0.5


def test_a_function_is_a_strategy():
    def shortest(model: Classifier, pool: Samples, n: int, *, generator: torch.Generator) -> Choice:
        return Choice(rows=pool.x.square().sum(1).argsort()[:n], reason="the shortest")

    chosen = acquire(network(), pool_of(), 3, strategy=shortest, generator=spawn(0))
    assert chosen.rows.tolist() == pool_of().x.square().sum(1).argsort()[:3].tolist()
    assert str(chosen).startswith("3 of 120 inputs to label, the shortest. Use their labels for teaching only")


# Doubts ---------------------------------------------------------------------------------------------------------------


class Opaque(nn.Module):
    """A model none of whose layers can be observed."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :3] * 2


@pytest.mark.parametrize(
    "strategy", [Badge(), RiskBadge(risk=first_value), Clue(), DiverseMargin()], ids=lambda s: type(s).__name__
)
def test_without_a_penultimate_layer_logits_serve_as_features(strategy):
    chosen = acquire(Classifier(Opaque(), bounds=(-10, 10)), pool_of(), 20, strategy=strategy, generator=spawn(0))
    assert [finding.name for finding in chosen.findings] == ["no penultimate layer"]
    assert "warning: no penultimate layer: no linear or convolutional layer" in str(chosen)


@pytest.mark.parametrize("strategy", [Badge(), Clue(), DiverseMargin()], ids=lambda s: type(s).__name__)
def test_inputs_that_look_the_same_to_the_model_are_chosen_arbitrarily(strategy):
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(0 * x + 1)

    found = [
        acquire(
            Classifier(Constant(), bounds=(-10, 10)),
            Samples(pool_of().x.float()),
            20,
            strategy=strategy,
            generator=spawn(seed),
        )
        for seed in range(2)
    ]
    assert all(len(chosen.rows.unique()) == 20 for chosen in found)
    assert "19 of 20 inputs were chosen arbitrarily" in str(found[0])
    if not isinstance(strategy, Clue):  # all centres are one, and take the first rows
        assert len(set(found[0].rows.tolist()) & set(found[1].rows.tolist())) < 12


def test_a_ranking_of_equal_values_says_so():
    same = ByDisagreement(original=network())
    chosen = acquire(network(), pool_of(), 20, strategy=same, generator=spawn(0))
    assert [finding.name for finding in chosen.findings] == ["nothing to rank by"]


@pytest.mark.parametrize("copies", [False, True])
def test_a_random_draw_of_the_rest_says_what_it_describes(copies):
    pool = pool_of()
    already = None if copies else pool.ids[:20]
    pool = Samples.concat([pool, pool[:20]]) if copies else pool
    chosen = acquire(network(), pool, 20, strategy=AtRandom(), already=already, generator=spawn(0))
    assert f"20 of {len(pool)} inputs could not be drawn" in str(chosen)
    assert acquire(network(), pool, 20, already=already, generator=spawn(0)).findings == ()


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, -3])
def test_at_least_one_input(n):
    with pytest.raises(ValueError, match=f"n must be at least 1, got {n}"):
        acquire(network(), pool_of(), n, generator=spawn(0))


def test_no_more_than_there_are():
    pool = pool_of()
    pool = Samples.concat([pool, pool[:10]])
    with pytest.raises(
        ValueError, match="n must be at most 115, the inputs of the pool that differ and are not labelle"
    ):
        acquire(network(), pool, 116, already=pool.ids[:5], generator=spawn(0))


def test_an_empty_pool():
    with pytest.raises(ValueError, match="pool must not be empty"):
        acquire(network(), pool_of()[:0], 3, generator=spawn(0))


@pytest.mark.parametrize("already", [[1, 2], torch.tensor([1.0]), torch.tensor(3), torch.zeros(2, 2).long()])
def test_labelled_inputs_are_named_by_ids(already):
    with pytest.raises(ValueError, match=r"already must be ids, an int64 tensor \(N,\)"):
        acquire(network(), pool_of(), 3, already=already, generator=spawn(0))


@pytest.mark.parametrize("rows", [[0, 1], [0, 0, 1], [0, 1, 120], [-1, 0, 1], [0.0, 1.0, 2.0]])
def test_rows_of_a_strategy_are_checked(rows):
    def wrong(model: Classifier, pool: Samples, n: int, *, generator: torch.Generator) -> Choice:
        return Choice(rows=torch.tensor(rows), reason="wrong")

    with pytest.raises(ValueError, match="a strategy must choose 3 different rows from 0 to 119"):
        acquire(network(), pool_of(), 3, strategy=wrong, generator=spawn(0))


def test_a_class_is_no_strategy():
    with pytest.raises(ValueError, match=r"got a class; write Clue\(...\)"):
        acquire(network(), pool_of(), 3, strategy=Clue, generator=spawn(0))


def test_scores_and_masses_are_not_negative():
    below = lambda model, x, y: x[:, 0]  # noqa: E731
    for strategy, name in (
        (RiskBadge(risk=below), "risk"),
        (ByMassAndWeakness(mass=mass_of, weakness=below), "weakness"),
        (ByMassAndWeakness(mass=lambda pool: pool.x[:, 0]), "mass"),
    ):
        with pytest.raises(ValueError, match=f"{name} must be 0 or more and finite"):
            acquire(network(), pool_of(), 3, strategy=strategy, generator=spawn(0))


def test_models_that_are_compared_have_the_same_classes():
    other = Classifier(nn.Linear(5, 3).double(), bounds=(-10, 10))
    with pytest.raises(ValueError, match="the original has 3 and the present 4"):
        acquire(network(), pool_of(), 3, strategy=ByDisagreement(original=other), generator=spawn(0))


def test_options_are_checked():
    for strategy, options, sentence in (
        (RiskBadge(risk=first_value), {"risk_power": -1.0}, "risk_power must be 0 or more"),
        (Clue(), {"temperature": 0.0}, "temperature must be positive"),
        (DiverseMargin(), {"candidates_per_label": 0}, "candidates_per_label must be at least 1"),
    ):
        with pytest.raises(ValueError, match=sentence):
            replace(strategy, **options)
