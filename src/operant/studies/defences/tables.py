"""Tables of the study of defences, the paper's numbers beside ours, and what held."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from operant.defend.evaluate import interval
from operant.studies._work import Mean, mean, table, verdict
from operant.studies.defences import paper
from operant.studies.defences.found import CONFIDENCE, Found, average
from operant.studies.defences.judging import COMMON, CONFIRMED, UNCOMMON
from operant.studies.defences.settings import CLASSIFIER, MUTATION
from operant.studies.defences.suites import searched
from operant.studies.kuk.settings import PATTERNS

READ = (CLASSIFIER, MUTATION)  # what the paper says suffers most
KINDS = ("benign", "adversarial")


# Claims


def claims(found: Sequence[Found]) -> str:
    """What the papers say, and whether it held here."""
    rows = [*_headline(found), *_detectors(found), *(_cell(f, defence) for f in found for defence in f.tried)]
    text = f"""## What held

By how many points the success of a defence is lower on uncommon than on common data. Over several runs the interval is
a 95 % t-interval; of a model with one run it is Newcombe's, from its cases. *Held*: the interval lies above what is
claimed; *not held*: below; *not decided*: neither. With {len(rows)} rows at 95 % a few would come out by chance alone.

"""
    return text + table(["claim", "where", "paper", "measured", ""], rows)


def _headline(found: Sequence[Found]) -> list[list[object]]:
    value = average(found)
    cells = [(f.fall(defence), f, defence) for f in found for defence in f.tried if f.falls(defence)]
    if value is None or not cells:
        return []
    largest, f, defence = max(cells, key=lambda cell: cell[0].value)
    known = paper.drops()
    every, top = f"all {len(cells)} cells of both tables", f"{f.title}, {defence}"
    tables = f"(its tables: {100 * sum(known) / len(known):.0f})"
    return [
        ["success is lower on uncommon data", every, f"{100 * paper.AVERAGE:.0f}", value, _bold(value)],
        ["… by 35 points on average", every, f"35 {tables}", value, _bold(_less(value, paper.AVERAGE))],
        [
            "… and by up to 79",
            f"the largest, {top}",
            f"79 (its tables: {100 * max(known):.0f})",
            largest,
            _bold(_less(largest, paper.LARGEST)),
        ],
    ]


def _detectors(found: Sequence[Found]) -> list[list[object]]:
    """Detectors that read confidence and stability suffer more than others."""
    rows: list[list[object]] = []
    for f in found:
        first, rest = ([d for d in f.tried if (d in READ) == which] for which in (True, False))
        if not first or not rest or f.plan.runs < 2:
            continue
        falls = {d: f.falls(d) for d in f.tried}
        runs = range(min(len(each) for each in falls.values()))
        leads = [_mean(falls[d][r] for d in first) - _mean(falls[d][r] for d in rest) for r in runs]
        known = paper.TABLES.get(f.plan.name, {})
        theirs = [_mean(known[d][0] - known[d][1] for d in of if d in known) for of in (first, rest)]
        told = f"{100 * (theirs[0] - theirs[1]):.0f}"
        if leads:
            claim = "binary classifier and mutation-based detection lose more than the others"
            rows.append([claim, f.title, told, mean(leads), _bold(mean(leads))])
    return rows


def _cell(f: Found, defence: str) -> list[object]:
    known = paper.TABLES.get(f.plan.name, {}).get(defence)
    told = f"{100 * (known[0] - known[1]):.0f}" if known else "-"
    if not f.falls(defence):
        return [f"{defence} stops less", f.title, told, "no uncommon cases", "**not decided**"]
    value = f.fall(defence)
    return [f"{defence} stops less", f.title, told, value, _bold(value)]


def _less(value: Mean, by: float) -> Mean:
    return replace(value, value=value.value - by, lower=value.lower - by, upper=value.upper - by)


def _bold(value: Mean) -> str:
    return f"**{verdict(value)}**"


def _mean(values: Iterable[float]) -> float:
    each = list(values)
    return sum(each) / len(each)


# Tables 6 and 7


def success(found: Sequence[Found]) -> str:
    rows = []
    for f in found:
        for defence in f.tried:
            known = paper.TABLES.get(f.plan.name, {}).get(defence)
            theirs = [f"{100 * value:.1f}" for value in known] if known else ["-", "-"]
            ours = [_share(f, defence, data) for data in (COMMON, UNCOMMON, CONFIRMED)]
            rows.append([f.title, defence, theirs[0], ours[0], theirs[1], *ours[1:]])
    columns = ["model", "defence", "common, paper", "ours", "uncommon, paper", "ours", "confirmed alone"]
    text = """## Success of each defence (Tables 6 and 7)

In percent, with 95 % intervals: over runs, or of the cases where there is one run. A detector succeeds if it accepts a
benign case or rejects an adversarial one; any other defence if it reads the label of the seed. *Uncommon*: cases that
reached one of the four patterns in a search, by the dropout masks of that search, as the paper counts them. *Confirmed
alone*: those whose pattern also holds with fresh masks.

