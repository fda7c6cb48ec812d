"""How plausible a case is as a field input: a calibrated p-value, and a smooth stand-in for it to search by."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor, nn

from operant import results
from operant.data import Samples
from operant.density import KDE, fit_kde
from operant.measure._texture import is_image, texture
from operant.measure.conformal import Conformal, check_level, fewest, fit_conformal, min_bonferroni
from operant.model import Classifier
from operant.networks.vae import VAE, check_field, fit_vae, in_chunks

SCORES = ("reconstruction", "neighbours", "density", "intensities", "texture")  # the last of images only
LEVEL = 0.05  # the calibration part must be large enough for p-values below this
FEWEST_FITTED = 60  # field inputs to learn the scores from
MOST_FEATURES = 4096  # of one input, for which a covariance is learned
SHRINKAGE = 0.1  # of the mean variance, added to every variance before whitening
NOISE_FLOOR = 0.01  # of the mean noise, added to the noise of every value
LEVELS = 8  # above which an input's values are summed up
WIDEST = 3.0  # standard deviations from the mean to the outermost levels, where there are no bounds
LEVEL_SHRINKAGE = 0.01  # of the mean variance of such sums: they move together, what matters is how they do not
LEAST_VARIANCE = 1e-6  # of such a sum, in units of the VAE's scale
TEXTURE_SHRINKAGE = 1e-3  # of the mean variance of shares of local differences, which move together too
LEAST_TEXTURE = 1e-10  # variance of such a share
PAIRS = 2**22  # distances computed at once
PROBES = 4  # inputs kept to know the model again


@dataclass(frozen=True, eq=False, kw_only=True)
class Whitening:
    """Features moved and turned so that field data have mean 0 and, up to shrinkage, covariance 1.

        w = L⁻¹ (h - centre),   L Lᵀ = cov(h) + shrinkage · (mean variance) · I        (1)

    Euclidean distances between whitened features are Mahalanobis distances between features. The shrinkage keeps
    directions finite in which field data never vary; a case that does vary there is far from all of them.
    """

    centre: Tensor = field(repr=False)
    inverse: Tensor = field(repr=False)  # the transpose of L⁻¹

    def __call__(self, features: Tensor) -> Tensor:
        return (features.to(self.centre) - self.centre) @ self.inverse


@dataclass(frozen=True, eq=False, kw_only=True)
class Texture:
    """How strongly neighbouring pixels of field images differ: their local differences, summed up and whitened."""

    width: float  # of the range of values, that differences are parts of
    whitening: Whitening = field(repr=False)
    references: Tensor = field(repr=False)  # whitened, of (some of) the fitting part

    def __call__(self, x: Tensor) -> Tensor:
        return self.whitening(texture(x.to(self.references), width=self.width))

    def distance(self, x: Tensor, *, k: int) -> Tensor:
        """Of each image to the k-th nearest reference."""
        return self._neighbours(self(x), k=k)

    @cached_property
    def _neighbours(self) -> Neighbours:
        return Neighbours(self.references)


@dataclass(frozen=True, eq=False, kw_only=True)
class Naturalness:
    """What field inputs look like by five scores, and how strange each score is; made by `fit_naturalness`.

    Calling it gives a p-value for each row: one conformal p-value for each score, combined by min-Bonferroni. An input
    that is drawn as the field data were, and is not one of them, falls below a level with at most that probability; one
    of the field data themselves may look more natural than it is. Inputs that are not images of at least 8 x 8 pixels
    have no texture: four scores are left. With n calibration inputs and m scores, values run in steps of m / (n + 1)
    from that number to 1. All that is stranger than every calibration input shares the smallest value, so rank strange
    cases by `surrogate`, which tells them apart.

    Args:
        vae: learned from the fitting part of the field data.
        noise: mean squared `VAE.residual` of each value on the fitting part, floored.
        whitening: of pixels, or of the layer's outputs.
        references: whitened features of (some of) the fitting part.
        k: which nearest reference's distance counts.
        codes: the density of mean codes of the fitting part.
        intensities: whitening of what an input's values sum up to above each of eight levels.
        texture: of images; None for inputs that are not.
        calibration: the scores of the calibration part.
        probes: inputs whose features the first references are, to know the model again.
        layer: where the model is tapped, or None for pixels.
        model: whose layer it is.
    """

    vae: VAE
    noise: Tensor = field(repr=False)
    whitening: Whitening = field(repr=False)
    references: Tensor = field(repr=False)
    k: int
    codes: KDE
    intensities: Whitening = field(repr=False)
    texture: Texture | None = field(repr=False)
    calibration: dict[str, Conformal] = field(repr=False)
    probes: Tensor = field(repr=False)
    layer: str | None = None
    model: Classifier | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """A p-value in (0, 1] for each row, in float64, without gradients; small means unlike field data."""
        return min_bonferroni(torch.stack(list(self.p_values(x).values()), 1))

    def p_values(self, x: Tensor) -> dict[str, Tensor]:
        """The separate conformal p-values of each row, by the name of their score."""
        with torch.no_grad():
            return {name: self.calibration[name].p_values(score) for name, score in self.scores(x).items()}

    def is_natural(self, x: Tensor, *, level: float = LEVEL) -> Tensor:
        """Which rows have a p-value of at least ``level``; a genuine input fails this with at most that probability.

        A level so low that the calibration inputs are too few for it is refused.
        """
        check_level(level, self.calibration_size, tests=len(self.calibration))
        return self(x) >= level

    def scores(self, x: Tensor) -> dict[str, Tensor]:
        """What the p-values rank, one value per row each, differentiable in ``x``; higher is stranger.

        ``reconstruction`` is what the VAE misses of the input, each value against its usual miss: the mean of
        residual² / noise, where the plain error would hardly see a change of pixels that never vary. ``neighbours`` is
        the distance to the k-th nearest reference in whitened features. ``density`` is -log p of the mean code.
        ``intensities`` looks at which values there are, wherever they are, since light and contrast change those: the
        Mahalanobis distance, from the mean of field data, of the means of max(value, level) for eight levels.
        ``texture``, of images only, is the distance to the k-th nearest reference in whitened shares of local
        differences above eight sizes: the other scores look at an image as a whole, and where field data are noisy
        themselves they hardly see adversarial noise, which is local.
        """
        mean, _ = self.vae.encode(x)
        scores = {
            "reconstruction": in_chunks(lambda part: (self.vae.residual(part).square() / self.noise).mean(1), x),
            "neighbours": self._neighbours(in_chunks(self._features, x), k=self.k),
            "density": -self.codes.log_prob(mean),
            "intensities": in_chunks(lambda part: self.intensities(_above_levels(self.vae, part)).norm(dim=1), x),
        }
        return scores if self.texture is None else {**scores, "texture": self.texture.distance(x, k=self.k)}

    def surrogate(self, x: Tensor) -> Tensor:
        """A differentiable stand-in for the logarithm of naturalness, to search by: higher is more natural.

            s(x) = -log Σⱼ 1 / qⱼ(x)        (1)

        with qⱼ the smooth stand-in for each conformal p-value (`Conformal.smooth_log_p`). With m scores it lies at
        most log m below the smallest log qⱼ, goes on falling where the p-value has reached its smallest, and promises
        nothing about errors: decide by the p-value. `rank_correlation` tells how well the two agree on given cases. A
        score that is the same for all calibration inputs has no slope and is left out.
        """
        scores, varying = self.scores(x), {name: c for name, c in self.calibration.items() if c.varies}
        logs = [conformal.smooth_log_p(scores[name]) for name, conformal in varying.items()]
        return -torch.logsumexp(-torch.stack(logs, 1), 1)  # (1)

    def save(self, path: str | Path) -> None:
        """Write all but the model to a JSON file, with the tensors beside it; `load_naturalness` reads it."""
        results.save(replace(self, model=None), path)

    @property
    def calibration_size(self) -> int:
        """How many held-out field inputs the p-values rest on."""
        return len(self.calibration[SCORES[0]])

    def _features(self, x: Tensor) -> Tensor:
        return self.whitening(self._tap(x))

    @cached_property
    def _neighbours(self) -> Neighbours:
        return Neighbours(self.references)

    @cached_property
    def _tap(self) -> Callable[[Tensor], Tensor]:
        return _tap(self.model, self.layer)


def fit_naturalness(
    field: Samples,
    *,
    generator: torch.Generator,
    model: Classifier | None = None,
    layer: str | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    calibration: float = 0.4,
    k: int = 5,
    latent: int = 16,
    epochs: int | None = None,
    references: int = 10_000,
    progress: bool = True,
) -> Naturalness:
    """Learn what field inputs look like, and how often a genuine one looks how strange.

    The field data are dealt by id to two parts. From one, the scores are learned: reconstruction error of a VAE,
    distance to the k-th nearest neighbour in whitened features, density of the VAE's code, how usual an input's values
    are, whatever their places, and, for images, how usual the differences between neighbouring pixels are (see
    `Naturalness.scores`). The other calibrates them, so that a genuine input's p-value falls below a level with at most
    that probability (see `conformal_p_values`), whether or not the scores are any good. How many strange inputs they
    catch is another matter, and depends on the data.

    The paper wants naturalness as a stand-in for the profile inside a cell and leaves open which: the first three
    scores are common ones; the fourth, the fifth, and making one p-value with a promise of them all, are ours. The
    fifth is there because the others look at an image as a whole, and adversarial noise is local.

    Args:
        field: inputs from operation, labels not needed; a few hundred at least, since 100 images, or 80 inputs of
            another kind, must calibrate.
        generator: draws the VAE's weights and batches, and which references are kept.
        model, layer: find neighbours in the output of this layer of the model (the penultimate one, say) instead of in
            pixels. Give both or neither. The model must not have been trained on the field data: it would know them
            better than new inputs, and the promise would not hold.
        bounds: smallest and largest value of an input.
        calibration: share of the field data that calibrates.
        k: which nearest neighbour's distance counts.
        latent, epochs: of the VAE, see `fit_vae`.
        references: how many field inputs to keep as neighbours, at most.
        progress: show a bar where there is a terminal to show it on.

    References:
        | Detecting Operational Adversarial Examples for Reliable Deep Learning (Zhao et al., 2021), RQ3
        | https://arxiv.org/abs/2104.06015
        | Out-of-Distribution Detection with Deep Nearest Neighbors (Sun et al., 2022)
        | https://arxiv.org/abs/2204.06507
    """
    _check_options(model, layer, bounds, calibration=calibration, k=k, references=references)
    needed = fewest(LEVEL, tests=len(SCORES) if is_image(tuple(field.x.shape[1:])) else len(SCORES) - 1)
    check_field(field, bounds, at_least=FEWEST_FITTED + needed)
    fitted, held = _dealt(field, calibration, needed)
    with torch.no_grad():
        features = _features(fitted.x, model, layer)
        whitening = _fit_whitening(features)
    vae = fit_vae(fitted, latent=latent, epochs=epochs, bounds=bounds, generator=generator, progress=progress)
    kept = torch.randperm(len(fitted), generator=generator, device=generator.device)[:references].to(fitted.x.device)
    with torch.no_grad():
        draft = Naturalness(
            vae=vae,
            noise=_noise(vae, fitted.x),
            whitening=whitening,
            references=in_chunks(whitening, features[kept]),
            k=k,
            codes=_code_density(vae, fitted.x),
            intensities=_fit_intensities(vae, fitted.x),
            texture=_fit_texture(fitted.x, kept, bounds) if is_image(vae.shape) else None,
            calibration={},
            probes=fitted.x[kept[:PROBES]].clone(),
            layer=layer,
            model=model,
        )
        scores = draft.scores(held.x)
    return replace(draft, calibration={name: fit_conformal(score) for name, score in scores.items()})


def load_naturalness(path: str | Path, *, model: Classifier | None = None) -> Naturalness:
    """Read what `Naturalness.save` wrote; every number comes out as it did before.

    Args:
        path: the JSON file.
        model: the one it was learned with, if it looks at a layer; one that says something else there is refused.
    """
    naturalness = results.load(path, Naturalness)
    layer = naturalness.layer
    if model is None and layer is not None:
        raise ValueError(f"{path} looks at layer {layer} of a model; give the model it was learned with")
    if model is not None and layer is None:
        raise ValueError(f"{path} looks at pixels only; leave out the model")
    naturalness = replace(naturalness, model=model)
    known = naturalness.references[: len(naturalness.probes)]
    with torch.no_grad():
        features = _features(naturalness.probes, model, layer)
        seen = naturalness.whitening(features) if features.shape[1] == len(naturalness.whitening.centre) else features
    if seen.shape != known.shape or not torch.allclose(seen, known, rtol=1e-3, atol=1e-3 * float(known.abs().amax())):
        raise ValueError(f"{path} was learned with another model: this one's layer {layer} says something else")
    return naturalness


def rank_correlation(naturalness: Naturalness, x: Tensor) -> float:
    """Spearman's correlation between `surrogate` and p-value over these cases: 1 if they agree on every order.

    Cases of equal p-value share their mean rank. The strangest cases are such, and the surrogate tells them apart, so
    where many are strange the value stays below 1 although nothing is out of order. Refused where all p-values are
    equal.
    """
    with torch.no_grad():
        p, s = naturalness(x), naturalness.surrogate(x)
    if bool((p == p[:1]).all()):
        raise ValueError(
            f"cases must differ in naturalness to be ranked, all {len(p)} have the same p-value; give cases of several "
            "strengths"
        )
    return float(np.corrcoef(rankdata(p.cpu().numpy()), rankdata(s.cpu().numpy()))[0, 1])


def neighbour_distance(features: Tensor, references: Tensor, *, k: int = 5) -> Tensor:
    """Euclidean distance of each row to its k-th nearest reference; differentiable in ``features``.

    The neighbour is found by |a - b|² = |a|² - 2ab + |b|², a matrix product for all pairs; the distance is then taken
    from the difference itself, since that sum cancels where rows are close.

    Args:
        features: ``(N, d)``.
        references: ``(n, d)``, at least k of them.

    >>> neighbour_distance(torch.tensor([[0.0], [9.0]]), torch.tensor([[1.0], [2.0], [4.0]]), k=2)
    tensor([2., 7.])
    """
    return Neighbours(references)(features, k=k)


class Neighbours:
    """References that were brought to their centre once, for any number of calls; see `neighbour_distance`."""

    def __init__(self, references: Tensor) -> None:
        if references.ndim != 2 or not bool(references.isfinite().all()):
            raise ValueError(
                f"references must be finite rows (n, d), got {tuple(references.shape)}, NaN or infinity; remove those"
            )
        self.centre = references.mean(0)
        self.rows = references - self.centre
        self.squares = self.rows.square().sum(1)

    def __call__(self, features: Tensor, *, k: int) -> Tensor:
        _check_neighbours(features, self.rows, k)
        at_once = max(1, PAIRS // max(self.rows.shape))
        return in_chunks(lambda part: self._distance(part.to(self.rows) - self.centre, k), features, rows=at_once)

    def _distance(self, a: Tensor, k: int) -> Tensor:
        with torch.no_grad():
            kth = torch.addmm(self.squares, a, self.rows.T, alpha=-2).topk(k, largest=False).indices[:, -1]
        distance: Tensor = torch.linalg.vector_norm(a - self.rows[kth], dim=1)
        return distance


# Learning the parts ---------------------------------------------------------------------------------------------------


def _dealt(field: Samples, calibration: float, needed: int) -> tuple[Samples, Samples]:
    """What the scores are learned from, and what calibrates them, ``needed`` at least."""
    parts = field.split(naturalness_fitting=1 - calibration, naturalness_calibration=calibration)
    fitted, held = parts.values()
    if len(fitted.ids.unique()) < FEWEST_FITTED or len(held.ids.unique()) < needed:
        enough = math.ceil(1.25 * max(FEWEST_FITTED / (1 - calibration), needed / calibration))
        raise ValueError(
            f"naturalness needs {FEWEST_FITTED} different field inputs to learn from and {needed} to calibrate on "
            f"(with fewer no p-value falls below {LEVEL}); {len(field)} inputs, {len(field.ids.unique())} of them "
            f"different, were dealt into {len(fitted)} and {len(held)}; give about {enough} different ones"
        )
    return fitted, held


def _features(x: Tensor, model: Classifier | None, layer: str | None) -> Tensor:
    """Pixels, or outputs of a layer, flat, one row an input."""
    if model is not None and layer is not None:
        model.features(x[:1], layers=[layer])  # refuses layers that cannot be tapped
    features = in_chunks(_tap(model, layer), x)
    if features.shape[1] > MOST_FEATURES:
        given = "these inputs have" if layer is None else f"layer {layer} has"
        raise ValueError(
            f"neighbours are found among at most {MOST_FEATURES} features, {given} {features.shape[1]}; "
            "give model and the name of a smaller layer"
        )
    if bad := int((~features.isfinite()).any(1).sum()):
        raise ValueError(f"layer {layer} gives NaN or infinity for {bad} of {len(x)} inputs; choose another layer")
    return features


def _tap(model: Classifier | None, layer: str | None) -> Callable[[Tensor], Tensor]:
    """From inputs to flat features, keeping the graph (which `Classifier.features` does not)."""
    if layer is None:
        return lambda x: x.flatten(1)
    if model is None:
        raise ValueError(f"neighbours are found in layer {layer} of a model; give model, as in load_naturalness")
    module = model.unwrap().eval().requires_grad_(False)
    outputs: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        outputs.append(output.clone())  # a later layer may work in place

    def run(x: Tensor) -> Tensor:
        outputs.clear()
        module(model.normalise(x.to(model.device)).clone())
        return outputs.pop().flatten(1).to(x.device)

    module.get_submodule(layer).register_forward_hook(keep)
    return run


def _fit_whitening(features: Tensor, *, shrinkage: float = SHRINKAGE, floor: float = 0.0) -> Whitening:
    """Mean and covariance of all rows in float64, some rows at a time; at least ``floor`` is added to variances."""
    n, d = features.shape
    parts = features.split(1024)
    centre = torch.stack([part.double().sum(0) for part in parts]).sum(0) / n
    covariance = torch.zeros(d, d, dtype=torch.float64, device=features.device)
    for part in parts:
        rows = part.double() - centre
        covariance.addmm_(rows.T, rows, alpha=1 / n)
    added = max(shrinkage * float(covariance.diagonal().mean()), floor)
    if not added > 0:
        raise ValueError("features must vary over the field data, all are equal; choose another layer")
    lower = torch.linalg.cholesky(covariance + added * torch.eye(d).to(covariance))
    inverse = torch.linalg.solve_triangular(lower, torch.eye(d).to(lower), upper=False)  # (1) of Whitening
    return Whitening(centre=centre.float(), inverse=inverse.T.float().contiguous())


def _above_levels(vae: VAE, x: Tensor) -> Tensor:
    """Means of max(value, level) over each input's values, ``(N, LEVELS)``, for levels from the lowest bound up.

    They tell which values there are as a histogram would, but move by no more than the values do.
    """
    low, high = (0.0, 1.0) if all(map(math.isfinite, vae.bounds)) else (-WIDEST, WIDEST)
    levels, values = [low + (high - low) * i / LEVELS for i in range(LEVELS)], vae.flat(x)
    return torch.stack([values.clamp_min(level).mean(1) for level in levels], 1)


def _fit_intensities(vae: VAE, x: Tensor) -> Whitening:
    means = in_chunks(lambda part: _above_levels(vae, part), x)
    return _fit_whitening(means, shrinkage=LEVEL_SHRINKAGE, floor=LEAST_VARIANCE)


def _fit_texture(x: Tensor, kept: Tensor, bounds: tuple[float, float]) -> Texture:
    """Without bounds the width is that of the levels of `_above_levels`."""
    width = bounds[1] - bounds[0] if all(map(math.isfinite, bounds)) else 2 * WIDEST * float(x.std())
    shares = texture(x.float(), width=width)
    whitening = _fit_whitening(shares, shrinkage=TEXTURE_SHRINKAGE, floor=LEAST_TEXTURE)
    return Texture(width=float(width), whitening=whitening, references=whitening(shares[kept]))


def _noise(vae: VAE, x: Tensor) -> Tensor:
    """What the VAE usually misses of each value, squared; values it never misses get a hundredth of the mean."""
    noise = torch.stack([vae.residual(part).square().sum(0) for part in x.split(1024)]).sum(0) / len(x)
    return noise + NOISE_FLOOR * noise.mean()


def _code_density(vae: VAE, x: Tensor) -> KDE:
    """Kernels on the mean codes, of the width that Scott's rule gives codes drawn with their own spread.

    A dimension that the VAE makes no use of has means that hardly vary: Scott's rule on the means alone would blow up
    what they do.
    """
    mean, std = vae.encode(x)
    spread = (mean.double().var(0) + std.double().square().mean(0)).sqrt()
    return fit_kde(mean, bandwidth=spread * len(x) ** (-1 / (vae.latent + 4)))


# Refusals -------------------------------------------------------------------------------------------------------------


def _check_options(
    model: Classifier | None,
    layer: str | None,
    bounds: tuple[float, float],
    *,
    calibration: float,
    k: int,
    references: int,
) -> None:
    if (model is None) != (layer is None):
        raise ValueError("model and layer belong together: give both, or neither to find neighbours in pixels")
    if model is not None and model.bounds != tuple(bounds):
        raise ValueError(f"bounds must be the model's {model.bounds}, got {bounds}; give bounds=model.bounds")
    if not 0 < calibration < 1:
        raise ValueError(f"calibration must be a share between 0 and 1, got {calibration}")
    if not 1 <= k <= min(references, FEWEST_FITTED):
        raise ValueError(f"k must be from 1 to {FEWEST_FITTED} and references at least k, got {k} and {references}")


def _check_neighbours(features: Tensor, references: Tensor, k: int) -> None:
    if features.ndim != 2 or references.ndim != 2 or features.shape[1] != references.shape[1]:
        raise ValueError(
            f"features (N, d) and references (n, d) must share d, got {tuple(features.shape)} and "
            f"{tuple(references.shape)}"
        )
    if not 1 <= k <= len(references):
        raise ValueError(f"k must be from 1 to the number of references, {len(references)}, got {k}")
    if not bool(features.detach().isfinite().all()):
        raise ValueError("features must be finite, got NaN or infinity; remove those rows")
