"""RQ3 of the KuK study, the paper's numbers beside ours, and the settings of all runs."""

from __future__ import annotations

from collections.abc import Sequence

from operant_studies.kuk import paper
from operant_studies.kuk.existing import NOISE_RADIUS
from operant_studies.kuk.results import KukResults
from operant_studies.kuk.search import CONTROL, MAX_GAP, PatternSearch, gap, p_of_gap, percent
from operant_studies.shared import table

KINDS = {"LL": ("benign", "adversarial"), "HH": ("benign", "adversarial"), "LH": ("benign",), "HL": ("adversarial",)}


def rq3(found: Sequence[KukResults]) -> str:
    rows = [_search_row(f, pattern, search) for f in found for pattern, search in f.searches().items()]
    left = " and ".join(f.subject.title for f in found if not f.subject.controlled)
    without = f"It was not run for {left}, where it would take hours. " if left else ""
    columns = ["model", "pattern", "seeds", "paper, %", "reached, %", "confirmed, %", "points from the paper", "p"]
    columns += ["noise alone, %", "no selection, %", "each run"]
    text = f"""## RQ3: searches for uncommon patterns (Table 5, Fig. 3)

The share of seeds from which a pattern was reached. *Reached*: with the dropout masks of the search, which is what the
paper seems to count; *confirmed*: also with fresh masks, which shows that the case has the pattern. Intervals are
Clopper-Pearson's at 95 %; they cover the choice of seeds, not that of masks, which the seeds of a chunk share. The two
differences from the paper are those of the reached and of the confirmed share. The first needs an explanation if it
exceeds {100 * MAX_GAP:.0f} points, because the paper does not mention fresh masks (decided after the numbers of LeNet-5
were known). *p* is that of Fisher's exact test of the first difference, with the paper's {paper.SEEDS} seeds. HL must
be adversarial, LH benign.

Two controls: *noise alone* is the share that the first generation reached, before any selection; *{CONTROL}* is a
search with as many members and generations that draws parents at random and keeps no member: each member is noise of
the same strength, although generations become similar to each other. It has the seeds of the first run.
{without}*Each run*: reached / confirmed, with different seeds.

"""
    parts = [
        text + table(columns, rows),
        "The same by kind, with mean PCS / VRO of the cases that were reached, by the masks of the search:\n",
    ]
    columns = ["model", "pattern", "kind", "paper, %", "its PCS / VRO", "reached, %", "confirmed, %", "our PCS / VRO"]
    parts += [table(columns, [row for f in found for row in _by_kind(f)])]
    parts.append(
        "PCS and VRO of the cases with fresh masks, first run of each model; hollow marks did not reach the pattern:\n"
    )
    parts += [
        f"![{f.subject.title}: cases bred for the four patterns](kuk-plane-{f.subject.name}.svg)\n"
        for f in found
        if f.searches()
    ]
    return "\n".join(parts)


def _search_row(f: KukResults, pattern: str, search: PatternSearch) -> list[object]:
    theirs, off, n = paper.reached(f.subject.name, pattern), gap(f.subject, search), len(search.label)
    both = f"{round(100 * off):+d}, {round(100 * (float(search.confirmed.mean()) - theirs)):+d}"
    runs = [f"{100 * float(b.reached.mean()):.0f}/{100 * float(b.confirmed.mean()):.0f}" for b in f.by_run(pattern)]
    control = f.control(pattern)
    row = [f.subject.title, pattern, n, f"{100 * theirs:.3g}", percent(search.reached), percent(search.confirmed)]
    row += [both + (" **to explain**" if abs(off) > MAX_GAP else ""), f"{p_of_gap(f.subject, search):.2g}"]
    row += [percent(search.reached * (search.generation == 0)), percent(control.reached) if control else ""]
    return [*row, ", ".join(runs) if len(runs) > 1 else ""]


