"""Gathering what a report shows from a campaign's folder; files are only read."""

import json
import math
import re
import shlex
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from operant import results
from operant.assess import clopper_pearson_interval
from operant.campaign.build import CONDITIONS, ESTIMATED
from operant.campaign.observers import OBSERVERS, Observer, Section
from operant.campaign.observers.risk import RiskOfField, RiskOfRound
from operant.campaign.observers.risk_listing import RiskListing
from operant.campaign.progress import seconds_by_part
from operant.campaign.records import CampaignInfo, FieldIds, Round, StopRecord
from operant.execution.round_state import LabelBatch
from operant.execution.run_folder import CASES, MODEL, RUN, RunFolder, finished
from operant.files import read_regular
from operant.model import Finding
from operant.model.hashing import bytes_of, fingerprint, hash_of
from operant.profile import FittedConditions, load_profile
from operant.report.evidence import INITIAL_MODEL, Evidence, Prior, latest_tests
from operant.report.failures import LIMIT, Gallery, Key, RoundFailures, contents, different, gallery_of
from operant.suite import Suite
from operant.triage.sampling import ValidShare, valid_share
from operant.triage.verdicts import verdicts_for

PRIOR_CONFIDENCE = 0.95
T = TypeVar("T")
Findings = list[tuple[str, Finding]]


def gather(
    folder: str | Path, *, limit: int = LIMIT, valid: bool = False, observers: Sequence[Observer] = OBSERVERS
) -> Evidence:
    """What a campaign's folder contains, whether the campaign is finished or under way; files are only read.

    Arguments are those of `write_report`.
    """
    given, folder = str(folder), Path(folder)
    settings = _settings(folder)
    info = _read(folder / "info.json", CampaignInfo) if finished(folder / "info.json") else None
    rounds = tuple(_read(place / "round.json", Round) for place in _places(folder) if finished(place / "round.json"))
    if rounds and info is None:
        raise ValueError(f"{folder / 'info.json'} is missing; resume the campaign, which writes it again")
    labels = _labels(folder)
    findings: Findings = [("model", finding) for finding in (info.findings if info else ())]
    found = _failures(folder, info, rounds, findings)
    done = [part for part in found if part.round in {r.number for r in rounds}]
    findings += [("profile", finding) for finding in _profile_findings(folder)]
    findings += [("conditions", finding) for finding in _conditions_findings(folder)]
    findings += [("moves", finding) for test in latest_tests(rounds) for finding in test.findings]
    triage = _triage(folder, findings)
    if valid:
        _check_judged(folder, triage, findings)
    return Evidence(
        name=folder.resolve().name,
        folder=given,
        settings=settings,
        info=info,
        rounds=rounds,
        under_way=_under_way(folder),
        labels=sum(len(part) for part in labels.values()),
        seconds=_seconds(folder),
        stop=_stop(folder, rounds),
        priors=_priors(labels, rounds, info),
        different_cases=sum(int(part.chosen.sum()) for part in different(done)),
        gallery=_gallery(folder, found, info.bounds if info else None, limit=limit, valid=valid),
        valid=valid,
        sections=tuple(_sections(folder, observers, rounds, info)),
        triage=triage,
        compared=tuple(number_of(place) for place in _places(folder) if finished(place / "drift.json")),
        findings=tuple(findings),
        hashes=_hashes(folder, settings, info.weights if info else "", found),
    )


def _settings(folder: Path) -> dict[str, str]:
    file = folder / RUN
    if not file.is_file():
        raise ValueError(
            f"{folder} is not a campaign's folder: it has no {RUN}; give the folder that `operant run` wrote "
            "(default: operant-run)"
        )
    try:
        settings = {str(name): str(text) for name, text in json.loads(read_regular(file)).items()}
        for name in ("requirement", "confidence", "max_drop", "level", "mass_quantile"):
            float(settings[name])
    except KeyError as error:
        raise ValueError(
            f"{file} does not belong to a campaign; give the folder that `operant run` wrote (it has no {error})"
        ) from None
    except (OSError, ValueError, AttributeError, RecursionError):
        raise ValueError(f"{file} is damaged; run the campaign again with this folder to see what to do") from None
    return {name: _without_max_drop(text) if name == "retrainer" else text for name, text in settings.items()}


def _without_max_drop(retrainer: str) -> str:
    """A retrainer without its own max_drop: the campaign's applies.

    >>> _without_max_drop("OperationalFinetune(epochs=2, max_drop=0.01, steps=None)")
    'OperationalFinetune(epochs=2, steps=None)'
    """
    return re.sub(r", max_drop=[^,()]*|(?<=\()max_drop=[^,()]*(, )?", "", retrainer)


def _places(folder: Path) -> list[Path]:
    return sorted(place for place in folder.glob("round-*") if re.fullmatch(r"round-\d{3,}", place.name))


