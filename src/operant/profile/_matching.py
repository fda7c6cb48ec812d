"""Simulates clean images under conditions and compares them with the field, for `fit_conditions`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor
from torch.nn.functional import one_hot

from operant.conditions import DrawnConditions, Recipe, Severity, apply, fixed
from operant.conditions.recipe import STEPS
from operant.data import Samples
from operant.data.class_rows import rows_per_class
from operant.networks.two_sample import fit_two_sample
from operant.profile._appearance import Array, ImageDescriptor
from operant.profile.synthesis import checked_priors
from operant.rng import shuffled

REFERENCE = 1000  # images of either side that the descriptor is fitted to
MAX_KEPT = 200_000_000  # bytes of images that are kept because the next simulation may start from them
REPRESENTED, REPRESENTING = 5, 20  # times as many images are represented, by the means of so many components
PRIOR_STD = 0.1  # by which a class's share is expected to differ from that among clean images


class FreeParameter(NamedTuple):
    """A parameter of a severity, searched over t from 0 to 1: means are linear in t, ends and spreads in its root.

    The root is used because small spreads change the distribution of images by their square.
    """

    condition: str
    name: str
    first: float
    last: float

    def value(self, t: float) -> float:
        part = t if self.name == "mean" else math.sqrt(t)
        return float(self.first + (self.last - self.first) * part)

    def place(self, value: float) -> float:
        """The t of a value, or of the nearest that is allowed."""
        part = min(1.0, max(0.0, (value - self.first) / (self.last - self.first)))
        return part if self.name == "mean" else part**2

    @property
    def none(self) -> float:
        """The t at which the condition does nothing, or as little as possible."""
        return min(1.0, max(0.0, -self.first / (self.last - self.first))) if self.name == "mean" else 0.0


def free_parameters(condition: str, s: Severity) -> list[FreeParameter]:
    if s.low == s.high:
        return []
    if math.isinf(s.std):
        ends = (("low", s.low), ("high", s.high))
        return [FreeParameter(condition, name, 0.0, end) for name, end in ends if end != 0]
    spread = FreeParameter(condition, "std", 0.0, s.std)
    two_sided = s.low < s.mean < s.high
    return [FreeParameter(condition, "mean", s.mean - s.std, s.mean + s.std), spread] if two_sided else [spread]


def _narrowed(s: Severity, values: dict[str, float]) -> Severity:
    """The declared severity with these values of its parameters."""
    if not values:
        return s
    if "std" not in values:
        return replace(s, low=values.get("low", 0.0), high=values.get("high", 0.0))
    mean, std = min(s.high, max(s.low, values.get("mean", s.mean))), values["std"]
    if std < 1e-6 * s.std:
        return fixed(mean, absent=s.absent)
    return replace(s, low=max(s.low, mean - 3 * std), high=min(s.high, mean + 3 * std), mean=mean, std=std)


class Comparison(NamedTuple):
    residual: Array  # Σ^(-1/2) d of (2)
    features: Array  # φ of the simulated images
    means: Array  # of φ over each class, whitened, one column per class
    priors: Array

    @property
    def cost(self) -> float:
        return float(self.residual @ self.residual)


@dataclass(frozen=True, eq=False)
class ConditionMatcher:
    """Simulates clean images under conditions and compares them with the field, with fixed images and random numbers.

    ``root`` in its methods is a matrix R with RᵀR = Σ⁻¹ of (2).
    """

    descriptor: ImageDescriptor
    widest: Recipe
    parameters: tuple[FreeParameter, ...]
    field_x: Tensor  # field images
    field: Array  # φ of these
    x: Tensor  # clean images, one per simulated image
    origin: NDArray[np.int64]  # row of each in the clean data; rows may repeat
    classes: Array  # one row per image: its weight in the column of its class
    usual: Array  # shares of the classes among clean images
    priors: Array | None  # if given
    seed: int
    tick: Callable[[], None]
    kept: dict[object, Tensor]  # images after the first conditions of recent simulations

    def recipe(self, t: Array) -> Recipe:
        """The recipe at t, without conditions that do nothing."""
        values = [(p.condition, p.name, p.value(v)) for p, v in zip(self.parameters, t, strict=True)]
        severities = {
            name: _narrowed(s, {p: v for condition, p, v in values if condition == name})
            for name, s in self.widest.severities.items()
        }
        found = {name: s for name, s in severities.items() if s.low != 0 or s.high != 0}
        return replace(self.widest, severities=found)

    def images(self, recipe: Recipe, rows: int, seed: int) -> Tensor:
        """The first images under a recipe. A condition's random numbers do not depend on which others are present."""
        generator = torch.Generator().manual_seed(seed)
        shape = (2, len(self.x), len(self.widest.names))
        u, gone = torch.rand(shape, dtype=torch.float64, generator=generator)[:, :rows]
        seeds = torch.randint(2**53, (len(self.x),), generator=generator)[:rows]
        columns = [self.widest.names.index(name) for name in recipe.names]
        values = [
            torch.where(gone[:, j] < s.absent, 0.0, s.value(u[:, j].clamp_min(2**-54)))
            for j, s in zip(columns, recipe.severities.values(), strict=True)
        ]
        drawn = replace(recipe.neutral(rows), seeds=seeds)
        return self._stepped(replace(drawn, values=torch.stack(values, 1)) if values else drawn, recipe, (rows, seed))

    def _stepped(self, drawn: DrawnConditions, recipe: Recipe, key: tuple[object, ...]) -> Tensor:
        """The first images under drawn conditions; steps that a recent simulation began with are not repeated."""
        steps = [kept for names in STEPS if (kept := [name for name in drawn.names if name in names])]
        keys = [key]
        for names in steps:
            keys.append((*keys[-1], *((name, recipe.severities[name]) for name in names)))
        done = max((i for i, known in enumerate(keys) if known in self.kept), default=0)
        x = self.kept.pop(keys[done], self.x[: len(drawn)])
        if done > 0:
            self.kept[keys[done]] = x  # the latest in use
        for names, known in zip(steps[done:], keys[done + 1 :], strict=True):
            columns = [drawn.names.index(name) for name in names]
            x = apply(x, replace(drawn, names=tuple(names), values=drawn.values[:, columns]))
            if done == 0:
                self._keep(known, x)
        return x

    def _keep(self, key: object, x: Tensor) -> None:
        """Keep images, and forget those that were of no use for longest."""
        self.kept[key] = x
        while sum(kept.nbytes for kept in self.kept.values()) > MAX_KEPT:
            del self.kept[next(iter(self.kept))]

    def simulate(self, recipe: Recipe, rows: int, seed: int) -> Array:
        self.tick()
        return self.descriptor(self.images(recipe, rows, seed))

    def compare(self, t: Array, root: Array, rows: int | None = None) -> Comparison:
        """Compare the field with the first ``rows`` images, simulated at t."""
        features = self.simulate(self.recipe(t), min(rows or len(self.x), len(self.x)), self.seed)
        return self.compare_features(features, self.field.mean(0), root, np.ones(len(features)))

    def compare_features(self, features: Array, field: Array, root: Array, counts: Array) -> Comparison:
        weights = self.classes[: len(features)] * counts[:, None]
        means = root @ (weights.T @ features / np.maximum(weights.sum(0), 1e-9)[:, None]).T
        priors = self._mixture(means, root @ field) if self.priors is None else self.priors
        return Comparison(means @ priors - root @ field, features, means, priors)

    def _mixture(self, means: Array, target: Array) -> Array:
        """The priors that suit the field best; a class that the clean images lack has none."""
        priors, known = np.zeros(len(self.usual)), self.usual > 0
        priors[known] = mixture(means[:, known], target, self.usual[known])
        return priors

    def root(self, t: Array, ridge: float) -> Array:
        """R for Σ of images simulated at t, in the class shares that suit t best."""
        there = self.compare(t, inverse_root(self.field, None, 1.0))
        return inverse_root(there.features, self.weights(there.priors), ridge)

    def with_learned(self, t: Array, generator: torch.Generator) -> "ConditionMatcher":
        """The same with more numbers: those by which a network tells field images from images simulated at t."""
        shares = torch.from_numpy(self.weights(self.compare(t, inverse_root(self.field, None, 1.0)).priors))
        rows = torch.multinomial(shares, len(self.x), replacement=True, generator=generator)
        images = self.images(self.recipe(t), len(self.x), self.seed + 2)[rows]
        network = fit_two_sample(self.field_x, images, bounds=self.widest.bounds, generator=generator)
        reference = torch.cat([self.field_x[:REFERENCE], images[:REFERENCE]])
        descriptor = self.descriptor.with_learned(network, reference)
        return replace(self, descriptor=descriptor, field=descriptor(self.field_x))

    def weights(self, priors: Array) -> Array:
        """Weight of each simulated image; they sum to 1."""
        weights: Array = self.classes @ (priors / np.maximum(self.classes.sum(0), 1e-9))
        weights /= weights.sum()
        return weights


