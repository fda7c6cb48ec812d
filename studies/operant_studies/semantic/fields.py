"""Images of a setting, divided by role, with features independent of the class; and classifiers trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from operant.data import Dataset, Samples, load_digits
from operant.model import Classifier
from operant.networks import LeNet5, initialise
from operant.rng import spawn
from operant_studies.faults import Fault
from operant_studies.semantic.settings import SemanticSetting
from operant_studies.subjects import read_dataset, train_once


@dataclass(frozen=True)
class SemanticImages:
    """The images of one setting.

    Training images are divided at random, once: source, models under test, each judge, likelihoods and anchors have
    different ones. Test images either rate sources or confirm faults.
    """

    setting: SemanticSetting
    data: Path | None

    @cached_property
    def images(self) -> Dataset:
        s = self.setting
        return load_digits(size=s.size) if s.dataset == "digits" else read_dataset(s.dataset, self.data)

    def clean(self, role: str) -> Samples:
        """Unchanged images of a role."""
        test = {"rated": 0, "held": self.setting.rated}
        if role in test:
            first = test[role]
            return self.images.test[first : first + (self.setting.rated, self.setting.held)[first > 0]]
        first, train = 0, self.images.train
        for name, n in self.setting.deal:
            if name == role:
                order = torch.randperm(len(train), generator=spawn(0, "semantic", self.setting.dataset, "deal"))
                return train[order[first : first + n]]
            first += n
        raise ValueError(f"role must be one of {', '.join(n for n, _ in self.setting.deal)}, got {role}")

    def neutral(self, role: str, *path: int | str, but: Fault | None = None) -> Samples:
        """Images of a role whose features, except that of one fault, are independent of the class."""
        samples = self.clean(role)
        for flaw in self.setting.flaws:
            if but is None or flaw.feature != but.feature.name:
                samples = flaw.fault.neutral(samples, generator=self.spawn(role, flaw.feature, *path))
        return samples

    def spawn(self, *path: int | str) -> torch.Generator:
        return spawn(0, "semantic", self.setting.name, *path)

    def network(self, *path: int | str) -> LeNet5:
        """An untrained LeNet-5."""
        s = self.setting
        return initialise(partial(LeNet5, channels=s.channels, size=s.size), generator=self.spawn("weights", *path))

    @property
    def training(self) -> dict[str, Any]:
        s = self.setting
        return {"epochs": s.epochs, "batch_size": s.batch_size, "learning_rate": s.learning_rate}


def trained_network(field: SemanticImages, folder: Path, name: str, train: Samples) -> Classifier:
    """A LeNet-5 trained on these images, or read if it is stored; the name seeds its random numbers."""
    path, generator = folder / f"{name}.safetensors", field.spawn("training", name)
    return train_once(field.network(name), path, train, generator=generator, **field.training)


def check_data(settings: Sequence[SemanticSetting], data: Path | None) -> None:
    """Raise if a data set is missing."""
    for name in dict.fromkeys(s.dataset for s in settings):
        read_dataset(name, data)
