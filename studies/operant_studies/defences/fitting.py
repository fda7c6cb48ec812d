"""Defences of Tables 6 and 7, fitted on inputs and attacks that are not test data."""

from __future__ import annotations

from pathlib import Path

import torch

from operant.data import Samples
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
from operant.defend.mutation import InaccurateMutants
from operant.model import Classifier
from operant.networks import LeNet5, initialise
from operant.retrain import DefensiveDistillation, LabelSmoothing
from operant.rng import spawn
from operant_studies.defences import settings as s
from operant_studies.defences.settings import DefencePlan
from operant_studies.defences.suites import SuiteFolders, attacks_of, benign_of
from operant_studies.kuk.models import PreparedModel
from operant_studies.kuk.settings import Subject
from operant_studies.subjects import read_dataset

CROPS, QUALITY, BITS = 5, 75, 3  # of the input transformations
TEMPERATURE, SMOOTHED = 20.0, 0.1


def fit_defence(
    plan: DefencePlan, given: PreparedModel, defence: str, run: int, data: Path | None, folders: SuiteFolders
) -> tuple[Defence, str]:
    """One defence of one run, and remarks on its fit."""
    generator = spawn(0, "defences", plan.name, defence, run)
    benign = benign_of(plan, given, run)
    if defence == s.CLASSIFIER:
        shown = attacks_of(plan, given, plan.shown(run), run + 1, folders)
        note = f"shown {len(shown)} cases of {' and '.join(plan.shown(run))}, {plan.benign} benign inputs"
        cases = shown.samples()
        return fit_logit_detector(given.model, benign, cases, level=plan.level, generator=generator), note
    if defence == s.MUTATION:
        return _mutation(plan, given.model, benign, run)
    if defence == s.SQUEEZING:
        return fit_feature_squeezing(given.model, benign, level=plan.level), ""
    if defence in (s.DISTILLATION, s.SMOOTHING):
        return _retrained(plan, given.model, defence, run, data, generator)
    if defence == s.TRANSFORMS:
        transforms: list[Transform] = [BitDepth(bits=BITS), JPEG(quality=QUALITY), *crops(CROPS)]
        return TransformedInputs(model=given.model, transforms=tuple(transforms)), ""
    side = benign.shape[-1]
    count = max(1, round(200 * side**2 / 224**2))
    deflection = PixelDeflection(count=count, window=min(10, side // 3))
    return TransformedInputs(model=given.model, transforms=(deflection,)), f"{count} pixels"


def training_of(subject: Subject, data: Path | None, rows: slice) -> Samples:
    """Some training inputs in random order, so that any part of them has all classes."""
    every = read_dataset(subject.dataset, data).train
    return every[torch.randperm(len(every), generator=spawn(0, "defences", subject.name, "training"))[rows]]


def _mutation(plan: DefencePlan, model: Classifier, benign: Samples, run: int) -> tuple[Defence, str]:
    """Mutation-based detection with the first rate that leaves enough mutants accurate."""
    for rate in plan.mutation_rates:
        generator = spawn(0, "defences", plan.name, s.MUTATION, run, str(rate))
        options = {"rate": rate, "mutants": plan.mutants, "level": plan.level}
        try:
            detector = fit_mutation_detector(model, benign, **options, generator=generator)  # type: ignore[arg-type]
        except InaccurateMutants:
            if rate == plan.mutation_rates[-1]:
                raise
            continue
        return detector, f"rate {rate:g}, {plan.mutants} mutants"
    raise AssertionError("there is always a last rate")


def _retrained(
    plan: DefencePlan, model: Classifier, defence: str, run: int, data: Path | None, generator: torch.Generator
) -> tuple[Defence, str]:
    train = training_of(plan.subject, data, slice(run * plan.train, (run + 1) * plan.train))
    validation = training_of(plan.subject, data, slice(-plan.validation, None))
    start = model.rewrap(initialise(LeNet5, generator=generator)) if plan.from_scratch else None
    options = {"epochs": plan.epochs, "learning_rate": plan.learning_rate, "max_drop": 1.0, "progress": False}
    roles = {"validation": validation, "start": start, "generator": generator}
    if defence == s.SMOOTHING:
        defended = LabelSmoothing(share=SMOOTHED, **options)(model, train, **roles).model  # type: ignore[arg-type]
    else:
        distil = DefensiveDistillation(temperature=TEMPERATURE, **options)  # type: ignore[arg-type]
        defended = distil(model, train, **roles).model  # type: ignore[arg-type]
    before, after = (each.accuracy(validation) for each in (model, defended))
    return defended, f"{100 * before:.1f} → {100 * after:.1f} % of {len(validation)} inputs that chose the epoch"
