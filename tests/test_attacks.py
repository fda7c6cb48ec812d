"""Attacks against other libraries, against closed forms, and against their own laws."""

import math
from dataclasses import replace

import eagerpy
import foolbox
import numpy as np
import pytest
import torch
from art.attacks.evasion import BasicIterativeMethod, FastGradientMethod, ProjectedGradientDescentPyTorch
from art.attacks.evasion import CarliniL2Method as ArtCarliniWagner
from art.attacks.evasion import DeepFool as ArtDeepFool
from art.estimators.classification import PyTorchClassifier
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from operant import Classifier, Samples, spawn
from operant.generate import BIM, FGSM, PGD, CarliniWagner, DeepFool, from_art, from_foolbox
from operant.generate.engine import Goal, advance, judge, loss_gradient, project, random_point
from operant.testing import LAWS, toy_classifier, toy_seeds

RADIUS = 0.1
CARLINI_WAGNER = CarliniWagner(steps=100, step_size=0.05, initial_const=10.0, binary_search_steps=2)
SHIPPED = {
    "fgsm": FGSM(radius=RADIUS),
    "fgsm l2 random": FGSM(radius=0.5, norm="l2", random_start=True),
    "fgsm minimal": FGSM(radius=1.0, minimal=True, confidence=0.1),
    "fgsm l2 minimal": FGSM(radius=3.0, norm="l2", minimal=True),
    "bim": BIM(radius=RADIUS, stop_early=True),
    "bim l2 minimal": BIM(radius=1.0, norm="l2", minimal=True),
    "pgd": PGD(radius=RADIUS),
    "pgd l2 early": PGD(radius=0.5, norm="l2", stop_early=True, confidence=0.1),
    "pgd targeted": PGD(radius=RADIUS, target=2, stop_early=True),
    "deepfool": DeepFool(),
    "deepfool linf targeted": DeepFool(norm="linf", target=1, confidence=0.2),
    "carlini-wagner": CarliniWagner(steps=30, binary_search_steps=3, initial_const=0.1),
    "carlini-wagner targeted": CarliniWagner(steps=30, binary_search_steps=2, target=0, initial_const=1.0),
    "foolbox pgd": from_foolbox(foolbox.attacks.LinfPGD(steps=3), radius=RADIUS),
    "foolbox deepfool": from_foolbox(foolbox.attacks.L2DeepFoolAttack(steps=10)),
    "art fgsm": from_art(FastGradientMethod, eps=RADIUS, num_random_init=1, batch_size=4),
}


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_fuzzer_keeps_every_law(name, law):
    model = toy_classifier()
    if law.__name__ == "seeds_do_not_affect_each_other" and name == "art fgsm":
        # numpy draws ART's random start for a whole batch with one call, so it is compared without one
        law(from_art(FastGradientMethod, eps=RADIUS), model, toy_seeds(model))
    else:
        law(SHIPPED[name], model, toy_seeds(model))


# Against other libraries, on a trained LeNet-5


@pytest.fixture(scope="module")
def seeds(digits28):
    return digits28.test[:150]


def outcome(model, seeds, cases, norm):
    """Success and mean distance of the successes."""
    failing = model.predict(cases) != seeds.y
    difference = (cases - seeds.x)[failing].flatten(1)
    distance = difference.abs().amax(1) if norm == "linf" else difference.norm(dim=1)
    return float(failing.float().mean()), float(distance.mean())


def assert_same_outcome(model, seeds, suite, cases, norm):
    ours, theirs = (outcome(model, seeds, x, norm) for x in (suite.x, cases))
    assert abs(ours[0] - theirs[0]) <= 0.01
    assert ours[1] == pytest.approx(theirs[1], rel=0.01)


def run_foolbox(attack, lenet, seeds, radius):
    wrapped = foolbox.PyTorchModel(lenet.unwrap(), bounds=(0, 1))
    return attack(wrapped, seeds.x, seeds.y, epsilons=radius)[1]


