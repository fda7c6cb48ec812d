"""The statistics of step 5: how many labels to buy, when to stop, and the bound; no files."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy.stats import binom
from torch import Tensor

from operant.assess import clopper_pearson_interval, confidence_sequence
from operant.data import Samples
from operant.formatting import at_most, percent

ROUND_SHARE = 2 / 3  # share of the remaining labels that a round may use, unless it is the last
MIN_LABELS = 50  # labels that a changed model is assessed with, if the budget allows
FUTILE = 0.8  # no more labels once pmi exceeds the requirement with this confidence
LABELS_WORTH_BUYING = 20  # above this multiple of a round's labels, improving the model is the better advice
LABEL_SEARCH_LIMIT = 1 << 30  # number of labels at which the search for how many are needed ends


@dataclass(frozen=True, kw_only=True)
class SequentialAssessment:
    """The result of labelling field inputs batch by batch.

    Attributes:
        labels, failures: labelled inputs, and how many of them the model got wrong.
        before: labels among these that were bought in earlier rounds, for the same unchanged model.
        upper: bound on pmi.
        confidence: of the bound, however often it was checked; over all models of a campaign they add up to the
            campaign's confidence.
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
        return f"pmi {percent(self.pmi)} on {self.labels} labels, at most {at_most(self.upper)}"


@dataclass(frozen=True, kw_only=True)
class LabelBudget:
    """Minimum and maximum number of labels of an assessment; ``budget.json`` of a round."""

    fewest: int
    most: int


