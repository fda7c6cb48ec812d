"""What the study of cases runs at each scale: fields, kinds of cases, checkpoints, and budgets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from operant_studies.field.settings import FieldCase, FieldStudySetting, conditions
from operant_studies.field.settings import settings as field_settings
from operant_studies.shared import check_scale

PLAIN, RECIPE, ELSEWHERE = "as they are", "under the estimated recipe", "under other conditions"
"""What a checkpoint's training images look like."""

TRUE, ESTIMATED = "true recipe", "estimated recipe"
STRONG, WRONG, OTHER = "too strong", "wrong recipe", "other images"
GRADIENT = ("gradient noise, smaller radius", "gradient noise, larger radius")
KINDS = (TRUE, ESTIMATED, STRONG, WRONG, *GRADIENT, OTHER)
BAD = (STRONG, WRONG, *GRADIENT, OTHER)
"""Kinds of cases; a judge should accept the first two and reject the bad ones."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """How one of the compared models is trained."""

    images: int
    learned: str = PLAIN
    wrong_labels: float = 0.0  # share of training labels that are replaced at random
    epochs: int = 1
    learning_rate: float = 1e-3

    @property
    def name(self) -> str:
        """
        >>> Checkpoint(images=500, wrong_labels=0.2).name
        '500 images as they are, 20 % wrong labels, 1 epochs, rate 0.001'
        """
        labels = f"{100 * self.wrong_labels:.0f} % wrong labels"
        return f"{self.images} images {self.learned}, {labels}, {self.epochs} epochs, rate {self.learning_rate:g}"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Models of one field that are compared without labels."""

    case: str  # name of the field
    seeds: tuple[int, ...]
    checkpoints: tuple[Checkpoint, ...]


@dataclass(frozen=True, kw_only=True)
class CasesSetting:
    """One scale of the study."""

    inputs: FieldStudySetting  # fields, numbers of their inputs by role, and networks
    # the judge
    judged: tuple[str, ...]  # names of fields
    judge_seeds: tuple[int, ...] = (0, 1, 2)
    kinds: tuple[str, ...] = KINDS
    block: int = 3_000  # training images that draws, and that cases, may be made of
    draws: int = 600  # unselected draws that a judge learns from
    cases: int = 300  # other draws, to be judged
    fresh: int = 500  # field inputs that no judge has seen
    # false rejects: many fits, none of which shares an image with another
    fits: int = 20  # per field
    fitted: tuple[str, ...]  # names of made fields
    fit_field: int = 600
    fit_draws: int = 400
    # the risk map
    risk_cases: int = 3_500  # of the estimated recipe, first from clean labelled inputs, then from training images
    wider_cases: int = 3_000  # of wider conditions, half of them from clean labelled inputs
    moved: int = 1_500  # cases of each move, when moves are compared
    move_seeds: tuple[int, ...] = (0, 1, 2)
    passes: int = 20  # of dropout
    rated: int = 100_000  # inputs whose rating is timed
    # models without labels
    selections: tuple[Selection, ...]
    compared: int = 300  # cases, and field labels, that models are compared by
    attacked: int = 200  # clean inputs for the accuracy under PGD
    shown: int = 100  # cases on a sheet
    looked: int = 4_000  # draws among which they are looked for

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.inputs.seeds

    def case(self, name: str) -> FieldCase:
        return next(case for case in self.inputs.cases if case.name == name)


def settings(scale: str) -> CasesSetting:
    """``small`` is the study; ``smoke`` shows that it runs, on the embedded digits."""
    check_scale(scale, "smoke", "small")
    return _smoke() if scale == "smoke" else _small()


