"""The command `operant triage`: a page where people say which cases are real, or what inputs show."""

from __future__ import annotations

import getpass
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from operant.triage import SamplePlan, agreement, export_csv, export_pictures, open_desk, serve, valid_share
from operant.triage.label_desk import LabelDesk
from operant.triage.opening import about_of, labels_in, suite_in
from operant.triage.sampling import latest_plan

CANNOT_RUN = 2


def add_triage(app: typer.Typer) -> None:
    """Give an app the command ``triage``."""
    app.command("triage")(triage)


def triage(
    suite: Annotated[Path, typer.Argument(help="a suite, a campaign's folder, or a folder of inputs to label")],
    sample: Annotated[
        int | None, typer.Option(help="cases drawn at random to estimate the share of valid ones; 100 at first", min=1)
    ] = None,
    of: Annotated[str | None, typer.Option(help="what is drawn from: failures (at first), or all")] = None,
    seed: Annotated[int | None, typer.Option(help="of the draw; 0 at first")] = None,
    by: Annotated[str | None, typer.Option(help="your name; the page can change it")] = None,
    blind: Annotated[bool, typer.Option(help="hide the model's answers")] = False,
    classes: Annotated[str | None, typer.Option(help="names of the classes, cat,dog,...; or how many, 10")] = None,
    bounds: Annotated[
        tuple[float, float] | None, typer.Option(help="smallest and largest value of a pixel, if not 0 and 1")
    ] = None,
    port: Annotated[int, typer.Option(help="to serve at; any that is free unless given", min=0, max=65535)] = 0,
    browser: Annotated[bool, typer.Option(help="open the page in a browser")] = True,
    csv: Annotated[Path | None, typer.Option(help="write a table of all verdicts here, and serve nothing")] = None,
    pictures: Annotated[Path | None, typer.Option(help="write the valid cases here as pictures, a folder a class")] = (
        None
    ),
) -> None:
    """Open a page where people call each case valid, invalid or unsure; or label the inputs a campaign waits for.

    Only this machine can reach the page. Exit code 0: it was ended with Ctrl-C; 2: it could not run.
    """
    console = Console(highlight=False)
    try:
        if csv is not None or pictures is not None:
            _export(console, suite_in(suite), csv, pictures, _names(classes), bounds)
            return
        desk = open_desk(
            suite,
            plan=_plan(suite, sample, of, seed),
            classes=_names(classes),
            bounds=bounds,
            by=by or _user(),
            blind=blind,
        )
        serve(desk, port=port, open_browser=browser, on_start=lambda address: _tell(console, address))
        if not isinstance(desk, LabelDesk):
            _sum_up(console, desk.path)
    except (ValueError, OSError) as error:
        Console(stderr=True, highlight=False).print(f"[bold red]cannot run:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(CANNOT_RUN) from None


def _tell(console: Console, address: str) -> None:
    console.print(escape(address), soft_wrap=True)
    console.print("Open it in a browser on this machine; Ctrl-C ends. What is marked is on disk.", soft_wrap=True)


def _sum_up(console: Console, path: Path) -> None:
    if (share := valid_share(path)) is not None:
        console.print(escape(str(share)), soft_wrap=True)
    for pair in agreement(path):
        console.print(escape(str(pair)), soft_wrap=True)


def _export(
    console: Console,
    suite: Path,
    csv: Path | None,
    pictures: Path | None,
    classes: tuple[str, ...],
    bounds: tuple[float, float] | None,
) -> None:
    about = about_of(suite)
    classes = classes or (about.classes if about else ())
    if csv is not None:
        console.print(escape(f"verdicts: {export_csv(suite, csv, classes=classes)}"), soft_wrap=True)
    if pictures is not None:
        n = export_pictures(suite, pictures, classes=classes, bounds=bounds or (about.bounds if about else None))
        console.print(escape(f"valid cases: {n} pictures in {pictures}"), soft_wrap=True)


def _plan(place: Path, sample: int | None, of: str | None, seed: int | None) -> SamplePlan | None:
    """The sample that is asked for; what is not named is as it was begun with. None if nothing is."""
    given = {"n": sample, "of": of, "seed": seed}
    told: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if not told or labels_in(place) is not None:
        return None
    return replace(latest_plan(suite_in(place)), **told)


def _names(text: str | None) -> tuple[str, ...]:
    """Class names from a list with commas, or from how many there are."""
    if text is None:
        return ()
    if text.strip().isdecimal():
        return tuple(map(str, range(int(text))))
    return tuple(name.strip() for name in text.split(","))


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "me"
