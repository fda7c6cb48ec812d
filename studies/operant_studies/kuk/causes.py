"""Differences from Table 5: experiments that change one suspected cause after the other, and what they tell."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from operant_studies.kuk import paper
from operant_studies.kuk.found import Found
from operant_studies.kuk.search import (
    CAUSES,
    GAP,
    MORE,
    MORE_RUNS,
    Bred,
    few,
    gap,
    mcnemar,
    p_of_gap,
    percent,
    to_explain,
)
from operant_studies.shared import table

LEVEL = 0.05  # of the tests that a change does nothing
STRENGTHS = {  # of noise, by the experiment that has them
    "": "all of it",
    "a third of the noise": "a third",
    "a sixth of the noise": "a sixth",
    "a tenth of the noise": "a tenth",
    "a twentieth of the noise": "a twentieth",
}


def next_change(f: Found, pattern: str) -> str | None:
    """The first suspected cause that was not tried; none where there is no difference, or once a change explains it."""
    if pattern not in to_explain(f.subject, f.searches()) or f.as_it_is(pattern) is None or explanation(f, pattern):
        return None
    if f.more(pattern) is None and _p_of_difference(f, pattern) >= LEVEL:
        return MORE
    tried = f.experiments(pattern)
    return next((cause for cause in CAUSES if cause not in tried and _is_change(f, cause)), None)


def explanation(f: Found, pattern: str) -> str | None:
    """More seeds, if with these there is no such difference; or the change that brings the count near the paper's and
    is unlikely to be chance; or two strengths of noise that the paper's count lies between."""
    more = f.more(pattern)
    return MORE if more and _near(f, more) else _sufficient(f, pattern) or _between(f, pattern)


def _sufficient(f: Found, pattern: str) -> str | None:
    """Of several changes that suffice the nearest."""
    same = f.as_it_is(pattern)
    found = {
        c: bred for c, bred in f.experiments(pattern).items() if same and _near(f, bred) and _p(bred, same) < LEVEL
    }
    return min(found, key=lambda cause: abs(gap(f.subject, found[cause])), default=None)


def _between(f: Found, pattern: str) -> str | None:
    """The two strengths of noise next to each other of which one reaches more than the paper and the other less, if
    that difference is unlikely to be chance: some strength between them would reach as many."""
    known = f.experiments(pattern)
    tried = {name: known.get(cause) if cause else f.as_it_is(pattern) for cause, name in STRENGTHS.items()}
    there = [(name, bred) for name, bred in tried.items() if bred is not None]
    for (more, first), (less, second) in pairwise(there):
        if gap(f.subject, first) * gap(f.subject, second) < 0 and _p(first, second) < LEVEL:
            return f"noise between {more} and {less}"
    return None


def _is_change(f: Found, cause: str) -> bool:
    known = f.dropout.place(cause, f.subject.places[-1]) is not None
    return known and (cause != "wider screen" or f.subject.screen is not None)


def _near(f: Found, bred: Bred) -> bool:
    return abs(gap(f.subject, bred)) <= GAP


def _p_of_difference(f: Found, pattern: str) -> float:
    return p_of_gap(f.subject, f.more(pattern) or f.searches()[pattern])


def _p(bred: Bred, same: Bred) -> float:
    return mcnemar(bred.reached, same.reached)


# The section of the page


