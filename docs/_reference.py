"""Fills the tables of reference/index.md: ``<!-- names of operant.seeds -->`` becomes a table of its public names.

Names and descriptions come from the code, so the page is never out of date. Every name links to its entry on another
page of the reference; a name without an entry is a warning, and `make docs` fails.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import griffe

MARKER = re.compile(r"(?m)^<!-- names of (operant[\w.]*) -->$")
SOURCE = Path(__file__).parents[1] / "src"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by MkDocs for every page."""
    return fill_tables(markdown) if page.file.src_uri == "reference/index.md" else markdown


def fill_tables(text: str) -> str:
    return MARKER.sub(lambda found: table_of(found[1]), text)


def table_of(module: str) -> str:
    """A table with one row per public name of a module."""
    package = _package()
    home = package if module == "operant" else package[module.removeprefix("operant.")]
    rows = [_row(name, home[name]) for name in _public_names(home)]
    return "\n".join(["| name | description |", "|---|---|", *rows])


@cache
def _package() -> griffe.Module:
    return griffe.load("operant", search_paths=[SOURCE])


def _public_names(module: griffe.Module) -> list[str]:
    """The names in ``__all__``; without it, those that the module defines and documents."""
    if module.exports is not None:
        return sorted((str(name) for name in module.exports), key=str.lower)
    own = [m for m in module.members.values() if not m.is_alias and not m.is_module and not m.name.startswith("_")]
    return [member.name for member in own if member.docstring]


def _row(name: str, member: griffe.Object | griffe.Alias) -> str:
    target = member.final_target if member.is_alias else member
    if target.is_module:  # a function that has the name of its module
        target = target[name]
    return f"| [`{name}`][{target.path}] | {_first_line(target)} |"


def _first_line(target: griffe.Object) -> str:
    line = target.docstring.value.split("\n")[0] if target.docstring else ""
    return line.replace("``", "`").replace("|", r"\|").removesuffix(".")
