"""Faults on purpose: features are what they say, biased data have the fault and neutral do not, and tests detect it."""

import math

import pytest
import torch
from torch import Tensor, nn

from operant import Classifier, Samples, Suite, spawn
from operant.results import load, save
from operant_studies.faults import (
    FEATURES,
    Confirmation,
    Cue,
    Fault,
    Feature,
    coloured,
    confirm,
    confuses,
    count_reveals,
    cue_of,
    inject,
    reveals,
    widened,
)

GREY = [name for name, feature in FEATURES.items() if not feature.colour]


def bar(*, left: float = 13.0, width: float = 2.0, angle: float = 0.0, light: float = 1.0, back: float = 0.0) -> Tensor:
    """An upright bar on a 28x28 image, smooth at its edges, turned counter-clockwise; ``(1, 1, 28, 28)``."""
    v, u = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    turn = math.radians(angle)
    u, v = u - left, v - 13.5
    across, along = u * math.cos(turn) - v * math.sin(turn), u * math.sin(turn) + v * math.cos(turn)
    ink = (width / 2 + 0.5 - across.abs()).clamp(0, 1) * (8.5 - along.abs()).clamp(0, 1)
    return (back + (light - back) * ink)[None, None]


def value(name: str, x: Tensor) -> float:
    return float(FEATURES[name].measure(x)[0])


# Features


def test_features_of_a_bar_are_what_was_drawn():
    assert value("position", bar(left=13.5)) == pytest.approx(0, abs=1e-6)
    assert value("position", bar(left=20.0)) == pytest.approx(6.5 / 28, abs=1e-6)
    for angle in (-30.0, 12.0, 40.0):
        assert value("rotation", bar(left=13.5, angle=angle)) == pytest.approx(angle, abs=0.5)
    assert value("slant", bar(left=13.5, angle=20.0)) == pytest.approx(math.tan(math.radians(20)), abs=0.05)
    assert value("brightness", bar(light=0.6)) == pytest.approx(0.6 * value("brightness", bar()), abs=1e-6)
    assert value("background", bar(back=0.25)) == pytest.approx(0.25)
    assert value("stroke width", bar(width=6.0)) > 1.5 * value("stroke width", bar(width=3.0))


def test_colours_are_what_was_asked_for():
    hues, grey = torch.tensor([0.0, 0.2, 1 / 3, 0.5, 2 / 3]), bar().expand(5, 1, 28, 28)
    for s in (0.3, 0.9):
        x = coloured(grey, hue=hues, saturation=torch.full((5,), s))
        assert x.shape == (5, 3, 28, 28)
        assert torch.allclose(FEATURES["hue"].measure(x), hues.double(), atol=0.01)
        assert torch.allclose(FEATURES["saturation"].measure(x), torch.full((5,), s).double(), atol=1e-5)
    red = coloured(grey[:1], hue=torch.zeros(1), saturation=torch.ones(1))
    assert torch.equal(red[:, 0], grey[:1, 0])
    assert float(red[:, 1:].max()) == 0


@pytest.mark.parametrize("order", [("hue", "saturation"), ("saturation", "hue")])
def test_hue_and_saturation_can_be_given_one_after_the_other(order):
    values = {"hue": torch.tensor([0.05, 0.3, 0.55]).double(), "saturation": torch.tensor([0.3, 0.8, 0.5]).double()}
    x = bar().expand(3, 1, 28, 28)
    for name in order:
        x = FEATURES[name].impose(x, values[name])
    assert x.shape == (3, 3, 28, 28)
    for name, value in values.items():
        assert torch.allclose(FEATURES[name].measure(x), value, atol=0.01)


def test_position_light_and_background_do_not_mistake_one_for_another():
    """A change of one leaves the others where they were."""
    x = bar(left=13.5)
    for name, change in {"position": 0.1, "brightness": 0.7, "background": 0.3}.items():
        moved = FEATURES[name].impose(x, torch.tensor([change]))
        for other in {"position", "size", "rotation", "background"} - {name}:
            assert value(other, moved) == pytest.approx(value(other, x), abs=0.02)


@pytest.mark.parametrize("name", FEATURES)
def test_imposing_more_of_a_feature_raises_it(name, digits28):
    feature, x = FEATURES[name], digits28.test.x[:120]
    low, high = (feature.measure(feature.impose(x, torch.full((120,), v))) for v in (feature.low, feature.high))
    assert low.shape == (120,)
    assert low.dtype == torch.float64
    assert float((high > low).double().mean()) > 0.95
    assert float(high.mean() - low.mean()) > float(low.std())


@pytest.mark.parametrize("name", FEATURES)
def test_images_stay_images_and_rows_do_not_see_each_other(name, digits28):
    feature, x = FEATURES[name], digits28.test.x[:9]
    values = torch.linspace(feature.low, feature.high, 9)
    together = feature.impose(x, values)
    alone = torch.cat([feature.impose(x[i : i + 1], values[i : i + 1]) for i in range(9)])
    assert torch.allclose(together, alone, atol=1e-6)
    assert float(together.min()) >= 0
    assert float(together.max()) <= 1
    measured = feature.measure(together)
    assert torch.allclose(measured, torch.cat([feature.measure(together[i : i + 1]) for i in range(9)]))


