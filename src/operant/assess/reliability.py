"""How likely the next input is to be misclassified: the number for a release meeting, with a bound one may sign."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import beta, binom
from torch import Tensor

from operant.assess.bounds import check_confidence, clopper_pearson
from operant.assess.estimators import TERMS, estimate
from operant.data import Samples, content_ids
from operant.model import Classifier
from operant.model.doctor import Finding
from operant.profile import Profile
from operant.seeds import Draw, combine, draw, margin_risk, risk_of
from operant.seeds.designs import normalised
from operant.types import Labeller, Score

DEFENSIVE = 0.5  # share of the draw that follows the mass alone: labels on what looks safe decide the bound
STRATA = 6
CELLS = 12  # parts of the profile that pmi is told for
STRANGE = 0.01  # quantile of field inputs below which an input is outside the profile
OUTSIDE = 0.5  # share of a pool that may lie outside before the profile is said to have no mass on it
POOL_PART = 0.2  # of the allowed error, for the step from the pool to the field


@dataclass(frozen=True, kw_only=True)
class Part:
    """A class or a cell of the profile: how much of use and of failing happens there.

    Attributes:
        name: the class, or the number of the cell.
        mass: share of use, by the profile.
        pmi: the part's contribution to the probability of misclassification; all parts sum to the whole.
        labels, failures: drawn there.
        centre: of a cell, in the profile's codes: an input belongs to the cell whose centre is nearest.
    """

    name: str
    mass: float
    pmi: float
    labels: int
    failures: int
    centre: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """The probability of misclassification per input (pmi) of a model in use.

    Attributes:
        pmi: estimated, without bias.
        upper: pmi over the pool is at most this, with ``confidence``; None where no bound can be trusted.
        field_upper: the same for the field that the pool is a sample of; None for a pool weighted by the profile, whose
            likeness to the field no statistics can promise.
        confidence: of both bounds.
        design, method, bound: how the inputs were drawn, and the two numbers were obtained.
        pool: inputs that could be drawn.
        labels: how many labels were bought.
        failures: how many of those inputs the model got wrong.
        by_class, by_cell: where pmi comes from; by the true class, and by cells of the profile.
        ids: of the inputs that were labelled: use them for retraining, and they are spent for the next assessment.
        findings: what makes the numbers doubtful.
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
    by_class: tuple[Part, ...] = field(repr=False)
    by_cell: tuple[Part, ...] = field(repr=False)
    ids: tuple[int, ...] = field(repr=False)
    findings: tuple[Finding, ...] = ()

    @property
    def claim(self) -> float | None:
        """The bound to sign: for the field where there is one, else for the pool."""
        return self.upper if self.field_upper is None else self.field_upper

    def meets(self, requirement: float) -> bool | None:
        """True: pmi is at most this, with confidence. False: not even the estimate is. None: it cannot be told yet."""
        if not 0 < requirement < 1:
            raise ValueError(f"a requirement must be a probability between 0 and 1, got {requirement}")
        if self.claim is not None and self.claim <= requirement:
            return True
        return False if self.pmi > requirement * (1 + 1e-9) else None

    def __str__(self) -> str:
        where = sorted(self.by_class, key=lambda part: -part.pmi)[:3]
        most = ", ".join(f"{part.name} ({part.pmi / self.pmi:.0%})" for part in where if part.pmi > 0)
        lines = [
            f"The model misclassifies an estimated {self.pmi:.2%} of inputs in use.",
            "No upper bound can be given yet." if self.claim is None else
            f"With {self.confidence:.10g} confidence it is at most {self.claim:.2%}.",
            f"{self.labels} of {self.pool} inputs were labelled, and {self.failures} of them were misclassified "
            f"(drawn by the design {self.design}, estimated by {self.method}, bound: {self.bound}).",
        ]  # fmt: skip
        if most:
            lines.append(f"Most of it comes from class {most}.")
        return "\n".join([" ".join(lines), *map(str, self.findings)])


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
    """Draw inputs from the pool, have them labelled, and say how likely the next input is to be misclassified.

    By default six strata of the risk are drawn from, each by its mass and its risk. At a pmi of .03 and above that
    needs about half the labels of simple sampling if the risk is good (at .01 little is saved, at .001 nothing), and
    its bound holds if it is not: ``benchmarks/coverage.py``. The bound is for one look: who looks again after buying
    more labels must share the allowed error between the looks, as `operant assess` does.

    Args:
        model: to be assessed; it must not have learned from the pool.
        profile: fitted to field data; tells cells, and whether the pool has to do with the field at all.
        labeller: asked for the labels of the drawn inputs, once.
        pool: inputs that were drawn from the field, or inputs weighted like it (then give ``mass``). Their labels, if
            there are any, are not looked at.
        labels: how many to buy.
        confidence: of the bounds.
        design: of `operant.seeds.draw`; ``"pps"`` draws by mass alone, with an exact bound.
        risk: guesses which inputs fail.
        mass: of each input of the pool, such as `Profile.weights`; equal for a pool drawn from the field.
        used: `content_ids` of all inputs that were learned from. A pool that holds one of them is refused, whatever
            ids it carries.
        generator: draws the inputs.
    """
    check_confidence(confidence)
    _check_pool(model, pool, labels, used)
    codes = profile.encode(pool.x).detach()
    outside = _checked_outside(profile, codes)
    p = normalised(torch.ones(len(pool)) if mass is None else mass, len(pool), "mass")
    if design == "pps":
        weights = p
    else:
        weights = combine(p, risk_of(model, Samples(pool.x, ids=pool.ids), risk), risk_power=0.5, defensive=DEFENSIVE)
    drawn = draw(pool, weights, labels, design=design, strata=STRATA, mass=p, generator=generator)
    drawn.chances  # noqa: B018  # refuses a design without, before any label is bought
    asked = drawn.samples(Samples(pool.x, ids=pool.ids))
    y = _asked(labeller, asked, model)
    failed = (model.predict(asked.x).cpu() != y).double()
    told = estimate(drawn, failed, confidence=confidence)
    shares = TERMS[drawn.design](drawn, failed).shares * failed
    centres = centres_of(profile, generator=generator)
    cells = torch.cdist(codes.cpu().double(), centres).argmin(1)
    return Assessment(
        pmi=told.estimate,
        upper=told.upper,
        field_upper=_field_upper(drawn, failed, confidence) if mass is None else None,
        confidence=confidence,
        design=design,
        method=told.method,
        bound=told.bound,
        pool=len(pool),
        labels=len(drawn),
        failures=int(failed.sum()),
        by_class=_parts(y, failed, shares, _class_masses(drawn, y, model.classes(pool.x))),
        by_cell=_parts(cells[drawn.indices], failed, shares, _sums(cells, p, len(centres)), centres),
        ids=tuple(asked.ids.tolist()),
        findings=told.findings + profile.findings + _doubts(outside, p, labels),
    )


