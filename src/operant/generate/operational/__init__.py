"""Operational fuzzing: three moves, and the search that mixes them."""

from operant.generate.operational.conditions import ConditionMove, replay
from operant.generate.operational.fuzz import OperationalFuzz
from operant.generate.operational.genetic import GeneticMove, hda
from operant.generate.operational.gradient import GradientMove

__all__ = ["ConditionMove", "GeneticMove", "GradientMove", "OperationalFuzz", "hda", "replay"]