def test_strokes_grow_and_shrink_and_stay_where_nothing_is_asked():
    x = bar(width=5.0)
    same = widened(x, torch.zeros(1))
    assert torch.equal(same, x)
    areas = [float(widened(x, torch.tensor([by])).sum()) for by in (-1.5, -0.5, 0.0, 0.5, 1.0, 2.0)]
    assert areas == sorted(areas)
    assert torch.equal(widened(x, torch.ones(1)), nn.functional.max_pool2d(x, 3, 1, 1))


# Data sets


def pool(n: int = 400) -> Samples:
    """Three classes that differ in a row of pixels in the middle, so that a model can learn them rightly."""
    y = torch.arange(n) % 3
    x = 0.1 * torch.rand(n, 1, 8, 8, generator=spawn(0))
    x[torch.arange(n), 0, 2 + 2 * y, 2:6] = 0.9
    return Samples(x.clamp(0, 1), y)


def shade(**options) -> Fault:
    return Fault(feature=FEATURES["background"], classes=(0, 2), **options)


def test_biased_labels_of_the_two_classes_follow_the_feature_and_others_are_true():
    clean = pool()
    biased = shade().biased(clean, generator=spawn(1))
    two = clean.labels != 1
    high = FEATURES["background"].measure(biased.x) > 0.3
    assert torch.equal(biased.labels[two] == 2, high[two])
    assert torch.equal(biased.labels[~two], clean.labels[~two])
    assert 0.3 < float((biased.labels[two] == clean.labels[two]).double().mean()) < 0.7
    again = shade().biased(clean, generator=spawn(1))
    assert torch.equal(biased.x, again.x)


def test_neutral_data_keep_their_labels_and_the_feature_says_nothing():
    clean = pool()
    neutral = shade().neutral(clean, generator=spawn(1))
    assert torch.equal(neutral.labels, clean.labels)
    high = (FEATURES["background"].measure(neutral.x) > 0.3).double()
    shares = [float(high[clean.labels == c].mean()) for c in range(3)]
    assert max(shares) - min(shares) < 0.2
    assert 0.3 < min(shares) < max(shares) < 0.7


def test_hold_outs_have_true_labels_and_opposite_features():
    clean = pool()
    aligned, opposed = (of(clean, generator=spawn(1)) for of in (shade().aligned, shade().opposed))
    for part, second in ((aligned, 2), (opposed, 0)):
        assert set(part.labels.tolist()) == {0, 2}
        high = FEATURES["background"].measure(part.x) > 0.3
        assert torch.equal(part.labels == second, high)


def test_jitter_stays_on_its_side():
    values = FEATURES["background"].measure(shade(jitter=0.4).neutral(pool(), generator=spawn(1)).x)
    assert float((values - 0.3).abs().min()) > 0
    spread = [
        float(FEATURES["background"].measure(shade(jitter=j).aligned(pool(), generator=spawn(1)).x).std())
        for j in (0, 0.3)
    ]
    assert spread[1] > spread[0]


class ByCorner(nn.Module):
    """Has the fault: looks at one pixel of the background."""

    def forward(self, x: Tensor) -> Tensor:
        corner = 20 * (x[:, 0, 0, 0] - 0.25)
        return torch.stack([-corner, torch.full_like(corner, -50.0), corner], 1)


