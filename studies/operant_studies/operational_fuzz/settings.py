"""What the study of operational fuzzing runs at each scale: fields, numbers of inputs, and budgets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from operant.conditions import Recipe, Severity, half_normal, normal, uniform
from operant.retrain import OperationalFinetune
from operant_studies.shared import check_scale


def _recipe(*, shift: Severity, blur: float, noise: Severity | None = None, **std: float) -> Recipe:
    """Conditions in one fixed order; ``std`` holds those that are normal about 0."""
    frame = {name: normal(std[name]) for name in ("rotation", "scale", "shear") if name in std}
    light = {name: normal(std[name]) for name in ("brightness", "contrast", "gamma") if name in std}
    moved = {"shift_x": shift, "shift_y": shift, "blur": uniform(0, blur)}
    return Recipe(severities=frame | moved | light | ({"gaussian_noise": noise} if noise else {}))


HANDWRITING = _recipe(
    rotation=12, shift=uniform(-0.075, 0.075), blur=1.3, brightness=0.15, contrast=0.3, noise=uniform(0, 0.2)
)
SCANNED = _recipe(rotation=8, scale=0.12, shear=0.15, shift=normal(0.05), blur=1.2, contrast=0.2)
WIDE_HANDWRITING = _recipe(
    rotation=25, scale=0.3, shear=0.3, shift=uniform(-0.25, 0.25), blur=2.5, brightness=0.3, contrast=0.6,
    noise=uniform(0, 0.4),
)  # fmt: skip
OUTDOORS = _recipe(
    rotation=6, shift=uniform(-0.1, 0.1), blur=0.5, brightness=0.12, contrast=0.25, noise=half_normal(0.02, high=0.1)
)
OTHER_CAMERA = _recipe(scale=0.2, shift=uniform(-0.1, 0.1), blur=0.8, brightness=0.1, contrast=0.2, gamma=0.2)
WIDE_OUTDOORS = _recipe(
    rotation=20, scale=0.3, shift=uniform(-0.2, 0.2), blur=1.6, brightness=0.25, contrast=0.5,
    noise=half_normal(0.1, high=0.3),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FieldSetting:
    """One field: the source of its inputs, their numbers, and the budgets of searches and retraining."""

    name: str
    title: str  # of the field on the page
    dataset: str  # the model's training data
    zipf: bool = False  # whether class frequencies follow Zipf's law instead of the data set's
    applied: Recipe | None = None  # conditions that field inputs are made under; None if they come from another source
    declared: Recipe  # what a user would declare: the conditions themselves, or a guess made before any result
    widest: Recipe  # limits of conditions, within which they are estimated where nothing is declared
    train: int = 20_000  # training inputs, for cases and for retraining
    # seen: unlabelled field inputs, for profile, naturalness and estimated conditions; half of them for the judge
    seen: int = 4_000
    simulated: int = 2_000  # images per simulation when conditions are estimated
    watched: int = 1_000  # labelled field inputs of the monitor
    truth: int = 20_000  # labelled field inputs for the true pmi; none of the above
    radii: tuple[float, ...] = (0.03, 0.1, 0.3)  # of attacks in L-infinity; in L2 they are ``stretch`` times as large
    stretch: float = 10.0
    hunted: int = 500  # seeds of the searches
    genetic: int = 30  # seeds of the genetic searches, which are slow
    # sizes: numbers of cases to retrain with; empty leaves the field out of repair
    sizes: tuple[int, ...] = (50, 100, 300, 1000, 3000)
    finetune: OperationalFinetune = field(default_factory=OperationalFinetune)  # the same for every arm
    rounds: int = 4  # of the arm that alternates fuzzing and retraining; 0 leaves it out
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


def settings(scale: str) -> tuple[FieldSetting, ...]:
    """``small`` is the study; ``smoke`` shows that it runs, on the embedded digits."""
    check_scale(scale, "smoke", "small")
    if scale == "smoke":
        return (_digits(),)
    zipf = FieldSetting(
        name="zipf",
        title="MNIST by Zipf's law, under conditions",
        dataset="mnist",
        zipf=True,
        applied=HANDWRITING,
        declared=HANDWRITING,
        widest=WIDE_HANDWRITING,
        finetune=OperationalFinetune(epochs=4, steps=100, max_drop=0.02, patience=None, progress=False),
    )
    usps = replace(zipf, name="usps", title="USPS, for a model of MNIST", zipf=False, applied=None, declared=SCANNED)
    return zipf, usps, *_cifar(zipf)


def _cifar(start: FieldSetting) -> tuple[FieldSetting, FieldSetting]:
    made = replace(
        start,
        name="outdoors",
        title="CIFAR-10 under conditions",
        dataset="cifar10",
        zipf=False,
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
        finetune=replace(start.finetune, epochs=2, batch_size=32, optimiser="sgd", max_drop=0.03),
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
