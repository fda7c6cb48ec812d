"""Dropout, RQ1 and RQ2 of the KuK study, the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence

from operant.measure.patterns import AUC, MEASURES, TITLES, patterns
from operant.studies._work import table
from operant.studies.kuk import paper
from operant.studies.kuk.dropout import ATTACKS, NEAR, Tried
from operant.studies.kuk.existing import FIXED, Measured
from operant.studies.kuk.found import Found
from operant.studies.kuk.settings import PATTERNS

PAIRS = (("pcs", "vro"), ("vro", "vr"), ("vro", "pe"), ("vro", "mi"))  # what the paper says is the better, first


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
    rows = []
    for f in found:
        for method in (*paper.ATTACKS, *FIXED):
            areas = f.areas(method)
            if areas:
                known = paper.TABLE_3[f.subject.name].get(method)
                cells = [_area(areas[name], known[i] if known else None) for i, name in enumerate(MEASURES)]
                rows.append([f.subject.title, method, len(f.measured[method].values["pcs"]), *cells])
    text = """## RQ1: which measure tells adversarial from benign (Table 3)

AUC-ROC in percent, with DeLong's 95 % interval, which knows of other cases but not of other dropout masks; in brackets
the paper's. VR is the share of passes that do not say what most say, PE the entropy of their mean, MI what is left of
it without the mean of their entropies. FGSM and BIM stop at the boundary, as those of the paper did (Foolbox's
defaults of the time); at a fixed radius they go on, and PCS may then tell nothing.

"""
    return text + table(["model", "attack", "cases", *(TITLES[name] for name in MEASURES)], rows) + "\n" + order(found)


def _area(area: AUC, known: float | None) -> str:
    told = f"{100 * area.value:.2f} [{100 * area.lower:.2f}, {100 * area.upper:.2f}]"
    return told + (f" ({known:.2f})" if known is not None else "")


def order(found: Sequence[Found]) -> str:
    """The paper's order, tested on the same cases."""
    rows = []
    for f in found:
        for method in (*paper.ATTACKS, *FIXED):
            leads = [f.lead(method, first, second) for first, second in PAIRS]
            if all(lead is not None for lead in leads):
                rows.append([f.subject.title, method, *(_lead(lead) for lead in leads if lead is not None)])
    text = """The paper's order, PCS first and VRO the best of the Bayesian measures, tested: by how many points the
first area exceeds the second, on the same cases. *Held* if the interval lies above 0, *not held* if below.

"""
    return text + table(["model", "attack", *(f"{TITLES[a]} - {TITLES[b]}" for a, b in PAIRS)], rows)


def _lead(lead: AUC) -> str:
    word = "held" if lead.lower > 0 else "not held" if lead.upper < 0 else "not decided"
    return f"{100 * lead.value:.2f} [{100 * lead.lower:.2f}, {100 * lead.upper:.2f}] **{word}**"


# RQ2


def rq2(found: Sequence[Found]) -> str:
    rows = []
    for f in found:
        for method, m in f.measured.items():
            if len(m.values["pcs"]):
                known = paper.TABLE_4[f.subject.name].get(method, ("", ""))
                rows.append([f.subject.title, method, m.attempted, m.found, _moments(m, "pcs"), known[0]])
                rows[-1] += [_moments(m, "vro"), known[1], *_counts(m)]
    columns = ["model", "method", "seeds", "found", "PCS", "paper", "VRO", "paper", *PATTERNS, "none"]
    text = """## RQ2: what known methods find (Table 4)

Mean / variance of PCS and of VRO, the paper's beside ours, and the share of cases in percent that follow each pattern.
Of very many cases, as many are measured as there are benign inputs. What the methods leave empty is what KuK is for;
but mind that an attack at a fixed radius may fill HL, wrong as if it were right, which the paper calls uncommon because
its attacks stop at the boundary. In the row of benign inputs HL is as it should be.

![Mean PCS and VRO of each method](kuk-means.svg)

*Filled: here; hollow: the paper's; squares: fixed radius.*

"""
    return text + table(columns, rows)


def _moments(m: Measured, name: str) -> str:
    values = m.values[name]
    return f"{float(values.mean()):.3f} / {float(values.var(correction=0)):.3f}"


def _counts(m: Measured) -> list[str]:
    which = patterns(m.values["pcs"], m.values["vro"]).tolist()
    return [f"{100 * which.count(name) / len(which):.0f}" for name in (*PATTERNS, "")]
