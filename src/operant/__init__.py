"""Operant tests and hardens deep-learning classifiers for the way they will be used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from operant.assess import assess_reliability
    from operant.campaign import Campaign
    from operant.data import (
        Dataset,
        Samples,
        labels_of,
        load,
        load_digits,
        read_samples,
        samples_from_folder,
        samples_from_npz,
        samples_from_pictures,
    )
    from operant.generate import PGD
    from operant.model import Classifier, Finding
    from operant.profile import fit_profile
    from operant.report import write_report
    from operant.retrain import FieldKnowledge, TeachingLabels, repair
    from operant.rng import spawn
    from operant.suite import Suite, add_columns
    from operant.types import Density, Fuzzer, Labeller, Monitor, Score

__version__ = "0.1.0"

__all__ = [
    "PGD",
    "Campaign",
    "Classifier",
    "Dataset",
    "Density",
    "FieldKnowledge",
    "Finding",
    "Fuzzer",
    "Labeller",
    "Monitor",
    "Samples",
    "Score",
    "Suite",
    "TeachingLabels",
    "add_columns",
    "assess_reliability",
    "fit_profile",
    "labels_of",
    "load",
    "load_digits",
    "read_samples",
    "repair",
    "samples_from_folder",
    "samples_from_npz",
    "samples_from_pictures",
    "spawn",
    "write_report",
]

# Imported on first use: importing operant must be quick, since pytest loads our plug-in in everybody's tests.
_NAMES = {
    "assess": "assess_reliability",
    "campaign": "Campaign",
    "data": "Dataset Samples labels_of load load_digits read_samples samples_from_folder samples_from_npz "
    "samples_from_pictures",
    "generate": "PGD",
    "model": "Classifier Finding",
    "profile": "fit_profile",
    "report": "write_report",
    "retrain": "FieldKnowledge TeachingLabels repair",
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
