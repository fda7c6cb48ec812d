"""Repair: race the ways to learn from the field, and keep the winner if it is better than the original model."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from operant.activity import activity
from operant.conditions import apply
from operant.data import Samples
from operant.formatting import percent, points
from operant.model import Classifier
from operant.retrain.arms import BatchNormStatistics, FieldTraining, Retrainer, batch_norms
from operant.retrain.field_training import Schedule, find_rate
from operant.retrain.interpolation import interpolate
from operant.retrain.knowledge import FieldKnowledge, TeachingLabels
from operant.retrain.race import ArmWork, Candidate, Scores, one_after_another, run_race, train_arms
from operant.retrain.rows import chances_by_class
from operant.rng import mix, spawn
from operant.validation import check_at_least, check_share

if TYPE_CHECKING:
    from operant.execution.engines import Engine

ORIGINAL = "original model"
DEFAULT, PLAIN = "labels and simulated field", "the same without unlabelled inputs"
SELF_TRAINING, FAILURES = "the same with self-training", "the same with operational failures"
GENERIC = "labels and generic augmentation"
ENOUGH_JUDGES = 100  # labels with which one standard error decides between arms
MIN_JUDGES = 10  # labels; fewer decide nothing
MIXES = (0.75, 0.5)  # shares of the winner's weights that are judged beside it
ALLOWED_MIXES = (1.0, 0.9, 0.75, 0.5, 0.25)  # tried in this order, to keep clean accuracy
MAX_UNEXPLAINED = 0.9  # share above which simulated cases say nothing about the field
MAX_CASES = 3000  # simulated cases of the decision without labels
MIXED, MIN_STATISTICS = (0.3, 0.5, 0.7), 100  # shares of the field's batch-norm statistics; inputs that they need
MIN_FOLDED = 8  # teaching labels that can judge each other


def default_arms(
    model: Classifier,
    known: FieldKnowledge,
    schedule: Schedule = Schedule(),  # noqa: B008  # frozen
) -> dict[str, Retrainer]:
    """The arms of a race, the default one first; without teaching labels, it learns from the simulated field alone."""
    field = FieldTraining(schedule=schedule)
    arms: dict[str, Retrainer] = {
        DEFAULT: field,
        PLAIN: replace(field, information=0.0),
        SELF_TRAINING: replace(field, self_training=1.0),
        GENERIC: replace(field, conditions=False, generic=1.0),
    }
    if known.failures is not None and len(known.failures):
        arms[FAILURES] = replace(field, failures=True)
    if batch_norms(model.unwrap()) and len(known.field) >= MIN_STATISTICS:
        arms |= {f"batch-norm statistics, {percent(mix)} of the field": BatchNormStatistics(mix=mix) for mix in MIXED}
    return arms


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
    """

    model: Classifier = field(repr=False)
    kept: str
    mix: float
    reason: str
    arms: tuple[ArmRecord, ...]
    judges: int
    learning_rate: float
    chains: Mapping[str, Classifier] = field(repr=False)

    @property
    def changed(self) -> bool:
        """Whether the model differs from the original."""
        return self.kept != ORIGINAL

    def __str__(self) -> str:
        return "\n".join([*_table(self.arms, self.judges), f"{self.reason[:1].upper()}{self.reason[1:]}."])


