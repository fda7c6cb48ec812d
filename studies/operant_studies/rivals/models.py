"""The models of the study: the model under test, and two others of the same task that DeepXplore compares it with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from operant.model import Classifier
from operant.networks import LeNet5, initialise
from operant.rng import spawn
from operant_studies.operational_fuzz.fields import make_field
from operant_studies.rivals.settings import RivalsSetting
from operant_studies.subjects import read_dataset, train_once

NETWORKS = 3  # trained per data set: each is tested, or compared with


def prepare(setting: RivalsSetting, data: Path | None, number: int, folder: Path) -> None:
    """Train one of the networks, unless it is stored already."""
    other(setting, data, number, folder)


def others(setting: RivalsSetting, data: Path | None, seed: int, folder: Path) -> tuple[Classifier, Classifier]:
    """The two networks of this data set that are not this seed's model."""
    first, second = (other(setting, data, (seed + more) % NETWORKS, folder) for more in (1, 2))
    return first, second


def other(setting: RivalsSetting, data: Path | None, number: int, folder: Path) -> Classifier:
    """A LeNet-5: for ResNet-20 one trained here, else the model of another seed."""
    if setting.name != "cifar10":
        few = replace(setting.field, seen=8, watched=8, truth=8)  # only the model is needed
        return make_field(few, data, number, folder).model
    start = initialise(partial(LeNet5, channels=3, size=32), generator=spawn(number, "rivals", "weights"))
    path, train = folder / f"cifar10-lenet-{number}.safetensors", read_dataset("cifar10", data).train
    generator = spawn(number, "rivals", "training")
    return train_once(start, path, train[: setting.learned], epochs=setting.epochs, generator=generator)
