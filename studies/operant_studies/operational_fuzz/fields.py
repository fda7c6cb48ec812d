"""The fields of the study: a model, what it learned from, and inputs of its use, one role a part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from operant.conditions import Recipe, apply
from operant.data import Dataset, Samples, load, load_digits, samples_from_npz
from operant.model import Classifier
from operant.networks import LeNet5, ResNet20, fit, initialise, load_weights, save_weights
from operant.rng import spawn
from operant_studies.operational_fuzz.settings import FieldSetting
from operant_studies.seeds.settings import framed
from operant_studies.seeds.setups import zipf_chances
from operant_studies.subjects import CIFAR_MEAN, CIFAR_STD, find_resnet20

TINY = "tinyimagenet-as-cifar7.npz"


@dataclass(frozen=True, kw_only=True)
class StudyField:
    """A model and the data of all roles.

    Attributes:
        train: labelled training inputs, which cases are made from and retraining goes on with.
        clean: labelled inputs like those, unseen by the model: the guard on clean accuracy.
        clean_test: more of them, for the clean accuracy that is reported.
        seen: field inputs whose labels are used by no search: for the profile, naturalness and estimated conditions
            and, by one arm that pays for labels, for retraining.
        judging: other field inputs, for the naturalness that judges what searches found.
        watched: labelled field inputs of the monitor.
        truth: labelled field inputs that say what is true.
    """

    setting: FieldSetting
    seed: int
    model: Classifier
    train: Samples
    clean: Samples
    clean_test: Samples
    seen: Samples
    judging: Samples
    watched: Samples
    truth: Samples


def make_field(setting: FieldSetting, data: Path | None, seed: int, folder: Path) -> StudyField:
    """One field with one seed: of the network where it is trained here, and of who gets which inputs.

    Args:
        setting: which field.
        data: where data sets and weights lie.
        seed: 0 and up.
        folder: where trained networks are kept.
    """
    known = load_digits(size=28) if setting.dataset == "digits" else load(setting.dataset, _there(data))
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
    """Refuse a folder in which something is missing, before hours are spent."""
    names = {setting.name for setting in settings}
    for name in {s.dataset for s in settings} - {"digits"} | ({"usps"} & names):
        load(name, _there(data))
    if "cifar10" in {s.dataset for s in settings} and find_resnet20(_there(data)) is None:
        raise ValueError(f"the study needs the weights cifar10_resnet20.safetensors in {data} or in weights below it")
    if "tinyimagenet" in names and not (_there(data) / TINY).exists():
        raise ValueError(f"the study needs {TINY} in {data}; put it there")


# Field inputs ---------------------------------------------------------------------------------------------------------

ROLES = {"seen": 0.2, "judging": 0.2, "watched": 0.1, "truth": 0.5}  # of the images that field inputs are made from


def _made(setting: FieldSetting, images: Samples, rows: Tensor, seed: int) -> dict[str, Samples]:
    """Field inputs made from unseen images under conditions; no two roles have an image in common."""
    parts = torch.cat([rows.new_tensor([0.0]), torch.tensor(list(ROLES.values())).cumsum(0)]) * len(rows)
    ends = parts.round().long().tolist()
    sizes = {"seen": setting.seen, "judging": setting.seen, "watched": setting.watched, "truth": setting.truth}
    made = {}
    for role, first, last in zip(ROLES, ends, ends[1:], strict=False):
        some = images[rows[first:last]]
        made[role] = in_field(setting, some, sizes[role], generator=spawn(seed, setting.name, role))
    return made


def in_field(setting: FieldSetting, images: Samples, n: int, *, generator: torch.Generator) -> Samples:
    """n of these images, drawn with replacement as the field has their classes, under its conditions."""
    chances = zipf_chances(images.labels) if setting.zipf else torch.ones(len(images))
    rows = torch.multinomial(chances, n, replacement=True, generator=generator)
    assert setting.applied is not None
    return under(setting.applied, images[rows], generator=generator)


def under(recipe: Recipe, images: Samples, *, generator: torch.Generator) -> Samples:
    """Each of these images once, under conditions drawn for it; new ids."""
    drawn = recipe.draw(len(images), generator=generator)
    parts = [apply(images.x[some], drawn[some]) for some in torch.arange(len(images)).split(2_000)]
    return Samples(torch.cat(parts), images.labels)


def _other(setting: FieldSetting, data: Path | None, seed: int) -> dict[str, Samples]:
    """Field inputs of another source of the same classes, dealt at random."""
    if setting.name == "usps":
        usps = load("usps", _there(data))
        images = framed(Samples.concat([usps.train, usps.test]))
    else:
        images = samples_from_npz(_there(data) / TINY)
    rows = torch.randperm(len(images), generator=spawn(seed, setting.name, "field"))
    sizes = {"seen": setting.seen // 2, "judging": setting.seen // 2, "watched": setting.watched}
    parts, start = {}, 0
    for role, size in sizes.items():
        parts[role] = images[rows[start : start + size]]
        start += size
    return parts | {"truth": images[rows[start : start + setting.truth]]}


# Networks -------------------------------------------------------------------------------------------------------------


def _network(setting: FieldSetting, known: Dataset, data: Path | None, seed: int, folder: Path) -> Classifier:
    """ResNet-20 with known weights; else a LeNet-5 trained for this seed, once."""
    if setting.dataset == "cifar10":
        weights = find_resnet20(_there(data))
        assert weights is not None
        return Classifier(load_weights(ResNet20(), weights), mean=CIFAR_MEAN, std=CIFAR_STD)
    path = folder / f"{setting.dataset}-{seed}.safetensors"
    start = initialise(LeNet5, generator=spawn(seed, "weights"))
    if path.exists():
        return Classifier(load_weights(start, path).eval())
    few = 30_000 if setting.dataset == "mnist" else len(known.train)
    fitted = fit(start, known.train[:few], epochs=6, generator=spawn(seed, "training"), progress=False)
    folder.mkdir(parents=True, exist_ok=True)
    save_weights(fitted.module, path)
    return Classifier(fitted.module)


def _there(data: Path | None) -> Path:
    if data is None:
        raise ValueError("the study needs mnist, usps, cifar10 and Tiny ImageNet; name their folder with --data")
    return data
