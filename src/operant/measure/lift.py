"""Lift: how much more often than average inputs fail where a ranking says that they do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from operant.formatting import percent
from operant.rng import uniform_like
from operant.validation import check_at_least, check_between, check_finite

CELLS = 2**24  # weights of resamples in memory at once
BINS = 5  # of the margin, equally filled, in each predicted class


@dataclass(frozen=True, kw_only=True)
class LiftAt:
    """The riskiest share of the mass: how often these inputs fail, and how much oftener than all.

    Attributes:
        share: of the mass, such as 0.05.
        precision: failure rate of these inputs.
        lift, lower, upper: precision divided by the failure rate of all inputs, with its interval.
        ceiling: the largest possible lift.
        margin: lift of the same share, ranked by the margin.
        gain, gain_lower, gain_upper: lift minus that of the margin, with the interval of this paired difference.
    """

    share: float
    precision: float
    lift: float
    lower: float
    upper: float
    ceiling: float
    margin: float
    gain: float
    gain_lower: float
    gain_upper: float

    def __str__(self) -> str:
        return (
            f"riskiest {percent(self.share)}: {percent(self.precision)} fail, lift {self.lift:.2f} "
            f"[{self.lower:.2f}, {self.upper:.2f}] of at most {self.ceiling:.2f}; margin {self.margin:.2f}, "
            f"gain {self.gain:+.2f} [{self.gain_lower:+.2f}, {self.gain_upper:+.2f}]"
        )


@dataclass(frozen=True, kw_only=True)
class Lift:
    """How well a ranking finds failures; made by `lift`.

    Attributes:
        inputs, failures: numbers of inputs and of failures among them.
        pmi: failure rate of all inputs, weighted by their mass.
        at: one entry per share.
        ratio, ratio_lower, ratio_upper: how much oftener inputs fail in the riskier half of those with the same
            predicted class and a similar margin, see (2) of `lift`; infinite if no input of the safer halves fails,
            NaN if none of either half does.
        margin_ratio: the same if the margin itself ranks, i.e. what a similar margin leaves.
    """

    inputs: int
    failures: int
    pmi: float
    at: tuple[LiftAt, ...]
    ratio: float
    ratio_lower: float
    ratio_upper: float
    margin_ratio: float
    confidence: float

    def __str__(self) -> str:
        first = f"{self.failures} of {self.inputs} inputs fail, {percent(self.pmi)} of the mass."
        return "\n".join([first, *(f"  {a}" for a in self.at), f"  within class and margin, {self._within}"])

    @property
    def _within(self) -> str:
        if math.isfinite(self.ratio):
            ratio = f"{self.ratio:.2f} [{self.ratio_lower:.2f}, {self.ratio_upper:.2f}]"
            return f"riskier inputs fail {ratio} times as often"
        where = "either half" if math.isnan(self.ratio) else "the safer halves"
        return f"how much oftener riskier inputs fail cannot be computed: no failure in {where}"


def lift(
    score: Tensor,
    failed: Tensor,
    *,
    margin: Tensor,
    predicted: Tensor,
    mass: Tensor | None = None,
    shares: Sequence[float] = (0.05, 0.1),
    resamples: int = 500,
    confidence: float = 0.95,
    generator: torch.Generator,
) -> Lift:
    """How much oftener the inputs fail that a score ranks highest, and whether it knows more than the margin does.

        lift = P(fail | among the riskiest share of the mass) / P(fail)                                    (1)
        ratio = Σ_k a_k n_k / N_k  /  Σ_k b_k m_k / N_k                                                    (2)

    (2) is the Mantel-Haenszel ratio over strata k of one predicted class and one fifth of its margins: a_k and b_k are
    the masses of failures in the riskier and in the safer half by score, m_k and n_k the masses of these halves, N_k
    their sum. A score that only repeats the margin has a ratio near 1. Inputs of equal score are taken in equal parts,
    so that the order of inputs does not matter. Intervals are percentiles over resamples of the inputs.

    Args:
        score: one value per field input, higher is riskier.
        failed: which inputs the model gets wrong; their true labels are known.
        margin: the model's margin, higher is safer: what the score is compared with.
        predicted: the model's predictions.
        mass: of each input in the field (default: equal).
        shares: riskiest shares of the mass.
        resamples, confidence, generator: of the intervals.

    References:
        | Statistical Aspects of the Analysis of Data from Retrospective Studies of Disease (Mantel and Haenszel, 1959)
        | https://doi.org/10.1093/jnci/22.4.719
    """
    n = len(score)
    w = torch.ones(n, dtype=torch.float64) if mass is None else mass.double().cpu()
    _check(n, score, failed, margin, predicted, w, shares, resamples, confidence)
    failing = failed.cpu().double()
    rankings = [v.double().cpu() for v in (score, -margin)]
    halves = [_halves(v, rankings[1], predicted.cpu()) for v in rankings]
    drawn = _resampled(w, resamples, generator)
    values = torch.cat([_values(part, rankings, halves, failing, shares) for part in (w[None], *drawn)])
    return _summary(values, shares, failing, w, confidence)


def _resampled(w: Tensor, resamples: int, generator: torch.Generator) -> list[Tensor]:
    """Weights of resamples, by a Bayesian bootstrap, in parts of bounded size."""
    rows = max(1, CELLS // len(w))
    sizes = [min(rows, resamples - start) for start in range(0, resamples, rows)]
    return [-uniform_like(w.expand(size, -1), 1e-12, 1.0, generator=generator).log() * w for size in sizes]


def _values(
    w: Tensor, rankings: list[Tensor], halves: list[tuple[Tensor, Tensor]], failing: Tensor, shares: Sequence[float]
) -> Tensor:
    """For each row of weights: lifts of the score, lifts of the margin, ratio of the score, ratio of the margin."""
    columns = [_lifts(w, ranking, failing, share) for ranking in rankings for share in shares]
    return torch.stack([*columns, *(_ratio(w, failing, *half) for half in halves)], 1)


def _lifts(w: Tensor, ranking: Tensor, failing: Tensor, share: float) -> Tensor:
    """(1) for each row of weights; inputs of equal rank are included in equal parts."""
    _, group = (-ranking).unique(return_inverse=True)
    size = int(group.max()) + 1
    masses, failures = (torch.zeros(len(w), size, dtype=w.dtype).index_add_(1, group, v) for v in (w, w * failing))
    total = w.sum(1, keepdim=True)
    part = ((share * total - (masses.cumsum(1) - masses)) / masses.clamp_min(1e-300)).clamp(0, 1)
    pmi = failures.sum(1) / total[:, 0]
    return (part * failures).sum(1) / (share * total[:, 0]) / pmi


def _halves(ranking: Tensor, risk: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
    """The stratum of each input, and whether it is in its riskier half; inputs in the middle of ties are in neither."""
    stratum = torch.zeros_like(predicted)
    for c in predicted.unique():
        rows = (predicted == c).nonzero().flatten()
        places = risk[rows].argsort(stable=True).argsort()
        stratum[rows] = int(c) * BINS + places * BINS // len(rows)
    _, stratum = stratum.unique(return_inverse=True)
    side = torch.zeros_like(stratum)  # 1 riskier, -1 safer
    for k in range(int(stratum.max()) + 1):
        rows = (stratum == k).nonzero().flatten()
        side[rows] = (ranking[rows] - ranking[rows].median()).sign().long()
    return stratum, side


def _ratio(w: Tensor, failing: Tensor, stratum: Tensor, side: Tensor) -> Tensor:
    """(2) for each row of weights."""
    size = int(stratum.max()) + 1

    def total(values: Tensor) -> Tensor:
        return torch.zeros(len(w), size, dtype=w.dtype).index_add_(1, stratum, values)

    riskier, safer = (side > 0).double(), (side < 0).double()
    m, n = total(w * riskier), total(w * safer)
    a, b = total(w * riskier * failing), total(w * safer * failing)
    whole = (m + n).clamp_min(1e-300)
    return (a * n / whole).sum(1) / (b * m / whole).sum(1)


def _summary(values: Tensor, shares: Sequence[float], failing: Tensor, w: Tensor, confidence: float) -> Lift:
    k, pmi = len(shares), float((w * failing).sum() / w.sum())
    tails = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=torch.float64)

    def ends(column: Tensor) -> list[float]:
        kept = column[1:][column[1:].isfinite()]
        return kept.quantile(tails).tolist() if len(kept) else [float("nan")] * 2

    at = []
    for i, share in enumerate(shares):
        own, other = values[:, i], values[:, k + i]
        (lower, upper), (gain_lower, gain_upper) = ends(own), ends(own - other)
        at.append(
            LiftAt(
                share=share,
                precision=float(own[0]) * pmi,
                lift=float(own[0]),
                lower=lower,
                upper=upper,
                ceiling=min(1 / pmi, 1 / share),
                margin=float(other[0]),
                gain=float(own[0] - other[0]),
                gain_lower=gain_lower,
                gain_upper=gain_upper,
            )
        )
    ratio_lower, ratio_upper = ends(values[:, -2])
    return Lift(
        inputs=len(failing),
        failures=int(failing.sum()),
        pmi=pmi,
        at=tuple(at),
        ratio=float(values[0, -2]),
        ratio_lower=ratio_lower,
        ratio_upper=ratio_upper,
        margin_ratio=float(values[0, -1]),
        confidence=confidence,
    )


def _check(
    n: int,
    score: Tensor,
    failed: Tensor,
    margin: Tensor,
    predicted: Tensor,
    mass: Tensor,
    shares: Sequence[float],
    resamples: int,
    confidence: float,
) -> None:
    for name, values in (
        ("score", score),
        ("failed", failed),
        ("margin", margin),
        ("predicted", predicted),
        ("mass", mass),
    ):
        if values.shape != (n,):
            raise ValueError(f"{name} must have one value for each of {n} inputs, got shape {tuple(values.shape)}")
    check_finite(score=score, margin=margin)
    check_at_least(20, resamples=resamples, advice="500 is usual")
    for share in (confidence, *shares):
        check_between(0, 1, confidence_or_share=share)
    if not bool((mass >= 0).all()):
        raise ValueError("mass must be 0 or more for every input")
    if not 0 < int(failed.sum()) < n:
        raise ValueError(f"lift needs inputs that fail and inputs that pass, {int(failed.sum())} of {n} fail")
