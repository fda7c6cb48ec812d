"""Non-local means: every pixel becomes the mean of nearby pixels with similar surroundings."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from operant.defend._common import check_images, mirrored
from operant.validation import check_positive


@dataclass(frozen=True, kw_only=True)
class NonLocalMeans:
    """The mean of the pixels in a search window, weighted by the similarity of the patches around them.

        z_p = Σ_q w(p, q) x_q / Σ_q w(p, q),    w(p, q) = exp(-d²(p, q) / strength²)        (1)

    with d² the mean squared difference of the two patches over all channels. Beyond the edge the image is mirrored.
    All images are processed together, one offset of the search window after another.

    Args:
        search: side of the search window, odd.
        patch: side of the patches that are compared, odd.
        strength: in units of [0, 1]; OpenCV's 4 is 4 / 255.

    References:
        | A Non-Local Algorithm for Image Denoising (Buades et al., 2005), https://doi.org/10.1109/CVPR.2005.38
    """

    search: int = 11
    patch: int = 3
    strength: float = 4 / 255

    def __post_init__(self) -> None:
        if not (self.search % 2 and self.patch % 2 and self.search > 0 and self.patch > 0):
            raise ValueError(f"search and patch must be odd numbers of pixels, got {self.search} and {self.patch}")
        check_positive(finite=False, strength=self.strength)

    def __call__(self, x: Tensor) -> Tensor:
        check_images(x)
        h, w = x.shape[2:]
        away, border = self.search // 2, self.patch // 2
        wide = mirrored(x, away + border, away + border)
        here = wide[:, :, away : away + h + 2 * border, away : away + w + 2 * border]
        total, weights = torch.zeros_like(x), torch.zeros_like(x[:, :1])
        for i in range(self.search):
            for j in range(self.search):
                there = wide[:, :, i : i + h + 2 * border, j : j + w + 2 * border]
                distance = avg_pool2d((here - there).square().mean(1, keepdim=True), self.patch, stride=1)
                weight = (-distance / self.strength**2).exp()
                total += weight * there[:, :, border : border + h, border : border + w]
                weights += weight
        return total / weights  # (1)
