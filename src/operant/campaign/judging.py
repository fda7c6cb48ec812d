"""Judges of a campaign's moves: each learns from draws that nothing was searched from, before the first search.

What a move makes of seeds without looking for failures must look like field inputs. If its judge tells more than half
of these draws from the field, its recipe or radius is wrong, and nothing is searched with it. Otherwise the judge rates
the cases that the move finds. What guides a search is another thing: the five scores of naturalness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from operant.campaign.field import FieldState
from operant.campaign.records import MoveTest
from operant.campaign.reserving import TrainingParts
from operant.data import Samples
from operant.data.class_rows import rows_per_class
from operant.measure import Judge, Naturalness, fit_judge
from operant.measure.judge import MIN_DRAWS, MIN_FIELD, UNLIKE_FIELD, accepted_text, too_few
from operant.model import Classifier
from operant.rng import spawn
from operant.types import Fuzzer, Move, UnselectedDraws

DRAWS = 600  # unselected draws per move
SMALLEST = 1 / 16  # of the given radius, the smallest that is tried if half of the draws are rejected
BISECTIONS = 3  # further radii tried, to find about the largest at which half of the draws are accepted


@dataclass(frozen=True, kw_only=True, eq=False)
class MoveJudge:
    """The judge of a move, None if it has none, and what it says of the move; ``judge-NNN.json`` of a round."""

    test: MoveTest
    judge: Judge | None = field(repr=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class JudgedMoves:
    """The moves to search with, which may be none, what rates their cases, and the test of every move."""

    moves: dict[str, Fuzzer]
    naturalness: Naturalness = field(repr=False)
    tests: tuple[MoveTest, ...] = ()


def judged_moves(
    moves: Mapping[str, Move], model: Classifier, train: TrainingParts, *, field: FieldState, draws: int
) -> JudgedMoves:
    """The moves that make cases like field inputs, and their judges, fitted once per field or read from disk.

    Judges of gradient searches see the draws of the model at hand when the field is first searched. They are not fitted
    again when the model is retrained: what such cases look like depends on the radius more than on the model.

    Args:
        moves: of the campaign, by name.
        model: the current model.
        train: labelled training data; judges learn from draws of the reserved part.
        field: the current field; judges are kept beside its profile.
        draws: unselected draws per move; 0 for no judges.
    """
    made = {name: make(naturalness=field.naturalness) for name, make in moves.items()}
    if not draws:
        return JudgedMoves(moves=made, naturalness=field.naturalness)
    seeds, found = partial(_seeds, train, field, draws), dict[str, MoveJudge]()
    for file, (name, fuzz) in zip(_files(field, len(made)), made.items(), strict=True):
        found[name] = field.run.step(file, MoveJudge, partial(_judged, name, fuzz, model, seeds, field))
    judges = {name: part.judge for name, part in found.items() if part.judge is not None and part.test.searched}
    return JudgedMoves(
        moves={name: _with_radius(made[name], part.test.radius) for name, part in found.items() if part.test.searched},
        naturalness=replace(field.naturalness, judges=judges),
        tests=tuple(part.test for part in found.values()),
    )


def are_judged(moves: Mapping[str, Move], field: FieldState) -> bool:
    """Whether the judges of all moves in this field are on disk."""
    return all(field.run.has(file) for file in _files(field, len(moves)))


def _files(field: FieldState, moves: int) -> list[str]:
    return [f"{field.fitted_in}/judge-{number:03d}" for number in range(moves)]


def _judged(name: str, fuzz: Fuzzer, model: Classifier, seeds: Callable[[], Samples], field: FieldState) -> MoveJudge:
    """Fit the judge of a move; if it rejects the move's draws, with smaller radii."""
    inputs = seeds()
    why = _no_judge(fuzz, field.judged_by, len(inputs))
    if why:
        return MoveJudge(test=MoveTest(move=name, searched=True, why=why), judge=None)
    generator = partial(spawn, field.seed, field.fitted_in, "judge", name)

    def fit(radius: float | None) -> Judge:
        moved = cast(UnselectedDraws, _with_radius(fuzz, radius))
        draws = moved.unselected(model, inputs, generator=generator("draws"))
        bounds = model.bounds
        return fit_judge(field.judged_by, draws, bounds=bounds, generator=generator("fit"), progress=False)

    first, given = fit(None), _radius_of(fuzz)
    if first.trusted or given is None:
        return _move_judge(name, first)
    radius, judge = _largest_radius(given, fit)
    if judge is None:
        return MoveJudge(test=replace(_move_judge(name, first).test, why=_why_dropped(given, radius)), judge=first)
    return _move_judge(
        name, judge, radius=radius, why=f"{accepted_text(first.accepted, 2)} at the given radius {given:g}"
    )


