"""Step 1: the operational profile, i.e. how the model is used in the field."""

from operant.profile.describe import FieldDescription, describe_field
from operant.profile.drift import Drift, drift
from operant.profile.error_estimate import ErrorEstimate, estimate_error
from operant.profile.explained import Explained, explains_field
from operant.profile.fit_conditions import FittedConditions, Parameter, fit_conditions
from operant.profile.fitting import (
    Profile,
    ProfileUpdate,
    fit_profile,
    layer_features,
    load_profile,
    update_profile,
    with_priors,
)
from operant.profile.label_shift import estimate_priors
from operant.profile.priors import Priors
from operant.profile.ratio import Ratio, fit_ratio
from operant.profile.risk_cases import RiskCases
from operant.profile.risk_map import RiskMap, fit_risk
from operant.profile.synthesis import (
    ClassVAEs,
    FromImages,
    FromModel,
    FromSimulator,
    Source,
    SourceBatch,
    Synthesised,
    fit_class_vaes,
    remake,
    synthesise,
)

__all__ = [
    "ClassVAEs",
    "Drift",
    "ErrorEstimate",
    "Explained",
    "FieldDescription",
    "FittedConditions",
    "FromImages",
    "FromModel",
    "FromSimulator",
    "Parameter",
    "Priors",
    "Profile",
    "ProfileUpdate",
    "Ratio",
    "RiskCases",
    "RiskMap",
    "Source",
    "SourceBatch",
    "Synthesised",
    "describe_field",
    "drift",
    "estimate_error",
    "estimate_priors",
    "explains_field",
    "fit_class_vaes",
    "fit_conditions",
    "fit_profile",
    "fit_ratio",
    "fit_risk",
    "layer_features",
    "load_profile",
    "remake",
    "synthesise",
    "update_profile",
    "with_priors",
]
