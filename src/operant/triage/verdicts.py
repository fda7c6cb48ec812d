"""The verdicts of a suite: written to disk before they are acknowledged, and undone one step at a time."""

from __future__ import annotations

import os
import re
import time
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

from operant.execution.run_folder import RUN
from operant.suite import Suite, open_with_index
from operant.suite.verdicts import (
    VERDICTS,
    CaseIndex,
    Judgement,
    VerdictReader,
    beside,
    header_of,
    key_of,
    line_of,
    log_files,
    newest,
)
from operant.validation import check_from_below, check_one_of

MAX_NAME_LENGTH = 60  # characters, also of a tag
MAX_TAGS = 20
Codes = npt.NDArray[np.int8]


def read_verdicts(path: str | Path) -> list[Judgement]:
    """The newest judgement of each person on each case of a suite, by row; damaged lines are left out.

    `Suite.open` combines them in columns.
    """
    _, known = open_with_index(path)
    judgements = newest(VerdictReader(Path(path)).new_judgements(known))
    return [j for _, j in sorted(judgements.items()) if j.verdict or j.tags]


def verdicts_for(cases: Suite, path: str | Path) -> npt.NDArray[np.str_]:
    """The combined verdict on each of these cases in the suite at ``path``; empty where there is none.

    A case is recognised by its seed and content, so ``cases`` may be of any suite.
    """
    judged = Suite.open(path)
    if "verdict" not in judged.columns:
        return np.full(len(cases), "", dtype=np.str_)
    marked = judged[judged["verdict"] != ""]
    known = {key_of(s, x): v for s, x, v in zip(marked.seed.tolist(), marked.x, marked["verdict"], strict=True)}
    return np.array([known.get(key_of(s, x), "") for s, x in zip(cases.seed.tolist(), cases.x, strict=True)], np.str_)


class VerdictStore:
    """The verdicts of a suite, read from disk and added here.

    A verdict is flushed to disk before `mark` returns. Several threads can share an instance, and several processes can
    each have their own; `refresh` reads what others have added.

    Args:
        path: the suite's folder. If it is part of a run, which may rewrite it, verdicts go to a folder beside it.
        plan: the sample to judge, stored in the log (default: the plan in the log).
    """

    def __init__(self, path: Path, suite: Suite, known: CaseIndex, *, plan: dict[str, Any] | None = None) -> None:
        self.path, self.suite = path, suite
        self.judgements: dict[tuple[int, str], Judgement] = {}
        self.codes: dict[str, Codes] = {}  # by person: 0 for no verdict, else 1 + the place in VERDICTS
        self.tags: dict[str, int] = {}  # number of uses
        self._known, self._reader, self._lock = known, VerdictReader(path), RLock()
        self._steps: dict[str, list[Judgement]] = {}  # by person, what undo restores, next one last
        self._log: _LogWriter | None = None
        self._last = 0.0
        self.refresh()
        self.plan = self._reader.plan if plan is None else plan

    def refresh(self) -> None:
        """Read what other processes have added."""
        with self._lock:
            for judgement in self._reader.new_judgements(self._known):
                self._take(judgement)

    def of(self, row: int, by: str) -> Judgement:
        """A person's judgement of a case."""
        return self.judgements.get((row, by), Judgement(row=row, by=by, at=0.0))

    def others(self, row: int, by: str) -> list[Judgement]:
        """The other people's judgements of a case."""
        with self._lock:
            several = [self.judgements.get((row, name)) for name in sorted(self.codes) if name != by]
        return [judgement for judgement in several if judgement is not None and judgement.verdict]

    def mark(self, row: int, by: str, verdict: str, tags: Sequence[str] = ()) -> Judgement:
        """Record a judgement; it is on disk when this returns."""
        check_from_below(0, len(self.suite), row=row)
        if verdict != "":  # empty: the verdict is taken back
            check_one_of(VERDICTS, verdict=verdict)
        unique = tuple(dict.fromkeys(checked_name(tag, "tag") for tag in tags))
        if len(unique) > MAX_TAGS:
            raise ValueError(f"a case can have at most {MAX_TAGS} tags, got {len(unique)}")
        by = checked_name(by, "name")
        with self._lock:
            before = self.of(row, by)
            if (before.verdict, before.tags) == (verdict, unique):
                return before
            return self._write(Judgement(row=row, by=by, at=self._now(), verdict=verdict, tags=unique))

    def undo(self, by: str) -> Judgement | None:
        """Undo a person's last step and return the restored judgement; None if no step is left."""
        with self._lock:
            steps = self._steps.get(by)
            return self._write(replace(steps[-1], at=self._now(), undo=True)) if steps else None

    @property
    def first_plan(self) -> dict[str, Any] | None:
        """The plan in the first log, as of the last `refresh`; None if there is no log."""
        return self._reader.first_plan

    def rejected(self) -> list[str]:
        """Problems with the logs, one sentence each."""
        return list(self._reader.rejected)

    def people(self) -> dict[str, Codes]:
        """Codes by person."""
        with self._lock:
            return dict(self.codes)

    def everything(self) -> list[Judgement]:
        """All judgements."""
        with self._lock:
            return list(self.judgements.values())

    def known_tags(self) -> list[str]:
        """All tags in use, the most frequent first."""
        with self._lock:
            used = [(-n, tag) for tag, n in self.tags.items() if n > 0]
        return [tag for _, tag in sorted(used)]

    def consensus_codes(self) -> Codes:
        """The combined verdicts of all cases: 0 none, 1 valid, 2 invalid, 3 unsure, 4 disputed."""
        with self._lock:
            nobody = np.zeros(len(self.suite), dtype=np.int8)
            every = np.stack([nobody, *self.codes.values()])
        valid, invalid, unsure = ((every == code).any(0) for code in (1, 2, 3))
        return np.select([valid & invalid, valid, invalid, unsure], [4, 1, 2, 3], 0).astype(np.int8)

    def _now(self) -> float:
        """The time, but later than all judgements so far, even if clocks differ."""
        return max(round(time.time(), 6), round(self._last + 1e-6, 6))

    def _write(self, judgement: Judgement) -> Judgement:
        if self._log is None:
            self._log = _LogWriter.start(self.path, header_of(self._known.parts, self.plan or {}))
            self._reader.skip(self._log.file, self.plan or {})
        row = judgement.row
        key = key_of(int(self.suite.seed[row]), self.suite.rows.take(self.suite.seed.new_tensor([row]))[0])
        values = [judgement.at, judgement.by, row, key, judgement.verdict, judgement.tags, int(judgement.undo)]
        try:
            self._log.add(values)
        except OSError:
            self._log = None  # its complete lines count; the next judgement starts a new log
            raise
        self._take(judgement)
        return judgement

    def _take(self, judgement: Judgement) -> None:
        row, by = judgement.row, judgement.by
        before = self.of(row, by)
        self._last = max(self._last, judgement.at)
        if judgement.at < before.at:
            return
        steps = self._steps.setdefault(by, [])
        if not judgement.undo:
            steps.append(before)
        elif steps:
            steps.pop()
        for tag in set(judgement.tags) ^ set(before.tags):
            self.tags[tag] = self.tags.get(tag, 0) + (1 if tag in judgement.tags else -1)
        codes = self.codes.setdefault(by, np.zeros(len(self.suite), dtype=np.int8))
        codes[row] = 1 + VERDICTS.index(judgement.verdict) if judgement.verdict else 0
        self.judgements[row, by] = judgement


