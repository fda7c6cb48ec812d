"""Field conditions: no change at 0, rows alone, replay, bounds, gradients, severities; other libraries as oracles."""

import io
from dataclasses import replace
from itertools import pairwise

import kornia
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance
from scipy import ndimage, stats
from torch.nn.functional import avg_pool2d, interpolate

from operant import Samples, Suite
from operant.conditions import (
    CONDITIONS,
    CORRUPTIONS,
    DrawnConditions,
    Recipe,
    Severity,
    apply,
    corruption,
    default_palette,
    fixed,
    half_normal,
    normal,
    operations,
    recipe,
    uniform,
    wider,
)
from operant.conditions._fields import clouds, normals, poisson, uniforms
from operant.results import load, save

# A lively and sensible value of each condition.
USUAL = {
    "rotation": 17.0,
    "scale": -0.2,
    "shear": 0.15,
    "shift_x": 0.11,
    "shift_y": -0.07,
    "occlusion": 0.3,
    "shadow": 0.6,
    "fog": 0.4,
    "motion_blur": 3.3,
    "motion_angle": 40.0,
    "defocus": 1.7,
    "blur": 0.9,
    "vignetting": 0.5,
    "exposure": -0.4,
    "warmth": 0.2,
    "tint": -0.15,
    "brightness": 0.1,
    "contrast": -0.3,
    "gamma": 0.25,
    "downsampling": 0.3,
    "shot_noise": 0.1,
    "gaussian_noise": 0.05,
    "impulse_noise": 0.05,
    "saturation": 0.4,
    "jpeg": 0.7,
} | {f"c/{name}": 2.5 for name in CORRUPTIONS}
SMOOTH = [name for name, condition in CONDITIONS.items() if condition.smooth]
COLOUR = ("warmth", "tint", "saturation")  # for images with three channels only
SEEDED = ("occlusion", "shadow", "fog", "shot_noise", "gaussian_noise", "impulse_noise")


def images(n=12, shape=(3, 16, 20), *, dtype=torch.float32, seed=0):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def pictures(n=48):
    """Random, in colour, and as smooth as pictures are."""
    coarse = images(n, (3, 9, 9), seed=1)
    return interpolate(coarse, size=(32, 32), mode="bicubic", align_corners=True).clamp(0, 1)


def under(name, value, n, **setting):
    """The same value for every row, with seeds of their own."""
    values = torch.full((n, 1), float(value), dtype=torch.float64)
    return DrawnConditions(names=(name,), values=values, seeds=torch.arange(n) * 7919, **setting)


def channels(name):
    return 3 if name in COLOUR else 1


def everything(n, channels=3, **setting):
    """Rows under one condition each, in turn, and the last of them under all field conditions together."""
    names = tuple(name for name in USUAL if channels == 3 or name not in COLOUR)
    usual = torch.tensor([USUAL[name] for name in names], dtype=torch.float64)
    values = torch.diag(usual).repeat(n // len(names) + 1, 1)[:n]
    values[-1] = torch.where(torch.arange(len(names)) < len(names) - len(CORRUPTIONS), usual, 0.0)
    return DrawnConditions(names=names, values=values, seeds=torch.arange(n) * 104729 + 5, **setting)


# Laws of all conditions


def test_every_condition_is_known_and_has_its_place():
    assert list(CONDITIONS) == [name for names in recipe.STEPS for name in names] == list(USUAL)
    assert len(CORRUPTIONS) == 15
    assert all(c.low <= 0 <= c.high for c in CONDITIONS.values())


@pytest.mark.parametrize("name", CONDITIONS)
def test_nothing_happens_at_zero(name):
    x = images(shape=(channels(name), 9, 12))
    drawn = under(name, 0.0, len(x))
    assert torch.equal(apply(x, drawn), x)
    computed = apply(x, replace(drawn, values=drawn.values.requires_grad_()))  # now no step is left out
    assert torch.equal(computed.detach(), x)
    colour = images(n=5)
    assert torch.equal(apply(colour, replace(under(name, 0.0, 5), values=torch.zeros(5, 1).requires_grad_())), colour)


@pytest.mark.parametrize("name", CONDITIONS)
def test_something_happens_elsewhere(name):
    x = pictures(6)
    if name == "motion_angle":
        drawn = DrawnConditions(
            names=("motion_blur", name), values=torch.tensor([[4.0, 60.0]] * 6), seeds=torch.arange(6)
        )
        level = DrawnConditions(
            names=("motion_blur", name), values=torch.tensor([[4.0, 0.0]] * 6), seeds=torch.arange(6)
        )
        assert not torch.equal(apply(x, drawn), apply(x, level))
    else:
        assert bool(((apply(x, under(name, USUAL[name], 6)) - x).flatten(1).abs().amax(1) > 0.01).all())


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 13, 18)])
def test_rows_do_not_see_each_other(shape, monkeypatch):
    n = len(USUAL) + 3
    x, drawn = images(n, shape), everything(n, shape[0])
    whole = apply(x, drawn)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(3))
    assert torch.equal(apply(x[order], drawn[order]), whole[order])
    assert torch.equal(torch.cat([apply(x[i : i + 1], drawn[i : i + 1]) for i in range(n)]), whole)
    monkeypatch.setattr(recipe, "MAX_NUMBERS", 5 * x[0].numel())
    assert torch.equal(apply(x, drawn), whole)
    assert torch.equal(apply(x.contiguous(memory_format=torch.channels_last), drawn), whole)


