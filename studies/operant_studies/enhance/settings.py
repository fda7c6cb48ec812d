"""Settings of the study of enhancement at each scale: suites of the study of defences, and retraining."""

from __future__ import annotations

from dataclasses import dataclass

from operant_studies.defences.settings import DefencePlan, plans
from operant_studies.kuk.paper import ATTACKS
from operant_studies.kuk.settings import PATTERNS

CONTROL = "clean control"
GROUPS = (*PATTERNS, *ATTACKS, CONTROL)  # sources of the cases for retraining
MODELS = ("lenet5", "nin")


@dataclass(frozen=True, kw_only=True)
class EnhancePlan:
    """One model: its suites, and the options of retraining with each group of cases.

    Attributes:
        suites: plan of the study of defences, whose suites are used.
        layers: where manifold mixup mixes.
        cases: maximum number per group.
        case_rows: rows of cases per epoch; cases are repeated to this number and mixed differently each time.
        train: training inputs per run, beside the cases.
        validation: training inputs that choose the epoch; no run trains on them.
        test: inputs per run that measure accuracy; none is a seed of a case or belongs to another run.
        epochs, learning_rate: of retraining.
    """

    suites: DefencePlan
    layers: tuple[str, ...]
    cases: int
    case_rows: int
    train: int
    validation: int
    test: int
    epochs: int
    learning_rate: float

    @property
    def name(self) -> str:
        return self.suites.name

    @property
    def title(self) -> str:
        return self.suites.title


def enhance_plans(scale: str) -> tuple[EnhancePlan, ...]:
    """The models of a scale."""
    by_name = {plan.name: plan for plan in plans(scale) if plan.name in MODELS}
    if scale == "smoke":
        return (_smoke(by_name["lenet5"]),)
    return _lenet5(by_name["lenet5"]), _nin(by_name["nin"])


def _lenet5(suites: DefencePlan) -> EnhancePlan:
    return EnhancePlan(
        suites=suites, layers=("input", "pool1", "pool2"), cases=60, case_rows=2_000, train=8_000, validation=1_000,
        test=2_000, epochs=3, learning_rate=5e-4,
    )  # fmt: skip


def _nin(suites: DefencePlan) -> EnhancePlan:
    return EnhancePlan(
        suites=suites, layers=("input", "pool1", "pool2"), cases=40, case_rows=1_000, train=2_000, validation=1_000,
        test=2_500, epochs=2, learning_rate=5e-5,
    )  # fmt: skip


def _smoke(suites: DefencePlan) -> EnhancePlan:
    return EnhancePlan(
        suites=suites, layers=("input", "pool1"), cases=8, case_rows=32, train=128, validation=60, test=20, epochs=1,
        learning_rate=5e-4,
    )  # fmt: skip
