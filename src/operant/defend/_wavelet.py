"""Wavelet denoising: small coefficients of the Haar transform are mostly noise and are shrunk to 0."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from operant.conditions.operations import RGB, YCBCR


def denoise(x: Tensor, *, sigma: float, levels: int | None = None) -> Tensor:
    """Images with noise of about this standard deviation removed (BayesShrink, soft thresholds).

        t = σ² / √(max(mean(d²) - σ², 0)),    d ← sign(d) · max(|d| - t, 0)        (1)

    for the details d of each image, channel, direction and level separately; where the details are no larger than the
    noise, t is infinite and they are set to 0. Three channels are denoised as brightness and two colours.

    Args:
        levels: of the transform (default: three less than the image has, at least 1).

    References:
        | Adaptive Wavelet Thresholding for Image Denoising and Compression (Chang et al., 2000)
        | https://doi.org/10.1109/83.862633
    """
    if levels is None:
        levels = max(1, int(math.log2(min(x.shape[2:]))) - 3)
    colour = x.shape[1] == 3
    z = _converted(x, YCBCR) if colour else x
    z = _denoised(z, sigma, levels)
    return _converted(z, RGB) if colour else z


def _denoised(x: Tensor, sigma: float, levels: int) -> Tensor:
    if levels == 0 or min(x.shape[2:]) < 2:
        return x
    coarse, details = forward(x)
    return inverse(_denoised(coarse, sigma, levels - 1), shrunk(details, sigma), x.shape[2:])


def shrunk(details: Tensor, sigma: float) -> Tensor:
    """Soft thresholds, one for each image, channel and direction."""
    power = details.square().mean((-2, -1), keepdim=True)
    signal = (power - sigma**2).clamp_min(0).sqrt()
    threshold = torch.where(signal > 0, sigma**2 / signal, torch.inf)  # (1)
    return details.sign() * (details.abs() - threshold).clamp_min(0)


def forward(x: Tensor) -> tuple[Tensor, Tensor]:
    """One level: the coarse image, and its details in three directions ``(3, N, channels, ...)``; orthonormal.

    An odd side is extended by its last pixel.
    """
    x = pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2), mode="replicate")
    half = x / 2
    summed, differing = half[..., ::2, :] + half[..., 1::2, :], half[..., ::2, :] - half[..., 1::2, :]
    (s0, s1), (d0, d1) = ((rows[..., ::2], rows[..., 1::2]) for rows in (summed, differing))
    return s0 + s1, torch.stack([s0 - s1, d0 + d1, d0 - d1])  # details across, down and diagonal


def inverse(coarse: Tensor, details: Tensor, size: torch.Size) -> Tensor:
    """The image of this height and width from which `forward` computed these."""
    across, down, diagonal = details
    h, w = coarse.shape[-2:]
    summed = torch.stack([coarse + across, coarse - across], -1).view(*coarse.shape[:-1], 2 * w) / 2
    differing = torch.stack([down + diagonal, down - diagonal], -1).view(*coarse.shape[:-1], 2 * w) / 2
    x = torch.stack([summed + differing, summed - differing], -2).view(*coarse.shape[:-2], 2 * h, 2 * w)
    return x[..., : size[0], : size[1]]


def _converted(x: Tensor, matrix: tuple[tuple[float, ...], ...]) -> Tensor:
    return torch.stack([x[:, 0] * a + x[:, 1] * b + x[:, 2] * c for a, b, c in matrix], 1)
