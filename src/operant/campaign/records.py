"""What a campaign writes to its folder and returns, as values."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from typing import Literal

import torch
from torch import Tensor

from operant.campaign.assessing import SequentialAssessment
from operant.data import Samples
from operant.formatting import accuracy, at_most, percent
from operant.measure.judge import UNLIKE_FIELD, accepted_text
from operant.model import Classifier, Finding
from operant.model.hashing import fingerprint_of
from operant.networks.weights import weights_content
from operant.profile import Drift
from operant.retrain import FinetuneRecord
from operant.suite import Suite
from operant.validation import check_ascending, check_between, check_from_below

PACKAGES = ("operant", "torch", "numpy", "scipy", "scikit-learn")
TOP_SHARES = 4  # shares that a decision prints
TITLES = {"class": "seeds by class", "cell": "seeds by region of the field map", "move": "moves"}
LIKENESS = "without feedback, by likeness of training inputs to field inputs:"  # not by estimated class shares
BASES = {"class": LIKENESS, "cell": LIKENESS, "move": "without feedback"}
StopReason = Literal[
    "requirement met", "field changed", "labels spent", "field assessed", "cases spent", "no change", "rounds spent"
]


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """What the model must achieve, and what counts as an operational failure."""

    pmi: float
    confidence: float
    max_drop: float
    level: float
    mass_quantile: float

    def __post_init__(self) -> None:
        check_between(0, 1, level=self.level)
        check_from_below(0, 1, mass_quantile=self.mass_quantile)


@dataclass(frozen=True, kw_only=True)
class CampaignInfo:
    """What a campaign is about; ``info.json``.

    Attributes:
        requirement: what the model must achieve.
        classes: the name of each label.
        bounds: smallest and largest value of an input.
        train: number of training inputs of each class.
        clean: number of inputs that clean accuracy is measured on.
        feedback: whether rounds learn from each other where to search.
        findings: of the doctor, about the initial model.
        versions: of the packages in use.
        notes: choices that were made for the user before the campaign began.
        weights: hash that the initial model's weights have as a file of this folder.
    """

    requirement: Requirement
    classes: tuple[str, ...]
    bounds: tuple[float, float]
    train: tuple[int, ...]
    clean: int
    feedback: bool
    findings: tuple[Finding, ...]
    versions: dict[str, str]
    notes: tuple[str, ...] = ()
    weights: str = ""

    def __post_init__(self) -> None:
        check_ascending(bounds=self.bounds)


@dataclass(frozen=True, kw_only=True)
class FieldIds:
    """Ids of the field inputs that had arrived when a round began; ``field.json`` of a round.

    Attributes:
        ids: sorted.
        groups: a hash of their groups, which decide their roles; empty if they have none.
    """

    ids: Tensor
    groups: str = ""


@dataclass(frozen=True, kw_only=True)
class DriftNote:
    """The drift of newly arrived field inputs, None if there was no alarm; ``drift.json`` of a round."""

    drift: Drift | None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """How feedback changed the search of a round.

    Attributes:
        what: parts that a budget was spread over.
        names: of the parts.
        before, after: share of each part without and with feedback.
        why: reason, as half a sentence.
    """

    what: Literal["class", "cell", "move"]
    names: tuple[str, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    why: str

    @property
    def title(self) -> str:
        return TITLES[self.what]

    @property
    def shown_names(self) -> tuple[str, ...]:
        """The names as a list of shares shows them: numbers are marked, since a share follows."""
        return tuple(f"region {name}" if self.what == "cell" else _quoted(name) for name in self.names)

    def __str__(self) -> str:
        before, after = (describe_shares(shares, self.shown_names) for shares in (self.before, self.after))
        return f"{self.title}: {after} ({BASES[self.what]} {before}), because {self.why}"


def _quoted(name: str) -> str:
    """A name that is a number in quotes."""
    return f"'{name}'" if name.replace(".", "", 1).isdecimal() else name


def describe_shares(shares: Sequence[float], names: Sequence[str]) -> str:
    """The largest shares, by name."""
    order = sorted(range(len(shares)), key=lambda i: -shares[i])[:TOP_SHARES]
    more = "" if len(names) <= TOP_SHARES else ", …"
    return ", ".join(f"{names[i]} {percent(shares[i], 2)}" for i in order) + more


@dataclass(frozen=True, kw_only=True)
class SearchShares:
    """How the search of a round is spread over classes, cells and moves; ``shares.json`` of a round."""

    classes: tuple[float, ...]
    cells: tuple[float, ...]
    moves: dict[str, float]
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SeedRows:
    """The training inputs that a round searches from; ``seeds.json`` of a round.

    Attributes:
        rows: of the training data.
        occurrence: tells apart seeds that were chosen several times.
        by: which risk they were drawn by, ``"risk map"`` or ``"margin"``; empty if another `SeedChooser` chose them.
    """

    rows: Tensor
    occurrence: Tensor
    by: str = ""

    def samples(self, train: Samples) -> Samples:
        """The seeds."""
        return replace(train[self.rows], occurrence=self.occurrence)


def seed_rows(seeds: Samples, train: Samples) -> SeedRows:
    """Where these seeds are in the training data; a ValueError if a `SeedChooser` returned anything else."""
    places: dict[tuple[int, ...], int] = {}
    for row, (i, label, k) in enumerate(_keys(train)):
        places[i, label, k] = row
        places.setdefault((i, label), row)  # for a row that was chosen several times
    found = [places.get((i, label, k), places.get((i, label), -1)) for i, label, k in _keys(seeds)]
    rows = torch.tensor(found, dtype=torch.int64)
    if -1 in found or not torch.equal(train.x[rows], seeds.x):
        raise ValueError("a seed chooser must return some of the inputs it was given, unchanged; select rows of them")
    return SeedRows(rows=rows, occurrence=seeds.occurrence.cpu())


def _keys(samples: Samples) -> Iterator[tuple[int, int, int]]:
    """Id, label and occurrence of each row."""
    return zip(samples.ids.tolist(), samples.labels.tolist(), samples.occurrence.tolist(), strict=True)


@dataclass(frozen=True, kw_only=True)
class MoveTest:
    """Whether the unselected draws of a move look like field inputs; only then is it searched with.

    Attributes:
        move: its name.
        searched: whether it is searched with.
        accepted: share of its unselected draws that its judge takes for field inputs; None if it has no judge.
        draws: their number.
        radius: that it is searched with; None if that is the given one, or if it has none.
        why: why it has no judge, another radius or none, as half a sentence.
        doubts: reasons to doubt its judge, such as few draws, or its recipe, such as some draws unlike the field.
    """

    move: str
    searched: bool
    accepted: float | None = None
    draws: int = 0
    radius: float | None = None
    why: str = ""
    doubts: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        return "; ".join([self._result, *(doubt.problem for doubt in self.doubts)])

    @property
    def _result(self) -> str:
        if self.accepted is None:
            return f"{_quoted(self.move)}: no judge, because {self.why}; the five scores rate its cases"
        share = f"{accepted_text(self.accepted, 2)} of {self.draws} unselected draws look like field inputs"
        if self.radius is not None:
            return f"{_quoted(self.move)}: {share} at the smaller radius {self.radius:g} ({self.why})"
        at = f" {self.why}" if self.why else ""
        return f"{_quoted(self.move)}: {share}{at}{'' if self.searched else ', so nothing is searched with it'}"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What a user must know about the move, and doubts about its judge; empty if all is well."""
        name = ""
        if self.accepted is None:
            name = "no judge"
        elif not self.searched:
            name = UNLIKE_FIELD
        elif self.radius is not None:
            name = "smaller radius"
        own = (Finding(name=name, problem=self._result, advice=self.advice),) if name else ()
        return (*own, *(replace(doubt, problem=f"{_quoted(self.move)}: {doubt.problem}") for doubt in self.doubts))

    @property
    def advice(self) -> str:
        """What to do about draws that are unlike the field, or about a missing judge."""
        if self.radius is not None:
            return f"Set this radius to {self.radius:g}, or search over conditions"
        if self.accepted is None:
            return _advice_without_judge(self.why)
        if self.why:  # it has a radius
            return (
                "Its seeds, training inputs, may be unlike the field: search over conditions, or train on field inputs"
            )
        return (
            "These are not the conditions of the field. Declare others, or let them be estimated within declared ones "
            "([conditions] estimate = true), in a new folder; `operant field` shows what the field looks like"
        )


