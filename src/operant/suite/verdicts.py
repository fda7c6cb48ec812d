"""What people said about a suite's cases: logs that are only ever added to, and the columns that they make.

A log is a file ``verdicts-000000.jsonl`` in the suite's folder; or in a folder ``NAME.verdicts`` beside it, where the
suite itself must stay as it is. Each line is a checksum and a JSON value: first what the log belongs to, then one
verdict a line. Whoever adds to logs begins one of their own, so none is ever written to by two. A last line that a kill
has cut off was never acknowledged, and does not count.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from operant.suite.shards import Rows, Strings

COLUMNS = ("verdict", "verdict_by", "verdict_at", "tags")
FORMAT = 1
CHUNK = 1024  # rows read at a time
LATEST = 1e11  # seconds since 1970; no time that people can have said something at is later
VERDICTS = ("valid", "invalid", "unsure")
DISPUTED = "disputed"  # what a case is of which somebody says valid and somebody else invalid
Part = tuple[str, str, int]  # of a suite: file, digest, rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """What one person said of one case, and when; the newest by a person is what counts.

    Attributes:
        row: of the suite.
        by: who.
        at: seconds since 1970.
        verdict: ``"valid"``, ``"invalid"``, ``"unsure"``, or ``""`` where nothing is said or all is taken back.
        tags: words for what changed.
        undo: whether this puts back what the person said before.
    """

    row: int
    by: str
    at: float
    verdict: str = ""
    tags: tuple[str, ...] = ()
    undo: bool = False


@dataclass(frozen=True, kw_only=True)
class KnownCases:
    """The rows of a suite as logs know them.

    Attributes:
        parts: of the suite, in order.
        keys: tells the rows of a key, see `key_of`; asked only about cases whose file is not among the parts.
    """

    parts: Sequence[Part]
    keys: Callable[[str], list[int]]


def beside(suite: Path) -> Path:
    """The folder of logs for a suite that must stay as it is."""
    whole = suite.resolve()
    return whole.parent / f"{whole.name}.verdicts"


def key_of(seed: int, x: Tensor) -> str:
    """What a case is known by wherever it is kept: a hash of its seed's id and its content."""
    content = x.detach().cpu().contiguous().numpy().tobytes()
    return hashlib.blake2b(seed.to_bytes(8, "little", signed=True) + content, digest_size=8).hexdigest()


def keys_of(rows: Rows, seed: Tensor) -> Callable[[str], list[int]]:
    """The rows that have a key; all keys are worked out when the first is asked for."""
    found: dict[str, list[int]] = {}

    def look_up(key: str) -> list[int]:
        if not found:
            for some in torch.arange(len(seed)).split(CHUNK):
                for row, identity, x in zip(some.tolist(), seed[some].tolist(), rows.take(some), strict=True):
                    found.setdefault(key_of(identity, x), []).append(row)
        return found.get(key, [])

    return look_up


def line_of(value: Any) -> bytes:
    """A value as a line of a log."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return _checksum(text) + b" " + text + b"\n"


def header_of(parts: Sequence[Part], plan: dict[str, Any]) -> dict[str, Any]:
    """The first line of a log."""
    return {"operant": "suite verdicts", "format": FORMAT, "plan": plan, "shards": [list(part) for part in parts]}


class Reader:
    """Reads the logs of a suite, and reads on when they have grown.

    Attributes:
        plan: which sample is to be judged, by the newest log that tells.
        begun: the same by the first log; None if it does not tell.
        refused: damaged lines and files that were left out, a sentence each.
    """

    def __init__(self, suite: Path) -> None:
        self.suite = suite
        self.plan: dict[str, Any] | None = None
        self.begun: dict[str, Any] | None = None
        self.refused: list[str] = []
        self._logs: dict[Path, _Log] = {}

    def news(self, known: KnownCases) -> list[Judgement]:
        """What was said since this was last asked, oldest first."""
        logs = [self._logs.setdefault(file, _Log(file)) for file in log_files(self.suite)]
        fresh = [judgement for log in logs for judgement in log.news(known, self.refused)]
        plans = [log.plan for log in logs if not log.empty]
        self.begun = plans[0] if plans else None
        self.plan = next((plan for plan in reversed(plans) if plan is not None), None)
        return sorted(fresh, key=lambda judgement: judgement.at)

    def skip(self, file: Path, plan: dict[str, Any]) -> None:
        """Leave a file out but for its plan, as its writer knows what is in it."""
        self._logs[file] = log = _Log(file, refused=True)
        log.plan = plan


def log_files(suite: Path) -> list[Path]:
    """The logs of a suite, inside its folder and beside it, in the order of their numbers."""
    places = [place for place in (suite, beside(suite)) if place.is_dir()]
    files = [f for place in places for f in place.iterdir() if re.fullmatch(r"verdicts-\d{6,}\.jsonl", f.name)]
    return sorted(files, key=lambda file: (len(file.name), file.name))


class _Log:
    """One log, as far as it has been read."""

    def __init__(self, file: Path, *, refused: bool = False) -> None:
        self.file, self.refused = file, refused
        self.plan: dict[str, Any] | None = None
        self._spans: _Spans | None = None
        self._place, self._line = 0, 0

    @property
    def empty(self) -> bool:
        """Whether nothing whole is in there, not even what it belongs to."""
        return self._line == 0 and self.plan is None

    def news(self, known: KnownCases, refused: list[str]) -> Iterator[Judgement]:
        for value in self._values(refused):
            if self._spans is None:
                self._begin(value, known, refused)
            if self.refused:
                return
            if isinstance(value, dict):
                continue
            try:
                at, by, row, key, verdict, tags, undo = value
                if not 0 < at < LATEST or verdict not in ("", *VERDICTS):
                    raise ValueError
                said = {"by": str(by), "at": float(at), "verdict": verdict, "tags": tuple(map(str, tags))}
                rows = self._rows(int(row), str(key), known)
            except (TypeError, ValueError):
                refused.append(f"line {self._line} of {self.file} is no verdict; it is left out")
                continue
            for place in rows:
                yield Judgement(row=place, undo=bool(undo), **said)

    def _values(self, refused: list[str]) -> Iterator[Any]:
        """What the whole lines that are new hold."""
        if self.refused:
            return
        with open(self.file, "rb") as file:
            file.seek(self._place)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._place += len(whole)
        for line in whole.split(b"\n")[:-1]:
            self._line += 1
            check, _, text = line.partition(b" ")
            try:
                if check != _checksum(text):
                    raise ValueError
                value = json.loads(text)
            except (ValueError, RecursionError):
                refused.append(f"line {self._line} of {self.file} is damaged; it is left out")
                continue
            yield value

    def _begin(self, header: Any, known: KnownCases, refused: list[str]) -> None:
        """Which rows of the suite the log's are; where the first line is damaged, cases are known by their keys."""
        self._spans = _Spans([], known.parts)
        if not isinstance(header, dict):
            return
        try:
            if (header["operant"], header["format"]) != ("suite verdicts", FORMAT):
                raise ValueError
            self._spans = _Spans([(str(name), str(of), int(n)) for name, of, n in header["shards"]], known.parts)
            self.plan = dict(header["plan"])
        except (TypeError, KeyError, ValueError):
            refused.append(f"{self.file} is not a format-{FORMAT} log of verdicts; move it elsewhere")
            self.refused = True

    def _rows(self, row: int, key: str, known: KnownCases) -> list[int]:
        """Where the case is in the suite as it is now; nowhere if it is gone."""
        assert self._spans is not None
        place = self._spans.place(row)
        return known.keys(key) if place is None else [place]


