"""One field with one seed: conditions, likeness, class shares and the error without labels, stored step by step."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from operant.conditions import Recipe
from operant.data import Samples
from operant.model import Classifier
from operant.networks.two_sample import two_sample_auc
from operant.profile import FittedConditions, Priors, estimate_error, estimate_priors, fit_conditions
from operant.rng import spawn
from operant_studies.field.fields import FieldInputs, in_field, in_shares, load_model, make_inputs, shares_among
from operant_studies.field.settings import BEFORE, FieldCase, FieldStudySetting
from operant_studies.operational.unit import TimedConditions
from operant_studies.operational_fuzz.fields import under
from operant_studies.shared import Steps

UNCORRECTED, FITTED, MODEL = "training shares", "fitted with conditions", "MLLS"
ALONE, COMBINED = "model alone", "combination"  # as `estimate_priors` states them, without conditions and with them
SHOWN = 10  # images on either side of the page's sheet
ESTIMATES = (UNCORRECTED, FITTED, MODEL, ALONE, COMBINED)


@dataclass(frozen=True, kw_only=True)
class ShareEstimate:
    """Estimated class shares."""

    name: str  # one of `ESTIMATES`
    values: tuple[float, ...]
    # lower, upper: intervals; empty if none are stated
    lower: tuple[float, ...] = ()
    upper: tuple[float, ...] = ()
    findings: tuple[str, ...] = ()  # names of the reasons to doubt it


@dataclass(frozen=True, kw_only=True)
class FieldShares:
    """True class shares, and their estimates."""

    true: tuple[float, ...]
    estimates: tuple[ShareEstimate, ...]
    stated: Priors | None = None  # what the program states, for the error without labels

    def of(self, name: str) -> ShareEstimate | None:
        return next((e for e in self.estimates if e.name == name), None)


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """AUC of a fresh two-sample network between other field images and training images; 0.5 is no difference."""

    before: float  # as they are
    fitted: float  # under the fitted recipe, in the estimated class shares
    true: float | None  # under the true recipe, in the true class shares; None if there is none
    n: int  # images on either side


@dataclass(frozen=True, kw_only=True)
class ShownInputs:
    """Some field inputs, and training images under the fitted recipe in the estimated class shares."""

    field: Tensor
    simulated: Tensor


@dataclass(frozen=True, kw_only=True)
class FieldError:
    """The true error of the model in the field, and its estimates without labels."""

    true: float
    n: int  # labelled field inputs behind it
    clean: float  # error on the clean labelled inputs
    value: float
    lower: float
    upper: float
    method: str
    by_method: dict[str, float]
    findings: tuple[str, ...]  # names of all reasons to doubt it
    unreliable: tuple[str, ...]  # names of those after which the program calls it unreliable
    seconds: float


def steps_of(out: Path, case: FieldCase, seed: int) -> Steps:
    return Steps(out / "steps" / f"{case.name}-{seed}")


def shown_steps(out: Path) -> Steps:
    """Images for the page, apart from the numbers."""
    return Steps(out / "shown")


def run_network(setting: FieldStudySetting, dataset: str, data: Path | None, seed: int, out: Path) -> None:
    """Train a network once, before the fields that share it."""
    load_model(setting, dataset, data, seed, out / "networks")


def run_unit(setting: FieldStudySetting, case: FieldCase, data: Path | None, seed: int, out: Path) -> None:
    """All steps of one field; a module-level function, so that other processes can run it."""
    FieldUnit(setting=setting, case=case, data=data, seed=seed, out=out).run()


@dataclass(frozen=True, kw_only=True)
class FieldUnit:
    """One field with one seed."""

    setting: FieldStudySetting
    case: FieldCase
    data: Path | None
    seed: int
    out: Path

    def run(self) -> None:
        fitted = self.conditions().conditions
        shares = self.steps.step("shares", FieldShares, lambda: self._shares(fitted))
        self.steps.step("likeness", Likeness, lambda: self._likeness(fitted, shares))
        if self.seed == self.setting.seeds[0]:
            shown_steps(self.out).step(self.case.name, ShownInputs, lambda: self._shown(fitted, shares))
        self.steps.step("error", FieldError, lambda: self._error(fitted, shares))
        if self.case.name == self.setting.downstream.case and self.seed in self.setting.downstream.seeds:
            self.steps.step("before", TimedConditions, lambda: self._fit(BEFORE))

    def conditions(self) -> TimedConditions:
        """The recipe by default settings."""
        return self.steps.step("conditions", TimedConditions, lambda: self._fit(None))

    @property
    def steps(self) -> Steps:
        return steps_of(self.out, self.case, self.seed)

    @cached_property
    def inputs(self) -> FieldInputs:
        return make_inputs(self.setting, self.case, self.data, self.seed)

    @cached_property
    def model(self) -> Classifier:
        return load_model(self.setting, self.case.dataset, self.data, self.seed, self.out / "networks")

    def _generator(self, step: str) -> torch.Generator:
        return spawn(self.seed, self.case.name, "unit", step)

    def _fit(self, widest: Recipe | None) -> TimedConditions:
        return fit_timed(self.inputs.seen, self.inputs.clean, widest=widest, generator=self._generator("conditions"))

    # Class shares

    def _shares(self, fitted: FittedConditions) -> FieldShares:
        inputs = self.inputs
        training = tuple(shares_among(inputs.clean.labels).tolist())
        estimates = [
            ShareEstimate(name=UNCORRECTED, values=training),
            ShareEstimate(name=FITTED, values=fitted.priors),
            ShareEstimate(name=MODEL, values=self._priors(method="bbse", resamples=20).check),  # MLLS, uncorrected
        ]
        estimates.append(_estimate(ALONE, self._priors()))
        stated = self._priors(conditions=fitted)
        estimates.append(_estimate(COMBINED, stated))
        return FieldShares(true=inputs.shares, estimates=tuple(estimates), stated=stated)

    def _priors(self, **options: Any) -> Priors:
        field, generator = self.inputs.seen.with_labels(None), self._generator("shares")
        return estimate_priors(self.model, self.inputs.labelled, field, generator=generator, **options)

    # Likeness

    def _likeness(self, fitted: FittedConditions, shares: FieldShares) -> Likeness:
        n = self.setting.judged
        return Likeness(
            before=self._auc(self.inputs.fresh[:n], "before"),
            fitted=self._auc(self._simulated(fitted, shares), "fitted"),
            true=self._auc(self._truly(), "true") if self.case.recipe is not None else None,
            n=n,
        )

    def _shown(self, fitted: FittedConditions, shares: FieldShares) -> ShownInputs:
        simulated = self._simulated(fitted, shares)
        return ShownInputs(field=self.inputs.truth.x[:SHOWN], simulated=simulated.x[:SHOWN])

    def _simulated(self, fitted: FittedConditions, shares: FieldShares) -> Samples:
        """Training images under the fitted recipe in the estimated class shares, as a user would have them."""
        stated = shares.stated
        assert stated is not None
        drawn = self._drawn(stated.values, "fitted")
        return under(fitted.recipe, drawn, generator=self._generator("severities")) if fitted.recipe.names else drawn

    def _drawn(self, shares: tuple[float, ...], name: str) -> Samples:
        generator = self._generator(f"drawn {name}")
        return in_shares(self.inputs.fresh, self.setting.judged, torch.tensor(shares), generator=generator)

    def _truly(self) -> Samples:
        """Training images as the field would have them."""
        return in_field(self.case, self._drawn(self.inputs.shares, "true"), generator=self._generator("truly"))

    def _auc(self, simulated: Samples, name: str) -> float:
        others: Tensor = self.inputs.truth.x[: self.setting.judged]
        return two_sample_auc(others, simulated.x, generator=self._generator(f"judge {name}"))

    # Error without labels

    def _error(self, fitted: FittedConditions, shares: FieldShares) -> FieldError:
        inputs, model = self.inputs, self.model
        start = time.process_time()
        found = estimate_error(
            model,
            inputs.labelled,
            inputs.seen.with_labels(None),
            priors=shares.stated,
            conditions=fitted,
            generator=self._generator("error"),
        )
        return FieldError(
            true=1 - model.accuracy(inputs.truth),
            n=len(inputs.truth),
            clean=1 - model.accuracy(inputs.labelled),
            value=found.value,
            lower=found.lower,
            upper=found.upper,
            method=found.method,
            by_method=found.by_method,
            findings=tuple(f.name for f in found.findings),
            unreliable=tuple(f.name for f in found.unreliable),
            seconds=time.process_time() - start,
        )


def fit_timed(
    field: Samples, clean: Samples, *, widest: Recipe | None = None, generator: torch.Generator
) -> TimedConditions:
    """Conditions by default settings, without the field's labels, and the CPU time."""
    start = time.process_time()
    fitted = fit_conditions(field.with_labels(None), clean, widest=widest, generator=generator, progress=False)
    return TimedConditions(conditions=fitted, seconds=time.process_time() - start)


def _estimate(name: str, priors: Priors) -> ShareEstimate:
    return ShareEstimate(
        name=name,
        values=priors.values,
        lower=priors.lower,
        upper=priors.upper,
        findings=tuple(f.name for f in priors.findings),
    )
