"""Transforms of images: each against a plain transcription, SciPy, Pillow, ART or a closed form; rows stay apart."""

import io

import numpy as np
import pytest
import torch
from art.defences.preprocessor import FeatureSqueezing as ArtFeatureSqueezing
from art.defences.preprocessor import JpegCompression as ArtJpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.ndimage import median_filter
from scipy.optimize import minimize
from torch import nn
from torch.nn.functional import interpolate

from operant import Classifier, spawn
from operant.conditions.operations import jpeg
from operant.defend import (
    JPEG,
    BitDepth,
    CropRescale,
    Median,
    NonLocalMeans,
    PixelDeflection,
    TotalVariation,
    TransformedInputs,
    crops,
)
from operant.defend._wavelet import denoise, forward, inverse, shrunk
from operant.defend.deflection import deflect
from operant.defend.total_variation import gradient, minimise
from operant.testing import toy_classifier


def images(n: int = 5, channels: int = 1, height: int = 9, width: int = 12, dtype=torch.float64):
    return torch.rand(n, channels, height, width, dtype=dtype, generator=spawn(0, "images", n, channels, height))


def smooth(n: int = 6, channels: int = 1, size: int = 32):
    """Blobs, as photographs have them."""
    return interpolate(images(n, channels, 5, 5, torch.float32), size=(size, size), mode="bicubic").clamp(0, 1)


TRANSFORMS = {
    "bits": BitDepth(bits=2),
    "median": Median(size=3),
    "jpeg": JPEG(quality=60),
    "nlm": NonLocalMeans(search=5, patch=3, strength=0.2),
    "tv": TotalVariation(steps=20),
    "crop": CropRescale(share=0.7),
    "deflection": PixelDeflection(count=30, window=3),
    "deflection by map": PixelDeflection(count=30, window=3, keep=lambda x: x.mean(1)),
}


# Laws


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_a_row_comes_out_alike_in_any_batch(name, channels):
    x, transform = images(7, channels), TRANSFORMS[name]
    made = transform(x)
    assert made.shape == x.shape
    assert float(made.min()) >= 0
    assert float(made.max()) <= 1
    assert not torch.equal(made, x)
    order = torch.tensor([3, 0, 5])
    assert torch.allclose(transform(x[order]), made[order], atol=1e-12)
    assert torch.equal(x, images(7, channels))


@pytest.mark.parametrize("transform", [CropRescale(share=0.6), TotalVariation(steps=5), PixelDeflection(count=20)])
def test_another_seed_draws_others_and_the_same_one_the_same(transform):
    x = images()
    again, other = transform(x), type(transform)(**{**vars(transform), "seed": 1})(x)
    assert torch.equal(again, transform(x))
    assert sum(not torch.equal(a, b) for a, b in zip(again, other, strict=True)) >= 3  # crops are few, and may meet


# Oracles


@pytest.mark.parametrize("bits", [1, 3, 8])
def test_bits_are_those_of_art(bits):
    x = images(dtype=torch.float32)
    theirs, _ = ArtFeatureSqueezing(clip_values=(0.0, 1.0), bit_depth=bits)(x.numpy())
    ours = BitDepth(bits=bits)(x)
    assert np.allclose(ours.numpy(), theirs, atol=1e-6)
    assert len(ours.unique()) <= 2**bits


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_medians_are_scipys(size):
    x = images(4, 3)
    theirs = median_filter(x.numpy(), size=(1, 1, size, size), mode="reflect")
    assert np.array_equal(Median(size=size)(x).numpy(), theirs)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("quality", [10, 75])
