"""Describes images by about ninety numbers: light, texture, spectrum, noise, layout and colour."""

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d

from operant.measure._texture import MIN_SIDE, texture
from operant.networks.two_sample import MAX_SIDE, reduced
from operant.networks.vae import in_chunks

LEVELS = (0.01, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99)  # quantiles of brightness
SMOOTHEST = (0.05, 0.2, 0.5, 0.9)  # quantiles of local roughness: in the smoothest places only noise is left
BANDS = 8  # of the spectrum, from coarse to fine
LAGS = ((0, 1), (1, 0), (1, 1), (1, -1), (0, 2), (2, 0))  # down and right, at which noise is compared with itself
PAIRS = ((0, 1), (1, 2), (0, 2))  # channels that are compared
CROP = 128  # pixels: larger images show their details in a square of this side in their middle
ROWS = 256  # images per pass
BLACK = 1 / 255


def appearance(x: Tensor, *, bounds: tuple[float, float] = (0.0, 1.0)) -> Tensor:
    """Numbers ``(N, about 90)`` that describe images ``(N, channels, height, width)``; differentiable in ``x``.

    Quantiles of light; shares of local differences (`texture`); the spectrum in eight bands and three directions; what
    remains after smoothing: its size, kurtosis, correlation with its neighbours, and how it grows with brightness;
    directions of edges and position of mass; and, with several channels, their ratios and how their noise is related.
    Images of more than 64 pixels are reduced by means over blocks, which hides noise, so the texture of a square in
    their middle is added at full size.
    """
    if len(x) == 0:  # which some of the functions below do not take
        return appearance(x.new_zeros(1, *x.shape[1:]), bounds=bounds)[:0]
    return in_chunks(lambda part: _numbers(part, bounds), x, rows=ROWS)


def _numbers(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    z = reduced(x, bounds)
    parts = [_light(z.mean(1)), texture(z, width=1.0), _noise(z), _layout(z.mean(1))]
    if z.shape[1] > 1:
        parts.append(_colour(z))
    if max(x.shape[2:]) > MAX_SIDE:
        parts.append(texture(_middle(x.to(z)), width=bounds[1] - bounds[0]))
    return torch.cat(parts, 1)


def _light(z: Tensor) -> Tensor:
    """Of grey images ``(N, height, width)``: quantiles, spread, share of black and white, and spectrum."""
    flat = z.flatten(1)
    ordered = _sorted(flat)
    levels = ordered[:, [round(q * (flat.shape[1] - 1)) for q in LEVELS]]
    ends = [(1 - flat / BLACK).clamp_min(0).mean(1), (1 - (1 - flat) / BLACK).clamp_min(0).mean(1)]
    mean, std = flat.mean(1), _std(flat)
    rest = [_log(mean), std, _log(std) - _log(mean), *ends]
    return torch.cat([_root(levels), torch.stack(rest, 1), _spectrum(z)], 1)


def _spectrum(z: Tensor) -> Tensor:
    """Log power in bands of frequency, and that of level, upright and diagonal waves relative to all."""
    waves = torch.view_as_real(torch.fft.rfft2(z - z.mean((1, 2), keepdim=True)))
    power = waves.square().sum(3).flatten(1) / z.shape[1:].numel()
    bands = power @ _masks(*z.shape[1:]).to(power)
    logs = (bands + 1e-5).log()
    return torch.cat([logs[:, :BANDS], logs[:, BANDS:] - logs[:, :BANDS].mean(1, keepdim=True)], 1)


@cache
def _masks(height: int, width: int) -> Tensor:
    """Weights of each frequency in each band, ``(frequencies, bands)``; every band has sum 1."""
    v, u = torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None]
    radius, angle = torch.hypot(u, v), torch.atan2(v.abs(), u.abs().expand(height, -1))
    band = ((radius / 0.5).clamp_max(1 - 1e-6) * BANDS).long()
    way = (angle / (math.pi / 2) * 3).clamp_max(2).long()
    high = radius > 0.2
    masks = [band == i for i in range(BANDS)] + [(way == i) & high for i in range(3)]
    rows = torch.stack([m.flatten().float() for m in masks], 1)
    return rows / rows.sum(0).clamp_min(1)


def _noise(z: Tensor) -> Tensor:
    """What remains of each channel after smoothing, at full and at half size."""
    numbers = _residual_numbers(z)
    if min(z.shape[2:]) >= 2 * MIN_SIDE:
        numbers += _residual_numbers(avg_pool2d(z, 2))
    return torch.stack(numbers, 1)


