"""Where dropout sits and how strong it is: the paper does not say, and every VRO depends on it.

Every set of places is tried with every rate on inputs that nothing else uses, and what comes nearest to Table 4's VRO
of benign inputs and of attacks is taken, once and for all.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from operant.generate import BIM, FGSM
from operant.generate.engine import judge
from operant.measure import annotate, with_dropout
from operant.model import Classifier
from operant.rng import spawn
from operant.suite import Suite
from operant.types import Fuzzer
from operant_studies.kuk import paper
from operant_studies.kuk.models import Ready
from operant_studies.kuk.settings import Subject

NEAR = 0.02  # in VRO: of candidates that differ by less, the first one listed, whose passes cost least, is taken
ATTACKS = ("BIM", "FGSM")  # whose cases decide; both are cheap


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One placement and rate: mean VRO of benign inputs and of each attack's cases, and how far they are off.

    Attributes:
        off: mean distance from the paper's, half for benign inputs and half for attacks.
    """

    before: tuple[str, ...]
    rate: float
    benign: float
    attacks: dict[str, float]
    off: float

    def __str__(self) -> str:
        return f"{self.rate:g} before {_several(self.before)}"


@dataclass(frozen=True, kw_only=True)
class Dropout:
    """What was chosen, what would have been with other places, and all that was tried.

    Attributes:
        chosen: used from here on.
        other: chosen by the same rule among other places, for an experiment.
        accuracy: of the model, without dropout as always.
        seconds: of CPU time.
    """

    chosen: Tried
    other: Tried
    tried: tuple[Tried, ...]
    accuracy: float
    seconds: float

    def place(self, cause: str, early: tuple[str, ...]) -> Tried | None:
        """What an experiment has for the chosen one, which is kept if it changes other things; none where that is no
        change, or was not tried.

        Args:
            cause: the experiment's name, or nothing.
            early: the places that data meet first.
        """
        if cause == "other dropout":
            return self.other
        same = [t for t in self.tried if t.before == self.chosen.before]
        if cause == "stronger dropout":
            return min((t for t in same if t.rate > self.chosen.rate), key=lambda t: t.rate, default=None)
        if cause == "weaker dropout":
            return max((t for t in same if t.rate < self.chosen.rate), key=lambda t: t.rate, default=None)
        if cause not in ("early dropout", "early and fresh"):
            return self.chosen
        known = (self.chosen.before, self.other.before)[: 2 if cause == "early dropout" else 1]
        there = [t for t in self.tried if t.before == early not in known]
        return min(there, key=lambda t: t.off, default=None)


def choose(subject: Subject, given: Ready) -> Dropout:
    """Try everything and take what is nearest."""
    start = time.process_time()
    suites = {"benign": judge(given.model, given.calibration, given.calibration.x, method="benign")}
    for name in ATTACKS:
        fuzz: Fuzzer = (BIM if name == "BIM" else FGSM)(radius=subject.reach, minimal=True)
        generator = spawn(0, "kuk", subject.name, "calibration", name)
        suites[name] = fuzz(given.model, given.calibration, generator=generator).failures()
    tried = [_try(subject, given.model, before, rate, suites) for before in subject.places for rate in subject.rates]
    chosen = nearest(tried)
    return Dropout(
        chosen=chosen,
        other=nearest([t for t in tried if t.before != chosen.before]),
        tried=tuple(tried),
        accuracy=given.accuracy,
        seconds=time.process_time() - start,
    )


def nearest(tried: Sequence[Tried]) -> Tried:
    """The first of those that are as near as the nearest, or nearly so; at its places, the nearest rate."""
    best = min(t.off for t in tried)
    first = next(t for t in tried if t.off <= best + NEAR)
    return min((t for t in tried if t.before == first.before), key=lambda t: t.off)


def _try(subject: Subject, model: Classifier, before: tuple[str, ...], rate: float, suites: dict[str, Suite]) -> Tried:
    dropping = with_dropout(model, before=before, rate=rate)
    masks = spawn(0, "kuk", subject.name, "calibration", "masks")
    together = annotate(
        dropping, Suite.concat(list(suites.values())), passes=subject.calibration_passes, generator=masks
    )
    values = together["vro"].split([len(suite) for suite in suites.values()])
    vro = {name: float(v.mean()) for name, v in zip(suites, values, strict=True) if len(v)}
    off = {name: abs(value - paper.mean_of(subject.name, name, "vro")) for name, value in vro.items()}
    attacks = [off[name] for name in ATTACKS if name in off]
    return Tried(
        before=before,
        rate=rate,
        benign=vro["benign"],
        attacks={name: vro[name] for name in ATTACKS if name in vro},
        off=(off["benign"] + sum(attacks) / max(len(attacks), 1)) / 2,
    )


def _several(names: Sequence[str]) -> str:
    """Layers by name; of many, the first and the last."""
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} to {names[-1]} ({len(names)} layers)"
