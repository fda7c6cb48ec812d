"""Which labelled inputs are searched from, which teach judges and the risk map, and which judge models."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from operant.data import Samples
from operant.model import Finding

RESERVED = 0.25  # largest share of the training inputs that is reserved
PER_JUDGE_DRAW = 2  # inputs reserved per draw of a judge, so that the field's class shares can be drawn
MAX_PER_SEED = 3  # cases of the conditions per input that teaches the risk map; with more, it ranks inputs less well


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingParts:
    """Training inputs by role; an input, and a group of inputs, never changes roles.

    Attributes:
        every: all of them; retraining repeats them, so that nothing is forgotten.
        search: seeds are chosen from these; retraining learns from their cases.
        reserved: judges, and the risk map if they suffice, learn from draws of these.
    """

    every: Samples
    search: Samples
    reserved: Samples


@dataclass(frozen=True, kw_only=True, eq=False)
class RiskSeeds:
    """Seeds of the cases that teach a risk map, and of those that judge models; no input is in both.

    Attributes:
        teaching: reserved training inputs, and half of the clean inputs, by group or id.
        judging: the other half of the clean inputs; all of them if they cannot be halved.
        findings: why some of the inputs that teach are searched from, too; empty if none is.
    """

    teaching: Samples
    judging: Samples
    findings: tuple[Finding, ...] = ()


def reserve(train: Samples, *, judge_draws: int, draws: int) -> TrainingParts:
    """Split training inputs by id or group into those to search from and those that are reserved.

    Args:
        train: labelled training data.
        judge_draws: draws per move for its judge; 0 without judges.
        draws: cases that teach the risk map; 0 without a map. Nothing is reserved for it if that would not suffice.
    """
    suffices = MAX_PER_SEED * RESERVED * len(train) >= draws
    needed = max(PER_JUDGE_DRAW * judge_draws, draws if suffices else 0)
    if needed:
        share = min(RESERVED, needed / max(len(train), 1))
        parts = train.split(reserved=share, search=1 - share)
        if len(parts["search"]):  # one group may hold everything
            return TrainingParts(every=train, **parts)
    return TrainingParts(every=train, search=train, reserved=train[:0])


def risk_seeds(train: TrainingParts, clean: Samples, *, draws: int) -> RiskSeeds:
    """The seeds of a risk map's cases.

    A model hardly fails on inputs that it has learned, even under conditions. So half of the clean inputs, which no
    round learns from, join the reserved training inputs. If one of the halves would be empty or lack a class, only
    training inputs teach, and all clean inputs judge.

    Args:
        train: training inputs by role. If too few are reserved for the map, or none of a class, all of them teach.
        clean: labelled inputs that no round learns from.
        draws: cases of the conditions that teach.
    """
    halves = clean.split(teaching=0.5, judging=0.5)
    if any(_lacks_class(half, clean.labels) for half in halves.values()):
        halves = {"teaching": clean[:0], "judging": clean}
    seeds = Samples.concat([train.reserved, halves["teaching"]])
    if MAX_PER_SEED * len(seeds) >= draws and not _lacks_class(seeds, train.every.labels):
        return RiskSeeds(teaching=seeds, judging=halves["judging"])
    seeds, finding = Samples.concat([train.every, halves["teaching"]]), _not_separate(len(train.every))
    return RiskSeeds(teaching=seeds, judging=halves["judging"], findings=(finding,))


def _lacks_class(inputs: Samples, labels: Tensor) -> bool:
    return not set(labels.tolist()) <= set(inputs.labels.tolist())


def _not_separate(n: int) -> Finding:
    problem = (
        f"the {n} training inputs are too few, or have too few of a class or too large groups, to reserve some for the "
        "risk map, so it learns from cases of all of them; a model that is retrained with failures of the same inputs "
        "passes more of these cases, and its mean risk comes out too low"
    )
    return Finding(name="risk map not separate", problem=problem, advice="Give more training inputs")
