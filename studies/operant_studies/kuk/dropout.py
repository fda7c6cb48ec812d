"""Choice of dropout: the paper gives neither place nor rate, and every VRO depends on both.

Every set of places is tried with every rate, on inputs that nothing else uses. The choice whose VRO of benign inputs
and of attacks is nearest to Table 4 is kept for the whole study.
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
from operant_studies.kuk.models import PreparedModel
from operant_studies.kuk.settings import Subject

TOLERANCE = 0.02  # in VRO: of trials this close to the nearest, the first listed is taken, whose passes are cheapest
ATTACKS = ("BIM", "FGSM")  # whose cases decide; both are cheap


@dataclass(frozen=True, kw_only=True)
class DropoutTrial:
    """Mean VRO of benign inputs and of each attack's cases, with dropout before some layers at one rate.

    Attributes:
        off: mean distance from the paper's VRO; benign inputs count half, attacks half.
    """

    before: tuple[str, ...]
    rate: float
    benign: float
    attacks: dict[str, float]
    off: float

    def __str__(self) -> str:
        names = self.before
        several = ", ".join(names) if len(names) <= 4 else f"{names[0]} to {names[-1]} ({len(names)} layers)"
        return f"{self.rate:g} before {several}"


@dataclass(frozen=True, kw_only=True)
class DropoutChoice:
    """The dropout of the study, and everything that was tried.

    Attributes:
        chosen: used from here on.
        other: chosen by the same rule among other places, for an experiment.
        accuracy: of the model without dropout.
        seconds: CPU time.
    """

    chosen: DropoutTrial
    other: DropoutTrial
    tried: tuple[DropoutTrial, ...]
    accuracy: float
    seconds: float

    def placement(self, cause: str, early: tuple[str, ...]) -> DropoutTrial | None:
        """The dropout of an experiment: the chosen one unless the experiment changes it; None if that was not tried.

        Args:
            cause: name of the experiment; empty for none.
            early: the places that come first in the network.
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
        used = (self.chosen.before, self.other.before)[: 2 if cause == "early dropout" else 1]
        candidates = [t for t in self.tried if t.before == early not in used]
        return min(candidates, key=lambda t: t.off, default=None)


def choose(subject: Subject, given: PreparedModel) -> DropoutChoice:
    """Try every placement with every rate and choose."""
    start = time.process_time()
    suites = {"benign": judge(given.model, given.calibration, given.calibration.x, method="benign")}
    for name in ATTACKS:
        fuzz: Fuzzer = (BIM if name == "BIM" else FGSM)(radius=subject.reach, minimal=True)
        generator = spawn(0, "kuk", subject.name, "calibration", name)
        suites[name] = fuzz(given.model, given.calibration, generator=generator).failures()
    tried = [_try(subject, given.model, before, rate, suites) for before in subject.places for rate in subject.rates]
    chosen = nearest(tried)
    return DropoutChoice(
        chosen=chosen,
        other=nearest([t for t in tried if t.before != chosen.before]),
        tried=tuple(tried),
        accuracy=given.accuracy,
        seconds=time.process_time() - start,
    )


def nearest(tried: Sequence[DropoutTrial]) -> DropoutTrial:
    """The cheapest placement within the tolerance of the nearest, with its nearest rate."""
    best = min(t.off for t in tried)
    first = next(t for t in tried if t.off <= best + TOLERANCE)
    return min((t for t in tried if t.before == first.before), key=lambda t: t.off)


def _try(
    subject: Subject, model: Classifier, before: tuple[str, ...], rate: float, suites: dict[str, Suite]
) -> DropoutTrial:
    dropping = with_dropout(model, before=before, rate=rate)
    masks = spawn(0, "kuk", subject.name, "calibration", "masks")
    together = annotate(
        dropping, Suite.concat(list(suites.values())), passes=subject.calibration_passes, generator=masks
    )
    values = together["vro"].split([len(suite) for suite in suites.values()])
    vro = {name: float(v.mean()) for name, v in zip(suites, values, strict=True) if len(v)}
    off = {name: abs(value - paper.mean_of(subject.name, name, "vro")) for name, value in vro.items()}
    attacks = [off[name] for name in ATTACKS if name in off]
    return DropoutTrial(
        before=before,
        rate=rate,
        benign=vro["benign"],
        attacks={name: vro[name] for name in ATTACKS if name in vro},
        off=(off["benign"] + sum(attacks) / max(len(attacks), 1)) / 2,
    )
