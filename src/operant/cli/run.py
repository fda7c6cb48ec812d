"""``operant run``: prints notes, progress (campaign/progress.py) and the result (campaign/records.py)."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from operant.cli.activities import loading
from operant.cli.output import NOT_MET, Output, check_model, exit_on_error, keeps_work, print_line, sentence_of

if TYPE_CHECKING:
    from operant.campaign.build import CampaignJob
    from operant.campaign.records import CampaignResult
    from operant.execution.events import Event


def run(
    config: Annotated[Path, typer.Argument(help="Configuration of the campaign; `operant init` writes one.")] = Path(
        "operant.toml"
    ),
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but warnings and the result.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line: notes, events, then the result or an error.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(help="Number of processes; replaces the value in the configuration.", min=1)
    ] = None,
) -> None:
    """Find operational failures, retrain and assess until the requirement is met. Resumes a campaign that was stopped.

    Exit code 0: the requirement is met with confidence; 1: it is not; 2: labels are missing, or it could not run; 130,
    143 or 129: stopped with Ctrl-C, SIGTERM or SIGHUP. The same command resumes.
    """
    started, output = time.monotonic(), Output(quiet=quiet, as_json=as_json)
    folders: list[Path] = []  # of the campaign, once it is known
    with exit_on_error(output, resume=f"operant run {config}", kept=lambda: any(map(keeps_work, folders))):
        with loading(f"operant run {config}"):
            from operant.campaign.build import build
            from operant.campaign.config import load_config
            from operant.execution.run_folder import finished
            from operant.execution.timing import Stopwatch

        settings = load_config(config)
        folders.append(settings.path(settings.run.folder))
        begun = finished(folders[0] / "info.json")
        job = build(
            settings,
            workers=workers,
            stopwatch=Stopwatch(started=started),
            check=lambda model, clean: check_model(model, clean, output, resumed=begun),
        )
        known = _earlier_notes(job) if begun else ()  # a campaign that has begun printed them
        for note in job.notes:
            if note not in known:
                output.note(note)
        for finding in () if begun else job.findings:
            output.warn(str(finding))
        result = _run_campaign(job, output)
        _print_result(result, job, output)
    if not result.met:
        raise typer.Exit(NOT_MET)


def _earlier_notes(job: CampaignJob) -> tuple[str, ...]:
    """The notes of the last session; the present ones if it cannot be read, which the campaign then reports."""
    from operant.campaign.records import CampaignInfo
    from operant.results import load

    try:
        return load(job.folder / "info.json", CampaignInfo).notes
    except (OSError, ValueError):
        return job.notes


def _run_campaign(job: CampaignJob, output: Output) -> CampaignResult:
    """Run the campaign with its progress shown; missing labels are reported with the state of the round."""
    from rich.console import Console

    from operant.campaign.progress import show_progress, step_title
    from operant.data import LabelsMissing

    last: list[Event] = []
    with show_progress(Console(highlight=False), quiet=output.quiet, as_json=output.as_json) as show:

        def on_event(event: Event) -> None:
            last[:] = [event]
            try:
                show(event)
            except OSError as error:  # the terminal is gone; SIGHUP ends the command, unless nohup ignores it
                if error.errno != errno.EIO:
                    raise

        try:
            return job.run(on_event=on_event)
        except LabelsMissing as missing:
            options = job.campaign
            state = [f"{step_title(e).capitalize()}: {e.done} of at most {e.total} labels. " for e in last]
            raise LabelsMissing(
                f"{missing}. {''.join(state)}Labels are requested in batches of {options.label_batch}, at most "
                f"{options.labels} in all rounds ([budget] label_batch and labels)"
            ) from None


def _print_result(result: CampaignResult, job: CampaignJob, output: Output) -> None:
    """Print what the campaign achieved, where its files are, and how long it took."""
    from operant.campaign.progress import describe_times, result_json, seconds_by_part
    from operant.execution.run_folder import RunFolder

    with job.stopwatch.timed("report"):
        paths = _output_paths(job.folder, output)
    seconds = seconds_by_part(RunFolder(job.folder).times())
    if output.as_json:
        output.json(**result_json(result, **{name: str(path) for name, path in paths.items()}, seconds=seconds))
        return
    already = result.met and len(result.rounds) == 1
    label, colour = ("already met" if already else "met", "green") if result.met else ("not met", "red")
    print_line(str(result), label=label, colour=colour)
    lines = ["The initial model was good enough: nothing was searched or retrained."] if already else []
    lines += [f"{name}: {path}" for name, path in paths.items()]
    lines += [f"time: {describe_times(seconds)}"] if seconds else []
    print_line("\n".join(lines))


def _output_paths(folder: Path, output: Output) -> dict[str, Path]:
    """The files of the campaign; a report that cannot be written does not change how the campaign ended."""
    from operant.campaign.observers.risk import RISKS
    from operant.report import write_report

    paths = {"model": folder / "model.safetensors", "suite": folder / "cases"}
    try:
        paths["report"] = write_report(folder)
        paths["risks"] = folder / RISKS
    except Exception as error:
        output.warn(f"the report could not be written: {sentence_of(error)}. To try again: operant report {folder}")
    return {name: path for name, path in paths.items() if path.exists()}
