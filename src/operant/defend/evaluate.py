"""Evaluation of defences on the benign and adversarial cases of a suite, by pattern of uncertainty."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from scipy.stats import beta
from torch import Tensor

from operant.formatting import at_least, percent
from operant.measure.patterns import PATTERNS
from operant.measure.uncertainty import DEFAULT_THRESHOLDS, Thresholds, pattern
from operant.suite import Suite
from operant.validation import check_between, check_not_empty

ALL, NONE = "all", "none"
KINDS = ("benign", "adversarial", ALL)
BATCH_CASES = 2048  # cases read at once


class Detector(Protocol):
    """A defence that accepts inputs as benign or rejects them."""

    def accepts(self, x: Tensor) -> Tensor: ...


class Corrector(Protocol):
    """A defence that classifies inputs in its own way; every `Classifier` is one."""

    def predict(self, x: Tensor) -> Tensor: ...


Defence = Detector | Corrector | Callable[[Tensor], Tensor]
"""A function also works: from inputs to booleans (accepted or not) or to labels."""


@dataclass(frozen=True, kw_only=True)
class Success:
    """The success rate of one defence on one group of cases.

    Attributes:
        kind: ``"benign"``, ``"adversarial"`` or ``"all"``.
        pattern: ``"all"``, ``"HL"``, ``"LH"``, ``"LL"``, ``"HH"``, or ``"none"`` for cases between the thresholds.
        k, n, seeds: number of successes, of cases, and of seeds that these come from.
        lower, upper: interval of the success probability.
    """

    defence: str
    kind: str
    pattern: str
    k: int
    n: int
    seeds: int
    lower: float
    upper: float

    @property
    def value(self) -> float:
        return self.k / self.n

    def __str__(self) -> str:
        lower, upper = (percent(share, 2).removesuffix(" %") for share in (self.lower, self.upper))
        return f"{percent(self.value, 2)} ({lower}-{upper})"


@dataclass(frozen=True, kw_only=True)
class DefenceTable:
    """The result of `evaluate_defences`: one `Success` per defence, kind and pattern that has cases, in this order.

    ``detectors`` are the names of the defences that accept or reject; the others classify.
    """

    rows: tuple[Success, ...]
    detectors: tuple[str, ...]
    confidence: float

    def of(self, defence: str, kind: str = ALL, pattern: str = ALL) -> Success:
        """One row; raises if there are no such cases."""
        for row in self.rows:
            if (row.defence, row.kind, row.pattern) == (defence, kind, pattern):
                return row
        there = sorted({f"{row.kind} {row.pattern}" for row in self.rows if row.defence == defence})
        names = dict.fromkeys(row.defence for row in self.rows)
        if there:
            raise KeyError(f"no cases {kind} {pattern} for {defence}; there are {', '.join(there)}")
        raise KeyError(f"no defence named {defence}; there are {', '.join(names)}")

    def __str__(self) -> str:
        there = {row.pattern for row in self.rows}
        shown = [p for p in (ALL, *PATTERNS, NONE) if p in there]
        cells = {(row.defence, row.kind, row.pattern): str(row) for row in self.rows}
        lines = {(row.defence, row.kind): row.n for row in self.rows if row.pattern == ALL}
        names = max(len(defence) for defence, _ in lines)
        width = max(len(cell) for cell in cells.values())
        text = [f"{'':{names}}  {'':11}  cases  " + "  ".join(f"{p:>{width}}" for p in shown)]
        for (defence, kind), n in lines.items():
            row = "  ".join(f"{cells.get((defence, kind, p), '-'):>{width}}" for p in shown)
            text.append(f"{defence:{names}}  {kind:11}  {n:5d}  {row}")
        legend = [f"{', '.join(self.detectors)}: accept benign and reject adversarial cases"] if self.detectors else []
        if len(self.detectors) < len({defence for defence, _ in lines}):
            legend.append("the others: predict the seed's label")
        return "\n".join(
            [*text, f"Success with {at_least(self.confidence)} intervals in percent. {'; '.join(legend)}."]
        )


def evaluate_defences(
    suite: Suite,
    defences: Mapping[str, Defence],
    *,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    confidence: float = 0.95,
) -> DefenceTable:
    """The success rate of each defence by kind of case, and by pattern where the suite has uncertainty columns.

    A case is adversarial if the suite's ``prediction`` is not its label, and benign otherwise. A detector succeeds if
    it accepts a benign case or rejects an adversarial one; any other defence succeeds if it predicts the label.
    Patterns come from the columns ``pcs`` and ``vro`` (see `annotate` and `UncertaintyFuzz`); without them all cases
    are one group.

    Intervals are Clopper-Pearson. Several cases of one seed count as if the defence always treated them alike: the
    number of trials is that of equally large seeds, n² / Σ n_s² for n_s cases of seed s.

    Args:
        defences: by name; each has ``accepts(x)`` or ``predict(x)``, or is a function from inputs to booleans
            (accepted or not) or to labels.

    References:
        | Towards Characterizing Adversarial Defects of Deep Learning Software from the Lens of Uncertainty
        | (Zhang et al., 2020), section 5.2, https://arxiv.org/abs/2004.11573
    """
    check_not_empty(suite=suite, advice="give one with cases")
    check_not_empty(defences=defences, advice="give at least one by name, such as {'none': model}")
    check_between(0, 1, confidence=confidence, advice="0.95 is usual")
    groups = list(_groups(suite, thresholds))
    adversarial = suite.prediction != suite.label
    parts = torch.arange(len(suite)).split(BATCH_CASES)
    rows, detectors = list[Success](), list[str]()
    for name, defence in defences.items():
        answer = torch.cat([ask(name, defence, suite.rows.take(part)) for part in parts]).cpu()
        detects = answer.dtype == torch.bool
        detectors += [name] * detects
        good = answer != adversarial if detects else answer == suite.label
        rows += [_success(name, kind, pattern, good[i], suite.seed[i], confidence) for kind, pattern, i in groups]
    return DefenceTable(rows=tuple(rows), detectors=tuple(detectors), confidence=confidence)


def ask(name: str, defence: Any, x: Tensor) -> Tensor:
    """A defence's answer for each input: booleans or labels, ``(N,)``."""
    function = getattr(defence, "accepts", None) or getattr(defence, "predict", None) or defence
    if not callable(function):
        raise TypeError(f"{name} is not a defence: it has neither accepts(x) nor predict(x) and is not a function")
    answer = torch.as_tensor(function(x))
    if answer.shape != (len(x),) or answer.is_floating_point() or answer.is_complex():
        got = f"{answer.dtype} of shape {tuple(answer.shape)}"
        raise ValueError(f"{name} must return one boolean or integer label for each of {len(x)} inputs, got {got}")
    return answer


