"""What one round teaches the next: search more where failures come from, and some everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from operant.campaign.field import FieldState
from operant.campaign.records import Decision, Round, SearchShares
from operant.data import Samples
from operant.model import Classifier
from operant.suite import Suite

FLOOR = 0.3  # share of a budget that is spread whatever was learned


def search_shares(
    model: Classifier,
    train: Samples,
    *,
    field: FieldState,
    labelled: Samples,
    moves: Sequence[str],
    rounds: Sequence[Round],
    feedback: bool,
) -> SearchShares:
    """Shares of the next round: as the field is distributed or, with feedback, more where failures come from.

    Args:
        model: the current model.
        train: labelled training data, which seeds are drawn from.
        field: the current field.
        labelled: labelled field inputs.
        moves: their names.
        rounds: finished so far.
        feedback: whether to learn from earlier rounds.
    """
    mass = field.profile.weights(train)
    by_class = torch.bincount(train.labels, mass, minlength=model.classes(train.x[:1]))
    by_cell = torch.bincount(field.cells(train.x), mass, minlength=len(field.centres))
    equal = torch.full((len(moves),), 1 / len(moves), dtype=torch.float64)
    classes, cells, by_move, decisions = by_class, by_cell, equal, list[Decision]()
    if feedback and len(labelled):
        failing = labelled[model.predict(labelled.x).cpu() != labelled.labels.cpu()]
        classes = allocate(torch.bincount(failing.labels, minlength=len(by_class)), by_class)
        cells = allocate(torch.bincount(field.cells(failing.x), minlength=len(by_cell)), by_cell)
        yields = torch.tensor([_yield(name, rounds) for name in moves])
        by_move = allocate(yields, equal)
        why = f"the present model gets {len(failing)} of all {len(labelled)} field inputs labelled so far wrong"
        decisions = [
            _decision("class", by_class, classes, why, train.classes),
            _decision("cell", by_cell, cells, why),
        ]
        if bool(yields.any()):
            found = ", ".join(f"{n} {y:.0f}" for n, y in zip(moves, yields.tolist(), strict=True))
            why = f"per 100 seeds that a move was tried on first, it found operational failures on: {found}"
            decisions.append(_decision("move", equal, by_move, why, moves))
    return SearchShares(
        classes=tuple(classes.tolist()),
        cells=tuple(cells.tolist()),
        moves=dict(zip(moves, by_move.tolist(), strict=True)),
        decisions=tuple(decisions),
    )


def _yield(move: str, rounds: Sequence[Round]) -> float:
    """Per hundred seeds that a move was tried on first, those with an operational failure of it.

    Only since the field last changed; and only where the move came first, since what is left for later moves depends
    on how often they are tried.
    """
    drifts = [i for i, r in enumerate(rounds) if r.drift]
    since = rounds[drifts[-1] :] if drifts else rounds
    tried = sum(r.attempted * r.moves.get(move, 0.0) for r in since)
    return 100 * sum(r.first.get(move, 0) for r in since) / tried if tried else 0.0


def count_by_move(failures: Suite, moves: Iterable[str]) -> dict[str, int]:
    """Operational failures per move."""
    found = failures["move"].tolist() if len(failures) else []
    return {name: found.count(name) for name in moves}


def count_first_moves(failures: Suite, moves: Iterable[str]) -> dict[str, int]:
    """Per move, the seeds that it was tried on first and that have an operational failure of it."""
    if len(failures) == 0:
        return dict.fromkeys(moves, 0)
    first = failures[failures["turn"] == 0]
    found = np.asarray(first["move"])
    return {name: len(first.seed[torch.from_numpy(found == name)].unique()) for name in moves}


def _decision(
    what: Literal["class", "cell", "move"], old: Tensor, new: Tensor, why: str, names: Sequence[str] = ()
) -> Decision:
    names = names or [str(i) for i in range(len(old))]
    return Decision(what=what, names=tuple(names), before=tuple(old.tolist()), after=tuple(new.tolist()), why=why)


def allocate(contribution: Tensor, base: Tensor, *, floor: float = FLOOR) -> Tensor:
    """Shares of a budget in proportion to each part's contribution, with a floor for every part.

        a_i = (1 - floor) s_i + floor b_i,    s_i = (c_i + b_i) / (Σ c + 1)        (1)

    b are the shares if nothing is known, c are counts: failures of a class among labelled field inputs, for instance.
    One imaginary count, spread as b, keeps few counts from deciding everything; without counts, a = b.

    Args:
        contribution: c, one count per part, 0 or more.
        base: b, one share per part, summing to 1; a part with share 0 gets none.
        floor: share of the budget that is spread as b.

    >>> allocate(torch.tensor([3.0, 0.0]), torch.tensor([0.5, 0.5]), floor=0.2)
    tensor([0.8000, 0.2000], dtype=torch.float64)
    """
    c, b = contribution.double(), base.double()
    if c.shape != b.shape or not bool((c >= 0).all() and (b >= 0).all()) or not abs(float(b.sum()) - 1) < 1e-6:
        raise ValueError(
            f"contribution and base must hold one number of 0 or more per part, base summing to 1, got {c.tolist()} "
            f"and {b.tolist()}"
        )
    if not 0 <= floor <= 1:
        raise ValueError(f"floor must be a share from 0 to 1, got {floor}")
    c = torch.where(b > 0, c, 0.0)
    return (1 - floor) * (c + b) / (c.sum() + 1) + floor * b  # (1)


def reweighted(weights: Tensor, part: Tensor, shares: Tensor) -> Tensor:
    """Weights whose sum over each part is its share; within a part they keep their proportions.

    A part without weight cannot get any; the others divide its share among them.

    >>> reweighted(torch.tensor([1.0, 1.0, 2.0]), torch.tensor([0, 0, 1]), torch.tensor([0.8, 0.2])).tolist()
    [0.4, 0.4, 0.2]
    """
    weights = weights.double()
    held = torch.zeros(len(shares), dtype=torch.float64).index_add_(0, part, weights)
    wanted = torch.where(held > 0, shares.double(), 0.0)
    factor = torch.where(held > 0, wanted / wanted.sum() / held.clamp_min(1e-300), 0.0)
    return weights * factor[part]