def number_of(place: Path) -> int:
    return int(place.name.removeprefix("round-"))


def _read(file: Path, kind: type[T]) -> T:
    try:
        return results.load(file, kind)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{error}. If another version of Operant wrote it, start the campaign again in another folder; if it is "
            "damaged, delete it and resume the campaign"
        ) from None


def _under_way(folder: Path) -> str:
    """What is finished of the first unfinished round."""
    for place in _places(folder):
        if not finished(place / "round.json"):
            steps = {
                "profile of the field": place / "profile.json",
                "shares of the search": place / "shares.json",
                "choice of cases": place / "cases",
                "retraining": place / "retraining.json",
            }
            done = [name for name, main in steps.items() if finished(main)]
            chunks, batches = (
                sum(finished(main) for main in sorted(place.glob(pattern)))
                for pattern in ("suite/chunk-*", "labels-*.json")
            )
            done += [f"{chunks} chunk{'s' * (chunks > 1)} of seeds"] * bool(chunks)
            done += [f"{batches} batch{'es' * (batches > 1)} of labels"] * bool(batches)
            return f"Round {number_of(place)} is under way; finished so far: {', '.join(done) or 'nothing'}."
    return ""


def _seconds(folder: Path) -> dict[str, float]:
    return seconds_by_part(RunFolder(folder).times())


def _stop(folder: Path, rounds: Sequence[Round]) -> StopRecord | None:
    """How the campaign ended; None if it did not, or if it was resumed since."""
    if not finished(folder / "stop.json") or _under_way(folder):
        return None
    stop = _read(folder / "stop.json", StopRecord)
    return stop if rounds and rounds[-1].number == stop.last else None


def _sections(
    folder: Path, observers: Sequence[Observer], rounds: Sequence[Round], info: CampaignInfo | None
) -> Iterator[Section]:
    """The sections of observers that have something to show."""
    for observer in observers:
        files = {number_of(place): place / f"{observer.name}.json" for place in _places(folder)}
        records = {number: _read(file, observer.record) for number, file in files.items() if finished(file)}
        section = observer.section(records, rounds=rounds, classes=info.classes if info else ()) if records else None
        if section is not None:
            yield section


def newest_risks(folder: str | Path) -> RiskListing | None:
    """All field inputs that the newest risk map rated; None if there is no map, or an earlier version recorded it."""
    files = [place / f"{RiskOfField.name}.json" for place in _places(Path(folder))]
    newest = max((file for file in files if finished(file)), default=None, key=lambda file: number_of(file.parent))
    return None if newest is None else _read(newest, RiskOfRound).listing


# Labels


def _labels(folder: Path) -> dict[int, Tensor]:
    """The labels bought in each round."""
    bought: dict[int, Tensor] = {}
    for place in _places(folder):
        files = [file for file in sorted(place.glob("labels-*.json")) if finished(file)]
        if files:
            bought[number_of(place)] = torch.cat([_read(file, LabelBatch).labels for file in files])
    return bought


def _priors(labels: dict[int, Tensor], rounds: Sequence[Round], info: CampaignInfo | None) -> tuple[Prior, ...]:
    """From labels of the present field."""
    since = max((done.number for done in rounds if done.drift), default=0)
    known = [part for number, part in labels.items() if number >= since]
    if not known:
        return ()
    counts = torch.bincount(torch.cat(known), minlength=len(info.classes) if info else 0).tolist()
    train = info.train if info else ()
    n, total = sum(counts), sum(train)
    return tuple(_prior(k, n, train[c] / total if c < len(train) and total else None) for c, k in enumerate(counts))


def _prior(k: int, n: int, train: float | None) -> Prior:
    interval = clopper_pearson_interval(k, n, confidence=PRIOR_CONFIDENCE)
    return Prior(labels=k, share=k / n, lower=interval.lower, upper=interval.upper, train=train)


# Verdicts


def _triage(folder: Path, findings: Findings) -> ValidShare | None:
    """The share of valid cases according to people; unreadable verdicts are added to the findings."""
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
        problem=f"verdicts, or the cases they are about, are left out of this report: {sentence}",
        advice="Resume the campaign, which writes its cases again, and judge those that lost their verdicts",
        severity="warning",
    )


def _check_judged(folder: Path, share: ValidShare | None, findings: Findings) -> None:
    command = f"`operant triage {shlex.quote(str(folder))}`"
    if not (folder / CASES).is_dir():
        raise ValueError(
            f"{folder} has no cases to judge yet: a campaign writes them when it ends; run {command} then, or write a "
            "report of all failures"
        )
    if share is None:
        unread = "".join(f" ({finding.problem})" for where, finding in findings if where == "verdicts")
        raise ValueError(f"nobody has judged the cases of {folder}; run {command} first{unread}")