def _field_upper(drawn: Draw, failed: Tensor, confidence: float) -> float | None:
    """The allowed error is shared: four fifths for the pool's bound, one fifth for the step from there to the field."""
    inner = estimate(drawn, failed, confidence=1 - (1 - POOL_PART) * (1 - confidence)).upper
    return None if inner is None else field_bound(inner, drawn.pool_size, confidence)


def field_bound(upper: float, size: int, confidence: float) -> float:
    """From a pool to the field it is a sample of: at most ``upper`` of its inputs fail, as if all were labelled.

    The exact bound from ``size`` trials, at a fifth of the error that ``confidence`` allows.
    """
    k = min(size, math.ceil(upper * size - 1e-9))
    return clopper_pearson(k, size, confidence=1 - POOL_PART * (1 - confidence)).upper


# Where it comes from --------------------------------------------------------------------------------------------------


def centres_of(profile: Profile, *, generator: torch.Generator) -> Tensor:
    """Centres of the cells that a profile is cut into, in its codes: by k-means over field inputs, ``(cells, d)``."""
    from sklearn.cluster import KMeans

    seed = int(torch.randint(2**31 - 1, (), generator=generator, device=generator.device))
    parts = KMeans(min(CELLS, len(profile.codes)), n_init=1, random_state=seed).fit(
        profile.codes.cpu().double().numpy(), sample_weight=profile.shares.cpu().numpy()
    )
    return torch.from_numpy(parts.cluster_centers_)


def _parts(
    of: Tensor, failed: Tensor, shares: Tensor, masses: Tensor, centres: Tensor | None = None
) -> tuple[Part, ...]:
    n = len(masses)
    pmi, labels, failures = (_sums(of, values, n) for values in (shares, torch.ones_like(shares), failed))
    return tuple(
        Part(
            name=str(i),
            mass=float(masses[i]),
            pmi=float(pmi[i]),
            labels=int(labels[i]),
            failures=int(failures[i]),
            centre=() if centres is None else tuple(centres[i].tolist()),
        )
        for i in range(n)
    )


def _class_masses(drawn: Draw, y: Tensor, classes: int) -> Tensor:
    """Estimated from the labels, since the pool has none."""
    weights = TERMS[drawn.design](drawn, torch.zeros(len(y), dtype=torch.float64)).shares
    masses = _sums(y, weights, classes)
    return masses / masses.sum().clamp_min(1e-300)


def _sums(of: Tensor, values: Tensor, n: int) -> Tensor:
    return torch.zeros(n, dtype=torch.float64).index_add_(0, of.cpu(), values.cpu().double())


