"""Operational failures as a report shows them: with images, or with the values that changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from operant.data.samples import content_ids
from operant.report.gallery import amplification, largest_changes, pictures_of
from operant.suite import SeedPool, Suite
from operant.suite.drawing import is_picture
from operant.suite.shards import LazyRows

LIMIT = 1000  # maximum number of failures shown
MAX_CHARACTERS = 6_000_000  # of all images together
MAX_SIDE = 96  # pixels of an image's longer side
BATCH = 100  # failures drawn at a time
Key = tuple[int, int]  # seed and content of a case


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One operational failure.

    Attributes:
        round: that found it.
        move: that made it.
        label, prediction: its true class, and the model's.
        seed: id of its seed, as text, since it has more digits than JSON readers keep.
        file: where its seed comes from; empty if that is not known.
        naturalness: a p-value; small means unlike field data.
        mass: share of the field around it.
        risk: how likely field inputs like it are to fail, by the risk map; None if it was not chosen to learn from, or
            without a map.
        linf, l2: distance from its seed.
        learned: whether the model was retrained with it.
        pictures: seed, case and difference, as data URIs; empty if inputs are not images.
        changes: if inputs are not images, the values that changed most: name, seed, case.
    """

    round: int
    move: str
    label: int
    prediction: int
    seed: str
    file: str = ""
    naturalness: float
    mass: float
    linf: float
    l2: float
    learned: bool
    risk: float | None = None
    pictures: tuple[str, ...] = ()
    changes: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """The failures that a report shows.

    Attributes:
        total: number of different failures, shown or not.
        found: number of failures that rounds found; a round after an unchanged one can find the same again.
        factor: differences are multiplied by it.
        shape: of one input.
        failures: shown ones, alternating between rounds, by naturalness times mass.
    """

    total: int = 0
    found: int = 0
    factor: int = 1
    shape: tuple[int, ...] = ()
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundFailures:
    """The operational failures of a round, best first, and which of them were chosen, and learned from."""

    round: int
    suite: Suite
    chosen: Tensor
    learned: Tensor

    def __getitem__(self, kept: Tensor) -> RoundFailures:
        return RoundFailures(
            round=self.round, suite=self.suite[kept], chosen=self.chosen[kept], learned=self.learned[kept]
        )


def contents(suite: Suite) -> list[Key]:
    """What identifies a case in another suite: its seed, and a hash of its content."""
    return list(zip(suite.seed.tolist(), content_ids(suite.x).tolist(), strict=True))


def different(found: Sequence[RoundFailures]) -> list[RoundFailures]:
    """Each failure once, in the first round that found it; chosen or learned from if one of its copies was."""
    keys = [contents(part.suite) for part in found]
    chosen, learned = (_marked(keys, [getattr(part, name) for part in found]) for name in ("chosen", "learned"))
    once, seen = list[RoundFailures](), set[Key]()
    for part, names in zip(found, keys, strict=True):
        first = {name: row for row, name in reversed(list(enumerate(names))) if name not in seen}
        marked = replace(part, chosen=_among(names, chosen), learned=_among(names, learned))
        once.append(marked[torch.tensor(sorted(first.values()), dtype=torch.int64)])
        seen |= first.keys()
    return once


def _marked(keys: Sequence[Sequence[Key]], marks: Sequence[Tensor]) -> set[Key]:
    return {
        name
        for names, mark in zip(keys, marks, strict=True)
        for name, true in zip(names, mark.tolist(), strict=True)
        if true
    }


def _among(names: Sequence[Key], some: set[Key]) -> Tensor:
    return torch.tensor([name in some for name in names], dtype=torch.bool)


