"""The page of the RobOT study: tables beside the paper's figures, a verdict for each claim, and pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from operant import results
from operant.assess import Rate
from operant.results import write_atomically
from operant.studies._work import Mean, mean, table, verdict
from operant.studies.robot.known import Known
from operant.studies.robot.pictures import draw_fol, draw_loss, draw_selection
from operant.studies.robot.settings import Setting
from operant.studies.robot.unit import Fair, FOLs, Judged, OnAdapt, Original, Pool, Race, Spread

PAPER_III = {
    "mnist": (99.02, 98.95),
    "fashion-mnist": (90.70, 90.63),
    "svhn": (88.84, 87.13),
    "cifar10": (90.39, 90.13),
}
PAPER_IV = {
    "mnist": {"be-st": 82.60, "km-st": 75.68, "deepgini": 70.36},
    "fashion-mnist": {"be-st": 50.55, "km-st": 47.50, "deepgini": 31.92},
    "svhn": {"be-st": 25.71, "km-st": 28.51, "deepgini": 19.15},
    "cifar10": {"be-st": 22.37, "km-st": 18.48, "deepgini": 12.08},
}
PAPER_V = {  # 5, 10 and 20 minutes: test cases and gain in robustness, FOL-Fuzz / ADAPT
    "mnist": ("1692/2125, 33.6/18.7", "3472/4521, 48.0/36.5", "7226/8943, 68.0/54.4"),
    "fashion-mnist": ("4294/5485, 40.8/6.7", "8906/10433, 53.9/14.9", "18527/21872, 69.0/27.2"),
    "svhn": ("6236/8401, 24.3/21.3", "12465/17429, 30.4/27.5", "24864/33692, 40.0/34.5"),
}
MEASURES: dict[str, Callable[[Judged], float]] = {
    "static": lambda j: j.pooled,
    "adaptive": lambda j: j.robustness.adaptive[-1].value,
    "adaptive, a third of the radius": lambda j: j.near.value,
}


@dataclass(frozen=True)
class Found:
    """What is on disk for one setting: each step of every seed."""

    setting: Setting
    folder: Path

    def of(self, name: str, kind: type[results.T]) -> list[results.T]:
        places = [self.folder / f"{self.setting.name}-seed{seed}" / f"{name}.json" for seed in self.setting.seeds]
        return [results.load(place, kind) for place in places if place.exists()]

    def judged(self, strategy: str, share: float) -> list[Judged]:
        return self.of(f"judged-{strategy}-{share:g}", Judged)

    def over_seeds(self, strategy: str, share: float, measure: Callable[[Judged], float]) -> Mean:
        return mean(measure(j) for j in self.judged(strategy, share))


def write_page(out: Path, settings: Sequence[Setting], *, scale: str) -> Path:
    """Write ``robot.md`` with its pictures into ``out``."""
    found = [Found(setting, out / "steps") for setting in settings]
    known = [results.load(path, Known) for path in sorted((out / "steps").glob("known-*.json"))]
    chosen = [f for f in found if len(f.setting.strategies) > 1]
    draw_selection(chosen, out / "robot-selection.svg")
    draw_loss(chosen, out / "robot-loss.svg")
    draw_fol(found, out / "robot-fol.svg")
    sections = [
        _intro(found, scale),
        _claims(found, known),
        _rq1(found, known),
        _selected(chosen),
        _rq2(chosen),
        _clean(chosen),
        _on_adapt(chosen),
        _rq3([f for f in found if f.setting.race]),
        _method(found),
    ]
    path = out / "robot.md"
    write_atomically(path, "\n".join(section for section in sections if section).encode())
    return path


def _intro(found: Sequence[Found], scale: str) -> str:
    used = sorted({f.setting.dataset for f in found})
    return f"""# RobOT, run again

