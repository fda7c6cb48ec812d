"""Naturalness: how plausible a case is as a field input, as a calibrated p-value and as a smooth surrogate of it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor, nn

from operant import results
from operant.activity import activity
from operant.data import Samples
from operant.density import KDE, fit_kde
from operant.measure._texture import is_image, texture
from operant.measure.conformal import Conformal, check_level, fit_conformal, min_bonferroni, min_calibration_size
from operant.measure.judge import MIN_FIELD, Judge, fit_judge, too_few
from operant.model import Classifier, Finding, freeze, on_output
from operant.networks.vae import VAE, check_field, fit_vae, in_chunks
from operant.rng import shuffled, spawn
from operant.validation import check_between, check_finite, check_from_to, check_row_shape

SCORES = ("reconstruction", "neighbours", "density", "intensities", "texture")  # the last for images only
LEVEL = 0.05  # the calibration part must be large enough for p-values below this
MIN_FITTED = 60  # field inputs to learn the scores from
MAX_FEATURES = 4096  # per input: a covariance of all of them is learned
SHRINKAGE = 0.1  # share of the mean variance that is added to every variance before whitening
NOISE_FLOOR = 0.01  # share of the mean noise that is added to the noise of every value
LEVELS = 8  # of the score of intensities
UNBOUNDED_REACH = 3.0  # standard deviations from the mean to the outermost levels of inputs without bounds
LEVEL_SHRINKAGE = 0.01  # small, because the means above levels are strongly correlated
MIN_LEVEL_VARIANCE = 1e-6  # of a mean above a level, in units of the VAE's scale
TEXTURE_SHRINKAGE = 1e-3  # small, because shares of local differences are strongly correlated
MIN_TEXTURE_VARIANCE = 1e-10  # of a share of local differences
PAIRS = 2**22  # distances computed at once
PROBES = 4  # inputs stored to recognise the model


@dataclass(frozen=True, eq=False, kw_only=True)
class Whitening:
    """A linear map that gives the features of field data mean 0 and, up to shrinkage, covariance 1.

        w = L⁻¹ (h - centre),   L Lᵀ = cov(h) + shrinkage · (mean variance) · I        (1)

    Euclidean distances between whitened features are Mahalanobis distances between features. Because of the shrinkage,
    directions in which field data never vary stay finite; a case that varies there is far from all field data.
    """

    centre: Tensor = field(repr=False)
    inverse: Tensor = field(repr=False)  # the transpose of L⁻¹

    def __call__(self, features: Tensor) -> Tensor:
        return (features.to(self.centre) - self.centre) @ self.inverse


@dataclass(frozen=True, eq=False, kw_only=True)
class Texture:
    """How strongly neighbouring pixels of field images differ: whitened `texture` values."""

    width: float  # of the range of values
    whitening: Whitening = field(repr=False)
    references: Tensor = field(repr=False)  # whitened values of (some of) the fitting part

    def distance(self, x: Tensor, *, k: int) -> Tensor:
        """Distance of each image to its k-th nearest reference."""
        return self._neighbours(self.whitening(texture(x.to(self.references), width=self.width)), k=k)

    @cached_property
    def _neighbours(self) -> "Neighbours":
        return Neighbours(self.references)


@dataclass(frozen=True, eq=False, kw_only=True)
class Naturalness:
    """Scores of how strange an input is as field data, with their calibration; made by `fit_naturalness`.

    Calling it gives a p-value per row: one conformal p-value per score, combined by min-Bonferroni. An input drawn as
    the field data were, but not one of them, falls below a level with at most that probability; for the field data
    themselves p-values may be too high. Inputs other than images of at least 8 x 8 pixels have no texture, so four
    scores remain. With n calibration inputs and m scores, values go in steps of m / (n + 1) from that number to 1. All
    cases stranger than every calibration input have the smallest value: rank those by `surrogate`.

    A move with a judge of its own (see `fit_judge`) is rated by that: ``naturalness(x, move="conditions")``. The five
    scores rate the cases of all other moves.
    """

    vae: VAE  # learned from the fitting part of the field data
    noise: Tensor = field(repr=False)  # mean squared `VAE.residual` of each value there, with a lower limit
    whitening: Whitening = field(repr=False)  # of pixels, or of the layer's outputs
    references: Tensor = field(repr=False)  # whitened features of (some of) the fitting part
    k: int  # the distance to the k-th nearest reference is the score
    codes: KDE  # density of the mean codes of the fitting part
    intensities: Whitening = field(repr=False)  # of the means of an input's values above eight levels
    texture: Texture | None = field(repr=False)  # for images
    calibration: dict[str, Conformal] = field(repr=False)  # by score
    probes: Tensor = field(repr=False)  # the inputs of the first references, to recognise the model
    layer: str | None = None  # of the model; None for pixels
    model: Classifier | None = None
    judges: dict[str, Judge] = field(default_factory=dict, repr=False)  # by move
    findings: tuple[Finding, ...] = ()

    def __call__(self, x: Tensor, *, move: str | None = None) -> Tensor:
        """A p-value in (0, 1] for each row, in float64, without gradients; small means unlike field data.

        Args:
            move: the name of the move that made these cases; its judge decides, or the five scores if it has none.
        """
        if move in self.judges:
            self.vae.check(x)
            return self.judges[move](x)
        return min_bonferroni(torch.stack(list(self.p_values(x).values()), 1))

    def p_values(self, x: Tensor) -> dict[str, Tensor]:
        """The conformal p-values of each row, by score."""
        with torch.no_grad():
            return {name: self.calibration[name].p_values(score) for name, score in self.scores(x).items()}

    def is_natural(self, x: Tensor, *, level: float = LEVEL) -> Tensor:
        """Which rows have a p-value of at least ``level``; a genuine input fails this with at most that probability.

        Raises if there are too few calibration inputs for the level.
        """
        check_level(level, self.calibration_size, tests=len(self.calibration))
        return self(x) >= level

    def scores(self, x: Tensor) -> dict[str, Tensor]:
        """The scores behind the p-values, one value per row each, differentiable in ``x``; higher is stranger.

        ``reconstruction`` is the VAE's error relative to its usual error for each value: the mean of residual² / noise.
        (The plain error hardly reacts to a change of pixels that never vary.) ``neighbours`` is the distance to the
        k-th nearest reference in whitened features. ``density`` is -log p of the mean code. ``intensities`` is the
        Mahalanobis distance, from the mean of field data, of the means of max(value, level) for eight levels: it
        depends on the values and not on their positions, and reacts to light and contrast. ``texture``, for images
        only, is the distance to the k-th nearest reference in whitened shares of local differences above eight sizes:
        the other scores rate an image as a whole, and where field data are noisy themselves they hardly react to
        adversarial noise, which is local.
        """
        mean, _ = self.vae.encode(x)
        scores = {
            "reconstruction": in_chunks(lambda part: (self.vae.residual(part).square() / self.noise).mean(1), x),
            "neighbours": self._neighbours(in_chunks(lambda part: self.whitening(self._tap(part)), x), k=self.k),
            "density": -self.codes.log_prob(mean),
            "intensities": in_chunks(lambda part: self.intensities(_above_levels(self.vae, part)).norm(dim=1), x),
        }
        return scores if self.texture is None else {**scores, "texture": self.texture.distance(x, k=self.k)}

    def surrogate(self, x: Tensor) -> Tensor:
        """A differentiable surrogate for the logarithm of naturalness, for searches: higher is more natural.

            s(x) = -log Σⱼ 1 / qⱼ(x)        (1)

        with qⱼ the smooth surrogate for each conformal p-value (`Conformal.smooth_log_p`). With m scores it lies at
        most log m below the smallest log qⱼ and keeps falling where the p-value is at its minimum. It guarantees
        nothing about error rates: decide by the p-value. `rank_correlation` measures how well the two agree on given
        cases. A score that is equal for all calibration inputs has no slope and is left out.
        """
        scores, varying = self.scores(x), {name: c for name, c in self.calibration.items() if c.varies}
        logs = [conformal.smooth_log_p(scores[name]) for name, conformal in varying.items()]
        return -torch.logsumexp(-torch.stack(logs, 1), 1)  # (1)

    def save(self, path: str | Path) -> None:
        """Write everything except the model to a JSON file, with the tensors beside it; see `load_naturalness`."""
        results.save(replace(self, model=None), path)

    def __getstate__(self) -> dict[str, object]:
        """What is sent to another process: not the hooks that are made when it is first called."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    @property
    def calibration_size(self) -> int:
        """Number of calibration inputs behind the p-values."""
        return len(self.calibration[SCORES[0]])

    @cached_property
    def _neighbours(self) -> "Neighbours":
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
    draws: Mapping[str, Samples] | None = None,
    progress: bool = True,
) -> Naturalness:
    """Learn to rate how natural inputs are, from unlabelled field data.

    The field data are split by id into two parts. From one, the scores are learned (see `Naturalness.scores`). The
    other calibrates them, so that a genuine input's p-value falls below a level with at most that probability (see
    `conformal_p_values`), however good the scores are. How many strange inputs they detect depends on the data.

    The paper uses naturalness in place of the profile inside a cell and leaves its definition open. The first three
    scores are common ones; the fourth, the fifth and the combination into one guaranteed p-value are ours.

    Args:
        field: inputs from operation, labels not needed; at least a few hundred, because 100 images, or 80 inputs of
            another kind, are needed for calibration.
        generator: draws the VAE's weights and batches, and which references are kept.
        model, layer: find neighbours in the output of this layer of the model (such as the penultimate one) instead of
            in pixels. Give both or neither. The model must not have been trained on the field data, otherwise the
            guarantee does not hold.
        bounds: smallest and largest value of an input.
        calibration: share of the field data used for calibration.
        k: the distance to the k-th nearest neighbour is a score.
        latent, epochs: of the VAE, see `fit_vae`.
        references: maximum number of field inputs kept as neighbours.
        draws: by name of a move, what it makes of seeds that are not searched, failing or not: a judge of that move is
            fitted (`fit_judge`). With fewer than 250 distinct field inputs there are no judges, and a finding says so.
        progress: show progress on stderr.

    References:
        | Detecting Operational Adversarial Examples for Reliable Deep Learning (Zhao et al., 2021), RQ3
        | https://arxiv.org/abs/2104.06015
        | Out-of-Distribution Detection with Deep Nearest Neighbors (Sun et al., 2022), https://arxiv.org/abs/2204.06507
    """
    _check_model(model, layer, bounds)
    check_between(0, 1, calibration=calibration)
    check_from_to(1, min(references, MIN_FITTED), k=k, advice="references limits it too")
    needed = min_calibration_size(LEVEL, tests=len(SCORES) - (not is_image(tuple(field.x.shape[1:]))))
    check_field(field, bounds, at_least=MIN_FITTED + needed)
    fitted, held = _split(field, calibration, needed)
    with activity("fitting naturalness", show=progress):
        with torch.no_grad():
            features = _features(fitted.x, model, layer)
            whitening = _fit_whitening(features)
        vae = fit_vae(fitted, latent=latent, epochs=epochs, bounds=bounds, generator=generator, progress=progress)
        kept = shuffled(len(fitted), generator)[:references].to(fitted.x.device)
        with torch.no_grad():
            means = in_chunks(lambda part: _above_levels(vae, part), fitted.x)
            draft = Naturalness(
                vae=vae,
                noise=_noise(vae, fitted.x),
                whitening=whitening,
                references=in_chunks(whitening, features[kept]),
                k=k,
                codes=_code_density(vae, fitted.x),
                intensities=_fit_whitening(means, shrinkage=LEVEL_SHRINKAGE, floor=MIN_LEVEL_VARIANCE),
                texture=_fit_texture(fitted.x, kept, bounds) if is_image(vae.shape) else None,
                calibration={},
                probes=fitted.x[kept[:PROBES]].clone(),
                layer=layer,
                model=model,
            )
            scores = draft.scores(held.x)
        fitted_scores = replace(draft, calibration={name: fit_conformal(score) for name, score in scores.items()})
    return fitted_scores if not draws else _with_judges(fitted_scores, field, draws, generator, progress)


