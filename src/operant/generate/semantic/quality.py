"""How good a source of images is: whether they show what was asked for, and are as real ones are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from operant.data import Samples
from operant.model import Classifier

CONSISTENT = 0.9  # share of the judge's own accuracy that label consistency must reach
FAR = 0.5  # Fréchet distance, in variances of real features, from which a source is too far from real images
VARIED = 0.2  # share of the variance of real features of a class that images of that class must have


@dataclass(frozen=True, kw_only=True)
class Quality:
    """How images of a source compare with real ones, by a classifier that had no part in making them.

    Args:
        consistency: share of images that the judge says are of the class that was asked for.
        accuracy: share of the real images that the judge gets right; a perfect source would do as well.
        frechet: Fréchet distance between the judge's features of both. It depends on the judge and the layer.
        distance: the same as a share of the variance of the real features, which makes it comparable: 0 is perfect, and
            a source that always gives one image of mean features has 1.
        variety: variance of features within a class, as a share of what real images have, mean over classes; a source
            that knows one image a class has 0.
        images: how many were compared, of each.
    """

    consistency: float
    accuracy: float
    frechet: float
    distance: float
    variety: float
    images: int

    @property
    def problems(self) -> tuple[str, ...]:
        """Why one should not test with this source, a phrase each; none if it is good enough."""
        found = {
            f"the judge sees the class that was asked for in only {self.consistency:.1%} of its images (in "
            f"{self.accuracy:.1%} of real ones)": self.consistency < CONSISTENT * self.accuracy,
            f"its images lie {self.distance:.2f} variances from real ones (at most {FAR} will do)": self.distance > FAR,
            f"its images of a class have only {self.variety:.1%} of the variance of real ones (at least {VARIED:.0%} "
            "will do)": self.variety < VARIED,
        }
        return tuple(phrase for phrase, so in found.items() if so)

    def __str__(self) -> str:
        return (
            f"{self.consistency:.1%} of {self.images} images show the class that was asked for (judge on real images: "
            f"{self.accuracy:.1%}); Fréchet distance {self.frechet:.3g}, {self.distance:.2f} of the real variance; "
            f"variety within classes {self.variety:.2f} of the real one"
        )


def compare(made: Samples, real: Samples, *, judge: Classifier, layer: str) -> Quality:
    """The quality of images, labelled with the classes that were asked for, beside real ones of the same classes."""
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
    """Between the normal distributions that fit two sets of features, ``(N, d)`` and ``(M, d)``.

        |μ₁ - μ₂|² + tr(Σ₁ + Σ₂ - 2 (Σ₁ Σ₂)^½)        (1)

    References:
        | GANs Trained by a Two Time-Scale Update Rule Converge to a Local Nash Equilibrium (Heusel et al., 2017)
        | https://arxiv.org/abs/1706.08500
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise ValueError(f"features must be (N, d) and (M, d), N and M at least 2, got {a.shape} and {b.shape}")
    a, b = a.double(), b.double()
    first, second = torch.cov(a.T).view(a.shape[1], -1), torch.cov(b.T).view(a.shape[1], -1)
    values, vectors = torch.linalg.eigh(first)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    shared = torch.linalg.eigvalsh(root @ second @ root).clamp_min(0).sqrt().sum()  # tr (Σ₁ Σ₂)^½
    means = (a.mean(0) - b.mean(0)).square().sum()
    return max(0.0, float(means + first.trace() + second.trace() - 2 * shared))  # (1)


def _variety(features: list[Tensor], labels: list[Tensor]) -> float:
    shares = []
    for c in labels[1].unique().tolist():
        made, real = (f[y == c] for f, y in zip(features, labels, strict=True))
        if len(made) > 1 and len(real) > 1:
            shares.append(float(made.var(0).sum() / real.var(0).sum().clamp_min(torch.finfo(real.dtype).tiny)))
    if not shares:
        raise ValueError("there must be a class with at least two real images, got none; give more real images")
    return sum(shares) / len(shares)
