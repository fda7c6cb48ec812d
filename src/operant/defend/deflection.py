"""Pixel deflection: replace random pixels by nearby ones, then denoise."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from operant.conditions._fields import uniforms
from operant.defend._common import check_images, seeds_of
from operant.defend._wavelet import denoise
from operant.validation import check_at_least, check_nonnegative


@dataclass(frozen=True, kw_only=True)
class PixelDeflection:
    """Replace random pixels, each by one from the square window around it, one after another; then denoise.

    Networks hardly react to this, but carefully optimised perturbations break. All images are processed together. The
    paper replaces pixels more often where the network does not look: that is ``keep``. Its program draws places per
    channel and never in the first row and column; here a pixel has all its channels, as in the paper's text, and every
    pixel can be drawn.

    Args:
        count: pixels replaced; the paper uses 200 of 224 times 224.
        window: maximum distance of the replacing pixel, in rows and in columns.
        sigma: of the wavelet denoising, in units of [0, 1]; 0 for none.
        keep: from images ``(N, channels, height, width)`` to each pixel's probability of being kept, ``(N, height,
            width)`` in [0, 1], for instance a class activation map; places are drawn until ``count`` pixels are
            replaced (default: equal for all).

    References:
        | Deflecting Adversarial Attacks with Pixel Deflection (Prakash et al., 2018)
        | https://arxiv.org/abs/1801.08926
    """

    count: int = 200
    window: int = 10
    sigma: float = 0.04
    keep: Callable[[Tensor], Tensor] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_nonnegative(count=self.count, sigma=self.sigma)
        check_at_least(1, window=self.window)

    def __call__(self, x: Tensor) -> Tensor:
        check_images(x)
        moved = deflect(x, *self.places(x))
        return denoise(moved, sigma=self.sigma).clamp(0, 1) if self.sigma else moved

    def places(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The replaced and the replacing pixels, ``(N, count)`` each, numbered row by row from the upper left."""
        height, width = x.shape[2:]
        at, rest = self._drawn(x, uniforms(seeds_of(x, self.seed), (self.count,), "deflection").to(x.device))
        row, rest = _nearby(at // width, rest, self.window, height)
        column, _ = _nearby(at % width, rest, self.window, width)
        return at, row * width + column

    def _drawn(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """A pixel for each uniform number, and the remainder of the number, again uniform in (0, 1)."""
        pixels = x.shape[2] * x.shape[3]
        if self.keep is None:
            return _split(u * pixels, pixels)
        keep = self.keep(x).double().to(x.device)
        if keep.shape != (len(x), *x.shape[2:]) or not bool(((keep >= 0) & (keep <= 1)).all()):
            raise ValueError(f"keep must return shares of shape {(len(x), *x.shape[2:])}, got {tuple(keep.shape)}")
        chance = (1 - keep).flatten(1).cumsum(1)  # equivalent to drawing again wherever a pixel is kept
        total = chance[:, -1:]
        if not bool((total > 0).all()):
            raise ValueError("keep is 1 for every pixel of an image; let some be replaced")
        at = torch.searchsorted(chance, u * total, right=True).clamp_max(pixels - 1)
        share = (1 - keep).flatten(1).gather(1, at).clamp_min(1e-300)
        return at, (1 - (chance.gather(1, at) - u * total) / share).clamp(0, 1)


def deflect(x: Tensor, at: Tensor, by: Tensor) -> Tensor:
    """Images with pixels ``at`` replaced by those ``by``, in order: later replacements see earlier ones.

    The final source of each pixel is computed first, for all images together; pixels are moved once.
    """
    n, channels, height, width = x.shape
    first = torch.arange(n)
    to, source = ((places.cpu().T * n + first).contiguous().numpy() for places in (at, by))
    now = np.arange(height * width, dtype=np.int32).repeat(n)  # the pixel at each place
    for a, b in zip(to, source, strict=True):
        now[a] = now[b]
    last = torch.from_numpy(now[to]).T.long().to(x.device)
    pixels, all_channels = x.flatten(2), (-1, channels, -1)
    moved = pixels.gather(2, last[:, None].expand(all_channels))
    return pixels.scatter(2, at[:, None].expand(all_channels), moved).view(x.shape)


def _nearby(place: Tensor, u: Tensor, window: int, side: int) -> tuple[Tensor, Tensor]:
    """A row or column drawn uniformly from the part of the window inside the image, and the number's remainder."""
    first = (place - window).clamp_min(0)
    size = (place + window).clamp_max(side - 1) - first + 1
    step, rest = _split(u * size, size)
    return first + step, rest


def _split(v: Tensor, size: Tensor | int) -> tuple[Tensor, Tensor]:
    """The integer part of numbers below ``size``, and the fraction: both are uniform if the numbers are."""
    whole = torch.minimum(v.long(), torch.as_tensor(size, device=v.device) - 1)
    return whole, v - whole
