"""What people say about the cases of a suite: kept on disk before it is acknowledged, and undone one step at a time."""

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
    combined_verdict,
    header_of,
    key_of,
    line_of,
    log_files,
    newest,
)

LONGEST = 60  # characters of a name or tag
MOST_TAGS = 20
Codes = npt.NDArray[np.int8]


def read_verdicts(path: str | Path) -> list[Judgement]:
    """What each person says of each case of a suite, in the order of its rows; damaged lines are left out.

    `Suite.open` tells what they say together, in columns.
    """
    _, known = open_with_index(path)
    said = newest(VerdictReader(Path(path)).new_judgements(known))
    return [said[key] for key in sorted(said) if said[key].verdict or said[key].tags]


def verdicts_for(cases: Suite, path: str | Path) -> npt.NDArray[np.str_]:
    """What was said of each of these cases where it also is in the suite at ``path``; empty where nothing was.

    Args:
        cases: of any suite: a case is known by its seed and its content.
        path: the folder of the suite that people judged.
    """
    judged = Suite.open(path)
    if "verdict" not in judged.columns:
        return np.full(len(cases), "", dtype=np.str_)
    marked = judged[judged["verdict"] != ""]
    known = {key_of(s, x): v for s, x, v in zip(marked.seed.tolist(), marked.x, marked["verdict"], strict=True)}
    return np.array([known.get(key_of(s, x), "") for s, x in zip(cases.seed.tolist(), cases.x, strict=True)], np.str_)


class Verdicts:
    """The verdicts of a suite: those on disk, by whomever, and those that are added here.

    A verdict is flushed to disk before `mark` returns. Several threads may use this, and several processes may have
    one of their own; `refresh` looks what the others have added.

    Args:
        path: the suite's folder. If it is part of a run, which may write it anew, verdicts go to a folder beside it.
        suite, known: what is in there.
        plan: which sample is to be judged, told to whoever reads the log; as it was unless given.
    """

    def __init__(self, path: Path, suite: Suite, known: CaseIndex, *, plan: dict[str, Any] | None = None) -> None:
        self.path, self.suite = path, suite
        self.said: dict[tuple[int, str], Judgement] = {}
        self.codes: dict[str, Codes] = {}  # by person: 0 where nothing is said, else 1 + the place in VERDICTS
        self.tags: dict[str, int] = {}  # how often each is used
        self._known, self._reader, self._lock = known, VerdictReader(path), RLock()
        self._steps: dict[str, list[Judgement]] = {}  # what each person's next undos put back, the next one last
        self._log: _Log | None = None
        self._last = 0.0
        self.refresh()
        self.plan = self._reader.plan if plan is None else plan

    def refresh(self) -> None:
        """Read what other processes have added."""
        with self._lock:
            for judgement in self._reader.new_judgements(self._known):
                self._take(judgement)

    def of(self, row: int, by: str) -> Judgement:
        """What a person says of a case."""
        return self.said.get((row, by), Judgement(row=row, by=by, at=0.0))

    def others(self, row: int, by: str) -> list[Judgement]:
        """What the others say of a case."""
        with self._lock:
            several = [self.said.get((row, name)) for name in sorted(self.codes) if name != by]
        return [judgement for judgement in several if judgement is not None and judgement.verdict]

    def mark(self, row: int, by: str, verdict: str, tags: Sequence[str] = ()) -> Judgement:
        """Say something about a case; it is on disk when this returns."""
        if not 0 <= row < len(self.suite):
            raise ValueError(f"row must be one of the {len(self.suite)} cases, got {row}")
        if verdict not in ("", *VERDICTS):
            raise ValueError(f"verdict must be one of {', '.join(VERDICTS)}, or empty, got {verdict!r:.40}")
        words = tuple(dict.fromkeys(checked_words(tag, "tag") for tag in tags))
        if len(words) > MOST_TAGS:
            raise ValueError(f"a case can have at most {MOST_TAGS} tags, got {len(words)}")
        by = checked_words(by, "name")
        with self._lock:
            before = self.of(row, by)
            if (before.verdict, before.tags) == (verdict, words):
                return before
            return self._write(Judgement(row=row, by=by, at=self._now(), verdict=verdict, tags=words))

    def undo(self, by: str) -> Judgement | None:
        """Put back what a person's last step changed; None if there is none left. A step that is undone is gone."""
        with self._lock:
            steps = self._steps.get(by)
            return self._write(replace(steps[-1], at=self._now(), undo=True)) if steps else None

    @property
    def begun(self) -> dict[str, Any] | None:
        """The plan of the first log, as of the last `refresh`; None before there is one."""
        return self._reader.first_plan

    def refused(self) -> list[str]:
        """What could not be read in logs, a sentence each."""
        return list(self._reader.rejected)

    def people(self) -> dict[str, Codes]:
        """Codes by person, as they are now."""
        with self._lock:
            return dict(self.codes)

    def everything(self) -> list[Judgement]:
        """What everybody says, as it is now."""
        with self._lock:
            return list(self.said.values())

    def words(self) -> list[str]:
        """All tags in use, the most used first."""
        with self._lock:
            used = [(-n, tag) for tag, n in self.tags.items() if n > 0]
        return [tag for _, tag in sorted(used)]

    def consensus(self, row: int) -> str:
        """What all people's verdicts of a case come to."""
        with self._lock:
            return combined_verdict(VERDICTS[codes[row] - 1] if codes[row] else "" for codes in self.codes.values())

    def consensus_codes(self) -> Codes:
        """The same of all cases: 0 nothing, 1 valid, 2 invalid, 3 unsure, 4 disputed."""
        with self._lock:
            nobody = np.zeros(len(self.suite), dtype=np.int8)
            every = np.stack([nobody, *self.codes.values()])
        valid, invalid, unsure = ((every == code).any(0) for code in (1, 2, 3))
        return np.select([valid & invalid, valid, invalid, unsure], [4, 1, 2, 3], 0).astype(np.int8)

    def _now(self) -> float:
        """Later than everything said so far, whatever the clocks say."""
        return max(round(time.time(), 6), round(self._last + 1e-6, 6))

    def _write(self, judgement: Judgement) -> Judgement:
        if self._log is None:
            self._log = _Log.begin(self.path, header_of(self._known.parts, self.plan or {}))
            self._reader.skip(self._log.file, self.plan or {})
        row = judgement.row
        key = key_of(int(self.suite.seed[row]), self.suite.rows.take(self.suite.seed.new_tensor([row]))[0])
        try:
            self._log.add(
                [judgement.at, judgement.by, row, key, judgement.verdict, judgement.tags, int(judgement.undo)]
            )
        except OSError:
            self._log = None  # what is whole in there counts; the next one begins another
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
        self.said[row, by] = judgement


