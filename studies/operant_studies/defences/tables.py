"""Tables of the study of defences, the paper's numbers beside ours, and what held."""

from __future__ import annotations

from collections.abc import Sequence

from operant.defend.evaluate import interval
from operant_studies.defences import paper
from operant_studies.defences.found import Found, average, plain_mean, run_means
from operant_studies.defences.judging import COMMON, CONFIRMED, NOISE, UNCOMMON
from operant_studies.defences.settings import CLASSIFIER, MUTATION, SQUEEZING
from operant_studies.defences.suites import searched
from operant_studies.kuk.settings import PATTERNS
from operant_studies.shared import Mean, mean, minus, table, verdict

READ = (CLASSIFIER, MUTATION)  # what the paper says suffers most
DETECTORS = (*READ, SQUEEZING)  # which are calibrated on benign inputs
OPEN = "not decided"
KINDS = ("benign", "adversarial")


# Claims


def claims(found: Sequence[Found]) -> str:
    """What the papers say, and whether it held here."""
    rows = [*_headline(found), *_even(found), *_control(found), *_common(found), *_detectors(found)]
    rows += [_cell(f, defence) for f in found for defence in f.tried]
    text = f"""## What held

By how many points the success of a defence is lower on uncommon than on common data. Over several runs the interval is
a 95 % t-interval; of a model with one run it is Newcombe's, from Clopper-Pearson intervals of its cases that know which
share seeds. *Held*: the interval lies above what is claimed; *not held*: below; *not decided*: neither; for the largest
fall by intervals that are wider the more cells there are (Bonferroni). The papers' 35 and 79 % are of "more hidden
defects"; we read them as points of success. Attacks that judge differ by run, and intervals over runs know of that.
With {len(rows)} rows at 95 % a few would come out by chance alone. Data differ in how many of their cases are benign,
which alone changes success; *kinds counted alike* is the mean over benign and adversarial cases. The control is noise
as strong as that of the searches, but not bred: where defences fail on it as well, patterns are not what they fail on.

"""
    return text + table(["claim", "where", "paper", "measured", "verdict"], rows)


def _headline(found: Sequence[Found]) -> list[list[object]]:
    value = average(found)
    cells = [(f, defence) for f in found for defence in f.tried if f.falls(defence)]
    if value is None or not cells:
        return []
    f, defence = max(cells, key=lambda cell: cell[0].fall(cell[1]).value)
    wide = [g.fall(d, confidence=1 - 0.05 / len(cells)) for g, d in cells]
    known, every = paper.drops(), f"mean over {len(found)} models"
    theirs = 100 * plain_mean(plain_mean(each) for each in known.values())
    most = 100 * max(max(each) for each in known.values())
    claim, large = f"{100 * paper.AVERAGE:.0f}", f"{100 * paper.LARGEST:.0f}"
    return [
        ["success is lower on uncommon data", every, f"{theirs:.0f}", value, _bold(value)],
        [
            f"… by {claim} points on average",
            every,
            f"{claim} (its tables: {theirs:.0f})",
            value,
            _bold(minus(value, paper.AVERAGE)),
        ],
        [
            f"… and by up to {large}",
            f"the largest, {f.title}, {defence}",
            f"{large} (its tables: {most:.0f})",
            f.fall(defence),
            f"**{_up_to(wide, paper.LARGEST)}**",
        ],
    ]


def _even(found: Sequence[Found]) -> list[list[object]]:
    """The same with kinds counted alike, on models with several runs that have enough of both."""
    cells = [[f.even_falls(d) for d in f.tried] for f in found if f.plan.runs > 1 and f.tried]
    there = [model for model in cells if all(len(cell) > 1 for cell in model)]
    falls = mean(run_means(there)) if there else None
    told: list[object] = [falls, _bold(falls)] if falls else ["too few of a kind", f"**{OPEN}**"]
    claim = "success is lower on uncommon data, kinds counted alike"
    return [[claim, f"mean over {len(there)} models", "-", *told]] if cells else []


def _control(found: Sequence[Found]) -> list[list[object]]:
    """Whether defences do worse on bred cases than on noise of the same strength, mean over those of a model."""
    rows: list[list[object]] = []
    for f in found:
        falls = run_means([[f.falls(d, data=NOISE) for d in f.tried]]) if f.plan.runs > 1 and f.tried else []
        if falls:
            claim = "control: success is lower on uncommon data than on noise that was not bred"
            rows.append([claim, f.title, "-", mean(falls), _bold(mean(falls))])
    return rows


