"""The page of the study of repair, its figure, and a file of all numbers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from matplotlib.figure import Figure
from scipy.stats import binomtest

from operant_studies.repair.hard import KINDS
from operant_studies.repair.outcome import WORSE, Outcome
from operant_studies.repair.settings import ARM, FAILURES, FAILURES_ALONE, PARTS, REPAIR, RepairSetting
from operant_studies.shared import HELD, NOT_HELD, mean, save_figure, table, write_numbers, write_sections

MAX_REGRET, MAX_WORSE = 0.003, 0.02


def write_page(out: Path, setting: RepairSetting, *, scale: str) -> Path:
    """Write ``repair.md`` with its picture, and ``repair.json`` with all numbers, into ``out``."""
    outcome = Outcome(setting=setting, out=out)
    draw_curves(outcome, out / "repair-error.svg")
    write_numbers(out / "repair.json", out / "steps")
    sections = [
        _intro(setting, scale),
        _claims(outcome),
        "![Error by labels](repair-error.svg)\n",
        _means(outcome),
        *(_field_section(outcome, case.name) for case in outcome.fields),
        _parts(outcome),
        _failures(outcome),
        _hard(outcome),
    ]
    return write_sections(out / "repair.md", sections)


def _intro(setting: RepairSetting, scale: str) -> str:
    inputs = setting.inputs
    return f"""# Repair: does it win?

