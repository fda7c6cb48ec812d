"""What the study of repair runs at each scale: fields, budgets of labels, methods and steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from operant.retrain import Schedule
from operant_studies.cases.settings import settings as cases_settings
from operant_studies.field.settings import FieldCase, FieldStudySetting, conditions
from operant_studies.field.settings import settings as field_settings
from operant_studies.shared import check_scale

RANDOM_FT, BADGE_FT = "random labels, fine-tuned", "BADGE, fine-tuned"
AUGMENTED, AUGMENTED_BADGE = "estimated augmentation", "estimated augmentation + BADGE"
GENERIC_BADGE = "generic augmentation + BADGE"
BATCH_NORM, SHOT, CAMPAIGN = "batch-norm statistics", "SHOT", "the present campaign"
REPAIR = "repair"
RIVALS = (RANDOM_FT, BADGE_FT, AUGMENTED, AUGMENTED_BADGE, GENERIC_BADGE, BATCH_NORM, SHOT, CAMPAIGN)
# the default arm with all labels and no race, and without one ingredient or with one more
ARM = "default arm alone"
NO_CONDITIONS, NO_PRIORS, NO_UNLABELLED = "arm without conditions", "arm without class shares", "arm without unlabelled"
SELF_TRAINING, FAILURES = "arm with self-training", "arm with failures"
RISK_BADGE = "arm with risk-weighted BADGE"
FAILURES_ALONE = "failures alone"
MORE_JUDGES = "repair, a quarter of the labels judge"
PARTS = (ARM, NO_CONDITIONS, NO_PRIORS, NO_UNLABELLED, SELF_TRAINING, FAILURES, FAILURES_ALONE, RISK_BADGE, MORE_JUDGES)


@dataclass(frozen=True, kw_only=True)
class RepairSetting:
    """One scale of the study."""

    inputs: FieldStudySetting  # fields, numbers of their inputs by role, and networks
    seeds: tuple[int, ...]
    part_seeds: tuple[int, ...]  # of variants of the default arm, which train for all budgets but do not race
    budgets: tuple[int, ...] = (50, 100, 250, 500)  # labels, after the start without any
    methods: tuple[str, ...] = (*RIVALS, REPAIR, *PARTS)
    large_methods: tuple[str, ...] = (*RIVALS, REPAIR)  # on fields of CIFAR-10, where training costs 20 times as much
    only_failures: tuple[str, ...] = ("mild",)  # fields on which only the default arm and failures run
    train: int = 15_000
    truth: int = 5_000  # field inputs for the true error, at most
    large_truth: int = 2_500
    first: int = 400  # training steps without labels
    later: int = 250  # in each round with labels
    large_first: int = 60
    large_later: int = 30
    max_drop: float = 0.1
    hard_runs: int = 200

    def methods_of(self, case: FieldCase) -> tuple[str, ...]:
        if case.name in self.only_failures:
            return (ARM, FAILURES, FAILURES_ALONE)
        return self.large_methods if case.dataset == "cifar10" else self.methods

    def seeds_of(self, case: FieldCase, method: str) -> tuple[int, ...]:
        """The seeds with which a method runs on a field."""
        if method not in self.methods_of(case):
            return ()
        if method == ARM and case.dataset != "cifar10":
            return self.all_seeds
        if method in PARTS and method != MORE_JUDGES and case.name not in self.only_failures:
            return self.part_seeds
        return self.seeds[:1] if method == CAMPAIGN and case.dataset == "cifar10" else self.seeds

    @property
    def all_seeds(self) -> tuple[int, ...]:
        return tuple(sorted({*self.seeds, *self.part_seeds}))

    def schedules(self, case: FieldCase) -> tuple[Schedule, Schedule]:
        """Of the start without labels, and of a round with labels."""
        large = case.dataset == "cifar10"
        steps = (self.large_first, self.large_later) if large else (self.first, self.later)
        return Schedule(steps=steps[0]), Schedule(steps=steps[1])

    def case(self, name: str) -> FieldCase:
        return next(case for case in self.inputs.cases if case.name == name)


def settings(scale: str) -> RepairSetting:
    """``small`` is the study; ``smoke`` shows that it runs, on the embedded digits."""
    check_scale(scale, "smoke", "small")
    return _smoke() if scale == "smoke" else _small()


def _small() -> RepairSetting:
    cases = cases_settings("small").inputs
    waves = next(case for case in field_settings("small").cases if case.waves)
    named = {case.name: case for case in (*cases.cases, waves)}
    order = ("zipf", waves.name, "usps", "mild", "dusk", "tinyimagenet")
    inputs = replace(cases, cases=tuple(named[name] for name in order))
    return RepairSetting(inputs=inputs, seeds=(203, 204, 205), part_seeds=(203, 204))


def _smoke() -> RepairSetting:
    small = field_settings("smoke")
    noisy = conditions("digits", rotation=(15, 8), gaussian_noise=(0.15, 0.04))
    case = FieldCase(name="digits", title="digits: turned, noisy", dataset="digits", recipe=noisy, zipf=True)
    return RepairSetting(
        inputs=replace(small, cases=(case,), seen=300, clean=300, labelled=150, truth=200),
        seeds=(0,),
        part_seeds=(0,),
        budgets=(20, 80),
        methods=(RANDOM_FT, BADGE_FT, AUGMENTED, AUGMENTED_BADGE, GENERIC_BADGE, SHOT, REPAIR, ARM, FAILURES),
        train=500,
        first=30,
        later=20,
        hard_runs=6,
    )
