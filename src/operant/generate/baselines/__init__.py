"""Published coverage-guided searches, and their random control, for comparison."""

from operant.generate.baselines.adapt import ADAPT
from operant.generate.baselines.deephunter import DeepHunter
from operant.generate.baselines.deepxplore import DeepXplore
from operant.generate.baselines.dlfuzz import DLFuzz
from operant.generate.baselines.exploration import Exploration
from operant.generate.baselines.random_mutation import RandomMutation
from operant.generate.baselines.tensorfuzz import TensorFuzz

__all__ = ["ADAPT", "DLFuzz", "DeepHunter", "DeepXplore", "Exploration", "RandomMutation", "TensorFuzz"]
