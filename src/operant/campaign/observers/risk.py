"""Where field inputs are likely to fail: the riskiest ones, how far labels confirm it, and models judged by cases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from operant.assess.case_rate import CaseRate, failure_rate
from operant.assess.regressions import regressions
from operant.campaign.observers.base import ObservedRound, Section, evenly, read_template
from operant.campaign.records import Round
from operant.data import Samples
from operant.data.class_texts import class_name
from operant.formatting import percent
from operant.measure import Lift, lift, margin
from operant.model import Finding
from operant.profile import RiskMap
from operant.profile.describe import packed, unpacked
from operant.suite.drawing import MAX_SMALL, data_uri, is_picture, shades, shrunk, unit

MAX_RATED = 20_000  # field inputs
SHOWN, MAX_SIDE = 12, 96  # riskiest inputs in the report, and pixels of their longer side
RISKIEST = 0.05  # share of the field inputs that are looked at by class
MAX_CLASSES = 5  # in which they concentrate
MIN_LABELS, MIN_FAILURES = 100, 5  # that a lift needs


@dataclass(frozen=True, kw_only=True)
class RiskyInput:
    """A field input that is likely to fail: its file or id, the predicted class, and the probability of failing."""

    name: str
    prediction: int
    risk: float


@dataclass(frozen=True, kw_only=True)
class RiskOfRound:
    """What unselected cases say about a round's models; ``risk.json`` of a round after cases were drawn.

    Attributes:
        before, after: failure rates of the model before and after the round on cases that judge.
        broken, fixed: cases that judge which only the model after, or only the one before, gets wrong.
        learned: whether the risk map learned more than the margin.
        findings: what the map had to do without.
        cases: that teach the map.
        rated: number of field inputs that were rated.
        expected: their mean risk, for the model after the round.
        classes, riskiest_classes: predicted classes of all of these inputs, and of their riskiest 5 %, as counts.
        riskiest: the riskiest field inputs.
        pictures, bounds: the same as `packed` inputs, and the range of their values.
        labels, failures: labelled inputs of the present field, and how many of them the model after gets wrong.
        lift: how well the map ranks them; None if they are too few.
    """

    before: CaseRate
    after: CaseRate
    broken: int
    fixed: int
    learned: bool
    findings: tuple[Finding, ...]
    cases: int
    rated: int
    expected: float
    classes: Tensor
    riskiest_classes: Tensor
    riskiest: tuple[RiskyInput, ...]
    pictures: Tensor = field(repr=False)
    bounds: tuple[float, float]
    labels: int
    failures: int
    lift: Lift | None


def _doubts(seen: ObservedRound) -> tuple[Finding, ...]:
    """Why the conditions behind the cases may not be those of the present field."""
    if not seen.field.changed:
        return ()
    problem = "the field has changed, and cases are still drawn from the conditions of the earlier one"
    advice = "Start a new folder with the present field data"
    return (Finding(name="conditions of an earlier field", problem=problem, advice=advice),)


class RiskOfField:
    """Records the riskiest field inputs, how well the risk map ranks labelled ones, and models judged by cases."""

    name: ClassVar[str] = "risk"
    record: ClassVar[type] = RiskOfRound
    template: ClassVar[str] = read_template(__file__)

    def observe(self, seen: ObservedRound) -> RiskOfRound | None:
        """What the cases say about the models before and after the round; None if no cases were drawn."""
        if seen.risk is None:
            return None
        judging, shares = seen.risk.judging(seen.field), seen.field.class_shares(seen.train).tolist()
        changed = regressions(seen.after, judging, before=seen.before)
        risk, known = seen.risk.map_for(seen.after, seen.field), seen.known
        failed = None if known is None or not len(known) else seen.after.predict(known.x).cpu() != known.labels.cpu()
        return RiskOfRound(
            before=failure_rate(seen.before, judging, priors=shares),
            after=failure_rate(seen.after, judging, priors=shares),
            broken=len(changed.broken),
            fixed=len(changed.fixed),
            learned=risk.learned,
            findings=(*seen.risk.findings, *risk.findings, *_doubts(seen)),
            cases=len(risk.cases),
            **_rated(seen, risk),
            labels=0 if failed is None else len(failed),
            failures=0 if failed is None else int(failed.sum()),
            lift=None if failed is None or known is None else _lift(seen, risk, known, failed),
        )

    def section(
        self, records: Mapping[int, RiskOfRound], *, rounds: Sequence[Round], classes: Sequence[str]
    ) -> Section | None:
        """The newest record, and the failure rates of all rounds."""
        if not records:
            return None
        newest = records[max(records)]
        values: dict[str, Any] = {
            "learned": newest.learned,
            "cases": newest.cases,
            "rated": newest.rated,
            "expected": newest.expected,
            "inputs": _inputs(newest, classes),
            "small": max(newest.pictures.shape[1:], default=0) <= MAX_SMALL,
            "by_class": _by_class(newest, classes),
            "check": describe_lift(newest),
            "lift_rows": _lift_rows(newest.lift),
            "rates": [_rate_row(number, records[number], rounds) for number in sorted(records)],
            "findings": [[f.name, f.problem, f.advice] for f in newest.findings],
        }
        title = "Where inputs are likely to fail"
        summary = f"{_concentration(values)} {values['check']}"
        lines = tuple(f"{one['name']}: predicted {one['prediction']}, risk {one['risk']}" for one in values["inputs"])
        return Section(name=self.name, title=title, summary=summary, values=values, after="field", lines=lines)


# Recording


def _rated(seen: ObservedRound, risk: RiskMap) -> dict[str, Any]:
    """The risks of field inputs: their mean, their classes, and the riskiest."""
    every = seen.field.inputs
    some = every[evenly(len(every), MAX_RATED)]
    values, predicted = risk(seen.after, some.x).cpu(), seen.after.predict(some.x).cpu()
    order, classes = values.argsort(descending=True, stable=True), seen.after.classes(some.x[:1])
    top, shown = order[: max(1, math.ceil(RISKIEST * len(some)))], order[:SHOWN]
    rows = zip(some[shown].titles, predicted[shown].tolist(), values[shown].tolist(), strict=True)
    return {
        "rated": len(some),
        "expected": float(values.mean()),
        "classes": predicted.bincount(minlength=classes),
        "riskiest_classes": predicted[top].bincount(minlength=classes),
        "riskiest": tuple(RiskyInput(name=name, prediction=p, risk=r) for name, p, r in rows),
        "pictures": packed(_small(some.x[shown]), seen.after.bounds),
        "bounds": seen.after.bounds,
    }


def _small(x: Tensor) -> Tensor:
    return shrunk(x, MAX_SIDE) if is_picture(x.shape[1:]) else x


def _lift(seen: ObservedRound, risk: RiskMap, known: Samples, failed: Tensor) -> Lift | None:
    """How well the map ranks labelled inputs, which taught it nothing; None if they are too few."""
    if len(failed) < MIN_LABELS or not MIN_FAILURES <= int(failed.sum()) < len(failed):
        return None
    probs = seen.after.probs(known.x).cpu()
    generator = seen.spawn("lift")
    return lift(risk(seen.after, known.x), failed, margin=margin(probs), predicted=probs.argmax(1), generator=generator)


# Showing


def describe_lift(record: RiskOfRound) -> str:
    """What labelled inputs say about the map, in a few sentences."""
    if not record.learned:
        return "The cases taught no more than the margin, by which inputs are ranked here."
    found = record.lift
    if found is None:
        return (
            f"Whether this ranking is right cannot be said: {record.failures} of {record.labels} labelled field inputs "
            f"fail, and at least {MIN_LABELS} labels with {MIN_FAILURES} failures are needed."
        )
    top = found.at[0]
    better = "better than" if top.gain_lower > 0 else "worse than" if top.gain_upper < 0 else "no differently from"
    return (
        f"Labels of {found.inputs} field inputs: the riskiest {percent(top.share)} fail {top.lift:.1f} times as often "
        f"as all ([{top.lower:.1f}, {top.upper:.1f}], at most {top.ceiling:.1f} is possible), which is {better} the "
        f"model's margin ({top.margin:.1f}) as far as these labels tell."
    )


def _concentration(values: Mapping[str, Any]) -> str:
    """Which predicted classes the riskiest inputs concentrate in."""
    parts = [f"{row['name']} ({percent(row['share'], 2)})" for row in values["by_class"][:MAX_CLASSES]]
    expected = f"an estimated {percent(values['expected'])} of {values['rated']} field inputs fail"
    largest = f"of the riskiest {percent(RISKIEST)}, the largest shares are predicted {', '.join(parts)}"
    return f"By {values['cases']} unselected cases, {expected}; {largest}."


def _by_class(record: RiskOfRound, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Predicted classes by their share of the riskiest inputs, with their share of all."""
    top, every = (counts.double() / counts.sum() for counts in (record.riskiest_classes, record.classes))
    order = [c for c in top.argsort(descending=True, stable=True).tolist() if top[c] > 0]
    return [{"name": class_name(c, classes), "share": float(top[c]), "of_all": float(every[c])} for c in order[:SHOWN]]


