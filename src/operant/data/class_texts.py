"""How tables and messages write the class of an input: by its number, counted from 0, or by its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from operant.formatting import first_few

COLUMNS = ("label", "class", "number")  # number or name; name; number
MAX_DIGITS = 18  # of a number; longer ones are no classes
SHOWN = 10  # classes in a message


@dataclass(frozen=True)
class ClassTexts:
    """The classes of a model as tables write them; the heading of the column says how.

    A column ``number`` has numbers counted from 0, a column ``class`` has names. A column ``label`` may have either, as
    long as no number means two classes: if the classes are called 1, 2 and 3, the label 2 is the number of one class
    and the name of another, and all numbers are rejected.

    >>> ClassTexts(("cat", "dog")).place("dog", "label"), ClassTexts(("cat", "dog")).place("1.0", "label")
    (1, 1)
    >>> ClassTexts(("1", "2", "3")).place("2", "class"), ClassTexts(("1", "2", "3")).place("2", "number")
    (1, 2)
    """

    names: tuple[str, ...]

    @cached_property
    def _places(self) -> dict[str, list[int]]:
        places: dict[str, list[int]] = {}
        for place, name in enumerate(self.names):
            places.setdefault(_key(name), []).append(place)
        return places

    @cached_property
    def ambiguous(self) -> bool:
        """Whether a number is that of one class and the name of another."""
        return any(self._places.get(str(place), [place]) != [place] for place in range(len(self.names)))

    @property
    def column(self) -> str:
        """The heading of a new table, under which every class can be written and read back."""
        if not self.ambiguous:
            return "label"
        distinct = len(self._places) == len(self.names) and all(self._places)
        return "class" if distinct else "number"

    def text(self, place: int, column: str) -> str:
        """How a class is written in this column."""
        return self.names[place] if column == "class" else str(place)

    def place(self, text: str, column: str) -> int | None:
        """The class that a cell of this column means; None if it is empty."""
        key, classes = _key(text), len(self.names)
        if not key:
            return None
        number = key.isdecimal() and len(key) <= MAX_DIGITS
        if column == "label" and number and self.ambiguous:
            raise ValueError(
                f"{text.strip()!r:.80} may be the number of a class or its name ({self._numbered(' is called ')}); "
                "rename the column label to class if it has names, or to number if it has numbers counted from 0"
            )
        if column != "class" and number and int(key) < classes:
            return int(key)
        found = [] if column == "number" else self._places.get(key, [])
        if len(found) > 1:
            several = " and ".join(self.names[place] for place in found)
            raise ValueError(f"{text.strip()!r:.80} may be {several}; write numbers ({self.meaning('number')}) instead")
        if not found:
            raise ValueError(f"a {column} must be {self._allowed(column)}, got {text.strip()!r:.80}")
        return found[0]

    def _allowed(self, column: str) -> str:
        meaning = self.meaning(column)
        if column == "class":
            return f"the name of a class ({meaning})"
        return f"a class ({meaning})" if self._named else f"a class from {meaning}"

    @property
    def _named(self) -> bool:
        """Whether classes have names that are more than their numbers."""
        return list(self.names) != [str(place) for place in range(len(self.names))]

    def meaning(self, column: str) -> str:
        """What may be written in this column."""
        if column == "class":
            return self._shown(list(self.names))
        return self._numbered(" " if column == "label" else " for ") if self._named else f"0 to {len(self.names) - 1}"

    def _numbered(self, between: str) -> str:
        return self._shown([f"{place}{between}{name}" for place, name in enumerate(self.names[: SHOWN + 1])])

    @staticmethod
    def _shown(texts: list[str]) -> str:
        return ", ".join(texts[:SHOWN]) + (", …" if len(texts) > SHOWN else "")


def class_name(label: int, classes: Sequence[str]) -> str:
    """What to call a class in front of people: its name; its number if it has none.

    >>> class_name(1, ("cat", "dog")), class_name(2, ("cat", "dog")), class_name(1, ())
    ('dog', '2', '1')
    """
    return classes[label] if 0 <= label < len(classes) else str(label)


def class_names(labels: Sequence[int], classes: Sequence[str]) -> str:
    """Several classes in a message; the first ten of many.

    >>> class_names([0, 1], ("cat", "dog")), class_names([0, 1], ())
    ('cat, dog', '0, 1')
    """
    return first_few([class_name(label, classes) for label in labels], SHOWN)


def _key(text: str) -> str:
    """A text as classes are searched for it: without capitals, and numbers as spreadsheets may change them.

    >>> _key(" Cat "), _key("03"), _key("3.0"), _key("v3.0")
    ('cat', '3', '3', 'v3.0')
    """
    text = text.strip().lower()
    whole = text.removesuffix(".0")
    return str(int(whole)) if whole.isdecimal() and len(whole) <= MAX_DIGITS else text
