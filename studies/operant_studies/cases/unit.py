"""One field with one seed: inputs, network, and what a user knows of the field without labels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from operant.conditions import Recipe, wider
from operant.data import Samples
from operant.generate import RecipeDraws
from operant.generate.engine import judge
from operant.model import Classifier
from operant.profile import FittedConditions, Priors, estimate_priors
from operant.rng import spawn
from operant.suite import Suite
from operant_studies.cases.settings import CasesSetting
from operant_studies.field.fields import FieldInputs, in_shares, load_model, make_inputs
from operant_studies.field.settings import FieldCase
from operant_studies.field.unit import fit_timed
from operant_studies.operational.unit import TimedConditions
from operant_studies.shared import Steps


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is estimated from unlabelled field inputs."""

    conditions: FittedConditions
    priors: Priors
    seconds: float  # CPU time of the conditions

    @property
    def recipe(self) -> Recipe:
        return self.conditions.recipe


def steps_of(out: Path, case: FieldCase, seed: int) -> Steps:
    return Steps(out / "steps" / f"{case.name}-{seed}")


def run_network(setting: CasesSetting, dataset: str, data: Path | None, seed: int, out: Path) -> None:
    """Train a network once, before the fields that share it."""
    load_model(setting.inputs, dataset, data, seed, out / "networks")


def run_known(setting: CasesSetting, case: FieldCase, data: Path | None, seed: int, out: Path) -> None:
    """Estimate a field once, before the parts that use it."""
    _ = CasesField(setting=setting, case=case, data=data, seed=seed, out=out).known


@dataclass(frozen=True, kw_only=True)
class CasesField:
    """One field with one seed; no training image has two roles."""

    setting: CasesSetting
    case: FieldCase
    data: Path | None
    seed: int
    out: Path

    @property
    def steps(self) -> Steps:
        return steps_of(self.out, self.case, self.seed)

    @cached_property
    def inputs(self) -> FieldInputs:
        return make_inputs(self.setting.inputs, self.case, self.data, self.seed)

    @cached_property
    def model(self) -> Classifier:
        return load_model(self.setting.inputs, self.case.dataset, self.data, self.seed, self.out / "networks")

    @cached_property
    def known(self) -> Known:
        return self.steps.step("known", Known, self._estimate)

    def generator(self, *names: str) -> torch.Generator:
        return spawn(self.seed, self.case.name, "cases", *names)

    def _estimate(self) -> Known:
        seen = self.inputs.seen.with_labels(None)
        fitted: TimedConditions = fit_timed(seen, self.inputs.clean, generator=self.generator("conditions"))
        found = fitted.conditions
        labelled, generator = self.inputs.labelled, self.generator("priors")
        priors = estimate_priors(self.model, labelled, seen, conditions=found, resamples=40, generator=generator)
        return Known(conditions=found, priors=priors, seconds=fitted.seconds)

    # Seeds of cases

    @property
    def risk_seeds(self) -> Samples:
        """Clean labelled inputs, which the model has not learned from, then training images."""
        labelled = self.inputs.labelled
        return Samples.concat([labelled, self.inputs.fresh[: max(0, self.setting.risk_cases - len(labelled))]])

    def teaching(self) -> tuple[Suite, Suite]:
        """What a user can teach a risk map without a field label: cases of the recipe, and of wider conditions."""
        recipe, n = self.known.recipe, self.setting.wider_cases
        held = self.inputs.labelled[: n // 2]
        start = self.setting.risk_cases
        others = Samples.concat([held, self.inputs.fresh[start : start + n - len(held)]])
        more = RecipeDraws(recipe=wider(recipe, tuple(held.shape)), dense=1.0)
        cases = drawn(self.model, recipe, self.risk_seeds, generator=self.generator("risk cases"))
        return cases, more(self.model, others, generator=self.generator("wider cases"))

    def seeds_for(self, role: int, n: int, shares: tuple[float, ...]) -> Samples:
        """Training images in these class shares, of a block of their own: role 0 teaches a judge, others are judged."""
        start = self.setting.risk_cases + self.setting.wider_cases + role * self.setting.block
        block = self.inputs.fresh[start : start + self.setting.block]
        values = torch.tensor(shares, dtype=torch.float64)
        return in_shares(block, n, values, generator=self.generator("seeds", str(role)))


def drawn(model: Classifier, recipe: Recipe, seeds: Samples, *, generator: torch.Generator) -> Suite:
    """One case per seed, as the program draws them; the seeds themselves if the recipe has no condition."""
    if not recipe.names:
        return judge(model, seeds, seeds.x, method="draws")
    return RecipeDraws(recipe=recipe)(model, seeds, generator=generator)
