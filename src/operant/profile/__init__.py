"""Step 1: how the model is used."""

from operant.profile.label_shift import Priors, estimate_priors

__all__ = ["Priors", "estimate_priors"]
