"""The result of a repair: the model that was kept, a table of the race, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from operant.formatting import percent, points
from operant.model import Classifier
from operant.retrain.decision import Contest, Decision, Entrant
from operant.retrain.race import Candidate

ORIGINAL = "original model"


@dataclass(frozen=True, kw_only=True)
class ArmRecord:
    """How an arm did.

    Attributes:
        name: of the arm.
        trained: share of its training that it was given.
        seconds: CPU time.
        clean: clean accuracy; NaN if it failed.
        brier, error: on the judge labels; NaN without them.
        gain, gain_error: how much lower its Brier score is than the original model's, and the standard error of that.
        verdict: why it was kept or not, in a sentence.
    """

    name: str
    trained: float
    seconds: float
    clean: float
    brier: float
    error: float
    gain: float
    gain_error: float
    verdict: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Repaired:
    """The result of `repair`.

    Attributes:
        model: the winner, or the original model.
        kept: name of the arm that it comes from; ``"original model"`` if nothing was kept.
        mix: share of the arm's weights in it, the rest being the original's.
        reason: why, in a sentence; what would help if nothing was kept.
        arms: what became of each arm.
        judges: number of judge labels.
        learning_rate: that the arms were trained with.
        chains: the candidate of each arm that trained to the end, for the next call to start from.
        taught: ids of the teaching labels that these have learned from, in this call and those before.
    """

    model: Classifier = field(repr=False)
    kept: str
    mix: float
    reason: str
    arms: tuple[ArmRecord, ...]
    judges: int
    learning_rate: float
    chains: Mapping[str, Classifier] = field(repr=False)
    taught: Tensor = field(repr=False)

    @property
    def changed(self) -> bool:
        """Whether the model differs from the original."""
        return self.kept != ORIGINAL

    def __str__(self) -> str:
        return "\n".join([*_table(self.arms, self.judges), f"{self.reason[:1].upper()}{self.reason[1:]}."])


def repaired(contest: Contest, decision: Decision, *, taught: Tensor, learning_rate: float) -> Repaired:
    """The result of a contest whose arms started from models that had learned from the labels ``taught``."""
    winner, done = decision.winner, decision.candidates
    provisional = winner is None and decision.before is None  # the next call starts from the original model again
    chains = {name: c.model for name, c in done.items() if c.model is not None and c.trained == 1}
    return Repaired(
        model=contest.model if winner is None else winner.model,
        kept=ORIGINAL if winner is None else winner.candidate.name,
        mix=0.0 if winner is None else winner.mix,
        reason=_why_kept(decision, winner) if winner is not None else _why_not(contest, decision),
        arms=tuple(_record(contest, decision, candidate) for candidate in done.values()),
        judges=0 if contest.judges is None else len(contest.judges),
        learning_rate=learning_rate,
        chains={} if provisional else chains,
        taught=taught[:0] if provisional else torch.cat([taught, contest.known.labels.ids.cpu()]).unique(),
    )


def _record(contest: Contest, decision: Decision, candidate: Candidate) -> ArmRecord:
    entrant, before = decision.entrants.get(candidate.name), decision.before
    scores = None if entrant is None else entrant.scores
    gain, error = (math.nan, math.nan) if scores is None or before is None else scores.gain_over(before)
    return ArmRecord(
        name=candidate.name,
        trained=candidate.trained,
        seconds=candidate.seconds,
        clean=math.nan if candidate.model is None else candidate.model.accuracy(contest.known.clean),
        brier=math.nan if scores is None else float(scores.brier.mean()),
        error=math.nan if scores is None else float(scores.wrong.double().mean()),
        gain=gain,
        gain_error=error,
        verdict=_verdict(decision, candidate, entrant),
    )


def _verdict(decision: Decision, candidate: Candidate, entrant: Entrant | None) -> str:
    if decision.winner is not None and decision.winner.candidate is candidate:
        return "kept"
    return candidate.problem or ("not kept" if entrant is not None else "too much clean accuracy lost")


# Sentences ------------------------------------------------------------------------------------------------------------


def _why_kept(decision: Decision, winner: Entrant) -> str:
    kept = f"kept {_named(winner)}"
    if decision.before is None:
        return f"{kept}: {decision.why}; no judge labels were there to confirm it"
    gain, error = winner.judged.gain_over(decision.before)
    judged = f"its Brier score on {len(winner.judged.brier)} judge labels is {abs(gain):.3f} ± {error:.3f}"
    if gain > 0:
        return f"{kept}: {judged} below the original's"
    return f"{kept}: {judged} above the original's, which is too little to return to it"


def _named(entrant: Entrant) -> str:
    """The arm, and how much of the original is in it."""
    mixed = "" if entrant.mix == 1 else f", mixed with {percent(1 - entrant.mix)} of the original weights"
    return f"{entrant.candidate.name}{mixed}"


def _why_not(contest: Contest, decision: Decision) -> str:
    """What was tried, how near it came, and what would help."""
    tried = f"kept the original model; tried {', '.join(decision.candidates)}"
    if decision.beaten is not None and decision.before is not None:
        gain, error = decision.beaten.judged.gain_over(decision.before)
        near = f"the nearest, {_named(decision.beaten)}, has a Brier score {-gain:.3f} ± {error:.3f} above its own"
        return f"{tried}; {near}. {_more_labels(contest)}"
    trained = [c for c in decision.candidates.values() if c.model is not None and not c.problem]
    if decision.why:
        return f"{tried}; {decision.why}. {_more_labels(contest)}"
    if trained:
        return f"{tried}; {_needed_drop(contest, trained)}"
    problems = "; ".join(f"{c.name}: {c.problem}" for c in decision.candidates.values())
    return f"kept the original model; every arm failed ({problems}). Set a lower learning rate"


def _needed_drop(contest: Contest, costly: Iterable[Candidate]) -> str:
    """Which ``max_drop`` would allow the cheapest of these candidates."""
    loss = min(contest.accuracy - c.model.accuracy(contest.known.clean) for c in costly if c.model is not None)
    return (
        f"the smallest loss of clean accuracy is {points(loss)}; max_drop={math.ceil(1000 * loss) / 1000:g} allows it"
    )


def _more_labels(contest: Contest) -> str:
    return f"{max(100, 2 * len(contest.known.labels))} labels, a tenth of them random ones that judge, may decide it"


def _table(arms: tuple[ArmRecord, ...], judges: int) -> list[str]:
    width = max(len(arm.name) for arm in arms)
    judged = f"{'Brier':>6}  {f'gain ({judges} labels)':>18}  " if judges else ""
    rows = [f"{'arm':<{width}}  trained  CPU s  clean    {judged}verdict"]
    for a in arms:
        scores = f"{_number(a.brier, '.4f'):>6}  {_gain(a):>18}  " if judges else ""
        clean = _number(100 * a.clean, ".1f") + " %"
        rows.append(f"{a.name:<{width}}  {100 * a.trained:>5.0f} %  {a.seconds:>5.0f}  {clean:>7}  {scores}{a.verdict}")
    return rows


def _gain(arm: ArmRecord) -> str:
    return "-" if math.isnan(arm.gain) else f"{arm.gain:+.4f} ± {arm.gain_error:.4f}"


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)
