"""DLFuzz: climb towards other labels and chosen neurons at once, and continue from what covered something new."""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import process_time

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.baselines._adapt_strategies import fixed_features
from operant.generate.baselines._network import NeuronReading, Objective
from operant.generate.baselines._seed_queues import NORMS, SeedQueues, explore_each, neuron_coverage
from operant.generate.baselines.exploration import Exploration
from operant.generate.engine import check_ball, steepest
from operant.measure.coverage import NC, Criterion
from operant.model import Classifier
from operant.rng import mix
from operant.suite import Suite
from operant.validation import check_at_least, check_from_below, check_nonnegative, check_one_of, check_positive

STRATEGIES = ("often", "rare", "weight", "threshold")
NEAR = (-0.2, 0.25)  # the released program's: a scaled neuron this far below or above the threshold is near it
TOP_TENTH = 4  # number of the fixed feature of ADAPT that marks the tenth of neurons with the largest mean weights


@dataclass(frozen=True, kw_only=True)
class DLFuzz:
    """Fuzzing of a single model: gradient steps towards other labels and towards neurons that a strategy chooses.

        objective(x) = F_{c1}(x) + … + F_{ck}(x) − F_c(x) + weight · Σ_chosen a_n(x)        (1)
        x ← project(x + step · ∇objective / rms(∇objective))                                (2)

    F are logits, c is the seed's label, c1 to ck the likeliest others at x, and a_n a neuron's value. Each seed has a
    queue, first in, first out; for the input at its head neurons are chosen, and ``trials`` steps (2) made. A point
    that covers a neuron for the first time in its seed's search joins the queue; one that the model gets wrong is a
    case. Neurons are drawn without replacement from those that the strategy prefers, and once these are used up, from
    the others:

    - ``"often"``: in proportion to how many inputs have covered them so far;
    - ``"rare"``: in proportion to how much smaller that number is than the largest of any neuron;
    - ``"weight"``: from the tenth with the largest mean incoming weight;
    - ``"threshold"``: from those whose value is near the threshold at the head of the queue; (1) then counts a_n where
      it is below and −a_n where it is above, so that it crosses.

    The queues are those of `ADAPT`: coverage and counts belong to one seed. The paper shares them among all seeds, one
    after the other, so that the order of the seeds matters and late ones find little new. Other differences between
    the paper, the released program and this class:

    - F is the paper's confidence; the program takes logits, and so do we: confidence saturates, and only neurons
      remain. The program counts the other labels half; we follow the paper;
    - the program's c is the model's prediction at the head of the queue, so that a return to the right label is a case;
      ours is the label;
    - the paper queues whatever raises coverage, and so do we; the program requires a rise of .01 / i of the i-th seed;
    - the program does not queue a point further than .02 of the seed's length, but takes it as a case however far; we
      project every point into the ball. On MNIST one step of the program is longer than that, and its queue stays
      empty; where it does not, it holds arrays that later steps still change;
    - the program pushes neurons near the threshold away from it; we push them across, which is what changes coverage;
    - with an empty queue the program takes the next seed; we start again from the same one with newly chosen neurons,
      until the budget is spent.

    Misclassified seeds are skipped. Columns: ``gain``, how many neurons the case covered for the first time in its
    seed's search; ``row``, which of the seed's model rows it was. `RandomMutation` is the control.

    Args:
        radius: of the ball around each seed: a share of its length for ``"relative-l2"``, else in input units.
        norm: ``"relative-l2"``, the paper's; ``"linf"`` or ``"l2"``.
        k: how many other labels take part in (1), at most all.
        strategy: ``"often"``, ``"rare"``, ``"weight"`` or ``"threshold"``.
        neurons: how many are chosen at a time.
        weight: λ in the paper: weight of the chosen neurons, relative to the labels.
        trials: steps per input taken from the queue.
        step: root mean square of one step over the input's values, in input units.
        threshold: above which a neuron, scaled over its layer, is covered.
        rows_per_seed: inputs passed through the model per seed, without the final judgement.
        seconds_per_seed: CPU seconds per seed, as one budget per batch of seeds; the search ends with whichever budget
            is spent first. Results then depend on the machine's speed.

    References:
        | DLFuzz: Differential Fuzzing Testing of Deep Learning Systems (Guo et al., 2018), Algorithm 1
        | https://arxiv.org/abs/1808.09413
    """

    radius: float
    norm: str = "relative-l2"
    k: int = 4
    strategy: str = "rare"
    neurons: int = 10
    weight: float = 0.5
    trials: int = 3
    step: float = 0.02
    threshold: float = 0.5
    rows_per_seed: int = 1000
    seconds_per_seed: float | None = None

    def __post_init__(self) -> None:
        check_ball(self.radius, self.norm, norms=NORMS)
        check_one_of(STRATEGIES, strategy=self.strategy)
        check_at_least(1, k=self.k, neurons=self.neurons, trials=self.trials, rows_per_seed=self.rows_per_seed)
        check_nonnegative(weight=self.weight)
        check_positive(step=self.step)
        if self.seconds_per_seed is not None:
            check_positive(finite=False, seconds_per_seed=self.seconds_per_seed)
        check_from_below(0, 1, threshold=self.threshold)

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        return self.explore(model, seeds, generator=generator).suite

    def explore(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Exploration:
        """The same search, with the growth of its coverage."""
        return explore_each(model, seeds, self, self._walk, method=f"dlfuzz-{self.strategy}", generator=generator)

    def criterion(self, model: Classifier, x: Tensor) -> Criterion:
        """Neuron coverage at this threshold."""
        return NC(neurons=neuron_coverage(model, x).neurons, threshold=self.threshold)

    def _walk(self, queues: SeedQueues) -> None:
        """Spend the budget of one batch of seeds."""
        count = queues.network.neurons.count
        if self.neurons > count:
            raise ValueError(f"neurons must be at most the {count} there are, got {self.neurons}")
        deadline = process_time() + (self.seconds_per_seed or math.inf) * len(queues.y)
        names = torch.tensor([int(torch.randint(2**62, (), generator=g)) for g in queues.streams])[:, None]
        top = fixed_features(queues.network, queues.x0)[1] == TOP_TENTH
        covered = (queues.first.scaled > self.threshold).double()  # how often
        for turn, steps in enumerate(queues.turns(self.trials, extra=1)):
            if process_time() > deadline:
                queues.row -= 1  # this row was not spent
                continue
            x, _ = queues.pop()
            u = mix(names + (turn * count + torch.arange(count))).to(covered)
            objective = self._objective(covered, top, u, queues.y)
            for reading, _ in queues.climb(x, objective, self._move, steps=steps):
                covered += reading.scaled > self.threshold

    def _move(self, gradient: Tensor) -> Tensor:
        return self.step * math.sqrt(gradient[0].numel()) * steepest(gradient, "l2")  # (2)

    def _objective(self, covered: Tensor, top: Tensor, u: Tensor, y: Tensor) -> Objective:
        """(1), for neurons that are chosen when it is first evaluated: at the head of the queue."""
        chosen: list[Tensor] = []

        def value(reading: NeuronReading) -> Tensor:
            if not chosen:
                chosen.append(self.choose(covered, top, reading.scaled.detach(), u).to(reading.values))
            own = reading.logits.gather(1, y[:, None])[:, 0]
            others = reading.logits.scatter(1, y[:, None], -torch.inf)
            rivals = others.topk(min(self.k, others.shape[1] - 1)).values.sum(1)
            return rivals - own + self.weight * (reading.values * chosen[0]).sum(1)  # (1)

        return value

    def choose(self, covered: Tensor, top: Tensor, scaled: Tensor, u: Tensor) -> Tensor:
        """``(seeds, neurons)``: the weight of each neuron in (1): 1 or −1 for those chosen, else 0.

        Args:
            covered: how many inputs of each seed have covered each neuron.
            top: which neurons have the largest weights.
            scaled: the neurons' values at the head of each seed's queue.
            u: uniform numbers in [0, 1).
        """
        near = (scaled - self.threshold > NEAR[0]) & (scaled - self.threshold < NEAR[1])
        preferred = {
            "often": covered,
            "rare": covered.amax(1, keepdim=True) - covered,
            "weight": top.to(covered).expand_as(covered),
            "threshold": near.to(covered),
        }[self.strategy]
        chosen = torch.zeros_like(u).scatter_(1, draw(preferred, self.neurons, u), 1.0)
        below = scaled <= self.threshold
        return torch.where(below, chosen, -chosen) if self.strategy == "threshold" else chosen


def draw(weights: Tensor, n: int, u: Tensor) -> Tensor:
    """``(rows, n)`` places drawn without replacement in proportion to weights; those of weight 0 come last, uniformly.

    Each place gets an exponential random number whose rate is its weight; the smallest come first.
    """
    rate = weights / weights.amax(1, keepdim=True).clamp_min(1.0)
    clock = -u.clamp_min(2.0**-60).log() / rate
    return torch.where(rate > 0, clock, 1e9 + u).topk(n, largest=False).indices
