"""Estimates a model's error rate in the field without labels of field inputs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from scipy.stats import norm as normal
from torch import Tensor

from operant.data import Samples
from operant.data.class_texts import class_names
from operant.formatting import percent
from operant.model import Classifier, Finding
from operant.profile._checks import check_same_shape, names_of, warning
from operant.profile._error_methods import (
    Array,
    Labels,
    Threshold,
    confidence_error,
    fit_temperature,
    fit_threshold,
    negative_entropy,
    transport_potentials,
    transport_value,
)
from operant.profile._field_like import under_conditions
from operant.profile.explained import Explained, explains_field, too_few
from operant.profile.fit_conditions import FittedConditions
from operant.profile.label_shift import NOT_PURE
from operant.profile.priors import Priors, shares_of
from operant.rng import shuffled
from operant.validation import check_at_least, check_between, check_not_empty

MAX_ROWS = 5000  # field inputs that are used
SOURCE_ROWS = 2000  # labelled inputs under conditions; fewer labelled ones are put under several draws
TESTED = 1000  # inputs of either side in the test of whether the field is explained
MIN_ERRORS = 10  # labelled inputs that the model gets wrong, below which there is no threshold
MAX_AUC = 0.65  # of field inputs against labelled ones, above which estimates are known to break
MAX_UNEXPLAINED = 0.4  # share that conditions may leave unexplained
MAX_TIES = 0.05  # share of field inputs whose score is the threshold
MAX_APART = 0.05  # difference between methods beyond chance
LEVEL = 0.01  # significance level of the test for a difference between methods
HALF_WIDTH = 0.05  # of the interval that the advised number of labels gives
ATC, CONFIDENCE, COT = "atc", "confidence", "cot"
SIMULATED, REWEIGHTED, ON_CLEAN = "simulated", "reweighted", "atc on clean inputs"
METHODS = (ATC, CONFIDENCE, COT)
NOT_EXPLAINED, NOT_QUITE, APART = "field not explained", "field not quite explained", "methods disagree"
BREAKS = {
    NOT_EXPLAINED: "labelled inputs do not look like the field to the model",
    APART: "two methods disagree about it",
}  # findings that make an estimate unreliable, in a few words


@dataclass(frozen=True, kw_only=True)
class ErrorEstimate:
    """The share of field inputs that the model gets wrong, estimated without labels: never a bound.

    Attributes:
        value: by the method ``method``.
        lower, upper: what resampling the inputs and the other methods make of it; the truth may lie outside.
        by_method: estimates of all methods, see `estimate_error`.
        findings: reasons to doubt the estimate.
    """

    value: float
    lower: float
    upper: float
    method: str
    by_method: dict[str, float] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def unreliable(self) -> tuple[Finding, ...]:
        """The findings after which estimates are known to be far off."""
        return tuple(f for f in self.findings if f.name in BREAKS)

    @property
    def labels(self) -> int:
        """How many labels of field inputs would estimate the error to about 5 points."""
        p = min(0.5, max(self.value, self.upper))
        return max(50, 10 * math.ceil((1.96 / HALF_WIDTH) ** 2 * p * (1 - p) / 10))


def estimate_error(
    model: Classifier,
    labelled: Samples,
    field: Samples,
    *,
    priors: Priors | Sequence[float] | None = None,
    conditions: FittedConditions | None = None,
    resamples: int = 100,
    confidence: float = 0.95,
    generator: torch.Generator,
) -> ErrorEstimate:
    r"""Estimate how often the model is wrong in the field, from labelled inputs and unlabelled ones from the field.

    Labelled inputs are made to look like the field first: they are put under the conditions, if any were found, and
    input i of class c has the weight wᵢ ∝ π_c / (labelled inputs of class c) for class shares π. Then

    | name | estimate |
    |---|---|
    | ``atc`` | share of field inputs with a negative entropy below a threshold: the one below which as many labelled inputs lie as are wrong |
    | ``confidence`` | 1 - the mean probability of the predicted class, with probabilities corrected for the class shares |
    | ``cot`` | cost of moving the field's probabilities to certain labels in the class shares |
    | ``simulated`` | error on the labelled inputs under conditions; ``reweighted`` if there are no conditions |
    | ``atc on clean inputs`` | ``atc`` without conditions, if there are any |

    all on probabilities softmax(logits / T) with a temperature T fitted to the labelled inputs. ``value`` is ``atc``, or
    ``confidence`` if the model gets fewer than 10 labelled inputs wrong. The interval covers the percentiles of
    resamples of both data sets (and of the class shares, if they have intervals) and the first three methods.

    All of them assume that a labelled input is as often wrong as a field input on which the model is as confident. That
    holds if the labelled inputs, weighted and under conditions, look like the field; a test of that is among the
    findings (`explains_field`). No method can notice a model that is confidently wrong on what nobody has labelled.

    Args:
        labelled: inputs that the model was *not* trained on, with labels.
        field: inputs from operation; labels are ignored.
        priors: class shares in the field (default: those of the labelled inputs).
        conditions: found in the field, see `fit_conditions` (default: none).
        resamples: for the interval.
        generator: draws conditions and resamples.
    """  # noqa: E501
    shares = _checked_shares(model, labelled, field, priors)
    check_at_least(20, resamples=resamples, advice="100 is usual")
    check_between(0, 1, confidence=confidence, advice="0.95 is usual")
    field = field[shuffled(len(field), generator)[:MAX_ROWS]]
    copies = max(1, min(4, SOURCE_ROWS // len(labelled)))
    source, origin = under_conditions(labelled, conditions, copies=copies, generator=generator)
    outputs = _Outputs.of(model, source, origin, field, shares)
    potentials = outputs.potentials()
    by_method = outputs.estimates(potentials)
    if source is not labelled:
        by_method[SIMULATED] = by_method.pop(REWEIGHTED)
        by_method[ON_CLEAN] = outputs.with_source(model, labelled).estimates(potentials)[ATC]
    drawn = [outputs.resampled(priors, generator).estimates(potentials) for _ in range(resamples)]
    draws = {name: np.array([d[name] for d in drawn]) for name in METHODS}
    method = ATC if outputs.errors >= MIN_ERRORS else CONFIDENCE
    lower, upper = _interval(by_method, draws[method], confidence)
    found = [
        _not_explained(
            _tested(model, source, field, shares, origin, generator),
            active=source is not labelled,
            said=isinstance(priors, Priors) and any(f.name == NOT_PURE for f in priors.findings),
        ),
        _much_unexplained(conditions),
        _apart(by_method, draws),
        _few_errors(outputs.errors, len(labelled)),
        _tied(outputs),
    ]
    return ErrorEstimate(
        value=by_method[method],
        lower=lower,
        upper=upper,
        method=method,
        by_method=by_method,
        findings=tuple(finding for finding in found if finding is not None),
    )


@dataclass(frozen=True, kw_only=True)
class _Outputs:
    """Logits of labelled inputs, as they look in the field, and of field inputs."""

    source: Array
    y: Labels
    origin: NDArray[np.int64]  # the labelled row that each source row was made from
    field: Array
    shares: Array

    @staticmethod
    def of(model: Classifier, source: Samples, origin: Tensor, field: Samples, shares: Array) -> "_Outputs":
        y, rows = source.labels.cpu().numpy(), origin.cpu().numpy()
        return _Outputs(source=_logits(model, source), y=y, origin=rows, field=_logits(model, field), shares=shares)

    def with_source(self, model: Classifier, source: Samples) -> "_Outputs":
        """The same field with other labelled inputs."""
        y, rows = source.labels.cpu().numpy(), np.arange(len(source))
        return replace(self, source=_logits(model, source), y=y, origin=rows)

    @property
    def frequencies(self) -> Array:
        return np.bincount(self.y, minlength=len(self.shares)) / len(self.y)

    @property
    def ratios(self) -> Array:
        """The share of each class in the field, divided by its frequency among labelled inputs."""
        known = self.frequencies
        return np.divide(self.shares, known, out=np.zeros_like(known), where=known > 0)

    @property
    def weights(self) -> Array:
        """Of source inputs; they sum to 1."""
        weights = self.ratios[self.y]
        return np.asarray(weights / weights.sum())

    @property
    def wrong(self) -> NDArray[np.bool_]:
        return np.asarray(self.source.argmax(1) != self.y)

    @property
    def errors(self) -> int:
        """How many labelled inputs, of classes that occur in the field, the model gets wrong."""
        return len(np.unique(self.origin[self.wrong & (self.weights > 0)]))

    @property
    def temperature(self) -> float:
        return fit_temperature(self.source, self.y, self.weights)

    def threshold(self, temperature: float) -> Threshold:
        return fit_threshold(_score(self.source, temperature), self.wrong, self.weights)

    def potentials(self) -> Array:
        """Of the transport of the field's probabilities."""
        used = self.shares > 0
        return transport_potentials(1 - softmax(self.field / self.temperature, axis=1)[:, used], self.shares[used])

    def estimates(self, potentials: Array) -> dict[str, float]:
        """The estimate of each method; potentials of similar outputs save most of the time, and change little."""
        temperature, used = self.temperature, self.shares > 0
        p = softmax(self.field / temperature, axis=1)
        corrected = p * self.ratios
        corrected /= np.maximum(corrected.sum(1, keepdims=True), 1e-300)
        return {
            ATC: self.threshold(temperature).error(_score(self.field, temperature)),
            CONFIDENCE: confidence_error(corrected, self.field.argmax(1)),
            COT: max(0.0, transport_value(1 - p[:, used], self.shares[used], potentials)),
            REWEIGHTED: float(self.weights[self.wrong].sum()),
        }

    def resampled(self, priors: Priors | Sequence[float] | None, generator: torch.Generator) -> "_Outputs":
        """As many inputs drawn with replacement, labelled ones within each class, and class shares drawn as well."""
        copies = self.origin.argsort(kind="stable").reshape(int(self.origin.max()) + 1, -1)  # rows of each labelled one
        y = self.y[copies[:, 0]]
        members = [np.flatnonzero(y == c) for c in np.unique(y)]
        rows = copies[np.concatenate([m[_draw(len(m), generator)] for m in members])]
        return _Outputs(
            source=self.source[rows.ravel()],
            y=self.y[rows.ravel()],
            origin=np.repeat(np.arange(len(rows)), rows.shape[1]),
            field=self.field[_draw(len(self.field), generator)],
            shares=_drawn_shares(self.shares, priors, generator),
        )


