"""Image transforms that keep the content and remove small changes: fewer colours, medians, JPEG, crops.

Each is a function from images in [0, 1], ``(N, channels, height, width)``, to images of the same shape.
`TransformedInputs` classifies transformed inputs; `fit_feature_squeezing` compares predictions before and after.
Random numbers depend only on an image's content and on ``seed``.

References:
    | Feature Squeezing: Detecting Adversarial Examples in Deep Neural Networks (Xu et al., 2018)
    | https://arxiv.org/abs/1704.01155
    | Countering Adversarial Images using Input Transformations (Guo et al., 2018)
    | https://arxiv.org/abs/1711.00117
"""

from dataclasses import dataclass
from io import BytesIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import grid_sample

from operant.conditions._fields import uniforms
from operant.defend._common import Transform, check_images, mirrored, seeds_of, transformed
from operant.model import Classifier
from operant.validation import check_above_to, check_at_least, check_from_to, check_not_empty


@dataclass(frozen=True, kw_only=True)
class BitDepth:
    """Fewer colours: every value rounded to one of 2^bits evenly spaced values in [0, 1].

    >>> BitDepth(bits=1)(torch.tensor([[0.2, 0.6]]))
    tensor([[0., 1.]])
    """

    bits: int = 3

    def __post_init__(self) -> None:
        check_from_to(1, 16, bits=self.bits)

    def __call__(self, x: Tensor) -> Tensor:
        top = 2**self.bits - 1
        return torch.div((x * top).round(), top)


@dataclass(frozen=True, kw_only=True)
class Median:
    """Every pixel becomes the median of the square window around it, like SciPy's ``median_filter``.

    A window of even size extends further up and left; for an even number of values the upper of the two middle ones is
    taken. Beyond the edge the image is mirrored.
    """

    size: int = 2

    def __post_init__(self) -> None:
        check_at_least(1, size=self.size)

    def __call__(self, x: Tensor) -> Tensor:
        check_images(x)
        wide = mirrored(x, self.size // 2, self.size - self.size // 2 - 1)
        windows = wide.unfold(2, self.size, 1).unfold(3, self.size, 1).flatten(4)
        return windows.kthvalue(self.size**2 // 2 + 1, dim=4).values


@dataclass(frozen=True, kw_only=True)
class JPEG:
    """JPEG compression by Pillow; three channels as a colour image, others each as a grey one."""

    quality: int = 75

    def __post_init__(self) -> None:
        check_from_to(1, 100, quality=self.quality)

    def __call__(self, x: Tensor) -> Tensor:
        check_images(x)
        colour = x.shape[1] == 3
        pages = (x * 255).round().to("cpu", torch.uint8)
        flat = pages.permute(0, 2, 3, 1) if colour else pages.flatten(0, 1)
        read = [self._read(page) for page in flat.contiguous().numpy()]
        if not read:
            return x
        decoded = torch.from_numpy(np.stack(read))
        decoded = decoded.permute(0, 3, 1, 2) if colour else decoded.view(x.shape)
        return decoded.to(x) / 255

    def _read(self, page: NDArray[np.uint8]) -> NDArray[np.uint8]:
        file = BytesIO()
        Image.fromarray(page).save(file, "JPEG", quality=self.quality)
        return np.asarray(Image.open(file))


@dataclass(frozen=True, kw_only=True)
class CropRescale:
    """A random part of the image, enlarged to the whole.

    Args:
        share: of the side that is kept. The paper crops 90 of 224 pixels and retrains; a network trained only on whole
            images needs a larger share.
    """

    share: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        check_above_to(0, 1, share=self.share)

    def __call__(self, x: Tensor) -> Tensor:
        check_images(x)
        u = uniforms(seeds_of(x, self.seed), (2,), "crop").to(x)
        rows, columns = (self._places(u[:, i], side) for i, side in enumerate(x.shape[2:]))
        grid = torch.stack(torch.broadcast_tensors(columns[:, None, :], rows[:, :, None]), dim=3)  # x, then y
        return grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=True)

    def _places(self, u: Tensor, side: int) -> Tensor:
        """Position of each row or column of the enlarged part in the image, ``(N, side)`` from -1 to 1."""
        part = max(1, round(self.share * side))
        first = (u * (side - part + 1)).floor().clamp_max(side - part)
        inside = ((torch.arange(side).to(u) + 0.5) * part / side - 0.5).clamp(0, part - 1)
        return (first[:, None] + inside) * 2 / max(1, side - 1) - 1


def crops(n: int = 30, *, share: float = 0.9, seed: int = 0) -> tuple[CropRescale, ...]:
    """Several crops for `TransformedInputs`, which averages over them; the paper uses 30."""
    check_at_least(1, n=n)
    return tuple(CropRescale(share=share, seed=seed + k) for k in range(n))


@dataclass(frozen=True, kw_only=True)
class TransformedInputs:
    """A model that classifies transformed inputs; with several transforms it averages the probabilities.

    Nothing is learned: this is the setting of Guo et al. with transforms only at test time. A model that was retrained
    on transformed inputs handles them better and is used in the same way.

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
