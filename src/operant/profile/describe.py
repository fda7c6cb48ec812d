"""Describes the field: what arrives, how often each class, under which conditions, and what has changed."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import torch
from scipy.stats import binomtest
from torch import Tensor

from operant.activity import activity
from operant.conditions import Recipe, apply
from operant.data import Samples
from operant.formatting import first_few, percent
from operant.model import Classifier, Finding
from operant.profile._checks import blank_rows, check_same_shape, warning
from operant.profile._conditions import NoConditions, estimate_conditions, usual_conditions
from operant.profile._words import (
    MAX_LISTED,
    describe_conditions,
    describe_error,
    describe_shares,
    describe_size,
)
from operant.profile.drift import MIN_INPUTS, Drift, drift
from operant.profile.error_estimate import ErrorEstimate, estimate_error
from operant.profile.fit_conditions import FittedConditions, Parameter
from operant.profile.label_shift import OR_CONDITIONS, estimate_priors
from operant.profile.priors import Priors
from operant.rng import shuffled
from operant.suite.drawing import is_picture
from operant.validation import check_at_least, check_not_empty

SHOWN = 24  # inputs of either side that are shown
MAX_KEPT, MAX_KEPT_BYTES = 2000, 2**26  # field inputs that the next description is compared with
MAX_PREDICTED = 256  # inputs whose predictions are compared
MIN_DIFFERENT = 10  # field inputs, for class shares and the error
CHANCE_LEVEL = 0.01  # significance level of the test against a model that always says the most frequent class
MAX_SHARE = 0.05  # share of inputs that may be blank, repeated or known without a finding
NO_SOURCE, ONE_FOLDER, NO_GROUP = "not known", "one folder", "no group"


@dataclass(frozen=True, kw_only=True)
class SourceCount:
    """How many field inputs come from a file, a folder or a group."""

    name: str
    inputs: int


@dataclass(frozen=True, kw_only=True)
class MovedValue:
    """A value of inputs that are not images: its mean among training and field inputs, and the difference in standard
    deviations of the training inputs."""

    name: str
    train: float
    field: float
    moved: float


@dataclass(frozen=True, kw_only=True, eq=False)
class FieldDescription:
    """What is known of a field without labels; made by `describe_field`.

    Attributes:
        inputs, shape, bounds: number of field inputs, shape of one, smallest and largest value.
        train, labelled: number of training inputs, and of labelled ones that were not trained on.
        copies, blank, grey, known: field inputs that repeat others, have one value throughout, are grey among colour
            images, or are among the training or labelled inputs.
        sources, groups: where field inputs come from, the largest first; groups are empty if inputs have none.
        classes: the name of each class; empty if they have only numbers.
        conditions: estimated conditions; None if there are none, and ``notes`` says why.
        priors: class shares with intervals; None likewise.
        error: the error rate, estimated without labels; None likewise.
        moved: for inputs that are not images, the values that differ most from training inputs.
        drift: test of the inputs that are new since last time; None if there was nothing to test.
        comparison: what was compared with last time, or why nothing was.
        changes: what is estimated otherwise than last time, in sentences.
        notes: what was left out, and why.
        findings: problems of the field inputs themselves; `doubts` has those of all parts.
        ids: of all field inputs, sorted.
        kept: some field inputs in random order, for the next comparison; images with bounds as 8-bit pixels.
        simulated: training inputs under the estimated conditions in the estimated class shares, in the same form.
    """

    inputs: int
    shape: tuple[int, ...]
    bounds: tuple[float, float]
    train: int
    labelled: int
    copies: int
    blank: int
    grey: int
    known: int
    sources: tuple[SourceCount, ...]
    groups: tuple[SourceCount, ...]
    classes: tuple[str, ...]
    conditions: FittedConditions | None
    priors: Priors | None
    error: ErrorEstimate | None
    moved: tuple[MovedValue, ...]
    drift: Drift | None
    comparison: str
    changes: tuple[str, ...]
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]
    ids: Tensor
    kept: Tensor
    simulated: Tensor

    @property
    def doubts(self) -> tuple[tuple[str, Finding], ...]:
        """The findings of all parts, each with the name of its part."""
        parts = {
            "field": self.findings,
            "conditions": self.conditions.findings if self.conditions else (),
            "class shares": self.priors.findings if self.priors else (),
            "error without labels": self.error.findings if self.error else (),
            "drift": self.drift.findings if self.drift else (),
        }
        return tuple((name, finding) for name, findings in parts.items() for finding in findings)

    @property
    def reference(self) -> Samples:
        """The kept field inputs."""
        return Samples(unpacked(self.kept, self.bounds))

    @property
    def active(self) -> tuple[Parameter, ...]:
        """The parameters of the conditions that were found."""
        return () if self.conditions is None else self.conditions.parameters

    @property
    def unexplained(self) -> float | None:
        """How much of the difference between training and field inputs the conditions leave; None if unknown."""
        return None if self.conditions is None else self.conditions.unexplained

    @property
    def names(self) -> tuple[str, ...]:
        """What to call each class."""
        shares = () if self.priors is None else self.priors.values
        return self.classes or tuple(map(str, range(len(shares))))

    @property
    def overview(self) -> str:
        """Number, size and sources of the inputs in a sentence or two."""
        sources = first_few([f"{s.name} ({s.inputs})" for s in self.sources], 5)
        groups = f"; groups: {first_few([f'{g.name} ({g.inputs})' for g in self.groups], 5)}" if self.groups else ""
        unusual = {"copies of others": self.copies, "blank": self.blank, "grey": self.grey}
        unusual["among the training or labelled inputs"] = self.known
        also = ", ".join(f"{n} {what}" for what, n in unusual.items() if n)
        of_these = f" Of these, {also}." if also else ""
        inputs = "field input" if self.inputs == 1 else "field inputs"
        return f"{self.inputs} {inputs}, {describe_size(self.shape)}, from {sources}{groups}.{of_these}"

    def __str__(self) -> str:
        parts = [self.overview, *self.notes]
        parts += [describe_conditions(self.conditions)] if self.conditions else []
        parts += [describe_shares(self.priors, self.names)] if self.priors else []
        parts += [describe_error(self.error, self.inputs)] if self.error else []
        parts += [self.comparison, *([self.drift.summary] if self.drift else []), *self.changes]
        return "\n".join([*parts, *(str(finding) for _, finding in self.doubts)])


def describe_field(
    model: Classifier,
    field: Samples,
    *,
    train: Samples,
    labelled: Samples,
    conditions: FittedConditions | None = None,
    widest: Recipe | None = None,
    estimate: bool = True,
    last: FieldDescription | None = None,
    resamples: int = 200,
    rows: int = 5000,
    generator: torch.Generator,
    progress: bool = True,
) -> FieldDescription:
    """Describe field inputs without labels: counts, sources, class shares, conditions, error, and what has changed.

    What cannot be estimated is left out, and ``notes`` says why: for inputs that are not images, for instance, there
    are no conditions. Numbers are estimates: none of them is a bound.

    Args:
        model: class shares, the error and drift are estimated from its outputs.
        field: inputs from operation; labels are ignored.
        train: training inputs, which the conditions are applied to.
        labelled: labelled inputs that the model was *not* trained on.
        conditions: estimated earlier with `fit_conditions` (default: estimated now).
        widest: the strongest possible conditions, see `fit_conditions` (default: a palette of usual ones).
        estimate: whether conditions are estimated if they are not given; this takes longest.
        last: an earlier description, to compare with.
        resamples: for the intervals of class shares and of the error.
        rows: maximum number of field inputs that estimates use, drawn at random.
        generator: draws inputs, severities and resamples; the same one gives the same description.
        progress: show progress on stderr.
    """
    check_not_empty(field=field, train=train, labelled=labelled)
    check_at_least(MIN_INPUTS, rows=rows)
    check_at_least(20, resamples=resamples, advice="200 is usual")
    check_same_shape("field", field, "training", train)
    model.check(labelled)
    model.check_inputs(field.x)
    with activity("describing the field", show=progress):
        order = shuffled(len(field), generator)
        some = field[order[:rows].sort().values]
        notes: list[str] = []
        if conditions is None and estimate:
            conditions = _conditions(some, train, widest, model.bounds, generator, notes)
        elif conditions is None:
            notes.append("Conditions were not estimated.")
        priors: Priors | None = None
        error: ErrorEstimate | None = None
        if (different := _different(some)) >= MIN_DIFFERENT:
            priors = _priors(model, labelled, some, conditions, resamples, generator, notes)
            error = _error(model, labelled, some, priors, conditions, resamples, generator, notes)
        else:
            needed = f"at least {MIN_DIFFERENT} different field inputs that are not blank are needed, got {different}"
            notes.append(f"Class shares and the error were not estimated: {needed}.")
        simulated = _simulated(train, conditions, priors, generator)
        now = FieldDescription(
            inputs=len(field),
            shape=tuple(field.shape),
            bounds=model.bounds,
            train=len(train),
            labelled=len(labelled),
            **_counts(field, train, labelled),
            sources=_counted([_source(name) for name in field.names or ("",) * len(field)]),
            groups=_counted([group or NO_GROUP for group in field.groups]) if field.groups else (),
            classes=_class_names(train, labelled, model.classes(labelled.x[:1])),
            conditions=conditions,
            priors=priors,
            error=error,
            moved=() if is_picture(field.shape) else _moved(field, train),
            drift=None,
            comparison="",
            changes=(),
            notes=tuple(notes),
            findings=(*field_findings(field, train, labelled), *(() if priors else one_class(model, some))),
            ids=field.ids.cpu().sort().values,
            kept=packed(field.x[order[: _keepable(field)].to(field.x.device)], model.bounds),
            simulated=packed(simulated, model.bounds),
        )
        return _compared(now, last, field, model, generator)


# Conditions, class shares, error


def _conditions(
    field: Samples,
    train: Samples,
    widest: Recipe | None,
    bounds: tuple[float, float],
    generator: torch.Generator,
    notes: list[str],
) -> FittedConditions | None:
    if field.x.ndim != 4:
        notes.append("Conditions are for images: none were estimated.")
        return None
    try:
        widest = usual_conditions(tuple(train.shape), bounds) if widest is None else widest
        return estimate_conditions(field, train, widest=widest, generator=generator)
    except NoConditions as error:
        notes.append(f"Conditions were not estimated: {error}.")
        return None


def _priors(
    model: Classifier,
    labelled: Samples,
    field: Samples,
    conditions: FittedConditions | None,
    resamples: int,
    generator: torch.Generator,
    notes: list[str],
) -> Priors | None:
    y = labelled.labels.cpu()
    right, most = int((model.predict(labelled.x).cpu() == y).sum()), float(y.bincount().max()) / len(y)
    if most < 1 and binomtest(right, len(y), most, alternative="greater").pvalue > CHANCE_LEVEL:
        often = f"the model is right on {right} of {len(y)} labelled inputs, hardly more often than by chance"
        notes.append(f"Class shares were not estimated: {often}.")
        return None
    try:
        with activity("estimating class shares"):
            known: dict[str, Any] = {"conditions": conditions, "resamples": resamples}
            found = estimate_priors(model, labelled, field, **known, generator=generator)
            return replace(found, findings=tuple(map(_without_conditions, found.findings)))
    except ValueError as error:
        notes.append(f"Class shares were not estimated: {error}.")
        return None


def _without_conditions(finding: Finding) -> Finding:
    """A finding that does not advise to give conditions: they were tried, or switched off, and a note says so."""
    return replace(finding, advice=finding.advice.removesuffix(OR_CONDITIONS))


def _error(
    model: Classifier,
    labelled: Samples,
    field: Samples,
    priors: Priors | None,
    conditions: FittedConditions | None,
    resamples: int,
    generator: torch.Generator,
    notes: list[str],
) -> ErrorEstimate | None:
    try:
        with activity("estimating the error without labels"):
            known: dict[str, Any] = {"priors": priors, "conditions": conditions}
            return estimate_error(model, labelled, field, **known, resamples=min(resamples, 100), generator=generator)
    except ValueError as error:
        notes.append(f"The error was not estimated: {error}.")
        return None


def _simulated(
    train: Samples, conditions: FittedConditions | None, priors: Priors | None, generator: torch.Generator
) -> Tensor:
    """Training inputs in the estimated class shares, under the estimated conditions, if there are any."""
    chances = torch.ones(len(train), dtype=torch.float64)
    if priors is not None and train.y is not None:
        y, shares = train.y.cpu(), torch.tensor(priors.values, dtype=torch.float64)
        weighted = (shares / torch.bincount(y, minlength=len(shares)).clamp_min(1))[y]
        chances = weighted if float(weighted.sum()) > 0 else chances
    rows = torch.multinomial(chances, SHOWN, replacement=True, generator=generator)
    x = train.x[rows.to(train.x.device)].cpu()
    if conditions is None:
        return x
    return apply(x, conditions.recipe.draw(len(x), generator=generator))


# Inputs


def _counts(field: Samples, train: Samples, labelled: Samples) -> dict[str, int]:
    ids = field.ids.cpu()
    return {
        "copies": len(ids) - len(ids.unique()),
        "blank": int(blank_rows(field.x).sum()),
        "grey": int(_grey(field).sum()),
        "known": int(torch.isin(ids, torch.cat([train.ids.cpu(), labelled.ids.cpu()])).sum()),
    }


def _different(samples: Samples) -> int:
    """The number of different inputs that are not blank."""
    return len(samples.ids.cpu()[~blank_rows(samples.x).cpu()].unique())


def _grey(samples: Samples) -> Tensor:
    """Whether each colour image has three equal channels; False for inputs that are not colour images."""
    if len(samples.shape) != 3 or samples.shape[0] != 3:
        return torch.zeros(len(samples), dtype=torch.bool)
    return (samples.x[:, :1] == samples.x[:, 1:]).flatten(1).all(1)


def _source(name: str) -> str:
    """The file of a row, or the folder of a picture.

    >>> _source("field.npz[17]"), _source("monday/0001.png"), _source("0001.png"), _source("")
    ('field.npz', 'monday', 'one folder', 'not known')
    """
    if row := re.fullmatch(r"(.+)\[\d+\]", name):
        return row[1]
    folder = PurePosixPath(name).parent.as_posix() if name else NO_SOURCE
    return ONE_FOLDER if folder == "." else folder  # read in Python: names do not have the folder that was read


def _counted(names: Sequence[str]) -> tuple[SourceCount, ...]:
    """The most frequent names, and how many inputs the others have together."""
    counts = Counter(names).most_common()
    listed = [SourceCount(name=name, inputs=n) for name, n in counts[:MAX_LISTED]]
    if rest := counts[MAX_LISTED:]:
        listed.append(SourceCount(name=f"{len(rest)} others", inputs=sum(n for _, n in rest)))
    return tuple(listed)


def _class_names(train: Samples, labelled: Samples, classes: int) -> tuple[str, ...]:
    return next((names for names in (train.classes, labelled.classes) if len(names) == classes), ())


def _moved(field: Samples, train: Samples) -> tuple[MovedValue, ...]:
    """The values whose mean moved furthest, the furthest first."""
    x, x0 = (s.x.flatten(1).double().cpu() for s in (field, train))
    now, before, spread = x.mean(0), x0.mean(0), x0.std(0, correction=0)
    moved = ((now - before) / spread).nan_to_num(0.0, posinf=math.inf, neginf=-math.inf)  # 0 / 0: nothing moved
    places = moved.abs().topk(min(MAX_LISTED, len(moved))).indices.tolist()
    return tuple(
        MovedValue(name=f"value {i}", train=float(before[i]), field=float(now[i]), moved=float(moved[i]))
        for i in places
    )


def _keepable(field: Samples) -> int:
    bytes_each = math.prod(field.shape) * (1 if is_picture(field.shape) else 4)
    return max(MIN_INPUTS, min(MAX_KEPT, MAX_KEPT_BYTES // bytes_each))


def packed(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Images with finite bounds as 8-bit pixels, anything else as float32."""
    low, high = bounds
    if not is_picture(x.shape[1:]) or not math.isfinite(high - low):
        return x.detach().cpu().float()
    return (255 * (x.detach().cpu() - low) / (high - low)).round().clamp(0, 255).to(torch.uint8)