def mixture(means: Array, target: Array, usual: Array) -> Array:
    """The priors whose mixture of class means is nearest to the target; near the usual ones if none comes close.

        minimise ‖M π - target‖² + λ ‖π - usual‖²,   λ = left / (numbers · PRIOR_STD²)        (1)

    where left is the smallest ‖M π - target‖²: as if it were noise, and priors known within a standard deviation.
    """
    if means.shape[1] == 1:
        return np.ones(1)
    free = _nearest(means, target)
    light = float(np.linalg.norm(means @ free - target)) / math.sqrt(len(target)) / PRIOR_STD
    return _nearest(np.vstack([means, light * np.eye(len(usual))]), np.concatenate([target, light * usual]))


def _nearest(columns: Array, target: Array) -> Array:
    """The mixture of the columns that is nearest to the target."""
    heavy = 1e3  # keeps the sum at 1
    system = np.vstack([columns, np.full((1, columns.shape[1]), heavy)])
    shares: Array = nnls(system, np.append(target, heavy))[0]
    shares /= shares.sum()
    return shares


def representative(rows: Array, y: NDArray[np.int64], others: Array, other_y: NDArray[np.int64]) -> Array:
    """Weights of images with which the images of each class resemble more images of the class, on average.

        wᵢ = 1 + (m - m̄)ᵀ (S + 1/n I)⁻¹ (zᵢ - m̄),   z the first principal components of φ        (1)

    with m̄ and S the mean and covariance of z over the n images of the class, and m the mean over the other images. So
    the mean of what conditions make of the images varies less with which of them are simulated: the part that z
    predicts is that of all images (the regression estimator of survey sampling).
    """
    centre = others.mean(0)
    axes = np.linalg.svd(others - centre, full_matrices=False)[2][:REPRESENTING].T
    z, wanted = (rows - centre) @ axes, (others - centre) @ axes
    scale = wanted.std(0) + 1e-9
    weights = np.ones(len(rows))
    for c in np.unique(y):
        own, all_ = z[y == c] / scale, wanted[other_y == c] / scale
        apart = own - own.mean(0)
        cov = apart.T @ apart / len(own) + len(axes.T) / len(own) * np.eye(axes.shape[1])
        weights[y == c] = 1 + apart @ np.linalg.solve(cov, all_.mean(0) - own.mean(0))  # (1)
    return weights.clip(0.1, 10)


