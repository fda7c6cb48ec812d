"""``operant report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from operant.cli.activities import loading
from operant.cli.options import run_folder
from operant.cli.output import exit_on_error, print_line


def report(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of a campaign, finished or in progress.",
            show_default="[run] folder of operant.toml, or operant-run",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write to.", show_default="the campaign's folder")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of failures to show.", min=1)] = 1000,
    valid: Annotated[bool, typer.Option(help="Show only failures that were judged valid in triage.")] = False,
) -> None:
    """Write the report of a campaign: report.html, report.json, report.xml (JUnit) and report.md; also risks.csv.

    Exit code 0: the files are written, whatever the result; 2: they could not be written.
    """
    with exit_on_error():
        with loading("operant report"):
            from operant.campaign.observers.risk import RISKS
            from operant.report.evidence import load_evidence
            from operant.report.writing import write_report

        page = write_report(folder or run_folder(), out, limit=limit, valid=valid)
        evidence = load_evidence(page.with_suffix(".json"))
        risks = f"\nrisks: {page.with_name(RISKS)}" if evidence.lists_risks else ""
        print_line(f"{evidence.verdict}\nreport: {page}{risks}")
