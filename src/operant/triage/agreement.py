"""Agreement between people beyond chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt

from operant.suite.verdicts import VERDICTS
from operant.triage.verdicts import read_verdicts

MAX_LISTED_ROWS = 20  # in a printed sentence


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The agreement of two people's verdicts on the same cases.

    Attributes:
        both: number of cases that both have judged.
        same: number of those with equal verdicts.
        kappa: Cohen's; 1 full agreement, 0 chance level; NaN where chance alone gives full agreement.
        rows: of the suite, where they differ.
    """

    people: tuple[str, str]
    both: int
    same: int
    kappa: float
    rows: tuple[int, ...]

    def __str__(self) -> str:
        kappa = "undefined" if math.isnan(self.kappa) else f"{self.kappa:.2f}"
        rows = ", ".join(map(str, self.rows[:MAX_LISTED_ROWS])) + (", …" if len(self.rows) > MAX_LISTED_ROWS else "")
        differ = f"; they differ on rows {rows}" if self.rows else ""
        return f"{' and '.join(self.people)} agree on {self.same} of {self.both} cases (Cohen's kappa {kappa}){differ}"


def cohens_kappa(a: Sequence[int] | npt.NDArray[np.int8], b: Sequence[int] | npt.NDArray[np.int8]) -> float:
    """Cohen's kappa of two raters' categories, one per item.

        κ = (p_o - p_e) / (1 - p_e),   p_o = share of equal ones,   p_e = Σ_c p_a(c) p_b(c)        (1)

    >>> cohens_kappa([1, 1, 2, 2], [1, 2, 2, 2])
    0.5

    References:
        | A Coefficient of Agreement for Nominal Scales (Cohen, 1960)
        | https://doi.org/10.1177/001316446002000104
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"both raters must have one category per item, got shapes {a.shape} and {b.shape}")
    if len(a) == 0:
        return math.nan
    categories = np.union1d(a, b)
    observed = float((a == b).mean())
    expected = float(sum((a == c).mean() * (b == c).mean() for c in categories))
    return (observed - expected) / (1 - expected) if expected < 1 else math.nan  # (1)


def agreements(codes: Mapping[str, npt.NDArray[np.int8]]) -> list[Agreement]:
    """The agreement of every two people who judged a common case; ``codes`` by person, 0 where not judged."""
    found = []
    for first, second in combinations(sorted(codes), 2):
        a, b = codes[first], codes[second]
        both = (a > 0) & (b > 0)
        if n := int(both.sum()):
            kappa, rows = cohens_kappa(a[both], b[both]), np.flatnonzero(both & (a != b)).tolist()
            same = n - len(rows)
            found.append(Agreement(people=(first, second), both=n, same=same, kappa=kappa, rows=tuple(rows)))
    return found


def agreement(path: str | Path) -> list[Agreement]:
    """The agreement of the people who judged a suite, for every pair."""
    judgements = [judgement for judgement in read_verdicts(path) if judgement.verdict]
    n = 1 + max((judgement.row for judgement in judgements), default=-1)
    codes = {judgement.by: np.zeros(n, dtype=np.int8) for judgement in judgements}
    for judgement in judgements:
        codes[judgement.by][judgement.row] = 1 + VERDICTS.index(judgement.verdict)
    return agreements(codes)
