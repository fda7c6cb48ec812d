"""Cheap defences tried on a round's operational failures: would one have stopped them?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch

from operant.campaign.observers.base import ObservedRound, Section, evenly, read_template
from operant.campaign.records import Round
from operant.data import Samples
from operant.defend import JPEG, BitDepth, Corrector, Detector, Median, TransformedInputs, evaluate_defences
from operant.defend import fit_feature_squeezing as fit_squeezing
from operant.defend import fit_logit_detector as fit_logits
from operant.defend._common import Transform
from operant.defend.evaluate import interval
from operant.formatting import percent
from operant.generate.engine import judge
from operant.model import Classifier
from operant.suite import Suite
from operant.suite.drawing import is_picture

LEVEL = 0.05  # share of clean inputs that a defence may get wrong
MAX_TRIED = 120  # failures of a round that defences are tried on, and half the clean inputs
MIN_FOR_LOGITS = 60  # failures and clean inputs needed to train a network on logits
MIN_MEDIAN_SIZE = 16  # pixels per side below which a median filter removes too much
WORTHWHILE = 0.5  # share of failures that a recommended defence must stop
CONFIDENCE = 0.95
Defence = Detector | Corrector

STRENGTHS: dict[str, tuple[Transform, ...]] = {  # strongest first
    "fewer colours": tuple(BitDepth(bits=bits) for bits in (1, 2, 3, 4)),
    "JPEG compression": tuple(JPEG(quality=quality) for quality in (25, 50, 75)),
    "median filter": (Median(size=3), Median(size=2)),
}


@dataclass(frozen=True, kw_only=True)
class DefenceTrial:
    """The effect of one defence.

    Attributes:
        name: of the defence.
        stopped, failures: operational failures that it rejects or corrects, of those it was tried on.
        trials: independent trials that these count as, since failures of one seed resemble each other.
        wrong, clean: clean inputs that it rejects or misclassifies, of those it was tried on.
    """

    name: str
    stopped: int
    failures: int
    trials: float
    wrong: int
    clean: int


@dataclass(frozen=True, kw_only=True)
class DefenceTrials:
    """Effects of defences on failures of a round's model; ``defences.json`` of a round that found some.

    Attributes:
        failures: number of operational failures of the round.
        tried: defences that could be set up.
        level: share of clean inputs that each was allowed to get wrong.
        reason: why none could be set up; empty if some could.
    """

    failures: int
    tried: tuple[DefenceTrial, ...]
    level: float
    reason: str


@dataclass(frozen=True)
class CheapDefences:
    """Records which cheap defences would have stopped the operational failures of a round."""

    name: ClassVar[str] = "defences"
    record: ClassVar[type] = DefenceTrials
    template: ClassVar[str] = read_template(__file__)

    def observe(self, seen: ObservedRound) -> DefenceTrials | None:
        """Trials with the model before retraining; None if it has no operational failures."""
        if seen.failures is None:
            return None
        return try_defences(seen.before, seen.failures, seen.clean, generator=seen.spawn("defences"))

    def section(
        self, records: Mapping[int, DefenceTrials], *, rounds: Sequence[Round], classes: Sequence[str]
    ) -> Section | None:
        """All rounds together, each with the defences of its model."""
        every = [records[number] for number in sorted(records)]
        if not every:
            return None
        names = dict.fromkeys(trial.name for record in every for trial in record.tried)
        confidence = 1 - (1 - CONFIDENCE) / max(len(names), 1)  # the best of several is reported
        tried = [
            _pooled([trial for record in every for trial in record.tried if trial.name == name], confidence)
            for name in names
        ]
        values = {
            "failures": sum(record.failures for record in every),
            "level": every[-1].level,
            "tried": sorted(tried, key=lambda row: (-row["stopped"] / row["failures"], row["wrong"])),
            "reason": "" if tried else every[-1].reason,
        }
        title = "Which defences would stop the failures"
        return Section(name=self.name, title=title, summary=_summary(values), values=values)


def try_defences(model: Classifier, failing: Suite, clean: Samples, *, generator: torch.Generator) -> DefenceTrials:
    """Set up cheap defences with half of the clean inputs, and try them on failures and the other half.

    Args:
        model: that misclassifies the failures.
        failing: at least one failure; evenly spaced ones are tried.
        clean: labelled samples that were not learned from; those that the model misclassifies are left out.
        generator: for training the network on logits.
    """
    reason, tried = "", list[DefenceTrial]()
    right = model.correct(clean[evenly(len(clean), 2 * MAX_TRIED)]).split(fitting=0.5, trying=0.5)
    some: Suite = failing[evenly(len(failing), MAX_TRIED)]
    if not is_picture(failing.rows.shape) or not max(map(abs, model.bounds)) < float("inf"):
        reason = "The available defences are for images with bounds"
    elif min(len(part) for part in right.values()) < 1 / LEVEL:
        reason = f"At least {2 / LEVEL:.0f} correctly classified clean inputs are needed to set up defences"
    else:
        for name, make, cases in _defences(model, some, right["fitting"], generator):
            try:
                tried.append(_try(model, name, make(), cases, right["trying"]))
            except ValueError as error:  # no threshold can be set, or no strength leaves clean inputs readable
                reason = reason or str(error)
    return DefenceTrials(failures=len(failing), tried=tuple(tried), level=LEVEL, reason="" if tried else reason)


def _defences(
    model: Classifier, failing: Suite, clean: Samples, generator: torch.Generator
) -> Iterator[tuple[str, Callable[[], Defence], Suite]]:
    """Name, constructor and failures to try of each defence."""
    coarse = min(failing.rows.shape[1:]) < MIN_MEDIAN_SIZE
    squeezers: list[Transform] = [BitDepth(bits=3)] if coarse else [BitDepth(bits=3), Median(size=2)]
    yield "feature squeezing", partial(fit_squeezing, model, clean, squeezers=squeezers, level=LEVEL), failing
    for name, strengths in STRENGTHS.items():
        yield name, partial(_strongest, model, strengths, clean), failing
    parts = failing.seeds.split(shown=0.5, tried=0.5)
    shown, tried = (failing[torch.isin(failing.seed, part.ids)] for part in parts.values())
    if min(len(shown), len(clean)) >= MIN_FOR_LOGITS // 2 and len(tried):
        learn = partial(fit_logits, level=LEVEL, epochs=20, hidden=16, generator=generator)
        yield "network on logits", partial(learn, model, clean, shown.samples()), tried


def _strongest(model: Classifier, strengths: Sequence[Transform], clean: Samples) -> TransformedInputs:
    """The strongest transform with which the model still classifies clean inputs."""
    for transform in strengths:
        defence = TransformedInputs(model=model, transforms=(transform,))
        if float((defence.predict(clean.x) != clean.labels.to(clean.x.device)).double().mean()) <= LEVEL:
            return defence
    raise ValueError("No strength of the transforms leaves enough clean inputs readable")


def _try(model: Classifier, name: str, defence: Defence, failing: Suite, clean: Samples) -> DefenceTrial:
    attacked = evaluate_defences(failing, {name: defence}).of(name)
    passed = evaluate_defences(judge(model, clean, clean.x, method="clean"), {name: defence}).of(name)
    each = failing.seed.unique(return_counts=True)[1].double()
    trials = len(failing) ** 2 / float(each.square().sum())
    counts = {"stopped": attacked.k, "failures": attacked.n, "wrong": passed.n - passed.k, "clean": passed.n}
    return DefenceTrial(name=name, trials=trials, **counts)


def _pooled(trials: Sequence[DefenceTrial], confidence: float) -> dict[str, Any]:
    """One defence over all rounds, with intervals; rounds share their clean inputs."""
    row: dict[str, Any] = {
        name: sum(getattr(trial, name) for trial in trials) for name in ("stopped", "failures", "wrong", "clean")
    }
    lower, upper = interval(row["stopped"], row["failures"], confidence, trials=sum(t.trials for t in trials))
    most_wrong = interval(row["wrong"], row["clean"], confidence, trials=max(t.clean for t in trials))[1]
    return row | {"name": trials[0].name, "lower": lower, "upper": upper, "most_wrong": most_wrong}


def _summary(values: Mapping[str, Any]) -> str:
    tried, level = values["tried"], values["level"]
    if not tried:
        return f"No defence was tried: {values['reason'][:1].lower()}{values['reason'][1:]}."
    good = [d for d in tried if d["lower"] > WORTHWHILE and d["wrong"] <= 2 * level * d["clean"]]
    best = (good or tried)[0]
    effect = (
        f"it stops {best['stopped']} of {best['failures']} failures ({percent(best['lower'])} to "
        f"{percent(best['upper'])}) and gets {best['wrong']} of {best['clean']} clean inputs wrong"
    )
    if good:
        return f"Recommended: {best['name']} before the model, the best of {len(tried)} defences tried; {effect}."
    return (
        f"Recommended: retrain, and do not rely on a defence. None of {len(tried)} tried is shown to stop more than "
        f"{percent(WORTHWHILE)} of the failures at little cost; the closest is {best['name']}: {effect}."
    )
