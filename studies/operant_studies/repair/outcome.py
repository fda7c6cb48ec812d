"""What the study of repair found: curves by field, method and seed, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from operant_studies.field.settings import FieldCase
from operant_studies.repair.hard import HardRun
from operant_studies.repair.settings import REPAIR, RIVALS, RepairSetting
from operant_studies.repair.unit import BudgetPoint, FieldBefore, MethodCurve, steps_of
from operant_studies.shared import Steps, slug

MARGIN, SHARE = 0.005, 0.05  # of the best single method's error that repair may be above it: the larger of the two
WORSE = 0.01  # points by which a run counts as worse than the original


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """All results of a study."""

    setting: RepairSetting
    out: Path

    @property
    def fields(self) -> tuple[FieldCase, ...]:
        """Fields on which all methods run."""
        return tuple(case for case in self.setting.inputs.cases if case.name not in self.setting.only_failures)

    @property
    def budgets(self) -> tuple[int, ...]:
        return (0, *self.setting.budgets)

    def before(self, case: FieldCase) -> list[FieldBefore]:
        return [steps_of(self.out, case, seed).read("before", FieldBefore) for seed in self.setting.seeds]

    def curve(self, case: FieldCase, method: str, seed: int) -> MethodCurve:
        return steps_of(self.out, case, seed).read(slug(method), MethodCurve)

    def points(self, case: FieldCase, method: str, labels: int) -> list[BudgetPoint]:
        """One per seed; empty if the method did not run on this field."""
        curves = [self.curve(case, method, seed) for seed in self.setting.seeds_of(case, method)]
        return [curve.at(labels) for curve in curves]

    def differences(self, case: FieldCase, method: str, other: str, labels: int) -> list[float]:
        """How much higher the error of a method is than another's, for each seed with which both ran."""
        common = [s for s in self.setting.seeds_of(case, method) if s in self.setting.seeds_of(case, other)]
        pairs = [[self.curve(case, name, seed).at(labels).pmi for name in (method, other)] for seed in common]
        return [a - b for a, b in pairs]

    def pmi(self, case: FieldCase, method: str, labels: int) -> float | None:
        """The mean over seeds."""
        found = [p.pmi for p in self.points(case, method, labels)]
        return sum(found) / len(found) if found else None

    def over_fields(self, method: str, labels: int) -> float | None:
        """The mean over fields; None if the method did not run on all of them."""
        found = [self.pmi(case, method, labels) for case in self.fields]
        return None if None in found else sum(v for v in found if v is not None) / len(found)

    @cached_property
    def rivals(self) -> tuple[str, ...]:
        return tuple(name for name in RIVALS if any(name in self.setting.methods_of(case) for case in self.fields))

    def best_rival(self, case: FieldCase, labels: int) -> tuple[str, float]:
        """The rival with the lowest mean error on a field at a budget; named afterwards."""
        found = {name: value for name in self.rivals if (value := self.pmi(case, name, labels)) is not None}
        name = min(found, key=lambda each: found[each])
        return name, found[name]

    def too_far(self) -> list[tuple[FieldCase, int, float, str, float]]:
        """Fields and budgets where repair is further from the best rival than allowed."""
        far = []
        for case in self.fields:
            for labels in self.budgets:
                own, (name, best) = self.pmi(case, REPAIR, labels), self.best_rival(case, labels)
                if own is not None and own > best + max(MARGIN, SHARE * best):
                    far.append((case, labels, own, name, best))
        return far

    def regrets(self) -> list[float]:
        """How much better the best finalist was than the winner, for every race with judge labels."""
        points = [p for case in self.fields for labels in self.budgets for p in self.points(case, REPAIR, labels)]
        return [p.pmi - p.best for p in points if p.best is not None]

    @cached_property
    def hard(self) -> list[HardRun]:
        steps = Steps(self.out / "steps" / "hard")
        return steps.load_all([f"run-{i}" for i in range(self.setting.hard_runs)], HardRun)
