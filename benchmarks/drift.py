"""How often drift is noticed where there is some, and where there is none: MNIST and the plain LeNet, 500 against 500.

The same data split again, MNIST to USPS, even classes to Zipf's, and a blur of standard deviation 1. Ratios are shares
of repetitions with an alarm at level .05; those of "same data" must not exceed it by more than chance.

    python benchmarks/drift.py --data DIR [--quick]
"""

import _timing  # isort: skip  # first: it sets what torch reads when it is imported

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from operant import Samples, spawn
from operant.conditions import Recipe, apply, fixed
from operant.profile import drift
from operant_studies.seeds.settings import SeedsSources, setting_of

N = 500
ZIPF = 1 / torch.arange(1, 11, dtype=torch.float64)

Pair = tuple[Samples, Samples]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with mnist, usps and the LeNets' weights")
    parser.add_argument("--quick", action="store_true", help="10 repetitions, under 50 s")
    options = parser.parse_args()
    sources = SeedsSources(setting_of("small"), options.data)
    model, test = sources.network("plain"), sources.known.test
    ratios, rows = {}, []
    for name, (pair, repetitions) in cases(test, sources.other.train).items():
        n = 10 if options.quick else repetitions
        result = [drift(*pair(spawn(r, name)), model, generator=spawn(r, name, "test")) for r in range(n)]
        alone = [sum(getattr(d, test) <= 0.05 / 3 for d in result) for test in ("outputs", "inputs", "within")]
        alarms = sum(d.alarm for d in result)
        ratios[f"alarms, {name}"] = alarms / n
        rows.append([name, str(n), *map(str, alone), str(alarms)])
    _timing.show("Drift", ["", "repetitions", "outputs", "inputs", "within", "alarms"], rows)
    _timing.finish("drift", ratios)


def cases(test: Samples, usps: Samples) -> dict[str, tuple[Callable[[torch.Generator], Pair], int]]:
    """From name to how a pair of reference and current inputs is drawn, and how often."""
    recipe = Recipe(severities={"blur": fixed(1.0)})
    blurred = apply(test.x, recipe.draw(len(test), generator=spawn(0)))

    def dealt(g: torch.Generator) -> tuple[Tensor, Tensor]:
        order = torch.randperm(len(test), generator=g)
        return order[:N], order[N:]

    def same(g: torch.Generator) -> Pair:
        a, b = dealt(g)
        return test[a], test[b[:N]]

    def other(g: torch.Generator) -> Pair:
        return test[dealt(g)[0]], usps[torch.randperm(len(usps), generator=g)[:N]]

    def shares(g: torch.Generator) -> Pair:
        a, b = dealt(g)
        return test[a], test[b[torch.multinomial(ZIPF[test.labels[b]], N, generator=g)]]

    def blur(g: torch.Generator) -> Pair:
        a, b = dealt(g)
        return test[a], Samples(blurred[b[:N]])

    return {
        "same data": (same, 200),
        "MNIST to USPS": (other, 100),
        "even to Zipf": (shares, 100),
        "blur 1": (blur, 100),
    }


if __name__ == "__main__":
    main()