def test_jpeg_is_pillows(channels, quality):
    x = smooth(channels=channels)
    ours = JPEG(quality=quality)(x)
    for row, made in zip(x, ours, strict=True):
        page = (row.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(page if channels == 3 else page[:, :, 0]).save(file, "JPEG", quality=quality)
        read = np.asarray(Image.open(file), dtype=np.float32).reshape(*page.shape) / 255
        assert np.allclose(made.permute(1, 2, 0).numpy(), read, atol=1e-6)
    grid = (x * 255).round() / 255
    theirs, _ = ArtJpeg(clip_values=(0.0, 1.0), quality=quality, channels_first=True)(grid.numpy())
    assert float(np.abs(ours.numpy() - theirs).mean()) < 0.006  # ART cuts where we round
    if channels == 1:  # colours are kept at half resolution in files, and at full resolution there
        strength = torch.full((len(x),), 50 / quality if quality < 50 else 2 - quality / 50)
        assert float((ours - jpeg(x, strength)).abs().mean()) < 0.01


def test_non_local_means_is_a_plain_loop():
    x = images(2, 2, 6, 7)
    h, w, away, border, strength = 6, 7, 2, 1, 0.3

    def at(image, i, j):
        i, j = (
            (-i - 1 if i < 0 else 2 * h - 1 - i if i >= h else i),
            (-j - 1 if j < 0 else 2 * w - 1 - j if j >= w else j),
        )
        return image[:, i, j]

    patch = [(a, b) for a in range(-border, border + 1) for b in range(-border, border + 1)]
    expected = torch.empty_like(x)
    for n, image in enumerate(x):
        for i in range(h):
            for j in range(w):
                total, weights = torch.zeros(2, dtype=x.dtype), 0.0
                for di in range(-away, away + 1):
                    for dj in range(-away, away + 1):
                        d = sum(
                            float((at(image, i + a, j + b) - at(image, i + di + a, j + dj + b)).square().mean())
                            for a, b in patch
                        )
                        weight = np.exp(-d / len(patch) / strength**2)
                        total, weights = total + weight * at(image, i + di, j + dj), weights + weight
                expected[n, :, i, j] = total / weights
    made = NonLocalMeans(search=5, patch=3, strength=strength)(x)
    assert torch.allclose(made, expected, atol=1e-10)


def test_non_local_means_keeps_edges_and_takes_noise():
    clean = torch.zeros(1, 1, 20, 20)
    clean[..., 10:] = 1
    noisy = clean + 0.05 * torch.randn(clean.shape, generator=spawn(0))
    made = NonLocalMeans(search=9, patch=3, strength=0.15)(noisy)
    assert float((made - clean).abs().mean()) < 0.5 * float((noisy - clean).abs().mean())


@pytest.mark.parametrize("channels", [1, 3])
def test_a_crop_is_cut_and_enlarged(channels):
    x = images(8, channels, 10, 10)
    made = CropRescale(share=0.7)(x)
    for row, one in zip(x, made, strict=True):
        cuts = [row[None, :, i : i + 7, j : j + 7] for i in range(4) for j in range(4)]
        wanted = [interpolate(cut, size=(10, 10), mode="bilinear", align_corners=False)[0] for cut in cuts]
        assert sum(torch.allclose(one, w, atol=1e-9) for w in wanted) == 1
    assert torch.allclose(CropRescale(share=1.0)(x), x)
    assert len(crops(5)) == 5
    assert len({one.seed for one in crops(5, seed=3)}) == 5


# Total variation


def objective(z, x, kept, weight):
    """½ Σ m (z - x)² + weight · TV(z) of each image."""
    variation = gradient(z).square().sum(0).sqrt()
    return (0.5 * kept * (z - x).square() + weight * variation).sum((1, 2, 3))


def test_total_variation_of_a_step_is_the_closed_form():
    """Two plateaus move towards each other by weight / columns; all rows are alike."""
    x = torch.full((2, 1, 6, 10), 0.2, dtype=torch.float64)
    x[..., 4:] = 0.9
    z = minimise(x, torch.ones_like(x), weight=0.3, steps=1500)
    expected = torch.where(x < 0.5, 0.2 + 0.3 / 4, 0.9 - 0.3 / 6).double()
    assert torch.allclose(z, expected, atol=1e-4)


def test_total_variation_is_minimal_by_duality():
    """The dual value ½‖x‖² - ½‖x + div p‖² of p, bounded by the weight, is never above the minimum."""
    x, weight = images(3, 2, 8, 8), 0.1
    ones = torch.ones_like(x)
    z = minimise(x, ones, weight=weight, steps=1500)
    lower = 0.5 * x.square().sum((1, 2, 3)) - 0.5 * z.square().sum((1, 2, 3))  # z = x + div p at the end
    assert torch.allclose(objective(z, x, ones, weight), lower, rtol=1e-5)
    assert torch.allclose(z.mean((2, 3)), x.mean((2, 3)))
    assert float(gradient(z).abs().sum()) < 0.7 * float(gradient(x).abs().sum())


def test_with_dropped_pixels_no_other_solver_gets_lower():
    x = images(2, 1, 6, 6)
    kept = (torch.rand(x.shape, generator=spawn(1)) < 0.5).double()
    found = objective(minimise(x, kept, weight=0.1, steps=2000), x, kept, 0.1)

    def smoothed(values, n):
        z = torch.tensor(values).view(1, 1, 6, 6).requires_grad_()
        variation = (gradient(z).square().sum(0) + 1e-8).sqrt()
        value = (0.5 * kept[n : n + 1] * (z - x[n : n + 1]).square() + 0.1 * variation).sum()
        value.backward()
        return float(value.detach()), z.grad.flatten().numpy()

    for n in range(2):
        other = minimize(smoothed, np.full(36, 0.5), args=(n,), jac=True, method="L-BFGS-B", options={"maxiter": 5000})
        assert float(found[n]) == pytest.approx(other.fun, rel=5e-3)
        assert float(found[n]) <= other.fun + 1e-5


def test_what_a_dropped_pixel_showed_does_not_matter():
    x = images()
    kept = (torch.rand(x.shape, generator=spawn(1)) < 0.5).double()
    other = torch.where(kept > 0, x, 1 - x)
    assert torch.equal(minimise(x, kept, weight=0.03, steps=30), minimise(other, kept, weight=0.03, steps=30))


# Pixel deflection


@pytest.mark.parametrize("keep", [None, lambda x: x.mean(1)])
def test_deflection_is_a_pixel_loop(keep):
    x = images(4, 3, 9, 12)
    transform = PixelDeflection(count=150, window=2, sigma=0, keep=keep)
    at, by = transform.places(x)
    expected = x.clone()
    for n in range(len(x)):
        for to, source in zip(at[n].tolist(), by[n].tolist(), strict=True):
            (i, j), (a, b) = divmod(to, 12), divmod(source, 12)
            assert max(abs(i - a), abs(j - b)) <= 2
            expected[n, :, i, j] = expected[n, :, a, b]
    assert torch.equal(transform(x), expected)
    assert torch.equal(deflect(x, at, by), expected)


def test_pixels_are_drawn_evenly_or_where_they_are_not_kept():
    x = images(300, 1, 4, 4)
    even = PixelDeflection(count=100, window=10).places(x)
    for drawn in even:  # 30000 of each of 16, within six deviations
        counts = torch.bincount(drawn.flatten(), minlength=16).double()
        assert float((counts / 30000 - 1 / 16).abs().max()) < 6 * (1 / 16 / 30000) ** 0.5
    kept = torch.zeros(4, 4)
    kept[0], kept[1] = 1.0, 0.5
    at = PixelDeflection(count=100, keep=lambda x: kept.expand(len(x), 4, 4)).places(x)[0]
    rows = torch.bincount(at.flatten() // 4, minlength=4).double() / 30000
    assert torch.allclose(rows, torch.tensor([0.0, 0.2, 0.4, 0.4]).double(), atol=0.02)


@settings(max_examples=20)
@given(h=st.integers(2, 9), w=st.integers(2, 9))
def test_the_wavelet_transform_is_undone_and_keeps_lengths(h, w):
    x = images(2, 2, h, w)
    coarse, details = forward(x)
    assert torch.allclose(inverse(coarse, details, x.shape[2:]), x)
    if h % 2 == w % 2 == 0:
        assert torch.allclose(coarse.square().sum() + details.square().sum(), x.square().sum())


def test_wavelet_shrinkage_is_a_plain_loop():
    x, sigma = images(3, 1, 8, 8), 0.2
    expected = torch.empty_like(x)
    haar = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2
    for n in range(3):
        blocks = [[x[n, 0, i : i + 2, j : j + 2].flatten().numpy() for j in range(0, 8, 2)] for i in range(0, 8, 2)]
        values = np.array(blocks) @ haar.T
        for band in (1, 2, 3):
            d = values[:, :, band]
            signal = max((d**2).mean() - sigma**2, 0) ** 0.5
            values[:, :, band] = np.sign(d) * np.maximum(np.abs(d) - sigma**2 / signal, 0) if signal else 0
        for i in range(4):
            for j in range(4):
                expected[n, 0, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2] = torch.tensor(values[i, j] @ haar).view(2, 2)
    assert torch.allclose(denoise(x, sigma=sigma, levels=1), expected, atol=1e-12)
    assert torch.equal(shrunk(0.01 * forward(x)[1], sigma), torch.zeros(3, 3, 1, 4, 4).double())


@pytest.mark.parametrize("channels", [1, 3])
def test_denoising_takes_noise(channels):
    clean = smooth(4, channels, 64)
    noisy = clean + 0.1 * torch.randn(clean.shape, generator=spawn(0))
    made = denoise(noisy, sigma=0.1, levels=3)
    assert float((made - clean).square().mean()) < 0.35 * float((noisy - clean).square().mean())


# As a defence


def test_probabilities_are_the_mean_over_transforms_in_any_units():
    model = toy_classifier()
    x = images(20, 1, 8, 8)
    both = TransformedInputs(model=model, transforms=(BitDepth(bits=1), Median(size=2)))
    expected = (model.probs(BitDepth(bits=1)(x)) + model.probs(Median(size=2)(x))) / 2
    assert torch.allclose(both.probs(x), expected)
    assert torch.equal(both.predict(x), expected.argmax(1))
    wide = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)).double(), bounds=(-2.0, 6.0))
    moved = TransformedInputs(model=wide, transforms=(BitDepth(bits=1),))
    assert torch.allclose(moved.probs(8 * x - 2), wide.probs(8 * BitDepth(bits=1)(x) - 2))


