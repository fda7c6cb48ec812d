"""Retrains the model with one group of cases at a time, and measures the effect."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from operant.data import Samples
from operant.defend import AccuracyChange, TransferCalibration, accuracy_change, transfer_calibration_rate
from operant.retrain import ManifoldMixup
from operant.rng import spawn
from operant.suite import Suite
from operant_studies.defences.fitting import training_of
from operant_studies.defences.suites import SuiteFolders, attacks_of, folds, prepared, uncommon_of
from operant_studies.enhance.settings import CONTROL, GROUPS, EnhancePlan
from operant_studies.kuk.models import PreparedModel
from operant_studies.kuk.paper import ATTACKS
from operant_studies.kuk.settings import PATTERNS
from operant_studies.shared import Steps, run_step
from operant_studies.subjects import read_dataset

MIN_CASES = 5  # distinct cases; a group with fewer is left out


@dataclass(frozen=True, kw_only=True)
class RetrainOutcome:
    """The effect of retraining with one group of cases in one run.

    Attributes:
        group: a pattern, an attack, or the clean control.
        cases: number of distinct cases.
        accuracy: on clean test inputs, before and after; None if there were too few cases.
        transfer: the share of attacks on the initial model that is classified correctly now; None likewise.
        epoch: the epoch that was kept.
        seconds: CPU time.
    """

    group: str
    cases: int
    accuracy: AccuracyChange | None
    transfer: TransferCalibration | None
    epoch: int
    seconds: float


def run_retraining(plan: EnhancePlan, run: int, data: Path | None, folders: SuiteFolders) -> None:
    """Retrain with all groups of one run."""
    steps = Steps(folders.out / "enhance" / plan.name)
    for group in GROUPS:
        steps.step(run_step(group, run), RetrainOutcome, partial(_retrain, plan, group, run, data, folders))


def _retrain(plan: EnhancePlan, group: str, run: int, data: Path | None, folders: SuiteFolders) -> RetrainOutcome:
    start = time.process_time()
    given, subject = prepared(plan.suites, data, folders), plan.suites.subject
    cases = cases_of(plan, given, group, run, folders)
    if len(cases) < MIN_CASES:
        seconds = time.process_time() - start
        return RetrainOutcome(group=group, cases=len(cases), accuracy=None, transfer=None, epoch=0, seconds=seconds)
    mixup = ManifoldMixup(
        layers=plan.layers,
        mix="cases",
        epochs=plan.epochs,
        learning_rate=plan.learning_rate,
        max_drop=1.0,  # a loss of accuracy is a result here, so nothing limits it
        progress=False,
    )
    trained = mixup(
        given.model,
        training_of(subject, data, slice(run * plan.train, (run + 1) * plan.train)),
        _repeated(cases, plan.case_rows),
        validation=training_of(subject, data, slice(-plan.validation, None)),
        generator=spawn(0, "enhance", plan.name, "retrain", run),  # the same for all groups
    )
    attacks = attacks_of(plan.suites, given, ATTACKS, run, folders)
    return RetrainOutcome(
        group=group,
        cases=len(cases),
        accuracy=accuracy_change(given.model, trained.model, test_of(plan, given, run, data)),
        transfer=transfer_calibration_rate(trained.model, attacks) if len(attacks) else None,
        epoch=trained.record.best_epoch,
        seconds=time.process_time() - start,
    )


def cases_of(plan: EnhancePlan, given: PreparedModel, group: str, run: int, folders: SuiteFolders) -> Samples:
    """Cases of a group for retraining: of a pattern, from all searches; of an attack, from inputs that do not measure
    transfer; for the control, the unchanged seeds of the searches."""
    draw = spawn(0, "enhance", plan.name, "cases", run, group)
    if group == CONTROL:
        seeds = searched_from(plan, given)
        return seeds[torch.randperm(len(seeds), generator=draw)[: plan.cases]]
    if group in PATTERNS:
        suite = Suite.concat([uncommon_of(plan.suites, group, of, folders) for of in range(plan.suites.runs)])
    else:
        others = [fold for fold in range(folds(plan.suites)) if fold != run]
        suite = Suite.concat([attacks_of(plan.suites, given, [group], fold, folders) for fold in others])
    some: Suite = suite[torch.randperm(len(suite), generator=draw)[: plan.cases]]
    return some.samples()


def test_of(plan: EnhancePlan, given: PreparedModel, run: int, data: Path | None) -> Samples:
    """Test inputs of one run from which no case starts."""
    test = read_dataset(plan.suites.subject.dataset, data).test
    used = torch.cat([given.inputs[: plan.suites.attacked].ids, searched_from(plan, given).ids])
    return test[~torch.isin(test.ids, used)][run :: plan.suites.runs][: plan.test]


def searched_from(plan: EnhancePlan, given: PreparedModel) -> Samples:
    """Seeds of all searches."""
    parts = [part for run in range(plan.suites.runs) for part in plan.suites.parts(run)]
    return Samples.concat([given.seeds[part.first : part.end] for part in parts])


def _repeated(cases: Samples, rows: int) -> Samples:
    """The first ``rows`` cases, repeated if there are fewer."""
    return cases[torch.arange(rows) % len(cases)]
