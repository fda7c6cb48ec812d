"""Class priors in the field: known shifts are found, intervals hold, other shifts detected, bad input is rejected."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from torch import nn

from operant import Classifier, Samples, load_digits, results, spawn
from operant.conditions import Recipe, apply, uniform
from operant.networks import LeNet5, fit, initialise
from operant.profile import FittedConditions, Priors, estimate_priors
from operant.profile._estimators import Outputs, bbse, mlls, rlls, saerens
from operant.profile.label_shift import OR_CONDITIONS, _combined, _Estimate, _fitted

SHIFTS = {
    "uniform": np.full(10, 0.1),
    "zipf": (1 / np.arange(1, 11)) / (1 / np.arange(1, 11)).sum(),
    "one class missing": np.array([0.0, *[1 / 9] * 9]),
}


def resampled(samples: Samples, priors: np.ndarray, n: int, generator: torch.Generator) -> Samples:
    """n inputs of these priors, drawn with replacement."""
    classes = torch.multinomial(torch.from_numpy(priors), n, replacement=True, generator=generator)
    rows = torch.empty(n, dtype=torch.int64)
    for c in range(len(priors)):
        members = (samples.labels == c).nonzero().flatten()
        here = classes == c
        rows[here] = members[torch.randint(len(members), (int(here.sum()),), generator=generator)]
    return samples[rows]


class Blobs(nn.Module):
    """The exact log posterior of Gaussians around 0, 1 and 2, under even priors; overconfident by a factor."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * -0.5 * ((x - torch.arange(3.0).to(x)) / 0.6) ** 2


def blobs(priors: list[float], n: int, generator: torch.Generator) -> Samples:
    y = torch.multinomial(torch.tensor(priors), n, replacement=True, generator=generator)
    return Samples(y[:, None] + 0.6 * torch.randn(n, 1, generator=generator), y)


@pytest.fixture(scope="module")
def toy() -> Classifier:
    return Classifier(Blobs(3.0), bounds=(-9.0, 9.0))


@pytest.mark.parametrize("method", ["mlls", "bbse", "rlls"])
def test_known_priors_come_out_and_calibration_undoes_overconfidence(toy, method: str) -> None:
    labelled, field = blobs([1 / 3] * 3, 5000, spawn(0)), blobs([0.7, 0.25, 0.05], 5000, spawn(1))
    priors = estimate_priors(toy, labelled, field, method=method, resamples=40, generator=spawn(2))
    assert priors.values == pytest.approx((0.7, 0.25, 0.05), abs=0.03 if method == "mlls" else 0.05)
    assert sum(priors.values) == pytest.approx(1)
    assert all(low <= v <= high for low, v, high in zip(priors.lower, priors.values, priors.upper, strict=True))
    assert priors.findings == ()
    assert priors.weights[0] == pytest.approx(priors.values[0] / priors.labelled[0])


@pytest.mark.parametrize("shift", SHIFTS)
def test_digits_resampled_to_known_priors(lenet, digits28, shift: str) -> None:
    parts = digits28.test.split(labelled=0.5, field=0.5)
    field = resampled(parts["field"], SHIFTS[shift], 1500, spawn(0, shift))
    labelled = Samples.concat([parts["labelled"]])
    priors = estimate_priors(lenet, labelled, field, resamples=40, generator=spawn(1))
    off = np.abs(np.array(priors.values) - SHIFTS[shift])
    assert (off.max() < 0.07, off.mean() < 0.02) == (True, True)  # weights differ a little from machine to machine


@pytest.fixture(scope="module")
def untrained_on() -> tuple[Classifier, Samples]:
    """A network that has learned from 450 digits, and the 1347 others."""
    digits = load_digits(size=28)
    every = Samples.concat([digits.train, digits.test])
    every = every[torch.randperm(len(every), generator=spawn(0, "deal"))]
    start = initialise(LeNet5, generator=spawn(0, "weights"))
    fitted = fit(start, every[:450], epochs=12, batch_size=32, generator=spawn(0, "training"), progress=False)
    return Classifier(fitted.module), every[450:]


