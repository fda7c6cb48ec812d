"""How strongly neighbouring pixels differ: noise shows there even where an image as a whole looks as it should."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d
from torch.utils.checkpoint import checkpoint

from operant.networks.vae import in_chunks

SMALLEST = 8  # pixels a side: smaller images hold too few differences to tell their sizes
SIZES = tuple(2.0 ** (6 * i / 7 - 7) for i in range(8))  # of differences, from 1/128 to 1/2 of the width
VALUES = 2**18  # pixels looked at at once


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether inputs of this shape are images ``(C, H, W)``, large enough to have a texture."""
    return len(shape) == 3 and shape[0] > 0 and min(shape[1:]) >= SMALLEST


def texture(x: Tensor, *, width: float) -> Tensor:
    """Which shares of an image's local differences exceed each of eight sizes, ``(N, 32)``; differentiable in ``x``.

        share(t) = mean of v⁴ / (v⁴ + t⁴)        (1)

    for four kinds of v: what a pixel differs by from the one beside it and from the one below it, what smoothing over
    3 x 3 pixels takes away, and the root mean square of that over 3 x 3 pixels, since noise is loud in some places. A
    smooth share has a slope for every pixel, where a quantile has one for two of them. For gradients the shares are
    computed again rather than kept: they would need 32 times the image's memory.

    Args:
        x: images ``(N, C, H, W)``.
        width: of the range of values; sizes are parts of it.
    """

    def run(part: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and part.requires_grad):
            return _shares(part, width)
        again: Tensor = checkpoint(_shares, part, width, use_reentrant=False, preserve_rng_state=False)
        return again

    return in_chunks(run, x, rows=max(1, VALUES // x.shape[1:].numel()))


def _shares(x: Tensor, width: float) -> Tensor:
    fourths = [square.flatten(1).square() for square in _squared_differences(x / width)]
    return torch.stack([(v / (v + t**4)).mean(1) for v in fourths for t in SIZES], 1)  # (1)


def _squared_differences(x: Tensor) -> tuple[Tensor, ...]:
    """Beside, below, against the smoothed image, and the mean of the latter over 3 x 3 pixels."""
    across = (x[..., :-2] + 2 * x[..., 1:-1] + x[..., 2:]) / 4
    smooth = (across[..., :-2, :] + 2 * across[..., 1:-1, :] + across[..., 2:, :]) / 4
    rest = (x[..., 1:-1, 1:-1] - smooth).square()
    return x.diff(dim=-1).square(), x.diff(dim=-2).square(), rest, avg_pool2d(rest, 3, stride=1)
