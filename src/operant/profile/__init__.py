"""Step 1: how the model is used."""

from operant.profile.drift import Drift, drift
from operant.profile.fitting import (
    Profile,
    Update,
    fit_profile,
    layer_features,
    load_profile,
    update_profile,
    with_priors,
)
from operant.profile.label_shift import Priors, estimate_priors
from operant.profile.ratio import Ratio, fit_ratio

__all__ = [
    "Drift",
    "Priors",
    "Profile",
    "Ratio",
    "Update",
    "drift",
    "estimate_priors",
    "fit_profile",
    "fit_ratio",
    "layer_features",
    "load_profile",
    "update_profile",
    "with_priors",
]
