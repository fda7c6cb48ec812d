"""How much of a network's behaviour the inputs so far have shown, and which inputs showed something new.

A criterion says what there is to cover and what each row covers; a `Coverage` remembers what has been covered. States
are values: `update` gives a new one and leaves the old as it was.

>>> from operant import Classifier, Samples
>>> from operant.networks import LeNet5
>>> model, train = Classifier(LeNet5()), Samples(torch.rand(50, 1, 28, 28))
>>> ranges = fit_ranges(model, train)
>>> state = Coverage.of(KMNC(ranges=ranges, k=1000))
>>> new, state = state.update(ranges.neurons(model, torch.rand(8, 1, 28, 28)))
>>> new.shape, 0 < state.coverage < 1
(torch.Size([8]), True)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from operant.data import Samples
from operant.measure.activations import Neurons, check_activations, find_neurons
from operant.model import Classifier

ROWS = 1024  # rows handled at once: what they cover fits in the cache
ROWS_COMPARED = 512  # rows compared with each other at once
POINTS = 16384  # kept points compared with at once


# What is normal, learned from training data


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranges:
    """The smallest, largest and standard deviation of each neuron's values over the training data.

    A neuron that never varied has a range of zero width. Criteria keep counting it (the number of neurons belongs to
    the model, not to the data); each says what it can cover. `constant` tells which they are.
    """

    neurons: Neurons
    low: Tensor = field(repr=False)
    high: Tensor = field(repr=False)
    std: Tensor = field(repr=False)  # of the rows given: divided by their number

    def __post_init__(self) -> None:
        for name in ("low", "high", "std"):
            if getattr(self, name).shape != (self.neurons.count,):
                raise ValueError(
                    f"{name} must hold one value for each of {self.neurons.count} neurons, got shape "
                    f"{tuple(getattr(self, name).shape)}"
                )

    @property
    def constant(self) -> Tensor:
        """True for each neuron that never varied."""
        return self.low == self.high


def fit_ranges(model: Classifier, train: Samples, *, layers: Sequence[str] | None = None) -> Ranges:
    """Learn each neuron's range from training data; of every layer unless some are named."""
    neurons = find_neurons(model, train.x, layers=layers)
    return _ranges(neurons.parts(model, train.x), neurons)


def ranges_of(activations: Tensor, *, neurons: Neurons) -> Ranges:
    """The same from activations ``(N, neurons)`` that are already at hand."""
    neurons.check(activations)
    return _ranges(activations.split(ROWS), neurons)


def _ranges(parts: Iterable[Tensor], neurons: Neurons) -> Ranges:
    """Smallest, largest, and the standard deviation by merging the batches' means and sums of squares."""
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


# What there is to cover


class Criterion(Protocol):
    """Anything that says what each row covers."""

    @property
    def neurons(self) -> Neurons:
        """What to read activations with."""
        ...

    @property
    def size(self) -> int:
        """How many things there are to cover."""
        ...

    def hits(self, activations: Tensor) -> Tensor:
        """``(N, m)`` numbers in [0, size) of the things each row covers, none twice in a row; -1 for nothing."""
        ...


