"""Operational fuzzing: three moves, the search that mixes them, and default settings."""
