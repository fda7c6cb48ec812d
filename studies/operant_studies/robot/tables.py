"""The tables of the RobOT study, the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence

from operant.assess import Rate
from operant_studies.robot.mnist_networks import NetworkRobustness
from operant_studies.robot.results import MEASURES, RobotStudyResults
from operant_studies.robot.unit import (
    CaseAccuracy,
    CasePool,
    CoverageCheck,
    FirstOrderLosses,
    OriginalModel,
    Quantiles,
    RaceResult,
    RetrainedModel,
)
from operant_studies.shared import in_percent, mean, table

PAPER_III = {
    "mnist": (99.02, 98.95),
    "fashion-mnist": (90.70, 90.63),
    "svhn": (88.84, 87.13),
    "cifar10": (90.39, 90.13),
}
PAPER_IV = {
    "adapt": {
        "mnist": {"be-st": 82.60, "km-st": 75.68, "deepgini": 70.36},
        "fashion-mnist": {"be-st": 50.55, "km-st": 47.50, "deepgini": 31.92},
        "svhn": {"be-st": 25.71, "km-st": 28.51, "deepgini": 19.15},
        "cifar10": {"be-st": 22.37, "km-st": 18.48, "deepgini": 12.08},
    },
    "deepxplore": {
        "mnist": {"be-st": 86.12, "km-st": 80.56, "deepgini": 73.74},
        "fashion-mnist": {"be-st": 51.57, "km-st": 47.97, "deepgini": 34.14},
        "svhn": {"be-st": 37.10, "km-st": 38.29, "deepgini": 27.26},
    },
    "dlfuzz": {
        "mnist": {"be-st": 76.39, "km-st": 74.73, "deepgini": 65.59},
        "fashion-mnist": {"be-st": 38.15, "km-st": 35.44, "deepgini": 27.16},
        "svhn": {"be-st": 32.83, "km-st": 34.83, "deepgini": 25.34},
    },
}
PAPER_V = {  # 5, 10 and 20 minutes: test cases and gain in robustness, FOL-Fuzz / ADAPT
    "mnist": ("1692/2125, 33.6/18.7", "3472/4521, 48.0/36.5", "7226/8943, 68.0/54.4"),
    "fashion-mnist": ("4294/5485, 40.8/6.7", "8906/10433, 53.9/14.9", "18527/21872, 69.0/27.2"),
    "svhn": ("6236/8401, 24.3/21.3", "12465/17429, 30.4/27.5", "24864/33692, 40.0/34.5"),
}


def rq1(found: Sequence[RobotStudyResults], known: Sequence[NetworkRobustness]) -> str:
    rows = []
    for f in found:
        for model in ("original", *(f"be-st-{share}" for share in (5, 10))):
            fols = f.of(f"fol-{model}", FirstOrderLosses)
            judged: Sequence[RetrainedModel | OriginalModel] = f.of("original", OriginalModel)
            if model != "original":
                judged = f.of(f"judged-{model}", RetrainedModel)
            if fols:
                cells = [_of_medians(fols, attack) for attack in ("fgsm", "pgd")]
                robust = [mean(x.robust for x in fols).share]
                robust += [mean(j.robustness.value for j in judged).share, mean(j.near.value for j in judged).share]
                rows.append([f.setting.label, model, *robust, *cells])
    columns = [
        "data, radius",
        "model",
        "static",
        "adaptive",
        "adaptive, a third of the radius",
        "FOL, FGSM",
        "FOL, PGD",
    ]
    text = "## RQ1: FOL and robustness (Fig. 5 and 6)\n\nMedian FOL of the successful cases of each model.\n\n"
    text += table(columns, rows) + "\n![FOL of the adversarial examples of three models](robot-fol.svg)\n"
    if known:
        known_rows = [[k.kind, _rate(k.clean), _rate(k.pgd40), _quartiles(k.fgsm), _quartiles(k.pgd)] for k in known]
        columns = ["network", "clean", "PGD, 40 steps, radius .3", "FOL of FGSM cases", "of PGD cases"]
        text += "\nTwo networks of known robustness (MNIST, existing weights; median and middle half of FOL):\n\n"
        text += table(columns, known_rows)
    return text


def _of_medians(fols: Sequence[FirstOrderLosses], attack: str) -> str:
    medians = [s.quantiles[2] for s in (getattr(x, attack) for x in fols) if s.n]
    return mean(medians).plain if medians else "no cases"


def selected(found: Sequence[RobotStudyResults]) -> str:
    rows = []
    for f in found:
        rows.append([f.setting.label, "all of the pool", *_quantile_means([p.loss for p in f.of("pool", CasePool)])])
        for strategy in f.setting.strategies:
            several = [j.loss for j in f.judged(strategy, f.setting.shares[-1]) if j.loss is not None]
            rows.append(["", strategy, *_quantile_means(several)])
    text = "## Loss of the chosen cases (Fig. 4)\n\nQuantiles at the largest share, mean over seeds.\n\n"
    return (
        text
        + table(["data, radius", "chosen by", "5 %", "25 %", "50 %", "75 %", "95 %"], rows)
        + ("\n![Loss of the chosen cases](robot-loss.svg)\n")
    )


def rq2(found: Sequence[RobotStudyResults]) -> str:
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
            cells = [f.over_seeds(strategy, share, measure).share for measure in MEASURES.values()]
            fgsm = f.over_seeds(strategy, share, lambda j: j.robustness.adaptive[0].value).share
            kept = sum(j.best_epoch == 0 for j in judged)
            rows.append([name, n, *cells, fgsm, kept])
        columns = ["chosen by", "cases", *MEASURES, "adaptive, FGSM alone", "original weights kept"]
        text += f"\n### {f.setting.label}\n\n" + table(columns, rows)
    return text


def clean(found: Sequence[RobotStudyResults]) -> str:
    rows = []
    for f in found:
        paper = PAPER_III.get(f.setting.dataset, ("", ""))
        before = mean(o.robustness.clean.value for o in f.of("original", OriginalModel)).share
        models = [("control", 0), *((strategy, f.setting.shares[-1]) for strategy in f.setting.strategies)]
        after = [f.over_seeds(*model, lambda j: j.robustness.clean.value).share for model in models]
        rows.append([f.setting.label, *paper, before, *after])
    columns = ["data, radius", "paper, before", "paper, after", "before", "clean data alone"]
    strategies = found[0].setting.strategies if found else ()
    text = "## Clean accuracy before and after retraining (Table III)\n\nAfter: the largest share of cases.\n\n"
    return text + table([*columns, *strategies], rows)


def on_adapt(found: Sequence[RobotStudyResults]) -> str:
    rows = [[f.setting.label, *row] for f in found for row in accuracy_rows(f, "adapt")]
    text = """## Against ADAPT's cases (Table IV)

