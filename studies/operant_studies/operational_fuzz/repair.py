"""Repair: true pmi after retraining with n cases, by the source of the cases."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from operant import measure, select
from operant.conditions import Recipe
from operant.data import Samples
from operant.generate import PGD, ConditionMove, FOLFuzz, OperationalFuzz
from operant.model import Classifier
from operant.profile import estimate_priors
from operant.retrain import Retrained, pmi_monitor
from operant.rng import spawn
from operant.suite import Suite
from operant.types import Fuzzer
from operant_studies.operational_fuzz.fields import StudyField, make_field, under
from operant_studies.operational_fuzz.instruments import FieldInstruments
from operant_studies.operational_fuzz.settings import FieldSetting
from operant_studies.shared import Steps, Units

DECLARED, UNDECLARED, ROUNDS = "OperationalFuzz, declared", "OperationalFuzz, undeclared", "the same, in rounds"
RANDOM, PGD_CASES, FOL_CASES = "random conditions", "PGD", "FOL-Fuzz + BE-ST"
GINI, LABELLED = "DeepGini", "labelled at random"
SIZED = (DECLARED, UNDECLARED, ROUNDS, RANDOM, PGD_CASES, FOL_CASES, GINI, LABELLED)
AUGMENTED, CONTROL = "augmentation, no cases", "clean control"
UNIFORM_SHARE = 0.1  # of the seeds, drawn regardless of the estimated priors
PILOT = 300  # cases for the choice of the attacks' radius


@dataclass(frozen=True, kw_only=True)
class RepairResult:
    """One retraining."""

    arm: str  # source of the cases
    n: int  # cases requested; 0 for arms without cases
    cases: int  # cases used
    # pmi, clean: error of the retrained model on true field inputs, accuracy on clean ones
    pmi: float
    clean: float
    monitor: float  # value of the monitor
    epoch: int  # chosen by the monitor; 0 for the original weights
    seconds: float  # CPU time to make and choose the cases


def units(settings: Sequence[FieldSetting], data: Path | None, out: Path) -> Units:
    """One unit per field and seed, in the order of seeds."""
    pairs = [(setting, seed) for setting in settings if setting.sizes for seed in setting.seeds]
    return [
        (f"repair of {setting.name}, seed {seed}", partial(run_unit, setting, data, seed, out))
        for setting, seed in sorted(pairs, key=lambda pair: pair[1])
    ]


def run_unit(setting: FieldSetting, data: Path | None, seed: int, out: Path) -> None:
    """Retrain with every arm; a module-level function, so that other processes can run it."""
    steps = steps_of(setting, seed, out)
    if all(steps.done(name) for name in names(setting)):
        return
    field = make_field(setting, data, seed, out / "networks")
    RepairUnit(field, FieldInstruments(field, out / "instruments"), steps, out / "steps").run()


def steps_of(setting: FieldSetting, seed: int, out: Path) -> Steps:
    return Steps(out / "steps" / f"repair-{setting.name}-{seed}")


def sized_arms(setting: FieldSetting) -> tuple[str, ...]:
    """The arms that run with every number of cases."""
    return tuple(arm for arm in SIZED if setting.rounds or arm != ROUNDS)


def names(setting: FieldSetting) -> dict[str, tuple[str, int]]:
    """The steps of a unit, with the arm and number of cases of each."""
    sized = [(arm, n) for n in setting.sizes for arm in sized_arms(setting)]
    arms = [("before", 0), (CONTROL, 0), (AUGMENTED, 0), *sized]
    return {f"{arm.replace(' ', '-').replace(',', '')}-{n}": (arm, n) for arm, n in arms}


@dataclass(frozen=True)
class RepairUnit:
    """One field with one seed."""

    field: StudyField
    instruments: FieldInstruments
    steps: Steps
    folder: Path

    def run(self) -> None:
        for name, (arm, n) in names(self.setting).items():
            self.steps.step(name, RepairResult, partial(self.outcome, arm, n))

    @property
    def setting(self) -> FieldSetting:
        return self.field.setting

    def outcome(self, arm: str, n: int) -> RepairResult:
        if arm == "before":
            return self._judged(self.field.model, arm=arm, n=0, cases=0, epoch=0, seconds=0.0)
        start = time.process_time()
        cases = self._cases(arm, n)
        seconds = time.process_time() - start
        repaired = self._retrained(cases, control=arm == CONTROL)
        epoch = repaired.record.best_epoch
        return self._judged(repaired.model, arm=arm, n=n, cases=len(cases), epoch=epoch, seconds=seconds)

    def _judged(self, model: Classifier, *, arm: str, n: int, cases: int, epoch: int, seconds: float) -> RepairResult:
        return RepairResult(
            arm=arm,
            n=n,
            cases=cases,
            pmi=1 - model.accuracy(self.field.truth),
            clean=model.accuracy(self.field.clean_test),
            monitor=pmi_monitor(self.field.watched)(model),
            epoch=epoch,
            seconds=seconds,
        )

    def _retrained(self, cases: Samples, *, control: bool = False) -> Retrained:
        """Retrain from the original weights; every arm in the same way, with the same monitor."""
        finetune = self.setting.finetune
        if control:
            finetune = replace(finetune, case_share=0.0, must_improve=False)
        return finetune(
            self.field.model,
            self.field.train,
            cases,
            validation=self.field.clean,
            monitor=pmi_monitor(self.field.watched),
            generator=spawn(self.field.seed, self.setting.name, "retraining"),
        )

    # Sources of cases

    def _cases(self, arm: str, n: int) -> Samples:
        generator = spawn(self.field.seed, self.setting.name, arm, n)
        if arm == CONTROL:
            return self.field.train[:0]
        if arm == DECLARED:
            return self._failures(self.field.model, self.setting.declared, n, generator)
        fitted = self.instruments.conditions.recipe
        if arm == UNDECLARED:
            return self._failures(self.field.model, fitted, n, generator)
        if arm == ROUNDS:
            return self._in_rounds(fitted, n, generator)
        if arm in (RANDOM, AUGMENTED):
            n = n or round(self._rows * (self.setting.finetune.case_share or 0.0))
            return under(fitted, self._seeds(fitted, n, generator), generator=generator)
        if arm in (PGD_CASES, FOL_CASES):
            return self._attacked(arm, self.radius, n, generator)
        return self._labelled(arm, n, generator)

    @property
    def _rows(self) -> int:
        """Training rows of a retraining."""
        f = self.setting.finetune
        return f.epochs * (f.steps or 1) * f.batch_size

    def _failures(self, model: Classifier, recipe: Recipe, n: int, generator: torch.Generator) -> Samples:
        """n operational failures of a model, drawn from those found by conditions; fewer if it fails too rarely.

        Seeds follow the field's class frequencies and severities follow the recipe, so failures already occur as often
        as in the field; weighting them by the masses of their cells would count that twice.
        """
        guide = self.instruments
        move = ConditionMove(recipe=recipe, naturalness=guide.naturalness)
        moves: dict[str, Fuzzer] = {"conditions": move}
        fuzz = OperationalFuzz(moves=moves, naturalness=guide.naturalness, profile=guide.profile, per_seed=1)
        found = [self.field.train[:0]]
        for _ in range(10):
            seeds = self._seeds(recipe, max(100, 2 * n), generator)
            suite = fuzz(model, seeds, generator=generator)
            found.append(suite.operational().samples() if len(suite) else self.field.train[:0])
            if sum(len(part) for part in found) >= n:
                break
        cases = Samples.concat(found)
        return cases[torch.randperm(len(cases), generator=generator)[:n]]

    def _in_rounds(self, recipe: Recipe, n: int, generator: torch.Generator) -> Samples:
        """n cases found in several rounds, each with the model retrained on the cases so far."""
        model, cases = self.field.model, self.field.train[:0]
        for r in range(self.setting.rounds):
            more = n * (r + 1) // self.setting.rounds - len(cases)
            cases = Samples.concat([cases, self._failures(model, recipe, more, generator)])
            if r + 1 < self.setting.rounds:
                model = self._retrained(cases).model
        return cases

    def _seeds(self, recipe: Recipe, n: int, generator: torch.Generator) -> Samples:
        """Training inputs, drawn by the estimated class frequencies of the field."""
        labels = self.field.train.labels
        priors = self._declared_priors if recipe is self.setting.declared else self._fitted_priors
        chances = (priors / torch.bincount(labels, minlength=len(priors)))[labels]
        return self.field.train[torch.multinomial(chances, n, replacement=True, generator=generator)]

    @cached_property
    def _declared_priors(self) -> Tensor:
        return self._priors(self.setting.declared)

    @cached_property
    def _fitted_priors(self) -> Tensor:
        return self._priors(self.instruments.conditions.recipe)

    def _priors(self, recipe: Recipe) -> Tensor:
        """Class frequencies of the field, estimated from outputs on it and on clean inputs under the recipe."""
        generator = spawn(self.field.seed, "priors")
        clean = under(recipe, Samples.concat([self.field.clean] * 4), generator=generator)
        fitted = estimate_priors(self.field.model, clean, self.field.seen, resamples=20, generator=generator)
        values = torch.as_tensor(fitted.values, dtype=torch.float64)
        return (1 - UNIFORM_SHARE) * values + UNIFORM_SHARE / len(values)

    def _attacked(self, arm: str, radius: float, n: int, generator: torch.Generator) -> Samples:
        """Cases of an attack from random training inputs; for FOL-Fuzz, those that BE-ST chooses."""
        rows = torch.randperm(len(self.field.train), generator=generator)
        model, seeds = self.field.model, self.field.train
        if arm == PGD_CASES:
            return PGD(radius=radius)(model, seeds[rows[:n]], generator=generator).samples()
        fuzz = FOLFuzz(radius=radius, rows_per_seed=100)
        cases = fuzz(model, seeds[rows[: max(100, n // 2)]], generator=generator)
        if len(cases) <= n:
            return cases.samples()
        chosen: Suite = cases[select.be_st(cases["fol"], n, generator=generator)]
        return chosen.samples()

    @cached_property
    def radius(self) -> float:
        """The one of three whose PGD cases retrain best by the monitor; chosen once per field, with its first seed."""
        pilot = Steps(self.folder / f"pilot-{self.setting.name}").step("radius", ChosenRadius, self._pilot)
        return pilot.value

    def _pilot(self) -> ChosenRadius:
        monitors = {}
        for radius in self.setting.radii:
            generator = spawn(self.setting.seeds[0], self.setting.name, "pilot")
            cases = self._attacked(PGD_CASES, radius, min(PILOT, max(self.setting.sizes)), generator)
            monitors[radius] = pmi_monitor(self.field.watched)(self._retrained(cases).model)
        return ChosenRadius(value=min(monitors, key=lambda radius: monitors[radius]), monitors=tuple(monitors.values()))

    def _labelled(self, arm: str, n: int, generator: torch.Generator) -> Samples:
        """Field inputs with bought labels: at random, or those the model is least sure of."""
        pool = Samples.concat([self.field.seen, self.field.judging])
        n = min(n, len(pool))
        if arm == LABELLED:
            return pool[torch.randperm(len(pool), generator=generator)[:n]]
        impurity = measure.gini(self.field.model.probs(pool.x))
        return pool[select.gini(impurity, n, generator=generator)]


@dataclass(frozen=True, kw_only=True)
class ChosenRadius:
    """The chosen radius of attacks, and the monitor's value for every radius."""

    value: float
    monitors: tuple[float, ...]
