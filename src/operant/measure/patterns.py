"""Suites seen by uncertainty: which pattern each case follows, and how well measures tell benign from adversarial.

A case is *adversarial* if the model does not give it the label of its seed, and *benign* otherwise.

References:
    | Towards Characterizing Adversarial Defects of Deep Learning Software from the Lens of Uncertainty
    | (Zhang et al., 2020), sections 3.2 to 3.4 and 5.1
    | https://arxiv.org/abs/2004.11573
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import brentq
from scipy.stats import norm, rankdata
from torch import Tensor

from operant.measure.uncertainty import annotate, pattern
from operant.model import Classifier
from operant.suite import Suite

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[np.float64]

MEASURES = ("pcs", "vro", "vr", "pe", "mi")
PATTERNS = ("HL", "LH", "LL", "HH")
KINDS = ("benign", "adversarial")
TITLES = {"pcs": "PCS", "vro": "VRO", "vr": "VR", "pe": "PE", "mi": "MI"}
COLOURS = {"benign": "#2e8b57", "adversarial": "#e67e22"}
MARKERS = {"HH": "*", "LL": "o", "LH": "^", "HL": "D", "": "."}  # as in the paper's Fig. 3, and dots for no pattern

# Patterns -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """What counts as low and as high, both strictly; the defaults are the paper's.

    Attributes:
        low_pcs, high_pcs: of the prediction confidence score.
        low_vro, high_vro: of the variation ratio from the original prediction. It depends on where dropout sits and on
            how strong it is, which the paper does not say.
    """

    low_pcs: float = 0.3
    high_pcs: float = 0.7
    low_vro: float = 0.4
    high_vro: float = 0.6

    def __post_init__(self) -> None:
        for what, low, high in (("pcs", self.low_pcs, self.high_pcs), ("vro", self.low_vro, self.high_vro)):
            if not 0 <= low <= high <= 1:
                raise ValueError(
                    f"low_{what} must be 0 or more, high_{what} at most 1, and low not above high, got {low} and {high}"
                )


DEFAULT = Thresholds()


def patterns(pcs: Tensor, vro: Tensor, thresholds: Thresholds = DEFAULT) -> npt.NDArray[np.str_]:
    """The pattern of each row, as `pattern` tells it: ``LL``, ``LH``, ``HL``, ``HH``, or ``""`` between thresholds.

    >>> patterns(torch.tensor([0.9, 0.1]), torch.tensor([0.3, 0.3]), Thresholds(low_vro=0.2, high_vro=0.2)).tolist()
    ['HH', 'LH']
    """
    return pattern(pcs, vro, **asdict(thresholds))


# How well a score tells two kinds apart -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AUC:
    """The chance that a score is higher for an adversarial case than for a benign one, ties counted half.

    Attributes:
        value: 0.5 for a score that tells nothing, 1 for one that tells all.
        lower, upper: an interval that holds the truth with ``confidence``.
    """

    value: float
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
    symmetric on the scale of log odds, so that it stays within 0 and 1. Where the two kinds do not overlap, (2) is 0
    and says nothing; there the interval is Newcombe's (2006, method 5).

    It tells what other cases might give, not other masks; and it takes cases for independent. Where cases of one seed
    are in both kinds and their scores rise and fall together, it is somewhat too wide.

    Args:
        score: ``(N,)``, high for adversarial.
        adversarial: ``(N,)`` truths; both kinds must be there.
    """
    v, w = _placements(score, adversarial)
    value = float(v.mean())
    z = float(norm.isf((1 - _checked_confidence(confidence)) / 2))
    if min(value, 1 - value) < 1e-12:
        lower, upper = _newcombe(round(value), len(v), len(w), z)
    else:
        reach = z * math.sqrt(_variance(v, w)) / (value * (1 - value))  # by the derivative of log odds
        lower, upper = (_of_log_odds(math.log(value / (1 - value)) + side * reach) for side in (-1, 1))
    return AUC(value=value, lower=lower, upper=upper, confidence=confidence)


def auc_difference(first: Tensor, second: Tensor, adversarial: Tensor, *, confidence: float = 0.95) -> AUC:
    """By how much the first score's area exceeds the second's, on the same cases; DeLong's interval of the difference.

    An interval that lies above 0 says that the first score tells the kinds apart better.
    """
    (v1, w1), (v2, w2) = _placements(first, adversarial), _placements(second, adversarial)
    value = float(v1.mean() - v2.mean())
    z = float(norm.isf((1 - _checked_confidence(confidence)) / 2))
    reach = z * math.sqrt(_variance(v1 - v2, w1 - w2))
    return AUC(value=value, lower=max(-1.0, value - reach), upper=min(1.0, value + reach), confidence=confidence)