The experiments of *RobOT: Robustness-Oriented Testing for Deep Learning Systems* (Wang et al., 2021), by `operant study
robot --scale {scale}`, on {", ".join(used)}. *Static* is the paper's measure: accuracy on FGSM and PGD cases that were
made once against the original model, so that the original scores 0. *Adaptive* is the paper's own Definition 2: the
attacks run against the model being judged. Numbers are means over seeds in percent with 95 % t-intervals; every seed
has its own model and its own test inputs.
"""


# Claims


def _claims(found: Sequence[Found], known: Sequence[Known]) -> str:
    rows = [row for f in found for row in (*_fol_claims(f), *_choice_claims(f), *_race_claims(f))]
    rows += _known_claims(known)
    columns = ["claim", "data, radius", "measured", "difference", ""]
    return "## What held\n\n" + table(columns, rows)


def _row(claim: str, f: Found, how: str, differences: Sequence[float], *, percent: bool = True) -> list[str]:
    value = mean(differences)
    told = str(value) if percent else f"{value.value:.2f} [{value.lower:.2f}, {value.upper:.2f}]"
    return [claim, _label(f.setting), how, told, f"**{verdict(value)}**"]


def _fol_claims(f: Found) -> list[list[str]]:
    first, last = f.of("fol-original", FOLs), f.of("fol-be-st-10", FOLs)
    rows = []
    for attack in ("fgsm", "pgd"):
        pairs = [(_median(a, attack), _median(b, attack)) for a, b in zip(first, last, strict=False)]
        how = f"median FOL of {attack.upper()} cases, original less retrained with 10 % (statically more robust)"
        rows.append(_row("FOL is smaller for more robust models", f, how, [a - b for a, b in pairs], percent=False))
    differences = [_median(a, "fgsm") - _median(a, "pgd") for a in first]
    how = "median FOL, FGSM less PGD, original model"
    return [*rows, _row("PGD cases have smaller FOL than FGSM cases", f, how, differences, percent=False)]


def _known_claims(known: Sequence[Known]) -> list[list[str]]:
    """Between two given networks there are no seeds: the middle halves of the cases must not overlap."""
    if len(known) < 2:
        return []
    by = {k.kind: k for k in known}
    rows = []
    for attack in ("fgsm", "pgd"):
        plain, robust = (getattr(by[kind], attack).quantiles for kind in ("plain", "robust"))
        held = "held" if robust[3] < plain[1] else "not held" if robust[1] > plain[3] else "not decided"
        how = f"median FOL of {attack.upper()} cases, plain less adversarially trained (adaptively more robust)"
        halves = (f"{q[1]:.1f} to {q[3]:.1f}" for q in (plain, robust))
        told = f"{plain[2] - robust[2]:.2f}, middle halves {', '.join(halves)}"
        rows.append(["FOL is smaller for more robust models", "mnist, 0.3, given weights", how, told, f"**{held}**"])
    return rows


def _choice_claims(f: Found) -> list[list[str]]:
    """Differences between strategies, averaged over the shares within each seed."""
    rows = []
    pairs = [("BE-ST", "be-st", "DeepGini", "deepgini"), ("KM-ST", "km-st", "DeepGini", "deepgini")]
    pairs += [("BE-ST", "be-st", "random choice", "random"), ("KM-ST", "km-st", "random choice", "random")]
    for first, a, second, b in pairs:
        if not {a, b} <= set(f.setting.strategies):
            continue
        for how, measure in MEASURES.items():
            differences = _averaged(f, a, b, measure)
            claim = f"{first} is above {second}" + ("" if b == "deepgini" else " (not the paper's)")
            rows.append(_row(claim, f, how, differences))
    return rows


def _averaged(f: Found, a: str, b: str, measure: Callable[[Judged], float]) -> list[float]:
    by_share = [
        [measure(x) - measure(y) for x, y in zip(f.judged(a, share), f.judged(b, share), strict=True)]
        for share in f.setting.shares
    ]
    return [sum(values) / len(values) for values in zip(*by_share, strict=True)]


def _race_claims(f: Found) -> list[list[str]]:
    rows = []
    for limit in f.setting.race[-1:]:
        ours, theirs = f.judged("fol-fuzz", limit), f.judged("adapt", limit)
        for how, measure in MEASURES.items():
            differences = [measure(a) - measure(b) for a, b in zip(ours, theirs, strict=True)]
            rows.append(_row(f"FOL-Fuzz is above ADAPT at equal time ({limit:g} CPU s)", f, how, differences))
    return rows


# Tables


def _rq1(found: Sequence[Found], known: Sequence[Known]) -> str:
    rows = []
    for f in found:
        for model in ("original", "be-st-5", "be-st-10"):
            fols = f.of(f"fol-{model}", FOLs)
            if fols:
                fgsm, pgd = (mean(_median(x, attack) for x in fols) for attack in ("fgsm", "pgd"))
                rows.append([_label(f.setting), model, mean(x.robust for x in fols), _plain(fgsm), _plain(pgd)])
    text = "## RQ1: FOL and robustness (Fig. 5 and 6)\n\nMedian FOL of the successful cases of each model.\n\n"
    text += table(["data, radius", "model", "static robustness", "FGSM", "PGD"], rows)
    text += "\n![FOL of the adversarial examples of three models](robot-fol.svg)\n"
    if known:
        cells = [[k.kind, _rate(k.clean), _rate(k.pgd40), _quartiles(k.fgsm), _quartiles(k.pgd)] for k in known]
        columns = ["network", "clean", "PGD, 40 steps, radius .3", "FOL of FGSM cases", "of PGD cases"]
        text += "\nTwo networks of known robustness (MNIST, given weights; median and middle half of FOL):\n\n"
        text += table(columns, cells)
    return text


def _selected(found: Sequence[Found]) -> str:
    rows = []
    for f in found:
        rows.append([_label(f.setting), "all of the pool", *_quantile_means([p.loss for p in f.of("pool", Pool)])])
        for strategy in f.setting.strategies:
            spreads = [j.loss for j in f.judged(strategy, f.setting.shares[-1]) if j.loss is not None]
            rows.append(["", strategy, *_quantile_means(spreads)])
    text = "## Loss of the cases that are chosen (Fig. 4)\n\nQuantiles at the largest share, mean over seeds.\n\n"
    return (
        text
        + table(["data, radius", "chosen by", "5 %", "25 %", "50 %", "75 %", "95 %"], rows)
        + ("\n![Loss of the chosen cases](robot-loss.svg)\n")
    )


def _rq2(found: Sequence[Found]) -> str:
    text = "## RQ2: choosing cases (Fig. 7)\n\n![Static robustness by share of cases](robot-selection.svg)\n"
    for f in found:
        rows = []
        for strategy, share in [
            ("control", 0),
            *((s, share) for share in f.setting.shares for s in f.setting.strategies),
        ]:
            judged = f.judged(strategy, share)
            name = "clean data alone" if strategy == "control" else f"{strategy}, {share} %"
            n = f"{sum(j.n for j in judged) / len(judged):.0f}"
            cells = [f.over_seeds(strategy, share, measure) for measure in MEASURES.values()]
            fgsm = f.over_seeds(strategy, share, lambda j: j.robustness.adaptive[0].value)
            kept = sum(j.best_epoch == 0 for j in judged)
            rows.append([name, n, *cells, fgsm, kept])
        columns = ["chosen by", "cases", *MEASURES, "adaptive, FGSM alone", "guard kept the original"]
        text += f"\n### {_label(f.setting)}\n\n" + table(columns, rows)
    return text


def _clean(found: Sequence[Found]) -> str:
    rows = []
    for f in found:
        paper = PAPER_III.get(f.setting.dataset, ("", ""))
        before = mean(o.robustness.clean.value for o in f.of("original", Original))
        cells = [
            f.over_seeds(s, f.setting.shares[-1], lambda j: j.robustness.clean.value) for s in f.setting.strategies
        ]
        control = f.over_seeds("control", 0, lambda j: j.robustness.clean.value)
        rows.append([_label(f.setting), *paper, before, control, *cells])
    columns = ["data, radius", "paper, before", "paper, after", "before", "clean data alone"]
    strategies = found[0].setting.strategies if found else ()
    text = "## Clean accuracy before and after retraining (Table III)\n\nAfter: the largest share of cases.\n\n"
    return text + table([*columns, *strategies], rows)


def _on_adapt(found: Sequence[Found]) -> str:
    rows = []
    for f in found:
        told = f.of("on-adapt", OnAdapt)
        if not told:
            continue
        paper = PAPER_IV.get(f.setting.dataset, {})
        for name in told[0].accuracy:
            strategy = name.rsplit("-", 1)[0]
            rows.append([_label(f.setting), strategy, paper.get(strategy, ""), mean(t.accuracy[name] for t in told)])
    text = """## Against ADAPT's cases (Table IV)

