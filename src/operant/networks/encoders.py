"""Encoders that turn inputs into vectors, on which densities are learned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from operant.data import Samples
from operant.model import MIN_ROWS
from operant.networks.vae import in_chunks
from operant.rng import spawn
from operant.validation import check_at_least, check_finite, check_row_shape

MIN_VARIANCE = 1e-6  # relative to the largest; directions below it are treated as constant
ROWS = 4096  # computed at once
VALUES = 2**24  # computed at once, where rows are long
EXACT = 4096  # side of the largest matrix whose eigenvectors are computed
EXTRA_DIRECTIONS = 16  # beyond twice the components, so that the iteration converges
MAX_ITERATIONS = 50
TOLERANCE = 1e-9  # of variances, relative to the largest


@dataclass(frozen=True, kw_only=True)
class Flat:
    """Flattens inputs to vectors; made by `fit_flat`."""

    shape: tuple[int, ...]

    def __call__(self, x: Tensor) -> Tensor:
        check_row_shape(self.shape, inputs=x)
        return x.flatten(1)

    def decode(self, z: Tensor) -> Tensor:
        """The inputs of flat vectors."""
        return z.view(-1, *self.shape)


@dataclass(frozen=True, eq=False, kw_only=True)
class PCA:
    """Whitened principal components: the directions in which inputs vary most; made by `fit_pca`.

        z = (x - m) V / s        (1)

    Args:
        shape: of one input.
        centre: m, ``(D,)``.
        directions: V, ``(D, d)``, orthonormal columns, the largest variance first.
        scale: s, ``(d,)``, the standard deviation along each direction.
        explained: share of the total variance along these directions.
    """

    shape: tuple[int, ...]
    centre: Tensor = field(repr=False)
    directions: Tensor = field(repr=False)
    scale: Tensor = field(repr=False)
    explained: float

    def __call__(self, x: Tensor) -> Tensor:
        """Codes ``(N, d)``; differentiable in ``x``."""
        check_row_shape(self.shape, inputs=x)
        return in_chunks(self._codes, x, rows=max(MIN_ROWS, _rows(x)))

    def _codes(self, x: Tensor) -> Tensor:
        return (x.flatten(1).to(self.centre) - self.centre) @ self.directions / self.scale

    def decode(self, z: Tensor) -> Tensor:
        """The inputs ``(N, *shape)`` that have these codes and vary in no other direction."""
        flat = z.to(self.centre) * self.scale @ self.directions.T + self.centre
        return flat.view(-1, *self.shape)


def fit_flat(field: Samples, *, generator: torch.Generator) -> Flat:
    """An encoder that only flattens, for inputs of few dimensions; the generator is not used."""
    return Flat(shape=tuple(field.shape))


def fit_pca(field: Samples, *, dimensions: int = 32, generator: torch.Generator) -> PCA:
    """Whitened principal components of the inputs, computed in double precision.

    Directions in which the inputs do not vary are left out, so there may be fewer than ``dimensions``. The generator is
    not used. The computation is exact where inputs have at most 4096 values or are at most 4096. Otherwise it is
    iterated until the variances no longer change; no matrix is larger than ``4096 x 4096`` or twice the components.

    Args:
        field: more inputs than ``dimensions``; labels are not used.
        dimensions: d; at most the number of values of an input.
    """
    check_at_least(1, dimensions=dimensions)
    size = field.x[:1].numel()
    dimensions = min(dimensions, size)
    if len(field) <= dimensions:
        needed = f"{dimensions} principal components need more than {dimensions} inputs"
        raise ValueError(f"{needed}, got {len(field)}; give more field data, or fewer dimensions")
    check_finite(inputs=field.x)
    spectrum = _spectrum(field.x.flatten(1), dimensions)
    values = spectrum.variances
    if not float(values[0]) > 0:
        raise ValueError(f"the {len(field)} inputs are all equal: there is nothing to learn; give inputs that vary")
    kept = int((values > MIN_VARIANCE * values[0]).sum())
    return PCA(
        shape=tuple(field.shape),
        centre=spectrum.centre.float(),
        directions=spectrum.directions(kept).float().contiguous(),
        scale=values[:kept].sqrt().float(),
        explained=float(values[:kept].sum() / spectrum.total),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Spectrum:
    """Principal components in double precision: the mean, the largest variances, and a way to the directions."""

    centre: Tensor  # (D,)
    variances: Tensor  # the largest first
    directions: Callable[[int], Tensor]  # (D, n), those of the n largest variances
    total: Tensor  # variance in all directions


def _spectrum(x: Tensor, dimensions: int) -> Spectrum:
    if x.shape[1] <= EXACT:
        return by_covariance(x, dimensions)
    return by_inner_products(x, dimensions) if len(x) <= EXACT else by_iteration(x, dimensions)


def by_covariance(x: Tensor, dimensions: int) -> Spectrum:
    """From the covariance of the columns, ``(D, D)``."""
    centre = _mean(x, ROWS)
    moments = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64, device=x.device)
    for part in x.split(ROWS):
        apart = part.double() - centre
        moments += apart.T @ apart
    values, vectors = torch.linalg.eigh(moments / len(x))
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    return Spectrum(
        centre=centre, variances=values[:dimensions], directions=lambda n: vectors[:, :n], total=values.sum()
    )


def by_inner_products(x: Tensor, dimensions: int) -> Spectrum:
    """From the inner products of the rows, ``(N, N)``: they have the same non-zero variances.

    (X Xᵀ / N) u = s² u   gives the direction   Xᵀ u / (s √N)        (1)
    """
    centre, n = _mean(x, _rows(x)), len(x)
    products = torch.zeros(n, n, dtype=torch.float64, device=x.device)
    for columns in _column_blocks(x):
        apart = x[:, columns].double() - centre[columns]
        products += apart @ apart.T
    values, u = torch.linalg.eigh(products / n)
    values, u = values.flip(0).clamp_min(0), u.flip(1)

    def directions(kept: int) -> Tensor:
        weights = u[:, :kept] / (values[:kept] * n).sqrt()
        parts = [(x[:, columns].double() - centre[columns]).T @ weights for columns in _column_blocks(x)]
        return _positive(torch.cat(parts))  # (1)

    return Spectrum(centre=centre, variances=values[:dimensions], directions=directions, total=values.sum())


def by_iteration(x: Tensor, dimensions: int) -> Spectrum:
    """By subspace iteration, from fixed random directions, twice as many as needed and more.

        Q ← orthonormal basis of Xᵀ X Q        (1)

    References:
        | Finding Structure with Randomness: Probabilistic Algorithms for Constructing Approximate Matrix Decompositions
        | (Halko et al., 2011), https://arxiv.org/abs/0909.4061
    """
    centre, n = _mean(x, _rows(x)), len(x)
    width = min(2 * dimensions + EXTRA_DIRECTIONS, n, x.shape[1])
    start = torch.randn(x.shape[1], width, dtype=torch.float64, generator=spawn(0, "principal components"))
    basis, before = torch.linalg.qr(start.to(x.device)).Q, torch.full((dimensions,), torch.inf).to(centre)
    for _ in range(MAX_ITERATIONS):
        image, total = torch.zeros_like(basis), torch.zeros((), dtype=torch.float64, device=x.device)
        for part in x.split(_rows(x)):
            apart = part.double() - centre
            image += apart.T @ (apart @ basis)
            total += apart.square().sum()
        values, turn = torch.linalg.eigh(basis.T @ image / n)
        values, found = values.flip(0).clamp_min(0)[:dimensions], basis @ turn.flip(1)
        if bool((values - before).abs().le(TOLERANCE * values[0]).all()):
            break
        basis, before = torch.linalg.qr(image).Q, values  # (1)
    return Spectrum(
        centre=centre, variances=values, directions=lambda kept: _positive(found[:, :kept]), total=total / n
    )


def _mean(x: Tensor, rows: int) -> Tensor:
    return torch.stack([part.double().sum(0) for part in x.split(rows)]).sum(0) / len(x)


def _rows(x: Tensor) -> int:
    """How many rows are computed at once; fewer where they are long."""
    return max(1, min(ROWS, VALUES // x.shape[1:].numel()))


def _column_blocks(x: Tensor) -> Iterator[slice]:
    width = max(1, VALUES // len(x))
    return (slice(i, i + width) for i in range(0, x.shape[1], width))


def _positive(directions: Tensor) -> Tensor:
    """The same directions with signs that do not depend on the algorithm: the largest entry is positive."""
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    return directions * torch.where(largest < 0, -1.0, 1.0)