def _with_judges(
    naturalness: Naturalness, field: Samples, draws: Mapping[str, Samples], generator: torch.Generator, progress: bool
) -> Naturalness:
    """The same with a judge of each move, or with a finding that says why there is none.

    The random numbers of a judge depend on its move's name, not on the other moves.
    """
    if too_few(field):
        names, n = ", ".join(draws), len(field.ids.unique())
        problem = f"{n} distinct field inputs are too few for judges; the five scores rate the cases of {names}"
        advice = f"Give at least {MIN_FIELD}, in groups that can be halved"
        return replace(naturalness, findings=(Finding(name="no judge", problem=problem, advice=advice),))
    seed = int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
    bounds = naturalness.vae.bounds
    judges = {
        name: fit_judge(field, made, bounds=bounds, generator=spawn(seed, name), progress=progress)
        for name, made in draws.items()
    }
    found = [replace(f, problem=f"{name}: {f.problem}") for name, judge in judges.items() for f in judge.findings]
    return replace(naturalness, judges=judges, findings=tuple(found))


def load_naturalness(path: str | Path, *, model: Classifier | None = None) -> Naturalness:
    """Read the file of `Naturalness.save`, given the model that it was learned with if it uses a layer.

    A model with other outputs at that layer is rejected.
    """
    naturalness = results.load(path, Naturalness)
    layer = naturalness.layer
    if model is None and layer is not None:
        raise ValueError(f"{path} uses layer {layer} of a model; give the model it was learned with")
    if model is not None and layer is None:
        raise ValueError(f"{path} uses pixels only; leave out the model")
    stored = naturalness.references[: len(naturalness.probes)]
    with torch.no_grad():
        now = _features(naturalness.probes, model, layer)
        if now.shape[1] == len(naturalness.whitening.centre):
            now = naturalness.whitening(now)
    if now.shape != stored.shape or not torch.allclose(now, stored, rtol=1e-3, atol=1e-3 * float(stored.abs().amax())):
        raise ValueError(f"{path} was learned with another model: this one's layer {layer} has other outputs")
    return replace(naturalness, model=model)


