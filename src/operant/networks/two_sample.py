"""A small network that learns to tell two sets of images apart, and how well it can."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, binary_cross_entropy_with_logits, pad

from operant.networks.training import initialise
from operant.rng import shuffled
from operant.validation import check_at_least

WIDTHS = (12, 24, 36, 48)  # channels of the four layers
STEPS, BATCH = 150, 48  # of the training; rows of each side per step
RATE, SMOOTHING = 4e-3, 0.05
SHIFT = 2  # pixels by which images are moved at random
MAX_SIDE = 64  # larger images are reduced to at most this
CHUNK = 512  # images per pass


class TwoSampleNetwork(nn.Module):
    """Four convolutions; means of the last three layers describe an image, and a linear layer gives its logit.

    Takes images with values from 0 to 1; their square root makes differences between dark images visible.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        sizes = (channels, *WIDTHS)
        self.layers = nn.ModuleList(
            nn.Conv2d(a, b, 3, stride=1 if i == 0 else 2, padding=1) for i, (a, b) in enumerate(pairwise(sizes))
        )
        self.head = nn.Linear(sum(WIDTHS[1:]), 1)

    def features(self, x: Tensor) -> Tensor:
        z, means = (x.clamp(0, 1) + 1e-4).sqrt() * 2 - 1, []
        z = z.contiguous(memory_format=torch.channels_last)  # faster by a quarter
        for layer in self.layers:
            z = layer(z).relu()
            means.append(adaptive_avg_pool2d(z, 1).flatten(1))
        return torch.cat(means[1:], 1)

    def forward(self, x: Tensor) -> Tensor:
        logit: Tensor = self.head(self.features(x)).squeeze(1)
        return logit


@dataclass(frozen=True, eq=False, kw_only=True)
class TwoSample:
    """A trained network between two sets of images; made by `fit_two_sample`."""

    network: TwoSampleNetwork = field(repr=False)
    bounds: tuple[float, float]

    def scores(self, x: Tensor) -> Tensor:
        """Logits, one per image: positive where it looks like the first set."""
        return self._batched(x, self.network)

    def features(self, x: Tensor) -> Tensor:
        """What the network looks at, ``(n, 108)``."""
        return self._batched(x, self.network.features)

    @torch.no_grad()
    def _batched(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.cat([function(reduced(part, self.bounds)) for part in x.split(CHUNK)])


def fit_two_sample(
    first: Tensor,
    second: Tensor,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    steps: int = STEPS,
    generator: torch.Generator,
) -> TwoSample:
    """Train a network to tell the first images ``(n, channels, height, width)`` from the second.

    Both sides have the same weight, whatever their numbers. A few seconds for images of 32 by 32 pixels.
    """
    check_at_least(2, first=len(first), second=len(second))
    sides = [reduced(x, bounds) for x in (first, second)]
    network = initialise(lambda: TwoSampleNetwork(first.shape[1]), generator=generator)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    target = torch.cat([torch.full((BATCH,), 1 - SMOOTHING / 2), torch.full((BATCH,), SMOOTHING / 2)])
    for _ in range(steps):
        x = torch.cat([side[torch.randint(len(side), (BATCH,), generator=generator)] for side in sides])
        loss = binary_cross_entropy_with_logits(network(_moved(x, generator)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return TwoSample(network=network.eval().requires_grad_(False), bounds=bounds)


def two_sample_auc(
    first: Tensor, second: Tensor, *, bounds: tuple[float, float] = (0.0, 1.0), generator: torch.Generator
) -> float:
    """How well a network tells two sets of images apart: 0.5 not at all, 1 always.

    Area under the curve, averaged over two networks: each learns from one half of both sets and judges the other.
    """
    check_at_least(4, first=len(first), second=len(second))
    halves = [x[shuffled(len(x), generator)].tensor_split(2) for x in (first, second)]
    areas = []
    for k in (0, 1):
        learned = fit_two_sample(halves[0][k], halves[1][k], bounds=bounds, generator=generator)
        areas.append(area_under_curve(learned.scores(halves[0][1 - k]), learned.scores(halves[1][1 - k])))
    return sum(areas) / 2


def area_under_curve(first: Tensor, second: Tensor) -> float:
    """Share of pairs in which the first score is larger; ties count half.

    >>> area_under_curve(torch.tensor([2.0, 3.0]), torch.tensor([1.0, 2.0]))
    0.875
    """
    ordered, first = second.sort().values, first.contiguous()
    below = torch.searchsorted(ordered, first).double() + torch.searchsorted(ordered, first, right=True).double()
    return float(below.mean() / 2 / len(second))


def reduced(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Images with values from 0 to 1 and sides of at most 64 pixels, by means over blocks; differentiable."""
    z = x.cpu().float()
    z = z if bounds == (0, 1) else (z - bounds[0]) / (bounds[1] - bounds[0])
    return avg_pool2d(z, factor) if (factor := math.ceil(max(x.shape[2:]) / MAX_SIDE)) > 1 else z


def _moved(x: Tensor, generator: torch.Generator) -> Tensor:
    """All images of a batch moved by the same few pixels and, half of the time, mirrored."""
    right, down = torch.randint(2 * SHIFT + 1, (2,), generator=generator).tolist()
    h, w = x.shape[2:]
    moved = pad(x, (SHIFT,) * 4, mode="replicate")[:, :, down : down + h, right : right + w]
    return moved.flip(3) if bool(torch.rand((), generator=generator) < 0.5) else moved
