"""The effect of retraining: accuracy on clean inputs, and attacks on the old model that the new one withstands."""

import math
from dataclasses import dataclass

import torch
from scipy.stats import norm

from operant.data import Samples
from operant.defend.evaluate import Corrector, Success, evaluate_defences
from operant.formatting import percent
from operant.model import Classifier
from operant.suite import Suite
from operant.validation import check_between


@dataclass(frozen=True, kw_only=True)
class TransferCalibration:
    """The share of cases generated against another model that a model classifies correctly.

    There is one rate per method among the cases, with its name as ``defence``; all have equal weight in ``mean``.
    """

    rates: tuple[Success, ...]
    mean: float
    confidence: float

    def __str__(self) -> str:
        each = ", ".join(f"{rate.defence} {rate} of {rate.n}" for rate in self.rates)
        return f"transfer calibration rate {percent(self.mean)}, the mean of {each}"


def transfer_calibration_rate(model: Corrector, suite: Suite, *, confidence: float = 0.95) -> TransferCalibration:
    """The share of attacks on an original model that a retrained one classifies correctly (the paper's criterion 2).

        rate = (1 / methods) Σ_methods share of cases x with f(x) = y        (1)

    Args:
        model: the retrained one, or anything with ``predict(x)``.
        suite: cases generated against the original, from seeds not learned from; only those that the original
            misclassified (``suite.prediction``) count.

    References:
        | Uncertainty-Guided Testing and Robustness Enhancement for Deep Learning Systems (Zhang, 2020), section 2.4
    """
    attacks = suite.failures()
    if len(attacks) == 0:
        raise ValueError(f"none of the {len(suite)} cases was misclassified by the original model; give attacks")
    rates = []
    for method in dict.fromkeys(attacks.method.tolist()):
        some = attacks[torch.from_numpy(attacks.method == method)]
        rates.append(evaluate_defences(some, {method: model}, confidence=confidence).of(method))
    return TransferCalibration(rates=tuple(rates), mean=sum(r.value for r in rates) / len(rates), confidence=confidence)


@dataclass(frozen=True, kw_only=True)
class AccuracyChange:
    """The change of accuracy on the same n inputs, and its interval; one above 0 shows an improvement.

    ``gained`` and ``lost`` count the inputs that only the new model, or only the old one, classifies correctly.
    """

    before: float
    after: float
    change: float
    lower: float
    upper: float
    gained: int
    lost: int
    n: int
    confidence: float

    def __str__(self) -> str:
        return (
            f"accuracy {percent(self.before)} -> {percent(self.after)}, change {100 * self.change:+.2f} points "
            f"({100 * self.lower:+.2f} to {100 * self.upper:+.2f}); of {self.n} {self.gained} gained, {self.lost} lost"
        )


def accuracy_change(
    before: Classifier, after: Classifier, samples: Samples, *, confidence: float = 0.95
) -> AccuracyChange:
    """The change of accuracy on a test set (the paper's criterion 1), with Agresti and Min's interval for pairs.

    The samples are labelled; neither model was trained on them.

    References:
        | Uncertainty-Guided Testing and Robustness Enhancement for Deep Learning Systems (Zhang, 2020), section 2.4
        | Simple Improved Confidence Intervals for Comparing Matched Proportions (Agresti and Min, 2005)
        | https://doi.org/10.1002/sim.1781
    """
    check_between(0, 1, confidence=confidence, advice="0.95 is usual")
    before.check(samples)
    y = samples.labels.to(samples.x.device)
    old, new = before.predict(samples.x) == y, after.predict(samples.x) == y
    n, gained, lost = len(samples), int((new & ~old).sum()), int((old & ~new).sum())
    padded = n + 2  # half a pair more in each of the four cells
    centre = (gained - lost) / padded
    spread = math.sqrt((gained + lost + 1 - (gained - lost) ** 2 / padded) / padded**2)
    reach = float(norm.isf((1 - confidence) / 2)) * spread
    return AccuracyChange(
        before=float(old.double().mean()),
        after=float(new.double().mean()),
        change=(gained - lost) / n,
        lower=max(-1.0, centre - reach),
        upper=min(1.0, centre + reach),
        gained=gained,
        lost=lost,
        n=n,
        confidence=confidence,
    )
