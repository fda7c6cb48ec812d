"""Do re-weighted labelled data explain the field? The level is kept with estimated priors; other shifts are found."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from operant import Classifier, Samples, results, spawn
from operant.conditions import Recipe, fixed
from operant.profile import Explained, FittedConditions, explains_field
from operant.profile._estimators import Outputs, mlls
from operant.profile._field_like import under_conditions
from operant.profile.explained import MAX_FEATURES, _area, _features

K, D = 6, 8
CENTRES = 1.2 * torch.randn(K, D, generator=spawn(3, "centres"))
SHARES = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])


class Posterior(nn.Module):
    """The log posterior of Gaussians, up to a factor, from a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(D, D)
        self.head = nn.Linear(D, K)
        with torch.no_grad():
            self.hidden.weight.copy_(torch.eye(D))
            self.hidden.bias.zero_()
            self.head.weight.copy_(2 * CENTRES)
            self.head.bias.copy_(-CENTRES.square().sum(1))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(x))
        return logits


MODEL = Classifier(Posterior(), bounds=(-30.0, 30.0))


def draw(shares: np.ndarray, n: int, generator: torch.Generator) -> Samples:
    y = torch.multinomial(torch.from_numpy(shares), n, replacement=True, generator=generator)
    return Samples(CENTRES[y] + torch.randn(n, D, generator=generator), y)


def priors_of(labelled: Samples, field: Samples) -> list[float]:
    found: list[float] = mlls(Outputs.of(MODEL, labelled, field)).tolist()
    return found


SHIFTS = {
    "all inputs moved": lambda x, g: x + 0.3,
    "more noise": lambda x, g: x + 0.6 * torch.randn(x.shape, generator=g),
    "less contrast": lambda x, g: 0.8 * x,
    "a third is of a new kind": lambda x, g: torch.where(torch.rand(len(x), 1, generator=g) < 0.33, 0.2 * x, x),
}


def p_value(repetition: int, change=None, *, n: int = 600) -> float:
    labelled, field = draw(np.full(K, 1 / K), n, spawn(repetition, 0)), draw(SHARES, n, spawn(repetition, 1))
    if change is not None:
        field = Samples(change(field.x, spawn(repetition, 3)))
    found = explains_field(MODEL, labelled, field, priors=priors_of(labelled, field), generator=spawn(repetition, 2))
    return found.p_value


def test_pure_label_shift_is_explained() -> None:
    assert sum(p_value(100 + i) < 0.01 for i in range(15)) <= 1


@pytest.mark.parametrize("shift", SHIFTS)
def test_other_shifts_are_found(shift: str) -> None:
    assert sum(p_value(200 + i, SHIFTS[shift]) < 0.01 for i in range(4)) >= 3


@pytest.mark.slow
def test_the_level_is_kept_with_estimated_priors() -> None:
    """At most 10 of 400 at level .01 is not rejected at level .003, were it exactly kept."""
    assert sum(p_value(1000 + i, n=200 + 100 * (i % 4)) < 0.01 for i in range(400)) <= 10


@pytest.mark.slow
@pytest.mark.parametrize("shift", SHIFTS)
def test_power(shift: str) -> None:
    assert sum(p_value(2000 + i, SHIFTS[shift]) < 0.01 for i in range(50)) >= 45


def test_a_wrong_prior_is_found() -> None:
    labelled, field = draw(np.full(K, 1 / K), 600, spawn(0)), draw(SHARES, 600, spawn(1))
    found = explains_field(MODEL, labelled, field, priors=SHARES[::-1].tolist(), generator=spawn(2))
    assert not found.explained
    assert found.auc > 0.6
    assert "do not explain the field" in str(found)


def test_copies_of_one_input_count_once() -> None:
    """Ten copies of each labelled input, slightly moved, are no more evidence than one."""
    labelled, field = draw(np.full(K, 1 / K), 100, spawn(7)), draw(np.full(K, 1 / K), 1000, spawn(8))
    rows = torch.arange(100).repeat(10)
    copies = Samples(labelled.x[rows] + 0.01 * torch.randn(1000, D, generator=spawn(9)), labelled.labels[rows])
    options = {"priors": [1 / K] * K, "generator": spawn(10)}
    naive = explains_field(MODEL, copies, field, **options)
    aware = explains_field(MODEL, copies, field, origin=rows, **options)
    assert naive.p_value < 0.01 < aware.p_value  # naively, near copies in other folds tell what is labelled


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 30), m=st.integers(2, 30))
def test_the_area_is_the_share_of_pairs(seed: int, n: int, m: int) -> None:
    generator = spawn(seed)
    source, field = (torch.randint(9, (k,), generator=generator).double().numpy() for k in (n, m))
    weights = torch.rand(n, generator=generator, dtype=torch.float64).numpy() + 0.1
    weights /= weights.sum()
    pairs = (field[None] > source[:, None]) + 0.5 * (field[None] == source[:, None])
    auc, variance = _area(source, field, weights, np.zeros(n, dtype=np.int64), (np.arange(n), np.arange(m)))
    assert auc == pytest.approx(float(weights @ pairs.mean(1)))
    assert variance >= 0


