"""The race: several arms share one budget, and are judged on labels that none of them learns from."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from operant.activity import activity
from operant.data import Samples
from operant.engine import Engine, closing_results
from operant.formatting import first_few
from operant.model import Classifier
from operant.model.hashing import described, fingerprint, hash_of
from operant.networks import load_weights, save_weights
from operant.results import load, save
from operant.retrain.arms import Retrainer
from operant.retrain.knowledge import FieldKnowledge
from operant.retrain.monitor import brier_scores, errors
from operant.retrain.training import TrainingDiverged
from operant.rng import spawn

FINALISTS = 2  # arms that train to the end
FIRST_SHARE = 0.2  # of the training of the other arms, at most
WEIGHTS = ".weights.safetensors"  # suffix of a candidate's weights, beside its state


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """Brier score and error of each judge label."""

    brier: Tensor
    wrong: Tensor

    @staticmethod
    def of(model: Classifier, judges: Samples) -> Scores:
        logits, y = model.batched_logits(judges.x).cpu(), judges.labels.cpu()
        return Scores(brier=brier_scores(logits, y), wrong=errors(logits, y))

    def gain_over(self, other: Scores) -> tuple[float, float]:
        """How much lower the Brier score is than another's, and the standard error of this paired difference."""
        apart = other.brier - self.brier
        return float(apart.mean()), float(apart.std() / math.sqrt(len(apart))) if len(apart) > 1 else math.inf


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """What became of an arm."""

    name: str
    model: Classifier | None = field(repr=False)  # None if it failed
    trained: float = 0.0  # share of its training
    seconds: float = 0.0  # of CPU time
    problem: str = ""  # why it left the race


@dataclass(frozen=True, kw_only=True)
class ArmState:
    """What became of an arm, without its weights; beside them in the folder of a race."""

    name: str
    trained: float
    seconds: float
    problem: str
    weights: str  # fingerprint of their file; empty if the arm failed


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmWork:
    """Trains one arm up to a share; sent to the engine's workers.

    The candidate is kept in the folder: which arms train to the end depends on how well they do after a part of their
    training, so a race that resumes must see the same parts, although their trainings may have advanced since.
    """

    known: FieldKnowledge
    seed: int
    folder: Path

    def __call__(self, item: tuple[str, Retrainer, Classifier, float]) -> Candidate:
        name, arm, start, until = item
        key = hash_of(*(described(v).encode() for v in (name, arm, start, self.known.identity, self.seed)))
        place = self.folder / f"{slug(name)}-{key}"
        kept = place.with_name(f"{place.name}-{until:g}.json")
        if not kept.exists():
            self._keep(self._train(name, arm, start, until, place.with_suffix(".safetensors")), kept)
        return _read(kept, start)

    def _train(self, name: str, arm: Retrainer, start: Classifier, until: float, checkpoint: Path) -> Candidate:
        began = time.process_time()
        try:
            model = arm(start, self.known, generator=spawn(self.seed, name), until=until, checkpoint=checkpoint)
            check_candidate(model, start, self.known.clean)
        except (TrainingDiverged, ValueError) as error:
            return Candidate(name=name, model=None, seconds=time.process_time() - began, problem=str(error))
        return Candidate(name=name, model=model, trained=until, seconds=time.process_time() - began)

    def _keep(self, candidate: Candidate, kept: Path) -> None:
        """Write the weights, then the state, which says that both are there."""
        kept.parent.mkdir(parents=True, exist_ok=True)
        weights = kept.with_suffix(WEIGHTS)
        if candidate.model is not None:
            save_weights(candidate.model.unwrap(), weights)
        state = ArmState(
            name=candidate.name,
            trained=candidate.trained,
            seconds=candidate.seconds,
            problem=candidate.problem,
            weights="" if candidate.model is None else fingerprint(weights),
        )
        save(state, kept)


def _read(kept: Path, start: Classifier) -> Candidate:
    state, weights, model = load(kept, ArmState), kept.with_suffix(WEIGHTS), None
    if state.weights:
        if not weights.exists() or fingerprint(weights) != state.weights:
            raise ValueError(f"{weights} is missing or has changed since it was written; delete {kept} to train again")
        model = start.rewrap(load_weights(start.unwrap(), weights))
    return Candidate(name=state.name, model=model, trained=state.trained, seconds=state.seconds, problem=state.problem)


def check_candidate(candidate: Classifier, start: Classifier, clean: Samples) -> None:
    """Raise ValueError unless outputs are finite and weights can be saved and mixed with those of the original."""
    candidate.accuracy(clean)  # raises if outputs are not finite
    before, after = start.unwrap().state_dict(), candidate.unwrap().state_dict()
    if {name: v.shape for name, v in before.items()} != {name: v.shape for name, v in after.items()}:
        raise ValueError(
            "the trained network must have weights of the same names and shapes as the one it started from"
        )
    if broken := [name for name, v in after.items() if not bool(v.isfinite().all())]:
        raise ValueError(f"training left NaN or infinity in {first_few(broken, most=3)}")


def slug(name: str) -> str:
    """A name as part of a file name.

    >>> slug("labels, simulated field")
    'labels-simulated-field'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def train_arms(
    arms: Mapping[str, Retrainer], starts: Mapping[str, Classifier], share: float, work: ArmWork, engine: Engine
) -> dict[str, Candidate]:
    """Every arm trained up to a share, by name, in the order given."""
    items = [(name, arm, starts[name], share) for name, arm in arms.items()]
    found: dict[int, Candidate] = {}
    with (
        activity("training arms of the race", len(items), unit="arms") as shown,
        closing_results(engine(work, items)) as results,
    ):
        for number, candidate in results:
            found[number] = candidate
            shown.advance()
    return {items[number][0]: found[number] for number in sorted(found)}


def run_race(
    arms: Mapping[str, Retrainer],
    default: str,
    starts: Mapping[str, Classifier],
    judges: Samples,
    work: ArmWork,
    engine: Engine,
) -> dict[str, Candidate]:
    """All arms, after successive halving: the default and the best other one train to the end.

    The others train so little that the race costs at most 2.5 times one whole training. Arms without a schedule, such
    as batch-norm statistics or a user's own function, cannot be stopped half-way and train to the end.
    """
    free = {name: arm for name, arm in arms.items() if not hasattr(arm, "schedule")}
    trained = {name: arm for name, arm in arms.items() if name not in free}
    done = train_arms(free, starts, 1.0, work, engine)
    if len(trained) <= FINALISTS:
        return done | train_arms(trained, starts, 1.0, work, engine)
    share = min(FIRST_SHARE, 0.4 / (len(trained) - FINALISTS))
    first = train_arms(trained, starts, share, work, engine)
    ranked = sorted(
        (name for name, c in first.items() if c.model is not None and name != default),
        key=lambda name: float(Scores.of(_model(first[name]), judges).brier.mean()),
    )
    last = {name: trained[name] for name in (default, *ranked[: FINALISTS - 1])}
    ended = train_arms(last, starts, 1.0, work, engine)
    for name, candidate in ended.items():
        ended[name] = replace(candidate, seconds=candidate.seconds + first[name].seconds)
    behind = f"behind after {100 * share:.0f} % of its training"
    left = {n: c if c.problem else replace(c, problem=behind) for n, c in first.items() if n not in ended}
    return {name: (done | left | ended)[name] for name in arms}


def _model(candidate: Candidate) -> Classifier:
    assert candidate.model is not None
    return candidate.model
