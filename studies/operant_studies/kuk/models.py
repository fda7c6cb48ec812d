"""The models of the KuK study and their inputs; the inputs that decide dropout are used for nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch.nn import functional as F

from operant import results
from operant.data import Samples
from operant.model import Classifier
from operant.networks import LeNet5, initialise, load_weights
from operant.rng import spawn
from operant_studies.kuk.settings import Subject
from operant_studies.networks import NIN, MobileNetV2
from operant_studies.shared import T
from operant_studies.subjects import find_file, load_resnet20, read_dataset, require_resnet20, train_once
from operant_studies.train_nin import TrainedNIN

NIN_FILE = "nin.safetensors"  # with the JSON file that `python -m operant_studies.train_nin` writes beside it
MOBILENET_FILE = "imagenet_mobilenet_v2_1.0_224.safetensors"
IMAGES, SIZE = "imagenet-500.npz", 224


@dataclass(frozen=True, kw_only=True)
class PreparedModel:
    """A model without dropout, and inputs that it classifies correctly.

    Attributes:
        calibration: inputs that decide dropout.
        inputs: inputs of RQ1 and RQ2.
        seeds: seeds of the searches, all runs together; none of the inputs above.
        train: inputs that give coverage the ranges of neurons; without training inputs, test inputs not used above.
        accuracy: on test inputs.
    """

    model: Classifier
    calibration: Samples
    inputs: Samples
    seeds: Samples
    train: Samples
    accuracy: float


def why_missing(subject: Subject, data: Path | None, out: Path) -> str:
    """Why a model cannot be studied here; empty if it can."""
    if subject.name == "nin" and find_nin(out, data) is None:
        return (
            f"{subject.title} is left out because its weights are missing: `python -m operant_studies.train_nin --data "
            f"DATA --out {NIN_FILE}` makes them; then run the study again with --weights {NIN_FILE}"
        )
    if subject.name == "mobilenet" and not (find_file(data, IMAGES) and find_file(data, MOBILENET_FILE)):
        return f"{subject.title} is left out: {IMAGES} or {MOBILENET_FILE} is not in the data folder"
    return ""


def split_missing(items: Iterable[T], why: Callable[[T], str], console: Console) -> tuple[list[T], list[str]]:
    """The items that can be studied, and the reasons why the others cannot, which are also printed."""
    reasons = [(item, why(item)) for item in items]
    missing = [reason for _, reason in reasons if reason]
    for reason in missing:
        console.print(reason, highlight=False, markup=False)
    return [item for item, reason in reasons if not reason], missing


def check_data(subjects: Iterable[Subject], data: Path | None) -> None:
    """Raise if something that the study needs is missing."""
    subjects = list(subjects)
    for name in dict.fromkeys(s.dataset for s in subjects if s.dataset in ("mnist", "cifar10")):
        read_dataset(name, data)
    if any(s.name == "resnet20" for s in subjects):
        require_resnet20(data)


def find_nin(out: Path, data: Path | None) -> Path | None:
    """NIN's weights: in the study's folder, in the data folder, or in ``weights`` below that."""
    places = [out / NIN_FILE, *([data / NIN_FILE, data / "weights" / NIN_FILE] if data else [])]
    return next((place for place in places if place.exists() and place.with_suffix(".json").exists()), None)


def copy_nin(weights: Path | None, out: Path, data: Path | None) -> None:
    """Copy NIN's weights and their JSON file into the study's folder: those given, or those in the data folder."""
    weights = weights or find_nin(out, data)
    if weights is None or weights.parent == out:
        return
    if not weights.exists() or not weights.with_suffix(".json").exists():
        raise ValueError(
            f"{weights} and a JSON file beside it must exist, as `python -m operant_studies.train_nin` writes them"
        )
    results.load(weights.with_suffix(".json"), TrainedNIN)
    for source in (weights.with_suffix(".json"), weights):
        content, target = source.read_bytes(), (out / NIN_FILE).with_suffix(source.suffix)
        if target.exists() and target.read_bytes() != content:
            raise ValueError(
                f"{out} was started with weights other than {weights}; omit --weights or choose a new --out"
            )
        results.write_atomically(target, content)


@lru_cache(maxsize=1)
def prepare(subject: Subject, data: Path | None, out: Path) -> PreparedModel:
    """The trained model and its inputs; cached, because a process works on many units of one model."""
    model, train, test = _read(subject, data, out)
    shuffled = test[torch.randperm(len(test), generator=spawn(0, "kuk", subject.name, "inputs"))]
    sizes = [subject.calibration, subject.inputs, subject.seeds * subject.runs]
    some = shuffled[: 3 * sum(sizes)]
    right = model.correct(some)
    if len(right) < sum(sizes):
        raise ValueError(f"{subject.title}: needs {sum(sizes)} inputs that the model gets right, got {len(right)}")
    first, second, third = np.cumsum(sizes).tolist()
    return PreparedModel(
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
        images, weights = find_file(data, IMAGES), find_file(data, MOBILENET_FILE)
        assert images is not None  # otherwise the model is left out
        assert weights is not None
        network = load_weights(MobileNetV2(batch_norm=False, padding="same"), weights)
        test = _images(images)
        return Classifier(network, mean=0.5, std=0.5, batch_size=subject.batch_size), test[:0], test
    dataset = read_dataset(subject.dataset, data)
    if subject.name == "lenet5":
        model = _lenet5(subject, dataset.train[: subject.train], out)
    else:
        model = _nin(out, data) if subject.name == "nin" else load_resnet20(data)
    return model, dataset.train, dataset.test


def _nin(out: Path, data: Path | None) -> Classifier:
    weights = find_nin(out, data)
    assert weights is not None  # otherwise the model is left out
    trained = results.load(weights.with_suffix(".json"), TrainedNIN)
    network = NIN(channels=trained.channels, classes=trained.classes, width=trained.recipe.width, batch_norm=True)
    return Classifier(load_weights(network, weights), mean=trained.mean, std=trained.std)


def _lenet5(subject: Subject, train: Samples, out: Path) -> Classifier:
    path = out / "steps" / subject.name / "model.safetensors"
    module = initialise(LeNet5, generator=spawn(0, "kuk", "weights"))
    options = {"epochs": subject.epochs, "batch_size": 64 if len(train) > 5_000 else 32}
    return train_once(module, path, train, generator=spawn(0, "kuk", "training"), **options)


def _images(path: Path) -> Samples:
    """Natural images at the size that the network expects; resized in batches because all at once would fill memory."""
    with np.load(path) as file:
        x, y = file["x_test"], torch.from_numpy(file["y_test"].astype(np.int64))
    parts = []
    for some in np.array_split(x, max(1, len(x) // 25)):
        images = torch.from_numpy(some).permute(0, 3, 1, 2).float() / 255
        parts.append(F.interpolate(images, size=(SIZE, SIZE), mode="bilinear", antialias=True).clamp(0, 1))
    return Samples(torch.cat(parts), y)
