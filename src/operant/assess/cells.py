"""Cells: small neighbourhoods of real inputs in which the true label does not change, and their failure rates."""

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from operant.activity import activity
from operant.assess.bounds import check_confidence
from operant.conditions import Recipe, apply
from operant.data import Samples
from operant.density import KDE
from operant.formatting import at_least, at_most, percent
from operant.model import Classifier
from operant.validation import check_at_least, check_finite, check_one_of, check_positive, check_within

MAX_COMPARED = 4000  # labelled inputs between which distances are computed
QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5)
NORMS = {"linf": math.inf, "l2": 2.0}
DISTANCE_ROWS = 256  # rows of a distance matrix computed at once
CELLS_PER_BATCH = 64  # cells whose inputs are drawn together


@dataclass(frozen=True, kw_only=True)
class Separation:
    """How far labelled inputs lie from the nearest input of another class.

    ``quantiles`` go from share to distance; share 0 is the smallest distance among the ``inputs`` that were compared.
    """

    quantiles: dict[str, float]
    norm: str
    inputs: int

    @property
    def radius(self) -> float:
        """Half the smallest distance: cells of this radius around inputs of two classes do not overlap."""
        return self.quantiles["0"] / 2

    def __str__(self) -> str:
        quantiles = ", ".join(f"{percent(float(share))}: {value:.3g}" for share, value in self.quantiles.items())
        if self.radius == 0:
            advice = "Two equal inputs have different classes: no cell holds one class only; check those labels."
        else:
            advice = f"Cells of radius {self.radius:.3g} hold one class each."
        return (
            f"Distance ({self.norm}) to the nearest input of another class, among {self.inputs} labelled inputs: "
            f"{quantiles}. {advice}"
        )


def separation(labelled: Samples, *, norm: str = "linf") -> Separation:
    """The r-separation of labelled inputs: how large cells can be without holding inputs of two classes.

    More data can only bring classes closer: that no input lies between two labelled ones does not prove that none
    exists. Of more than 4000 inputs, 4000 evenly spaced ones are compared. The norm is ``"linf"`` or ``"l2"``.

    References:
        | A Closer Look at Accuracy vs. Robustness (Yang et al., 2020), https://arxiv.org/abs/2003.02460
    """
    check_one_of(NORMS, norm=norm)
    some = labelled[:: math.ceil(len(labelled) / MAX_COMPARED)] if len(labelled) > MAX_COMPARED else labelled
    check_finite(inputs=some.x)
    x, y = some.x.flatten(1).float(), some.labels
    if len(y.unique()) < 2:
        raise ValueError("separation needs inputs of at least two classes, got one; give labelled data of more")
    nearest = []
    for rows, own in zip(x.split(DISTANCE_ROWS), y.split(DISTANCE_ROWS), strict=True):
        apart = torch.cdist(rows, x, p=NORMS[norm], compute_mode="donot_use_mm_for_euclid_dist")
        nearest.append(apart.masked_fill_(own[:, None] == y, math.inf).amin(1))
    distances = torch.cat(nearest).double()
    quantiles = {f"{share:g}": float(distances.quantile(share)) for share in QUANTILES}
    return Separation(quantiles=quantiles, norm=norm, inputs=len(some))


class LocalProfile(Protocol):
    """The distribution of inputs in a cell: for each centre, a row of ``x``, one input drawn from its cell."""

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Ball:
    """Uniform in the L-infinity ball around the centre, cut off at the bounds."""

    radius: float
    bounds: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        check_positive(radius=self.radius)

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        check_within(self.bounds, centres=x, advice="give Ball(radius=..., bounds=model.bounds)")
        low, high = (x - self.radius).clamp_min(self.bounds[0]), (x + self.radius).clamp_max(self.bounds[1])
        u = torch.rand(x.shape, generator=generator, device=generator.device).to(x)
        return torch.lerp(low, high, u)


@dataclass(frozen=True, kw_only=True)
class UnderConditions:
    """The centre under field conditions drawn from a recipe."""

    recipe: Recipe

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        return apply(x, self.recipe.draw(len(x), generator=generator))