![Success on common and on uncommon data](defences.svg)

"""
    return text + table(columns, rows)


def _share(f: Found, defence: str, data: str) -> str:
    return f.success(defence, data).share if f.pooled(defence, data)[1] else "none"


# By pattern


def by_pattern(found: Sequence[Found]) -> str:
    rows = [_pattern_row(f, defence, kind) for f in found for defence in f.tried for kind in KINDS]
    text = """## By kind and pattern

Success in percent on common data and on the uncommon cases of each pattern (first letter PCS, second VRO), all runs
together, with Clopper-Pearson intervals at 95 % and the number of cases. A detector that rejects everything does well
on adversarial cases alone: look at both kinds. HL cases are always adversarial, LH ones benign.

"""
    return text + table(["model", "defence", "kind", "common", *PATTERNS], rows)


def _pattern_row(f: Found, defence: str, kind: str) -> list[object]:
    cells = [f.pooled(defence, COMMON, kind), *(f.pooled(defence, UNCOMMON, kind, pattern) for pattern in PATTERNS)]
    return [f.title, defence, kind, *(_counted(k, n) for k, n in cells)]


def _counted(k: int, n: int) -> str:
    if n == 0:
        return "-"
    lower, upper = interval(k, n, CONFIDENCE)
    return f"{100 * k / n:.0f} [{100 * lower:.0f}, {100 * upper:.0f}] of {n}"


# What was run


def method(found: Sequence[Found]) -> str:
    return f"## What was run\n\n{_sizes(found)}\n{_searches(found)}\n{_notes(found)}"


def _sizes(found: Sequence[Found]) -> str:
    rows = []
    for f in found:
        p = f.plan
        seeds = searched(p, f.home)
        theirs = paper.UNCOMMON.get(p.name, 0)
        rows.append([f.title, p.runs, seeds, f.size(UNCOMMON), f.size(CONFIRMED), theirs, f.size(COMMON)])
        rows[-1] += [p.benign if any(d in READ for d in p.defences) else "-", f"{f.seconds / 60:.0f}"]
    columns = [
        "model",
        "runs",
        "seeds searched from, all patterns",
        "uncommon cases",
        "confirmed",
        "the paper's",
        "common cases",
    ]
    return table([*columns, "benign inputs of a run to fit on", "CPU minutes"], rows)


def _searches(found: Sequence[Found]) -> str:
    rows = []
    for f in found:
        c, s = f.plan.cut, f.plan.subject
        rows.append([f.title, f"{c.population}, {c.generations}", f"{s.population}, {s.generations}", c.passes])
        rows[-1] += [
            c.screen or "all",
            f"{f.plan.attacked}, {f.plan.carlini}",
            f"5 x {c.carlini_steps}",
            f.plan.mutants,
        ]
    columns = ["model", "members, generations", "of the KuK study", "T", "passes in the search"]
    columns += ["inputs attacked, by C&W", "steps of C&W", "mutants"]
    text = "Searches and attacks that were made here; what the KuK study had left in the folder was taken instead:\n\n"
    return text + table(columns, rows)


def _notes(found: Sequence[Found]) -> str:
    rows = [
        [f.title, defence, f"{100 * f.plan.level:.0f} %" if defence in (*READ, "feature squeezing") else "-", note]
        for f in found
        for defence, each in f.tried.items()
        if (note := "; ".join(dict.fromkeys(t.note for t in each if t.note))) or defence == "feature squeezing"
    ]
    return table(["model", "defence", "false-positive rate", "by run"], rows)


DIFFERENCES = """## What differs from the paper

- The paper's searches have 100 members and 50 generations from 200 seeds; the table above says what ours have. Patterns
  are pooled: a run has the cases of all four. Where a pass takes long, a pattern is searched for until it has enough
  cases, and given up if fewer than a tenth of the first seeds reach it; its cases are then mostly of the easier ones.
- The paper fits and judges on cases of the same attacks, as far as it says. Here the binary classifier learns from two
  attacks and all defences are judged on the other ones, of other seeds, so that nothing is fitted on what judges it.
  Thresholds come from benign inputs that no case starts from.
- The paper judges the binary classifier by its own threshold; here every detector is calibrated to one false-positive
  rate.
- Distillation and label smoothing train a new network in the paper. Here LeNet-5 does so with fewer inputs; ResNet-20
  and NIN train on from their own weights for a few thousand inputs, which leaves them nearer to the model that was
  attacked and makes both defences weaker.
- The paper does not say which input transformations it has: here the mean of three bits, JPEG and five crops.
- MobileNet is v2, the paper's is v1; LeNet-5 is trained here; NIN has half the width and batch norm.
"""


def again(scale: str) -> str:
    return f"""## Run it again

`operant study defences --scale {scale} --data DATA --out OUT`. Named again, it goes on where it stopped. With
`--kuk DIR` dropout, weights and suites of a KuK study that was run before are used; one in the same folder is found.
"""
