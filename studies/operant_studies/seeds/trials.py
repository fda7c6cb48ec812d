"""Repeated draws of seeds: the failing mass that each design finds, and how well it estimates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import torch
from scipy.stats import spearmanr
from torch import Tensor

from operant.assess.estimators import TERMS
from operant.data import Samples
from operant.rng import spawn
from operant.seeds import Draw, combine, draw
from operant_studies.seeds.settings import RISK_MAP, SeedsSetting
from operant_studies.shared import Mean

RESAMPLES = 2000  # of the bootstrap over repetitions
DESIGNS = ("pps", "poisson", "rhc", "sequential", "stratified")


@dataclass(frozen=True, kw_only=True)
class DrawArm:
    """A way to draw: the design, and how weights are made."""

    design: str  # of `operant.seeds.draw`
    score: str = ""  # of risk; empty for none
    # power, defensive: of `operant.seeds.combine`
    power: float = 1.0
    defensive: float = 0.2
    # profile: weight by the profile's mass; else all inputs have equal mass. Estimates use the mass in both cases
    profile: bool = True

    def __str__(self) -> str:
        if not self.score:
            return NAMES[self]
        words = [self.design, self.score]
        words += [] if self.design == "top" else [f"b = {self.power:g}", f"ε = {self.defensive:g}"]
        return ", ".join([*words, *([] if self.profile else ["no profile"])])

    def weights(self, mass: Tensor, risks: Mapping[str, Tensor]) -> Tensor:
        base = mass if self.profile else torch.ones_like(mass)
        if not self.score:
            return base
        return combine(base, risks[self.score], risk_power=self.power, defensive=self.defensive)


SIMPLE = DrawArm(design="sequential", profile=False)
OPERATIONAL = DrawArm(design="pps")
ONCE = DrawArm(design="sequential")
NAMES = {
    SIMPLE: "simple random sampling",
    OPERATIONAL: "operational (pps by mass)",
    ONCE: "operational, each input once",
}
DEFAULT = DrawArm(design="sequential", score="margin")
BY_MAP = replace(DEFAULT, score=RISK_MAP)  # the weights and the design of a campaign


def deepest(score: str) -> DrawArm:
    """Drawn as by DeepEST: sequentially, by risk alone."""
    return DrawArm(design="sequential", score=score, defensive=0.0, profile=False)


def top(score: str, *, profile: bool = True) -> DrawArm:
    """The largest weights; allows no estimate."""
    return DrawArm(design="top", score=score, defensive=0.0, profile=profile)


def grid(setting: SeedsSetting, score: str, *, profile: bool = True) -> list[DrawArm]:
    """Every design with every power and defensive share; without the profile, only the first defensive share."""
    shares = setting.defensives if profile else setting.defensives[:1]
    return [
        DrawArm(design=design, score=score, power=power, defensive=share, profile=profile)
        for design, power, share in product(DESIGNS, setting.powers, shares)
    ]


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmTrials:
    """By arm and repetition: failing mass and failing inputs found, each input counted once, and estimates.

    Estimates are NaN for designs that allow none.
    """

    arms: tuple[DrawArm, ...]
    found: Tensor = field(repr=False)
    failures: Tensor = field(repr=False)
    estimates: Tensor = field(repr=False)


def run_trials(
    arms: Sequence[DrawArm],
    pool: Samples,
    failed: Tensor,
    mass: Tensor,
    risks: Mapping[str, Tensor],
    *,
    draws: int,
    repetitions: int,
    path: Sequence[int | str],
) -> ArmTrials:
    """Draw repeatedly; the path seeds the random numbers of every arm and repetition."""
    values = torch.zeros(3, len(arms), repetitions, dtype=torch.float64)
    for i, arm in enumerate(arms):
        weights = arm.weights(mass, risks)
        for r in range(repetitions):
            generator = spawn(r, *path, str(arm))
            drawn = draw(pool, weights, draws, design=arm.design, generator=generator, mass=mass)
            values[:, i, r] = torch.tensor(_judged(drawn, failed))
    return ArmTrials(arms=tuple(arms), found=values[0], failures=values[1], estimates=values[2])


def _judged(drawn: Draw, failed: Tensor) -> tuple[float, float, float]:
    """Failing mass, failing inputs, and the design's estimate."""
    y = failed[drawn.indices]
    once = torch.zeros(drawn.pool_size, dtype=torch.float64).index_put_((drawn.indices,), drawn.mass * y)
    failures = int(drawn.indices[y > 0].unique().numel())
    return float(once.sum()), failures, math.nan if drawn.design == "top" else TERMS[drawn.design](drawn, y).estimate


