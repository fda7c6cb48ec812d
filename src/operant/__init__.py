"""Operant tests and hardens deep-learning classifiers for the way they will be used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from operant.data import (
        Dataset,
        Samples,
        load,
        load_digits,
        samples_from_folder,
        samples_from_npz,
        samples_from_pictures,
    )
    from operant.model import Classifier
    from operant.model.doctor import Finding
    from operant.rng import spawn
    from operant.suite import Suite, add_columns
    from operant.types import Density, Fuzzer, Labeller, Monitor, Score

__version__ = "0.1.0"

__all__ = [
    "Classifier",
    "Dataset",
    "Density",
    "Finding",
    "Fuzzer",
    "Labeller",
    "Monitor",
    "Samples",
    "Score",
    "Suite",
    "add_columns",
    "load",
    "load_digits",
    "samples_from_folder",
    "samples_from_npz",
    "samples_from_pictures",
    "spawn",
]

# Read when first asked for: pytest loads our plug-in in everybody's tests, and must not wait for torch.
_NAMES = {
    "data": "Dataset Samples load load_digits samples_from_folder samples_from_npz samples_from_pictures",
    "doctor": "Finding",
    "model": "Classifier",
    "rng": "spawn",
    "suite": "Suite add_columns",
    "types": "Density Fuzzer Labeller Monitor Score",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = globals()[name] = getattr(import_module(f"operant.{_HOMES[name]}"), name)
        return value
    if name in _NAMES:
        return import_module(f"operant.{name}")
    raise AttributeError(f"module 'operant' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_NAMES})
