"""What the KuK study found, before all tables: the paper's claims with verdicts, and Table 5 in short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from operant.defend.evaluate import interval
from operant_studies.kuk import paper
from operant_studies.kuk.causes import LEVEL, state
from operant_studies.kuk.found import Found
from operant_studies.kuk.search import CONTROL, GAP, gap, mcnemar, percent, share
from operant_studies.kuk.settings import PATTERNS
from operant_studies.kuk.tables import order_verdict
from operant_studies.shared import mean, table, verdict

HELD, NOT_HELD, OPEN = "held", "not held", "not decided"


def summary(found: Sequence[Found]) -> str:
    """Claims by model, and a sentence for each model on Table 5."""
    claims = [[words, *(of(f) for f in found)] for words, of in CLAIMS.items()]
    cells = "\n".join(f"- {f.subject.title}: {_cells(f)}." for f in found)
    return f"""## What held

{table(["claim", *(f.subject.title for f in found)], claims)}
Counts are over attacks, or over patterns. A claim about most cases is held if the 95 % interval of the share lies above
one half, and not held if below. *Less often* is our test of the paper's word that tools generate different cases: the
intervals do not meet, each as wide as if every seed that was tried had one case (where few seeds have most cases it
should be wider). *Harder*: by how many points LL and HH were reached more often, the mean over seeds with a 95 %
t-interval. *More often*: McNemar's test on the same seeds, at {LEVEL}. With so many tests a few come out by chance
alone, and tests of searches take seeds for independent, although those of a chunk share their dropout masks.

Table 5, the share of seeds from which a pattern was reached, with its 95 % interval, in brackets what was confirmed
with fresh masks: within {100 * GAP:.0f} points of the paper's, or the change that explains the difference. Each is for
its own cell: whether one change explains a whole model was not tested. A share that is within is left at that, however
few seeds it has, while one that is not gets experiments; the intervals tell how much that means.

{cells}
"""


# Claims of the paper


def _first(measure: str, f: Found) -> str:
    return _tally(order_verdict(f, method, measure) for method in paper.ATTACKS if f.areas(method))


def _benign_is_hl(f: Found) -> str:
    of = _is(f.patterns("benign"), "HL") if "benign" in f.measured else None
    if of is None:
        return ""
    return f"{percent(of)} % **{_most(of)}**"


def _attacks_are_lh(f: Found) -> str:
    there = [m for m in paper.ATTACKS if m in f.measured and f.measured[m].found]
    return _tally(_most(_is(f.patterns(method), "LH")) for method in there)


def _tools_differ(f: Found) -> str:
    """Whether cases of testing tools follow LH less often than those of attacks; many cases come from one seed."""
    told, ends = [], []
    for methods in (paper.TOOLS, paper.ATTACKS):
        there = [method for method in methods if method in f.measured]
        which = [name for method in there for name in f.patterns(method)]
        if not which:
            return ""
        k, n, seeds = which.count("LH"), len(which), max(f.measured[method].attempted for method in there)
        ends.append(interval(k, n, 0.95, trials=min(n, seeds)))
        told.append(f"{100 * k / n:.0f} % [{100 * ends[-1][0]:.0f}, {100 * ends[-1][1]:.0f}] of {n}")
    (low, high), (least, most) = ends
    word = HELD if high < least else NOT_HELD if low > most else OPEN
    return f"{' and '.join(told)} **{word}**"


def _ll_is_benign(f: Found) -> str:
    bred = f.searches().get("LL")
    if bred is None:
        return ""
    of = (~bred.wrong[bred.reached > 0]).double()
    return f"{percent(of)} % of {len(of)} **{_most(of)}**" if len(of) else "none reached"


def _opposite_is_harder(f: Found) -> str:
    """Whether a seed reaches LL and HH more often than LH and HL, which are the opposite of what data are."""
    bred = {pattern: f.as_it_is(pattern) for pattern in PATTERNS}
    reached = {pattern: each.reached for pattern, each in bred.items() if each}
    if len(reached) < len(PATTERNS):
        return ""
    lead = mean((0.5 * (reached["LL"] + reached["HH"] - reached["LH"] - reached["HL"])).tolist())
    return f"{lead} **{verdict(lead)}**"


def _selection_pays(f: Found) -> str:
    both = [(f.as_it_is(pattern), f.control(pattern)) for pattern in PATTERNS]
    return _tally(
        _tested(float(bred.reached.mean() - other.reached.mean()), mcnemar(bred.reached, other.reached))
        for bred, other in both
        if bred and other
    )


CLAIMS: dict[str, Callable[[Found], str]] = {
    "RQ1: PCS tells adversarial from benign best": partial(_first, "pcs"),
    "RQ1: VRO is the best of the Bayesian measures": partial(_first, "vro"),
    "RQ2: most benign inputs are HL": _benign_is_hl,
    "RQ2: most cases of an attack are LH": _attacks_are_lh,
    "RQ2: testing tools find other cases than attacks: LH less often": _tools_differ,
    "RQ3: most LL cases are benign": _ll_is_benign,
    "RQ3: benign LH and adversarial HL are harder to reach than LL and HH": _opposite_is_harder,
    f"Control: a search reaches a pattern more often than one with {CONTROL}": _selection_pays,
}


def _is(which: Sequence[str], pattern: str) -> torch.Tensor:
    return torch.tensor([float(name == pattern) for name in which])


def _most(of: torch.Tensor) -> str:
    interval = share(of)
    return HELD if interval.lower > 0.5 else NOT_HELD if interval.upper < 0.5 else OPEN


def _tested(difference: float, p: float) -> str:
    return OPEN if p >= LEVEL else HELD if difference > 0 else NOT_HELD


def _tally(words: Iterable[str]) -> str:
    """
    >>> _tally(["held", "not decided", "held"])
    '**held** 2, **not decided** 1 of 3'
    """
    counts = Counter(words)
    told = ", ".join(f"**{word}** {counts[word]}" for word in (HELD, NOT_HELD, OPEN) if counts[word])
    return f"{told} of {sum(counts.values())}" if told else ""


# Table 5


def _cells(f: Found) -> str:
    return "; ".join(f"{pattern} {_cell(f, pattern)}" for pattern in f.searches())


def _cell(f: Found, pattern: str) -> str:
    bred = f.searches()[pattern]
    told = f"{percent(bred.reached)} % ({100 * float(bred.confirmed.mean()):.0f} %)"
    told += f", the paper's {100 * paper.reached(f.subject.name, pattern):.3g} %"
    return f"{told}: {'within' if abs(gap(f.subject, bred)) <= GAP else state(f, pattern)}"