@pytest.mark.parametrize("name", CONDITIONS)
def test_rows_without_the_condition_are_left_out(name, monkeypatch):
    """Which changes nothing: the others are as if all rows had been computed, as they are for gradients."""
    x, drawn = images(9), under(name, USUAL[name], 9)
    absent = torch.arange(9) % 3 > 0
    drawn = replace(drawn, values=torch.where(absent[:, None], 0.0, drawn.values))
    searched = apply(x, replace(drawn, values=drawn.values.clone().requires_grad_())).detach()
    names, step = next((names, step) for names, step in recipe.STEPS.items() if name in names)
    sizes = []
    monkeypatch.setitem(recipe.STEPS, names, lambda z, *rest: sizes.append(len(z)) or step(z, *rest))
    assert torch.equal(apply(x, drawn), searched)
    assert torch.equal(apply(x[absent], drawn[absent]), x[absent])
    assert sizes == [3]


def test_a_draw_comes_back_from_disk_and_does_the_same(tmp_path, generator):
    declared = Recipe(
        severities={name: uniform(0, USUAL[name]) if USUAL[name] > 0 else uniform(USUAL[name], 0) for name in USUAL},
        bounds=(-1.0, 2.0),
        padding="reflection",
    )
    x = images(40, (3, 11, 11)) * 3 - 1
    drawn = declared.draw(40, generator=generator)
    first = apply(x, drawn)
    save(drawn, tmp_path / "drawn.json")
    save(declared, tmp_path / "recipe.json")
    again = load(tmp_path / "drawn.json", DrawnConditions)
    assert torch.equal(apply(x, again), first)
    assert torch.equal(apply(x[7:9], again[7:9]), first[7:9])
    assert load(tmp_path / "recipe.json", Recipe) == declared


def test_a_draw_survives_as_columns_of_a_suite(tmp_path):
    x, drawn = images(6, (3, 8, 8)), replace(everything(6), seeds=2**53 - 1 - torch.arange(6))
    seeds = Samples(x, torch.zeros(6, dtype=torch.long))
    made = apply(x, drawn)
    suite = Suite.of(made, seeds=seeds, origin=torch.arange(6), prediction=seeds.labels, method="conditions")
    suite.with_columns(**drawn.columns()).save(tmp_path / "suite")
    back = Suite.open(tmp_path / "suite")
    values = torch.stack([torch.as_tensor(back[name]) for name in drawn.names], 1)
    again = DrawnConditions(names=drawn.names, values=values, seeds=torch.as_tensor(back["noise_seed"]).long())
    assert torch.equal(apply(back.x0, again), made)


def test_the_order_of_a_recipe_does_not_matter():
    x, drawn = images(len(USUAL)), everything(len(USUAL))
    turned = replace(drawn, names=drawn.names[::-1], values=drawn.values.flip(1))
    assert torch.equal(apply(x, turned), apply(x, drawn))


@settings(max_examples=40)
@given(data=st.data(), height=st.integers(8, 64), width=st.integers(8, 64), channels=st.sampled_from([1, 2, 3]))
def test_images_stay_images(data, height, width, channels):
    """Any condition, any value that it may have, any size, any bounds."""
    fitting = [name for name in CONDITIONS if channels == 3 or name not in COLOUR]
    names = data.draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=3, unique=True))
    values = [[data.draw(st.floats(CONDITIONS[name].low, CONDITIONS[name].high)) for name in names] for _ in range(3)]
    low, width_of = data.draw(st.floats(-300, 300)), data.draw(st.floats(0.1, 300))
    bounds = data.draw(st.sampled_from([(0.0, 1.0), (low, low + width_of)]))
    padding = data.draw(st.sampled_from(["border", "reflection", "zeros"]))
    x = (images(3, (channels, height, width)) * (bounds[1] - bounds[0]) + bounds[0]).clamp(*bounds)
    drawn = DrawnConditions(
        names=tuple(names),
        values=torch.tensor(values, dtype=torch.float64),
        seeds=torch.arange(3),
        bounds=bounds,
        padding=padding,
    )
    made = apply(x, drawn)
    assert made.shape == x.shape
    assert made.dtype == x.dtype
    assert bool(((made >= bounds[0]) & (made <= bounds[1])).all())
    assert torch.equal(apply(x[1:2], drawn[1:2]), made[1:2])


def test_bounds_are_units_only():
    x, drawn = images(len(USUAL), dtype=torch.float64), everything(len(USUAL))
    wide = apply(x * 255 - 100, replace(drawn, bounds=(-100.0, 155.0)))
    assert torch.allclose((wide + 100) / 255, apply(x, drawn), atol=1e-9)


# Gradients


@pytest.mark.parametrize(
    "name", [name for name in CONDITIONS if name not in ("jpeg", "c/jpeg_compression", "c/shot_noise")]
)
def test_gradients_in_x_are_right(name):
    """Where nothing is cut off at black or white; the three left out pass gradients straight through a rounding."""
    x = (0.3 + 0.4 * images(2, (channels(name), 7, 8), dtype=torch.float64)).requires_grad_()
    drawn = under(name, USUAL[name] / 2, 2)
    assert torch.autograd.gradcheck(lambda z: apply(z, drawn), (x,), fast_mode=True)


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_in_parameters_are_right(name):
    x = 0.3 + 0.4 * images(3, (channels(name), 9, 8), dtype=torch.float64)
    names = ("motion_blur", name) if name == "motion_angle" else (name,)
    at = torch.tensor(
        [[0.31 * USUAL[n] for n in names], [0.53 * USUAL[n] for n in names], [0.9 * USUAL[n] for n in names]]
    )
    drawn = DrawnConditions(names=names, values=at.double().requires_grad_(), seeds=torch.arange(3))
    assert torch.autograd.gradcheck(lambda v: apply(x, replace(drawn, values=v)), (drawn.values,), fast_mode=True)