def dealt(rest: Samples, priors: np.ndarray, n: int, generator: torch.Generator) -> tuple[Samples, Samples]:
    """400 labelled digits, and n others of these priors, none twice."""
    counts = torch.bincount(
        torch.multinomial(torch.from_numpy(priors), n, replacement=True, generator=generator), minlength=10
    )
    order = torch.randperm(len(rest), generator=generator)
    field = torch.cat([order[rest.labels[order] == c][: int(counts[c])] for c in range(10)])
    assert len(field) == n
    left = order[~torch.isin(order, field)]
    left = left[torch.randperm(len(left), generator=generator)]
    return rest[left[:400]], rest[field]


@pytest.mark.slow
@pytest.mark.parametrize("shift", SHIFTS)
def test_intervals_cover_on_digits(untrained_on, shift: str) -> None:
    """100 repetitions; every class's interval is judged, ten at once, so each at level .001: at least 87 of 100."""
    model, rest = untrained_on
    covered, truth = np.zeros(10), SHIFTS[shift]
    for repetition in range(100):
        labelled, field = dealt(rest, truth, 250, spawn(repetition, shift))
        priors = estimate_priors(model, labelled, field, generator=spawn(repetition, "resamples"))
        covered += (np.array(priors.lower) <= truth) & (truth <= np.array(priors.upper))
    print(shift, covered)
    assert covered.min() >= 87, covered
    assert covered.mean() >= 93, covered


def test_one_class_in_the_field_is_a_finding(toy) -> None:
    labelled, field = blobs([1 / 3] * 3, 400, spawn(0)), Samples(torch.full((50, 1), 2.5) + torch.rand(50, 1))
    priors = estimate_priors(toy, labelled, field, resamples=20, generator=spawn(2))
    assert "one class" in [finding.name for finding in priors.findings]
    assert priors.values[2] == pytest.approx(1, abs=0.05)  # the mean with BBSE, since no class is so far out


def test_expectation_maximisation_agrees_with_quapy(lenet, digits28) -> None:
    quapy = pytest.importorskip("quapy.method.aggregative", reason="an oracle of the development environment")
    p = lenet.probs(resampled(digits28.test, SHIFTS["zipf"], 800, spawn(5)).x).double().numpy()
    source = np.bincount(digits28.train.labels.numpy(), minlength=10) / len(digits28.train)
    theirs, _ = quapy.EMQ.EM(source, p, epsilon=1e-9)
    assert np.abs(saerens(p, source) - theirs).max() < 1e-3


def test_the_likelihood_is_highest_at_the_estimate(generator) -> None:
    p = softmax(2 * torch.randn(400, 4, generator=generator).numpy().astype(np.float64), axis=1)
    source = np.array([0.4, 0.3, 0.2, 0.1])
    found = saerens(p, source)

    def likelihood(priors: np.ndarray) -> float:
        return float(np.log(p @ (priors / source)).sum())

    for other in torch.distributions.Dirichlet(torch.ones(4)).sample((200,)).numpy().astype(np.float64):
        for step in (0.01, 0.3):
            assert likelihood((1 - step) * found + step * other) <= likelihood(found) + 1e-6


def test_bbse_inverts_the_confusion_matrix_exactly() -> None:
    """Predictions that follow known confusion: the priors are those that give the field's predictions."""
    logits = np.eye(3)[[0] * 8 + [1] * 2 + [1] * 10 + [2] * 5 + [0] * 5]
    y = np.array([0] * 10 + [1] * 10 + [2] * 10)
    field = np.eye(3)[[0] * 60 + [1] * 25 + [2] * 15]  # priors .5625, .1375, .3 under that confusion
    outputs = Outputs(labelled=logits, y=y, field=field, start=np.zeros(4))
    assert bbse(outputs) == pytest.approx([0.5625, 0.1375, 0.3])
    assert rlls(outputs) == pytest.approx([0.5625, 0.1375, 0.3], abs=0.08)
    assert mlls(outputs).sum() == pytest.approx(1)


