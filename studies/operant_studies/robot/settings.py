"""Settings of the RobOT study at each scale."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from operant.data import load
from operant.generate import FGSM, PGD
from operant.retrain import Finetune
from operant.types import Fuzzer
from operant_studies.shared import check_scale
from operant_studies.subjects import find_resnet20

STRATEGIES = ("be-st", "km-st", "deepgini", "random")
RACERS = ("fol-fuzz", "adapt", "adapt-linf")  # ADAPT with its own distance, and in the ball of the attacks
RIVALS = ("deepxplore", "dlfuzz", "deephunter", "tensorfuzz")  # join the race on request


@dataclass(frozen=True, kw_only=True)
class RobotSetting:
    """One data set at one radius, and the size of each experiment.

    Attributes:
        radius: of FGSM and PGD, from Table II.
        train, validation, test: numbers of inputs; every seed has its own test inputs.
        epochs: of the original model's training.
        shares: percentages of the pool of cases for retraining.
        strategies: methods that choose them.
        race: CPU seconds for FOL-Fuzz and ADAPT; empty for no race.
        adapt_seeds, adapt_rows: number of test inputs for ADAPT's cases of Table IV, and model rows per seed.
        rivals: fuzzers in the race beside ADAPT. They add steps and change none, so that the signature of a folder does
            not include them.
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

    @property
    def label(self) -> str:
        return f"{self.dataset}, {self.radius:g}"

    def attacks(self) -> dict[str, Fuzzer]:
        """FGSM and PGD as in Table II: ten steps of a sixth of the radius."""
        return {
            "fgsm": FGSM(radius=self.radius),
            "pgd": PGD(radius=self.radius, steps=10, step_size=self.radius / 6),
        }

    def near(self) -> dict[str, Fuzzer]:
        """PGD at a third of the radius, which may show differences that the full radius hides."""
        radius = self.radius / 3
        return {"pgd": PGD(radius=radius, steps=10, step_size=radius / 6)}


def settings(scale: str, data: Path | None) -> tuple[RobotSetting, ...]:
    """The settings of a scale; SVHN and CIFAR-10 are left out if the data folder does not have them."""
    check_scale(scale, "smoke", "small", "paper")
    if scale == "smoke":
        quick = Finetune(epochs=1, max_drop=0.1, progress=False)
        sizes = {"train": 300, "validation": 100, "test": 40, "adapt_seeds": 10, "adapt_rows": 60}
        digits = RobotSetting(dataset="digits", radius=0.2, epochs=8, finetune=quick, **sizes)  # type: ignore[arg-type]
        return (replace(digits, shares=(5, 10), race=(0.2,), seeds=(0, 1)),)
    lenet = _small() if scale == "small" else _paper()
    mnist = replace(lenet, dataset="mnist", radius=0.3)
    chosen = [
        mnist,
        replace(mnist, dataset="fashion-mnist"),
        replace(lenet, dataset="fashion-mnist", radius=0.03, race=()),
    ]
    if _exists("svhn", data):
        chosen.append(replace(lenet, dataset="svhn", radius=0.03))
    if _exists("cifar10", data) and find_resnet20(data) is not None:
        chosen.append(_cifar(scale))
    return tuple(chosen)


def _exists(name: str, data: Path | None) -> bool:
    try:
        return data is not None and len(load(name, data).test) > 0
    except FileNotFoundError:
        return False


def _small() -> RobotSetting:
    return RobotSetting(
        dataset="mnist", radius=0.3, train=20_000, validation=1_000, test=1_000, epochs=10,
        finetune=Finetune(epochs=10, max_drop=0.03, progress=False), race=(20.0,),
    )  # fmt: skip


def _paper() -> RobotSetting:
    return replace(
        _small(), train=55_000, validation=5_000, test=3_333, shares=tuple(range(1, 11)), race=(300.0, 600.0, 1200.0),
    )  # fmt: skip


def _cifar(scale: str) -> RobotSetting:
    """RQ1 only, with the learning rate of the released program; ``small`` has fewer images and epochs."""
    few = scale == "small"
    recipe = Finetune(
        epochs=6 if few else 40, learning_rate=1e-4, decay_after=4 if few else 25, max_drop=0.03, progress=False
    )
    return RobotSetting(
        dataset="cifar10", radius=0.01, train=2_000 if few else 18_000, validation=500 if few else 1_000,
        test=300 if few else 3_000, epochs=0, finetune=recipe, shares=(5, 10), strategies=("be-st",),
    )  # fmt: skip
