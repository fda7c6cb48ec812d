"""How far people agree beyond chance."""

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

NAMED = 20  # rows named in a sentence


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How two people's verdicts on the same cases compare.

    Attributes:
        people: the two.
        both: cases that both have judged.
        same: those of which they say the same.
        kappa: Cohen's; 1 full agreement, 0 what chance would give; NaN where chance alone would agree on all.
        rows: of the suite, where they differ.
    """

    people: tuple[str, str]
    both: int
    same: int
    kappa: float
    rows: tuple[int, ...]

    def __str__(self) -> str:
        told = "cannot be told" if math.isnan(self.kappa) else f"{self.kappa:.2f}"
        named = ", ".join(map(str, self.rows[:NAMED])) + (", …" if len(self.rows) > NAMED else "")
        differ = f"; they differ on rows {named}" if self.rows else ""
        return f"{' and '.join(self.people)} agree on {self.same} of {self.both} cases (Cohen's kappa {told}){differ}"


def cohens_kappa(a: Sequence[int] | npt.NDArray[np.int8], b: Sequence[int] | npt.NDArray[np.int8]) -> float:
    """Cohen's kappa of two raters' categories, one each for every item.

        κ = (p_o - p_e) / (1 - p_e),   p_o = share of equal ones,   p_e = Σ_c p_a(c) p_b(c)        (1)

    >>> cohens_kappa([1, 1, 2, 2], [1, 2, 2, 2])
    0.5

    References:
        | A Coefficient of Agreement for Nominal Scales (Cohen, 1960)
        | https://doi.org/10.1177/001316446002000104
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"both must have one category for each item, got shapes {a.shape} and {b.shape}")
    if len(a) == 0:
        return math.nan
    categories = np.union1d(a, b)
    observed = float((a == b).mean())
    expected = float(sum((a == c).mean() * (b == c).mean() for c in categories))
    return (observed - expected) / (1 - expected) if expected < 1 else math.nan  # (1)


def agreements(codes: Mapping[str, npt.NDArray[np.int8]]) -> list[Agreement]:
    """Every two people that have judged the same case; ``codes`` are by person, 0 where nothing is said."""
    found = []
    for first, second in combinations(sorted(codes), 2):
        a, b = codes[first], codes[second]
        both = (a > 0) & (b > 0)
        if not both.any():
            continue
        found.append(
            Agreement(
                people=(first, second),
                both=int(both.sum()),
                same=int((a == b)[both].sum()),
                kappa=cohens_kappa(a[both], b[both]),
                rows=tuple(np.flatnonzero(both & (a != b)).tolist()),
            )
        )
    return found


def agreement(path: str | Path) -> list[Agreement]:
    """How far the people that judged a suite agree, two at a time."""
    said = [judgement for judgement in read_verdicts(path) if judgement.verdict]
    n = 1 + max((judgement.row for judgement in said), default=-1)
    codes = {judgement.by: np.zeros(n, dtype=np.int8) for judgement in said}
    for judgement in said:
        codes[judgement.by][judgement.row] = 1 + VERDICTS.index(judgement.verdict)
    return agreements(codes)
