"""Coverage: how much of a network's behaviour inputs have exercised, and which inputs exercise something new.

A criterion defines the items to cover and which of them each row covers; a `Coverage` stores what has been covered.
States are immutable: `update` returns a new one.

>>> from operant import Classifier, Samples
>>> from operant.networks import LeNet5
>>> model, train = Classifier(LeNet5()), Samples(torch.rand(50, 1, 28, 28))
>>> ranges = fit_ranges(model, train)
>>> state = Coverage.of(KMNC(ranges=ranges, k=1000))
>>> new, state = state.update(ranges.neurons(model, torch.rand(8, 1, 28, 28)))
>>> new.shape, 0 < state.coverage < 1
(torch.Size([8]), True)

References:
    | DeepXplore: Automated Whitebox Testing of Deep Learning Systems (Pei et al., 2017), for `NC`
    | https://arxiv.org/abs/1705.06640
    | DeepGauge: Multi-Granularity Testing Criteria for Deep Learning Systems (Ma et al., 2018), for `KMNC`, `NBC`,
    | `SNAC` and `TKNC`, https://arxiv.org/abs/1803.07519
    | TensorFuzz: Debugging Neural Networks with Coverage-Guided Fuzzing (Odena et al., 2018), for `NeighbourCoverage`
    | https://arxiv.org/abs/1807.10875
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from operant.data import Samples
from operant.measure.activations import Neurons, check_activations, find_neurons
from operant.model import Classifier
from operant.validation import check_at_least, check_from_to, check_nonnegative

ROWS = 1024  # rows per block: what they cover fits in the cache
ROWS_COMPARED = 512  # rows per block of pairwise distances
POINTS = 16384  # kept points per block of distances


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranges:
    """Minimum, maximum and standard deviation of each neuron's values over the training data.

    Criteria also count neurons that never vary (`constant`), because the number of neurons belongs to the model, not to
    the data; each criterion documents what such a neuron can cover.
    """

    neurons: Neurons
    low: Tensor = field(repr=False)
    high: Tensor = field(repr=False)
    std: Tensor = field(repr=False)  # divided by n, not n - 1

    def __post_init__(self) -> None:
        n, sizes = self.neurons.count, [tuple(v.shape) for v in (self.low, self.high, self.std)]
        if sizes != [(n,)] * 3:
            raise ValueError(f"low, high and std must hold one value for each of {n} neurons, got shapes {sizes}")

    @property
    def constant(self) -> Tensor:
        """True for each neuron that never varies."""
        return self.low == self.high


def fit_ranges(model: Classifier, train: Samples, *, layers: Sequence[str] | None = None) -> Ranges:
    """Learn each neuron's range from training data (default: neurons of every layer)."""
    neurons = find_neurons(model, train.x, layers=layers)
    return ranges_of(neurons.parts(model, train.x), neurons=neurons)


def ranges_of(parts: Iterable[Tensor], *, neurons: Neurons) -> Ranges:
    """As `fit_ranges`, from batches of activations ``(N, neurons)``, whose means and sums of squares are merged."""
    low, high = torch.tensor(torch.inf), torch.tensor(-torch.inf)
    n, mean, squares = 0, torch.tensor(0.0), torch.tensor(0.0)
    for a in parts:
        check_activations(a)
        low, high = torch.minimum(a.amin(0), low.to(a)), torch.maximum(a.amax(0), high.to(a))
        wide = a.double()
        centre = wide.mean(0)
        total, shift = n + len(a), centre - mean.to(centre)
        squares = squares.to(centre) + ((wide - centre) ** 2).sum(0) + shift**2 * (n * len(a) / total)
        n, mean = total, mean.to(centre) + shift * (len(a) / total)
    if n < 2 or not bool((low < high).any()):
        raise ValueError(
            f"activations must vary for ranges to be learned, got {n} rows in which no neuron does; give more inputs"
        )
    return Ranges(neurons=neurons, low=low, high=high, std=(squares / n).sqrt().to(low.dtype))


class Criterion(Protocol):
    """Defines which items each row covers."""

    @property
    def neurons(self) -> Neurons:
        """The neurons whose activations it takes."""

    @property
    def size(self) -> int:
        """Number of items to cover."""

    def hits(self, activations: Tensor) -> Tensor:
        """``(N, m)`` indices in [0, size) of the items each row covers, without repeats; -1 for none."""


@dataclass(frozen=True, kw_only=True)
class NC:
    """Neuron coverage: a neuron is covered once its value exceeds the threshold.

        covered = { n : ∃x  a_n(x) > threshold }                                    (1)

    DeepXplore and DeepHunter first scale each layer's output to [0, 1] row by row, and the usual thresholds assume
    that: read activations with ``find_neurons(..., scaled=True)``. A layer that is constant in a row then covers
    nothing. With unscaled neurons the threshold is in the layer's own units.
    """

    neurons: Neurons
    threshold: float = 0.75

    @property
    def size(self) -> int:
        return self.neurons.count

    def hits(self, activations: Tensor) -> Tensor:
        return _where(activations > self.threshold)  # (1)