def _groups(suite: Suite, thresholds: Thresholds) -> Iterator[tuple[str, str, Tensor]]:
    """Kind, pattern and rows of each group that has cases."""
    wrong = suite.prediction != suite.label
    kinds = dict(zip(KINDS, (~wrong, wrong, torch.ones_like(wrong)), strict=True))
    masks = {ALL: torch.ones_like(wrong)}
    if {"pcs", "vro"} <= suite.columns.keys():
        pcs, vro = (torch.as_tensor(suite[name]).double() for name in ("pcs", "vro"))
        which = pattern(pcs, vro, thresholds)
        masks |= {p: torch.from_numpy(np.asarray(which == ("" if p == NONE else p))) for p in (*PATTERNS, NONE)}
    for kind, of_kind in kinds.items():
        for followed, follows in masks.items():
            rows = (of_kind & follows).nonzero().flatten()
            if len(rows):
                yield kind, followed, rows


def _success(name: str, kind: str, pattern: str, good: Tensor, seed: Tensor, confidence: float) -> Success:
    k, n, each = int(good.sum()), len(good), seed.unique(return_counts=True)[1].double()
    lower, upper = interval(k, n, confidence, trials=n**2 / float(each.square().sum()))
    return Success(defence=name, kind=kind, pattern=pattern, k=k, n=n, seeds=len(each), lower=lower, upper=upper)


def interval(k: float, n: float, confidence: float, *, trials: float | None = None) -> tuple[float, float]:
    """The Clopper-Pearson interval for k of n, as wide as for this many trials (default: n).

    >>> interval(0, 10, 0.95)
    (0.0, 0.3084...)
    """
    m = n if trials is None else trials
    share, tail = k / n, (1 - confidence) / 2
    lower = float(beta.ppf(tail, share * m, (1 - share) * m + 1)) if k > 0 else 0.0
    upper = float(beta.isf(tail, share * m + 1, (1 - share) * m)) if k < n else 1.0
    return lower, upper
