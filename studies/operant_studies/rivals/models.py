"""The models of the study: the one that is tested, and two others of the same task that DeepXplore compares it with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from operant.data import load
from operant.model import Classifier
from operant.networks import LeNet5, fit, initialise, load_weights, save_weights
from operant.rng import spawn
from operant_studies.operational_fuzz.fields import make_field
from operant_studies.rivals.settings import RivalsSetting

NETWORKS = 3  # that are trained for each data set: each is tested, or helps to test


def prepare(setting: RivalsSetting, data: Path | None, number: int, folder: Path) -> None:
    """Train one of the networks and keep it; one that is there stays."""
    other(setting, data, number, folder)


def others(setting: RivalsSetting, data: Path | None, seed: int, folder: Path) -> tuple[Classifier, Classifier]:
    """Of the networks trained for this data set, the two that are not this seed's model."""
    first, second = (other(setting, data, (seed + more) % NETWORKS, folder) for more in (1, 2))
    return first, second


def other(setting: RivalsSetting, data: Path | None, number: int, folder: Path) -> Classifier:
    """A LeNet-5: for ResNet-20 one of its own making, else the model of another seed."""
    if setting.name != "cifar10":
        few = replace(setting.field, seen=8, watched=8, truth=8)  # the model is all that is asked for
        return make_field(few, data, number, folder).model
    path = folder / f"cifar10-lenet-{number}.safetensors"
    start = initialise(partial(LeNet5, channels=3, size=32), generator=spawn(number, "rivals", "weights"))
    if not path.exists():
        assert data is not None  # else the study would have refused to begin
        train, generator = load("cifar10", data).train[: setting.learned], spawn(number, "rivals", "training")
        folder.mkdir(parents=True, exist_ok=True)
        save_weights(fit(start, train, epochs=setting.epochs, generator=generator, progress=False).module, path)
    return Classifier(load_weights(start, path).eval())
