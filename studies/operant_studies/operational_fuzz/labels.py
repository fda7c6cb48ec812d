"""Validity of labels: does the label of a seed still hold for the operational failure that was made from it?

Searches take this for granted. Here it is judged twice, for cases drawn at random from all that a search accepted: by
eye, from a contact sheet; and by a reference network that took part in no search and was trained on other images, under
conditions. Its error at equal severity is subtracted:

    label holds = 1 - max(0, error on cases - error at equal severity)        (1)

Two effects bias (1). Cases are failures of one network, and what is hard for one is hard for others, so hard cases are
mistaken for wrong labels. And conditions strong enough to destroy the label of any image do so at equal severity as
well, and are subtracted; the eye sees those.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from scipy.stats import beta
from torch import Tensor

from operant.rng import spawn
from operant_studies.operational_fuzz.fields import make_field
from operant_studies.operational_fuzz.instruments import FieldInstruments
from operant_studies.operational_fuzz.reading import READ, Places, SheetReading
from operant_studies.operational_fuzz.settings import FieldSetting
from operant_studies.operational_fuzz.sheets import draw_sheet, fingerprint, names_of
from operant_studies.operational_fuzz.validity import (
    AGREED,
    CASES,
    OTHERS,
    AcceptedCases,
    ReferenceVerdicts,
    judge,
    make_cases,
    reference,
)
from operant_studies.shared import Mean, Steps, Units, compare, table

TARGET = 0.95


def units(settings: tuple[FieldSetting, ...], data: Path | None, out: Path) -> Units:
    """One unit per field, with its first seed."""
    return [(f"labels, {s.name}", partial(run, s, data, out)) for s in settings]


def run(setting: FieldSetting, data: Path | None, out: Path) -> None:
    """Make the cases of a field, then judge them with the reference."""
    steps, seed = steps_of(setting, out), setting.seeds[0]
    if steps.done("judged"):
        return
    field = make_field(setting, data, seed, out / "networks")
    instruments = FieldInstruments(field, out / "instruments")
    cases = steps.step("cases", AcceptedCases, lambda: make_cases(field, instruments, data))
    steps.step("judged", ReferenceVerdicts, lambda: judge(field, cases, reference(field, cases.recipe, data), data))


def steps_of(setting: FieldSetting, out: Path) -> Steps:
    return Steps(out / "steps" / f"labels-{setting.name}-{setting.seeds[0]}")


# The page -------------------------------------------------------------------------------------------------------------


def section(settings: tuple[FieldSetting, ...], out: Path) -> str:
    """The section of the page about labels; writes its contact sheets."""
    read = [(s, *_load(s, out)) for s in settings]
    sheets = []
    for s, cases, _ in read:
        picture = f"operational-fuzz-labels-{s.name}.jpg"
        draw_sheet(cases.x, cases.label, cases.prediction, names_of(s.dataset), out / picture, scale=2)
        sheets.append(f"![Accepted cases: {s.title}](../images/{picture})\n\n{_caption(s, cases)}\n")
    eye = table(BY_EYE, [_eye_row(s, cases) for s, cases, _ in read])
    judged = table(BY_REFERENCE, [_reference_row(s, verdicts) for s, _, verdicts in read])
    return TEXT.format(
        CASES=CASES, OTHERS=OTHERS, eye=eye, dropped=_dropped(read), reference=judged, sheets="\n".join(sheets)
    )


BY_EYE = [
    "",
    "seeds",
    "accepted",
    "on the sheet",
    "by conditions",
    "label lost",
    "unsure",
    "label holds, %",
    "above 95 %",
]
BY_REFERENCE = ["", "field error: model, reference, %", "on cases, %", "at equal severity, %", "label holds, %"]
BY_REFERENCE += ["above 95 %", "on the model's failures in the field, %", "label holds, against those, %"]
TEXT = """## Do the labels hold?

Every case has the label of its seed. Is that label still right? For each field `OperationalFuzz` with the moves by
conditions and by gradients searched from inputs that the model classifies correctly, and {CASES} of the accepted cases
(operational failures, by naturalness and profile) were drawn at random. They were judged twice. The target is that
more than 95 % of the labels hold.

**By eye**, from the sheets below, read once. The label is printed below each case, and doubtful ones were examined
again, larger and beside their seeds, so the reading is not blind. An unsure case counts half, also in the intervals,
which are Clopper and Pearson's.

{eye}
{dropped}

