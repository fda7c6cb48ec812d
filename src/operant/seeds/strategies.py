"""Strategies that choose which field inputs to label, each a frozen dataclass: options in fields, data in the call.

| strategy | chooses |
|---|---|
| `Badge` | inputs whose gradients in the last layer are large and differ |
| `RiskBadge` | the same, more often where a risk map expects failures |
| `Clue` | the centres of clusters in which uncertain inputs count more |
| `DiverseMargin` | inputs that differ, among those with the smallest margins |
| `ByRisk` | the riskiest inputs |
| `ByMassAndWeakness` | inputs that are common in the field and on which the model is weak |
| `ByDisagreement` | inputs on which the original and the present model differ most |
| `AtRandom` | any inputs; the only one whose labels allow estimates |

The last linear or convolutional layer's inputs are the model's features, h; see `Classifier.penultimate`. A model
without such a layer is described by its logits instead, and a finding says so.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from operant.data import Samples
from operant.measure.uncertainty import entropy, margin
from operant.model import Classifier, Finding
from operant.rng import shuffled
from operant.seeds.clusters import Seeding, kmeans_centres, kmeans_seeding, nearest_rows
from operant.seeds.designs import checked_values
from operant.seeds.risk import margin_risk, risk_of
from operant.types import Score
from operant.validation import check_at_least, check_finite, check_nonnegative, check_positive

Use = Literal["teaching only", "teaching, judging and estimates"]
"""What labels may be used for. Inputs that were chosen for what the model does on them are no sample of the field."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """What a strategy returns.

    Attributes:
        rows: n different rows of the pool, int64, in the order in which they were chosen.
        reason: why these, as the end of a sentence: "by BADGE: …".
        use: of their labels. Everything but a plain random draw is for teaching only.
        findings: what the strategy had to do without, and what that means.
    """

    rows: Tensor = field(repr=False)
    reason: str
    use: Use = "teaching only"
    findings: tuple[Finding, ...] = ()


class Strategy(Protocol):
    """Chooses n rows of a pool of different, unlabelled inputs; any function of this form is one."""

    def __call__(self, model: Classifier, pool: Samples, n: int, *, generator: torch.Generator) -> Choice: ...


# Diverse inputs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Badge:
    """BADGE: k-means++ on the gradients of the loss in the last layer's weights, if the predicted class were true.

        g(x) = (p(x) - e_c) ⊗ h(x),  c = argmax p(x)        (1)

    Gradients are large where the model is uncertain, and distances between them make the choice diverse. They are never
    computed: (1) of `operant.seeds.clusters.kmeans_seeding` needs only p and h, so 100 000 inputs are no problem. The
    gradient of the last layer's bias is left out, as in the paper. The first input is the one of the largest gradient,
    as in the authors' program; k-means++ itself would draw it from all inputs alike.

    References:
        | Deep Batch Active Learning by Diverse, Uncertain Gradient Lower Bounds (Ash et al., 2020)
        | https://arxiv.org/abs/1906.03671
    """

    def __call__(self, model: Classifier, pool: Samples, n: int, *, generator: torch.Generator) -> Choice:
        every = torch.ones(len(pool), dtype=torch.float64)
        return _badge(model, pool, n, every, "by BADGE: gradients that are large and differ", generator)


@dataclass(frozen=True, kw_only=True)
class RiskBadge:
    """BADGE in which an input's chance is also proportional to its risk.

        P(x is next) ∝ r(x)^b min_j |g(x) - g(x_j)|²        (1)

    `Badge` takes the model's word for how uncertain it is. A risk map has learned from cases where the model fails,
    also where it is sure, and an input on which the model is right has little to teach.

    Args:
        risk: a score, 0 or more and higher where failures are likelier, such as the result of
            `operant.profile.fit_risk`.
        risk_power: b; 0 gives `Badge`.
    """

    risk: Score
    risk_power: float = 1.0

    def __post_init__(self) -> None:
        check_nonnegative(risk_power=self.risk_power)

    def __call__(self, model: Classifier, pool: Samples, n: int, *, generator: torch.Generator) -> Choice:
        risk = _scored(model, pool, self.risk, "risk")
        weights = (risk / risk.max().clamp_min(torch.finfo(risk.dtype).tiny)) ** self.risk_power
        reason = "by BADGE times risk: gradients that are large and differ, where failures are likely"
        return _badge(model, pool, n, weights, reason, generator)


@dataclass(frozen=True, kw_only=True)
class Clue:
    """CLUE: the input nearest to each of n centres of a k-means in which inputs are weighted by their entropy.

        minimise Σ_k Σ_{x in k} H(x) |h(x) - centre_k|²        (1)

    k-means starts from k-means++ with the same weights and takes at most 30 steps; an input that is nearest to several
    centres is chosen for the first of them, and the others take their next nearest.

    Args:
        temperature: of the softmax whose entropy H is; above 1, inputs count more evenly.

    References:
        | Active Domain Adaptation via Clustering Uncertainty-weighted Embeddings (Prabhu et al., 2021)
        | https://arxiv.org/abs/2010.08666
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_positive(temperature=self.temperature)

    def __call__(self, model: Classifier, pool: Samples, n: int, *, generator: torch.Generator) -> Choice:
        seen = _outputs(model, pool.x)
        h, weights = seen.features, entropy((seen.logits / self.temperature).softmax(1)).double()
        start = kmeans_seeding(h, n, first=int(weights.argmax()), weights=weights, generator=generator)
        rows = nearest_rows(h, kmeans_centres(h, h[start.rows], weights=weights))  # (1)
        reason = "by CLUE: centres of clusters in which uncertain inputs count more"
        return Choice(rows=rows, reason=reason, findings=(*seen.findings, *_equal(start)))