def causes(found: Sequence[Found]) -> str:
    each = [(f, pattern) for f in found for pattern in to_explain(f.subject, f.searches())]
    head = f"## Differences of more than {100 * GAP:.0f} points, and what may cause them\n\n"
    if not each:
        return head + "There is none.\n"
    rows = [row for f, pattern in each for row in _experiment_rows(f, pattern)]
    means = "\n".join(f"- *{name}*: {what}." for name, what in CAUSES.items())
    columns = ["model", "pattern", "paper, %", "as it is, %", "nearest with", "reached, %", "p", "verdict"]
    nearest = table(columns, [_nearest(*of) for of in each])
    text = f"""One suspected cause after the other is changed (by *early and fresh* two at once), the likeliest by our
trials first, until one *explains* the difference: it brings the share of seeds that reach the pattern within
{100 * GAP:.0f} points of the paper's, and the change is unlikely to be chance (McNemar's exact test on the same seeds,
p below {LEVEL}). Two strengths of noise explain it, too, if one reaches more than the paper and the next one less, by
the same test. Where the difference itself may be chance, *{MORE}* come first: the same search in {MORE_RUNS} further
runs with other seeds, counted together with the first; p is then that of Fisher's test of what is left. These two
rules were added when numbers were known: the first after HL of ResNet-20 had missed by a few points with a sixth of
the noise, the second when LH of ResNet-20 was off by little more than {100 * GAP:.0f} points. What explains suffices
for its cell, and that is all: it need not be what the paper did, which had one program, and may take other patterns
away from the paper's shares; the second table tells what it did where it was tried. With up to {len(CAUSES)} changes
for a difference, one in twenty passes the test by chance alone; some that stand early in the list were added after
others had been tried. Experiments have the seeds of the first run ({_seeds(found)}), whose searches *as they are*
stand beside them. Intervals are Clopper-Pearson's at 95 %; they and the tests take seeds for independent, although
those of a chunk share their dropout masks.

{means.format(few=" or ".join(str(n) for n in dict.fromkeys(few(f.subject) for f in found)))}

What comes nearest to the paper's share:

{nearest}
"""
    columns = ["model", "pattern", "paper, %", "changed", "reached, %", "as it is, %", "p"]
    columns += ["confirmed, %", "as it is, %"]
    return head + text + (f"Everything that was tried from all these seeds:\n\n{table(columns, rows)}" if rows else "")


def _seeds(found: Sequence[Found]) -> str:
    return "; ".join(f"{f.subject.title}: {f.subject.seeds}" for f in found)


def _nearest(f: Found, pattern: str) -> list[object]:
    """One difference, the change that explains it or comes nearest, and whether that suffices."""
    known, same, best = paper.reached(f.subject.name, pattern), f.as_it_is(pattern), _best(f, pattern)
    row = [f.subject.title, pattern, f"{100 * known:.3g}", percent(same.reached) if same else ""]
    if explanation(f, pattern) == MORE and (more := f.more(pattern)):
        return [*row, MORE, percent(more.reached), f"{p_of_gap(f.subject, more):.2g}", state(f, pattern)]
    if same is None or best is None:
        return [*row, "", "", "", state(f, pattern)]
    tried = f.experiments(pattern)[best]
    if abs(gap(f.subject, tried)) >= abs(gap(f.subject, same)):
        return [*row, "none helped", "", "", state(f, pattern)]
    return [*row, best, percent(tried.reached), f"{_p(tried, same):.2g}", state(f, pattern)]


def _best(f: Found, pattern: str) -> str | None:
    """The change that explains a difference, or else comes nearest."""
    tried = f.experiments(pattern)
    return _sufficient(f, pattern) or min(tried, key=lambda cause: abs(gap(f.subject, tried[cause])), default=None)


def state(f: Found, pattern: str) -> str:
    """What has become of a difference, in a few words."""
    if cause := explanation(f, pattern):
        return f"explained by *{cause}*"
    best = _best(f, pattern)
    if f.as_it_is(pattern) is None or (best is None and f.more(pattern) is None):
        return "no cause tried yet"
    if best is None or next_change(f, pattern):
        return "not all causes tried yet"
    near = _near(f, f.experiments(pattern)[best])
    told = "**near, but may be chance**" if near else "**not explained**"
    p = _p_of_difference(f, pattern)
    return told if p < LEVEL else f"{told}; the difference itself may be chance (p = {p:.2g})"


def _experiment_rows(f: Found, pattern: str) -> list[list[object]]:
    same = f.as_it_is(pattern)
    if same is None:
        return []
    head = [f.subject.title, pattern, f"{100 * paper.reached(f.subject.name, pattern):.3g}"]
    rows: list[list[object]] = []
    if more := f.more(pattern):
        counts = [percent(more.reached), _percent(same.reached), f"{p_of_gap(f.subject, more):.2g}"]
        rows.append([*head, f"{MORE}, {len(more.label)}", *counts, _percent(more.confirmed), _percent(same.confirmed)])
    for cause, bred in f.experiments(pattern).items():
        counts = [percent(bred.reached), _percent(same.reached), f"{_p(bred, same):.2g}"]
        rows.append([*head, cause, *counts, _percent(bred.confirmed), _percent(same.confirmed)])
    return rows


def _percent(of: Tensor) -> str:
    return f"{100 * float(of.mean()):.0f}"