# Before any label is bought ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How many labels a claim will need.

    Attributes:
        target: the claim: pmi at most this.
        confidence: of the claim.
        fewest: labels, if none of them fails.
        expected: what pmi is thought to be, or None.
        labels: with these or more labels the claim succeeds with probability ``power`` if pmi is as expected, or None.
        power: that probability.
    """

    target: float
    confidence: float
    fewest: int
    expected: float | None
    labels: int | None
    power: float

    def __str__(self) -> str:
        told = (
            f"To claim a pmi of at most {self.target:.3g} with {self.confidence:.4g} confidence takes at least "
            f"{self.fewest} labels of inputs drawn from the field, if none of them fails."
        )
        if self.labels is None:
            return told
        return (
            f"{told} If pmi is {self.expected:.3g}, {self.labels} labels are enough with probability {self.power:.2g}."
        )


def plan(target: float, *, confidence: float = 0.95, expected: float | None = None, power: float = 0.8) -> Plan:
    """How many labels a claim will need, by simple sampling and the exact bound.

        B(1 - α; k + 1, n - k) ≤ target        (1)

    from which n on, for k = 0, and for the k that Binomial(n, expected) does not exceed with probability ``power``.
    Drawn in strata of a good risk, fewer may do where pmi is not small; a bound for the field rather than for the pool
    takes somewhat more.

    Args:
        target: the claim: pmi at most this.
        confidence: of the claim.
        expected: what pmi is thought to be; below the target, or no number of labels will do.
        power: how sure one wants to be that the claim succeeds.

    >>> plan(0.01).fewest
    299
    """
    check_confidence(confidence)
    if not 0 < target < 1:
        raise ValueError(f"target must be a probability between 0 and 1, got {target}")
    if not 0 < power < 1:
        raise ValueError(f"power must be between 0 and 1, got {power}; 0.8 is usual")
    fewest = math.ceil(math.log(1 - confidence) / math.log1p(-target) - 1e-9)
    labels = None if expected is None else _enough(target, confidence, expected, power, fewest)
    return Plan(target=target, confidence=confidence, fewest=fewest, expected=expected, labels=labels, power=power)


def _enough(target: float, confidence: float, expected: float, power: float, fewest: int) -> int:
    if not 0 <= expected < target:
        raise ValueError(
            f"expected must be a pmi below the target {target}, got {expected}; no number of labels proves a claim "
            "that is not true: improve the model first"
        )

    def succeeds(n: NDArray[np.int64]) -> NDArray[np.bool_]:
        k = binom.ppf(power, n, expected)
        uppers = beta.isf(1 - confidence, k + 1, np.maximum(n - k, 1e-9))
        held: NDArray[np.bool_] = (uppers <= target) & (k < n)  # (1)
        return held

    high = fewest
    while not succeeds(np.arange(high, 2 * high)).all():  # it goes up and down as k steps up: look at whole stretches
        high *= 2
    n = np.arange(fewest, 2 * high)
    failing = np.flatnonzero(~succeeds(n))
    return int(n[failing[-1]]) + 1 if len(failing) else fewest


# Refusals -------------------------------------------------------------------------------------------------------------


def _check_pool(model: Classifier, pool: Samples, labels: int, used: Tensor | None) -> None:
    if labels != int(labels) or labels < 1:
        raise ValueError(f"labels must be a whole number, at least 1, got {labels}; `plan` says how many a claim needs")
    if len(pool) == 0:
        raise ValueError("the pool is empty; give inputs from the field")
    model.check_inputs(pool.x)
    if used is not None:
        spent = torch.isin(content_ids(pool.x), used.cpu())
        if bool(spent.any()):
            raise ValueError(
                f"{int(spent.sum())} of the pool's {len(pool)} inputs were learned from, and tell nothing of new "
                "ones; leave them out: pool[~torch.isin(content_ids(pool.x), used)]"
            )


def _checked_outside(profile: Profile, codes: Tensor) -> float:
    """The share of a pool that is stranger than field inputs are; refused where that is most of it."""
    outside = float((profile.quantile_of_codes(codes) < STRANGE).double().mean())
    if outside > OUTSIDE:
        raise ValueError(
            f"the profile has no mass on this pool: {outside:.0%} of its inputs are stranger than 99 % of field "
            "inputs; give inputs from the field, or fit the profile to data like these"
        )
    return outside


def _doubts(outside: float, mass: Tensor, labels: int) -> tuple[Finding, ...]:
    found, effective = [], 1 / float(mass.square().sum())
    if outside > 0.1:
        found.append(
            Finding(
                name="pool unlike field",
                problem=f"{outside:.0%} of the pool's inputs are stranger than 99 % of the profile's field inputs",
                advice="Find out whether the field has changed: drift() tells, and update_profile follows",
                severity="warning",
            )
        )
    if effective < min(labels, 0.1 * len(mass)):
        found.append(
            Finding(
                name="few inputs carry the mass",
                problem=f"the pool's {len(mass)} inputs count like {effective:.0f} of equal mass",
                advice="The bound is about these masses, not the field; assess inputs drawn from the field instead",
                severity="warning",
            )
        )
    return tuple(found)


def _asked(labeller: Labeller, asked: Samples, model: Classifier) -> Tensor:
    told, classes = labeller(asked), model.classes(asked.x)
    try:
        y = torch.as_tensor(told).cpu()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"the labeller must give integers, got {told!r:.60}") from None
    if y.shape != (len(asked),) or y.is_floating_point():
        raise ValueError(
            f"the labeller must give one class from 0 to {classes - 1} for each of {len(asked)} inputs, got "
            f"{y.dtype} of shape {tuple(y.shape)}"
        )
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise ValueError(
            f"the labeller must give one class from 0 to {classes - 1} for each input, got labels from {int(y.min())} "
            f"to {int(y.max())}"
        )
    return y.long()