# Expectations ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Effect of the profile on the ranking of inputs: rank correlation of weights, and shared largest ones."""

    score: str
    correlation: float
    shared: float


@dataclass(frozen=True, kw_only=True)
class PoolFacts:
    """A pool, its masses, and the expected results of simple and operational sampling.

    found, simple         (n / N) λ                                             (1)
    RMSE, simple          √(N² / n (1 - n / N) S²),  S² the variance of p y      (2)
    found, operational    Σ p y (1 - (1 - p)ⁿ)                                  (3)
    RMSE, operational     √(λ (1 - λ) / n)                                      (4)
    """

    size: int  # N
    error: float  # share of the pool's inputs that fail
    pmi: float  # λ, their mass
    # effective, largest: effective number of inputs, and the largest mass
    effective: float
    largest: float
    heaviest: float  # mass of the n failing inputs with the largest mass, which no design can exceed
    simple_found: float
    simple_rmse: float
    operational_found: float
    operational_rmse: float
    rankings: tuple[Ranking, ...]  # with and without the profile


def facts_of(failed: Tensor, mass: Tensor, risks: Mapping[str, Tensor], n: int) -> PoolFacts:
    size, failing = len(mass), mass * failed
    pmi = float(failing.sum())
    return PoolFacts(
        size=size,
        error=float(failed.mean()),
        pmi=pmi,
        effective=1 / float(mass.square().sum()),
        largest=float(mass.max()),
        heaviest=float(failing.topk(n).values.sum()),
        simple_found=n / size * pmi,  # (1)
        simple_rmse=math.sqrt(size**2 / n * (1 - n / size) * float(failing.var())),  # (2)
        operational_found=float((failing * (1 - (1 - mass) ** n)).sum()),  # (3)
        operational_rmse=math.sqrt(pmi * (1 - pmi) / n),  # (4)
        rankings=tuple(_ranking(name, mass, risk, n) for name, risk in risks.items()),
    )


def _ranking(name: str, mass: Tensor, risk: Tensor, n: int) -> Ranking:
    a, b = combine(mass, risk), combine(torch.ones_like(mass), risk)
    if bool((mass == mass[0]).all()):  # the same ranking, apart from ties
        return Ranking(score=name, correlation=1.0, shared=1.0)
    shared = torch.isin(a.topk(n).indices, b.topk(n).indices).double().mean()
    return Ranking(score=name, correlation=float(spearmanr(a, b).statistic), shared=float(shared))


# Errors of estimates --------------------------------------------------------------------------------------------------


def root_mean_square(errors: Tensor) -> Mean:
    """The RMSE, with a 95 % percentile bootstrap over repetitions."""
    again = resampled(errors)
    low, high = again.quantile(torch.tensor([0.025, 0.975], dtype=again.dtype)).tolist()
    return Mean(value=float(errors.square().mean().sqrt()), lower=low, upper=high, n=len(errors))


def resampled(errors: Tensor, name: str = "one") -> Tensor:
    """The root mean squares of bootstrap resamples."""
    rows = torch.randint(len(errors), (RESAMPLES, len(errors)), generator=spawn(0, "bootstrap", name))
    return errors.square()[rows].mean(1).sqrt()
