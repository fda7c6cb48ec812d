"""Injected faults (Table 2): do tests reveal them, compared with a sound model and with PGD?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate import PGD, FeatureFuzz, FeatureSource
from operant.generate.engine import judge
from operant.model import Classifier
from operant.suite import Suite
from operant.types import Fuzzer
from operant_studies.faults import Confirmation, Cue, Fault, FaultyModel, confirm, inject, reveals
from operant_studies.semantic.fields import SemanticImages, trained_network
from operant_studies.semantic.instruments import SemanticInstruments
from operant_studies.semantic.settings import Flaw, SemanticSetting
from operant_studies.shared import Steps

FEATURES, ANCHORED, PIXELS = "features", "anchored", "pgd"
SEARCHES = (FEATURES, ANCHORED, PIXELS)
SOUND = "sound, "  # prefix of a search on the model without the fault
ARMS = (*SEARCHES, *(SOUND + name for name in SEARCHES))
DRAWS = 20  # generated images per seed
SHOWN = 6  # pairs per direction in the gallery


@dataclass(frozen=True, kw_only=True)
class FaultCounts:
    """Tests of one search in one direction of a fault."""

    seeds: int  # number of seeds, one test each
    valid: int  # tests that show their label, failing or not
    # failing, valid_failing: tests that the model takes for the target by the required margin; and valid ones
    failing: int
    valid_failing: int
    # revealing, valid_revealing: of these, the tests that reveal the fault
    revealing: int
    valid_revealing: int

    def __add__(self, other: FaultCounts) -> FaultCounts:
        names = self.__dataclass_fields__
        return FaultCounts(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class GalleryPairs:
    """Seeds with their valid tests, for the gallery: the first ones of each direction."""

    x0: Tensor
    x: Tensor
    label: Tensor
    prediction: Tensor
    reveals: Tensor


@dataclass(frozen=True, kw_only=True)
class FaultResult:
    """One fault with one seed."""

    # faulty, sound: whether the model with the injected fault has it, and the one without
    faulty: Confirmation
    sound: Confirmation
    cue: Cue  # the feature's distribution in the two classes
    arms: dict[str, tuple[FaultCounts, FaultCounts]]  # by search, from the first class and from the second
    pairs: GalleryPairs  # valid tests of the anchored search
    seconds: float  # of CPU time


def run(setting: SemanticSetting, data: Path | None, out: Path, seed: int) -> None:
    """All faults of a data set with one seed."""
    steps, field = steps_of(setting, out, seed), SemanticImages(setting, data)
    instruments = SemanticInstruments(field, out / "instruments")
    for flaw in setting.flaws:
        steps.step(flaw.name, FaultResult, partial(try_fault, field, instruments, flaw, seed, out / "networks"))


def steps_of(setting: SemanticSetting, out: Path, seed: int) -> Steps:
    return Steps(out / "steps" / f"{setting.name}-{seed}")


def try_fault(
    field: SemanticImages, instruments: SemanticInstruments, flaw: Flaw, seed: int, folder: Path
) -> FaultResult:
    """Inject one fault, and test the faulty and the sound model in both directions."""
    start = time.process_time()
    fault, setting = flaw.fault, field.setting
    faulty = faulty_model(field, fault, flaw.name, seed)
    name = f"{setting.name}-sound-{seed}"
    sound = trained_network(field, folder, name, field.neutral("model", seed))
    held = field.neutral("held", seed, but=fault)
    clean = confirm(fault, sound, held, generator=field.spawn("confirm", flaw.name, seed))
    suites = _suites(field, instruments, fault, {"": faulty.model, SOUND: sound}, flaw.name, seed)
    counted = partial(count, fault=fault, cue=faulty.cue, confidence=setting.confidence)
    return FaultResult(
        faulty=faulty.confirmation,
        sound=clean,
        cue=faulty.cue,
        arms={name: (counted(a), counted(b)) for name, (a, b) in suites.items()},
        pairs=_pairs(suites[ANCHORED], fault, faulty.cue, setting.confidence),
        seconds=time.process_time() - start,
    )


def faulty_model(field: SemanticImages, fault: Fault, name: str, seed: int) -> FaultyModel:
    """A LeNet-5 with the fault; all other features are independent of the class."""
    train, held = (field.neutral(role, seed, but=fault) for role in ("model", "held"))
    generator = field.spawn("fault", name, seed)
    options = field.training | {"generator": generator, "progress": False}
    return inject(fault, field.network("fault", name, seed), train, held, **options)


def _suites(
    field: SemanticImages,
    instruments: SemanticInstruments,
    fault: Fault,
    models: dict[str, Classifier],
    name: str,
    seed: int,
) -> dict[str, tuple[Suite, Suite]]:
    """By model and search, rated tests from the first class to the second, and back; all from the same seeds.

    Both models classify the seeds correctly: the sound one alone would accept seeds whose feature is already past the
    midpoint.
    """
    source, (first, second) = instruments.source, fault.classes
    assert source is not None  # else the data set is left out
    found: dict[str, list[Suite]] = {arm: [] for arm in ARMS}
    for label, target in ((first, second), (second, first)):
        generator, seen_by = field.spawn("seeds", name, seed, label), (*models.values(), *instruments.anchors)
        seeds = right_seeds(source, seen_by, field.setting.tests, [label], generator=generator)
        for search, fuzzer in searches(field.setting, instruments, target).items():
            for whose, model in models.items():
                generator = field.spawn(search, name, seed, label)
                found[whose + search].append(rated_tests(instruments, fuzzer, model, seeds, generator=generator))
    return {arm: (a, b) for arm, (a, b) in found.items()}


def rated_tests(
    instruments: SemanticInstruments, fuzzer: Fuzzer, model: Classifier, seeds: Samples, *, generator: torch.Generator
) -> Suite:
    """Tests from these seeds with their validity; empty without seeds."""
    if len(seeds):
        return instruments.validity(fuzzer(model, seeds, generator=generator))
    assert instruments.source is not None
    one = instruments.source.seeds(1, generator=generator)
    nothing = judge(model, one, one.x[:0], method="none", origin=torch.arange(0), skipped=1)
    return instruments.validity(nothing)


def right_seeds(
    source: FeatureSource,
    seen_by: Sequence[Classifier],
    n: int,
    labels: Sequence[int] | None = None,
    *,
    generator: torch.Generator,
) -> Samples:
    """n images of some classes that all of these models classify correctly; fewer if hardly any qualify."""
    made = source.seeds(DRAWS * n, labels=labels, generator=generator)
    seen = torch.stack([model.predict(made.x) == made.labels for model in seen_by]).all(0)
    return made[seen][:n]


def searches(setting: SemanticSetting, instruments: SemanticInstruments, target: int | None) -> dict[str, Fuzzer]:
    """The compared searches: same seeds, same target, same margin."""
    assert instruments.source is not None
    features = FeatureFuzz(
        source=instruments.source,
        budget=setting.budget,
        layers=setting.layers,
        steps=setting.steps,
        confidence=setting.confidence,
        target=target,
    )
    pixels = PGD(
        radius=setting.radius,
        steps=setting.pgd_steps,
        confidence=setting.confidence,
        target=target,
        random_start=False,  # else noise would be part of every test
        stop_early=True,
    )
    anchored = replace(features, anchors=instruments.anchors, hold=setting.hold)
    return {FEATURES: features, ANCHORED: anchored, PIXELS: pixels}


def count(suite: Suite, *, fault: Fault, cue: Cue, confidence: float) -> FaultCounts:
    """Counts of a rated suite of one direction."""
    failing, valid = suite["margin"] > confidence, suite["valid"] == 1
    shows = reveals(suite, fault.feature, cue) & failing
    return FaultCounts(
        seeds=suite.attempted,
        valid=int(valid.sum()),
        failing=int(failing.sum()),
        valid_failing=int((failing & valid).sum()),
        revealing=int(shows.sum()),
        valid_revealing=int((shows & valid).sum()),
    )


def _pairs(both: tuple[Suite, Suite], fault: Fault, cue: Cue, confidence: float) -> GalleryPairs:
    rows = [suite[(suite["margin"] > confidence) & (suite["valid"] == 1)][:SHOWN] for suite in both]
    return GalleryPairs(
        x0=torch.cat([suite.x0 for suite in rows]),
        x=torch.cat([suite.x for suite in rows]),
        label=torch.cat([suite.label for suite in rows]),
        prediction=torch.cat([suite.prediction for suite in rows]),
        reveals=torch.cat([reveals(suite, fault.feature, cue) for suite in rows]),
    )
