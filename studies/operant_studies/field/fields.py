"""The inputs of a field by role, and its model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate

from operant.data import Dataset, Samples, samples_from_npz
from operant.model import Classifier
from operant.networks import LeNet5, initialise
from operant.rng import shuffled, spawn
from operant_studies.field.settings import FieldCase, FieldStudySetting
from operant_studies.operational_fuzz.fields import TINY, under
from operant_studies.seeds.settings import framed
from operant_studies.seeds.setups import zipf_chances
from operant_studies.subjects import find_file, load_resnet20, read_dataset, require_resnet20, train_once

WAVE = (2.0, 9.0)  # amplitude and length of the waves, in pixels
LARGE = "imagenet-500.npz"


@dataclass(frozen=True, kw_only=True)
class FieldInputs:
    """The images of one field by role; none has two."""

    case: FieldCase
    seed: int
    clean: Samples  # labelled training images, for the fit
    fresh: Samples  # other labelled training images, to be judged under recipes
    labelled: Samples  # clean labelled inputs that nobody trained on
    seen: Samples  # field inputs whose labels the program never gets
    truth: Samples  # other labelled field inputs, which it never gets
    unchanged: Samples  # the images that truth was made of, as they were; empty for real fields
    shares: tuple[float, ...]  # of the classes in the field


def make_inputs(setting: FieldStudySetting, case: FieldCase, data: Path | None, seed: int) -> FieldInputs:
    """The inputs of a field; the seed decides the division and the conditions drawn."""
    known = read_dataset(case.dataset, data)
    train = known.train[shuffled(len(known.train), spawn(seed, case.name, "train"))]
    rest = known.test[shuffled(len(known.test), spawn(seed, case.name, "test"))]
    labelled, rest = rest[: setting.labelled], rest[setting.labelled :]
    make = _other if case.recipe is None else _made
    seen, truth, unchanged, shares = make(setting, case, rest, data, seed)
    return FieldInputs(
        case=case,
        seed=seed,
        clean=train[: setting.clean],
        fresh=train[setting.clean :],
        labelled=labelled,
        seen=seen,
        truth=truth,
        unchanged=unchanged,
        shares=tuple(shares.tolist()),
    )


Parts = tuple[Samples, Samples, Samples, Tensor]


def _made(setting: FieldStudySetting, case: FieldCase, images: Samples, data: Path | None, seed: int) -> Parts:
    """Field inputs made of unseen images; by Zipf's law, images of frequent classes repeat, each time changed anew."""
    if not case.zipf:
        seen, truth = images[: setting.seen], images[setting.seen :][: setting.truth]
        shares = shares_among(truth.labels)
    else:
        chances, half = zipf_chances(images.labels), len(images) // 2
        shares = torch.zeros(int(images.labels.max()) + 1, dtype=torch.float64).index_add(0, images.labels, chances)
        shares = shares / shares.sum()
        parts = {"seen": (images[:half], setting.seen), "truth": (images[half:], setting.truth)}
        seen, truth = (in_shares(x, n, shares, generator=spawn(seed, case.name, r)) for r, (x, n) in parts.items())
    changed = [in_field(case, x, generator=spawn(seed, case.name, i)) for i, x in enumerate((seen, truth))]
    return changed[0], changed[1], truth, shares


def _other(setting: FieldStudySetting, case: FieldCase, images: Samples, data: Path | None, seed: int) -> Parts:
    """Field inputs of another source; at most half of them are seen."""
    if case.name == "usps":
        usps = read_dataset("usps", data)
        other = framed(Samples.concat([usps.train, usps.test]))
    else:
        other = samples_from_npz(_required(data, TINY))
    other = other[shuffled(len(other), spawn(seed, case.name, "other"))]
    seen = min(setting.seen, len(other) // 2)
    truth = other[seen:][: setting.truth]
    return other[:seen], truth, truth[:0], shares_among(truth.labels, len(images.labels.unique()))


def shares_among(labels: Tensor, classes: int = 0) -> Tensor:
    return torch.bincount(labels, minlength=classes).double() / len(labels)


def in_shares(images: Samples, n: int, shares: Tensor, *, generator: torch.Generator) -> Samples:
    """n images with classes drawn by these shares; no image is drawn again before all others of its class were."""
    classes = torch.multinomial(shares, n, replacement=True, generator=generator)
    rows = torch.empty(n, dtype=torch.long)
    for c in classes.unique().tolist():
        members, wanted = (torch.nonzero(y == c).squeeze(1) for y in (images.labels, classes))
        order = members[shuffled(len(members), generator)]
        rows[wanted] = order[torch.arange(len(wanted)) % len(order)]
    return images[rows]


def in_field(case: FieldCase, images: Samples, *, generator: torch.Generator) -> Samples:
    """Images as they would look in a made field; new ids."""
    assert case.recipe is not None
    if case.waves:
        images = Samples(waved(images.x, generator=generator), images.labels)
    return under(case.recipe, images, generator=generator) if case.recipe.names else images


def waved(x: Tensor, *, generator: torch.Generator) -> Tensor:
    """Images whose rows are moved sideways by a wave, with a phase and a strength of its own for each.

    right(y) = a sin(2πy / length + phase),   a from half of the amplitude to all of it        (1)
    """
    n, _, height, width = x.shape
    strength, phase = torch.rand(2, n, 1, generator=generator)
    down = torch.arange(height)
    right = WAVE[0] * (1 + strength) / 2 * (2 * math.pi * (down / WAVE[1] + phase)).sin()  # (1)
    across, along = torch.linspace(-1, 1, width), torch.linspace(-1, 1, height)
    columns = across + right[:, :, None] * 2 / (width - 1)
    grid = torch.stack([columns, along[:, None].expand_as(columns)], 3)
    return grid_sample(x, grid, padding_mode="border", align_corners=True)


# Models and files -----------------------------------------------------------------------------------------------------


def load_model(setting: FieldStudySetting, dataset: str, data: Path | None, seed: int, folder: Path) -> Classifier:
    """ResNet-20 with given weights for CIFAR-10, else a LeNet-5, trained with this seed and stored in the folder."""
    if dataset == "cifar10":
        return load_resnet20(data)
    known: Dataset = read_dataset(dataset, data)
    start = initialise(LeNet5, generator=spawn(seed, dataset, "weights"))
    path = folder / f"{dataset}-{seed}.safetensors"
    train, generator = known.train[: setting.taught], spawn(seed, dataset, "training")
    return train_once(start, path, train, epochs=setting.epochs, generator=generator)


def check_data(setting: FieldStudySetting, data: Path | None) -> None:
    """Raise if a data set or a file is missing, before hours are spent."""
    names, datasets = {c.name for c in setting.cases}, {c.dataset for c in setting.cases}
    for name in sorted(datasets | ({"usps"} & names)):
        read_dataset(name, data)
    if "cifar10" in datasets:
        require_resnet20(data)
    if "tinyimagenet" in names:
        _required(data, TINY)
    if setting.large[0] == "imagenet":
        _required(data, LARGE)


def _required(data: Path | None, name: str) -> Path:
    if (path := find_file(data, name)) is None:
        raise ValueError(f"the study needs {name} in the --data folder, or in weights below it")
    return path


def read_large(setting: FieldStudySetting, data: Path | None) -> Tensor:
    """Large images, without labels."""
    source, side, _ = setting.large
    known = read_dataset("digits", None).train if source == "digits" else samples_from_npz(_required(data, LARGE))
    return interpolate(known.x, size=(side, side), mode="bilinear", antialias=True).clamp(0, 1)
