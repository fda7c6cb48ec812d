"""Dropout, RQ1 and RQ2 of the KuK study, the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence

from operant.measure.patterns import AUC, MEASURES, TITLES
from operant_studies.kuk import paper
from operant_studies.kuk.dropout import ATTACKS, TOLERANCE, DropoutTrial
from operant_studies.kuk.existing import FIXED, MeasuredCases
from operant_studies.kuk.results import KukResults
from operant_studies.kuk.settings import PATTERNS
from operant_studies.shared import HELD, NOT_DECIDED, NOT_HELD, in_percent, table

ORDER = {
    "pcs": ("vro", "vr", "pe", "mi"),
    "vro": ("vr", "pe", "mi"),
}  # measure: those that it exceeds in the paper


# Where dropout sits


def dropout(found: Sequence[KukResults]) -> str:
    rows = []
    for f in found:
        theirs = [f"{paper.mean_of(f.subject.name, name, 'vro'):.3f}" for name in ("benign", *ATTACKS)]
        rows.append([f.subject.title, "paper", "not given", *theirs])
        roles = {"chosen": "", "second": "other dropout"}
        roles |= {role: f"{role} dropout" for role in ("stronger", "weaker", "early")}
        for role, cause in roles.items():
            if tried := f.dropout.placement(cause, f.subject.places[-1]):
                rows.append(["", role, str(tried), f"{tried.benign:.3f}", *_attacks(tried)])
    columns = ["model", "", "share dropped, where", "benign VRO", *ATTACKS]
    text = f"""## Where dropout sits

The paper gives neither the place nor the rate of dropout, and every VRO depends on both. We chose the placement and
rate whose mean VRO of benign inputs and of BIM and FGSM cases is nearest to Table 4, on inputs that nothing else uses;
of those within {TOLERANCE} of the nearest, the one with the cheapest passes. *Second* is chosen by the same rule among
other places; *stronger* and *weaker* are the next rates; *early* is the nearest before the first of the layers that
were tried. These are for experiments; a row is missing if it was not tried or equals the second. Predictions without
dropout do not change.

"""
    edges = "".join(f"The rate chosen for {f.subject.title} is {_edge(f)} that was tried.\n" for f in found if _edge(f))
    return (
        text
        + table(columns, rows)
        + (f"\n{edges}" if edges else "")
        + "\nThe six nearest trials of each model:\n\n"
        + _tried(found)
    )


def _edge(f: KukResults) -> str:
    ends = {min(f.subject.rates): "the lowest", max(f.subject.rates): "the highest"}
    return ends.get(f.dropout.chosen.rate, "")


def _tried(found: Sequence[KukResults]) -> str:
    rows = [
        [f.subject.title, tried, f"{tried.benign:.3f}", *_attacks(tried), f"{tried.off:.3f}"]
        for f in found
        for tried in sorted(f.dropout.tried, key=lambda t: t.off)[:6]
    ]
    columns = ["model", "share dropped, where", "benign VRO", *ATTACKS, "mean distance"]
    return table(columns, rows) + "\n(All trials are in `kuk.json`.)\n"


def _attacks(tried: DropoutTrial) -> list[str]:
    return [f"{tried.attacks[name]:.3f}" if name in tried.attacks else "no cases" for name in ATTACKS]


# RQ1


def rq1(found: Sequence[KukResults]) -> str:
    text = """## RQ1: which measure separates adversarial from benign cases (Table 3)

