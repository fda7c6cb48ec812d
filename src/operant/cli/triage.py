"""``operant triage``."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from operant.cli.activities import loading
from operant.cli.options import CONFIG, config_here
from operant.cli.output import exit_on_error, print_line

if TYPE_CHECKING:
    from operant.triage import SamplePlan
    from operant.triage.label_desk import LabelDesk


def triage(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="A suite, the folder of a campaign, or a folder of inputs to label.",
            show_default="what the campaign of operant.toml waits for, or its cases",
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(
            help="Number of cases drawn at random to estimate the share of valid ones.",
            min=1,
            show_default="100, then the last value",
        ),
    ] = None,
    of: Annotated[
        str | None,
        typer.Option(help="Cases to draw from: failures or all.", show_default="failures, then the last value"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed of the draw.", show_default="0, then the last value")
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="Your name; it can be changed on the page.", show_default="name of the account")
    ] = None,
    blind: Annotated[bool, typer.Option(help="Hide the predictions of the model.")] = False,
    classes: Annotated[
        str | None, typer.Option(help="Names of the classes (cat,dog,...), or their number (10).")
    ] = None,
    bounds: Annotated[
        tuple[float, float] | None,
        typer.Option(help="Smallest and largest value of a pixel.", show_default="taken from the cases"),
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(help="Labelled data for pages of inputs to label: one example of each class is shown."),
    ] = None,
    port: Annotated[int, typer.Option(help="Port to serve at; 0 is any free one.", min=0, max=65535)] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    csv: Annotated[
        Path | None, typer.Option(help="Write a table of all verdicts to this file instead of serving.")
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(help="Write the valid cases to this folder as pictures, one folder per class, without serving."),
    ] = None,
) -> None:
    """Open a page where people judge cases as valid, invalid or unsure, or label the inputs a campaign waits for.

    Only this machine can reach the page. Exit code 0: ended with Ctrl-C; 2: it could not run.
    """
    with exit_on_error():
        with loading("operant triage"):
            from operant.activity import activity
            from operant.data import read_samples
            from operant.triage import open_desk, serve
            from operant.triage.label_desk import LabelDesk

        folder = folder or _folder_here()
        if csv is not None or pictures is not None:
            _export(folder, csv, pictures, _class_names(classes), bounds)
            return
        with activity(f"opening {folder}"):
            desk = open_desk(
                folder,
                plan=_sampling_plan(folder, sample, of, seed),
                classes=_class_names(classes),
                bounds=bounds,
                by=by or _user(),
                blind=blind,
                examples=None if examples is None else read_samples(examples, part="train"),
            )
        serve(desk, port=port, open_browser=browser, on_start=_print_address)
        if isinstance(desk, LabelDesk):
            _print_progress(desk)
        else:
            _print_summary(desk.path)


def _folder_here() -> Path:
    """The cases of the campaign here; while it runs, the inputs that it waits to have labelled, if any."""
    from operant.triage.opening import labels_in

    config = config_here()
    if config is None:
        raise ValueError(f"name a folder to open, or run this in a folder with {CONFIG}")
    run = config.path(config.run.folder)
    waiting = config.labels.folder and labels_in(config.path(config.labels.folder))
    return waiting if waiting and not (run / "cases" / "manifest.json").is_file() else run


def _print_address(address: str) -> None:
    print_line(f"{address}\nOpen it in a browser on this machine; it works once.")
    print_line("Every answer is saved at once; press Ctrl-C to end.")


def _print_progress(desk: LabelDesk) -> None:
    """Print how many inputs have labels, and what to run next."""
    done, inputs = desk.counts()
    print_line(f"{done} of {inputs} inputs have labels; {_next_step(desk.folder, finished=done == inputs)}")
    for note in desk.notes():
        print_line(note)


def _next_step(folder: Path, *, finished: bool) -> str:
    """What to run after labelling: what asked for the labels, or this again."""
    if not finished:
        return f"to label the others, run `operant triage {folder}` again"
    config = config_here()
    campaign = config is not None and config.labels.folder and config.path(config.labels.folder).resolve() == folder
    return f"run `{'operant run' if campaign else 'operant run` or `operant assess'}` again, which asked for them"


def _print_summary(suite: Path) -> None:
    from operant.activity import activity
    from operant.triage import agreement, valid_share

    with activity("summarising the verdicts"):
        share, agreed = valid_share(suite), agreement(suite)
    if share is None:
        print_line("No case has a verdict yet, so there is no share of valid ones")
    for result in (*([share] if share else []), *agreed):
        print_line(str(result))


def _export(
    folder: Path,
    csv: Path | None,
    pictures: Path | None,
    classes: tuple[str, ...],
    bounds: tuple[float, float] | None,
) -> None:
    from operant.activity import activity
    from operant.triage import export_csv, export_pictures
    from operant.triage.opening import about_of, suite_in

    suite = suite_in(folder)
    about = about_of(suite)
    classes = classes or (about.classes if about else ())
    if csv is not None:
        with activity(f"writing {csv}"):
            written = export_csv(suite, csv, classes=classes)
        print_line(f"verdicts: {written}")
    if pictures is not None:
        with activity(f"writing pictures to {pictures}"):
            n = export_pictures(suite, pictures, classes=classes, bounds=bounds or (about.bounds if about else None))
        print_line(f"valid cases: {n} pictures in {pictures}")


def _sampling_plan(folder: Path, sample: int | None, of: str | None, seed: int | None) -> SamplePlan | None:
    """The last plan with the given values replaced; None if none is given, or if inputs are to be labelled."""
    from dataclasses import replace

    from operant.triage.opening import labels_in, suite_in
    from operant.triage.sampling import latest_plan

    options = {"n": sample, "of": of, "seed": seed}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if not given or labels_in(folder) is not None:
        return None
    return replace(latest_plan(suite_in(folder)), **given)


def _class_names(text: str | None) -> tuple[str, ...]:
    """Class names from a list with commas, or from their number.

    >>> _class_names("cat, dog"), _class_names("3")
    (('cat', 'dog'), ('0', '1', '2'))
    """
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
