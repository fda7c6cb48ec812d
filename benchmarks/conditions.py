"""Estimating field conditions that nobody declared, against the plain cost of simulating and describing the images.

Made images (smooth random colours, no download) under exposure, rotation, defocus and noise; `fit_conditions` with
its default palette and settings. One simulation is `apply` of these four and the description of as many images as the
fit simulates: a ratio is how many such simulations the whole search costs, so smaller is better. CPU time, one thread.

    python benchmarks/conditions.py [--quick]
"""

import _timing  # isort: skip  # first: it sets what torch reads when it is imported

import argparse
import resource

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from operant import Samples, spawn
from operant.conditions import Recipe, apply, normal, uniform
from operant.profile import FittedConditions, fit_conditions
from operant.profile._appearance import ImageDescriptor

HIDDEN = {
    "rotation": normal(8),
    "defocus": normal(0.3, mean=1.0),
    "exposure": normal(0.3, mean=-0.7),
    "gaussian_noise": uniform(0.0, 0.1),
}
SIZES = {  # shape, field images, clean images, images per simulation
    "28x28": ((1, 28, 28), 2000, 4000, 1000),
    "32x32x3": ((3, 32, 32), 2000, 4000, 1000),
    "224x224x3": ((3, 224, 224), 250, 250, 1000),
}
QUICK = {"28x28": ((1, 28, 28), 500, 500, 400)}


def images(n: int, shape: tuple[int, ...], word: str) -> Tensor:
    """A bright ellipse with a texture on a smooth background: something to turn, to darken and to blur."""
    draw = torch.rand(n, 2 * shape[0] + 4, 8, 8, generator=spawn(0, word))
    smooth = interpolate(draw, size=shape[1:], mode="bicubic", align_corners=False).clamp(0, 1)
    across, down = (torch.linspace(-1, 1, k) for k in shape[1:])
    place = draw[:, -4:, 0, 0, None, None] - 0.5
    far = ((across[:, None] - place[:, 0]) / 0.7).square() + ((down - place[:, 1]) / 0.35).square()
    inside = (4 * (1 - far)).clamp(0, 1)[:, None]
    return inside * (0.5 + 0.5 * smooth[:, : shape[0]]) + (1 - inside) * 0.5 * smooth[:, shape[0] : 2 * shape[0]]


def measured(shape: tuple[int, ...], n: int, others: int, simulated: int) -> tuple[dict[str, float], FittedConditions]:
    """CPU seconds of the fit and of one simulation, and what was found."""
    recipe, plain = Recipe(severities=HIDDEN), images(others, shape, "clean")
    field = Samples(apply(images(n, shape, "field"), recipe.draw(n, generator=spawn(0, "conditions"))))
    rows, drawn = torch.arange(simulated) % others, recipe.draw(simulated, generator=spawn(1))
    describe = ImageDescriptor.of(plain[:200], (0.0, 1.0))
    found: list[FittedConditions] = []

    def fit() -> None:
        clean = Samples(plain)
        found.append(fit_conditions(field, clean, simulated=simulated, generator=spawn(2), progress=False))

    def simulate() -> None:
        for part in torch.arange(simulated).split(50):
            describe(apply(plain[rows[part]], drawn[part]))

    runs = {"fit": fit, "one simulation": simulate}
    return _timing.cpu_times(runs, repeats=1), found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small fields of 28 x 28 only, under 50 s")
    rows, ratios = [], {}
    for name, setting in (QUICK if parser.parse_args().quick else SIZES).items():
        times, fitted = measured(*setting)
        ratios[f"simulations_{name}"] = times["fit"] / times["one simulation"]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        right = f"{len(HIDDEN.keys() & set(fitted.active))} of {len(HIDDEN)}"
        others = ", ".join(n for n in fitted.active if n not in HIDDEN and n != "motion_angle") or "none"
        seconds = [f"{times[key]:.1f}" for key in ("fit", "one simulation")]
        rows.append([name, *seconds, f"{ratios[f'simulations_{name}']:.0f}", f"{peak:.2f}", right, others])
    columns = ["images", "CPU s", "one simulation", "ratio", "peak GB so far", "conditions found", "others found"]
    _timing.show("Conditions that nobody declared", columns, rows)
    _timing.finish("conditions", ratios)


if __name__ == "__main__":
    main()
