"""Step 2: risk scores and sampling designs that choose which inputs to label and to start tests from."""

from operant.seeds.acquisition import Acquired, acquire
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
from operant.seeds.strategies import (
    AtRandom,
    Badge,
    ByDisagreement,
    ByMassAndWeakness,
    ByRisk,
    Choice,
    Clue,
    DiverseMargin,
    RiskBadge,
    Strategy,
)

__all__ = [
    "Acquired",
    "AtRandom",
    "Badge",
    "ByDisagreement",
    "ByMassAndWeakness",
    "ByRisk",
    "Choice",
    "Clue",
    "DiverseMargin",
    "Draw",
    "Groups",
    "RiskBadge",
    "Strata",
    "Strategy",
    "acquire",
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
