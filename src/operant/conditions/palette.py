"""The conditions that are tried when none are declared."""

from dataclasses import replace

from operant.conditions.recipe import Recipe
from operant.conditions.severity import Severity, normal

COLOUR = ("warmth", "tint", "saturation")  # need three channels
OCCURS, STRENGTH = 0.15, 0.5  # how often `wider` adds a condition, and how strong, as a share of the palette's


def default_palette(shape: tuple[int, ...], *, bounds: tuple[float, float] = (0.0, 1.0)) -> Recipe:
    """The strongest conditions to be expected of a camera, for images of shape ``(channels, height, width)``.

    >>> palette = default_palette((3, 32, 32))
    >>> len(palette.names), "exposure" in palette.names
    (25, True)
    """
    if len(shape) != 3:
        raise ValueError(f"conditions are for images: shape must be (channels, height, width), got {shape}")
    side = min(shape[1:])
    severities = {
        "rotation": normal(30),
        "scale": normal(0.4),
        "shear": normal(0.4),
        "shift_x": normal(0.15),
        "shift_y": normal(0.15),
        "occlusion": _up_to(0.6),
        "shadow": _up_to(0.9),
        "fog": _up_to(0.9),
        "motion_blur": _up_to(min(64, 0.3 * side)),
        "motion_angle": normal(90, low=-180, high=180),
        "defocus": _up_to(min(32, 0.12 * side)),
        "blur": _up_to(min(32, 0.1 * side)),
        "vignetting": _up_to(1),
        "exposure": normal(1.5, low=-4, high=4),
        "warmth": normal(0.5),
        "tint": normal(0.4),
        "brightness": normal(0.3),
        "contrast": normal(1.0),
        "gamma": normal(1.0),
        "downsampling": _up_to(0.8),
        "shot_noise": _up_to(0.4),
        "gaussian_noise": _up_to(0.35),
        "impulse_noise": _up_to(0.3),
        "saturation": normal(1.0),
        "jpeg": _up_to(8),
    }
    return Recipe(severities={k: s for k, s in severities.items() if shape[0] == 3 or k not in COLOUR}, bounds=bounds)


def wider(recipe: Recipe, shape: tuple[int, ...]) -> Recipe:
    """The recipe, and now and then every other condition of the palette at half its strength.

    For what a recipe leaves unexplained: cases of wider conditions show which inputs the model gets wrong if something
    else happens to them as well. On average an image is under three or four conditions more.

    >>> from operant.conditions import normal
    >>> len(wider(Recipe(severities={"rotation": normal(5)}), (3, 32, 32)).names)
    25
    """
    palette = default_palette(shape, bounds=recipe.bounds).severities
    added = {name: _weakened(severity) for name, severity in palette.items() if name not in recipe.severities}
    return replace(recipe, severities={**recipe.severities, **added})


def _weakened(s: Severity) -> Severity:
    low, high, mean, std = (STRENGTH * value for value in (s.low, s.high, s.mean, s.std))
    return Severity(low=low, high=high, mean=mean, std=std, absent=1 - OCCURS)


def _up_to(high: float) -> Severity:
    """From 0 to ``high``, of any mean in between."""
    return normal(high / 2, mean=high / 2, low=0, high=high)
