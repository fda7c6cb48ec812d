"""CIFAR-10: whether a source trained in minutes is good enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from operant.data import load
from operant.generate import FeatureSource
from operant.networks import fit_cvae, fit_gan
from operant.rng import spawn
from operant_studies.semantic.instruments import RatedSource
from operant_studies.shared import Steps
from operant_studies.subjects import find_resnet20, load_resnet20

ROWS, RATED = 20_000, 2_000  # training images of a source, and test images to rate it
BATCH = 64
STEPS = {"gan": 1_250, "cvae": 1_800}  # about four minutes each


def available(data: Path | None) -> bool:
    """Whether CIFAR-10 and its classifier are available; else this part is left out."""
    if data is None or find_resnet20(data) is None:
        return False
    try:
        load("cifar10", data)
    except (ValueError, OSError):
        return False
    return True


def run(data: Path, out: Path, kind: str) -> None:
    steps_of(out).step(kind, RatedSource, partial(train_source, data, kind))


def train_source(data: Path, kind: str) -> RatedSource:
    """Train one kind of source, and rate it with ResNet-20."""
    images, judge = load("cifar10", data), load_resnet20(data)
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
    """The rated sources, in order; empty if this part was left out."""
    return tuple(steps_of(out).load_all(STEPS, RatedSource))