def repair(
    model: Classifier,
    known: FieldKnowledge,
    *,
    judges: Samples | None = None,
    arms: Mapping[str, Retrainer] | None = None,
    previous: Repaired | None = None,
    schedule: Schedule = Schedule(),  # noqa: B008  # frozen
    max_drop: float = 0.05,
    engine: Engine = one_after_another,
    folder: str | Path | None = None,
    generator: torch.Generator,
) -> Repaired:
    """Race several ways to learn from the field, and keep the best if it is better than the model.

    The first arm is the default. With judge labels, all arms train for a while, the default and the best other one to
    the end; another arm is taken if its Brier score on the n judge labels is lower than the default's by more than
    max(1, √(100 / n)) standard errors of the paired difference, and the original model is kept if its score is the
    lowest. (With few judges, one standard error is often passed by chance when several arms are tried.) Without judge
    labels only the default arm runs. It is kept if it is better than the original on teaching labels that it did not
    learn from (two folds) or, without any labels, on simulated field inputs, provided that the conditions explain some
    of the field. If it is not kept, and there are no labels, batch-norm statistics are mixed with the field's if that
    makes the model clearly more confident there. What was kept without judge labels is provisional: the next call with
    judge labels may return to the original model.

    Args:
        model: the original model.
        known: everything that may be learned from.
        judges: *randomly drawn* labelled field inputs that no arm learns from (default: none).
        arms: by name, the default one first (default: `default_arms`).
        previous: the result of the last call with fewer labels; each arm continues from its own candidate.
        schedule: of the default arms.
        max_drop: largest loss of clean accuracy allowed; weights are mixed with the original's to keep it.
        engine: runs the arms (default: one after another in this process).
        folder: for checkpoints. Called again with the same arguments, an interrupted race resumes (default: none are
            kept).
        generator: all randomness.
    """
    check_share(max_drop=max_drop, advice="0.05 is five points")
    known.check_model(model)
    judges = _checked_judges(model, known, judges)
    known = known if judges is None else known.without(judges.ids)
    seed = int(torch.randint(2**53, (), generator=generator, device=generator.device))
    arms = default_arms(model, known, schedule) if arms is None else dict(arms)
    check_at_least(1, arms=len(arms))
    arms, rate = _with_rate(arms, model, known, seed)
    starts = {name: model if previous is None else previous.chains.get(name, model) for name in arms}
    with _place(folder) as place:
        race = _Race(
            model=model,
            known=known,
            judges=judges,
            arms=arms,
            starts=starts,
            work=ArmWork(known=known, seed=seed, folder=place),
            engine=engine,
            max_drop=max_drop,
            rate=rate,
        )
        return race.judged() if judges is not None else race.unjudged()


def hold_out_judges(known: FieldKnowledge) -> tuple[FieldKnowledge, Samples | None]:
    """Set some of the random teaching labels aside as judges; none if there are few.

    Which ones depends on their ids alone, so that labels that arrive later do not change it.
    """
    random = [draw.samples for draw in known.taught if draw.random]
    labels = sum(len(draw) for draw in known.taught)
    n = min(judge_labels(labels), sum(map(len, random)))
    if n < MIN_JUDGES:
        return known, None
    pool = Samples.concat(random)
    rows = mix(pool.ids).argsort(stable=True)[:n]
    judges = pool[rows]
    return known.without(judges.ids), judges


def judge_labels(budget: int) -> int:
    """How many labels of a budget should be random ones that judge; the others teach.

    A tenth, and none of 50 or fewer. On tuning fields the default arm was nearly always the best or close to it, so
    judges are insurance: ten notice an arm that does harm, and more of them would rather have taught.
    """
    return 0 if budget <= 50 else round(0.1 * budget)


