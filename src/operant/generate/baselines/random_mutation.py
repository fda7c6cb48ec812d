"""The control of coverage-guided searches: random mutation at the same settings."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from operant.data import Samples
from operant.generate.baselines._seed_queues import SeedQueues, explore_each
from operant.generate.baselines._shared_queue import explore_shared
from operant.generate.baselines.adapt import ADAPT
from operant.generate.baselines.deephunter import DeepHunter
from operant.generate.baselines.dlfuzz import DLFuzz
from operant.generate.baselines.exploration import Exploration
from operant.generate.baselines.tensorfuzz import TensorFuzz
from operant.generate.engine import steepest
from operant.model import Classifier
from operant.rng import normal_like
from operant.suite import Suite
from operant.validation import check_positive


@dataclass(frozen=True, kw_only=True)
class RandomMutation:
    """Random mutation with the options and budget of a search: what that search has to beat.

    Of `ADAPT` and `DLFuzz` it keeps the queues, which take inputs that cover something new, and steps in random
    directions. Of `DeepHunter` and `TensorFuzz` it keeps the mutations; every input of the queue is equally likely to
    be taken, and every mutant that does not fail joins the queue. Coverage is then measured and guides nothing.

    Args:
        search: the search to compare with. Options that only guide it have no effect, nor has the ``seconds_per_seed``
            of `DLFuzz`.
        step_size: L2 length of a random step in input units, for `ADAPT` and `DLFuzz`.
    """

    search: ADAPT | DLFuzz | DeepHunter | TensorFuzz
    step_size: float = 3.0

    def __post_init__(self) -> None:
        if not isinstance(self.search, ADAPT | DLFuzz | DeepHunter | TensorFuzz):
            raise ValueError(
                f"search must be ADAPT, DLFuzz, DeepHunter or TensorFuzz, got {self.search!r}; DeepXplore has "
                'direction="random" instead'
            )
        check_positive(step_size=self.step_size)

    @property
    def radius(self) -> float | None:
        return getattr(self.search, "radius", None)

    @property
    def norm(self) -> str | None:
        return getattr(self.search, "norm", None)

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        return self.explore(model, seeds, generator=generator).suite

    def explore(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Exploration:
        """The same search, with the growth of its coverage."""
        if isinstance(self.search, DeepHunter | TensorFuzz):
            return explore_shared(model, seeds, self.search, guided=False, generator=generator)
        method = f"random-{self.search.norm}"
        return explore_each(model, seeds, self.search, self._walk, method=method, generator=generator)

    def _walk(self, queues: SeedQueues) -> None:
        """Spend the budget of one batch of seeds on random steps."""
        assert isinstance(self.search, ADAPT | DLFuzz)
        for steps in queues.turns(self.search.trials, extra=0):
            x, _ = queues.pop()
            for _ in range(steps):
                noise = torch.stack([normal_like(row, generator=g) for row, g in zip(x, queues.streams, strict=True)])
                x = queues.project(x + self.step_size * steepest(noise, "l2"))
                queues.note(x, queues.network.read(x))