class _Log:
    """A log that one process adds to."""

    def __init__(self, file: Path, descriptor: int) -> None:
        self.file, self._descriptor, self._size = file, descriptor, 0

    @staticmethod
    def begin(suite: Path, header: dict[str, Any]) -> _Log:
        """A new file under the next free number, with its first line on disk."""
        place = beside(suite) if in_run(suite) else suite
        place.mkdir(exist_ok=True)
        while True:
            numbers = [int(re.sub(r"\D", "", file.stem)) for file in log_files(suite)]
            file = place / f"verdicts-{max(numbers, default=-1) + 1:06d}.jsonl"
            try:
                log = _Log(file, os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644))
            except FileExistsError:  # another process was quicker
                continue
            log.add(header)
            for folder in (place, place.parent):
                _flush_folder(folder)
            return log

    def add(self, value: Any) -> None:
        """One line more; on disk when this returns, or cut off again."""
        line = line_of(value)
        try:
            written = os.write(self._descriptor, line)
            if written < len(line):
                raise OSError(f"only {written} of {len(line)} bytes could be written to {self.file}; make room")
            os.fsync(self._descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            os.close(self._descriptor)
            raise
        self._size += len(line)


def in_run(suite: Path) -> bool:
    """Whether a suite is part of a run: its cases, those of a round, or a chunk of them."""
    return any((place / RUN).is_file() for place in suite.resolve().parents[:3])


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checked_words(text: object, what: str) -> str:
    """A name or tag as it is kept: one line without commas, which stand between several."""
    words = " ".join(text.split()) if isinstance(text, str) else ""
    if not words or len(words) > LONGEST or "," in words or any(unicodedata.category(c)[0] == "C" for c in words):
        raise ValueError(
            f"a {what} must be words of at most {LONGEST} characters without commas, got {text!r:.80}; write it so"
        )
    return words
