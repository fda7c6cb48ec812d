"""The fifteen common corruptions of ImageNet-C, for images of any size, grey or in colour.

Written from the paper's descriptions, with lengths as shares of the image's side and random fields instead of
photographs of frost. Severity is a number from 0 (the image itself) to 5. The strengths at 1 to 5 are our own: compare
results with each other, not with published ImageNet-C tables.

References:
    | Benchmarking Neural Network Robustness to Common Corruptions and Perturbations (Hendrycks and Dietterich, 2019)
    | https://arxiv.org/abs/1903.12261
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from operant.conditions import operations
from operant.conditions._fields import clouds, normals, poisson, uniforms
from operant.conditions.operations import column

Corruption = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``(images in [0, 1], one severity per row, one seed per row) -> images``."""


def _at(severity: Tensor, *steps: float) -> Tensor:
    """The strength at each row's severity: 0 at 0, the given steps at 1 to 5, linear in between; in float64."""
    s = severity.double()
    knots = torch.tensor([0.0, *steps], dtype=torch.float64, device=s.device)
    below = s.detach().floor().clamp(0, 4).long()
    return knots[below] + (s - below) * (knots[below + 1] - knots[below])


def _side(x: Tensor) -> int:
    return min(x.shape[2:])


# Noise


def gaussian_noise(x: Tensor, severity: Tensor, seeds: Tensor) -> Tensor:
    """Electronic noise in low light."""
    return operations.gaussian_noise(x, _at(severity, 0.06, 0.1, 0.16, 0.24, 0.34), seeds=seeds)


def shot_noise(x: Tensor, severity: Tensor, seeds: Tensor) -> Tensor:
    """Low photon counts: Poisson numbers, of mean 70 down to 3 where the image is white."""
    photons = column(_at(severity, 0.12, 0.18, 0.27, 0.4, 0.55).clamp_min(1e-4) ** -2, x.double())
    count = poisson(uniforms(seeds, tuple(x.shape[1:]), "photons").to(x.device), x.detach() * photons)
    noise = (count / photons).to(x) - x.detach()
    return torch.where(column(severity, x) == 0, x, (x + noise).clamp(0, 1))  # gradients ignore the noise


def impulse_noise(x: Tensor, severity: Tensor, seeds: Tensor) -> Tensor:
    """Salt and pepper."""
    return operations.impulse_noise(x, _at(severity, 0.03, 0.06, 0.1, 0.17, 0.27), seeds=seeds)


# Blur


def defocus_blur(x: Tensor, severity: Tensor, seeds: Tensor) -> Tensor:
    """Out of focus: every point becomes a disk."""
    return operations.defocus(x, _at(severity, 0.02, 0.03, 0.04, 0.055, 0.07) * _side(x))


def glass_blur(x: Tensor, severity: Tensor, seeds: Tensor) -> Tensor:
    """Frosted glass: a little blur, pixels moved to random places nearby, a little blur."""
    sigma = _at(severity, 0.009, 0.011, 0.013, 0.015, 0.018) * _side(x)
    reach = (_at(severity, 0.015, 0.022, 0.03, 0.042, 0.055) * _side(x)).view(-1, 1, 1, 1)
    away = ((2 * uniforms(seeds, (2, *x.shape[2:]), "away").to(reach.device) - 1) * reach).to(x)
    return operations.blur(operations.displace(operations.blur(x, sigma), away[:, 0], away[:, 1]), sigma)


def motion_blur(x: Tensor, severity: Tensor, seeds: Tensor) -> Tensor:
    """The camera moves, in a direction within 45 degrees of level."""
    angle = 90 * uniforms(seeds, (), "angle") - 45
    return operations.motion_blur(x, _at(severity, 0.08, 0.12, 0.16, 0.21, 0.27) * _side(x), angle)


def zoom_blur(x: Tensor, severity: Tensor, seeds: Tensor) -> Tensor:
    """The camera moves towards the scene: the mean of nine enlargements."""
    most, none = _at(severity, 0.06, 0.11, 0.17, 0.24, 0.32), torch.zeros_like(severity)
    change = torch.zeros_like(x)
    for k in range(1, 10):
        scale = (most * (k / 9)).log1p()
        change = change + operations.warp(x, rotation=none, scale=scale, shear=none, shift_x=none, shift_y=none) - x
    return (x + change / 9).clamp(0, 1)


# Weather