def _gallery(
    folder: Path, found: list[RoundFailures], bounds: tuple[float, float] | None, *, limit: int, valid: bool
) -> Gallery:
    """The failures to show, the best ones first, and the total number of failures; each is shown and counted once."""
    once = different(found)
    shown = [_valid(part, folder) for part in once] if valid else once
    total, every = (sum(len(part.suite) for part in parts) for parts in (once, found))
    return replace(gallery_of(shown, bounds, limit=limit), total=total, found=every)


def _valid(part: RoundFailures, folder: Path) -> RoundFailures:
    """Only the failures that people called valid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # damage is reported as a finding
        kept = torch.as_tensor(verdicts_for(part.suite, folder / CASES) == "valid")
    return part[kept]


# Suites


def operational_failures(folder: str | Path) -> tuple[list[RoundFailures], Findings]:
    """The operational failures of each round of a campaign, each once, and findings about damaged files."""
    place, findings = Path(folder), Findings()
    _settings(place)  # an error if the folder is not a campaign's
    info = _read(place / "info.json", CampaignInfo) if finished(place / "info.json") else None
    rounds = [_read(p / "round.json", Round) for p in _places(place) if finished(p / "round.json")]
    return different(_failures(place, info, rounds, findings)), findings


def _failures(
    folder: Path, info: CampaignInfo | None, rounds: Sequence[Round], findings: Findings
) -> list[RoundFailures]:
    """The operational failures of each round; damaged files are added to the findings.

    A case was learned from if its own or a later round changed the model: retraining learns from all cases so far.
    """
    if info is None:
        return []
    found, kept = [], max((done.number for done in rounds if done.changed), default=-1)
    for place in _places(folder):
        parts = list(_suites(sorted(place.glob("suite/chunk-*")), findings))
        suite = Suite.concat(parts) if parts else None
        if suite is None or len(suite.failures()) == 0:
            continue
        good = suite.operational(info.requirement.level, info.requirement.mass_quantile)
        cases = list(_suites([place / "cases"], findings))
        known, names = _risks(cases[0]) if cases else {}, contents(good)
        chosen = torch.tensor([name in known for name in names], dtype=torch.bool)
        learned = chosen & (number_of(place) <= kept)
        rated = good.with_columns(risk=torch.tensor([known.get(name, math.nan) for name in names], dtype=torch.float64))
        found.append(RoundFailures(round=number_of(place), suite=rated, chosen=chosen, learned=learned))
    return found


def _risks(cases: Suite) -> dict[Key, float]:
    """The risk of each case that was chosen to learn from, NaN without a risk map."""
    column = cases.columns.get("risk")
    values = column.tolist() if isinstance(column, Tensor) else [math.nan] * len(cases)
    return dict(zip(contents(cases), values, strict=True))


def _suites(places: list[Path], findings: Findings) -> Iterator[Suite]:
    for place in places:
        if not finished(place):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # damage is reported as a finding
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
        advice="Delete it and resume the campaign, which computes it again",
        severity="error",
    )


# Profile


def _profile_findings(folder: Path) -> tuple[Finding, ...]:
    """What the newest profile found wrong with itself."""
    files = [place / "profile.json" for place in _places(folder) if finished(place / "profile.json")]
    if not files:
        return ()
    try:
        return load_profile(files[-1]).findings
    except (ValueError, OSError) as error:
        raise ValueError(f"{error}. Delete {files[-1]} and resume the campaign") from None


def _conditions_findings(folder: Path) -> tuple[Finding, ...]:
    """Reasons to doubt the estimated conditions, if some were estimated."""
    file = folder / CONDITIONS / f"{ESTIMATED}.json"
    return _read(file, FittedConditions).findings if finished(file) else ()


# Hashes


def _hashes(
    folder: Path, settings: dict[str, str], initial: str, found: list[RoundFailures]
) -> tuple[tuple[str, str], ...]:
    named = {"train": "training data", "clean": "clean data"}
    hashes = [(INITIAL_MODEL, initial)] if initial else []  # as a file, like those below: equal weights, equal hashes
    hashes += [(text, settings[name]) for name, text in named.items() if name in settings]
    for place in _places(folder):
        weights, seen = place / "weights.safetensors", place / "field.json"
        if number_of(place) == 0 and finished(seen):
            hashes.append(("field inputs of round 0", hash_of(bytes_of(_read(seen, FieldIds).ids))))
        if finished(weights):
            hashes.append((f"weights after round {number_of(place)}", fingerprint(weights)))
    if finished(weights := folder / f"{MODEL}.safetensors"):
        hashes.append((weights.name, fingerprint(weights)))
    hashes += [(f"operational failures of round {part.round}", part.suite.digest()) for part in found]
    return tuple(hashes)