AUC-ROC in percent, the cases of a method against all benign inputs of RQ2, with DeLong's 95 % interval; in brackets the
paper's. Intervals cover the choice of cases, not that of dropout masks, and treat cases as independent although each
comes from one of the benign inputs. VR is the share of passes that differ from the majority; PE is the entropy of the
passes' mean probabilities; MI is PE less the mean entropy of single passes. FGSM and BIM stop at the boundary, as those
of the paper did (Foolbox's defaults of the time).

"""
    fixed = """
At a fixed radius, attacks continue beyond the boundary, where PCS separates less well or the wrong way (areas below
50); the paper has no such cases:

"""
    return text + _areas(found, paper.ATTACKS) + "\n" + _order(found) + fixed + _areas(found, FIXED)


def _areas(found: Sequence[KukResults], methods: Sequence[str]) -> str:
    rows = []
    for f in found:
        for method in methods:
            if areas := f.areas(method):
                known = paper.TABLE_3[f.subject.name].get(method)
                cells = [_area(areas[name], known[i] if known else None) for i, name in enumerate(MEASURES)]
                rows.append([f.subject.title, method, len(f.measured[method].values["pcs"]), *cells])
    return table(["model", "attack", "cases", *(TITLES[name] for name in MEASURES)], rows)


def _area(area: AUC, known: float | None) -> str:
    return in_percent(area.value, area.lower, area.upper, digits=2) + (f" ({known:.2f})" if known is not None else "")


def _order(found: Sequence[KukResults]) -> str:
    rows = [
        [f.subject.title, method, *(_least(f, method, first) for first in ORDER)]
        for f in found
        for method in paper.ATTACKS
        if f.areas(method)
    ]
    text = """The paper's order, PCS first and VRO the best of the Bayesian measures, tested on the same cases: by how
many points the area exceeds that of the nearest other measure, with DeLong's interval of the difference. *Held* if the
intervals of all differences lie above 0, *not held* if one lies below.

"""
    columns = ["model", "attack", "PCS first", "VRO best of the Bayesian"]
    return text + table(columns, rows)


def _least(f: KukResults, method: str, first: str) -> str:
    leads = f.leads(method, first, ORDER[first])
    other = min(leads, key=lambda name: leads[name].value)
    lead = leads[other]
    interval = in_percent(lead.value, lead.lower, lead.upper, digits=2)
    return f"{interval} over {TITLES[other]}, **{order_verdict(f, method, first)}**"


def order_verdict(f: KukResults, method: str, first: str) -> str:
    """Whether a measure exceeds all those that it exceeds according to the paper."""
    leads = f.leads(method, first, ORDER[first]).values()
    if any(lead.upper < 0 for lead in leads):
        return NOT_HELD
    return HELD if all(lead.lower > 0 for lead in leads) else NOT_DECIDED


# RQ2


def rq2(found: Sequence[KukResults]) -> str:
    rows = []
    for f in found:
        for method, m in f.measured.items():
            if len(m.values["pcs"]):
                known = paper.TABLE_4[f.subject.name].get(method, ("", ""))
                row = [f.subject.title, method, m.attempted, m.found, len(m.values["pcs"])]
                row += [_moments(m, "pcs"), known[0], _moments(m, "vro"), known[1]]
                rows.append([*row, *_counts(f.patterns(method))])
    columns = ["model", "method", "seeds", "found", "measured", "PCS", "paper", "VRO", "paper", *PATTERNS, "none"]
    text = """## RQ2: what known methods find (Table 4)

Mean / variance of PCS and of VRO, the paper's beside ours, and the share of cases in percent that follow each pattern.
At most as many cases are measured as there are benign inputs, chosen at random. KuK searches for the patterns that
these methods leave empty. Note that an attack at a fixed radius may produce HL, a confident and stable error, which the
paper calls uncommon because its attacks stop at the boundary. For benign inputs, HL is the normal pattern.

![Mean PCS and VRO of each method](kuk-means.svg)

*Filled: here; hollow: the paper's; squares: fixed radius.*

"""
    return text + table(columns, rows)


def _moments(m: MeasuredCases, name: str) -> str:
    values = m.values[name]
    return f"{float(values.mean()):.3f} / {float(values.var(correction=0)):.3f}"


def _counts(which: Sequence[str]) -> list[str]:
    return [f"{100 * which.count(name) / len(which):.0f}" for name in (*PATTERNS, "")]
