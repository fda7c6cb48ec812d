"""What the study of the field runs at each scale: fields, numbers of inputs, and budgets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from operant.conditions import Recipe, default_palette, half_normal, normal, uniform
from operant.retrain import OperationalFinetune
from operant_studies.operational.settings import AUGMENTED, FULL, LoopSetting
from operant_studies.operational_fuzz.settings import FieldSetting
from operant_studies.shared import check_scale

SHAPES = {"mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32), "digits": (1, 28, 28)}
BEFORE = Recipe(
    severities={
        "rotation": normal(20),
        "scale": normal(0.2),
        "shift_x": uniform(-0.2, 0.2),
        "shift_y": uniform(-0.2, 0.2),
        "blur": uniform(0, 3),
        "brightness": normal(0.3),
        "contrast": normal(0.4),
        "gaussian_noise": half_normal(0.2, high=0.5),
    }
)
"""The conditions that a user had to declare before there was a palette, as the documentation proposed them."""


@dataclass(frozen=True, kw_only=True)
class FieldCase:
    """One field: the source of its inputs, and what happens to them."""

    name: str
    title: str
    dataset: str  # the model's training data
    recipe: Recipe | None = None  # conditions of a made field; None if inputs come from another source
    zipf: bool = False  # whether class frequencies follow Zipf's law instead of the data set's
    waves: bool = False  # whether images are also distorted by waves, which the palette does not hold

    @property
    def covered(self) -> bool:
        """Whether the palette holds everything that happens to the inputs."""
        return self.recipe is not None and not self.waves


@dataclass(frozen=True, kw_only=True)
class DownstreamSetting:
    """What augmentation and the loop may spend on one field."""

    case: str  # name of the field
    loop: LoopSetting
    seeds: tuple[int, ...] = (0, 1, 2)


@dataclass(frozen=True, kw_only=True)
class FieldStudySetting:
    """One scale of the study."""

    cases: tuple[FieldCase, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    # inputs by role; no image has two
    seen: int = 2_000  # unlabelled field inputs, all that the program gets
    clean: int = 5_000  # training images for the fit
    labelled: int = 1_500  # clean labelled inputs that nobody trained on
    truth: int = 6_500  # labelled field inputs, at most; the program never gets them
    judged: int = 1_200  # of those, and of other training images, for the two-sample network
    epochs: int = 4  # of the small networks, and their training inputs
    taught: int = 30_000
    controls: tuple[str, ...] = ("mnist", "fashion-mnist", "cifar10")  # fields without any condition, by data set
    resamples: int = 10  # per data set
    large: tuple[str, int, int] = ("imagenet", 224, 250)  # large images: source, side, images on either side
    downstream: DownstreamSetting


def settings(scale: str) -> FieldStudySetting:
    """``small`` is the study; ``smoke`` shows that it runs, on the embedded digits."""
    check_scale(scale, "smoke", "small")
    if scale == "smoke":
        return _smoke()
    cifar = _loop("cifar10", train=20_000, epochs=2, batch_size=32, optimiser="sgd", max_drop=0.03)
    loop = LoopSetting(field=cifar, rounds=3, seeds_per_round=200, radius=0.5)
    return FieldStudySetting(
        cases=(*_mnist(), *_fashion(), *_cifar(), *_real()), downstream=DownstreamSetting(case="c1", loop=loop)
    )


def conditions(dataset: str, **severities: tuple[float, float]) -> Recipe:
    """Severities as mean and std, with the limits by which `fit_conditions` states them."""
    palette = default_palette(SHAPES[dataset]).severities
    limited = {
        name: normal(
            std, mean=mean, low=max(palette[name].low, mean - 3 * std), high=min(palette[name].high, mean + 3 * std)
        )
        for name, (mean, std) in severities.items()
    }
    return Recipe(severities=limited)


# Fields ---------------------------------------------------------------------------------------------------------------


def _mnist() -> tuple[FieldCase, ...]:
    name = "mnist"
    small_and_moving = conditions(name, scale=(-0.25, 0.12), motion_blur=(4.0, 1.2), motion_angle=(40, 15))
    leaning = conditions(name, rotation=(10, 12), brightness=(0.12, 0.06), gaussian_noise=(0.12, 0.04))
    covered = conditions(name, occlusion=(0.3, 0.08), downsampling=(0.5, 0.1))
    soft = conditions(name, shift_x=(0.06, 0.05), defocus=(1.6, 0.4), contrast=(-0.7, 0.25))
    return (
        FieldCase(name="m1", title="MNIST: small, moving", dataset=name, recipe=small_and_moving),
        FieldCase(name="m2", title="MNIST: turned, bright, noisy", dataset=name, recipe=leaning, zipf=True),
        FieldCase(name="m3", title="MNIST: covered, low resolution", dataset=name, recipe=covered),
        FieldCase(name="m4", title="MNIST: moved, out of focus, pale", dataset=name, recipe=soft, zipf=True),
    )


def _fashion() -> tuple[FieldCase, ...]:
    name = "fashion-mnist"
    dark = conditions(name, exposure=(-1.2, 0.4), shot_noise=(0.15, 0.04))
    leaning = conditions(name, shear=(0.2, 0.1), blur=(1.2, 0.3))
    stored = conditions(name, gamma=(-0.5, 0.2), jpeg=(4.0, 1.0))
    waves = conditions(name, gaussian_noise=(0.1, 0.03))
    return (
        FieldCase(name="f1", title="Fashion: dark, sensor noise", dataset=name, recipe=dark, zipf=True),
        FieldCase(name="f2", title="Fashion: leaning, blurred", dataset=name, recipe=leaning),
        FieldCase(name="f3", title="Fashion: light curve, JPEG", dataset=name, recipe=stored, zipf=True),
        FieldCase(name="f4", title="Fashion: waves, noisy", dataset=name, recipe=waves, waves=True),
    )


def _cifar() -> tuple[FieldCase, ...]:
    name = "cifar10"
    light = {"exposure": (-0.9, 0.3), "warmth": (0.25, 0.1), "shot_noise": (0.02, 0.006)}
    dusk = conditions(name, motion_blur=(1.4, 0.4), motion_angle=(20, 20), **light)
    fog = conditions(name, fog=(0.25, 0.08), saturation=(-0.5, 0.2), downsampling=(0.25, 0.08))
    lens = conditions(name, vignetting=(0.5, 0.12), tint=(0.2, 0.08), gaussian_noise=(0.04, 0.012))
    return (
        FieldCase(name="c1", title="CIFAR-10: dusk", dataset=name, recipe=dusk, zipf=True),
        FieldCase(name="c2", title="CIFAR-10: fog, pale, low resolution", dataset=name, recipe=fog),
        FieldCase(name="c3", title="CIFAR-10: vignetting, tint, noisy", dataset=name, recipe=lens),
        FieldCase(name="c4", title="CIFAR-10: class shares alone", dataset=name, recipe=conditions(name), zipf=True),
    )


def _real() -> tuple[FieldCase, ...]:
    return (
        FieldCase(name="usps", title="USPS, for a model of MNIST", dataset="mnist"),
        FieldCase(
            name="tinyimagenet",
            title="Tiny ImageNet's images of seven classes, for a model of CIFAR-10",
            dataset="cifar10",
        ),
    )


# Downstream -----------------------------------------------------------------------------------------------------------


def _loop(dataset: str, *, train: int, **options: object) -> FieldSetting:
    """How the loops of the study of campaigns retrain; names and inputs are replaced by those of the field."""
    finetune = OperationalFinetune(epochs=4, steps=100, max_drop=0.02, patience=None, progress=False)
    return FieldSetting(
        name="",
        title="",
        dataset=dataset,
        declared=BEFORE,
        widest=BEFORE,
        train=train,
        finetune=replace(finetune, **options),  # type: ignore[arg-type]
    )


WAYS = ("before", "palette")
"""Where the recipe comes from: conditions that had to be declared, or the default palette."""
VARIANTS = (AUGMENTED, FULL)


def _smoke() -> FieldStudySetting:
    noisy = conditions("digits", rotation=(15, 8), gaussian_noise=(0.15, 0.04))
    loop = LoopSetting(
        field=_loop("digits", train=400, epochs=1, steps=10, max_drop=0.1),
        rounds=1,
        seeds_per_round=20,
        cases_per_round=10,
        labels_per_round=20,
    )
    return FieldStudySetting(
        cases=(
            FieldCase(name="d1", title="digits: turned, noisy", dataset="digits", recipe=noisy, zipf=True),
            FieldCase(name="d2", title="digits: nothing", dataset="digits", recipe=conditions("digits"), zipf=True),
        ),
        seeds=(0,),
        seen=520,  # a campaign needs that many; images repeat
        clean=500,
        labelled=100,
        truth=120,
        judged=60,
        taught=1_000,
        epochs=3,
        controls=("digits",),
        resamples=1,
        large=("digits", 28, 60),
        downstream=DownstreamSetting(case="d1", loop=loop, seeds=(0,)),
    )