def test_many_features_are_projected() -> None:
    module = nn.Sequential(nn.Linear(D, 2000), nn.ReLU(), nn.Linear(2000, K))
    model = Classifier(module, bounds=(-9.0, 9.0))
    x = torch.randn(60, D, generator=spawn(0))
    a, b = (Samples(part, torch.arange(30) % K) for part in x.split(30))
    features = _features(model, [a, b])
    assert features is not None
    assert features.shape == (60, MAX_FEATURES)
    exact = model.penultimate(x)
    assert exact is not None
    projected, true = (torch.cdist(v.double(), v.double())[0, 1:] for v in (features, exact))
    assert torch.allclose(projected, true, rtol=0.2)
    assert explains_field(model, a, b, priors=[1 / K] * K, generator=spawn(1)).explained


@pytest.mark.parametrize("classes", [2, 300])
def test_any_number_of_classes(classes: int) -> None:
    centres = 3 * torch.randn(classes, D, generator=spawn(1))
    head = nn.Linear(D, classes)
    with torch.no_grad():
        head.weight.copy_(centres)
        head.bias.copy_(-0.5 * centres.square().sum(1))
    model = Classifier(head, bounds=(-60.0, 60.0))
    y = torch.arange(4 * max(classes, 50)) % classes
    a, b = (Samples(centres[y] + torch.randn(len(y), D, generator=spawn(i)), y) for i in (2, 3))
    even = [1 / classes] * classes
    assert explains_field(model, a, b, priors=even, generator=spawn(4)).explained
    moved = replace(b, x=b.x + 2)
    assert not explains_field(model, a, moved, priors=even, generator=spawn(4)).explained


def test_same_generator_same_result_and_a_round_trip(tmp_path) -> None:
    labelled, field = draw(SHARES, 200, spawn(0)), draw(SHARES, 200, spawn(1))
    first, second = (
        explains_field(MODEL, labelled, field, priors=SHARES.tolist(), generator=spawn(2)) for _ in range(2)
    )
    assert first == second
    results.save(first, tmp_path / "explained.json")
    assert results.load(tmp_path / "explained.json", Explained) == first


def test_bad_input_is_rejected_with_a_sentence() -> None:
    labelled, field = draw(SHARES, 200, spawn(0)), draw(SHARES, 200, spawn(1))
    lacking = labelled[labelled.labels != 2]
    for arguments, priors, words in (
        ((labelled, field), [0.5, 0.5], "a prior for each of the model's 6 classes, got 2"),
        ((labelled, field), [1.0] * K, "must be 0 or more and sum to 1"),
        ((lacking, field), SHARES.tolist(), "must occur in the labelled data, and 2 do not"),
        ((labelled[:10], field), [1.0] + [0.0] * (K - 1), "at least 20 different labelled inputs are needed"),
        ((labelled, field[:5]), SHARES.tolist(), "at least 20 different field inputs are needed, got 5"),
    ):
        with pytest.raises(ValueError, match=words):
            explains_field(MODEL, *arguments, priors=priors, generator=spawn(2))


# Labelled inputs under conditions


def conditions(**severities) -> FittedConditions:
    return FittedConditions(
        recipe=Recipe(severities=severities),
        parameters=(),
        before=2.0,
        after=0.2,
        floor=0.1,
        floor_high=0.2,
        priors=(),
        confidence=0.95,
        findings=(),
    )


def test_inputs_under_conditions_know_their_origin() -> None:
    images = Samples(torch.rand(6, 1, 8, 8, generator=spawn(0)), torch.arange(6) % 3, classes=("a", "b", "c"))
    made, rows = under_conditions(images, conditions(brightness=fixed(0.1)), copies=3, generator=spawn(1))
    assert (len(made), made.classes) == (18, images.classes)
    assert torch.equal(made.labels, images.labels[rows])
    assert torch.allclose(made.x, (images.x[rows] + 0.1).clamp(0, 1), atol=1e-6)
    for nothing in (None, conditions()):
        same, rows = under_conditions(images, nothing, copies=3, generator=spawn(1))
        assert same is images
        assert rows.tolist() == list(range(6))
