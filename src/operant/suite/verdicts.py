"""Verdicts of people on a suite's cases: append-only logs, and the columns made from them.

A log is a file ``verdicts-000000.jsonl`` in the suite's folder, or in a folder ``NAME.verdicts`` beside it if the suite
must not change. Each line is a checksum and a JSON value: first a header, then one verdict per line. Every writer
starts a new log, so no log has two writers. An incomplete last line, left by a kill, was never acknowledged and is
ignored.
"""

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

from operant.files import check_regular
from operant.suite.shards import LazyRows, Strings

COLUMNS = ("verdict", "verdict_by", "verdict_at", "tags")
FORMAT = 1
CHUNK = 1024  # rows read at a time
MAX_TIME = 1e11  # seconds since 1970; later times are invalid
VERDICTS = ("valid", "invalid", "unsure")
DISPUTED = "disputed"  # one person says valid, another invalid
Part = tuple[str, str, int]  # a shard of a suite: file name, digest, number of rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """One person's verdict on one case; the person's newest counts.

    Attributes:
        row: row of the case in the suite.
        by: name of the person.
        at: seconds since 1970.
        verdict: ``"valid"``, ``"invalid"``, ``"unsure"``, or ``""`` for none or a withdrawn one.
        tags: words for what changed.
        undo: whether this restores the person's earlier verdict.
    """

    row: int
    by: str
    at: float
    verdict: str = ""
    tags: tuple[str, ...] = ()
    undo: bool = False


@dataclass(frozen=True, kw_only=True)
class CaseIndex:
    """Finds the cases of verdict logs among the rows of a suite.

    Attributes:
        parts: the shards of the suite, in order.
        rows_of_key: rows with a key (see `key_of`); used only for cases of shards that are no longer among the parts.
    """

    parts: Sequence[Part]
    rows_of_key: Callable[[str], list[int]]


def beside(suite: Path) -> Path:
    """The folder of logs for a suite that must not change."""
    whole = suite.resolve()
    return whole.parent / f"{whole.name}.verdicts"


def key_of(seed: int, x: Tensor) -> str:
    """Identifies a case in any suite: a hash of its seed's id and its content."""
    content = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(seed.to_bytes(8, "little", signed=True) + content, digest_size=8).hexdigest()


def key_lookup(rows: LazyRows, seed: Tensor) -> Callable[[str], list[int]]:
    """A function from a key to its rows; the first call computes all keys."""
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


class VerdictReader:
    """Reads the logs of a suite, and later what was added to them.

    Attributes:
        plan: which sample is to be judged, from the newest log that has a plan.
        first_plan: the plan of the first log, or None.
        rejected: one message per damaged line or file that was left out.
    """

    def __init__(self, suite: Path) -> None:
        self.suite = suite
        self.plan: dict[str, Any] | None = None
        self.first_plan: dict[str, Any] | None = None
        self.rejected: list[str] = []
        self._logs: dict[Path, _VerdictLog] = {}

    def new_judgements(self, index: CaseIndex) -> list[Judgement]:
        """The judgements added since the last call, oldest first."""
        logs = [self._logs.setdefault(file, _VerdictLog(file)) for file in log_files(self.suite)]
        fresh = [judgement for log in logs for judgement in log.new_judgements(index, self.rejected)]
        plans = [log.plan for log in logs if not log.empty]
        self.first_plan = plans[0] if plans else None
        self.plan = next((plan for plan in reversed(plans) if plan is not None), None)
        return sorted(fresh, key=lambda judgement: judgement.at)

    def skip(self, file: Path, plan: dict[str, Any]) -> None:
        """Use only the plan of a file; its writer knows the rest."""
        self._logs[file] = log = _VerdictLog(file, ignored=True)
        log.plan = plan


def log_files(suite: Path) -> list[Path]:
    """The logs of a suite, inside its folder and beside it, in the order of their numbers."""
    places = [place for place in (suite, beside(suite)) if place.is_dir()]
    files = [f for place in places for f in place.iterdir() if re.fullmatch(r"verdicts-\d{6,}\.jsonl", f.name)]
    return sorted(files, key=lambda file: (len(file.name), file.name))