@dataclass(frozen=True, eq=False, kw_only=True)
class CellRates:
    """Failures among the inputs drawn from each cell.

    Attributes:
        failures: k, ``(n,)``.
        samples: m, inputs drawn per cell.
        missed: whether the model misclassifies the centre itself; such a cell counts fully.
        ids: of the centres.
    """

    failures: Tensor = field(repr=False)
    samples: int
    missed: Tensor = field(repr=False)
    ids: Tensor = field(repr=False)

    def __len__(self) -> int:
        return len(self.failures)

    @property
    def rates(self) -> Tensor:
        """Share of each cell that fails ("unastuteness"), ``(n,)``; 1 where the centre fails."""
        return torch.where(self.missed, 1.0, self.failures.double() / self.samples)

    def __str__(self) -> str:
        clean = int(((self.failures == 0) & ~self.missed).sum())
        return (
            f"{len(self)} cells, {self.samples} inputs from each: {int(self.missed.sum())} centres fail, on average "
            f"{float(self.rates.mean()):.3g} of a cell; no failure found in {clean} cells."
        )


def local_failures(
    model: Classifier,
    seeds: Samples,
    local: LocalProfile,
    *,
    samples: int,
    generator: torch.Generator,
    progress: bool = True,
) -> CellRates:
    """Failures among inputs drawn from the cell of every seed, computed in common batches.

    Args:
        local: distribution of inputs in a cell: `Ball`, `UnderConditions`, or your own function.
        samples: inputs drawn per cell.
        progress: show progress on stderr.
    """
    check_at_least(1, samples=samples)
    model.check(seeds)
    y, failures = seeds.labels, []
    with activity("sampling cells", len(seeds), unit="cells", show=progress) as work:
        for part in torch.arange(len(seeds)).split(CELLS_PER_BATCH):
            failures.append(_failures(model, seeds.x[part], y[part], local, samples, generator))
            work.advance(len(part))
    missed = (model.predict(seeds.x) != y).cpu()
    return CellRates(failures=torch.cat(failures), samples=samples, missed=missed, ids=seeds.ids.clone())


def _failures(
    model: Classifier, x: Tensor, y: Tensor, local: LocalProfile, samples: int, generator: torch.Generator
) -> Tensor:
    """Failure counts of some cells; the cells take turns until each has had its samples."""
    counts = torch.zeros(len(x), dtype=torch.int64)
    order = torch.arange(len(x) * samples) % len(x)
    for rows in order.split(max(len(x), model.batch_size)):
        wrong = model.predict(local(x[rows], generator=generator)) != y[rows]
        counts += torch.bincount(rows[wrong.cpu()], minlength=len(x))
    return counts


@dataclass(frozen=True, kw_only=True)
class CellEstimate:
    """The probability of misclassification if field inputs are drawn from local profiles around the profile's seeds.

    Attributes:
        estimate: Σ mass · rate.
        upper: bound with ``confidence``, from the bootstrap of the whole sum.
        standard_error: from the same bootstrap.
        independent_error: by the published formula, which treats cells as independent; for comparison.
    """

    estimate: float
    upper: float
    confidence: float
    standard_error: float
    independent_error: float
    cells: int
    samples: int

    def __str__(self) -> str:
        return (
            f"Probability of misclassification {percent(self.estimate)} ± {percent(self.standard_error, 2)}, at most "
            f"{at_most(self.upper)} with {at_least(self.confidence)} confidence, from {self.cells} cells with "
            f"{self.samples} inputs each, assuming that field inputs are distributed like the local profiles around "
            "these seeds."
        )


def seed_masses(n: int, *, resamples: int, generator: torch.Generator) -> Tensor:
    """Resampled masses of n seeds that were drawn from the profile, ``(resamples, n + 1)``.

    Flat Dirichlet weights (the Bayesian bootstrap) over the n seeds and, in the last column, one unseen seed that is
    assumed to fail: if every cell fails entirely or not at all, the bound is Clopper-Pearson's. Without it, failures
    that n seeds happened not to show would count as impossible.
    """
    u = torch.rand(resamples, n + 1, dtype=torch.float64, generator=generator, device=generator.device).cpu()
    weights = -torch.log1p(-u)
    return weights / weights.sum(1, keepdim=True)


