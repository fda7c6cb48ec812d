"""Data sets and networks that several studies use."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from operant.data import Dataset, Samples, load, load_digits
from operant.model import Classifier
from operant.networks import fit, load_weights, save_weights
from operant_studies.networks import ResNet20

CIFAR_MEAN, CIFAR_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ResNet-20's weights, and of NIN's
RESNET20_FILE = "cifar10_resnet20.safetensors"
MNIST_FILES = {kind: f"mnist_lenet5_{kind}.safetensors" for kind in ("plain", "robust")}


def read_dataset(name: str, data: Path | None) -> Dataset:
    """A data set from the data folder, or the embedded digits at 28 x 28 pixels."""
    if name == "digits":
        return load_digits(size=28)
    if data is None:
        raise ValueError(f"the study needs {name}; name its folder with --data")
    return load(name, data)


def find_file(data: Path | None, name: str) -> Path | None:
    """A file in the data folder or in ``weights`` below it; None if there is none."""
    places = [data / name, data / "weights" / name] if data else []
    return next((place for place in places if place.exists()), None)


def find_resnet20(data: Path | None) -> Path | None:
    """The given weights of ResNet-20 for CIFAR-10."""
    return find_file(data, RESNET20_FILE)


def require_resnet20(data: Path | None) -> Path:
    """The same; raises if there are none."""
    if (weights := find_resnet20(data)) is None:
        raise ValueError(f"the study needs {RESNET20_FILE} in the --data folder, or in weights below it")
    return weights


def load_resnet20(data: Path | None) -> Classifier:
    """ResNet-20 with its given weights."""
    return Classifier(load_weights(ResNet20(), require_resnet20(data)), mean=CIFAR_MEAN, std=CIFAR_STD)


def find_mnist_networks(data: Path) -> dict[str, Path]:
    """Given weights for MNIST, one network trained plainly and one adversarially; empty if one is missing."""
    found = {kind: find_file(data, name) for kind, name in MNIST_FILES.items()}
    return {kind: path for kind, path in found.items() if path} if all(found.values()) else {}


def mnist_network() -> nn.Module:
    """The architecture of these weights: two convolutions of 32 and 64 channels, two dense layers."""
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
    return nn.Sequential(OrderedDict(layers))


def train_once(
    module: nn.Module, path: Path, train: Samples, *, generator: torch.Generator, **options: Any
) -> Classifier:
    """The module trained with these options of `fit`, or with the weights that an earlier call wrote to ``path``."""
    if not path.exists():
        fitted = fit(module, train, **options, generator=generator, progress=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_weights(fitted.module, path)
    return Classifier(load_weights(module, path))