@dataclass(frozen=True, kw_only=True)
class NC:
    """Neuron coverage: a neuron is covered once its value exceeds the threshold.

        covered = { n : ∃x  a_n(x) > threshold }                                    (1)

    DeepXplore and DeepHunter scale each layer's output to [0, 1] row by row first, which is what the usual thresholds
    are meant for: read activations with ``find_neurons(..., scaled=True)``. A layer that is constant over a row covers
    nothing then. With plain neurons the threshold is in the layer's own units.

    References:
        | DeepXplore: Automated Whitebox Testing of Deep Learning Systems (Pei et al., 2017)
        | https://arxiv.org/abs/1705.06640
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
    """k-multisection neuron coverage: each neuron's range from training is cut into k equal sections.

        section i of n = [t_i, t_{i+1}),   t_i = low_n + i (high_n − low_n) / k,   0 ≤ i < k         (1)

    Sections are half-open, so that the largest training value itself lies in none; DeepGauge does not say. Values
    outside the range cover nothing, and a neuron that never varied has sections that nothing can cover. The t_i are
    rounded as they are computed in the type of the activations, and a value is compared with exactly those.

    References:
        | DeepGauge: Multi-Granularity Testing Criteria for Deep Learning Systems (Ma et al., 2018)
        | https://arxiv.org/abs/1803.07519
    """

    ranges: Ranges
    k: int = 1000

    def __post_init__(self) -> None:
        if not 1 <= self.k <= 2**20:
            raise ValueError(f"k must be from 1 to {2**20} sections, got {self.k}")

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
        section -= (a < low + step * section).to(a.dtype)  # the quotient may be rounded past a t_i: compare, (1)
        section += (a >= low + step * (section + 1)).to(a.dtype)
        width = torch.finfo(step.dtype)
        coarse = (step > 0) & (step < 8 * (width.eps * torch.maximum(low.abs(), high.abs()) + width.tiny))
        if bool(coarse.any()):  # so narrow that rounding moves t_i past its neighbours: look the section up
            section[:, coarse] = self._looked_up(a[:, coarse], low[coarse], step[coarse])
        first = self.k * torch.arange(len(low), device=a.device)
        return torch.where(inside, section.long() + first, -1)

    def _looked_up(self, a: Tensor, low: Tensor, step: Tensor) -> Tensor:
        t = low[:, None] + step[:, None] * torch.arange(self.k + 1, device=a.device, dtype=step.dtype)
        return (torch.searchsorted(t.to(a.dtype), a.T.contiguous(), right=True).T - 1).to(a.dtype)


@dataclass(frozen=True, kw_only=True)
class NBC:
    """Neuron boundary coverage: values below or above everything seen in training.

        lower corner of n: a_n(x) < low_n − scale σ_n,   upper corner: a_n(x) > high_n + scale σ_n         (1)

    With ``strict=False`` a value on the boundary counts too, as in some tools. Beware: a ReLU that rests at 0 in
    training then covers its lower corner with every row where it rests, and a neuron that never varied covers both.
    With ``lower=False`` only upper corners count, which is `SNAC`.

    References:
        | DeepGauge: Multi-Granularity Testing Criteria for Deep Learning Systems (Ma et al., 2018)
        | https://arxiv.org/abs/1803.07519
    """

    ranges: Ranges
    scale: float = 0.0
    strict: bool = True
    lower: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.scale < float("inf"):
            raise ValueError(f"scale must be a number of standard deviations, 0 or more, got {self.scale}")

    @property
    def neurons(self) -> Neurons:
        return self.ranges.neurons

    @property
    def size(self) -> int:
        return self.neurons.count * (1 + self.lower)  # lower corners, if they count, then upper corners

    def hits(self, activations: Tensor) -> Tensor:
        slack = self.scale * self.ranges.std
        low, high = self.ranges.low - slack, self.ranges.high + slack
        below, above = activations < low, activations > high  # (1)
        if not self.strict:
            below, above = activations <= low, activations >= high
        upper = _where(above, start=self.size - self.neurons.count)
        return torch.cat([_where(below), upper], 1) if self.lower else upper


def SNAC(*, ranges: Ranges, scale: float = 0.0, strict: bool = True) -> NBC:
    """Strong neuron activation coverage: the upper corners of `NBC` alone.

    References:
        | DeepGauge: Multi-Granularity Testing Criteria for Deep Learning Systems (Ma et al., 2018)
        | https://arxiv.org/abs/1803.07519
    """
    return NBC(ranges=ranges, scale=scale, strict=strict, lower=False)


@dataclass(frozen=True, kw_only=True)
class TKNC:
    """Top-k neuron coverage: a neuron is covered once it is among the k largest of its layer.

    Of equal values the neuron that comes first wins. In a layer of k neurons or fewer every row covers all.

    References:
        | DeepGauge: Multi-Granularity Testing Criteria for Deep Learning Systems (Ma et al., 2018)
        | https://arxiv.org/abs/1803.07519
    """

    neurons: Neurons
    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be at least 1, got {self.k}")

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
    """The numbers of the columns that are true, -1 for the others."""
    return torch.where(covered, torch.arange(start, start + covered.shape[1], device=covered.device), -1)


# What has been covered


@dataclass(frozen=True, kw_only=True, eq=False)
class Coverage:
    """What a criterion has seen so far: a row of truths, which can be saved, and joined (``|``) with another's.

    ``Coverage(criterion=..., covered=...)`` makes the state again.
    """

    criterion: Criterion
    covered: Tensor = field(repr=False)  # (criterion.size,)

    def __post_init__(self) -> None:
        if self.covered.dtype != torch.bool or self.covered.shape != (self.criterion.size,):
            raise ValueError(
                f"covered must be {self.criterion.size} truths, got {self.covered.dtype} of shape "
                f"{tuple(self.covered.shape)}; give what a state of the same criterion held, or use Coverage.of"
            )

    @staticmethod
    def of(criterion: Criterion) -> Coverage:
        """The state before any row."""
        return Coverage(criterion=criterion, covered=torch.zeros(criterion.size, dtype=torch.bool))

    @property
    def count(self) -> int:
        """How many things are covered."""
        return int(self.covered.sum())

    @property
    def coverage(self) -> float:
        """The share of all there is to cover."""
        return self.count / self.criterion.size

    def gain(self, activations: Tensor) -> Tensor:
        """How many things each row would cover that are not covered yet, each row for itself."""
        self.criterion.neurons.check(activations)
        gains = [self._new(self.criterion.hits(part)).sum(1) for part in activations.split(ROWS)]
        return torch.cat(gains).to(activations.device)

    def update(self, activations: Tensor) -> tuple[Tensor, Coverage]:
        """How many things each row covers that neither the state nor the rows before it did; and the state after.

        A row adds coverage where this is above 0.
        """
        self.criterion.neurons.check(activations)
        after = replace(self, covered=self.covered.clone())
        new = [after._cover(self.criterion.hits(part)) for part in activations.split(ROWS)]
        return torch.cat(new).to(activations.device), after

    def _new(self, hits: Tensor) -> Tensor:
        hits = hits.to(self.covered.device)
        return (hits >= 0) & ~self.covered[hits.clamp_min(0)]

    def _cover(self, hits: Tensor) -> Tensor:
        """Mark what these rows cover, and count for each thing the first row that covers it."""
        rows, columns = self._new(hits).nonzero(as_tuple=True)
        things, place = hits.to(self.covered.device)[rows, columns].unique(return_inverse=True)
        first = torch.full_like(things, len(hits)).scatter_reduce_(0, place, rows, "amin")
        self.covered[things] = True
        return torch.bincount(first, minlength=len(hits))


@dataclass(frozen=True, kw_only=True, eq=False)
class NeighbourCoverage:
    """TensorFuzz's coverage: a row is new if nothing kept so far lies within the threshold of it; new rows are kept.

        new ⇔ min_{k kept} ‖z − z_k‖₂ > threshold                                  (1)

    Rows are points of any kind; TensorFuzz takes logits (``model.batched_logits``). Distances are exact, where
    TensorFuzz searches approximately; and its threshold is compared with the squared distance (its 1.0 is the same).

    Args:
        threshold: in the units of the points.
        kept: ``(M, d)``, or None before any row.

    References:
        | TensorFuzz: Debugging Neural Networks with Coverage-Guided Fuzzing (Odena et al., 2018)
        | https://arxiv.org/abs/1807.10875
    """

    threshold: float = 1.0
    kept: Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < float("inf"):
            raise ValueError(f"threshold must be a distance, 0 or more, got {self.threshold}")

    @property
    def count(self) -> int:
        """How many points are kept."""
        return 0 if self.kept is None else len(self.kept)

    @property
    def coverage(self) -> float:
        """How many points are kept: a number, not a share, for there is no whole."""
        return float(self.count)

    def gain(self, points: Tensor) -> Tensor:
        """How far each row is from the nearest point kept; infinite while there is none."""
        self._check(points)
        nearest = points.new_full((len(points),), torch.inf)
        if self.kept is not None and len(self.kept) and len(points):
            for kept in self.kept.to(points.device).split(POINTS):
                far = [_distances(part, kept).amin(1) for part in points.split(ROWS_COMPARED)]
                nearest = torch.minimum(nearest, torch.cat(far))
        return nearest

    def update(self, points: Tensor) -> tuple[Tensor, NeighbourCoverage]:
        """1 for each row that is new to the state and to the rows before it, else 0; and the state after."""
        self._check(points)
        state, new = self, []
        for part in points.split(ROWS_COMPARED):
            new.append((state.gain(part) > self.threshold).long())  # (1), against what was kept before this part
            rows = new[-1].nonzero().flatten()
            chosen = rows[_first_comers(_distances(part[rows], part[rows]) <= self.threshold)]
            new[-1] = torch.zeros_like(new[-1]).index_fill_(0, chosen, 1)
            state = replace(state, kept=part[chosen] if state.kept is None else torch.cat([state.kept, part[chosen]]))
        return torch.cat(new), state

    def _check(self, points: Tensor) -> None:
        check_activations(points)
        if self.kept is not None and points.shape[1] != self.kept.shape[1]:
            raise ValueError(f"points must have {self.kept.shape[1]} values like those kept, got {points.shape[1]}")


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances ``(len(a), len(b))`` from differences, so that equal rows are at 0."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def _first_comers(near: Tensor) -> Tensor:
    """The rows that taking each row unless one taken before is near would take, as truths.

    A row with no undecided one near before it is taken; it turns away those near after it; and so on.
    """
    near = near.tril(-1)
    undecided, taken = near.new_ones(len(near)), near.new_zeros(len(near))
    while bool(undecided.any()):
        now = undecided & ~(near & undecided).any(1)
        taken |= now
        undecided = undecided & ~now & ~(near & now).any(1)
    return taken
