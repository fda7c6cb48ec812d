"""The models of the KuK study with their inputs, dealt so that what decides dropout is never seen again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from operant import results
from operant.data import Samples, load, load_digits
from operant.model import Classifier
from operant.networks import NIN, LeNet5, MobileNetV2, ResNet20, fit, initialise, load_weights, save_weights
from operant.rng import spawn
from operant_studies.kuk.settings import Subject
from operant_studies.subjects import CIFAR_MEAN, CIFAR_STD, find_resnet20
from operant_studies.train_nin import TrainedNIN

NIN_FILE = "nin.safetensors"  # with the JSON file that `operant train-nin` writes beside it
MOBILENET_FILE = "imagenet_mobilenet_v2_1.0_224.safetensors"
IMAGES, SIZE = "imagenet-500.npz", 224


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A model without dropout, and inputs that it gets right.

    Attributes:
        calibration: for dropout alone.
        inputs: of RQ1 and RQ2.
        seeds: of the searches, all runs together; none of the inputs.
        train: what coverage learns the ranges of neurons from; without training inputs, those that nothing else uses.
        accuracy: on test inputs.
    """

    model: Classifier
    calibration: Samples
    inputs: Samples
    seeds: Samples
    train: Samples
    accuracy: float


def missing(subject: Subject, data: Path | None, out: Path) -> str:
    """Why a model cannot be studied here, in a sentence; empty if it can."""
    if subject.name == "nin" and find_nin(out, data) is None:
        return (
            f"{subject.title}, is left out, for want of weights: `operant train-nin --data DATA --out {NIN_FILE}` "
            f"makes them; run the study again with --weights {NIN_FILE}"
        )
    if subject.name == "mobilenet" and (_find(data, IMAGES) is None or _find(data, MOBILENET_FILE) is None):
        return f"{subject.title}, is left out: {IMAGES} or {MOBILENET_FILE} is not in the data folder"
    return ""


def check_data(chosen: tuple[Subject, ...], data: Path | None) -> None:
    """Refuse to begin without what the study cannot do without."""
    for name in dict.fromkeys(s.dataset for s in chosen if s.dataset in ("mnist", "cifar10")):
        if data is None:
            raise ValueError(f"the study needs {name}; name the folder it lies in with --data")
        load(name, data)
    if any(s.name == "resnet20" for s in chosen) and (data is None or find_resnet20(data) is None):
        raise ValueError("the study needs cifar10_resnet20.safetensors in the --data folder, or in weights below it")


def find_nin(out: Path, data: Path | None) -> Path | None:
    """NIN's weights: in the study's folder, in the data folder, or in ``weights`` below that."""
    places = [out / NIN_FILE, *([data / NIN_FILE, data / "weights" / NIN_FILE] if data else [])]
    return next((place for place in places if place.exists() and place.with_suffix(".json").exists()), None)


def take_nin(weights: Path | None, out: Path, data: Path | None) -> None:
    """Copy the weights that the user names, or that lie in the data folder, and what tells of them, into the study's
    folder, where they stay."""
    weights = weights or find_nin(out, data)
    if weights is None or weights.parent == out:
        return
    if not weights.exists() or not weights.with_suffix(".json").exists():
        raise ValueError(f"{weights} and a JSON file beside it must be there, as `operant train-nin` writes them")
    results.load(weights.with_suffix(".json"), TrainedNIN)
    for source in (weights.with_suffix(".json"), weights):
        content, target = source.read_bytes(), (out / NIN_FILE).with_suffix(source.suffix)
        if target.exists() and target.read_bytes() != content:
            raise ValueError(
                f"{out} was begun with other weights than {weights}; leave --weights out, or name a new --out"
            )
        results.write_atomically(target, content)


@lru_cache(maxsize=1)
def ready(subject: Subject, data: Path | None, out: Path) -> Ready:
    """The model, trained or read, and its inputs; remembered, for a process works on many units of one model."""
    model, train, test = _read(subject, data, out)
    shuffled = test[torch.randperm(len(test), generator=spawn(0, "kuk", subject.name, "inputs"))]
    sizes = [subject.calibration, subject.inputs, subject.seeds * subject.runs]
    some = shuffled[: 3 * sum(sizes)]
    right = model.correct(some)
    if len(right) < sum(sizes):
        raise ValueError(f"{subject.title}: {sum(sizes)} inputs that the model gets right are needed, got {len(right)}")
    first, second, third = np.cumsum(sizes).tolist()
    return Ready(
        model=model,
        calibration=right[:first],
        inputs=right[first:second],
        seeds=right[second:third],
        train=train[:2_000] if len(train) else shuffled[~torch.isin(shuffled.ids, right[:third].ids)],
        accuracy=len(right) / len(some),
    )


def _read(subject: Subject, data: Path | None, out: Path) -> tuple[Classifier, Samples, Samples]:
    """Model, training and test inputs."""
    if subject.name == "mobilenet":
        images = _images(_there(data, IMAGES))
        network = load_weights(MobileNetV2(batch_norm=False, padding="same"), _there(data, MOBILENET_FILE))
        return Classifier(network, mean=0.5, std=0.5, batch_size=subject.batch_size), images[:0], images
    known = load_digits(size=28) if subject.dataset == "digits" else load(subject.dataset, data or Path())
    if subject.name == "lenet5":
        return _lenet5(subject, known.train[: subject.train], out), known.train, known.test
    if subject.name == "nin":
        weights = find_nin(out, data)
        assert weights is not None  # else it would have been left out
        trained = results.load(weights.with_suffix(".json"), TrainedNIN)
        plain = NIN(channels=trained.channels, classes=trained.classes, width=trained.recipe.width, batch_norm=True)
        return Classifier(load_weights(plain, weights), mean=trained.mean, std=trained.std), known.train, known.test
    assert data is not None
    found = find_resnet20(data)
    assert found is not None
    return Classifier(load_weights(ResNet20(), found), mean=CIFAR_MEAN, std=CIFAR_STD), known.train, known.test


def _lenet5(subject: Subject, train: Samples, out: Path) -> Classifier:
    path = out / "steps" / subject.name / "model.safetensors"
    module = initialise(LeNet5, generator=spawn(0, "kuk", "weights"))
    if not path.exists():
        options = {"epochs": subject.epochs, "batch_size": 64 if len(train) > 5_000 else 32}
        fitted = fit(module, train, **options, generator=spawn(0, "kuk", "training"), progress=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_weights(fitted.module, path)
    return Classifier(load_weights(module, path))


def _images(path: Path) -> Samples:
    """Natural images at the size that the network expects, a few at a time: as they are they would fill memory."""
    with np.load(path) as file:
        x, y = file["x_test"], torch.from_numpy(file["y_test"].astype(np.int64))
    parts = []
    for some in np.array_split(x, max(1, len(x) // 25)):
        images = torch.from_numpy(some).permute(0, 3, 1, 2).float() / 255
        parts.append(F.interpolate(images, size=(SIZE, SIZE), mode="bilinear", antialias=True).clamp(0, 1))
    return Samples(torch.cat(parts), y)


def _find(data: Path | None, name: str) -> Path | None:
    places = [data / name, data / "weights" / name] if data else []
    return next((place for place in places if place.exists()), None)


def _there(data: Path | None, name: str) -> Path:
    path = _find(data, name)
    assert path is not None  # else the model would have been left out
    return path
