"""A model without an injected fault: seeds with valid tests, their distances in pixels, and transfer."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate import PGD, FeatureFuzz, tally
from operant.generate.engine import Goal
from operant.model import Classifier
from operant.networks import load_weights, save_weights
from operant.rng import spawn
from operant.suite import Suite
from operant.types import Fuzzer
from operant_studies.semantic.fields import SemanticImages, trained_network
from operant_studies.semantic.injected import (
    ANCHORED,
    FEATURES,
    PIXELS,
    SEARCHES,
    rated_tests,
    right_seeds,
    searches,
    steps_of,
)
from operant_studies.semantic.instruments import SemanticInstruments
from operant_studies.semantic.robust import fine_tune
from operant_studies.semantic.settings import SemanticSetting
from operant_studies.subjects import find_mnist_networks, mnist_network

OWN, GIVEN, ROBUST = "LeNet-5, trained here", "plain LeNet-5, given weights", "robust LeNet-5, given weights"
TUNED = "LeNet-5, fine-tuned here"
WIDE = "anchored, one layer more"
HUNTS = (FEATURES, ANCHORED, WIDE, PIXELS)
HELD = 500  # test images to measure robustness


# Seeds with a valid test, and distances


@dataclass(frozen=True, kw_only=True)
class UntargetedTests:
    """Tests of one search, one row per seed."""

    failing: Tensor  # 1 if the test, read from disk and judged again, fails by the required margin; else 0
    valid: Tensor  # 1 or 0
    # linf, l2: distance from the seed, in pixel units
    linf: Tensor
    l2: Tensor
    perturbation: Tensor  # of the features; NaN for PGD


@dataclass(frozen=True, kw_only=True)
class UntargetedResult:
    """Untargeted tests of one seed's model, by search."""

    accuracy: float
    shots: dict[str, UntargetedTests]
    seconds: float


def run_untargeted(field: SemanticImages, instruments: SemanticInstruments, seed: int, out: Path) -> UntargetedResult:
    """Test from fresh seeds of all classes, the same for each search."""
    start, setting = time.process_time(), field.setting
    model, source = own_model(field, seed, out), instruments.source
    assert source is not None  # else the data set would have been left out
    seen_by = (model, *instruments.anchors)
    seeds = right_seeds(source, seen_by, setting.hunted, generator=field.spawn("hunted", seed))
    shots = {}
    for name, fuzzer in untargeted_searches(setting, instruments).items():
        suite = instruments.validity(fuzzer(model, seeds, generator=field.spawn("hunt", name, seed)))
        path = suite_folder(setting, out, seed, name)
        shutil.rmtree(path, ignore_errors=True)  # from an interrupted run
        suite.save(path)
        shots[name] = judge_again(Suite.open(path), own_model(field, seed, out), setting.confidence)
    accuracy = model.accuracy(field.clean("held"))
    return UntargetedResult(accuracy=accuracy, shots=shots, seconds=time.process_time() - start)


def suite_folder(setting: SemanticSetting, out: Path, seed: int, search: str) -> Path:
    return out / "suites" / f"{setting.name}-{seed}-{search}"


def untargeted_searches(setting: SemanticSetting, instruments: SemanticInstruments) -> dict[str, Fuzzer]:
    """The searches without a target, and an anchored one that also moves a later layer."""
    found = searches(setting, instruments, None)
    wide: dict[str, Any] = {"layers": setting.wide_layers, "budget": setting.wide_budget, "steps": setting.wide_steps}
    return found | {WIDE: replace(cast(FeatureFuzz, found[ANCHORED]), **wide, hold=setting.wide_hold)}


def judge_again(suite: Suite, model: Classifier, confidence: float) -> UntargetedTests:
    """The tests of a suite, judged again."""
    margin = Goal().margin(model.batched_logits(suite.x), suite.label)
    blank = torch.full((len(suite),), torch.nan, dtype=torch.float64)
    return UntargetedTests(
        failing=(margin > confidence).double(),
        valid=suite["valid"].double(),
        linf=suite.distances("linf").double(),
        l2=suite.distances("l2").double(),
        perturbation=suite["perturbation"].double() if "perturbation" in suite.columns else blank,
    )


# Transfer to adversarially trained models


@dataclass(frozen=True, kw_only=True)
class TransferCounts:
    """Confident, targeted tests of one model, and which robust models classify them correctly."""

    seeds: int
    # failing, valid: tests that fail by the required margin, and the valid ones among them
    failing: int
    valid: int
    # right, right_valid: by robust model, how many of these it classifies correctly
    right: dict[str, int]
    right_valid: dict[str, int]
    right_seeds: dict[str, int]  # the same for the seeds of failing tests


@dataclass(frozen=True, kw_only=True)
class ModelRobustness:
    """Accuracy of a model on clean test images, and under PGD of the usual radius."""

    clean: float
    pgd: float


@dataclass(frozen=True, kw_only=True)
class TransferResult:
    """Tests by model under test and search, and the robustness of the other models."""

    moved: dict[str, dict[str, TransferCounts]]
    robust: dict[str, ModelRobustness]
    seconds: float


