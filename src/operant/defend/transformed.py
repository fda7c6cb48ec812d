"""A model that classifies transformed inputs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from operant.defend._common import Transform, transformed
from operant.model import Classifier
from operant.validation import check_not_empty


@dataclass(frozen=True, kw_only=True)
class TransformedInputs:
    """A model that classifies transformed inputs; with several transforms it averages the probabilities.

    Nothing is learned: this is the setting of Guo et al. (see `operant.defend.transforms`) with transforms only at test
    time. A model that was retrained on transformed inputs handles them better and is used in the same way.

    Args:
        transforms: functions from images in [0, 1] to images, such as `JPEG`; inputs are scaled to [0, 1] before and
            back to the model's bounds after them.
    """

    model: Classifier
    transforms: tuple[Transform, ...]

    def __post_init__(self) -> None:
        check_not_empty(transforms=self.transforms, advice="give at least one, such as JPEG()")

    def probs(self, x: Tensor) -> Tensor:
        """Class probabilities, the mean over the transforms, ``(N, classes)``."""
        self.model.check_inputs(x)
        return torch.cat([self._probs(part) for part in x.split(self.model.batch_size)])

    def predict(self, x: Tensor) -> Tensor:
        """Predicted classes, ``(N,)``."""
        return self.probs(x).argmax(1)

    def _probs(self, x: Tensor) -> Tensor:
        each = [self.model.probs(transformed(x, transform, self.model.bounds)) for transform in self.transforms]
        return torch.stack(each).mean(0)
