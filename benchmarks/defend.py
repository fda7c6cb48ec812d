"""Defences against plain ways to the same answers: every mutant on every input, a loop over pixels.

CPU time, one thread, all in this process. ``mutation_detection_vs_all`` is the share of the time that undecided inputs
advancing together take of running every mutant on every input, at the same decisions (or it stops with an error): below
a third is the goal.
``deflection_vs_loop`` is how many times faster drawing and replacing pixels is for all images together than in a loop
over images and pixels: 20 is the goal. The other two are without the drawing, at the same places, and with denoising,
which in the loop too is done for an image at a time.

    python benchmarks/defend.py [--quick]
"""

import _timing  # isort: skip  # first: it sets what torch reads when it is imported

import argparse
import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from operant import Classifier, Samples, load_digits, spawn
from operant.defend import MutationDetector, PixelDeflection, fit_mutation_detector
from operant.defend._wavelet import denoise
from operant.defend.deflection import deflect
from operant.generate import BIM
from operant.networks import LeNet5, fit, initialise
from operant.rng import normal_like


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer inputs, mutants and repeats, under 50 s")
    quick = parser.parse_args().quick
    ratios = mutation(inputs=200 if quick else 1000, mutants=100 if quick else 500, repeats=1 if quick else 2)
    ratios |= deflection(images=1000, repeats=2 if quick else 6)
    _timing.finish("defend", ratios)


# Mutation-based detection ---------------------------------------------------------------------------------------------


def mutation(*, inputs: int, mutants: int, repeats: int) -> dict[str, float]:
    """LeNet-5 on digits: half of the inputs are benign, half attacked until the label changes and no further."""
    digits = load_digits(size=28)
    start = initialise(LeNet5, generator=spawn(0, "weights"))
    module = fit(start, digits.train, epochs=4, batch_size=32, generator=spawn(0, "training"), progress=False).module
    model = Classifier(module)
    parts = model.correct(_many(digits.test, 2 * inputs)).split(benign=0.4, judged=0.6)
    benign, judged = parts["benign"][: max(200, inputs // 2)], parts["judged"][: inputs // 2]
    attacked = BIM(radius=0.3, minimal=True)(model, judged, generator=spawn(0, "attack")).failures().x
    x = torch.cat([judged.x, attacked])
    columns = ["operator", "inputs", "threshold", "mutants an input", "together CPU s", "all CPU s", "share"]
    rows, shares = [], {}
    for operator in ("NAI", "GF"):
        detector = fit_mutation_detector(
            model, benign, operator=operator, mutants=mutants, generator=spawn(0, "mutants", operator)
        )
        shares[operator], row = _against_all(detector, x, repeats=repeats)
        rows.append([operator, str(len(x)), f"{detector.test.threshold:.4f}", *row])
    _timing.show(f"Mutation-based detection, up to {mutants} mutants of LeNet-5", columns, rows)
    return {"mutation_detection_vs_all": shares["NAI"], "mutation_detection_vs_all_gf": shares["GF"]}


def _many(samples: Samples, n: int) -> Samples:
    """As many digits as are asked for, each again with a little noise."""
    times = n // len(samples) + 1
    x = samples.x.repeat(times, 1, 1, 1)
    noisy = (x + 0.05 * normal_like(x, generator=spawn(0, "noise"))).clamp(0, 1)
    return Samples(noisy, samples.labels.repeat(times))[:n]


def _against_all(detector: MutationDetector, x: Tensor, *, repeats: int) -> tuple[float, list[str]]:
    def together() -> Tensor:
        return detector.decisions(x).adversarial

    def everything() -> Tensor:
        return detector.test.run(detector.changes(x))[0] == 1

    if differ := int((together() != everything()).sum()):
        raise SystemExit(f"{differ} of {len(x)} inputs are decided in another way when all mutants are run")
    asked = float(detector.decisions(x).mutants.double().mean())
    times = _timing.cpu_times({"together": together, "all": everything}, repeats=repeats)
    share = times["together"] / times["all"]
    return share, [f"{asked:.0f}", f"{times['together']:.2f}", f"{times['all']:.2f}", f"{share:.3f}"]


# Pixel deflection -----------------------------------------------------------------------------------------------------


def deflection(*, images: int, repeats: int) -> dict[str, float]:
    """200 pixels of each image, in windows of 10, as the paper has it; images of three channels, 32 by 32."""
    x = torch.rand(images, 3, 32, 32, generator=spawn(0, "images"))
    draw = PixelDeflection(count=200, window=10, sigma=0)
    whole = PixelDeflection(count=200, window=10, sigma=0.04)
    at, by = draw.places(x)
    places = at.numpy(), by.numpy()
    assert torch.equal(deflect(x, at, by), torch.from_numpy(_replaced(x.numpy(), *places)))
    runs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "deflection_vs_loop": (lambda: draw(x), lambda: _loop(x, count=200, window=10)),
        "deflection_given_places": (lambda: deflect(x, at, by), lambda: _replaced(x.numpy(), *places)),
        "deflection_denoised": (lambda: whole(x), lambda: _denoised_loop(x, count=200, window=10)),
    }
    pairs = {f"{name} {side}": run for name, both in runs.items() for side, run in zip("ab", both, strict=True)}
    times = _timing.cpu_times(pairs, repeats=repeats)
    ratios = {name: times[f"{name} b"] / times[f"{name} a"] for name in runs}
    rows = [[name, f"{times[f'{name} a']:.3f}", f"{times[f'{name} b']:.2f}", f"{ratios[name]:.0f}"] for name in runs]
    _timing.show(f"Pixel deflection of {images} images", ["", "together CPU s", "loop CPU s", "ratio"], rows)
    return ratios


def _replaced(x: np.ndarray, at: np.ndarray, by: np.ndarray) -> np.ndarray:
    """One image and one pixel after the other, at places drawn before."""
    made, width = x.copy(), x.shape[3]
    for image, places, sources in zip(made, at, by, strict=True):
        for place, source in zip(places, sources, strict=True):
            image[:, place // width, place % width] = image[:, source // width, source % width]
    return made


def _loop(x: Tensor, *, count: int, window: int) -> Tensor:
    """One image and one pixel after the other: draw it, draw others until one lies in the image, replace it."""
    made, stream = x.numpy().copy(), random.Random(0)
    height, width = x.shape[2:]
    for image in made:
        for _ in range(count):
            i, j = stream.randint(0, height - 1), stream.randint(0, width - 1)
            while True:
                a, b = i + stream.randint(-window, window), j + stream.randint(-window, window)
                if 0 <= a < height and 0 <= b < width:
                    break
            image[:, i, j] = image[:, a, b]
    return torch.from_numpy(made)


def _denoised_loop(x: Tensor, *, count: int, window: int) -> Tensor:
    moved = _loop(x, count=count, window=window)
    return torch.cat([denoise(image[None], sigma=0.04).clamp(0, 1) for image in moved])


if __name__ == "__main__":
    main()
