"""Options that several commands share, and the classifier they describe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from operant.model import Classifier

Model = Annotated[
    str, typer.Argument(help="package.module:callable that builds the PyTorch module when called without arguments.")
]
Weights = Annotated[Path | None, typer.Option(help="Safetensors file with the weights of the module.")]
Bounds = Annotated[tuple[float, float], typer.Option(help="Smallest and largest value of an input.")]
Mean = Annotated[
    str | None,
    typer.Option(help="Mean that the module expects to be subtracted: 0.5, or one per channel: 0.49,0.48,0.45."),
]
Std = Annotated[
    str | None,
    typer.Option(help="Standard deviation that the module expects inputs to be divided by, written like --mean."),
]
Size = Annotated[tuple[int, int] | None, typer.Option(help="Resize pictures to this height and width.")]
Seed = Annotated[int, typer.Option(help="Random seed.")]


def load_classifier(
    model: str, weights: Path | None, bounds: tuple[float, float], mean: str | None, std: str | None
) -> Classifier:
    """The classifier that the shared options describe."""
    from operant.activity import activity

    with activity(f"building the model {model}"):
        from operant.model import Classifier
        from operant.model.importing import build_module
        from operant.networks import load_weights

        module = build_module(model)
        if weights is not None:
            load_weights(module, weights)
        return Classifier(module, bounds=bounds, mean=parse_numbers(mean, "mean"), std=parse_numbers(std, "std"))


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