def run_art(attack, lenet, seeds, **options):
    wrapped = PyTorchClassifier(
        model=lenet.unwrap(), loss=nn.CrossEntropyLoss(), input_shape=(1, 28, 28), nb_classes=10,
        clip_values=(0.0, 1.0), device_type="cpu",
    )  # fmt: skip
    x = attack(wrapped, **options).generate(x=seeds.x.numpy(), y=np.eye(10)[seeds.y.numpy()])
    return torch.as_tensor(x)


def test_gradient_is_torchs_own(lenet, seeds):
    logits, gradient = loss_gradient(lenet, Goal(), seeds.x, seeds.y)
    module, x = lenet.unwrap(), seeds.x.clone().requires_grad_()
    plain = module(x)
    cross_entropy(plain, seeds.y, reduction="sum").backward()
    assert torch.allclose(logits, plain, atol=1e-4)
    assert float((gradient - x.grad).norm() / x.grad.norm()) < 1e-3


@pytest.mark.parametrize(
    ("norm", "radius", "theirs"),
    [
        ("linf", 0.1, foolbox.attacks.LinfFastGradientAttack()),
        ("linf", 0.2, foolbox.attacks.LinfFastGradientAttack()),
        ("l2", 2.0, foolbox.attacks.L2FastGradientAttack()),
    ],
)
def test_fgsm_is_foolboxs(lenet, seeds, norm, radius, theirs, generator):
    suite = FGSM(radius=radius, norm=norm)(lenet, seeds, generator=generator)
    assert_same_outcome(lenet, seeds, suite, run_foolbox(theirs, lenet, seeds, radius), norm)


def test_fgsm_is_arts(lenet, seeds, generator):
    suite = FGSM(radius=RADIUS)(lenet, seeds, generator=generator)
    cases = run_art(FastGradientMethod, lenet, seeds, eps=RADIUS, batch_size=256)
    assert_same_outcome(lenet, seeds, suite, cases, "l2")


@pytest.mark.parametrize(
    ("norm", "radius", "theirs"),
    [("linf", 0.1, foolbox.attacks.LinfPGD), ("l2", 1.5, foolbox.attacks.L2PGD)],
)
def test_pgd_is_foolboxs_from_a_shared_start(lenet, seeds, norm, radius, theirs, generator):
    suite = PGD(radius=radius, norm=norm)(lenet, seeds, generator=generator)
    start = random_point(seeds.x, radius, norm, generator=torch.Generator().manual_seed(0)).clamp(0, 1)
    attack = theirs(steps=10, rel_stepsize=0.25)
    attack.get_random_start = lambda x0, epsilon: eagerpy.astensor(start)
    assert_same_outcome(lenet, seeds, suite, run_foolbox(attack, lenet, seeds, radius), "l2")


def test_bim_is_arts_pgd_without_random_start(lenet, seeds, generator):
    suite = BIM(radius=RADIUS, step_size=0.02)(lenet, seeds, generator=generator)
    options = {"eps": RADIUS, "eps_step": 0.02, "max_iter": 10, "batch_size": 256, "verbose": False}
    for attack in (ProjectedGradientDescentPyTorch, BasicIterativeMethod):
        assert_same_outcome(lenet, seeds, suite, run_art(attack, lenet, seeds, **options), "l2")


@pytest.mark.parametrize(
    ("norm", "theirs"), [("l2", foolbox.attacks.L2DeepFoolAttack()), ("linf", foolbox.attacks.LinfDeepFoolAttack())]
)
def test_deepfool_is_foolboxs(lenet, seeds, norm, theirs, generator):
    suite = DeepFool(norm=norm)(lenet, seeds, generator=generator)
    assert len(suite.failures()) == len(seeds)
    assert_same_outcome(lenet, seeds, suite, run_foolbox(theirs, lenet, seeds, None), norm)


