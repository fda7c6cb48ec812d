"""Operant tests and hardens deep-learning classifiers for the way they will be used."""

from operant.data import Dataset, Samples, load, load_digits
from operant.doctor import Finding
from operant.model import Classifier
from operant.rng import spawn
from operant.suite import Suite
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
    "load",
    "load_digits",
    "spawn",
]
