"""RQ3 of the KuK study, the paper's numbers beside ours; differences and their causes; what was run."""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import binomtest
from torch import Tensor

from operant.studies._work import table
from operant.studies.kuk import paper
from operant.studies.kuk.existing import METHODS
from operant.studies.kuk.found import Found
from operant.studies.kuk.search import CAUSES, GAP, Bred, gap, share, to_explain

KINDS = {"LL": ("benign", "adversarial"), "HH": ("benign", "adversarial"), "LH": ("benign",), "HL": ("adversarial",)}


def rq3(found: Sequence[Found]) -> str:
    rows = [_search_row(f, pattern, bred) for f in found for pattern, bred in f.searches().items()]
    columns = ["model", "pattern", "seeds", "paper, %", "reached, %", "confirmed, %", "difference", "each run"]
    text = """## RQ3: searches for uncommon patterns (Table 5, Fig. 3)

The share of seeds from which a pattern was reached. *Reached*: by the dropout masks of the search, which is what the
paper counts as far as it tells; *confirmed*: with fresh ones too, which is what a case is worth. Clopper-Pearson
intervals at 95 %. The difference from the paper is in points. Where fewer are confirmed than reached, the experiment is
in the table: the same cases, judged by other masks. HL must be adversarial, LH benign. *Each run*: reached / confirmed,
other seeds.

"""
    parts = [text + table(columns, rows), "The same by kind, with mean PCS / VRO of the cases that were reached:\n"]
    columns = ["model", "pattern", "kind", "paper, of 200", "PCS / VRO", "reached", "confirmed", "PCS / VRO (search)"]
    parts += [table(columns, [row for f in found for row in _by_kind(f)])]
    parts += [
        f"![{f.subject.title}: cases bred for the four patterns](kuk-plane-{f.subject.name}.svg)\n" for f in found
    ]
    return "\n".join(parts)


def _search_row(f: Found, pattern: str, bred: Bred) -> list[object]:
    known = 100 * paper.reached(f.subject.name, pattern)
    off = gap(f.subject, bred)
    told = f"{round(100 * off):+d}" + (" **to explain**" if abs(off) > GAP else "")
    runs = [f"{100 * float(b.reached.mean()):.0f}/{100 * float(b.confirmed.mean()):.0f}" for b in f.by_run(pattern)]
    each = ", ".join(runs) if len(runs) > 1 else ""
    row = [f.subject.title, pattern, len(bred.label), f"{known:.0f}", _share(bred.reached), _share(bred.confirmed)]
    return [*row, told, each]


def _share(of: Tensor) -> str:
    interval = share(of)
    return f"{100 * float(of.mean()):.0f} [{100 * interval.lower:.0f}, {100 * interval.upper:.0f}]"


def _by_kind(f: Found) -> list[list[object]]:
    rows: list[list[object]] = []
    for pattern, bred in f.searches().items():
        for kind in KINDS[pattern]:
            of = bred.wrong if kind == "adversarial" else ~bred.wrong
            reached = of & (bred.reached > 0)
            number, pcs, vro = paper.TABLE_5[f.subject.name][pattern, kind]
            here = [int(reached.sum()), int((reached & (bred.confirmed > 0)).sum())]
            means = (
                "/ ".join(f"{float(v[reached].mean()):.3f} " for v in (bred.pcs, bred.vro_search)) if here[0] else ""
            )
            rows.append([f.subject.title, pattern, kind, number, f"{pcs:.3f} / {vro:.3f}", *here, means.strip()])
    return rows


# Causes


def causes(found: Sequence[Found]) -> str:
    each = [(f, pattern) for f in found for pattern in to_explain(f.subject, f.searches())]
    rows = [row for f, pattern in each for row in _cause_rows(f, pattern)]
    head = f"## Differences of more than {100 * GAP:.0f} points, and what may cause them\n\n"
    if not rows:
        return head + "There is none.\n"
    means = "\n".join(f"- *{name}*: {what}." for name, what in CAUSES.items())
    text = f"""One suspected cause after the other is changed, until the count of seeds that reach a pattern comes
within {100 * GAP:.0f} points of the paper's or none is left. That is a search of its own: that a change brings the
count near makes it a cause that suffices, not the paper's. Experiments have the first seeds ({_seeds(found)}), and
the same searches *as they are* stand beside them; p is that of McNemar's exact test that a change does nothing to the
count.

{means}

What comes nearest to the paper's count:

{table(["model", "pattern", "paper, %", "as it is", "nearest with", "reached, %"], [_nearest(*of) for of in each])}
Everything that was tried:

"""
    columns = ["model", "pattern", "paper, %", "changed", "reached, %", "as it is", "p", "confirmed, %", "as it is"]
    return head + text + table(columns, rows)