@pytest.mark.slow
def test_deepfool_is_arts(lenet, seeds, generator):
    some = lenet.correct(seeds)[:20]  # from a misclassified seed ART leaves the wrong class
    suite = DeepFool(overshoot=0.0)(lenet, some, generator=generator)
    cases = run_art(ArtDeepFool, lenet, some, epsilon=0.02, max_iter=50, batch_size=20, verbose=False)
    ours, theirs = outcome(lenet, some, suite.x, "l2"), outcome(lenet, some, cases, "l2")
    assert ours[0] == theirs[0] == 1.0
    assert 1.02 * ours[1] == pytest.approx(theirs[1], rel=0.01)  # ART overshoots once more when it is across


@pytest.mark.parametrize(
    "options",
    [
        {"binary_search_steps": 1, "initial_const": 10.0},
        pytest.param({"binary_search_steps": 4}, marks=pytest.mark.slow),
    ],
)
def test_carlini_wagner_is_foolboxs(lenet, seeds, options, generator):
    some = seeds[:24]
    options = {"steps": 100, "initial_const": 1.0, **options}
    suite = CarliniWagner(**options)(lenet, some, generator=generator)
    cases = run_foolbox(foolbox.attacks.L2CarliniWagnerAttack(**options), lenet, some, None)
    assert_same_outcome(lenet, some, suite, cases, "l2")


@pytest.mark.slow
def test_carlini_wagner_is_no_further_than_arts(lenet, seeds, generator):
    some = seeds[:6]
    suite = CarliniWagner(steps=200, initial_const=1.0, binary_search_steps=4)(lenet, some, generator=generator)
    options = {"max_iter": 20, "binary_search_steps": 4, "initial_const": 1.0, "batch_size": 6, "verbose": False}
    success, distance = outcome(lenet, some, run_art(ArtCarliniWagner, lenet, some, **options), "l2")
    assert len(suite.failures()) / len(some) >= success
    assert float(suite.failures().distances("l2").mean()) <= 1.01 * distance


# Against closed forms, on a linear model: the boundary is a hyperplane, so every distance is known


@pytest.fixture
def linear():
    g = spawn(1, "linear")
    module = nn.Linear(12, 3).double()
    nn.init.normal_(module.weight, generator=g)
    nn.init.zeros_(module.bias)
    model = Classifier(module, bounds=(-100.0, 100.0))
    x = torch.randn(9, 12, dtype=torch.float64, generator=g)
    return model, Samples(x, model.predict(x))


def nearest_boundary(model, seeds, order):
    """The distance of each seed to the nearest boundary, by the formula of a point and a hyperplane."""
    w = model.unwrap().weight.detach()
    z = model.batched_logits(seeds.x)
    gaps = z.gather(1, seeds.y[:, None]) - z
    lengths = torch.linalg.vector_norm(w[seeds.y][:, None] - w, ord=order, dim=2)
    return (gaps / lengths).nan_to_num(nan=torch.inf).amin(1)


@pytest.mark.parametrize(("norm", "dual"), [("l2", 2), ("linf", 1)])
def test_deepfool_finds_the_nearest_hyperplane(linear, norm, dual, generator):
    model, seeds = linear
    suite = DeepFool(norm=norm, overshoot=0.0)(model, seeds, generator=generator)
    assert len(suite.failures()) == len(seeds)
    assert torch.allclose(suite.distances(norm), nearest_boundary(model, seeds, dual), rtol=5e-3, atol=1e-3)


def test_deepfool_with_confidence_stops_where_the_margin_is_reached(linear, generator):
    """Against one other class the distance to a margin c is (gap + c) / ‖w‖, whatever steps lead there."""
    model, seeds = linear
    suite = DeepFool(overshoot=0.0, confidence=1.5)(model, seeds, generator=generator)
    assert float(suite["margin"].min()) >= 1.5
    weight, logits = model.unwrap().weight.detach(), model.batched_logits(seeds.x)
    gaps = logits.gather(1, seeds.y[:, None]) - logits + 1.5
    lengths = (weight[seeds.y][:, None] - weight).norm(dim=2)
    nearest = (gaps / lengths).amin(1)  # infinite for the label itself
    assert torch.allclose(suite.distances("l2"), nearest, rtol=0.03, atol=2e-3)


