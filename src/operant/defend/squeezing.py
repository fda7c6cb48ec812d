"""Feature squeezing: an input is suspect if the model reads it otherwise once needless detail is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from operant.data import Samples
from operant.defend._common import Transform, calibrated, check_benign, check_shape, transformed
from operant.defend.non_local_means import NonLocalMeans
from operant.defend.transforms import BitDepth, Median
from operant.measure.conformal import Conformal
from operant.model import Classifier

GREY = (BitDepth(bits=1), Median(size=2))
COLOUR = (BitDepth(bits=5), Median(size=2), NonLocalMeans(search=11, patch=3, strength=4 / 255))


@dataclass(frozen=True, eq=False, kw_only=True)
class FeatureSqueezing:
    """Detects inputs that squeezing changes too much; made by `fit_feature_squeezing`.

    Attributes:
        model: whose probabilities are compared.
        squeezers: what inputs are squeezed by.
        calibration: the scores of benign inputs.
        level: the false-positive rate.
        shape: of an input.
    """

    model: Classifier
    squeezers: tuple[Transform, ...]
    calibration: Conformal
    level: float
    shape: tuple[int, ...]

    def score(self, x: Tensor) -> Tensor:
        """As `squeezing_score`."""
        check_shape(x, self.shape)
        return squeezing_score(self.model, x, self.squeezers)

    def accepts(self, x: Tensor) -> Tensor:
        """Truths ``(N,)``: which inputs are taken for benign."""
        return self.calibration.p_values(self.score(x)) >= self.level


def squeezing_score(model: Classifier, x: Tensor, squeezers: Sequence[Transform]) -> Tensor:
    """The largest L1 distance between the model's probabilities before and after squeezing.

        score(x) = maxₛ ‖f(x) - f(s(x))‖₁        (1)

    Args:
        model: f, as probabilities.
        x: ``(N, *shape)``.
        squeezers: s, functions from images in [0, 1] to images.
    """
    model.check_inputs(x)
    return torch.cat([_score(model, part, squeezers) for part in x.split(model.batch_size)])


def _score(model: Classifier, x: Tensor, squeezers: Sequence[Transform]) -> Tensor:
    plain = model.probs(x)
    each = [(plain - model.probs(transformed(x, s, model.bounds))).abs().sum(1) for s in squeezers]
    return torch.stack(each).amax(0)  # (1)


def fit_feature_squeezing(
    model: Classifier, benign: Samples, *, squeezers: Sequence[Transform] | None = None, level: float = 0.05
) -> FeatureSqueezing:
    """Find the score above which an input is rejected, from benign inputs.

    The threshold is conformal: of fresh benign inputs, drawn as these were, a share ``level`` is rejected at most.

    Args:
        model: what is to be guarded.
        benign: inputs that it reads correctly and was not trained on, at least 1 / ``level`` of them.
        squeezers: the paper's choice unless given: one bit and medians of 2 by 2 pixels for grey images; five bits, the
            medians and non-local means for others.
        level: the false-positive rate.

    References:
        | Feature Squeezing: Detecting Adversarial Examples in Deep Neural Networks (Xu et al., 2018)
        | https://arxiv.org/abs/1704.01155
    """
    check_benign(model, benign)
    if squeezers is None:
        squeezers = GREY if benign.shape[0] == 1 else COLOUR
    if not squeezers:
        raise ValueError("there are no squeezers; give at least one, such as BitDepth(bits=1)")
    scores = squeezing_score(model, benign.x, squeezers)
    return FeatureSqueezing(
        model=model,
        squeezers=tuple(squeezers),
        calibration=calibrated(scores, level),
        level=level,
        shape=tuple(benign.shape),
    )
