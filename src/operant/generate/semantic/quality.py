"""The quality of a source of images: whether they show the requested class and resemble real ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from operant.data import Samples
from operant.formatting import percent
from operant.model import Classifier

MIN_CONSISTENCY = 0.9  # as a share of the judge's accuracy on real images
MAX_DISTANCE = 0.5  # Fréchet distance, in variances of real features
MIN_VARIETY = 0.2  # variance of features within a class, as a share of that of real images
EXACT = 4096  # features whose covariance is computed; more are compared by inner products


@dataclass(frozen=True, kw_only=True)
class Quality:
    """How images of a source compare with real ones, by a classifier (the judge) that had no part in making them.

    Args:
        consistency: share of images that the judge assigns to the requested class.
        accuracy: the judge's accuracy on real images; a perfect source would reach it.
        frechet: Fréchet distance between the judge's features of both. It depends on the judge and the layer.
        distance: the same as a share of the variance of the real features, which makes it comparable: 0 is perfect, and
            a source that always returns one image of mean features has 1.
        variety: variance of features within a class, as a share of that of real images, mean over classes; a source
            with one image per class has 0.
        images: how many of each were compared.
    """

    consistency: float
    accuracy: float
    frechet: float
    distance: float
    variety: float
    images: int

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons not to test with this source; empty if its quality suffices."""
        reasons = {
            f"the judge sees the requested class in only {percent(self.consistency)} of its images (in "
            f"{percent(self.accuracy)} of real ones)": self.consistency < MIN_CONSISTENCY * self.accuracy,
            f"its images are {self.distance:.2f} variances from real ones (at most {MAX_DISTANCE} is allowed)": (
                self.distance > MAX_DISTANCE
            ),
            f"its images of a class have only {percent(self.variety)} of the variance of real ones (at least "
            f"{percent(MIN_VARIETY, 2)} is required)": self.variety < MIN_VARIETY,
        }
        return tuple(reason for reason, applies in reasons.items() if applies)

    def __str__(self) -> str:
        return (
            f"{percent(self.consistency)} of {self.images} images show the requested class (judge on real images: "
            f"{percent(self.accuracy)}); Fréchet distance {self.frechet:.3g}, {self.distance:.2f} of the real "
            f"variance; variety within classes {self.variety:.2f} of that of real images"
        )


def compare(made: Samples, real: Samples, *, judge: Classifier, layer: str) -> Quality:
    """The quality of images, labelled with the requested classes, compared with real ones of the same classes."""
    features = [judge.features(part.x, layers=[layer])[layer].flatten(1).double() for part in (made, real)]
    distance = frechet_distance(*features)
    return Quality(
        consistency=judge.accuracy(made),
        accuracy=judge.accuracy(real),
        frechet=distance,
        distance=distance / float(features[1].var(0).sum()),
        variety=_variety(features, [made.labels, real.labels]),
        images=len(made),
    )


def frechet_distance(a: Tensor, b: Tensor) -> float:
    """Fréchet distance between the normal distributions fitted to two sets of features, ``(N, d)`` and ``(M, d)``.

        |μ₁ - μ₂|² + tr(Σ₁ + Σ₂ - 2 (Σ₁ Σ₂)^½)        (1)

    References:
        | GANs Trained by a Two Time-Scale Update Rule Converge to a Local Nash Equilibrium (Heusel et al., 2017)
        | https://arxiv.org/abs/1706.08500
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise ValueError(f"features must be (N, d) and (M, d), N and M at least 2, got {a.shape} and {b.shape}")
    a, b = a.double(), b.double()
    if a.shape[1] > EXACT:
        return _frechet_distance_of_many(a, b)
    first, second = torch.cov(a.T).view(a.shape[1], -1), torch.cov(b.T).view(a.shape[1], -1)
    values, vectors = torch.linalg.eigh(first)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    shared = torch.linalg.eigvalsh(root @ second @ root).clamp_min(0).sqrt().sum()  # tr (Σ₁ Σ₂)^½
    means = (a.mean(0) - b.mean(0)).square().sum()
    return max(0.0, float(means + first.trace() + second.trace() - 2 * shared))  # (1)


def _frechet_distance_of_many(a: Tensor, b: Tensor) -> float:
    """The same without matrices of ``(d, d)``: tr (Σ₁ Σ₂)^½ is the sum of the singular values of A Bᵀ, rows centred."""
    products = (a - a.mean(0)) @ (b - b.mean(0)).T / math.sqrt((len(a) - 1) * (len(b) - 1))
    shared = torch.linalg.svdvals(products).sum()
    means = (a.mean(0) - b.mean(0)).square().sum()
    return max(0.0, float(means + a.var(0).sum() + b.var(0).sum() - 2 * shared))  # (1)


def _variety(features: list[Tensor], labels: list[Tensor]) -> float:
    shares = []
    for c in labels[1].unique().tolist():
        made, real = (f[y == c] for f, y in zip(features, labels, strict=True))
        if len(made) > 1 and len(real) > 1:
            shares.append(float(made.var(0).sum() / real.var(0).sum().clamp_min(torch.finfo(real.dtype).tiny)))
    if not shares:
        raise ValueError("there must be a class with at least two real images, got none; give more real images")
    return sum(shares) / len(shares)
