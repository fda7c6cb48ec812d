"""Semantic tests: images from a generator, changed by their features."""

from operant.generate.semantic.fuzz import FeatureFuzz
from operant.generate.semantic.quality import Quality, frechet_distance
from operant.generate.semantic.source import FeatureSource, from_biggan
from operant.generate.semantic.validity import (
    ClassLikelihood,
    Tally,
    Validity,
    fit_class_likelihood,
    tally,
)

__all__ = [
    "ClassLikelihood",
    "FeatureFuzz",
    "FeatureSource",
    "Quality",
    "Tally",
    "Validity",
    "fit_class_likelihood",
    "frechet_distance",
    "from_biggan",
    "tally",
]
