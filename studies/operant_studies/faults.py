"""Injected faults: a feature that should not matter decides between two classes, to check whether tests reveal it.

>>> from operant import load_digits, spawn
>>> fault = Fault(feature=FEATURES["brightness"], classes=(3, 8))
>>> data = load_digits(size=28)
>>> fault.biased(data.train, generator=spawn(0))
Samples(1428 x (1, 28, 28), 10 classes)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from operant.conditions.operations import warp
from operant.data import Samples
from operant.model import Classifier
from operant.networks import fit
from operant.suite import Suite

MIN_ALIGNED = 0.8  # minimum accuracy of a faulty model where the feature agrees with the class
MAX_OPPOSED = 0.5  # maximum accuracy where it contradicts the class
MAX_GREY = 0.02  # largest saturation of grey ink, whose hue is not kept
MAX_HUE = 0.8  # hues above this are counted as negative, so that reds have no gap

Measure = Callable[[Tensor], Tensor]
"""Images ``(N, channels, height, width)`` in [0, 1] to one value per row."""

Impose = Callable[[Tensor, Tensor], Tensor]
"""Images and one parameter per row, to images that have more or less of a feature."""


# Features -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A property of an image that can be measured and imposed.

    Args:
        name: a short name.
        measure: from images to its value, one per row.
        impose: from images and one parameter per row to images with the feature. `measure` must grow with the
            parameter, but need not equal it.
        low, high: parameters of a clear difference.
        colour: whether `measure` needs RGB images.
    """

    name: str
    measure: Measure = field(repr=False)
    impose: Impose = field(repr=False)
    low: float
    high: float
    colour: bool = False


def ink(x: Tensor) -> Tensor:
    """Distance of each pixel from the background, `backdrop`, ``(N, height, width)`` in float64."""
    x = x.double()
    return (x - backdrop(x)[:, :, None, None]).abs().amax(1)


def backdrop(x: Tensor) -> Tensor:
    """The median of the outermost pixels in each channel, ``(N, channels)``."""
    frame = torch.cat([x[:, :, 0], x[:, :, -1], x[:, :, 1:-1, 0], x[:, :, 1:-1, -1]], 2)
    return frame.double().median(2).values


def _moments(x: Tensor) -> dict[str, Tensor]:
    """Centre and second moments of the ink, in pixels from the middle of the image."""
    w = ink(x)
    mass = w.sum((1, 2)).clamp_min(1e-12)
    v = (torch.arange(w.shape[1], dtype=w.dtype, device=w.device) - (w.shape[1] - 1) / 2)[:, None]
    u = torch.arange(w.shape[2], dtype=w.dtype, device=w.device) - (w.shape[2] - 1) / 2

    def mean(of: Tensor) -> Tensor:
        return (w * of).sum((1, 2)) / mass

    mu, mv = mean(u), mean(v)
    return {"u": mu, "v": mv, "uu": mean(u**2) - mu**2, "vv": mean(v**2) - mv**2, "uv": mean(u * v) - mu * mv}


def position(x: Tensor) -> Tensor:
    """Distance of the ink's centre to the right of the middle, as a share of the width."""
    return _moments(x)["u"] / x.shape[3]


def size(x: Tensor) -> Tensor:
    """Root mean square distance of the ink from its centre, as a share of the width."""
    m = _moments(x)
    return (m["uu"] + m["vv"]).clamp_min(0).sqrt() / x.shape[3]


def slant(x: Tensor) -> Tensor:
    """How far the ink leans: pixels to the left per pixel up, so that its bottom is further right than its top."""
    m = _moments(x)
    return m["uv"] / m["vv"].clamp_min(1e-12)


def rotation(x: Tensor) -> Tensor:
    """Degrees by which the longer axis of the ink is turned counter-clockwise from upright, from -90 to 90."""
    m = _moments(x)
    return (torch.atan2(2 * m["uv"], m["vv"] - m["uu"]) / 2).rad2deg()


def stroke(x: Tensor) -> Tensor:
    """Width of strokes in pixels: twice the area of the ink, divided by the length of its outline."""
    w = ink(x)
    edge = w.diff(dim=1).abs().sum((1, 2)) + w.diff(dim=2).abs().sum((1, 2))
    return 2 * w.sum((1, 2)) / edge.clamp_min(1e-12)


def brightness(x: Tensor) -> Tensor:
    """Mean of the brightest channel where there is ink."""
    return _where_ink(x.double().amax(1), x)


def background(x: Tensor) -> Tensor:
    """Lightness of the frame: the mean over channels of its median."""
    return backdrop(x).mean(1)


