"""What the study of operational fuzzing runs at each scale: fields, how much of each, and how much is asked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from operant.conditions import Recipe, half_normal, normal, uniform
from operant.retrain import OperationalFinetune

HANDWRITING = Recipe(
    severities={
        "rotation": normal(12),
        "shift_x": uniform(-0.075, 0.075),
        "shift_y": uniform(-0.075, 0.075),
        "blur": uniform(0, 1.3),
        "brightness": normal(0.15),
        "contrast": normal(0.3),
        "gaussian_noise": uniform(0, 0.2),
    }
)
SCANNED = Recipe(
    severities={
        "rotation": normal(8),
        "scale": normal(0.12),
        "shear": normal(0.15),
        "shift_x": normal(0.05),
        "shift_y": normal(0.05),
        "blur": uniform(0, 1.2),
        "contrast": normal(0.2),
    }
)
WIDE_HANDWRITING = Recipe(
    severities={
        "rotation": normal(25),
        "scale": normal(0.3),
        "shear": normal(0.3),
        "shift_x": uniform(-0.25, 0.25),
        "shift_y": uniform(-0.25, 0.25),
        "blur": uniform(0, 2.5),
        "brightness": normal(0.3),
        "contrast": normal(0.6),
        "gaussian_noise": uniform(0, 0.4),
    }
)
OUTDOORS = Recipe(
    severities={
        "rotation": normal(6),
        "shift_x": uniform(-0.1, 0.1),
        "shift_y": uniform(-0.1, 0.1),
        "blur": uniform(0, 0.5),
        "brightness": normal(0.12),
        "contrast": normal(0.25),
        "gaussian_noise": half_normal(0.02, high=0.1),
    }
)
OTHER_CAMERA = Recipe(
    severities={
        "scale": normal(0.2),
        "shift_x": uniform(-0.1, 0.1),
        "shift_y": uniform(-0.1, 0.1),
        "blur": uniform(0, 0.8),
        "brightness": normal(0.1),
        "contrast": normal(0.2),
        "gamma": normal(0.2),
    }
)
WIDE_OUTDOORS = Recipe(
    severities={
        "rotation": normal(20),
        "scale": normal(0.3),
        "shift_x": uniform(-0.2, 0.2),
        "shift_y": uniform(-0.2, 0.2),
        "blur": uniform(0, 1.6),
        "brightness": normal(0.25),
        "contrast": normal(0.5),
        "gaussian_noise": half_normal(0.1, high=0.3),
    }
)


@dataclass(frozen=True, kw_only=True)
class FieldSetting:
    """One field: where its inputs come from, how many there are of each kind, and what is asked of them.

    Attributes:
        name: of the field.
        title: as the page has it.
        dataset: that the model learned from.
        zipf: whether classes are as frequent as Zipf's law has it; else as they come.
        applied: the conditions under which field inputs are made; None where they are another source's.
        declared: what a user would declare: the conditions themselves, or a guess made before any result was seen.
        widest: the strongest conditions that could be, within which they are estimated where nothing is declared.
        train: training inputs that cases are made from and that retraining goes on with.
        seen: unlabelled field inputs, for profile, naturalness and estimated conditions, half of them for the judge.
        simulated: images that each trial simulates where conditions are estimated.
        watched: labelled field inputs of the monitor.
        truth: labelled field inputs that tell what is true; none of the above.
        radii: of attacks in Linf; in L2 they are ``stretch`` times as large.
        hunted: seeds that finding starts from.
        genetic: seeds of the genetic searches, which take long.
        sizes: how many cases are retrained with; none leaves the field out of repair.
        finetune: how, for every arm.
        rounds: of the arm in which fuzzing and retraining take turns; 0 leaves it out.
    """

    name: str
    title: str
    dataset: str
    zipf: bool = False
    applied: Recipe | None = None
    declared: Recipe
    widest: Recipe
    train: int = 20_000
    seen: int = 4_000
    simulated: int = 2_000
    watched: int = 1_000
    truth: int = 20_000
    radii: tuple[float, ...] = (0.03, 0.1, 0.3)
    stretch: float = 10.0
    hunted: int = 500
    genetic: int = 30
    sizes: tuple[int, ...] = (50, 100, 300, 1000, 3000)
    finetune: OperationalFinetune = field(default_factory=OperationalFinetune)
    rounds: int = 4
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


def settings(scale: str) -> tuple[FieldSetting, ...]:
    """``small`` is the study; ``smoke`` shows that it runs, on the embedded digits."""
    if scale == "smoke":
        return (_digits(),)
    if scale != "small":
        raise ValueError(f"scale must be smoke or small, got {scale!r}")
    mnist = OperationalFinetune(epochs=4, steps=100, max_drop=0.02, patience=None, progress=False)
    zipf = FieldSetting(
        name="zipf",
        title="MNIST by Zipf's law, under conditions",
        dataset="mnist",
        zipf=True,
        applied=HANDWRITING,
        declared=HANDWRITING,
        widest=WIDE_HANDWRITING,
        finetune=mnist,
    )
    usps = FieldSetting(
        name="usps",
        title="USPS, for a model of MNIST",
        dataset="mnist",
        declared=SCANNED,
        widest=WIDE_HANDWRITING,
        finetune=mnist,
    )
    return zipf, usps, *_cifar()


def _cifar() -> tuple[FieldSetting, FieldSetting]:
    finetune = OperationalFinetune(
        epochs=2, steps=100, batch_size=32, optimiser="sgd", max_drop=0.03, patience=None, progress=False
    )
    made = FieldSetting(
        name="outdoors",
        title="CIFAR-10 under conditions",
        dataset="cifar10",
        applied=OUTDOORS,
        declared=OUTDOORS,
        widest=WIDE_OUTDOORS,
        seen=3_000,
        watched=500,
        truth=4_000,
        radii=(0.01, 0.03, 0.1),
        stretch=20.0,
        hunted=200,
        genetic=10,
        sizes=(50, 300, 1000),
        finetune=finetune,
        rounds=0,
        seeds=(0, 1, 2),
    )
    tiny = replace(
        made,
        name="tinyimagenet",
        title="Tiny ImageNet's images of seven classes, for a model of CIFAR-10",
        applied=None,
        declared=OTHER_CAMERA,
        seen=1_500,
        truth=1_500,
        sizes=(),
    )
    return made, tiny


def _digits() -> FieldSetting:
    return FieldSetting(
        name="digits",
        title="digits under conditions",
        dataset="digits",
        applied=HANDWRITING,
        declared=HANDWRITING,
        widest=HANDWRITING,
        simulated=100,
        train=900,
        seen=400,
        watched=100,
        truth=400,
        radii=(0.1, 0.3),
        hunted=40,
        genetic=4,
        sizes=(20, 40),
        finetune=OperationalFinetune(epochs=2, steps=15, max_drop=0.1, patience=None, progress=False),
        seeds=(0, 1),
    )
