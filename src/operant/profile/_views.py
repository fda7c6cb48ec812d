"""Large images: the scene is matched on reduced copies, light, lens and sensor on details at full size."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from operant.conditions import Recipe, Severity, apply
from operant.data import Samples
from operant.profile._appearance import Array
from operant.profile._matching import ConditionMatcher, make_matcher
from operant.profile._search import Match, best_match, better_match, first_match, groups_of, nothing, without_idle
from operant.rng import shuffled

MAX_SIDE = 64  # pixels of images that are matched as they are
REDUCED_SIDE = 32  # about the longer one of reduced copies
MIN_REDUCED_SIDE = 3  # the shorter one, for second differences
DETAIL = 40  # side of the details, which start at multiples of 8 as JPEG's blocks do
DETAILS = 300  # images of either side whose details are compared
CHUNK = 64  # images changed at once

SCENE = ("rotation", "scale", "shear", "shift_x", "shift_y", "occlusion", "shadow", "fog", "vignetting")
LENGTHS = ("motion_blur", "defocus", "blur")  # in pixels
NOISES = ("shot_noise", "gaussian_noise")  # independent in every pixel
INVISIBLE = ("impulse_noise", "downsampling", "jpeg")  # in reduced copies

Tick = Callable[[], None]


def match_field(
    field: Samples,
    clean: Samples,
    widest: Recipe,
    priors: Sequence[float] | None,
    simulated: int,
    generator: torch.Generator,
    tick: Tick,
) -> list[tuple[Match, tuple[str, ...]]]:
    """Matches, each with the conditions that it decides: one, or two for large images."""
    factor = reduction(clean.shape)
    if factor == 1:
        matcher = make_matcher(field, clean, widest, priors, simulated, generator, tick)
        return [(best_match(matcher, *first_match(matcher), generator), widest.names)]
    seen, plain = (replace(s, x=_reduced(s.x, factor)) for s in (field, clean))
    matcher = make_matcher(seen, plain, reduced_recipe(widest, factor), priors, simulated, generator, tick)
    whole = without_idle(better_match(matcher, *first_match(matcher)))
    return [(whole, SCENE), (_match_details(field, clean, widest, whole, factor, generator), _others(widest.names))]


def reduction(shape: Sequence[int]) -> int:
    """The factor by which the sides of images of this shape are divided; 1 if they are matched as they are."""
    longest = max(shape[1:])
    return 1 if longest <= MAX_SIDE else longest // REDUCED_SIDE


def reduced_recipe(recipe: Recipe, factor: float) -> Recipe:
    """What a recipe does to images whose sides are divided by the factor, by means over blocks."""
    severities = {
        name: _scaled(s, 1 / factor) if name in LENGTHS + NOISES else s
        for name, s in recipe.severities.items()
        if name not in INVISIBLE
    }
    return replace(recipe, severities=severities)


def _scaled(s: Severity, by: float) -> Severity:
    return replace(s, low=s.low * by, high=s.high * by, mean=s.mean * by, std=s.std * by)


def _reduced(x: Tensor, factor: int) -> Tensor:
    return torch.cat([avg_pool2d(part.detach().cpu().float(), factor) for part in x.split(CHUNK)])


def _others(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in SCENE)


def _match_details(
    field: Samples, clean: Samples, widest: Recipe, whole: Match, factor: int, generator: torch.Generator
) -> Match:
    """Match details of field images with details of clean images under the scene that was found."""
    scene = replace(whole.recipe, severities={n: s for n, s in whole.recipe.severities.items() if n in SCENE})
    seen, plain = (s[shuffled(len(s), generator)[:DETAILS]] for s in (field, _in_shares(clean, whole, generator)))
    seen = replace(seen, x=_details(seen.x, None, generator))
    plain = replace(plain, x=_details(plain.x, scene, generator))
    local = replace(widest, severities={n: widest.severities[n] for n in _others(widest.names)})
    matcher = make_matcher(seen, plain, local, _shares(plain), DETAILS, generator, whole.matcher.tick)
    return best_match(matcher, *_start(matcher, whole, factor), generator)


def _in_shares(clean: Samples, whole: Match, generator: torch.Generator) -> Samples:
    """Clean images, some repeated, in the class shares of the field."""
    if clean.y is None:
        return clean
    shares = torch.from_numpy(whole.matcher.compare(whole.t, whole.root).priors)
    y = clean.y.cpu()
    weights = (shares / y.bincount(minlength=len(shares)).clamp_min(1))[y]
    return clean[torch.multinomial(weights, min(DETAILS, len(clean)), replacement=True, generator=generator)]


def _shares(samples: Samples) -> list[float] | None:
    """The class shares themselves: details say little about classes, so these are not fitted again."""
    return None if samples.y is None else (samples.y.bincount() / len(samples)).tolist()


def _details(x: Tensor, scene: Recipe | None, generator: torch.Generator) -> Tensor:
    """A random square of each image, under a scene if one is given."""
    side = min(DETAIL, *x.shape[2:])
    parts = []
    for part in x.split(CHUNK):
        seen = part.detach().cpu().float()
        seen = seen if scene is None else apply(seen, scene.draw(len(seen), generator=generator))
        parts += [_cut(image, side, generator) for image in seen]
    return torch.stack(parts)


def _cut(image: Tensor, side: int, generator: torch.Generator) -> Tensor:
    corner = [8 * int(torch.randint((n - side) // 8 + 1, (), generator=generator)) for n in image.shape[1:]]
    return image[:, corner[0] : corner[0] + side, corner[1] : corner[1] + side]


def _start(matcher: ConditionMatcher, whole: Match, factor: int) -> tuple[Array, list[str]]:
    """What was found on reduced copies, for images of full size."""
    t, names = nothing(matcher.parameters), [n for n in groups_of(matcher.parameters) if n in whole.on]
    found = {(p.condition, p.name): p.value(v) for p, v in zip(whole.matcher.parameters, whole.t, strict=True)}
    for i, p in enumerate(matcher.parameters):
        if p.condition in whole.recipe.names and (p.condition, p.name) in found:
            scale = factor if p.condition in LENGTHS + NOISES else 1
            t[i] = p.place(scale * found[p.condition, p.name])
    return t, names