@dataclass(frozen=True, kw_only=True)
class KMNC:
    """k-multisection neuron coverage: each neuron's training range is cut into k equal sections.

        section i of n = [t_i, t_{i+1}),   t_i = low_n + i (high_n − low_n) / k,   0 ≤ i < k         (1)

    Sections are half-open, so the largest training value lies in none; DeepGauge leaves this open. Values outside the
    range cover nothing, and the sections of a neuron that never varies cannot be covered. Values are compared with the
    t_i as rounded in the dtype of the activations.
    """

    ranges: Ranges
    k: int = 1000

    def __post_init__(self) -> None:
        check_from_to(1, 2**20, k=self.k)

    @property
    def neurons(self) -> Neurons:
        return self.ranges.neurons

    @property
    def size(self) -> int:
        return self.neurons.count * self.k

    def hits(self, activations: Tensor) -> Tensor:
        low, high = self.ranges.low, self.ranges.high
        a = activations.to(torch.promote_types(activations.dtype, low.dtype))
        step = (high - low) / self.k
        inside = (a >= low) & (a < low + step * self.k)
        section = ((a - low) / step.clamp_min(torch.finfo(step.dtype).tiny)).floor_().clamp_(0, self.k - 1)
        section -= (a < low + step * section).to(a.dtype)  # rounding may move the quotient past a t_i: compare, (1)
        section += (a >= low + step * (section + 1)).to(a.dtype)
        width = torch.finfo(step.dtype)
        coarse = (step > 0) & (step < 8 * (width.eps * torch.maximum(low.abs(), high.abs()) + width.tiny))
        if bool(coarse.any()):  # so narrow that rounding moves t_i past its neighbours: search for the section
            section[:, coarse] = self._search(a[:, coarse], low[coarse], step[coarse])
        first = self.k * torch.arange(len(low), device=a.device)
        return torch.where(inside, section.long() + first, -1)

    def _search(self, a: Tensor, low: Tensor, step: Tensor) -> Tensor:
        t = low[:, None] + step[:, None] * torch.arange(self.k + 1, device=a.device, dtype=step.dtype)
        return (torch.searchsorted(t.to(a.dtype), a.T.contiguous(), right=True).T - 1).to(a.dtype)


@dataclass(frozen=True, kw_only=True)
class NBC:
    """Neuron boundary coverage: values below or above the range of the training data.

        lower corner of n: a_n(x) < low_n − scale σ_n,   upper corner: a_n(x) > high_n + scale σ_n         (1)

    With ``strict=False`` a value on the boundary counts too, as in some tools. Then every row in which a ReLU is 0
    covers its lower corner, and a neuron that never varies covers both. With ``lower=False`` only upper corners count,
    which is `SNAC`.
    """

    ranges: Ranges
    scale: float = 0.0
    strict: bool = True
    lower: bool = True

    def __post_init__(self) -> None:
        check_nonnegative(scale=self.scale, advice="it counts standard deviations")

    @property
    def neurons(self) -> Neurons:
        return self.ranges.neurons

    @property
    def size(self) -> int:
        return self.neurons.count * (1 + self.lower)  # lower corners (if counted), then upper corners

    def hits(self, activations: Tensor) -> Tensor:
        slack = self.scale * self.ranges.std
        low, high = self.ranges.low - slack, self.ranges.high + slack
        below, above = activations < low, activations > high  # (1)
        if not self.strict:
            below, above = activations <= low, activations >= high
        upper = _where(above, start=self.size - self.neurons.count)
        return torch.cat([_where(below), upper], 1) if self.lower else upper


def SNAC(*, ranges: Ranges, scale: float = 0.0, strict: bool = True) -> NBC:
    """Strong neuron activation coverage: only the upper corners of `NBC`."""
    return NBC(ranges=ranges, scale=scale, strict=strict, lower=False)


@dataclass(frozen=True, kw_only=True)
class TKNC:
    """Top-k neuron coverage: a neuron is covered once it is among the k largest of its layer.

    Ties go to the first neuron. In a layer of k neurons or fewer, every row covers all of them.
    """

    neurons: Neurons
    k: int

    def __post_init__(self) -> None:
        check_at_least(1, k=self.k)

    @property
    def size(self) -> int:
        return self.neurons.count

    def hits(self, activations: Tensor) -> Tensor:
        found, start = [], 0
        for layer in activations.split(list(self.neurons.sizes), 1):
            found.append(start + layer.sort(dim=1, descending=True, stable=True).indices[:, : self.k])
            start += layer.shape[1]
        return torch.cat(found, 1)


