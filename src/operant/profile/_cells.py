"""Probability mass of regions: of boxes around codes, and of the codes nearest to each input of a pool."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from operant.density import KDE
from operant.rng import spawn
from operant.types import Density
from operant.validation import check_not_empty

PAIRS = 2**21  # pairs of rows and references per block
POINTS = 256  # quadrature points per box, for densities without a closed form
MAX_FIELD_INPUTS = 5000  # whose mass `nearest_mass` distributes
FACTORS = 4  # multiplied before taking their logarithm
STEPS = 5  # of expectation-maximisation
MAX_OMITTED = 1e-3  # share of a box's mass in kernels that are skipped
NEAREST = 16  # kernels that estimate a box's mass, for that share
GRID = 1024  # points that the bound on boxes is computed from


def box_mass(density: Density, z: Tensor, half: Tensor) -> Tensor:
    """The probability of the box ``z ± half`` around each row, ``(N,)`` in float64."""
    if isinstance(density, KDE):
        return _kernel_boxes(density, z.double(), half.double())
    u = torch.quasirandom.SobolEngine(z.shape[1], scramble=True, seed=0).draw(POINTS).to(half)
    offsets = (2 * u - 1) * half
    volume = (2 * half).log().sum()
    rows = max(1, PAIRS // (POINTS * z.shape[1]))
    parts = []
    for part in z.split(rows):
        points = (part[:, None].double() + offsets).flatten(0, 1).to(z)
        log_p = density.log_prob(points).detach().double().view(len(part), POINTS)
        parts.append((torch.logsumexp(log_p, 1) - math.log(POINTS) + volume).exp())
    return torch.cat(parts).clamp_max(1)


def _kernel_boxes(kde: KDE, z: Tensor, half: Tensor) -> Tensor:
    """Σᵢ wᵢ Π_d [Φ((z + h - μᵢ) / σ) - Φ((z - h - μᵢ) / σ)], in tiles of single precision.        (1)

    If all kernels have one bandwidth, kernels that together hold less than a thousandth of the sum are skipped.
    """
    centre = kde.references.double().mean(0)
    z, references, log_weights = z - centre, kde.references.double() - centre, kde.weights.double().log()
    if len(z) == 0:
        return z.new_zeros(0)
    widths, rows = kde.bandwidth.double(), max(1, PAIRS // len(references))
    if widths.shape == references.shape:
        parts = [_every_box(part, references, widths, half, log_weights) for part in z.split(rows)]
    else:
        bound = _bound(references, widths, half, log_weights)
        parts = [_near_boxes(part, references, widths, half, log_weights, bound(part)) for part in z.split(rows)]
    return torch.cat(parts).clamp_max(1)


def _every_box(z: Tensor, references: Tensor, widths: Tensor, half: Tensor, log_weights: Tensor) -> Tensor:
    """(1) for kernels of any widths."""
    logs = log_weights.expand(len(z), -1).clone()
    for dimensions in torch.arange(z.shape[1]).split(FACTORS):
        product = torch.ones(1)
        for d in dimensions.tolist():
            product = product * _bracket(z[:, d, None].float() - references[:, d].float(), widths[:, d], half[d])
        logs += product.log()
    return logs.exp().sum(1)


def _near_boxes(
    z: Tensor, references: Tensor, widths: Tensor, half: Tensor, log_weights: Tensor, bound: Tensor
) -> Tensor:
    """(1) over the kernels that can matter: the bound on every other's mass is below its share of `MAX_OMITTED`."""

    def mass(row: Tensor, kernel: Tensor) -> Tensor:
        """Mass of boxes ``row`` under kernels ``kernel``, summed per row."""
        total = z.new_zeros(len(z))
        for i, j in zip(row.split(PAIRS // 64), kernel.split(PAIRS // 64), strict=True):
            bracket = _bracket((z[i] - references[j]).float(), widths, half)
            log_mass = log_weights[j] + sum(part.prod(1).log() for part in bracket.split(FACTORS, dim=1))
            total.index_add_(0, i, log_mass.exp())
        return total

    near = bound.topk(min(NEAREST, len(references))).indices
    least = mass(torch.arange(len(z)).repeat_interleave(near.shape[1]), near.flatten())
    row, kernel = (bound >= (MAX_OMITTED * least / len(references)).log()[:, None]).nonzero().unbind(1)
    return mass(row, kernel)


def _bracket(apart: Tensor, widths: Tensor, half: Tensor) -> Tensor:
    """The brackets in (1), computed from upper tails, where differences keep their digits."""
    scale = (math.sqrt(0.5) / widths).to(apart)
    near, reach = apart.abs_().mul_(scale), half.to(apart) * scale
    far = near + reach
    return near.sub_(reach).erfc_().sub_(far.erfc_()).div_(2)


def _bound(references: Tensor, widths: Tensor, half: Tensor, log_weights: Tensor) -> Callable[[Tensor], Tensor]:
    """A function from boxes ``(N, d)`` to log bounds on each term of (1), ``(N, n)``, by one matrix product.

        bracket(u) ≤ exp(c - (u / s)² / 2),   s² = σ² + 0.4 h²        (2)

    with the smallest possible c, found on a grid. The mass of a box under a kernel is nearly a wider kernel, so c is
    small.
    """
    ratio = half / widths
    stretch = 1 + 0.4 * ratio.square()
    u = torch.linspace(0, 1, GRID, dtype=torch.float64).to(ratio)[:, None] * (ratio + 2 * stretch / (0.4 * ratio))
    near, far = torch.special.log_ndtr(ratio - u), torch.special.log_ndtr(-ratio - u)
    c = (near + torch.log1p(-(far - near).exp()) + u.square() / (2 * stretch)).amax(0).sum()
    s = widths * stretch.sqrt()
    b = references / s
    offsets = log_weights + c - b.square().sum(1) / 2

    def bound(z: Tensor) -> Tensor:
        a = z / s
        return torch.addmm(offsets, a, b.T) - a.square().sum(1, keepdim=True) / 2

    return bound


def nearest_mass(codes: Tensor, shares: Tensor, pool: Tensor) -> Tensor:
    """Share of the codes' mass that belongs to each row of the pool, ``(N,)``, summing to 1; see `Profile.weights`."""
    check_not_empty(pool=pool)
    if len(codes) > MAX_FIELD_INPUTS:
        rows = torch.randperm(len(codes), generator=spawn(0, "mass"))[:MAX_FIELD_INPUTS].to(codes.device)
        codes, shares = codes[rows], shares[rows]
    shares = (shares / shares.sum()).double()
    centre = shares @ codes.double()
    spread = (shares @ (codes.double() - centre).square()).sqrt()
    width = spread * len(pool) ** (-1 / (pool.shape[1] + 4))  # Scott's rule for kernels on the pool
    a, b = ((v.double() - centre) / width for v in (codes, pool))
    mass = torch.full((len(b),), 1 / len(b), dtype=torch.float64, device=b.device)
    for _ in range(STEPS):
        mass = _reassigned(a.float(), shares, b.float(), mass)
    return mass / mass.sum()


def _reassigned(a: Tensor, shares: Tensor, b: Tensor, mass: Tensor) -> Tensor:
    """One step of expectation-maximisation, (1) of `Profile.weights`."""
    offsets = mass.clamp_min(1e-300).log().float() - b.square().sum(1) / 2
    total = torch.zeros_like(mass)
    rows = max(1, PAIRS // len(b))
    for part, share in zip(a.split(rows), shares.split(rows), strict=True):
        total += share @ torch.softmax(torch.addmm(offsets, part, b.T), 1).double()
    return total
