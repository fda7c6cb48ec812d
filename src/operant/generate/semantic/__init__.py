"""Semantic tests: images from a generator, changed by their features."""
