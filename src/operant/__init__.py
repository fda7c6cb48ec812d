"""Operant tests and hardens deep-learning classifiers for the way they will be used."""
