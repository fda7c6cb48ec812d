"""One defence at a time: fitted, and judged on common and on uncommon data."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from operant.defend import DefenceTable, Success, evaluate_defences
from operant.studies._work import Steps
from operant.studies.defences.fitting import fitted
from operant.studies.defences.settings import Plan
from operant.studies.defences.suites import Home, all_uncommon_of, common_of, given_of
from operant.suite import Suite

COMMON, UNCOMMON, CONFIRMED = "common", "uncommon", "confirmed"


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What one defence did in one run.

    Attributes:
        defence: its name.
        common: on benign inputs and on attacks that nothing was fitted on.
        confirmed: on uncommon cases whose pattern holds with fresh masks too; None if there are none.
        unconfirmed: on the other uncommon cases.
        note: what there is to say of the fit.
        seconds: of CPU time.
    """

    defence: str
    common: DefenceTable
    confirmed: DefenceTable | None
    unconfirmed: DefenceTable | None
    note: str
    seconds: float

    def count(self, data: str, kind: str = "all", pattern: str = "all") -> tuple[int, int]:
        """Successes, and cases, of common, uncommon or confirmed data."""
        uncommon = (self.confirmed,) if data == CONFIRMED else (self.confirmed, self.unconfirmed)
        rows: list[Success] = []
        for table in (self.common,) if data == COMMON else uncommon:
            rows += [row for row in table.rows if (row.kind, row.pattern) == (kind, pattern)] if table else []
        return sum(row.k for row in rows), sum(row.n for row in rows)


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
    tables = [
        evaluate_defences(suite, {defence: guard}) if len(suite) else None for suite in _suites(plan, run, data, home)
    ]
    common, confirmed, unconfirmed = tables
    assert common is not None  # there is always some
    seconds = time.process_time() - start
    told = {"common": common, "confirmed": confirmed, "unconfirmed": unconfirmed}
    return Tried(defence=defence, **told, note=note, seconds=seconds)  # type: ignore[arg-type]


def _suites(plan: Plan, run: int, data: Path | None, home: Home) -> Iterator[Suite]:
    """Common data, and uncommon cases that are confirmed, and those that are not."""
    yield common_of(plan, given_of(plan, data, home), run, home)
    uncommon = all_uncommon_of(plan, run, home)
    confirmed = torch.as_tensor(uncommon["confirmed"]) > 0 if len(uncommon) else torch.zeros(0, dtype=torch.bool)
    for rows in (confirmed, ~confirmed):
        yield uncommon[rows]
