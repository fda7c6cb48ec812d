"""One set-up with one network: masses, risks, draws, stored step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from operant.measure import fit_dsa
from operant.model import Classifier
from operant.profile import FittedConditions, Priors
from operant.rng import spawn
from operant.seeds import entropy_risk, gini_risk, gradient_risk, margin_risk, risk_of, surprise_risk
from operant.types import Score
from operant_studies.seeds.risk import (
    FEW,
    PoolRisk,
    UserInputs,
    find_conditions,
    find_priors,
    make_user_inputs,
    rate_pool,
)
from operant_studies.seeds.settings import RISK_MAP, SeedsSetting, SeedsSources
from operant_studies.seeds.setups import SeedsSetup, make_setup
from operant_studies.seeds.trials import (
    BY_MAP,
    DEFAULT,
    ONCE,
    OPERATIONAL,
    SIMPLE,
    ArmTrials,
    DrawArm,
    PoolFacts,
    deepest,
    facts_of,
    grid,
    root_mean_square,
    run_trials,
    top,
)
from operant_studies.seeds.weighting import PoolWeightings, weigh_pool
from operant_studies.shared import Steps, slug

SCORES: dict[str, Score] = {
    "margin": margin_risk,
    "gini": gini_risk,
    "entropy": entropy_risk,
    "gradient": gradient_risk,
}


@dataclass(frozen=True)
class SeedsUnit:
    """One set-up with one network."""

    setting: SeedsSetting
    setup_name: str
    kind: str
    data: Path | None
    folder: Path

    def run(self) -> None:
        steps, setting = self.steps, self.setting
        if self.weighted:
            for seed in setting.seeds:
                self.weighed(seed)
        steps.step("facts", PoolFacts, lambda: facts_of(self.failed, self.mass, self.risks, setting.draws))
        for name, arms in self.batches().items():
            steps.step(name, ArmTrials, partial(self._trials, arms, "first"))
        steps.step("fresh", ArmTrials, lambda: self._trials([best_arm(self)], "fresh"))
        for seed in setting.seeds[1:]:
            steps.step(f"map-{seed}", ArmTrials, partial(self._by_other_map, seed))

    def batches(self) -> dict[str, list[DrawArm]]:
        """The arms of each step."""
        setting = self.setting
        batches = {"baselines": [SIMPLE, OPERATIONAL, *([ONCE] if self.weighted else [])]}
        for score in setting.scores:
            batches[with_step(score)] = [*grid(setting, score), deepest(score), top(score)]
            if self.weighted:
                batches[f"without-{slug(score)}"] = [*grid(setting, score, profile=False), top(score, profile=False)]
        return batches

    @property
    def weighted(self) -> bool:
        """Whether the pool's inputs differ in mass."""
        return self.setup_name.endswith("-pool")

    @property
    def steps(self) -> Steps:
        return Steps(self.folder / f"{self.setup_name}-{self.kind}")

    @property
    def field_steps(self) -> Steps:
        """What all networks share."""
        return Steps(self.folder / self.setup_name)

    def weighed(self, seed: int) -> PoolWeightings:
        def work() -> PoolWeightings:
            setup = self.setup if seed == self.setting.seeds[0] else make_setup(self.setup_name, self.sources, seed)
            return weigh_pool(self.model, setup, self.setting, seed)

        return self.steps.step(f"weighed-{seed}", PoolWeightings, work)

    @cached_property
    def sources(self) -> SeedsSources:
        return SeedsSources(self.setting, self.data)

    @cached_property
    def model(self) -> Classifier:
        return self.sources.network(self.kind)

    @cached_property
    def setup(self) -> SeedsSetup:
        return make_setup(self.setup_name, self.sources, self.setting.seeds[0])

    @cached_property
    def failed(self) -> Tensor:
        return (self.model.predict(self.setup.pool.x) != self.setup.pool.labels).double()

    @cached_property
    def mass(self) -> Tensor:
        if self.weighted:
            return self.weighed(self.setting.seeds[0]).mass
        return torch.full((len(self.setup.pool),), 1 / len(self.setup.pool), dtype=torch.float64)

    @cached_property
    def risks(self) -> dict[str, Tensor]:
        setting, train = self.setting, self.sources.known.train
        generator = spawn(0, "dsa")
        dsa = fit_dsa(self.model, train, layers=[setting.layer], references=setting.references, generator=generator)
        scores = {**SCORES, "dsa": surprise_risk(dsa)}
        rest = [name for name in setting.scores if name != RISK_MAP]
        risks = {name: risk_of(self.model, self.setup.pool, scores[name]) for name in rest}
        return {**risks, RISK_MAP: self.rated(setting.seeds[0]).values}

    # Risk maps; the seed decides field inputs, training images by role, and cases, while the pool stays the same

    def conditions(self, seed: int) -> FittedConditions:
        """The conditions of the field; the same for all networks."""

        def work() -> FittedConditions:
            widest = FEW if self.setting.dataset == "digits" else None
            generator = spawn(seed, self.setup_name, "conditions")
            return find_conditions(self._inputs(seed), widest=widest, generator=generator)

        return self.field_steps.step(f"conditions-{seed}", FittedConditions, work)

    def priors(self, seed: int) -> Priors:
        def work() -> Priors:
            generator = spawn(seed, self.setup_name, self.kind, "priors")
            return find_priors(self.model, self._inputs(seed), self.conditions(seed), generator=generator)

        return self.steps.step(f"priors-{seed}", Priors, work)

    def rated(self, seed: int) -> PoolRisk:
        """The pool by a risk map."""

        def work() -> PoolRisk:
            known, cases = (self.conditions(seed).recipe, self.priors(seed)), self.setting.cases
            generator = spawn(seed, self.setup_name, self.kind, "cases")
            return rate_pool(self.model, self.setup, self._inputs(seed), *known, cases=cases, generator=generator)

        return self.steps.step(f"risk-{seed}", PoolRisk, work)

    def _inputs(self, seed: int) -> UserInputs:
        setup = self.setup if seed == self.setting.seeds[0] else make_setup(self.setup_name, self.sources, seed)
        return make_user_inputs(self.setup_name, self.sources, setup, seed)

    def _by_other_map(self, seed: int) -> ArmTrials:
        """The default by a risk map of another seed."""
        return self._trials([BY_MAP], f"map {seed}", {RISK_MAP: self.rated(seed).values})

    # Draws

    def _trials(self, arms: list[DrawArm], series: str, risks: Mapping[str, Tensor] | None = None) -> ArmTrials:
        setting = self.setting
        return run_trials(
            arms,
            self.setup.pool,
            self.failed,
            self.mass,
            self.risks if risks is None else risks,
            draws=setting.draws,
            repetitions=setting.repetitions,
            path=(self.setup_name, self.kind, series),
        )


def with_step(score: str) -> str:
    """The step of a score's arms with the profile."""
    return f"with-{slug(score)}"


def best_arm(unit: SeedsUnit) -> DrawArm:
    """Of the grid with the profile, the arm that found most among those that estimate no worse than simple sampling.

    The whole interval must be no worse, because the verdict requires that.
    """
    facts = unit.steps.read("facts", PoolFacts)
    best, most = DEFAULT, -1.0
    for score in unit.setting.scores:
        trials = unit.steps.read(with_step(score), ArmTrials)
        arms = grid(unit.setting, score)
        rows = zip(trials.arms, trials.found.mean(1).tolist(), trials.estimates - facts.pmi, strict=True)
        for arm, found, errors in rows:
            if arm in arms and found > most and root_mean_square(errors).upper <= facts.simple_rmse:
                best, most = arm, found
    return best
