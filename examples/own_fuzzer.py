"""Any function from seeds to a suite is a fuzzer, here noise; `check_fuzzer` tests it against the shared laws."""

from functools import partial

import torch

from operant import Classifier, Samples, Suite, load_digits, spawn
from operant.generate.engine import judge
from operant.networks import LeNet5, fit, initialise
from operant.rng import normal_like
from operant.testing import check_fuzzer


def noise(model: Classifier, seeds: Samples, *, generator: torch.Generator, strength: float = 0.2) -> Suite:
    """One case per seed: the seed with Gaussian noise."""
    model.check(seeds)
    x = (seeds.x + strength * normal_like(seeds.x, generator=generator)).clamp(*model.bounds)
    return judge(model, seeds, x, method="noise")


check_fuzzer(noise)
print("the noise fuzzer obeys every law")

digits = load_digits()
start = initialise(lambda: LeNet5(size=8), generator=spawn(0, "weights"))
model = Classifier(fit(start, digits.train, epochs=8, generator=spawn(0, "training")).module)
seeds = model.correct(digits.test)
for strength in (0.1, 0.2, 0.4):
    suite = partial(noise, strength=strength)(model, seeds, generator=spawn(0, "noise"))
    print(f"noise of strength {strength}: {len(suite.failures())} of {len(suite)} digits misclassified")
