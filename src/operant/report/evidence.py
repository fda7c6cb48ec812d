"""What a report of a campaign shows, as a value, and in words."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from operant import results
from operant.campaign.assessment import SequentialAssessment, what_it_takes
from operant.campaign.records import About, StopRecord
from operant.campaign.result import Round
from operant.formatting import at_most, percent
from operant.model.doctor import Finding
from operant.report.failures import Gallery
from operant.triage.sampling import ValidShare

VERSION = 4
WORTH = 0.5  # share of failures that a defence must stop to be recommended
Points = tuple[tuple[float, float], ...]
Counts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Prior:
    """How often a class occurs in the field, by the labels that were bought.

    Attributes:
        labels: inputs of the class among those labelled.
        share, lower, upper: of all, with a Clopper-Pearson interval. It takes the number of labels as fixed, which a
            campaign chooses as it goes: read it as a description.
        train: share among training inputs; None if not known.
    """

    labels: int
    share: float
    lower: float
    upper: float
    train: float | None


@dataclass(frozen=True, kw_only=True)
class Map:
    """The field and the training data, by the first two codes of the profile.

    Attributes:
        field: inputs that the profile was learned from.
        train: training inputs.
        sampled: whether those are from all training data; otherwise they are the seeds that cases were made from.
        failures: operational failures.
    """

    field: Points
    train: Points
    sampled: bool
    failures: Points


@dataclass(frozen=True, kw_only=True)
class Region:
    """A cell of the profile: its share of the field, and what labels said of it."""

    mass: float
    labels: int
    failures: int
    centre: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a round did to the model, as `Insight` has it; counts by true class in rows, predicted in columns."""

    round: int
    clean: Counts
    before: Counts
    after: Counts
    fixed: int
    broken: int
    regions: tuple[Region, ...]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where the failures of the present model are, by all labels bought for it in the present field.

    Attributes:
        rounds: in which they were bought.
        counts: of labelled inputs, by true class in rows, predicted in columns.
        regions: cells of the profile.
    """

    rounds: tuple[int, ...]
    counts: Counts
    regions: tuple[Region, ...]

    @property
    def labels(self) -> int:
        return sum(map(sum, self.counts))

    @property
    def by_class(self) -> tuple[tuple[int, int], ...]:
        """Failures and labelled inputs of each class."""
        return tuple((sum(row) - row[c], sum(row)) for c, row in enumerate(self.counts))

    @property
    def when(self) -> str:
        several = len(self.rounds) > 1
        return f"rounds {', '.join(map(str, self.rounds))}" if several else f"round {self.rounds[0]}"


@dataclass(frozen=True, kw_only=True)
class Certainties:
    """How sure the models were of operational failures, each the one of its round.

    Attributes:
        failures: operational failures of the rounds that tell.
        decided, undecided: of those looked at, how many have a high and how many a low PCS.
        patterns: by pattern, and under "" those of none, how many follow it; empty where VRO is not known.
        points: PCS and VRO of those looked at, or of some; empty likewise.
        looked_at: how many of them.
        passes: that VRO is a share of.
        reason: why VRO is not known; empty if it is.
    """

    failures: int
    looked_at: int
    decided: int
    undecided: int
    patterns: dict[str, int]
    points: Points
    passes: int
    reason: str

    @property
    def told(self) -> str:
        """What they mean, in a sentence."""
        if not self.patterns:
            return (
                f"Only PCS is known, how decided a model is: it was decided about {self.decided} of {self.looked_at} "
                f"failures, which no look at its confidence would give away, and undecided about {self.undecided}."
            )
        sure, doubtful = self.patterns["HL"], self.patterns["LH"]
        return (
            f"The model was as sure of {sure} in {self.looked_at} failures as of inputs that it gets right (HL), so "
            f"that no check of its certainty would stop them; of {doubtful} it was unsure in both ways (LH), and such "
            "a check would."
        )


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """What one cheap defence would have stopped, all rounds together, each with the defence of its model.

    Attributes:
        name: of the defence.
        stopped, failures: operational failures that it rejects, or reads correctly, of those it was tried on.
        lower, upper: an interval for the share of these, which holds for all defences together with 95 % confidence;
            failures of one seed count as one within a round.
        wrong, clean: clean inputs that it rejects, or misreads, of those it was tried on.
        most_wrong: the upper end of such an interval for the share of these; rounds try the same clean inputs.
    """

    name: str
    stopped: int
    failures: int
    lower: float
    upper: float
    wrong: int
    clean: int
    most_wrong: float

    @property
    def share(self) -> float:
        return self.stopped / self.failures


@dataclass(frozen=True, kw_only=True)
class Defences:
    """Which defences would have stopped operational failures.

    Attributes:
        failures: operational failures of the rounds that tell.
        level: share of clean inputs that each defence was set up to get wrong at most.
        tried: the most effective first.
        reason: why none could be tried; empty if some could.
    """

    failures: int
    level: float
    tried: tuple[Stopped, ...]
    reason: str

    @property
    def told(self) -> str:
        """What they mean, in a sentence or two."""
        if not self.tried:
            return f"No defence was tried: {self.reason[:1].lower()}{self.reason[1:]}."
        good = [d for d in self.tried if d.lower > WORTH and d.wrong <= 2 * self.level * d.clean]
        best = (good or self.tried)[0]
        told = (
            f"it stops {best.stopped} of {best.failures} failures, {percent(best.lower)} to {percent(best.upper)} of "
            f"such, and gets {best.wrong} of {best.clean} clean inputs wrong"
        )
        if good:
            return f"Recommended: {best.name} before the model, the best of {len(self.tried)} tried; {told}."
        return (
            f"Recommended: retrain, and do not count on a guard. None of {len(self.tried)} that were tried stops more "
            f"than {percent(WORTH)} for certain at little cost; nearest comes {best.name}: {told}."
        )


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that a report shows; made by `gather`.

    Attributes:
        version: of this format.
        name: of the folder.
        folder: its path, as it was given.
        settings: what the run is made of, as ``run.json`` has it.
        requirement, confidence, max_drop: what was asked for.
        rounds: those that are finished.
        under_way: what is done of the round that is not finished; empty if there is none.
        labels: bought so far, in unfinished rounds too.
        seconds: how long each step took, by its name in `operant.campaign.progress.STEPS`, and "round" what all rounds
            took; empty if that was not kept.
        about: names, bounds, versions; None if that was not kept.
        ended: why it ended, and its budget; None while it is under way.
        priors: of each class; empty before there are labels.
        map: None before there is a profile.
        changes: of rounds that kept them.
        gallery: of operational failures.
        valid: whether it shows only those that people called valid.
        certainties: how sure the models were of them; None if that was not kept, or there are none.
        defences: what cheap ones would have stopped of them; None likewise.
        triage: the share of the campaign's cases that people call valid; None if nobody has judged any.
        compared: rounds whose new inputs were tested for drift.
        findings: where each comes from, and what it says.
        hashes: what, and its hash.
    """

    version: int = VERSION
    name: str
    folder: str = ""
    settings: dict[str, str]
    requirement: float
    confidence: float
    max_drop: float
    rounds: tuple[Round, ...]
    under_way: str
    labels: int
    seconds: dict[str, float]
    about: About | None
    ended: StopRecord | None = None
    priors: tuple[Prior, ...]
    map: Map | None
    changes: tuple[Change, ...]
    gallery: Gallery
    valid: bool = False
    certainties: Certainties | None = None
    defences: Defences | None = None
    triage: ValidShare | None = None
    compared: tuple[int, ...]
    findings: tuple[tuple[str, Finding], ...]
    hashes: tuple[tuple[str, str], ...]

    @cached_property
    def latest(self) -> SequentialAssessment | None:
        """What was last said of the present model in the present field; None if nothing was."""
        for done in reversed(self.rounds):
            if done.assessment is not None or done.drifted:
                return done.assessment
        return None

    @property
    def met(self) -> bool:
        return self.latest is not None and self.latest.upper <= self.requirement

    @property
    def status(self) -> str:
        """In two words."""
        if self.latest is None:
            return "not known"
        return "met" if self.met else "not met"

    @property
    def told(self) -> str:
        """What the status rests on."""
        last = self.latest
        digits = 6 if last and at_most(last.upper) == percent(self.requirement) else 3
        asked = f"at most {percent(self.requirement, digits)} may be"
        if not self.rounds:
            return "no round is finished yet."
        if last is None and self.rounds[-1].drifted:
            return "the field has changed, and the model was not assessed in it."
        if last is None:
            return "the model was not assessed yet."
        if self.met:
            return f"at most {at_most(last.upper, digits)} of inputs from use are misclassified; {asked}."
        return f"up to {at_most(last.upper, digits)} of inputs from use could be misclassified; {asked}."

    @property
    def verdict(self) -> str:
        """In one sentence."""
        return f"{self.status.capitalize()}: {self.told}"

    @property
    def why(self) -> str:
        """Why it ended, in a sentence; empty while it is under way."""
        return self.ended.why if self.ended else ""

    @property
    def advice(self) -> str:
        """What it would take to meet the requirement; empty if it is met, or nothing is known."""
        if self.ended and not self.ended.met:
            return self.ended.advice
        if self.latest is None or self.met:
            return ""
        return f"To meet it: {what_it_takes(self.latest, self.requirement)}."

    @property
    def judged(self) -> tuple[str, str]:
        """The weights that the verdict is about, and their hash, empty if that is not known."""
        changed = [done.number for done in self.rounds if done.changed]
        name = f"weights after round {changed[-1]}" if changed else "model as it came"
        return name, dict(self.hashes).get(name, "")

    @cached_property
    def sources(self) -> Sources | None:
        """Where pmi comes from; None if that was not kept, or no label was bought for the present model."""
        changes = {change.round: change for change in self.changes}
        kept = [changes[number] for number in present(self.rounds) if number in changes]
        if not kept:
            return None
        counts = [
            [sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*(c.after for c in kept), strict=True)
        ]
        return Sources(
            rounds=tuple(change.round for change in kept),
            counts=tuple(map(tuple, counts)),
            regions=tuple(_pooled(parts) for parts in zip(*(c.regions for c in kept), strict=True)),
        )

    @property
    def cases(self) -> int:
        """Chosen to learn from."""
        return self.rounds[-1].cases if self.rounds else 0

    @property
    def learned(self) -> int:
        """Of these, the ones that the present model has learned from; retrainings that were not kept do not count."""
        return max((done.cases for done in self.rounds if done.changed), default=0)

    @property
    def time(self) -> float:
        """Seconds of everything: rounds, and what is learned of the field before them."""
        return self.seconds.get("round", 0.0) + self.seconds.get("profile", 0.0)

    @property
    def seeds(self) -> int:
        return sum(done.attempted for done in self.rounds)

    @property
    def clean_before(self) -> float:
        return self.rounds[0].clean if self.rounds else math.nan

    @property
    def clean_after(self) -> float:
        return self.rounds[-1].clean if self.rounds else math.nan

    def class_name(self, label: int) -> str:
        known = self.about.classes if self.about else ()
        return known[label] if label < len(known) else str(label)


