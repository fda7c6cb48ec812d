"""``operant robot``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from operant.cli.activities import loading
from operant.cli.options import (
    CONFIG,
    Bounds,
    Mean,
    ModelOrConfig,
    Seed,
    Size,
    Std,
    Weights,
    config_here,
    load_classifier,
)
from operant.cli.output import NOT_MET, Output, check_model, exit_on_error, keeps_work, print_line

if TYPE_CHECKING:
    from operant.campaign.config import Config
    from operant.data import Samples
    from operant.model import Classifier


def robot(
    radius: Annotated[float, typer.Option(help="Maximum change of each value of an input.")],
    requirement: Annotated[
        float, typer.Option(help="Share of test inputs, 0 to 1, that must stay correct under FGSM and PGD.")
    ],
    model: ModelOrConfig = None,
    train: Annotated[
        Path | None,
        typer.Option(
            help="Training data: an npz file with x and y, or a folder of pictures.",
            show_default="[data] train of operant.toml",
        ),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            help="Test data on which the requirement is checked; never trained on.",
            show_default="[data] clean of operant.toml",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the run; an existing run is resumed.")] = Path("operant-robot"),
    weights: Weights = None,
    bounds: Bounds = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    mode: Annotated[
        str, typer.Option(help="adaptive: attack the current model; static: reuse cases made against the initial one.")
    ] = "adaptive",
    rounds: Annotated[int, typer.Option(help="Maximum number of rounds of fuzzing and retraining.")] = 5,
    seeds_per_round: Annotated[int, typer.Option(help="Training inputs to fuzz in each round.")] = 1000,
    cases_per_round: Annotated[int, typer.Option(help="Maximum number of failures to retrain with per round.")] = 1000,
    epochs: Annotated[int, typer.Option(help="Epochs of each retraining.")] = 10,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of each retraining.")] = 1e-3,
    max_drop: Annotated[float, typer.Option(help="Maximum loss of clean accuracy over all rounds.")] = 0.01,
    seed: Seed = 0,
) -> None:
    """Retrain a model with failures that FOL-Fuzz finds until it is robust enough.

    A tenth of the training data is used to choose the epoch. The model and the data that are not given are taken from
    the operant.toml of the current folder, if there is one.

    Exit code 0: the requirement is met; 1: it is not; 2: it
    could not run; 130, 143 or 129: stopped with Ctrl-C, SIGTERM or SIGHUP. The same command resumes.
    """
    with exit_on_error(resume=f"run the same command again (folder {out})", kept=partial(keeps_work, out)):
        with loading("operant robot"):
            from rich.console import Console

            from operant.generate import FGSM, PGD, FOLFuzz
            from operant.networks import save_weights
            from operant.retrain import Finetune
            from operant.robot import RobOT

        config = config_here()
        classifier = load_classifier(model, weights, bounds, mean, std, config=config)
        parts = _read_parts(classifier, train, test, size, config)
        check_model(classifier, parts["test"], Output(), resumed=keeps_work(out))
        loop = RobOT(
            fuzz=FOLFuzz(radius=radius),
            attacks={"fgsm": FGSM(radius=radius), "pgd": PGD(radius=radius)},
            requirement=requirement,
            mode=mode,
            rounds=rounds,
            seeds_per_round=seeds_per_round,
            cases_per_round=cases_per_round,
            max_drop=max_drop,
            retrainer=Finetune(epochs=epochs, learning_rate=learning_rate),
        )
        result = loop(
            classifier,
            parts["train"],
            validation=parts["validation"],
            test=parts["test"],
            folder=out,
            seed=seed,
            console=Console(highlight=False),
        )
        save_weights(result.model.unwrap(), out / "model.safetensors")
        print_line(f"{result}\nweights: {out / 'model.safetensors'}")
    if not result.met:
        raise typer.Exit(NOT_MET)


def _read_parts(
    model: Classifier, train: Path | None, test: Path | None, size: tuple[int, int] | None, config: Config | None
) -> dict[str, Samples]:
    """Labelled training, validation (a tenth of the training data) and test samples."""
    from operant.campaign.build import data_options

    if test is None and config is not None and config.data.clean is not None:
        test = config.path(config.data.clean)
    options = data_options(config, train=train, size=size)
    read = {}
    for part, path in {"train": options.train, "test": test}.items():
        if path is None:
            key = "train" if part == "train" else "clean"
            raise ValueError(f"there are no {part} data: give --{part}, or [data] {key} in the {CONFIG} of this folder")
        read[part] = model.match_dtype(options.read(path, part=part))
        if read[part].y is None:
            raise ValueError(f"{path} holds no labels, and --{part} needs them; save y beside x")
    if read["train"].classes:  # also names those of test data that have only numbers
        read["test"] = read["test"].in_classes(read["train"].classes)
    parts = read["train"].split(train=0.9, validation=0.1)
    if not all(map(len, parts.values())):
        got = f"{options.train} holds only {len(read['train'])} inputs"
        raise ValueError(f"{got}; a tenth must remain to choose the epoch")
    return {**parts, "test": read["test"]}
