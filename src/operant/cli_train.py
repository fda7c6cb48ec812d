"""The command `operant train-nin`: trains NIN on CIFAR-10 in the time it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from operant.data import load
from operant_studies.train_nin import NINRecipe, train_nin

CANNOT_RUN = 2
STOPPED = 130


def add_train(app: typer.Typer) -> None:
    """Give an app the command ``train-nin``."""
    app.command("train-nin")(train_nin_command)


def train_nin_command(
    data: Annotated[Path, typer.Option(help="folder with CIFAR-10")],
    out: Annotated[Path, typer.Option(help="safetensors file to write; named again, the training goes on")],
    minutes: Annotated[float, typer.Option(help="time to train; evaluation comes on top")] = NINRecipe.minutes,
    width: Annotated[int, typer.Option(help="channels of the widest layers; 192 in the paper")] = NINRecipe.width,
    bfloat16: Annotated[
        bool,
        typer.Option("--bfloat16", help="convolutions in half the bits: about twice as fast if the CPU knows them"),
    ] = NINRecipe.bfloat16,
    seed: Annotated[int, typer.Option(help="of everything random")] = NINRecipe.seed,
) -> None:
    """Train NIN on CIFAR-10 and write its weights, and accuracy and recipe to a JSON file beside them.

    Exit code 0: they are written; 2: it could not run.
    """
    try:
        images = load("cifar10", data)
        recipe = NINRecipe(minutes=minutes, width=width, bfloat16=bfloat16, seed=seed)
        told = Console(stderr=True, highlight=False)
        trained = train_nin(images.train, images.test, out, recipe=recipe, console=told)
    except (ValueError, OSError) as error:
        _end(f"[bold red]cannot run:[/] {escape(str(error))}", CANNOT_RUN)
    except KeyboardInterrupt:
        _end(escape(f"stopped; the last finished epoch lies beside {out}: the same command goes on from it"), STOPPED)
    console = Console(highlight=False)
    console.print(escape(str(trained)), soft_wrap=True)
    console.print(escape(f"weights: {out}"), soft_wrap=True)


def _end(words: str, code: int) -> NoReturn:
    Console(stderr=True, highlight=False).print(words, soft_wrap=True)
    raise typer.Exit(code)
