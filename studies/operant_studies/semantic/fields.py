"""Images of a setting, dealt by role, with features that say nothing of the class; and classifiers trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch

from operant.data import Dataset, Samples, load, load_digits
from operant.generate.semantic.faults import Fault
from operant.model import Classifier
from operant.networks import LeNet5, fit, initialise, load_weights, save_weights
from operant.rng import spawn
from operant_studies.semantic.settings import SemanticSetting


@dataclass(frozen=True)
class SemanticImages:
    """The images of one setting.

    Training images are dealt once, at random: those of the source, of the models under test, of each judge, of the
    likelihoods and of the anchors are different ones. Test images rate sources or confirm faults, never both.
    """

    setting: SemanticSetting
    data: Path | None

    @cached_property
    def images(self) -> Dataset:
        s = self.setting
        return load_digits(size=s.size) if s.dataset == "digits" else load(s.dataset, self.data or Path())

    def clean(self, role: str) -> Samples:
        """Images of a role, as they are."""
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
        raise ValueError(f"there must be images for {role}; there are for {', '.join(n for n, _ in self.setting.deal)}")

    def neutral(self, role: str, *path: int | str, but: Fault | None = None) -> Samples:
        """Images of a role with every feature, or all but one fault's, independent of the class."""
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
    def training(self) -> dict[str, float | int]:
        s = self.setting
        return {"epochs": s.epochs, "batch_size": s.batch_size, "learning_rate": s.learning_rate}


def kept_network(field: SemanticImages, folder: Path, name: str, train: Samples) -> Classifier:
    """A LeNet-5 trained on these images, or read if it was; the name decides its random numbers."""
    path, start = folder / f"{name}.safetensors", field.network(name)
    if not path.exists():
        fitted = fit(start, train, **field.training, generator=field.spawn("training", name), progress=False)  # type: ignore[arg-type]
        folder.mkdir(parents=True, exist_ok=True)
        save_weights(fitted.module, path)
    return Classifier(load_weights(start, path))


def check_data(settings: Sequence[SemanticSetting], data: Path | None) -> None:
    """Refuse to begin without the data sets."""
    for name in dict.fromkeys(s.dataset for s in settings if s.dataset != "digits"):
        if data is None:
            raise ValueError(f"the study needs {name}; name the folder it lies in with --data")
        load(name, data)
