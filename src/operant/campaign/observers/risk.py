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
from operant.campaign.observers.risk_listing import RiskListing, list_risks
from operant.campaign.observers.risk_regions import (
    Rated,
    RiskRegion,
    rate,
    region_name,
    region_table,
    regions_of,
)
from operant.campaign.records import Round
from operant.campaign.risk import CONDITIONS_UNLIKE_FIELD
from operant.data.class_texts import class_name
from operant.formatting import at_most, percent
from operant.measure import Lift, lift, margin
from operant.measure.lift import LiftAt
from operant.model import Finding
from operant.profile import RiskMap
from operant.profile._risk_findings import LEVEL_OF_WIDER
from operant.profile.describe import packed, unpacked
from operant.suite.drawing import MAX_SMALL, data_uri, is_picture, shades, shrunk, unit

MAX_RATED = 20_000  # field inputs
RISKS = "risks.csv"  # of a report: all rated field inputs
SHOWN, MAX_SIDE = 12, 96  # riskiest inputs in the report, and pixels of their longer side
MAX_NAMED = 3  # classes in the summary
MIN_LABELS, MIN_FAILURES = 100, 5  # that a lift needs
CAPTION = (
    "Shares of the field inputs and of the expected failures by part of the field, an estimate without labels, beside "
    "what labels say."
)


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
        findings: what the map had to do without, and why its probabilities may be wrong.
        cases: of the conditions that teach the map; those of wider conditions, which estimate nothing, do not count.
        rated: number of field inputs that were rated.
        expected: their mean risk, for the model after the round.
        regions: the riskiest of these inputs and the predicted classes, with the failures expected there.
        riskiest: the riskiest field inputs.
        pictures, bounds: the same as `packed` inputs, and the range of their values.
        labels, failures: labelled inputs of the present field, and how many of them the model after gets wrong.
        lift: how well the map ranks them; None if they are too few.
        listing: all rated inputs by risk; None in records of earlier versions.
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
    regions: tuple[RiskRegion, ...]
    riskiest: tuple[RiskyInput, ...]
    pictures: Tensor = field(repr=False)
    bounds: tuple[float, float]
    labels: int
    failures: int
    lift: Lift | None
    listing: RiskListing | None = None


def _doubts(seen: ObservedRound) -> tuple[Finding, ...]:
    """Why the conditions behind the cases may not be those of the present field."""
    if not seen.field.changed:
        return seen.risk_doubts
    problem = "the field has changed, and cases are still drawn from the conditions of the earlier one"
    advice = "Start a new folder with the present field data"
    return (*seen.risk_doubts, Finding(name="conditions of an earlier field", problem=problem, advice=advice))


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
        risk = seen.risk.map_for(seen.after, seen.field)
        labelled, failed = _labelled(seen, risk)
        return RiskOfRound(
            before=failure_rate(seen.before, judging, priors=shares),
            after=failure_rate(seen.after, judging, priors=shares),
            broken=len(changed.broken),
            fixed=len(changed.fixed),
            learned=risk.learned,
            findings=(*seen.risk.findings, *risk.findings, *_doubts(seen)),
            cases=risk.cases.own,
            **_rated(seen, risk, labelled, failed),
            labels=len(failed),
            failures=int(failed.sum()),
            lift=_lift(seen, labelled, failed),
        )

    def section(
        self, records: Mapping[int, RiskOfRound], *, rounds: Sequence[Round], classes: Sequence[str]
    ) -> Section | None:
        """The newest record, and the failure rates of all rounds."""
        if not records:
            return None
        newest = records[max(records)]
        level, others = _by_level(newest.findings)
        table = region_table(newest.regions, newest.failures, classes)
        values: dict[str, Any] = {
            "learned": newest.learned,
            "cases": newest.cases,
            "rated": newest.rated,
            "expected": newest.expected,
            "inputs": _inputs(newest, classes),
            "small": max(newest.pictures.shape[1:], default=0) <= MAX_SMALL,
            "regions": [list(row) for row in table],
            "check": describe_lift(newest),
            "lift_rows": _lift_rows(newest.lift),
            "listed": 0 if newest.listing is None else len(newest.listing),
            "rates": [_rate_row(number, records[number], rounds) for number in sorted(records)],
            "findings": [[f.name, f.problem, f.advice] for f in others],
        }
        title = "Where inputs are likely to fail"
        doubts = [f"{f.problem[0].upper()}{f.problem[1:]}. {f.advice}." for f in level]
        listed = [f"All {newest.rated} are listed in {RISKS}, riskiest first."] if values["listed"] else []
        summary = " ".join([_concentration(newest, classes), *listed, values["check"], *doubts])
        lines = tuple(f"{one['name']}: predicted {one['prediction']}, risk {one['risk']}" for one in values["inputs"])
        return Section(
            name=self.name,
            title=title,
            summary=summary,
            values=values,
            after="field",
            lines=lines,
            caption=CAPTION,
            table=table,
            findings=tuple(others),
        )


