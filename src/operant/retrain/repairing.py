"""Repair: race the ways to learn from the field, and keep the winner if it is better than the original model."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from operant.activity import activity
from operant.data import Samples
from operant.engine import Engine, serial
from operant.model import Classifier
from operant.retrain.arms import FieldTraining, Retrainer
from operant.retrain.decision import Contest
from operant.retrain.default_arms import default_arms
from operant.retrain.field_training import Schedule, check_trainable, find_rate
from operant.retrain.knowledge import FieldKnowledge
from operant.retrain.race import ArmWork
from operant.retrain.repaired import Repaired, repaired
from operant.rng import mix, spawn
from operant.validation import check_at_least, check_share

MIN_JUDGES = 10  # labels; fewer decide nothing


def repair(
    model: Classifier,
    known: FieldKnowledge,
    *,
    judges: Samples | None = None,
    arms: Mapping[str, Retrainer] | None = None,
    previous: Repaired | None = None,
    schedule: Schedule = Schedule(),  # noqa: B008  # frozen
    max_drop: float = 0.05,
    engine: Engine = serial,
    folder: str | Path | None = None,
    generator: torch.Generator,
) -> Repaired:
    """Race several ways to learn from the field, and keep the best if it is better than the model.

    The first arm is the default. With judge labels, all arms train for a while, the default and the best other one to
    the end; another arm is taken if its Brier score on the judge labels is clearly lower than the default's
    (`operant.retrain.decision.clearly_better`), and the original model is kept if the judges find it better
    (`operant.retrain.decision.replaces`). Without judge labels only the default arm runs. It is kept if it is better
    than the original on teaching labels that it did not learn from (two folds). Without any labels, or if these do not
    decide, it must be better on simulated field inputs, and the conditions must explain some of the field. If it is not
    kept, batch-norm statistics are mixed with the field's if that makes the model clearly more confident there. What
    was kept without judge labels is provisional: the next call with judge labels may return to the original model.

    Args:
        model: the original model.
        known: everything that may be learned from.
        judges: *randomly drawn* labelled field inputs that no arm learns from (default: none).
        arms: by name, the default one first (default: `default_arms`).
        previous: the result of the last call with fewer labels; each arm continues from its own candidate, unless it
            has learned from an input that judges now.
        schedule: of the default arms.
        max_drop: largest loss of clean accuracy allowed; weights are mixed with the original's to keep it.
        engine: runs the arms (default: one after another in this process).
        folder: for checkpoints. Called again with the same arguments, an interrupted race resumes (default: none are
            kept).
        generator: all randomness.
    """
    check_share(max_drop=max_drop, advice="0.05 is five points")
    known.check_model(model)
    check_trainable(model)
    judges = _checked_judges(model, known, judges)
    known = known if judges is None else known.without(judges.ids)
    seed = int(torch.randint(2**53, (), generator=generator, device=generator.device))
    arms = default_arms(model, known, schedule) if arms is None else dict(arms)
    check_at_least(1, arms=len(arms))
    arms, rate = _with_rate(arms, model, known, seed)
    chains, taught = _chains(previous, judges)
    starts = {name: chains.get(name, model) for name in arms}
    with _place(folder) as place:
        contest = Contest(
            model=model,
            known=known,
            judges=judges,
            arms=arms,
            starts=starts,
            untaught=dict.fromkeys(arms, model) if len(taught) else starts,
            work=ArmWork(known=known, seed=seed, folder=place),
            engine=engine,
            max_drop=max_drop,
        )
        return repaired(contest, contest(), taught=taught, learning_rate=rate)


def hold_out_judges(known: FieldKnowledge) -> tuple[FieldKnowledge, Samples | None]:
    """Set some of the random teaching labels aside as judges; none if there are few.

    Which ones depends on the ids of all random labels, and not on their order. With more labels, one that has taught
    may judge; `repair` then does not continue from ``previous``.
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


def _chains(previous: Repaired | None, judges: Samples | None) -> tuple[Mapping[str, Classifier], Tensor]:
    """What arms start from, and ids of the labels that it has learned from; nothing that has learned from judges."""
    none = torch.empty(0, dtype=torch.int64)
    if previous is None or (judges is not None and bool(torch.isin(judges.ids.cpu(), previous.taught).any())):
        return {}, none
    return previous.chains, previous.taught


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
def _place(folder: str | Path | None) -> Iterator[Path]:
    """The folder for checkpoints; a temporary one if none is given."""
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="operant-race-") as name:
        yield Path(name)
