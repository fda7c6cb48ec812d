"""Two networks of known robustness: one trained plainly, one adversarially."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from operant.assess import Rate, attack_cases, empirical_robustness
from operant.data import load
from operant.generate import FGSM, PGD
from operant.model import Classifier
from operant.networks import load_weights
from operant.rng import spawn
from operant.types import Fuzzer
from operant_studies.robot.unit import Quantiles, fol_by_attack
from operant_studies.subjects import mnist_network

RADIUS = 0.3


@dataclass(frozen=True, kw_only=True)
class NetworkRobustness:
    """The accuracy of a network under PGD with 40 steps, and the FOL of its failures."""

    kind: str
    clean: Rate
    pgd40: Rate
    fgsm: Quantiles
    pgd: Quantiles


def attack_network(kind: str, weights: Path, data: Path, *, n: int) -> NetworkRobustness:
    """Attack one of them on the first n test images of MNIST."""
    model, test = Classifier(load_weights(mnist_network(), weights)), load("mnist", data).test[:n]
    strong = {"pgd": PGD(radius=RADIUS, steps=40, step_size=0.01)}
    robustness = empirical_robustness(model, test, strong, generator=spawn(0, "known", kind))
    attacks: dict[str, Fuzzer] = {
        "fgsm": FGSM(radius=RADIUS),
        "pgd": PGD(radius=RADIUS, steps=10, step_size=RADIUS / 6),
    }
    cases = attack_cases(model, test, attacks, generator=spawn(0, "known", kind, "fol"))
    fgsm, pgd = fol_by_attack(model, cases, RADIUS)
    return NetworkRobustness(kind=kind, clean=robustness.clean, pgd40=robustness.adaptive[0], fgsm=fgsm, pgd=pgd)
