"""Whether a campaign keeps its word on small digits: do its bounds hold, and does feedback between rounds pay?

A network of 64-32-10 that learned from 600 digits of 8 x 8; the field draws other digits, with brightness and noise.
Bounds: 100 campaigns each whose requirement is out of reach, so that all rounds run; just out of reach, so that
chance alone can show it; and within reach. A bound holds if it is no smaller than the delivered model's pmi on 50 000
fresh field inputs. Feedback: campaigns with and without it, the same seeds and budgets, in fields whose failures are
uneven; differences are of pmi after the last round. With `--data`, a campaign on MNIST under conditions, to which USPS
comes.

    python benchmarks/campaign.py [--quick] [--data DIR]
"""

import _timing  # isort: skip  # first: it sets what torch reads when it is imported

import argparse
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from scipy.stats import binom, t
from torch import Tensor, nn

from operant import Classifier, Samples, load_digits, spawn
from operant.assess import clopper_pearson_interval
from operant.campaign import Campaign, CampaignResult
from operant.conditions import Recipe, apply, normal, uniform
from operant.data import labels_of, load
from operant.generate import ConditionMove, GradientMove
from operant.networks import LeNet5, fit, initialise
from operant.retrain import OperationalFinetune
from operant_studies.seeds.settings import SeedsSources, setting_of

TRAIN, CLEAN, TRUTH = 600, 200, 50_000
LIGHT = Recipe(severities={"brightness": normal(0.15), "gaussian_noise": uniform(0.0, 0.25)})
HARSH = Recipe(
    severities={"brightness": normal(0.2), "gaussian_noise": uniform(0.0, 0.2), "shift_x": uniform(-0.1, 0.1)}
)
REQUIREMENTS = {"out of reach": 0.001, "just out of reach": 0.11, "within reach": 0.18}
RARE = torch.tensor([1, 4, 8])
ZIPF = 1 / torch.arange(1, 11, dtype=torch.float64)
CAMPAIGN = Campaign(
    requirement=0.001,
    moves={
        "conditions": partial(ConditionMove, recipe=LIGHT),
        "gradient": partial(GradientMove, radius=0.3, steps=5),
    },
    rounds=3,
    labels=500,
    max_drop=0.02,
    seeds_per_round=60,
    cases_per_round=30,
    chunk=60,
    dimensions=4,
    judge_draws=0,
    retrainer=OperationalFinetune(epochs=3, steps=20, progress=False),
)


@dataclass(frozen=True, kw_only=True)
class Field:
    """Where inputs come from: rows of the test digits by class, under conditions; and what its models know."""

    recipe: Recipe
    priors: Tensor | None = None
    known: int | None = None  # training digits of the classes in RARE; None for all

    def draw(self, n: int, generator: torch.Generator) -> Samples:
        source = load_digits().test
        weights = torch.ones(len(source), dtype=torch.float64)
        if self.priors is not None:
            weights = (self.priors / torch.bincount(source.labels, minlength=10))[source.labels]
        rows = torch.multinomial(weights, n, replacement=True, generator=generator)
        return Samples(apply(source.x[rows], self.recipe.draw(n, generator=generator)), source.labels[rows])


