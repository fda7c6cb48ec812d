"""Suites: cases as columns, in memory and in folders of shards, with what people said about them."""

from operant.suite.suite import ROWS_PER_SHARD, Pool, Suite, add_columns, open_with_known_cases

__all__ = ["ROWS_PER_SHARD", "Pool", "Suite", "add_columns", "open_with_known_cases"]