def run_transfer(field: SemanticImages, instruments: SemanticInstruments, seed: int, out: Path) -> TransferResult:
    """Confident, targeted tests of plain models, classified by robust ones."""
    start, setting = time.process_time(), field.setting
    judges = robust_models(field, seed, out)
    return TransferResult(
        moved={name: _moved(field, instruments, model, judges, seed) for name, model in plain_models(field, seed, out)},
        robust={name: robustness(setting, model, field.clean("held")[:HELD]) for name, model in judges.items()},
        seconds=time.process_time() - start,
    )


def _moved(
    field: SemanticImages, instruments: SemanticInstruments, model: Classifier, judges: dict[str, Classifier], seed: int
) -> dict[str, TransferCounts]:
    setting, source = field.setting, instruments.source
    assert source is not None
    parts: dict[str, list[Suite]] = {name: [] for name in SEARCHES}
    for label, target in (pair for a, b in setting.pairs for pair in ((a, b), (b, a))):
        generator = field.spawn("aimed", seed, label, target)
        seeds = right_seeds(source, (model, *instruments.anchors), setting.aimed, [label], generator=generator)
        for name, fuzzer in searches(setting, instruments, target).items():
            generator = field.spawn("aim", name, seed, label, target)
            parts[name].append(rated_tests(instruments, fuzzer, model, seeds, generator=generator))
    return {name: count_transfer(Suite.concat(suites), judges, setting.confidence) for name, suites in parts.items()}


def count_transfer(suite: Suite, judges: dict[str, Classifier], confidence: float) -> TransferCounts:
    """Counts of the tests that fail by the margin."""
    total = tally(suite, margin=confidence)
    failing = suite[suite["margin"] > confidence]
    valid = failing[failing["valid"] == 1]
    return TransferCounts(
        seeds=total.seeds,
        failing=total.failing,
        valid=total.valid_failing,
        right={name: _right(model, failing.x, failing.label) for name, model in judges.items()},
        right_valid={name: _right(model, valid.x, valid.label) for name, model in judges.items()},
        right_seeds={name: _right(model, failing.x0, failing.label) for name, model in judges.items()},
    )


def _right(model: Classifier, x: Tensor, y: Tensor) -> int:
    return int((model.predict(x) == y).sum()) if len(x) else 0


def robustness(setting: SemanticSetting, model: Classifier, held: Samples) -> ModelRobustness:
    attack = PGD(radius=setting.radius, steps=setting.pgd_steps, stop_early=True)
    cases = attack(model, held, generator=spawn(0, "semantic", "robust"))
    return ModelRobustness(clean=model.accuracy(held), pgd=1 - len(cases.failures()) / len(held))


# Models


def own_model(field: SemanticImages, seed: int, out: Path, *, second: bool = False) -> Classifier:
    """The LeNet-5 of a seed, or the second one, which is made robust."""
    name = f"{field.setting.name}-{'second' if second else 'model'}-{seed}"
    return trained_network(field, out / "networks", name, field.clean("model"))


def plain_models(field: SemanticImages, seed: int, out: Path) -> list[tuple[str, Classifier]]:
    """Models under test: the seed's own, and the plain one with given weights, if available."""
    given = _given(field, "plain")
    return [(OWN, own_model(field, seed, out)), *([(GIVEN, given)] if given else [])]


def robust_models(field: SemanticImages, seed: int, out: Path) -> dict[str, Classifier]:
    """Adversarially trained models: the given one, if available, and one fine-tuned here per seed."""
    given = _given(field, "robust")
    return ({ROBUST: given} if given else {}) | {TUNED: tuned_model(field, seed, out)}


def _given(field: SemanticImages, kind: str) -> Classifier | None:
    if field.setting.dataset != "mnist" or field.data is None:
        return None
    places = find_mnist_networks(field.data)
    return Classifier(load_weights(mnist_network(), places[kind])) if places else None


def tuned_model(field: SemanticImages, seed: int, out: Path) -> Classifier:
    """The second LeNet-5, fine-tuned adversarially."""
    path, s = out / "networks" / f"{field.setting.name}-tuned-{seed}.safetensors", field.setting
    start = own_model(field, seed, out, second=True)
    if path.exists():
        return Classifier(load_weights(start.unwrap(), path))
    tuned = fine_tune(
        start,
        field.clean("model"),
        radius=s.tuned_radius,
        epochs=s.tuned_epochs,
        batch_size=s.batch_size,
        learning_rate=s.learning_rate,
        generator=field.spawn("tuning", seed),
    )
    save_weights(tuned.unwrap(), path)
    return tuned


def run(setting: SemanticSetting, data: Path | None, out: Path, seed: int) -> None:
    """Both parts with one seed."""
    steps, field = steps_of(setting, out, seed), SemanticImages(setting, data)
    instruments = SemanticInstruments(field, out / "instruments")
    steps.step("hunted", UntargetedResult, partial(run_untargeted, field, instruments, seed, out))
    steps.step("transferred", TransferResult, partial(run_transfer, field, instruments, seed, out))
