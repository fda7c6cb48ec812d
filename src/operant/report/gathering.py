"""Gathering what a report shows from a campaign's folder; only files are read."""

from __future__ import annotations

import json
import re
import shlex
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from operant import results
from operant.assess import clopper_pearson_interval
from operant.campaign.observers.defences import DefenceTrial, DefenceTrials
from operant.campaign.progress import seconds_of
from operant.campaign.records import About, Certainty, FieldIds, FieldMap, Insight, StopRecord, flat_codes
from operant.campaign.result import Round
from operant.defend.evaluate import interval
from operant.execution.rounds import LabelBatch
from operant.execution.run_folder import CASES, MODEL, RUN, RunFolder, finished
from operant.measure.patterns import DEFAULT, PATTERNS, patterns
from operant.model.doctor import Finding
from operant.model.hashing import bytes_of, fingerprint, hash_of
from operant.profile import Profile, load_profile
from operant.report.evidence import Certainties, Change, Counts, Defences, Evidence, Map, Points, Prior, Region, Stopped
from operant.report.failures import LIMIT, Found, Gallery, gallery_of
from operant.suite import Suite
from operant.triage.sampling import ValidShare, valid_share
from operant.triage.verdicts import verdicts_for

SHOWN = 600  # points of a kind on the map
PRIOR_CONFIDENCE = CONFIDENCE = 0.95
T = TypeVar("T")


