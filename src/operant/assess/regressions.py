"""A suite of unselected cases as a regression suite: which cases a later model breaks, and which it fixes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.stats import binomtest
from torch import Tensor

from operant.data import Samples
from operant.model import Classifier
from operant.suite import Suite
from operant.validation import check_not_empty


@dataclass(frozen=True, kw_only=True, eq=False)
class Regressions:
    """How a model differs on cases from an earlier one; made by `regressions`.

    Attributes:
        broken: rows of cases that passed and now fail.
        fixed: rows of cases that failed and now pass.
        cases: number of all cases.
        before, now: number of cases that failed, and that fail now.
        p_value: probability of so many more seeds broken than fixed if both were equally likely.
    """

    broken: Tensor
    fixed: Tensor
    cases: int
    before: int
    now: int
    p_value: float

    def __str__(self) -> str:
        change = f"{len(self.broken)} cases that passed now fail, {len(self.fixed)} that failed now pass"
        return f"{change}: {self.now} of {self.cases} fail, {self.before} did before (p = {self.p_value:.2g} for worse)"


def regressions(model: Classifier, cases: Suite, *, before: Classifier | None = None) -> Regressions:
    """Which cases that passed now fail, and which that failed now pass.

    The suite must hold cases that pass, such as those of `operant.generate.RecipeDraws` or ``draws/judging`` of a
    campaign's folder. Seeds, not cases, are counted for the p-value (a sign test), since cases of a seed are alike.

    Args:
        before: the earlier model (default: the one whose predictions the suite has).
    """
    check_not_empty(cases=cases, advice="draw cases with operant.generate.RecipeDraws")
    model.check(Samples(cases.x, cases.label, classes=cases.classes))
    earlier = cases.prediction if before is None else before.predict(cases.x).cpu()
    old, new = (predicted != cases.label for predicted in (earlier, model.predict(cases.x).cpu()))
    _, member = cases.seed.unique(return_inverse=True)
    change = torch.zeros(int(member.max()) + 1, dtype=torch.int64).index_add_(0, member, new.long() - old.long())
    worse, better = int((change > 0).sum()), int((change < 0).sum())
    test = binomtest(worse, worse + better, alternative="greater").pvalue if worse + better else 1.0
    return Regressions(
        broken=(new & ~old).nonzero().flatten(),
        fixed=(old & ~new).nonzero().flatten(),
        cases=len(cases),
        before=int(old.sum()),
        now=int(new.sum()),
        p_value=float(test),
    )
