"""What the headline study runs at each scale: fields, budgets, and which parts of the loop are replaced."""

from __future__ import annotations

from dataclasses import dataclass

from operant_studies.operational_fuzz.settings import FieldSetting
from operant_studies.operational_fuzz.settings import settings as fields

FULL = "the whole loop"
RANDOM_SEEDS, NO_PROFILE = "random seeds", "no profile"
NO_NATURALNESS, NO_FEEDBACK, DEEPGINI = "no naturalness", "no feedback", "DeepGini selection"
PGD_LOOP, ROBOT_LOOP = "PGD", "FOL-Fuzz + BE-ST"
LABELLED, AUGMENTED = "random field inputs, labelled", "augmentation, no cases"
CAMPAIGNS = (FULL, RANDOM_SEEDS, NO_PROFILE, NO_NATURALNESS, NO_FEEDBACK, DEEPGINI, PGD_LOOP, ROBOT_LOOP)
VARIANTS = (*CAMPAIGNS, LABELLED, AUGMENTED)


@dataclass(frozen=True, kw_only=True)
class LoopSetting:
    """One field and the budget of every loop."""

    field: FieldSetting  # source of the inputs, and how every loop retrains
    variants: tuple[str, ...] = VARIANTS  # the loops to run
    rounds: int = 5  # per loop
    # seeds_per_round, cases_per_round: seeds to fuzz, and cases to learn from
    seeds_per_round: int = 300
    cases_per_round: int = 60
    labels_per_round: int = 50  # field inputs labelled to assess the model; the monitor uses them from then on
    radius: float = 1.0  # of the gradient move, in L2


def settings(scale: str) -> tuple[LoopSetting, ...]:
    """``small`` is the study; ``smoke`` shows that it runs, on the embedded digits."""
    by = {field.name: field for field in fields(scale)}
    if scale == "smoke":
        return (LoopSetting(field=by["digits"], rounds=2, seeds_per_round=30, cases_per_round=10, labels_per_round=20),)
    cifar = LoopSetting(
        field=by["outdoors"], variants=(FULL, AUGMENTED, LABELLED), rounds=4, seeds_per_round=200, radius=0.5
    )
    return LoopSetting(field=by["zipf"]), LoopSetting(field=by["usps"]), cifar


def seeds_of(setting: LoopSetting) -> tuple[int, ...]:
    """Five for small networks, one for CIFAR-10, where a loop takes most of an hour."""
    return setting.field.seeds[:1] if setting.field.dataset == "cifar10" else setting.field.seeds
