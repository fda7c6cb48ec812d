"""One group of cases at a time: the model retrained with it, and what that brought."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from operant.data import Samples
from operant.defend import AccuracyChange, TransferCalibration, accuracy_change, transfer_calibration_rate
from operant.retrain import Finetune, ManifoldMixup
from operant.rng import spawn
from operant.suite import Suite
from operant_studies.defences.fitting import dataset_of, training_of
from operant_studies.defences.suites import Home, attacks_of, folds, given_of, uncommon_of
from operant_studies.enhance.settings import CONTROL, GROUPS, Enhancement
from operant_studies.kuk.models import Ready
from operant_studies.kuk.paper import ATTACKS
from operant_studies.kuk.settings import PATTERNS
from operant_studies.shared import Steps

FEW = 5  # distinct cases below which a group is left out


@dataclass(frozen=True, kw_only=True)
class Enhanced:
    """What retraining with one group of cases brought in one run.

    Attributes:
        group: a pattern, an attack, or the clean control.
        cases: distinct ones that were learned from.
        accuracy: on clean test inputs, before and after; None where there were too few cases to learn from.
        transfer: of attacks on the model as it was, the share that is read correctly now; None likewise.
        epoch: that was kept.
        seconds: of CPU time.
    """

    group: str
    cases: int
    accuracy: AccuracyChange | None
    transfer: TransferCalibration | None
    epoch: int
    seconds: float


def step_name(group: str, run: int) -> str:
    """
    >>> step_name("C&W", 1)
    'c-w-1'
    """
    return f"{re.sub(r'[^a-z]+', '-', group.lower())}-{run}"


def run_retraining(plan: Enhancement, run: int, data: Path | None, home: Home) -> None:
    """All groups of one run."""
    steps = Steps(home.out / "enhance" / plan.name)
    for group in GROUPS:
        steps.step(step_name(group, run), Enhanced, partial(_enhanced, plan, group, run, data, home))


def _enhanced(plan: Enhancement, group: str, run: int, data: Path | None, home: Home) -> Enhanced:
    start = time.process_time()
    given, subject = given_of(plan.plan, data, home), plan.plan.subject
    cases = cases_of(plan, given, group, run, home)
    if len(cases) < FEW:
        seconds = time.process_time() - start
        return Enhanced(group=group, cases=len(cases), accuracy=None, transfer=None, epoch=0, seconds=seconds)
    mixup = Finetune(
        loss=ManifoldMixup(layers=plan.layers, mix="cases"),
        epochs=plan.epochs,
        learning_rate=plan.learning_rate,
        max_drop=1.0,  # a loss of accuracy is what is asked for here, so nothing guards it
        progress=False,
    )
    trained = mixup(
        given.model,
        training_of(subject, data, slice(run * plan.train, (run + 1) * plan.train)),
        _repeated(cases, plan.case_rows),
        validation=training_of(subject, data, slice(-plan.validation, None)),
        generator=spawn(0, "enhance", plan.name, "retrain", run),  # the same for all groups
    )
    attacks = attacks_of(plan.plan, given, ATTACKS, run, home)
    return Enhanced(
        group=group,
        cases=len(cases),
        accuracy=accuracy_change(given.model, trained.model, test_of(plan, given, run, data)),
        transfer=transfer_calibration_rate(trained.model, attacks) if len(attacks) else None,
        epoch=trained.record.best_epoch,
        seconds=time.process_time() - start,
    )


def cases_of(plan: Enhancement, given: Ready, group: str, run: int, home: Home) -> Samples:
    """Cases of a group to learn from: by a pattern, of all searches; by an attack, of seeds that judge nothing; as a
    control, the seeds of the searches as they are."""
    draw = spawn(0, "enhance", plan.name, "cases", run, group)
    if group == CONTROL:
        seeds = searched_from(plan, given)
        return seeds[torch.randperm(len(seeds), generator=draw)[: plan.cases]]
    if group in PATTERNS:
        suite = Suite.concat([uncommon_of(plan.plan, group, of, home) for of in range(plan.plan.runs)])
    else:
        others = [fold for fold in range(folds(plan.plan)) if fold != run]
        suite = Suite.concat([attacks_of(plan.plan, given, [group], fold, home) for fold in others])
    some: Suite = suite[torch.randperm(len(suite), generator=draw)[: plan.cases]]
    return some.samples()


def test_of(plan: Enhancement, given: Ready, run: int, data: Path | None) -> Samples:
    """Test inputs of one run from which no case starts."""
    test = dataset_of(plan.plan.subject, data).test
    used = torch.cat([given.inputs[: plan.plan.attacked].ids, searched_from(plan, given).ids])
    return test[~torch.isin(test.ids, used)][run :: plan.plan.runs][: plan.test]


def searched_from(plan: Enhancement, given: Ready) -> Samples:
    """Seeds of all searches."""
    parts = [part for run in range(plan.plan.runs) for part in plan.plan.parts(run)]
    return Samples.concat([given.seeds[first:after] for _, _, first, after in parts])


def _repeated(cases: Samples, rows: int) -> Samples:
    """The same cases again and again, until there are so many rows; of more than that, the first."""
    return cases[torch.arange(rows) % len(cases)]