# The race -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class _Judged:
    """A candidate that may be kept: within the limit of clean accuracy."""

    candidate: Candidate
    model: Classifier
    mix: float
    clean: float
    scores: Scores | None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Race:
    model: Classifier
    known: FieldKnowledge
    judges: Samples | None
    arms: Mapping[str, Retrainer]
    starts: Mapping[str, Classifier]
    work: ArmWork
    engine: Engine
    max_drop: float
    rate: float

    @property
    def default(self) -> str:
        return next(iter(self.arms))

    @property
    def floor(self) -> float:
        """The lowest clean accuracy allowed."""
        return self.model.accuracy(self.known.clean) - self.max_drop - 1e-9

    # With judge labels

    def judged(self) -> Repaired:
        judges = self.judges
        assert judges is not None
        judge = partial(Scores.of, judges=judges)
        ended = run_race(self.arms, self.default, self.starts, judge, self.work, self.engine)
        allowed = {name: self._allowed(c) for name, c in ended.items() if c.model is not None and not c.problem}
        before = judge(self.model)
        entrants = {name: a for name, a in allowed.items() if a is not None}
        winner = _winner(entrants, self.default)
        if winner is not None:
            winner = self._mixed(winner, judge)
        if winner is not None and _scores(winner).gain_over(before)[0] <= 0:
            return self._result(ended, allowed, None, before, beaten=winner)
        return self._result(ended, allowed, winner, before)

    def _mixed(self, winner: _Judged, judge: Callable[[Classifier], Scores]) -> _Judged:
        """The winner, or its mix with the original weights if that is clearly better."""
        best = winner
        for share in MIXES:
            model = interpolate(self.model, _model(winner.candidate), share * winner.mix)
            scores, clean = judge(model), model.accuracy(self.known.clean)
            gain, error = scores.gain_over(_scores(winner))
            if gain > error and gain > _scores(best).gain_over(_scores(winner))[0] and clean >= self.floor:
                best = replace(winner, model=model, mix=share * winner.mix, clean=clean, scores=scores)
        return best

    def _allowed(self, candidate: Candidate) -> _Judged | None:
        """The candidate with as much of its weights as clean accuracy allows; None if even a quarter costs too much."""
        if candidate.model is None:
            return None
        for share in ALLOWED_MIXES:
            model = interpolate(self.model, _model(candidate), share) if share < 1 else _model(candidate)
            clean = model.accuracy(self.known.clean)
            if clean >= self.floor:
                scores = None if self.judges is None else Scores.of(model, self.judges)
                return _Judged(candidate=candidate, model=model, mix=share, clean=clean, scores=scores)
        return None

    # Without judge labels

    def unjudged(self) -> Repaired:
        arms = {self.default: self.arms[self.default]}
        ended = train_arms(arms, self.starts, 1.0, self.work, self.engine)
        candidate = ended[self.default]
        allowed = {self.default: self._allowed(candidate)}
        found = allowed[self.default]
        if found is None:
            return self._result(ended, allowed, None, None)
        labels = self.known.labels
        better, why = self._better_on_folds() if len(labels) >= MIN_FOLDED else self._better_simulated(found.model)
        if not better and len(labels) == 0:
            return self._most_confident(ended, allowed, why)
        return self._result(ended, allowed, found if better else None, None, why=why)

    def _most_confident(
        self, ended: Mapping[str, Candidate], allowed: Mapping[str, _Judged | None], why: str
    ) -> Repaired:
        """Batch-norm statistics with which the model is clearly more confident in the field, or the original model.

        On ten fields, the mix of the highest mean confidence was the one of the lowest error, or nearly.
        """
        mixes = {name: arm for name, arm in self.arms.items() if isinstance(arm, BatchNormStatistics)}
        more = train_arms(mixes, self.starts, 1.0, self.work, self.engine)
        ended, allowed = {**ended, **more}, {**allowed, **{name: self._allowed(c) for name, c in more.items()}}
        before = _confidence(self.model, self.known.field)
        gains = {n: _confidence(a.model, self.known.field) - before for n in more if (a := allowed[n]) is not None}
        best = max(gains, key=lambda name: float(gains[name].mean()), default="")
        if not best or not float(gains[best].mean()) > 2 * float(gains[best].std() / math.sqrt(len(before))):
            return self._result(ended, allowed, None, None, why=why)
        gain = f"with it the mean confidence in the field is {points(float(gains[best].mean()))} higher"
        return self._result(ended, allowed, allowed[best], None, why=f"{why}, but {gain}")

    def _better_on_folds(self) -> tuple[bool, str]:
        """Whether models that learned from one half of the teaching labels are better on the other half."""
        labels = self.known.labels
        fold = torch.arange(len(labels)) % 2
        gains = []
        for k in (0, 1):
            known = replace(self.known, taught=(TeachingLabels(samples=labels[fold == k]),))
            work = replace(self.work, known=known, seed=self.work.seed + 1 + k, folder=self.work.folder / f"fold{k}")
            done = train_arms({self.default: self.arms[self.default]}, self.starts, 0.5, work, self.engine)
            model, others = done[self.default].model, labels[fold != k]
            if model is None:
                return False, f"training on half of the teaching labels failed: {done[self.default].problem}"
            gains.append(Scores.of(self.model, others).brier - Scores.of(model, others).brier)
        gain = torch.cat(gains)
        mean, error = float(gain.mean()), float(gain.std() / math.sqrt(len(gain)))
        text = f"its Brier score on teaching labels that it did not learn from is {mean:+.3f} ± {error:.3f} lower"
        return mean > 0, text

    def _better_simulated(self, candidate: Classifier) -> tuple[bool, str]:
        """Whether a model is wrong on fewer simulated field inputs, made of clean inputs that nothing learned from."""
        known = self.known
        if not known.has_conditions or known.unexplained > MAX_UNEXPLAINED:
            left = percent(known.unexplained, 2)
            return False, f"conditions leave {left} of the difference between training and field inputs unexplained"
        cases = simulated_cases(known, generator=spawn(self.work.seed, "cases"))
        wrong = [(m.predict(cases.x) != cases.labels).double() for m in (self.model, candidate)]
        apart = wrong[0] - wrong[1]
        mean, error = float(apart.mean()), float(apart.std() / math.sqrt(len(apart)))
        rates = f"{percent(float(wrong[0].mean()))} before and {percent(float(wrong[1].mean()))} after"
        return mean > 2 * error, f"of {len(cases)} simulated field inputs, {rates} are misclassified"

    # The result

    def _result(
        self,
        ended: Mapping[str, Candidate],
        allowed: Mapping[str, _Judged | None],
        winner: _Judged | None,
        before: Scores | None,
        *,
        beaten: _Judged | None = None,
        why: str = "",
    ) -> Repaired:
        records = tuple(self._record(c, allowed.get(name), before, winner) for name, c in ended.items())
        chains = {name: _model(c) for name, c in ended.items() if c.model is not None and c.trained == 1}
        kept = ORIGINAL if winner is None else winner.candidate.name
        reason = self._reason(ended, allowed, winner, before, beaten, why)
        return Repaired(
            model=self.model if winner is None else winner.model,
            kept=kept,
            mix=0.0 if winner is None else winner.mix,
            reason=reason,
            arms=records,
            judges=0 if self.judges is None else len(self.judges),
            learning_rate=self.rate,
            chains=chains if winner is not None or before is not None else {},
        )

    def _record(
        self, candidate: Candidate, found: _Judged | None, before: Scores | None, winner: _Judged | None
    ) -> ArmRecord:
        scores = None if found is None else found.scores
        gain, error = (math.nan, math.nan) if scores is None or before is None else scores.gain_over(before)
        won = winner is not None and winner.candidate is candidate
        too_low = found is None and not candidate.problem
        verdict = "kept" if won else candidate.problem or ("too much clean accuracy lost" if too_low else "not kept")
        return ArmRecord(
            name=candidate.name,
            trained=candidate.trained,
            seconds=candidate.seconds,
            clean=math.nan if candidate.model is None else candidate.model.accuracy(self.known.clean),
            brier=math.nan if scores is None else float(scores.brier.mean()),
            error=math.nan if scores is None else float(scores.wrong.double().mean()),
            gain=gain,
            gain_error=error,
            verdict=verdict,
        )

    def _reason(
        self,
        ended: Mapping[str, Candidate],
        allowed: Mapping[str, _Judged | None],
        winner: _Judged | None,
        before: Scores | None,
        beaten: _Judged | None,
        why: str,
    ) -> str:
        if winner is not None:
            mixed = "" if winner.mix == 1 else f", mixed with {percent(1 - winner.mix)} of the original weights"
            if before is None:
                return f"kept {winner.candidate.name}{mixed}: {why}; no judge labels were there to confirm it"
            gain, error = _scores(winner).gain_over(before)
            return (
                f"kept {winner.candidate.name}{mixed}: its Brier score on {len(_scores(winner).brier)} judge labels is "
                f"{gain:.3f} ± {error:.3f} below the original's"
            )
        tried = ", ".join(ended)
        if beaten is not None and before is not None:
            gain, error = _scores(beaten).gain_over(before)
            score = f"a Brier score {-gain:.3f} ± {error:.3f} above the original's"
            near = f"the nearest, {beaten.candidate.name}, has {score}"
            return f"kept the original model; tried {tried}; {near}. More teaching labels would help"
        costly = [c for name, c in ended.items() if c.model is not None and allowed.get(name) is None and not c.problem]
        if costly:
            loss = min(self.model.accuracy(self.known.clean) - _model(c).accuracy(self.known.clean) for c in costly)
            allow = f"max_drop={math.ceil(1000 * loss) / 1000:g} would allow it"
            least = f"the smallest loss of clean accuracy is {points(loss)}"
            return f"kept the original model; tried {tried}; {least}; {allow}"
        if why:
            return f"kept the original model; tried {tried}; {why}. {self._advice()}"
        problems = "; ".join(f"{c.name}: {c.problem}" for c in ended.values())
        return f"kept the original model; every arm failed ({problems}). Set a lower learning rate"

    def _advice(self) -> str:
        have = len(self.known.labels)
        return f"{max(100, 2 * have)} labels, a tenth of them random ones that judge, would decide it"


