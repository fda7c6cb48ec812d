"""Everything that a report of a campaign shows, as a value."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from operant import results
from operant.campaign.assessing import SequentialAssessment, what_it_takes
from operant.campaign.observers import Section
from operant.campaign.observers.risk import RiskOfField
from operant.campaign.records import CampaignInfo, MoveTest, Round, StopRecord
from operant.data.class_texts import class_name
from operant.files import read_regular
from operant.formatting import at_most, percent
from operant.model import Finding
from operant.report.failures import Gallery
from operant.triage.sampling import ValidShare

VERSION = 6
INITIAL_MODEL = "initial model"
HASHED = ("model", "train", "clean")  # settings that are shown among the hashes


@dataclass(frozen=True, kw_only=True)
class Prior:
    """How often a class occurs in the field, among the labels that were bought.

    Attributes:
        labels: labelled inputs of the class.
        share, lower, upper: of all labels, with a Clopper-Pearson interval for a fixed number of labels; a campaign
            chooses that number as it goes, so read it as a description.
        train: share among training inputs; None if unknown.
    """

    labels: int
    share: float
    lower: float
    upper: float
    train: float | None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that a report shows; made by `gather`.

    Attributes:
        version: of this format.
        name: of the folder.
        folder: its path, as it was given.
        settings: of the run, as ``run.json`` has them.
        info: requirement, class names, bounds and versions; None before the campaign has begun.
        rounds: those that are finished.
        under_way: what is finished of the current round; empty if there is none.
        labels: bought so far, also in unfinished rounds.
        seconds: wall-clock time of all sessions until this report, by part, as `operant.campaign.progress.PARTS` names
            them, and in ``total``.
        stop: how the campaign ended; None while it is under way.
        priors: of each class; empty before there are labels.
        different_cases: number of different cases among those chosen in finished rounds.
        gallery: of operational failures.
        valid: whether it shows only failures that people called valid.
        sections: of the observers.
        triage: share of the campaign's cases that people call valid; None if nobody has judged any.
        compared: rounds whose new inputs were tested for drift.
        findings: where each comes from, and what it says.
        hashes: what was hashed, and its hash.
    """

    version: int = VERSION
    name: str
    folder: str = ""
    settings: dict[str, str]
    info: CampaignInfo | None
    rounds: tuple[Round, ...]
    under_way: str
    labels: int
    seconds: dict[str, float]
    stop: StopRecord | None = None
    priors: tuple[Prior, ...]
    different_cases: int
    gallery: Gallery
    valid: bool = False
    sections: tuple[Section, ...] = ()
    triage: ValidShare | None = None
    compared: tuple[int, ...]
    findings: tuple[tuple[str, Finding], ...]
    hashes: tuple[tuple[str, str], ...]

    @property
    def tests(self) -> tuple[MoveTest, ...]:
        """Whether each move makes cases like field inputs, in the present field; empty if nothing was judged."""
        return latest_tests(self.rounds)

    @property
    def lists_risks(self) -> bool:
        """Whether all rated field inputs are written to ``risks.csv``."""
        return any(section.name == RiskOfField.name and section.values.get("listed") for section in self.sections)

    @property
    def requirement(self) -> float:
        """The largest accepted pmi; NaN before the campaign has begun."""
        return self.info.requirement.pmi if self.info else math.nan

    @cached_property
    def latest(self) -> SequentialAssessment | None:
        """The last assessment of the present model in the present field; None if there is none."""
        for done in reversed(self.rounds):
            if done.assessment is not None or done.drift:
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
    def basis(self) -> str:
        """What the status is based on."""
        last = self.latest
        digits = 6 if last and at_most(last.upper) == percent(self.requirement) else 3
        required = f"at most {percent(self.requirement, digits)} is required"
        if not self.rounds:
            return "no round is finished yet."
        if last is None and self.rounds[-1].drift:
            return "the field has changed, and the model was not assessed in it."
        if last is None:
            return "the model has not been assessed yet."
        if self.met:
            return f"at most {at_most(last.upper, digits)} of field inputs are misclassified; {required}."
        return f"up to {at_most(last.upper, digits)} of field inputs could be misclassified; {required}."

    @property
    def verdict(self) -> str:
        """In one sentence."""
        return f"{self.status.capitalize()}: {self.basis}"

    @property
    def why(self) -> str:
        """Why the campaign ended, in a sentence; empty while it is under way."""
        return f"{self.stop.sentence}." if self.stop else ""

    @property
    def advice(self) -> str:
        """What would meet the requirement; empty if it is met, or nothing is known."""
        if self.stop and not self.stop.met:
            return self.stop.advice
        if self.latest is None or self.met:
            return ""
        return f"To meet it: {what_it_takes(self.latest, self.requirement)}."

    @property
    def judged_model(self) -> tuple[str, str]:
        """The weights that the verdict is about, and their hash, empty if unknown."""
        changed = [done.number for done in self.rounds if done.changed]
        name = f"weights after round {changed[-1]}" if changed else INITIAL_MODEL
        return name, dict(self.hashes).get(name, "")

    @property
    def cases(self) -> int:
        """Cases chosen to learn from; those chosen in several rounds are counted in each."""
        return self.rounds[-1].cases if self.rounds else 0

    @property
    def learned(self) -> int:
        """Cases that the present model has learned from; retrainings that were not kept do not count."""
        return max((done.cases for done in self.rounds if done.changed), default=0)

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
        return class_name(label, self.info.classes if self.info else ())


def latest_tests(rounds: Sequence[Round]) -> tuple[MoveTest, ...]:
    """The tests of the moves in the last round that searched, or would have; judges are fitted once per field."""
    return next((done.tests for done in reversed(rounds) if done.tests), ())


def describe_labels(assessed: SequentialAssessment) -> str:
    """Failures among labels, and how many of the labels are new.

    >>> describe_labels(SequentialAssessment(labels=150, failures=9, before=125, upper=0.1, confidence=0.95, reason=""))
    '9 of 150, 25 new'
    """
    return f"{assessed.failures} of {assessed.labels}{f', {assessed.bought} new' if assessed.before else ''}"


# Reports on disk


def load_evidence(path: str | Path) -> Evidence:
    """Read ``report.json``; other formats are rejected."""
    path = Path(path)
    try:
        page = json.loads(read_regular(path))
        found = page["value"].get("version") if page["type"] == Evidence.__name__ else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        found = None
    if found is None:
        raise ValueError(f"{path} is not a report; give the report.json that `operant report` wrote")
    if found != VERSION:
        raise ValueError(
            f"{path} is a report of format {found}, this version of Operant reads format {VERSION}; write it again "
            "with `operant report` and the campaign's folder"
        )
    return results.load(path, Evidence)
