"""What all desks share: the requests of a page, checked, and the lists of rows it goes through."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
MAX_ROWS = 60  # per request
MAX_LISTS = 32  # kept on the server


class NotFound(LookupError):
    """The requested row, list or picture does not exist, or no longer."""


@dataclass(frozen=True)
class RequestFields:
    """The fields of a request; the methods return checked values or raise ``ValueError``."""

    values: Mapping[str, Any]

    def text(self, name: str, default: str = "") -> str:
        value = self.values.get(name, default)
        if not isinstance(value, str) or len(value) > 200:
            raise ValueError(f"{name} must be a text of at most 200 characters, got {value!r:.80}")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        value = self.values.get(name, default)
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 16:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 10**15:
            raise ValueError(f"{name} must be a whole number, 0 or more, got {value!r:.80}")
        return value

    def optional_number(self, name: str) -> int | None:
        """A number, or None if the field is empty."""
        return None if self.values.get(name) in (None, "") else self.number(name)

    def flag(self, name: str) -> bool:
        return self.values.get(name) in (True, "1", "true")

    def words(self, name: str) -> list[str]:
        value = self.values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise ValueError(f"{name} must be a list of texts, got {value!r:.80}")
        return value


@dataclass
class RowLists:
    """Lists of rows by key; a list does not change while a person goes through it and marks."""

    _kept: OrderedDict[str, Rows] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def keep(self, rows: Rows) -> str:
        with self._lock:
            key = token_hex(8)
            self._kept[key] = rows
            while len(self._kept) > MAX_LISTS:
                self._kept.popitem(last=False)
        return key

    def arranged(self, rows: Rows, done: npt.NDArray[np.bool_]) -> dict[str, Any]:
        """The answer to a request for a list: its key, its length, and how far the person has come."""
        first = 0 if not len(rows) or done.all() else int(done.argmin())
        return {"key": self.keep(rows), "total": len(rows), "done": int(done.sum()), "first": first}

    def rows(self, fields: RequestFields) -> tuple[int, list[int]]:
        """The requested start and the rows of a list from there."""
        key, start = fields.text("key"), fields.number("start", 0)
        with self._lock:
            if key not in self._kept:
                raise NotFound("this list no longer exists; request it again")
            self._kept.move_to_end(key)
            rows = self._kept[key]
        count = min(fields.number("count", MAX_ROWS), MAX_ROWS)
        return start, rows[start : start + count].tolist()
