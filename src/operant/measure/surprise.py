"""Surprise adequacy: how much an input's activations differ from those of the training data.

Everything is computed in double precision and in blocks. Each kind is fitted to a model and training inputs (`fit_lsa`,
`fit_dsa`, `fit_mdsa`) and then called with a model and inputs. ``LSA.of``, ``DSA.of`` and ``MDSA.of`` fit to
activations instead, and ``values`` rates activations.

>>> from operant import Classifier, Samples
>>> from operant.networks import LeNet5
>>> model, train = Classifier(LeNet5()), Samples(torch.rand(50, 1, 28, 28))
>>> surprise = fit_mdsa(model, train, layers=["fc3"], by_class=False)
>>> surprise(model, torch.rand(8, 1, 28, 28)).shape
torch.Size([8])

References:
    | Guiding Deep Learning System Testing Using Surprise Adequacy (Kim et al., 2019), for `LSA` and `DSA`
    | https://arxiv.org/abs/1808.08444
    | A Review and Refinement of Surprise Adequacy (Weiss et al., 2021), https://arxiv.org/abs/2103.05939
    | Reducing DNN Labelling Cost Using Surprise Adequacy (Kim et al., 2020), for `MDSA`
    | https://arxiv.org/abs/2006.00894
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from operant.data import Samples
from operant.data.class_texts import class_name
from operant.measure.activations import Neurons, check_activations, find_neurons
from operant.model import Classifier
from operant.rng import shuffled
from operant.validation import check_from_to

ROWS, POINTS = 1024, 4096  # rows and references per block
EXACT = 4096  # neurons whose covariance is computed even if there are fewer references


class _ClassReferences(Protocol):
    """The references of one predicted class, prepared to rate rows of that class."""

    def rate(self, a: Tensor) -> Tensor: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class _Surprise:
    """What the three kinds share: they rate activations, or inputs if fitted to a model."""

    parts: Mapping[int, _ClassReferences] = field(repr=False)  # by predicted class; all under 0 if not by_class
    width: int  # number of neurons
    by_class: bool = True
    neurons: Neurons | None = None
    classes: tuple[str, ...] = ()  # names of the predicted classes, for messages

    def values(self, activations: Tensor, predicted: Tensor) -> Tensor:
        """Surprise of each row."""
        _check_query(activations, predicted, width=self.width)
        out = activations.new_empty(len(activations), dtype=torch.float64)
        groups = predicted if self.by_class else torch.zeros_like(predicted)
        for c in groups.unique().tolist():
            rows = (groups == c).nonzero().flatten()
            if c not in self.parts:
                name = class_name(c, self.classes)
                raise ValueError(
                    f"{len(rows)} of {len(predicted)} rows are predicted as class {name}, which has no references; "
                    "fit to training inputs of every class"
                )
            out[rows] = self.parts[c].rate(activations[rows].double())
        return out

    def __call__(self, model: Classifier, x: Tensor) -> Tensor:
        """Surprise of each input."""
        if self.neurons is None:
            raise ValueError("this was fitted to activations, not to a model; call values(activations, predicted)")
        return self.values(self.neurons(model, x), model.predict(x))


@dataclass(frozen=True, kw_only=True, eq=False)
class Kernels:
    """A Gaussian kernel density with one full covariance, in coordinates that make it the identity."""

    columns: Tensor  # the neurons with enough variance
    centre: Tensor
    factor: Tensor  # lower triangular L, L Lᵀ = H
    points: Tensor  # L⁻¹ (reference − centre)
    constant: float  # log n + ½ log |2π H|

    def rate(self, a: Tensor) -> Tensor:
        """(1) of `LSA`."""
        z = _whitened(a[:, self.columns], self.centre, self.factor)
        total = z.new_full((len(z),), -torch.inf)
        for rows, _, squared in _blocks(z, self.points):
            total[rows] = torch.logaddexp(total[rows], torch.logsumexp(squared / -2, 1))
        return -(total - self.constant)


@dataclass(frozen=True, kw_only=True, eq=False)
class LSA(_Surprise):
    """Likelihood-based surprise: how rare these activations are among training inputs of the same predicted class c.

        LSA(x) = −log( 1/|A_c| Σ_{a ∈ A_c} N(α(x) − a; 0, H_c) ),   H_c = |A_c|^(−2/(d+4)) Cov(A_c)         (1)

    α(x) are the activations, d the number of neurons used, H_c the bandwidth by Scott's rule. A neuron that hardly
    varies over A_c is left out for that class, because the covariance could not be inverted. So d may differ between
    classes, and values are best compared within one class. (Kim et al. leave a neuron out for all classes if it hardly
    varies in any, which in ReLU networks can leave very few.)
    """

    parts: Mapping[int, Kernels] = field(repr=False)

    @staticmethod
    def of(
        activations: Tensor,
        predicted: Tensor,
        *,
        by_class: bool = True,
        var_threshold: float = 1e-5,
        max_features: int | None = None,
        classes: Sequence[str] = (),
    ) -> "LSA":
        """Fit to activations ``(N, neurons)`` and the classes predicted from them; see `fit_lsa` for the options."""
        groups = _grouped(activations, predicted, by_class=by_class)
        kernels = {
            c: _kernels(a, _of_class(c, by_class, classes), var_threshold=var_threshold, max_features=max_features)
            for c, a in groups.items()
        }
        return LSA(parts=kernels, width=activations.shape[1], by_class=by_class, classes=tuple(classes))


def fit_lsa(
    model: Classifier,
    train: Samples,
    *,
    layers: Sequence[str],
    by_class: bool = True,
    var_threshold: float = 1e-5,
    max_features: int | None = None,
    references: int | None = None,
    generator: torch.Generator | None = None,
) -> LSA:
    """Learn `LSA` from training inputs and the model's predictions; labels are not used.

    Args:
        layers: whose neurons to use; one deep layer is usual.
        by_class: compare with inputs of the same predicted class, or with all.
        var_threshold: leave out neurons with a smaller variance.
        max_features: use at most this many neurons, those of largest variance.
        references: draw this many of the training inputs with the generator (default: use all).
    """
    neurons, activations, predicted = _learn_from(model, train, layers, references, generator)
    fitted = LSA.of(
        activations,
        predicted,
        by_class=by_class,
        var_threshold=var_threshold,
        max_features=max_features,
        classes=_names(model, train),
    )
    return replace(fitted, neurons=neurons)


def _kernels(a: Tensor, whose: str, *, var_threshold: float, max_features: int | None) -> Kernels:
    n = len(a)
    variance = a.var(0, correction=0)
    order = variance.argsort(descending=True, stable=True)[:max_features]
    columns = order[variance[order] >= max(var_threshold, torch.finfo(torch.float64).tiny)].sort().values
    d = len(columns)
    if d == 0:
        raise ValueError(
            f"at least one neuron must vary by var_threshold={var_threshold} over the references{whose}, none does; "
            "choose other layers or a lower threshold"
        )
    singular = ValueError(
        f"{n} references{whose} must span the {d} neurons that vary, but their covariance is singular; give more "
        f"references, a higher var_threshold, or max_features below {d}"
    )
    if n <= d:  # the covariance, which is larger than the references, would be singular
        raise singular
    a, centre = a[:, columns], a[:, columns].mean(0)
    spread = torch.linalg.eigvalsh(covariance := torch.atleast_2d(a.T.cov()))
    if spread[0] <= d * torch.finfo(torch.float64).eps * spread[-1]:
        raise singular
    factor = torch.linalg.cholesky(covariance * n ** (-2 / (d + 4)))
    constant = math.log(n) + d / 2 * math.log(2 * math.pi) + float(factor.diagonal().log().sum())
    points = _whitened(a, centre, factor)
    return Kernels(columns=columns, centre=centre, factor=factor, points=points, constant=constant)


def _whitened(a: Tensor, centre: Tensor, factor: Tensor) -> Tensor:
    z: Tensor = torch.linalg.solve_triangular(factor, (a - centre).T, upper=False)
    return z.T.contiguous()


@dataclass(frozen=True, kw_only=True, eq=False)
class References:
    """The references of one class, and the distance of each to the nearest one of another class."""

    points: Tensor
    margins: Tensor

    def rate(self, a: Tensor) -> Tensor:
        """(1) of `DSA`."""
        distance, place = _nearest(a, self.points)
        return distance / self.margins[place]


@dataclass(frozen=True, kw_only=True, eq=False)
class DSA(_Surprise):
    """Distance-based surprise: distance to the nearest reference of the same class, relative to its class margin.

        a = nearest to α(x) among references of the predicted class
        DSA(x) = ‖α(x) − a‖ / min { ‖a − b‖ : b of another predicted class }                              (1)

    Above 1, the input is farther from that reference than the reference is from other classes.
    """

    parts: Mapping[int, References] = field(repr=False)

    @staticmethod
    def of(activations: Tensor, predicted: Tensor, *, classes: Sequence[str] = ()) -> "DSA":
        """Fit to activations ``(N, neurons)`` and the classes predicted from them."""
        groups = _grouped(activations, predicted)
        if len(groups) < 2:
            raise ValueError("references must have at least two predicted classes, got one; give more inputs")
        margins = {c: _nearest(a, activations[predicted != c].double())[0] for c, a in groups.items()}
        if touching := sum(int((margin == 0).sum()) for margin in margins.values()):
            raise ValueError(
                f"{touching} of {len(activations)} references have the same activations as one with another "
                "prediction; choose layers that distinguish them"
            )
        parts = {c: References(points=a, margins=margins[c]) for c, a in groups.items()}
        return DSA(parts=parts, width=activations.shape[1], classes=tuple(classes))


def fit_dsa(
    model: Classifier,
    train: Samples,
    *,
    layers: Sequence[str],
    references: int | None = None,
    generator: torch.Generator | None = None,
) -> DSA:
    """Learn `DSA` from training inputs and the model's predictions; arguments as for `fit_lsa`."""
    neurons, activations, predicted = _learn_from(model, train, layers, references, generator)
    return replace(DSA.of(activations, predicted, classes=_names(model, train)), neurons=neurons)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ellipsoid:
    """A mean, and directions scaled so that distances along them are in standard deviations."""

    mean: Tensor
    directions: Tensor  # (neurons, rank)

    def rate(self, a: Tensor) -> Tensor:
        """(1) of `MDSA`."""
        distance: Tensor = ((a - self.mean) @ self.directions).norm(dim=1)
        return distance