def gather(folder: str | Path, *, limit: int = LIMIT, valid: bool = False) -> Evidence:
    """What a campaign's folder tells, be the campaign finished or under way; only files are read.

    Args:
        folder: that `Campaign` or ``operant run`` wrote.
        limit: failures shown at most.
        valid: show only those that people called valid with ``operant triage``; refused while nobody has judged any.
    """
    given, folder = str(folder), Path(folder)
    settings = _settings(folder)
    rounds = tuple(_read(place / "round.json", Round) for place in _places(folder) if finished(place / "round.json"))
    about = _read(folder / "about.json", About) if finished(folder / "about.json") else None
    labels = _labels(folder)
    findings: list[tuple[str, Finding]] = [("model", f) for f in (about.findings if about else ())]
    found = _found(folder, settings, rounds, findings)
    profile = _profile(folder, findings)
    triage = _triage(folder, findings)
    if valid:
        _check_judged(folder, triage, findings)
    return Evidence(
        name=folder.resolve().name,
        folder=given,
        settings=settings,
        requirement=float(settings["requirement"]),
        confidence=float(settings["confidence"]),
        max_drop=float(settings["max_drop"]),
        rounds=rounds,
        under_way=_under_way(folder),
        labels=sum(len(part) for part in labels.values()),
        seconds=_seconds(folder),
        about=about,
        ended=_ended(folder, rounds),
        priors=_priors(labels, rounds, about),
        map=_map(folder, profile, found) if profile else None,
        changes=_changes(folder),
        gallery=_gallery(folder, found, about.bounds if about else None, limit=limit, valid=valid),
        valid=valid,
        certainties=_certainties(folder),
        defences=_defences(folder),
        triage=triage,
        compared=tuple(number_of(place) for place in _places(folder) if finished(place / "drift.json")),
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
        if not finished(place / "round.json"):
            steps = {
                "profile of the field": place / "profile.json",
                "where seeds come from": place / "shares.json",
                "cases": place / "cases",
                "retraining": place / "retraining.json",
            }
            done = [name for name, main in steps.items() if finished(main)]
            chunks, batches = (
                sum(finished(main) for main in sorted(place.glob(pattern)))
                for pattern in ("suite/chunk-*", "labels-*.json")
            )
            done += [f"{chunks} chunks of seeds"] * bool(chunks) + [f"{batches} batches of labels"] * bool(batches)
            return f"Round {number_of(place)} is under way; finished of it: {', '.join(done) or 'nothing yet'}."
    return ""


def _seconds(folder: Path) -> dict[str, float]:
    times = RunFolder(folder).times()
    rounds = sum(seconds for name, seconds in times.items() if name.endswith("/round.json"))
    return seconds_of(times) | ({"round": rounds} if rounds else {})


def _ended(folder: Path, rounds: tuple[Round, ...]) -> StopRecord | None:
    """How the campaign ended; None if it did not, or if it has gone on since, so that there is more than was told."""
    if not finished(folder / "ended.json") or _under_way(folder):
        return None
    ended = _read(folder / "ended.json", StopRecord)
    return ended if rounds and rounds[-1].number == ended.last else None


# Labels


def _labels(folder: Path) -> dict[int, Tensor]:
    """The labels bought in each round."""
    bought: dict[int, Tensor] = {}
    for place in _places(folder):
        files = [file for file in sorted(place.glob("labels-*.json")) if finished(file)]
        if files:
            bought[number_of(place)] = torch.cat([_read(file, LabelBatch).labels for file in files])
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
    return tuple(_change(number, _read(file, Insight)) for number, file in kept if finished(file))


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


def _certainties(folder: Path) -> Certainties | None:
    """Of all rounds together; where some know VRO, of those."""
    kept = [_read(file, Certainty) for place in _places(folder) if finished(file := place / "patterns.json")]
    told = [part for part in kept if not part.reason] or kept
    if not told:
        return None
    pcs, vro = (torch.cat([getattr(part, name).double() for part in told]) for name in ("pcs", "vro"))
    which = patterns(pcs, vro).tolist() if len(vro) else []
    return Certainties(
        failures=sum(part.failures for part in told),
        looked_at=len(pcs),
        decided=int((pcs > DEFAULT.high_pcs).sum()),
        undecided=int((pcs < DEFAULT.low_pcs).sum()),
        patterns={name: which.count(name) for name in (*PATTERNS, "")} if which else {},
        points=_points([torch.stack([pcs, vro], 1)]) if which else (),
        passes=told[-1].passes,
        reason=told[-1].reason,
    )


def _defences(folder: Path) -> Defences | None:
    """Of all rounds together; defences that none of them could try are left out."""
    kept = [_read(file, DefenceTrials) for place in _places(folder) if finished(file := place / "defences.json")]
    if not kept:
        return None
    names = dict.fromkeys(guarded.name for part in kept for guarded in part.tried)
    confidence = 1 - (1 - CONFIDENCE) / max(len(names), 1)  # for the best of several
    tried = [_stopped([g for part in kept for g in part.tried if g.name == name], confidence) for name in names]
    return Defences(
        failures=sum(part.failures for part in kept),
        level=kept[-1].level,
        tried=tuple(sorted(tried, key=lambda stopped: (-stopped.share, stopped.wrong))),
        reason="" if tried else kept[-1].reason,
    )


def _stopped(parts: list[DefenceTrial], confidence: float) -> Stopped:
    stopped, failures, wrong, clean = (
        sum(getattr(part, name) for part in parts) for name in ("stopped", "failures", "wrong", "clean")
    )
    lower, upper = interval(stopped, failures, confidence, trials=sum(part.trials for part in parts))
    most_wrong = interval(wrong, clean, confidence, trials=max(part.clean for part in parts))[1]
    counts = {"stopped": stopped, "failures": failures, "wrong": wrong, "clean": clean}
    return Stopped(name=parts[0].name, lower=lower, upper=upper, most_wrong=most_wrong, **counts)


# Verdicts


def _triage(folder: Path, findings: list[tuple[str, Finding]]) -> ValidShare | None:
    """What people say of the campaign's cases, if they do; what cannot be read of it is told in ``findings``."""
    if not (folder / CASES).is_dir():
        return None
    share, unread = None, list[str]()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            share = valid_share(folder / CASES)
        except ValueError as error:
            unread.append(str(error))
    unread += [str(warning.message) for warning in warned]
    findings.extend(("verdicts", _unread(sentence)) for sentence in unread)
    return share


def _unread(sentence: str) -> Finding:
    return Finding(
        name="damaged file",
        problem=f"verdicts, or cases that they are about, are left out of this report: {sentence}",
        advice="Go on with the campaign, which writes its cases anew, and have those judged that lost their verdicts",
        severity="warning",
    )


def _check_judged(folder: Path, share: ValidShare | None, findings: list[tuple[str, Finding]]) -> None:
    command = f"`operant triage {shlex.quote(str(folder))}`"
    if not (folder / CASES).is_dir():
        raise ValueError(
            f"{folder} has no cases to judge yet, so nobody can have called any valid: a campaign writes them when it "
            f"ends; then run {command} first, or write a report of all failures"
        )
    if share is None:
        unread = "".join(f" ({finding.problem})" for where, finding in findings if where == "verdicts")
        raise ValueError(f"nobody has judged the cases of {folder}; run {command} first{unread}")


def _gallery(
    folder: Path, found: list[Found], bounds: tuple[float, float] | None, *, limit: int, valid: bool
) -> Gallery:
    """The failures shown: the best, or the best of those that people called valid; how many there are in all."""
    shown = [_valid(part, folder) for part in found] if valid else found
    return replace(gallery_of(shown, bounds, limit=limit), total=sum(len(part.suite) for part in found))


def _valid(part: Found, folder: Path) -> Found:
    """Those that people called valid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they would say is a finding
        kept = torch.as_tensor(verdicts_for(part.suite, folder / CASES) == "valid")
    return Found(round=part.round, suite=part.suite[kept], learned=part.learned[kept])


# Suites


def _found(
    folder: Path, settings: dict[str, str], rounds: tuple[Round, ...], findings: list[tuple[str, Finding]]
) -> list[Found]:
    """The operational failures of each round; damaged files are told in ``findings``.

    A case is learned from where its own or a later round changed the model: retrainings learn from all cases so far.
    """
    found, kept = [], max((done.number for done in rounds if done.changed), default=-1)
    for place in _places(folder):
        parts = list(_suites(sorted(place.glob("suite/chunk-*")), findings))
        suite = Suite.concat(parts) if parts else None
        if suite is None or len(suite.failures()) == 0:
            continue
        good = suite.operational(float(settings["level"]), float(settings["mass_quantile"]))
        cases = list(_suites([place / "cases"], findings)) if number_of(place) <= kept else []
        known = set(_contents(cases[0])) if cases else set()
        learned = torch.tensor([content in known for content in _contents(good)], dtype=torch.bool)
        found.append(Found(round=number_of(place), suite=good, learned=learned))
    return found


def _suites(places: list[Path], findings: list[tuple[str, Finding]]) -> Iterator[Suite]:
    for place in places:
        if not finished(place):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what they would say is a finding
                suite = Suite.open(place)
        except ValueError as error:
            findings.append(("folder", _damaged(str(error))))
            continue
        findings.extend(("folder", _damaged(sentence)) for sentence in suite.rejected)
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
    files = [place / "profile.json" for place in _places(folder) if finished(place / "profile.json")]
    if not files:
        return None
    try:
        profile = load_profile(files[-1])
    except (ValueError, OSError) as error:
        raise ValueError(f"{error}. Delete {files[-1]} and go on with the campaign") from None
    findings.extend(("profile", finding) for finding in profile.findings)
    return profile


def _map(folder: Path, profile: Profile, found: list[Found]) -> Map:
    kept = [place / "map.json" for place in _places(folder) if finished(place / "map.json")]
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
        if number_of(place) == 0 and finished(seen):
            told.append(("field inputs of round 0", hash_of(bytes_of(_read(seen, FieldIds).ids))))
        if finished(weights):
            told.append((f"weights after round {number_of(place)}", fingerprint(weights)))
    if finished(weights := folder / f"{MODEL}.safetensors"):
        told.append((weights.name, fingerprint(weights)))
    told += [(f"operational failures of round {part.round}", part.suite.digest()) for part in found]
    return tuple(told)
