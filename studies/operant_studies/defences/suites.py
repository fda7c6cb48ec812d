"""Suites of the KuK study: read where they are at hand, else made in its way, and kept."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.engine import judge
from operant.rng import spawn, uniform_like
from operant.suite import Suite
from operant_studies import kuk
from operant_studies.defences.settings import Plan, plans
from operant_studies.kuk.existing import fuzzer_of, step_name
from operant_studies.kuk.found import search_name
from operant_studies.kuk.models import Ready, find_nin, missing, ready
from operant_studies.kuk.search import fuzz_of
from operant_studies.kuk.settings import PATTERNS, Subject, subjects
from operant_studies.shared import Steps, sign_folder


@dataclass(frozen=True, kw_only=True)
class Made:
    """A suite that was made here: its rows, and the CPU seconds it took."""

    rows: int
    seconds: float


@dataclass(frozen=True)
class Home:
    """Where things are.

    Attributes:
        out: this study's folder.
        kuk: the folder of another study with the same models, whose dropout, weights and suites are used; or none.
    """

    out: Path
    kuk: Path | None = None

    def of(self, subject: Subject) -> Path:
        """The folder that holds a model's dropout, and its weights."""
        if self.kuk is not None and (self.kuk / "steps" / subject.name / "dropout.json").exists():
            return self.kuk
        return self.out

    def kept(self, plan: Plan, name: str) -> Path | None:
        """A finished suite; what was made here is marked so, and what the KuK study made has a step of its name."""
        for folder in dict.fromkeys([self.out, self.of(plan.subject)]):
            place = folder / "suites" / plan.name / name
            own, theirs = place.with_name(f"{name}.json"), folder / "steps" / plan.name / f"{name}.json"
            if place.is_dir() and (own.exists() or theirs.exists()):
                return place
        return None

    def seconds(self, plan: Plan) -> float:
        """CPU time of the suites that were made here."""
        markers = sorted((self.out / "suites" / plan.name).glob("*.json"))
        return float(sum(json.loads(marker.read_bytes())["value"]["seconds"] for marker in markers))


def check_home(home: Home, scale: str, weights: Path | None = None) -> None:
    """Refuse suites of a KuK study whose models or inputs may be others, or whose NIN is not the one that is named."""
    known = find_nin(home.kuk, None) if home.kuk is not None else None
    if known is not None and weights is not None and weights.exists() and known.read_bytes() != weights.read_bytes():
        raise ValueError(f"{home.kuk} has other weights of NIN than {weights}; leave one of --kuk and --weights out")
    if home.kuk is not None and not (home.kuk / "steps").is_dir():
        raise ValueError(f"{home.kuk} holds no study whose suites could be used; leave --kuk out, or run `study kuk`")
    for folder in filter(None, (home.kuk, home.out)):
        sign = folder / "study.json"
        if sign.exists() and json.loads(sign.read_bytes()).get("subjects") != str(subjects(scale)):
            raise ValueError(f"{folder} holds a KuK study of another scale or of other settings; run that one again")


def sign(home: Home, scale: str) -> None:
    """Mark the folder as one of these models and these suites, which it shares with other studies; refuse another's."""
    sign_folder(home.out, scale=scale, subjects=subjects(scale))
    sign_folder(home.out / "defences", scale=scale, plans=plans(scale))


def left_out(plan: Plan, data: Path | None, home: Home) -> str:
    """Why a model cannot be studied here, in a sentence; empty if it can."""
    return missing(plan.subject, data, home.of(plan.subject))


def given_of(plan: Plan, data: Path | None, home: Home) -> Ready:
    """The model with all inputs of this study; the first of them are those of the KuK study."""
    return ready(plan.wide, data, home.of(plan.subject))


# Units; functions of their own so that another process can be asked for them


def run_dropout(plan: Plan, data: Path | None, home: Home) -> None:
    kuk.run_dropout(plan.subject, data, home.of(plan.subject))


def run_attack(plan: Plan, method: str, data: Path | None, home: Home) -> None:
    """Cases of one attack."""

    def work() -> Suite:
        given = given_of(plan, data, home)
        seeds = given.inputs[: plan.carlini if method == "C&W" else plan.attacked]
        generator = spawn(0, "kuk", plan.name, method)
        return fuzzer_of(plan.cut, given, method)(given.model, seeds, generator=generator).failures()

    _make(plan, step_name(method), home, work)


def run_search(plan: Plan, pattern: str, run: int, data: Path | None, home: Home) -> None:
    """Searches of one run for one pattern, a chunk of seeds at a time."""
    for of, chunk, first, after in wanted(plan, pattern, run, home):

        def work(of: int = of, chunk: int = chunk, first: int = first, after: int = after) -> Suite:
            given = given_of(plan, data, home)
            model = kuk.dropping(plan.subject, given, home.of(plan.subject))
            generator = spawn(0, "kuk", plan.name, pattern, f"run-{of}", f"chunk-{chunk}")
            return plan.fuzz(pattern)(model, given.seeds[first:after], generator=generator)

        _make(plan, suite_name(plan, pattern, of, chunk), home, work)


def suite_name(plan: Plan, pattern: str, run: int, chunk: int) -> str:
    """Of cases bred from a chunk of the KuK study's seeds: as there, if the search is the same."""
    name = search_name(pattern, run, "", chunk)
    return name if plan.fuzz(pattern) == fuzz_of(plan.subject, pattern, "") else f"own-{name}"


