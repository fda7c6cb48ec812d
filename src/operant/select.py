"""Selecting cases to retrain with: one value per case and a number n in, n row numbers out.

All functions share one signature: ``(values, n, *, generator)`` returns n different rows, int64, in no particular
order. Ties are broken at random, since a first-order loss is often exactly 0. The values depend on the function;
those of `operational` are masses, 0 or more.

>>> fol = torch.tensor([0.0, 0.0, 0.1, 0.2, 5.0, 9.0])
>>> sorted(be_st(fol, 4, generator=torch.Generator().manual_seed(0)).tolist())
[0, 1, 4, 5]
"""

from collections.abc import Callable

import torch
from torch import Tensor

from operant.rng import shuffled
from operant.seeds.designs import shape_or_type
from operant.validation import check_from_to, check_not_empty, check_one_of, check_positive

SECTIONS = {"range": 10, "rank": 1000}  # defaults; the paper gives no number, its released program uses 1000
MAX_VALUE = 1e300  # a range of larger values would overflow
MAX_PAIRS = 2**21  # pairs of cases compared at once
GAINS_PER_STEP = 32  # cases whose gain is recomputed together
WIDTH_CASES = 512  # cases from which the default width is computed


def km_st(values: Tensor, n: int, *, k: int | None = None, by: str = "range", generator: torch.Generator) -> Tensor:
    """K-multisection: equally many random cases from each of k sections of the values.

        R_i = [min + (i - 1) w, min + i w),  w = (max - min) / k,  i = 1 … k        (1)
        n / k at random from each R_i                                               (2)

    The largest value belongs to the last section. If a section has too few cases, the others make up for it evenly, and
    what cannot be split evenly goes to sections drawn at random; the paper does not say what to do in either case.

    Args:
        values: one per case, the first-order loss in the paper.
        k: number of sections, at most n (default: 10, or n if that is smaller).
        by: ``"range"`` for (1), or ``"rank"`` for what the released program does: the ranking is cut into k blocks of
            equal count (default: 1000, at most the number of cases), and blocks drawn at random are taken whole until
            there are n cases. The last one is cut, where that program would stop short of n.

    References:
        | RobOT: Robustness-Oriented Testing for Deep Learning Systems (Wang et al., 2021), Algorithm 2
        | https://arxiv.org/abs/2102.05913
    """
    values = _checked(values, n)
    check_one_of(SECTIONS, by=by)
    limit = n if by == "range" else len(values)
    k = min(SECTIONS[by], limit) if k is None else k
    check_from_to(1, limit, k=k, advice=f"there are {len(values)} cases, of which {n} are chosen")
    return _from_sections(values, n, k, generator) if by == "range" else _from_blocks(values, n, k, generator)