def inverse_root(features: Array, weights: Array | None, ridge: float) -> Array:
    """A matrix R with RᵀR = Σ⁻¹ of (2)."""
    cov = np.cov(features.T, aweights=weights)
    cov += ridge * np.trace(cov) / len(cov) * np.eye(len(cov))
    root: Array = np.linalg.inv(np.linalg.cholesky(cov))
    return root


def make_matcher(
    field: Samples,
    clean: Samples,
    widest: Recipe,
    priors: Sequence[float] | None,
    simulated: int,
    generator: torch.Generator,
    tick: Callable[[], None],
) -> ConditionMatcher:
    one, other = (s.x[shuffled(len(s), generator)[:REFERENCE]].detach().cpu() for s in (field, clean))
    descriptor = ImageDescriptor.of(torch.cat([one, other]), widest.bounds)
    y = torch.zeros(len(clean), dtype=torch.int64) if clean.y is None else clean.y.cpu()
    counts = y.bincount()
    shares = (counts > 0) / (counts > 0).sum() if priors is None else checked_priors(priors, y, clean.classes)
    rows = _rows(y, shares, simulated, generator)
    some = _rows(y, shares, REPRESENTED * simulated, generator)
    weights = representative(descriptor(clean.x[rows]), y[rows].numpy(), descriptor(clean.x[some]), y[some].numpy())
    return ConditionMatcher(
        descriptor=descriptor,
        widest=widest,
        parameters=tuple(p for name, s in widest.severities.items() for p in free_parameters(name, s)),
        field_x=field.x.detach().cpu(),
        field=descriptor(field.x),
        x=clean.x.detach().cpu()[rows],
        origin=rows.numpy(),
        classes=one_hot(y[rows], len(counts)).double().numpy() * weights[:, None],
        usual=(counts / counts.sum()).double().numpy(),
        priors=None if priors is None else shares.numpy(),
        seed=int(torch.randint(2**62, (), generator=generator, device=generator.device)),
        tick=tick,
        kept={},
    )


def _rows(y: Tensor, shares: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """About n rows in random order, classes in these shares; rows repeat if a class has too few."""
    counts = [max(round(n * share), 2 * (share > 0)) for share in shares.tolist()]
    rows = rows_per_class(y, counts, generator=generator)
    return rows[shuffled(len(rows), generator)]