class _VerdictLog:
    """One log, and how far it has been read."""

    def __init__(self, file: Path, *, ignored: bool = False) -> None:
        self.file, self.ignored = file, ignored
        self.plan: dict[str, Any] | None = None
        self._row_map: _RowMap | None = None
        self._place, self._line = 0, 0

    @property
    def empty(self) -> bool:
        """Whether the log has no complete line."""
        return self._line == 0 and self.plan is None

    def new_judgements(self, index: CaseIndex, rejected: list[str]) -> Iterator[Judgement]:
        for value in self._new_values(rejected):
            if self._row_map is None:
                self._read_header(value, index, rejected)
            if self.ignored:
                return
            if isinstance(value, dict):
                continue
            try:
                at, by, row, key, verdict, tags, undo = value
                if not 0 < at < MAX_TIME or verdict not in ("", *VERDICTS) or type(row) is not int:
                    raise ValueError
                fields = {"by": str(by), "at": float(at), "verdict": verdict, "tags": tuple(map(str, tags))}
                rows = self._rows(row, str(key), index)
            except (TypeError, ValueError, ArithmeticError):
                rejected.append(f"line {self._line} of {self.file} is not a verdict; it is left out")
                continue
            for place in rows:
                yield Judgement(row=place, undo=bool(undo), **fields)

    def _new_values(self, rejected: list[str]) -> Iterator[Any]:
        """The values of the complete lines that were added since the last call."""
        if self.ignored:
            return
        check_regular(self.file)
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
                rejected.append(f"line {self._line} of {self.file} is damaged; it is left out")
                continue
            yield value

    def _read_header(self, header: Any, index: CaseIndex, rejected: list[str]) -> None:
        """Map the log's rows to those of the suite; if the header is damaged, cases are found by key."""
        self._row_map = _RowMap([], index.parts)
        if not isinstance(header, dict):
            return
        try:
            if (header["operant"], header["format"]) != ("suite verdicts", FORMAT):
                raise ValueError
            parts = [(name, of, n) for name, of, n in header["shards"]]
            if not all(map(is_part, parts)) or not isinstance(header["plan"], dict):
                raise ValueError
            self._row_map, self.plan = _RowMap(parts, index.parts), header["plan"]
        except (TypeError, KeyError, ValueError):
            rejected.append(f"{self.file} is not a format-{FORMAT} log of verdicts; move it elsewhere")
            self.ignored = True

    def _rows(self, row: int, key: str, index: CaseIndex) -> list[int]:
        """The current rows of a case in the suite; empty if it was removed."""
        assert self._row_map is not None
        place = self._row_map.place(row)
        return index.rows_of_key(key) if place is None else [place]


class _RowMap:
    """Maps row numbers of a log's shards to row numbers of a suite."""

    def __init__(self, parts: Sequence[Part], now: Sequence[Part]) -> None:
        starts = dict(zip(now, _starts(now), strict=True))
        self._first, self._end = _starts(parts), sum(n for _, _, n in parts)
        self._now = [starts.get(part) for part in parts]

    def place(self, row: int) -> int | None:
        if not 0 <= row < self._end:
            return None
        part = bisect_right(self._first, row) - 1
        start = self._now[part]
        return None if start is None else start + row - self._first[part]


def is_part(value: Any) -> bool:
    """Whether a value read from a file is a `Part`."""
    if not isinstance(value, list | tuple) or [type(item) for item in value] != [str, str, int]:
        return False
    return bool(value[2] >= 0)


def _starts(parts: Sequence[Part]) -> list[int]:
    return [end - n for end, (_, _, n) in zip(accumulate(n for _, _, n in parts), parts, strict=True)]


def newest(judgements: Iterable[Judgement]) -> dict[tuple[int, str], Judgement]:
    """The last judgement of each person on each case."""
    kept: dict[tuple[int, str], Judgement] = {}
    for judgement in judgements:
        before = kept.get((judgement.row, judgement.by))
        if before is None or judgement.at >= before.at:
            kept[judgement.row, judgement.by] = judgement
    return kept


def combined_verdict(verdicts: Iterable[str]) -> str:
    """The verdict of several people; "unsure" counts only if nobody else decided.

    >>> combined_verdict(["valid", "unsure", ""]), combined_verdict(["valid", "invalid"]), combined_verdict([""])
    ('valid', 'disputed', '')
    """
    given = set(verdicts) - {""}
    if {"valid", "invalid"} <= given:
        return DISPUTED
    return next((verdict for verdict in VERDICTS if verdict in given), "")


def columns_of(judgements: Iterable[Judgement], n: int) -> dict[str, Strings]:
    """``verdict``, ``verdict_by``, ``verdict_at`` and ``tags`` of each of n rows; empty for cases nobody judged."""
    by_row: dict[int, list[Judgement]] = {}
    for judgement in judgements:
        if judgement.verdict or judgement.tags:
            by_row.setdefault(judgement.row, []).append(judgement)
    columns = {name: [""] * n for name in COLUMNS}
    for row, several in by_row.items():
        judged = [judgement for judgement in several if judgement.verdict]
        columns["verdict"][row] = combined_verdict(judgement.verdict for judgement in judged)
        columns["verdict_by"][row] = ", ".join(sorted(judgement.by for judgement in judged))
        columns["verdict_at"][row] = utc_time(max((judgement.at for judgement in judged), default=0.0))
        columns["tags"][row] = ", ".join(sorted({tag for judgement in several for tag in judgement.tags}))
    return {name: np.array(values, dtype=np.str_) for name, values in columns.items()}


def utc_time(at: float) -> str:
    """A time in UTC, to the second; empty for 0.

    >>> utc_time(1735787045.9), utc_time(0.0)
    ('2025-01-02T03:04:05Z', '')
    """
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}" if at else ""


def _checksum(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=4).hexdigest().encode()