@pytest.mark.parametrize("name", CONDITIONS)
def test_gradients_are_finite_at_zero_and_at_black_and_white(name):
    x = (images(4, (channels(name), 8, 8)) * 3 - 1).clamp(0, 1).requires_grad_()
    for value in (0.0, USUAL[name]):
        drawn = under(name, value, 4)
        drawn = replace(drawn, values=drawn.values.requires_grad_())
        made = apply(x, drawn)
        assert made.requires_grad
        gradients = torch.autograd.grad(made.sum(), (x, drawn.values), allow_unused=True)
        assert all(bool(g.isfinite().all()) for g in gradients if g is not None)


def test_a_search_over_parameters_starts_from_zero():
    """The gradient at no change leads to the shift and brightness that were hidden."""
    x = pictures(20)
    names = ("shift_x", "brightness")
    hidden = DrawnConditions(names=names, values=torch.tensor([[0.02, 0.1]] * 20), seeds=torch.arange(20))
    target = apply(x, hidden)
    values = torch.zeros(20, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad((apply(x, replace(hidden, values=values)) - target).square().sum(), values)
    assert float((gradient < 0).double().mean()) > 0.9


# The fifteen corruptions


@pytest.mark.parametrize("kind", ["digits", "pictures"])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions_grow_with_severity(name, kind, digits28):
    x = digits28.test.x[:48] if kind == "digits" else pictures()
    made = [apply(x, under(f"c/{name}", severity, len(x))) for severity in (0, 0.5, 1, 2, 3, 4, 5)]
    distances = [float((m - x).square().flatten(1).mean(1).sqrt().mean()) for m in made]
    assert distances[0] == 0
    assert all(b > 1.02 * a for a, b in pairwise(distances)), distances
    assert distances[2] > 0.005
    assert distances[-1] < 0.5


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruption_is_a_recipe(name):
    made = corruption(name, 3, bounds=(0.0, 255.0))
    drawn = made.draw(4, generator=torch.Generator().manual_seed(0))
    assert drawn.names == (f"c/{name}",)
    assert drawn.values.tolist() == [[3.0]] * 4
    assert drawn.bounds == (0.0, 255.0)


@pytest.mark.parametrize("name", ["c/snow", "c/frost", "c/fog", "c/elastic_transform", *SEEDED])
def test_seeds_make_rows_differ(name):
    x = pictures(1).repeat(8, 1, 1, 1)
    made = apply(x, under(name, USUAL[name], 8)).flatten(1)
    assert bool((torch.cdist(made, made) + torch.eye(8) > 0.1).all())


# Oracles


def warped(x, **parameters):
    given = {name: torch.full((len(x),), float(parameters.get(name, 0))) for name in list(CONDITIONS)[:5]}
    return operations.warp(x, **given, padding=parameters.get("padding", "border"))


@pytest.mark.parametrize("size", [8, 9, 28])
def test_quarter_turns(size):
    x = images(5, (3, size, size))
    for k in (1, 2, -1):
        assert torch.allclose(warped(x, rotation=90 * k), torch.rot90(x, k, (2, 3)), atol=1e-5)


@pytest.mark.parametrize(("right", "down"), [(3, 0), (0, -2), (-5, 4)])
def test_shifts_by_whole_pixels(right, down):
    x = images(5, (2, 10, 16))
    made = warped(x, shift_x=right / 16, shift_y=down / 10, padding="zeros")
    expected = torch.roll(x, (down, right), (2, 3))
    rows, columns = torch.arange(10), torch.arange(16)
    inside = ((rows - down >= 0) & (rows - down < 10))[:, None] & (columns - right >= 0) & (columns - right < 16)
    assert torch.allclose(made, expected * inside, atol=1e-5)
    border = x[:, :, (rows - down).clamp(0, 9)][..., (columns - right).clamp(0, 15)]
    assert torch.allclose(warped(x, shift_x=right / 16, shift_y=down / 10), border, atol=1e-5)


def test_a_turn_comes_before_a_shift():
    x = images(4, (1, 8, 8))
    made = warped(x, rotation=90, shift_x=2 / 8, padding="zeros")
    expected = torch.rot90(x, 1, (2, 3)).roll(2, 3)
    expected[..., :2] = 0
    assert torch.allclose(made, expected, atol=1e-5)


def test_shear_moves_the_bottom_to_the_right():
    x = images(3, (1, 9, 9))
    made = warped(x, shear=1.0, padding="zeros")
    for row in range(9):
        by = row - 4
        expected = x[:, :, row].roll(by, -1)
        inside = (torch.arange(9) - by >= 0) & (torch.arange(9) - by < 9)
        assert torch.allclose(made[:, :, row], expected * inside, atol=1e-5)


def test_geometry_agrees_with_kornia():
    x = images(6, (3, 15, 22), dtype=torch.float64)
    angle, factor = torch.linspace(-70, 70, 6).double(), torch.linspace(0.6, 1.7, 6).double()
    none = torch.zeros(6, dtype=torch.float64)
    still = {"shear": none, "shift_x": none, "shift_y": none, "padding": "zeros"}
    turned = operations.warp(x, rotation=angle, scale=none, **still)
    assert torch.allclose(turned, kornia.geometry.rotate(x, angle, padding_mode="zeros"), atol=1e-6)
    scaled = operations.warp(x, rotation=none, scale=factor.log(), **still)
    expected = kornia.geometry.scale(x, factor[:, None].repeat(1, 2), padding_mode="zeros")
    assert torch.allclose(scaled, expected, atol=1e-6)


def test_light_agrees_with_kornia():
    x = images(6, (1, 9, 11), dtype=torch.float64)
    v = torch.linspace(-0.5, 0.5, 6).double()
    assert torch.allclose(operations.brighten(x, v), kornia.enhance.adjust_brightness(x, v))
    assert torch.allclose(operations.gamma(x, v), kornia.enhance.adjust_gamma(x, v.exp()))
    expected = kornia.enhance.adjust_contrast_with_mean_subtraction(x, v.exp())
    assert torch.allclose(operations.contrast(x, v), expected)


def test_blur_agrees_with_scipy():
    x = images(6, (2, 14, 23), dtype=torch.float64)
    sigmas = [0.2, 0.5, 1.0, 1.3, 2.9, 7.0]
    made = operations.blur(x, torch.tensor(sigmas))
    for row, sigma in enumerate(sigmas):
        expected = ndimage.gaussian_filter(x[row].numpy(), (0, sigma, sigma), mode="nearest", truncate=4)
        assert np.allclose(made[row].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(("quality", "strength"), [(75, 0.5), (50, 1.0), (10, 5.0)])
def test_grey_jpeg_agrees_with_pillow(quality, strength, digits28):
    """But for the rounding of pixels, and of table entries, to whole numbers."""
    x = (digits28.test.x[:20] * 255).round() / 255
    made = operations.jpeg(x, torch.full((20,), strength)) * 255
    for row in range(20):
        file = io.BytesIO()
        Image.fromarray((x[row, 0] * 255).byte().numpy()).save(file, "jpeg", quality=quality)
        expected = torch.from_numpy(np.array(Image.open(file))).float()
        assert float((made[row, 0] - expected).abs().mean()) < 1.5
        assert float((made[row, 0] - x[row, 0] * 255).abs().mean()) > 0


def test_colour_jpeg_agrees_with_pillow():
    x = (pictures(10) * 255).round() / 255
    made = operations.jpeg(x, torch.ones(10)) * 255
    for row in range(10):
        file = io.BytesIO()
        Image.fromarray((x[row] * 255).byte().permute(1, 2, 0).numpy()).save(file, "jpeg", quality=50, subsampling=0)
        expected = torch.from_numpy(np.array(Image.open(file))).float().permute(2, 0, 1)
        assert float((made[row] - expected).abs().mean()) < 2
        assert float((made[row] - x[row] * 255).abs().mean()) > 3  # far from what came in, near to what Pillow made


def test_downsampling_by_half():
    x = images(4, (3, 12, 16))
    half = torch.full((4,), 0.5)
    small = avg_pool2d(x, 2)
    expected = interpolate(small, size=(12, 16), mode="bilinear", align_corners=False)
    assert torch.allclose(operations.downsample(x, half), expected, atol=1e-6)
    blocks = small.repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert torch.allclose(operations.pixelate(x, half), blocks, atol=1e-6)


@pytest.mark.parametrize("angle", [0.0, 30.0, -90.0])
def test_motion_spreads_a_point_along_its_line(angle):
    x = torch.zeros(2, 1, 33, 33, dtype=torch.float64)
    x[:, :, 16, 16] = 1
    made = operations.motion_blur(x, torch.tensor([4.0, 8.0]), torch.full((2,), angle))
    assert torch.allclose(made.sum((1, 2, 3)), torch.ones(2, dtype=torch.float64))
    place = torch.arange(33.0, dtype=torch.float64) - 16
    turn = torch.tensor(angle, dtype=torch.float64).deg2rad()
    along = place * turn.cos() - place[:, None] * turn.sin()
    across = place * turn.sin() + place[:, None] * turn.cos()
    spread, width = (((made * d**2).sum((1, 2, 3))).sqrt() for d in (along, across))
    assert torch.allclose(spread, torch.tensor([4.0, 8.0]).double() / 12**0.5, rtol=0.25)
    assert bool((width < 0.6).all())


def test_occlusion_hides_its_share():
    dark, light = torch.zeros(50, 1, 10, 14), torch.ones(50, 1, 10, 14)
    size, seeds = torch.linspace(0, 1, 50), torch.arange(50)
    seen = operations.occlude(light, size, seeds=seeds) - operations.occlude(dark, size, seeds=seeds)
    assert torch.allclose(seen.mean((1, 2, 3)), 1 - size**2, atol=1e-5)


# Light, air and optics


def each(value, n):
    return torch.full((n,), float(value), dtype=torch.float64)


@settings(max_examples=25)
@given(gains=st.lists(st.floats(-4, 4), min_size=2, max_size=6))
def test_more_exposure_is_never_darker(gains):
    """The images in [0, 1] are their own times e to the gain, up to white."""
    x = images(len(gains), (3, 7, 9))
    gains = torch.tensor(sorted(gains), dtype=torch.float64)
    made = operations.expose(x, gains)
    assert torch.allclose(made, (x.double() * gains.exp().view(-1, 1, 1, 1)).clamp_max(1).float(), atol=1e-6)
    brightness = operations.expose(x[:1].expand(len(gains), -1, -1, -1), gains).double().mean((1, 2, 3))
    assert bool((brightness.diff() >= 0).all())


@settings(max_examples=25)
@given(warmth=st.floats(-2, 2), tint=st.floats(-2, 2))
def test_light_gives_grey_the_ratio_of_its_gains(warmth, tint):
    grey = (0.13 * images(5, (1, 6, 8), dtype=torch.float64)).expand(-1, 3, -1, -1)
    warm, tinted = operations.warm(grey, each(warmth, 5)), operations.tint(grey, each(tint, 5))
    for made, gains in ((warm, (warmth, 0.0, -warmth)), (tinted, (0.0, tint, 0.0))):
        assert torch.allclose(made / grey, torch.tensor(gains).double().exp().view(3, 1, 1).expand_as(grey))


def test_white_balance_can_be_undone():
    x = 0.5 * images(6, dtype=torch.float64)
    names = ("exposure", "warmth", "tint")
    to = torch.tensor([[-0.5, 0.3, 0.2]] * 6, dtype=torch.float64)
    made = apply(x, DrawnConditions(names=names, values=to, seeds=torch.arange(6)))
    back = DrawnConditions(names=names, values=-to, seeds=torch.arange(6))
    assert torch.allclose(apply(made, back), x)


@settings(max_examples=25)
@given(factor=st.floats(-5, 5))
def test_saturation_leaves_grey_alone(factor):
    x, grey = images(5), images(5, (1, 6, 8)).expand(-1, 3, -1, -1)
    kept = operations.saturate(grey, each(factor, 5))
    assert torch.allclose(kept, grey, atol=2e-5)
    assert torch.equal(kept[:, 0], kept[:, 1])
    assert torch.equal(kept[:, 0], kept[:, 2])
    made = operations.saturate(x, each(-abs(factor), 5))  # within [0, 1], so nothing is cut off
    light = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    assert torch.allclose((made * light).sum(1), (x * light).sum(1), atol=1e-5)
    spread, before = (z.amax(1) - z.amin(1) for z in (made, x))
    assert torch.allclose(spread, before * np.exp(-abs(factor)), atol=1e-5)


def test_saturation_agrees_with_pillow():
    """But for its rounding of pixels and of their grey to whole numbers."""
    x = (pictures(6) * 255).round() / 255
    for factor in (0.3, 1.6):
        made = operations.saturate(x, each(np.log(factor), 6)) * 255
        for row in range(6):
            picture = Image.fromarray((x[row] * 255).byte().permute(1, 2, 0).numpy())
            expected = torch.from_numpy(np.array(ImageEnhance.Color(picture).enhance(factor))).permute(2, 0, 1)
            assert float((made[row] - expected).abs().max()) < 2


@pytest.mark.parametrize("shape", [(1, 9, 9), (3, 7, 16), (2, 1, 5), (1, 1, 1)])
def test_vignetting_takes_its_share_from_the_corners(shape):
    h, w = shape[1:]
    share = torch.linspace(0, 1, 5, dtype=torch.float64)
    made = operations.vignette(torch.ones(5, *shape, dtype=torch.float64), share)
    v, u = (torch.linspace(-1, 1, n).double() if n > 1 else torch.zeros(1).double() for n in (h, w))
    away = (v[:, None] ** 2 + u**2) / 2
    assert torch.allclose(made, (1 - share.view(-1, 1, 1, 1) * away).expand_as(made))
    assert torch.allclose(made, made.flip(2).flip(3))
    if min(h, w) > 1:
        assert torch.allclose(made[:, 0, 0, 0], 1 - share)


@settings(max_examples=25)
@given(depth=st.floats(0, 1), seed=st.integers(0, 2**53 - 1), side=st.integers(8, 40))
def test_shadows_only_darken_and_no_more_than_their_depth(depth, seed, side):
    x = images(4, (3, side, 24), dtype=torch.float64)
    drawn = replace(under("shadow", depth, 4), seeds=(seed + torch.arange(4)) % 2**53)
    made = apply(x, drawn)
    assert bool((made <= x).all())
    assert bool((made >= x * (1 - depth) - 1e-12).all())
    share = 1 - made / x
    assert torch.allclose(share, share[:, :1].expand_as(share), atol=1e-9)  # the same in every channel
    assert torch.allclose(share.amax((1, 2, 3)), each(depth, 4), atol=1e-9)  # it is dark somewhere
    if depth > 0:
        assert bool((share.amin((1, 2, 3)) < depth / 2).all())  # but not everywhere


def test_shadows_are_local_and_have_soft_edges():
    made = 1 - apply(torch.ones(400, 1, 32, 32), under("shadow", 1.0, 400))
    cover = made.mean((1, 2, 3))
    assert 0.2 < float(cover.mean()) < 0.4
    assert 0.02 < float(cover.min()) < float(cover.max()) < 0.9
    steps = torch.stack([made.diff(dim=2).abs().amax((1, 2, 3)), made.diff(dim=3).abs().amax((1, 2, 3))]).amax(0)
    assert float(steps.max()) < 0.75  # of the depth, between two pixels of 32
    middle = torch.stack([(made * torch.arange(32)).sum((1, 2, 3)), (made.mT * torch.arange(32)).sum((1, 2, 3))])
    assert bool((((middle / made.sum((1, 2, 3))).std(1)) > 4).all())  # anywhere


@settings(max_examples=25)
@given(thickness=st.floats(0, 1), seed=st.integers(0, 2**53 - 1), width=st.integers(8, 40))
def test_fog_lies_between_the_image_and_its_haze(thickness, seed, width):
    x = images(4, (3, 24, width), dtype=torch.float64)
    drawn = replace(under("fog", thickness, 4), seeds=(seed + torch.arange(4)) % 2**53)
    haze = apply(x, replace(drawn, values=torch.ones_like(drawn.values)))
    assert 0.55 - 1e-6 <= float(haze.min()) <= float(haze.max()) <= 1
    assert torch.allclose(haze, haze[:, :1].expand_as(haze))
    assert torch.allclose(apply(x, drawn), x + thickness * (haze - x))


def test_fog_is_a_smooth_cloud():
    haze = apply(torch.zeros(200, 1, 64, 64), under("fog", 1.0, 200))
    assert float(haze.diff(dim=3).abs().mean()) < 0.01
    assert float(haze.amax((1, 2, 3)).mean() - haze.amin((1, 2, 3)).mean()) > 0.4
    assert bool((haze.mean(0) - haze.mean()).abs().max() < 0.06)  # no place is foggier than another


def test_defocus_spreads_a_point_over_a_disk():
    x = torch.zeros(4, 1, 33, 33, dtype=torch.float64)
    x[:, :, 16, 16] = 1
    radius = torch.tensor([0.5, 2.0, 5.5, 9.0])
    made = operations.defocus(x, radius)
    assert torch.allclose(made.sum((1, 2, 3)), torch.ones(4, dtype=torch.float64))
    place = torch.arange(33.0, dtype=torch.float64) - 16
    away = torch.hypot(place, place[:, None])
    for row, r in enumerate(radius.tolist()):
        inside, outside = made[row, 0][away <= r], made[row, 0][away >= r + 1]
        assert float(inside.min()) == float(inside.max()) > 0
        assert float(outside.abs().max()) == 0
    spread = (made * away**2).sum((1, 2, 3)).sqrt()
    assert torch.allclose(spread[1:], (radius.double()[1:] + 0.5) / 2**0.5, rtol=0.05)  # that of a disk with r + 1/2


def test_defocus_is_the_corruption_in_pixels():
    x = images(5, (3, 20, 30))
    drawn, radius = under("c/defocus_blur", 3.0, 5), under("defocus", 0.04 * 20, 5)
    assert torch.equal(apply(x, drawn), apply(x, radius))


# Noise


def test_noise_has_the_moments_it_should():
    grey = torch.full((40, 1, 64, 64), 0.5)
    seeds, of = torch.arange(40), torch.full((40,), 0.1)
    gaussian = operations.gaussian_noise(grey, of, seeds=seeds)
    assert abs(float(gaussian.mean()) - 0.5) < 0.002
    assert abs(float(gaussian.std()) - 0.1) < 0.002
    shot = operations.shot_noise(grey, of, seeds=seeds)
    assert abs(float(shot.std()) - 0.1 * 0.5**0.5) < 0.002
    hit = operations.impulse_noise(grey, of, seeds=seeds)
    assert abs(float((hit != 0.5).double().mean()) - 0.1) < 0.005
    assert abs(float((hit == 1).double().mean()) - 0.05) < 0.005
    assert torch.equal(operations.shot_noise(torch.zeros_like(grey), of, seeds=seeds), torch.zeros_like(grey))


def test_counted_photons_are_poisson():
    u = uniforms(torch.arange(20), (500,), "u")
    mean = torch.linspace(0, 30, 500).double().expand(20, -1)
    assert np.array_equal(poisson(u, mean).numpy(), stats.poisson.ppf(u.numpy(), mean.numpy()).clip(0))
    many = poisson(u, torch.full_like(u, 900.0))
    assert abs(float(many.mean()) - 900) < 2
    assert abs(float(many.std()) - 30) < 1


def test_fields_are_uniform_and_unrelated():
    """Neighbouring seeds, neighbouring pixels and different words have nothing in common."""
    u = uniforms(torch.arange(200), (500,), "a")
    assert bool(((u > 0) & (u < 1)).all())
    assert stats.kstest(u.flatten().numpy(), "uniform").statistic < 0.006
    z = torch.special.ndtri(u)
    for other in (z.roll(1, 0), z.roll(1, 1), normals(torch.arange(200), (500,), "b")):
        assert abs(float((z * other).mean())) < 0.015
    assert torch.equal(uniforms(torch.tensor([150]), (10,), "a")[0], u[150, :10])  # nor does the shape matter


def test_clouds_are_smooth():
    rough, soft = (clouds(torch.arange(20), (33, 40), "c", roughness=r) for r in (0.9, 0.4))
    assert float(soft.diff(dim=3).abs().mean()) < 0.5 * float(rough.diff(dim=3).abs().mean())
    assert bool((rough.amin((1, 2, 3)) == 0).all() & (rough.amax((1, 2, 3)) == 1).all())


# Severities


@pytest.mark.parametrize(
    "severity", [normal(12), normal(2, mean=1, low=-1, high=1.5), half_normal(0.7), normal(1, low=2, high=5)]
)
def test_normal_severities_agree_with_scipy(severity):
    a, b = ((v - severity.mean) / severity.std for v in (severity.low, severity.high))
    expected = stats.truncnorm(a, b, severity.mean, severity.std)
    u = torch.linspace(0.001, 0.999, 301, dtype=torch.float64)
    value = severity.value(u)
    assert np.allclose(value.numpy(), expected.ppf(u.numpy()), rtol=1e-7, atol=1e-9)
    assert np.allclose(severity.log_prob(value).numpy(), expected.logpdf(value.numpy()))


@pytest.mark.parametrize("absent", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("make", [lambda a: uniform(0.5, 3, absent=a), lambda a: normal(2, mean=1, absent=a)])
def test_severities_sum_to_one(make, absent):
    severity = make(absent)
    grid = torch.linspace(severity.low, severity.high, 20001, dtype=torch.float64)
    density = severity.log_prob(grid).exp()
    density[grid == 0] = 0  # a probability, counted below
    total = float(torch.trapezoid(density, grid))
    at_zero = float(severity.log_prob(torch.zeros(1)).exp()) if absent else 0.0
    assert abs(total + at_zero - 1) < 1e-3
    outside = torch.tensor([severity.low - 1e-3, severity.high + 1e-3])
    assert severity.log_prob(outside).tolist() == [-torch.inf] * 2


def test_fixed_severities_have_probabilities():
    at = torch.tensor([0.0, 2.0, 3.0])
    assert fixed(2).log_prob(at).tolist() == [-torch.inf, 0, -torch.inf]
    assert fixed(2, absent=0.25).log_prob(at).exp().tolist() == pytest.approx([0.25, 0.75, 0])
    assert fixed(0, absent=0.25).log_prob(at).exp().tolist() == [1, 0, 0]


def test_draws_follow_the_declaration(generator):
    declared = Recipe(severities={"rotation": normal(10), "blur": uniform(0.5, 2, absent=0.4), "scale": fixed(0.3)})
    drawn = declared.draw(20000, generator=generator)
    rotation, blur, scale = drawn.values.T
    assert abs(float((blur == 0).double().mean()) - 0.4) < 0.02
    present = blur[blur != 0]
    assert 0.5 <= float(present.min()) <= float(present.max()) <= 2
    assert abs(float(present.mean()) - 1.25) < 0.02
    assert stats.kstest(rotation.numpy(), stats.truncnorm(-3, 3, 0, 10).cdf).statistic < 0.02
    assert scale.unique().tolist() == [0.3]
    assert len(drawn.seeds.unique()) == len(drawn)
    low, high = declared.limits
    assert (low.tolist(), high.tolist()) == ([-30, 0, 0.3], [30, 2, 0.3])
    assert bool(((drawn.values >= low) & (drawn.values <= high)).all())
    assert bool(declared.log_prob(drawn).isfinite().all())


def test_same_generator_same_draw():
    declared = Recipe(severities={"rotation": normal(10), "blur": uniform(0, 2)})
    a, b = (declared.draw(9, generator=torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(a.values, b.values)
    assert torch.equal(a.seeds, b.seeds)
    assert len(a[torch.tensor([True] + [False] * 8)]) == 1
    assert len(declared.draw(0, generator=torch.Generator())) == 0


def test_log_prob_is_the_sum_and_leads_back_to_the_middle():
    declared = Recipe(severities={"rotation": normal(10), "blur": uniform(0, 2, absent=0.5), "jpeg": fixed(1)})
    values = torch.tensor([[5.0, 1.0, 1.0], [-20.0, 0.0, 1.0], [0.0, 0.0, 2.0]], requires_grad=True)
    drawn = replace(declared.neutral(3), values=values)
    log_prob = declared.log_prob(drawn)
    rotation = stats.truncnorm(-3, 3, 0, 10).logpdf([5.0, -20.0])
    assert log_prob[:2].tolist() == pytest.approx([rotation[0] + np.log(0.25), rotation[1] + np.log(0.5)], rel=1e-5)
    assert log_prob[2].tolist() == -torch.inf
    (gradient,) = torch.autograd.grad(log_prob[:2].sum(), values)
    assert gradient[:2].flatten().tolist() == pytest.approx([-0.05, 0, 0, 0.2, 0, 0])
    assert declared.smooth == (True, True, False)


def test_a_recipe_without_conditions_does_nothing(generator):
    drawn = Recipe(severities={}).draw(4, generator=generator)
    x = images(4)
    assert torch.equal(apply(x, drawn), x)
    assert Recipe(severities={}).log_prob(drawn).tolist() == [0] * 4
    assert [len(v) for v in Recipe(severities={}).limits] == [0, 0]


# Wider conditions


def test_wider_conditions_leave_those_of_the_recipe_as_they_are(generator):
    declared = Recipe(
        severities={"rotation": normal(10), "blur": uniform(0.5, 1.5, absent=0.4), "c/fog": fixed(2)},
        bounds=(-1.0, 3.0),
        padding="zeros",
    )
    more = wider(declared, (3, 16, 20))
    assert (more.bounds, more.padding) == (declared.bounds, declared.padding)
    assert {name: more.severities[name] for name in declared.names} == declared.severities
    assert wider(more, (3, 16, 20)) == more
    drawn = dict(zip(more.names, more.draw(20_000, generator=generator).values.T, strict=True))
    assert stats.kstest(drawn["rotation"].numpy(), stats.truncnorm(-3, 3, 0, 10).cdf).statistic < 0.02
    assert abs(float((drawn["blur"] == 0).double().mean()) - 0.4) < 0.02
    assert drawn["c/fog"].unique().tolist() == [2]


@pytest.mark.parametrize("shape", [(1, 16, 20), (3, 16, 20)])
def test_wider_conditions_are_mostly_absent_and_half_as_strong_as_the_palette(shape, generator):
    more, palette = wider(Recipe(severities={"rotation": normal(10)}), shape), default_palette(shape)
    added = [name for name in more.names if name != "rotation"]
    assert set(added) == set(palette.names) - {"rotation"}
    assert set(COLOUR).isdisjoint(added) == (shape[0] == 1)
    drawn = more.draw(20_000, generator=generator)
    for name, values in zip(drawn.names, drawn.values.T, strict=True):
        if name in added:
            widest = palette.severities[name]
            assert abs(float((values == 0).double().mean()) - 0.85) < 0.015
            assert 0.5 * widest.low - 1e-6 <= float(values.min()) < float(values.max()) <= 0.5 * widest.high + 1e-6
    x = images(50, shape)
    changed = apply(x, drawn[:50])
    assert bool(((changed >= 0) & (changed <= 1)).all())
    assert not torch.equal(changed, x)


@given(low=st.floats(-5, 5), span=st.floats(0.5, 300), seed=st.integers(0, 2**31))
@settings(max_examples=10, deadline=None)
def test_wider_conditions_keep_images_within_the_declared_bounds(low, span, seed):
    declared = Recipe(severities={"brightness": normal(0.2)}, bounds=(low, low + span))
    x = (low + span * images(6, (1, 8, 8), dtype=torch.float64, seed=seed)).clamp(*declared.bounds)
    more = wider(declared, (1, 8, 8))
    changed = apply(x, more.draw(6, generator=torch.Generator().manual_seed(seed)))
    assert bool(((changed >= low) & (changed <= low + span)).all())


# What is rejected


X = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: uniform(2, 1), "low must not exceed its high, both finite, got 2 and 1"),
        (lambda: uniform(0, float("inf")), "both finite"),
        (lambda: uniform(float("nan"), 1), "both finite"),
        (lambda: normal(0), "std positive, got 0.0 and 0"),
        (lambda: Severity(low=0, high=1, std=float("nan")), "std positive"),
        (lambda: uniform(0, 1, absent=1.5), "absent must be a share from 0 to 1, got 1.5"),
        (lambda: normal(1, low=50, high=60), "lies too far from the mean 0.0 with std 1; move the mean into it"),
        (lambda: Recipe(severities={"rotate": fixed(1)}), "no condition is named rotate; there are rotation, scale"),
        (lambda: Recipe(severities={"blur": uniform(-1, 1)}), "blur must lie between 0 and 32 (standard deviation"),
        (lambda: Recipe(severities={}, bounds=(1.0, 0.0)), "bounds must be (low, high) with low < high"),
        (lambda: Recipe(severities={}, padding="mirror"), "padding must be one of border, reflection, zeros"),
        (lambda: Recipe(severities={}).draw(-1, generator=torch.Generator()), "n must be at least 0, got -1"),
        (
            lambda: Recipe(severities={"blur": fixed(1)}).log_prob(under("gamma", 0, 2)),
            "of this recipe (blur), got gamma",
        ),
        (lambda: wider(Recipe(severities={}), (64,)), "shape must be (channels, height, width), got (64,)"),
        (lambda: corruption("rain", 3), "no corruption is named 'rain'; there are gaussian_noise, shot_noise"),
        (lambda: corruption("fog", 6), "c/fog must lie between 0 and 5"),
        (lambda: under("blur", float("nan"), 3), "blur must lie between 0 and 32"),
        (lambda: under("blur", -0.5, 3), "got values from -0.5 to -0.5; clip them"),
        (lambda: under("haze", 1, 3), "no condition is named haze"),
        (lambda: replace(under("blur", 1, 3), names=("blur", "blur")), "a condition can be named once"),
        (lambda: replace(under("blur", 1, 3), values=torch.ones(3)), "values must be floating-point of shape (3, 1)"),
        (lambda: replace(under("blur", 1, 3), seeds=torch.tensor([1, 2, -3])), "seeds must be int64"),
        (lambda: replace(under("blur", 1, 3), seeds=torch.ones(3)), "seeds must be int64"),
        (lambda: apply(X, under("blur", 1, 2)), "one image per drawn row, got 3 images and 2 rows"),
        (lambda: apply(X[:, 0], under("blur", 1, 3)), "conditions are for images"),
        (lambda: apply(X[:0], under("blur", 1, 0)), "not empty, got torch.float32 of shape (0, 1, 8, 8)"),
        (lambda: apply((X * 255).byte(), under("blur", 1, 3)), "got torch.uint8"),
        (lambda: apply(X * 255, under("blur", 1, 3)), "images must lie within bounds (0.0, 1.0)"),
        (lambda: apply(X / 0 * 0, under("blur", 1, 3)), "images contain NaN in 3 of 3 rows"),
        *(
            (
                lambda name=name, n=n: apply(X.expand(-1, n, -1, -1), under(name, 0.1, 3)),
                f"{name} needs images with three channels, got {n}; remove it from the recipe",
            )
            for name in COLOUR
            for n in (1, 2, 4)
        ),
    ],
)
def test_what_is_rejected(call, sentence):
    with pytest.raises(ValueError) as error:
        call()
    assert sentence in str(error.value)
