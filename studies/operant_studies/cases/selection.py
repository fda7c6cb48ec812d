"""Models compared without labels: which estimate ranks checkpoints as their true error in the field does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata

from operant.assess.case_rate import failure_rate
from operant.data import Samples
from operant.generate import PGD, default_radii
from operant.model import Classifier
from operant.networks import LeNet5, fit, initialise
from operant.profile import estimate_error
from operant.rng import shuffled
from operant.suite import Suite
from operant_studies.cases.settings import PLAIN, RECIPE, CasesSetting, Checkpoint, Selection
from operant_studies.cases.unit import CasesField, drawn
from operant_studies.field.settings import BEFORE
from operant_studies.operational_fuzz.fields import under
from operant_studies.shared import Units
from operant_studies.subjects import CIFAR_MEAN, CIFAR_STD

Array = NDArray[np.float64]
CASES, LABELS = "failure rate on cases", "field labels"
CLEAN, ATTACKED = "clean error", "error under PGD"
ATC, CONFIDENCE = "ATC", "calibrated confidence"
ATC_UNDER, CONFIDENCE_UNDER = "ATC under conditions", "confidence under conditions"
WITHOUT_CASES = (ATC, CONFIDENCE, CLEAN, ATTACKED)  # they need neither cases nor conditions
PREDICTORS = (CASES, ATC, CONFIDENCE, ATC_UNDER, CONFIDENCE_UNDER, CLEAN, ATTACKED)
LABEL_DRAWS = 10  # draws of field labels, each as many as there are cases
ERROR_RESAMPLES = 20  # of intervals, which are not used
BOOTSTRAPS = 2_000


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One checkpoint: the truth, and what predicts it."""

    name: str
    pmi: float
    predicted: dict[str, float]
    labels: tuple[float, ...]  # error on field labels, one per draw


def units(setting: CasesSetting, data: Path | None, out: Path) -> Units:
    """One unit per field and seed."""
    return [
        (f"selection, {selection.case}, seed {seed}", partial(run_selection, setting, selection, data, seed, out))
        for selection in setting.selections
        for seed in selection.seeds
    ]


def run_selection(setting: CasesSetting, selection: Selection, data: Path | None, seed: int, out: Path) -> None:
    """All checkpoints of one field; a module-level function, so that other processes can run it."""
    field = CasesField(setting=setting, case=setting.case(selection.case), data=data, seed=seed, out=out)
    comparison = Comparison(field=field)
    for i, checkpoint in enumerate(selection.checkpoints):
        field.steps.step(checkpoint_step(i), Compared, partial(comparison.of, checkpoint, i))


def checkpoint_step(number: int) -> str:
    return f"checkpoint-{number}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Checkpoints of one field with one seed, all compared on the same inputs."""

    field: CasesField

    @cached_property
    def cases(self) -> Suite:
        """Unselected cases of clean inputs that no checkpoint has learned from."""
        seeds = self.field.inputs.labelled[: self.field.setting.compared]
        return drawn(self.field.model, self.field.known.recipe, seeds, generator=self.field.generator("compared"))

    def of(self, checkpoint: Checkpoint, number: int) -> Compared:
        field = self.field
        model, inputs = self._trained(checkpoint, number), field.inputs
        failed = (model.predict(inputs.truth.x) != inputs.truth.labels).double()
        rows = [shuffled(len(failed), field.generator("labels", str(i))) for i in range(LABEL_DRAWS)]
        attacked = PGD(radius=default_radii(inputs.clean)[0], norm="l2")(
            model, inputs.labelled[: field.setting.attacked], generator=field.generator("attack")
        )
        return Compared(
            name=checkpoint.name,
            pmi=float(failed.mean()),
            predicted={
                CASES: failure_rate(model, self.cases, priors=field.known.priors).value,
                **self._estimates(model),
                CLEAN: 1 - model.accuracy(inputs.labelled),
                ATTACKED: float((attacked.prediction != attacked.label).double().mean()),
            },
            labels=tuple(float(failed[some[: field.setting.compared]].mean()) for some in rows),
        )

    def _estimates(self, model: Classifier) -> dict[str, float]:
        """By confidence; from clean inputs alone, and from clean inputs under the estimated conditions."""
        field = self.field
        found: dict[str, float] = {}
        names = ((None, ATC, CONFIDENCE), (field.known.conditions, ATC_UNDER, CONFIDENCE_UNDER))
        for conditions, atc, confidence in names:
            by_method = estimate_error(
                model,
                field.inputs.labelled,
                field.inputs.seen.with_labels(None),
                priors=field.known.priors,
                conditions=conditions,
                resamples=ERROR_RESAMPLES,
                generator=field.generator("error"),
            ).by_method
            found |= {atc: by_method["atc"], confidence: by_method["confidence"]}
        return found

    def _trained(self, checkpoint: Checkpoint, number: int) -> Classifier:
        """ResNet-20 is trained further, small networks are trained anew."""
        field, generator = self.field, self.field.generator("checkpoint", str(number))
        given = field.case.dataset == "cifar10"
        module = field.model.unwrap() if given else initialise(LeNet5, generator=generator)
        fitted = fit(
            module,
            self._taught(checkpoint, generator),
            epochs=checkpoint.epochs,
            learning_rate=checkpoint.learning_rate,
            mean=CIFAR_MEAN if given else None,
            std=CIFAR_STD if given else None,
            generator=generator,
            progress=False,
        )
        return field.model.rewrap(fitted.module) if given else Classifier(fitted.module)

    def _taught(self, checkpoint: Checkpoint, generator: torch.Generator) -> Samples:
        """Training images as the checkpoint sees them."""
        known = self.field.inputs.fresh
        images = known[shuffled(len(known), generator)[: checkpoint.images]]
        recipe = self.field.known.recipe if checkpoint.learned == RECIPE else BEFORE
        if checkpoint.learned != PLAIN and recipe.names:
            images = under(recipe, images, generator=generator)
        wrong = torch.rand(len(images), generator=generator) < checkpoint.wrong_labels
        other = torch.randint(int(known.labels.max()) + 1, (len(images),), generator=generator)
        return Samples(images.x, torch.where(wrong, other, images.labels))