def _up_to(cells: Sequence[Mean], by: float) -> str:
    """Whether the largest fall is so large: if one is for certain, or none can be."""
    if any(cell.lower > by for cell in cells):
        return "held"
    return "not held" if all(cell.upper < by for cell in cells) else OPEN


def _common(found: Sequence[Found]) -> list[list[object]]:
    """What the paper's defences stop of common data in more than nine of ten cases."""
    rows: list[list[object]] = []
    for f in found:
        known = paper.TABLES.get(f.plan.name, {})
        shares = [f.success(d, COMMON) for d in f.tried if d in known and known[d][0] > paper.STOPPED]
        if shares:
            words = [verdict(minus(share, paper.STOPPED)) for share in shares]
            counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
            word = "held" if set(words) == {"held"} else "not held" if "not held" in words else OPEN
            claim = f"defences succeed on more than {100 * paper.STOPPED:.0f} % of common data, where the paper's do"
            rows.append([claim, f.title, f"{len(shares)} defences", counts, f"**{word}**"])
    return rows


def _detectors(found: Sequence[Found]) -> list[list[object]]:
    """Detectors that read confidence and stability suffer more than others."""
    rows: list[list[object]] = []
    for f in found:
        first, rest = ([f.falls(d) for d in f.tried if (d in READ) == which] for which in (True, False))
        if not first or not rest or f.plan.runs < 2:
            continue
        leads = mean(a - b for a, b in zip(run_means([first]), run_means([rest]), strict=True))
        known = paper.TABLES.get(f.plan.name, {})
        theirs = [plain_mean(k[0] - k[1] for d, k in known.items() if (d in READ) == which) for which in (True, False)]
        claim = "binary classifier and mutation-based detection lose more than the others"
        rows.append([claim, f.title, f"{100 * (theirs[0] - theirs[1]):.0f}", leads, _bold(leads)])
    return rows


def _cell(f: Found, defence: str) -> list[object]:
    known = paper.TABLES.get(f.plan.name, {}).get(defence)
    told, claim = f"{100 * (known[0] - known[1]):.0f}" if known else "-", f"lower for {defence}"
    if not f.falls(defence):
        return [claim, f.title, told, "no uncommon cases", f"**{OPEN}**"]
    return [claim, f.title, told, f.fall(defence), _bold(f.fall(defence))]


def _bold(value: Mean) -> str:
    return f"**{verdict(value)}**"


# Tables 6 and 7


def success(found: Sequence[Found]) -> str:
    rows = []
    for f in found:
        for defence in f.tried:
            known = paper.TABLES.get(f.plan.name, {}).get(defence)
            theirs = [f"{100 * value:.1f}" for value in known] if known else ["-", "-"]
            ours = [_share(f, defence, data) for data in (COMMON, UNCOMMON, CONFIRMED, NOISE)]
            rows.append([f.title, defence, theirs[0], ours[0], theirs[1], *ours[1:]])
    columns = ["model", "defence", "common: paper", "here", "uncommon: paper", "here", "confirmed alone", "noise"]
    text = """## Success of each defence (Tables 6 and 7)

In percent, with 95 % intervals: over runs, or of the cases where there is one run. A detector succeeds if it accepts a
benign case or rejects an adversarial one; any other defence if it reads the label of the seed. *Uncommon*: cases that
reached one of the four patterns in a search, by the dropout masks of that search, as the paper counts them. *Confirmed
alone*: those whose pattern also holds with fresh masks. *Noise*: the control, seeds of the searches with noise of the
same strength that was not bred.

![Success on common and on uncommon data](defences.svg)

"""
    return text + table(columns, rows)


def _share(f: Found, defence: str, data: str) -> str:
    return f.success(defence, data).share if f.pooled(defence, data)[1] else "none"


# By pattern


def by_pattern(found: Sequence[Found]) -> str:
    rows = [_pattern_row(f, defence, kind) for f in found for defence in f.tried for kind in KINDS]
    text = """## By kind and pattern

Success in percent on common data, on the uncommon cases of each pattern (first letter PCS, second VRO) and on noise,
all runs together, with Clopper-Pearson intervals at 95 % for as many trials as there are seeds, and the number of
cases. A detector that rejects everything does well on adversarial cases alone: look at both kinds. HL cases are always
adversarial, LH ones benign.

"""
    return text + table(["model", "defence", "kind", "common", *PATTERNS, "noise"], rows)


def _pattern_row(f: Found, defence: str, kind: str) -> list[object]:
    cells = [f.pooled(defence, COMMON, kind), *(f.pooled(defence, UNCOMMON, kind, pattern) for pattern in PATTERNS)]
    return [f.title, defence, kind, *(_counted(*cell) for cell in (*cells, f.pooled(defence, NOISE, kind)))]