@dataclass(frozen=True, kw_only=True, eq=False)
class MDSA(_Surprise):
    """Mahalanobis surprise: distance from the mean of the same predicted class c, in standard deviations.

        MDSA(x) = √( (α(x) − μ_c)ᵀ S_c⁺ (α(x) − μ_c) )                              (1)

    S_c⁺ is the pseudo-inverse of the covariance: directions in which the references do not vary are ignored, so layers
    with dead neurons can be used.
    """

    parts: Mapping[int, Ellipsoid] = field(repr=False)

    @staticmethod
    def of(activations: Tensor, predicted: Tensor, *, by_class: bool = True, classes: Sequence[str] = ()) -> "MDSA":
        """Fit to activations ``(N, neurons)`` and the classes predicted from them."""
        groups = _grouped(activations, predicted, by_class=by_class)
        ellipsoids = {c: _ellipsoid(a, _of_class(c, by_class, classes)) for c, a in groups.items()}
        return MDSA(parts=ellipsoids, width=activations.shape[1], by_class=by_class, classes=tuple(classes))


def fit_mdsa(
    model: Classifier,
    train: Samples,
    *,
    layers: Sequence[str],
    by_class: bool = True,
    references: int | None = None,
    generator: torch.Generator | None = None,
) -> MDSA:
    """Learn `MDSA` from training inputs and the model's predictions; arguments as for `fit_lsa`."""
    neurons, activations, predicted = _learn_from(model, train, layers, references, generator)
    fitted = MDSA.of(activations, predicted, by_class=by_class, classes=_names(model, train))
    return replace(fitted, neurons=neurons)


