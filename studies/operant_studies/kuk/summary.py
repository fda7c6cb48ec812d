"""Summary of the KuK study: verdicts on the paper's claims, and Table 5 in short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from operant.defend.evaluate import interval
from operant_studies.kuk import paper
from operant_studies.kuk.causes import LEVEL, state
from operant_studies.kuk.results import KukResults
from operant_studies.kuk.search import CONTROL, MAX_GAP, gap, mcnemar, percent, share_interval
from operant_studies.kuk.settings import PATTERNS
from operant_studies.kuk.tables import order_verdict
from operant_studies.shared import HELD, NOT_DECIDED, NOT_HELD, compare, mean, table, verdict


def summary(found: Sequence[KukResults]) -> str:
    """Verdicts by claim and model, and one sentence per model on Table 5."""
    claims = [[words, *(of(f) for f in found)] for words, of in CLAIMS.items()]
    cells = "\n".join(f"- {f.subject.title}: {_cells(f)}." for f in found)
    return f"""## What held

{table(["claim", *(f.subject.title for f in found)], claims)}
Counts are over attacks, or over patterns. A claim about most cases is held if the 95 % interval of the share lies above
one half, and not held if below. *Less often* is our test of the paper's claim that tools generate different cases: the
intervals do not overlap. Each is as wide as if every seed that was tried had one case; where few seeds have most cases
it should be wider. *Harder*: by how many points LL and HH were reached more often, the mean over seeds with a 95 %
t-interval. *More often*: McNemar's test on the same seeds, at {LEVEL}. With so many tests, a few are significant by
chance. Tests of searches treat seeds as independent, although those of a chunk share their dropout masks.

Table 5: the share of seeds from which a pattern was reached, with its 95 % interval, and in brackets the share
confirmed with fresh masks. It is *within* {100 * MAX_GAP:.0f} points of the paper's, or a change explains the
difference. Each change is for its own cell; whether one change explains a whole model was not tested. A share that is
within is not examined further, however few seeds it has; any other gets experiments. The intervals show how much that
means.

{cells}
"""


# Claims of the paper


def _first(measure: str, f: KukResults) -> str:
    return _tally(order_verdict(f, method, measure) for method in paper.ATTACKS if f.areas(method))


def _benign_is_hl(f: KukResults) -> str:
    of = _is(f.patterns("benign"), "HL") if "benign" in f.measured else None
    if of is None:
        return ""
    return f"{percent(of)} % **{_most(of)}**"


def _attacks_are_lh(f: KukResults) -> str:
    there = [m for m in paper.ATTACKS if m in f.measured and f.measured[m].found]
    return _tally(_most(_is(f.patterns(method), "LH")) for method in there)


def _tools_differ(f: KukResults) -> str:
    """Whether cases of testing tools are LH less often than those of attacks; many cases come from one seed."""
    shares, ends = [], []
    for methods in (paper.TOOLS, paper.ATTACKS):
        there = [method for method in methods if method in f.measured]
        which = [name for method in there for name in f.patterns(method)]
        if not which:
            return ""
        k, n, seeds = which.count("LH"), len(which), max(f.measured[method].attempted for method in there)
        ends.append(interval(k, n, 0.95, trials=min(n, seeds)))
        shares.append(f"{100 * k / n:.0f} % [{100 * ends[-1][0]:.0f}, {100 * ends[-1][1]:.0f}] of {n}")
    (low, high), (least, most) = ends
    word = compare(least - high, most - low)
    return f"{' and '.join(shares)} **{word}**"


def _ll_is_benign(f: KukResults) -> str:
    search = f.searches().get("LL")
    if search is None:
        return ""
    of = (~search.wrong[search.reached > 0]).double()
    return f"{percent(of)} % of {len(of)} **{_most(of)}**" if len(of) else "none reached"


def _opposite_is_harder(f: KukResults) -> str:
    """Whether seeds reach LL and HH more often than benign LH and adversarial HL, the opposites of common data."""
    search = {pattern: f.baseline(pattern) for pattern in PATTERNS}
    reached = {pattern: each.reached for pattern, each in search.items() if each}
    if len(reached) < len(PATTERNS):
        return ""
    lead = mean((0.5 * (reached["LL"] + reached["HH"] - reached["LH"] - reached["HL"])).tolist())
    return f"{lead} **{verdict(lead)}**"


def _selection_pays(f: KukResults) -> str:
    both = [(f.baseline(pattern), f.control(pattern)) for pattern in PATTERNS]
    return _tally(
        _tested(float(search.reached.mean() - other.reached.mean()), mcnemar(search.reached, other.reached))
        for search, other in both
        if search and other
    )


CLAIMS: dict[str, Callable[[KukResults], str]] = {
    "RQ1: PCS separates adversarial from benign best": partial(_first, "pcs"),
    "RQ1: VRO is the best of the Bayesian measures": partial(_first, "vro"),
    "RQ2: most benign inputs are HL": _benign_is_hl,
    "RQ2: most cases of an attack are LH": _attacks_are_lh,
    "RQ2: testing tools find cases other than attacks do: LH less often": _tools_differ,
    "RQ3: most LL cases are benign": _ll_is_benign,
    "RQ3: benign LH and adversarial HL are harder to reach than LL and HH": _opposite_is_harder,
    f"Control: a search reaches a pattern more often than one with {CONTROL}": _selection_pays,
}


def _is(which: Sequence[str], pattern: str) -> torch.Tensor:
    return torch.tensor([float(name == pattern) for name in which])


def _most(of: torch.Tensor) -> str:
    interval = share_interval(of)
    return compare(interval.lower, interval.upper, 0.5)


def _tested(difference: float, p: float) -> str:
    return NOT_DECIDED if p >= LEVEL else HELD if difference > 0 else NOT_HELD


def _tally(words: Iterable[str]) -> str:
    """
    >>> _tally(["held", "not decided", "held"])
    '**held** 2, **not decided** 1 of 3'
    """
    counts = Counter(words)
    text = ", ".join(f"**{word}** {counts[word]}" for word in (HELD, NOT_HELD, NOT_DECIDED) if counts[word])
    return f"{text} of {sum(counts.values())}" if text else ""


# Table 5


def _cells(f: KukResults) -> str:
    return "; ".join(f"{pattern} {_cell(f, pattern)}" for pattern in f.searches())


def _cell(f: KukResults, pattern: str) -> str:
    search = f.searches()[pattern]
    text = f"{percent(search.reached)} % ({100 * float(search.confirmed.mean()):.0f} %)"
    text += f", the paper's {100 * paper.reached(f.subject.name, pattern):.3g} %"
    return f"{text}: {'within' if abs(gap(f.subject, search)) <= MAX_GAP else state(f, pattern)}"