def gallery_of(
    found: Sequence[RoundFailures],
    bounds: tuple[float, float] | None,
    *,
    limit: int = LIMIT,
    max_characters: int = MAX_CHARACTERS,
) -> Gallery:
    """As many failures as fit: at most ``limit``, and ``max_characters`` of all their images together.

    Without bounds, the smallest and largest value of the failures and their seeds are used.
    """
    found = [part for part in found if len(part.suite)]
    total = sum(len(part.suite) for part in found)
    if not found:
        return Gallery()
    shape = tuple(found[0].suite.rows.shape)
    suite, rounds, learned = _interleaved(found, limit)
    if not is_picture(shape):
        return Gallery(
            total=total, shape=shape, failures=_failures(suite, rounds, learned, changes=largest_changes(suite))
        )
    small = _shrunk(suite)
    bounds = _bounds(small, bounds)
    factor = amplification(small, bounds)
    pictures = _draw(small, bounds, factor, max_characters)
    n = len(pictures)
    failures = _failures(suite[:n], rounds[:n], learned[:n], pictures=pictures)
    return Gallery(total=total, factor=factor, shape=shape, failures=failures)


def _interleaved(found: Sequence[RoundFailures], limit: int) -> tuple[Suite, Tensor, Tensor]:
    """The best of every round, then the second best, and so on; with their rounds, and whether they were learned."""
    ranks = torch.cat([torch.arange(len(part.suite)) for part in found])
    rounds = torch.cat([torch.full((len(part.suite),), part.round) for part in found])
    order = ranks.argsort(stable=True)[:limit]
    suite: Suite = Suite.concat([part.suite for part in found])[order]
    return suite, rounds[order], torch.cat([part.learned for part in found])[order]


def _failures(
    suite: Suite,
    rounds: Tensor,
    learned: Tensor,
    *,
    pictures: Sequence[tuple[str, ...]] = (),
    changes: Sequence[tuple[tuple[str, str, str], ...]] = (),
) -> tuple[Failure, ...]:
    moves = suite.columns.get("move", suite.method)
    numbers = [suite["naturalness"], suite["mass"], suite.distances("linf"), suite.distances("l2")]
    risks = torch.as_tensor(suite.columns.get("risk", torch.full((len(suite),), torch.nan))).tolist()
    rows = zip(
        rounds.tolist(), moves, suite.label.tolist(), suite.prediction.tolist(), suite.seed.tolist(), suite.seed_names,
        *(torch.as_tensor(column).tolist() for column in numbers), learned.tolist(),
        strict=True,
    )  # fmt: skip
    return tuple(
        Failure(
            round=number, move=str(move), label=label, prediction=prediction, seed=str(seed), file=file,
            naturalness=natural, mass=mass, linf=linf, l2=l2, learned=used,
            risk=None if math.isnan(risks[i]) else risks[i],
            pictures=pictures[i] if pictures else (), changes=changes[i] if changes else (),
        )
        for i, (number, move, label, prediction, seed, file, natural, mass, linf, l2, used) in enumerate(rows)
    )  # fmt: skip


# Pictures


def _shrunk(suite: Suite) -> Suite:
    """The same with images whose longer side has at most `MAX_SIDE` pixels."""
    height, width = suite.rows.shape[1:]
    if max(height, width) <= MAX_SIDE:
        return suite
    scale = MAX_SIDE / max(height, width)
    size = (max(1, round(scale * height)), max(1, round(scale * width)))

    def smaller(x: Tensor) -> LazyRows:
        return LazyRows([interpolate(x.float(), size=size, mode="area")])

    pool = SeedPool(smaller(suite.pool.rows.all()), suite.pool.label, suite.pool.ids, suite.pool.names)
    return replace(suite, rows=smaller(suite.x), pool=pool)


def _bounds(suite: Suite, bounds: tuple[float, float] | None) -> tuple[float, float]:
    """The given bounds; or 0 and 1 if all values lie there; or the smallest and largest value."""
    if bounds is not None:
        return bounds
    both = torch.cat([suite.x, suite.x0])
    low, high = float(both.min()), float(both.max())
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low, max(high, low + 1e-6))


def _draw(suite: Suite, bounds: tuple[float, float], factor: int, max_characters: int) -> list[tuple[str, ...]]:
    """Seed, case and difference of as many failures as fit, but at least one."""
    drawn, used = list[tuple[str, ...]](), 0
    for start in range(0, len(suite), BATCH):
        for pictures in pictures_of(suite[start : start + BATCH], bounds, factor):
            used += sum(map(len, pictures))
            if used > max_characters and drawn:
                return drawn
            drawn.append(pictures)
    return drawn
