"""Training inputs that nothing is searched from, so that no retraining learns from cases of theirs."""

from __future__ import annotations

from dataclasses import dataclass

from operant.data import Samples
from operant.model import Finding

RESERVED = 0.25  # largest share of the training inputs that is reserved
PER_JUDGE_DRAW = 2  # inputs reserved per draw of a judge, so that the field's class shares can be drawn
MAX_PER_SEED = 3  # cases of the risk map per reserved input; with more, the map ranks inputs less well


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

    def teaching(self, draws: int) -> tuple[Samples, tuple[Finding, ...]]:
        """The inputs that cases of the risk map are drawn from, with a finding if they are not the reserved ones."""
        enough = MAX_PER_SEED * len(self.reserved) >= draws
        if enough and len(self.reserved.labels.unique()) == len(self.every.labels.unique()):
            return self.reserved, ()
        return self.every, (_not_separate(len(self.every)),)


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


def _not_separate(n: int) -> Finding:
    problem = (
        f"the {n} training inputs are too few, or have too few of a class or too large groups, to reserve some for the "
        "risk map, so it learns from cases of all of them; a model that is retrained with failures of the same inputs "
        "passes more of these cases, and its mean risk comes out too low"
    )
    return Finding(name="risk map not separate", problem=problem, advice="Give more training inputs")
