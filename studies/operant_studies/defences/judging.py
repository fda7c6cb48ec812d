"""Fits each defence and tests it on common and on uncommon data."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from operant.defend import DefenceTable, Success, evaluate_defences
from operant.suite import Suite
from operant_studies.defences.fitting import fit_defence
from operant_studies.defences.settings import DefencePlan
from operant_studies.defences.suites import SuiteFolders, all_uncommon_of, common_of, noise_of, prepared
from operant_studies.kuk.models import PreparedModel
from operant_studies.shared import Steps, run_step

COMMON, UNCOMMON, CONFIRMED, NOISE = "common", "uncommon", "confirmed", "noise"


@dataclass(frozen=True, kw_only=True)
class DefenceOutcome:
    """The successes of one defence in one run.

    Attributes:
        defence: its name.
        tables: by kind of data, if it has cases: common, uncommon, uncommon whose pattern is confirmed with fresh
            masks, and noise, the control.
        note: remarks on the fit.
        seconds: CPU time.
    """

    defence: str
    tables: dict[str, DefenceTable]
    note: str
    seconds: float

    def row(self, data: str, kind: str = "all", pattern: str = "all") -> Success | None:
        """Successes among cases of a kind and pattern; None if there are no cases."""
        rows = self.tables[data].rows if data in self.tables else ()
        return next((row for row in rows if (row.kind, row.pattern) == (kind, pattern)), None)


def run_judging(plan: DefencePlan, run: int, data: Path | None, folders: SuiteFolders) -> None:
    """Fit and test all defences of one run."""
    steps = Steps(folders.out / "defences" / plan.name)
    for defence in plan.defences:
        steps.step(run_step(defence, run), DefenceOutcome, partial(_judge, plan, defence, run, data, folders))


def _judge(plan: DefencePlan, defence: str, run: int, data: Path | None, folders: SuiteFolders) -> DefenceOutcome:
    start = time.process_time()
    given = prepared(plan, data, folders)
    fitted, note = fit_defence(plan, given, defence, run, data, folders)
    suites = _suites(plan, run, given, folders)
    tables = {name: evaluate_defences(suite, {defence: fitted}) for name, suite in suites.items() if len(suite)}
    return DefenceOutcome(defence=defence, tables=tables, note=note, seconds=time.process_time() - start)


def _suites(plan: DefencePlan, run: int, given: PreparedModel, folders: SuiteFolders) -> dict[str, Suite]:
    """The test data of a defence."""
    uncommon = all_uncommon_of(plan, run, folders)
    confirmed = torch.as_tensor(uncommon["confirmed"]) > 0 if len(uncommon) else torch.zeros(0, dtype=torch.bool)
    return {
        COMMON: common_of(plan, given, run, folders),
        UNCOMMON: uncommon,
        CONFIRMED: uncommon[confirmed],
        NOISE: noise_of(plan, given, run, folders),
    }