def _small() -> CasesSetting:
    inputs = replace(
        field_settings("small"),
        cases=_fields(),
        seeds=(0, 1, 2, 3, 4),
        truth=5_000,
        taught=40_000,
        epochs=5,
        large=("imagenet", 32, 250),
    )
    three = (0, 1, 2)
    return CasesSetting(
        inputs=inputs,
        judged=("zipf", "dusk", "usps", "tinyimagenet"),
        fitted=("zipf", "dusk"),
        selections=(
            Selection(case="zipf", seeds=three, checkpoints=_trained()),
            Selection(case="usps", seeds=three, checkpoints=_trained()),
            Selection(case="dusk", seeds=(0,), checkpoints=_finetuned()),
        ),
    )


def _fields() -> tuple[FieldCase, ...]:
    turned = conditions("mnist", rotation=(10, 12), brightness=(0.12, 0.06), gaussian_noise=(0.12, 0.04))
    light = {"exposure": (-0.7, 0.25), "warmth": (0.2, 0.08), "shot_noise": (0.012, 0.004)}
    dusk = conditions("cifar10", motion_blur=(1.0, 0.3), motion_angle=(20, 20), **light)
    mild = conditions("mnist", rotation=(2, 5), gaussian_noise=(0.05, 0.015))
    return (
        FieldCase(name="zipf", title="MNIST by Zipf's law, turned, noisy", dataset="mnist", recipe=turned, zipf=True),
        FieldCase(name="dusk", title="CIFAR-10 at dusk", dataset="cifar10", recipe=dusk, zipf=True),
        FieldCase(name="usps", title="USPS, for a model of MNIST", dataset="mnist"),
        FieldCase(name="tinyimagenet", title="Tiny ImageNet, for a model of CIFAR-10", dataset="cifar10"),
        FieldCase(name="mild", title="MNIST by Zipf's law, mild", dataset="mnist", recipe=mild, zipf=True),
    )


def _trained() -> tuple[Checkpoint, ...]:
    """Small networks, trained anew."""
    few = [Checkpoint(images=2_000, learned=learned, epochs=4) for learned in (PLAIN, RECIPE, ELSEWHERE)]
    more = [Checkpoint(images=10_000, learned=learned, epochs=2) for learned in (PLAIN, RECIPE, ELSEWHERE)]
    wrong = [replace(each, wrong_labels=share) for each in more for share in (0.2, 0.5)]
    slow = [replace(each, epochs=1, learning_rate=3e-4) for each in more]
    return (*few, *more, *wrong, *slow, Checkpoint(images=20_000), Checkpoint(images=20_000, learned=RECIPE))


def _finetuned() -> tuple[Checkpoint, ...]:
    """The given network, trained a little more."""
    first = [
        Checkpoint(images=1_500, learned=learned, learning_rate=rate)
        for learned in (PLAIN, RECIPE, ELSEWHERE)
        for rate in (1e-4, 1e-3)
    ]
    wrong = [replace(each, wrong_labels=share) for each in first[1::2] for share in (0.2, 0.5)]
    brief = [replace(each, images=400) for each in first[1::2]]
    return (*first, *wrong, *brief)


def _smoke() -> CasesSetting:
    small = field_settings("smoke")
    noisy = conditions("digits", rotation=(15, 8), gaussian_noise=(0.15, 0.04))
    inputs = replace(
        small,
        cases=(FieldCase(name="digits", title="digits: turned, noisy", dataset="digits", recipe=noisy, zipf=True),),
        seen=300,
        clean=300,
        truth=200,
    )
    checkpoints = [Checkpoint(images=300, learned=learned) for learned in (PLAIN, RECIPE, ELSEWHERE)]
    return CasesSetting(
        inputs=inputs,
        judged=("digits",),
        judge_seeds=(0,),
        kinds=(TRUE, ESTIMATED, WRONG),
        block=150,
        draws=120,
        cases=60,
        fresh=60,
        fits=2,
        fitted=("digits",),
        fit_field=260,
        fit_draws=100,
        risk_cases=300,
        wider_cases=150,
        moved=150,
        move_seeds=(0,),
        passes=4,
        rated=1_000,
        selections=(Selection(case="digits", seeds=(0,), checkpoints=tuple(checkpoints)),),
        compared=60,
        attacked=30,
        shown=20,
        looked=60,
    )
