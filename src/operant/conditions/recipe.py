"""Recipes of field conditions: declared, drawn, stored and applied."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from operant.conditions import operations
from operant.conditions._fields import derive
from operant.conditions.corruptions import CORRUPTIONS
from operant.conditions.severity import Severity, fixed
from operant.data import row_index
from operant.model import slack_of
from operant.validation import check_ascending, check_at_least, check_one_of, check_within

MAX_NUMBERS = 2**19  # numbers processed at once: few enough to stay in a processor's cache
MAX_SEED = 2**53  # seeds stay below this, so that a column of doubles can hold them
PADDINGS = ("border", "reflection", "zeros")


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Meaning and range of a condition's parameter; 0 is always no change.

    Args:
        meaning: unit and direction.
        low, high: range of valid values.
        smooth: whether gradients with respect to the parameter are useful; if not, search by sampling.
    """

    meaning: str
    low: float
    high: float
    smooth: bool = True

    def __str__(self) -> str:
        return f"between {self.low} and {self.high} ({self.meaning})"


CONDITIONS: dict[str, Condition] = {
    "rotation": Condition(meaning="degrees, counter-clockwise", low=-180, high=180),
    "scale": Condition(meaning="log of the factor; positive is larger", low=-2, high=2),
    "shear": Condition(meaning="lean, as a share of height; positive moves the bottom right", low=-2, high=2),
    "shift_x": Condition(meaning="to the right, as a share of the width", low=-1, high=1),
    "shift_y": Condition(meaning="downwards, as a share of the height", low=-1, high=1),
    "occlusion": Condition(meaning="side of a grey box, as a share of the image's; anywhere", low=0, high=1),
    "shadow": Condition(meaning="share of the light lost in a soft-edged shadow; anywhere", low=0, high=1),
    "fog": Condition(meaning="share of the light replaced by that of a bright haze", low=0, high=1),
    "motion_blur": Condition(meaning="pixels moved", low=0, high=64),
    "motion_angle": Condition(meaning="degrees from level of that movement", low=-180, high=180),
    "defocus": Condition(meaning="radius in pixels of the disk that a point becomes", low=0, high=32),
    "blur": Condition(meaning="standard deviation in pixels", low=0, high=32),
    "vignetting": Condition(meaning="share of the light lost in the corners", low=0, high=1),
    "exposure": Condition(meaning="log of the gain; negative is darker", low=-4, high=4),
    "warmth": Condition(meaning="log gain of red, loss of blue; positive is warmer; three channels", low=-2, high=2),
    "tint": Condition(meaning="log gain of green; negative is magenta; three channels", low=-2, high=2),
    "brightness": Condition(meaning="added, as a share of the range", low=-1, high=1),
    "contrast": Condition(meaning="log of the factor on distances from the image's mean", low=-5, high=5),
    "gamma": Condition(meaning="log of the exponent; positive is darker", low=-3, high=3),
    "downsampling": Condition(meaning="share of the resolution lost", low=0, high=0.95, smooth=False),
    "shot_noise": Condition(meaning="standard deviation at white, as a share of the range", low=0, high=1),
    "gaussian_noise": Condition(meaning="standard deviation, as a share of the range", low=0, high=1),
    "impulse_noise": Condition(meaning="share of values set to black or white", low=0, high=1, smooth=False),
    "saturation": Condition(meaning="log of the factor on distances from grey; three channels", low=-5, high=5),
    "jpeg": Condition(meaning="multiple of JPEG's table; 1 is quality 50, 5 is 10", low=0, high=50, smooth=False),
    **{
        f"c/{name}": Condition(meaning="severity of ImageNet-C's corruption, 0 to 5", low=0, high=5, smooth=False)
        for name in CORRUPTIONS
    },
}
"""All conditions by name, in the order of application: scene, lens, sensor, processing; then corruptions."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DrawnConditions:
    """Drawn conditions, one row per image: everything that `apply` needs to repeat its result.

    `operant.results.save` stores it; ``drawn[rows]`` selects rows.

    Args:
        names: names of the conditions.
        values: ``(n, len(names))``, their parameters; may require gradients.
        seeds: int64 ``(n,)``, below 2**53; all randomness in a row comes from its seed.
        bounds: smallest and largest value of an image.
        padding: values outside an image: ``"border"``, ``"reflection"`` or ``"zeros"``.
    """

    names: tuple[str, ...]
    values: Tensor
    seeds: Tensor
    bounds: tuple[float, float] = (0.0, 1.0)
    padding: str = "border"

    def __post_init__(self) -> None:
        _check_setting(self.names, self.bounds, self.padding)
        n, values = len(self.seeds), self.values.detach()
        if values.shape != (n, len(self.names)) or not values.is_floating_point():
            needed = f"floating-point of shape ({n}, {len(self.names)}), one row per seed and one column per name"
            raise ValueError(f"values must be {needed}, got {values.dtype} of shape {tuple(values.shape)}")
        in_range = (self.seeds >= 0) & (self.seeds < MAX_SEED)
        if self.seeds.dtype != torch.int64 or self.seeds.ndim != 1 or not bool(in_range.all()):
            raise ValueError("seeds must be int64 of shape (n,), from 0 to 2**53 - 1; `Recipe.draw` makes them")
        for name, column in zip(self.names, values.unbind(1), strict=True):
            allowed = CONDITIONS[name]
            if not bool(((column >= allowed.low - 1e-6) & (column <= allowed.high + 1e-6)).all()):  # also rejects NaN
                got = f"values from {float(column.min()):.4g} to {float(column.max()):.4g}"
                raise ValueError(f"{name} must lie {allowed}, got {got}; clip them to `Recipe.limits`")

    def __len__(self) -> int:
        return len(self.seeds)

    def __getitem__(self, index: Any) -> "DrawnConditions":
        rows = row_index(index, len(self))
        values, seeds = self.values[rows.to(self.values.device)], self.seeds[rows.to(self.seeds.device)]
        return replace(self, values=values, seeds=seeds)

    def columns(self) -> dict[str, Tensor]:
        """The values of each condition, and the seeds as ``noise_seed``, for `Suite.with_columns`."""
        values = self.values.detach().double()
        return {**dict(zip(self.names, values.unbind(1), strict=True)), "noise_seed": self.seeds}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Declares field conditions and the distribution of their severities, which are independent.

    Conditions are applied in the order of `CONDITIONS`, whatever the order here; geometric ones in one resampling. For
    another order, apply one recipe after another. `operant.results.save` stores a recipe.

    Args:
        severities: from name to distribution.
        bounds: smallest and largest value of an image.
        padding: values outside an image: ``"border"`` (the outermost pixels), ``"reflection"`` or ``"zeros"``.

    >>> from operant.conditions import normal, uniform
    >>> recipe = Recipe(severities={"rotation": normal(12), "blur": uniform(0, 1.3, absent=0.5)})
    >>> drawn = recipe.draw(64, generator=torch.Generator().manual_seed(0))
    >>> apply(torch.rand(64, 1, 28, 28), drawn).shape
    torch.Size([64, 1, 28, 28])
    """

    severities: dict[str, Severity]
    bounds: tuple[float, float] = (0.0, 1.0)
    padding: str = "border"

    def __post_init__(self) -> None:
        _check_setting(tuple(self.severities), self.bounds, self.padding)
        for name, severity in self.severities.items():
            allowed = CONDITIONS[name]
            if severity.low < allowed.low or severity.high > allowed.high:
                raise ValueError(f"{name} must lie {allowed}, got the range {severity.low} to {severity.high}")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the conditions, in the order of a draw's columns."""
        return tuple(self.severities)

    @property
    def limits(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest declared value of each condition, in float64; includes 0 if it may be absent."""
        ranges = [(s.low, s.high) if s.absent == 0 else (min(s.low, 0.0), max(s.high, 0.0)) for s in self._each]
        low, high = torch.tensor(ranges, dtype=torch.float64).view(-1, 2).T
        return low, high

    @property
    def smooth(self) -> tuple[bool, ...]:
        """Whether gradients with respect to each condition's values are useful."""
        return tuple(CONDITIONS[name].smooth for name in self.names)

    def draw(self, n: int, *, generator: torch.Generator) -> DrawnConditions:
        """Severities and seeds for ``n`` images."""
        check_at_least(0, n=n)
        shape, device = (2, n, len(self.names)), generator.device
        u, gone = torch.rand(shape, dtype=torch.float64, generator=generator, device=device).cpu()
        values = [
            torch.where(gone[:, j] < s.absent, 0.0, s.value(u[:, j].clamp_min(2**-54)))
            for j, s in enumerate(self._each)
        ]
        seeds = torch.randint(MAX_SEED, (n,), generator=generator, device=device).cpu()
        return self._drawn(torch.stack(values, 1) if values else u, seeds)

    def neutral(self, n: int) -> DrawnConditions:
        """No change, for ``n`` images: a starting point for searches, even if 0 is outside the declared ranges."""
        check_at_least(0, n=n)
        return self._drawn(torch.zeros(n, len(self.names), dtype=torch.float64), torch.arange(n))

    def log_prob(self, drawn: DrawnConditions) -> Tensor:
        """Log of the declared density of each row's severities, ``(n,)``, differentiable in the values.

        The sum over conditions of `Severity.log_prob`; minus infinity outside the declared ranges.
        """
        if drawn.names != self.names:
            names = f"({_listed(self.names)}), got {_listed(drawn.names)}"
            raise ValueError(f"the conditions must be those of this recipe {names}; draw from this recipe")
        parts = [s.log_prob(v) for s, v in zip(self._each, drawn.values.unbind(1), strict=True)]
        return torch.stack(parts).sum(0) if parts else drawn.values.new_zeros(len(drawn))

    @property
    def _each(self) -> Sequence[Severity]:
        return tuple(self.severities.values())

    def _drawn(self, values: Tensor, seeds: Tensor) -> DrawnConditions:
        return DrawnConditions(names=self.names, values=values, seeds=seeds, bounds=self.bounds, padding=self.padding)


def corruption(name: str, severity: float, *, bounds: tuple[float, float] = (0.0, 1.0)) -> Recipe:
    """One of ImageNet-C's corruptions at a severity from 0 to 5, as a recipe; see `CORRUPTIONS`."""
    if name not in CORRUPTIONS:
        raise ValueError(f"no corruption is named {name!r}; there are {_listed(tuple(CORRUPTIONS))}")
    return Recipe(severities={f"c/{name}": fixed(severity)}, bounds=bounds)


def apply(x: Tensor, drawn: DrawnConditions) -> Tensor:
    """The images ``(n, channels, height, width)`` under these conditions, row by row.

    The same images and the same draw always give bit-identical results, in any batch. Differentiable in
    ``x`` and, for conditions with `Condition.smooth`, in ``drawn.values``.
    """
    _check_images(x, drawn)
    rows = max(1, MAX_NUMBERS // max(1, x[0].numel()))
    split = zip(x.split(rows), drawn.values.to(x.device).split(rows), drawn.seeds.split(rows), strict=True)
    parts = [_applied(images, values, seeds, drawn) for images, values, seeds in split]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _applied(x: Tensor, values: Tensor, seeds: Tensor, setting: DrawnConditions) -> Tensor:
    low, high = setting.bounds
    unit = (low, high) == (0, 1)
    z = (x if unit else (x - low) / (high - low)).clamp(0, 1).contiguous()
    given = dict(zip(setting.names, values.unbind(1), strict=True))
    absent = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for names, step in STEPS.items():
        if any(name in given for name in names):
            z = _stepped(z, [given.get(name, absent) for name in names], derive(seeds, names[0]), step, setting.padding)
    return z if unit else (low + z * (high - low)).clamp(low, high)


def _stepped(x: Tensor, parameters: Sequence[Tensor], seeds: Tensor, step: "Step", padding: str) -> Tensor:
    """One step, left out where it changes nothing: for the whole batch or, if no gradients are needed, for its rows."""
    searched = any(p.requires_grad for p in parameters)
    rows = torch.stack([p != 0 for p in parameters]).any(0).nonzero().flatten()
    if len(rows) == 0 and not searched:
        return x
    if len(rows) == len(x) or searched or x.requires_grad:
        return step(x, parameters, seeds, padding)
    changed = step(x[rows], [p[rows] for p in parameters], seeds[rows.to(seeds.device)], padding)
    return x.index_copy(0, rows, changed)


Step = Callable[[Tensor, Sequence[Tensor], Tensor, str], Tensor]


def _corrupted(name: str, x: Tensor, p: Sequence[Tensor], seeds: Tensor, padding: str) -> Tensor:
    return CORRUPTIONS[name](x, p[0], seeds)


def _warped(x: Tensor, p: Sequence[Tensor], seeds: Tensor, padding: str) -> Tensor:
    return operations.warp(x, rotation=p[0], scale=p[1], shear=p[2], shift_x=p[3], shift_y=p[4], padding=padding)


STEPS: dict[tuple[str, ...], Step] = {
    ("rotation", "scale", "shear", "shift_x", "shift_y"): _warped,
    ("occlusion",): lambda x, p, seeds, _: operations.occlude(x, p[0], seeds=seeds),
    ("shadow",): lambda x, p, seeds, _: operations.shadow(x, p[0], seeds=seeds),
    ("fog",): lambda x, p, seeds, _: operations.fog(x, p[0], seeds=seeds),
    ("motion_blur", "motion_angle"): lambda x, p, *_: operations.motion_blur(x, p[0], p[1]),
    ("defocus",): lambda x, p, *_: operations.defocus(x, p[0]),
    ("blur",): lambda x, p, *_: operations.blur(x, p[0]),
    ("vignetting",): lambda x, p, *_: operations.vignette(x, p[0]),
    ("exposure",): lambda x, p, *_: operations.expose(x, p[0]),
    ("warmth",): lambda x, p, *_: operations.warm(x, p[0]),
    ("tint",): lambda x, p, *_: operations.tint(x, p[0]),
    ("brightness",): lambda x, p, *_: operations.brighten(x, p[0]),
    ("contrast",): lambda x, p, *_: operations.contrast(x, p[0]),
    ("gamma",): lambda x, p, *_: operations.gamma(x, p[0]),
    ("downsampling",): lambda x, p, *_: operations.downsample(x, p[0]),
    ("shot_noise",): lambda x, p, seeds, _: operations.shot_noise(x, p[0], seeds=seeds),
    ("gaussian_noise",): lambda x, p, seeds, _: operations.gaussian_noise(x, p[0], seeds=seeds),
    ("impulse_noise",): lambda x, p, seeds, _: operations.impulse_noise(x, p[0], seeds=seeds),
    ("saturation",): lambda x, p, *_: operations.saturate(x, p[0]),
    ("jpeg",): lambda x, p, *_: operations.jpeg(x, p[0]),
    **{(f"c/{name}",): partial(_corrupted, name) for name in CORRUPTIONS},
}
"""All steps in order: the parameters that a step needs, and its function."""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _check_setting(names: tuple[str, ...], bounds: tuple[float, float], padding: str) -> None:
    if unknown := [name for name in names if name not in CONDITIONS]:
        raise ValueError(f"no condition is named {_listed(unknown)}; there are {_listed(tuple(CONDITIONS))}")
    if len(set(names)) < len(names):
        raise ValueError(f"a condition can be named once, got {_listed(names)}")
    check_ascending(bounds=bounds)
    check_one_of(PADDINGS, padding=padding)


def _check_images(x: Tensor, drawn: DrawnConditions) -> None:
    if x.ndim != 4 or not x.is_floating_point() or x.numel() == 0:
        needed = "conditions are for images: x must be floating-point (n, channels, height, width) and not empty"
        raise ValueError(f"{needed}, got {x.dtype} of shape {tuple(x.shape)}")
    if len(x) != len(drawn):
        raise ValueError(f"there must be one image per drawn row, got {len(x)} images and {len(drawn)} rows")
    advice = "rescale them, or give the recipe the bounds of your data"
    check_within(drawn.bounds, slack=slack_of(drawn.bounds), advice=advice, images=x)