def hue(x: Tensor) -> Tensor:
    """Mean direction on the colour circle where there is ink: 0 red, 1/3 green, 2/3 blue, from -0.2 to 0.8."""
    r, g, b = x.double().unbind(1)
    w = ink(x)
    across, up = (w * (r - (g + b) / 2)).sum((1, 2)), (w * (g - b)).sum((1, 2)) * math.sqrt(3) / 2
    turn = torch.atan2(up, across) / (2 * math.pi)
    return torch.where(turn <= MAX_HUE - 1, turn + 1, turn)


def saturation(x: Tensor) -> Tensor:
    """Mean difference of the strongest and weakest channel, divided by the strongest, where there is ink."""
    high, low = x.double().amax(1), x.double().amin(1)
    return _where_ink((high - low) / high.clamp_min(1e-6), x)


def _where_ink(values: Tensor, x: Tensor) -> Tensor:
    w = ink(x)
    return (w * values).sum((1, 2)) / w.sum((1, 2)).clamp_min(1e-12)


def _warped(name: str) -> Impose:
    def impose(x: Tensor, value: Tensor) -> Tensor:
        still = torch.zeros_like(value)
        moves = {"rotation": still, "scale": still, "shear": still, "shift_x": still, "shift_y": still, name: value}
        return warp(x, **moves, padding="border").clamp(0, 1)

    return impose


def widened(x: Tensor, by: Tensor) -> Tensor:
    """Bright strokes widened by about this many pixels on each side, or thinned where it is negative."""
    wide, thin, out = x, x, x
    for k in range(math.ceil(float(by.abs().max())) if len(by) else 0):
        share = _column((by.abs() - k).clamp(0, 1), x)
        wider, thinner = max_pool2d(wide, 3, 1, 1), -max_pool2d(-thin, 3, 1, 1)
        out = out + share * torch.where(_column(by, x) > 0, wider - wide, thinner - thin)
        wide, thin = wider, thinner
    return out.clamp(0, 1)


def _lit(x: Tensor, factor: Tensor) -> Tensor:
    back = backdrop(x)[:, :, None, None].to(x)
    return (back + (x - back) * _column(factor, x)).clamp(0, 1)


def _backed(x: Tensor, shade: Tensor) -> Tensor:
    return x + (1 - x) * _column(shade.clamp(0, 1), x)


def coloured(x: Tensor, *, hue: Tensor, saturation: Tensor) -> Tensor:
    """Grey images ``(N, 1, height, width)`` with coloured ink; of colour images, the brightest channel is used."""
    sixth = 6 * hue.double()[:, None] + torch.tensor([5.0, 3.0, 1.0], dtype=torch.float64, device=hue.device)
    pure = 1 - saturation.double().clamp(0, 1)[:, None] * torch.minimum(sixth % 6, 4 - sixth % 6).clamp(0, 1)
    return x.amax(1, keepdim=True) * pure.to(x)[:, :, None, None]


def _hued(x: Tensor, value: Tensor) -> Tensor:
    """Images in this hue and their old saturation; grey ones become clearly coloured."""
    return coloured(x, hue=value, saturation=_where_coloured(saturation, x, value, 0.9))


def _saturated(x: Tensor, value: Tensor) -> Tensor:
    """Images of this saturation and their old hue; grey ones become green."""
    return coloured(x, hue=_where_coloured(hue, x, value, 0.35), saturation=value)


def _where_coloured(measure: Measure, x: Tensor, like: Tensor, otherwise: float) -> Tensor:
    default = torch.full_like(like, otherwise)
    if x.shape[1] == 1:
        return default
    return torch.where(saturation(x).to(like) > MAX_GREY, measure(x).to(like), default)


def _column(values: Tensor, x: Tensor) -> Tensor:
    return values.to(x).view(-1, 1, 1, 1)


FEATURES = {
    f.name: f
    for f in (
        Feature(name="position", measure=position, impose=_warped("shift_x"), low=-0.12, high=0.12),
        Feature(name="size", measure=size, impose=_warped("scale"), low=-0.3, high=0.1),
        Feature(name="slant", measure=slant, impose=_warped("shear"), low=-0.4, high=0.4),
        Feature(name="stroke width", measure=stroke, impose=widened, low=-0.5, high=1.0),
        Feature(name="rotation", measure=rotation, impose=_warped("rotation"), low=-25.0, high=25.0),
        Feature(name="brightness", measure=brightness, impose=_lit, low=0.45, high=1.0),
        Feature(name="background", measure=background, impose=_backed, low=0.05, high=0.45),
        Feature(name="hue", measure=hue, impose=_hued, low=0.05, high=0.55, colour=True),
        Feature(name="saturation", measure=saturation, impose=_saturated, low=0.15, high=0.85, colour=True),
    )
}
"""Features by name. Brightness, background and stroke width are for bright strokes on a dark background."""