def unpacked(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    """The inputs that `packed` was given; images with an error of at most half a grey level."""
    low, high = bounds
    return x if x.is_floating_point() else low + x.float() / 255 * (high - low)


def field_findings(field: Samples, train: Samples, labelled: Samples) -> tuple[Finding, ...]:
    """Blank, repeated, known and grey inputs, if they are more than a few."""
    counts, n, found = _counts(field, train, labelled), len(field), list[Finding]()
    most = MAX_SHARE * n
    if counts["blank"] > most:
        first = field.titles[int(blank_rows(field.x).nonzero()[0])]
        problem = f"{counts['blank']} of {n} field inputs have one value throughout (all black, say), such as {first}"
        found.append(warning("blank inputs", problem, "Look at them: a file may be damaged, or a camera covered"))
    if counts["copies"] > most:
        problem = f"{counts['copies']} of {n} field inputs are copies of others, so they say less than their number"
        found.append(warning("repeated inputs", problem, "Keep each once, unless equal inputs did arrive twice"))
    if counts["known"] > most:
        problem = f"{counts['known']} of {n} field inputs are among the training or labelled inputs"
        advice = "Give inputs from operation: on inputs that it has learned, a model looks better than it is"
        found.append(warning("training inputs in the field", problem, advice))
    if abs(counts["grey"] / n - float(_grey(train).double().mean())) > MAX_SHARE:
        problem = (
            f"{counts['grey']} of {n} field inputs are grey images read as colour, of the training inputs "
            f"{int(_grey(train).sum())} of {len(train)}"
        )
        advice = "If a camera switches to grey, train on grey images too; if files were converted, convert all alike"
        found.append(warning("grey and colour mixed", problem, advice))
    return tuple(found)


def one_class(model: Classifier, field: Samples) -> tuple[Finding, ...]:
    """Whether the model predicts one class for all of some field inputs."""
    some = field[torch.linspace(0, len(field) - 1, min(len(field), MAX_PREDICTED)).long()]
    predicted = model.predict(some.x).unique()
    if len(some) < MIN_INPUTS or len(predicted) > 1:
        return ()
    problem = f"the model predicts class {int(predicted[0])} for all of {len(some)} field inputs"
    advice = "If other classes occur in operation, collect field data again; if not, no classifier is needed"
    return (warning("one class", problem, advice),)


# Last time


def _compared(
    now: FieldDescription,
    last: FieldDescription | None,
    field: Samples,
    model: Classifier,
    generator: torch.Generator,
) -> FieldDescription:
    """The description with everything that has changed since last time."""
    if last is None:
        return replace(now, comparison="This is the first description; the next one is compared with it.")
    if last.shape != now.shape or last.bounds != now.bounds:
        before = f"shape {last.shape} and bounds {last.bounds}"
        return replace(now, comparison=f"Nothing is compared: last time, inputs had the {before}.")
    if torch.equal(last.ids, now.ids):  # described again
        return replace(now, drift=last.drift, comparison=last.comparison, changes=last.changes)
    new = field[~torch.isin(field.ids.cpu(), last.ids)]
    if min(len(new), len(last.kept)) < MIN_INPUTS:
        sentence = (
            f"{len(new)} of {len(field)} inputs are new since last time, when there were {last.inputs}: too few to "
            f"test for drift, which needs {MIN_INPUTS} on either side."
        )
        return replace(now, comparison=sentence, changes=_changes(last, now))
    found = drift(model.match_dtype(last.reference), new.with_labels(None), model, generator=generator)
    sentence = (
        f"{len(new)} of {len(field)} inputs are new since last time; they were compared with {len(last.kept)} of the "
        f"{last.inputs} inputs of last time."
    )
    return replace(now, drift=found, comparison=sentence, changes=_changes(last, now))


def _changes(last: FieldDescription, now: FieldDescription) -> tuple[str, ...]:
    """Conditions that came or went, and class shares whose intervals do not overlap."""
    changes = []
    if last.conditions and now.conditions:
        before, after = ({p.condition for p in d.active} for d in (last, now))
        for what, found in (("New", after - before), ("No longer found", before - after)):
            changes += [f"{what} since last time: {', '.join(sorted(found))}."] if found else []
    if last.priors and now.priors and len(last.priors.values) == len(now.priors.values):
        a, b = last.priors, now.priors
        if a.withheld or b.withheld:
            changes.append("Class shares are not compared with last time: there are no intervals to compare.")
        moved = [c for c in range(len(b.values)) if b.lower[c] > a.upper[c] or b.upper[c] < a.lower[c]]
        words = [f"{now.names[c]} from {percent(a.values[c])} to {percent(b.values[c])}" for c in moved]
        changes += [f"Class shares changed since last time: {first_few(words)}."] if words else []
    return tuple(changes)
