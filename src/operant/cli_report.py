"""The command `operant report`: writes what a campaign found for people, programs, CI servers and pull requests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from operant.report.evidence import load_evidence
from operant.report.failures import LIMIT
from operant.report.writing import write_report

CANNOT_RUN = 2


def add_report(app: typer.Typer) -> None:
    """Give an app the command ``report``."""
    app.command("report")(report)


def report(
    folder: Annotated[Path, typer.Argument(help="folder of a campaign, finished or under way")] = Path("operant-run"),
    out: Annotated[Path | None, typer.Option(help="folder to write to; the campaign's own unless given")] = None,
    limit: Annotated[int, typer.Option(help="most failures shown", min=1)] = LIMIT,
    valid: Annotated[bool, typer.Option(help="show only failures that people called valid in triage")] = False,
) -> None:
    """Write report.html, report.json, report.xml (JUnit) and report.md of a campaign.

    Exit code 0: they are written, whatever they say; 2: they could not be.
    """
    console = Console(highlight=False)
    try:
        page = write_report(folder, out, limit=limit, valid=valid)
        verdict = load_evidence(page.with_suffix(".json")).verdict
    except (ValueError, OSError) as error:
        Console(stderr=True, highlight=False).print(f"[bold red]cannot run:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(CANNOT_RUN) from None
    console.print(escape(verdict), soft_wrap=True)
    console.print(escape(f"report: {page}"), soft_wrap=True)