**By a reference network** that took part in no search and was trained on other images than the seeds: clean, under the
recipe of the search, and under the widest conditions. For MNIST it has 32 and 64 channels, for CIFAR-10 it is a further
trained ResNet-20. Its error at equal severity is subtracted: the same conditions on {OTHERS} other images of the
class, and for cases by gradients {OTHERS} times noise of the same L2 norm on the seed. Intervals are by bootstrap over
cases.

{reference}
Two effects bias these shares. Cases are failures, and what is hard for one network is hard for others: a reference
misclassifies more of them even where every label holds, most of all for CIFAR-10, where it starts from the model's own
weights. The last two columns compare with field inputs that the model misclassifies as well, whose labels are true. And
conditions strong enough to destroy the label of any image do so at equal severity, too, so their effect is subtracted:
the eye sees it, the reference does not.

### The sheets

In the order of `Suite.operational`, the largest mass times naturalness first; below each case its label and, after the
colon, the model's prediction.

{sheets}"""


def _load(setting: FieldSetting, out: Path) -> tuple[AcceptedCases, ReferenceVerdicts]:
    steps = steps_of(setting, out)
    return steps.read("cases", AcceptedCases), steps.read("judged", ReferenceVerdicts)


def _eye_row(setting: FieldSetting, cases: AcceptedCases) -> list[object]:
    n, by_conditions = len(cases.x), int(cases.conditions.sum())
    reading, start = _reading(setting, cases), [setting.title, cases.seeds, cases.accepted, n, by_conditions]
    if reading is None:
        return [*start, "", "", "not read", "not decided"]
    bad = len(reading.lost) + len(reading.unsure) / 2
    lower, upper = _clopper_pearson(n - bad, n)
    held = Mean(value=reading.share(n), lower=lower, upper=upper, n=n)
    return [*start, len(reading.lost), len(reading.unsure), held.share, _above(held)]


def _reading(setting: FieldSetting, cases: AcceptedCases) -> SheetReading | None:
    """The reading of this sheet; None if another sheet was read."""
    reading = READ.get(setting.name)
    return reading if reading is not None and reading.sheet == fingerprint(cases.x) else None


def _clopper_pearson(k: float, n: int) -> tuple[float, float]:
    """95 % limits of a share of k in n; k may be a half."""
    lower = beta.ppf(0.025, k, n - k + 1) if k > 0 else 0.0
    upper = beta.ppf(0.975, k + 1, n - k) if k < n else 1.0
    return float(lower), float(upper)


def _reference_row(setting: FieldSetting, judged: ReferenceVerdicts) -> list[object]:
    wrong = judged.wrong.double()
    against = holding(wrong - judged.equal)
    field = holding(wrong - judged.field_wrong)
    return [
        setting.title,
        f"{100 * judged.model_error:.1f}, {100 * judged.reference_error:.1f}",
        f"{100 * float(wrong.mean()):.1f}",
        f"{100 * float(judged.equal.mean()):.1f}",
        against.share,
        _above(against),
        f"{100 * judged.field_wrong:.1f} of {judged.field_failures}",
        field.share,
    ]


def holding(excess: Tensor) -> Mean:
    """The share of labels that hold (1), from what each case adds to the error; 95 % bootstrap interval over cases."""
    rows = torch.randint(len(excess), (2_000, len(excess)), generator=spawn(0, "labels", "bootstrap"))
    shares = 1 - excess[rows].mean(1).clamp_min(0)
    lower, upper = shares.quantile(torch.tensor([0.025, 0.975], dtype=shares.dtype)).tolist()
    return Mean(value=1 - max(0.0, float(excess.mean())), lower=lower, upper=upper, n=len(excess))


def _above(share: Mean) -> str:
    return compare(share.lower, share.upper, TARGET)


def _dropped(read: list[tuple[FieldSetting, AcceptedCases, ReferenceVerdicts]]) -> str:
    for _, cases, _ in read:
        if cases.ambiguous:
            return (
                f"Seeds of CIFAR-10 are test images, for which CIFAR-10H has people's labels: {cases.ambiguous} of "
                f"{cases.candidates} were dropped because fewer than {AGREED:.0%} of people gave them their label.\n"
            )
    return ""


def _caption(setting: FieldSetting, cases: AcceptedCases) -> str:
    reading = _reading(setting, cases)
    if reading is None:
        return f"{setting.title}: not read."
    return f"{setting.title}. Label lost: {_places(reading.lost)}. Unsure: {_places(reading.unsure)}."


def _places(places: Places) -> str:
    return "; ".join(f"row {row}, column {column}" for row, column in places) or "none"
