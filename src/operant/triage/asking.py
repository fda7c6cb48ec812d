"""What a page asks for, checked: whatever is sent, the answer is a value or a sentence."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from threading import Lock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
MOST_ROWS = 60  # told at a time
MOST_LISTS = 32  # kept for those who page through them


class Unknown(LookupError):
    """What was asked for is not there, or not any more."""


class Desk(Protocol):
    """What a page works on: the cases of a suite, or inputs that wait for labels. Every answer is plain JSON."""

    def about(self) -> dict[str, Any]: ...

    def arrange(self, asked: Asked) -> dict[str, Any]: ...

    def rows(self, asked: Asked) -> dict[str, Any]: ...

    def mark(self, asked: Asked) -> dict[str, Any]: ...

    def undo(self, asked: Asked) -> dict[str, Any]: ...

    def state(self, asked: Asked) -> dict[str, Any]: ...

    def picture(self, row: int, what: str, factor: int) -> bytes: ...

    def table(self) -> str: ...


@dataclass(frozen=True)
class Asked:
    """The fields of a request."""

    page: Mapping[str, Any]

    def text(self, name: str, default: str = "") -> str:
        value = self.page.get(name, default)
        if not isinstance(value, str) or len(value) > 200:
            raise ValueError(f"{name} must be a text of at most 200 characters, got {value!r:.80}")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        value = self.page.get(name, default)
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 16:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 10**15:
            raise ValueError(f"{name} must be a whole number, 0 or more, got {value!r:.80}")
        return value

    def maybe(self, name: str) -> int | None:
        """A number, or none where nothing is chosen."""
        return None if self.page.get(name) in (None, "") else self.number(name)

    def truth(self, name: str) -> bool:
        return self.page.get(name) in (True, "1", "true")

    def words(self, name: str) -> list[str]:
        value = self.page.get(name, [])
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise ValueError(f"{name} must be a list of texts, got {value!r:.80}")
        return value


@dataclass
class Lists:
    """Rows in the orders that were asked for: a list stays as it is while one goes through it and marks."""

    _kept: OrderedDict[str, Rows] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def keep(self, rows: Rows) -> str:
        with self._lock:
            key = token_hex(8)
            self._kept[key] = rows
            while len(self._kept) > MOST_LISTS:
                self._kept.popitem(last=False)
        return key

    def part(self, asked: Asked) -> tuple[int, list[int]]:
        """The rows of a list from a place on, and that place."""
        key, start = asked.text("key"), asked.number("start", 0)
        with self._lock:
            if key not in self._kept:
                raise Unknown("this list is no longer kept; ask for it again")
            self._kept.move_to_end(key)
            rows = self._kept[key]
        count = min(asked.number("count", MOST_ROWS), MOST_ROWS)
        return start, rows[start : start + count].tolist()