Accuracy on the cases that ADAPT makes from test inputs against the original model, of models retrained with the largest
share. DeepXplore and DLFuzz, the table's other columns, are run with `--rivals`.

"""
    return text + table(["data, radius", "chosen by", "cases", "paper", "here"], rows)


def accuracy_rows(f: RobotStudyResults, fuzzer: str) -> list[list[object]]:
    """Accuracy of each retrained model on the cases of a fuzzer, the paper's beside ours."""
    results, paper = f.of(f"on-{fuzzer}", CaseAccuracy), PAPER_IV.get(fuzzer, {}).get(f.setting.dataset, {})
    rows: list[list[object]] = []
    counted = [r for r in results if r.cases or fuzzer == "adapt"]  # a seed without cases of ADAPT counts as 0
    for name in results[0].accuracy:
        strategy, shares = name.rsplit("-", 1)[0], [r.accuracy[name] for r in counted]
        cases, here = _whole([r.cases for r in results]), mean(shares).share if shares else "no cases"
        rows.append([strategy, cases, paper.get(strategy, ""), here])
    return rows


def rq3(found: Sequence[RobotStudyResults]) -> str:
    rows = []
    for f in found:
        for place, limit in enumerate(f.setting.race):
            for name in f.setting.racers:
                judged, races = f.judged(name, limit), f.of(f"race-{name}", RaceResult)
                shares = [f.over_seeds(name, limit, measure).share for measure in MEASURES.values()]
                spent = sum(r.seconds[place] for r in races) / len(races)
                rows.append([f.setting.label, f"{spent:.1f} s", name, _whole([j.n for j in judged]), *shares])
    columns = ["data, radius", "CPU time spent", "fuzzer", "cases", *MEASURES]
    paper = table(
        ["data", "5 min", "10 min", "20 min"],
        [[f"{name}, paper: cases, gain", *cells] for name, cells in PAPER_V.items()],
    )
    text = """## RQ3: FOL-Fuzz and ADAPT for equal time (Table V)

Cases found from training inputs within a CPU time, and models retrained with all of them; the original scores 0
statically, so that the static column is also the gain. FOL-Fuzz stays in the L∞ ball of the attacks (ξ at the 5 %
quantile, where the paper has 1e-18; steps of a tenth of the radius; 60 model rows per seed). `adapt` has its published
distance, half the seed's length in L2, which reaches much further than that ball; `adapt-linf` stays in the ball. Both
have {rows} rows per seed; they start to adapt strategies after about 400. A fuzzer finishes the chunk of seeds that it
has started when its time is up.

""".format(rows=", ".join(sorted({str(f.setting.adapt_rows) for f in found})))
    return text + _rates(found) + "\nThe race:\n\n" + table(columns, rows) + "\n" + paper