SHIFTED = {
    "wider classes": lambda x, g: x + 1.4 * torch.randn(x.shape, generator=g).clamp(-3, 3),
    "a new kind of input": lambda x, g: torch.where(torch.rand(len(x), 1, generator=g) < 0.3, -3.0 + 0.1 * x, x),
    "less contrast": lambda x, g: 1 + 0.3 * (x - 1),
}


@pytest.mark.parametrize("what", SHIFTED)
def test_more_than_label_shift_is_detected(toy, what: str) -> None:
    labelled, field = blobs([1 / 3] * 3, 2000, spawn(0)), blobs([0.6, 0.3, 0.1], 2000, spawn(1))
    changed = Samples(SHIFTED[what](field.x, spawn(3)))
    priors = estimate_priors(toy, labelled, changed, resamples=40, generator=spawn(2))
    assert [finding.name for finding in priors.findings] == ["not pure label shift"]
    assert priors.method == "mean of mlls and bbse"
    assert priors.explained is not None
    assert not priors.explained.explained
    pure = estimate_priors(toy, labelled, field, resamples=40, generator=spawn(2))
    width = np.array(priors.upper) - np.array(priors.lower)
    assert priors.withheld or (width > np.array(pure.upper) - np.array(pure.lower)).all()


def test_withheld_intervals_are_shown_as_dashes_and_stored(toy, tmp_path) -> None:
    labelled, field = blobs([1 / 3] * 3, 500, spawn(0)), blobs([0.6, 0.3, 0.1], 500, spawn(1))
    priors = estimate_priors(toy, labelled, Samples(1 + 0.1 * (field.x - 1)), resamples=20, generator=spawn(2))
    assert priors.withheld
    assert sum(priors.values) == pytest.approx(1)
    assert "(mean of mlls and bbse, intervals withheld)" in str(priors)
    assert "no interval is given" in priors.findings[0].problem
    assert "Label a hundred random field inputs" in priors.findings[0].advice
    results.save(priors, tmp_path / "priors.json")
    again = results.load(tmp_path / "priors.json", Priors)
    assert (again.values, str(again), again.withheld) == (priors.values, str(priors), True)


def coverage(toy, change, repetitions: int, resamples: int = 40) -> tuple[int, int]:
    """How many intervals of the first class are stated, and how many of these hold the true share."""
    stated = covered = 0
    for i in range(repetitions):
        labelled, field = blobs([1 / 3] * 3, 400, spawn(i, 0)), blobs([0.6, 0.3, 0.1], 400, spawn(i, 1))
        x = field.x if change is None else change(field.x, spawn(i, 3))
        priors = estimate_priors(toy, labelled, Samples(x), resamples=resamples, generator=spawn(i, 2))
        stated += not priors.withheld
        covered += priors.lower[0] <= 0.6 <= priors.upper[0]
    return stated, covered


def test_intervals_of_pure_label_shift_are_stated_and_cover(toy) -> None:
    stated, covered = coverage(toy, None, 20)
    assert stated == 20
    assert covered >= 16


@pytest.mark.slow
def test_intervals_cover_as_often_as_they_say(toy) -> None:
    stated, covered = coverage(toy, None, 100, resamples=200)
    assert stated >= 98
    assert covered >= 89  # not rejected against 95 % of 100 at level .01


@pytest.mark.slow
@pytest.mark.parametrize("what", SHIFTED)
def test_wrong_intervals_are_rare_where_the_shift_is_not_pure(toy, what: str) -> None:
    """Overlapping classes on a line are the hardest case: without the test, nearly all intervals are wrong."""
    stated, covered = coverage(toy, SHIFTED[what], 40, resamples=20)
    assert stated - covered <= 4


