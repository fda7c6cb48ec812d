"""What the study of enhancement runs at each scale: suites of the study of defences, and how models are retrained."""

from __future__ import annotations

from dataclasses import dataclass

from operant_studies.defences.settings import Plan, plans
from operant_studies.kuk.paper import ATTACKS
from operant_studies.kuk.settings import PATTERNS

CONTROL = "clean control"
GROUPS = (*PATTERNS, *ATTACKS, CONTROL)  # what is learned from beside training data
MODELS = ("lenet5", "nin")


@dataclass(frozen=True, kw_only=True)
class Enhancement:
    """One model: its suites, and how it is retrained with each group of cases.

    Attributes:
        plan: of the study of defences, whose suites are used.
        layers: that manifold mixup mixes at.
        cases: of a group, at most.
        case_rows: rows of cases in an epoch; cases are repeated until there are so many, each time mixed anew.
        train: training inputs of each run, beside the cases.
        validation: training inputs that choose the epoch, in no run's training.
        test: inputs that tell accuracy in each run; none of them is a seed of any case, or of another run.
        epochs, learning_rate: of retraining.
    """

    plan: Plan
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
        return self.plan.name

    @property
    def title(self) -> str:
        return self.plan.title


def enhancements(scale: str) -> tuple[Enhancement, ...]:
    """``small`` is the study; ``smoke`` shows that it runs, on the embedded digits."""
    by_name = {plan.name: plan for plan in plans(scale) if plan.name in MODELS}
    if scale == "smoke":
        return (_smoke(by_name["lenet5"]),)
    return _lenet5(by_name["lenet5"]), _nin(by_name["nin"])


def _lenet5(plan: Plan) -> Enhancement:
    return Enhancement(
        plan=plan,
        layers=("input", "pool1", "pool2"),
        cases=60,
        case_rows=2_000,
        train=8_000,
        validation=1_000,
        test=2_000,
        epochs=3,
        learning_rate=5e-4,
    )


def _nin(plan: Plan) -> Enhancement:
    return Enhancement(
        plan=plan,
        layers=("input", "pool1", "pool2"),
        cases=40,
        case_rows=1_000,
        train=2_000,
        validation=1_000,
        test=2_500,
        epochs=2,
        learning_rate=5e-5,
    )


def _smoke(plan: Plan) -> Enhancement:
    return Enhancement(
        plan=plan,
        layers=("input", "pool1"),
        cases=8,
        case_rows=32,
        train=128,
        validation=60,
        test=20,
        epochs=1,
        learning_rate=5e-4,
    )
