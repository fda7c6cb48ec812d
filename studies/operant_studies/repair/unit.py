"""One method on one field with one seed: true error, clean accuracy and CPU time at every budget."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from operant.model import Classifier
from operant.profile import FittedConditions, Priors, estimate_priors, fit_conditions
from operant.retrain import FieldKnowledge, known_field
from operant.rng import spawn
from operant_studies.field.fields import FieldInputs, load_model, make_inputs
from operant_studies.field.settings import FieldCase
from operant_studies.repair.campaign import campaign_points
from operant_studies.repair.methods import MethodRun
from operant_studies.repair.settings import CAMPAIGN, RepairSetting
from operant_studies.shared import Steps, Units, slug


@dataclass(frozen=True, kw_only=True)
class BudgetPoint:
    """A method after it has spent so many labels."""

    labels: int
    pmi: float  # error on true field inputs
    clean: float  # accuracy on clean inputs that nothing learned from
    seconds: float  # CPU time so far
    kept: str = ""  # the arm that won, if there was a race
    best: float | None = None  # lowest error among the candidates that trained to the end, if there was a race


@dataclass(frozen=True, kw_only=True)
class MethodCurve:
    """A method at every budget."""

    method: str
    points: tuple[BudgetPoint, ...]

    def at(self, labels: int) -> BudgetPoint:
        return next(point for point in self.points if point.labels == labels)


@dataclass(frozen=True, kw_only=True)
class FieldBefore:
    """The original model in the field."""

    pmi: float
    clean: float
    n: int  # labelled field inputs behind pmi
    unexplained: float
    active: tuple[str, ...]
    shares_apart: float  # total variation of the estimated class shares from the true ones


def units(setting: RepairSetting, data: Path | None, out: Path) -> Units:
    """One unit per method, field and seed, seed by seed."""
    return [
        (f"{case.name}, seed {seed}: {name}", partial(run_method, setting, case, data, seed, name, out))
        for seed in setting.all_seeds
        for case in setting.inputs.cases
        for name in setting.methods_of(case)
        if seed in setting.seeds_of(case, name)
    ]


def known_units(setting: RepairSetting, data: Path | None, out: Path) -> Units:
    """What is estimated of each field, which all methods share."""
    return [
        (f"{case.name}, seed {seed}", partial(run_known, setting, case, data, seed, out))
        for seed in setting.seeds
        for case in setting.inputs.cases
    ]


def steps_of(out: Path, case: FieldCase, seed: int) -> Steps:
    return Steps(out / "steps" / f"{case.name}-{seed}")


def run_known(setting: RepairSetting, case: FieldCase, data: Path | None, seed: int, out: Path) -> None:
    """Estimate conditions and class shares; a module-level function, so that other processes can run it."""
    steps = steps_of(out, case, seed)
    if not steps.done("before"):
        unit = RepairUnit(setting, case, data, seed, out)
        steps.step("before", FieldBefore, unit.before)


def run_method(setting: RepairSetting, case: FieldCase, data: Path | None, seed: int, name: str, out: Path) -> None:
    """Run one method if it is not finished."""
    steps = steps_of(out, case, seed)
    if not steps.done(slug(name)):
        unit = RepairUnit(setting, case, data, seed, out)
        steps.step(slug(name), MethodCurve, partial(unit.curve, name))


class RepairUnit:
    """A field with its model and what is known about it."""

    def __init__(self, setting: RepairSetting, case: FieldCase, data: Path | None, seed: int, out: Path) -> None:
        self.setting, self.case, self.seed, self.out = setting, case, seed, out
        inputs = make_inputs(setting.inputs, case, data, seed)
        self.large = case.dataset == "cifar10"
        truth = inputs.truth[: setting.large_truth if self.large else setting.truth]
        self.inputs: FieldInputs = replace(inputs, truth=truth)
        self.model: Classifier = load_model(setting.inputs, case.dataset, data, seed, out / "networks")
        self.steps = steps_of(out, case, seed)
        self.known_models: dict[int, tuple[Classifier, tuple[float, float]]] = {}

    @property
    def conditions(self) -> FittedConditions:
        inputs = self.inputs

        def work() -> FittedConditions:
            return fit_conditions(inputs.seen, inputs.clean, generator=spawn(self.seed, "c"), progress=False)

        return self.steps.step("conditions", FittedConditions, work)

    @property
    def priors(self) -> Priors:
        inputs = self.inputs

        def work() -> Priors:
            generator = spawn(self.seed, "p")
            return estimate_priors(
                self.model, inputs.labelled, inputs.seen, conditions=self.conditions, generator=generator
            )

        return self.steps.step("priors", Priors, work)

    @property
    def known(self) -> FieldKnowledge:
        inputs = self.inputs
        return known_field(
            train=inputs.fresh[: self.setting.train],
            clean=inputs.labelled,
            field=inputs.seen,
            conditions=self.conditions,
            priors=self.priors,
        )

    def before(self) -> FieldBefore:
        found, priors = self.conditions, self.priors
        return FieldBefore(
            pmi=1 - self.model.accuracy(self.inputs.truth),
            clean=self.model.accuracy(self.inputs.labelled),
            n=len(self.inputs.truth),
            unexplained=found.unexplained,
            active=found.active,
            shares_apart=sum(abs(a - b) for a, b in zip(priors.values, self.inputs.shares, strict=True)) / 2,
        )

    def curve(self, name: str) -> MethodCurve:
        if name == CAMPAIGN:
            return self._campaign()
        run = MethodRun(
            setting=self.setting,
            name=name,
            large=self.large,
            schedules=self.setting.schedules(self.case),
            model=self.model,
            known=self.known,
            truths=self.inputs.seen,
            seed=self.seed,
        )
        points = [self._point(b.labels, b.model, b.seconds, b.kept, b.finalists) for b in run()]
        return MethodCurve(method=name, points=tuple(points))

    def _campaign(self) -> MethodCurve:
        start = time.process_time()
        reached = campaign_points(self.setting, self.case, self.inputs, self.model, self.conditions, self.out)
        seconds = time.process_time() - start
        points = []
        for labels in (0, *self.setting.budgets):
            model = [model for bought, model in reached if bought <= labels]
            points.append(self._point(labels, model[-1] if model else self.model, seconds, ""))
        return MethodCurve(method=CAMPAIGN, points=tuple(points))

    def _point(
        self, labels: int, model: Classifier, seconds: float, kept: str, finalists: tuple[Classifier, ...] = ()
    ) -> BudgetPoint:
        pmi, clean = self._measured(model)
        best = min([pmi, *(self._measured(each)[0] for each in finalists)]) if finalists else None
        return BudgetPoint(labels=labels, pmi=pmi, clean=clean, seconds=seconds, kept=kept, best=best)

    def _measured(self, model: Classifier) -> tuple[float, float]:
        """True error and clean accuracy; measured once per model, since methods return some of them again."""
        if id(model) not in self.known_models:
            values = 1 - model.accuracy(self.inputs.truth), model.accuracy(self.inputs.labelled)
            self.known_models[id(model)] = (model, values)
        return self.known_models[id(model)][1]
