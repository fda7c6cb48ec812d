"""Objectives of KuK's populations, and a fitness that depends on what a population has reached."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from operant.measure.uncertainty import Thresholds
from operant.validation import check_one_of

PATTERNS = ("LL", "HH", "HL", "LH")


@dataclass(frozen=True, kw_only=True)
class Aim:
    """One of the four objectives, for populations ``(seeds, members)``; fitness and objective are per member.

    Members are described by their PCS, by whether the model gets them ``wrong`` (AE, else BE), and by their VRO, which
    may be NaN where it is not needed. X is the population of a member x; a condition counts as 1 or 0.

        Fit_LL(x) = −PCS(x)                            min PCS(X) > p
                    [PCS(x) < p] − VRO(x)              otherwise                                  (1)

        Fit_HH(x) = PCS(x)                             max PCS(X) < p
                    [PCS(x) > p] + VRO(x)              otherwise                                  (2)

        Fit_HL(x) = −PCS(x)                            all of X are BE
                    AE(x) + PCS(x)                     some of X are AE, and max PCS(X) < p
                    AE(x) + [PCS(x) > p] − VRO(x)      otherwise                                  (3)

        Fit_LH(x) = BE(x) − PCS(x)                     min PCS(X) > p
                    BE(x) + [PCS(x) < p] + VRO(x)      otherwise                                  (4)

    Equation 4 of the paper prints VR in its last line; its text and its objective say VRO, and so do we.

    Attributes:
        pattern: LL and HH among all, HL among adversarial, LH among benign members.
        p, v: thresholds of PCS and VRO.
    """

    pattern: str
    p: float
    v: float

    @staticmethod
    def at(pattern: str, thresholds: Thresholds) -> Aim:
        """The objective of a pattern with its thresholds."""
        check_one_of(PATTERNS, pattern=pattern)
        low, high = thresholds.low_pcs, thresholds.high_pcs
        p = low if pattern[0] == "L" else high
        v = thresholds.low_vro if pattern[1] == "L" else thresholds.high_vro
        return Aim(pattern=pattern, p=p, v=v)

    def line(self, pcs: Tensor, wrong: Tensor) -> Tensor:
        """The line of its equation that applies to each population, counted from 1."""
        far = pcs.amin(1) > self.p if self.pattern[0] == "L" else pcs.amax(1) < self.p
        if self.pattern == "HL":
            return torch.where(~wrong.any(1), 1, torch.where(far, 2, 3))
        return torch.where(far, 1, 2)

    def last(self, pcs: Tensor, wrong: Tensor) -> Tensor:
        """Populations on the last line, the only one with VRO, on which the objective can be met."""
        return self.line(pcs, wrong) == (3 if self.pattern == "HL" else 2)

    def tier(self, pcs: Tensor, wrong: Tensor) -> Tensor:
        """The integer part of the last line: how many conditions of the objective, VRO aside, a member meets."""
        met = pcs < self.p if self.pattern[0] == "L" else pcs > self.p
        kind = {"HL": wrong, "LH": ~wrong}.get(self.pattern)
        return met.to(pcs.dtype) if kind is None else met.to(pcs.dtype) + kind.to(pcs.dtype)

    def fitness(self, pcs: Tensor, wrong: Tensor, vro: Tensor) -> Tensor:
        """Higher is better; NaN where VRO is needed and unknown."""
        line, tier = self.line(pcs, wrong)[:, None], self.tier(pcs, wrong)
        vro = vro.to(pcs.dtype)
        if self.pattern == "LL":
            return torch.where(line == 1, -pcs, tier - vro)  # (1)
        if self.pattern == "HH":
            return torch.where(line == 1, pcs, tier + vro)  # (2)
        if self.pattern == "HL":
            early = torch.where(line == 1, -pcs, wrong.to(pcs.dtype) + pcs)
            return torch.where(line < 3, early, tier - vro)  # (3)
        return torch.where(line == 1, (~wrong).to(pcs.dtype) - pcs, tier + vro)  # (4)

    def met(self, pcs: Tensor, wrong: Tensor, vro: Tensor) -> Tensor:
        """Members that meet the objective; one whose VRO is unknown does not."""
        right = self.tier(pcs, wrong) == (2 if self.pattern in ("HL", "LH") else 1)
        return right & (vro < self.v if self.pattern[1] == "L" else vro > self.v)

    def nearness(self, pcs: Tensor, wrong: Tensor, vro: Tensor) -> Tensor:
        """The score of members of a seed that missed the objective: PCS and VRO with the signs of the pattern.

        The paper states it for HH, as the maximum of PCS + VRO. For HL and LH, members of the required kind come first.
        """
        first, second = (1 if letter == "H" else -1 for letter in self.pattern)
        kind = {"HL": wrong, "LH": ~wrong}.get(self.pattern, torch.zeros_like(wrong))
        return first * pcs + second * vro.to(pcs.dtype) + 3 * kind.to(pcs.dtype)
