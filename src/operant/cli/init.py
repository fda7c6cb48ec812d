"""``operant init``."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from operant.cli.activities import loading
from operant.cli.output import exit_on_error, print_line

if TYPE_CHECKING:
    from operant.campaign.init import FolderContents


def init(
    folder: Annotated[Path, typer.Argument(help="Folder that holds your model and data.")] = Path(),
) -> None:
    """Write an operant.toml that fits the files of a folder; an existing one is kept."""
    with exit_on_error():
        with loading("operant init"):
            from operant.campaign.init import write_example

        path, found = write_example(folder)
        print_line(f"wrote {path}\n{_next_steps(path, found)}")


def _next_steps(path: Path, found: FolderContents) -> str:
    """What was found, and what the user has to fill in."""
    from operant.networks.weights import conversion

    shown = ("model", "data", "labels")
    lines = [f"  [{table}] {key} = {value}" for (table, key), value in found.values.items() if table in shown]
    lines += [f"  {key}: not found, fill it in" for key in found.missing]
    if found.pickled:
        lines.append(f"  [model] weights: found {found.pickled[0]}; convert it, with your network as module:")
        lines.append(textwrap.indent(conversion(found.pickled[0]), "    "))
    lines.append(f"Check {path}, above all [requirement] pmi, which is yours to decide. Then:")
    check = "  operant doctor" + "  # above all: are mean, std and bounds those of training?"
    return "\n".join([*lines, check, f"  operant run {path}"])
