"""Defences of Tables 6 and 7, fitted on inputs and attacks that judge nothing."""

from __future__ import annotations

from pathlib import Path

import torch

from operant.data import Dataset, Samples, load, load_digits
from operant.defend import (
    JPEG,
    BitDepth,
    Defence,
    PixelDeflection,
    TransformedInputs,
    crops,
    fit_feature_squeezing,
    fit_logit_detector,
    fit_mutation_detector,
)
from operant.defend._common import Transform
from operant.model import Classifier
from operant.networks import LeNet5, initialise
from operant.retrain import DefensiveDistillation, LabelSmoothing
from operant.rng import spawn
from operant.studies.defences import settings as s
from operant.studies.defences.settings import Plan
from operant.studies.defences.suites import Home, attacks_of, benign_of
from operant.studies.kuk.models import Ready
from operant.studies.kuk.settings import Subject

TRIED_MUTANTS, TRIED_INPUTS = 6, 80  # that tell whether a rate leaves mutants accurate
CROPS, QUALITY, BITS = 5, 75, 3  # of the input transformations
TEMPERATURE, SMOOTHED = 20.0, 0.1
MAX_DROP = 0.05  # in clean accuracy, beyond which a retrained model is not taken


def fitted(plan: Plan, given: Ready, defence: str, run: int, data: Path | None, home: Home) -> tuple[Defence, str]:
    """One defence of one run, and what there is to say of it."""
    generator = spawn(0, "defences", plan.name, defence, run)
    benign = benign_of(plan, given, run)
    if defence == s.CLASSIFIER:
        shown = attacks_of(plan, given, plan.shown(run), run + 1, home)
        told = f"shown {len(shown)} cases of {' and '.join(plan.shown(run))}, {plan.benign} benign inputs"
        cases = shown.samples()
        return fit_logit_detector(given.model, benign, cases, level=plan.level, generator=generator), told
    if defence == s.MUTATION:
        return _mutation(plan, given.model, benign, generator)
    if defence == s.SQUEEZING:
        return fit_feature_squeezing(given.model, benign, level=plan.level), ""
    if defence in (s.DISTILLATION, s.SMOOTHING):
        return _retrained(plan, given.model, defence, run, data, generator)
    if defence == s.TRANSFORMS:
        made: list[Transform] = [BitDepth(bits=BITS), JPEG(quality=QUALITY), *crops(CROPS)]
        return TransformedInputs(model=given.model, transforms=tuple(made)), ""
    side = benign.shape[-1]
    count = max(1, round(200 * side**2 / 224**2))
    deflection = PixelDeflection(count=count, window=min(10, side // 3))
    return TransformedInputs(model=given.model, transforms=(deflection,)), f"{count} pixels"


def dataset_of(subject: Subject, data: Path | None) -> Dataset:
    """Training and test inputs, as the KuK study has them."""
    return load_digits(size=28) if subject.dataset == "digits" else load(subject.dataset, data or Path())


def _mutation(plan: Plan, model: Classifier, benign: Samples, generator: torch.Generator) -> tuple[Defence, str]:
    """With the largest rate that leaves enough mutants accurate, by a small trial."""
    rate = plan.mutation_rates[-1]
    for tried in plan.mutation_rates[:-1]:
        try:
            draw = spawn(0, "defences", plan.name, "rate", str(tried))
            some = benign[:TRIED_INPUTS]
            fit_mutation_detector(model, some, rate=tried, mutants=TRIED_MUTANTS, level=0.2, generator=draw)
        except ValueError:
            continue
        rate = tried
        break
    options = {"rate": rate, "mutants": plan.mutants, "level": plan.level}
    detector = fit_mutation_detector(model, benign, **options, generator=generator)  # type: ignore[arg-type]
    return detector, f"rate {rate:g}, {plan.mutants} mutants"


def _retrained(
    plan: Plan, model: Classifier, defence: str, run: int, data: Path | None, generator: torch.Generator
) -> tuple[Defence, str]:
    every = dataset_of(plan.subject, data).train
    train, validation = every[run * plan.train : (run + 1) * plan.train], every[len(every) - plan.validation :]
    start = model.rewrap(initialise(LeNet5, generator=generator)) if plan.from_scratch else None
    options = {"epochs": plan.epochs, "learning_rate": plan.learning_rate, "max_drop": MAX_DROP, "progress": False}
    roles = {"validation": validation, "start": start, "generator": generator}
    if defence == s.SMOOTHING:
        smoothed = LabelSmoothing(share=SMOOTHED, **options)(model, train, **roles)  # type: ignore[arg-type]
        return smoothed.model, _told(smoothed.record.best_epoch)
    distilled = DefensiveDistillation(temperature=TEMPERATURE, **options)(model, train, **roles)  # type: ignore[arg-type]
    return distilled.model, _told(distilled.record.best_epoch)


def _told(epoch: int) -> str:
    return f"epoch {epoch}" if epoch else "not accurate enough, so that the model stayed as it was"
