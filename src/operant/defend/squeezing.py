"""Feature squeezing: reject inputs whose prediction changes when needless detail is removed."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from operant.data import Samples
from operant.defend._common import Transform, calibrated, check_predictions, check_shape, transformed
from operant.defend.non_local_means import NonLocalMeans
from operant.defend.transforms import BitDepth, Median
from operant.measure.conformal import Conformal
from operant.model import Classifier
from operant.validation import check_not_empty

GREY = (BitDepth(bits=1), Median(size=2))
COLOUR = (BitDepth(bits=5), Median(size=2), NonLocalMeans(search=11, patch=3, strength=4 / 255))


@dataclass(frozen=True, eq=False, kw_only=True)
class FeatureSqueezing:
    """Rejects inputs whose probabilities change too much under squeezing; from `fit_feature_squeezing`."""

    model: Classifier
    squeezers: tuple[Transform, ...]
    calibration: Conformal
    level: float
    shape: tuple[int, ...]

    def score(self, x: Tensor) -> Tensor:
        """See `squeezing_score`."""
        check_shape(x, self.shape)
        return squeezing_score(self.model, x, self.squeezers)

    def accepts(self, x: Tensor) -> Tensor:
        """Booleans ``(N,)``: which inputs are accepted as benign."""
        return self.calibration.p_values(self.score(x)) >= self.level


def squeezing_score(model: Classifier, x: Tensor, squeezers: Sequence[Transform]) -> Tensor:
    """The largest L1 distance between the model's probabilities before and after squeezing.

    score(x) = maxₛ ‖f(x) - f(s(x))‖₁  over the squeezers s, functions from images in [0, 1] to images        (1)
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
    """A detector with a threshold calibrated on benign inputs.

    The threshold is conformal: at most a share ``level`` of new benign inputs from the same distribution is rejected.

    Args:
        benign: inputs that it classifies correctly and was not trained on, at least 1 / ``level`` of them.
        squeezers: default: the paper's choice, one bit and medians of 2 by 2 pixels for grey images; five bits, the
            medians and non-local means for others.
        level: the false-positive rate.

    References:
        | Feature Squeezing: Detecting Adversarial Examples in Deep Neural Networks (Xu et al., 2018)
        | https://arxiv.org/abs/1704.01155
    """
    check_predictions(model, benign, correct=True)
    if squeezers is None:
        squeezers = GREY if benign.shape[0] == 1 else COLOUR
    check_not_empty(squeezers=squeezers, advice="give at least one, such as BitDepth(bits=1)")
    calibration = calibrated(squeezing_score(model, benign.x, squeezers), level)
    return FeatureSqueezing(
        model=model, squeezers=tuple(squeezers), calibration=calibration, level=level, shape=tuple(benign.shape)
    )
