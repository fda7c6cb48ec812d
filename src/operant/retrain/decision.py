"""Which candidate to keep: judged by labels, by teaching labels of the other fold, or without any label."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from operant.conditions import apply
from operant.data import Samples
from operant.engine import Engine
from operant.formatting import percent, points
from operant.model import Classifier
from operant.retrain.arms import BatchNormStatistics, Retrainer
from operant.retrain.interpolation import interpolate
from operant.retrain.knowledge import FieldKnowledge, TeachingLabels
from operant.retrain.race import ArmWork, Candidate, Scores, run_race, train_arms
from operant.retrain.rows import chances_by_class
from operant.rng import spawn

ENOUGH_JUDGES = 100  # labels with which one standard error decides between arms
LEAST_SPREAD = 0.1  # smallest standard deviation of differences of Brier scores that is believed
HEAD_START = 0.4  # sum of Brier scores by which judges must find the original model better to keep it
MIXES = (0.75, 0.5)  # shares of the winner's weights that are judged beside it
ALLOWED_MIXES = (1.0, 0.9, 0.75, 0.5, 0.25)  # tried in this order, to keep clean accuracy
MAX_UNEXPLAINED = 0.9  # share above which simulated cases say nothing about the field
MAX_CASES = 3000  # simulated cases of the decision without labels
MIN_FOLDED = 8  # teaching labels that can judge each other


@dataclass(frozen=True, kw_only=True, eq=False)
class Entrant:
    """A candidate that may be kept, with as much of its weights as clean accuracy allows.

    Attributes:
        candidate: whose weights it has.
        model: the candidate, mixed with the original.
        mix: share of the candidate's weights.
        clean: its clean accuracy.
        scores: on the judge labels; None without them.
    """

    candidate: Candidate
    model: Classifier
    mix: float
    clean: float
    scores: Scores | None

    @property
    def judged(self) -> Scores:
        assert self.scores is not None
        return self.scores


@dataclass(frozen=True, kw_only=True, eq=False)
class Decision:
    """What is kept, and what it was decided by.

    Attributes:
        candidates: of all arms, by name.
        entrants: those that may be kept, by name; None for one that loses too much clean accuracy.
        winner: what is kept; None for the original model.
        before: scores of the original model; None without judge labels.
        beaten: the best entrant, if the original model is better.
        why: what was decided by without judge labels, in half a sentence.
    """

    candidates: Mapping[str, Candidate]
    entrants: Mapping[str, Entrant | None]
    winner: Entrant | None = None
    before: Scores | None = None
    beaten: Entrant | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Contest:
    """The original model and the arms that want to replace it; the first arm is the default.

    Attributes:
        starts: model that each arm starts from.
        untaught: the same, but models that have learned from no teaching label, so that these can judge.
    """

    model: Classifier
    known: FieldKnowledge
    judges: Samples | None
    arms: Mapping[str, Retrainer]
    starts: Mapping[str, Classifier]
    untaught: Mapping[str, Classifier]
    work: ArmWork
    engine: Engine
    max_drop: float
    accuracy: float = field(init=False)  # of the original model on clean inputs

    def __post_init__(self) -> None:
        object.__setattr__(self, "accuracy", self.model.accuracy(self.known.clean))

    def __call__(self) -> Decision:
        return self._without_judges() if self.judges is None else self._with_judges(self.judges)

    @property
    def default(self) -> str:
        return next(iter(self.arms))

    @property
    def floor(self) -> float:
        """The lowest clean accuracy allowed."""
        return self.accuracy - self.max_drop - 1e-9

    def _entrant(self, candidate: Candidate) -> Entrant | None:
        """The candidate with as much of its weights as clean accuracy allows; None if even a quarter costs too much."""
        if candidate.model is None:
            return None
        for share in ALLOWED_MIXES:
            model = candidate.model if share == 1 else interpolate(self.model, candidate.model, share)
            clean = model.accuracy(self.known.clean)
            if clean >= self.floor:
                scores = None if self.judges is None else Scores.of(model, self.judges)
                return Entrant(candidate=candidate, model=model, mix=share, clean=clean, scores=scores)
        return None

    # With judge labels

    def _with_judges(self, judges: Samples) -> Decision:
        ended = run_race(self.arms, self.default, self.starts, judges, self.work, self.engine)
        entrants = {name: self._entrant(c) for name, c in ended.items() if not c.problem}
        before = Scores.of(self.model, judges)
        decision = Decision(candidates=ended, entrants=entrants, before=before)
        winner = winner_of({name: e for name, e in entrants.items() if e is not None}, self.default)
        if winner is None:
            return decision
        winner = self._best_mix(winner, judges)
        return replace(decision, winner=winner) if replaces(winner.judged, before) else replace(decision, beaten=winner)

    def _best_mix(self, winner: Entrant, judges: Samples) -> Entrant:
        """The winner, or its mix with the original weights if that is clearly better."""
        best, most = winner, 0.0
        for share in MIXES:
            assert winner.candidate.model is not None
            model = interpolate(self.model, winner.candidate.model, share * winner.mix)
            scores, clean = Scores.of(model, judges), model.accuracy(self.known.clean)
            gain = scores.gain_over(winner.judged)[0]
            if clearly_better(scores, winner.judged) and gain > most and clean >= self.floor:
                best, most = replace(winner, model=model, mix=share * winner.mix, clean=clean, scores=scores), gain
        return best

    # Without judge labels

    def _without_judges(self) -> Decision:
        first = {self.default: self.arms[self.default]}
        ended = train_arms(first, self.starts, 1.0, self.work, self.engine)
        entrant = self._entrant(ended[self.default])
        decision = Decision(candidates=ended, entrants={self.default: entrant})
        if entrant is not None:
            better, why = self._better_unjudged(entrant.model)
            decision = replace(decision, winner=entrant if better else None, why=why)
        return decision if decision.winner is not None else self._most_confident(decision)

    def _better_unjudged(self, candidate: Classifier) -> tuple[bool, str]:
        """Whether a candidate is better by what is known without judges, and why, in half a sentence.

        Teaching labels favour the original model: they were chosen where a model like the candidate is uncertain. So if
        they prefer the original by less than two standard errors, simulated field inputs decide.
        """
        if len(self.known.labels) < MIN_FOLDED:
            return self._better_simulated(candidate)
        gains, problem = self._fold_gains()
        if problem:
            return False, problem
        mean, error = mean_and_error(gains)
        text = "its Brier score on teaching labels that it did not learn from is"
        text = f"{text} {abs(mean):.3f} ± {error:.3f} {'lower' if mean > 0 else 'higher'}"
        if mean > 0 or mean < -2 * error:
            return mean > 0, text
        better, simulated = self._better_simulated(candidate)
        return better, f"{text}, {'but' if better else 'and'} {simulated}"

    def _fold_gains(self) -> tuple[Tensor, str]:
        """How much lower the Brier score of each teaching label is if the other half taught; or what went wrong."""
        labels = self.known.labels
        fold = torch.arange(len(labels)) % 2
        gains = []
        for k in (0, 1):
            known = replace(self.known, taught=(TeachingLabels(samples=labels[fold == k]),))
            work = replace(self.work, known=known, seed=self.work.seed + 1 + k)
            done = train_arms({self.default: self.arms[self.default]}, self.untaught, 0.5, work, self.engine)
            model, others = done[self.default].model, labels[fold != k]
            if model is None:
                return torch.empty(0), f"training on half of the teaching labels failed: {done[self.default].problem}"
            gains.append(Scores.of(self.model, others).brier - Scores.of(model, others).brier)
        return torch.cat(gains), ""

    def _better_simulated(self, candidate: Classifier) -> tuple[bool, str]:
        """Whether a model is wrong on fewer simulated field inputs, made of clean inputs that nothing learned from."""
        known = self.known
        if not known.has_conditions or known.unexplained > MAX_UNEXPLAINED:
            left = percent(known.unexplained, 2)
            return False, f"conditions leave {left} of the difference between training and field inputs unexplained"
        cases = simulated_cases(known, generator=spawn(self.work.seed, "cases"))
        before, after = ((m.predict(cases.x) != cases.labels).double() for m in (self.model, candidate))
        mean, error = mean_and_error(before - after)
        rates = f"{percent(float(before.mean()))} before and {percent(float(after.mean()))} after"
        return mean > 2 * error, f"of {len(cases)} simulated field inputs, {rates} are misclassified"

    def _most_confident(self, decision: Decision) -> Decision:
        """Batch-norm statistics with which the model is clearly more confident in the field, if there are any.

        On ten fields, the mix of the highest mean confidence was the one of the lowest error, or nearly. They learn
        from no label, so all teaching labels can reject them.
        """
        mixes = {name: arm for name, arm in self.arms.items() if isinstance(arm, BatchNormStatistics)}
        more = train_arms(mixes, self.starts, 1.0, self.work, self.engine)
        entrants = {name: self._entrant(candidate) for name, candidate in more.items()}
        decision = replace(
            decision, candidates={**decision.candidates, **more}, entrants={**decision.entrants, **entrants}
        )
        before = confidence(self.model, self.known.field)
        able = {n: e for n, e in entrants.items() if e is not None and self._fits_labels(e.model)}
        gains = {n: mean_and_error(confidence(e.model, self.known.field) - before) for n, e in able.items()}
        best = max(gains, key=lambda name: gains[name][0], default="")
        if not best or gains[best][0] <= gains[best][1]:
            return decision
        confident = f"with it the mean confidence in the field is {points(gains[best][0])} higher"
        text = f"{decision.why}, but {confident}" if decision.why else confident
        return replace(decision, winner=able[best], why=text)

    def _fits_labels(self, model: Classifier) -> bool:
        """Whether a model that learned from no label has no higher Brier score on the labels than the original."""
        labels = self.known.labels
        return len(labels) == 0 or Scores.of(model, labels).gain_over(Scores.of(self.model, labels))[0] >= 0


def winner_of(entrants: Mapping[str, Entrant], default: str) -> Entrant | None:
    """The default, or the entrant with the lowest Brier score among those that are clearly better."""
    if not entrants:
        return None
    by_score = sorted(entrants.values(), key=lambda entrant: float(entrant.judged.brier.mean()))
    if default not in entrants:
        return by_score[0]
    first = entrants[default]
    return next((other for other in by_score if clearly_better(other.judged, first.judged)), first)


def clearly_better(a: Scores, b: Scores) -> bool:
    """Whether the Brier score is lower by more than max(1, √(100 / n)) standard errors, n the number of judges.

    With few judges, one standard error is often passed by chance when several arms are tried. A standard error of less
    than 0.1 / √n counts as that much: a few judges that all models get right differ by little, and all alike.
    """
    n = len(a.brier)
    gain, error = a.gain_over(b)
    return gain > max(1.0, math.sqrt(ENOUGH_JUDGES / n)) * max(error, LEAST_SPREAD / math.sqrt(n))


def replaces(candidate: Scores, original: Scores) -> bool:
    """Whether a candidate replaces the original model.

        Σ (Brier score of the original - Brier score of the candidate) > -0.4, over the judges        (1)

    One input that only the candidate gets wrong costs more than 0.4. Without this head start, a few judges that both
    models get right would decide by how confident the models are.
    """
    return float((original.brier - candidate.brier).sum()) > -HEAD_START  # (1)


def simulated_cases(known: FieldKnowledge, *, generator: torch.Generator) -> Samples:
    """Clean inputs that nothing learned from, drawn by the field's class shares, under the field's conditions."""
    n = min(MAX_CASES, 2 * len(known.clean))
    chances = chances_by_class(known.clean, known.class_shares)
    some = known.clean[torch.multinomial(chances, n, replacement=True, generator=generator)]
    assert known.recipe is not None
    return Samples(apply(some.x, known.recipe.draw(n, generator=generator)), some.labels)


def confidence(model: Classifier, field: Samples) -> Tensor:
    """Probability of the predicted class, for each input."""
    return model.probs(field.x).max(1).values.double().cpu()


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """The mean, and its standard error."""
    return float(values.mean()), float(values.std() / math.sqrt(len(values))) if len(values) > 1 else math.inf