def _logits(model: Classifier, samples: Samples) -> Array:
    return np.asarray(model.batched_logits(samples.x).cpu().double().numpy())


def _score(logits: Array, temperature: float) -> Array:
    return negative_entropy(softmax(logits / temperature, axis=1))


def _draw(n: int, generator: torch.Generator) -> NDArray[np.int64]:
    return torch.randint(n, (n,), generator=generator, device=generator.device).cpu().numpy()


def _drawn_shares(shares: Array, priors: Priors | Sequence[float] | None, generator: torch.Generator) -> Array:
    """Class shares as uncertain as their intervals say; those that are declared, or have no intervals, are exact."""
    if not isinstance(priors, Priors):
        return shares
    width = np.nan_to_num(np.subtract(priors.upper, priors.lower))
    spread = width / 2 / normal.ppf((1 + priors.confidence) / 2)
    noise = torch.randn(len(shares), dtype=torch.float64, generator=generator, device=generator.device)
    drawn = np.where(shares > 0, np.maximum(shares + spread * noise.cpu().numpy(), 1e-9), 0.0)  # no class comes or goes
    return np.asarray(drawn / drawn.sum())


def _interval(by_method: dict[str, float], draws: Array, confidence: float) -> tuple[float, float]:
    """Percentiles of the resamples, widened to contain the other methods."""
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    values = [by_method[name] for name in METHODS]
    return max(0.0, min(float(low), *values)), min(1.0, max(float(high), *values))


