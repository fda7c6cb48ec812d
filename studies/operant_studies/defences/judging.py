"""One defence at a time: fitted, and judged on common and on uncommon data."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from operant.defend import DefenceTable, Success, evaluate_defences
from operant.suite import Suite
from operant_studies.defences.fitting import fitted
from operant_studies.defences.settings import Plan
from operant_studies.defences.suites import Home, all_uncommon_of, common_of, given_of, noise_of
from operant_studies.kuk.models import Ready
from operant_studies.shared import Steps

COMMON, UNCOMMON, CONFIRMED, NOISE = "common", "uncommon", "confirmed", "noise"


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What one defence did in one run.

    Attributes:
        defence: its name.
        tables: by data, those that have cases: common ones, uncommon ones, of these the ones whose pattern is confirmed
            with fresh masks, and the control, noise that nobody bred.
        note: what there is to say of the fit.
        seconds: of CPU time.
    """

    defence: str
    tables: dict[str, DefenceTable]
    note: str
    seconds: float

    def row(self, data: str, kind: str = "all", pattern: str = "all") -> Success | None:
        """Successes among cases of a kind and pattern; None if there are none."""
        rows = self.tables[data].rows if data in self.tables else ()
        return next((row for row in rows if (row.kind, row.pattern) == (kind, pattern)), None)


def tried_name(defence: str, run: int) -> str:
    """
    >>> tried_name("label smoothing", 2)
    'label-smoothing-2'
    """
    return f"{re.sub(r'[^a-z]+', '-', defence)}-{run}"


def run_judging(plan: Plan, run: int, data: Path | None, home: Home) -> None:
    """All defences of one run."""
    steps = Steps(home.out / "defences" / plan.name)
    for defence in plan.defences:
        steps.step(tried_name(defence, run), Tried, partial(_tried, plan, defence, run, data, home))


def _tried(plan: Plan, defence: str, run: int, data: Path | None, home: Home) -> Tried:
    start = time.process_time()
    given = given_of(plan, data, home)
    guard, note = fitted(plan, given, defence, run, data, home)
    suites = _suites(plan, run, given, home)
    told = {name: evaluate_defences(suite, {defence: guard}) for name, suite in suites.items() if len(suite)}
    return Tried(defence=defence, tables=told, note=note, seconds=time.process_time() - start)


def _suites(plan: Plan, run: int, given: Ready, home: Home) -> dict[str, Suite]:
    """What a defence is judged on."""
    uncommon = all_uncommon_of(plan, run, home)
    confirmed = torch.as_tensor(uncommon["confirmed"]) > 0 if len(uncommon) else torch.zeros(0, dtype=torch.bool)
    return {
        COMMON: common_of(plan, given, run, home),
        UNCOMMON: uncommon,
        CONFIRMED: uncommon[confirmed],
        NOISE: noise_of(plan, given, run, home),
    }
