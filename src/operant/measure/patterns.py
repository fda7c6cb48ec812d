"""Uncertainty patterns of a suite's cases, and how well each measure separates benign from adversarial cases.

A case is *adversarial* if the model's prediction differs from the label of its seed, and *benign* otherwise. "The
paper" is Zhang et al., 2020, sections 3.2 to 3.4 and 5.1; see `operant.measure.uncertainty`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import brentq
from scipy.stats import norm, rankdata
from torch import Tensor

from operant.measure.uncertainty import DEFAULT_THRESHOLDS, Thresholds, annotate, pattern
from operant.model import Classifier
from operant.suite import Suite
from operant.validation import check_between

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[np.float64]

MEASURES = ("pcs", "vro", "vr", "pe", "mi")
PATTERNS = ("HL", "LH", "LL", "HH")
KINDS = ("benign", "adversarial")
TITLES = {"pcs": "PCS", "vro": "VRO", "vr": "VR", "pe": "PE", "mi": "MI"}
COLOURS = {"benign": "#2e8b57", "adversarial": "#e67e22"}
MARKERS = {"HH": "*", "LL": "o", "LH": "^", "HL": "D", "": "."}  # as in the paper's Fig. 3; dots for no pattern


@dataclass(frozen=True, kw_only=True)
class AUC:
    """The probability that a score is higher for an adversarial case than for a benign one; ties count half."""

    value: float  # 0.5 for an uninformative score, 1 for perfect separation
    lower: float
    upper: float
    confidence: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ({self.lower:.4f} to {self.upper:.4f})"


def auc(score: Tensor, adversarial: Tensor, *, confidence: float = 0.95) -> AUC:
    """Area under the ROC curve, with DeLong's interval.

        AUC = (1/mn) Σ_{i,j} [s_i > s_j] + [s_i = s_j] / 2        i adversarial, j benign        (1)
        Var = Var_i(V_i) / m + Var_j(W_j) / n                                                    (2)

    with V_i the share of benign cases below i, and W_j the share of adversarial cases above j. The interval is
    symmetric in log odds, so it stays within 0 and 1. If the two kinds do not overlap, (2) is 0 and useless; then the
    interval is Newcombe's (2006, method 5).

    The interval covers the choice of cases, not of masks, and assumes independent cases. If both kinds have cases of
    the same seed with correlated scores, it is somewhat too wide.

    Args:
        score: ``(N,)``, high for adversarial.
        adversarial: ``(N,)`` booleans; at least two cases of each kind.
    """
    v, w = _placements(score, adversarial)
    value, z = float(v.mean()), _z(confidence)
    if min(value, 1 - value) < 1e-12:
        lower, upper = _newcombe(round(value), len(v), len(w), z)
    else:
        reach = z * math.sqrt(_variance(v, w)) / (value * (1 - value))  # by the derivative of log odds
        lower, upper = (_of_log_odds(math.log(value / (1 - value)) + side * reach) for side in (-1, 1))
    return AUC(value=value, lower=lower, upper=upper, confidence=confidence)


def auc_difference(first: Tensor, second: Tensor, adversarial: Tensor, *, confidence: float = 0.95) -> AUC:
    """The first score's area minus the second's on the same cases, with DeLong's interval of the difference.

    If the interval lies above 0, the first score separates the kinds better.
    """
    (v1, w1), (v2, w2) = _placements(first, adversarial), _placements(second, adversarial)
    value = float(v1.mean() - v2.mean())
    reach = _z(confidence) * math.sqrt(_variance(v1 - v2, w1 - w2))
    return AUC(value=value, lower=max(-1.0, value - reach), upper=min(1.0, value + reach), confidence=confidence)


def _placements(score: Tensor, adversarial: Tensor) -> tuple[Array, Array]:
    """V of adversarial and W of benign cases, from ranks instead of the double sum in (1)."""
    s, high = score.double().cpu().numpy(), adversarial.bool().cpu().numpy()
    if s.shape != high.shape or s.ndim != 1 or np.isnan(s).any():
        raise ValueError(f"scores and kinds must be one per case without NaN, got shapes {s.shape} and {high.shape}")
    m, n = int(high.sum()), int((~high).sum())
    if min(m, n) < 2:
        raise ValueError(f"there must be at least two cases of each kind, got {m} adversarial and {n} benign ones")
    ranks = rankdata(s)
    v = (ranks[high] - rankdata(s[high])) / n
    w = 1 - (ranks[~high] - rankdata(s[~high])) / m
    return v, w


def _variance(v: Array, w: Array) -> float:
    return float(v.var(ddof=1) / len(v) + w.var(ddof=1) / len(w))  # (2)


def _of_log_odds(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > 0 else 1 - 1 / (1 + math.exp(value))


def _newcombe(value: int, m: int, n: int, z: float) -> tuple[float, float]:
    """Interval for an observed area of 0 or 1: all true areas a compatible with it, by the variance under a."""

    def excess(a: float) -> float:
        spread = 1 + ((m + n) / 2 - 1) * ((1 - a) / (2 - a) + a / (1 + a))
        return abs(value - a) - z * math.sqrt(a * (1 - a) * spread / (m * n))

    edge = float(brentq(excess, 1e-12, 1 - 1e-12))
    return (edge, 1.0) if value else (0.0, edge)


def _z(confidence: float) -> float:
    """The two-sided normal quantile."""
    check_between(0, 1, confidence=confidence, advice="0.95 is usual")
    return float(norm.isf((1 - confidence) / 2))


@dataclass(frozen=True, kw_only=True)
class KindSummary:
    """Summary of the benign or the adversarial cases of one method."""

    method: str
    kind: str  # "benign" or "adversarial"
    cases: int
    mean: dict[str, float]  # by measure
    variance: dict[str, float]  # by measure; divided by n, not n - 1
    patterns: dict[str, int]  # number of cases by pattern; "" counts those without one


@dataclass(frozen=True, kw_only=True)
class Characterisation:
    """Uncertainty of suites by method: the content of the paper's Tables 3 and 4.

    Attributes:
        auc: by method and measure, its adversarial cases against the benign ones of all methods; methods with too few
            are left out. The sign of PCS is reversed.
    """

    kinds: tuple[KindSummary, ...]  # for each method the benign, then the adversarial cases
    auc: dict[str, dict[str, AUC]]
    thresholds: Thresholds
    passes: int | None  # T, or None if the suites already had the columns

    def __str__(self) -> str:
        width = max(len(f"{k.method}, {k.kind}") for k in self.kinds)
        head = f"{'':{width}}  cases  " + "  ".join(f"{TITLES[name]:>13}" for name in MEASURES)
        lines = [head + "  " + "  ".join(f"{name:>5}" for name in (*PATTERNS, "none"))]
        for k in self.kinds:
            moments = "  ".join(f"{k.mean[name]:.3f} / {k.variance[name]:.3f}" for name in MEASURES)
            counts = "  ".join(f"{k.patterns[name]:5d}" for name in (*PATTERNS, ""))
            lines.append(f"{f'{k.method}, {k.kind}':{width}}  {k.cases:5d}  {moments}  {counts}")
        lines.append("mean / variance of each measure; cases that follow each pattern (first letter PCS, second VRO)")
        for method, areas in self.auc.items():
            by_measure = ", ".join(f"{TITLES[name]} {areas[name]}" for name in MEASURES)
            lines.append(f"AUC of {method} against benign: {by_measure}")
        return "\n".join(lines)


def characterise(
    suites: Suite | Sequence[Suite],
    model: Classifier | None = None,
    *,
    passes: int = 50,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> Characterisation:
    """Summarise the uncertainty of each method's cases, and how well each measure separates benign from adversarial.

    Cases are grouped by the suites' ``method``. The paper compares adversarial cases with *unchanged* benign inputs:
    give these as a suite of their own (`judge(model, samples, samples.x, method="inputs")`) and only the ``failures()``
    of attacks; otherwise unsuccessful attack cases count as benign too.

    Args:
        suites: one or several, of one model.
        model: one with dropout; None uses the columns of `annotate`.
        passes, generator: of `annotate`; not needed without a model.
        confidence: of the intervals.
    """
    suite = suites if isinstance(suites, Suite) else Suite.concat(suites)
    if len(suite) == 0:
        raise ValueError("there are no cases to characterise; give suites with some")
    if model is not None:
        if generator is None:
            raise ValueError("masks are drawn at random: give a generator, such as spawn(0, 'masks')")
        suite = annotate(model, suite, passes=passes, generator=generator)
        parts = torch.arange(len(suite)).split(model.batch_size)
        suite = replace(suite, prediction=torch.cat([model.predict(suite.rows.take(part)) for part in parts]))
    values = _columns(suite, MEASURES)
    wrong = suite.prediction != suite.label
    which = pattern(values["pcs"], values["vro"], thresholds)
    masks = {method: torch.from_numpy(suite.method == method) for method in dict.fromkeys(suite.method.tolist())}
    groups = [(m, kind, mask & (wrong == bool(bad))) for m, mask in masks.items() for bad, kind in enumerate(KINDS)]
    areas = {method: _areas(values, wrong, mask, confidence) for method, mask in masks.items()}
    return Characterisation(
        kinds=tuple(_summary(method, kind, values, which, rows) for method, kind, rows in groups if rows.any()),
        auc={method: by_measure for method, by_measure in areas.items() if by_measure},
        thresholds=thresholds,
        passes=None if model is None else passes,
    )


def _columns(suite: Suite, names: Sequence[str]) -> dict[str, Tensor]:
    if missing := [name for name in names if name not in suite.columns]:
        raise ValueError(f"the suite lacks the columns {', '.join(missing)}; add them with annotate(model, suite, ...)")
    return {name: torch.as_tensor(suite[name]).double() for name in names}


def _summary(
    method: str, kind: str, values: dict[str, Tensor], which: npt.NDArray[np.str_], rows: Tensor
) -> KindSummary:
    chosen = {name: column[rows] for name, column in values.items()}
    return KindSummary(
        method=method,
        kind=kind,
        cases=int(rows.sum()),
        mean={name: float(column.mean()) for name, column in chosen.items()},
        variance={name: float(column.var(correction=0)) for name, column in chosen.items()},
        patterns={name: int((which[rows.numpy()] == name).sum()) for name in (*PATTERNS, "")},
    )


def _areas(values: dict[str, Tensor], wrong: Tensor, of_method: Tensor, confidence: float) -> dict[str, AUC]:
    """One method's adversarial cases against all benign ones; empty if there are too few."""
    adversarial = wrong & of_method
    if min(int(adversarial.sum()), int((~wrong).sum())) < 2:
        return {}
    rows, kinds = adversarial | ~wrong, wrong[adversarial | ~wrong]
    return {name: auc(toward_adversarial(name, v)[rows], kinds, confidence=confidence) for name, v in values.items()}


