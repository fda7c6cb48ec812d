"""Operational fuzzing: any mix of moves, one judgement for all cases, and a limit of cases per seed."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.engine import Goal
from operant.generate.operational._cases import LEVEL, check_level
from operant.measure.naturalness import Naturalness, Neighbours
from operant.model import Classifier
from operant.profile import Profile
from operant.rng import uniform_like
from operant.suite import Suite
from operant.types import Fuzzer
from operant.validation import check_at_least, check_from_below, check_nonnegative, check_not_empty, check_positive

QUANTILE = 0.1  # of the density of field data, from which the field counts as dense


@dataclass(frozen=True, kw_only=True)
class OperationalFuzz:
    """Search for operational failures: natural, and where the field is dense.

    Each move works on all its seeds in one batch. A seed that has ``per_seed`` operational failures is done, and later
    moves skip it. All failures are then judged by one more pass of the model, rated by the calibrated p-value and by
    the profile, and merged: of two cases of one seed whose codes are nearer than field inputs are to their neighbours
    (the ``merge`` quantile of those distances), the one with the larger mass times naturalness is kept, up to
    ``per_seed`` in all. `Suite.operational` returns the operational failures among them.

    Columns: ``naturalness`` (p-value), ``density`` (log), ``mass`` of the cell, ``quantile`` (the share of field inputs
    where the field is no denser), ``l2`` and ``linf`` from the seed, ``move``, ``turn`` (position of the move among
    those tried on the seed, from 0), ``margin``, and the columns of the move.

    A campaign steers by ``replace(fuzz, weight=2.0, moves_per_seed=1)``: those fields replace the moves' own. Within a
    move seeds do not affect each other; the random numbers that a later move draws for a seed depend on how many seeds
    before it are still active, unless ``stop_early`` is off.

    Args:
        moves: by a short name, in the order they are tried: `GradientMove`, `ConditionMove`, `GeneticMove`, or any
            other fuzzer.
        naturalness: rates cases. For a fair comparison of moves, give one that guides none of them.
        profile: of the field.
        cell_radius: of the cell around a case, in standard deviations of the field's codes.
        shares: how likely each move is to be a seed's next one (default: all seeds follow the order of the moves).
        moves_per_seed: maximum number of moves tried on a seed (default: all).
        weight, radius: passed to every move that has such an option (default: each keeps its own).
        per_seed: maximum number of cases per seed.
        merge: quantile of distances below which cases are merged; 0 merges only cases that are nearer than any two
            field inputs.
        level, mass_quantile: minimum naturalness and density quantile of an operational failure.
        stop_early: whether later moves skip a seed that has its operational failures.

    References:
        | Detecting Operational Adversarial Examples for Reliable Deep Learning (Zhao et al., 2021), RQ3
        | https://arxiv.org/abs/2104.06015
    """

    moves: dict[str, Fuzzer]
    naturalness: Naturalness = field(repr=False)
    profile: Profile = field(repr=False)
    cell_radius: float = 1.0
    shares: dict[str, float] = field(default_factory=dict)
    moves_per_seed: int | None = None
    weight: float | None = None
    radius: float | None = None
    per_seed: int = 3
    merge: float = 0.05
    level: float = LEVEL
    mass_quantile: float = QUANTILE
    stop_early: bool = True

    def __post_init__(self) -> None:
        check_not_empty(moves=self.moves, advice="give moves={'gradient': GradientMove(...)}")
        if self.shares and (self.shares.keys() != self.moves.keys() or not all(s > 0 for s in self.shares.values())):
            raise ValueError(f"shares must be positive, one for each of {', '.join(self.moves)}, got {self.shares}")
        check_at_least(1, per_seed=self.per_seed)
        if self.moves_per_seed is not None:
            check_at_least(1, moves_per_seed=self.moves_per_seed)
        if self.weight is not None:
            check_nonnegative(weight=self.weight)
        check_level(self.level)
        check_from_below(0, 1, merge=self.merge, mass_quantile=self.mass_quantile)
        check_positive(cell_radius=self.cell_radius)

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        model.check(seeds)
        self.profile.encode(seeds.x[:1])  # raises for other shapes before hours are spent
        self.naturalness(seeds.x[:1])
        order, left = self._order(len(seeds), generator), torch.full((len(seeds),), self.per_seed)
        parts: list[Suite] = []
        for place, turn in enumerate(order.unbind(1)):
            for number, (name, move) in enumerate(self._steered().items()):
                rows = ((turn == number) & (left > 0)).nonzero().flatten()
                if len(rows) == 0:
                    continue
                part = self._natural(move(model, seeds[rows], generator=generator).failures(), name)
                parts.append(part.with_columns(move=np.full(len(part), name), turn=torch.full((len(part),), place)))
                if self.stop_early:
                    good = (part["naturalness"] >= self.level) & (part["quantile"] >= self.mass_quantile)
                    left -= torch.bincount(seeds.rows_of(part.seed[good]), minlength=len(seeds))
        return self._merged(self._judged(model, seeds, Suite.concat(parts)))

    def _order(self, n: int, generator: torch.Generator) -> Tensor:
        """The number of the move for each seed and turn, ``(seeds, turns)``."""
        turns = min(len(self.moves), self.moves_per_seed or len(self.moves))
        if not self.shares:
            return torch.arange(turns).expand(n, turns)
        share = torch.tensor([self.shares[name] for name in self.moves])
        u = uniform_like(share.expand(n, len(share)), 1e-9, 1.0, generator=generator).cpu()
        return (-u.log() / share).argsort(1)[:, :turns]  # exponential numbers: each is the smallest with its share

    def _steered(self) -> dict[str, Fuzzer]:
        """The moves, with the options that replace their own."""
        given = {name: getattr(self, name) for name in ("weight", "radius") if getattr(self, name) is not None}
        return {name: _with(move, given) for name, move in self.moves.items()}

    def _natural(self, suite: Suite, move: str) -> Suite:
        """The suite with the columns that decide whether a failure is operational; a move's own judge rates it."""
        if len(suite) == 0:
            return suite.with_columns(naturalness=torch.empty(0), quantile=torch.empty(0))
        natural = self.naturalness(suite.x, move=move) if self.naturalness.judges else self.naturalness(suite.x)
        return suite.with_columns(naturalness=natural, quantile=self.profile.quantile(suite.x))

    def _judged(self, model: Classifier, seeds: Samples, suite: Suite) -> Suite:
        """Failures in seed order, by one more pass of the model, with every column."""
        suite = suite[seeds.rows_of(suite.seed).argsort(stable=True)]
        suite = replace(suite, attempted=len(seeds), skipped=0)
        if len(suite) == 0:
            return suite.with_columns(**dict.fromkeys(("margin", "density", "mass", "l2", "linf"), torch.empty(0)))
        logits = model.batched_logits(suite.x)
        margin = Goal().margin(logits, suite.label)
        suite = replace(suite, prediction=logits.argmax(1)).with_columns(margin=margin).failures()
        return suite.with_columns(
            density=self.profile.log_prob(suite.x),
            mass=self.profile.cell_mass(suite.x, self.cell_radius),
            l2=suite.distances("l2"),
            linf=suite.distances("linf"),
        )

    def _merged(self, suite: Suite) -> Suite:
        if len(suite) == 0:
            return suite
        near = Neighbours(self.profile.codes)(self.profile.held, k=1).quantile(self.merge)
        value = suite["mass"] * suite["naturalness"]
        codes = self.profile.encode(suite.x).detach()
        kept: Suite = suite[distinct(suite.seed, codes, value, min_distance=float(near), limit=self.per_seed)]
        return kept


