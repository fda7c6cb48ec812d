"""Feature fuzzing: perturb the early layers of a generator until the model fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.engine import Goal, Rows, advance, column, eligible, judge, steepest
from operant.generate.semantic.source import FeatureSource
from operant.generate.semantic.validity import Validity
from operant.model import Classifier
from operant.suite import Suite
from operant.validation import check_at_least, check_nonnegative, check_positive

EARLY_LAYERS = 1 / 3  # share of the layers that are perturbed by default: six of eighteen
LOSSES = ("margin", "top")


@dataclass(frozen=True, kw_only=True)
class FeatureFuzz:
    """Change a generated image by its features, not its pixels: position, stroke, colour, whatever the source encodes.

    For an image g(z, y) we search a perturbation p of the outputs of some layers of g such that the model fails on
    t(g(z, y), p), by steps of fixed length in p and a projection:

        p ← project(p - step_size · ∇L(p) / |∇L(p)|),   |p|₂ ≤ budget        (1)
        L(p) = f_y - max_{j ≠ y} f_j + c                         untargeted, confident        (2)
        L(p) = max_{j ≠ target} f_j - f_target + c               targeted, confident          (3)
        L(p) = max_j softmax(f)_j                                ``loss="top"``               (4)

    with logits f at t(g(z, y), p). p starts at 0, so that little has changed at the first failure, where the row leaves
    the batch. (3) and (4) are the paper's, (2) follows from its definition of a confident test. Seeds must come from
    ``source.seeds(n, model=model, generator=...)``. The source makes each image with the class of its seed's latent;
    tests are judged by the seed's label, which people may have corrected.

    We differ from the paper in four places. Margins are in logits, since probabilities saturate. The budget is fixed
    beforehand; the public program lets it grow until something fails. Steps follow the gradient; that program uses
    Adam. And p is in units of each value's spread (``scaled``), as in that program; the paper does not mention it, and
    ``scaled=False`` adds p unscaled.

    Columns: ``margin``, ``perturbation`` (|p|₂), ``target`` where there is one, and the columns of `Validity`.

    Args:
        source: makes the images. Its `quality` must be known and good, unless ``trust``.
        budget: largest |p|₂ over all layers together; 0 returns the seeds. With ``scaled``, 1 is a change of one value
            by its standard deviation within a class, so that √D changes each of D values by that much.
        layers: names of the layers whose outputs are perturbed; ``"z"`` is the latent (default: the first third of the
            source's: early layers decide what things are and where, late ones how pixels look).
        confidence: c, by how many logits a test must fail.
        target: the class to reach, or None for any but the label; seeds of that class are skipped.
        loss: ``"margin"`` for (2) and (3), ``"top"`` for (4).
        scaled: p in units of each value's spread within a class.
        steps: maximum; a step is one row of the source and the model, with gradients.
        step_size: length of a step (default: 2.5 * budget / steps).
        anchors: classifiers that must keep predicting the label: then only the model is wrong, and the test is more
            likely valid. The paper has none. Judge validity by other classifiers.
        hold: margin in logits below which an anchor pulls the row back to the label; a row leaves once all anchors have
            half of it.
        validity: rates the tests (default: none).
        trust: accept a source of any quality.

    References:
        | Exposing Previously Undetectable Faults in Deep Neural Networks (Dunn et al., 2021)
        | https://arxiv.org/abs/2106.00576
    """

    source: FeatureSource
    budget: float
    layers: tuple[str, ...] | None = None
    confidence: float = 0.0
    target: int | None = None
    loss: str = "margin"
    scaled: bool = True
    steps: int = 50
    step_size: float | None = None
    anchors: tuple[Classifier, ...] = field(default=(), repr=False)
    hold: float = 4.0
    validity: Validity | None = None
    trust: bool = False

    def __post_init__(self) -> None:
        Goal(target=self.target, confidence=self.confidence)
        check_at_least(1, steps=self.steps)
        check_positive(hold=self.hold)
        if self.step_size is not None:
            check_positive(step_size=self.step_size)
        check_nonnegative(budget=self.budget)
        if self.loss not in LOSSES or (self.loss == "top" and self.target is not None):
            raise ValueError(f'loss must be "margin", or "top" where there is no target, got {self.loss!r}')
        if not self.trust:
            _check_quality(self.source)
        self.source.spread(self._layers())

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        """Tests from seeds of the source, one each, failing or not; the generator is not used."""
        model.check(seeds)
        self.source.check(model)
        for anchor in self.anchors:
            self.source.check(anchor)
        seeds = seeds.to(model.device)
        chosen = eligible(model, seeds, self._goal)
        latents = self.source.recall(seeds)
        tests, sizes = [seeds.x[:0]], [torch.empty(0)]
        for some in chosen.split(model.batch_size):
            part, latent = seeds[some], latents[some].to(model.device)
            x, p = self._search(model, {"x": part.x, "y": part.labels, "z": latent.x, "c": latent.labels})
            tests.append(x)
            sizes.append(p.norm(dim=1).float().cpu())
        goal, skipped = self._goal, len(seeds) - len(chosen)
        suite = judge(model, seeds, torch.cat(tests), origin=chosen, goal=goal, method="features", skipped=skipped)
        suite = suite.with_columns(perturbation=torch.cat(sizes))
        return suite if self.validity is None else self.validity(suite)

    # The search, for one batch

    def _search(self, model: Classifier, rows: Rows) -> tuple[Tensor, Tensor]:
        """Tests and their perturbations."""
        if len(rows["x"]) == 0:
            return rows["x"], rows["x"].flatten(1)
        spreads = self.source.spread(self._layers())
        size = sum(values.numel() for values in spreads.values())
        rows["p"] = torch.zeros(len(rows["x"]), size, dtype=self.source.dtype, device=rows["x"].device)
        rows = advance(rows, partial(self._step, model), steps=self.steps)
        with torch.no_grad():
            x = self._image(rows, rows["p"], model)
        still = (rows["p"] == 0).all(1)
        return torch.where(column(still, x), rows["x"], x), rows["p"]  # unperturbed seeds are returned exactly

    def _step(self, model: Classifier, state: Rows) -> tuple[Rows, Tensor | None]:
        p, y = state["p"], state["y"]
        with torch.enable_grad():
            q = p.detach().requires_grad_()
            x = self._image(state, q, model)
            logits = model.logits(x)
            held = [-Goal().margin(anchor.logits(x), y) for anchor in self.anchors]
            (gradient,) = torch.autograd.grad(self._objective(logits, y).sum(), q, retain_graph=bool(held))
            direction = steepest(gradient.nan_to_num(0.0), "l2")
            if held:
                slip = (self.hold - torch.stack(held)).clamp_min(0).sum()
                (pull,) = torch.autograd.grad(-slip, q)
                direction = direction + steepest(pull.nan_to_num(0.0), "l2")
        done = self._goal.reached(logits.detach(), y)
        for margin in held:
            done = done & (margin.detach() > self.hold / 2)
        length = 2.5 * self.budget / self.steps if self.step_size is None else self.step_size
        moved = self._projected(p + length * steepest(direction, "l2"))  # (1)
        return state | {"p": torch.where(done[:, None], p, moved)}, done

    def _objective(self, logits: Tensor, y: Tensor) -> Tensor:
        """-L, without the constant c, one value per row."""
        if self.loss == "top":
            return -logits.log_softmax(1).amax(1)  # (4), whose logarithm falls the same way
        return self._goal.margin(logits, y)  # (2), (3)

    def _image(self, state: Rows, p: Tensor, model: Classifier) -> Tensor:
        """Images with their features perturbed, within bounds."""
        spreads = self.source.spread(self._layers())
        parts = p.split([values.numel() for values in spreads.values()], 1)
        where = self.source.device
        moves = {
            name: part.view(-1, *values.shape).to(where) * (values.to(where, p.dtype) if self.scaled else 1.0)
            for part, (name, values) in zip(parts, spreads.items(), strict=True)
        }
        x = self.source(state["z"].to(where), state["c"].to(where), moves)
        return x.clamp(*model.bounds).to(state["x"])

    def _projected(self, p: Tensor) -> Tensor:
        norm = p.norm(dim=1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)
        shrunk: Tensor = p * (self.budget / norm).clamp_max(1)
        return shrunk

    # Options

    @property
    def _goal(self) -> Goal:
        return Goal(target=self.target, confidence=self.confidence)

    def _layers(self) -> tuple[str, ...]:
        if self.layers is not None:
            return self.layers
        early = self.source.layers[: max(1, round(EARLY_LAYERS * len(self.source.layers)))]
        if not early:
            raise ValueError("the source has no dense or convolutional layers; give layers")
        return early


def _check_quality(source: FeatureSource) -> None:
    if source.quality is None:
        raise ValueError(
            "the quality of the source must be known; give source.rated(real, judge=..., layer=..., generator=...), or "
            "trust=True"
        )
    if problems := source.quality.problems:
        raise ValueError(
            f"the quality of the source is too low: {'; '.join(problems)}; train it longer or on more images, or give "
            "trust=True"
        )
