"""The commands of a campaign: `operant init` writes an example configuration, `operant run` runs it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from operant.assess import LabelsMissing
from operant.campaign.building import Ready, build
from operant.campaign.config import load_config
from operant.campaign.initial import NAME, Found, write_example
from operant.campaign.progress import print_json, result_json, watching
from operant.campaign.rounds import Delivered
from operant.networks import save_weights
from operant.results import TEMPORARY

NOT_MET = 1
CANNOT_RUN = 2
STOPPED = 130


def add_commands(app: typer.Typer) -> None:
    """Give an app the commands ``run`` and ``init``."""
    app.command("init")(init)
    app.command("run")(run)


# init


def init(
    folder: Annotated[Path, typer.Argument(help="folder that holds your model and data")] = Path(),
) -> None:
    """Look at the files of a folder and write an example operant.toml there; one that is there already is kept."""
    console = Console(highlight=False)
    try:
        path, found = write_example(folder)
    except (ValueError, OSError) as error:
        _cannot_run(str(error))
    _print(console, f"wrote {path}")
    _print(console, _next_steps(path, found))


def _next_steps(path: Path, found: Found) -> str:
    """What was found, and what is left to do."""
    lines = [
        f"  [{table}] {key} = {value}" for (table, key), value in found.values.items() if table in ("model", "data")
    ]
    lines += [f"  {key}: not found, fill it in" for key in found.missing]
    lines.append(f"Look through {path}, above all [requirement] pmi, which is yours to decide. Then:")
    return "\n".join([*lines, f"  operant run {path}"])


# run


def run(
    config: Annotated[Path, typer.Argument(help="the configuration; `operant init` writes one")] = Path(NAME),
    quiet: Annotated[bool, typer.Option("--quiet", help="say nothing before the result")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="one JSON object a line: each event, then the result")
    ] = False,
    workers: Annotated[int | None, typer.Option(help="processes; in place of the configuration's", min=1)] = None,
) -> None:
    """Find operational failures, retrain with them and assess, until the requirement is met; or go on with it.

    Exit code 0: the requirement is met with confidence; 1: it is not; 2: labels are missing, or it could not run; 130:
    stopped with Ctrl-C. The same command goes on where it stopped.
    """
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    again = f"operant run {config}"
    try:
        ready = build(load_config(config), workers=workers)
        if not (quiet or as_json):
            _print(console, "\n".join(ready.notes))
        _see_the_doctor(ready, errors)
        with watching(console, quiet=quiet, as_json=as_json) as watch:
            delivered = ready.run(watch=watch)
        kept = keep(delivered, ready.folder)
    except LabelsMissing as missing:
        errors.print(f"[yellow]labels needed:[/] {escape(str(missing))} ({escape(again)})", soft_wrap=True)
        raise typer.Exit(CANNOT_RUN) from None
    except KeyboardInterrupt as stop:
        told = str(stop) or "stopped; what is finished is kept"
        _print(errors, f"{told}. To go on: {again}")
        raise typer.Exit(STOPPED) from None
    except (ValueError, TypeError, OSError, RuntimeError, MemoryError) as error:  # the user's module may raise any
        _cannot_run(str(error) or type(error).__name__)
    if as_json:
        print_json(console, result_json(delivered, **{name: str(path) for name, path in kept.items()}))
    else:
        _print_result(console, delivered, kept)
    if not delivered.met:
        raise typer.Exit(NOT_MET)


def _see_the_doctor(ready: Ready, errors: Console) -> None:
    """Refuse what would make every result meaningless, and tell what could."""
    findings = ready.model.doctor(ready.clean)
    for finding in findings:
        _print(errors, str(finding))
    if any(finding.severity == "error" for finding in findings):
        raise ValueError("the doctor found errors that would make every result meaningless; mend them first")


def keep(delivered: Delivered, folder: Path) -> dict[str, Path]:
    """Put what the user came for where it is easily found; what it is made of is in the folders of the rounds."""
    kept = {"model": folder / "model.safetensors"}
    save_weights(delivered.model.unwrap(), kept["model"])
    if delivered.suite is not None:
        kept["suite"] = folder / f"cases-{delivered.suite.digest()[:12]}"
        if not kept["suite"].exists():
            room = kept["suite"].with_name(f".{kept['suite'].name}{TEMPORARY}")  # whole, or not there
            shutil.rmtree(room, ignore_errors=True)
            delivered.suite.save(room)
            room.rename(kept["suite"])
    return kept


def _print_result(console: Console, delivered: Delivered, kept: dict[str, Path]) -> None:
    already = delivered.met and len(delivered.rounds) == 1
    colour, word = ("green", "already met" if already else "met") if delivered.met else ("red", "not met")
    console.print(f"[{colour}]{word}[/]: {escape(str(delivered))}", soft_wrap=True)
    if already:
        _print(console, "The model was good enough as it came: nothing was searched or retrained.")
    for name, path in kept.items():
        _print(console, f"{name}: {path}")


# Small things


def _print(console: Console, text: str) -> None:
    if text:
        console.print(escape(text), soft_wrap=True)


def _cannot_run(why: str) -> NoReturn:
    """Tell why in one sentence, without a traceback."""
    Console(stderr=True, highlight=False).print(f"[bold red]cannot run:[/] {escape(why)}", soft_wrap=True)
    raise typer.Exit(CANNOT_RUN)
