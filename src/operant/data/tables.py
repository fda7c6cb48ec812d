"""Tables in CSV that people write, and how they name inputs."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from operant.files import check_regular

NAME_COLUMNS = ("name", "file")  # either heads the names of inputs
MARK = "\ufeff"  # byte-order mark, by which spreadsheets recognise UTF-8


@dataclass(kw_only=True)
class CsvTable:
    """A table as text, with what is needed to write it back: separator and byte-order mark."""

    header: list[str]
    rows: list[list[str]]
    separator: str = ","
    mark: str = ""

    def column(self, *names: str) -> int | None:
        """The place of the first of these columns that exists."""
        known = [cell.strip().lower() for cell in self.header]
        return next((known.index(name) for name in names if name in known), None)


def read_csv(path: Path) -> CsvTable:
    """Read what spreadsheets write: commas or semicolons, with or without a byte-order mark."""
    check_regular(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8; save it as CSV (UTF-8) again") from None
    mark = MARK if text.startswith(MARK) else ""
    text = text.removeprefix(MARK)
    separator = ";" if ";" in text.partition("\n")[0] else ","
    try:
        lines = list(csv.reader(io.StringIO(text), delimiter=separator)) or [[]]
    except csv.Error as error:
        raise ValueError(f"{path} is not a readable table ({error}); save it as CSV (UTF-8) again") from None
    return CsvTable(header=lines[0], rows=lines[1:], separator=separator, mark=mark)


def cell(row: Sequence[str], place: int | None) -> str:
    """The cell at this place of a row; empty if there is none."""
    return row[place].strip() if place is not None and len(row) > place else ""


def table_key(name: str) -> str:
    """A name as tables are searched for it: without capitals, and without the suffix of files that we write.

    >>> table_key(" Img_1.PNG ")
    'img_1'
    """
    return name.strip().lower().removesuffix(".png").removesuffix(".npz")


def unambiguous_endings(names: Sequence[str]) -> list[list[str]]:
    """What each input may be called in a table: its whole name, and every ending of it that no other input shares.

    Inputs with the same whole name cannot be distinguished, and have none.

    >>> unambiguous_endings(["mon/1.png", "tue/1.png", "tue/2.png"])
    [['mon/1.png'], ['tue/1.png'], ['tue/2.png', '2.png']]
    >>> unambiguous_endings(["1.png", "tue/1.png"])
    [['1.png'], ['tue/1.png']]
    """
    parts = [name.split("/") for name in names]
    endings = [["/".join(each[-n:]) for n in range(len(each) - 1, 0, -1)] for each in parts]
    whole = Counter(table_key(name) for name in names)
    times = Counter(key for each in endings for key in {table_key(ending) for ending in each})
    return [
        [name] * (whole[table_key(name)] == 1)
        + [end for end in each if times[table_key(end)] == 1 and table_key(end) not in whole]
        for name, each in zip(names, endings, strict=True)
    ]
