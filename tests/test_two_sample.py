"""The network that tells two sets of images apart: sees what differs, and nothing where nothing does."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from operant import spawn
from operant.conditions import CONDITIONS, default_palette
from operant.networks.two_sample import area_under_curve, fit_two_sample, reduced, two_sample_auc


def images(n: int, seed: int, side: int = 12) -> torch.Tensor:
    coarse = torch.rand(n, 1, 4, 4, generator=spawn(seed))
    return torch.nn.functional.interpolate(coarse, size=side, mode="bilinear")


def test_equal_sets_cannot_be_told_apart_and_noisy_ones_can() -> None:
    plain, other = images(300, 0), images(300, 1)
    noisy = (other + 0.1 * torch.randn(other.shape, generator=spawn(2))).clamp(0, 1)
    assert two_sample_auc(plain, other, generator=spawn(3)) == pytest.approx(0.5, abs=0.08)
    assert two_sample_auc(plain, noisy, generator=spawn(3)) > 0.95


def test_the_same_generator_gives_the_same_network_and_scores_are_high_for_the_first_set() -> None:
    dark, light = images(60, 0) * 0.5, images(60, 1)
    one, two = (fit_two_sample(dark, light, steps=40, generator=spawn(4)) for _ in range(2))
    assert torch.equal(one.scores(dark), two.scores(dark))
    assert float(one.scores(dark).mean()) > float(one.scores(light).mean())
    assert one.features(dark).shape == (60, 108)


def test_other_bounds_give_the_same_scores() -> None:
    a, b = images(60, 0), images(60, 1) * 0.7
    plain = fit_two_sample(a, b, steps=40, generator=spawn(4))
    wide = fit_two_sample(a * 4 - 2, b * 4 - 2, bounds=(-2.0, 2.0), steps=40, generator=spawn(4))
    assert torch.allclose(plain.scores(a), wide.scores(a * 4 - 2), atol=1e-3)


def test_large_images_are_reduced() -> None:
    x = torch.rand(2, 3, 200, 130, generator=spawn(0))
    assert max(reduced(x, (0.0, 1.0)).shape[2:]) <= 64
    assert torch.equal(reduced(x[:, :, :64, :64], (0.0, 1.0)), x[:, :, :64, :64])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_the_area_under_the_curve_agrees_with_scikit_learn(first: list[int], second: list[int]) -> None:
    expected = roc_auc_score([1] * len(first) + [0] * len(second), first + second)
    assert area_under_curve(torch.tensor(first), torch.tensor(second)) == pytest.approx(expected)


def test_too_few_images_are_rejected() -> None:
    with pytest.raises(ValueError, match="first must be at least 4, got 3"):
        two_sample_auc(images(3, 0), images(9, 1), generator=spawn(0))


# The palette


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 224, 224), (4, 9, 50)])
def test_the_palette_contains_no_change_and_fits_the_images(shape: tuple[int, ...]) -> None:
    palette = default_palette(shape, bounds=(-1.0, 3.0))
    assert palette.bounds == (-1.0, 3.0)
    assert set(palette.names) <= set(CONDITIONS)
    assert [n for n in CONDITIONS if n in palette.names] == list(palette.names)  # in the order of a camera
    assert ("warmth" in palette.names) == (shape[0] == 3)
    for severity in palette.severities.values():
        assert severity.low <= 0 <= severity.high
