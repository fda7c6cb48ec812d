"""The tables of the study."""

from __future__ import annotations

from collections import Counter

from operant_studies.cases.outcome import READ_FILE, Outcome, too_many_rejects
from operant_studies.cases.ranking import MOVES, RISK
from operant_studies.cases.rivals import RIVALS
from operant_studies.cases.selection import LABELS, PREDICTORS, correlations
from operant_studies.field.scores import proportion
from operant_studies.operational_fuzz.sheets import fingerprint
from operant_studies.shared import Mean, mean, table

# The judge ------------------------------------------------------------------------------------------------------------


def judge_section(outcome: Outcome) -> str:
    s = outcome.setting
    columns = ["cases", *(f"{name}: {by}" for name in outcome.judged for by in ("five scores", "judge"))]
    rows = [[kind, *_accepted_cells(outcome, kind)] for kind in s.kinds]
    return f"""## The judge

Share of cases accepted (p at least .05), in percent with its interval over {len(s.judge_seeds)} seeds, by the five
fixed scores of `fit_naturalness` and by a judge of the same kind of cases. Each judge learned from {s.inputs.seen}
field inputs at most and {s.draws} unselected draws of that kind, and judges {s.cases} other ones, made of other
images. *Too strong*: severities doubled; for real fields, much too dark. *Wrong recipe*: the field's conditions, then
blur and noise. *Gradient noise*: PGD in L2 at the two radii of `default_radii`, from training images under the field's
conditions. *Other images*: Fashion-MNIST instead of digits, reduced ImageNet images instead of CIFAR-10, under the
field's conditions; Tiny ImageNet's images are themselves reduced ImageNet images. Conditions and class shares of real
fields are the estimated ones.

{table(columns, rows)}
{_rejects(outcome)}
### Right labels

{_labels(outcome)}"""


def _accepted_cells(outcome: Outcome, kind: str) -> list[str]:
    return [
        _short(outcome.accepted(name, kind, by)) if kind in kinds else ""
        for name, kinds in outcome.judged.items()
        for by in ("scores", "judge")
    ]


def _short(value: Mean) -> str:
    """A share in percent; without an interval if there is one seed."""
    return value.share if value.n > 1 else f"{100 * value.value:.1f}"


def _plain(value: Mean) -> str:
    """A number; without an interval if there is one seed."""
    return value.plain if value.n > 1 else f"{value.value:.2f}"


def _rejects(outcome: Outcome) -> str:
    s = outcome.setting
    rows = []
    for name, fits in outcome.rejects.items():
        rates = mean(fit.rejected / fit.n for fit in fits)
        worst = max(fit.rejected / fit.n for fit in fits)
        seconds = sum(fit.seconds for fit in fits) / len(fits)
        rows.append([name, len(fits), _short(rates), f"{100 * worst:.1f}", f"{too_many_rejects(fits):.2g}"])
        rows[-1].append(f"{seconds:.1f}")
    single = [
        [name, title, _short(mean(getattr(j, by) for each in kinds.values() for j in each))]
        for name, kinds in outcome.judged.items()
        for title, by in (("five scores", "scores_rejects"), ("judge", "judge_rejects"))
    ]
    return f"""### Field inputs rejected

{s.fits} judges per made field, each with {s.fit_field} field inputs, {s.fit_draws} draws and {s.fresh} fresh field
inputs, all of images that no other fit uses, so that the rates are independent; within a fit, inputs share the
calibration, so the one-sided t-test against 5 % is over rates, not over inputs. Half of the judges learned from draws
of the field's conditions, half from those of the wrong recipe.

{table(["field", "fits", "rejected, %", "worst fit, %", "p-value", "CPU s per fit"], rows)}
The same for the judges of the table above, on {s.fresh} field inputs each; they share their inputs.

{table(["field", "by", "rejected, %"], single)}"""


def _labels(outcome: Outcome) -> str:
    rows = []
    for name in outcome.judged:
        shown = outcome.shown(name)
        read = outcome.right_labels(name)
        failing = int((shown.predictions != shown.labels).sum())
        sheet = f"`cases-{name}.png`, {fingerprint(shown.cases) if len(shown.cases) else 'empty'}"
        rows.append([name, sheet, len(shown.cases), failing, "not read" if read is None else proportion(*read)])
    return f"""Cases of the estimated recipe that the judge accepts, each beside its seed, with its label and the
prediction below. Counts of right labels are read from `{READ_FILE}`, which names the sheet that was read.

{table(["field", "sheet", "cases", "of which fail", "right labels"], rows)}"""


# The risk map ---------------------------------------------------------------------------------------------------------