class _Spans:
    """Where the rows of a log's parts are among a suite's."""

    def __init__(self, parts: Sequence[Part], now: Sequence[Part]) -> None:
        starts = dict(zip(((name, digest) for name, digest, _ in now), _starts(now), strict=True))
        self._first, self._end = _starts(parts), sum(n for _, _, n in parts)
        self._now = [starts.get((name, digest)) for name, digest, _ in parts]

    def place(self, row: int) -> int | None:
        if not 0 <= row < self._end:
            return None
        part = bisect_right(self._first, row) - 1
        start = self._now[part]
        return None if start is None else start + row - self._first[part]


def _starts(parts: Sequence[Part]) -> list[int]:
    return [end - n for end, (_, _, n) in zip(accumulate(n for _, _, n in parts), parts, strict=True)]


def newest(judgements: Iterable[Judgement]) -> dict[tuple[int, str], Judgement]:
    """What counts of what was said: the last by each person of each case."""
    kept: dict[tuple[int, str], Judgement] = {}
    for judgement in judgements:
        before = kept.get((judgement.row, judgement.by))
        if before is None or judgement.at >= before.at:
            kept[judgement.row, judgement.by] = judgement
    return kept


def together(verdicts: Iterable[str]) -> str:
    """What several people's verdicts come to: unsure ones leave it to the others.

    >>> together(["valid", "unsure", ""]), together(["valid", "invalid"]), together([""])
    ('valid', 'disputed', '')
    """
    said = set(verdicts) - {""}
    if {"valid", "invalid"} <= said:
        return DISPUTED
    return next((verdict for verdict in VERDICTS if verdict in said), "")


def columns_of(judgements: Iterable[Judgement], n: int) -> dict[str, Strings]:
    """``verdict``, ``verdict_by``, ``verdict_at`` and ``tags`` for each of n rows; empty where nobody said anything."""
    said: dict[int, list[Judgement]] = {}
    for judgement in judgements:
        if judgement.verdict or judgement.tags:
            said.setdefault(judgement.row, []).append(judgement)
    columns = {name: [""] * n for name in COLUMNS}
    for row, several in said.items():
        judged = [judgement for judgement in several if judgement.verdict]
        columns["verdict"][row] = together(judgement.verdict for judgement in judged)
        columns["verdict_by"][row] = ", ".join(sorted(judgement.by for judgement in judged))
        columns["verdict_at"][row] = told_time(max((judgement.at for judgement in judged), default=0.0))
        columns["tags"][row] = ", ".join(sorted({tag for judgement in several for tag in judgement.tags}))
    return {name: np.array(values, dtype=np.str_) for name, values in columns.items()}


def told_time(at: float) -> str:
    """When, to the second, in UTC.

    >>> told_time(1735787045.9), told_time(0.0)
    ('2025-01-02T03:04:05Z', '')
    """
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}" if at else ""


def _checksum(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=4).hexdigest().encode()
