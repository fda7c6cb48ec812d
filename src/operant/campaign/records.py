"""What a campaign keeps in its folder, for itself and for its report."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from operant.data import Samples
from operant.measure import annotate, prediction_confidence
from operant.model import Classifier
from operant.model.doctor import Finding
from operant.profile import Profile
from operant.suite import Suite

POINTS = 600  # of training inputs on the map
LOOKED_AT = 200  # failures of a round of which it is looked how sure the model was
PASSES = 50  # with dropout, for each of these
PACKAGES = ("operant", "torch", "numpy", "scipy", "scikit-learn")


@dataclass(frozen=True, kw_only=True)
class FieldIds:
    """Ids of the field inputs that were there when a round began; in ``field.json`` of a round."""

    ids: Tensor


@dataclass(frozen=True, kw_only=True)
class About:
    """What a campaign is about; in ``about.json``.

    Attributes:
        classes: the name of each label.
        bounds: smallest and largest value of an input.
        train: training inputs of each class.
        clean: inputs that guard clean accuracy.
        findings: the doctor's, of the model as it came.
        versions: of the packages that it runs with.
    """

    classes: tuple[str, ...]
    bounds: tuple[float, float]
    train: tuple[int, ...]
    clean: int
    findings: tuple[Finding, ...]
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class FieldMap:
    """Where training inputs lie on the map of the field; in ``map.json`` of each round that learned a profile.

    Attributes:
        train: first two codes of some of them, ``(n, 2)``; those of the field are in the profile.
        labels: their classes, ``(n,)``.
    """

    train: Tensor
    labels: Tensor


@dataclass(frozen=True, kw_only=True)
class Insight:
    """Where the failures of a round's model are; in ``insight.json`` of each round that assessed one.

    Attributes:
        clean: how many clean inputs of each class, in rows, the model takes for each class, in columns.
        before, after: the same of the field inputs labelled in this round, by the model as it came to the round and as
            it left it.
        fixed, broken: of these inputs, how many only the model after, or only the one before, gets right.
        cell_mass: share of the field in each cell of the profile.
        cell_labels, cell_failures: labelled inputs there, and how many of them the model after gets wrong.
        cell_centres: the first two codes of each cell's centre.
    """

    clean: Tensor
    before: Tensor
    after: Tensor
    fixed: int
    broken: int
    cell_mass: Tensor
    cell_labels: Tensor
    cell_failures: Tensor
    cell_centres: Tensor


@dataclass(frozen=True, kw_only=True)
class Certainty:
    """How sure a round's model was of failures that it was led to; in ``patterns.json`` of each round that found some.

    Attributes:
        failures: operational failures of the round.
        pcs: how decided the model was, of some of them.
        vro: how unstable, of the same ones; none where that is not known.
        passes: that VRO is a share of.
        reason: why VRO is not known; empty if it is.
    """

    failures: int
    pcs: Tensor
    vro: Tensor
    passes: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class StopRecord:
    """How a campaign ended when it was last run; in ``ended.json``.

    Attributes:
        met: whether its requirement was.
        why: it ended, in a sentence.
        advice: what it would take to meet the requirement; empty if it is met.
        last: its last round.
        rounds, cases, labels: its budget.
    """

    met: bool
    why: str
    advice: str
    last: int
    rounds: int
    cases: int
    labels: int


def about_of(model: Classifier, train: Samples, clean: Samples, *, names: Sequence[str] = ()) -> About:
    """What there is to say of a campaign before it begins; classes without names are numbered."""
    classes = model.classes(train.x[:1])
    if names and len(names) != classes:
        raise ValueError(f"there must be a name for each of the model's {classes} classes, got {len(names)}")
    counts = torch.bincount(train.labels.cpu(), minlength=classes)
    return About(
        classes=tuple(names) or tuple(str(c) for c in range(classes)),
        bounds=model.bounds,
        train=tuple(counts.tolist()),
        clean=len(clean),
        findings=model.doctor(clean),
        versions={"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
    )


def map_of(profile: Profile, train: Samples) -> FieldMap:
    """Training inputs on the map of a profile: as many as are told apart, evenly from all of them."""
    some = train[torch.linspace(0, len(train) - 1, min(POINTS, len(train))).round().long()]
    return FieldMap(train=flat_codes(profile.encode(some.x)), labels=some.labels.cpu())


def flat_codes(codes: Tensor) -> Tensor:
    """The first two of several codes, ``(n, 2)``; the second is 0 where there is but one."""
    codes = codes.detach().cpu().double()
    return torch.cat([codes, torch.zeros_like(codes)], 1)[:, :2] if codes.shape[1] < 2 else codes[:, :2]


def insight_of(
    before: Classifier, after: Classifier, labelled: Samples, clean: Samples, *, profile: Profile, centres: Tensor
) -> Insight:
    """Where a round's model fails, and what retraining changed.

    Args:
        before, after: the model as it came to the round, and as it left it.
        labelled: field inputs labelled in this round.
        clean: labelled guard of clean accuracy.
        profile: of the field, cut into cells around ``centres``.
        centres: in its codes, ``(cells, d)``.
    """
    y, old, new = labelled.labels.cpu(), before.predict(labelled.x).cpu(), after.predict(labelled.x).cpu()
    classes, n = after.classes(clean.x[:1]), len(centres)
    cell = _nearest(profile.encode(labelled.x), centres)
    return Insight(
        clean=_confusion(clean.labels.cpu(), after.predict(clean.x).cpu(), classes),
        before=_confusion(y, old, classes),
        after=_confusion(y, new, classes),
        fixed=int(((old != y) & (new == y)).sum()),
        broken=int(((old == y) & (new != y)).sum()),
        cell_mass=torch.bincount(_nearest(profile.codes, centres), profile.shares.cpu().double(), minlength=n),
        cell_labels=torch.bincount(cell, minlength=n),
        cell_failures=torch.bincount(cell[new != y], minlength=n),
        cell_centres=flat_codes(centres),
    )


def certainty_of(model: Classifier, failing: Suite, *, generator: torch.Generator) -> Certainty:
    """How sure a model is of some of these failures, evenly from all; of one without dropout, how decided.

    Args:
        model: that gets them wrong.
        failing: at least one.
        generator: of dropout masks; is asked for one number.
    """
    some: Suite = failing[torch.linspace(0, len(failing) - 1, min(LOOKED_AT, len(failing))).round().long()]
    pcs, vro, reason = prediction_confidence(model.probs(some.x)), torch.empty(0), ""
    try:
        vro = torch.as_tensor(annotate(model, some, passes=PASSES, generator=generator)["vro"])
    except ValueError as error:  # there is no dropout, or none that masks can be given to
        reason = str(error)
    return Certainty(failures=len(failing), pcs=pcs.cpu(), vro=vro.cpu(), passes=PASSES, reason=reason)


def _nearest(codes: Tensor, centres: Tensor) -> Tensor:
    return torch.cdist(codes.detach().cpu().double(), centres).argmin(1)


def _confusion(true: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Counts ``(classes, classes)``: rows are true, columns are predicted."""
    counts = torch.bincount(true * classes + predicted, minlength=classes * classes)
    return counts.view(classes, classes).to(torch.int32)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