def toward_adversarial(name: str, values: Tensor) -> Tensor:
    """The measure with the sign that makes it high for adversarial cases: only PCS is reversed."""
    return -values if name == "pcs" else values


def plot_plane(suite: Suite, *, thresholds: Thresholds = DEFAULT_THRESHOLDS, title: str = "") -> Figure:
    """Scatter plot of PCS and VRO, as in the paper's Fig. 3: adversarial cases orange, benign ones green.

    The marker shows the pattern that a case was generated for (``aim``), if any, else the pattern it follows. Cases
    that missed their aim are hollow. Lines are the thresholds. The suite needs the columns of `annotate` or of
    `UncertaintyFuzz`.
    """
    from matplotlib.figure import Figure

    values = _columns(suite, ("pcs", "vro"))
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.subplots()
    shape = pattern(values["pcs"], values["vro"], thresholds) if len(suite) else np.array([], dtype=np.str_)
    if "aim" in suite.columns:
        shape = np.where(suite["aim"] == "", shape, suite["aim"])
    reached = torch.as_tensor(suite.columns.get("reached", torch.ones(len(suite)))).numpy() != 0  # NaN: no aim
    wrong = (suite.prediction != suite.label).numpy()
    for mark, (bad, kind), full in product(MARKERS, enumerate(KINDS), (True, False)):
        rows = (shape == mark) & (wrong == bool(bad)) & (reached == full)
        if rows.any():
            _scatter(axes, values["pcs"].numpy()[rows], values["vro"].numpy()[rows], mark, kind, full=full)
    _frame(axes, thresholds, title)
    return figure


def _scatter(axes: Axes, pcs: Array, vro: Array, mark: str, kind: str, *, full: bool) -> None:
    axes.scatter(
        pcs,
        vro,
        s=55 if mark == "*" else 22,
        marker=MARKERS[mark],
        facecolors=COLOURS[kind] if full else "none",
        edgecolors=COLOURS[kind],
        linewidths=0.8,
        alpha=0.8,
        label=f"{mark or 'no pattern'}, {kind}{'' if full else ', not reached'}",
    )


def _frame(axes: Axes, thresholds: Thresholds, title: str) -> None:
    for value in (thresholds.low_pcs, thresholds.high_pcs):
        axes.axvline(value, color="black", linewidth=0.6, linestyle=":")
    for value in (thresholds.low_vro, thresholds.high_vro):
        axes.axhline(value, color="black", linewidth=0.6, linestyle=":")
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="PCS (confidence)", ylabel="VRO (instability)", title=title)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
