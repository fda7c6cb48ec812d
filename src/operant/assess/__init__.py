"""Step 5: how good the model is, and with what confidence."""

from operant.assess.bounds import Interval, clopper_pearson_interval
from operant.assess.robustness import Rate, Robustness, attack_cases, empirical_robustness

__all__ = ["Interval", "Rate", "Robustness", "attack_cases", "clopper_pearson_interval", "empirical_robustness"]