def _inputs(record: RiskOfRound, classes: Sequence[str]) -> list[dict[str, Any]]:
    rows = [
        {"name": one.name, "prediction": class_name(one.prediction, classes), "risk": percent(one.risk, 2)}
        for one in record.riskiest
    ]
    drawn = is_picture(record.pictures.shape[1:]) and not record.pictures.is_floating_point()
    pictures = unpacked(record.pictures, record.bounds) if drawn else torch.empty(0)
    uris = [data_uri(shades(unit(x, record.bounds))) for x in pictures] or [""] * len(rows)
    return [row | {"picture": uri} for row, uri in zip(rows, uris, strict=True)]


def _lift_rows(found: Lift | None) -> list[list[str]]:
    if found is None:
        return []
    rows = [
        [
            f"riskiest {percent(a.share)}",
            percent(a.precision),
            f"{a.lift:.2f} [{a.lower:.2f}, {a.upper:.2f}]",
            f"{a.ceiling:.2f}",
            f"{a.margin:.2f}",
        ]
        for a in found.at
    ]
    if math.isfinite(found.ratio):
        ratio = f"{found.ratio:.2f} [{found.ratio_lower:.2f}, {found.ratio_upper:.2f}]"
        rows.append(["riskier half, same class and margin", "", ratio, "", f"{found.margin_ratio:.2f}"])
    return rows


def _rate_row(number: int, record: RiskOfRound, rounds: Sequence[Round]) -> dict[str, Any]:
    """The failure rates of a round beside what labels say."""
    assessed = next((r.assessment for r in rounds if r.number == number), None)
    return {
        "round": number,
        "before": _rate(record.before),
        "after": _rate(record.after),
        "broken": record.broken,
        "fixed": record.fixed,
        "expected": percent(record.expected),
        "labels": str(assessed) if assessed else "",
    }


def _rate(rate: CaseRate) -> str:
    return f"{percent(rate.value)} [{percent(rate.lower)}, {percent(rate.upper)}]"
