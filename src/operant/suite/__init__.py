"""Suites of generated cases, in memory and on disk, with the verdicts that people gave on them."""

from operant.suite.seed_pool import SeedPool
from operant.suite.suite import ROWS_PER_SHARD, Suite, add_columns, open_with_index

__all__ = ["ROWS_PER_SHARD", "SeedPool", "Suite", "add_columns", "open_with_index"]
