"""RQ3 of the KuK study, the paper's numbers beside ours; what was run."""

from __future__ import annotations

from collections.abc import Sequence

from operant_studies.kuk import paper
from operant_studies.kuk.existing import NOISE_RADIUS
from operant_studies.kuk.found import Found
from operant_studies.kuk.search import CONTROL, GAP, Bred, gap, p_of_gap, percent
from operant_studies.shared import table

KINDS = {"LL": ("benign", "adversarial"), "HH": ("benign", "adversarial"), "LH": ("benign",), "HL": ("adversarial",)}


def rq3(found: Sequence[Found]) -> str:
    rows = [_search_row(f, pattern, bred) for f in found for pattern, bred in f.searches().items()]
    left = " and ".join(f.subject.title for f in found if not f.subject.controlled)
    without = f"It was not run for {left}, where it would take hours. " if left else ""
    columns = ["model", "pattern", "seeds", "paper, %", "reached, %", "confirmed, %", "points from the paper", "p"]
    columns += ["noise alone, %", "no selection, %", "each run"]
    text = f"""## RQ3: searches for uncommon patterns (Table 5, Fig. 3)

The share of seeds from which a pattern was reached. *Reached*: by the dropout masks of the search, which is what the
paper counts as far as it tells; *confirmed*: with fresh ones too, which is what a case is worth. Intervals are
Clopper-Pearson's at 95 %; they know of other seeds, not of other masks, which the seeds of a chunk share. The
differences from the paper are those of what was reached and of what was confirmed; the first decides what is to be
explained, if it is more than {100 * GAP:.0f} points, for the paper tells of no second look. (That was settled after the
numbers of LeNet-5 were known.) *p* is that of Fisher's exact test of the first difference, with the paper's
{paper.SEEDS} seeds. HL must be adversarial, LH benign.

Two controls: *noise alone* is the share that the first generation reached, before anything was bred; *{CONTROL}* is a
search that looks at as many members of as many generations, but takes parents at random and keeps nobody: each of
these is noise of the same strength, though generations come to resemble each other. It has the seeds of the first run.
{without}*Each run*: reached / confirmed, other seeds.

"""
    parts = [
        text + table(columns, rows),
        "The same by kind, with mean PCS / VRO of the cases that were reached, by the masks of the search:\n",
    ]
    columns = ["model", "pattern", "kind", "paper, %", "its PCS / VRO", "reached, %", "confirmed, %", "our PCS / VRO"]
    parts += [table(columns, [row for f in found for row in _by_kind(f)])]
    parts.append(
        "Where cases lie, by fresh masks, the first run of each model; hollow marks did not reach the pattern:\n"
    )
    parts += [
        f"![{f.subject.title}: cases bred for the four patterns](kuk-plane-{f.subject.name}.svg)\n"
        for f in found
        if f.searches()
    ]
    return "\n".join(parts)


def _search_row(f: Found, pattern: str, bred: Bred) -> list[object]:
    known, off, n = paper.reached(f.subject.name, pattern), gap(f.subject, bred), len(bred.label)
    both = f"{round(100 * off):+d}, {round(100 * (float(bred.confirmed.mean()) - known)):+d}"
    runs = [f"{100 * float(b.reached.mean()):.0f}/{100 * float(b.confirmed.mean()):.0f}" for b in f.by_run(pattern)]
    control = f.control(pattern)
    row = [f.subject.title, pattern, n, f"{100 * known:.3g}", percent(bred.reached), percent(bred.confirmed)]
    row += [both + (" **to explain**" if abs(off) > GAP else ""), f"{p_of_gap(f.subject, bred):.2g}"]
    row += [percent(bred.reached * (bred.generation == 0)), percent(control.reached) if control else ""]
    return [*row, ", ".join(runs) if len(runs) > 1 else ""]


