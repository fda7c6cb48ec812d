"""What choosing inputs to label costs, and what the labels are worth: 500 of 100 000 inputs, and digits in a field.

Costs are CPU seconds by strategy for 64 features in ten classes, besides the model's passes (the model is one linear
layer, the risk its margin, all masses are equal). Each must stay under 60. `badge_vs_materialised` compares CPU time
with BADGE on gradients that are all in memory, as its authors' program has them, on 10 000 inputs.

The field is made of digits under conditions. A model that was adapted to cases of the same conditions chooses inputs
and learns from their labels; "no labels" trains as long on cases alone. Errors are on other inputs of the field, in
percent, averaged over seeds. The images are small, and all seeds share their digits: a check that no choice does harm,
no ranking.

    python benchmarks/acquire.py [--quick]
"""

import _timing  # isort: skip  # first: it sets what torch reads when it is imported

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from operant import Classifier, Samples, load_digits, spawn
from operant.conditions import Recipe, apply, normal, uniform
from operant.generate import RecipeDraws
from operant.networks import LeNet5, fit, fit_pca, initialise
from operant.profile import fit_profile, fit_risk
from operant.seeds import (
    AtRandom,
    Badge,
    ByDisagreement,
    ByMassAndWeakness,
    ByRisk,
    Clue,
    DiverseMargin,
    RiskBadge,
    Strategy,
    acquire,
    margin_risk,
)
from operant.types import Score

MAX_SECONDS = 60
FIELD = Recipe(severities={"rotation": normal(15), "gaussian_noise": uniform(0, 0.3)})
LABELS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, under 50 s")
    options = parser.parse_args()
    seconds = costs()
    _timing.show("500 of 100 000 inputs", ["strategy", "CPU s"], [[n, f"{v:.2f}"] for n, v in seconds.items()])
    if slow := [name for name, value in seconds.items() if value > MAX_SECONDS]:
        raise SystemExit(f"every strategy must take less than {MAX_SECONDS} s; {', '.join(slow)} took longer")
    ratio = against_materialised(repeats=2 if options.quick else 4)
    print(f"BADGE, 100 of 10 000: {ratio:.1f} times as fast as with materialised gradients")
    errors = [errors_of(seed) for seed in range(100, 101 if options.quick else 110)]
    means = {name: sum(row[name] for row in errors) / len(errors) for name in errors[0]}
    rows = [[name, f"{value:.1f}", against_random(errors, name)] for name, value in means.items()]
    title = f"Field error after {LABELS} labels, {len(errors)} seeds"
    _timing.show(title, ["labels", "error in %", "minus random, ± standard error"], rows)
    ratios = {f"seconds, {name}": value for name, value in seconds.items()}
    ratios |= {f"error, {name}": value for name, value in means.items()}
    _timing.finish("acquire", ratios | {"badge_vs_materialised": ratio})


def against_random(errors: list[dict[str, float]], name: str) -> str:
    """Mean difference from random labels over seeds, with its standard error."""
    apart = torch.tensor([row[name] - row["random"] for row in errors], dtype=torch.float64)
    spread = f" ± {float(apart.std()) / len(apart) ** 0.5:.1f}" if len(apart) > 1 else ""
    return f"{float(apart.mean()):+.1f}{spread}"


def strategies(risk: Score, original: Classifier, mass: Callable[[Samples], Tensor]) -> dict[str, Strategy]:
    return {
        "random": AtRandom(),
        "BADGE": Badge(),
        "BADGE times risk": RiskBadge(risk=risk),
        "CLUE": Clue(),
        "margin and diversity": DiverseMargin(),
        "risk": ByRisk(risk=risk),
        "mass times weakness": ByMassAndWeakness(mass=mass, weakness=risk),
        "disagreement": ByDisagreement(original=original),
    }


# Costs ----------------------------------------------------------------------------------------------------------------


def linear(features: int, classes: int, *, seed: int) -> Classifier:
    module = nn.Sequential(nn.Flatten(), nn.Linear(features, classes))
    for values in module.parameters():
        nn.init.normal_(values, std=0.5, generator=spawn(seed, "weights"))
    return Classifier(module, bounds=(-10, 10))


