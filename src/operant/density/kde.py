"""Kernel density estimation: exact, fast and in bounded memory."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from operant.formatting import first_few
from operant.rng import normal_like, shuffled, spawn
from operant.validation import check_at_least, check_finite, check_row_shape

QUERIES, REFERENCES = 512, 1024  # rows and columns of one tile: 2 MiB of exponents, which fit in the cache
MIN_ROWS = 16  # matrix products of fewer rows or columns round differently, so smaller ones are padded
MAX_DOUBLES = 2**22  # numbers converted to double precision at once
LN2 = math.log(2)  # exponents have base 2, for which torch is twice as fast
MIN_EXPONENT = -60 / LN2  # relative to a row's largest; smaller exponents are raised to it, since underflow is slow
EXCLUDED = -1e30  # exponent of a reference with weight 0
TOLERANCE = 4e-5  # nats; rows that single precision may miss by more are recomputed in double precision
STEP = 10**0.1  # between neighbouring bandwidths of the likelihood search
MAX_ADAPTION = 4.0  # largest factor on an adaptive bandwidth
MAX_SCORED = 4096  # references on which the search scores a bandwidth


@dataclass(frozen=True, eq=False, repr=False)
class KDE:
    """A weighted sum of Gaussians, one around every reference; made by `fit_kde`.

        p(z) = Σᵢ wᵢ Πd N(z_d; μ_id, σ_id)        (1)

    Log densities agree with direct sums in float64 to 1e-4 nats, even where p(z) underflows: pairs run through matrix
    products in float32, and rows for which that is too imprecise run again in float64.

    Args:
        references: μ, ``(n, *shape)``.
        bandwidth: σ, of ``shape`` for all references, or ``(n, *shape)`` for one per reference.
        weights: w, ``(n,)``, summing to 1; references of weight 0 are ignored.

    References:
        | Hierarchical Distribution-Aware Testing of Deep Learning (Huang et al., 2022), for one σ per reference
        | https://arxiv.org/abs/2205.08589
    """

    references: Tensor
    bandwidth: Tensor
    weights: Tensor

    def __post_init__(self) -> None:
        check_data(self.references, name="references", flat=False)
        check_weights(self.weights, len(self.references))
        if not abs(float(self.weights.sum()) - 1) <= 1e-6:
            raise ValueError(f"weights must sum to 1, got {float(self.weights.sum()):.6g}; `fit_kde` normalises them")
        _check_bandwidth(self.bandwidth, self.references)
        parts = (self._features(part) for part in _chunks(self.references))
        if any(bool(self._single.rough(features, dtype=torch.float64).any()) for features in parts):
            raise ValueError(
                f"the bandwidth (down to {float(self.bandwidth.min()):.3g}) is too narrow for the range of the data: "
                "their density cannot be computed; widen it, or remove outliers"
            )

    def __repr__(self) -> str:
        low, high = (f"{float(v):.4g}" for v in self.bandwidth.aminmax())
        return f"KDE({len(self.references)} references of {tuple(self.shape)}, bandwidth {low} to {high})"

    @property
    def shape(self) -> torch.Size:
        """The shape of one input."""
        return self.references.shape[1:]

    def log_prob(self, x: Tensor) -> Tensor:
        """log p of each row of ``x``, in float64; once differentiable in ``x``.

        >>> kde = fit_kde(torch.tensor([[0.0], [1.0]]), bandwidth=1.0)
        >>> kde.log_prob(torch.tensor([[0.5]])).exp()
        tensor([0.3521], dtype=torch.float64)
        """
        check_rows(x, self.shape)
        z = x.to(self.references.device)
        return torch.cat([self._log_prob(part) for part in _chunks(z)]).to(x.device)

    def leave_out(self, *, groups: Tensor | None = None) -> Tensor:
        """log p of each reference under all others, ``(n,)``; with ``groups``, under those of other groups.

        Groups are one integer per reference, equal for those that belong together, such as copies of an input.
        """
        n, device = len(self.references), self.references.device
        group = torch.arange(n) if groups is None else groups
        if group.shape != (n,) or group.is_floating_point():
            got = f"{group.dtype} of shape {tuple(group.shape)}"
            raise ValueError(f"groups must be integers of shape ({n},), got {got}")
        return self._leave_out(torch.arange(n, device=device), group.to(device))

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``(n, *shape)`` draws: a reference by weight, then a point from its Gaussian."""
        chosen = draw_rows(self.weights, n, generator=generator)
        centre = self.references[chosen]
        width = self.bandwidth[chosen] if self._each else self.bandwidth
        return centre + width.to(centre) * normal_like(centre, generator=generator)

    # Implementation: log p(z) = c(z) + log Σᵢ exp(F(z)·Rᵢ + bᵢ), so that all pairs are one matrix product.
    # With m the mean of the references, s the bandwidth (or the geometric mean of one per reference),
    # a = (z - m) / s,  r = (μᵢ - m) / s,  ρ = σᵢ / s:
    #
    #     one for all           F = a          Rᵢ = r                     c = const - |a|²/2        (2)
    #     one per reference     F = (a, a²)    Rᵢ = (r/ρ², -1/(2ρ²))      c = const                 (3)
    #     bᵢ = log wᵢ - |r/ρ|²/2 - Σ log ρ                                                          (4)

    @cached_property
    def _each(self) -> bool:
        return self.bandwidth.shape == self.references.shape

    @cached_property
    def _scale(self) -> Tensor:
        if not self._each:
            return self.bandwidth.flatten().double()
        equal = torch.full_like(self.weights, 1 / len(self.weights))
        return _weighted_sum(equal, self.bandwidth, torch.log).exp()

    @cached_property
    def _mean(self) -> Tensor:
        return _weighted_sum(self.weights, self.references)

    @cached_property
    def _single(self) -> "_KernelTerms":
        return _KernelTerms.concat(self._terms(), torch.float32)

    @cached_property
    def _double(self) -> "_KernelTerms":
        return _KernelTerms.concat(self._terms(), torch.float64)

    def _standard(self, z: Tensor) -> Tensor:
        return (z.flatten(1).double() - self._mean) / self._scale

    def _features(self, z: Tensor) -> Tensor:
        a = self._standard(z)
        return torch.cat([a, a.square()], 1) if self._each else a

    def _terms(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Rᵢ and bᵢ in chunks."""
        log_weights = self.weights.double().log().clamp_min(EXCLUDED)
        for i in _slices(len(self.references), _rows_at_once(self.references)):
            r = self._standard(self.references[i])
            if not self._each:
                yield r, log_weights[i] - r.square().sum(1) / 2
                continue
            rho = self.bandwidth[i].flatten(1).double() / self._scale
            precision = rho.square().reciprocal()
            offsets = log_weights[i] - (precision * r.square()).sum(1) / 2 - rho.log().sum(1)  # (4)
            yield torch.cat([precision * r, precision / -2], 1), offsets  # (3)

    def _log_prob(self, z: Tensor, apart: "_Apart | None" = None) -> Tensor:
        features = self._features(z)
        const = -self._scale.log().sum() - len(self._scale) / 2 * math.log(2 * math.pi)
        value: Tensor = _LogSumExp.apply(features, self, apart)  # type: ignore[no-untyped-call]
        return value + const if self._each else value + const - features.square().sum(1) / 2  # (3), (2)

    def _leave_out(self, rows: Tensor, groups: Tensor) -> Tensor:
        distinct, group = groups.unique(return_inverse=True)
        totals = self.weights.new_zeros(len(distinct), dtype=torch.float64).index_add(0, group, self.weights.double())
        rest = 1 - totals[group[rows]]
        if not bool((rest > 1e-12).all()):
            raise ValueError("leaving out needs at least two references (or groups) of positive weight, got one")
        chunks = rows.split(_rows_at_once(self.references))
        return torch.cat([self._log_prob(self.references[i], (group[i], group)) for i in chunks]) - rest.log()


def fit_kde(
    x: Tensor,
    *,
    bandwidth: str | float | Tensor = "scott",
    weights: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> KDE:
    """A kernel density estimate of the rows of ``x``.

    Scott's rule, per dimension d of D, with sd the standard deviation and n = 1 / Σ w² the effective number of rows:

        σ_d = sd_d · n^(-1 / (D + 4))        (1)

    Args:
        x: references, ``(n, *shape)``.
        bandwidth: the rule for σ, or σ itself:

            - ``"scott"``: (1).
            - ``"scott-scalar"``: one σ for all dimensions, from (1) with the root mean square of all sd_d.
            - ``"likelihood"``: (1) times the factor that maximises the leave-one-out likelihood of the references.
              Factors are on a grid from 0.1 to 10, ten per decade, extended while the best is at its end. Of more than
              4096 references, 4096 are left out.
            - ``"adaptive"``: the ``"likelihood"`` σ times one factor per reference, larger where references are sparse:
              (p(x) / g)^(-1 / D), with p the leave-one-out density and g its geometric mean, limited to 1/4 to 4.
            - a number, a tensor of ``shape``, or one of ``(n, *shape)`` with one σ per reference.
        weights: weight of each reference, 0 or more, ``(n,)`` (default: equal).
        generator: chooses the references that are left out if there are more than 4096 (default: a fixed one).

    >>> fit_kde(torch.randn(500, 2, generator=spawn(0))).bandwidth.shape
    torch.Size([2])

    References:
        | Multivariate Density Estimation: Theory, Practice, and Visualization (Scott, 1992)
        | On the Choice of Smoothing Parameters for Parzen Estimators of Probability Density Functions (Duin, 1976)
    """
    check_data(x, name="references", flat=False)
    x = x.detach()
    if weights is None:
        weights = torch.ones(len(x), device=x.device)
    check_weights(weights, len(x))
    share = weights.detach().to(x.device, torch.float64)
    share = share / share.sum()
    return KDE(x, _chosen_bandwidth(x, share, bandwidth, generator or spawn(0, "likelihood")), share)


# Bandwidths -----------------------------------------------------------------------------------------------------------


def _chosen_bandwidth(x: Tensor, share: Tensor, bandwidth: str | float | Tensor, generator: torch.Generator) -> Tensor:
    if isinstance(bandwidth, Tensor) and bandwidth.ndim > 0:
        return bandwidth.detach().to(x.device)
    if not isinstance(bandwidth, str):
        return torch.full(x.shape[1:], float(bandwidth), dtype=torch.float64, device=x.device)
    rules: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "scott": _scott,
        "scott-scalar": lambda x, share: _scott(x, share, scalar=True),
        "likelihood": lambda x, share: _most_likely(x, share, generator),
        "adaptive": lambda x, share: _adaptive(x, share, generator),
    }
    if bandwidth not in rules:
        raise ValueError(f"bandwidth must be one of {', '.join(rules)}, a number or a tensor, got {bandwidth!r}")
    if int((share > 0).sum()) < 2:
        raise ValueError(f"bandwidth={bandwidth!r} needs at least 2 references of positive weight; give a number")
    return rules[bandwidth](x, share)


def _scott(x: Tensor, share: Tensor, *, scalar: bool = False) -> Tensor:
    """Scott's rule from the weighted variance, unbiased as in ``torch.var``."""
    low, high = torch.aminmax(x[share > 0].flatten(1), dim=0)
    constant = (low == high).nonzero().flatten().tolist()
    if constant and not (scalar and len(constant) < len(low)):
        where = f"{first_few(constant)} of {len(low)} (counting from 0)"
        raise ValueError(f"all references are equal in dimension {where}; leave these out, or give a bandwidth")
    mean = _weighted_sum(share, x)
    variance = _weighted_sum(share, x, lambda part: (part - mean).square()) / (1 - share.square().sum())
    if scalar:
        variance = variance.mean().expand_as(variance)
    n = 1 / float(share.square().sum())
    width: Tensor = variance.sqrt() * n ** (-1 / (len(mean) + 4))  # (1)
    return width.view(x.shape[1:])


def _adaptive(x: Tensor, share: Tensor, generator: torch.Generator) -> Tensor:
    """The most likely bandwidth, wider for references with few neighbours."""
    width = _most_likely(x, share, generator)
    density = KDE(x, width, share).leave_out()
    rare = ((share @ density) - density) / width.numel()
    return width * rare.exp().clamp(1 / MAX_ADAPTION, MAX_ADAPTION).view(-1, *[1] * (x.ndim - 1)).to(width)


def _most_likely(x: Tensor, share: Tensor, generator: torch.Generator) -> Tensor:
    """Scott's bandwidth times the factor that maximises the leave-one-out likelihood."""
    start, groups = _scott(x, share), torch.arange(len(x), device=x.device)
    rows = (share > 0).nonzero().flatten()
    rows = rows[shuffled(len(rows), generator)[:MAX_SCORED].to(x.device)]

    def score(k: int) -> float:
        return float(share[rows] @ KDE(x, start * STEP**k, share)._leave_out(rows, groups))

    scores = {k: score(k) for k in range(-10, 11)}
    while (best := max(scores, key=scores.__getitem__)) in (min(scores), max(scores)):
        if best == -40:
            raise ValueError(
                "the likelihood still grows at a bandwidth 10000 times below Scott's, so every reference seems to have "
                "a copy; remove the copies, or give a bandwidth"
            )
        following = best - 1 if best < 0 else best + 1
        scores[following] = score(following)
    return start * STEP**best


# Sums of exponentials -------------------------------------------------------------------------------------------------

_Apart = tuple[Tensor, Tensor]
"""A group per row and a group per reference: references of a row's own group are left out."""


@dataclass(frozen=True, eq=False)
class _KernelTerms:
    """Rᵢ and bᵢ of all references, to base 2."""

    factors: Tensor
    offsets: Tensor
    longest: Tensor

    @staticmethod
    def concat(parts: Iterator[tuple[Tensor, Tensor]], dtype: torch.dtype) -> "_KernelTerms":
        rows = [((r / LN2).to(dtype), (b / LN2).to(dtype), _lengths(r).amax()) for r, b in parts]
        factors, offsets, longest = zip(*rows, strict=True)
        return _KernelTerms(torch.cat(factors), torch.cat(offsets), torch.stack(longest).amax())

    def rough(self, features: Tensor, peak: Tensor | float = 0.0, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Rows whose exponents, up to ``peak`` nats, may be off by more than `TOLERANCE` if computed in ``dtype``.

        How the error grows with the number of products was measured for 1 to 130 dimensions.
        """
        unit = torch.finfo(dtype).eps / 2 * (1 + features.shape[1] ** 0.5 / 2)
        error: Tensor = unit * (_lengths(features) * self.longest + torch.as_tensor(peak).abs())
        return ~(error <= TOLERANCE)  # overflow makes NaN, which is rough

    def exponents(self, features: Tensor, columns: slice, apart: _Apart | None) -> Tensor:
        """F·Rᵢ + bᵢ to base 2, for all rows and some references; padded, so that few rows round like many."""
        factors, offsets = self.factors[columns], self.offsets[columns]
        tile = torch.addmm(_padded(offsets), _padded(features), _padded(factors).T)[: len(features), : len(factors)]
        if apart is not None:
            tile.masked_fill_(apart[0][:, None] == apart[1][None, columns], EXCLUDED)
        return tile


class _LogSumExp(torch.autograd.Function):
    """log Σᵢ exp(F·Rᵢ + bᵢ) of each row F, in float64; its derivative is the mean of the Rᵢ under these weights."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, kde: KDE, apart: _Apart | None) -> Tensor:
        value = torch.empty_like(features[:, 0])
        peak = torch.zeros_like(value)
        rough = kde._single.rough(features)
        value[~rough], peak[~rough] = _log_sum_exp(features[~rough], kde._single, _of_rows(apart, ~rough))
        rough |= kde._single.rough(features, peak)
        if bool(rough.any()):
            value[rough], _ = _log_sum_exp(features[rough], kde._double, _of_rows(apart, rough))
        ctx.save_for_backward(features, value, rough)
        ctx.kde, ctx.apart = kde, apart
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        features, value, rough = ctx.saved_tensors
        mean = torch.empty_like(features)
        mean[~rough] = _mean_factors(features[~rough], value[~rough], ctx.kde._single, _of_rows(ctx.apart, ~rough))
        if bool(rough.any()):
            mean[rough] = _mean_factors(features[rough], value[rough], ctx.kde._double, _of_rows(ctx.apart, rough))
        return gradient[:, None] * mean, None, None


def _log_sum_exp(features: Tensor, terms: _KernelTerms, apart: _Apart | None) -> tuple[Tensor, Tensor]:
    """log Σᵢ exp(F·Rᵢ + bᵢ), and the largest exponent, of each row; one pass over tiles."""
    value, peak = torch.empty(2, len(features), dtype=torch.float64, device=features.device)
    for rows in _slices(len(features), QUERIES):
        f, own = features[rows].to(terms.factors.dtype), _of_rows(apart, rows)
        top = torch.full_like(f[:, 0], EXCLUDED)
        total = torch.zeros_like(value[rows])
        for columns in _slices(len(terms.factors), REFERENCES):
            tile = terms.exponents(f, columns, own)
            before, top = top, torch.maximum(top, tile.amax(1))
            total *= (before - top).double().exp2()
            total += tile.sub_(top[:, None]).float().clamp_(min=MIN_EXPONENT).exp2_().sum(1)
        value[rows], peak[rows] = LN2 * (top.double() + total.log2()), LN2 * top.double()
    return value, peak


def _mean_factors(features: Tensor, value: Tensor, terms: _KernelTerms, apart: _Apart | None) -> Tensor:
    """Σᵢ Rᵢ exp(F·Rᵢ + bᵢ - value) for each row."""
    means = torch.zeros_like(features)
    for rows in _slices(len(features), QUERIES):
        f, own = features[rows].to(terms.factors.dtype), _of_rows(apart, rows)
        total = (value[rows, None] / LN2).to(f.dtype)
        for columns in _slices(len(terms.factors), REFERENCES):
            share = terms.exponents(f, columns, own).sub_(total).clamp_(min=MIN_EXPONENT).exp2_()
            means[rows] += share @ terms.factors[columns]
    return LN2 * means


def draw_rows(weights: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
    """``n`` row numbers, drawn in proportion to the weights."""
    check_at_least(0, n=n)
    share = weights.double().cumsum(0)
    u = torch.rand(n, dtype=torch.float64, generator=generator, device=generator.device).to(share.device)
    return torch.searchsorted(share / share[-1], u, right=True)


def _weighted_sum(weights: Tensor, rows: Tensor, f: Callable[[Tensor], Tensor] = lambda part: part) -> Tensor:
    """Σᵢ wᵢ f(rowᵢ), flattened, in float64."""
    parts = zip(weights.double().split(_rows_at_once(rows)), _chunks(rows), strict=True)
    return torch.stack([w @ f(part.flatten(1).double()) for w, part in parts]).sum(0)


def _chunks(rows: Tensor) -> list[Tensor]:
    return list(rows.split(_rows_at_once(rows)))


def _rows_at_once(rows: Tensor) -> int:
    return max(1, MAX_DOUBLES // max(1, rows[:1].numel()))


def _slices(n: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, n, size)]


def _of_rows(apart: _Apart | None, rows: Tensor | slice) -> _Apart | None:
    return None if apart is None else (apart[0][rows], apart[1])


def _padded(rows: Tensor) -> Tensor:
    missing = MIN_ROWS - len(rows)
    return rows if missing <= 0 else torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])


def _lengths(rows: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(rows.detach(), dim=1)
    return lengths


# Checks -------------------------------------------------------------------------------------------------------------


def check_data(x: Tensor, *, name: str = "x", flat: bool = True) -> None:
    """Raise a ValueError unless ``x`` is a finite floating-point tensor ``(n, d)`` that is not empty.

    ``flat=False``: ``(n, *shape)``.
    """
    floats = isinstance(x, Tensor) and x.is_floating_point() and x.ndim >= 2
    if not floats or x.numel() == 0 or (flat and x.ndim > 2):
        got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        shape = "(n, d)" if flat else "(n, *shape)"
        raise ValueError(f"{name} must be a floating-point tensor of shape {shape} that is not empty, got {got}")
    check_finite(advice="remove them", **{name: x})


def check_rows(x: Tensor, shape: torch.Size) -> None:
    """Raise a ValueError unless ``x`` is finite and its rows have this shape."""
    check_row_shape(shape, x=x)
    check_finite(x=x)


def check_weights(weights: Tensor, n: int) -> None:
    if weights.shape != (n,):
        raise ValueError(f"weights must have shape ({n},), one per reference, got {tuple(weights.shape)}")
    if not bool((weights.isfinite() & (weights >= 0)).all()) or not bool(weights.sum() > 0):
        low, high = (float(v) for v in weights.aminmax())
        raise ValueError(f"weights must be finite, 0 or more and not all 0, got values from {low:.4g} to {high:.4g}")


def _check_bandwidth(width: Tensor, x: Tensor) -> None:
    if width.shape not in (x.shape, x.shape[1:]):
        shapes = f"{tuple(x.shape[1:])} (one for all references) or {tuple(x.shape)} (one per reference)"
        raise ValueError(f"bandwidth must be a number, or a tensor of shape {shapes}, got {tuple(width.shape)}")
    valid = width.isfinite() & (width > 0)
    if not bool(valid.all()):
        raise ValueError(f"bandwidth must be positive and finite everywhere, got {float(width[~valid][0]):.4g}")