# Invalid arguments


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: BitDepth(bits=0), "bits must be from 1 to 16, got 0"),
        (lambda: Median(size=0), "size must be at least 1, got 0"),
        (lambda: JPEG(quality=0), "quality must be from 1 to 100, got 0"),
        (lambda: NonLocalMeans(search=4), "search and patch must be odd numbers of pixels, got 4 and 3"),
        (lambda: NonLocalMeans(strength=0), "strength must be positive"),
        (lambda: TotalVariation(keep=0), "keep must be above 0"),
        (lambda: TotalVariation(steps=0), "steps must be at least 1, got 0"),
        (lambda: CropRescale(share=1.5), "share must be above 0 and at most 1, got 1.5"),
        (lambda: crops(0), "n must be at least 1, got 0"),
        (lambda: PixelDeflection(window=0), "window must be at least 1"),
        (lambda: PixelDeflection(keep=lambda x: x)(images()), "shares of shape (5, 9, 12)"),
        (
            lambda: PixelDeflection(keep=lambda x: torch.ones(5, 9, 12))(images()),
            "keep is 1 for every pixel of an image",
        ),
        (lambda: Median()(torch.rand(3, 4)), "images must have shape (N, channels, height, width), got (3, 4)"),
        (lambda: NonLocalMeans(search=31)(images()), "reaches 16 pixels beyond images of side 9"),
        (lambda: TransformedInputs(model=toy_classifier(), transforms=()), "transforms must not be empty"),
        (
            lambda: TransformedInputs(model=toy_classifier(), transforms=(lambda x: x[:, :, 1:],)).predict(
                images(3, 1, 8, 8)
            ),
            "a transform must keep the shape (3, 1, 8, 8), got (3, 1, 7, 8)",
        ),
    ],
)
def test_bad_settings_are_rejected(make, sentence):
    with pytest.raises(ValueError) as error:
        make()
    assert sentence in str(error.value)


def test_unbounded_inputs_cannot_be_transformed():
    model = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), bounds=(-float("inf"), float("inf")))
    with pytest.raises(ValueError, match="transforms need finite bounds"):
        TransformedInputs(model=model, transforms=(JPEG(),)).predict(torch.rand(3, 1, 8, 8))