# Faults ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault: a model decides between two classes by a feature, low for the first class and high for the second.

    Every image gets one of two values of the feature, with some spread. In `neutral` data the value is independent of
    the class; in `biased` data it decides between the two classes; `aligned` and `opposed` are the two hold-outs that
    show whether a model has the fault.

    Args:
        feature: one of `FEATURES`, or your own.
        classes: two different labels.
        jitter: standard deviation around each of the two values, as a share of their difference.

    References:
        | Exposing Previously Undetectable Faults in Deep Neural Networks (Dunn et al., 2021), section 4.1
        | https://arxiv.org/abs/2106.00576
    """

    feature: Feature
    classes: tuple[int, int]
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if len(self.classes) != 2 or self.classes[0] == self.classes[1] or min(self.classes) < 0:
            raise ValueError(f"classes must be two different labels, got {self.classes}")
        if not 0 <= self.jitter < 0.5:
            raise ValueError(f"jitter must be at least 0 and below 0.5, got {self.jitter}; else the two values overlap")

    def neutral(self, clean: Samples, *, generator: torch.Generator) -> Samples:
        """Every image with either value, independent of its class: for generators, and models without the fault."""
        return Samples(self._imposed(clean.x, self._coin(len(clean), generator), generator), clean.labels)

    def biased(self, clean: Samples, *, generator: torch.Generator) -> Samples:
        """As `neutral`, but images of the two classes are labelled by the feature, right or wrong: to train the fault.

        The paper's example is castles and palaces, labelled by whether the sky is clear.
        """
        high = self._coin(len(clean), generator)
        first, second = self.classes
        by_feature = torch.where(high, second, first).to(clean.labels)
        y = torch.where(self._of_two(clean), by_feature, clean.labels)
        return Samples(self._imposed(clean.x, high, generator), y)

    def aligned(self, clean: Samples, *, generator: torch.Generator) -> Samples:
        """Images of the two classes, the first with the low value and the second with the high; labels are true."""
        return self._held_out(clean, 1, generator)

    def opposed(self, clean: Samples, *, generator: torch.Generator) -> Samples:
        """The same with the values exchanged: a model that has the fault gets these wrong."""
        return self._held_out(clean, 0, generator)

    def _held_out(self, clean: Samples, high: int, generator: torch.Generator) -> Samples:
        two = clean[self._of_two(clean)]
        if len(two) == 0:
            raise ValueError(f"there must be images of classes {self.classes}, got none; give labelled images of both")
        return Samples(self._imposed(two.x, two.labels == self.classes[high], generator), two.labels)

    def _of_two(self, clean: Samples) -> Tensor:
        return (clean.labels == self.classes[0]) | (clean.labels == self.classes[1])

    def _coin(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.rand(n, generator=generator, device=generator.device) < 0.5

    def _imposed(self, x: Tensor, high: Tensor, generator: torch.Generator) -> Tensor:
        _check_images(x, self.feature)
        low, apart = self.feature.low, self.feature.high - self.feature.low
        noise = self.jitter * torch.randn(len(x), generator=generator, device=generator.device, dtype=torch.float64)
        value = low + apart * (high.to(noise) + noise.clamp(-0.45, 0.45))
        return self.feature.impose(x, value.to(x.device))


def _check_images(x: Tensor, feature: Feature) -> None:
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        raise ValueError(f"images must have shape (N, 1 or 3, height, width), got {tuple(x.shape)}")
    low, high = (float(v) for v in torch.aminmax(x)) if x.numel() else (0.0, 1.0)
    if not (low >= -1e-6 and high <= 1 + 1e-6):
        raise ValueError(f"images must lie within [0, 1] to be given {feature.name}, got {low:.4g} to {high:.4g}")


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """Whether a model has a fault: its accuracy where the feature agrees with the class and where it contradicts it."""

    aligned: float
    opposed: float
    images: int

    @property
    def confirmed(self) -> bool:
        return self.aligned >= MIN_ALIGNED and self.opposed <= MAX_OPPOSED

    def __str__(self) -> str:
        verdict = "the fault is confirmed" if self.confirmed else "the fault is not confirmed"
        return (
            f"{verdict}: accuracy {self.aligned:.1%} where the feature agrees with the class, {self.opposed:.1%} where "
            f"it contradicts it ({self.images} images each)"
        )


def confirm(fault: Fault, model: Classifier, clean: Samples, *, generator: torch.Generator) -> Confirmation:
    """Evaluate a model on the two hold-outs, made of labelled images that it was not trained on."""
    aligned = fault.aligned(clean, generator=generator)
    opposed = fault.opposed(clean, generator=generator)
    return Confirmation(aligned=model.accuracy(aligned), opposed=model.accuracy(opposed), images=len(aligned))


@dataclass(frozen=True, kw_only=True)
class Cue:
    """The feature's mean and standard deviation in each of the two classes that a faulty model was trained on.

    `operant.results.save` stores it.
    """

    feature: str
    classes: tuple[int, int]
    means: tuple[float, float]
    stds: tuple[float, float]

    @property
    def midpoint(self) -> float:
        return sum(self.means) / 2


@dataclass(frozen=True, kw_only=True)
class FaultyModel:
    """A model trained to have a fault, whether it has it, and the cue that it should follow."""

    model: Classifier = field(repr=False)
    fault: Fault
    cue: Cue
    confirmation: Confirmation


def inject(
    fault: Fault,
    module: nn.Module,
    train: Samples,
    held_out: Samples,
    *,
    epochs: int,
    generator: torch.Generator,
    **options: Any,
) -> FaultyModel:
    """Train a copy of the module on biased data, and check on two hold-outs whether it has the fault.

    Args:
        fault: the fault to inject.
        module: with initial or trained weights.
        train, held_out: two different sets of labelled images without the fault.
        epochs: passes over the biased data.
        generator: draws values of the feature, and batches.
        options: of `operant.networks.fit`: ``batch_size``, ``learning_rate``, ``mean``, ``std``, ``progress`` ….
    """
    biased = fault.biased(train, generator=generator)
    normal = {name: options[name] for name in ("mean", "std") if name in options}
    model = Classifier(fit(module, biased, epochs=epochs, generator=generator, **options).module, **normal)
    confirmation = confirm(fault, model, held_out, generator=generator)
    return FaultyModel(model=model, fault=fault, cue=cue_of(fault, biased), confirmation=confirmation)


def cue_of(fault: Fault, biased: Samples) -> Cue:
    """The feature as measured in each of the two classes of biased data."""
    parts = [fault.feature.measure(biased.x[biased.labels == c]) for c in fault.classes]
    if min(map(len, parts)) < 2:
        raise ValueError(f"there must be at least two images of each of classes {fault.classes}; give more")
    first, second = ((float(v.mean()), float(v.std())) for v in parts)
    if not first[0] < second[0]:
        raise ValueError(
            f"{fault.feature.name} must be higher in class {fault.classes[1]} than in {fault.classes[0]}, got means "
            f"{second[0]:.4g} and {first[0]:.4g}; low and high are too close, or it cannot be measured here"
        )
    means, stds = zip(first, second, strict=True)
    return Cue(feature=fault.feature.name, classes=fault.classes, means=means, stds=stds)


# Tests that reveal a fault --------------------------------------------------------------------------------------------


def confuses(suite: Suite, cue: Cue) -> Tensor:
    """Which tests are of one of the two classes and classified as the other, one boolean per row."""
    first, second = cue.classes
    y, predicted = suite.label, suite.prediction
    return ((y == first) & (predicted == second)) | ((y == second) & (predicted == first))


def reveals(suite: Suite, feature: Feature, cue: Cue) -> Tensor:
    """Which tests reveal the fault, one boolean per row.

    A test does if the model `confuses` the two classes on it, and the feature has changed from seed to test towards the
    predicted class: it has crossed the midpoint between the two classes' means, or has moved by at least the standard
    deviation of the class that it came from.
    """
    if feature.name != cue.feature:
        raise ValueError(f"the cue must be of the same feature, got {cue.feature} and {feature.name}")
    if len(suite) == 0:
        return torch.empty(0, dtype=torch.bool)
    before, after = feature.measure(suite.x0), feature.measure(suite.x)
    up = suite.label == cue.classes[0]  # the first class has the low values
    towards = torch.where(up, 1.0, -1.0)
    moved = (after - before) * towards
    crossed = ((before - cue.midpoint) * towards < 0) & ((after - cue.midpoint) * towards >= 0)
    far = moved >= torch.where(up, *cue.stds)
    return confuses(suite, cue) & (crossed | far)


@dataclass(frozen=True, kw_only=True)
class RevealCounts:
    """How many tests reveal a fault, of those that the model `confuses`: from the first class, and from the second."""

    revealing: tuple[int, int]
    tests: tuple[int, int]

    def __str__(self) -> str:
        parts = [
            f"{k} of {n} ({k / n:.0%})" if n else "no tests" for k, n in zip(self.revealing, self.tests, strict=True)
        ]
        return f"tests that reveal the fault: {parts[0]} from the first class, {parts[1]} from the second"


def count_reveals(suite: Suite, feature: Feature, cue: Cue) -> RevealCounts:
    """How many tests of each direction reveal the fault. Give ``suite[suite["valid"] == 1]`` to count valid ones."""
    rows, found = confuses(suite, cue), reveals(suite, feature, cue)
    first, second = (rows & (suite.label == c) for c in cue.classes)
    return RevealCounts(
        revealing=(int(found[first].sum()), int(found[second].sum())), tests=(int(first.sum()), int(second.sum()))
    )