def test_carlini_wagner_finds_the_nearest_hyperplane(linear, generator):
    model, seeds = linear
    model = Classifier(model.unwrap(), bounds=(-5.0, 5.0))
    attack = CarliniWagner(steps=400, binary_search_steps=6, initial_const=0.01, step_size=0.02)
    suite = attack(model, seeds, generator=generator)
    assert len(suite.failures()) == len(seeds)
    assert torch.allclose(suite.distances("l2"), nearest_boundary(model, seeds, 2), rtol=0.02, atol=2e-3)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_minimal_fgsm_is_the_smallest_step_along_the_gradient(norm, generator):
    """With two classes the gradient points straight at the only boundary."""
    g = spawn(2, "two classes")
    module = nn.Linear(8, 2).double()
    nn.init.normal_(module.weight, generator=g)
    model = Classifier(module, bounds=(-100.0, 100.0))
    x = torch.randn(7, 8, dtype=torch.float64, generator=g)
    seeds = Samples(x, model.predict(x))
    expected = nearest_boundary(model, seeds, 1 if norm == "linf" else 2)
    for attack in (FGSM(radius=20.0, norm=norm, minimal=True), BIM(radius=20.0, norm=norm, minimal=True)):
        suite = attack(model, seeds, generator=generator)
        assert len(suite.failures()) == len(seeds)
        assert torch.allclose(suite.distances(norm), expected, atol=20 / 500, rtol=0.01)


def test_minimal_is_smaller_than_the_ball_it_searches(lenet, seeds, generator):
    right = lenet.correct(seeds)
    for attack in (FGSM(radius=1.0, minimal=True), BIM(radius=1.0, minimal=True)):
        found = attack(lenet, right, generator=generator).failures()
        step = found.distances("linf")
        assert len(found) > 0.9 * len(right)
        assert float(step.mean()) < 0.2
        shorter = found.x0 + 0.9 * (found.x - found.x0)
        assert float((lenet.predict(shorter) == found.label).float().mean()) > 0.9


# What the options promise


def test_stop_early_fails_the_same_seeds_nearer_to_them(lenet, seeds, generator):
    whole = PGD(radius=RADIUS)(lenet, seeds, generator=spawn(0))
    early = PGD(radius=RADIUS, stop_early=True)(lenet, seeds, generator=spawn(0))
    share = [len(s.failures()) / len(s) for s in (whole, early)]
    assert abs(share[0] - share[1]) <= 0.01
    assert float(early.distances("l2").mean()) < float(whole.distances("l2").mean())


@pytest.mark.parametrize("attack", [PGD(radius=0.4, steps=20, stop_early=True), DeepFool(), CARLINI_WAGNER])
def test_targeted_attacks_reach_the_target_and_skip_its_seeds(lenet, seeds, attack):
    some = seeds[:40]
    suite = replace(attack, target=3)(lenet, some, generator=spawn(0))
    assert suite.skipped == int((some.y == 3).sum()) > 0
    assert set(suite["target"].tolist()) == {3.0}
    assert float((suite.prediction == 3).float().mean()) > 0.9
    assert torch.equal(suite.prediction == 3, suite["margin"] > 0)