def _rates(found: Sequence[RobotStudyResults]) -> str:
    """Coverage of ADAPT against random steps, and cases per minute beside the paper's."""
    rows, grown = [], []
    for f in found:
        for name in f.setting.racers:
            per_minute = [60 * r.cases[-1] / r.seconds[-1] for r in f.of(f"race-{name}", RaceResult)]
            rows.append([f.setting.label, name, _whole(per_minute), _paper_rate(f.setting.dataset, name)])
        fair = f.of("fair", CoverageCheck)
        cells = [mean(getattr(x, name) for x in fair).share for name in ("seed", "adapt", "random")]
        grown.append([f.setting.label, fair[0].rows, *cells, mean(x.adapt - x.random for x in fair)])
    columns = ["data, radius", "inputs per seed", "seed alone", "ADAPT", "random steps, best length", "difference"]
    return (
        "Is ADAPT a fair rival? Neuron coverage of a seed's inputs, percent:\n\n"
        + table(columns, grown)
        + "\nCases per minute, one thread:\n\n"
        + table(["data, radius", "fuzzer", "here", "paper (20 min)"], rows)
    )


def _paper_rate(dataset: str, name: str) -> str:
    if dataset not in PAPER_V or name not in ("fol-fuzz", "adapt"):
        return ""
    counts = PAPER_V[dataset][2].split(",")[0].split("/")
    return f"{int(counts[name == 'adapt']) / 20:.0f}"


def method(found: Sequence[RobotStudyResults]) -> str:
    rows = []
    for f in found:
        s, pools = f.setting, f.of("pool", CasePool)
        shares, drop = ", ".join(map(str, s.shares)), f"{100 * s.finetune.max_drop:g}"
        size = _whole([p.fgsm + p.pgd for p in pools])
        rate = f"{s.finetune.learning_rate:g}"
        rows.append([s.label, s.train, s.validation, s.test, len(s.seeds), s.finetune.epochs, rate, drop, size, shares])
    columns = ["data, radius", "training inputs", "validation", "test, per seed", "seeds", "epochs", "learning rate"]
    columns += ["maximum drop of clean accuracy, points", "pool of cases", "shares, %"]
    return f"## What was run\n\n{table(columns, rows)}{METHOD}"


METHOD = """
- The pool: all successful FGSM and PGD cases (ten steps of a sixth of the radius) on the training inputs.
- Retraining: original weights, training inputs and chosen cases, Adam, batches of 64; the epoch is chosen by static
  cases of the *validation* inputs, among those whose clean validation accuracy did not drop too far; if there is none,
  the original weights are kept. The paper's program chooses the epoch on the cases that it reports.
- KM-ST has ten sections. Control: the same number of additional epochs on clean data alone.
- The paper has 60 000 training inputs (50 000 for CIFAR-10), 10 000 test inputs, one run, ten shares from 1 to 10 %,
  10 epochs (40 for CIFAR-10), and minutes for the race; the table above shows what is smaller here. CIFAR-10 runs for
  RQ1 only, Fashion-MNIST at .03 without the race and without ADAPT's cases.
- Cases to choose from are the attacks' alone, unless `--rivals` is given; the paper's Fig. 7 also has pools made by
  DeepXplore, DLFuzz and ADAPT.
- Fashion-MNIST has two radii: the paper's Table II prints .03 for FGSM and .3/6 for PGD's steps, which disagree.
"""


# Cells


def _whole(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.0f}"


def _rate(rate: Rate) -> str:
    return in_percent(rate.value, rate.lower, rate.upper)


def _quartiles(values: Quantiles) -> str:
    q = values.quantiles
    return f"{q[2]:.1f} ({q[1]:.1f} to {q[3]:.1f}), {values.n} cases"


def _quantile_means(several: Sequence[Quantiles]) -> list[str]:
    columns = zip(*(s.quantiles for s in several), strict=True)
    return [f"{sum(values) / len(values):.1f}" for values in columns]
