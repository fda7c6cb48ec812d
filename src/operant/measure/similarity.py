"""Similarity of a case and its seed: mean squared error, PSNR and SSIM. One value per row, differentiable."""

import torch
from torch import Tensor

from operant.validation import check_ascending

WINDOW, SIGMA = 11, 1.5  # of SSIM's Gaussian window, in pixels
VALUES = 2**20  # pixels per chunk


def mse(x: Tensor, x0: Tensor) -> Tensor:
    """Mean squared difference between each row of ``x`` and the same row of ``x0``; 0 where they are equal.

    >>> mse(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0]]))
    tensor([0.5000])
    """
    _check_pair(x, x0)
    return (x - x0.to(x)).square().flatten(1).mean(1)


def psnr(x: Tensor, x0: Tensor, *, bounds: tuple[float, float]) -> Tensor:
    """Peak signal-to-noise ratio of each row in decibels; infinite (and without gradient) if the rows are equal.

        PSNR = 10 log₁₀(L² / MSE),   L the width of ``bounds``        (1)

    >>> psnr(torch.tensor([[0.1, 0.1]]), torch.tensor([[0.0, 0.0]]), bounds=(0, 1))
    tensor([20.])
    """
    return 10 * (_width(bounds) ** 2 / mse(x, x0)).log10()  # (1)


def ssim(x: Tensor, x0: Tensor, *, bounds: tuple[float, float]) -> Tensor:
    """Structural similarity of each image ``(C, H, W)`` to the same row of ``x0``: 1 if they are equal, else lower.

        SSIM = mean of (2 μ μ₀ + c₁)(2 σₓ + c₂) / ((μ² + μ₀² + c₁)(σ² + σ₀² + c₂))        (1)

    with means μ, variances σ² and covariance σₓ under an 11 x 11 Gaussian window of standard deviation 1.5, L the
    width of ``bounds``, c₁ = (.01 L)², c₂ = (.03 L)²; the mean is over all channels and pixels. Images are mirrored at
    their edges, so that every pixel is the centre of a window; the paper leaves out pixels near the edge, which in
    small images are most. If a side has fewer than 6 pixels, the window shrinks to the largest that can be mirrored,
    2 size - 1.

    References:
        | Image Quality Assessment: From Error Visibility to Structural Similarity (Wang et al., 2004)
    """
    _check_pair(x, x0)
    if x.ndim != 4 or 0 in x.shape[1:]:
        raise ValueError(f"ssim compares images (N, C, H, W), got shape {tuple(x.shape)}; for other inputs use mse")
    width = _width(bounds)
    down, across = (_band(size, min(WINDOW // 2, min(x.shape[2:]) - 1)).to(x) for size in x.shape[2:])
    rows = max(1, VALUES // x[0].numel()) if len(x) else 1
    pairs = zip(x.split(rows), x0.to(x).split(rows), strict=True)
    return torch.cat([_ssim(a, b, down, across.T, (0.01 * width) ** 2, (0.03 * width) ** 2) for a, b in pairs])


def _ssim(x: Tensor, x0: Tensor, down: Tensor, across: Tensor, c1: float, c2: float) -> Tensor:
    def blurred(image: Tensor) -> Tensor:
        return down @ image @ across

    m, m0 = blurred(x), blurred(x0)
    v, v0 = (blurred(x * x) - m * m).clamp_min(0), (blurred(x0 * x0) - m0 * m0).clamp_min(0)
    v01 = blurred(x * x0) - m * m0
    ratio = (2 * m * m0 + c1) * (2 * v01 + c2) / ((m * m + m0 * m0 + c1) * (v + v0 + c2))  # (1)
    return ratio.flatten(1).mean(1)


def _band(size: int, reach: int) -> Tensor:
    """A matrix that applies the Gaussian window along a mirrored line of pixels; faster here than convolution."""
    shift = torch.arange(-reach, reach + 1)
    weight = torch.exp(-shift.double().square() / (2 * SIGMA**2))
    place = (torch.arange(size)[:, None] + shift).abs()
    mirrored = torch.minimum(place, 2 * (size - 1) - place)
    return torch.zeros(size, size).double().scatter_add(1, mirrored, (weight / weight.sum()).expand(size, -1))


def _width(bounds: tuple[float, float]) -> float:
    check_ascending(bounds=bounds)
    return bounds[1] - bounds[0]


def _check_pair(x: Tensor, x0: Tensor) -> None:
    if x.shape != x0.shape or x.ndim < 2:
        raise ValueError(f"x and x0 must have one shape (N, *shape), got {tuple(x.shape)} and {tuple(x0.shape)}")
    for name, values in {"x": x, "x0": x0}.items():
        if bad := int(values.detach().isnan().flatten(1).any(1).sum()):
            raise ValueError(f"{name} contains NaN in {bad} of {len(x)} rows; remove them")