class _LogWriter:
    """A log file that one process appends to."""

    def __init__(self, file: Path, descriptor: int) -> None:
        self.file, self._descriptor, self._size = file, descriptor, 0

    @staticmethod
    def start(suite: Path, header: dict[str, Any]) -> _LogWriter:
        """A new file with the next free number; its first line is on disk."""
        place = beside(suite) if in_run(suite) else suite
        place.mkdir(exist_ok=True)
        while True:
            numbers = [int(re.sub(r"\D", "", file.stem)) for file in log_files(suite)]
            file = place / f"verdicts-{max(numbers, default=-1) + 1:06d}.jsonl"
            try:
                log = _LogWriter(file, os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600))
            except FileExistsError:  # another process was faster
                continue
            log.add(header)
            for folder in (place, place.parent):
                _flush_folder(folder)
            return log

    def add(self, value: Any) -> None:
        """Append a line; it is on disk when this returns. If that fails, it is removed and the file closed."""
        line = line_of(value)
        try:
            written = os.write(self._descriptor, line)
            if written < len(line):
                raise OSError(f"only {written} of {len(line)} bytes were written to {self.file}; free some disk space")
            os.fsync(self._descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            os.close(self._descriptor)
            raise
        self._size += len(line)


def in_run(suite: Path) -> bool:
    """Whether a suite belongs to a run: its cases, those of a round, or a chunk of them."""
    return any((place / RUN).is_file() for place in suite.resolve().parents[:3])


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checked_name(text: object, what: str) -> str:
    """A name or tag with single spaces; raises unless it is one line without commas, which separate several."""
    words = " ".join(text.split()) if isinstance(text, str) else ""
    plain = "," not in words and not any(unicodedata.category(c)[0] == "C" for c in words)
    if not plain or not 1 <= len(words) <= MAX_NAME_LENGTH:
        rule = f"one line of 1 to {MAX_NAME_LENGTH} characters without commas"
        raise ValueError(f"a {what} must be {rule}, got {text!r:.80}")
    return words
