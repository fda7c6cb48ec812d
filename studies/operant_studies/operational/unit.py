"""One loop in one field with one seed: what it had spent after each round, and how good its model was."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from operant.campaign import Round
from operant.conditions import Recipe
from operant.data import Samples, labels_of
from operant.execution import Event
from operant.model import Classifier
from operant.networks import load_weights
from operant.profile import FittedConditions
from operant.retrain import brier_monitor
from operant.rng import spawn
from operant_studies.operational.settings import CAMPAIGNS, LABELLED, PGD_LOOP, ROBOT_LOOP, LoopSetting
from operant_studies.operational.variants import campaign
from operant_studies.operational_fuzz.fields import StudyField, make_field, under
from operant_studies.operational_fuzz.instruments import FieldInstruments
from operant_studies.operational_fuzz.repair import RepairUnit
from operant_studies.shared import Steps, slug


@dataclass(frozen=True, kw_only=True)
class LoopPoint:
    """The state of a loop after a round."""

    round: int  # 0 is the initial model
    cases: int  # learned from so far
    labels: int  # of field inputs, bought so far
    seconds: float  # CPU time so far, without measuring pmi and clean
    # pmi, clean: error of the model on true field inputs, accuracy on clean ones
    pmi: float
    clean: float


@dataclass(frozen=True, kw_only=True)
class LoopCurve:
    """All points of one loop."""

    variant: str
    points: tuple[LoopPoint, ...]


@dataclass(frozen=True, kw_only=True)
class CpuTime:
    """CPU time of one step."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class TimedConditions:
    """Estimated conditions, and the CPU time of the estimate."""

    conditions: FittedConditions
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TimedRecipe:
    """A recipe, and the CPU time of its estimate."""

    recipe: Recipe
    seconds: float


def steps_of(setting: LoopSetting, seed: int, out: Path) -> Steps:
    return Steps(out / "steps" / f"{setting.field.name}-{seed}")


def run_unit(setting: LoopSetting, data: Path | None, seed: int, variant: str, out: Path) -> None:
    """Run one loop if it is not finished; a module-level function, so that other processes can run it."""
    steps = steps_of(setting, seed, out)
    if not steps.done(slug(variant)):
        field = make_field(setting.field, data, seed, out / "networks")
        unit = LoopUnit(setting=setting, field=field, steps=steps, out=out)
        steps.step(slug(variant), LoopCurve, partial(unit.run, variant))


