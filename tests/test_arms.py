"""Arms of the race: the rows that each learns from, what it computes, and that nothing else moves."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from known_fields import (
    CONDITIONS,
    NETWORKS,
    Breaking,
    blobs,
    failures_of,
    field_digits,
    known_blobs,
    known_digits,
    model_of,
    parts,
    perceptron,
    same_weights,
    separator,
    trained_digits,
    weights_of,
)
from operant import Classifier, Samples, spawn
from operant.conditions import Recipe, default_palette, fixed
from operant.generate import UncertaintyFuzz
from operant.networks import initialise
from operant.retrain import (
    BatchNormStatistics,
    CaseTraining,
    FieldKnowledge,
    FieldTraining,
    Finetune,
    GenericAugmentation,
    ManifoldMixup,
    OperationalFinetune,
    OwnTraining,
    Retrainer,
    RowSource,
    Schedule,
    TrainingDiverged,
    UnderConditions,
    UnlabelledRows,
    augmentation,
    default_arms,
    generic_augmentation,
    interpolate,
)
from operant.retrain.arms import CASE_CAP, CASE_SHARE, HALF_TRUST, HALF_USE, LABEL_SHARE, STRONG, UNKNOWN, WEAK
from operant.retrain.augmentation import MAX_LOSS, Jitter, knows_flips
from operant.retrain.rows import Sometimes

OTHERS = ("brightness", "gamma", "contrast", "gaussian_noise")
SHORT = Schedule(steps=12, learning_rate=0.01)
EXPLAINED, UNEXPLAINED = UNKNOWN / 2, (1 + UNKNOWN) / 2  # shares on both sides of the threshold
FAILING = blobs(60, seed="failing")


def sources_of(arm: FieldTraining, known: FieldKnowledge, model: Classifier | None = None) -> list[RowSource]:
    return list(arm.rows(separator() if model is None else model, known).sources)


def of_labels(arm: FieldTraining, known: FieldKnowledge, model: Classifier | None = None) -> list[RowSource]:
    """The sources whose inputs are the teaching labels."""
    found = sources_of(arm, known, model)
    return [source for source in found if torch.equal(source.samples.ids, known.labels.ids)]


def of_training(arm: FieldTraining, known: FieldKnowledge, model: Classifier | None = None) -> list[RowSource]:
    """The simulated sources: training inputs, but for those that stay as they are for the sake of clean accuracy."""
    found = sources_of(arm, known, model)
    return [source for source in found if torch.equal(source.samples.ids, known.train.ids)][1:]


def failing(n: int = 60, **columns: Tensor) -> Any:
    """Cases of a separator; the weights of `capped_chances` differ by orders of magnitude."""
    values = {"mass": torch.logspace(-9, 0, n), "naturalness": torch.linspace(0.2, 1, n)}
    return failures_of(separator(), FAILING[:n], **(values | columns))


# Field training: rows


@settings(max_examples=40)
@given(labels=st.integers(0, 120), u=st.floats(0, 1), field_rows=st.integers(1, 200), conditions=st.booleans())
def test_label_rows_follow_their_formula(labels, u, field_rows, conditions):
    arm = FieldTraining(conditions=conditions, field_rows=field_rows)
    known = known_blobs(labels, unexplained=u)
    found = of_labels(arm, known)
    if labels == 0:
        assert found == []
    else:
        share = u if conditions else 1.0
        grown = max(share * labels / (labels + HALF_USE), labels / (labels + HALF_TRUST))
        assert [source.rows for source in found] == [max(1, round(LABEL_SHARE * field_rows * grown))]
        assert torch.allclose(found[0].chances, torch.full((labels,), 1 / labels, dtype=torch.float64))
    assert sum(source.rows for source in sources_of(arm, known)) == arm.clean_rows + field_rows
    assert all(source.rows > 0 for source in sources_of(arm, known))


def test_label_rows_grow_with_labels_and_with_what_conditions_leave():
    arm = FieldTraining(field_rows=1000)
    rows = torch.tensor(
        [
            [of_labels(arm, known_blobs(n, unexplained=u))[0].rows for n in (1, 5, 20, 60, 120)]
            for u in (0.0, 0.1, 0.4, 0.7, 1.0)
        ]
    )
    assert bool((rows.diff(dim=1) > 0).all())
    assert bool((rows.diff(dim=0) >= 0).all())
    assert bool((rows[-1] > rows[0]).all())
    assert int(rows.max()) < LABEL_SHARE * 1000


def test_labels_are_not_learned_from_if_they_are_left_out():
    assert of_labels(FieldTraining(labels=False), known_blobs(60)) == []


def test_failures_are_drawn_by_mass_times_naturalness_up_to_a_cap():
    arm, known = FieldTraining(failures=True), known_blobs(40, failures=failing())
    cases = known.failures.samples()
    (found,) = (s for s in sources_of(arm, known) if torch.equal(s.samples.ids, cases.ids))
    labelled = sum(source.rows for source in of_labels(arm, known))
    assert found.rows == round(CASE_SHARE * (arm.field_rows - labelled))
    assert found.change is None
    weights = (known.failures["mass"] * known.failures["naturalness"]).numpy()
    chances, limit = found.chances.numpy(), CASE_CAP / len(weights)
    free = chances < limit - 1e-12
    assert chances.sum() == pytest.approx(1)
    assert chances.max() <= limit + 1e-12
    assert not free.all()  # some would be drawn more often without the cap
    np.testing.assert_allclose(chances[free] / chances[free][0], weights[free] / weights[free][0], rtol=1e-6)


@pytest.mark.parametrize("left", ["mass", "naturalness"])
def test_what_is_not_known_of_failures_counts_as_equal(left):
    suite = failing()
    known = known_blobs(failures=replace(suite, columns={left: suite[left]}))
    (found,) = (s for s in sources_of(FieldTraining(failures=True), known) if len(s.samples) == len(suite))
    order = suite[left].argsort()
    assert bool((found.chances[order].diff() >= 0).all())
    bare = known_blobs(failures=replace(suite, columns={}))
    (found,) = (s for s in sources_of(FieldTraining(failures=True), bare) if len(s.samples) == len(suite))
    assert torch.allclose(found.chances, torch.full((60,), 1 / 60, dtype=torch.float64))


@pytest.mark.parametrize(("wanted", "failures"), [(False, failing()), (True, None), (True, failing()[:0])])
def test_without_failures_their_rows_are_simulated(wanted, failures):
    arm = FieldTraining(failures=wanted)
    found = sources_of(arm, known_blobs(failures=failures))
    assert all(torch.equal(source.samples.ids, known_blobs().train.ids) for source in found)
    assert sum(source.rows for source in found) == arm.clean_rows + arm.field_rows


@given(priors=st.lists(st.floats(0.01, 1), min_size=10, max_size=10))
@settings(max_examples=10)
def test_simulated_inputs_have_the_class_shares_of_the_field(priors):
    known = known_digits(priors=tuple(p / sum(priors) for p in priors))
    by_field, by_training = (
        of_training(FieldTraining(priors=wanted), known, trained_digits("plain")) for wanted in (True, False)
    )
    labels = known.train.labels
    among = torch.bincount(labels).double() / len(labels)
    for source in by_field:
        shares = torch.zeros(10, dtype=torch.float64).index_add(0, labels, source.chances)
        assert torch.allclose(shares, 0.9 * torch.tensor(known.priors, dtype=torch.float64) + 0.1 * among)
    for source in by_training:
        assert torch.allclose(source.chances, torch.full((len(labels),), 1 / len(labels), dtype=torch.float64))


@settings(max_examples=20)
@given(u=st.floats(0, 1), generic=st.floats(0, 1), field_rows=st.integers(2, 90))
def test_the_share_of_generic_augmentation(u, generic, field_rows):
    """What conditions leave, at most ``generic``; and ``generic`` where no conditions are known."""
    arm, model = FieldTraining(generic=generic, field_rows=field_rows), trained_digits("plain")
    for known, share in (
        (known_digits(unexplained=u), min(u, generic)),
        (known_digits(recipe=None, unexplained=u), generic),
        (known_digits(recipe=Recipe(severities={}), unexplained=u), generic),
    ):
        found = of_training(arm, known, model)
        anyhow = [source.rows for source in found if isinstance(source.change, GenericAugmentation)]
        assert sum(anyhow) == round(share * field_rows)
        assert sum(source.rows for source in found) == field_rows


def test_conditions_are_used_only_if_they_are_wanted_and_known():
    model = trained_digits("plain")
    under = UnderConditions(recipe=CONDITIONS)
    assert [s.change for s in of_training(FieldTraining(generic=0.0), known_digits(), model)] == [under]
    assert [s.change for s in of_training(FieldTraining(generic=0.0), known_digits(recipe=None), model)] == [None]
    without = of_training(FieldTraining(generic=1.0, conditions=False), known_digits(), model)
    assert [type(s.change) for s in without] == [GenericAugmentation]


def test_labelled_inputs_change_weakly_by_conditions_that_explain_and_generically_otherwise():
    model = trained_digits("plain")

    def change(arm: FieldTraining, unexplained: float) -> Any:
        (source,) = of_labels(arm, known_digits(20, unexplained=unexplained), model)
        return source.change

    assert change(FieldTraining(), EXPLAINED) == Sometimes(change=UnderConditions(recipe=CONDITIONS, strength=WEAK))
    for arm, u in ((FieldTraining(), UNEXPLAINED), (FieldTraining(conditions=False), EXPLAINED)):
        assert isinstance(change(arm, u), Sometimes)
        assert isinstance(change(arm, u).change, GenericAugmentation)
    assert change(FieldTraining(generic=0.0), UNEXPLAINED) is None


def test_unlabelled_rows_know_the_field_and_its_shares():
    model, known = trained_digits("plain"), known_digits(priors=tuple(i / 55 for i in range(1, 11)))
    found = FieldTraining(information=0.2, self_training=0.7).rows(model, known).unlabelled
    assert found is not None
    assert torch.equal(found.field.ids, known.field.ids)
    assert found.field.y is None
    assert torch.allclose(found.priors, torch.arange(1, 11, dtype=torch.float64) / 55)
    assert (found.pseudo_weight, found.information_weight) == (0.7, 0.2)
    assert found.change == UnderConditions(recipe=CONDITIONS, strength=STRONG)
    generic = FieldTraining(self_training=1.0).rows(model, known_digits(unexplained=UNEXPLAINED)).unlabelled
    assert generic is not None
    assert isinstance(generic.change, GenericAugmentation)
    neither = FieldTraining(information=0.0, self_training=0.0)
    assert neither.rows(model, known).unlabelled is None
    assert FieldTraining().rows(model, known_digits(field=known.field[:0])).unlabelled is None


def test_training_data_may_lack_the_last_classes():
    model, train = trained_digits("plain"), parts()["train"]
    known = known_digits(30, train=train[train.labels < 7])
    rows = FieldTraining().rows(model, known)
    assert rows.unlabelled is not None
    assert rows.unlabelled.priors.tolist()[7:] == [0.0] * 3
    arm = FieldTraining(schedule=SHORT, clean_rows=4, field_rows=12, unlabelled_rows=6)
    assert not same_weights(arm(model, known, generator=spawn(0)), model)


@pytest.mark.parametrize(
    "wrong",
    [
        {"generic": 1.5},
        {"information": -0.1},
        {"self_training": math.nan},
        {"clean_rows": 0},
        {"field_rows": 0},
        {"unlabelled_rows": 0},
    ],
)
def test_options_that_mean_nothing_are_rejected(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FieldTraining(**wrong)


# Information maximisation and self-training


def test_information_maximisation_by_hand():
    """Probabilities (1/2, 1/2) and (1, 0) for priors (2/5, 3/5)."""
    rows = UnlabelledRows(field=known_blobs().field, rows=2, priors=torch.tensor([0.4, 0.6]), information_weight=2.0)
    loss = rows.loss(torch.tensor([[0.0, 0.0], [60.0, 0.0]], dtype=torch.float64), torch.empty(0, 2))
    entropy = (math.log(2) + 0) / 2
    apart = 0.75 * math.log(0.75 / 0.4) + 0.25 * math.log(0.25 / 0.6)
    assert float(loss) == pytest.approx(2 * (entropy + apart), rel=1e-6)


def test_confident_outputs_in_the_shares_of_the_field_have_no_information_loss():
    rows = UnlabelledRows(field=known_blobs().field, rows=4, priors=torch.tensor([0.25, 0.75]), information_weight=1.0)
    sure = 60 * torch.eye(2, dtype=torch.float64)[[0, 1, 1, 1]]
    assert float(rows.loss(sure, torch.empty(0, 2))) == pytest.approx(0, abs=1e-9)
    assert float(rows.loss(sure.flip(1), torch.empty(0, 2))) > 0.1  # confident, in other shares


@given(seed=st.integers(0, 2**32 - 1), confidence=st.floats(0.5, 0.99))
def test_pseudo_labels_count_where_their_model_is_sure(seed, confidence):
    options = {"rows": 6, "priors": torch.full((3,), 1 / 3), "pseudo_weight": 0.4, "confidence": confidence}
    rows = UnlabelledRows(field=known_blobs().field, **options)
    z, q = (3 * torch.randn(6, 3, generator=spawn(seed, name)).double() for name in "zq")
    q = q.softmax(1)
    expected = sum(float(cross_entropy(z[i], q[i].argmax())) for i in range(6) if float(q[i].max()) >= confidence) / 6
    assert float(rows.loss(z, q)) == pytest.approx(0.4 * expected)


# Batch-norm statistics


def statistics_of(model: Classifier) -> list[Tensor]:
    return [v for name, v in weights_of(model).items() if "running" in name]


def with_batch_size(model: Classifier, rows: int) -> Classifier:
    return Classifier(model.unwrap(), mean=0.1, std=0.7, batch_size=rows)


def test_statistics_of_the_field_are_those_of_its_inputs():
    """Of one batch, layer by layer: mean and unbiased variance of what each layer reads."""
    model, known = with_batch_size(trained_digits("batch norm"), 1000), known_digits()
    found = BatchNormStatistics(mix=1.0)(model, known, generator=spawn(0)).unwrap()
    h = (known.field.x - 0.1) / 0.7
    for before, after in zip(model.unwrap(), found, strict=True):
        if isinstance(after, nn.BatchNorm2d):
            values = h.transpose(0, 1).flatten(1)
            assert torch.allclose(after.running_mean, values.mean(1), atol=1e-5)
            assert torch.allclose(after.running_var, values.var(1), rtol=1e-4)
            assert not torch.allclose(after.running_mean, before.running_mean, atol=1e-3)
        with torch.no_grad():
            h = before.train()(h)


def test_statistics_of_several_batches_are_their_means():
    whole, cut = with_batch_size(trained_digits("batch norm"), 1000), with_batch_size(trained_digits("batch norm"), 50)
    known, arm = known_digits(), BatchNormStatistics(mix=1.0)
    parts_of = [
        arm(whole, replace(known, field=known.field[50 * i : 50 * i + 50]), generator=spawn(0)) for i in range(8)
    ]
    found, means = arm(cut, known, generator=spawn(0)), zip(*map(statistics_of, parts_of), strict=True)
    for one, several in zip(statistics_of(found), means, strict=True):
        assert torch.allclose(one, torch.stack(several).mean(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mix", [0.25, 0.5, 0.9])
def test_mixes_lie_between_training_and_field_and_change_no_weight(mix):
    model, known = trained_digits("batch norm"), known_digits()
    mixed, whole = (BatchNormStatistics(mix=m)(model, known, generator=spawn(0)) for m in (mix, 1.0))
    for before, between, after in zip(*map(statistics_of, (model, mixed, whole)), strict=True):
        assert torch.allclose(between, (1 - mix) * before + mix * after, rtol=1e-4, atol=1e-6)
    for name, p in model.unwrap().named_parameters():
        assert torch.equal(p, mixed.unwrap().get_parameter(name))


@pytest.mark.parametrize("name", ["plain", "dropout", "transformer"])
def test_a_network_without_batch_norm_has_no_statistics(name):
    with pytest.raises(ValueError, match="no batch norm with statistics"):
        BatchNormStatistics()(model_of(name), known_digits(), generator=spawn(0))


def test_batch_norm_without_statistics_has_none_to_mix():
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8, track_running_stats=False))
    with pytest.raises(ValueError, match="no batch norm with statistics"):
        BatchNormStatistics()(Classifier(network), known_digits(), generator=spawn(0))


@pytest.mark.parametrize("mix", [0.0, -0.1, 1.1, math.nan])
def test_a_mix_is_a_positive_share(mix):
    with pytest.raises(ValueError, match="mix"):
        BatchNormStatistics(mix=mix)


# Cases, with the retraining of the papers


QUICK = {"epochs": 2, "batch_size": 32, "learning_rate": 0.01, "progress": False}
PATTERNS = CaseTraining(
    retrainer=Finetune(loss=ManifoldMixup(layers=("input", "1"), mix="cases"), **QUICK),
    fuzz=UncertaintyFuzz(pattern="LL", radius=0.3, population=8, tournament=3, generations=3, passes=8),
    seeds=40,
)
OPERATIONAL = CaseTraining(retrainer=OperationalFinetune(must_improve=False, **QUICK))


def test_operational_failures_alone_are_the_retraining_of_papers_1():
    """The same retrainer on training data and failures, drawn by mass times naturalness; no label is learned from."""
    model, suite = separator(), failing()
    known = known_blobs(40, failures=suite)
    trained = OPERATIONAL(model, known, generator=spawn(3))
    done = OPERATIONAL.retrainer(
        model,
        known.train,
        suite.samples(),
        weights=(suite["mass"] * suite["naturalness"]).double(),
        validation=known.clean,
        max_drop=1.0,
        generator=spawn(3),
    )
    assert done.record.changed
    assert same_weights(trained, done.model)
    without = OPERATIONAL(model, replace(known, taught=()), generator=spawn(3))
    assert same_weights(trained, without)
    equal = OPERATIONAL(model, replace(known, failures=replace(suite, columns={})), generator=spawn(3))
    assert not same_weights(trained, equal)


@pytest.mark.parametrize("failures", [None, failing()[:0]])
def test_without_failures_there_are_no_cases(failures):
    with pytest.raises(ValueError, match="there are no cases to learn from"):
        OPERATIONAL(separator(), known_blobs(failures=failures), generator=spawn(0))


def test_uncertainty_patterns_with_manifold_mixup_are_an_arm_that_is_off_by_default():
    """The retraining of papers/5; it leaves the model alone and returns another one."""
    model, known = trained_digits("dropout"), known_digits(30, failures=None)
    trained = PATTERNS(model, known, generator=spawn(0))
    assert not same_weights(trained, model)
    assert same_weights(trained, PATTERNS(model, known, generator=spawn(0)))
    assert not any(isinstance(arm, CaseTraining) for arm in default_arms(model, known).values())


def test_uncertainty_patterns_need_dropout():
    with pytest.raises(ValueError, match="dropout"):
        PATTERNS(trained_digits("plain"), known_digits(), generator=spawn(0))


def test_a_retrainer_that_diverges_fails_as_an_arm():
    """The retrainers of the papers return the original weights, which no race should judge."""
    with pytest.raises(TrainingDiverged, match="the loss became nan in epoch 1"):
        OPERATIONAL(Classifier(Breaking(2), strict=True), known_blobs(failures=failing()), generator=spawn(0))


# A user's own training


def own_steps(module: nn.Module, known: FieldKnowledge, generator: torch.Generator) -> nn.Module:
    """Three steps on the labels, with dropout."""
    optimiser = torch.optim.SGD(module.train().parameters(), lr=0.1)
    for _ in range(3):
        rows = torch.randint(len(known.labels), (16,), generator=generator)
        optimiser.zero_grad()
        cross_entropy(module(known.labels.x[rows]), known.labels.labels[rows]).backward()
        optimiser.step()
    return module


def own_nothing(module: nn.Module, known: FieldKnowledge, generator: torch.Generator) -> Any:
    return None


OWN = OwnTraining(function=own_steps)


def test_an_own_function_trains_a_copy():
    model, known = trained_digits("dropout"), known_digits(40)
    trained = OWN(model, known, generator=spawn(0))
    assert not same_weights(trained, model)
    assert not trained.unwrap().training


def test_an_own_function_that_returns_no_network_is_rejected():
    with pytest.raises(ValueError, match="must return the trained module, got NoneType"):
        OwnTraining(function=own_nothing)(separator(), known_blobs(10), generator=spawn(0))


# Every arm


FIELD = FieldTraining(schedule=SHORT, clean_rows=4, field_rows=16, unlabelled_rows=6, failures=True)
ARMS: dict[str, Retrainer] = {
    "labels and simulated field": replace(FIELD, failures=False),
    "labels alone": replace(FIELD, conditions=False, generic=0.0, information=0.0, failures=False),
    "generic augmentation": replace(FIELD, conditions=False, generic=1.0),
    "self-training": replace(FIELD, self_training=1.0, schedule=replace(SHORT, optimiser="sgd")),
    "operational failures, alone": OPERATIONAL,
    "operational failures": FIELD,
    "batch-norm statistics": BatchNormStatistics(),
    "own training": OWN,
    "uncertainty patterns": PATTERNS,
}


def fitting(arm: str, network: str) -> bool:
    return network == "batch norm" if arm == "batch-norm statistics" else arm != "uncertainty patterns"


CASES = [(arm, network) for arm in ARMS for network in NETWORKS if fitting(arm, network)]


@pytest.mark.parametrize(("name", "network"), [*CASES, ("uncertainty patterns", "dropout")])
def test_same_generator_same_weights_and_nothing_else_moves(name, network):
    arm, model = ARMS[name], trained_digits(network)
    cases = field_digits()[400:430]
    known = known_digits(40, failures=failures_of(model, cases, mass=torch.ones(30), naturalness=torch.rand(30)))
    before, stream, numbers = weights_of(model), torch.random.get_rng_state(), np.random.get_state()  # noqa: NPY002
    first, second = (arm(model, known, generator=spawn(1)) for _ in range(2))
    assert same_weights(first, second)
    assert not same_weights(first, model)
    assert torch.equal(stream, torch.random.get_rng_state())
    assert np.array_equal(numbers[1], np.random.get_state()[1])  # noqa: NPY002
    assert all(torch.equal(values, weights_of(model)[part]) for part, values in before.items())
    if name != "batch-norm statistics":  # which draws nothing
        assert not same_weights(first, arm(model, known, generator=spawn(2)))


@pytest.mark.parametrize("name", [name for name, arm in ARMS.items() if isinstance(arm, FieldTraining)])
def test_global_streams_do_not_matter(name):
    known, model = known_digits(40), trained_digits("dropout")
    first = ARMS[name](model, known, generator=spawn(1))
    torch.rand(3)
    assert same_weights(first, ARMS[name](model, known, generator=spawn(1)))


@pytest.mark.parametrize("name", ["labels and simulated field", "self-training", "generic augmentation"])
def test_arms_for_inputs_that_are_no_images(name):
    known = known_blobs(40)
    trained = ARMS[name](separator(), known, generator=spawn(0))
    assert not same_weights(trained, separator())


def test_default_arms_fit_what_is_known():
    normed, plain = model_of("batch norm"), model_of("plain")
    suite = failures_of(plain, field_digits()[400:430], mass=torch.ones(30), naturalness=torch.ones(30))
    arms = default_arms(normed, known_digits())
    mixes = [arm.mix for arm in arms.values() if isinstance(arm, BatchNormStatistics)]
    assert mixes == sorted(set(mixes))
    assert mixes
    assert isinstance(next(iter(arms.values())), FieldTraining)
    for model, known in ((plain, known_digits()), (normed, known_digits(field=field_digits()[:20]))):
        assert not any(isinstance(arm, BatchNormStatistics) for arm in default_arms(model, known).values())
    learning = [arm for arm in default_arms(plain, known_digits(failures=suite)).values() if arm.failures]
    assert len(learning) == 1
    assert not any(arm.failures for arm in default_arms(plain, known_digits(failures=suite[:0])).values())


# Generic augmentation


def images(channels: int, n: int = 24, bounds: tuple[float, float] = (0.0, 1.0), **options: Any) -> Tensor:
    low, high = bounds
    return low + (high - low) * torch.rand(n, channels, 8, 8, generator=spawn(0, channels), **options)


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32 - 1),
    channels=st.sampled_from([1, 3]),
    operations=st.integers(1, 3),
    bounds=st.sampled_from([(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_augmented_images_keep_shape_type_and_bounds(seed, channels, operations, bounds, dtype):
    x = images(channels, bounds=bounds).to(dtype)
    palette = default_palette((channels, 8, 8), bounds=bounds)
    change = GenericAugmentation(palette=palette, operations=operations, flip=True)
    out, again = (change(x, generator=spawn(seed)) for _ in range(2))
    assert (out.shape, out.dtype) == (x.shape, x.dtype)
    assert bounds[0] <= float(out.min()) <= float(out.max()) <= bounds[1]
    assert torch.equal(out, again)
    assert not torch.equal(out, change(x, generator=spawn(seed + 1)))
    assert float((out != x).flatten(1).any(1).double().mean()) > 0.5


def test_half_of_the_images_are_mirrored_if_they_may_be():
    x = images(1, 400)
    nothing = Recipe(severities={name: fixed(0.0) for name in ("rotation", "shift_x", "shift_y")})
    out = GenericAugmentation(palette=nothing, crop=0.0, flip=True)(x, generator=spawn(0))
    same, mirrored = (bool_rows(out, other) for other in (x, x.flip(-1)))
    assert bool((same ^ mirrored).all())
    assert 150 < int(mirrored.sum()) < 250
    assert torch.equal(GenericAugmentation(palette=nothing, crop=0.0)(x, generator=spawn(0)), x)


def bool_rows(a: Tensor, b: Tensor) -> Tensor:
    return (a == b).flatten(1).all(1)


@pytest.mark.parametrize("operations", [1, 2])
def test_each_image_is_shifted_and_under_so_many_operations(operations, monkeypatch):
    drawn = []
    monkeypatch.setattr(augmentation, "apply", lambda x, conditions: drawn.append(conditions) or x)
    palette = Recipe(severities={name: fixed(0.2) for name in ("shift_x", "shift_y", *OTHERS)})
    change = GenericAugmentation(palette=palette, operations=operations, crop=0.1)
    change(images(1, 3000), generator=spawn(0))
    (conditions,) = drawn
    column = dict(zip(conditions.names, conditions.values.unbind(1), strict=True))
    chosen = torch.stack([column[name] != 0 for name in OTHERS])
    assert bool((chosen.sum(0) <= operations).all())
    assert torch.allclose(chosen.double().mean(1), torch.tensor(operations / 6).double(), atol=0.05)  # each as often
    for name in ("shift_x", "shift_y"):
        assert -0.1 <= float(column[name].min()) < -0.09
        assert 0.09 < float(column[name].max()) <= 0.1


def asymmetric(n: int = 200) -> tuple[Classifier, Samples]:
    """A model that sees on which side an image is bright, and images that are."""
    y = torch.arange(n) % 2
    x = torch.full((n, 1, 8, 8), 0.2)
    x[y == 0, :, :, :4] = 0.9
    x[y == 1, :, :, 4:] = 0.9
    head = nn.Linear(64, 2)
    with torch.no_grad():
        side = torch.cat([torch.ones(8, 4), -torch.ones(8, 4)], 1).flatten()
        head.weight.copy_(torch.stack([side, -side]))
        head.bias.zero_()
    return Classifier(nn.Sequential(nn.Flatten(), head)), Samples(x, y)


def test_images_are_mirrored_only_for_a_model_that_knows_mirrored_ones():
    model, clean = asymmetric()
    assert not knows_flips(model, clean)
    change = generic_augmentation(model, clean, clean)
    assert isinstance(change, GenericAugmentation)
    assert not change.flip
    symmetric = Samples((clean.x + clean.x.flip(-1)) / 2, clean.y)
    assert knows_flips(model, symmetric)
    assert 0 < MAX_LOSS < 0.5


def test_other_inputs_get_noise_within_bounds():
    train = blobs(100, seed="train")
    change = generic_augmentation(separator(), train, train)
    assert isinstance(change, Jitter)
    assert torch.allclose(change.spread, train.x.std(0))
    x = torch.full((20000, 2), 0.5)
    out = change(x, generator=spawn(0))
    assert torch.allclose(out.std(0), change.share * change.spread, rtol=0.05)
    assert torch.equal(out, change(x, generator=spawn(0)))
    edge = change(torch.cat([torch.zeros(50, 2), torch.ones(50, 2)]), generator=spawn(1))
    assert 0 <= float(edge.min()) <= float(edge.max()) <= 1


# Interpolation


@given(share=st.floats(0, 1))
def test_weights_and_statistics_are_interpolated(share):
    a, b = trained_digits("batch norm"), model_of("batch norm")
    found, before, after = weights_of(interpolate(a, b, share)), weights_of(a), weights_of(b)
    for name, values in found.items():
        if values.is_floating_point():
            assert torch.allclose(values, (1 - share) * before[name] + share * after[name], atol=1e-6)
        else:
            assert torch.equal(values, after[name])


def test_interpolation_leaves_both_models_alone_and_ends_at_each():
    a, b = trained_digits("batch norm"), model_of("batch norm")
    before = [{name: values.clone() for name, values in weights_of(m).items()} for m in (a, b)]
    none, whole = interpolate(a, b, 0.0), interpolate(a, b, 1.0)
    assert same_weights(whole, b)
    assert torch.equal(none.predict(known_digits().field.x), a.predict(known_digits().field.x))
    for model, old in zip((a, b), before, strict=True):
        assert all(torch.equal(values, old[name]) for name, values in weights_of(model).items())


def test_frozen_parameters_stay_frozen_in_a_mix():
    network = initialise(perceptron, generator=spawn(3))
    network[0].weight.requires_grad_(False)
    mixed = interpolate(Classifier(network), Classifier(network), 0.5).unwrap()
    assert [name for name, p in mixed.named_parameters() if not p.requires_grad] == ["0.weight"]