# Where estimates break


def _tested(
    model: Classifier, source: Samples, field: Samples, shares: Array, origin: Tensor, generator: torch.Generator
) -> Explained | None:
    """Whether labelled inputs explain some of the field; None if there are too few of either."""
    some = shuffled(len(source), generator)[:TESTED]
    source, origin, field = source[some], origin[some], field[:TESTED]
    present = _present(shares, source)
    if too_few(source, field, present, origin):
        return None
    return explains_field(model, source, field, priors=present, origin=origin, generator=generator)


def _not_explained(test: Explained | None, *, active: bool, said: bool) -> Finding | None:
    """A difference that is significant; a small one only widens the doubt. What class shares said is not repeated."""
    if test is None or test.explained:
        return None
    under = " and under the conditions found" if active else ""
    small = test.auc <= MAX_AUC
    difference = (
        f"labelled inputs in the field's class shares{under} do not look {'quite ' * small}like the field to the model "
        f"(area under the curve {test.auc:.2f}, where 0.5 is chance), so "
    )
    doubt = "the error may lie outside the interval" if small else "confidence says less about how often it is wrong"
    problem = f"for the same reason as the class shares, {doubt}" if said else difference + doubt
    return warning(NOT_QUITE if small else NOT_EXPLAINED, problem, "Label field inputs and run `operant assess`")