# Recording


def _rated(seen: ObservedRound, risk: RiskMap, labelled: Rated, failed: Tensor) -> dict[str, Any]:
    """The risks of field inputs: their mean, where they are high, and the riskiest."""
    every = seen.field.inputs
    some = every[evenly(len(every), MAX_RATED)]
    field = rate(seen.after, risk, some)
    shown = field.risk.argsort(descending=True, stable=True)[:SHOWN]
    rows = zip(some[shown].titles, field.predicted[shown].tolist(), field.risk[shown].tolist(), strict=True)
    return {
        "rated": len(some),
        "expected": float(field.risk.mean()),
        "regions": regions_of(field, labelled, failed),
        "riskiest": tuple(RiskyInput(name=name, prediction=p, risk=r) for name, p, r in rows),
        "pictures": packed(_small(some.x[shown]), seen.after.bounds),
        "bounds": seen.after.bounds,
        "listing": list_risks(some.titles, field),
    }


def _labelled(seen: ObservedRound, risk: RiskMap) -> tuple[Rated, Tensor]:
    """The risks of all labelled inputs of the present field, and which of them the model gets wrong; may be empty."""
    known = seen.field.pool[:0] if seen.known is None else seen.known
    rated = rate(seen.after, risk, known)
    return rated, rated.predicted != known.labels.cpu() if len(known) else rated.predicted.bool()


def _small(x: Tensor) -> Tensor:
    return shrunk(x, MAX_SIDE) if is_picture(x.shape[1:]) else x


def _lift(seen: ObservedRound, labelled: Rated, failed: Tensor) -> Lift | None:
    """How well the map ranks labelled inputs, which taught it nothing; None if they are too few."""
    if seen.known is None or len(failed) < MIN_LABELS or not MIN_FAILURES <= int(failed.sum()) < len(failed):
        return None
    found, generator = margin(seen.after.probs(seen.known.x).cpu()), seen.spawn("lift")
    return lift(labelled.risk, failed, margin=found, predicted=labelled.predicted, generator=generator)


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
    return (
        f"Labels of {found.inputs} field inputs: the riskiest {percent(top.share)} fail {top.lift:.1f} times as often "
        f"as all ([{top.lower:.1f}, {top.upper:.1f}], at most {top.ceiling:.1f} is possible)"
        f"{_beside_margin(found.inputs, top)}."
    )


def _beside_margin(labels: int, top: LiftAt) -> str:
    """Whether the map ranks better than the margin, as the end of a sentence."""
    if top.gain_lower > 0 or top.gain_upper < 0:
        word = "better" if top.gain_lower > 0 else "worse"
        return f", which is {word} than the model's margin ({top.margin:.1f}) as far as these labels tell"
    return f"; {labels} labels are too few to tell whether it ranks better than the model's margin ({top.margin:.1f})"


def _concentration(record: RiskOfRound, classes: Sequence[str]) -> str:
    """How many failures are expected, and where."""
    named = [region for region in record.regions if region.prediction is not None][:MAX_NAMED]
    parts = [f"{region_name(r, classes)} ({percent(r.expected, 2)})" for r in named]
    top = record.regions[0]
    return (
        f"By {record.cases} unselected cases, without labels, an estimated {percent(record.expected)} of "
        f"{record.rated} field inputs fail; the {region_name(top, classes)} of the inputs hold "
        f"{percent(top.expected, 2)} of these failures, and the largest shares are {', '.join(parts)}."
    )


def _by_level(findings: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Why the expected failures are not to be believed, which belongs beside them, and all other findings."""
    level = [f for f in findings if f.name in (CONDITIONS_UNLIKE_FIELD, LEVEL_OF_WIDER)]
    return level, [f for f in findings if f not in level]


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
        "labels": f"{percent(assessed.pmi)}, at most {at_most(assessed.upper)}" if assessed else "",
    }


def _rate(rate: CaseRate) -> str:
    return f"{percent(rate.value)} [{percent(rate.lower)}, {percent(rate.upper)}]"