def _move_judge(name: str, judge: Judge, *, radius: float | None = None, why: str = "") -> MoveJudge:
    test = MoveTest(
        move=name,
        searched=judge.trusted,
        accepted=judge.accepted,
        draws=judge.draws,
        radius=radius,
        why=why,
        doubts=tuple(finding for finding in judge.findings if finding.name != UNLIKE_FIELD),
    )
    return MoveJudge(test=test, judge=judge)


def _no_judge(fuzz: Fuzzer, inputs: Samples, draws: int) -> str:
    """Why a move can have no judge; empty if it can."""
    if not isinstance(fuzz, UnselectedDraws):
        return "it has no unselected draws to learn from"
    if draws < MIN_DRAWS:
        return f"fewer than {MIN_DRAWS} training inputs can be reserved for judges, at most a quarter of them"
    distinct = len(inputs.ids.unique())
    if distinct < MIN_FIELD:
        return f"{distinct} distinct field inputs are too few: {MIN_FIELD} are needed"
    return "nearly all field inputs are in one half: smaller groups are needed" if too_few(inputs) else ""


def _largest_radius(given: float, fit: Callable[[float], Judge]) -> tuple[float, Judge | None]:
    """About the largest radius below the given one whose judge accepts at least half of the draws.

    The smallest radius comes first: if that is rejected, all are, and there is no judge. Then the middle of those that
    are accepted and rejected is tried, in ratios, so that the result is at most 1.5 times too small.
    """
    low, high = _rounded(given * SMALLEST), given
    best = fit(low)
    if not best.trusted:
        return low, None
    for _ in range(BISECTIONS):
        middle = _rounded(math.sqrt(low * high))
        judge = fit(middle)
        if judge.trusted:
            low, best = middle, judge
        else:
            high = middle
    return low, best


def _rounded(radius: float) -> float:
    return float(f"{radius:.3g}")


def _why_dropped(given: float, smallest: float) -> str:
    return f"at the given radius {given:g}, and fewer than half do at {smallest:g}"


# Seeds of the draws


def _seeds(train: TrainingParts, field: FieldState, draws: int) -> Samples:
    """Reserved training inputs in the class shares of the field, no more than there are.

    Inputs repeat only if a class has too few; otherwise both halves of a judge would see draws of the same input.
    """
    inputs, shares = train.reserved, field.class_shares(train.every)
    draws = min(draws, len(inputs))
    return inputs[_rows(inputs.labels.cpu(), shares, draws, spawn(field.seed, field.fitted_in, "judge", "seeds"))]


def _rows(labels: Tensor, shares: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """n rows in the given class shares; evenly over classes if no row is of a class that has a share."""
    if n == 0:
        return torch.empty(0, dtype=torch.int64)
    present = torch.bincount(labels, minlength=len(shares)) > 0
    wanted = torch.where(present, shares, 0.0)
    wanted = wanted if bool(wanted.any()) else present.double()
    counts = torch.bincount(torch.multinomial(wanted, n, replacement=True, generator=generator), minlength=len(shares))
    return rows_per_class(labels, counts.tolist(), generator=generator)


# Radii


def _radius_of(fuzz: Any) -> float | None:
    radius = getattr(fuzz, "radius", None) if is_dataclass(fuzz) else None
    return float(radius) if isinstance(radius, int | float) else None


def _with_radius(fuzz: Any, radius: float | None) -> Fuzzer:
    return cast(Fuzzer, fuzz if radius is None else replace(fuzz, radius=radius))


def check_draws(draws: int) -> None:
    """Raise an error unless judges can learn from so many draws."""
    if draws and draws < MIN_DRAWS:
        raise ValueError(f"judge_draws must be 0, for no judges, or at least {MIN_DRAWS}, got {draws}")