def _present(shares: Array, source: Samples) -> list[float]:
    """Class shares without classes that are not in a sample of labelled inputs."""
    left = shares * (np.bincount(source.labels.cpu().numpy(), minlength=len(shares)) > 0)
    return list((left / left.sum()).tolist())


def _much_unexplained(conditions: FittedConditions | None) -> Finding | None:
    if conditions is None or not conditions.active or conditions.unexplained <= MAX_UNEXPLAINED:
        return None
    problem = (
        f"the conditions leave {percent(conditions.unexplained, 2)} of the difference between training and field "
        "inputs unexplained, so labelled inputs under them may be easier or harder than the field"
    )
    return warning("much is unexplained", problem, "Compare the pictures of `operant field`, and label field inputs")


def _apart(by_method: dict[str, float], draws: dict[str, Array]) -> Finding | None:
    """Whether the methods differ by more than chance; not ``cot``, which is larger than the others by its nature."""
    difference = by_method[ATC] - by_method[CONFIDENCE]
    limit = float(normal.isf(LEVEL / 2)) * float((draws[ATC] - draws[CONFIDENCE]).std(ddof=1)) + MAX_APART
    if abs(difference) <= limit:
        return None
    problem = (
        f"{ATC} estimates {percent(by_method[ATC])} and {CONFIDENCE} {percent(by_method[CONFIDENCE])}, which differ by "
        "more than chance: on field inputs, the model's confidence means something else than on labelled ones"
    )
    return warning(APART, problem, "Do not rely on either; label field inputs and run `operant assess`")


def _few_errors(errors: int, labelled: int) -> Finding | None:
    if errors >= MIN_ERRORS:
        return None
    problem = (
        f"the model gets {errors} of {labelled} labelled inputs wrong, too few to learn a threshold from; its "
        "calibrated confidence is used instead"
    )
    return warning("few labelled errors", problem, f"Give labelled inputs with at least {MIN_ERRORS} errors among them")


def _tied(outputs: _Outputs) -> Finding | None:
    temperature = outputs.temperature
    ties = float((_score(outputs.field, temperature) == outputs.threshold(temperature).value).mean())
    if ties <= MAX_TIES:
        return None
    problem = (
        f"{percent(ties, 2)} of field inputs have exactly the entropy of the threshold, so the outputs hardly rank "
        "inputs by how uncertain the model is"
    )
    return warning("outputs are tied", problem, "Return logits rather than rounded probabilities; see `operant doctor`")


def _checked_shares(
    model: Classifier, labelled: Samples, field: Samples, priors: Priors | Sequence[float] | None
) -> Array:
    """The class shares in the field; raises if they, or the inputs, cannot be used."""
    check_not_empty(labelled=labelled, field=field)
    check_same_shape("field", field, "labelled", labelled)
    model.check(labelled)
    model.check_inputs(field.x)
    k, y = model.classes(labelled.x[:1]), labelled.labels.cpu().numpy()
    known = np.bincount(y, minlength=k) / len(y)
    if (known > 0).sum() < 2:
        raise ValueError("labelled inputs must have at least two classes, got one; label inputs of others")
    if priors is None:
        return known
    shares = shares_of(priors).numpy()
    if len(shares) != k:
        raise ValueError(f"there must be a prior for each of the model's {k} classes, got {len(shares)}")
    if len(missing := np.flatnonzero((shares > 0) & (known == 0))):
        names = class_names(missing.tolist(), names_of(labelled, k))
        raise ValueError(f"a class with a positive prior must occur among labelled inputs, and {names} do not")
    return np.asarray(shares)
