"""What the RobOT study runs at each scale."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from operant.data import Dataset, load, load_digits
from operant.generate import FGSM, PGD
from operant.retrain import Finetune
from operant.types import Fuzzer
from operant_studies.subjects import find_resnet20

STRATEGIES = ("be-st", "km-st", "deepgini", "random")
RACERS = ("fol-fuzz", "adapt", "adapt-linf")  # ADAPT at its own distance, and in the ball of the attacks
RIVALS = ("deepxplore", "dlfuzz", "deephunter", "tensorfuzz")  # that join the race if they are asked for


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One data set at one radius: how much of it is used, and what is asked.

    Attributes:
        radius: of FGSM and PGD, Table II's.
        train, validation, test: inputs; every seed has its own test inputs.
        epochs: of the original model's training.
        shares: percent of the pool of cases that are retrained with.
        strategies: that choose them.
        race: CPU seconds for FOL-Fuzz and ADAPT; none for no race.
        adapt_seeds, adapt_rows: test inputs that ADAPT's cases for Table IV start from, and its budget for each seed.
        rivals: that take part beside ADAPT where there is a race. They add steps and change none, so that they are no
            part of what a folder is known by.
    """

    dataset: str
    radius: float
    train: int
    validation: int
    test: int
    epochs: int
    finetune: Finetune
    shares: tuple[int, ...] = (1, 5, 10)
    strategies: tuple[str, ...] = STRATEGIES
    race: tuple[float, ...] = ()
    adapt_seeds: int = 60
    adapt_rows: int = 1000
    seeds: tuple[int, ...] = (0, 1, 2)
    rivals: tuple[str, ...] = field(default=(), repr=False)

    @property
    def racers(self) -> tuple[str, ...]:
        return (*RACERS, *self.rivals)

    @property
    def name(self) -> str:
        return f"{self.dataset}-{self.radius}"

    def attacks(self) -> dict[str, Fuzzer]:
        """FGSM and PGD as Table II has them: ten steps of a sixth of the radius."""
        return {
            "fgsm": FGSM(radius=self.radius),
            "pgd": PGD(radius=self.radius, steps=10, step_size=self.radius / 6),
        }

    def near(self) -> dict[str, Fuzzer]:
        """PGD at a third of the radius, where differences may show that the full radius drowns."""
        radius = self.radius / 3
        return {"pgd": PGD(radius=radius, steps=10, step_size=radius / 6)}

    def read(self, data: Path | None) -> Dataset:
        if self.dataset == "digits":
            return load_digits(size=28)
        if data is None:
            raise ValueError(f"the study needs {self.dataset}; name the folder it lies in with --data")
        return load(self.dataset, data)


def settings(scale: str, data: Path | None) -> tuple[Setting, ...]:
    """The settings of a scale; what is not in the data folder and not essential is left out."""
    if scale == "smoke":
        quick = Finetune(epochs=1, max_drop=0.1, progress=False)
        digits = Setting(dataset="digits", radius=0.2, train=300, validation=100, test=40, epochs=8, finetune=quick)
        return (replace(digits, shares=(5, 10), race=(0.2,), adapt_seeds=10, adapt_rows=60, seeds=(0, 1)),)
    if scale not in ("small", "paper"):
        raise ValueError(f"scale must be smoke, small or paper, got {scale!r}")
    lenet = _small() if scale == "small" else _paper()
    mnist = replace(lenet, dataset="mnist", radius=0.3)
    chosen = [
        mnist,
        replace(mnist, dataset="fashion-mnist"),
        replace(lenet, dataset="fashion-mnist", radius=0.03, race=()),
    ]
    if _there("svhn", data):
        chosen.append(replace(lenet, dataset="svhn", radius=0.03))
    if _there("cifar10", data) and data is not None and find_resnet20(data) is not None:
        chosen.append(_cifar(scale))
    return tuple(chosen)


def _there(name: str, data: Path | None) -> bool:
    if data is None:
        return False
    try:
        load(name, data)
    except FileNotFoundError:
        return False
    return True


def _small() -> Setting:
    return Setting(
        dataset="mnist",
        radius=0.3,
        train=20_000,
        validation=1_000,
        test=1_000,
        epochs=10,
        finetune=Finetune(epochs=10, max_drop=0.03, progress=False),
        race=(20.0,),
    )


def _paper() -> Setting:
    return replace(
        _small(),
        train=55_000,
        validation=5_000,
        test=3_333,
        shares=tuple(range(1, 11)),
        race=(300.0, 600.0, 1200.0),
    )


def _cifar(scale: str) -> Setting:
    """RQ1 alone, with the released program's learning rate; ``small`` has fewer images and epochs than the paper."""
    few = scale == "small"
    recipe = Finetune(
        epochs=6 if few else 40, learning_rate=1e-4, decay_after=4 if few else 25, max_drop=0.03, progress=False
    )
    return Setting(
        dataset="cifar10",
        radius=0.01,
        train=2_000 if few else 18_000,
        validation=500 if few else 1_000,
        test=300 if few else 3_000,
        epochs=0,
        finetune=recipe,
        shares=(5, 10),
        strategies=("be-st",),
    )
