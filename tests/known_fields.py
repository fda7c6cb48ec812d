"""Small fields for the tests of repair: digits of 8 x 8 under conditions, and two clouds in the plane that moved."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from operant import Classifier, Samples, load_digits, spawn
from operant.conditions import Recipe, apply, normal, uniform
from operant.networks import LeNet5, fit, initialise
from operant.retrain import FieldKnowledge, TeachingLabels
from operant.suite import Suite

CONDITIONS = Recipe(severities={"rotation": normal(15), "gaussian_noise": uniform(0, 0.3)})


@cache
def parts() -> dict[str, Samples]:
    """The training digits in parts: to learn from, to measure clean accuracy on, and to make a field of."""
    return load_digits().train.split(train=0.3, clean=0.2, field=0.5)


@cache
def field_digits() -> Samples:
    """Digits under conditions, with labels."""
    clear = parts()["field"]
    return Samples(apply(clear.x, CONDITIONS.draw(len(clear), generator=spawn(0, "field"))), clear.y)


def known_digits(labels: int = 0, **options: Any) -> FieldKnowledge:
    """What is known about the field of digits, with so many teaching labels."""
    field = field_digits()
    taught = (TeachingLabels(samples=field[:labels], use="teaching, judging and estimates"),) if labels else ()
    values = {"train": parts()["train"], "clean": parts()["clean"], "field": field[:400], "taught": taught}
    return FieldKnowledge(**(values | {"recipe": CONDITIONS, "unexplained": 0.1} | options))


def judges(n: int = 150) -> Samples:
    """Labelled inputs of the field of digits that `known_digits` does not contain."""
    return field_digits()[500 : 500 + n]


@cache
def lenet8() -> Classifier:
    """A LeNet-5 that has learned the clear digits."""
    start = initialise(lambda: LeNet5(size=8), generator=spawn(0, "weights"))
    train = parts()["train"]
    return Classifier(
        fit(start, train, epochs=15, batch_size=32, generator=spawn(0, "training"), progress=False).module
    )


def blobs(n: int, *, seed: str, shift: float = 0.0) -> Samples:
    """Two clouds in the plane, separated by the first coordinate."""
    y = torch.arange(n) % 2
    centres = torch.stack([0.2 + 0.6 * y + shift, torch.full((n,), 0.5)], 1)
    return Samples((centres + 0.1 * torch.randn(n, 2, generator=spawn(0, seed))).clamp(0, 1), y)


def known_blobs(labels: int = 0, **options: Any) -> FieldKnowledge:
    """A field in which both clouds have moved; no conditions are known, since these are no images."""
    field = blobs(120, seed="field", shift=0.3)
    taught = (TeachingLabels(samples=field[:labels]),) if labels else ()
    train, clean = blobs(100, seed="train"), blobs(60, seed="clean")
    return FieldKnowledge(**({"train": train, "clean": clean, "field": field, "taught": taught} | options))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))


@cache
def separator() -> Classifier:
    """A small network that separates the clouds where they were in training."""
    start = initialise(perceptron, generator=spawn(0, "weights"))
    options = {"epochs": 10, "batch_size": 20, "learning_rate": 0.02, "progress": False}
    return Classifier(fit(start, blobs(100, seed="train"), generator=spawn(0, "training"), **options).module)


class Breaking(nn.Module):
    """Returns NaN from some training batch on."""

    def __init__(self, after: int = 5) -> None:
        super().__init__()
        self.inner, self.after = perceptron(), after
        self.register_buffer("met", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.met += int(self.training)
        return self.inner(x) * (math.nan if int(self.met) > self.after else 1.0)


# Networks of every kind, for digits


def normed() -> nn.Module:
    layers = [nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, stride=2), nn.BatchNorm2d(6)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(24, 10))


def dropped() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 10))


class Transformer(nn.Module):
    """Sixteen patches of 2 x 2, one layer of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 16, 2, stride=2)
        self.place = nn.Parameter(torch.zeros(1, 16, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.encoder(self.patches(x).flatten(2).mT + self.place).mean(1))
        return z


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: LeNet5(size=8),
    "batch norm": normed,
    "dropout": dropped,
    "transformer": Transformer,
}


def model_of(name: str) -> Classifier:
    """One of these networks with its first weights."""
    return Classifier(initialise(NETWORKS[name], generator=spawn(0, name)))


@cache
def trained_digits(name: str) -> Classifier:
    """One of these networks after some training on the clear digits."""
    start, options = model_of(name).unwrap(), {"epochs": 15, "batch_size": 32, "learning_rate": 4e-3, "progress": False}
    return Classifier(fit(start, parts()["train"], generator=spawn(0, "training"), **options).module)


def failures_of(model: Classifier, seeds: Samples, *, mass: Tensor, naturalness: Tensor) -> Suite:
    """Cases a little off labelled seeds, as a suite of operational failures."""
    x, rows = (seeds.x + 0.05).clamp(0, 1), torch.arange(len(seeds))
    columns = {"mass": mass, "naturalness": naturalness}
    return Suite.of(x, seeds=seeds, origin=rows, prediction=model.predict(x), method="test", columns=columns)


def weights_of(model: Classifier) -> dict[str, Tensor]:
    return dict(model.unwrap().state_dict())


def same_weights(a: Classifier, b: Classifier) -> bool:
    x, y = weights_of(a), weights_of(b)
    return x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)
