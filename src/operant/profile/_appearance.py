"""Describes images by numbers whose means can be compared."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d

Array = NDArray[np.float64]
COMPONENTS = 16  # principal components among the numbers that describe an image
WAVES = 3  # cosines that describe the distribution of one number
LEVELS = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)  # quantiles of brightness
MIN_SIDE = 8  # pixels


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

    @staticmethod
    def of(x: Tensor, bounds: tuple[float, float]) -> "ImageDescriptor":
        small = _small(_unit(x, bounds))
        mean = small.mean(0)
        axes = torch.linalg.eigh((small - mean).T @ (small - mean)).eigenvectors[:, -COMPONENTS:]
        plain = ImageDescriptor(bounds, mean, axes, mean, mean).numbers(x)
        return ImageDescriptor(bounds, mean, axes, plain.mean(0), plain.std(0).clamp_min(1e-3))

    def numbers(self, x: Tensor) -> Tensor:
        z = _unit(x, self.bounds)
        return torch.cat([torch.stack(_appearance(z.mean(1)), 1), (_small(z) - self.mean) @ self.axes], 1)

    def __call__(self, x: Tensor) -> Array:
        u = torch.special.ndtr((self.numbers(x) - self.centre) / self.scale)
        waves = torch.cat([math.sqrt(2) * (math.pi * k * u).cos() for k in range(1, WAVES + 1)], 1)  # (1)
        return waves.double().numpy()


def _unit(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    return (x.detach().cpu().float() - bounds[0]) / (bounds[1] - bounds[0])


def _small(x: Tensor) -> Tensor:
    """Flattened images, shrunk to sides of about 14 pixels."""
    return avg_pool2d(x, max(1, min(x.shape[2:]) // 14)).flatten(1)


def _appearance(z: Tensor) -> list[Tensor]:
    """Numbers that describe grey images ``(n, height, width)``, each one value per image."""
    ordered = _sorted_values(z)
    levels = [ordered[:, round(q * (ordered.shape[1] - 1))] for q in LEVELS]
    black, white = (z < 1 / 512).float().mean((1, 2)), (z > 1 - 1 / 512).float().mean((1, 2))
    light = [z.mean((1, 2)), z.flatten(1).std(1), *levels, black, white]
    return light + _sharpness(z) + _edges(z) + _mass(z, levels[len(levels) // 2])


def _sharpness(z: Tensor) -> list[Tensor]:
    """Median and maximum of second differences; steps between JPEG blocks; differences at three scales."""
    bends, steps = _bend(z).flatten(1), (z[:, :, 1:] - z[:, :, :-1]).abs().mean(1)
    numbers = [_sorted_values(bends)[:, bends.shape[1] // 2], bends.amax(1)]
    border = torch.arange(1, z.shape[2]) % 8 == 0  # of JPEG blocks
    if bool(border.any()):
        numbers.append(steps[:, border].mean(1) - steps[:, ~border].mean(1))
    for _ in range(3):
        across, down = (z.diff(dim=d).abs().mean((1, 2)) for d in (2, 1))
        bend = _bend(z).mean((1, 2))
        numbers += [across, down, bend, (bend + 1e-4).log() - (across + down + 1e-4).log()]
        z = avg_pool2d(z, 2) if min(z.shape[1:]) >= 8 else z
    return numbers


def _bend(z: Tensor) -> Tensor:
    return (z[:, 1:-1, 2:] + z[:, 1:-1, :-2] + z[:, 2:, 1:-1] + z[:, :-2, 1:-1] - 4 * z[:, 1:-1, 1:-1]).abs()


def _edges(z: Tensor) -> list[Tensor]:
    """Directions of edges: cosines and sines of twice and four times their angle, weighted by their strength."""
    a, b = z.diff(dim=2)[:, :-1], z.diff(dim=1)[:, :, :-1]
    strength = a * a + b * b
    cos2, sin2 = a * a - b * b, 2 * a * b
    each = (cos2, sin2, (cos2**2 - sin2**2) / (strength + 1e-9), 2 * cos2 * sin2 / (strength + 1e-9))
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


def _sorted_values(z: Tensor) -> Tensor:
    return torch.from_numpy(np.sort(z.flatten(1).numpy(), axis=1))  # many times faster than torch's sort