Accuracy on the cases that ADAPT makes from test inputs against the original model, of models retrained with the largest
share. DeepXplore and DLFuzz, the table's other columns, are not part of this study yet.

"""
    return text + table(["data, radius", "chosen by", "paper", "here"], rows)


def _rq3(found: Sequence[Found]) -> str:
    rows = []
    for f in found:
        for place, limit in enumerate(f.setting.race):
            paper = PAPER_V.get(f.setting.dataset, ())
            races = {name: f.of(f"race-{name}", Race) for name in ("fol-fuzz", "adapt")}
            for name in races:
                judged = f.judged(name, limit)
                base = mean(o.pooled for o in f.of("original", Original)).value
                gain = mean(j.pooled - base for j in judged)
                others = [f.over_seeds(name, limit, m) for how, m in MEASURES.items() if how != "static"]
                n = sum(j.n for j in judged) / len(judged)
                printed = paper[place - len(f.setting.race)] if paper and name == "fol-fuzz" else ""
                rows.append([_label(f.setting), f"{limit:g} s", name, f"{n:.0f}", gain, *others, printed])
    columns = [
        "data, radius",
        "CPU time",
        "fuzzer",
        "cases",
        "static gain",
        "adaptive",
        "at a third",
        "paper, FOL-Fuzz/ADAPT",
    ]
    text = """## RQ3: FOL-Fuzz and ADAPT for equal time (Table V)