def _placements(score: Tensor, adversarial: Tensor) -> tuple[Array, Array]:
    """V of adversarial and W of benign cases, from ranks: the sum in (1) is never formed."""
    s, high = score.double().cpu().numpy(), adversarial.bool().cpu().numpy()
    if s.shape != high.shape or s.ndim != 1 or np.isnan(s).any():
        raise ValueError(f"scores and kinds must be one a case without NaN, got shapes {s.shape} and {high.shape}")
    m, n = int(high.sum()), int((~high).sum())
    if min(m, n) < 2:
        raise ValueError(f"both kinds must be there, two of each at least, got {m} adversarial and {n} benign cases")
    ranks = rankdata(s)
    v = (ranks[high] - rankdata(s[high])) / n
    w = 1 - (ranks[~high] - rankdata(s[~high])) / m
    return v, w


def _variance(v: Array, w: Array) -> float:
    return float(v.var(ddof=1) / len(v) + w.var(ddof=1) / len(w))  # (2)


def _of_log_odds(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > 0 else 1 - 1 / (1 + math.exp(value))


def _newcombe(value: int, m: int, n: int, z: float) -> tuple[float, float]:
    """All values a that do not contradict an area of 0 or 1, by the variance that they themselves would give."""

    def excess(a: float) -> float:
        spread = 1 + ((m + n) / 2 - 1) * ((1 - a) / (2 - a) + a / (1 + a))
        return abs(value - a) - z * math.sqrt(a * (1 - a) * spread / (m * n))

    edge = float(brentq(excess, 1e-12, 1 - 1e-12))
    return (edge, 1.0) if value else (0.0, edge)


def _checked_confidence(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}; 0.95 is usual")
    return confidence


# Suites ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The benign or the adversarial cases of one method.

    Attributes:
        method: how they were made.
        kind: ``"benign"`` or ``"adversarial"``.
        cases: how many.
        mean, variance: by measure, over the cases; the variance is n's, not n - 1's.
        patterns: how many follow each pattern, and under ``""`` how many none.
    """

    method: str
    kind: str
    cases: int
    mean: dict[str, float]
    variance: dict[str, float]
    patterns: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Characterised:
    """Suites in the plane of PCS and VRO: the content of the paper's Tables 3 and 4.

    Attributes:
        kinds: by method, the benign and then the adversarial cases.
        auc: by method and measure, its adversarial cases against the benign ones of all methods; methods without
            enough of them are left out. PCS counts with its sign turned.
        thresholds: of the patterns.
        passes: T, or None where columns were already there.
    """

    kinds: tuple[Kind, ...]
    auc: dict[str, dict[str, AUC]]
    thresholds: Thresholds
    passes: int | None

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
            told = ", ".join(f"{TITLES[name]} {areas[name]}" for name in MEASURES)
            lines.append(f"AUC of {method} against benign: {told}")
        return "\n".join(lines)


def characterise(
    suites: Suite | Sequence[Suite],
    model: Classifier | None = None,
    *,
    passes: int = 50,
    thresholds: Thresholds = DEFAULT,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> Characterised:
    """How the cases of each method lie in uncertainty, and how well each measure tells benign from adversarial.

    Methods are told apart by the suites' ``method``. The paper compares adversarial cases with *unchanged* benign
    inputs: give these as a suite of their own (`judge(model, samples, samples.x, method="inputs")`) and of attacks only
    the ``failures()``, or cases that attacks changed in vain count as benign too.

    Args:
        suites: one or several, of one model.
        model: one with dropout; None takes the columns that `annotate` has left.
        passes: T; the paper takes 50 for MNIST and 100 for larger images.
        thresholds: of the patterns.
        confidence: of the intervals.
        generator: is asked for one number; not needed without a model.
    """
    suite = suites if isinstance(suites, Suite) else Suite.concat(suites)
    if len(suite) == 0:
        raise ValueError("there are no cases to characterise; give suites with some")
    if model is not None:
        if generator is None:
            raise ValueError("masks are drawn at random: give a generator, such as spawn(0, 'masks')")
        suite = annotate(model, suite, passes=passes, generator=generator)
        suite = _as_the_model_says(model, suite)
    values = _columns(suite, MEASURES)
    wrong = suite.prediction != suite.label
    which = patterns(values["pcs"], values["vro"], thresholds)
    methods = dict.fromkeys(suite.method.tolist())
    kinds = [
        _kind(method, kind, values, which, torch.from_numpy(suite.method == method) & (wrong == bool(bad)))
        for method in methods
        for bad, kind in enumerate(KINDS)
    ]
    areas = {method: _areas(values, wrong, suite.method == method, confidence) for method in methods}
    return Characterised(
        kinds=tuple(kind for kind in kinds if kind.cases),
        auc={method: found for method, found in areas.items() if found},
        thresholds=thresholds,
        passes=None if model is None else passes,
    )


def _as_the_model_says(model: Classifier, suite: Suite) -> Suite:
    rows = torch.arange(len(suite)).split(model.batch_size)
    return replace(suite, prediction=torch.cat([model.predict(suite.rows.take(part)) for part in rows]))


def _columns(suite: Suite, names: Sequence[str]) -> dict[str, Tensor]:
    if missing := [name for name in names if name not in suite.columns]:
        raise ValueError(
            f"this suite lacks the columns {', '.join(missing)}; annotate(model, suite, ...) gives them, for a model "
            "with dropout"
        )
    return {name: torch.as_tensor(suite[name]).double() for name in names}


def _kind(method: str, kind: str, values: dict[str, Tensor], which: npt.NDArray[np.str_], rows: Tensor) -> Kind:
    some = {name: column[rows] for name, column in values.items()}
    there = bool(rows.any())
    return Kind(
        method=method,
        kind=kind,
        cases=int(rows.sum()),
        mean={name: float(column.mean()) if there else math.nan for name, column in some.items()},
        variance={name: float(column.var(correction=0)) if there else math.nan for name, column in some.items()},
        patterns={name: int((which[rows.numpy()] == name).sum()) for name in (*PATTERNS, "")},
    )


def _areas(
    values: dict[str, Tensor], wrong: Tensor, of_method: npt.NDArray[np.bool_], confidence: float
) -> dict[str, AUC]:
    """One method's adversarial cases against all benign ones; nothing where there are too few."""
    adversarial = wrong & torch.from_numpy(of_method)
    rows = adversarial | ~wrong
    if min(int(adversarial.sum()), int((~wrong).sum())) < 2:
        return {}
    return {
        name: auc(toward_adversarial(name, values[name])[rows], wrong[rows], confidence=confidence) for name in values
    }


def toward_adversarial(name: str, values: Tensor) -> Tensor:
    """A measure with the sign by which it is high for adversarial cases: only PCS falls."""
    return -values if name == "pcs" else values


# The plane ------------------------------------------------------------------------------------------------------------


def plot_plane(suite: Suite, *, thresholds: Thresholds = DEFAULT, title: str = "") -> Figure:
    """Cases in the plane of PCS and VRO, as in the paper's Fig. 3: adversarial ones orange, benign ones green.

    The shape is the pattern that a case was made for (``aim``), where it was made for one, else the pattern it follows;
    cases that did not reach their aim are hollow. Lines are the thresholds.

    Args:
        suite: with the columns ``pcs`` and ``vro``, of `annotate` or of `UncertaintyFuzz`.
    """
    from matplotlib.figure import Figure

    values = _columns(suite, ("pcs", "vro"))
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.subplots()
    shape = patterns(values["pcs"], values["vro"], thresholds) if len(suite) else np.array([], dtype=np.str_)
    if "aim" in suite.columns:
        shape = np.where(suite["aim"] == "", shape, suite["aim"])
    reached = torch.as_tensor(suite.columns.get("reached", torch.ones(len(suite)))).numpy() != 0  # NaN: had no aim
    wrong = (suite.prediction != suite.label).numpy()
    for mark in MARKERS:
        for bad, kind in enumerate(KINDS):
            for full in (True, False):
                rows = (shape == mark) & (wrong == bool(bad)) & (reached == full)
                _scatter(axes, values, rows, mark, kind, full=full)
    _frame(axes, thresholds, title)
    return figure


def _scatter(
    axes: Axes, values: dict[str, Tensor], rows: npt.NDArray[np.bool_], mark: str, kind: str, *, full: bool
) -> None:
    if not rows.any():
        return
    axes.scatter(
        values["pcs"].numpy()[rows],
        values["vro"].numpy()[rows],
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
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="PCS, how decided", ylabel="VRO, how unstable", title=title)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