@dataclass(frozen=True, kw_only=True)
class DiverseMargin:
    """Inputs that differ in the model's features, among those with the smallest margins.

    The ``candidates_per_label`` times n smallest margins are kept, and k-means++ chooses among them, from the smallest
    on. The paper clusters the candidates instead.

    Args:
        candidates_per_label: inputs that are kept for each that is chosen. 1: the n smallest margins.

    References:
        | Diverse mini-batch Active Learning (Zhdanov, 2019), https://arxiv.org/abs/1901.05954
    """

    candidates_per_label: int = 10

    def __post_init__(self) -> None:
        check_at_least(1, candidates_per_label=self.candidates_per_label)

    def __call__(self, model: Classifier, pool: Samples, n: int, *, generator: torch.Generator) -> Choice:
        seen = _outputs(model, pool.x)
        kept = _largest(-margin(seen.logits.softmax(1)), min(self.candidates_per_label * n, len(pool)), generator)
        spread = kmeans_seeding(seen.features[kept], n, first=0, generator=generator)
        reason = f"by margin and diversity: inputs that differ, among the {len(kept)} with the smallest margins"
        return Choice(rows=kept[spread.rows], reason=reason, findings=(*seen.findings, *_equal(spread)))


# Rankings -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ByRisk:
    """The n riskiest inputs; equal ones in random order. They may resemble each other.

    Args:
        risk: a score, higher where failures are likelier, such as the result of `operant.profile.fit_risk`.
    """

    risk: Score

    def __call__(self, model: Classifier, pool: Samples, n: int, *, generator: torch.Generator) -> Choice:
        return _ranked(risk_of(model, pool, self.risk), n, "by risk: where failures are likeliest", generator)


@dataclass(frozen=True, kw_only=True)
class ByMassAndWeakness:
    """The n inputs with the largest product of mass and weakness; equal ones in random order.

    Args:
        mass: the profile's mass of each input of a pool, on any scale, for instance ``profile.weights``. In a pool that
            is itself a sample of the field, regions that are common are already frequent, and this prefers them again.
        weakness: a score, 0 or more and higher where the model is weaker.
    """

    mass: Callable[[Samples], Tensor]
    weakness: Score = margin_risk

    def __call__(self, model: Classifier, pool: Samples, n: int, *, generator: torch.Generator) -> Choice:
        mass = checked_values(self.mass(pool), len(pool), "mass")
        values = mass * _scored(model, pool, self.weakness, "weakness")
        return _ranked(values, n, "by mass times weakness: common in the field, and the model is weak there", generator)


