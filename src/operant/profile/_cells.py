"""Mass of regions: of boxes around codes, and of what lies nearest to each input of a pool."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from operant.density import KDE
from operant.rng import spawn
from operant.types import Density

PAIRS = 2**21  # worked on at once
POINTS = 256  # of a box, where its mass has no closed form
MOST = 5000  # field inputs whose mass is handed out
TOGETHER = 4  # factors multiplied before their logarithm is taken
STEPS = 5  # of expectation-maximisation


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
    """Σᵢ wᵢ Π_d [Φ((z + h - μᵢ) / σ) - Φ((z - h - μᵢ) / σ)], in tiles of single precision."""
    centre = kde.references.double().mean(0)
    references, widths = (kde.references.double() - centre).float(), kde.bandwidth.float().expand_as(kde.references)
    log_weights = kde.weights.double().log()
    parts = []
    for rows in (z - centre).float().split(max(1, PAIRS // len(references))):
        logs = log_weights.expand(len(rows), -1).clone()
        for some in torch.arange(z.shape[1]).split(TOGETHER):
            logs += _products(rows, references, widths * math.sqrt(2), half.float(), some.tolist()).log()
        parts.append(logs.exp().sum(1).clamp_max(1))
    return torch.cat(parts) if parts else z.new_zeros(0)


def _products(z: Tensor, references: Tensor, widths: Tensor, half: Tensor, dimensions: list[int]) -> Tensor:
    """Π_d of the bracket over some dimensions, ``(N, n)``; from upper tails, where differences keep their digits."""
    product = z.new_ones(len(z), len(references))
    for d in dimensions:
        apart = (z[:, d, None] - references[:, d]).abs_()
        near, far = ((apart + side) / widths[:, d] for side in (-half[d], half[d]))
        product *= near.erfc_().sub_(far.erfc_()).div_(2)
    return product


def nearest_mass(codes: Tensor, shares: Tensor, pool: Tensor) -> Tensor:
    """How much of the codes' mass belongs to each row of the pool, ``(N,)``, summing to 1; see `Profile.weights`."""
    if len(pool) == 0:
        raise ValueError("the pool is empty; give at least one input")
    if len(codes) > MOST:
        rows = torch.randperm(len(codes), generator=spawn(0, "mass"))[:MOST].to(codes.device)
        codes, shares = codes[rows], shares[rows]
    shares = (shares / shares.sum()).double()
    centre = shares @ codes.double()
    spread = (shares @ (codes.double() - centre).square()).sqrt()
    width = spread * len(pool) ** (-1 / (pool.shape[1] + 4))  # as Scott's rule has it for kernels on the pool
    a, b = ((v.double() - centre) / width for v in (codes, pool))
    mass = torch.full((len(b),), 1 / len(b), dtype=torch.float64, device=b.device)
    for _ in range(STEPS):
        mass = _handed_out(a.float(), shares, b.float(), mass)
    return mass / mass.sum()


def _handed_out(a: Tensor, shares: Tensor, b: Tensor, mass: Tensor) -> Tensor:
    offsets = mass.clamp_min(1e-300).log().float() - b.square().sum(1) / 2
    total = torch.zeros_like(mass)
    rows = max(1, PAIRS // len(b))
    for part, share in zip(a.split(rows), shares.split(rows), strict=True):
        total += share @ torch.softmax(torch.addmm(offsets, part, b.T), 1).double()
    return total