def _confidence(model: Classifier, field: Samples) -> Tensor:
    """Probability of the predicted class, for each input."""
    return model.probs(field.x).max(1).values.double().cpu()


def simulated_cases(known: FieldKnowledge, *, generator: torch.Generator) -> Samples:
    """Clean inputs that nothing learned from, drawn by the field's class shares, under the field's conditions."""
    n = min(MAX_CASES, 2 * len(known.clean))
    chances = chances_by_class(known.clean, known.class_shares)
    some = known.clean[torch.multinomial(chances, n, replacement=True, generator=generator)]
    assert known.recipe is not None
    return Samples(apply(some.x, known.recipe.draw(n, generator=generator)), some.labels)


def _winner(entrants: Mapping[str, _Judged], default: str) -> _Judged | None:
    """The default, or the arm with the lowest Brier score among those that are clearly better."""
    if not entrants:
        return None
    by_score = sorted(entrants.values(), key=lambda a: float(_scores(a).brier.mean()))
    if default not in entrants:
        return by_score[0]
    first = entrants[default]
    needed = max(1.0, math.sqrt(ENOUGH_JUDGES / len(_scores(first).brier)))
    for other in by_score:
        gain, error = _scores(other).gain_over(_scores(first))
        if gain > needed * error:
            return other
    return first


