"""What a campaign tells: its rounds, and what it hands back."""

from __future__ import annotations

from dataclasses import dataclass, field

from operant.campaign.assessment import SequentialAssessment
from operant.campaign.feedback import Decision
from operant.model import Classifier
from operant.retrain import FinetuneRecord
from operant.suite import Suite


@dataclass(frozen=True, kw_only=True)
class Round:
    """One turn of the five steps; round 0 assesses the model as it came.

    Attributes:
        number: counted from 0.
        arrived: field inputs known by then.
        drifted: what was noticed about those that were new; empty if nothing.
        decisions: what was changed for this round, and why.
        attempted, found, operational: seeds, failures, operational failures among these.
        moves: how likely each move was to be a seed's first.
        by_move: operational failures by the move that made them.
        first: seeds that the move tried on them first led to an operational failure, by that move.
        chosen, cases: cases of this round, and of all so far; a retraining learns from all of them.
        retraining: how that went; None if there was nothing to learn from.
        clean: accuracy on the guard's samples afterwards.
        assessment: of the model after this round; None where it stayed as it was and more labels would have been in
            vain, so that its last one still holds.
    """

    number: int
    arrived: int
    drifted: str = ""
    decisions: tuple[Decision, ...] = ()
    attempted: int = 0
    found: int = 0
    operational: int = 0
    moves: dict[str, float] = field(default_factory=dict)
    by_move: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    chosen: int = 0
    cases: int = 0
    retraining: FinetuneRecord | None = None
    clean: float
    assessment: SequentialAssessment | None = None

    @property
    def changed(self) -> bool:
        """Whether the model left the round another than it came."""
        return self.retraining is not None and self.retraining.best_epoch > 0

    def __str__(self) -> str:
        work = f"{self.operational} operational failures of {self.attempted} seeds, {self.chosen} to learn from, "
        why = f", {self.retraining.reason}" if self.retraining else ""
        stayed = "" if self.changed or not self.attempted else f"the model stayed as it was{why}"
        told = ", ".join(part for part in (stayed, str(self.assessment or "")) if part)
        changed = f"the field has changed ({self.drifted.splitlines()[0]}), " if self.drifted else ""
        return f"round {self.number}: {changed}{work if self.attempted else ''}clean {self.clean:.2%}, {told}"


@dataclass(frozen=True, kw_only=True, eq=False)
class CampaignResult:
    """What a campaign hands back.

    Attributes:
        model: after the last round.
        met: whether its pmi is at most what was required, with the campaign's confidence.
        reason: why the campaign ended, how far it came and what it would take.
        assessment: of that model.
        suite: the operational failures that were chosen to learn from; None if there were none.
        rounds: what happened.
    """

    model: Classifier = field(repr=False)
    met: bool
    reason: str
    assessment: SequentialAssessment
    suite: Suite | None = field(repr=False)
    rounds: tuple[Round, ...] = field(repr=False)

    @property
    def labels(self) -> int:
        return sum(r.assessment.bought for r in self.rounds if r.assessment)

    def __str__(self) -> str:
        lines = [self.reason, "round  operational  chosen   clean      pmi  at most  labels"]
        for r in self.rounds:
            a = r.assessment
            pmi = f"{a.pmi:7.2%}  {a.upper:7.2%}  {a.bought:6d}" if a else " " * 24
            mark = "  another field" if r.drifted else "" if r.changed or r.number == 0 else "  unchanged"
            lines.append(f"{r.number:>5}  {r.operational:>11}  {r.chosen:>6}  {r.clean:6.2%}  {pmi}{mark}")
        return "\n".join(lines)