def inputs(n: int, features: int = 64) -> Samples:
    return Samples(torch.randn(n, features, generator=spawn(0, "x")).clamp(-9, 9))


def costs(*, size: int = 100_000, n: int = 500, features: int = 64, classes: int = 10) -> dict[str, float]:
    """CPU seconds of each strategy."""
    model, pool, seconds = linear(features, classes, seed=0), inputs(size, features), {}
    original = linear(features, classes, seed=1)
    for name, strategy in strategies(margin_risk, original, lambda pool: torch.ones(len(pool))).items():
        start = time.process_time()
        acquire(model, pool, n, strategy=strategy, generator=spawn(0, name))
        seconds[name] = time.process_time() - start
    return seconds


def against_materialised(*, repeats: int, size: int = 10_000, n: int = 100) -> float:
    """CPU time with materialised gradients over ours."""
    model, pool = linear(64, 10, seed=0), inputs(size)
    times = _timing.cpu_times(
        {
            "ours": partial(acquire, model, pool, n, strategy=Badge(), generator=spawn(0)),
            "materialised": partial(materialised, model, pool.x, n, spawn(0)),
        },
        repeats=repeats,
    )
    return times["materialised"] / times["ours"]


def materialised(model: Classifier, x: Tensor, n: int, generator: torch.Generator) -> list[int]:
    """BADGE with an array of all gradients."""
    probs, h = model.probs(x), model.penultimate(x)
    assert h is not None
    a = probs - nn.functional.one_hot(probs.argmax(1), probs.shape[1])
    g = (a[:, :, None] * h[:, None]).flatten(1)
    sizes = g.square().sum(1)
    rows, nearest = [int(sizes.argmax())], torch.full_like(sizes, torch.inf)
    for u in torch.rand(n - 1, generator=generator):
        nearest = torch.minimum(nearest, sizes + sizes[rows[-1]] - 2 * (g @ g[rows[-1]])).clamp_min_(0)
        rows.append(int(torch.searchsorted(nearest.cumsum(0), u * nearest.sum(), right=True)))
    return rows


# Worth ----------------------------------------------------------------------------------------------------------------


def errors_of(seed: int) -> dict[str, float]:
    """Field errors in percent before and after the model has learned from chosen inputs."""
    digits = load_digits()
    weights = initialise(lambda: LeNet5(size=8), generator=spawn(seed, "weights"))
    known, unlabelled = digits.train[:400], digits.train[400:]
    options = {"epochs": 12, "learning_rate": 4e-3, "generator": spawn(seed), "progress": False}
    original = Classifier(fit(weights, known, **options).module)
    cases, more = (RecipeDraws(recipe=FIELD, per_seed=3)(original, known, generator=spawn(seed, k)) for k in range(2))
    seen = Samples(cases.x, cases.label)
    adapted = learned(original, seen, seed)
    field, truth = (in_field(part, seed, k) for k, part in enumerate((unlabelled, digits.test)))
    again = learned(adapted, Samples.concat([seen, seen[: 5 * LABELS]]), seed)  # as many steps as with labels
    errors = {"before": error(original, truth), "adapted": error(adapted, truth), "no labels": error(again, truth)}
    profile = fit_profile(field, encoder=partial(fit_pca, dimensions=8), generator=spawn(seed, "profile"))
    for name, strategy in strategies(fit_risk(adapted, more), original, profile.weights).items():
        chosen = acquire(adapted, field, LABELS, strategy=strategy, generator=spawn(seed, name)).samples(field)
        errors[name] = error(learned(adapted, Samples.concat([seen, *[chosen] * 5]), seed), truth)
    return errors


def in_field(samples: Samples, seed: int, part: int) -> Samples:
    drawn = FIELD.draw(len(samples), generator=spawn(seed, "field", part))
    return Samples(apply(samples.x, drawn), samples.y)


def learned(model: Classifier, labelled: Samples, seed: int) -> Classifier:
    options = {"epochs": 6, "learning_rate": 2e-3, "generator": spawn(seed, "learning"), "progress": False}
    return model.rewrap(fit(model.unwrap(), labelled, **options).module)


def error(model: Classifier, truth: Samples) -> float:
    return 100 * (1 - model.accuracy(truth))


if __name__ == "__main__":
    main()
