"""The probability that the next input is misclassified, with a bound that can be signed off."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import beta, binom
from torch import Tensor

from operant.activity import activity
from operant.assess.bounds import check_confidence, clopper_pearson
from operant.assess.estimators import TERMS, estimate
from operant.data import Samples, content_ids
from operant.formatting import at_least, at_most, percent
from operant.model import Classifier
from operant.model.doctor import Finding
from operant.profile import Profile
from operant.seeds import Draw, combine, draw, margin_risk, risk_of
from operant.seeds.designs import normalised
from operant.seeds.risk import is_flat
from operant.types import Labeller, Score
from operant.validation import check_between, check_not_empty

DEFENSIVE = 0.5  # share of the draw that follows the mass alone: labels on inputs that look safe decide the bound
STRATA = 6
PROFILE_CELLS = 12  # parts of the profile that pmi is reported for
OUTSIDE_QUANTILE = 0.01  # of field inputs: an input below it is outside the profile
MAX_OUTSIDE = 0.5  # share of a pool that may be outside the profile
POOL_ERROR_SHARE = 0.2  # of the allowed error, for the step from the pool to the field


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """The share of field inputs and of pmi in one class or cell of the profile.

    Attributes:
        name: the class, or the number of the cell.
        mass: share of field inputs, by the profile.
        pmi: all contributions sum to the whole.
        labels, failures: drawn there.
        centre: of a cell, in the profile's codes: an input belongs to the cell with the nearest centre.
    """

    name: str
    mass: float
    pmi: float
    labels: int
    failures: int
    centre: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """The probability of misclassification per input (pmi) of a model in the field.

    Attributes:
        pmi: unbiased estimate.
        upper: pmi over the pool is at most this, with ``confidence``; None where no bound can be trusted.
        field_upper: the same for the field that the pool was sampled from; None for a pool weighted by the profile,
            since statistics cannot ensure that it resembles the field.
        design, method, bound: sampling design, estimator, and method of the bound.
        pool, labels, failures: number of inputs that could be drawn, labels bought, and misclassified ones of these.
        by_class, by_cell: contributions to pmi by true class and by cell of the profile.
        ids: of the labelled inputs. They may be used for retraining, but not for the next assessment.
        findings: warnings about the numbers.
    """

    pmi: float
    upper: float | None
    field_upper: float | None
    confidence: float
    design: str
    method: str
    bound: str
    pool: int
    labels: int
    failures: int
    by_class: tuple[Contribution, ...] = field(repr=False)
    by_cell: tuple[Contribution, ...] = field(repr=False)
    ids: tuple[int, ...] = field(repr=False)
    findings: tuple[Finding, ...] = ()

    @property
    def claim(self) -> float | None:
        """The bound to sign off: for the field where there is one, otherwise for the pool."""
        return self.upper if self.field_upper is None else self.field_upper

    def meets(self, requirement: float) -> bool | None:
        """True: pmi is at most this, with confidence. False: even the estimate exceeds it. None: not decided yet."""
        check_between(0, 1, requirement=requirement)
        if self.claim is not None and self.claim <= requirement:
            return True
        return False if self.pmi > requirement * (1 + 1e-9) else None

    def __str__(self) -> str:
        where = sorted(self.by_class, key=lambda part: -part.pmi)[:3]
        most = ", ".join(f"{part.name} ({percent(part.pmi / self.pmi, 2)})" for part in where if part.pmi > 0)
        lines = [
            f"The model misclassifies an estimated {percent(self.pmi)} of field inputs.",
            "No upper bound can be given yet." if self.claim is None else
            f"With {at_least(self.confidence)} confidence it is at most {at_most(self.claim)}.",
            f"{self.labels} of {self.pool} inputs were labelled, and {self.failures} of them were misclassified "
            f"(drawn by the design {self.design}, estimated by {self.method}, bound: {self.bound}).",
        ]  # fmt: skip
        if most:
            lines.append(f"Most of it comes from class {most}.")
        return "\n".join([" ".join(lines), *map(str, self.findings)])


@activity("assessing")
def assess_reliability(
    model: Classifier,
    profile: Profile,
    labeller: Labeller,
    *,
    pool: Samples,
    labels: int = 300,
    confidence: float = 0.95,
    design: str = "stratified",
    risk: Score = margin_risk,
    mass: Tensor | None = None,
    used: Tensor | None = None,
    generator: torch.Generator,
) -> Assessment:
    """Draw inputs from the pool, ask for their labels, and estimate the probability of misclassification.

    By default inputs are drawn from six risk strata, by mass and risk. At a pmi of .03 and above that needs about half
    the labels of simple sampling if the risk is good (at .01 little is saved, at .001 nothing), and the bound holds if
    it is not: ``benchmarks/coverage.py``. The bound is valid for one check: to check again after buying more labels,
    divide the allowed error between the checks, as `operant assess` does.

    Args:
        model: one that has not learned from the pool.
        profile: fitted to field data; defines the cells and checks that the pool resembles the field.
        labeller: called once, with the drawn inputs.
        pool: inputs that were drawn from the field, or inputs weighted like it (then give ``mass``). Its labels, if
            any, are ignored; its classes, if there are as many as the model's, name those in the result.
        design: of `operant.seeds.draw`; ``"pps"`` draws by mass alone, with an exact bound.
        risk: score that estimates which inputs fail. If it is the same for all inputs, as for a model that is certain
            of everything, inputs are drawn by mass alone (by ``"pps"`` instead of ``"stratified"``), with a finding.
        mass: of each input of the pool, such as `Profile.weights` (default: equal, for a pool drawn from the field).
        used: `content_ids` of all inputs learned from. A pool that contains one of them is rejected, whatever its ids.
    """
    check_confidence(confidence)
    _check_pool(model, pool, labels, used)
    codes = profile.encode(pool.x).detach()
    outside = _checked_outside(profile, codes)
    p = normalised(torch.ones(len(pool)) if mass is None else mass, len(pool), "mass")
    risks = None if design == "pps" else risk_of(model, pool.with_labels(None), risk)
    flat = risks is not None and is_flat(risks, p)
    weights = p if risks is None or flat else combine(p, risks, risk_power=0.5, defensive=DEFENSIVE)
    design = "pps" if flat and design == "stratified" else design  # there are no strata of equal risks
    drawn = draw(pool, weights, labels, design=design, strata=STRATA, mass=p, generator=generator)
    drawn.chances  # noqa: B018  # raises before any label is bought if the design has none
    chosen = drawn.samples(pool.with_labels(None))
    y = _labels_of(chosen, labeller, model)
    failed = (model.predict(chosen.x).cpu() != y).double()
    estimated = estimate(drawn, failed, confidence=confidence)
    shares = TERMS[drawn.design](drawn, failed).shares * failed
    centres = centres_of(profile, generator=generator)
    cells = torch.cdist(codes.cpu().double(), centres).argmin(1)
    return Assessment(
        pmi=estimated.estimate,
        upper=estimated.upper,
        field_upper=_field_upper(drawn, failed, confidence) if mass is None else None,
        confidence=confidence,
        design=design,
        method=estimated.method,
        bound=estimated.bound,
        pool=len(pool),
        labels=len(drawn),
        failures=int(failed.sum()),
        by_class=_contributions(y, failed, shares, _class_masses(drawn, y, model.classes(pool.x)), names=pool.classes),
        by_cell=_contributions(cells[drawn.indices], failed, shares, _sums(cells, p, len(centres)), centres=centres),
        ids=tuple(chosen.ids.tolist()),
        findings=estimated.findings + profile.findings + _warnings(outside, p, labels, flat=flat),
    )


def _field_upper(drawn: Draw, failed: Tensor, confidence: float) -> float | None:
    """The bound for the field: four fifths of the allowed error are for the pool's bound, one fifth for this step."""
    inner = estimate(drawn, failed, confidence=1 - (1 - POOL_ERROR_SHARE) * (1 - confidence)).upper
    return None if inner is None else field_bound(inner, drawn.pool_size, confidence)


