"""``operant demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from operant.cli.activities import loading
from operant.cli.options import Seed
from operant.cli.output import exit_on_error


def demo(
    out: Annotated[Path, typer.Option(help="Folder to write to: a new one, or that of an earlier demo.")] = Path(
        "operant-demo"
    ),
    seed: Seed = 0,
) -> None:
    """Harden a small network for camera images of digits and write a report, in about a minute of CPU time."""
    with exit_on_error():
        with loading("operant demo"):
            from operant.demo import run_demo

        run_demo(out, seed=seed)
