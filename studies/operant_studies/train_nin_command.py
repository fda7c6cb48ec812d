"""The command ``python -m operant_studies.train_nin``: trains NIN on CIFAR-10 for a given time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from operant.activity import showing_on
from operant.cli.options import Seed
from operant.cli.output import exit_on_error, print_line
from operant.data import load
from operant_studies.train_nin import NINRecipe, checkpoint_of, train_nin

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def train_nin_command(
    data: Annotated[Path, typer.Option(help="Folder with CIFAR-10.")],
    out: Annotated[Path, typer.Option(help="Safetensors file to write; an unfinished training is resumed.")],
    minutes: Annotated[float, typer.Option(help="Training time, without evaluation.")] = NINRecipe.minutes,
    width: Annotated[int, typer.Option(help="Channels of the widest layers; the paper has 192.")] = NINRecipe.width,
    bfloat16: Annotated[
        bool,
        typer.Option("--bfloat16", help="Compute convolutions in bfloat16: twice as fast if the CPU supports it."),
    ] = NINRecipe.bfloat16,
    seed: Seed = NINRecipe.seed,
) -> None:
    """Train NIN on CIFAR-10 and write its weights, with accuracy and recipe in a JSON file beside them.

    Exit code 0: the files are written; 2: it could not run; 130: stopped with Ctrl-C. The same command resumes.
    """
    console = Console(stderr=True, highlight=False)
    with exit_on_error(resume="run the same command again", kept=checkpoint_of(out).exists), showing_on(console):
        images = load("cifar10", data)
        recipe = NINRecipe(minutes=minutes, width=width, bfloat16=bfloat16, seed=seed)
        trained = train_nin(images.train, images.test, out, recipe=recipe, console=console)
    print_line(f"{trained}\nweights: {out}")