@dataclass(frozen=True, kw_only=True)
class ByDisagreement:
    """The n inputs on which the original and the present model differ most; equal ones in random order.

        TV(x) = ½ Σ_i |P_original[i] - P_present[i]|        (1)

    Args:
        original: the model before it was adapted or retrained; both have the same classes.
    """

    original: Classifier

    def __call__(self, model: Classifier, pool: Samples, n: int, *, generator: torch.Generator) -> Choice:
        before, now = self.original.probs(pool.x).cpu(), model.probs(pool.x).cpu()
        if before.shape != now.shape:
            classes = f"the original has {before.shape[1]} and the present {now.shape[1]}"
            raise ValueError(f"both models must have the same classes, {classes}; give the model it was made from")
        values = (before.double() - now).abs().sum(1) / 2  # (1)
        return _ranked(values, n, "by disagreement: where the original and the present model differ most", generator)


# Random ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AtRandom:
    """Any n inputs, each with the same chance: a sample of the pool, whose labels also allow judging and estimates."""

    def __call__(self, model: Classifier, pool: Samples, n: int, *, generator: torch.Generator) -> Choice:
        rows = shuffled(len(pool), generator)[:n]
        return Choice(rows=rows, reason="drawn at random", use="teaching, judging and estimates")


# What they share ------------------------------------------------------------------------------------------------------


class _Outputs(NamedTuple):
    """What the model makes of inputs, on the CPU."""

    logits: Tensor
    features: Tensor
    findings: tuple[Finding, ...]


def _outputs(model: Classifier, x: Tensor) -> _Outputs:
    logits, features = model.batched_logits(x).cpu(), model.penultimate(x)
    findings: tuple[Finding, ...] = ()
    if features is None:
        problem = "no linear or convolutional layer of the model can be observed, so its logits serve as features"
        advice = "Pass a plain module instead of a scripted one or a callable"
        features, findings = logits, (Finding(name="no penultimate layer", problem=problem, advice=advice),)
    check_finite(features=features, advice="examine the model with model.doctor")
    h = features.cpu().to(torch.promote_types(features.dtype, torch.float32))
    h = h / h.abs().max().clamp_min(torch.finfo(h.dtype).tiny)  # squares must not overflow
    return _Outputs(logits.to(h.dtype), h, findings)


def _badge(
    model: Classifier, pool: Samples, n: int, weights: Tensor, reason: str, generator: torch.Generator
) -> Choice:
    seen = _outputs(model, pool.x)
    h, probs = seen.features, seen.logits.softmax(1)
    a = probs.scatter_add(1, probs.argmax(1, keepdim=True), probs.new_full((len(probs), 1), -1.0))
    sizes = a.square().sum(1) * h.square().sum(1)  # |g|², by (1) of `Badge`
    first = int((weights * sizes).argmax())
    spread = kmeans_seeding(h, n, first=first, factor=a, weights=weights, generator=generator)
    return Choice(rows=spread.rows, reason=reason, findings=(*seen.findings, *_equal(spread)))


def _equal(seeding: Seeding) -> tuple[Finding, ...]:
    if seeding.at_random == 0:
        return ()
    problem = (
        f"{seeding.at_random} of {len(seeding.rows)} inputs were chosen arbitrarily, because the model cannot tell "
        "those that were left from chosen ones, or because they have no weight"
    )
    return (Finding(name="nothing left to tell apart", problem=problem, advice="Label fewer inputs at a time"),)


def _ranked(values: Tensor, n: int, reason: str, generator: torch.Generator) -> Choice:
    findings: tuple[Finding, ...] = ()
    if len(values) > n and bool(values.max() == values.min()):
        problem = f"all {len(values)} inputs have the same value, {float(values[0]):.3g}, so these were drawn at random"
        findings = (Finding(name="nothing to rank by", problem=problem, advice="Use another strategy"),)
    return Choice(rows=_largest(values.cpu(), n, generator), reason=reason, findings=findings)


def _largest(values: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Rows of the n largest values, largest first; equal ones in random order."""
    order = shuffled(len(values), generator)
    return order[values[order].argsort(descending=True, stable=True)][:n]


def _scored(model: Classifier, pool: Samples, score: Score, name: str) -> Tensor:
    advice = "; pass a score that can be negative through operant.seeds.ranked"
    return checked_values(risk_of(model, pool, score), len(pool), name, advice=advice)
