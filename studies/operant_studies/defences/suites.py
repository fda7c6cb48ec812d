"""Suites of the KuK study: read if they exist, else made in the same way."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from operant.data import Samples
from operant.generate.engine import judge
from operant.rng import spawn, uniform_like
from operant.suite import Suite
from operant_studies import kuk
from operant_studies.defences.settings import DefencePlan, SeedChunk, plans
from operant_studies.kuk.existing import fuzzer_of, step_name
from operant_studies.kuk.models import (
    PreparedModel,
    check_data,
    copy_nin,
    find_nin,
    prepare,
    split_missing,
    why_missing,
)
from operant_studies.kuk.paper import ATTACKS
from operant_studies.kuk.results import search_name
from operant_studies.kuk.search import make_search
from operant_studies.kuk.settings import PATTERNS, Subject, subjects
from operant_studies.shared import Steps, Units, run_units, sign_folder


@dataclass(frozen=True, kw_only=True)
class SuiteRecord:
    """A suite that was made here: number of rows and CPU seconds."""

    rows: int
    seconds: float


@dataclass(frozen=True)
class SuiteFolders:
    """Where suites are.

    Attributes:
        out: this study's folder.
        kuk: the folder of another study with the same models, whose dropout, weights and suites are used; or none.
    """

    out: Path
    kuk: Path | None = None

    def of_model(self, subject: Subject) -> Path:
        """The folder that holds a model's dropout and weights."""
        if self.kuk is not None and (self.kuk / "steps" / subject.name / "dropout.json").exists():
            return self.kuk
        return self.out

    def find(self, plan: DefencePlan, name: str) -> Path | None:
        """A finished suite: one made here has a record, one of the KuK study has a step of its name."""
        for folder in dict.fromkeys([self.out, self.of_model(plan.subject)]):
            place = folder / "suites" / plan.name / name
            own, theirs = place.with_name(f"{name}.json"), folder / "steps" / plan.name / f"{name}.json"
            if place.is_dir() and (own.exists() or theirs.exists()):
                return place
        return None

    def seconds(self, plan: DefencePlan) -> float:
        """CPU time of the suites that were made here."""
        records = sorted((self.out / "suites" / plan.name).glob("*.json"))
        return float(sum(json.loads(record.read_bytes())["value"]["seconds"] for record in records))


def check_study(
    folders: SuiteFolders, every: Sequence[DefencePlan], *, data: Path | None, scale: str, weights: Path | None
) -> None:
    """Check the input of a study, sign its folder and copy NIN's weights there."""
    check_data((plan.subject for plan in every), data)
    check_folders(folders, scale, weights)
    sign_folder(folders.out, scale=scale, subjects=subjects(scale))
    sign_folder(folders.out / "defences", scale=scale, plans=plans(scale))
    copy_nin(weights, folders.out, data)


def make_suites(
    folders: SuiteFolders, every: Sequence[DefencePlan], *, data: Path | None, workers: int, console: Console
) -> tuple[list[DefencePlan], list[str]]:
    """Make the suites of a study; the plans that can be run, and why others cannot."""
    chosen, left_out = split_missing(
        every, lambda plan: why_missing(plan.subject, data, folders.of_model(plan.subject)), console
    )
    dropout: Units = [(f"{p.title}: dropout", partial(run_dropout, p, data, folders)) for p in chosen]
    run_units(dropout, workers=workers, console=console)
    run_units(_suite_units(chosen, data, folders), workers=workers, console=console)
    return chosen, left_out


def _suite_units(chosen: Sequence[DefencePlan], data: Path | None, folders: SuiteFolders) -> Units:
    """All suites, the slowest models first."""
    units: Units = []
    for p in reversed(chosen):
        for pattern in PATTERNS:
            for run in range(p.runs):
                name = f"{p.title}: search for {pattern}, run {run}"
                units.append((name, partial(run_search, p, pattern, run, data, folders)))
        units += [(f"{p.title}: {method}", partial(run_attack, p, method, data, folders)) for method in ATTACKS]
    return units


