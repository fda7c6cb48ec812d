"""Assessment in a campaign: fresh field inputs, looked at one batch after the other, with a bound that allows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.stats import binom

from operant.assess import clopper_pearson_interval, confidence_sequence
from operant.data import Samples

TOO_MANY = 20  # times the labels of a round; who would buy as many had better make the model better
FUTILE = 0.8  # confidence in pmi being above the requirement from which on no more labels are bought
MANY = 1 << 30  # labels, of which nobody has more


@dataclass(frozen=True, kw_only=True)
class SequentialAssessment:
    """What labels said of a model.

    Attributes:
        labels, failures: inputs looked at, and how many of them the model got wrong.
        before: how many of the labels were bought in earlier rounds, which had left the model as it was.
        upper: bound on pmi.
        confidence: that the bound holds, however many looks there were; all models' together keep the campaign's.
        reason: why no more labels were bought.
    """

    labels: int
    failures: int
    before: int = 0
    upper: float
    confidence: float
    reason: str

    @property
    def pmi(self) -> float:
        return self.failures / self.labels if self.labels else float("nan")

    @property
    def bought(self) -> int:
        """Labels of this round."""
        return self.labels - self.before

    def __str__(self) -> str:
        return (
            f"pmi {self.pmi:.2%} on {self.labels} labels, at most {self.upper:.2%} ({self.confidence:.2%} confidence)"
        )


def confidence_of(number: int, confidence: float) -> float:
    """Of the bound of one model, counted from 0, such that the bounds of all models together keep the campaign's.

        1 - α / (r (r + 1)),   r = number + 1,   Σ_r 1 / (r (r + 1)) = 1        (1)

    >>> round(confidence_of(0, 0.95), 4), round(confidence_of(1, 0.95), 4)
    (0.975, 0.9917)
    """
    r = number + 1
    return 1 - (1 - confidence) / (r * (r + 1))  # (1)


def assess_model(
    answers: torch.Tensor,
    fresh: Samples,
    ask: Callable[[int, Samples], torch.Tensor],
    *,
    requirement: float,
    confidence: float,
    batch: int,
    fewest: int,
    most: int,
    known: SequentialAssessment | None = None,
) -> SequentialAssessment:
    """Buy labels batch by batch until the bound meets the requirement, or more would be in vain.

    The bound is a confidence sequence: it holds at whichever look one stops, and can be gone on with later. No more are
    bought once pmi is above the requirement with 80 % confidence, or once even labels without failure could not bring
    the bound down in time; what is saved serves later rounds.

    Args:
        answers: what the model says of the fresh inputs.
        fresh: field inputs in random order that nothing has been learned from.
        ask: gives the labels of batch number i.
        requirement: largest pmi that is accepted.
        confidence: of this model's bound.
        batch: labels bought at a time.
        fewest, most: labels that are bought now.
        known: what labels bought before said of the same model.
    """
    before, failures, bound = (known.labels, known.failures, known.upper) if known else (0, 0, 1.0)
    labels, most = before, before + min(most, len(fresh), len(answers))
    reason = _enough(labels, failures, bound, requirement, confidence, most) if known else ""
    for i, start in enumerate(range(0, most - before, batch)):
        if reason and (labels - before >= fewest or bound <= requirement):
            break
        rows = slice(start, min(start + batch, most - before))
        asked = fresh[rows]
        failures += int((answers[rows] != ask(i, asked).cpu()).sum())
        labels += len(asked)
        bound = confidence_sequence(failures, labels, confidence=confidence).upper
        reason = _enough(labels, failures, bound, requirement, confidence, most)
    return SequentialAssessment(
        labels=labels,
        failures=failures,
        before=before,
        upper=bound,
        confidence=confidence,
        reason=reason or ("this round's labels are spent" if labels else "no label is left"),
    )


def _enough(labels: int, failures: int, bound: float, requirement: float, confidence: float, most: int) -> str:
    """Why no more labels should be bought; empty if they should."""
    if bound <= requirement:
        return "the requirement is met"
    if failures and clopper_pearson_interval(failures, labels, confidence=2 * FUTILE - 1).lower > requirement:
        return f"pmi is above the requirement with {FUTILE:.0%} confidence"
    if confidence_sequence(failures, most, confidence=confidence).upper > requirement:
        return "not even labels without failure could show that the requirement is met"
    return ""


def what_it_takes(assessed: SequentialAssessment, requirement: float) -> str:
    """To meet the requirement, in a sentence."""
    if assessed.labels == 0:
        return "field inputs to assess with, and labels for them; there were none"
    least = clopper_pearson_interval(assessed.failures, assessed.labels, confidence=2 * FUTILE - 1).lower
    if least > requirement:
        return f"pmi is estimated at {assessed.pmi:.2%} and must fall below {requirement:.2%} first"
    if assessed.pmi >= requirement:
        return (
            f"pmi is estimated at {assessed.pmi:.2%} on {assessed.labels} labels, too few to say whether it is below "
            f"{requirement:.2%}; more labels would tell, or it must fall"
        )
    needed = labels_needed(assessed.pmi, requirement, assessed.confidence)
    if needed > TOO_MANY * assessed.labels:
        return f"pmi is estimated at {assessed.pmi:.2%}, too near {requirement:.2%} to be shown, and must fall further"
    many = f"about {needed}" if needed < 1_000_000 else "more than a million"
    return f"if pmi is {assessed.pmi:.2%}, {many} labels of one round would show it"


def labels_needed(pmi: float, requirement: float, confidence: float, *, power: float = 0.8) -> int:
    """After how many labels of one round the bound is at most the requirement, with probability ``power``.

    >>> labels_needed(0.0, 0.01, 0.975), labels_needed(0.02, 0.05, 0.975)
    (455, 644)
    """

    def shown(n: int) -> bool:
        return confidence_sequence(int(binom.ppf(power, n, pmi)), n, confidence=confidence).upper <= requirement

    few, enough = 0, 1
    while not shown(enough) and enough < MANY:
        few, enough = enough, 2 * enough
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if shown(middle) else (middle, enough)
    return enough
