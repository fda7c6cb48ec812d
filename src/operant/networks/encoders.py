"""Encoders that turn inputs into vectors, on which densities are learned."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from operant.data import Samples
from operant.networks.vae import in_chunks
from operant.validation import check_at_least, check_finite, check_row_shape

MIN_VARIANCE = 1e-6  # relative to the largest; directions below it are treated as constant
ROWS = 4096  # computed at once


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
        return in_chunks(self._codes, x, rows=ROWS)

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
    not used.

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
    centre, moments = _moments(field.x, size)
    values, vectors = torch.linalg.eigh(moments)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    if not float(values[0]) > 0:
        raise ValueError(f"the {len(field)} inputs are all equal: there is nothing to learn; give inputs that vary")
    kept = int((values[:dimensions] > MIN_VARIANCE * values[0]).sum())
    return PCA(
        shape=tuple(field.shape),
        centre=centre.float(),
        directions=vectors[:, :kept].float().contiguous(),
        scale=values[:kept].sqrt().float(),
        explained=float(values[:kept].sum() / values.sum()),
    )


def _moments(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Mean and covariance in double precision, computed in chunks."""
    parts = x.flatten(1).split(ROWS)
    centre = torch.stack([part.double().sum(0) for part in parts]).sum(0) / len(x)
    moments = torch.zeros(size, size, dtype=torch.float64, device=x.device)
    for part in parts:
        apart = part.double() - centre
        moments += apart.T @ apart
    return centre, moments / len(x)
