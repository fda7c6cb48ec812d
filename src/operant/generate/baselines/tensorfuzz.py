"""TensorFuzz: add noise to inputs of a corpus, which keeps those whose logits are far from all before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.baselines._shared_queue import Queue, SearchPlan, check_budget, explore_shared
from operant.generate.baselines.exploration import Exploration
from operant.generate.engine import Rows, check_ball, project
from operant.measure.coverage import NeighbourCoverage
from operant.model import Classifier
from operant.rng import normal_like
from operant.suite import Suite
from operant.validation import check_at_least, check_nonnegative, check_positive


@dataclass(frozen=True, kw_only=True)
class TensorFuzz:
    """Additive noise guided by the distance of the logits from those of all kept inputs.

        x ← x₀ + clip(x + std · N(0, I) − x₀, −radius, radius), clipped to bounds                        (1)
        joins the corpus ⇔ min_{k kept} ‖z(x) − z_k‖₂ > threshold                                        (2)

    with x taken from the corpus, x₀ its seed and z the logits. An input is one of the ``recent`` that came last, or any
    of the corpus, each of these ``recent + 1`` choices equally likely. A mutant that fails is a case, and is not kept.
    One mutation must be able to move the logits by more than the threshold: the corpus takes jumps only, and where
    these are too far, random noise, which drifts, covers more.

    All seeds share corpus and coverage, as in the paper: cases of a seed depend on which other seeds there are, though
    not on their order. The program takes one input at a time, makes a hundred mutants of it, and ends with the first
    that meets its objective; here ``at_once`` inputs give one mutant each, all pass through the model together, and the
    search continues. If ``at_once`` exceeds ``recent``, that many inputs share the probability of the recent ones: all
    that the last step may have added. Neighbours are exact; the program's are approximate. Its objective, that two
    versions of a model disagree, is here that the model fails.

    Misclassified seeds are skipped. Columns: ``distance``, of the case's logits to the nearest that were kept; ``row``,
    how many model rows had been spent in all. `RandomMutation` is the control.

    Args:
        radius: of the ball around each seed in L∞, in input units.
        rows_per_seed, seconds_per_seed, at_once: as in `DeepHunter`.
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
        check_budget(self)
        check_ball(self.radius, self.norm)
        check_positive(std=self.std)
        check_nonnegative(threshold=self.threshold)
        check_at_least(1, recent=self.recent)

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        return self.explore(model, seeds, generator=generator).suite

    def explore(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Exploration:
        """The same search, with the growth of the number of points kept: one line for all seeds."""
        return explore_shared(model, seeds, self, guided=True, generator=generator)

    def plan(self, model: Classifier, x: Tensor, generator: torch.Generator) -> SearchPlan:
        """The parts of the search."""

        def read(x: Tensor) -> tuple[Tensor, Tensor]:
            logits = model.batched_logits(x)
            return logits, logits

        def mutate(queue: Queue, places: Tensor) -> Rows:
            now = queue.take(places)
            moved = now["x"] + self.std * normal_like(now["x"], generator=generator)
            x0 = queue.store["x"][now["root"]]
            return now | {"x": project(moved, x0, self.radius, "linf", model.bounds), "parent": places}  # (1)

        return SearchPlan(
            name="tensorfuzz",
            control="noise",
            covered=NeighbourCoverage(threshold=self.threshold),  # (2)
            read=read,
            select=lambda queue, n: recently(queue, n, self.recent, max(self.recent, n), generator),
            mutate=mutate,
            columns=lambda _, cases: {"distance": cases["gain"]},
        )


def recently(queue: Queue, n: int, recent: int, window: int, generator: torch.Generator) -> Tensor:
    """``n`` places of a queue: of ``recent + 1``, ``recent`` are among the last ``window``, the others anywhere."""
    last = min(window, len(queue))
    die, u = torch.rand(2, n, generator=generator, device=generator.device, dtype=torch.float64).cpu()
    anywhere, late = (u * len(queue)).long(), len(queue) - last + (u * last).long()
    return torch.where(die * (recent + 1) < recent, late, anywhere).to(queue.store["x"].device)
