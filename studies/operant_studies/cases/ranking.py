"""The risk map: how often unseen field inputs fail where it says so, beside rankings that need no case."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate import PGD, RecipeDraws, default_radii
from operant.measure import lift
from operant.profile import fit_risk
from operant.suite import Suite
from operant_studies.cases.rivals import margins, rankings
from operant_studies.cases.settings import CasesSetting
from operant_studies.cases.unit import CasesField, drawn
from operant_studies.field.settings import FieldCase
from operant_studies.operational_fuzz.fields import under
from operant_studies.shared import Steps, Units

RISK = "risk map"
DRAWS, HARDEST, GRADIENT, ATTACK = "random draws", "hardest of 5 draws", "gradient, early stopped", "PGD, all steps"
MOVES = (DRAWS, HARDEST, GRADIENT, ATTACK)
TRIES = 5
RESAMPLES = 20  # intervals are over seeds, so those within a seed are not used


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """How well rankings find the failures among unseen field inputs, by name of the ranking."""

    n: int
    failures: int
    pmi: float
    failing: float  # share of the cases that fail, weighted by the estimated priors
    # lift of the riskiest 5 and 10 % of the mass, and failure rate among inputs of the same class and margin
    lift5: dict[str, float]
    lift10: dict[str, float]
    ratio: dict[str, float]
    findings: tuple[str, ...]  # names of the risk map's findings


@dataclass(frozen=True, kw_only=True)
class MoveRanked:
    """A risk map of cases that one move made."""

    failing: float  # share of the cases that fail
    lift5: float
    lift10: float
    ratio: float
    seconds: float  # CPU time of making the cases


@dataclass(frozen=True, kw_only=True)
class RiskCost:
    """CPU seconds of a risk map, without the model's passes."""

    cases: int
    inputs: int
    fit: float
    rate: float
    passes: float  # of the model over cases and inputs, which are not in the others


def units(setting: CasesSetting, data: Path | None, out: Path) -> Units:
    """One unit per field and seed, and one that measures costs."""
    first: Units = [
        (f"risk map, {case.name}, seed {seed}", partial(run_ranking, setting, case, data, seed, out))
        for seed in setting.seeds
        for case in setting.inputs.cases
    ]
    return [*first, ("cost of a risk map", partial(run_cost, setting, data, out))]


def run_ranking(setting: CasesSetting, case: FieldCase, data: Path | None, seed: int, out: Path) -> None:
    """Rankings of one field; a module-level function, so that other processes can run it."""
    field = CasesField(setting=setting, case=case, data=data, seed=seed, out=out)
    field.steps.step("ranked", Ranked, partial(_ranked, field))
    if seed in setting.move_seeds:
        for i, move in enumerate(MOVES):
            field.steps.step(move_step(i), MoveRanked, partial(_move_ranked, field, move))


def move_step(number: int) -> str:
    return f"move-{number}"


def _ranked(field: CasesField) -> Ranked:
    truth, known = field.inputs.truth, field.known
    cases, wider = field.teaching()
    risk = fit_risk(field.model, cases, wider=wider, priors=known.priors)
    logits = field.model.batched_logits(truth.x)
    failed = logits.argmax(1) != truth.labels
    scores = {RISK: risk(field.model, truth.x), **rankings(field, truth.x, logits)}
    lifts = {name: _lift(field, score, logits, failed) for name, score in scores.items()}
    return Ranked(
        n=len(truth),
        failures=int(failed.sum()),
        pmi=float(failed.double().mean()),
        failing=risk.failing,
        lift5={name: each[0] for name, each in lifts.items()},
        lift10={name: each[1] for name, each in lifts.items()},
        ratio={name: each[2] for name, each in lifts.items()},
        findings=tuple(finding.name for finding in risk.findings),
    )


def _lift(field: CasesField, score: Tensor, logits: Tensor, failed: Tensor) -> tuple[float, float, float]:
    """Lift at 5 and 10 % of the mass, and the ratio within class and margin."""
    found = lift(
        score,
        failed,
        margin=margins(logits),
        predicted=logits.argmax(1),
        resamples=RESAMPLES,
        generator=field.generator("lift"),
    )
    return found.at[0].lift, found.at[1].lift, found.ratio


# Moves ----------------------------------------------------------------------------------------------------------------


def _move_ranked(field: CasesField, move: str) -> MoveRanked:
    seeds, truth = field.risk_seeds[: field.setting.moved], field.inputs.truth
    start = time.process_time()
    cases = _moved(field, move, seeds)
    seconds = time.process_time() - start
    risk = fit_risk(field.model, cases, priors=field.known.priors)
    logits = field.model.batched_logits(truth.x)
    at5, at10, ratio = _lift(field, risk(field.model, truth.x), logits, logits.argmax(1) != truth.labels)
    failing = float((cases.prediction != cases.label).double().mean())
    return MoveRanked(failing=failing, lift5=at5, lift10=at10, ratio=ratio, seconds=seconds)


def _moved(field: CasesField, move: str, seeds: Samples) -> Suite:
    """Cases of a move, passes and failures; gradient moves start from draws of the recipe."""
    model, recipe, generator = field.model, field.known.recipe, field.generator(move)
    if move == DRAWS or (move == HARDEST and not recipe.names):
        return drawn(model, recipe, seeds, generator=generator)
    if move == HARDEST:
        return hardest(RecipeDraws(recipe=recipe, per_seed=TRIES)(model, seeds, generator=generator))
    early = move == GRADIENT
    radius = default_radii(field.inputs.clean)[0 if early else 1]
    attack = PGD(radius=radius, norm="l2", stop_early=early, random_start=not early)
    start = under(recipe, seeds, generator=generator) if recipe.names else seeds
    return attack(model, start, generator=generator)


def hardest(cases: Suite) -> Suite:
    """The case of each seed with the largest margin on the wrong side."""
    _, seed = cases.seed.unique(return_inverse=True)
    margin = torch.as_tensor(cases["margin"])
    order = margin.argsort(descending=True, stable=True)
    first = order[seed[order].argsort(stable=True)]
    starts = torch.cat([torch.tensor([True]), seed[first][1:] != seed[first][:-1]])
    kept: Suite = cases[first[starts]]
    return kept


# Cost -----------------------------------------------------------------------------------------------------------------


def cost_steps(out: Path) -> Steps:
    return Steps(out / "steps" / "cost")


def run_cost(setting: CasesSetting, data: Path | None, out: Path) -> None:
    case, seed = setting.inputs.cases[0], setting.seeds[0]
    field = CasesField(setting=setting, case=case, data=data, seed=seed, out=out)
    cost_steps(out).step("risk", RiskCost, partial(_cost, field))


def _cost(field: CasesField) -> RiskCost:
    """Fit and rate, less the passes that both need: logits and penultimate features of all inputs."""
    cases, wider = field.teaching()
    n = field.setting.rated
    x = field.inputs.truth.x[torch.arange(n) % len(field.inputs.truth)]
    times = [time.process_time()]
    risk = fit_risk(field.model, cases, wider=wider, priors=field.known.priors)
    times.append(time.process_time())
    risk(field.model, x)
    times.append(time.process_time())
    passes = []
    for images in (torch.cat([cases.x, wider.x]), x):
        field.model.batched_logits(images), field.model.penultimate(images)
        times.append(time.process_time())
        passes.append(times[-1] - times[-2])
    return RiskCost(
        cases=len(cases) + len(wider),
        inputs=n,
        fit=times[1] - times[0] - passes[0],
        rate=times[2] - times[1] - passes[1],
        passes=sum(passes),
    )