def _ellipsoid(a: Tensor, whose: str) -> Ellipsoid:
    if a.shape[1] > EXACT and len(a) < a.shape[1]:
        return _flat_ellipsoid(a, whose)
    spread, axes = torch.linalg.eigh(torch.atleast_2d(a.T.cov(correction=0)))
    if not bool(spread[-1] > 0):
        raise ValueError(f"the references{whose} must vary, all have the same activations; choose other layers")
    kept = spread > len(spread) * torch.finfo(torch.float64).eps * spread[-1]
    return Ellipsoid(mean=a.mean(0), directions=axes[:, kept] / spread[kept].sqrt())


def _flat_ellipsoid(a: Tensor, whose: str) -> Ellipsoid:
    """The same from the inner products of the rows, ``(N, N)``, where the covariance would be much larger."""
    mean = a.mean(0)
    spread, weights = torch.linalg.eigh((a - mean) @ (a - mean).T / len(a))
    if not bool(spread[-1] > 0):
        raise ValueError(f"the references{whose} must vary, all have the same activations; choose other layers")
    kept = spread > a.shape[1] * torch.finfo(torch.float64).eps * spread[-1]
    return Ellipsoid(mean=mean, directions=(a - mean).T @ (weights[:, kept] / spread[kept]) / math.sqrt(len(a)))