A pilot on fields that were also used for tuning, by `operant study repair --scale {scale}`, seeds
{_listed(setting.seeds)}; settings were chosen with other seeds. Variants of the default arm run with seeds
{_listed(setting.part_seeds)}, the campaign on CIFAR-10 with the first. A seed divides the same images anew. Every
method gets the model, {setting.train} training images, {inputs.labelled} clean labelled ones, at most {inputs.seen}
unlabelled field inputs with the conditions and class shares that were estimated from them, and a budget of labels. All
methods train with the same loop, schedule and range test for the learning rate; each continues from its own weights
when it gets more labels. Errors are on at most {setting.truth} other field inputs ({setting.large_truth} for CIFAR-10).
"""


def _listed(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, seeds))


def _percent(values: Iterable[float]) -> str:
    m = mean(values)
    return f"{100 * m.value:.2f}" if m.n < 2 else f"{100 * m.value:.2f} ± {50 * (m.upper - m.lower):.2f}"


# Claims ---------------------------------------------------------------------------------------------------------------


def _claims(outcome: Outcome) -> str:
    rows = [_near_claim(outcome), *_mean_claims(outcome), _regret_claim(outcome), _hard_claim(outcome)]
    return "## Claims\n\n" + table(["claim", "verdict", "measured"], [row for row in rows if row])


def _near_claim(outcome: Outcome) -> list[str]:
    far = outcome.too_far()
    listed = "; ".join(
        f"{case.name} at {labels}: {100 * own:.2f} against {100 * best:.2f} ({name})"
        for case, labels, own, name, best in far
    )
    claim = "within half a point, or a twentieth, of the best single method on every field and budget"
    total = len(outcome.fields) * len(outcome.budgets)
    return [claim, NOT_HELD if far else HELD, f"{total - len(far)} of {total}" + (f"; not: {listed}" if far else "")]


def _mean_claims(outcome: Outcome) -> list[list[str]]:
    rows = []
    for labels in outcome.setting.budgets:
        own = outcome.over_fields(REPAIR, labels)
        found = {name: value for name in outcome.rivals if (value := outcome.over_fields(name, labels)) is not None}
        if own is None or not found:
            continue
        best = min(found, key=lambda name: found[name])
        measured = f"{100 * own:.2f} against {100 * found[best]:.2f} ({best})"
        rows.append([f"lowest mean over fields at {labels} labels", HELD if own < found[best] else NOT_HELD, measured])
    return rows


def _regret_claim(outcome: Outcome) -> list[str]:
    found = outcome.regrets()
    if not found:
        return []
    m = sum(found) / len(found)
    measured = f"{100 * m:.2f} points, at most {100 * max(found):.2f}, over {len(found)} calls"
    return ["mean regret against the best finalist at most 0.3 points", HELD if m <= MAX_REGRET else NOT_HELD, measured]


def _hard_claim(outcome: Outcome) -> list[str]:
    runs = outcome.hard
    if not runs:
        return []
    worse = [run for run in runs if run.after > run.before + WORSE]
    interval = binomtest(len(worse), len(runs)).proportion_ci(method="exact")
    measured = f"{len(worse)} of {len(runs)} [{100 * interval.low:.1f}, {100 * interval.high:.1f}] %"
    verdict = HELD if len(worse) <= MAX_WORSE * len(runs) else NOT_HELD
    return ["worse than the original by more than a point in at most 2 % of hard cases", verdict, measured]


# Tables ---------------------------------------------------------------------------------------------------------------


def _means(outcome: Outcome) -> str:
    names = [name for name in (*outcome.rivals, REPAIR) if outcome.over_fields(name, 0) is not None]
    rows = [
        [name, *(f"{100 * (outcome.over_fields(name, labels) or 0):.2f}" for labels in outcome.budgets)]
        for name in names
    ]
    head = ["method", *(f"{labels} labels" for labels in outcome.budgets)]
    return "## Mean error over fields, in percent\n\n" + table(head, rows)


def _field_section(outcome: Outcome, name: str) -> str:
    case = outcome.setting.case(name)
    before = outcome.before(case)
    rows = []
    for method in outcome.setting.methods_of(case):
        points = [outcome.points(case, method, labels) for labels in outcome.budgets]
        errors = [_percent(p.pmi for p in each) for each in points]
        clean, seconds = mean(p.clean for p in points[-1]), mean(p.seconds for p in points[-1])
        rows.append([method, *errors, f"{100 * clean.value:.1f}", f"{seconds.value:.0f}", len(points[-1])])
    unexplained = ", ".join(f"{b.unexplained:.2f}" for b in before)
    first = (
        f"Error before {_percent(b.pmi for b in before)} % (n = {before[0].n} per seed), clean accuracy "
        f"{_percent(b.clean for b in before)} %, unexplained share {unexplained}. Means over seeds ± half of a 95 % "
        "interval."
    )
    head = ["method", *(f"{labels}" for labels in outcome.budgets), "clean at the end", "CPU s", "seeds"]
    return f"## {case.title}\n\n{first}\n\n{table(head, rows)}"


def _parts(outcome: Outcome) -> str:
    """What each ingredient brings: differences to the default arm, on fields where all ran."""
    rows = []
    for part in (REPAIR, *PARTS[1:]):
        cells = []
        for labels in outcome.budgets:
            found = [outcome.differences(case, part, ARM, labels) for case in outcome.fields]
            apart = [value for each in found for value in each]
            cells.append(str(mean(apart)) if apart else "")
        if any(cells):
            rows.append([part, *cells])
    text = "Points above (+) or below (-) the default arm, with 95 % intervals over fields and seeds.\n\n"
    head = ["variant", *(f"{labels} labels" for labels in outcome.budgets)]
    return "## What each part brings\n\n" + text + table(head, rows) if rows else ""


def _failures(outcome: Outcome) -> str:
    rows = []
    for case in outcome.setting.inputs.cases:
        for name in (FAILURES, FAILURES_ALONE):
            if name not in outcome.setting.methods_of(case):
                continue
            cells = [str(mean(outcome.differences(case, name, ARM, labels))) for labels in outcome.budgets]
            rows.append([case.title, name, *cells])
    head = ["field", "method", *(f"{labels} labels" for labels in outcome.budgets)]
    return (
        "## What operational failures bring\n\nPoints against the default arm.\n\n" + table(head, rows) if rows else ""
    )


def _hard(outcome: Outcome) -> str:
    rows = []
    for kind in KINDS:
        runs = [run for run in outcome.hard if run.kind == kind]
        if runs:
            worse = sum(run.after > run.before + WORSE for run in runs)
            before, after = (100 * sum(v) / len(runs) for v in ([r.before for r in runs], [r.after for r in runs]))
            most = 100 * max(run.after - run.before for run in runs)
            rows.append([kind, len(runs), f"{before:.2f}", f"{after:.2f}", worse, f"{most:+.2f}"])
    head = ["kind", "runs", "error before", "after", f"worse by more than {100 * WORSE:.0f} point", "largest change"]
    return "## Never worse\n\n" + table(head, rows) if rows else ""


def draw_curves(outcome: Outcome, path: Path) -> None:
    """True error by labels, one panel per field: repair and all rivals."""
    fields = outcome.fields
    figure = Figure(figsize=(3.2 * len(fields), 3.2), layout="constrained")
    axes = figure.subplots(1, len(fields), squeeze=False)[0]
    for axis, case in zip(axes, fields, strict=True):
        for name in (*outcome.rivals, REPAIR):
            values = [outcome.pmi(case, name, labels) for labels in outcome.budgets]
            if None not in values:
                style = {"color": "black", "linewidth": 2.5} if name == REPAIR else {"linewidth": 1.0}
                axis.plot(outcome.budgets, [100 * (v or 0) for v in values], label=name, marker=".", **style)
        axis.set(title=case.name, xlabel="labels", ylim=(0, None))
    axes[0].set_ylabel("error in the field, %")
    axes[-1].legend(fontsize=6)
    save_figure(figure, path)