def distinct(seed: Tensor, codes: Tensor, value: Tensor, *, min_distance: float, limit: int) -> Tensor:
    """Rows to keep, in order: of each seed the most valuable, then the next that is far enough from those, and so on.

    Args:
        min_distance: rows of one seed whose codes ``(N, d)`` are no further apart than this are merged.
        limit: maximum number of rows per seed.

    >>> seed, codes = torch.tensor([7, 7, 7, 8]), torch.tensor([[0.0], [0.1], [5.0], [0.0]])
    >>> distinct(seed, codes, torch.tensor([1.0, 2.0, 1.0, 1.0]), min_distance=1.0, limit=3)
    tensor([1, 2, 3])
    """
    waiting, kept = value.argsort(descending=True, stable=True), [torch.empty(0, dtype=torch.int64)]
    for _ in range(limit):
        seeds, group = seed[waiting].unique(return_inverse=True)
        place = torch.arange(len(waiting))
        first = torch.full_like(seeds, len(waiting)).scatter_reduce(0, group, place, "amin")
        kept.append(waiting[first])
        distance = (codes[waiting] - codes[kept[-1]][group]).norm(dim=1)
        waiting = waiting[(distance > min_distance) & (place != first[group])]
    return torch.cat(kept).sort().values


def _with(move: Any, given: dict[str, Any]) -> Fuzzer:
    if not is_dataclass(move) or isinstance(move, type):
        return cast(Fuzzer, move)
    own = {f.name for f in fields(move)}
    return cast(Fuzzer, replace(move, **{name: value for name, value in given.items() if name in own}))
