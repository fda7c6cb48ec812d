"""Blocks of a proof: a few fresh inputs, of which one is drawn to be labelled."""

import hashlib
import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from operant.assess.betting import Array, Integers, draw_weights
from operant.assess.evidence import SeenBlock
from operant.assess.scored import ScoredModel
from operant.rng import shuffled, spawn
from operant.validation import check_above_to, check_from_below, check_nonnegative

MAX_BLOCK = 25  # inputs per block; more gain nothing
MIN_BLOCK = 4  # with fewer inputs, guidance is not worth its noise


@dataclass(frozen=True, eq=False, kw_only=True)
class BlockPool:
    """The inputs that a proof may draw from, in the order in which they come, one input per group.

    Attributes:
        ids: of all inputs.
        groups: number of each input's group.
        order: positions of the inputs that blocks are made of: one of each group.
        sizes: of their groups, as shares of the largest possible one.
    """

    ids: tuple[Hashable, ...] = field(repr=False)
    groups: Integers = field(repr=False)
    order: Integers = field(repr=False)
    sizes: Array = field(repr=False)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def digest(self) -> str:
        """Equal for the same inputs in the same order."""
        content = json.dumps([list(map(str, self.ids)), self.order.tolist(), self.sizes.tolist()])
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()

    def held(self, places: int) -> Integers:
        """Positions of all inputs of the first groups: of those in blocks and of all others in their groups."""
        return np.flatnonzero(np.isin(self.groups, self.groups[self.order[:places]]))


def block_pool(
    ids: Sequence[Hashable],
    *,
    groups: Sequence[Hashable] | None = None,
    max_group_size: int | None = None,
    seed: int,
) -> BlockPool:
    """The pool of a proof, in a random order that is fixed before the first label.

    Without groups, the inputs must be independent draws from the field. With groups (scenes, sessions, devices), the
    groups must be, and each must be complete: one random input of each is used, and counts as much as its group has
    inputs, so that the bound is on the share of all uses that fail. That needs a limit on the size of any group of the
    field, known before the data: `max_group_size`. The closer to the typical size, the fewer labels.

    Args:
        ids: one per input and use, without repetition: of equal inputs each use has its own.
        groups: label of each input's group; every input is its own group if None.
        max_group_size: largest possible number of inputs in a group; needed with groups.
        seed: of the order.
    """
    if len(set(ids)) < len(ids):
        raise ValueError(f"ids must differ, got {len(ids) - len(set(ids))} repeated ones; add the occurrence to the id")
    if groups is None:
        if max_group_size not in (None, 1):
            raise ValueError(f"max_group_size is for groups, got {max_group_size} without any; give groups too")
        groups, max_group_size = range(len(ids)), 1
    if len(groups) != len(ids):
        raise ValueError(f"groups must be one per input, got {len(groups)} for {len(ids)} inputs")
    numbers = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    of = np.array([numbers[group] for group in groups], dtype=np.int64)
    counts = np.bincount(of, minlength=len(numbers))
    largest = int(counts.max(initial=0))
    if max_group_size is None or largest > max_group_size:
        raise ValueError(
            f"max_group_size must be at least the size of the largest group, {largest}, got {max_group_size}; give the "
            "largest size that a group of the field can have, or split groups into smaller independent ones"
        )
    order = shuffled(len(ids), spawn(seed, "proof", "order")).numpy()
    _, first = np.unique(of[order], return_index=True)
    order = order[np.sort(first)]  # the first of each group: a random input; larger groups come earlier, so:
    order = order[shuffled(len(order), spawn(seed, "proof", "groups")).numpy()]
    return BlockPool(ids=tuple(ids), groups=of, order=order, sizes=counts[of[order]] / max_group_size)


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some fresh inputs and the one that was drawn from them; with its label, it serves every later model.

    Attributes:
        start, size: the inputs are these places of the pool's order.
        drawn: position of the drawn input in the pool.
        weight: w: the share by size over the chance with which it was really drawn; 1 unless the draw was active.
        active: eps, share of the draw that followed the risk.
        batch: number of the batch in which the label was asked for.
        label: the class; None until it is known.
    """

    start: int
    size: int
    drawn: int
    weight: float
    active: float
    batch: int
    label: int | None = None

    def __post_init__(self) -> None:
        check_nonnegative(start=self.start, drawn=self.drawn, batch=self.batch)
        check_from_below(0, 1, active=self.active)
        check_above_to(0, 1 / (1 - self.active) * (1 + 1e-9), weight=self.weight)


def block_size(inputs: int, labels: int) -> int:
    """Inputs per block if these many are left for so many labels: 4 to 25, or 1 without guidance.

    >>> block_size(2000, 100), block_size(2000, 400), block_size(2000, 800)
    (20, 5, 1)
    """
    size = min(MAX_BLOCK, inputs // max(labels, 1))
    return size if size >= MIN_BLOCK else 1


def draw_block(
    pool: BlockPool, *, start: int, size: int, batch: int, active: float, uncertainty: Array, generator: torch.Generator
) -> Block:
    """The next block with its drawn input.

        chance_i = size_i / w_i / sum of sizes        (1)

    Args:
        pool: source of the inputs.
        start, size: places in the pool's order.
        batch: number of the batch.
        active: eps, fixed before the block.
        uncertainty: omega of every input of the pool, `betting.spread`.
        generator: of the draw.
    """
    inputs, sizes = pool.order[start : start + size], pool.sizes[start : start + size]
    weights = draw_weights(uncertainty[inputs], sizes, active)
    chances = sizes / weights / sizes.sum()  # (1)
    u = float(torch.rand((), dtype=torch.float64, generator=generator))
    place = min(int(np.searchsorted(chances.cumsum() / chances.sum(), u, side="right")), size - 1)
    weight = float(weights[place])
    return Block(start=start, size=size, drawn=int(inputs[place]), weight=weight, active=active, batch=batch)


def see(block: Block, pool: BlockPool, model: ScoredModel, bins: Integers) -> SeenBlock:
    """A labelled block as one model sees it."""
    places = slice(block.start, block.start + block.size)
    inputs = pool.order[places]
    if block.label is None or block.drawn not in inputs:
        raise ValueError(f"the block at {block.start} must hold a drawn input of this pool, with its label")
    return SeenBlock(
        bins=bins[inputs],
        sizes=pool.sizes[places],
        drawn=np.flatnonzero(inputs == block.drawn)[0],
        weight=np.asarray(block.weight),
        active=block.active,
        failed=np.asarray(float(model.predictions[block.drawn] != block.label)),
    )
