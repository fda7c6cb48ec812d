"""RQ3 of the KuK study, the paper's numbers beside ours; what was run."""

from __future__ import annotations

from collections.abc import Sequence

from operant.studies._work import table
from operant.studies.kuk import paper
from operant.studies.kuk.existing import METHODS
from operant.studies.kuk.found import Found
from operant.studies.kuk.search import GAP, Bred, gap, percent

KINDS = {"LL": ("benign", "adversarial"), "HH": ("benign", "adversarial"), "LH": ("benign",), "HL": ("adversarial",)}


def rq3(found: Sequence[Found]) -> str:
    rows = [_search_row(f, pattern, bred) for f in found for pattern, bred in f.searches().items()]
    columns = ["model", "pattern", "seeds", "paper, %", "reached, %", "confirmed, %", "difference", "each run"]
    text = """## RQ3: searches for uncommon patterns (Table 5, Fig. 3)

The share of seeds from which a pattern was reached. *Reached*: by the dropout masks of the search, which is what the
paper counts as far as it tells; *confirmed*: with fresh ones too, which is what a case is worth. Intervals are
Clopper-Pearson's at 95 %; they know of other seeds, not of other masks, which the seeds of a chunk share. The
differences from the paper, in points, are those of the count reached and of the count confirmed; the first decides what
is to be explained, for the paper tells of no second look. (That was settled after LeNet-5's numbers were known; by the
second, its LH would be to explain as well.) HL must be adversarial, LH benign. *Each run*: reached / confirmed, other
seeds.

"""
    parts = [text + table(columns, rows), "The same by kind, with mean PCS / VRO of the cases that were reached:\n"]
    columns = ["model", "pattern", "kind", "paper, of 200", "PCS / VRO", "reached", "confirmed", "PCS / VRO (search)"]
    parts += [table(columns, [row for f in found for row in _by_kind(f)])]
    parts.append("Where cases lie, by fresh masks, the first run of each model:\n")
    parts += [
        f"![{f.subject.title}: cases bred for the four patterns](kuk-plane-{f.subject.name}.svg)\n" for f in found
    ]
    return "\n".join(parts)


def _search_row(f: Found, pattern: str, bred: Bred) -> list[object]:
    known, off = paper.reached(f.subject.name, pattern), gap(f.subject, bred)
    both = f"{round(100 * off):+d}, {round(100 * (float(bred.confirmed.mean()) - known)):+d}"
    runs = [f"{100 * float(b.reached.mean()):.0f}/{100 * float(b.confirmed.mean()):.0f}" for b in f.by_run(pattern)]
    row = [f.subject.title, pattern, len(bred.label), f"{100 * known:.3g}"]
    row += [percent(bred.reached), percent(bred.confirmed), both + (" **to explain**" if abs(off) > GAP else "")]
    return [*row, ", ".join(runs) if len(runs) > 1 else ""]


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
- Searches have the paper's options: crossover .5, mutation .005, radius .3 in L-infinity, its thresholds; its 100
  members and 50 generations unless the table says otherwise. It does not say how large tournaments are (a fifth of the
  members here), nor whether the fittest live on (one does), what the mutation rate counts (images here), or how much
  noise first members and mutants have (up to the radius here).
- A search sees the same masks from start to end. **Screened searches are not the paper's**: fitness has few passes, the
  three fittest that meet the objective in these are asked for all T, and a seed leaves with one that meets it there.
  Populations come to fit the few masks, so that fewer seeds reach the pattern; *wider screen* above tells how much that
  matters where we reach less than the paper.
- C&W has five weights, and fewer steps than Foolbox's thousand. {methods} methods in all.
- MobileNet is v2, on 500 natural images of which a part is used for each purpose; the paper's is v1. ResNet-20 has
  given weights, and so has NIN: those of `operant train-nin`. LeNet-5 is trained here, which the CPU hours leave out.
- Accuracy is on the test images that inputs were drawn from, not on all.
"""
