"""MSE, PSNR and SSIM against torchmetrics, against sums written out, and by their laws."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import unfold

from operant import spawn
from operant.generate import FGSM, PGD
from operant.measure.similarity import mse, psnr, ssim


def noise(*shape: int, name: str = "x") -> Tensor:
    return torch.rand(*shape, generator=spawn(0, name))


@pytest.fixture(scope="module", params=[FGSM(radius=0.1), PGD(radius=0.3, steps=4)], ids=str)
def cases(request, lenet, digits28):
    """More than a thousand digits, each moved by a search."""
    suite = request.param(lenet, digits28.train, generator=spawn(0, "cases"))
    assert len(suite) > 1000
    return suite


# Against another library


def test_ssim_and_psnr_are_those_of_torchmetrics(cases):
    from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure

    expected = structural_similarity_index_measure(
        cases.x, cases.x0, gaussian_kernel=True, sigma=1.5, reduction="none", data_range=1.0
    )
    torch.testing.assert_close(ssim(cases.x, cases.x0, bounds=(0, 1)), expected, atol=1e-4, rtol=0)
    expected = peak_signal_noise_ratio(cases.x, cases.x0, data_range=1.0, reduction="none", dim=(1, 2, 3))
    torch.testing.assert_close(psnr(cases.x, cases.x0, bounds=(0, 1)), expected, atol=1e-4, rtol=1e-5)
    expected = ((cases.x - cases.x0).double() ** 2).mean((1, 2, 3))
    torch.testing.assert_close(mse(cases.x, cases.x0).double(), expected, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 11, 40), (1, 8, 8), (1, 6, 7)])
def test_ssim_of_colours_small_images_and_other_bounds_is_that_of_torchmetrics(shape):
    from torchmetrics.functional.image import structural_similarity_index_measure

    x, x0 = 6 * noise(70, *shape) - 3, 6 * noise(70, *shape, name="x0") - 3
    expected = structural_similarity_index_measure(x, x0, sigma=1.5, reduction="none", data_range=6.0)
    torch.testing.assert_close(ssim(x, x0, bounds=(-3, 3)), expected, atol=1e-4, rtol=0)


# Against the definition written out, which also covers images too small for the window


def ssim_by_patches(x: Tensor, x0: Tensor, window: int) -> Tensor:
    """Weighted means, variances and covariances of every patch, from the patch itself, in double precision."""
    place = torch.arange(window).double() - window // 2
    line = torch.exp(-(place**2) / 4.5)
    weight = (line[:, None] * line).flatten() / line.sum() ** 2
    padded = [
        np.pad(v.double().flatten(0, 1)[:, None], [(0, 0)] * 2 + [(window // 2,) * 2] * 2, "reflect") for v in (x, x0)
    ]
    a, b = (unfold(torch.from_numpy(v), window) for v in padded)  # (N C, window², places)
    m, m0 = ((weight[:, None] * v).sum(1) for v in (a, b))
    v, v0 = ((weight[:, None] * (p - q[:, None]) ** 2).sum(1) for p, q in ((a, m), (b, m0)))
    covariance = (weight[:, None] * (a - m[:, None]) * (b - m0[:, None])).sum(1)
    c1, c2 = 0.01**2, 0.03**2
    ratio = (2 * m * m0 + c1) * (2 * covariance + c2) / ((m**2 + m0**2 + c1) * (v + v0 + c2))
    return ratio.view(len(x), -1).mean(1)


@pytest.mark.parametrize(
    ("shape", "window"),
    [((1, 8, 8), 11), ((3, 6, 9), 11), ((1, 5, 30), 9), ((2, 3, 3), 5), ((1, 12, 2), 3), ((1, 1, 5), 1)],
)
def test_the_window_shrinks_to_the_largest_that_an_image_can_be_mirrored_for(shape, window):
    x, x0 = noise(1100, *shape), noise(1100, *shape, name="x0")
    torch.testing.assert_close(ssim(x, x0, bounds=(0, 1)).double(), ssim_by_patches(x, x0, window), atol=1e-4, rtol=0)


# Laws

SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=25)
@given(
    seed=SEEDS, rows=st.integers(2, 5), channels=st.integers(1, 3), height=st.integers(3, 16), width=st.integers(3, 16)
)
def test_alike_is_symmetric_and_best_for_equal_images(seed, rows, channels, height, width):
    x, x0 = torch.rand(2, rows, channels, height, width, dtype=torch.float64, generator=spawn(seed))
    torch.testing.assert_close(ssim(x, x0, bounds=(0, 1)), ssim(x0, x, bounds=(0, 1)))
    torch.testing.assert_close(ssim(x, x, bounds=(0, 1)), torch.ones(rows, dtype=torch.float64))
    assert bool((ssim(x, x0, bounds=(0, 1)).abs() < 1).all())
    assert torch.equal(mse(x, x0), mse(x0, x))
    assert torch.equal(mse(x, x), torch.zeros(rows, dtype=torch.float64))
    assert psnr(x, x, bounds=(0, 1)).tolist() == [math.inf] * rows


@settings(max_examples=25)
@given(seed=SEEDS, factor=st.floats(0.01, 300))
def test_units_do_not_matter_where_bounds_tell_them(seed, factor):
    x, x0 = torch.rand(2, 4, 2, 12, 9, dtype=torch.float64, generator=spawn(seed))
    scaled = {"bounds": (0, factor)}
    torch.testing.assert_close(ssim(factor * x, factor * x0, **scaled), ssim(x, x0, bounds=(0, 1)))
    torch.testing.assert_close(psnr(factor * x, factor * x0, **scaled), psnr(x, x0, bounds=(0, 1)))


def test_more_noise_is_less_alike(digits28):
    x0, n = digits28.train.x, noise(*digits28.train.x.shape) - 0.5
    steps = [(x0 + strength * n).clamp(0, 1) for strength in (0.05, 0.2, 0.5)]
    for nearer, further in pairwise(steps):
        assert bool((ssim(nearer, x0, bounds=(0, 1)) > ssim(further, x0, bounds=(0, 1))).all())
        assert bool((psnr(nearer, x0, bounds=(0, 1)) > psnr(further, x0, bounds=(0, 1))).all())
        assert bool((mse(nearer, x0) < mse(further, x0)).all())


def test_rows_do_not_see_each_other_even_across_chunks(monkeypatch):
    x, x0 = noise(50, 1, 28, 28), noise(50, 1, 28, 28, name="x0")
    whole = ssim(x, x0, bounds=(0, 1))
    alone = torch.cat([ssim(x[i : i + 1], x0[i : i + 1], bounds=(0, 1)) for i in range(50)])
    torch.testing.assert_close(whole, alone, atol=1e-6, rtol=0)
    monkeypatch.setattr("operant.measure.similarity.VALUES", 7 * 28 * 28)
    torch.testing.assert_close(whole, ssim(x, x0, bounds=(0, 1)), atol=1e-6, rtol=0)


def test_gradients_are_right():
    x, x0 = torch.rand(2, 3, 2, 9, 8, dtype=torch.float64, generator=spawn(1))
    x.requires_grad_()
    for measure in (mse, lambda a, b: psnr(a, b, bounds=(0, 1)), lambda a, b: ssim(a, b, bounds=(0, 1))):
        assert torch.autograd.gradcheck(lambda a, f=measure: f(a, x0), x)


def test_no_rows_give_no_values():
    x = torch.zeros(0, 1, 28, 28)
    assert mse(x, x).shape == psnr(x, x, bounds=(0, 1)).shape == ssim(x, x, bounds=(0, 1)).shape == (0,)


# Rejected input


def test_what_cannot_be_compared_is_rejected():
    x = noise(3, 1, 8, 8)
    for measure in (mse, lambda a, b: psnr(a, b, bounds=(0, 1)), lambda a, b: ssim(a, b, bounds=(0, 1))):
        with pytest.raises(ValueError, match=r"must have one shape \(N, \*shape\)"):
            measure(x, x[:1])
        with pytest.raises(ValueError, match="x0 contains NaN in 1 of 3 rows"):
            measure(x, x.index_fill(0, torch.tensor([1]), math.nan))
    for bounds in ((1, 0), (0, math.inf), (0, 0), (math.nan, 1)):
        for measure in (psnr, ssim):
            with pytest.raises(ValueError, match="bounds must be .* both finite"):
                measure(x, x, bounds=bounds)
    with pytest.raises(ValueError, match=r"ssim compares images \(N, C, H, W\), got shape \(3, 64\)"):
        ssim(x.flatten(1), x.flatten(1), bounds=(0, 1))