def rank_correlation(naturalness: Naturalness, x: Tensor) -> float:
    """Spearman's correlation between `surrogate` and p-value over these cases: 1 if their orders agree.

    Cases of equal p-value share their mean rank. The strangest cases have equal p-values but different surrogates, so
    with many of them the correlation stays below 1 even if the orders agree. Raises if all p-values are equal.
    """
    with torch.no_grad():
        p, s = naturalness(x), naturalness.surrogate(x)
    if bool((p == p[:1]).all()):
        raise ValueError(f"cases must differ in naturalness to be ranked, all {len(p)} have the same p-value")
    return float(np.corrcoef(rankdata(p.cpu().numpy()), rankdata(s.cpu().numpy()))[0, 1])


class Neighbours:
    """Gives the Euclidean distance of each row ``(N, d)`` to its k-th nearest reference ``(n, d)``; differentiable.

    The neighbour is found by |a - b|² = |a|² - 2ab + |b|², one matrix product for all pairs. The distance is computed
    from the difference itself, because that sum loses its digits for close rows.

    >>> Neighbours(torch.tensor([[1.0], [2.0], [4.0]]))(torch.tensor([[0.0], [9.0]]), k=2)
    tensor([2., 7.])
    """

    def __init__(self, references: Tensor) -> None:
        check_finite(references=references)
        self.centre = references.mean(0)
        self.rows = references - self.centre
        self.squares = self.rows.square().sum(1)

    def __call__(self, features: Tensor, *, k: int) -> Tensor:
        check_row_shape(tuple(self.rows.shape[1:]), features=features, advice="like the references")
        check_from_to(1, len(self.rows), k=k, advice="there are no more references")
        check_finite(features=features)
        at_once = max(1, PAIRS // max(self.rows.shape))
        return in_chunks(lambda part: self._distance(part.to(self.rows) - self.centre, k), features, rows=at_once)

    def _distance(self, a: Tensor, k: int) -> Tensor:
        with torch.no_grad():
            kth = torch.addmm(self.squares, a, self.rows.T, alpha=-2).topk(k, largest=False).indices[:, -1]
        distance: Tensor = torch.linalg.vector_norm(a - self.rows[kth], dim=1)
        return distance


def _split(field: Samples, calibration: float, needed: int) -> tuple[Samples, Samples]:
    """The part to learn the scores from, and the part to calibrate them, at least ``needed`` inputs."""
    parts = field.split(naturalness_fitting=1 - calibration, naturalness_calibration=calibration)
    fitted, held = parts.values()
    if len(fitted.ids.unique()) < MIN_FITTED or len(held.ids.unique()) < needed:
        enough = math.ceil(1.25 * max(MIN_FITTED / (1 - calibration), needed / calibration))
        raise ValueError(
            f"naturalness needs {MIN_FITTED} different field inputs to learn from and {needed} to calibrate on "
            f"(with fewer no p-value falls below {LEVEL}); {len(field)} inputs, {len(field.ids.unique())} of them "
            f"different, were split into {len(fitted)} and {len(held)}; give about {enough} different ones"
        )
    return fitted, held


def _features(x: Tensor, model: Classifier | None, layer: str | None) -> Tensor:
    """Pixels or outputs of a layer, flattened, one row per input."""
    if model is not None and layer is not None:
        model.features(x[:1], layers=[layer])  # raises for layers without a usable output
    features = in_chunks(_tap(model, layer), x)
    if features.shape[1] > MAX_FEATURES:
        given = "these inputs have" if layer is None else f"layer {layer} has"
        raise ValueError(
            f"neighbours are found among at most {MAX_FEATURES} features, {given} {features.shape[1]}; "
            "give model and the name of a smaller layer"
        )
    if bad := int((~features.isfinite()).any(1).sum()):
        raise ValueError(f"layer {layer} gives NaN or infinity for {bad} of {len(x)} inputs; choose another layer")
    return features


def _tap(model: Classifier | None, layer: str | None) -> Callable[[Tensor], Tensor]:
    """A function from inputs to flat features that keeps the graph (`Classifier.features` does not)."""
    if layer is None:
        return lambda x: x.flatten(1)
    if model is None:
        raise ValueError(f"neighbours are found in layer {layer} of a model; give model, as in load_naturalness")
    module = freeze(model.unwrap())
    outputs: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        outputs.append(output.clone())  # a later layer may work in place

    def run(x: Tensor) -> Tensor:
        outputs.clear()
        module(model.normalise(x.to(model.device)).clone())
        return outputs.pop().flatten(1).to(x.device)

    on_output(module.get_submodule(layer), layer, keep)
    return run


def _fit_whitening(features: Tensor, *, shrinkage: float = SHRINKAGE, floor: float = 0.0) -> Whitening:
    """Learned from all rows in float64, in batches; at least ``floor`` is added to the variances."""
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
    """Means of max(value, level) over each input's values, ``(N, LEVELS)``, for levels from the lower bound up.

    Like a histogram they describe the distribution of values, but they change by no more than the values do.
    """
    low, high = (0.0, 1.0) if all(map(math.isfinite, vae.bounds)) else (-UNBOUNDED_REACH, UNBOUNDED_REACH)
    levels, values = [low + (high - low) * i / LEVELS for i in range(LEVELS)], vae.flat(x)
    return torch.stack([values.clamp_min(level).mean(1) for level in levels], 1)


def _fit_texture(x: Tensor, kept: Tensor, bounds: tuple[float, float]) -> Texture:
    """Without bounds the width is that of the levels of `_above_levels`."""
    width = bounds[1] - bounds[0] if all(map(math.isfinite, bounds)) else 2 * UNBOUNDED_REACH * float(x.std())
    shares = texture(x.float(), width=width)
    whitening = _fit_whitening(shares, shrinkage=TEXTURE_SHRINKAGE, floor=MIN_TEXTURE_VARIANCE)
    return Texture(width=float(width), whitening=whitening, references=whitening(shares[kept]))


def _noise(vae: VAE, x: Tensor) -> Tensor:
    """The VAE's mean squared error of each value, plus a hundredth of the mean over all values."""
    noise = torch.stack([vae.residual(part).square().sum(0) for part in x.split(1024)]).sum(0) / len(x)
    return noise + NOISE_FLOOR * noise.mean()


def _code_density(vae: VAE, x: Tensor) -> KDE:
    """Kernels on the mean codes, with the width of Scott's rule for codes drawn from the encoder.

    In a dimension that the VAE does not use the means hardly vary; the width of the means alone would exaggerate those
    small differences.
    """
    mean, std = vae.encode(x)
    spread = (mean.double().var(0) + std.double().square().mean(0)).sqrt()
    return fit_kde(mean, bandwidth=spread * len(x) ** (-1 / (vae.latent + 4)))


def _check_model(model: Classifier | None, layer: str | None, bounds: tuple[float, float]) -> None:
    if (model is None) != (layer is None):
        raise ValueError("model and layer belong together: give both, or neither to find neighbours in pixels")
    if model is not None and model.bounds != tuple(bounds):
        raise ValueError(f"bounds must be the model's {model.bounds}, got {bounds}; give bounds=model.bounds")
