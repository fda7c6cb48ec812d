"""How coverage grows: every search of every contest from the same inputs, and what each covered by when."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch

from operant.data import Samples
from operant.measure import fit_ranges
from operant.model import Classifier
from operant.rng import spawn
from operant_studies.operational_fuzz.fields import StudyField, make_field
from operant_studies.operational_fuzz.finding import hunted
from operant_studies.rivals.contests import CONTESTS, Contest, ContestData, Explorer, build, logit_move
from operant_studies.rivals.models import others
from operant_studies.rivals.settings import RivalsSetting
from operant_studies.shared import Steps


@dataclass(frozen=True, kw_only=True)
class CoverageCurve:
    """How the coverage of one search grew.

    Attributes:
        rows: model rows that each input had spent, mean.
        coverage: by then: a share, or a number of points.
        failures: found on the way.
        seconds: CPU time.
    """

    rows: tuple[float, ...]
    coverage: tuple[float, ...]
    failures: int
    seconds: float

    def at(self, rows: float) -> float:
        """Coverage after so many rows, between two turns on the line between them."""
        return float(np.interp(rows, self.rows, self.coverage))


@dataclass(frozen=True, kw_only=True)
class CoverageCurves:
    """Of all searches of a contest, by name."""

    of: dict[str, CoverageCurve]


@dataclass(frozen=True, kw_only=True)
class ContestFacts:
    """What was measured before the searches.

    Attributes:
        explored: inputs that searches start from.
        move: by how much one mutation of TensorFuzz moves the logits, median.
        accuracy: of the model and of the two others on unseen clean inputs.
    """

    explored: int
    move: float
    accuracy: tuple[float, ...]


def run(setting: RivalsSetting, data: Path | None, out: Path, seed: int) -> None:
    """Every search with one seed."""
    steps = steps_of(setting, out, seed)
    if all(steps.done(name) for name in ("facts", *(contest.key for contest in CONTESTS))):
        return
    field = make_field(setting.field, data, seed, out / "networks")
    known, seeds = learn(setting, data, field, out)
    steps.step("facts", ContestFacts, partial(_facts, known, field, seeds))
    for contest in CONTESTS:
        steps.step(contest.key, CoverageCurves, partial(hold, contest, known, field, seeds))


def learn(setting: RivalsSetting, data: Path | None, field: StudyField, out: Path) -> tuple[ContestData, Samples]:
    """What searches need to know of the model, and the inputs they start from, which all three models get right."""
    theirs = others(setting, data, field.seed, out / "networks")
    seeds = hunted(field)
    for model in (field.model, *theirs):
        seeds = model.correct(seeds)
    seeds, generator = seeds[: setting.explored], spawn(field.seed, "rivals", "move")
    known = ContestData(
        setting=setting,
        others=theirs,
        ranges=fit_ranges(field.model, field.train[: setting.profiled]),
        move=logit_move(field.model, seeds, setting.noise, generator=generator),
        numel=seeds.x[0].numel(),
        size=(seeds.x.shape[2], seeds.x.shape[3]),
    )
    return known, seeds


def _facts(known: ContestData, field: StudyField, seeds: Samples) -> ContestFacts:
    clean = field.clean
    right = [float((m.predict(clean.x) == clean.labels).double().mean()) for m in (field.model, *known.others)]
    return ContestFacts(explored=len(seeds), move=known.move, accuracy=tuple(right))


def hold(contest: Contest, known: ContestData, field: StudyField, seeds: Samples) -> CoverageCurves:
    """Run all searches of a contest."""
    searches = build(contest.key, known)
    each = {name: spawn(field.seed, "rivals", contest.key, name) for name in contest.names}
    return CoverageCurves(
        of={name: follow(searches[name], field.model, seeds, generator=g) for name, g in each.items()}
    )


def follow(search: Explorer, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> CoverageCurve:
    """Run one search and keep how its coverage grew, on the mean over what it tells apart: seeds or models."""
    start = time.process_time()
    found = search.explore(model, seeds, generator=generator)
    return CoverageCurve(
        rows=tuple(found.rows.double().tolist()),
        coverage=tuple(found.coverage.double().mean(0).tolist()),
        failures=len(found.suite.failures()),
        seconds=time.process_time() - start,
    )


def steps_of(setting: RivalsSetting, out: Path, seed: int) -> Steps:
    return Steps(out / "steps" / f"coverage-{setting.name}-{seed}")


def load_curves(setting: RivalsSetting, out: Path, seed: int, contest: str) -> dict[str, CoverageCurve]:
    return steps_of(setting, out, seed).step(contest, CoverageCurves, missing).of


def load_facts(setting: RivalsSetting, out: Path, seed: int) -> ContestFacts:
    return steps_of(setting, out, seed).step("facts", ContestFacts, missing)


def missing() -> NoReturn:
    raise ValueError("a search has not been run yet; run the study to its end first")