def _by_kind(f: Found) -> list[list[object]]:
    rows: list[list[object]] = []
    for pattern, bred in f.searches().items():
        for kind in KINDS[pattern]:
            reached = (bred.wrong if kind == "adversarial" else ~bred.wrong) & (bred.reached > 0)
            confirmed = reached & (bred.confirmed > 0)
            number, pcs, vro = paper.TABLE_5[f.subject.name][pattern, kind]
            means = [f"{float(v[reached].mean()):.3f}" for v in (bred.pcs, bred.vro_search)] if reached.any() else []
            row = [f.subject.title, pattern, kind, f"{100 * number / paper.SEEDS:.3g}", f"{pcs:.3f} / {vro:.3f}"]
            rows.append([*row, percent(reached.double()), percent(confirmed.double()), " / ".join(means)])
    return rows


# What was run


def method(found: Sequence[Found]) -> str:
    rows, attacks = [], []
    for f in found:
        s = f.subject
        passes = f"{s.passes}" + (f", screened with {s.screen}" if s.screen else "")
        rows.append([s.title, f"{100 * f.dropout.accuracy:.1f}", s.calibration, s.calibration_passes, s.inputs, passes])
        rows[-1] += [f"{s.runs} x {s.seeds}", f"{s.population}, {s.generations}", f"{f.seconds / 3600:.2f}"]
        attacks.append([s.title, s.reach, s.radius, s.carlini, f"5 x {s.carlini_steps}", s.fuzzed, s.rows])
    columns = ["model", "accuracy, %", "inputs for dropout", "T there", "benign inputs", "T", "seeds of searches"]
    columns += ["members, generations", "CPU hours"]
    known = table(columns, rows)
    columns = ["model", "largest radius of FGSM, BIM", "their fixed radius", "inputs for C&W", "steps of C&W"]
    columns += ["seeds of tools", "inputs run for each"]
    told = "".join(f"- {NOTES[f.subject.name]}\n" for f in found)
    return f"## What was run\n\n{known}\n{table(columns, attacks)}{METHOD.format(noise=NOISE_RADIUS)}{told}"


METHOD = """
- The paper has 9 000 benign inputs, attacks from all of them, 500 seeds and 5 000 iterations for the testing tools, T
  of 50 for MNIST and 100 elsewhere, and 200 seeds for each search, of 100 members and 50 generations; the tables above
  say what is smaller here.
- Searches have the paper's other options: crossover .5, mutation .005, radius .3 in L-infinity, its thresholds. It does
  not say how large tournaments are (a fifth of the members here), whether the fittest live on (one does), what the
  mutation rate counts (images here), or what exactly the crossover rate is the chance of (each pixel here). "For the
  mutation process, the radius of L∞ is set as 0.3" is read as the radius of the ball and as the most that noise changes
  a value by. The experiments with less noise read it as that of the ball alone: of first members it says nothing.
- A search sees the same masks from start to end. **Screened searches are not the paper's**: fitness has few passes, the
  three fittest that meet the objective in these are asked for all T, and a seed leaves with one that meets it there.
  Populations may come to fit the few masks; the experiment *wider screen* tells where that matters.
- TensorFuzz's noise has the radius {noise}. Of Foolbox's defaults C&W has all but the thousand steps.
- In the choice of dropout, the distance from the paper's VRO counts benign inputs half and both attacks together half.
- Accuracy is on the test images that inputs were drawn from, not on all.
"""

NOTES = {
    "lenet5": "LeNet-5 is trained here, which the CPU hours leave out.",
    "nin": "NIN has half the paper's width, and batch norm; [its weights](nin.safetensors), made by `python "
    "-m operant_studies.train_nin`, are given with `--weights nin.safetensors`; `nin.json` beside them tells how they "
    "were made.",
    "resnet20": "ResNet-20 has given weights.",
    "mobilenet": "MobileNet is v2, on 500 natural images of which a part is used for each purpose; the paper's is v1. "
    "Dropout was tried in its last layers alone: before that, one generation of one seed takes minutes.",
}