def field_bound(upper: float, size: int, confidence: float) -> float:
    """The bound for the field if at most the share ``upper`` of a pool of ``size`` inputs from it fails.

    The exact bound from ``size`` trials, at a fifth of the error that ``confidence`` allows.
    """
    k = min(size, math.ceil(upper * size - 1e-9))
    return clopper_pearson(k, size, confidence=1 - POOL_ERROR_SHARE * (1 - confidence)).upper


def centres_of(profile: Profile, *, generator: torch.Generator) -> Tensor:
    """Centres of a profile's cells, in its codes: k-means over field inputs, ``(cells, d)``."""
    from sklearn.cluster import KMeans

    seed = int(torch.randint(2**31 - 1, (), generator=generator, device=generator.device))
    parts = KMeans(min(PROFILE_CELLS, len(profile.codes)), n_init=1, random_state=seed).fit(
        profile.codes.cpu().double().numpy(), sample_weight=profile.shares.cpu().numpy()
    )
    return torch.from_numpy(parts.cluster_centers_)


def _contributions(
    of: Tensor,
    failed: Tensor,
    shares: Tensor,
    masses: Tensor,
    *,
    centres: Tensor | None = None,
    names: Sequence[str] = (),
) -> tuple[Contribution, ...]:
    n = len(masses)
    pmi, labels, failures = (_sums(of, values, n) for values in (shares, torch.ones_like(shares), failed))
    return tuple(
        Contribution(
            name=names[i] if len(names) == n else str(i),
            mass=float(masses[i]),
            pmi=float(pmi[i]),
            labels=int(labels[i]),
            failures=int(failures[i]),
            centre=() if centres is None else tuple(centres[i].tolist()),
        )
        for i in range(n)
    )


