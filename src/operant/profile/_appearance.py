"""Describes images by numbers whose means can be compared."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d

from operant.networks.two_sample import TwoSample

Array = NDArray[np.float64]
COMPONENTS = 16  # principal components among the numbers that describe an image
LEARNED = 8  # features of a network among them
WAVES = 3  # cosines that describe the distribution of one number
LEVELS = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)  # quantiles of brightness
MIN_SIDE = 8  # pixels


class Learned(NamedTuple):
    """The numbers by which a network tells two sets of images apart: its logit and its main features."""

    network: TwoSample
    mean: Tensor  # of the features
    axes: Tensor  # their principal components

    def __call__(self, x: Tensor) -> Tensor:
        features = self.network.features(x)
        return torch.cat([self.network.network.head(features), (features - self.mean) @ self.axes], 1)


@dataclass(frozen=True, eq=False)
class ImageDescriptor:
    """Turns images ``(n, channels, height, width)`` into vectors; made by `ImageDescriptor.of`.

    The vector is φ, (1) of `fit_conditions`. A number is mapped to u by the normal distribution function with the mean
    and standard deviation of the images given to `of`: unlike ranks, u is smooth, and rounding errors hardly change it.
    """

    bounds: tuple[float, float]  # smallest and largest value of an image
    mean: Tensor  # of small copies of the images
    axes: Tensor  # principal components of these
    centre: Tensor  # mean of the numbers
    scale: Tensor  # standard deviation of the numbers
    learned: "Learned | None" = None

    @staticmethod
    def of(x: Tensor, bounds: tuple[float, float]) -> "ImageDescriptor":
        small = _small(_unit(x, bounds))
        mean = small.mean(0)
        axes = _principal(small - mean, COMPONENTS)
        plain = ImageDescriptor(bounds, mean, axes, mean, mean).numbers(x)
        return ImageDescriptor(bounds, mean, axes, plain.mean(0), plain.std(0).clamp_min(1e-3))

    def numbers(self, x: Tensor) -> Tensor:
        z = _unit(x, self.bounds)
        plain = _appearance(z.mean(1)) + (_colours(z) if z.shape[1] == 3 else [])
        parts = [torch.stack(plain, 1), (_small(z) - self.mean) @ self.axes]
        return torch.cat(parts if self.learned is None else [*parts, self.learned(x)], 1)

    def with_learned(self, network: TwoSample, x: Tensor) -> "ImageDescriptor":
        """The same with the main features of a network, and its logit."""
        features = network.features(x)
        mean = features.mean(0)
        axes = _principal(features - mean, LEARNED)
        extended = replace(self, learned=Learned(network, mean, axes))
        numbers = extended.numbers(x)
        return replace(extended, centre=numbers.mean(0), scale=numbers.std(0).clamp_min(1e-3))

    def __call__(self, x: Tensor) -> Array:
        u = torch.special.ndtr((self.numbers(x) - self.centre) / self.scale)
        waves = torch.cat([math.sqrt(2) * (math.pi * k * u).cos() for k in range(1, WAVES + 1)], 1)  # (1)
        return waves.double().numpy()


def _unit(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    x = x.detach().cpu().float()
    return x if bounds == (0, 1) else (x - bounds[0]) / (bounds[1] - bounds[0])


def _principal(centred: Tensor, n: int) -> Tensor:
    """The main directions of centred rows, as columns; in double precision, since single precision can give NaN."""
    rows = centred.double()
    axes: Tensor = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -n:].to(centred)
    return axes


def _small(x: Tensor) -> Tensor:
    """Flattened images, shrunk to sides of about 14 pixels."""
    return avg_pool2d(x, max(1, min(x.shape[2:]) // 14)).flatten(1)


def _appearance(z: Tensor) -> list[Tensor]:
    """Numbers that describe grey images ``(n, height, width)``, each one value per image."""
    ordered = _sorted_values(z)
    levels = [ordered[:, round(q * (ordered.shape[1] - 1))] for q in LEVELS]
    black, white = (z < 1 / 512).float().mean((1, 2)), (z > 1 - 1 / 512).float().mean((1, 2))
    light = [z.mean((1, 2)), _std(z), *levels, black, white]
    bends = _bend(z)
    fine = _noise(z, bends) + _sharpness(z, bends)
    return light + _places(z) + fine + _edges(z) + _mass(z, levels[len(levels) // 2])


def _places(z: Tensor) -> list[Tensor]:
    """Where it is dark, on a log scale: corners against the middle, and the darkest and brightest of sixteen blocks."""
    blocks = adaptive_avg_pool2d(z[:, None], 4).flatten(1)
    corners, middle = blocks[:, [0, 3, 12, 15]].mean(1), blocks[:, [5, 6, 9, 10]].mean(1)
    dark, bright, mean = blocks.amin(1), blocks.amax(1), blocks.mean(1)
    return [_log(corners) - _log(middle), _log(mean) - _log(dark), _log(bright) - _log(mean), _log(mean)]


def _noise(z: Tensor, bends: Tensor) -> list[Tensor]:
    """Roughness in the darker and in the brighter half of an image, on a log scale."""
    level = z[:, 1:-1, 1:-1]
    bright = (level > level.mean((1, 2), keepdim=True)).float()
    rough = [(bends * part).sum((1, 2)) / (part.sum((1, 2)) + 1) for part in (1 - bright, bright)]
    return [_log(rough[0]), _log(rough[1])]


def _colours(z: Tensor) -> list[Tensor]:
    """Balance, strength and roughness of the colours of images ``(n, 3, height, width)``."""
    red, green, blue = z.mean((2, 3)).unbind(1)
    most, least = z.amax(1), z.amin(1)
    strength = (most - least) / (most + 0.05)
    rough = [_log(_bend(z[:, a] - z[:, 1]).mean((1, 2))) for a in (0, 2)]
    balance = [_log(red) - _log(green), _log(blue) - _log(green)]
    return [*balance, strength.mean((1, 2)), _std(strength), (most - least).mean((1, 2)), *rough]


def _log(v: Tensor) -> Tensor:
    return (v.clamp_min(0) + 0.01).log()


def _sharpness(z: Tensor, bends: Tensor) -> list[Tensor]:
    """Median and maximum of second differences; steps between JPEG blocks; differences at three scales."""
    ordered, steps = _sorted_values(bends), (z[:, :, 1:] - z[:, :, :-1]).abs().mean(1)
    numbers = [ordered[:, ordered.shape[1] // 2], ordered[:, -1]]
    border = torch.arange(1, z.shape[2]) % 8 == 0  # of JPEG blocks
    if bool(border.any()):
        numbers.append(steps[:, border].mean(1) - steps[:, ~border].mean(1))
    for _ in range(3):
        across, down = (z.diff(dim=d).abs().mean((1, 2)) for d in (2, 1))
        bend = bends.mean((1, 2))
        numbers += [across, down, bend, (bend + 1e-4).log() - (across + down + 1e-4).log()]
        if min(z.shape[1:]) >= 8:
            z = _halved(z)
            bends = _bend(z)
    return numbers


def _bend(z: Tensor) -> Tensor:
    return (z[:, 1:-1, 2:] + z[:, 1:-1, :-2] + z[:, 2:, 1:-1] + z[:, :-2, 1:-1] - 4 * z[:, 1:-1, 1:-1]).abs()


def _edges(z: Tensor) -> list[Tensor]:
    """Directions of edges: cosines and sines of twice and four times their angle, weighted by their strength."""
    a, b = z.diff(dim=2)[:, :-1], z.diff(dim=1)[:, :, :-1]
    strength = a * a + b * b
    cos2, sin2 = a * a - b * b, 2 * a * b
    double = 2 * cos2 / (strength + 1e-9)
    each = (cos2, sin2, double * cos2 - strength, double * sin2)
    return [v.sum((1, 2)) / (strength.sum((1, 2)) + 1e-3) for v in each]


def _mass(z: Tensor, median: Tensor) -> list[Tensor]:
    """Centre, size and two elongations of the parts that differ from the background."""
    m = (z - median[:, None, None]).abs()
    m = m / (m.sum((1, 2), keepdim=True) + 1e-6)
    v, u = ((torch.arange(k) - (k - 1) / 2) / k for k in z.shape[1:])
    x, y = m.sum(1) @ u, m.sum(2) @ v
    xx, yy, xy = m.sum(1) @ u**2 - x**2, m.sum(2) @ v**2 - y**2, (m @ u) @ v - x * y
    size = xx + yy + 1e-6
    return [x, y, size.clamp_min(0).sqrt(), (xx - yy) / size, 2 * xy / size]


def _std(z: Tensor) -> Tensor:
    return (z - z.mean((1, 2), keepdim=True)).square().mean((1, 2)).sqrt()  # many times faster than torch's std


def _halved(z: Tensor) -> Tensor:
    """Means of two by two pixels."""
    h, w = (2 * (n // 2) for n in z.shape[1:])
    even, odd = z[:, 0:h:2], z[:, 1:h:2]
    return (even[:, :, 0:w:2] + even[:, :, 1:w:2] + odd[:, :, 0:w:2] + odd[:, :, 1:w:2]) / 4


def _sorted_values(z: Tensor) -> Tensor:
    return torch.from_numpy(np.sort(z.flatten(1).numpy(), axis=1))  # many times faster than torch's sort
