"""Step 2: risk scores and sampling designs that choose which inputs to label and to start tests from."""

from operant.seeds.designs import Draw, Groups, Strata, draw, inclusion_probabilities
from operant.seeds.risk import (
    combine,
    entropy_risk,
    gini_risk,
    gradient_risk,
    margin_risk,
    ranked,
    risk_of,
    surprise_risk,
    vro_risk,
)

__all__ = [
    "Draw",
    "Groups",
    "Strata",
    "combine",
    "draw",
    "entropy_risk",
    "gini_risk",
    "gradient_risk",
    "inclusion_probabilities",
    "margin_risk",
    "ranked",
    "risk_of",
    "surprise_risk",
    "vro_risk",
]
