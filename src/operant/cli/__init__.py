"""The command line: one module per command.

Nothing of Operant or torch is imported before a command runs, so help and mistyped commands answer at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from operant.cli import assess, demo, doctor, export, field, init, repair, report, robot, run, study, triage
from operant.cli.activities import showing_activities

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"default_map": {"help": False}},  # some versions of Typer load pydantic to convert None
)

PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Start": (demo.demo, init.init, doctor.doctor),
    "Campaign": (run.run, report.report, triage.triage, robot.robot),
    "Measure": (field.field, assess.assess),
    "Repair": (repair.repair,),
    "Use elsewhere": (export.export,),
    "Research": (study.study,),
}


def _add_commands() -> None:
    for panel, commands in PANELS.items():
        for command in commands:
            paragraphs = (command.__doc__ or "").split("\n\n")
            text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)  # Typer keeps line breaks
            app.command(help=text, rich_help_panel=panel)(showing_activities(command))


def _print_version(asked: bool) -> None:
    if asked:
        from operant import __version__

        typer.echo(f"operant {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Test and harden deep-learning classifiers for the way they will be used."""


_add_commands()