def label_budget(
    left: int, *, labels: int, rounds: int, last: bool, changed: bool, rejected_by_monitor: bool
) -> LabelBudget:
    """The labels of a round's assessment.

    When the monitor rejected a retraining, some labels are bought anyway: with few labels the monitor may have
    been wrong, and the next round's has more.

    Args:
        left: labels that can still be bought.
        labels, rounds: the campaign's budget.
        last: whether this is the last round.
        changed: whether the round changed the model.
        rejected_by_monitor: whether the monitor rejected the retraining.
    """
    fewest = max(1, min(MIN_LABELS, labels // (rounds + 1))) if changed or rejected_by_monitor else 0
    return LabelBudget(fewest=fewest, most=left if last else math.ceil(left * ROUND_SHARE))


def confidence_of(number: int, confidence: float) -> float:
    """Confidence of the bound of one model, counted from 0, so that the bounds of all models hold together.

        1 - α / (r (r + 1)),   r = number + 1,   Σ_r 1 / (r (r + 1)) = 1        (1)

    >>> round(confidence_of(0, 0.95), 4), round(confidence_of(1, 0.95), 4)
    (0.975, 0.9917)
    """
    r = number + 1
    return 1 - (1 - confidence) / (r * (r + 1))  # (1)


def why_no_labels(
    budget: LabelBudget, available: int, *, requirement: float, earlier: SequentialAssessment | None
) -> str:
    """Why `assess_model` will buy no label of this many inputs; empty if it will."""
    most = min(budget.most, available)
    if most == 0:
        return "no label is left"
    if earlier is None:
        return ""
    known = earlier.labels, earlier.failures, earlier.upper
    reason = _enough(*known, requirement, earlier.confidence, earlier.labels + most)
    return reason if budget.fewest <= 0 or earlier.upper <= requirement else ""


def assess_model(
    predictions: Tensor,
    fresh: Samples,
    ask: Callable[[int, Samples], Tensor],
    *,
    requirement: float,
    confidence: float,
    batch: int,
    budget: LabelBudget,
    earlier: SequentialAssessment | None = None,
) -> SequentialAssessment:
    """Buy labels batch by batch until the bound meets the requirement, or more labels would not help.

    The bound is a confidence sequence: it holds whenever one stops, and can be continued later. No more labels are
    bought once pmi exceeds the requirement with 80 % confidence, or once even labels without a failure could not lower
    the bound enough; later rounds can use those labels.

    Args:
        predictions: of the model for the fresh inputs.
        fresh: field inputs in random order that nothing was learned from.
        ask: returns the labels of batch number i.
        requirement: largest accepted pmi.
        confidence: of this model's bound.
        batch: labels per request.
        budget: labels that are bought now.
        earlier: assessment of the same model in an earlier round.
    """
    before, failures, bound = (earlier.labels, earlier.failures, earlier.upper) if earlier else (0, 0, 1.0)
    labels, most = before, before + min(budget.most, len(fresh), len(predictions))
    reason = _enough(labels, failures, bound, requirement, confidence, most) if earlier else ""
    for i, start in enumerate(range(0, most - before, batch)):
        if reason and (labels - before >= budget.fewest or bound <= requirement):
            break
        rows = slice(start, min(start + batch, most - before))
        asked = fresh[rows]
        failures += int((predictions[rows] != ask(i, asked).cpu()).sum())
        labels += len(asked)
        bound = confidence_sequence(failures, labels, confidence=confidence).upper
        reason = _enough(labels, failures, bound, requirement, confidence, most)
    return SequentialAssessment(
        labels=labels,
        failures=failures,
        before=before,
        upper=bound,
        confidence=confidence,
        reason=reason or ("the labels of this round are spent" if labels else "no label is left"),
    )


def _enough(labels: int, failures: int, bound: float, requirement: float, confidence: float, most: int) -> str:
    """Why no more labels should be bought; empty if they should."""
    if bound <= requirement:
        return "the requirement is met"
    if failures and clopper_pearson_interval(failures, labels, confidence=2 * FUTILE - 1).lower > requirement:
        return f"pmi exceeds the requirement with {percent(FUTILE, 2)} confidence"
    if confidence_sequence(failures, most, confidence=confidence).upper > requirement:
        return "even labels without a failure could not show that the requirement is met"
    return ""


def could_decide(assessed: SequentialAssessment, requirement: float, more: int) -> bool:
    """Whether this many more labels of the same model might show that it meets the requirement."""
    known = assessed.labels, assessed.failures, assessed.upper
    return more > 0 and not _enough(*known, requirement, assessed.confidence, assessed.labels + more)


def what_it_takes(assessed: SequentialAssessment, requirement: float) -> str:
    """What would meet the requirement, in a sentence."""
    if assessed.labels == 0:
        return "field inputs to assess with, and their labels; there were none"
    least = clopper_pearson_interval(assessed.failures, assessed.labels, confidence=2 * FUTILE - 1).lower
    if least > requirement:
        return f"pmi is estimated at {percent(assessed.pmi)} and must fall below {percent(requirement)} first"
    if assessed.pmi >= requirement:
        return (
            f"pmi is estimated at {percent(assessed.pmi)} on {assessed.labels} labels, too few to decide whether it is "
            f"below {percent(requirement)}; buy more labels, or improve the model"
        )
    needed = labels_needed(assessed.pmi, requirement, assessed.confidence)
    if needed > LABELS_WORTH_BUYING * assessed.labels:
        too_close = f"too close to {percent(requirement)} to be shown; it must fall"
        return f"pmi is estimated at {percent(assessed.pmi)}, {too_close}"
    many = f"about {needed}" if needed < 1_000_000 else "more than a million"
    return f"if pmi is {percent(assessed.pmi)}, {many} labels in one round would show it"


def labels_needed(pmi: float, requirement: float, confidence: float, *, power: float = 0.8) -> int:
    """Labels of one round after which the bound is at most the requirement, with probability ``power``.

    >>> labels_needed(0.0, 0.01, 0.975), labels_needed(0.02, 0.05, 0.975)
    (455, 644)
    """

    def shown(n: int) -> bool:
        return confidence_sequence(int(binom.ppf(power, n, pmi)), n, confidence=confidence).upper <= requirement

    few, enough = 0, 1
    while not shown(enough) and enough < LABEL_SEARCH_LIMIT:
        few, enough = enough, 2 * enough
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if shown(middle) else (middle, enough)
    return enough
