"""Total variation: the smoothest image that agrees with some of the pixels."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from operant.conditions._fields import uniforms
from operant.defend._common import check_images, seeds_of
from operant.validation import check_above_to, check_at_least, check_nonnegative


@dataclass(frozen=True, kw_only=True)
class TotalVariation:
    """Drop random pixels and reconstruct the image as smoothly as possible from the rest.

        minimise  ½ Σ m (z - x)² + weight · TV(z),    TV(z) = Σ √((∂₁z)² + (∂₂z)²)        (1)

    over z, with m = 1 for kept values and 0 for dropped ones, for each channel separately. The paper writes the first
    term without the square, but its program minimises it with one; so do we, by the primal-dual method of Chambolle and
    Pock, for all images together. Dropped pixels have no influence at all.

    Args:
        keep: share of the values that are kept; the paper drops half.
        steps: of the minimisation.

    References:
        | Countering Adversarial Images using Input Transformations (Guo et al., 2018)
        | https://arxiv.org/abs/1711.00117
        | A First-Order Primal-Dual Algorithm for Convex Problems with Applications to Imaging
        | (Chambolle and Pock, 2011)
        | https://doi.org/10.1007/s10851-010-0251-1
    """

    keep: float = 0.5
    weight: float = 0.03
    steps: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_above_to(0, 1, keep=self.keep)
        check_nonnegative(weight=self.weight)
        check_at_least(1, steps=self.steps)

    def __call__(self, x: Tensor) -> Tensor:
        check_images(x)
        kept = (uniforms(seeds_of(x, self.seed), tuple(x.shape[1:]), "kept") < self.keep).to(x)
        return minimise(x, kept, weight=self.weight, steps=self.steps).clamp(0, 1)


def minimise(x: Tensor, kept: Tensor, *, weight: float, steps: int) -> Tensor:
    """The minimiser of (1) of `TotalVariation`, starting from the mean of the kept values."""
    mean = (kept * x).sum((2, 3), keepdim=True) / kept.sum((2, 3), keepdim=True).clamp_min(1)
    z = torch.where(kept > 0, x, mean)
    ahead, dual = z, torch.zeros(2, *x.shape, dtype=x.dtype, device=x.device)
    size = 1 / math.sqrt(8)  # the norm of the gradient is at most √8
    for _ in range(steps):
        dual = dual + size * gradient(ahead)
        dual = dual / (dual.square().sum(0).sqrt() / weight).clamp_min(1) if weight else torch.zeros_like(dual)
        before = z
        z = (z + size * (_divergence(dual) + kept * x)) / (1 + size * kept)
        ahead = 2 * z - before
    return z


def gradient(z: Tensor) -> Tensor:
    """Differences to the next pixel downwards and to the right, ``(2, *z.shape)``; 0 at the last."""
    down, right = torch.zeros_like(z), torch.zeros_like(z)
    down[:, :, :-1] = z.diff(dim=2)
    right[:, :, :, :-1] = z.diff(dim=3)
    return torch.stack([down, right])


def _divergence(dual: Tensor) -> Tensor:
    """The negative transpose of `gradient`."""
    down, right = dual[0].clone(), dual[1].clone()
    down[:, :, -1], right[:, :, :, -1] = 0, 0
    down[:, :, 1:] -= dual[0][:, :, :-1]
    right[:, :, :, 1:] -= dual[1][:, :, :, :-1]
    return down + right