def stayed(done: Round) -> bool:
    """Whether a round left the model as it was; the first one, and one that met another field, did not try."""
    return done.number > 0 and not done.changed and not done.drifted


def present(rounds: Sequence[Round]) -> list[int]:
    """The rounds of the present model in the present field: the last, and those before that led to it unchanged."""
    first = next((i for i, done in reversed(list(enumerate(rounds))) if not stayed(done)), 0)
    return [done.number for done in rounds[first:]]


def labels_told(assessed: SequentialAssessment) -> str:
    """Failures of labels, and how many of the labels are new.

    >>> labels_told(SequentialAssessment(labels=150, failures=9, before=125, upper=0.1, confidence=0.95, reason=""))
    '9 of 150, 25 new'
    """
    return f"{assessed.failures} of {assessed.labels}{f', {assessed.bought} new' if assessed.before else ''}"


def _pooled(parts: Sequence[Region]) -> Region:
    labels, failures = (sum(getattr(part, name) for part in parts) for name in ("labels", "failures"))
    return Region(mass=parts[-1].mass, labels=labels, failures=failures, centre=parts[-1].centre)


# Reports on disk


def save_evidence(evidence: Evidence, path: str | Path) -> None:
    """Write ``report.json``; `load_evidence` reads it."""
    results.save(evidence, path)


def load_evidence(path: str | Path) -> Evidence:
    """Read ``report.json``; one of another format is refused."""
    path = Path(path)
    try:
        page = json.loads(path.read_bytes())
        found = page["value"].get("version") if page["type"] == Evidence.__name__ else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        found = None
    if found is None:
        raise ValueError(f"{path} is not a report: give the report.json that `operant report` wrote")
    if found != VERSION:
        raise ValueError(
            f"{path} is a report of format {found}, this version of Operant knows format {VERSION}; write it again "
            "with `operant report` and the campaign's folder"
        )
    return results.load(path, Evidence)
