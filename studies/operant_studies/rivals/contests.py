"""The comparisons: each rival as published and with one thing changed, and random mutation at the same settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.baselines import DeepHunter, DeepXplore, DLFuzz, Exploration, RandomMutation, TensorFuzz
from operant.generate.baselines._shared_queue import SearchPlan, uniformly
from operant.measure import KMNC
from operant.measure.coverage import Criterion, Ranges
from operant.model import Classifier
from operant.rng import normal_like
from operant_studies.rivals.settings import RivalsSetting


@dataclass(frozen=True, kw_only=True)
class ContestArm:
    """A search, and random searches at its settings; it has to beat the best of these."""

    name: str
    controls: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Contest:
    """A rival on its own criterion: first as published, or our default; then with possible causes changed."""

    key: str
    title: str
    criterion: str
    arms: tuple[ContestArm, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all searches, without repeats."""
        return tuple(dict.fromkeys(name for arm in self.arms for name in (arm.name, *arm.controls)))


class Explorer(Protocol):
    """A search that records its coverage."""

    def explore(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Exploration: ...


# Searches -------------------------------------------------------------------------------------------------------------

WEIGHTS = {  # of DeepXplore: for the deviating model, and for neurons
    "λ1 = 1, λ2 = 0.1": (1.0, 0.1),
    "λ1 = 3, λ2 = 0.1": (3.0, 0.1),
    "λ1 = 1, λ2 = 10": (1.0, 10.0),
    "λ1 = 3, λ2 = 10": (3.0, 10.0),
    "λ1 = 0, λ2 = 10": (0.0, 10.0),
}
FREE = {f"{name}, anywhere": WEIGHTS[name] for name in ("λ1 = 1, λ2 = 0.1", "λ1 = 3, λ2 = 10")}
BALLS = {"dlfuzz": 0.1, "dlfuzz-near": 0.02}  # relative L2; the second is the released program's
STEPS: dict[str, dict[str, Any]] = {  # of DLFuzz
    "rare neurons": {},
    "often covered neurons": {"strategy": "often"},
    "neurons of large weight": {"strategy": "weight"},
    "neurons near the threshold": {"strategy": "threshold"},
    "neurons count 20 times": {"weight": 10.0},
    "labels alone": {"weight": 0.0},
    "steps four times as long": {"step": 0.08},
}
LENGTHS = {"random steps, half as long": 0.5, "random steps": 1.0, "random steps, four times as long": 4.0}
HUNTS: dict[str, dict[str, Any]] = {
    "as published": {},
    "any input alike": {"fading": False},
    "no guidance": {"guided": False},
}
SECTIONS = 1_000  # of KMNC, as published
COARSE = "100 sections"
REACHES = {  # TensorFuzz's thresholds, relative to the distance that one mutation moves the logits; None: its default
    "threshold 1": None,
    "a quarter of a mutation": 0.25,
    "half a mutation": 0.5,
    "a whole mutation": 1.0,
    "twice a mutation": 2.0,
}
UNIFORM = ("threshold 1", "half a mutation")  # thresholds at which inputs are also drawn uniformly
ALL_RECENT = 10**9  # number of recent inputs that covers all of them
WHY = {  # the reason if a change helps, where only a little is changed
    "λ1 = 3, λ2 = 10": "at λ1 = 1 the two others outweigh the deviating model, and at λ2 = 0.1 neurons hardly count",
    "neurons count 20 times": "labels outweigh neurons in its steps",
    "steps four times as long": "these are short for the ball",
    "any input alike": "taking inputs in turn, with a fading probability, costs coverage",
    COARSE: f"with {SECTIONS} sections nearly every mutant covers something new, so guidance has little choice",
    "half a mutation, any input alike": "at threshold 1 nearly every mutant is kept (*covered* is close to inputs "
    "times rows), which leaves no choice; where there is one, preferring recent inputs costs coverage",
}


def _arms(names: Mapping[str, object], *controls: str) -> tuple[ContestArm, ...]:
    return tuple(ContestArm(name=name, controls=controls) for name in names)


def _xplore(constraint: str) -> Contest:
    return Contest(
        key=f"deepxplore-{constraint}",
        title=f"DeepXplore, {constraint}",
        criterion="neuron coverage, threshold .5, mean of the three models",
        arms=(*_arms(WEIGHTS, "random direction"), *_arms(FREE, "random direction, anywhere")),
    )


def _hunter(key: str, title: str, criterion: str, *more: ContestArm) -> Contest:
    return Contest(key=key, title=title, criterion=criterion, arms=(*_arms(HUNTS, "random mutation"), *more))


NEAR = ("rare neurons", "neurons count 20 times", "steps four times as long")
CONTESTS = (
    _xplore("occlusion"),
    _xplore("light"),
    Contest(
        key="dlfuzz",
        title="DLFuzz, ball of .1",
        criterion="neuron coverage of a seed's inputs, threshold .5",
        arms=_arms(STEPS, *LENGTHS),
    ),
    Contest(
        key="dlfuzz-near",
        title="DLFuzz, ball of .02",
        criterion="neuron coverage of a seed's inputs, threshold .5",
        arms=_arms({name: STEPS[name] for name in NEAR}, *LENGTHS),
    ),
    _hunter(
        "deephunter-kmnc",
        "DeepHunter, KMNC",
        f"KMNC, {SECTIONS} sections",
        ContestArm(name=COARSE, controls=(f"random mutation, {COARSE}",)),
        ContestArm(name=f"{COARSE}, any input alike", controls=(f"random mutation, {COARSE}",)),
    ),
    _hunter("deephunter-nc", "DeepHunter, NC", "neuron coverage, threshold .75"),
    Contest(
        key="tensorfuzz",
        title="TensorFuzz",
        criterion="points whose logits are farther than the threshold from all others",
        arms=(
            *(ContestArm(name=name, controls=(f"noise, {name}",)) for name in REACHES),
            *(ContestArm(name=f"{name}, any input alike", controls=(f"noise, {name}",)) for name in UNIFORM),
        ),
    ),
)


# Building searches ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PartedHunter(DeepHunter):
    """DeepHunter with its two ideas separated, to see the effect of each."""

    fading: bool = True  # take inputs in turn, with a fading probability; else draw them uniformly
    guided: bool = True  # only inputs that cover something new join the queue

    def plan(self, model: Classifier, x: Tensor, generator: torch.Generator) -> SearchPlan:
        whole = replace(DeepHunter.plan(self, model, x, generator), guided=self.guided)
        return whole if self.fading else replace(whole, select=lambda queue, n: uniformly(queue, n, generator))


@dataclass(frozen=True, kw_only=True)
class ContestData:
    """What searches are built from."""

    setting: RivalsSetting
    others: tuple[Classifier, Classifier]  # models that DeepXplore compares with
    ranges: Ranges  # of the model's neurons, from training inputs
    move: float  # distance by which one mutation of TensorFuzz moves the logits, median
    # numel, size: number of values of an input; its height and width
    numel: int
    size: tuple[int, int]

    def kmnc(self, k: int) -> Any:
        """The criterion, as a function that searches call."""

        def criterion(_model: Classifier, _x: Tensor) -> Criterion:
            return KMNC(ranges=self.ranges, k=k)

        return criterion


def build(contest: str, context: ContestData) -> dict[str, Explorer]:
    """All searches of a contest, by name."""
    if contest.startswith("deepxplore"):
        return _xplorers(contest.removeprefix("deepxplore-"), context)
    if contest.startswith("dlfuzz"):
        return _climbers(BALLS[contest], context)
    return _tensors(context) if contest == "tensorfuzz" else _hunters(contest, context)


def _xplorers(constraint: str, context: ContestData) -> dict[str, Explorer]:
    bound = DeepXplore(others=context.others, constraint=constraint, rows_per_seed=context.setting.rows)
    free = replace(bound, constraint="occlusion", size=context.size)  # the rectangle is the whole image
    arms: dict[str, Explorer] = {}
    for start, weights, chance in ((bound, WEIGHTS, "random direction"), (free, FREE, "random direction, anywhere")):
        arms |= {name: replace(start, weight_diff=one, weight_coverage=two) for name, (one, two) in weights.items()}
        arms[chance] = replace(start, direction="random")
    return arms


def _climbers(radius: float, context: ContestData) -> dict[str, Explorer]:
    start = DLFuzz(radius=radius, rows_per_seed=context.setting.rows)
    arms: dict[str, Explorer] = {name: replace(start, **changed) for name, changed in STEPS.items()}
    length = start.step * math.sqrt(context.numel)
    for name, times in LENGTHS.items():
        arms[name] = RandomMutation(search=start, step_size=times * length)
    return arms


def _hunters(contest: str, context: ContestData) -> dict[str, Explorer]:
    rows, kmnc = context.setting.rows, contest == "deephunter-kmnc"
    whole = PartedHunter(rows_per_seed=rows)
    if kmnc:
        whole = replace(whole, criterion=context.kmnc(SECTIONS))
    arms: dict[str, Explorer] = {name: replace(whole, **changed) for name, changed in HUNTS.items()}
    arms["random mutation"] = RandomMutation(search=whole)
    if kmnc:
        coarse = replace(whole, criterion=context.kmnc(int(COARSE.split()[0])))
        arms[COARSE] = coarse
        arms[f"{COARSE}, any input alike"] = replace(coarse, fading=False)
        arms[f"random mutation, {COARSE}"] = RandomMutation(search=coarse)
    return arms


def _tensors(context: ContestData) -> dict[str, Explorer]:
    std, rows = context.setting.noise, context.setting.rows
    arms: dict[str, Explorer] = {}
    for name, times in REACHES.items():
        threshold = 1.0 if times is None else times * context.move
        whole = TensorFuzz(radius=3 * std, std=std, threshold=threshold, rows_per_seed=rows)
        arms |= {name: whole, f"{name}, any input alike": replace(whole, recent=ALL_RECENT)}
        arms[f"noise, {name}"] = RandomMutation(search=whole)
    return arms


def logit_move(model: Classifier, seeds: Samples, std: float, *, generator: torch.Generator) -> float:
    """L2 distance by which noise of this standard deviation moves the logits, median over the seeds."""
    moved = (seeds.x + std * normal_like(seeds.x, generator=generator)).clamp(*model.bounds)
    return float((model.batched_logits(moved) - model.batched_logits(seeds.x)).norm(dim=1).median())
