"""Each paper's experiments, run again."""