def snow(x: Tensor, severity: Tensor, seeds: Tensor) -> Tensor:
    """Falling flakes, blurred by their motion, in a whitened picture."""
    side, one = _side(x), torch.ones(len(x), dtype=torch.float64)
    field = _bumps(seeds, x, "flakes", sigma=0.025)[:, :1]
    more = column(_at(severity, 0.6, 0.8, 1.0, 1.25, 1.5), field)
    flakes = ((field + more - 2) * 0.7).clamp(0, 1) * (more > 0)
    angle = 270 + 60 * (uniforms(seeds, (), "angle") - 0.5)
    fallen = operations.motion_blur(flakes.to(x), (0.1 * side * one).to(x.device), angle.to(x.device))
    veil = column(_at(severity, 0.1, 0.16, 0.22, 0.28, 0.34), x)
    return (x + (1 - x) * (1 - (1 - veil) * (1 - fallen))).clamp(0, 1)


def frost(x: Tensor, severity: Tensor, seeds: Tensor) -> Tensor:
    """Ice on the lens along ridges, bright and grained."""
    size = (x.shape[2], x.shape[3])
    ridges = clouds(seeds, size, "ridges", roughness=0.6, ridged=True).to(x)
    grain = clouds(seeds, size, "grain", roughness=0.9).to(x)
    cover = column(_at(severity, 0.3, 0.42, 0.54, 0.64, 0.74), x)
    ice = (cover * (0.4 + ridges)).clamp(0, 1)
    return (x + ice * (0.7 + 0.3 * grain - x)).clamp(0, 1)


def fog(x: Tensor, severity: Tensor, seeds: Tensor) -> Tensor:
    """A bright haze of varying thickness."""
    cloud = clouds(seeds, (x.shape[2], x.shape[3]), "haze", roughness=0.6).to(x)
    return operations.veil(x, _at(severity, 0.25, 0.36, 0.47, 0.58, 0.68), cloud)


# Light


def brightness(x: Tensor, severity: Tensor, seeds: Tensor) -> Tensor:
    """More light, hue and saturation kept: the largest channel rises, the others in proportion."""
    value = x.amax(1, keepdim=True)
    raised = (value + column(_at(severity, 0.1, 0.2, 0.3, 0.4, 0.5), x)).clamp_max(1)
    factor = raised / value.clamp_min(1e-6)
    bright = torch.where(value > 1e-6, x * factor, raised)
    return torch.where(column(severity, x) == 0, x, bright.clamp(0, 1))


def contrast(x: Tensor, severity: Tensor, seeds: Tensor) -> Tensor:
    """Flat light: distances from the mean times .75 down to .15."""
    return operations.contrast(x, _at(severity, *(math.log(f) for f in (0.75, 0.55, 0.4, 0.27, 0.15))))


# Digital


def elastic_transform(x: Tensor, severity: Tensor, seeds: Tensor) -> Tensor:
    """Random stretching and squeezing."""
    amount = (_at(severity, 0.012, 0.018, 0.026, 0.036, 0.048) * _side(x)).view(-1, 1, 1, 1)
    away = (_bumps(seeds, x, "stretch", sigma=0.07).to(amount.device) * amount).to(x)
    return operations.displace(x, away[:, 0], away[:, 1])


def pixelate(x: Tensor, severity: Tensor, seeds: Tensor) -> Tensor:
    """Fewer and larger pixels."""
    return operations.pixelate(x, _at(severity, 0.15, 0.3, 0.45, 0.6, 0.7))


def jpeg_compression(x: Tensor, severity: Tensor, seeds: Tensor) -> Tensor:
    """Quality 25, 18, 13, 10 and 7, in JPEG's terms."""
    return operations.jpeg(x, _at(severity, *(50 / quality for quality in (25, 18, 13, 10, 7))))


def _bumps(seeds: Tensor, x: Tensor, word: str, *, sigma: float) -> Tensor:
    """Two smooth random fields of mean 0 and standard deviation 1, ``(n, 2, height, width)`` in float64."""
    z = normals(seeds, (2, *x.shape[2:]), word)
    width = torch.full((len(z),), max(0.5, sigma * _side(x)), dtype=torch.float64)
    z = operations.blur(0.5 + z / 32, width) - 0.5  # blur clips to [0, 1]
    z = z - z.mean((2, 3), keepdim=True)
    return z / z.square().mean((2, 3), keepdim=True).sqrt().clamp_min(1e-12)


CORRUPTIONS: dict[str, Corruption] = {
    f.__name__: f
    for f in (
        gaussian_noise,
        shot_noise,
        impulse_noise,
        defocus_blur,
        glass_blur,
        motion_blur,
        zoom_blur,
        snow,
        frost,
        fog,
        brightness,
        contrast,
        elastic_transform,
        pixelate,
        jpeg_compression,
    )
}
"""The fifteen corruptions by name, in the paper's order."""
