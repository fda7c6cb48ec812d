"""The fields of the study: a model, its training data, and field inputs, divided by role."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from operant.conditions import Recipe, apply
from operant.data import Dataset, Samples, samples_from_npz
from operant.model import Classifier
from operant.networks import LeNet5, initialise
from operant.rng import spawn
from operant_studies.operational_fuzz.settings import FieldSetting
from operant_studies.seeds.settings import framed
from operant_studies.seeds.setups import zipf_chances
from operant_studies.subjects import find_file, load_resnet20, read_dataset, require_resnet20, train_once

TINY = "tinyimagenet-as-cifar7.npz"


@dataclass(frozen=True, kw_only=True)
class StudyField:
    """A model and the data of all roles."""

    setting: FieldSetting
    seed: int
    model: Classifier
    train: Samples  # labelled training inputs, for cases and for retraining
    clean: Samples  # labelled inputs of the same source, unseen by the model, to limit the loss of clean accuracy
    clean_test: Samples  # more of them, for the reported clean accuracy
    # seen: field inputs for the profile, naturalness and estimated conditions, without their labels; one arm pays for
    # the labels and retrains with them
    seen: Samples
    judging: Samples  # other field inputs, for the judge of the searches' results
    watched: Samples  # labelled field inputs of the monitor
    truth: Samples  # labelled field inputs for the true pmi


def make_field(setting: FieldSetting, data: Path | None, seed: int, folder: Path) -> StudyField:
    """One field; the seed decides the training of the network and the division of inputs.

    Args:
        data: folder of data sets and weights.
        seed: 0 and up.
        folder: for trained networks.
    """
    known = read_dataset(setting.dataset, data)
    rows = torch.randperm(len(known.test), generator=spawn(seed, setting.name, "roles"))
    guard = min(1_000, len(rows) // 4)
    roles = _made(setting, known.test, rows[guard:], seed) if setting.applied else _other(setting, data, seed)
    return StudyField(
        setting=setting,
        seed=seed,
        model=_network(setting, known, data, seed, folder),
        train=known.train[torch.randperm(len(known.train), generator=spawn(seed, "train"))[: setting.train]],
        clean=known.test[rows[:guard]],
        clean_test=known.test[rows[guard:]][: setting.truth],
        **roles,
    )


def check_data(settings: tuple[FieldSetting, ...], data: Path | None) -> None:
    """Raise if a data set or a file is missing, before hours are spent."""
    names, datasets = {setting.name for setting in settings}, {setting.dataset for setting in settings}
    for name in sorted(datasets | ({"usps"} & names)):
        read_dataset(name, data)
    if "cifar10" in datasets:
        require_resnet20(data)
    if "tinyimagenet" in names and find_file(data, TINY) is None:
        raise ValueError(f"the study needs {TINY} in the --data folder, or in weights below it")


# Field inputs ---------------------------------------------------------------------------------------------------------

ROLES = {"seen": 0.2, "judging": 0.2, "watched": 0.1, "truth": 0.5}  # shares of the images


def _made(setting: FieldSetting, images: Samples, rows: Tensor, seed: int) -> dict[str, Samples]:
    """Field inputs made from unseen images under conditions; no two roles share an image."""
    parts = torch.cat([rows.new_tensor([0.0]), torch.tensor(list(ROLES.values())).cumsum(0)]) * len(rows)
    ends = parts.round().long().tolist()
    sizes = {"seen": setting.seen, "judging": setting.seen, "watched": setting.watched, "truth": setting.truth}
    made = {}
    for role, first, last in zip(ROLES, ends, ends[1:], strict=False):
        some = images[rows[first:last]]
        made[role] = in_field(setting, some, sizes[role], generator=spawn(seed, setting.name, role))
    return made


def in_field(setting: FieldSetting, images: Samples, n: int, *, generator: torch.Generator) -> Samples:
    """n images, drawn with replacement by the field's class frequencies, under its conditions."""
    chances = zipf_chances(images.labels) if setting.zipf else torch.ones(len(images))
    rows = torch.multinomial(chances, n, replacement=True, generator=generator)
    assert setting.applied is not None
    return under(setting.applied, images[rows], generator=generator)


def under(recipe: Recipe, images: Samples, *, generator: torch.Generator) -> Samples:
    """Each image once, under conditions drawn for it; new ids."""
    drawn = recipe.draw(len(images), generator=generator)
    parts = [apply(images.x[some], drawn[some]) for some in torch.arange(len(images)).split(2_000)]
    return Samples(torch.cat(parts), images.labels)


def _other(setting: FieldSetting, data: Path | None, seed: int) -> dict[str, Samples]:
    """Field inputs of another source of the same classes, divided at random."""
    if setting.name == "usps":
        usps = read_dataset("usps", data)
        images = framed(Samples.concat([usps.train, usps.test]))
    else:
        path = find_file(data, TINY)
        assert path is not None  # see `check_data`
        images = samples_from_npz(path)
    rows = torch.randperm(len(images), generator=spawn(seed, setting.name, "field"))
    sizes = {"seen": setting.seen // 2, "judging": setting.seen // 2, "watched": setting.watched}
    parts, start = {}, 0
    for role, size in sizes.items():
        parts[role] = images[rows[start : start + size]]
        start += size
    return parts | {"truth": images[rows[start : start + setting.truth]]}


def _network(setting: FieldSetting, known: Dataset, data: Path | None, seed: int, folder: Path) -> Classifier:
    """ResNet-20 with given weights for CIFAR-10, else a LeNet-5 trained with this seed."""
    if setting.dataset == "cifar10":
        return load_resnet20(data)
    start = initialise(LeNet5, generator=spawn(seed, "weights"))
    train = known.train[:30_000] if setting.dataset == "mnist" else known.train
    path = folder / f"{setting.dataset}-{seed}.safetensors"
    return train_once(start, path, train, epochs=6, generator=spawn(seed, "training"))
