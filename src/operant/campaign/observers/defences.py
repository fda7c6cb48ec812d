"""Cheap defences tried on a round's operational failures: would a guard before the model have stopped them?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from operant.data import Samples
from operant.defend import JPEG, BitDepth, Corrector, Detector, Median, TransformedInputs, evaluate_defences
from operant.defend import fit_feature_squeezing as fit_squeezing
from operant.defend import fit_logit_detector as fit_logits
from operant.defend._common import Transform
from operant.generate.engine import judge
from operant.model import Classifier
from operant.suite import Suite
from operant.suite.drawing import is_picture

LEVEL = 0.05  # share of clean inputs that a guard may get wrong
TRIED = 120  # failures of a round that guards are tried on, and twice as many clean inputs
ENOUGH = 60  # failures, and clean inputs, from which a network on logits is learned
COARSE = 16  # pixels of a side below which medians take too much
Guard = Detector | Corrector

STRENGTHS: dict[str, tuple[Transform, ...]] = {  # the strongest first
    "fewer colours": tuple(BitDepth(bits=bits) for bits in (1, 2, 3, 4)),
    "JPEG compression": tuple(JPEG(quality=quality) for quality in (25, 50, 75)),
    "median filter": (Median(size=3), Median(size=2)),
}


@dataclass(frozen=True, kw_only=True)
class DefenceTrial:
    """What one defence did.

    Attributes:
        name: of the defence.
        stopped, failures: operational failures that it rejects, or reads correctly, of those it was tried on.
        trials: as how many of these they count, since failures of one seed are alike.
        wrong, clean: clean inputs that it rejects, or misreads, of those that it was tried on.
    """

    name: str
    stopped: int
    failures: int
    trials: float
    wrong: int
    clean: int


@dataclass(frozen=True, kw_only=True)
class DefenceTrials:
    """What defences did with failures of a round's model; in ``defences.json`` of each round that found some.

    Attributes:
        failures: operational failures of the round.
        tried: defences that could be set up.
        level: share of clean inputs that each was set up to get wrong at most.
        reason: why none could be; empty if some could.
    """

    failures: int
    tried: tuple[DefenceTrial, ...]
    level: float
    reason: str


def guards_of(model: Classifier, failing: Suite, clean: Samples, *, generator: torch.Generator) -> DefenceTrials:
    """Set up cheap defences of a model by one half of the clean inputs, and try them on failures and the other half.

    Args:
        model: that gets the failures wrong.
        failing: at least one; they are tried evenly from all.
        clean: labelled, not learned from. What the model gets wrong of them is left out.
        generator: of the network that learns from logits; asked only if there is one.
    """
    reason, tried = "", list[DefenceTrial]()
    right = model.correct(_evenly(clean, 2 * TRIED)).split(fitting=0.5, trying=0.5)
    some: Suite = failing[_places(len(failing), TRIED)]
    if not is_picture(failing.rows.shape) or not max(map(abs, model.bounds)) < float("inf"):
        reason = "The defences that could be tried are for images with bounds"
    elif min(len(part) for part in right.values()) < 1 / LEVEL:
        reason = f"Fewer than {2 / LEVEL:.0f} clean inputs that the model gets right are too few to set defences up by"
    else:
        for name, make, cases in _defences(model, some, right["fitting"], generator):
            try:
                tried.append(_tried(model, name, make(), cases, right["trying"]))
            except ValueError as error:  # nothing to tell by, or no strength that clean inputs bear
                reason = reason or str(error)
    return DefenceTrials(failures=len(failing), tried=tuple(tried), level=LEVEL, reason="" if tried else reason)


def _defences(
    model: Classifier, failing: Suite, clean: Samples, generator: torch.Generator
) -> Iterator[tuple[str, Callable[[], Guard], Suite]]:
    """Names, how to set them up, and the failures to try them on."""
    coarse = min(failing.rows.shape[1:]) < COARSE
    squeezers: list[Transform] = [BitDepth(bits=3)] if coarse else [BitDepth(bits=3), Median(size=2)]
    yield "feature squeezing", partial(fit_squeezing, model, clean, squeezers=squeezers, level=LEVEL), failing
    for name, strengths in STRENGTHS.items():
        yield name, partial(_strongest, model, strengths, clean), failing
    kinds = failing.seeds.split(shown=0.5, tried=0.5)
    shown, tried = (failing[torch.isin(failing.seed, part.ids)] for part in kinds.values())
    if min(len(shown), len(clean)) >= ENOUGH // 2 and len(tried):
        learn = partial(fit_logits, level=LEVEL, epochs=20, hidden=16, generator=generator)
        yield "network on logits", partial(learn, model, clean, shown.samples()), tried


def _strongest(model: Classifier, strengths: Sequence[Transform], clean: Samples) -> TransformedInputs:
    """The strongest transform with which the model still reads clean inputs."""
    for transform in strengths:
        guard = TransformedInputs(model=model, transforms=(transform,))
        if float((guard.predict(clean.x) != clean.labels.to(clean.x.device)).double().mean()) <= LEVEL:
            return guard
    raise ValueError("No strength of the transforms leaves enough clean inputs readable")


def _tried(model: Classifier, name: str, guard: Guard, failing: Suite, clean: Samples) -> DefenceTrial:
    told = evaluate_defences(failing, {name: guard}).of(name)
    passed = evaluate_defences(judge(model, clean, clean.x, method="clean"), {name: guard}).of(name)
    each = failing.seed.unique(return_counts=True)[1].double()
    trials = len(failing) ** 2 / float(each.square().sum())
    counts = {"stopped": told.k, "failures": told.n, "wrong": passed.n - passed.k, "clean": passed.n}
    return DefenceTrial(name=name, trials=trials, **counts)


def _evenly(samples: Samples, most: int) -> Samples:
    return samples[_places(len(samples), most)]


def _places(n: int, most: int) -> torch.Tensor:
    return torch.linspace(0, n - 1, min(most, n)).round().long()
