"""The results of one set-up with one network, read from its finished steps, with intervals."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from operant.profile import FittedConditions
from operant_studies.seeds.risk import PoolRisk
from operant_studies.seeds.settings import SETUPS, SeedsSetting
from operant_studies.seeds.trials import BY_MAP, ArmTrials, DrawArm, PoolFacts, grid, resampled, root_mean_square
from operant_studies.seeds.unit import SeedsUnit
from operant_studies.seeds.weighting import PoolWeightings
from operant_studies.shared import Mean, mean


@dataclass(frozen=True)
class ArmResult:
    """One arm: values by repetition, and the facts to compare them with."""

    arm: DrawArm
    found: Tensor
    failures: Tensor
    errors: Tensor
    facts: PoolFacts

    @cached_property
    def mass(self) -> Mean:
        return mean(self.found.tolist())

    @property
    def gain(self) -> Mean:
        """Failing mass found, in multiples of simple random sampling's."""
        return _scaled(self.mass, 1 / self.facts.simple_found)

    @cached_property
    def rmse(self) -> Mean:
        """Of the estimate."""
        return root_mean_square(self.errors)

    @property
    def loss(self) -> Mean:
        """The RMSE in multiples of simple random sampling's."""
        return _scaled(self.rmse, 1 / self.facts.simple_rmse)

    @property
    def estimates(self) -> bool:
        return not bool(self.errors.isnan().any())


@dataclass(frozen=True, kw_only=True)
class MapResult:
    """One risk map, and the draws by it."""

    seed: int
    conditions: FittedConditions
    rated: PoolRisk
    expected: float  # the pool's pmi by the map
    arm: ArmResult


@dataclass(frozen=True)
class SeedsOutcome:
    """A finished unit."""

    setting: SeedsSetting
    name: str
    kind: str
    folder: Path

    @property
    def label(self) -> str:
        return f"{SETUPS[self.name]}, {self.kind} network"

    @cached_property
    def unit(self) -> SeedsUnit:
        return SeedsUnit(self.setting, self.name, self.kind, None, self.folder)

    @cached_property
    def facts(self) -> PoolFacts:
        return self.unit.steps.read("facts", PoolFacts)

    @cached_property
    def maps(self) -> list[MapResult]:
        """One risk map per seed; the first is that of all other arms."""
        return [self._map(seed) for seed in self.setting.seeds]

    def _map(self, seed: int) -> MapResult:
        rated = self.unit.steps.read(f"risk-{seed}", PoolRisk)
        mass = self.weighed[0].mass if self.weighed else torch.full_like(rated.values, 1 / self.facts.size)
        return MapResult(
            seed=seed,
            conditions=self.unit.field_steps.read(f"conditions-{seed}", FittedConditions),
            rated=rated,
            expected=float(mass @ rated.values),
            arm=self.tried[BY_MAP] if seed == self.setting.seeds[0] else self._results(f"map-{seed}")[0],
        )

    @cached_property
    def tried(self) -> dict[DrawArm, ArmResult]:
        """All arms, without the fresh repetitions of the best."""
        return {t.arm: t for name in self.unit.batches() for t in self._results(name)}

    @cached_property
    def best(self) -> ArmResult:
        """The best of the grid, in repetitions that had no part in choosing it."""
        return self._results("fresh")[0]

    @cached_property
    def grid(self) -> list[ArmResult]:
        """All arms that the best was chosen from."""
        return [self.tried[arm] for score in self.setting.scores for arm in grid(self.setting, score)]

    @cached_property
    def weighed(self) -> list[PoolWeightings]:
        """One result per seed; none where all masses are equal."""
        seeds = self.setting.seeds if self.unit.weighted else ()
        return [self.unit.steps.read(f"weighed-{seed}", PoolWeightings) for seed in seeds]

    def _results(self, step: str) -> list[ArmResult]:
        trials = self.unit.steps.read(step, ArmTrials)
        rows = zip(trials.arms, trials.found, trials.failures, trials.estimates - self.facts.pmi, strict=True)
        return [ArmResult(arm, found, failures, errors, self.facts) for arm, found, failures, errors in rows]


def _scaled(value: Mean, factor: float) -> Mean:
    return Mean(value=factor * value.value, lower=factor * value.lower, upper=factor * value.upper, n=value.n)


def ratio_of_rmse(a: ArmResult, b: ArmResult) -> Mean:
    """RMSE of ``a`` relative to ``b``, with a bootstrap over the repetitions of both."""
    again = resampled(a.errors) / resampled(b.errors, "other")
    low, high = again.quantile(torch.tensor([0.025, 0.975], dtype=again.dtype)).tolist()
    return Mean(value=a.rmse.value / b.rmse.value, lower=low, upper=high, n=len(a.errors))
