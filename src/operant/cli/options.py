"""Options that several commands share, and the classifier they describe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from operant.cli.output import print_line

if TYPE_CHECKING:
    from torch import Tensor

    from operant.campaign.config import Config
    from operant.model import Classifier
    from operant.types import StoredLabels

CONFIG = Path("operant.toml")

ModelOrConfig = Annotated[
    str | None,
    typer.Argument(
        help="package.module:callable or file.py:callable that builds the PyTorch module when called without "
        "arguments.",
        show_default="[model] of operant.toml in this folder",
    ),
]
Weights = Annotated[Path | None, typer.Option(help="Safetensors file with the weights of the module.")]
Bounds = Annotated[
    tuple[float, float] | None, typer.Option(help="Smallest and largest value of an input.", show_default="0 1")
]
Mean = Annotated[
    str | None,
    typer.Option(help="Mean that the module expects to be subtracted: 0.5, or one per channel: 0.49,0.48,0.45."),
]
Std = Annotated[
    str | None,
    typer.Option(help="Standard deviation that the module expects inputs to be divided by, written like --mean."),
]
Size = Annotated[tuple[int, int] | None, typer.Option(help="Resize pictures to this height and width.")]
LabelsFile = Annotated[
    Path | None,
    typer.Option(
        help="Labels in a file of their own, as [labels] file names it: a table (csv) with name,label, or an npz file "
        "with x and y."
    ),
]
FieldFile = Annotated[
    Path | None,
    typer.Option(
        help="Field data: an npz file, or a folder of pictures; labels are ignored.",
        show_default="[data] field of operant.toml",
    ),
]
TrainFile = Annotated[
    Path | None,
    typer.Option(help="Training data of the model.", show_default="[data] train of operant.toml"),
]
CleanFile = Annotated[
    Path | None,
    typer.Option(
        help="Labelled data that the model was not trained on.",
        show_default="[data] clean of operant.toml, or a tenth of the training data",
    ),
]
FieldGroups = Annotated[
    Path | None,
    typer.Option(
        help="Table (csv) with file,group for all field inputs.",
        show_default="[data] groups of operant.toml, for its field",
    ),
]
Seed = Annotated[int, typer.Option(help="Random seed.")]


def load_classifier(
    model: str | None,
    weights: Path | None,
    bounds: tuple[float, float] | None,
    mean: str | None,
    std: str | None,
    *,
    config: Config | None = None,
) -> Classifier:
    """The classifier that the shared options describe; without a model, the configuration's, with options replaced."""
    from operant.activity import activity
    from operant.campaign.build import build_model
    from operant.model import Classifier
    from operant.model.importing import build_module
    from operant.networks import load_weights

    numbers = {"bounds": bounds, "mean": parse_numbers(mean, "mean"), "std": parse_numbers(std, "std")}
    given: dict[str, Any] = {name: value for name, value in numbers.items() if value is not None}
    if model is None:
        if config is None:
            raise ValueError(f"there is no model: name one, or run this in a folder with {CONFIG}")
        if weights is not None:
            given["weights"] = str(weights.resolve())
        return build_model(config.model_copy(update={"model": config.model.model_copy(update=given)}), [])
    with activity(f"building the model {model}"):
        module = build_module(model)
        if weights is not None:
            load_weights(module, weights)
        return Classifier(module, **given)


def read_labels_file(
    path: Path,
    model: Classifier,
    x: Tensor,
    names: dict[str, int],
    class_names: tuple[str, ...],
    *,
    note: Callable[[str], None] = print_line,
) -> StoredLabels:
    """The labeller of ``--labels-file`` for inputs like ``x``, which have these names.

    Notes unused rows, and that only numbers can be read if classes have no names.
    """
    from operant.campaign.build import labels_from_file

    notes: list[str] = []
    classes = model.classes(x[:1])
    labeller = labels_from_file(path, classes, names, class_names, notes)
    if path.suffix == ".csv" and not class_names:
        notes.append(
            f"{path}: labels are read as numbers from 0 to {classes - 1}, since the names of the classes are unknown "
            f"([data] train or classes of {CONFIG} gives them)"
        )
    for text in notes:
        note(text)
    return labeller


def config_here() -> Config | None:
    """The ``operant.toml`` of the current folder, if there is one; files are read with its limit."""
    from operant.campaign.config import load_config
    from operant.files import set_max_bytes

    config = load_config(CONFIG) if CONFIG.is_file() else None
    set_max_bytes(None if config is None else config.data.max_bytes)
    return config


def run_folder() -> Path:
    """The folder of the campaign that ``operant run`` would run here."""
    config = config_here()
    return Path("operant-run") if config is None else config.path(config.run.folder)


def campaign_folder(given: Path | None) -> Path | None:
    """The folder of the given campaign, or of the one here if it exists."""
    from operant.execution.run_folder import RUN

    folder = from_here(run_folder()) if given is None else given
    if (folder / RUN).is_file():
        return folder
    if given is not None:
        raise ValueError(
            f"{folder} is not a campaign's folder: it has no {RUN}; give the folder that `operant run` wrote"
        )
    return None


def from_here(path: Path) -> Path:
    """A path as seen from the current folder, if it is below: results are given to others, on other machines."""
    here = Path.cwd()
    return path.resolve().relative_to(here) if path.resolve().is_relative_to(here) else path


def parse_numbers(text: str | None, option: str) -> float | list[float] | None:
    """The value of ``--mean`` or ``--std``.

    >>> parse_numbers("0.5", "mean"), parse_numbers("0.4,0.5,0.6", "mean")
    (0.5, [0.4, 0.5, 0.6])
    """
    if text is None:
        return None
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--{option} must be a number, or numbers separated by commas, got {text!r}") from None
    return values[0] if len(values) == 1 else values
