"""Methods: from a model, what is known about a field and a budget of labels to a better model, budget by budget."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from operant.data import Samples
from operant.model import Classifier
from operant.profile import fit_risk
from operant.retrain import (
    BatchNormStatistics,
    CaseTraining,
    FieldKnowledge,
    FieldTraining,
    Repaired,
    Retrainer,
    Schedule,
    TeachingLabels,
    default_arms,
    find_rate,
    judge_labels,
    repair,
)
from operant.rng import spawn
from operant.seeds import AtRandom, Badge, RiskBadge, Strategy, acquire
from operant_studies.repair.failures import operational_failures, risk_cases
from operant_studies.repair.settings import (
    ARM,
    AUGMENTED,
    AUGMENTED_BADGE,
    BADGE_FT,
    BATCH_NORM,
    FAILURES,
    FAILURES_ALONE,
    GENERIC_BADGE,
    MORE_JUDGES,
    NO_CONDITIONS,
    NO_PRIORS,
    NO_UNLABELLED,
    RANDOM_FT,
    REPAIR,
    RISK_BADGE,
    SELF_TRAINING,
    SHOT,
    RepairSetting,
)

ARMS: dict[str, FieldTraining] = {
    RANDOM_FT: FieldTraining(conditions=False, generic=0.0, priors=False, information=0.0),
    BADGE_FT: FieldTraining(conditions=False, generic=0.0, priors=False, information=0.0),
    AUGMENTED: FieldTraining(labels=False, generic=0.0, priors=False, information=0.0),
    AUGMENTED_BADGE: FieldTraining(generic=0.0, priors=False, information=0.0),
    GENERIC_BADGE: FieldTraining(conditions=False, generic=1.0, priors=False, information=0.0),
    SHOT: FieldTraining(labels=False, conditions=False, generic=0.0, priors=False, information=1.0, self_training=0.3),
    ARM: FieldTraining(),
    NO_CONDITIONS: FieldTraining(conditions=False),
    NO_PRIORS: FieldTraining(priors=False),
    NO_UNLABELLED: FieldTraining(information=0.0),
    SELF_TRAINING: FieldTraining(self_training=1.0),
    FAILURES: FieldTraining(failures=True),
    RISK_BADGE: FieldTraining(),
}
STARTS_LATE = (RANDOM_FT, BADGE_FT)  # nothing to train without labels
CONSTANT = (AUGMENTED, SHOT, BATCH_NORM)  # methods that use no labels: trained once
LARGE_ROWS = {"clean_rows": 8, "field_rows": 40, "unlabelled_rows": 24}  # per step, where training is expensive


@dataclass(frozen=True, kw_only=True, eq=False)
class Budgeted:
    """The state of a method after it has spent a budget."""

    labels: int
    model: Classifier
    seconds: float  # CPU time so far
    kept: str = ""  # the arm, if there was a race
    finalists: tuple[Classifier, ...] = ()  # candidates that trained to the end


@dataclass(frozen=True, kw_only=True, eq=False)
class MethodRun:
    """One method on one field with one seed.

    Args:
        known: without any teaching labels.
        truths: the field inputs of ``known`` with their labels, which are revealed as they are bought.
    """

    setting: RepairSetting
    name: str
    large: bool
    schedules: tuple[Schedule, Schedule]
    model: Classifier
    known: FieldKnowledge
    truths: Samples
    seed: int

    def __call__(self) -> Iterator[Budgeted]:
        if self.name in (REPAIR, MORE_JUDGES):
            return self._repair()
        if self.name == BATCH_NORM:
            return self._constant(BatchNormStatistics(), self.known)
        if self.name == FAILURES_ALONE:
            return self._constant(CaseTraining(), self._with_failures(self.known))
        return self._constant(self.arm, self.known) if self.name in CONSTANT else self._chain()

    @cached_property
    def arm(self) -> FieldTraining:
        size: dict[str, Any] = LARGE_ROWS if self.large else {}
        return replace(ARMS[self.name], **size)

    @property
    def budgets(self) -> tuple[int, ...]:
        return self.setting.budgets

    def _generator(self, *path: int | str) -> torch.Generator:
        return spawn(self.seed, self.name, *path)

    # Methods without labels

    def _constant(self, arm: Retrainer, known: FieldKnowledge) -> Iterator[Budgeted]:
        start = time.process_time()
        if isinstance(arm, FieldTraining):
            arm = self._rated(arm, known)
        try:
            model = arm(self.model, known, generator=self._generator())
        except ValueError:  # no batch norm or no failures: the method does nothing
            model = self.model
        seconds = time.process_time() - start
        for labels in (0, *self.budgets):
            yield Budgeted(labels=labels, model=model, seconds=seconds)

    # One arm, which learns from every label

    def _chain(self) -> Iterator[Budgeted]:
        start = time.process_time()
        known = self.known
        if self.name == FAILURES:
            known = self._with_failures(known)
        arm, model = self._rated(self.arm, known), self.model
        if self.name not in STARTS_LATE:
            model = arm(model, known, generator=self._generator())
        yield Budgeted(labels=0, model=model, seconds=time.process_time() - start)
        arm = replace(arm, schedule=replace(self.schedules[1], learning_rate=arm.schedule.learning_rate))
        own = self.arm.priors
        for labels in self.budgets:
            known = known.with_shares_of(model) if own else known
            known = self._bought(known, model, labels - len(known.labels), self._strategy(model, known))
            model = arm(model, known, generator=self._generator(labels))
            yield Budgeted(labels=labels, model=model, seconds=time.process_time() - start)

    def _with_failures(self, known: FieldKnowledge) -> FieldKnowledge:
        return replace(known, failures=operational_failures(self.model, known, generator=self._generator("cases")))

    def _rated(self, arm: FieldTraining, known: FieldKnowledge) -> FieldTraining:
        """The arm with a learning rate from a range test, as every method has."""
        rows = arm.rows(self.model, known)
        rate = find_rate(self.model, rows, self.schedules[0], generator=self._generator("rate"))
        return replace(arm, schedule=replace(self.schedules[0], learning_rate=rate))

    def _strategy(self, model: Classifier, known: FieldKnowledge) -> Strategy:
        if self.name == RANDOM_FT:
            return AtRandom()
        if self.name != RISK_BADGE or not known.has_conditions:
            return Badge()
        cases = risk_cases(model, known, generator=self._generator("risk", len(known.labels)))
        return RiskBadge(risk=fit_risk(model, cases, priors=known.priors))

    def _bought(self, known: FieldKnowledge, model: Classifier, n: int, strategy: Strategy) -> FieldKnowledge:
        done = known.labels.ids
        chosen = acquire(model, known.field, n, strategy=strategy, already=done, generator=self._generator("buy", n))
        labelled = known.field[chosen.rows].with_labels(self._labels(chosen.ids))
        return known.with_labels(TeachingLabels(samples=labelled, use=chosen.use, drawn=chosen.reason))

    def _labels(self, ids: torch.Tensor) -> torch.Tensor:
        return self.truths.labels[self.truths.rows_of(ids)]

    # The race

    def _repair(self) -> Iterator[Budgeted]:
        start, known = time.process_time(), self.known
        done = self._repaired(known, None, None, self.schedules[0])
        yield self._state(done, 0, start)
        judges = known.field[:0].with_labels(torch.empty(0, dtype=torch.int64))
        for labels in self.budgets:
            known = known.with_shares_of(done.model)
            judges = self._judges(known, judges, self._judge_labels(labels))
            known = known.without(judges.ids)
            known = self._bought(known, done.model, labels - len(judges) - len(known.labels), Badge())
            done = self._repaired(known, judges, done, self.schedules[1])
            yield self._state(done, labels, start)

    def _judge_labels(self, labels: int) -> int:
        """How many labels of a budget judge."""
        few = judge_labels(labels)
        return few if self.name == REPAIR or few == 0 else round(0.25 * labels)

    def _judges(self, known: FieldKnowledge, judges: Samples, n: int) -> Samples:
        """Random field inputs with labels, which are not taught."""
        free = known.field[~torch.isin(known.field.ids, known.labels.ids)]
        rows = torch.randperm(len(free), generator=self._generator("judges", n))[: n - len(judges)]
        more = free[rows]
        return Samples.concat([judges, more.with_labels(self._labels(more.ids))])

    def _repaired(
        self, known: FieldKnowledge, judges: Samples | None, previous: Repaired | None, schedule: Schedule
    ) -> Repaired:
        if previous is not None:
            schedule = replace(schedule, learning_rate=previous.learning_rate)
        return repair(
            self.model,
            known,
            judges=judges,
            arms=self._arms(schedule, known),
            previous=previous,
            max_drop=self.setting.max_drop,
            generator=self._generator("repair", len(known.labels)),
        )

    def _arms(self, schedule: Schedule, known: FieldKnowledge) -> dict[str, Retrainer]:
        size: dict[str, Any] = LARGE_ROWS if self.large else {}
        arms = default_arms(self.model, known, schedule)
        return {n: replace(arm, **size) if isinstance(arm, FieldTraining) else arm for n, arm in arms.items()}

    def _state(self, done: Repaired, labels: int, start: float) -> Budgeted:
        seconds, finalists = time.process_time() - start, tuple(done.chains.values())
        return Budgeted(labels=labels, model=done.model, seconds=seconds, kept=done.kept, finalists=finalists)
