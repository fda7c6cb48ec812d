"""Samples (inputs with labels and ids), readers of data sets and files, and labellers."""

from operant.data.label_folder import LabelFolder, LabelsMissing, labels_of
from operant.data.reading import read_samples
from operant.data.samples import Samples, content_ids, row_index
from operant.data.sources import (
    Dataset,
    load,
    load_digits,
    samples_from_folder,
    samples_from_npz,
    samples_from_pictures,
)

__all__ = [
    "Dataset",
    "LabelFolder",
    "LabelsMissing",
    "Samples",
    "content_ids",
    "labels_of",
    "load",
    "load_digits",
    "read_samples",
    "row_index",
    "samples_from_folder",
    "samples_from_npz",
    "samples_from_pictures",
]
