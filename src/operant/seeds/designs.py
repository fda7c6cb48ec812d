"""Sampling designs: which inputs to draw, with the probabilities that estimates need.

Every design draws from a finite pool with weights q, which sum to 1, and returns a `Draw`. From it, and from whether
each drawn input i failed (y = 1 or 0), the probability of misclassification λ = Σ p_i y_i over the whole pool can be
estimated without bias, p being the profile's mass and d the `Draw.probabilities`:

    "pps"            λ̂ = (1/n) Σ p y / d                                            Hansen-Hurwitz        (1)
    "poisson"        λ̂ = Σ p y / d                                                  Horvitz-Thompson      (2)
    "rhc"            λ̂ = Σ p y / d                                                  Rao-Hartley-Cochran   (3)
    "sequential"     λ̂ = (1/n) Σ_k z_k,   z_k = Σ_{j<k} p_j y_j + p_k y_k / d_k     Des Raj               (4)
                     λ̂ = (1/n) Σ_k N p_k y_k (1 + (N - n)/(N - k) (1/((N - k + 1) d_k) - 1))     LURE     (5)
    "stratified"     λ̂ = Σ p y / d                                                  Horvitz-Thompson      (6)
    "top"            no estimate: inputs outside the top had no chance to be drawn

>>> from operant import Samples, spawn
>>> pool = Samples(torch.rand(100, 4, generator=spawn(0)))
>>> seeds = draw(pool, torch.arange(100.0), 10, design="sequential", generator=spawn(1))
>>> len(seeds), seeds.probabilities.shape
(10, torch.Size([10]))
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import index
from typing import Any, NamedTuple

import torch
from torch import Tensor

from operant.data import Samples
from operant.rng import shuffled
from operant.validation import check_at_least, check_not_empty, check_one_of

MIN_PER_STRATUM = 2  # drawn inputs, so that a stratum's variance can be estimated
WITHOUT_REPLACEMENT = ("poisson", "rhc", "sequential", "stratified", "top")


@dataclass(frozen=True, kw_only=True, eq=False)
class Groups:
    """The random groups of a Rao-Hartley-Cochran draw, in the order of its rows.

    Attributes:
        sums: Q_g, the weight of each group; a row that is alone in its group has probability 1.
        sizes: N_g, the number of rows of positive weight in each.
    """

    sums: Tensor
    sizes: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Strata:
    """The strata of a stratified draw, from the lowest score to the highest.

    Attributes:
        of: the stratum of each drawn row, from 0.
        sizes: N_h, the number of rows of positive mass in each stratum.
        drawn: n_h, the number of rows drawn from each.
        mass: P_h, the profile's mass of each stratum; they sum to 1.
    """

    of: Tensor
    sizes: Tensor
    drawn: Tensor
    mass: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Draw:
    """Drawn rows of a pool, with everything that estimates need.

    Attributes:
        indices: the drawn rows of the pool; for ``"sequential"`` in the order of drawing. ``"pps"`` (with replacement)
            can draw a row several times; ``"poisson"`` can draw none.
        probabilities: the chance of each drawn row. ``"pps"``, ``"rhc"`` and ``"sequential"``: at its own draw, among
            all rows, the rows of its group, or the rows not yet drawn. ``"poisson"`` and ``"stratified"``: of being in
            the sample at all. ``"top"``: None.
        mass: p, the profile's mass of each drawn row (default: 1 / pool size).
        ids: of the drawn inputs; `samples` uses them to recognise the pool.
        n: the requested number of rows; for ``"poisson"``, the mean number.
        pool_size: N.
        unreachable: the mass of the rows that could not have been drawn. No estimate covers failures among them.
        groups: only for ``"rhc"``.
        strata: only for ``"stratified"``.
    """

    indices: Tensor = field(repr=False)
    probabilities: Tensor | None = field(repr=False)
    mass: Tensor = field(repr=False)
    ids: Tensor = field(repr=False)
    design: str
    n: int
    pool_size: int
    unreachable: float
    groups: Groups | None = field(default=None, repr=False)
    strata: Strata | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def chances(self) -> Tensor:
        """The probabilities; raises for a design that has none."""
        if self.probabilities is None:
            others = "draw by one of " + ", ".join(name for name in DESIGNS if name != self.design)
            raise ValueError(f'"{self.design}" only takes the largest weights, so no estimate can be made; {others}')
        return self.probabilities

    def samples(self, pool: Samples) -> Samples:
        """The drawn rows of this pool; raises if they were drawn from another."""
        if len(pool) != self.pool_size or not torch.equal(pool.ids.cpu()[self.indices], self.ids):
            pools = f"another pool, of {self.pool_size} inputs, and not from this one of {len(pool)}"
            raise ValueError(f"this draw was made from {pools}; give the same inputs in the same order")
        return pool[self.indices]


def draw(
    pool: Samples,
    weights: Tensor,
    n: int,
    *,
    design: str,
    generator: torch.Generator,
    mass: Tensor | None = None,
    strata: int = 4,
) -> Draw:
    """Draw n rows of a pool; rows of larger weight are more likely.

    - ``"pps"``: n independent draws with replacement; a row's chance is its weight. With the profile's mass as weights,
      this is plain operational testing: drawn inputs fail independently with probability λ.
    - ``"poisson"``: one coin per row, n rows on average; see `inclusion_probabilities`.
    - ``"rhc"``: the rows are split into n random groups of equal size, and one is drawn from each.
    - ``"sequential"``: one after another among the rows that are left, the order of LURE and of DeepEST. DeepEST draws
      the first row uniformly and mixes with the uniform distribution at each draw; here `operant.seeds.combine` mixes
      once, beforehand.
    - ``"stratified"``: rows are sorted by weight / mass, the risk that the weights imply, and cut where the mean of
      mass and weight reaches equal parts. Half of the n rows are allocated to the strata in proportion to mass, half to
      weight. That is Neyman's allocation if weights are mass times the standard deviation of failing (√risk where risk
      is a small probability). Within a stratum a row's chance is proportional to its mass (systematic sampling in
      random order), so k_h / n_h estimates the stratum's rate, unless single rows hold so much mass that they are
      certain to be drawn.
    - ``"top"``: the n largest weights, ties in random order; HDA's way and a baseline, not suitable for estimates.

    Memory is linear in the pool's size; no design loops over rows.

    Args:
        weights: one per input, 0 or more, on any scale; `operant.seeds.combine` computes them from mass and risk. Rows
            of weight 0 are never drawn (but ``"stratified"`` draws wherever there is mass).
        mass: the profile's mass per input, on any scale; estimates refer to it (default: equal, which is right for a
            pool that is itself a sample from the field).
        strata: maximum number for ``"stratified"``; rows of equal score stay together.

    References:
        | On the Theory of Sampling from Finite Populations (Hansen and Hurwitz, 1943)
        | https://doi.org/10.1214/aoms/1177731356
        | A Generalization of Sampling Without Replacement from a Finite Universe (Horvitz and Thompson, 1952)
        | https://doi.org/10.1080/01621459.1952.10483446
        | On a Simple Procedure of Unequal Probability Sampling without Replacement (Rao, Hartley and Cochran, 1962)
        | Journal of the Royal Statistical Society B 24, 482-491
        | Some Estimators in Sampling with Varying Probabilities without Replacement (Des Raj, 1956)
        | Journal of the American Statistical Association 51, 269-284
        | On Statistical Bias In Active Learning: How and When to Fix It (Farquhar et al., 2021)
        | https://arxiv.org/abs/2101.11665
        | Operation is the Hardest Teacher: Estimating DNN Accuracy Looking for Mispredictions (Guerriero et al., 2021)
        | https://arxiv.org/abs/2102.04287
        | Hierarchical Distribution-Aware Testing of Deep Learning (Huang et al., 2022)
        | https://arxiv.org/abs/2205.08589
    """
    check_one_of(DESIGNS, design=design)
    size = len(pool)
    q = normalised(weights, size, "weights")
    p = torch.full_like(q, 1 / size) if mass is None else normalised(mass, size, "mass")
    n = _checked_number(n, design, int(((p if design == "stratified" else q) > 0).sum()))
    drawn = DESIGNS[design](_Task(q, p, n, strata, generator))
    return Draw(
        indices=drawn.rows,
        probabilities=drawn.chances,
        mass=p[drawn.rows],
        ids=pool.ids.cpu()[drawn.rows],
        design=design,
        n=n,
        pool_size=size,
        unreachable=float(p[~drawn.reachable].sum()),
        groups=drawn.groups,
        strata=drawn.strata,
    )


def inclusion_probabilities(weights: Tensor, n: int) -> Tensor:
    """Inclusion chances that are proportional to the weights and sum to n; rows that would exceed 1 get 1.

        π_i = min(1, c q_i),  c such that Σ π_i = n        (1)

    >>> inclusion_probabilities(torch.tensor([6.0, 1.0, 1.0, 2.0]), 2).tolist()
    [1.0, 0.25, 0.25, 0.5]
    """
    q = normalised(weights, len(weights), "weights")
    _checked_number(n, "poisson", int((q > 0).sum()))
    certain = torch.zeros_like(q, dtype=torch.bool)
    while True:  # each pass makes more rows certain, so this ends after a few
        rest = q.masked_fill(certain, 0).sum().clamp_min(torch.finfo(q.dtype).tiny)
        chances = torch.where(certain, 1, (n - certain.sum()) * (q / rest))  # (1)
        if not bool((chances > 1).any()):
            return chances
        certain |= chances >= 1


class _Task(NamedTuple):
    """The input of a design."""

    q: Tensor
    p: Tensor
    n: int
    strata: int
    generator: torch.Generator


class _Drawn(NamedTuple):
    """The output of a design."""

    rows: Tensor
    chances: Tensor | None
    reachable: Tensor
    groups: Groups | None = None
    strata: Strata | None = None


def _pps(task: _Task) -> _Drawn:
    sums = task.q.cumsum(0)
    rows = torch.searchsorted(sums / sums[-1], _uniform(task.n, task.generator), right=True)
    return _Drawn(rows, task.q[rows], task.q > 0)


def _poisson(task: _Task) -> _Drawn:
    chances = inclusion_probabilities(task.q, task.n)
    rows = (_uniform(len(chances), task.generator) < chances).nonzero().flatten()
    return _Drawn(rows, chances[rows], task.q > 0)


def _rhc(task: _Task) -> _Drawn:
    """Groups are the columns of a table that the shuffled rows fill line by line."""
    n = task.n
    rows = task.q.nonzero().flatten()
    rows = rows[shuffled(len(rows), task.generator)]
    table = task.q.new_zeros(-(-len(rows) // n) * n)
    table[: len(rows)] = task.q[rows]
    table = table.view(-1, n)
    first = _race(table, task.generator).argmin(0)  # a row wins its group with probability q / Q
    own = table[first, torch.arange(n)]
    sums = table.sum(0)
    groups = Groups(sums=sums, sizes=(table > 0).sum(0))
    return _Drawn(rows[first * n + torch.arange(n)], own / sums, task.q > 0, groups=groups)


def _sequential(task: _Task) -> _Drawn:
    """The n smallest of exponential times are a draw without replacement, in its order (Efraimidis, 2006)."""
    possible = task.q.nonzero().flatten()
    order = _race(task.q[possible], task.generator).topk(task.n, largest=False, sorted=True).indices
    rows = possible[order]
    others = task.q.clone().index_fill_(0, rows, 0).sum()  # sum from the end: differences lose digits
    left = others + task.q[rows].flip(0).cumsum(0).flip(0)
    return _Drawn(rows, task.q[rows] / left, task.q > 0)


def _stratified(task: _Task) -> _Drawn:
    possible = task.p.nonzero().flatten()
    p, q = task.p[possible], task.q[possible]
    shares = (p + q / q.sum().clamp_min(torch.finfo(q.dtype).tiny)) / 2
    stratum = _cut((q.log() - p.log()).round(decimals=9), shares, task.strata)  # treat equal up to rounding as equal
    sizes = stratum.bincount()
    counts = _allocated(torch.zeros(len(sizes), dtype=p.dtype).index_add_(0, stratum, shares), sizes, task.n)
    parts, chances = [], []
    for h, count in enumerate(counts.tolist()):
        members = (stratum == h).nonzero().flatten()
        members = members[shuffled(len(members), task.generator)]
        pi = inclusion_probabilities(p[members], count)
        taken = _systematic(pi, task.generator)
        parts.append(members[taken])
        chances.append(pi[taken])
    rows = torch.cat(parts)
    mass = torch.zeros(len(sizes), dtype=p.dtype).index_add_(0, stratum, p)
    strata = Strata(of=stratum[rows], sizes=sizes, drawn=counts, mass=mass)
    return _Drawn(possible[rows], torch.cat(chances), task.p > 0, strata=strata)


def _top(task: _Task) -> _Drawn:
    order = shuffled(len(task.q), task.generator)
    rows = order[task.q[order].argsort(descending=True, stable=True)][: task.n]
    taken = torch.zeros_like(task.q, dtype=torch.bool).index_fill_(0, rows, True)
    return _Drawn(rows, None, taken)


DESIGNS: dict[str, Callable[[_Task], _Drawn]] = {
    "pps": _pps,
    "poisson": _poisson,
    "rhc": _rhc,
    "sequential": _sequential,
    "stratified": _stratified,
    "top": _top,
}


def _cut(score: Tensor, shares: Tensor, strata: int) -> Tensor:
    """The stratum of each row: scores in order, cut where the shares reach 1 / strata, 2 / strata and so on."""
    check_at_least(2, strata=strata, advice="without strata, use another design")
    below = score[score < score.max()]
    if len(below) == 0:
        raise ValueError(f"weights / mass is the same for all {len(score)} inputs: no strata; use another design")
    order = score.argsort()
    sums = shares[order].cumsum(0)
    cuts = torch.arange(1, strata, dtype=sums.dtype) / strata * sums[-1]
    bounds = score[order[torch.searchsorted(sums, cuts)]].clamp_max(below.max()).unique()
    return torch.bucketize(score, bounds)  # none is empty: each bound is a score, and the last is not the largest


def _allocated(shares: Tensor, sizes: Tensor, n: int) -> Tensor:
    """Sizes close to the shares: n in total, no more than a stratum holds, and MIN_PER_STRATUM where it holds them."""
    least = sizes.clamp_max(MIN_PER_STRATUM)
    if n < int(least.sum()):
        each = f"{MIN_PER_STRATUM} from each of {len(sizes)} strata, or all rows of a smaller one"
        raise ValueError(f"n must be at least {int(least.sum())} ({each}), got {n}; draw more, or ask for fewer strata")
    bounds = list(zip(shares.tolist(), least.tolist(), sizes.tolist(), strict=True))

    def quotas(factor: float) -> list[float]:
        return [min(max(factor * share, low), high) for share, low, high in bounds]

    small, large = 0.0, max(high / share for share, _, high in bounds)
    for _ in range(100):  # bisect for the factor that gives n
        middle = (small + large) / 2
        small, large = (small, middle) if sum(quotas(middle)) >= n else (middle, large)
    quota = torch.tensor(quotas(large), dtype=torch.float64)
    counts = (quota + 1e-9).floor()
    counts[(quota - counts).argsort(descending=True)[: n - int(counts.sum())]] += 1
    return counts.long()


def _systematic(chances: Tensor, generator: torch.Generator) -> Tensor:
    """Rows hit by points at distance 1 when the chances are laid end to end; their number is the sum of the chances."""
    certain = (chances >= 1).nonzero().flatten()
    open_ = (chances < 1).nonzero().flatten()
    count = round(float(chances[open_].sum()))
    if count == 0:
        return certain
    sums = chances[open_].cumsum(0)
    points = (_uniform(1, generator) + torch.arange(count)) / count
    return torch.cat([certain, open_[torch.searchsorted(sums / sums[-1], points, right=True)]])


def _uniform(shape: Any, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64).cpu()


def _race(q: Tensor, generator: torch.Generator) -> Tensor:
    """Logarithms of exponential times with rates q: each is the smallest with probability q / Σ q."""
    u = _uniform(q.shape, generator).clamp_min(2**-54)
    return (-torch.log1p(-u)).log() - q.log()


def normalised(values: Tensor, size: int, name: str) -> Tensor:
    """Weights of ``size`` inputs as float64 on the CPU, scaled to sum to 1."""
    values = checked_values(values, size, name)
    check_not_empty(inputs=values)
    if not bool((values > 0).any()):
        raise ValueError(f"{name} must be positive for some input, all {size} are 0")
    values = values / values.max()  # the sum must not overflow
    return values / values.sum()


def checked_values(values: Tensor, size: int, name: str, *, advice: str = "") -> Tensor:
    """One finite number of at least 0 for each of ``size`` inputs, as float64 on the CPU."""
    values = one_per_input(values, size, name)
    if bad := int((~(values >= 0) | values.isinf()).sum()):
        got = f"{bad} of {size} that are negative, NaN or infinite"
        raise ValueError(f"{name} must be 0 or more and finite, got {got}{advice}")
    return values


def one_per_input(values: Tensor, size: int, name: str, *, kind: str = "inputs") -> Tensor:
    """One number for each of ``size`` inputs, as float64 on the CPU."""
    if not isinstance(values, Tensor) or values.shape != (size,) or values.is_complex():
        got = shape_or_type(values)
        raise ValueError(f"{name} must be a tensor with one number for each of the {size} {kind}, got {got}")
    return values.detach().cpu().double()


def shape_or_type(value: object) -> str:
    """What an error message says about a value that should be a tensor of another shape."""
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _checked_number(n: int, design: str, possible: int) -> int:
    n = index(n)
    check_at_least(1, n=n)
    if design in WITHOUT_REPLACEMENT and n > possible:
        what = "mass" if design == "stratified" else "weight"
        most = f'the {possible} inputs of positive {what} for "{design}", which draws no input twice'
        raise ValueError(f'n must be at most {most}, got {n}; draw fewer, or use "pps"')
    return n
