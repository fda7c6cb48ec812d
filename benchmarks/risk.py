"""What the risk map knows and what it costs: digits under conditions, and 100 000 inputs to rate.

The field is made of test digits under conditions, the cases of training digits under the same ones, and half as many
under wider ones. Ratios are lifts of the riskiest 5 % of field inputs, by the map and by rankings that need no case,
averaged over seeds; and CPU seconds to fit the map to 5000 cases in all and to rate 100 000 inputs by 64 features in
ten classes, besides the model's passes (the model is one linear layer). They must stay under 60 together.

    python benchmarks/risk.py [--quick]
"""

import _timing  # isort: skip  # first: it sets what torch reads when it is imported

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from operant import Classifier, Samples, Suite, load_digits, spawn
from operant.conditions import Recipe, apply, normal, uniform, wider
from operant.generate import PGD, RecipeDraws
from operant.measure import lift, margin
from operant.networks import LeNet5, fit, initialise
from operant.profile import fit_risk
from operant.types import Fuzzer

FIELD = Recipe(severities={"rotation": normal(12), "gaussian_noise": uniform(0, 0.3)})
WRONG = Recipe(severities={"rotation": normal(6), "gaussian_noise": uniform(0, 0.4)})  # as if badly estimated
MAX_SECONDS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, under 50 s")
    options = parser.parse_args()
    seeds = range(100, 101 if options.quick else 105)
    lifts = [lifts_of(seed) for seed in seeds]
    means = {name: sum(row[name] for row in lifts) / len(lifts) for name in lifts[0]}
    _timing.show(f"Lift at 5 %, {len(lifts)} seeds", ["ranking", "lift"], [[n, f"{v:.2f}"] for n, v in means.items()])
    seconds = speed(rated=100_000)
    _timing.show("CPU seconds", ["", "seconds"], [[name, f"{value:.1f}"] for name, value in seconds.items()])
    if sum(seconds.values()) > MAX_SECONDS:
        raise SystemExit(f"fitting and rating must take less than {MAX_SECONDS} s, took {sum(seconds.values()):.0f}")
    _timing.finish("risk", {f"lift, {name}": v for name, v in means.items()} | seconds)


def lifts_of(seed: int) -> dict[str, float]:
    """Lift at 5 % of field inputs, by ranking."""
    digits = load_digits()
    start = initialise(lambda: LeNet5(size=8), generator=spawn(seed, "weights"))
    model = Classifier(fit(start, digits.train, epochs=10, generator=spawn(seed), progress=False).module)
    images = Samples.concat([digits.test] * 5)
    x = apply(images.x, FIELD.draw(len(images), generator=spawn(seed, "field")))
    scores = {name: risk(model, x) for name, risk in maps(model, digits.train, seed).items()}
    predicted, certain = model.predict(x), margin(model.probs(x))
    failed = predicted != images.labels

    def lifted(score: Tensor) -> float:
        options = {"margin": certain, "predicted": predicted, "generator": spawn(seed, "lift")}
        return lift(score, failed, resamples=20, **options).at[0].lift

    return {name: lifted(score) for name, score in scores.items()} | {"margin": lifted(-certain)}


def maps(model: Classifier, train: Samples, seed: int) -> dict[str, Callable[[Classifier, Tensor], Tensor]]:
    """One map per kind of cases; beside draws of a recipe, half as many of wider conditions teach it."""

    def drawn(name: str, fuzz: Fuzzer) -> Suite:
        return fuzz(model, train, generator=spawn(seed, name))

    found = {}
    for name, recipe in (("map, true recipe", FIELD), ("map, wrong recipe", WRONG)):
        cases = drawn(name, RecipeDraws(recipe=recipe, per_seed=2))
        more = drawn(f"wider than {name}", RecipeDraws(recipe=wider(recipe, tuple(train.shape)), dense=1.0))
        found[name] = fit_risk(model, cases, wider=more)
    return found | {"map, PGD": fit_risk(model, drawn("map, PGD", PGD(radius=0.1, random_start=True)))}


def speed(*, rated: int, cases: int = 5000, features: int = 64, classes: int = 10) -> dict[str, float]:
    """CPU seconds to fit and to rate, with a model that costs next to nothing; a third of the cases count as wider."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(features, classes))
    for values in module.parameters():
        nn.init.normal_(values, std=0.5, generator=spawn(0, "weights"))
    model = Classifier(module, bounds=(-10, 10))
    x = torch.randn(rated, features, generator=spawn(0, "x")).clamp(-9, 9)
    noisy = model.batched_logits(x[:cases]) + 2 * torch.randn(cases, classes, generator=spawn(0, "noise"))
    seeds = Samples(x[:cases], noisy.argmax(1))
    origin = torch.arange(cases)
    suite = Suite.of(seeds.x, seeds=seeds, origin=origin, prediction=model.predict(seeds.x), method="draws")
    start = time.process_time()
    risk = fit_risk(model, suite[: 2 * cases // 3], wider=suite[2 * cases // 3 :])
    fitted = time.process_time()
    risk(model, x)
    return {"seconds, fit": fitted - start, "seconds, rate": time.process_time() - fitted}


if __name__ == "__main__":
    main()
