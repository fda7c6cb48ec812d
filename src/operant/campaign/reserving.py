"""Which labelled inputs are searched from, which teach judges and the risk map, and which judge models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from operant.data import Samples
from operant.data.class_texts import class_names
from operant.measure.judge import MIN_DRAWS
from operant.model import Finding

RESERVED = 0.25  # largest share of the training inputs that is reserved
PER_JUDGE_DRAW = 2  # inputs reserved per draw of a judge, so that the field's class shares can be drawn
MAX_PER_SEED = 3  # cases of the conditions per input that teaches the risk map; with more, it ranks inputs less well
BIAS = "a model that is retrained with failures of the same inputs passes more of these cases"  # used in findings


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
        teaching: reserved training inputs, and half of the clean inputs, by group or id; see `risk_seeds` for classes
            that these lack.
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
        judge_draws: draws per move for its judge; 0 without judges. Nothing is reserved for judges if that would be
            fewer inputs than a judge needs.
        draws: cases that teach the risk map; 0 without a map. Nothing is reserved for it if that would not suffice.
    """
    for_map = draws if MAX_PER_SEED * RESERVED * len(train) >= draws else 0
    if judge_draws:
        parts = _split(train, max(PER_JUDGE_DRAW * judge_draws, for_map))
        if len(parts.reserved) >= MIN_DRAWS:
            return parts
    return _split(train, for_map)


def _split(train: Samples, needed: int) -> TrainingParts:
    """So many inputs are reserved, but at most a quarter, and none if nothing would remain to search from."""
    if needed:
        share = min(RESERVED, needed / max(len(train), 1))
        parts = train.split(reserved=share, search=1 - share)
        if len(parts["search"]):  # one group may hold everything
            return TrainingParts(every=train, **parts)
    return TrainingParts(every=train, search=train, reserved=train[:0])


def risk_seeds(train: TrainingParts, clean: Samples, *, draws: int) -> RiskSeeds:
    """The seeds of a risk map's cases.

    A model hardly fails on inputs that it has learned, even under conditions. So half of the clean inputs, which no
    round learns from, join the reserved training inputs. If one of the halves would be empty, only training inputs
    teach, and all clean inputs judge. If these seeds lack a class, all training inputs of that class join them, and no
    others: one rare class does not undo the separation of all.

    Args:
        train: training inputs by role. If seeds are fewer than one per three draws, all training inputs teach.
        clean: labelled inputs that no round learns from.
        draws: cases of the conditions that teach.
    """
    halves = clean.split(teaching=0.5, judging=0.5)
    if not all(len(half) for half in halves.values()):
        halves = {"teaching": clean[:0], "judging": clean}
    seeds, every = Samples.concat([train.reserved, halves["teaching"]]), train.every
    findings: tuple[Finding, ...] = ()
    if MAX_PER_SEED * len(seeds) < draws:
        seeds, findings = Samples.concat([every, halves["teaching"]]), (_not_separate(len(every)),)
    elif lacking := sorted(set(every.labels.tolist()) - set(seeds.labels.tolist())):
        rows = torch.isin(every.labels, torch.tensor(lacking).to(every.labels))
        seeds, findings = Samples.concat([seeds, every[rows]]), (_rare(lacking, every.classes),)
    return RiskSeeds(teaching=seeds, judging=halves["judging"], findings=findings)


def _not_separate(n: int) -> Finding:
    problem = (
        f"the {n} training inputs are too few, or have too large groups, to reserve some for the risk map, so it "
        f"learns from cases of all of them; {BIAS}, and its mean risk comes out too low"
    )
    return Finding(name="risk map not separate", problem=problem, advice="Give more training inputs")


def _rare(labels: Sequence[int], classes: Sequence[str]) -> Finding:
    names = f"{'class' if len(labels) == 1 else 'classes'} {class_names(labels, classes)}"
    problem = (
        f"no input that is reserved for the risk map is of {names}, so the map learns from all training inputs of "
        f"{names}, which are searched from, too; {BIAS}, and risks of {names} come out too low"
    )
    return Finding(name="risk map not separate", problem=problem, advice=f"Give more training inputs of {names}")