def _where(covered: Tensor, *, start: int = 0) -> Tensor:
    """The indices of the columns that are true, -1 for the others."""
    return torch.where(covered, torch.arange(start, start + covered.shape[1], device=covered.device), -1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Coverage:
    """Which items of a criterion have been covered so far.

    ``covered`` can be saved, and merged (``|``) with that of another state. ``Coverage(criterion=..., covered=...)``
    restores the state.
    """

    criterion: Criterion
    covered: Tensor = field(repr=False)  # (criterion.size,)

    def __post_init__(self) -> None:
        n, given = self.criterion.size, self.covered
        if given.dtype != torch.bool or given.shape != (n,):
            raise ValueError(f"covered must be {n} booleans, got {given.dtype} {tuple(given.shape)}; use Coverage.of")

    @staticmethod
    def of(criterion: Criterion) -> "Coverage":
        """The initial state, in which nothing is covered."""
        return Coverage(criterion=criterion, covered=torch.zeros(criterion.size, dtype=torch.bool))

    @property
    def count(self) -> int:
        """Number of covered items."""
        return int(self.covered.sum())

    @property
    def coverage(self) -> float:
        """Share of all items that are covered."""
        return self.count / self.criterion.size

    def gain(self, activations: Tensor) -> Tensor:
        """Number of uncovered items that each row alone would cover."""
        self.criterion.neurons.check(activations)
        gains = [self._new(self.criterion.hits(part)).sum(1) for part in activations.split(ROWS)]
        return torch.cat(gains).to(activations.device)

    def update(self, activations: Tensor) -> "tuple[Tensor, Coverage]":
        """Number of items that each row covers first (after the state and the rows before it), and the new state."""
        self.criterion.neurons.check(activations)
        after = replace(self, covered=self.covered.clone())
        new = [after._cover(self.criterion.hits(part)) for part in activations.split(ROWS)]
        return torch.cat(new).to(activations.device), after

    def _new(self, hits: Tensor) -> Tensor:
        hits = hits.to(self.covered.device)
        return (hits >= 0) & ~self.covered[hits.clamp_min(0)]

    def _cover(self, hits: Tensor) -> Tensor:
        """Mark the items that these rows cover, and count each for the first row that covers it."""
        rows, columns = self._new(hits).nonzero(as_tuple=True)
        items, place = hits.to(self.covered.device)[rows, columns].unique(return_inverse=True)
        first = torch.full_like(items, len(hits)).scatter_reduce_(0, place, rows, "amin")
        self.covered[items] = True
        return torch.bincount(first, minlength=len(hits))


@dataclass(frozen=True, kw_only=True, eq=False)
class NeighbourCoverage:
    """TensorFuzz's coverage: a row is new if no point kept so far lies within the threshold of it; new rows are kept.

        new ⇔ min_{k kept} ‖z − z_k‖₂ > threshold                                  (1)

    Rows can be any points; TensorFuzz uses logits (``model.batched_logits``). Distances are exact, where TensorFuzz
    searches approximately; and it compares its threshold with the squared distance (its 1.0 is the same).
    """

    threshold: float = 1.0  # in the units of the points
    kept: Tensor | None = field(default=None, repr=False)  # (M, d); None in the initial state

    def __post_init__(self) -> None:
        check_nonnegative(threshold=self.threshold, advice="it is a distance")

    @property
    def count(self) -> int:
        """Number of points kept."""
        return 0 if self.kept is None else len(self.kept)

    @property
    def coverage(self) -> float:
        """Number of points kept; not a share, because there is no total."""
        return float(self.count)

    def gain(self, points: Tensor) -> Tensor:
        """Distance of each row to the nearest point kept; infinite if there is none."""
        self._check(points)
        nearest = points.new_full((len(points),), torch.inf)
        if self.kept is not None and len(self.kept) and len(points):
            for kept in self.kept.to(points.device).split(POINTS):
                far = [_distances(part, kept).amin(1) for part in points.split(ROWS_COMPARED)]
                nearest = torch.minimum(nearest, torch.cat(far))
        return nearest

    def update(self, points: Tensor) -> "tuple[Tensor, NeighbourCoverage]":
        """1 for each row that is new after the state and the rows before it, else 0; and the new state."""
        self._check(points)
        state, new = self, []
        for part in points.split(ROWS_COMPARED):
            far = state.gain(part) > self.threshold  # (1), against the points kept before this part
            rows = far.nonzero().flatten()
            chosen = rows[_first_comers(_distances(part[rows], part[rows]) <= self.threshold)]
            new.append(torch.zeros_like(far, dtype=torch.long).index_fill_(0, chosen, 1))
            state = replace(state, kept=part[chosen] if state.kept is None else torch.cat([state.kept, part[chosen]]))
        return torch.cat(new), state

    def _check(self, points: Tensor) -> None:
        check_activations(points)
        if self.kept is not None and points.shape[1] != self.kept.shape[1]:
            raise ValueError(f"points must have {self.kept.shape[1]} values like those kept, got {points.shape[1]}")


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances ``(len(a), len(b))`` from differences, so that equal rows have distance 0."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def _first_comers(near: Tensor) -> Tensor:
    """Mask of the rows that a greedy pass takes: each row unless it is near one taken before.

    Solved in rounds: a row with no undecided row near and before it is taken, which rejects the rows near and after it.
    """
    near = near.tril(-1)
    undecided, taken = near.new_ones(len(near)), near.new_zeros(len(near))
    while bool(undecided.any()):
        now = undecided & ~(near & undecided).any(1)
        taken |= now
        undecided = undecided & ~now & ~(near & now).any(1)
    return taken