def _counted(k: int, n: int, seeds: int) -> str:
    """With an interval for as many trials as there are seeds."""
    if n == 0:
        return "-"
    lower, upper = interval(k, n, 0.95, trials=seeds)
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
        rows.append([f.title, p.runs, seeds, f.size(UNCOMMON), f.size(UNCOMMON, "benign"), f.size(CONFIRMED), theirs])
        rows[-1] += [f.size(COMMON), f.size(NOISE), f.size(NOISE, "benign")]
        rows[-1] += [p.benign if any(d in DETECTORS for d in p.defences) else "-", f"{f.seconds / 60:.0f}"]
    columns = [
        "model",
        "runs",
        "seeds searched from, all patterns",
        "uncommon cases",
        "of these benign",
        "confirmed",
        "the paper's",
        "common cases",
        "noise",
        "of this benign",
    ]
    return table([*columns, "benign inputs of a run to fit on", "CPU minutes"], rows)


def _searches(found: Sequence[Found]) -> str:
    rows = []
    for f in found:
        c, s = f.plan.cut, f.plan.subject
        sizes = [f"{of.population}, {of.generations}, {of.screen or 'all'} of {of.passes}" for of in (s, c)]
        sizes[1] += "".join(f"; {pattern}: {change}" for pattern, change in f.plan.changes.items())
        rows.append([f.title, sizes[0], "the same" if sizes[0] == sizes[1] else sizes[1], f.plan.mutants])
    columns = ["model", "members, generations, passes of the KuK study's searches", "of those made here", "mutants"]
    return "Searches; those of the KuK study are taken where its folder is at hand:\n\n" + table(columns, rows)


def _notes(found: Sequence[Found]) -> str:
    rows = [
        [f.title, defence, f"{100 * f.plan.level:.0f} %" if defence in DETECTORS else "-", note]
        for f in found
        for defence, each in f.tried.items()
        if (note := "; ".join(t.note for t in each.values() if t.note)) or defence in DETECTORS
    ]
    return table(["model", "defence", "false-positive rate", "by run"], rows)


DIFFERENCES = """## What differs from the paper

- Patterns are pooled: a run has the cases of all four, one of a seed and pattern. Where a pass takes long, searches
  that were made here have fewer members and generations; a pattern is searched for until it has enough cases, and LL
  and HH from few seeds, for they take longest: most cases are then of the two others.
- Common data are half benign; how many of the uncommon cases are, the table above tells. A defence that is better on
  one kind than on the other gains or loses by that alone: look at the table by kind.
- The paper fits and judges on cases of the same attacks, as far as it says. Here the binary classifier learns from two
  attacks and all defences are judged on the other ones, of other seeds, so that nothing is fitted on what judges it.
  Thresholds come from benign inputs that no case starts from.
- Every detector is calibrated to one false-positive rate, the binary classifier too, which has a threshold of its own.
  It learns from a few hundred cases where the paper has thousands: where it misses most attacks already, it cannot fall
  far.
- Distillation and label smoothing train a new network in the paper. Here LeNet-5 does so with fewer inputs; ResNet-20
  and NIN train on from their own weights with a few thousand inputs that they may have learned from before, which
  leaves them nearer to the model that was attacked and may make both defences weaker.
- The paper does not say which input transformations it has: here the mean of three bits, JPEG and five crops.
- A run has seeds, inputs and random numbers of its own; the weights of the model are the same in all. Cases that the
  binary classifier of one run learns from may judge defences of another run.
- Set after a first look at LeNet-5: how many inputs detectors are fitted on, for the binary classifier needs many, and
  how long its new networks learn, for distilled ones had lost accuracy. Set after a first look at MobileNet: how long
  searches go on, and that those for LH have less noise, for there were too few cases. Set while its searches ran, to
  end in time: six seeds for LL (three had reached it) and HH (two of four), and 52 cases for the others instead of 60.
- Told otherwise after the numbers were known: the control. It was one mean over models, kinds counted alike, which was
  not decided (10.8 [-33.5, 55.2] over two models that had enough of both kinds); it is now told for each model, kinds
  as they come, so that part of a difference may be one of kinds.
- MobileNet is v2, the paper's is v1; LeNet-5 is trained here; NIN has half the width and batch norm.
"""


def again(scale: str) -> str:
    return f"""## Run it again

`operant study defences --scale {scale} --data DATA --weights nin.safetensors --out OUT`. Named again, it
goes on where it stopped. With `--kuk DIR` dropout, weights and suites of a KuK study that was run before are used; one
in the same folder is found.
"""