def _residual_numbers(z: Tensor) -> list[Tensor]:
    smooth, rest = _smoothed(z)
    square = rest.square()
    power = square.mean((1, 2, 3)) + 1e-6
    kurtosis = square.square().mean((1, 2, 3)) / power**2
    level = smooth.mean((1, 2, 3))
    centred = smooth - level[:, None, None, None]
    spread = centred.square().mean((1, 2, 3)).add(1e-4).sqrt()
    grows = (square * centred).mean((1, 2, 3)) / power / spread  # more noise where it is bright
    local = _sorted(avg_pool2d(square.mean(1, keepdim=True), 3, stride=2).flatten(1))
    places = [round(q * (local.shape[1] - 1)) for q in SMOOTHEST]
    quiet = [(local[:, i] + 1e-6).log() for i in places]
    return [power.log(), (kurtosis + 1).log(), grows, *quiet, *(_correlation(rest, *lag) / power for lag in LAGS)]


def _smoothed(z: Tensor) -> tuple[Tensor, Tensor]:
    """Images smoothed over 3 x 3 pixels, and what remains."""
    across = (z[..., :-2] + 2 * z[..., 1:-1] + z[..., 2:]) / 4
    smooth = (across[..., :-2, :] + 2 * across[..., 1:-1, :] + across[..., 2:, :]) / 4
    return smooth, z[..., 1:-1, 1:-1] - smooth


def _correlation(rest: Tensor, down: int, right: int) -> Tensor:
    """Mean product of each value and the one that many pixels away."""
    h, w = rest.shape[2:]
    if right < 0:
        rest, right = rest.flip(3), -right
    return (rest[..., : h - down, : w - right] * rest[..., down:, right:]).mean((1, 2, 3))


def _layout(z: Tensor) -> Tensor:
    """Directions of edges; where it is dark; centre, size and elongation of what differs from the mean."""
    a, b = z.diff(dim=2)[:, :-1], z.diff(dim=1)[:, :, :-1]
    strength = (a * a + b * b).sum((1, 2)) + 1e-3
    edges = [(a * a - b * b).sum((1, 2)) / strength, 2 * (a * b).sum((1, 2)) / strength]
    blocks = _log(adaptive_avg_pool2d(z[:, None], 4).flatten(1))
    corners, middle = blocks[:, [0, 3, 12, 15]].mean(1), blocks[:, [5, 6, 9, 10]].mean(1)
    places = [corners - middle, blocks.amax(1) - blocks.amin(1)]
    if z.shape[2] > 8:  # steps between JPEG's blocks
        places.append(z.diff(dim=2).abs()[:, :, 7::8].mean((1, 2)) - z.diff(dim=2).abs().mean((1, 2)))
    return torch.stack([*edges, *places, *_mass(z)], 1)


def _mass(z: Tensor) -> list[Tensor]:
    m = (z - z.mean((1, 2), keepdim=True)).square()
    m = m / (m.sum((1, 2), keepdim=True) + 1e-6)
    v, u = ((torch.arange(k).to(z) - (k - 1) / 2) / k for k in z.shape[1:])
    x, y = m.sum(1) @ u, m.sum(2) @ v
    xx, yy, xy = m.sum(1) @ u**2 - x**2, m.sum(2) @ v**2 - y**2, (m @ u * v).sum(1) - x * y
    size = xx + yy + 1e-4
    return [x, y, size.sqrt(), (xx - yy) / size, 2 * xy / size]


def _colour(z: Tensor) -> Tensor:
    """Ratios between channels, strength of colour, and how much the noise of channels has in common."""
    means, rest = z.mean((2, 3)), _smoothed(z)[1]
    power = rest.square().mean((2, 3)) + 1e-6
    strength = (z.amax(1) - z.amin(1)) / (z.amax(1) + 0.05)
    numbers = [strength.mean((1, 2)), _std(strength.flatten(1))]
    for a, b in PAIRS if z.shape[1] > 2 else PAIRS[:1]:
        shared = (rest[:, a] * rest[:, b]).mean((1, 2)) / (power[:, a] * power[:, b]).sqrt()
        numbers += [_log(means[:, a]) - _log(means[:, b]), shared, power[:, a].log() - power[:, b].log()]
    return torch.stack(numbers, 1)


def _middle(x: Tensor) -> Tensor:
    for dim in (2, 3):
        side = min(CROP, x.shape[dim])
        x = x.narrow(dim, (x.shape[dim] - side) // 2, side)
    return x


def _sorted(v: Tensor) -> Tensor:
    if v.requires_grad:
        return v.sort(dim=1).values
    return torch.from_numpy(np.sort(v.numpy(), axis=1))  # many times faster


def _std(v: Tensor) -> Tensor:
    """With a finite gradient where all values are equal."""
    return ((v - v.mean(1, keepdim=True)).square().mean(1) + 1e-8).sqrt()


def _log(v: Tensor) -> Tensor:
    return (v.clamp_min(0) + 0.01).log()


def _root(v: Tensor) -> Tensor:
    return (v.clamp_min(0) + 1e-3).sqrt()
