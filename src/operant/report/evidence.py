"""Everything that a report of a campaign shows, gathered from the campaign's folder."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from operant import results
from operant._hashing import bytes_of, fingerprint, hash_of
from operant.assess import clopper_pearson_interval
from operant.campaign.assessment import Assessed, what_it_takes
from operant.campaign.rounds import Round
from operant.campaign.stored import About, Ended, FieldMap, Insight, flat_codes
from operant.doctor import Finding
from operant.profile import Profile, load_profile
from operant.report.failures import LIMIT, Found, Gallery, gallery_of
from operant.suite import Suite

VERSION = 1
RUN, TIMING = "run.json", "timing.jsonl"
SHOWN = 600  # points of a kind on the map
PRIOR_CONFIDENCE = 0.95
KINDS = {  # of work, by the names of steps
    "round": "rounds",
    "profile": "learning the field",
    "naturalness": "learning the field",
    "drift": "learning the field",
    "suite": "searching",
    "retraining": "retraining",
    "labels": "labelling",
}
T = TypeVar("T")
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
class Evidence:
    """Everything that a report shows; made by `gather`.

    Attributes:
        version: of this format.
        name: of the folder.
        settings: what the run is made of, as ``run.json`` has it.
        requirement, confidence, max_drop: what was asked for.
        rounds: those that are finished.
        under_way: what is done of the round that is not finished; empty if there is none.
        labels: bought so far, in unfinished rounds too.
        seconds: how long each kind of work took, "rounds" all of theirs; empty if that was not kept.
        about: names, bounds, versions; None if that was not kept.
        ended: why it ended, and its budget; None while it is under way.
        priors: of each class; empty before there are labels.
        map: None before there is a profile.
        changes: of rounds that kept them.
        gallery: of operational failures.
        compared: rounds whose new inputs were tested for drift.
        findings: where each comes from, and what it says.
        hashes: what, and its hash.
    """

    version: int = VERSION
    name: str
    settings: dict[str, str]
    requirement: float
    confidence: float
    max_drop: float
    rounds: tuple[Round, ...]
    under_way: str
    labels: int
    seconds: dict[str, float]
    about: About | None
    ended: Ended | None = None
    priors: tuple[Prior, ...]
    map: Map | None
    changes: tuple[Change, ...]
    gallery: Gallery
    compared: tuple[int, ...]
    findings: tuple[tuple[str, Finding], ...]
    hashes: tuple[tuple[str, str], ...]

    @cached_property
    def latest(self) -> Assessed | None:
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
        digits = 4 if last and bound(last.upper) == percent(self.requirement) else 1
        asked = f"at most {percent(self.requirement, digits)} may be"
        if not self.rounds:
            return "no round is finished yet."
        if last is None and self.rounds[-1].drifted:
            return "the field has changed, and the model was not assessed in it."
        if last is None:
            return "the model was not assessed yet."
        if self.met:
            return f"at most {bound(last.upper, digits)} of inputs from use are misclassified; {asked}."
        return f"up to {bound(last.upper, digits)} of inputs from use could be misclassified; {asked}."

    @property
    def verdict(self) -> str:
        """In one sentence."""
        return f"{self.status.capitalize()}: {self.told}"

    @property
    def advice(self) -> str:
        """Why it ended, or what it would take to meet the requirement; empty if it is met, or nothing is known."""
        if self.ended and not self.ended.met:
            return self.ended.reason
        if self.latest is None or self.met:
            return ""
        return f"To meet it: {what_it_takes(self.latest, self.requirement)}."

    @property
    def cases(self) -> int:
        return self.rounds[-1].cases if self.rounds else 0

    @property
    def time(self) -> float:
        """Seconds of everything: rounds, and what is learned of the field before them."""
        return self.seconds.get("rounds", 0.0) + self.seconds.get("learning the field", 0.0)

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


def percent(share: float, digits: int = 1) -> str:
    r"""A share for people; small ones with a digit more.

    >>> percent(0.1234), percent(0.06), percent(0.00123)
    ('12.3\xa0%', '6\xa0%', '0.12\xa0%')
    """
    if math.isnan(share):
        return "\u2013"
    number = f"{100 * share:.{digits + (0 < abs(share) < 0.00995)}f}"
    return f"{number.rstrip('0').rstrip('.')}\u00a0%"


def bound(share: float, digits: int = 1) -> str:
    r"""A share that another is at most, rounded up.

    >>> bound(0.4111), bound(0.06), bound(0.00123)
    ('41.2\xa0%', '6\xa0%', '0.13\xa0%')
    """
    scale = 10 ** (2 + digits + (0 < share < 0.00995))
    return percent(math.ceil(round(scale * share, 6)) / scale, digits)


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


# Gathering


def gather(folder: str | Path, *, limit: int = LIMIT) -> Evidence:
    """What a campaign's folder tells, be the campaign finished or under way; only files are read.

    Args:
        folder: that `Campaign` or ``operant run`` wrote.
        limit: failures shown at most.
    """
    folder = Path(folder)
    settings = _settings(folder)
    rounds = tuple(_read(place / "round.json", Round) for place in _places(folder) if _finished(place / "round.json"))
    about = _read(folder / "about.json", About) if _finished(folder / "about.json") else None
    labels = _labels(folder)
    findings: list[tuple[str, Finding]] = [("model", f) for f in (about.findings if about else ())]
    found = _found(folder, settings, findings)
    profile = _profile(folder, findings)
    return Evidence(
        name=folder.resolve().name,
        settings=settings,
        requirement=float(settings["requirement"]),
        confidence=float(settings["confidence"]),
        max_drop=float(settings["max_drop"]),
        rounds=rounds,
        under_way=_under_way(folder),
        labels=sum(len(part) for part in labels.values()),
        seconds=_seconds(folder),
        about=about,
        ended=_read(folder / "ended.json", Ended) if _finished(folder / "ended.json") else None,
        priors=_priors(labels, rounds, about),
        map=_map(folder, profile, found) if profile else None,
        changes=_changes(folder),
        gallery=gallery_of(found, about.bounds if about else None, limit=limit),
        compared=tuple(number_of(place) for place in _places(folder) if _finished(place / "drift.json")),
        findings=tuple(findings),
        hashes=_hashes(folder, settings, found),
    )


def _settings(folder: Path) -> dict[str, str]:
    file = folder / RUN
    if not file.is_file():
        raise ValueError(
            f"{folder} is not a campaign's folder: it has no {RUN}; give the folder that `operant run` wrote, "
            "operant-run unless you named another"
        )
    try:
        settings = {str(name): str(text) for name, text in json.loads(file.read_bytes()).items()}
        for name in ("requirement", "confidence", "max_drop", "level", "mass_quantile"):
            float(settings[name])
    except KeyError as error:
        raise ValueError(
            f"{file} tells of no {error}: it is not of a campaign, or of one that an older version of Operant began; "
            "begin the campaign anew in another folder"
        ) from None
    except (OSError, ValueError, AttributeError, RecursionError):
        raise ValueError(f"{file} is damaged; run the campaign again with this folder, which says what to do") from None
    return settings


def _places(folder: Path) -> list[Path]:
    return sorted(place for place in folder.glob("round-*") if re.fullmatch(r"round-\d{3,}", place.name))


def number_of(place: Path) -> int:
    return int(place.name.removeprefix("round-"))


def _finished(main: Path) -> bool:
    """Whether a part of the run is there with the seal that says that all of it is."""
    return main.exists() and main.with_name(f".{main.name}.seal").exists()


def _read(file: Path, kind: type[T]) -> T:
    try:
        return results.load(file, kind)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{error}. If an older version of Operant wrote it, begin the campaign anew in another folder; if it is "
            "damaged, delete it and go on with the campaign"
        ) from None


def _under_way(folder: Path) -> str:
    """What is finished of the first round that is not."""
    for place in _places(folder):
        if not _finished(place / "round.json"):
            steps = {
                "profile of the field": place / "profile.json",
                "where seeds come from": place / "shares.json",
                "cases": place / "cases",
                "retraining": place / "retraining.json",
            }
            done = [name for name, main in steps.items() if _finished(main)]
            chunks, batches = (
                sum(_finished(main) for main in sorted(place.glob(pattern)))
                for pattern in ("suite/chunk-*", "labels-*.json")
            )
            done += [f"{chunks} chunks of seeds"] * bool(chunks) + [f"{batches} batches of labels"] * bool(batches)
            return f"Round {number_of(place)} is under way; finished of it: {', '.join(done) or 'nothing yet'}."
    return ""


def _seconds(folder: Path) -> dict[str, float]:
    """Sums of what the folder tells of time, by kind of work; a line that was cut off is left out."""
    total: dict[str, float] = {}
    with suppress(OSError):
        for line in (folder / TIMING).read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, TypeError, AttributeError):
                for name, seconds in json.loads(line).items():
                    kind = _kind(str(name))
                    total[kind] = total.get(kind, 0.0) + float(seconds)
    return total


def _kind(step: str) -> str:
    """The kind of work of a step; a round is all of its own steps together."""
    word = re.sub(r"(-\d+)?(\.json)?$", "", step.split("/")[-1])
    return KINDS.get(word, "other")


# Labels


@dataclass(frozen=True, kw_only=True)
class Known:
    """Labels of some inputs, as a campaign writes them."""

    ids: Tensor
    labels: Tensor


def _labels(folder: Path) -> dict[int, Tensor]:
    """The labels bought in each round."""
    bought: dict[int, Tensor] = {}
    for place in _places(folder):
        files = [file for file in sorted(place.glob("labels-*.json")) if _finished(file)]
        if files:
            bought[number_of(place)] = torch.cat([_read(file, Known).labels for file in files])
    return bought


def _priors(labels: dict[int, Tensor], rounds: tuple[Round, ...], about: About | None) -> tuple[Prior, ...]:
    """By labels of the field as it is now."""
    since = max((done.number for done in rounds if done.drifted), default=0)
    known = [part for number, part in labels.items() if number >= since]
    if not known:
        return ()
    counts = torch.bincount(torch.cat(known), minlength=len(about.classes) if about else 0).tolist()
    train = about.train if about else ()
    n, total = sum(counts), sum(train)
    return tuple(_prior(k, n, train[c] / total if c < len(train) and total else None) for c, k in enumerate(counts))


def _prior(k: int, n: int, train: float | None) -> Prior:
    interval = clopper_pearson_interval(k, n, confidence=PRIOR_CONFIDENCE)
    return Prior(labels=k, share=k / n, lower=interval.lower, upper=interval.upper, train=train)


def _changes(folder: Path) -> tuple[Change, ...]:
    kept = ((number_of(place), place / "insight.json") for place in _places(folder))
    return tuple(_change(number, _read(file, Insight)) for number, file in kept if _finished(file))


def _change(number: int, insight: Insight) -> Change:
    def counts(of: Tensor) -> Counts:
        return tuple(tuple(row) for row in of.tolist())

    cells = zip(
        insight.cell_mass.tolist(),
        insight.cell_labels.tolist(),
        insight.cell_failures.tolist(),
        insight.cell_centres.tolist(),
        strict=True,
    )
    return Change(
        round=number,
        clean=counts(insight.clean),
        before=counts(insight.before),
        after=counts(insight.after),
        fixed=insight.fixed,
        broken=insight.broken,
        regions=tuple(Region(mass=m, labels=n, failures=k, centre=(c[0], c[1])) for m, n, k, c in cells),
    )


# Suites


def _found(folder: Path, settings: dict[str, str], findings: list[tuple[str, Finding]]) -> list[Found]:
    """The operational failures of each round; damaged files are told in ``findings``."""
    found = []
    for place in _places(folder):
        parts = list(_suites(sorted(place.glob("suite/chunk-*")), findings))
        suite = Suite.concat(parts) if parts else None
        if suite is None or len(suite.failures()) == 0:
            continue
        good = suite.operational(float(settings["level"]), float(settings["mass_quantile"]))
        cases = list(_suites([place / "cases"], findings))
        known = set(_contents(cases[0])) if cases else set()
        learned = torch.tensor([content in known for content in _contents(good)], dtype=torch.bool)
        found.append(Found(round=number_of(place), suite=good, learned=learned))
    return found


def _suites(places: list[Path], findings: list[tuple[str, Finding]]) -> Iterator[Suite]:
    for place in places:
        if not _finished(place):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what they would say is a finding
                suite = Suite.open(place)
        except ValueError as error:
            findings.append(("folder", _damaged(str(error))))
            continue
        findings.extend(("folder", _damaged(sentence)) for sentence in suite.refused)
        yield suite


def _damaged(sentence: str) -> Finding:
    return Finding(
        name="damaged file",
        problem=f"cases are left out of this report: {sentence}",
        advice="Delete it and go on with the campaign, which works it out again",
        severity="error",
    )


def _contents(suite: Suite) -> Iterator[tuple[int, bytes]]:
    """What a case is known by in another suite."""
    for seed, x in zip(suite.seed.tolist(), suite.x, strict=True):
        yield seed, bytes_of(x)


# Profile


def _profile(folder: Path, findings: list[tuple[str, Finding]]) -> Profile | None:
    """The newest profile."""
    files = [place / "profile.json" for place in _places(folder) if _finished(place / "profile.json")]
    if not files:
        return None
    try:
        profile = load_profile(files[-1])
    except (ValueError, OSError) as error:
        raise ValueError(f"{error}. Delete {files[-1]} and go on with the campaign") from None
    findings.extend(("profile", finding) for finding in profile.findings)
    return profile


def _map(folder: Path, profile: Profile, found: list[Found]) -> Map:
    kept = [place / "map.json" for place in _places(folder) if _finished(place / "map.json")]
    seeds = [flat_codes(profile.encode(part.suite.seeds.x)) for part in found]
    failing = [flat_codes(profile.encode(part.suite.x)) for part in found if len(part.suite)]
    train = [_read(kept[-1], FieldMap).train] if kept else seeds
    return Map(
        field=_points([flat_codes(profile.codes)]),
        train=_points(train),
        sampled=bool(kept),
        failures=_points(failing),
    )


def _points(parts: list[Tensor]) -> Points:
    """At most `SHOWN` of them, evenly from all."""
    if not parts:
        return ()
    every = torch.cat([part.double() for part in parts])
    some = every[torch.linspace(0, len(every) - 1, min(SHOWN, len(every))).round().long()]
    return tuple((round(x, 3), round(y, 3)) for x, y in some.tolist())


# Hashes


def _hashes(folder: Path, settings: dict[str, str], found: list[Found]) -> tuple[tuple[str, str], ...]:
    named = {"model": "model as it came", "train": "training data", "clean": "clean data"}
    told = [(text, settings[name]) for name, text in named.items() if name in settings]
    for place in _places(folder):
        weights, seen = place / "weights.safetensors", place / "field.json"
        if number_of(place) == 0 and _finished(seen):
            told.append(("field inputs of round 0", hash_of(bytes_of(_read(seen, Seen).ids))))
        if _finished(weights):
            told.append((f"weights after round {number_of(place)}", fingerprint(weights)))
    told += [(f"operational failures of round {part.round}", part.suite.digest()) for part in found]
    return tuple(told)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Ids of the field inputs that were there when a round began, as a campaign writes them."""

    ids: Tensor