# Rank correlation -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Spearman's rank correlation, with a percentile interval over checkpoints."""

    value: float
    lower: float
    upper: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.lower:.2f}, {self.upper:.2f}]"


def spearman(a: Array, b: Array) -> Array:
    """Rank correlation along the last axis; 0 if one of both is constant there.

    >>> float(spearman(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 8.0])).round(6))
    1.0
    """
    x, y = (v - v.mean(-1, keepdims=True) for v in (rankdata(a, axis=-1), rankdata(b, axis=-1)))
    size = np.sqrt((x**2).sum(-1) * (y**2).sum(-1))
    found: Array = np.divide((x * y).sum(-1), size, out=np.zeros_like(size), where=size > 0)
    return found


def correlations(runs: list[list[Compared]]) -> dict[str, Correlation]:
    """For each predictor the mean over seeds; checkpoints are resampled, the same ones in every seed."""
    return {name: _with_interval(_resampled(runs, name)) for name in (*PREDICTORS, LABELS)}


def difference(runs: list[list[Compared]], name: str, rival: str) -> Correlation:
    """By how much one predictor's correlation exceeds another's, on the same resamples."""
    return _with_interval(_resampled(runs, name) - _resampled(runs, rival))


def without_cases(runs: list[list[Compared]]) -> str:
    """The best predictor that needs neither cases nor labels, as known afterwards."""
    found = correlations(runs)
    return max(WITHOUT_CASES, key=lambda name: found[name].value)


def _with_interval(values: Array) -> Correlation:
    lower, upper = np.quantile(values[1:], (0.025, 0.975))
    return Correlation(value=float(values[0]), lower=float(lower), upper=float(upper))


def _resampled(runs: list[list[Compared]], name: str) -> Array:
    """The correlation of all checkpoints, then that of each resample."""
    n = len(runs[0])
    draws = np.random.default_rng(0).integers(n, size=(BOOTSTRAPS, n))
    pairs = [pair for run in runs for pair in _pairs(run, name)]
    first = np.mean([spearman(a, b) for a, b in pairs])
    few = pairs[:: LABEL_DRAWS if name == LABELS else 1]  # one draw of labels is enough for the interval
    return np.array([first, *np.mean([spearman(a[draws], b[draws]) for a, b in few], axis=0)])


def _pairs(run: list[Compared], name: str) -> list[tuple[Array, Array]]:
    """Prediction and truth of all checkpoints; one pair per draw of labels."""
    truth = np.array([c.pmi for c in run])
    if name == LABELS:
        return [(np.array([c.labels[i] for c in run]), truth) for i in range(LABEL_DRAWS)]
    return [(np.array([c.predicted[name] for c in run]), truth)]