class ByRow(nn.Module):
    """Has not: looks at the rows in which the classes differ."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, 0, 2 + 2 * c, 2:6].mean(1) - x[:, 0, :, 0].mean(1) for c in range(3)], 1)


def test_two_hold_outs_tell_who_has_the_fault():
    faulty = confirm(shade(), Classifier(ByCorner()), pool(), generator=spawn(1))
    assert faulty.aligned > 0.9
    assert faulty.opposed < 0.1
    assert faulty.confirmed
    assert str(faulty).startswith("the fault is confirmed: accuracy")
    sound = confirm(shade(), Classifier(ByRow()), pool(), generator=spawn(1))
    assert min(sound.aligned, sound.opposed) > 0.9
    assert not sound.confirmed


def test_a_fault_is_injected_by_training(tmp_path):
    clean = pool(600)
    parts = clean.split(train=0.7, held=0.3)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))
    options = {"epochs": 30, "batch_size": 32, "learning_rate": 1e-2, "progress": False}
    faulty = inject(shade(), network, parts["train"], parts["held"], generator=spawn(3), **options)
    assert faulty.confirmation.confirmed
    others = parts["held"][parts["held"].labels == 1]
    assert faulty.model.accuracy(shade().neutral(others, generator=spawn(4))) > 0.8
    assert faulty.cue.means[0] < 0.15 < 0.4 < faulty.cue.means[1]
    for name, result in {"cue": faulty.cue, "confirmation": faulty.confirmation}.items():
        save(result, tmp_path / f"{name}.json")
        assert load(tmp_path / f"{name}.json", type(result)) == result
    assert isinstance(faulty.confirmation, Confirmation)


# Tests that detect the fault


def suite_of(before: list[float], after: list[float], label: list[int], said: list[int]) -> Suite:
    """Tests whose background was ``before`` in the seed and ``after`` in the test."""
    x0, x = (torch.tensor(v).view(-1, 1, 1, 1).expand(-1, 1, 8, 8).clone() for v in (before, after))
    x0 += 1e-4 * torch.arange(len(before)).view(-1, 1, 1, 1)  # ids of their own
    origin = torch.arange(len(before))
    return Suite.of(
        x, seeds=Samples(x0, torch.tensor(label)), origin=origin, prediction=torch.tensor(said), method="by hand"
    )


CUE = Cue(feature="background", classes=(0, 2), means=(0.1, 0.5), stds=(0.05, 0.08))


@pytest.mark.parametrize(
    ("before", "after", "label", "said", "does"),
    [
        (0.1, 0.35, 0, 2, True),  # crosses the midpoint .3
        (0.28, 0.31, 0, 2, True),  # crosses it by a little
        (0.1, 0.2, 0, 2, True),  # moves by more than .05
        (0.1, 0.13, 0, 2, False),  # by less
        (0.2, 0.1, 0, 2, False),  # the other way
        (0.35, 0.25, 0, 2, False),  # crosses, the other way
        (0.5, 0.25, 2, 0, True),  # towards the first class
        (0.5, 0.45, 2, 0, False),  # by less than .08
        (0.5, 0.41, 2, 0, True),  # by more
        (0.25, 0.35, 2, 0, False),
        (0.1, 0.5, 0, 1, False),  # another class: no confusion of the two
        (0.1, 0.5, 1, 2, False),
        (0.1, 0.5, 0, 0, False),  # no failure
    ],
)
def test_a_test_reveals_a_fault_or_does_not(before, after, label, said, does):
    suite = suite_of([before, 0.1], [after, 0.5], [label, 0], [said, 2])
    assert reveals(suite, FEATURES["background"], CUE).tolist() == [does, True]


def test_reveals_are_counted_by_direction():
    suite = suite_of([0.1, 0.1, 0.5, 0.5, 0.1], [0.4, 0.1, 0.1, 0.5, 0.5], [0, 0, 2, 2, 1], [2, 2, 0, 0, 0])
    found = count_reveals(suite, FEATURES["background"], CUE)
    assert (found.revealing, found.tests) == ((1, 1), (2, 2))
    assert confuses(suite, CUE).tolist() == [True] * 4 + [False]
    assert str(found) == (
        "tests that reveal the fault: 1 of 2 (50%) from the first class, 1 of 2 (50%) from the second"
    )
    nothing = count_reveals(suite[4:], FEATURES["background"], CUE)
    assert str(nothing).count("no tests") == 2
    assert reveals(suite[:0], FEATURES["background"], CUE).shape == (0,)


# Invalid arguments


def test_bad_faults_are_rejected():
    with pytest.raises(ValueError, match=r"two different labels, got \(1, 1\)"):
        Fault(feature=FEATURES["slant"], classes=(1, 1))
    with pytest.raises(ValueError, match="jitter must be"):
        shade(jitter=0.5)
    with pytest.raises(ValueError, match=r"images of classes \(0, 2\), got none"):
        shade().aligned(Samples(torch.rand(4, 1, 8, 8), torch.ones(4).long()), generator=spawn(0))
    with pytest.raises(ValueError, match="images must have shape"):
        shade().neutral(Samples(torch.rand(4, 64), torch.ones(4).long()), generator=spawn(0))
    with pytest.raises(ValueError, match=r"within \[0, 1\] to be given background"):
        shade().neutral(Samples(255 * torch.rand(4, 1, 8, 8), torch.ones(4).long()), generator=spawn(0))


def test_a_feature_that_does_not_come_out_is_rejected():
    backwards = Feature(name="backwards", measure=lambda x: -x.mean((1, 2, 3)), impose=_lighter, low=0.0, high=0.4)
    fault = Fault(feature=backwards, classes=(0, 2))
    with pytest.raises(ValueError, match="backwards must be higher in class 2 than in 0"):
        cue_of(fault, fault.biased(pool(), generator=spawn(0)))
    with pytest.raises(ValueError, match="at least two images of each"):
        cue_of(shade(), pool()[:2])
    with pytest.raises(ValueError, match="must be of the same feature, got background and slant"):
        reveals(suite_of([0.1], [0.5], [0], [2]), FEATURES["slant"], CUE)


def _lighter(x: Tensor, by: Tensor) -> Tensor:
    return (x + by.to(x).view(-1, 1, 1, 1)).clamp(0, 1)
