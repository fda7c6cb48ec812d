"""TensorFuzz: noise added to inputs of a corpus, which keeps those whose logits are far from all before."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.baselines._guided import Method, Queue, Select, check_budget, explore, uniformly
from operant.generate.baselines.adapt import Exploration
from operant.generate.engine import Rows, check_ball, project
from operant.measure.coverage import NeighbourCoverage
from operant.model import Classifier
from operant.rng import normal_like
from operant.suite import Suite


@dataclass(frozen=True, kw_only=True)
class TensorFuzz:
    """Additive noise guided by how far the logits are from those of everything kept.

        x ← x₀ + clip(x + std · N(0, I) − x₀, −radius, radius), brought into bounds                      (1)
        joins the corpus ⇔ min_{k kept} ‖z(x) − z_k‖₂ > threshold                                        (2)

    with x taken from the corpus, x₀ its seed and z the logits. An input is taken from the ``recent`` that came last and
    one from anywhere in the corpus, each as likely. A mutant that fails is a case, and is not kept. One mutation must
    be able to move the logits by more than the threshold: the corpus takes jumps only, and where these are too far,
    unguided noise, which drifts, covers more.

    Corpus and coverage belong to all seeds together, as in the paper: cases of a seed depend on which other seeds there
    are, though not on their order. The program takes one input at a time, makes a hundred mutants of it, and ends with
    the first that meets its objective; here ``at_once`` inputs give one mutant each, all pass through the model
    together, and the search goes on. Where these are more than ``recent``, that many inputs share the probability of
    the recent ones: all that the last step may have added. Neighbours are exact where the program's are approximate.
    Its objective, that two versions of a model disagree, is here that the model fails.

    Misclassified seeds are skipped. Columns: ``distance``, of the case's logits to the nearest that were kept; ``row``,
    how many model rows had been spent in all.

    Args:
        radius: of the ball around each seed in L∞, in input units.
        rows_per_seed: model rows, times the number of seeds, for all together; the seeds are counted, the first and
            last judgement not.
        seconds_per_seed: CPU seconds, times the number of seeds, after which the search ends even if rows are left;
            with it, what is found depends on the machine's speed.
        at_once: inputs taken from the corpus and passed through the model together; as many as there are seeds, unless
            given.
        std: of the noise, in input units; the program's 0.2 for images from -1 to 1 is 0.1 for those from 0 to 1.
        threshold: in units of the logits.
        recent: how many of the corpus are recent.

    References:
        | TensorFuzz: Debugging Neural Networks with Coverage-Guided Fuzzing (Odena et al., 2018)
        | https://arxiv.org/abs/1807.10875
    """

    radius: float
    rows_per_seed: int = 100
    seconds_per_seed: float | None = None
    at_once: int | None = None
    std: float = 0.1
    threshold: float = 1.0
    recent: int = 5
    norm: ClassVar[str] = "linf"

    def __post_init__(self) -> None:
        _check(self)
        if self.recent < 1:
            raise ValueError(f"recent must be at least 1, got {self.recent}")

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        return self.explore(model, seeds, generator=generator).suite

    def explore(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Exploration:
        """The same search, with how the number of points kept grew: one row, for all seeds share it."""
        return _explore(self, model, seeds, name="tensorfuzz", generator=generator)

    def method(self, model: Classifier, x: Tensor, generator: torch.Generator) -> Method:
        """What the search is made of."""

        def select(queue: Queue, n: int) -> Tensor:
            return recently(queue, n, self.recent, max(self.recent, n), generator)

        return _method(self, model, x, select=select, guided=True, generator=generator)


@dataclass(frozen=True, kw_only=True)
class NoiseMutation:
    """The same noise without guidance: what TensorFuzz has to beat.

    Each input of the corpus is as likely as any other to be taken, and every mutant joins it, unless it fails.

    Args:
        radius, rows_per_seed, seconds_per_seed, at_once, std: as in `TensorFuzz`.
        threshold: of the coverage that is measured; it guides nothing.
    """

    radius: float
    rows_per_seed: int = 100
    seconds_per_seed: float | None = None
    at_once: int | None = None
    std: float = 0.1
    threshold: float = 1.0
    norm: ClassVar[str] = "linf"

    def __post_init__(self) -> None:
        _check(self)

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        return self.explore(model, seeds, generator=generator).suite

    def explore(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Exploration:
        """The same search, with how the number of points kept grew: one row, for all seeds share it."""
        return _explore(self, model, seeds, name="noise", generator=generator)

    def method(self, model: Classifier, x: Tensor, generator: torch.Generator) -> Method:
        """What the search is made of."""

        def select(queue: Queue, n: int) -> Tensor:
            return uniformly(queue, n, generator)

        return _method(self, model, x, select=select, guided=False, generator=generator)


def recently(queue: Queue, n: int, recent: int, window: int, generator: torch.Generator) -> Tensor:
    """So many places of a queue: ``recent`` of ``recent + 1`` among the last ``window``, the others anywhere."""
    last = min(window, len(queue))
    die, u = torch.rand(2, n, generator=generator, device=generator.device, dtype=torch.float64).cpu()
    anywhere, late = (u * len(queue)).long(), len(queue) - last + (u * last).long()
    return torch.where(die * (recent + 1) < recent, late, anywhere).to(queue.store["x"].device)


def _explore(
    options: TensorFuzz | NoiseMutation, model: Classifier, seeds: Samples, *, name: str, generator: torch.Generator
) -> Exploration:
    search, seeds = explore(model, seeds, options, generator=generator)
    suite = search.suite(model, seeds, name=name, columns=lambda cases: {"distance": cases["gain"]})
    return search.exploration(suite)


def _method(
    options: TensorFuzz | NoiseMutation,
    model: Classifier,
    x: Tensor,
    *,
    select: Select,
    guided: bool,
    generator: torch.Generator,
) -> Method:
    radius = x.new_full((1,), options.radius)

    def look(x: Tensor) -> tuple[Tensor, Tensor]:
        logits = model.batched_logits(x)
        return logits, logits

    def mutate(queue: Queue, places: Tensor) -> Rows:
        now = queue.take(places)
        moved = now["x"] + options.std * normal_like(now["x"], generator=generator)
        x0 = queue.store["x"][now["root"]]
        return now | {"x": project(moved, x0, radius, "linf", model.bounds), "parent": places}  # (1)

    memory = NeighbourCoverage(threshold=options.threshold)  # (2)
    return Method(memory=memory, look=look, select=select, mutate=mutate, guided=guided)


def _check(options: TensorFuzz | NoiseMutation) -> None:
    check_budget(options)
    check_ball(options.radius, options.norm)
    if not 0 < options.std < math.inf:
        raise ValueError(f"std must be positive and finite, got {options.std}")
    if not 0 <= options.threshold < math.inf:
        raise ValueError(f"threshold must be a distance, 0 or more, got {options.threshold}")
