"""Augmentation that knows nothing of the field: flips, crops, and a random operation per image."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from operant.conditions import Recipe, apply, default_palette
from operant.conditions.severity import Severity, uniform
from operant.data import Samples
from operant.model import Classifier
from operant.retrain.rows import Change
from operant.rng import normal_like

STRENGTH = 0.3  # of the palette's strongest values
MAX_LOSS = 0.02  # of clean accuracy that a flip may cost a model that knows flipped images
FLIP_ROWS = 500  # clean images that decide about flips


@dataclass(frozen=True, kw_only=True)
class GenericAugmentation:
    """Each image under one operation of any kind and strength, as TrivialAugment does, plus flips and crops.

    Args:
        palette: the operations with their ranges; every image gets ``operations`` of them.
        operations: per image.
        crop: shifts are uniform up to this share of the side.
        flip: whether half of the images are mirrored.

    References:
        | TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation (Müller and Hutter, 2021)
        | https://arxiv.org/abs/2103.10158
    """

    palette: Recipe
    operations: int = 1
    crop: float = 0.08
    flip: bool = False

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        n, names = len(x), self.palette.names
        drawn = self.palette.draw(n, generator=generator)
        order = torch.rand(n, len(names), generator=generator, device=generator.device).cpu().argsort(1)
        values = torch.where(order < self.operations, drawn.values, 0.0)
        shifts = (2 * torch.rand(n, 2, generator=generator, device=generator.device, dtype=torch.float64) - 1).cpu()
        for j, name in enumerate(("shift_x", "shift_y")):
            values[:, names.index(name)] = shifts[:, j] * self.crop
        mirrored = torch.rand(n, generator=generator, device=generator.device).cpu() < 0.5 * self.flip
        x = torch.where(mirrored.to(x.device).view(-1, 1, 1, 1), x.flip(-1), x)
        return apply(x, replace(drawn, values=values))


@dataclass(frozen=True, kw_only=True, eq=False)
class Jitter:
    """A change for inputs that are not images: normal noise of a share of each value's spread.

    Args:
        spread: standard deviation of each value among training inputs.
        share: of the spread.
        bounds: that inputs stay in.
    """

    spread: Tensor
    share: float = 0.1
    bounds: tuple[float, float]

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        return (x + self.share * self.spread.to(x) * normal_like(x, generator=generator)).clamp(*self.bounds)


def generic_augmentation(model: Classifier, train: Samples, clean: Samples) -> Change:
    """The augmentation for inputs like these; images are mirrored if the model knows mirrored ones."""
    if len(train.shape) != 3:
        return Jitter(spread=train.x.std(0), bounds=model.bounds)
    palette = default_palette(tuple(train.shape), bounds=model.bounds)
    ranges = {name: _even(severity) for name, severity in palette.severities.items()}
    return GenericAugmentation(palette=replace(palette, severities=ranges), flip=knows_flips(model, clean))


def knows_flips(model: Classifier, clean: Samples) -> bool:
    """Whether the model is nearly as accurate on mirrored images as on clean ones, so that labels survive a flip."""
    some = clean[:FLIP_ROWS]
    right = (model.predict(some.x) == some.labels).double().mean()
    mirrored = (model.predict(some.x.flip(-1)) == some.labels).double().mean()
    return bool(mirrored >= right - MAX_LOSS)


def _even(s: Severity) -> Severity:
    """Any strength up to a share of the strongest, each as likely."""
    low, high = (s.low, s.high) if s.low >= 0 else (s.mean - 2 * s.std, s.mean + 2 * s.std)
    return uniform(STRENGTH * low, STRENGTH * high)