Cases found from training inputs within the CPU time, all of them retrained with. The paper's times are 5, 10 and 20
minutes; its last columns stand beside ours. A fuzzer finishes the chunk of seeds it has begun.

"""
    return text + _rates(found) + "\nThe race:\n\n" + table(columns, rows)


def _rates(found: Sequence[Found]) -> str:
    """Is the rival a fair one? Its coverage against random steps, and its cases per minute beside the paper's."""
    rows, grown = [], []
    for f in found:
        for name in ("fol-fuzz", "adapt"):
            per_minute = [60 * r.cases[-1] / r.seconds[-1] for r in f.of(f"race-{name}", Race)]
            rows.append([_label(f.setting), name, _whole(per_minute), _paper_rate(f.setting.dataset, name)])
        fair = f.of("fair", Fair)
        cells = [mean(getattr(x, name) for x in fair) for name in ("seed", "adapt", "random")]
        grown.append([_label(f.setting), fair[0].rows, *cells, mean(x.adapt - x.random for x in fair)])
    columns = ["data, radius", "inputs a seed", "seed alone", "ADAPT", "random steps, best length", "difference"]
    return (
        "Is ADAPT a fair rival? Neuron coverage of a seed's inputs, percent:\n\n"
        + table(columns, grown)
        + "\nCases per minute, one thread:\n\n"
        + table(["data, radius", "fuzzer", "here", "paper (20 min)"], rows)
    )


def _whole(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.0f}"


def _paper_rate(dataset: str, name: str) -> str:
    if dataset not in PAPER_V:
        return ""
    counts = PAPER_V[dataset][2].split(",")[0].split("/")
    return f"{int(counts[name == 'adapt']) / 20:.0f}"


def _method(found: Sequence[Found]) -> str:
    rows = []
    for f in found:
        s, pools = f.setting, f.of("pool", Pool)
        size = sum(p.fgsm + p.pgd for p in pools) / max(len(pools), 1)
        epochs = s.finetune.epochs
        rows.append(
            [
                _label(s),
                s.train,
                s.validation,
                s.test,
                len(s.seeds),
                epochs,
                f"{size:.0f}",
                ", ".join(map(str, s.shares)),
            ]
        )
    columns = [
        "data, radius",
        "training inputs",
        "validation",
        "test, a seed",
        "seeds",
        "epochs",
        "pool of cases",
        "shares, %",
    ]
    return (
        "## What was run\n\n"
        + table(columns, rows)
        + """
- The pool: all successful FGSM and PGD cases (ten steps of a sixth of the radius) on the training inputs.
- Retraining: original weights, training inputs and chosen cases, Adam 1e-3 (1e-4 for CIFAR-10), batches of 64; the
  epoch is chosen by static cases of the *validation* inputs; clean validation accuracy may fall by 3 points, else the
  original weights stay. The paper's program chooses the epoch on the cases that it reports.
- Control: the same number of further epochs on clean data alone.
- Smaller than the paper: fewer training and test inputs, three shares of ten (but three seeds where the paper has one
  run), CPU seconds instead of minutes (both fuzzers are that much faster here); CIFAR-10 with fewer images and epochs,
  for RQ1 alone.
- Fashion-MNIST has two radii: the paper's Table II prints .03 for FGSM and .3/6 for PGD's steps, which do not fit.
- Intervals over three seeds are wide. *Not decided* means that the interval holds 0, also where every model scores 0.
"""
    )


# Cells


def _label(setting: Setting) -> str:
    return f"{setting.dataset}, {setting.radius:g}"


def _median(fols: FOLs, attack: str) -> float:
    quantiles = getattr(fols, attack).quantiles
    return float(quantiles[2]) if quantiles else 0.0


def _plain(value: Mean) -> str:
    return f"{value.value:.1f} [{value.lower:.1f}, {value.upper:.1f}]"


def _rate(rate: Rate) -> str:
    return f"{100 * rate.value:.1f} [{100 * rate.lower:.1f}, {100 * rate.upper:.1f}]"


def _quartiles(spread: Spread) -> str:
    q = spread.quantiles
    return f"{q[2]:.1f} ({q[1]:.1f} to {q[3]:.1f}), {spread.n} cases"


def _quantile_means(spreads: Sequence[Spread]) -> list[str]:
    columns = zip(*(s.quantiles for s in spreads), strict=True)
    return [f"{sum(values) / len(values):.1f}" for values in columns]
