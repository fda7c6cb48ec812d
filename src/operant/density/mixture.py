"""A mixture of a few Gaussians: a coarse density that is fast to evaluate."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from operant.density.kde import check_data, check_rows, check_weights, draw_rows
from operant.rng import normal_like
from operant.validation import check_from_to

MAX_STEPS = 300  # of expectation-maximisation
TOLERANCE = 1e-5  # nats per row; a smaller gain ends the fit
VARIANCE_FLOOR = 1e-3  # relative to the mean variance, added to every variance: no component may shrink onto one row


@dataclass(frozen=True, eq=False, kw_only=True)
class Mixture:
    """A few Gaussians, each with its own covariance; made by `fit_mixture`.

        p(z) = Σₖ wₖ N(z; μₖ, Lₖ Lₖᵀ)        (1)

    Args:
        weights: w, ``(K,)``, summing to 1.
        means: μ, ``(K, d)``.
        factors: L, ``(K, d, d)``, lower triangular.
    """

    weights: Tensor = field(repr=False)
    means: Tensor = field(repr=False)
    factors: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        k, d = self.means.shape
        if self.weights.shape != (k,) or self.factors.shape != (k, d, d):
            needed = f"a mixture of {k} Gaussians in {d} dimensions needs weights ({k},) and factors ({k}, {d}, {d})"
            raise ValueError(f"{needed}, got {tuple(self.weights.shape)} and {tuple(self.factors.shape)}")

    def __str__(self) -> str:
        return f"Mixture({len(self.weights)} Gaussians in {self.means.shape[1]} dimensions)"

    @property
    def shape(self) -> torch.Size:
        """The shape of one input."""
        return self.means.shape[1:]

    def log_prob(self, x: Tensor) -> Tensor:
        """log p of each row of ``x``, in float64; differentiable in ``x``."""
        check_rows(x, self.shape)
        return torch.logsumexp(_joint(x, self), 1).to(x.device)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``(n, d)`` draws: a component by weight, then a point from it."""
        chosen = draw_rows(self.weights, n, generator=generator)
        noise = normal_like(self.means[chosen], generator=generator)
        moved = torch.empty_like(noise)
        for k, factor in enumerate(self.factors):
            moved[chosen == k] = noise[chosen == k] @ factor.T
        return self.means[chosen] + moved


def fit_mixture(
    x: Tensor, *, components: int = 10, weights: Tensor | None = None, generator: torch.Generator
) -> Mixture:
    """Fit a mixture of Gaussians by expectation-maximisation, starting from k-means clusters.

        r_ik ∝ wₖ N(xᵢ; μₖ, Σₖ),  Σₖ r_ik = 1                                            (1)
        wₖ = Σᵢ vᵢ r_ik,  μₖ = Σᵢ vᵢ r_ik xᵢ / wₖ,  Σₖ = Σᵢ vᵢ r_ik (xᵢ - μₖ)(xᵢ - μₖ)ᵀ / wₖ + ε I        (2)

    ε is a thousandth of the mean variance of ``x``, so that no component shrinks onto a single row.

    Args:
        x: ``(n, d)``.
        components: K; each needs more rows than dimensions to be well determined.
        weights: v, weight of each row, ``(n,)`` (default: equal).
        generator: seeds k-means.
    """
    check_data(x)
    n = len(x)
    check_from_to(1, n, advice="at most one per row", components=components)
    z = x.detach().double()
    v = torch.full((n,), 1 / n, dtype=torch.float64, device=z.device) if weights is None else weights.double()
    check_weights(v, n)
    v = v / v.sum()
    centre = v @ z
    floor = VARIANCE_FLOOR * float((v @ (z - centre).square()).mean())
    if not floor > 0:
        raise ValueError(f"the {n} rows are all equal: there is nothing to learn; give rows that vary")
    parts = _kmeans(z, v, components, generator)
    mixture, before = _maximised(z, v, parts, floor), -math.inf
    for _ in range(MAX_STEPS):
        joint = _joint(z, mixture)
        total = torch.logsumexp(joint, 1)
        likelihood = float(v @ total)
        if likelihood - before < TOLERANCE:
            break
        mixture, before = _maximised(z, v, (joint - total[:, None]).exp(), floor), likelihood  # (1), (2)
    return mixture


def _joint(x: Tensor, mixture: Mixture) -> Tensor:
    """log wₖ N(xᵢ; μₖ, Σₖ), ``(n, K)``."""
    d = mixture.means.shape[1]
    z = x.flatten(1).to(mixture.means)
    inverse = torch.linalg.solve_triangular(
        mixture.factors, torch.eye(d).to(mixture.factors).expand_as(mixture.factors), upper=False
    )
    logdet = mixture.factors.diagonal(dim1=1, dim2=2).log().sum(1)
    top = mixture.weights.log() - logdet - d / 2 * math.log(2 * math.pi)
    columns = [((z - mean) @ part.T).square().sum(1) / -2 for mean, part in zip(mixture.means, inverse, strict=True)]
    return torch.stack(columns, 1) + top


def _maximised(z: Tensor, v: Tensor, responsibilities: Tensor, floor: float) -> Mixture:
    """Equation (2); a component that has lost all its rows stays, with almost no weight."""
    share = v[:, None] * responsibilities
    weights = share.sum(0).clamp_min(1e-300)
    means = share.T @ z / weights[:, None]
    covariances = []
    for k, mean in enumerate(means):
        apart = (z - mean) * share[:, k, None].sqrt()
        covariances.append(apart.T @ apart / weights[k])
    eye = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    factors = torch.linalg.cholesky(torch.stack(covariances) + floor * eye)
    return Mixture(weights=weights / weights.sum(), means=means, factors=factors)


def _kmeans(z: Tensor, v: Tensor, components: int, generator: torch.Generator) -> Tensor:
    """One-hot cluster of each row."""
    from sklearn.cluster import KMeans

    seed = int(torch.randint(2**31 - 1, (), generator=generator, device=generator.device))
    found = KMeans(components, n_init=1, random_state=seed).fit(z.cpu().numpy(), sample_weight=v.cpu().numpy())
    return torch.from_numpy(np.eye(components)[found.labels_]).to(z)
