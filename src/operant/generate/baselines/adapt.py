"""ADAPT: climb towards neurons that a strategy chooses, and breed strategies from those that reached most."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.baselines._adapt_strategies import Strategies, fixed_features
from operant.generate.baselines._network import NeuronReading, Objective
from operant.generate.baselines._seed_queues import NORMS, SeedQueues, explore_each, neuron_coverage
from operant.generate.baselines.exploration import CriterionFactory, Exploration
from operant.generate.engine import check_ball
from operant.model import Classifier
from operant.suite import Suite
from operant.validation import check_at_least, check_positive


@dataclass(frozen=True, kw_only=True)
class ADAPT:
    """Adaptive neuron selection: gradient steps that excite chosen neurons and leave the label, guided by coverage.

    Each seed has a queue, first in, first out. For the input at its head a strategy w scores every neuron n by its
    features F(n), the k best are chosen, and a few steps climb

        score(n) = w · F(n)                                                                              (1)
        x ← project(x + learning_rate ∇(neuron_weight Σ_chosen a_n(x) − class_weight p_y(x)))            (2)

    with a_n the neuron's value and p_y the probability of the label. An input that covers something new joins the
    queue. When the queue is empty, the search starts again from the seed with the next strategy. The first
    ``population`` strategies are uniform in [−5, 5]²⁹. Each later generation is bred from half as many of the last
    ``history``: a greedy set cover of the neurons they reached, then those that reached most; two are crossed weight by
    weight, and N(0, 1) is added.

    The 29 features are binary: the quarter of the network that the layer lies in (4), the band in which the mean
    incoming weight ranks (each of the top five tenths, the rest: 6), the kind of layer (7), whether the neuron was
    active in a failing input (1), and never active or the tenth in which its number of activations ranks (11).

    Coverage, counts and strategies belong to one seed, as in the released program. We differ from that program where it
    would hurt: moves are projected into the ball and into bounds (there they may leave, and only stay out of the
    queue); a case must fail against the true label; a budget of rows replaces the clock, so that runs repeat; channels
    are scaled before their mean, as in DeepXplore; the fourth tenth of the weights has its own band, and the first
    strategy of each generation is used. Its own distance, ‖x − x₀‖₂ / ‖x₀‖₂ < 0.5, is
    ``norm="relative-l2", radius=0.5``.

    Misclassified seeds are skipped. Columns: ``gain``, how many things the case covered for the first time in its
    seed's search; ``row``, which of the seed's model rows it was. `RandomMutation` is the control.

    Args:
        radius: of the ball around each seed: in input units, for ``"relative-l2"`` as a share of the seed's length.
        norm: ``"linf"``, ``"l2"`` or ``"relative-l2"``.
        rows_per_seed: inputs passed through the model per seed, without the final judgement.
        criterion: from the model and the seeds' inputs to what there is to cover; its neurons are those chosen from.
        k: neurons chosen at a time.
        trials: steps per input taken from the queue.
        learning_rate: factor of the gradients.
        neuron_weight, class_weight: of the two parts of (2).
        population: strategies in a generation.
        history: how many past strategies are remembered.

    References:
        | Effective White-Box Testing of Deep Neural Networks with Adaptive Neuron-Selection Strategy (Lee et al., 2020)
        | https://doi.org/10.1145/3395363.3397346
    """

    radius: float
    norm: str = "linf"
    rows_per_seed: int = 1000
    criterion: CriterionFactory = neuron_coverage
    k: int = 10
    trials: int = 3
    learning_rate: float = 0.1
    neuron_weight: float = 0.5
    class_weight: float = 0.5
    population: int = 100
    history: int = 300

    def __post_init__(self) -> None:
        check_ball(self.radius, self.norm, norms=NORMS)
        check_at_least(1, rows_per_seed=self.rows_per_seed, k=self.k, trials=self.trials)
        check_at_least(1, population=self.population, history=self.history)
        check_positive(learning_rate=self.learning_rate)

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        return self.explore(model, seeds, generator=generator).suite

    def explore(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Exploration:
        """The same search, with the growth of its coverage."""
        return explore_each(model, seeds, self, self._walk, method=f"adapt-{self.norm}", generator=generator)

    def _walk(self, queues: SeedQueues) -> None:
        """Spend the budget of one batch of seeds."""
        network = queues.network
        if self.k > network.neurons.count:
            raise ValueError(f"k must be at most the {network.neurons.count} neurons there are, got {self.k}")
        strategies = Strategies(fixed_features(network, queues.x0), queues.streams, self.population, self.history)
        strategies.see(queues.first.active, torch.zeros_like(queues.y, dtype=torch.bool))
        for steps in queues.turns(self.trials, extra=1):
            x, fresh = queues.pop()
            strategies.next(fresh)
            objective = self._objective(strategies.choose(self.k), queues.y)
            for reading, failing in queues.climb(x, objective, self._move, steps=steps):
                strategies.see(reading.active, failing)

    def _move(self, gradient: Tensor) -> Tensor:
        return self.learning_rate * gradient  # (2)

    def _objective(self, chosen: Tensor, y: Tensor) -> Objective:
        def value(reading: NeuronReading) -> Tensor:
            p = reading.logits.softmax(1).gather(1, y[:, None])[:, 0]
            return self.neuron_weight * (reading.values * chosen).sum(1) - self.class_weight * p

        return value