@pytest.mark.parametrize(
    "attack",
    [
        PGD(radius=0.5, steps=30, stop_early=True),
        FGSM(radius=1.0, minimal=True),
        BIM(radius=0.5, steps=20, minimal=True),
        DeepFool(),
        CarliniWagner(steps=100, initial_const=1.0, binary_search_steps=3),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_confidence_is_kept_by_the_final_pass(lenet, seeds, attack):
    some = seeds[:30]
    plain, sure = (replace(attack, confidence=c)(lenet, some, generator=spawn(0)) for c in (0.0, 2.0))
    reached = sure["margin"] > 0
    assert float(reached.float().mean()) > 0.6
    assert float(sure["margin"][reached].min()) >= 1.99
    assert float(plain["margin"].median()) < 2.0


def test_cases_of_minimal_attacks_fail_one_by_one_too(lenet, seeds, generator):
    """They lie past the boundary, so rounding in another batch size does not bring them back."""
    for attack in (DeepFool(), CarliniWagner(steps=60, initial_const=1.0, binary_search_steps=2)):
        suite = attack(lenet, seeds[:20], generator=generator).failures()
        single = torch.cat([lenet.predict(row[None]) for row in suite.x])
        plain = lenet.unwrap()(suite.x).argmax(1)
        assert torch.equal(single, suite.prediction)
        assert bool((plain != suite.label).all())


@pytest.mark.parametrize(
    "attack", [PGD(radius=RADIUS), PGD(radius=RADIUS, stop_early=True), DeepFool(), FGSM(radius=RADIUS)]
)
def test_batch_size_changes_no_bit_for_a_shipped_network(lenet, seeds, attack):
    suites = []
    for batch_size in (16, 50, 256):
        model = lenet.rewrap(lenet.unwrap())
        model.batch_size = batch_size
        suites.append(attack(model, seeds[:90], generator=spawn(0)).digest())
    assert len(set(suites)) == 1


# The parts


@given(seed=st.integers(0, 2**32 - 1), radius=st.floats(0.01, 3.0), norm=st.sampled_from(["linf", "l2"]))
@settings(max_examples=50)
def test_projection_stays_in_ball_and_bounds_and_leaves_insiders_alone(seed, radius, norm):
    g = spawn(seed)
    x0 = torch.rand(5, 2, 3, dtype=torch.float64, generator=g)
    x = x0 + 4 * torch.randn(5, 2, 3, dtype=torch.float64, generator=g)
    r = torch.full((5,), radius, dtype=torch.float64)
    z = project(x, x0, r, norm, (0.0, 1.0))
    size = (z - x0).flatten(1)
    assert float((size.abs().amax(1) if norm == "linf" else size.norm(dim=1)).max()) <= radius + 1e-9
    assert 0 <= float(z.min()) <= float(z.max()) <= 1
    assert torch.allclose(project(z, x0, r, norm, (0.0, 1.0)), z, atol=1e-12)
    inside = random_point(x0, radius, norm, generator=g)
    assert torch.allclose(project(inside, x0, r, norm, (-100.0, 100.0)), inside, atol=1e-6)


def test_random_points_fill_the_ball():
    x0 = torch.zeros(20000, 3)
    radii = random_point(x0, 2.0, "l2", generator=spawn(3)).norm(dim=1) / 2
    assert float(radii.max()) <= 1 + 1e-6
    assert float((radii**3).mean()) == pytest.approx(0.5, abs=0.01)  # r^d is uniform in a ball of dimension d


@given(seed=st.integers(0, 2**32 - 1), target=st.one_of(st.none(), st.integers(0, 3)))
@settings(max_examples=50)
def test_margin_is_positive_exactly_when_the_goal_is_met(seed, target):
    g = spawn(seed)
    logits = torch.randn(20, 4, generator=g)
    y = torch.randint(4, (20,), generator=g)
    met = logits.argmax(1) != y if target is None else logits.argmax(1) == target
    assert torch.equal(Goal(target=target).margin(logits, y) > 0, met)


def test_rows_leave_with_their_state_and_keep_their_place():
    """Rows count up to their own limit and leave: the loop must not mix them up, nor work on those that left."""
    limits = torch.tensor([3.0, 1.0, 5.0, 2.0])
    seen = []

    def step(rows):
        seen.append(len(rows["x"]))
        x = rows["x"] + 1
        return rows | {"x": x}, x >= rows["limit"]

    final = advance({"x": torch.zeros(4), "limit": limits}, step, steps=10)
    assert torch.equal(final["x"], limits)
    assert seen == [4, 3, 2, 1, 1]


def test_seeds_that_gave_no_case_were_attempted_all_the_same(lenet, seeds):
    some = judge(lenet, seeds, seeds.x[:2], method="few", origin=torch.tensor([0, 3]))
    assert (len(some), some.attempted, some.skipped) == (2, len(seeds), 0)


def test_a_targeted_attack_on_seeds_of_the_target_makes_nothing(lenet, seeds, generator):
    threes = seeds[seeds.y == 3]
    suite = PGD(radius=0.1, target=3)(lenet, threes, generator=generator)
    assert (len(suite), suite.attempted, suite.skipped) == (0, 0, len(threes))


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_vanishing_gradients_do_not_carry_cases_out_of_the_ball(norm, generator):
    """Cross-entropy of a very sure model has gradients whose squares are lost in float32."""
    module = nn.Linear(6, 2)
    nn.init.normal_(module.weight, std=30.0, generator=spawn(4))
    model = Classifier(module)
    x = torch.rand(20, 6, generator=spawn(5))
    seeds = Samples(x, model.predict(x))
    for attack in (FGSM(radius=0.1, norm=norm, minimal=True), PGD(radius=0.1, norm=norm), BIM(radius=0.1, norm=norm)):
        assert float(attack(model, seeds, generator=generator).distances(norm).max()) <= 0.1 + 1e-6


def test_carlini_wagner_means_the_same_in_other_units(digits28, lenet, seeds, generator):
    attack = CarliniWagner(steps=60, initial_const=10.0, step_size=0.05, binary_search_steps=1)
    small = attack(lenet, seeds[:12], generator=generator)
    bytes_ = Classifier(lenet.unwrap(), bounds=(0.0, 255.0), mean=0.0, std=255.0)
    large = attack(bytes_, Samples(255 * seeds.x[:12], seeds.y[:12]), generator=generator)
    assert len(small.failures()) == len(large.failures()) > 6
    assert torch.allclose(255 * small.distances("l2"), large.distances("l2"), rtol=0.02)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: PGD(radius=0), "radius must be positive and finite, got 0"),
        (lambda: FGSM(radius=-1.0), "radius must be positive"),
        (lambda: BIM(radius=math.nan), "radius must be positive"),
        (lambda: PGD(radius=0.1, norm="l1"), "norm must be one of linf, l2"),
        (lambda: PGD(radius=0.1, steps=0), "steps must be at least 1"),
        (lambda: PGD(radius=0.1, step_size=0.0), "step_size must be positive"),
        (lambda: PGD(radius=0.1, confidence=1.0), "only takes effect with stop_early"),
        (lambda: FGSM(radius=0.1, minimal=True, random_start=True), "leave random_start off"),
        (lambda: DeepFool(candidates=1), "candidates must be at least 2"),
        (lambda: DeepFool(confidence=-1.0), "confidence must be 0 or more"),
        (lambda: CarliniWagner(initial_const=0.0), "initial_const must be positive"),
        (lambda: PGD(radius=0.1, target=-1), "target must be a class"),
        (lambda: PGD(radius=0.1, target=1.5), "target must be a class"),
        (lambda: PGD(radius=math.inf), "radius must be positive and finite"),
        (lambda: DeepFool(overshoot=math.nan), "overshoot must be 0 or more"),
        (lambda: DeepFool(confidence=math.nan), "confidence must be 0 or more"),
        (lambda: from_foolbox(foolbox.attacks.LinfPGD(), radius=0), "radius must be positive"),
        (lambda: from_art(FastGradientMethod, targeted=True), "targeted must not be set"),
    ],
)
def test_bad_options_are_rejected(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_target_the_model_does_not_have_is_rejected(lenet, seeds, generator):
    with pytest.raises(ValueError, match="target must be one of the model's 10 classes, got 10"):
        PGD(radius=0.1, target=10)(lenet, seeds, generator=generator)


def test_seeds_of_another_shape_are_rejected(lenet, generator):
    with pytest.raises(ValueError, match=r"the module fails on inputs of shape \(1, 9, 9\)"):
        PGD(radius=0.1)(lenet, Samples(torch.rand(4, 1, 9, 9), torch.arange(4)), generator=generator)