def _learn_from(
    model: Classifier, train: Samples, layers: Sequence[str], references: int | None, generator: torch.Generator | None
) -> tuple[Neurons, Tensor, Tensor]:
    """The neurons, their activations and the predictions on (some of) the training inputs."""
    if references is not None:
        if generator is None:
            raise ValueError(f"references={references} are drawn at random; give a generator")
        check_from_to(2, len(train), references=references, advice="give more training inputs, or draw fewer")
        train = train[shuffled(len(train), generator)[:references].sort().values]
    neurons = find_neurons(model, train.x, layers=layers)
    return neurons, neurons(model, train.x), model.predict(train.x)


def _grouped(activations: Tensor, predicted: Tensor, *, by_class: bool = True) -> dict[int, Tensor]:
    """The references of each predicted class, or all under 0 if not ``by_class``."""
    _check_query(activations, predicted, width=activations.shape[-1])
    if len(activations) < 2:
        raise ValueError(f"at least two references are needed, got {len(activations)}; give more training inputs")
    groups = predicted if by_class else torch.zeros_like(predicted)
    return {int(c): activations[groups == c].double() for c in groups.unique()}


def _names(model: Classifier, train: Samples) -> tuple[str, ...]:
    """The names of the model's classes, if the training inputs have a name for each."""
    return train.classes if len(train.classes) == model.classes(train.x) else ()


def _of_class(c: int, by_class: bool, classes: Sequence[str]) -> str:
    return f" of class {class_name(c, classes)}" if by_class else ""


def _check_query(activations: Tensor, predicted: Tensor, *, width: int) -> None:
    check_activations(activations)
    if activations.shape[1] != width:
        raise ValueError(f"activations must have {width} columns like the references, got {activations.shape[1]}")
    if predicted.shape != activations.shape[:1] or predicted.is_floating_point() or predicted.dtype == torch.bool:
        raise ValueError(
            f"predicted must be an integer class for each of {len(activations)} rows, got {predicted.dtype} of shape "
            f"{tuple(predicted.shape)}"
        )


def _blocks(a: Tensor, b: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Squared distances between the rows of ``a`` and of ``b``, block by block, by matrix products."""
    lengths = (b**2).sum(1)
    for i in range(0, len(a), ROWS):
        rows = slice(i, i + ROWS)
        own = (a[rows] ** 2).sum(1, keepdim=True)
        for j in range(0, len(b), POINTS):
            points = slice(j, j + POINTS)
            yield rows, points, torch.addmm(own + lengths[points], a[rows], b[points].T, alpha=-2).clamp_min_(0)


def _nearest(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Distance from each row of ``a`` to the nearest row of ``b``, and the index of that row.

    Matrix products of centred rows find it; the distance is computed from the difference, which is more exact.
    """
    centre = b.mean(0)
    best, place = a.new_full((len(a),), torch.inf), torch.zeros(len(a), dtype=torch.int64, device=a.device)
    for rows, points, squared in _blocks(a - centre, b - centre):
        value, where = squared.min(1)
        nearer = value < best[rows]
        best[rows] = torch.where(nearer, value, best[rows])
        place[rows] = torch.where(nearer, where + points.start, place[rows])
    return (a - b[place]).norm(dim=1), place