FIELDS = {
    "Zipf's priors, light conditions": Field(recipe=LIGHT, priors=ZIPF),
    "Zipf's priors, harsh conditions": Field(recipe=HARSH, priors=ZIPF),
    "three classes rare in training": Field(recipe=LIGHT, known=20),
    "three classes never learned": Field(recipe=LIGHT, known=6),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 campaigns of each kind, under 50 s")
    parser.add_argument("--data", type=Path, help="folder with mnist and usps, to see the field drift")
    options = parser.parse_args()
    n = 3 if options.quick else 100
    ratios = bounds(n) | feedback(3 if options.quick else 30)
    if options.data:
        print(drifting(options.data))
    _timing.finish("campaign", ratios)


# Do bounds hold? ------------------------------------------------------------------------------------------------------


def bounds(n: int) -> dict[str, float]:
    field, ratios, rows = Field(recipe=LIGHT), {}, []
    truth = field.draw(TRUTH, spawn(0, "truth"))
    for name, requirement in REQUIREMENTS.items():
        done = [run(replace(CAMPAIGN, requirement=requirement), field, seed, name) for seed in range(n)]
        pmis = [1 - each.model.accuracy(truth) for each in done]
        held = sum(each.assessment.upper >= pmi for each, pmi in zip(done, pmis, strict=True))
        met = [pmi for each, pmi in zip(done, pmis, strict=True) if each.met]
        ratios[f"bound holds, {name}"] = held / n
        rows.append(
            [
                name,
                f"{held} of {n} {interval(held, n)}",
                "rejected" if binom.cdf(held, n, 0.95) < 0.01 else "not rejected",
                f"{statistics.mean(pmis):.3f}",
                f"{statistics.median(each.assessment.upper for each in done):.3f}",
                f"{len(met)}, of which {sum(pmi > requirement for pmi in met)} wrongly",
                counts([len(each.rounds) - 1 for each in done]),
                counts([re.split(" after|:", each.reason)[0] for each in done]),
            ]
        )
    columns = ["campaigns", "bound holds", "judged", "mean pmi", "median bound", "met", "last round", "ended"]
    _timing.show("Bounds of campaigns", columns, rows)
    return ratios


def run(campaign: Campaign, field: Field, seed: int, *path: str) -> CampaignResult:
    """One campaign with a model and a field of its own."""
    inputs = field.draw(1000, spawn(seed, *path, "field"))
    with TemporaryDirectory() as folder:
        return campaign(
            model(seed, field.known),
            train=training(field.known),
            clean=load_digits().train[TRAIN : TRAIN + CLEAN],
            field=Samples(inputs.x, ids=inputs.ids),
            labeller=labels_of(inputs),
            folder=folder,
            seed=seed,
        )


@cache
def model(seed: int, known: int | None) -> Classifier:
    start = initialise(network, generator=spawn(seed, "weights"))
    fitted = fit(start, training(known), epochs=15, batch_size=16, generator=spawn(seed, "training"), progress=False)
    return Classifier(fitted.module)


@cache
def training(known: int | None) -> Samples:
    everything = load_digits().train[:TRAIN]
    if known is None:
        return everything
    rare = torch.isin(everything.labels, RARE)
    few = torch.cat([(everything.labels == c).nonzero().flatten()[:known] for c in RARE])
    return everything[torch.cat([(~rare).nonzero().flatten(), few]).sort().values]


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


# Does feedback pay? ---------------------------------------------------------------------------------------------------


def feedback(n: int) -> dict[str, float]:
    """The same campaigns with and without it; below 0, feedback is better."""
    ratios, rows = {}, []
    for name, field in FIELDS.items():
        truth = field.draw(TRUTH, spawn(0, name, "truth"))
        moves = {**CAMPAIGN.moves, "conditions": partial(ConditionMove, recipe=field.recipe)}
        both = [
            [
                1 - run(replace(CAMPAIGN, moves=moves, feedback=on), field, seed, name).model.accuracy(truth)
                for seed in range(n)
            ]
            for on in (True, False)
        ]
        before = statistics.mean(1 - model(seed, field.known).accuracy(truth) for seed in range(n))
        mean, half = difference(*both)
        ratios[f"feedback in points, {name}"] = 100 * mean
        values = [f"{before:.4f}", *(f"{statistics.mean(pmis):.4f}" for pmis in both)]
        fewer = sum(a < b for a, b in zip(*both, strict=True))
        rows.append([name, str(n), *values, f"{mean:+.4f} [{mean - half:+.4f}, {mean + half:+.4f}]", f"{fewer} of {n}"])
    columns = ["field", "seeds", "pmi before", "with", "without", "difference", "better with"]
    _timing.show("Feedback, pmi after the last round", columns, rows)
    return ratios


def difference(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Mean of paired differences, and half its 95 % t-interval."""
    each = [x - y for x, y in zip(a, b, strict=True)]
    half = float(t.ppf(0.975, len(each) - 1)) * statistics.stdev(each) / math.sqrt(len(each))
    return statistics.mean(each), half


# A field that drifts --------------------------------------------------------------------------------------------------


def drifting(data: Path) -> CampaignResult:
    """MNIST under conditions; from round 2 on USPS arrives."""
    mnist, usps = load("mnist", data), SeedsSources(setting_of("small"), data).other
    train, clean = mnist.train[:4000], mnist.train[4000:5000]
    start = initialise(LeNet5, generator=spawn(0, "lenet"))
    known = fit(start, train, epochs=4, generator=spawn(0, "training"), progress=False)
    recipe = Recipe(severities={"rotation": normal(10.0), "gaussian_noise": uniform(0.0, 0.1)})
    rows = torch.randperm(len(mnist.test), generator=spawn(0, "field"))[:1500]
    old = Samples(apply(mnist.test.x[rows], recipe.draw(1500, generator=spawn(0, "draw"))), mnist.test.labels[rows])
    everything = Samples.concat([old, usps.train[:1000]])

    def field(number: int) -> Samples:
        some = everything if number >= 2 else old
        return Samples(some.x, ids=some.ids)

    campaign = replace(
        CAMPAIGN,
        requirement=0.02,
        moves={"conditions": partial(ConditionMove, recipe=recipe), "gradient": partial(GradientMove, radius=1.0)},
        rounds=4,
        labels=600,
        seeds_per_round=150,
        cases_per_round=80,
        dimensions=16,
        retrainer=OperationalFinetune(epochs=3, steps=60, progress=False),
    )
    with TemporaryDirectory() as folder:
        done = campaign(
            Classifier(known.module),
            train=train,
            clean=clean,
            field=field,
            labeller=labels_of(everything),
            folder=folder,
        )
    for each in done.rounds:
        print(each, each.drifted, sep="\n")
    before, after = (1 - each.accuracy(usps.test) for each in (Classifier(known.module), done.model))
    print(f"pmi on USPS: {before:.4f} -> {after:.4f}")
    return done


def interval(held: int, n: int) -> str:
    bound = clopper_pearson_interval(held, n)
    return f"[{bound.lower:.1%}, {bound.upper:.1%}]"


def counts(values: Sequence[object]) -> str:
    return ", ".join(f"{value}: {values.count(value)}" for value in dict.fromkeys(sorted(values, key=str)))


if __name__ == "__main__":
    main()
