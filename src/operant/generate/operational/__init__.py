"""Operational fuzzing: three moves, and the search that mixes them."""

from operant.generate.operational.conditions import ConditionMove, replay
from operant.generate.operational.defaults import default_moves, default_radii, unguided
from operant.generate.operational.fuzz import OperationalFuzz
from operant.generate.operational.genetic import GeneticMove, hda
from operant.generate.operational.gradient import GradientMove

__all__ = [
    "ConditionMove",
    "GeneticMove",
    "GradientMove",
    "OperationalFuzz",
    "default_moves",
    "default_radii",
    "hda",
    "replay",
    "unguided",
]
