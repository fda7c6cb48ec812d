"""Operant tests and hardens deep-learning classifiers for the way they will be used."""

from operant.data import (
    Dataset,
    Samples,
    load,
    load_digits,
    samples_from_folder,
    samples_from_npz,
    samples_from_pictures,
)
from operant.doctor import Finding
from operant.model import Classifier
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