def _by_kind(f: KukResults) -> list[list[object]]:
    rows: list[list[object]] = []
    for pattern, search in f.searches().items():
        for kind in KINDS[pattern]:
            reached = (search.wrong if kind == "adversarial" else ~search.wrong) & (search.reached > 0)
            confirmed = reached & (search.confirmed > 0)
            number, pcs, vro = paper.TABLE_5[f.subject.name][pattern, kind]
            means = (
                [f"{float(v[reached].mean()):.3f}" for v in (search.pcs, search.vro_search)] if reached.any() else []
            )
            row = [f.subject.title, pattern, kind, f"{100 * number / paper.SEEDS:.3g}", f"{pcs:.3f} / {vro:.3f}"]
            rows.append([*row, percent(reached.double()), percent(confirmed.double()), " / ".join(means)])
    return rows


# What was run


def method(found: Sequence[KukResults]) -> str:
    rows, attacks = [], []
    for f in found:
        s = f.subject
        passes = f"{s.passes}" + (f", screened with {s.screen}" if s.screen else "")
        rows.append([s.title, f"{100 * f.dropout.accuracy:.1f}", s.calibration, s.calibration_passes, s.inputs, passes])
        rows[-1] += [f"{s.runs} x {s.seeds}", f"{s.population}, {s.generations}", f"{f.seconds / 3600:.2f}"]
        attacks.append([s.title, s.reach, s.radius, s.carlini, f"5 x {s.carlini_steps}", s.fuzzed, s.rows])
    columns = ["model", "accuracy, %", "inputs for dropout", "T there", "benign inputs", "T", "seeds of searches"]
    columns += ["members, generations", "CPU hours"]
    sizes = table(columns, rows)
    columns = ["model", "largest radius of FGSM, BIM", "their fixed radius", "inputs for C&W", "steps of C&W"]
    columns += ["seeds of tools", "inputs run for each"]
    notes = "".join(f"- {NOTES[f.subject.name]}\n" for f in found)
    return f"## What was run\n\n{sizes}\n{table(columns, attacks)}{METHOD.format(noise=NOISE_RADIUS)}{notes}"


METHOD = """
- The paper has 9 000 benign inputs, attacks from all of them, 500 seeds and 5 000 iterations for the testing tools, T
  of 50 for MNIST and 100 elsewhere, and 200 seeds for each search, of 100 members and 50 generations; the tables above
  say what is smaller here.
- Searches have the paper's other options: crossover .5, mutation .005, radius .3 in L-infinity, its thresholds. It does
  not say how large tournaments are (a fifth of the members here), whether the fittest survive (one does), what the
  mutation rate applies to (images here), or what the crossover rate applies to (each pixel here). "For the mutation
  process, the radius of L∞ is set as 0.3" is read as the radius of the ball and as the maximum change of a value by
  noise. The experiments with less noise read it as the radius of the ball only; the sentence does not cover the first
  members.
- A search uses the same masks throughout. **Screened searches are not the paper's**: fitness is computed with few
  passes; the three fittest members that meet the objective are computed with all T, and the search of a seed ends when
  one meets it there. Populations may fit the few masks; the experiment *wider screen* shows where that matters.
- TensorFuzz's noise has the radius {noise}. C&W has Foolbox's defaults, except for the thousand steps.
- In the choice of dropout, the distance from the paper's VRO counts benign inputs half and both attacks together half.
- Accuracy is on the test images that inputs were drawn from, not on all.
"""

NOTES = {
    "lenet5": "LeNet-5 is trained here; the CPU hours do not include this.",
    "nin": "NIN has half the paper's width, and batch norm; [its weights](nin.safetensors), made by `python -m "
    "operant_studies.train_nin`, are passed with `--weights nin.safetensors`; `nin.json` beside them describes the "
    "training.",
    "resnet20": "ResNet-20 has existing weights.",
    "mobilenet": "MobileNet is v2, on 500 natural images, a part of them for each purpose; the paper's is v1. Dropout "
    "was tried in the last layers only; before them, one generation of one seed takes minutes.",
}