def _advice_without_judge(why: str) -> str:
    if "unselected" in why:
        return "If this is your own move, give it an `unselected` method"
    what = "training inputs" if "training inputs" in why else "distinct field inputs, in groups that can be halved"
    return f"Give more {what}"


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round of the five steps; ``round.json`` of a round. Round 0, and a round that finds drift, only assess.

    Attributes:
        number: counted from 0.
        arrived: number of field inputs known by then.
        drift: drift of the new field inputs; None if there was none.
        decisions: what feedback changed for this round.
        tests: whether each move makes cases like field inputs; empty without judges.
        attempted, found, operational: seeds, failures, operational failures among these.
        moves: probability of each move to be tried first on a seed.
        by_move: operational failures per move.
        first: seeds with an operational failure of the move that was tried first, per move.
        chosen, cases: cases chosen in this round, and in all rounds so far; retraining learns from all of them.
        retraining: its record; None if there was nothing to learn from.
        clean: clean accuracy after the round.
        assessment: of the model after the round; None if it is unchanged and more labels could not show more, so that
            its last assessment still holds, or if the campaign stops because of drift.
    """

    number: int
    arrived: int
    drift: Drift | None = None
    decisions: tuple[Decision, ...] = ()
    tests: tuple[MoveTest, ...] = ()
    attempted: int = 0
    found: int = 0
    operational: int = 0
    moves: dict[str, float] = field(default_factory=dict)
    by_move: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    chosen: int = 0
    cases: int = 0
    retraining: FinetuneRecord | None = None
    clean: float
    assessment: SequentialAssessment | None = None

    @property
    def changed(self) -> bool:
        """Whether the round changed the model."""
        return self.retraining is not None and self.retraining.changed

    @property
    def nothing_to_search(self) -> bool:
        """Whether no move makes cases like field inputs."""
        return bool(self.tests) and not any(test.searched for test in self.tests)

    @property
    def idle(self) -> bool:
        """Whether the round tried to improve the model and left it unchanged."""
        return self.number > 0 and not self.changed and self.drift is None

    def __str__(self) -> str:
        parts = [f"the field has changed ({self.drift.summary})"] if self.drift else []
        if self.nothing_to_search:
            parts.append("nothing was searched, because no move makes cases like field inputs")
        if self.attempted:
            parts.append(f"{self.operational} operational failures from {self.attempted} seeds, {self.chosen} chosen")
        parts.append(f"clean accuracy {accuracy(self.clean)}")
        if self.attempted and not self.changed:
            parts.append(f"model unchanged{f' ({self.retraining.reason})' if self.retraining else ''}")
        if self.assessment:
            parts.append(str(self.assessment))
        return f"round {self.number}: {', '.join(parts)}"


@dataclass(frozen=True, kw_only=True)
class StopRecord:
    """How a campaign ended when it was last run; ``stop.json``.

    Attributes:
        met: whether the requirement is met.
        reason: why it ended.
        sentence: the same for people.
        advice: what would meet the requirement; empty if it is met.
        last: number of the last round.
        rounds, cases, labels: the budget.
    """

    met: bool
    reason: StopReason
    sentence: str
    advice: str
    last: int
    rounds: int
    cases: int
    labels: int


@dataclass(frozen=True, kw_only=True, eq=False)
class CampaignResult:
    """What a campaign returns.

    Attributes:
        model: after the last round.
        met: whether its pmi is at most the requirement, with the campaign's confidence.
        reason: why the campaign ended, what it achieved and what it would take to meet the requirement.
        assessment: of that model.
        suite: the operational failures that were chosen to learn from; None if there were none.
        rounds: all rounds.
    """

    model: Classifier = field(repr=False)
    met: bool
    reason: str
    assessment: SequentialAssessment
    suite: Suite | None = field(repr=False)
    rounds: tuple[Round, ...] = field(repr=False)

    @property
    def labels(self) -> int:
        """Labels used in all rounds."""
        return sum(r.assessment.bought for r in self.rounds if r.assessment)

    def __str__(self) -> str:
        lines = [self.reason, "round  operational  chosen    clean      pmi  at most  labels"]
        for r in self.rounds:
            a = r.assessment
            pmi = f"{percent(a.pmi):>7}  {at_most(a.upper):>7}  {a.bought:6d}" if a else " " * 24
            mark = "  field changed" if r.drift else "  unchanged" if r.idle else ""
            lines.append(f"{r.number:>5}  {r.operational:>11}  {r.chosen:>6}  {accuracy(r.clean):>7}  {pmi}{mark}")
        return "\n".join(lines)


def describe_campaign(
    requirement: Requirement,
    model: Classifier,
    train: Samples,
    clean: Samples,
    *,
    names: Sequence[str] = (),
    feedback: bool = True,
    notes: Sequence[str] = (),
) -> CampaignInfo:
    """What is known of a campaign before it begins; classes without names are numbered."""
    classes, names = model.classes(train.x[:1]), known_classes(model, train, names)
    counts = torch.bincount(train.labels.cpu(), minlength=classes)
    return CampaignInfo(
        requirement=requirement,
        classes=names or tuple(str(c) for c in range(classes)),
        bounds=model.bounds,
        train=tuple(counts.tolist()),
        clean=len(clean),
        feedback=feedback,
        findings=model.doctor(clean),
        versions={"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        notes=tuple(notes),
        weights=fingerprint_of(BytesIO(weights_content(model.unwrap())), safetensors=True),
    )


def known_classes(model: Classifier, train: Samples, given: Sequence[str] = ()) -> tuple[str, ...]:
    """The given class names, or those of the training data; empty if there are none."""
    names, classes = tuple(given) or train.classes, model.classes(train.x[:1])
    if names and len(names) != classes:
        whose = "" if given else " in the training data; pass classes=... to name them all"
        raise ValueError(f"there must be a name for each of the model's {classes} classes, got {len(names)}{whose}")
    return names


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