# With conditions


def fitted(recipe: Recipe, priors: tuple[float, ...]) -> FittedConditions:
    return FittedConditions(
        recipe=recipe,
        parameters=(),
        before=3.0,
        after=0.2,
        floor=0.1,
        floor_high=0.2,
        priors=priors,
        confidence=0.95,
        findings=(),
    )


@pytest.fixture(scope="module")
def turned(digits28) -> tuple[Samples, Samples, Recipe]:
    """Labelled digits, and others of Zipf's shares that are turned and blurred."""
    parts = digits28.test.split(labelled=0.5, field=0.5)
    recipe = Recipe(severities={"rotation": uniform(20, 40), "blur": uniform(1.5, 3)})
    field = resampled(parts["field"], SHIFTS["zipf"], 600, spawn(0, "turned"))
    x = apply(field.x, recipe.draw(600, generator=spawn(1, "turned")))
    return parts["labelled"], Samples(x, groups=tuple(map(str, field.ids.tolist()))), recipe  # drawn with replacement


def test_conditions_leave_only_the_label_shift(lenet, turned) -> None:
    labelled, field, recipe = turned
    options = {"resamples": 40, "generator": spawn(2)}
    plain = estimate_priors(lenet, labelled, field, **options)
    known = estimate_priors(lenet, labelled, field, conditions=fitted(recipe, tuple(SHIFTS["zipf"])), **options)
    assert [finding.name for finding in plain.findings] == ["not pure label shift"]
    assert plain.findings[0].advice.endswith(OR_CONDITIONS)
    assert known.findings == ()
    assert known.method == "mlls under the conditions, combined with fitted shares"
    assert np.abs(np.array(known.values) - SHIFTS["zipf"]).sum() / 2 < 0.12
    assert np.abs(np.array(known.values) - SHIFTS["zipf"]).sum() < np.abs(plain.values - SHIFTS["zipf"]).sum()


def test_wrong_conditions_and_shares_do_little_harm(lenet, digits28) -> None:
    """A field of pure label shift: conditions that are not there do not explain it, so they are not used."""
    parts = digits28.test.split(labelled=0.5, field=0.5)
    field = Samples(resampled(parts["field"], SHIFTS["zipf"], 600, spawn(0)).x)
    wrong = fitted(Recipe(severities={"blur": uniform(2, 4)}), (*[0.0] * 9, 1.0))
    options = {"resamples": 40, "generator": spawn(1)}
    with_them, without = (
        estimate_priors(lenet, parts["labelled"], field, conditions=c, **options) for c in (wrong, None)
    )
    assert with_them.method == "mlls, combined with fitted shares"
    assert np.abs(np.array(with_them.values) - without.values).sum() / 2 < 0.03


def test_shares_of_classes_that_clean_images_lack_are_the_found_ones() -> None:
    recipe, found = Recipe(severities={}), np.array([0.2, 0.2, 0.6])
    assert _fitted(fitted(recipe, (0.75, 0.25)), found) == pytest.approx([0.3, 0.1, 0.6])
    assert _fitted(fitted(recipe, ()), found) is None
    assert _fitted(fitted(recipe, (0.1, 0.2, 0.7)), found) == pytest.approx([0.1, 0.2, 0.7])


def estimated(value: np.ndarray, deviation: float, generator: torch.Generator) -> _Estimate:
    noise = deviation * torch.randn(200, len(value), generator=generator, dtype=torch.float64).numpy()
    noise -= noise.mean(1, keepdims=True)
    counts = np.full(len(value), 100.0)
    made = {"value": value, "check": value, "resampled": value + noise, "check_resampled": value + noise}
    return _Estimate(**made, counts=counts, inputs=10**6)