def _seeds(found: Sequence[Found]) -> str:
    return "; ".join(f"{f.subject.title}: {f.subject.explained}" for f in found)


def _nearest(f: Found, pattern: str) -> list[object]:
    known, n = paper.reached(f.subject.name, pattern), f.subject.explained
    same = float(f.searches()[pattern].reached[:n].mean())
    now = {"nothing changed": same} | {cause: float(b.reached.mean()) for cause, b in f.experiments(pattern).items()}
    best = min(now, key=lambda cause: abs(now[cause] - known))
    return [f.subject.title, pattern, *_percent(known, same), best, *_percent(now[best])]


def _cause_rows(f: Found, pattern: str) -> list[list[object]]:
    rows: list[list[object]] = []
    known, main = paper.reached(f.subject.name, pattern), f.searches()[pattern]
    for cause, bred in f.experiments(pattern).items():
        same = [values[: len(bred.label)] for values in (main.reached, main.confirmed)]
        shares = _percent(*(float(of.mean()) for of in (bred.reached, same[0], bred.confirmed, same[1])))
        p = f"{mcnemar(bred.reached, same[0]):.2g}"
        rows.append([f.subject.title, pattern, *_percent(known), cause, *shares[:2], p, *shares[2:]])
    return rows


def _percent(*shares: float) -> list[str]:
    return [f"{100 * share:.0f}" for share in shares]


def mcnemar(first: Tensor, second: Tensor) -> float:
    """Two-sided p that the same seeds reach as often in both, exact: of seeds that differ, either way is as likely.

    >>> from torch import tensor
    >>> mcnemar(tensor([1, 1, 1, 1, 1]), tensor([0, 0, 0, 0, 1]))
    0.125
    """
    more, fewer = int((first > second).sum()), int((first < second).sum())
    return float(binomtest(more, more + fewer).pvalue) if more + fewer else 1.0


# What was run


def method(found: Sequence[Found]) -> str:
    rows = []
    for f in found:
        s = f.subject
        passes = f"{s.passes}" + (f", screened with {s.screen}" if s.screen else "")
        rows.append([s.title, f"{100 * f.dropout.accuracy:.1f}", s.calibration, s.inputs, s.carlini, s.fuzzed, passes])
        rows[-1] += [f"{s.runs} x {s.seeds}", f"{s.population}, {s.generations}", f"{f.seconds / 3600:.2f}"]
    columns = ["model", "accuracy, %", "inputs for dropout", "benign inputs", "of these for C&W", "for tools", "T"]
    columns += ["seeds of searches", "members, generations", "CPU hours"]
    return f"## What was run\n\n{table(columns, rows)}{METHOD.format(methods=len(METHODS) - 1)}"


METHOD = """
- The paper has 9 000 benign inputs, attacks from all of them, 500 seeds and 5 000 iterations for the testing tools, and
  200 seeds for each search. What the table above has less of is smaller here; T is the paper's.
- Searches have the paper's options: crossover .5, mutation .005, radius .3 in L-infinity, PCS below .3 or above .7, VRO
  below .4 or above .6; its 100 members and 50 generations unless the table says otherwise. It does not say how large
  tournaments are (a fifth of the members here), nor whether the fittest live on (one does), nor what the mutation rate
  counts (images here; *values mutated* tries single values).
- A search sees the same masks from start to end. Screened ones use few of them; who meets the objective in these must
  meet it in all before a seed may leave.
- C&W has five weights, and fewer steps than Foolbox's thousand. {methods} methods in all.
- MobileNet is v2, on 500 natural images of which a part is used for each purpose; the paper's is v1. NIN has half the
  paper's width and batch norm. ResNet-20 has given weights. LeNet-5 is trained here.
"""