def _class_masses(drawn: Draw, y: Tensor, classes: int) -> Tensor:
    """Class masses estimated from the labels, since the pool has none."""
    weights = TERMS[drawn.design](drawn, torch.zeros(len(y), dtype=torch.float64)).shares
    masses = _sums(y, weights, classes)
    return masses / masses.sum().clamp_min(1e-300)


def _sums(of: Tensor, values: Tensor, n: int) -> Tensor:
    return torch.zeros(n, dtype=torch.float64).index_add_(0, of.cpu(), values.cpu().double())


@dataclass(frozen=True, kw_only=True)
class LabelPlan:
    """The number of labels that a claim needs.

    Attributes:
        target: the claim: pmi at most this.
        fewest: labels needed if none of them fails.
        labels: with at least so many labels the claim succeeds with probability ``power`` if pmi is ``expected``.
    """

    target: float
    confidence: float
    fewest: int
    expected: float | None
    labels: int | None
    power: float

    def __str__(self) -> str:
        text = (
            f"To claim a pmi of at most {percent(self.target)} with {at_least(self.confidence)} confidence takes at "
            f"least {self.fewest} labels of inputs drawn from the field, if none of them fails."
        )
        if self.labels is None or self.expected is None:
            return text
        enough = f"{self.labels} labels are enough with probability {self.power:.2g}"
        return f"{text} If pmi is {percent(self.expected)}, {enough}."


def plan(target: float, *, confidence: float = 0.95, expected: float | None = None, power: float = 0.8) -> LabelPlan:
    """The number of labels that a claim needs with simple sampling and the exact bound.

        B(1 - α; k + 1, n - k) ≤ target        (1)

    The smallest n from which (1) holds for k = 0, and for the k that Binomial(n, expected) does not exceed with
    probability ``power``. Strata of a good risk need fewer where pmi is not small; a bound for the field rather than
    for the pool needs somewhat more. ``expected`` must be below the target, or no number of labels is enough.

    >>> plan(0.01).fewest
    299
    """
    check_confidence(confidence)
    check_between(0, 1, target=target, power=power)
    fewest = math.ceil(math.log(1 - confidence) / math.log1p(-target) - 1e-9)
    labels = None if expected is None else _labels_needed(target, confidence, expected, power, fewest)
    return LabelPlan(target=target, confidence=confidence, fewest=fewest, expected=expected, labels=labels, power=power)