def be_st(values: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
    """Bi-end: half of the cases from the smallest values, half from the largest; for odd n, one more of the largest.

    The values are first-order losses in the paper, that of `km_st`, section III-D.
    """
    order = _ranked(_checked(values, n), generator)
    small = n // 2
    return torch.cat([order[:small], order[len(order) - (n - small) :]])


def gini(values: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
    """DeepGini: the cases with the largest values, largest first.

    In the paper the values are the Gini impurity 1 - Σ p² of the model's probabilities.

    References:
        | DeepGini: Prioritizing Massive Tests to Enhance the Robustness of Deep Neural Networks (Feng et al., 2020)
        | https://arxiv.org/abs/1903.00661
    """
    return _ranked(_checked(values, n), generator).flip(0)[:n]


def random(values: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
    """Any n cases, whatever their values: the baseline for the others."""
    return shuffled(len(_checked(values, n)), generator)[:n]


def operational(
    values: Tensor,
    n: int,
    *,
    codes: Tensor | None = None,
    covered: Tensor | None = None,
    width: float | None = None,
    shared: bool = True,
    generator: torch.Generator,
) -> Tensor:
    """The cases that together cover most operational mass that is not yet covered, chosen greedily; best first.

        k(i, j) = max(0, 1 - |z_i - z_j|² / width²)                                    (1)
        c_i = max k(i, j)  over what is covered and the cases j chosen so far          (2)
        gain of j = Σ_i v_i max(0, k(i, j) - c_i)                                      (3)
        v_i = w_i / Σ_j k(i, j),  or v_i = w_i where mass is not shared                (4)

    The value of a case j is the pmi that learning it may remove: its own mass times naturalness w times (1 - already
    covered), plus part of that of nearby cases. Copies of a chosen case have no value. A mass belongs to a whole cell,
    which nearby cases share, so it is divided among them (4): twenty cases of one cell count as much as one. Each step
    takes the largest gain, which is within 1 - 1/e of the best possible choice. Once nothing more can be gained, the
    remaining cases are those of the largest w.

    Args:
        values: w, one per case: mass times naturalness, ``suite["mass"] * suite["naturalness"]``.
        codes: position of each case, ``(N, dimensions)``, for instance ``profile.encode(suite.x)``; distances are
            Euclidean. Without codes no case is near another, and the cases with the largest values are chosen.
        covered: codes of the inputs learned from before.
        width: reach of a case (default: such that the median case has N / n others within it).
        shared: whether nearby cases share their mass. False where each value is the case's own share, such as 1 for
            failures drawn from the field.

    References:
        | An Analysis of Approximations for Maximizing Submodular Set Functions (Nemhauser et al., 1978)
        | https://doi.org/10.1007/BF01588971
        | Accelerated Greedy Algorithms for Maximizing Submodular Set Functions (Minoux, 1978)
        | https://doi.org/10.1007/BFb0006528
    """
    weights = _checked_weights(values, n)
    if codes is None:
        if covered is not None or width is not None:
            raise ValueError("covered and width are about distances; give codes too, one row for each case")
        return gini(weights, n, generator=generator)
    z, seen, scale = _checked_codes(codes, covered, len(weights))
    order = shuffled(len(weights), generator)  # ties: the first is taken
    if width is not None:
        check_positive(width=width, advice="it is a distance between codes")
    reach = _reach(z[order], n) if width is None else width / scale
    reach = max(reach, 1e-6)  # below that, rounding hides the difference between copies and neighbours
    return order[_greedy(z[order] / reach, seen / reach, weights[order], n, shared)]


def _greedy(z: Tensor, seen: Tensor, weights: Tensor, n: int, shared: bool) -> Tensor:
    """Rows of the largest gain, one after another; codes are in units of the width.

    A gain only shrinks as more is covered, so an old one is an upper bound: only the cases of the largest bounds are
    recomputed, until one of them exceeds all bounds.
    """
    v = weights / _each(z, z, lambda near: near.sum(1)).clamp_min(1) if shared else weights  # (4)
    cover = _each(z, seen, lambda near: near.amax(1)) if len(seen) else torch.zeros_like(v)  # (2)
    bounds = _each(z, z, lambda near: (near - cover).clamp_min_(0) @ v)  # (3)
    nothing, chosen = 1e-12 * float(v.sum()), list[int]()
    while len(chosen) < n and float(bounds.amax()) > nothing:
        rows = bounds.topk(min(GAINS_PER_STEP, len(bounds) - len(chosen))).indices.sort().values
        near = _near(z[rows], z)
        bounds[rows] = (near - cover).clamp_min_(0) @ v  # (3)
        best = int(bounds[rows].argmax())
        if float(bounds[rows[best]]) >= max(float(bounds.amax()), nothing):
            chosen.append(int(rows[best]))
            cover = torch.maximum(cover, near[best])  # (2)
            bounds[rows[best]] = -1.0
    rest = weights.clone()
    rest[chosen] = -1.0
    return torch.cat([torch.tensor(chosen).long(), rest.argsort(descending=True, stable=True)[: n - len(chosen)]])


def _each(a: Tensor, b: Tensor, value: Callable[[Tensor], Tensor]) -> Tensor:
    """One value for each row of a, computed from its nearness to all rows of b."""
    return torch.cat([value(_near(part, b)) for part in a.split(max(1, MAX_PAIRS // len(b)))])


def _near(a: Tensor, b: Tensor) -> Tensor:
    """(1) for each pair, from codes in units of the width."""
    apart = torch.addmm(a.square().sum(1)[:, None] + b.square().sum(1), a, b.T, alpha=-2)
    return apart.clamp_min_(0).neg_().add_(1).clamp_min_(0)


def _reach(z: Tensor, n: int) -> float:
    """The distance within which the median case has N / n others; z is in random order."""
    rank = min(len(z), 1 + max(1, round(len(z) / n)))  # a case is its own nearest
    apart = [torch.cdist(part, z).kthvalue(rank, dim=1).values for part in z[:WIDTH_CASES].split(64)]
    return float(torch.cat(apart).median())


def _from_sections(values: Tensor, n: int, k: int, generator: torch.Generator) -> Tensor:
    low, width = values.amin(), values.amax() - values.amin()
    section = ((values - low) * k / width if width > 0 else values - low).long().clamp_max(k - 1)  # (1)
    counts = section.bincount(minlength=k)
    quota = _quotas(counts, n, generator)  # (2)
    order = _ranked(section, generator)  # section by section, in random order within each
    place = torch.arange(len(order)) - (counts.cumsum(0) - counts)[section[order]]
    return order[place < quota[section[order]]]


def _quotas(counts: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """How many to take from sections that hold ``counts``, as evenly as possible: n in total."""
    quota = torch.zeros_like(counts)
    while left := n - int(quota.sum()):
        open_ = (quota < counts).nonzero().flatten()
        if left < len(open_):
            quota[open_[shuffled(len(open_), generator)[:left]]] += 1
        else:
            quota[open_] = torch.minimum(quota[open_] + left // len(open_), counts[open_])
    return quota


def _from_blocks(values: Tensor, n: int, k: int, generator: torch.Generator) -> Tensor:
    blocks = _ranked(values, generator).tensor_split(k)
    drawn = [blocks[i] for i in shuffled(k, generator).tolist()]
    return torch.cat([block[shuffled(len(block), generator)] for block in drawn])[:n]


def _ranked(values: Tensor, generator: torch.Generator) -> Tensor:
    """Row numbers from the smallest value to the largest; equal values in random order."""
    order = shuffled(len(values), generator)
    return order[values[order].argsort(stable=True)]


def _checked(values: Tensor, n: int) -> Tensor:
    """The values as float64 on the CPU, if n of them can be chosen."""
    if not isinstance(values, Tensor) or values.ndim != 1 or values.is_complex():
        raise ValueError(f"values must be a tensor (N,) with one number per case, got {shape_or_type(values)}")
    check_not_empty(values=values)
    values = values.detach().cpu().double()
    if bad := int((~(values.abs() < MAX_VALUE)).sum()):
        raise ValueError(f"values must be finite, got NaN or infinity for {bad} of {len(values)} cases; remove them")
    check_from_to(1, len(values), n=n, advice=f"there are {len(values)} cases")
    return values


def _checked_weights(values: Tensor, n: int) -> Tensor:
    """The values, scaled so that the largest is 1."""
    weights = _checked(values, n)
    if bad := int((weights < 0).sum()):
        raise ValueError(f"values must be 0 or more, got {bad} of {len(weights)} below; remove them")
    if not bool((weights > 0).any()):
        raise ValueError(f"all {len(weights)} values are 0: no case occurs in the field; generate others")
    return weights / weights.amax()


def _checked_codes(codes: Tensor, covered: Tensor | None, size: int) -> tuple[Tensor, Tensor, float]:
    """Codes as float64 on the CPU, centred and scaled to norms of at most 1; what is covered likewise; the scale."""
    if not isinstance(codes, Tensor) or codes.ndim != 2 or len(codes) != size or codes.shape[1] == 0:
        raise ValueError(f"codes must be a tensor ({size}, dimensions), one row per case, got {shape_or_type(codes)}")
    covered = codes[:0] if covered is None else covered
    if not isinstance(covered, Tensor) or covered.ndim != 2 or covered.shape[1] != codes.shape[1]:
        raise ValueError(f"covered must be a tensor (M, {codes.shape[1]}) of codes, got {shape_or_type(covered)}")
    z, seen = (v.detach().cpu().double() for v in (codes, covered))
    for name, values in (("codes", z), ("covered", seen)):
        if bad := int((~(values.abs() < MAX_VALUE**0.5)).any(1).sum()):
            raise ValueError(f"{name} must be finite, got NaN or infinity in {bad} of {len(values)} rows; remove them")
    z, seen = z - z.mean(0), seen - z.mean(0)
    scale = float(torch.cat([z, seen]).norm(dim=1).amax()) or 1.0
    return z / scale, seen / scale, scale