def risk_section(outcome: Outcome) -> str:
    s = outcome.setting
    names = list(outcome.ranked)
    rows = [_field_row(outcome, name) for name in names]
    lifts = [
        [ranking, *(_lift_cell(outcome, name, ranking, ten) for name in names for ten in (False, True))]
        for ranking in (RISK, *RIVALS)
    ]
    gains = [
        [rival, *(_plain(outcome.gain(name, rival, ten=ten)) for name in names for ten in (False, True))]
        for rival in RIVALS
    ]
    shares = [f"{name}: {at} %" for name in names for at in (5, 10)]
    ratios = [[ranking, *(_plain(outcome.ratio(name, ranking)) for name in names)] for ranking in (RISK, *RIVALS)]
    return f"""## The risk map

`fit_risk` on {s.risk_cases} unselected draws of the *estimated* recipe and {s.wider_cases} of wider conditions
(`operant.conditions.wider`), made of {s.inputs.labelled} clean labelled inputs and of training images, weighted by the
*estimated* class shares: what a user has without a label. It ranks labelled field inputs that nothing has seen. *Lift*
is the failure rate of the riskiest share of them, divided by that of all (pmi); it cannot exceed 1 / pmi or 1 / share.
*Precision* is the failure rate itself. {len(s.seeds)} seeds.

{table(["field", "inputs", "pmi, %", "cases that fail, %", "precision at 5 %, %", "ceiling", "findings"], rows)}
Lift at 5 and 10 %, mean over seeds. Rivals need no case: the margin; confidence after a temperature from clean labelled
inputs and the estimated priors; the share of the 25 nearest clean images (training images and those labelled inputs),
by the model's features, with another label than the prediction; their trust score; {s.passes} passes with dropout
before the last three layers; and five copies of the image, shifted by a pixel.

{table(["ranking", *shares], lifts)}
![Lift of the riskiest 5 %, by ranking and field](cases-lift.svg)

Gain of the risk map in lift over each rival, at 5 and 10 %, paired by seed:

{table(["rival", *shares], gains)}
Within a predicted class and a fifth of its margins, how much oftener inputs of the riskier half fail. Where no input of
a safer half fails, the ratio is infinite and counts as the largest finite one of the same row and field:

{table(["ranking", *names], ratios)}
{_moves(outcome)}"""


def _field_row(outcome: Outcome, name: str) -> list[object]:
    each = outcome.ranked[name]
    pmi = mean(r.pmi for r in each)
    found = Counter(finding for r in each for finding in r.findings)
    ceiling = sum(min(1 / r.pmi, 20.0) for r in each) / len(each)
    return [
        outcome.setting.case(name).title,
        each[0].n,
        _short(pmi),
        _short(mean(r.failing for r in each)),
        _short(mean(r.lift5[RISK] * r.pmi for r in each)),
        f"{ceiling:.2f}",
        ", ".join(f"{finding} ({n})" for finding, n in found.most_common()) or "none",
    ]


def _lift_cell(outcome: Outcome, name: str, ranking: str, ten: bool) -> str:
    values = [(r.lift10 if ten else r.lift5)[ranking] for r in outcome.ranked[name]]
    return f"{sum(values) / len(values):.2f}"


def _moves(outcome: Outcome) -> str:
    s = outcome.setting
    rows = [[move, *(cell for name in outcome.moves for cell in _move_cells(outcome, name, move))] for move in MOVES]
    columns = [
        f"{name}: {what}" for name in outcome.moves for what in ("lift at 5 %", "ratio", "cases fail, %", "CPU s")
    ]
    return f"""### By move

The same risk map, fitted to {s.moved} cases of one move, passes and failures, without wider conditions;
{len(s.move_seeds)} seeds. Where no condition was found, draws are the clean inputs themselves. Gradient
moves start from draws of the estimated recipe: PGD in L2 that stops at the first failure, with the smaller radius of
`default_radii`, and PGD that takes all steps, with the larger one. CPU time is that of making the cases.

{table(["move", *columns], rows)}"""


def _move_cells(outcome: Outcome, name: str, move: str) -> list[str]:
    each = outcome.moves[name][move]
    n = len(each)
    return [
        f"{sum(m.lift5 for m in each) / n:.2f}",
        f"{sum(m.ratio for m in each) / n:.2f}",
        f"{100 * sum(m.failing for m in each) / n:.1f}",
        f"{sum(m.seconds for m in each) / n:.1f}",
    ]


# Models without labels ------------------------------------------------------------------------------------------------


def selection_section(outcome: Outcome) -> str:
    s = outcome.setting
    found = {each.case: correlations(outcome.compared(each)) for each in s.selections}
    columns = [
        "predictor",
        *(f"{e.case}, {len(e.checkpoints)} checkpoints, {len(e.seeds)} seeds" for e in s.selections),
    ]
    rows = [[_title(outcome, name), *(str(by[name]) for by in found.values())] for name in (*PREDICTORS, LABELS)]
    ranges = [[e.case, *_range(outcome, i)] for i, e in enumerate(s.selections)]
    return f"""## Models without labels

Rank correlation (Spearman) with the true pmi over checkpoints that differ in training images, conditions, wrong labels,
epochs and learning rate; mean over seeds, intervals over resampled checkpoints. Cases are {s.compared} unselected draws
of the estimated recipe from clean inputs that no checkpoint has learned from, weighted by the estimated priors. ATC
and confidence are those of `estimate_error`, from clean labelled inputs, and from the same inputs under the estimated
conditions, which also makes cases of them.

{table(columns, rows)}
{table(["field", "lowest pmi, %", "highest pmi, %"], ranges)}"""


def _title(outcome: Outcome, name: str) -> str:
    return f"{outcome.setting.compared} {name}" if name == LABELS else name


def _range(outcome: Outcome, number: int) -> list[str]:
    pmi = [c.pmi for run in outcome.compared(outcome.setting.selections[number]) for c in run]
    return [f"{100 * min(pmi):.1f}", f"{100 * max(pmi):.1f}"]


# Cost -----------------------------------------------------------------------------------------------------------------


def cost_section(outcome: Outcome) -> str:
    cost = outcome.cost
    rows: list[list[object]] = []
    for name, kinds in outcome.judged.items():
        seconds = [j.seconds for each in kinds.values() for j in each]
        rows.append([f"judge, {name}", f"{sum(seconds) / len(seconds):.1f}", f"{max(seconds):.1f}", len(seconds)])
    for what, value in (
        (f"risk map, fit on {cost.cases} cases", cost.fit),
        (f"risk map, rate {cost.inputs} inputs", cost.rate),
        ("the model's passes over both, not included above", cost.passes),
    ):
        rows.append([what, f"{value:.1f}", f"{value:.1f}", 1])
    return f"""## Cost

CPU seconds in one thread.

{table(["", "mean", "most", "n"], rows)}"""
