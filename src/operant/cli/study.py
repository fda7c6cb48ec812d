"""``operant study``: runs studies that packages provide as entry points of the group ``operant.studies``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from operant.cli.activities import loading
from operant.cli.output import exit_on_error

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "operant.studies"


def study(
    name: Annotated[str | None, typer.Argument(help="Name of the study; without it, all names are listed.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with the data sets; the scale smoke needs none.")] = None,
    scale: Annotated[str, typer.Option(help="smoke (minutes), small (hours) or paper.")] = "small",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write to; an existing study is resumed.", show_default="operant-study-NAME-SCALE"),
    ] = None,
    workers: Annotated[int, typer.Option(help="Number of processes, each with one thread.")] = 2,
    rivals: Annotated[bool, typer.Option("--rivals", help="For robot: compare with four more fuzzers.")] = False,
    kuk: Annotated[
        Path | None, typer.Option(help="For defences and enhance: folder of a kuk study whose suites are used.")
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="For kuk, defences and enhance: NIN weights from `python -m operant_studies.train_nin`."),
    ] = None,
) -> None:
    """Rerun the experiments of a paper, with controls and intervals, and write a page of tables and pictures."""
    studies = installed_studies()
    if name is None and studies:
        print("\n".join(studies))
        return
    folder = out or Path(f"operant-study-{name}-{scale}")
    kept = partial(_holds_files, folder)
    with exit_on_error(resume=f"run the same command again (folder {folder})", kept=kept):
        with loading("operant study"):
            from rich.console import Console

            from operant.activity import activity

            run_study = _load(name, studies)
            options = _accepted_options(name, studies, {"rivals": rivals, "kuk": kuk, "weights": weights})
        with activity(f"study {name}"):
            page = run_study(folder, data=data, scale=scale, workers=workers, console=Console(stderr=True), **options)
    print(page)


def _holds_files(folder: Path) -> bool:
    return any(path.is_file() for path in folder.rglob("*"))


def installed_studies() -> dict[str, EntryPoint]:
    """Every installed study by its name."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


def _load(name: str | None, studies: Mapping[str, EntryPoint]) -> Callable[..., Path]:
    """The function that runs a study."""
    if not studies:
        raise ValueError("no studies are installed; run `pip install -e studies` in a clone of the Operant repository")
    if name is None or name not in studies:
        raise ValueError(f"there is no study named {name}; choose one of {', '.join(studies)}")
    try:
        run_study: Callable[..., Path] = studies[name].load()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the study {name} cannot be imported from {studies[name].value}: {error}") from error
    return run_study


def _accepted_options(name: str | None, studies: Mapping[str, EntryPoint], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are set; an option that the study does not accept is an error."""
    options = {option: value for option, value in values.items() if value}
    for option in options:
        accepting = [other for other in studies if _accepts(other, studies, option)]
        if name not in accepting:
            only = f"an option of {', '.join(accepting)} alone, not" if accepting else "not an option"
            raise ValueError(f"--{option} is {only} of {name}; leave it out")
    return options


def _accepts(name: str, studies: Mapping[str, EntryPoint], option: str) -> bool:
    try:
        parameters = signature(_load(name, studies)).parameters.values()
    except ValueError:  # a study that cannot be imported accepts nothing
        return False
    return any(p.name == option or p.kind is p.VAR_KEYWORD for p in parameters)