def _scores(entrant: _Judged) -> Scores:
    assert entrant.scores is not None
    return entrant.scores


def _model(candidate: Candidate) -> Classifier:
    assert candidate.model is not None
    return candidate.model


# Arguments ------------------------------------------------------------------------------------------------------------


def _checked_judges(model: Classifier, known: FieldKnowledge, judges: Samples | None) -> Samples | None:
    if judges is None or len(judges) == 0:
        return None
    model.check(judges)
    reserved = known.labels.ids[:0] if known.reserved is None else known.reserved
    for name, ids in (("the assessment half", reserved), ("the teaching labels", known.labels.ids)):
        if shared := int(torch.isin(judges.ids.cpu(), ids.cpu()).sum()):
            raise ValueError(f"judges must hold no input of {name}, got {shared} of {len(judges)}; leave them out")
    return judges if len(judges) >= MIN_JUDGES else None


def _with_rate(
    arms: Mapping[str, Retrainer], model: Classifier, known: FieldKnowledge, seed: int
) -> tuple[dict[str, Retrainer], float]:
    """Arms that need a learning rate get one, found with the rows of the first of them."""
    open_arms = [a for a in arms.values() if isinstance(a, FieldTraining) and a.schedule.learning_rate is None]
    if not open_arms:
        known_rates = [a.schedule.learning_rate for a in arms.values() if isinstance(a, FieldTraining)]
        return dict(arms), known_rates[0] if known_rates and known_rates[0] else math.nan
    first = open_arms[0]
    with activity("finding a learning rate"):
        rate = find_rate(model, first.rows(model, known), first.schedule, generator=spawn(seed, "rate"))
    return {name: _rated(arm, rate) if arm in open_arms else arm for name, arm in arms.items()}, rate


def _rated(arm: Retrainer, rate: float) -> Retrainer:
    assert isinstance(arm, FieldTraining)
    return replace(arm, schedule=replace(arm.schedule, learning_rate=rate))


@contextmanager
def _place(folder: str | Path | None):  # type: ignore[no-untyped-def]
    """The folder for checkpoints; a temporary one if none is given."""
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="operant-race-") as name:
        yield Path(name)


def _table(arms: tuple[ArmRecord, ...], judges: int) -> list[str]:
    width = max(len(arm.name) for arm in arms)
    head = f"{'arm':<{width}}  trained  CPU s  clean   " + (
        f"Brier   gain over original ({judges} labels)  " if judges else ""
    )
    rows = [head + "verdict"]
    for a in arms:
        judged = f"{a.brier:.4f}  {a.gain:+.4f} ± {a.gain_error:.4f}            " if judges else ""
        rows.append(f"{a.name:<{width}}  {a.trained:>6.0%}  {a.seconds:>5.0f}  {a.clean:>6.1%}  {judged}{a.verdict}")
    return rows
