"""CIFAR-10: whether a source trained in minutes passes the gate."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from operant.data import load
from operant.generate import FeatureSource
from operant.model import Classifier
from operant.networks import ResNet20, fit_cvae, fit_gan, load_weights
from operant.rng import spawn
from operant_studies.semantic.injected import missing
from operant_studies.semantic.instruments import RatedSource
from operant_studies.shared import Steps
from operant_studies.subjects import CIFAR_MEAN, CIFAR_STD, find_resnet20

ROWS, RATED = 20_000, 2_000  # training images that a source learns from, and test images that it is rated on
BATCH = 64
STEPS = {"gan": 1_250, "cvae": 1_800}  # as many as take about four minutes


def available(data: Path | None) -> bool:
    """Whether CIFAR-10 and a classifier of it are there; if not, this part is left out."""
    if data is None or find_resnet20(data) is None:
        return False
    try:
        load("cifar10", data)
    except (ValueError, OSError):
        return False
    return True


def run(data: Path, out: Path, kind: str) -> None:
    steps_of(out).step(kind, RatedSource, partial(attempt, data, kind))


def attempt(data: Path, kind: str) -> RatedSource:
    """Train one kind of source, and let a ResNet-20 with given weights rate it."""
    images, weights = load("cifar10", data), find_resnet20(data)
    assert weights is not None  # else this part would have been left out
    judge = Classifier(load_weights(ResNet20(), weights), mean=CIFAR_MEAN, std=CIFAR_STD)
    fit: Callable[..., Any] = fit_gan if kind == "gan" else fit_cvae
    start = time.process_time()
    options = {"latent": 64, "epochs": max(1, round(STEPS[kind] * BATCH / ROWS)), "batch_size": BATCH}
    learned = fit(images.train[:ROWS], **options, generator=spawn(0, "semantic", "cifar10", kind), progress=False)
    seconds = time.process_time() - start
    real, generator = images.test[:RATED], spawn(0, "semantic", "cifar10", "quality")
    rated = FeatureSource.of(learned).rated(real, judge=judge, layer="flatten", generator=generator)
    assert rated.quality is not None
    return RatedSource(kind=kind, quality=rated.quality, seconds=seconds)


def steps_of(out: Path) -> Steps:
    return Steps(out / "steps" / "cifar10")


def load_rated(out: Path) -> tuple[RatedSource, ...]:
    """What was tried, in order; empty if it was left out."""
    steps = steps_of(out)
    return tuple(steps.step(kind, RatedSource, missing) for kind in STEPS if steps.done(kind))
