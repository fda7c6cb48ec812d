"""Differences from Table 5: experiments that change one suspected cause after the other, and what they tell."""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import binomtest
from torch import Tensor

from operant.studies._work import table
from operant.studies.kuk import paper
from operant.studies.kuk.found import Found
from operant.studies.kuk.search import ADDING, CAUSES, GAP, LESSENING, Bred, few, gap, percent, to_explain


def next_change(f: Found, pattern: str) -> str | None:
    """The first suspected cause that was not tried; none once a change brings the count near the paper's, or if the
    seeds of experiments show no difference that could be told from one."""
    same, tried = f.as_it_is(pattern), f.experiments(pattern)
    if same is None or any(_near(f, bred) for bred in (same, *tried.values())):
        return None
    useless = LESSENING if gap(f.subject, same) < 0 else ADDING
    left = [c for c in CAUSES if c not in tried and c not in useless and _is_change(f, c)]
    return left[0] if left else None


def _is_change(f: Found, cause: str) -> bool:
    known = f.dropout.place(cause, f.subject.places[-1]) is not None
    return known and (cause != "wider screen" or f.subject.screen is not None)


def _near(f: Found, bred: Bred) -> bool:
    return abs(gap(f.subject, bred)) <= GAP


# The section of the page


def causes(found: Sequence[Found]) -> str:
    each = [(f, pattern) for f in found for pattern in to_explain(f.subject, f.searches())]
    head = f"## Differences of more than {100 * GAP:.0f} points, and what may cause them\n\n"
    if not each:
        return head + "There is none.\n"
    rows = [row for f, pattern in each for row in _experiment_rows(f, pattern)]
    means = "\n".join(f"- *{name}*: {what}." for name, what in CAUSES.items())
    columns = ["model", "pattern", "paper, %", "as it is, %", "nearest with", "reached, %", ""]
    nearest = table(columns, [_nearest(*of) for of in each])
    text = f"""One suspected cause after the other is changed, until the count of seeds that reach a pattern comes
within {100 * GAP:.0f} points of the paper's or none is left. That is a search of its own: a change that brings the
count near is a cause that suffices, not necessarily the paper's. What can but add, or but lessen, is tried only where
that could help. Experiments have the first seeds of the first run ({_seeds(found)}), and the same searches
*as they are* stand beside them. Intervals are Clopper-Pearson's at 95 %. p is that of McNemar's exact test that a
change does nothing, for each test alone; with n seeds it cannot be below 2 / 2^n.

{means.format(few=" or ".join(str(n) for n in dict.fromkeys(few(f.subject) for f in found)))}

What comes nearest to the paper's count:

{nearest}
"""
    columns = ["model", "pattern", "paper, %", "changed", "reached, %", "as it is", "p", "confirmed, %", "as it is"]
    return head + text + (f"Everything that was tried:\n\n{table(columns, rows)}" if rows else "")


def _seeds(found: Sequence[Found]) -> str:
    return "; ".join(f"{f.subject.title}: {f.subject.explained}" for f in found)


def _nearest(f: Found, pattern: str) -> list[object]:
    """One difference, the change that came nearest, and whether that is near enough."""
    known, same, tried = paper.reached(f.subject.name, pattern), f.as_it_is(pattern), f.experiments(pattern)
    row: list[object] = [f.subject.title, pattern, f"{100 * known:.3g}"]
    if same is None:
        return [*row, "", "", "", "not tried yet"]
    row.append(percent(same.reached))
    if _near(f, same):
        return [*row, "", "", "these seeds show no such difference"]
    best = min(tried, key=lambda cause: abs(gap(f.subject, tried[cause])), default=None)
    if best is None:
        return [*row, "", "", "not tried yet"]
    left = "not all tried yet" if next_change(f, pattern) else "**not explained**"
    verdict = f"within {100 * GAP:.0f} points" if _near(f, tried[best]) else left
    return [*row, best, percent(tried[best].reached), verdict]


def _experiment_rows(f: Found, pattern: str) -> list[list[object]]:
    rows: list[list[object]] = []
    same = f.as_it_is(pattern)
    for cause, bred in f.experiments(pattern).items() if same else ():
        assert same is not None
        row = [f.subject.title, pattern, f"{100 * paper.reached(f.subject.name, pattern):.3g}", cause]
        counts = [percent(bred.reached), _percent(same.reached), f"{mcnemar(bred.reached, same.reached):.2g}"]
        rows.append([*row, *counts, _percent(bred.confirmed), _percent(same.confirmed)])
    return rows


def _percent(of: Tensor) -> str:
    return f"{100 * float(of.mean()):.0f}"


def mcnemar(first: Tensor, second: Tensor) -> float:
    """Two-sided p that the same seeds reach as often in both, exact: of seeds that differ, either way is as likely.

    >>> from torch import tensor
    >>> mcnemar(tensor([1, 1, 1, 1, 1]), tensor([0, 0, 0, 0, 1]))
    0.125
    """
    more, fewer = int((first > second).sum()), int((first < second).sum())
    return float(binomtest(more, more + fewer).pvalue) if more + fewer else 1.0