@dataclass(frozen=True, kw_only=True)
class LoopUnit:
    """A field in which loops run."""

    setting: LoopSetting
    field: StudyField
    steps: Steps
    out: Path
    given: TimedRecipe | None = None  # the recipe, if it is not to be estimated here

    def run(self, variant: str) -> LoopCurve:
        points = self._campaign(variant) if variant in CAMPAIGNS else self._plain(variant)
        return LoopCurve(variant=variant, points=tuple(points))

    # Campaigns, whole or with a part replaced

    def _campaign(self, variant: str) -> list[LoopPoint]:
        estimated, field = self._estimated(), self.field
        sent = Samples.concat([field.seen, field.judging])
        folder = self.out / "campaigns" / f"{field.setting.name}-{field.seed}-{slug(variant)}"
        radius = self._radius() if variant in (PGD_LOOP, ROBOT_LOOP) else self.setting.radius
        clock = RoundClock(self.steps, slug(variant))
        done = campaign(variant, self.setting, estimated.recipe, radius)(
            field.model,
            train=field.train,
            clean=field.clean,
            field=sent.with_labels(None),
            labeller=labels_of(sent),
            folder=folder,
            seed=field.seed,
            on_event=clock,
        )
        blind = variant in (PGD_LOOP, ROBOT_LOOP)
        return self._points(done.rounds, folder, clock, before=0.0 if blind else estimated.seconds)

    def _points(self, rounds: tuple[Round, ...], folder: Path, clock: RoundClock, *, before: float) -> list[LoopPoint]:
        points, model, labels, seconds = [], self.field.model, 0, before
        for done in rounds:
            if done.changed:
                weights = folder / f"round-{done.number:03d}" / "weights.safetensors"
                model = model.rewrap(load_weights(model.unwrap(), weights))
            labels += done.assessment.bought if done.assessment else 0
            seconds += clock.spent(done.number)
            points.append(self._point(done.number, model, cases=done.cases, labels=labels, seconds=seconds))
        return points

    def _point(self, number: int, model: Classifier, *, cases: int, labels: int, seconds: float) -> LoopPoint:
        pmi, clean = 1 - model.accuracy(self.field.truth), model.accuracy(self.field.clean_test)
        return LoopPoint(round=number, cases=cases, labels=labels, seconds=seconds, pmi=pmi, clean=clean)

    def _estimated(self) -> TimedRecipe:
        """The given recipe, or one estimated from unlabelled field inputs."""
        if self.given is not None:
            return self.given

        def work() -> TimedConditions:
            start = time.process_time()
            conditions = FieldInstruments(self.field, self.out / "instruments").conditions
            return TimedConditions(conditions=conditions, seconds=time.process_time() - start)

        found = self.steps.step("conditions", TimedConditions, work)
        return TimedRecipe(recipe=found.conditions.recipe, seconds=found.seconds)

    def _radius(self) -> float:
        """Radius of attacks: the one of three whose cases retrain best by the monitor, chosen once per field."""
        guide = FieldInstruments(self.field, self.out / "instruments")
        return RepairUnit(self.field, guide, self.steps, self.out / "steps").radius

    # Loops without a search

    def _plain(self, variant: str) -> list[LoopPoint]:
        """Rounds that learn from labelled field inputs, or from training inputs under new conditions each time."""
        setting, field = self.setting, self.field
        recipe, seconds = None, 0.0
        if variant != LABELLED:
            estimated = self._estimated()
            recipe, seconds = estimated.recipe, estimated.seconds
        sent, generator = Samples.concat([field.seen, field.judging]), spawn(field.seed, slug(variant))
        sent = sent[torch.randperm(len(sent), generator=generator)]
        model, cases, judge, bought = field.model, field.train[:0], sent[:0], setting.labels_per_round
        points = [self._point(0, model, cases=0, labels=bought, seconds=seconds)]
        for number in range(1, setting.rounds + 1):
            start = time.process_time()
            watched, sent = sent[: setting.labels_per_round], sent[setting.labels_per_round :]
            judge = Samples.concat([judge, watched])
            if recipe is None:
                more, sent = sent[: setting.cases_per_round], sent[setting.cases_per_round :]
                cases, bought = Samples.concat([cases, more]), bought + len(more)
            else:
                rows = torch.randint(len(field.train), (self._rows,), generator=generator)
                cases = under(recipe, field.train[rows], generator=generator)
            model = self._retrained(model, cases, judge, number)
            bought += setting.labels_per_round
            seconds += time.process_time() - start
            learned = len(cases) if recipe is None else 0
            points.append(self._point(number, model, cases=learned, labels=bought, seconds=seconds))
        return points

    @property
    def _rows(self) -> int:
        f = self.setting.field.finetune
        return round(f.epochs * (f.steps or 1) * f.batch_size * (f.case_share or 0.0))

    def _retrained(self, model: Classifier, cases: Samples, judge: Samples, number: int) -> Classifier:
        field, options = self.field, self.setting.field.finetune
        lost = field.model.accuracy(field.clean) - model.accuracy(field.clean)
        left = min(max(options.max_drop - lost, 0.0), 1.0)
        return options(
            model,
            field.train,
            cases,
            validation=field.clean,
            monitor=brier_monitor(judge),
            max_drop=left,
            generator=spawn(field.seed, "plain", number),
        ).model


class RoundClock:
    """CPU time of each round of a campaign, stored so that a resumed campaign has it too."""

    def __init__(self, steps: Steps, name: str) -> None:
        self.steps, self.name = steps, name
        self.since = time.process_time()

    def __call__(self, event: Event) -> None:
        if event.step == "round":
            now = time.process_time()
            self.steps.step(self._name(event.round), CpuTime, lambda: CpuTime(seconds=now - self.since))
            self.since = now

    def spent(self, number: int) -> float:
        if not self.steps.done(self._name(number)):
            raise ValueError("the CPU time of a finished round is missing; delete the campaign's folder and run again")
        return self.steps.read(self._name(number), CpuTime).seconds

    def _name(self, number: int) -> str:
        return f"{self.name}-seconds-{number}"