def check_folders(folders: SuiteFolders, scale: str, weights: Path | None = None) -> None:
    """Raise if the KuK study has other models or inputs, or another NIN than the one given."""
    there = folders.kuk
    nin = find_nin(there, None) if there is not None else None
    if nin is not None and weights is not None and weights.exists() and nin.read_bytes() != weights.read_bytes():
        raise ValueError(f"{there} has weights of NIN other than {weights}; omit --kuk or --weights")
    if there is not None and not (there / "steps").is_dir():
        raise ValueError(f"{there} holds no study with suites; omit --kuk, or run `operant study kuk` first")
    for folder in filter(None, (there, folders.out)):
        signature = folder / "study.json"
        if signature.exists() and json.loads(signature.read_bytes()).get("subjects") != str(subjects(scale)):
            raise ValueError(f"{folder} holds a KuK study of another scale or with other settings; run it again")


def prepared(plan: DefencePlan, data: Path | None, folders: SuiteFolders) -> PreparedModel:
    """The model with all inputs of this study; the first of them are those of the KuK study."""
    return prepare(plan.wide, data, folders.of_model(plan.subject))


# Units


def run_dropout(plan: DefencePlan, data: Path | None, folders: SuiteFolders) -> None:
    kuk.run_dropout(plan.subject, data, folders.of_model(plan.subject))


def run_attack(plan: DefencePlan, method: str, data: Path | None, folders: SuiteFolders) -> None:
    """Make the cases of one attack."""

    def work() -> Suite:
        given = prepared(plan, data, folders)
        seeds = given.inputs[: plan.carlini if method == "C&W" else plan.attacked]
        generator = spawn(0, "kuk", plan.name, method)
        return fuzzer_of(plan.cut, given, method)(given.model, seeds, generator=generator).failures()

    _make(plan, step_name(method), folders, work)


def run_search(plan: DefencePlan, pattern: str, run: int, data: Path | None, folders: SuiteFolders) -> None:
    """Run the searches of one run for one pattern, chunk by chunk."""
    for part in wanted(plan, pattern, run, folders):

        def work(part: SeedChunk = part) -> Suite:
            given = prepared(plan, data, folders)
            model = kuk.dropping(plan.subject, given, folders.of_model(plan.subject))
            generator = spawn(0, "kuk", plan.name, pattern, f"run-{part.run}", f"chunk-{part.number}")
            return plan.fuzz(pattern)(model, given.seeds[part.first : part.end], generator=generator)

        _make(plan, suite_name(plan, pattern, part), folders, work)


def suite_name(plan: DefencePlan, pattern: str, part: SeedChunk) -> str:
    """The name of the cases of a chunk of seeds: that of the KuK study, if the search is the same."""
    name = search_name(pattern, part.run, "", part.number)
    return name if plan.fuzz(pattern) == make_search(plan.subject, pattern, "") else f"own-{name}"


def _make(plan: DefencePlan, name: str, folders: SuiteFolders, work: Callable[[], Suite]) -> None:
    if folders.find(plan, name) is not None:
        return
    place = folders.out / "suites" / plan.name / name

    def make() -> SuiteRecord:
        start = time.process_time()
        suite = work()
        shutil.rmtree(place, ignore_errors=True)  # incomplete, from a killed run
        suite.save(place)
        return SuiteRecord(rows=len(suite), seconds=time.process_time() - start)

    Steps(place.parent).step(name, SuiteRecord, make)


# Data of a run


def folds(plan: DefencePlan) -> int:
    return max(plan.runs, 2) if plan.shown(0) else plan.runs


def fold_of(plan: DefencePlan, given: PreparedModel, fold: int) -> Samples:
    """The inputs of a fold; attacks start from some of them, C&W from fewer."""
    return given.inputs[fold % folds(plan) :: folds(plan)]


def benign_of(plan: DefencePlan, given: PreparedModel, run: int) -> Samples:
    """The inputs that detectors of a run are fitted on; no case comes from these."""
    start = plan.runs * plan.repeats * plan.subject.seeds + run * plan.benign
    return given.seeds[start : start + plan.benign]


