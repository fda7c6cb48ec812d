"""Dropout, RQ1 and RQ2 of the KuK study, the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence

from operant.measure.patterns import AUC, MEASURES, TITLES
from operant_studies.kuk import paper
from operant_studies.kuk.dropout import ATTACKS, NEAR, Tried
from operant_studies.kuk.existing import FIXED, Measured
from operant_studies.kuk.found import Found
from operant_studies.kuk.settings import PATTERNS
from operant_studies.shared import table

ORDER = {"pcs": ("vro", "vr", "pe", "mi"), "vro": ("vr", "pe", "mi")}  # what the paper says is better, and than what


# Where dropout sits


def dropout(found: Sequence[Found]) -> str:
    rows = []
    for f in found:
        wanted = [f"{paper.mean_of(f.subject.name, name, 'vro'):.3f}" for name in ("benign", *ATTACKS)]
        rows.append([f.subject.title, "paper", "not said", *wanted])
        roles = {"chosen": "", "second": "other dropout"}
        roles |= {role: f"{role} dropout" for role in ("stronger", "weaker", "early")}
        for role, cause in roles.items():
            if tried := f.dropout.place(cause, f.subject.places[-1]):
                rows.append(["", role, str(tried), f"{tried.benign:.3f}", *_attacks(tried)])
    columns = ["model", "", "share dropped, where", "benign VRO", *ATTACKS]
    text = f"""## Where dropout sits

The paper does not say where dropout sits or how strong it is, and every VRO depends on it. Of the placements and rates
that were tried, the one is taken whose mean VRO of benign inputs and of BIM and FGSM cases comes nearest to Table 4, on
inputs that nothing else uses; of those within {NEAR} of the nearest, the one whose passes cost least. *Second* is
chosen by the same rule among other places; *stronger* and *weaker* are the next rates; *early* is the nearest before
the first of the layers that were tried. These are for experiments, and left out where they were not tried or are
the second one. What a model predicts without dropout does not change.

"""
    edges = "".join(f"The rate chosen for {f.subject.title} is {_edge(f)} that was tried.\n" for f in found if _edge(f))
    return (
        text
        + table(columns, rows)
        + (f"\n{edges}" if edges else "")
        + "\nThe six nearest of each model:\n\n"
        + _tried(found)
    )


def _edge(f: Found) -> str:
    ends = {min(f.subject.rates): "the lowest", max(f.subject.rates): "the highest"}
    return ends.get(f.dropout.chosen.rate, "")


def _tried(found: Sequence[Found]) -> str:
    rows = [
        [f.subject.title, tried, f"{tried.benign:.3f}", *_attacks(tried), f"{tried.off:.3f}"]
        for f in found
        for tried in sorted(f.dropout.tried, key=lambda t: t.off)[:6]
    ]
    columns = ["model", "share dropped, where", "benign VRO", *ATTACKS, "mean distance"]
    return table(columns, rows) + "\n(All that was tried is in `kuk.json`.)\n"


def _attacks(tried: Tried) -> list[str]:
    return [f"{tried.attacks[name]:.3f}" if name in tried.attacks else "no cases" for name in ATTACKS]


# RQ1


def rq1(found: Sequence[Found]) -> str:
    text = """## RQ1: which measure tells adversarial from benign (Table 3)

AUC-ROC in percent, the cases of a method against all benign inputs of RQ2, with DeLong's 95 % interval; in brackets the
paper's. Intervals know of other cases, not of other dropout masks, and take cases for independent although each comes
from one of the benign inputs. VR is the share of passes that do not say what most say; PE is the entropy of the passes'
mean probabilities, and MI what of it is left without the mean entropy of single passes. FGSM and BIM stop at the
boundary, as those of the paper did (Foolbox's defaults of the time).

"""
    fixed = """
At a fixed radius attacks go on beyond the boundary, where PCS tells less, or the opposite (areas below 50); the paper
has no such cases:

"""
    return text + _areas(found, paper.ATTACKS) + "\n" + _order(found) + fixed + _areas(found, FIXED)


def _areas(found: Sequence[Found], methods: Sequence[str]) -> str:
    rows = []
    for f in found:
        for method in methods:
            if areas := f.areas(method):
                known = paper.TABLE_3[f.subject.name].get(method)
                cells = [_area(areas[name], known[i] if known else None) for i, name in enumerate(MEASURES)]
                rows.append([f.subject.title, method, len(f.measured[method].values["pcs"]), *cells])
    return table(["model", "attack", "cases", *(TITLES[name] for name in MEASURES)], rows)


def _area(area: AUC, known: float | None) -> str:
    told = f"{100 * area.value:.2f} [{100 * area.lower:.2f}, {100 * area.upper:.2f}]"
    return told + (f" ({known:.2f})" if known is not None else "")


def _order(found: Sequence[Found]) -> str:
    """The paper's order, tested on the same cases."""
    rows = [
        [f.subject.title, method, *(_least(f, method, first) for first in ORDER)]
        for f in found
        for method in paper.ATTACKS
        if f.areas(method)
    ]
    text = """The paper's order, PCS first of all and VRO the best of the Bayesian measures, tested on the same cases:
by how many points the area exceeds that of the measure that comes nearest to it, with DeLong's interval of the
difference. *Held* if the intervals of all these differences lie above 0, *not held* if one lies below.

"""
    columns = ["model", "attack", "PCS first", "VRO best of the Bayesian"]
    return text + table(columns, rows)


def _least(f: Found, method: str, first: str) -> str:
    leads = f.leads(method, first, ORDER[first])
    other = min(leads, key=lambda name: leads[name].value)
    lead = leads[other]
    told = f"{100 * lead.value:.2f} [{100 * lead.lower:.2f}, {100 * lead.upper:.2f}] over {TITLES[other]}"
    return f"{told}, **{order_verdict(f, method, first)}**"


def order_verdict(f: Found, method: str, first: str) -> str:
    """Whether a measure is better than all that the paper says it is better than."""
    leads = f.leads(method, first, ORDER[first]).values()
    if any(lead.upper < 0 for lead in leads):
        return "not held"
    return "held" if all(lead.lower > 0 for lead in leads) else "not decided"


# RQ2


def rq2(found: Sequence[Found]) -> str:
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
Of many cases, as many are measured as there are benign inputs, chosen at random. What the methods leave empty is what
KuK is for; but mind that an attack at a fixed radius may fill HL, wrong as if it were right, which the paper calls
uncommon because its attacks stop at the boundary. In the row of benign inputs HL is as it should be.

![Mean PCS and VRO of each method](kuk-means.svg)

*Filled: here; hollow: the paper's; squares: fixed radius.*

"""
    return text + table(columns, rows)


def _moments(m: Measured, name: str) -> str:
    values = m.values[name]
    return f"{float(values.mean()):.3f} / {float(values.var(correction=0)):.3f}"


def _counts(which: Sequence[str]) -> list[str]:
    return [f"{100 * which.count(name) / len(which):.0f}" for name in (*PATTERNS, "")]
