"""Differences between neighbouring pixels: they reveal noise even in images that look normal as a whole."""

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d
from torch.utils.checkpoint import checkpoint

from operant.networks.vae import in_chunks

MIN_SIDE = 8  # pixels; smaller images have too few differences to estimate their sizes
SIZES = tuple(2.0 ** (6 * i / 7 - 7) for i in range(8))  # of differences: from 1/128 to 1/2 of the width
VALUES = 2**18  # pixels per chunk


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether inputs of this shape are images ``(C, H, W)`` large enough for `texture`."""
    return len(shape) == 3 and shape[0] > 0 and min(shape[1:]) >= MIN_SIDE


def texture(x: Tensor, *, width: float) -> Tensor:
    """Shares of an image's local differences that exceed each of eight sizes, ``(N, 32)``; differentiable in ``x``.

        share(t) = mean of v⁴ / (v⁴ + t⁴)        (1)

    for four kinds of difference v: to the pixel beside, to the pixel below, to the image smoothed over 3 x 3 pixels,
    and the root mean square of the last over 3 x 3 pixels, because noise may be strong in some places only. The share
    is smooth, so every pixel has a gradient; for a quantile only two would. Gradients recompute the shares, because
    storing them would need 32 times the image's memory. Sizes are fractions of ``width``, that of the range of values.
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
    """To the pixel beside, the pixel below and the smoothed image, and the mean of the last over 3 x 3 pixels."""
    across = (x[..., :-2] + 2 * x[..., 1:-1] + x[..., 2:]) / 4
    smooth = (across[..., :-2, :] + 2 * across[..., 1:-1, :] + across[..., 2:, :]) / 4
    rest = (x[..., 1:-1, 1:-1] - smooth).square()
    return x.diff(dim=-1).square(), x.diff(dim=-2).square(), rest, avg_pool2d(rest, 3, stride=1)