def kernel_masses(kde: KDE, centres: Tensor, *, resamples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Masses of fixed cells from a kernel density at their centres, ``(n,)``, and resampled, ``(resamples, n)``.

    Every resample draws the field inputs (the kernels' references) again, with all their kernels and the normalisation
    over cells, so masses of cells are dependent. Mass outside the cells is ignored, so a bound from these masses is
    approximate.
    """
    log_kernels = _log_kernels(kde, centres.double().flatten(1))
    kernels = (log_kernels - log_kernels.amax()).exp()
    n = len(kde.references)
    rows = torch.randint(n, (resamples, n), generator=generator, device=generator.device).cpu()
    counts = torch.zeros(resamples, n, dtype=torch.float64).scatter_add_(1, rows, torch.ones(rows.shape).double())
    drawn = counts * kde.weights.double()
    masses, again = kde.weights.double() @ kernels.T, drawn @ kernels.T
    return masses / masses.sum(), again / again.sum(1, keepdim=True)


def _log_kernels(kde: KDE, z: Tensor) -> Tensor:
    """log N(z; μᵢ, σᵢ) up to a constant, ``(N, n)``, summed dimension by dimension to save memory."""
    references = kde.references.double().flatten(1)
    widths = kde.bandwidth.double().expand_as(kde.references).flatten(1)
    logs = -widths.log().sum(1).expand(len(z), -1).clone()
    for value, reference, width in zip(z.T, references.T, widths.T, strict=True):
        logs -= ((value[:, None] - reference) / width).square_() / 2
    return logs


def cells_estimate(
    rates: CellRates,
    *,
    masses: Tensor | None = None,
    resampled: Tensor,
    confidence: float = 0.95,
    generator: torch.Generator,
) -> CellEstimate:
    """The mass-weighted sum of the cells' failure rates, with a bound from a bootstrap of the whole sum.

        λ = Σᵢ pᵢ λᵢ,   λ⁽ᵇ⁾ = Σᵢ pᵢ⁽ᵇ⁾ λᵢ⁽ᵇ⁾,   λᵢ⁽ᵇ⁾ ~ Beta(kᵢ + ½, m - kᵢ + ½)        (1)

    The published formula, V[λ] = Σᵢ V[pᵢ λᵢ], treats the cells' masses as independent. They are not: kernels make
    neighbours rise together, and all masses sum to 1. Its error is too small, the more so the finer the cells.

    Args:
        rates: from `local_failures`.
        masses: p, ``(n,)`` (default: equal, which is right for seeds drawn from the profile).
        resampled: p⁽ᵇ⁾, rows that sum to 1: `seed_masses`, ``(B, n + 1)``, for seeds drawn from the profile, with a
            last column that fails; `kernel_masses`, ``(B, n)``, for fixed cells.

    References:
        | Assessing the Reliability of Deep Learning Classifiers Through Robustness Evaluation and Operational Profiles
        | (Zhao et al., 2021), https://arxiv.org/abs/2106.01258
    """
    check_confidence(confidence)
    n, k = len(rates), rates.failures.double()
    p = torch.full((n,), 1 / n, dtype=torch.float64) if masses is None else masses.double()
    _check_masses(p, resampled, n)
    seed = int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
    a, b = (k + 0.5).numpy(), (rates.samples - k + 0.5).numpy()
    drawn = torch.from_numpy(np.random.default_rng(seed).beta(a, b, size=(len(resampled), n)))  # (1)
    drawn = torch.where(rates.missed, 1.0, drawn)
    sums = (resampled[:, :n] * drawn).sum(1) + resampled[:, n:].sum(1)
    own = rates.rates
    variance_p, variance_r = resampled[:, :n].var(0), torch.where(rates.missed, 0.0, drawn.var(0))
    independent = (p**2 * variance_r + own**2 * variance_p + variance_r * variance_p).sum().sqrt()
    return CellEstimate(
        estimate=float(p @ own),
        upper=min(1.0, max(float(p @ own), float(sums.quantile(confidence)))),
        confidence=confidence,
        standard_error=float(sums.std()),
        independent_error=float(independent),
        cells=n,
        samples=rates.samples,
    )


def _check_masses(p: Tensor, resampled: Tensor, n: int) -> None:
    if p.shape != (n,) or resampled.ndim != 2 or resampled.shape[1] not in (n, n + 1) or len(resampled) < 20:
        wanted = f"masses must be ({n},), resampled (B, {n}) or (B, {n + 1}), one column per cell, and B at least 20"
        raise ValueError(f"{wanted}, got {tuple(p.shape)} and {tuple(resampled.shape)}")
    for name, rows in (("masses", p[None]), ("every row of resampled", resampled)):
        if not bool((rows >= 0).all()) or not bool(((rows.sum(1) - 1).abs() < 1e-6).all()):
            raise ValueError(f"{name} must be 0 or more and sum to 1; use `seed_masses` or `kernel_masses`")