def _make(plan: Plan, name: str, home: Home, work: Callable[[], Suite]) -> None:
    if home.kept(plan, name) is not None:
        return
    place = home.out / "suites" / plan.name / name

    def made() -> Made:
        start = time.process_time()
        suite = work()
        shutil.rmtree(place, ignore_errors=True)  # what a kill left of it
        suite.save(place)
        return Made(rows=len(suite), seconds=time.process_time() - start)

    Steps(place.parent).step(name, Made, made)


# What a run works with


def folds(plan: Plan) -> int:
    return max(plan.runs, 2) if plan.shown(0) else plan.runs


def fold_of(plan: Plan, given: Ready, fold: int) -> Samples:
    """The inputs that belong to a fold: attacks start from some of them, C&W from fewer."""
    return given.inputs[fold % folds(plan) :: folds(plan)]


def benign_of(plan: Plan, given: Ready, run: int) -> Samples:
    """What detectors of a run are fitted on; no case comes from these."""
    start = plan.runs * plan.repeats * plan.subject.seeds + run * plan.benign
    return given.seeds[start : start + plan.benign]


def attacks_of(plan: Plan, given: Ready, methods: Sequence[str], fold: int, home: Home) -> Suite:
    """Cases of some attacks on the inputs of one fold; none if there are none."""
    ids = fold_of(plan, given, fold).ids
    parts = []
    for method in methods:
        suite = _open(plan, step_name(method), home)
        parts.append(_only(suite, torch.isin(suite.seed, ids)))
    return Suite.concat(parts)


def common_of(plan: Plan, given: Ready, run: int, home: Home) -> Suite:
    """As many benign inputs as cases of attacks, of seeds and by attacks that nothing was fitted on."""
    inputs = fold_of(plan, given, run)
    halves = [
        judge(given.model, inputs, inputs.x, method="benign"),
        attacks_of(plan, given, plan.judged(run), run, home),
    ]
    n = min(len(half) for half in halves)
    if n == 0:
        raise ValueError(f"{plan.title}: none of {', '.join(plan.judged(run))} succeeded: there is no common data")
    draw = spawn(0, "defences", plan.name, "common", run)
    return Suite.concat([_only(half, torch.randperm(len(half), generator=draw)[:n]) for half in halves])


def uncommon_of(plan: Plan, pattern: str, run: int, home: Home) -> Suite:
    """Cases that reached a pattern by the masks of the search, which their column ``vro`` then tells."""
    chosen = wanted(plan, pattern, run, home)
    suite = Suite.concat([_open(plan, suite_name(plan, pattern, of, chunk), home) for of, chunk, _, _ in chosen])
    reached = _only(suite, torch.as_tensor(suite["reached"]) > 0)
    return reached.with_columns(vro=reached["vro_search"])


def wanted(plan: Plan, pattern: str, run: int, home: Home) -> Iterator[tuple[int, int, int, int]]:
    """Chunks to search from, one after the other until there are enough cases; where that is asked, each only once the
    one before is there."""
    seeds, reached = 0, 0
    for part in plan.parts(run):
        if reached >= plan.quota or seeds >= plan.limits.get(pattern, plan.seeds):
            return
        yield part
        seeds += part[3] - part[2]
        if plan.quota < plan.seeds:
            place = home.kept(plan, suite_name(plan, pattern, part[0], part[1]))
            if place is None:
                return
            reached += int(torch.as_tensor(Suite.open(place)["reached"]).sum())


def searched(plan: Plan, home: Home) -> int:
    """Seeds that were searched from, for all patterns and runs."""
    chosen = [wanted(plan, pattern, run, home) for pattern in PATTERNS for run in range(plan.runs)]
    return sum(after - first for parts in chosen for _, _, first, after in parts)


def all_uncommon_of(plan: Plan, run: int, home: Home) -> Suite:
    return Suite.concat([uncommon_of(plan, pattern, run, home) for pattern in PATTERNS])


def noise_of(plan: Plan, given: Ready, run: int, home: Home) -> Suite:
    """The control: the seeds of each search with noise of its strength, which nobody bred."""
    origin, most = [], []
    for pattern in PATTERNS:
        fuzz = plan.fuzz(pattern)
        for _, _, first, after in wanted(plan, pattern, run, home):
            origin.append(torch.arange(first, after).repeat_interleave(plan.draws))
            most.append(torch.full((len(origin[-1]),), fuzz.noise or fuzz.radius))
    rows = torch.cat(origin)
    x0, generator = given.seeds.x[rows], spawn(0, "defences", plan.name, "noise", run)
    noise = torch.cat(most).view(-1, *[1] * (x0.ndim - 1)) * uniform_like(x0, -1, 1, generator=generator)
    return judge(given.model, given.seeds, (x0 + noise).clamp(*given.model.bounds), origin=rows, method="noise")


def _open(plan: Plan, name: str, home: Home) -> Suite:
    place = home.kept(plan, name)
    if place is None:
        raise ValueError(f"{plan.title}: the suite {name} is not there yet; run the study to its end")
    return Suite.open(place)


def _only(suite: Suite, rows: Tensor) -> Suite:
    some: Suite = suite[rows]
    return some