def _labels_needed(target: float, confidence: float, expected: float, power: float, fewest: int) -> int:
    if not 0 <= expected < target:
        raise ValueError(f"expected must be a pmi below the target {target}, got {expected}; improve the model first")

    def succeeds(n: NDArray[np.int64]) -> NDArray[np.bool_]:
        k = binom.ppf(power, n, expected)
        uppers = beta.isf(1 - confidence, k + 1, np.maximum(n - k, 1e-9))
        held: NDArray[np.bool_] = (uppers <= target) & (k < n)  # (1)
        return held

    high = fewest
    while not succeeds(np.arange(high, 2 * high)).all():  # not monotone as k steps up: check whole ranges
        high *= 2
    n = np.arange(fewest, 2 * high)
    failing = np.flatnonzero(~succeeds(n))
    return int(n[failing[-1]]) + 1 if len(failing) else fewest


def _check_pool(model: Classifier, pool: Samples, labels: int, used: Tensor | None) -> None:
    if labels != int(labels) or labels < 1:
        raise ValueError(f"labels must be a whole number, at least 1, got {labels}; see `plan`")
    check_not_empty(pool=pool, advice="give inputs from the field")
    model.check_inputs(pool.x)
    if used is not None and (spent := int(torch.isin(content_ids(pool.x), used.cpu()).sum())):
        remove = "pool[~torch.isin(content_ids(pool.x), used)]"
        raise ValueError(f"{spent} of the pool's {len(pool)} inputs were learned from; remove them: {remove}")


def _checked_outside(profile: Profile, codes: Tensor) -> float:
    """The share of a pool that is less likely than 99 % of field inputs; raises if that is most of the pool."""
    outside = float((profile.quantile_of_codes(codes) < OUTSIDE_QUANTILE).double().mean())
    if outside > MAX_OUTSIDE:
        raise ValueError(
            f"the profile has no mass on this pool: {percent(outside, 2)} of its inputs are less likely than 99 % of "
            "field inputs; give inputs from the field, or fit the profile to data like these"
        )
    return outside


def _warnings(outside: float, mass: Tensor, labels: int, *, flat: bool) -> tuple[Finding, ...]:
    unlike = Finding(
        name="pool unlike field",
        problem=f"{percent(outside, 2)} of the pool's inputs are less likely than 99 % of the profile's field inputs",
        advice="Check whether the field has changed with drift(), and update the profile with update_profile",
    )
    effective = 1 / float(mass.square().sum())
    few = Finding(
        name="few inputs carry the mass",
        problem=f"the pool's {len(mass)} inputs count like {effective:.0f} of equal mass",
        advice="The bound holds for these masses, not for the field; assess inputs drawn from the field",
    )
    uninformed = Finding(
        name="risk is the same everywhere",
        problem="the risk score has one value for all inputs of the pool, as for a model that is certain of "
        "everything; inputs were drawn by mass alone",
        advice="The bound holds, but may need more labels; to need fewer, give a risk that differs between inputs",
    )
    shown = {unlike: outside > 0.1, few: effective < min(labels, 0.1 * len(mass)), uninformed: flat}
    return tuple(finding for finding, holds in shown.items() if holds)


def _labels_of(inputs: Samples, labeller: Labeller, model: Classifier) -> Tensor:
    """Labels from the labeller, checked."""
    labels, classes = labeller(inputs), model.classes(inputs.x)
    try:
        y = torch.as_tensor(labels).cpu()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"the labeller must return integers, got {labels!r:.60}") from None
    wanted = f"the labeller must return one class from 0 to {classes - 1} for each of {len(inputs)} inputs, got "
    if y.shape != (len(inputs),) or y.is_floating_point():
        raise ValueError(f"{wanted}{y.dtype} of shape {tuple(y.shape)}")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise ValueError(f"{wanted}labels from {int(y.min())} to {int(y.max())}")
    return y.long()