@given(seed=st.integers(0, 2**32 - 1), k=st.integers(2, 20), deviation=st.floats(0, 0.2))
def test_the_combination_lies_between(seed: int, k: int, deviation: float) -> None:
    shares = torch.rand(2, k, generator=spawn(seed), dtype=torch.float64).numpy() + 1e-3
    value, other = shares / shares.sum(1, keepdims=True)
    found = _combined(estimated(value, deviation, spawn(seed, 1)), other)
    assert found.sum() == pytest.approx(1)
    assert (np.minimum(value, other) - 1e-12 <= found).all()
    assert (found <= np.maximum(value, other) + 1e-12).all()


@pytest.mark.parametrize("bias", [0.0, 0.02, 0.05, 0.3])
def test_the_combination_is_never_worse_on_average(bias: float) -> None:
    """The law of Green and Strawderman; noise of .03 per class, fitted shares that are off by the bias."""
    truth, generator = np.full(10, 0.1), spawn(0, "combination")
    other, alone, both = truth + bias / 3 * np.array([1, -1] * 5), 0.0, 0.0
    for _ in range(300):
        noise = 0.03 * torch.randn(10, generator=generator, dtype=torch.float64).numpy()
        value = truth + noise - noise.mean()
        found = _combined(estimated(value, 0.03, generator), other)
        alone += ((value - truth) ** 2).sum()
        both += ((found - truth) ** 2).sum()
    assert both <= alone * (0.3 if bias == 0 else 1.0)


def test_priors_and_findings_use_class_names(toy) -> None:
    labelled = replace(blobs([1 / 3] * 3, 300, spawn(0)), classes=("cat", "a long name", "fish"))
    field = Samples(torch.full((50, 1), 2.5))
    priors = estimate_priors(toy, labelled, field, resamples=20, generator=spawn(2))
    lines = str(priors).splitlines()
    assert [line[2:13].strip() for line in lines[1:4]] == ["cat", "a long name", "fish"]
    assert "the model predicts class fish for all" in str(priors)
    assert [line[2:5] for line in str(replace(priors, classes=())).splitlines()[1:4]] == ["  0", "  1", "  2"]


def test_same_generator_same_numbers_and_a_round_trip(toy, tmp_path) -> None:
    labelled, field = blobs([1 / 3] * 3, 300, spawn(0)), blobs([0.5, 0.3, 0.2], 300, spawn(1))
    first, second = (estimate_priors(toy, labelled, field, resamples=20, generator=spawn(2)) for _ in range(2))
    assert first == second
    results.save(first, tmp_path / "priors.json")
    assert results.load(tmp_path / "priors.json", Priors) == first


COLOURS = ("red", "green", "blue")


def test_bad_input_is_rejected_with_a_sentence(toy) -> None:
    labelled, field = blobs([1 / 3] * 3, 60, spawn(0)), blobs([0.5, 0.3, 0.2], 60, spawn(1))
    two = labelled[labelled.labels != 1]
    foreign = replace(field, y=field.labels + 3)
    for arguments, options, words in (
        ((labelled, field), {"method": "em"}, "method must be one of mlls, bbse, rlls"),
        ((labelled, field), {"resamples": 5}, "resamples must be at least 20"),
        ((labelled, field), {"confidence": 1.0}, "confidence must be between"),
        ((two, field), {}, "every class must occur in the labelled data, and 1 do not"),
        ((replace(two, classes=COLOURS), field), {}, "every class must occur in the labelled data, and green do not"),
        ((labelled, replace(foreign, classes=(*COLOURS, "x", "y", "z"))), {}, r"have a class z \(number 5\) that the"),
        ((labelled, foreign), {}, "a class . that the model does not have"),
        ((labelled, field[:1]), {}, "at least 2 field inputs"),
        ((replace(labelled, y=None), field), {}, "label"),
    ):
        with pytest.raises(ValueError, match=words):
            estimate_priors(toy, *arguments, **{"resamples": 20, "generator": spawn(0), **options})