def attacks_of(
    plan: DefencePlan, given: PreparedModel, methods: Sequence[str], fold: int, folders: SuiteFolders
) -> Suite:
    """Cases of some attacks on the inputs of one fold."""
    ids = fold_of(plan, given, fold).ids
    suites = [_open(plan, step_name(method), folders) for method in methods]
    return Suite.concat([_only(suite, torch.isin(suite.seed, ids)) for suite in suites])


def common_of(plan: DefencePlan, given: PreparedModel, run: int, folders: SuiteFolders) -> Suite:
    """Benign inputs and as many cases of attacks, of seeds and attacks that nothing was fitted on."""
    inputs = fold_of(plan, given, run)
    halves = [
        judge(given.model, inputs, inputs.x, method="benign"),
        attacks_of(plan, given, plan.judged(run), run, folders),
    ]
    n = min(len(half) for half in halves)
    if n == 0:
        raise ValueError(f"{plan.title}: there is no common data because {', '.join(plan.judged(run))} all failed")
    draw = spawn(0, "defences", plan.name, "common", run)
    return Suite.concat([_only(half, torch.randperm(len(half), generator=draw)[:n]) for half in halves])


def uncommon_of(plan: DefencePlan, pattern: str, run: int, folders: SuiteFolders) -> Suite:
    """Cases that reached a pattern with the masks of the search, whose VRO becomes their column ``vro``."""
    chosen = wanted(plan, pattern, run, folders)
    suite = Suite.concat([_open(plan, suite_name(plan, pattern, part), folders) for part in chosen])
    reached = _only(suite, torch.as_tensor(suite["reached"]) > 0)
    return reached.with_columns(vro=reached["vro_search"])


def wanted(plan: DefencePlan, pattern: str, run: int, folders: SuiteFolders) -> Iterator[SeedChunk]:
    """Chunks to search from, until there are enough cases; with a quota, each once the previous one is finished."""
    seeds, reached = 0, 0
    for part in plan.parts(run):
        if reached >= plan.quota or seeds >= plan.limits.get(pattern, plan.seeds):
            return
        yield part
        seeds += part.size
        if plan.quota < plan.seeds:
            place = folders.find(plan, suite_name(plan, pattern, part))
            if place is None:
                return
            reached += int(torch.as_tensor(Suite.open(place)["reached"]).sum())


def searched(plan: DefencePlan, folders: SuiteFolders) -> int:
    """The number of seeds of all searches, patterns and runs."""
    chosen = [wanted(plan, pattern, run, folders) for pattern in PATTERNS for run in range(plan.runs)]
    return sum(part.size for parts in chosen for part in parts)


def all_uncommon_of(plan: DefencePlan, run: int, folders: SuiteFolders) -> Suite:
    return Suite.concat([uncommon_of(plan, pattern, run, folders) for pattern in PATTERNS])


def noise_of(plan: DefencePlan, given: PreparedModel, run: int, folders: SuiteFolders) -> Suite:
    """The control: the seeds of each search with noise of its strength, without selection."""
    origin, most = [], []
    for pattern in PATTERNS:
        fuzz = plan.fuzz(pattern)
        for part in wanted(plan, pattern, run, folders):
            origin.append(torch.arange(part.first, part.end).repeat_interleave(plan.draws))
            most.append(torch.full((len(origin[-1]),), fuzz.noise or fuzz.radius))
    rows = torch.cat(origin)
    x0, generator = given.seeds.x[rows], spawn(0, "defences", plan.name, "noise", run)
    noise = torch.cat(most).view(-1, *[1] * (x0.ndim - 1)) * uniform_like(x0, -1, 1, generator=generator)
    return judge(given.model, given.seeds, (x0 + noise).clamp(*given.model.bounds), origin=rows, method="noise")


def _open(plan: DefencePlan, name: str, folders: SuiteFolders) -> Suite:
    place = folders.find(plan, name)
    if place is None:
        raise ValueError(f"{plan.title}: the suite {name} is missing; run the study to its end")
    return Suite.open(place)


def _only(suite: Suite, rows: Tensor) -> Suite:
    some: Suite = suite[rows]
    return some
