"""Two networks whose robustness is known: one trained plainly, one adversarially."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from operant.assess import Rate, attack_cases, empirical_robustness
from operant.data import load
from operant.generate import FGSM, PGD
from operant.model import Classifier
from operant.networks import load_weights
from operant.rng import spawn
from operant.types import Fuzzer
from operant_studies.robot.unit import Spread, fol_by_attack

RADIUS = 0.3
NAMES = {kind: f"mnist_lenet5_{kind}.safetensors" for kind in ("plain", "robust")}


@dataclass(frozen=True, kw_only=True)
class Known:
    """How a network of known robustness comes out: under PGD with 40 steps, and by the FOL of its failures."""

    kind: str
    clean: Rate
    pgd40: Rate
    fgsm: Spread
    pgd: Spread


def find_known(data: Path) -> dict[str, Path]:
    """The two files of weights, in the data folder or in ``weights`` below it; empty if one is missing."""
    for folder in (data, data / "weights"):
        if all((folder / name).exists() for name in NAMES.values()):
            return {kind: folder / name for kind, name in NAMES.items()}
    return {}


def known_network() -> nn.Module:
    """The architecture of the weights: two convolutions of 32 and 64 channels, two dense layers."""
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(1, 32, 3, padding=1),
        "relu1": nn.ReLU(),
        "pool1": nn.MaxPool2d(2),
        "conv2": nn.Conv2d(32, 64, 3, padding=1),
        "relu2": nn.ReLU(),
        "pool2": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "linear1": nn.Linear(3136, 200),
        "relu3": nn.ReLU(),
        "linear2": nn.Linear(200, 10),
    }
    network = nn.Sequential()
    for name, layer in layers.items():
        network.add_module(name, layer)
    return network


def judge_known(kind: str, weights: Path, data: Path, *, n: int) -> Known:
    """Attack one of them on the first n test images of MNIST."""
    model, test = Classifier(load_weights(known_network(), weights)), load("mnist", data).test[:n]
    strong = {"pgd": PGD(radius=RADIUS, steps=40, step_size=0.01)}
    told = empirical_robustness(model, test, strong, generator=spawn(0, "known", kind))
    attacks: dict[str, Fuzzer] = {
        "fgsm": FGSM(radius=RADIUS),
        "pgd": PGD(radius=RADIUS, steps=10, step_size=RADIUS / 6),
    }
    cases = attack_cases(model, test, attacks, generator=spawn(0, "known", kind, "fol"))
    fgsm, pgd = fol_by_attack(model, cases, RADIUS)
    return Known(kind=kind, clean=told.clean, pgd40=told.adaptive[0], fgsm=fgsm, pgd=pgd)
