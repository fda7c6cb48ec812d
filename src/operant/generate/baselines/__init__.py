"""Published coverage-guided searches and random controls, to compare with."""

from operant.generate.baselines.adapt import ADAPT, RandomMutation
from operant.generate.baselines.deephunter import DeepHunter, MetamorphicMutation
from operant.generate.baselines.deepxplore import DeepXplore
from operant.generate.baselines.dlfuzz import DLFuzz
from operant.generate.baselines.tensorfuzz import NoiseMutation, TensorFuzz

__all__ = [
    "ADAPT",
    "DLFuzz",
    "DeepHunter",
    "DeepXplore",
    "MetamorphicMutation",
    "NoiseMutation",
    "RandomMutation",
    "TensorFuzz",
]
