"""ADAPT: climb towards neurons that a strategy chooses, and breed strategies from those that reached most."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from operant.data import Samples, content_ids
from operant.generate.baselines._strategies import Strategies, fixed_features
from operant.generate.engine import Goal, check_ball, judge, project, steepest
from operant.measure.activations import SOFTMAX, Neurons, every_layer, find_neurons
from operant.measure.coverage import NC, Criterion
from operant.model import MIN_ROWS, Classifier
from operant.rng import normal_like, spawn
from operant.suite import Suite

ACTIVE = 0.5  # a neuron is active in a row where its value, scaled over its layer, exceeds this

NORMS = ("linf", "l2", "relative-l2")

Factory = Callable[[Classifier, Tensor], Criterion]


class Search(Protocol):
    """Options of a search that `explore` runs batch by batch."""

    @property
    def radius(self) -> float: ...

    @property
    def norm(self) -> str: ...

    @property
    def rows_per_seed(self) -> int: ...

    @property
    def criterion(self) -> Factory: ...

    def search(self, hunt: Hunt) -> None:
        """Spend the budget of one batch of seeds."""


def neuron_coverage(model: Classifier, x: Tensor) -> Criterion:
    """Neuron coverage at threshold .5 over the scaled neurons of every layer; the softmax at the end is left out."""
    layers = every_layer(model, x[:MIN_ROWS])[:-1]
    return NC(neurons=find_neurons(model, x, layers=layers, scaled=True), threshold=0.5)


@dataclass(frozen=True, kw_only=True, eq=False)
class Exploration:
    """What a coverage-guided search found, and how its coverage grew.

    Attributes:
        suite: the failures.
        rows: model rows each seed has spent, after the seed itself and after each turn.
        coverage: ``(attempted, len(rows))``, the share of all there is to cover that each seed's inputs had by then.
    """

    suite: Suite
    rows: Tensor = field(repr=False)
    coverage: Tensor = field(repr=False)


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

    The 29 features are truths: in which quarter of the network the layer lies (4), in which band the mean incoming
    weight ranks (each of the top five tenths, the rest: 6), the kind of layer (7), whether the neuron was active in a
    failing input (1), and never active or the tenth in which the number of inputs that it was active in ranks (11).

    Coverage, counts and strategies belong to one seed, as in the released program. We part from that program where it
    would hurt: moves are brought back into the ball and into bounds (there they may leave, and only stay out of the
    queue); a case must fail against the true label; a budget of rows replaces the clock, so that runs repeat; channels
    are scaled before their mean, as in DeepXplore; the weights' fourth tenth has its band, and each generation's first
    strategy its turn. Its own distance, ‖x − x₀‖₂ / ‖x₀‖₂ < 0.5, is ``norm="relative-l2", radius=0.5``.

    Misclassified seeds are skipped. Columns: ``gain``, how many things the case covered that nothing before it in its
    seed's search had; ``row``, which of the seed's model rows it was.

    Args:
        radius: of the ball around each seed: in input units, for ``"relative-l2"`` as a share of the seed's length.
        norm: ``"linf"``, ``"l2"`` or ``"relative-l2"``.
        rows_per_seed: inputs passed through the model for each seed; the final judgement is not counted.
        criterion: from the model and the seeds' inputs to what there is to cover; its neurons are those chosen from.
        k: neurons chosen at a time.
        trials: steps for each input taken from the queue.
        learning_rate: what gradients are multiplied with.
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
    criterion: Factory = neuron_coverage
    k: int = 10
    trials: int = 3
    learning_rate: float = 0.1
    neuron_weight: float = 0.5
    class_weight: float = 0.5
    population: int = 100
    history: int = 300

    def __post_init__(self) -> None:
        check_ball(self.radius, self.norm, norms=NORMS)
        _check_counts(self, "rows_per_seed", "k", "trials", "population", "history")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {self.learning_rate}")

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        return self.explore(model, seeds, generator=generator).suite

    def explore(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Exploration:
        """The same search, with how the coverage grew."""
        return explore(model, seeds, self, method=f"adapt-{self.norm}", generator=generator)

    def search(self, hunt: Hunt) -> None:
        """Spend the budget of one batch of seeds."""
        network = hunt.network
        if self.k > network.neurons.count:
            raise ValueError(f"k must be at most the {network.neurons.count} neurons there are, got {self.k}")
        strategies = Strategies(fixed_features(network, hunt.x0), hunt.streams, self.population, self.history)
        strategies.see(hunt.first.active, torch.zeros_like(hunt.y, dtype=torch.bool))
        for steps in hunt.turns(self.trials, extra=1):
            x, fresh = hunt.pop()
            strategies.next(fresh)
            objective = self._objective(strategies.choose(self.k), hunt.y)
            _, gradient = network.climb(x, objective)
            for left in reversed(range(steps)):
                x = hunt.project(x + self.learning_rate * gradient)  # (2)
                if left:
                    reading, gradient = network.climb(x, objective)
                else:
                    reading = network.read(x)
                strategies.see(reading.active, hunt.note(x, reading))

    def _objective(self, chosen: Tensor, y: Tensor) -> Callable[[Reading], Tensor]:
        def value(reading: Reading) -> Tensor:
            p = reading.logits.softmax(1).gather(1, y[:, None])[:, 0]
            return self.neuron_weight * (reading.values * chosen).sum(1) - self.class_weight * p

        return value


@dataclass(frozen=True, kw_only=True)
class RandomMutation:
    """The same queues and coverage with steps in random directions: what ADAPT has to beat.

    Args:
        radius, norm, rows_per_seed, criterion, trials: as in `ADAPT`.
        step_size: length of a step in L2, in input units.
    """

    radius: float
    norm: str = "linf"
    rows_per_seed: int = 1000
    criterion: Factory = neuron_coverage
    trials: int = 3
    step_size: float = 3.0

    def __post_init__(self) -> None:
        check_ball(self.radius, self.norm, norms=NORMS)
        _check_counts(self, "rows_per_seed", "trials")
        if not 0 < self.step_size < math.inf:
            raise ValueError(f"step_size must be positive and finite, got {self.step_size}")

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        return self.explore(model, seeds, generator=generator).suite

    def explore(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Exploration:
        """The same search, with how the coverage grew."""
        return explore(model, seeds, self, method=f"random-{self.norm}", generator=generator)

    def search(self, hunt: Hunt) -> None:
        """Spend the budget of one batch of seeds."""
        for steps in hunt.turns(self.trials, extra=0):
            x, _ = hunt.pop()
            for _ in range(steps):
                noise = torch.stack([normal_like(row, generator=g) for row, g in zip(x, hunt.streams, strict=True)])
                x = hunt.project(x + self.step_size * steepest(noise, "l2"))
                hunt.note(x, hunt.network.read(x))


def _check_counts(options: Search, *names: str) -> None:
    for name in names:
        if getattr(options, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(options, name)}")


# The search from all seeds, and from one batch of them


def explore(
    model: Classifier, seeds: Samples, options: Search, *, method: str, generator: torch.Generator
) -> Exploration:
    """Search from the seeds batch by batch, and judge every case in one final pass of the model."""
    model.check(seeds)
    seeds = seeds.to(model.device)
    names = torch.randint(2**62, (len(seeds),), generator=generator, device=generator.device).tolist()
    chosen = (model.predict(seeds.x) == seeds.labels).nonzero().flatten()
    if len(chosen) == 0:
        raise ValueError(
            f"at least one seed must be classified correctly to start from, got {len(seeds)} that the model gets "
            "wrong; check the labels, or give other seeds"
        )
    criterion = options.criterion(model, seeds.x)
    network = Network(model, criterion.neurons, seeds.x[chosen])
    hunts: list[Hunt] = []
    for rows in chosen.split(model.batch_size):
        streams = [spawn(names[row]) for row in rows.tolist()]
        hunts.append(Hunt(network, criterion, seeds, rows, streams, options))
        options.search(hunts[-1])
    coverage = torch.cat([torch.stack(hunt.counts, 1) for hunt in hunts]).cpu() / criterion.size
    suite = _suite(model, seeds, hunts, method=method, skipped=len(seeds) - len(chosen))
    return Exploration(suite=suite, rows=torch.tensor(hunts[0].spent), coverage=coverage)


def _suite(model: Classifier, seeds: Samples, hunts: list[Hunt], *, method: str, skipped: int) -> Suite:
    """The failures in seed order and, for one seed, in the order they were found; what was found twice is one case."""
    none = torch.empty(0, dtype=torch.int64, device=seeds.x.device)
    cases = [(seeds.x[:0], none, none, none), *(case for hunt in hunts for case in hunt.cases)]
    x, origin, gain, row = (torch.cat(parts) for parts in zip(*cases, strict=True))
    order = origin.argsort(stable=True)
    keys = zip(origin[order].tolist(), content_ids(x[order]).tolist(), strict=True)
    first: dict[tuple[int, int], int] = {}
    for place, key in zip(order.tolist(), keys, strict=True):
        first.setdefault(key, place)
    kept = torch.tensor(list(first.values()), dtype=torch.int64, device=x.device)
    suite = judge(model, seeds, x[kept], origin=origin[kept], method=method, skipped=skipped)
    return suite.with_columns(gain=gain[kept], row=row[kept]).failures()


class Hunt:
    """Queues, coverage and failures of a batch of seeds, each seed's its own."""

    def __init__(
        self,
        network: Network,
        criterion: Criterion,
        seeds: Samples,
        rows: Tensor,
        streams: list[torch.Generator],
        options: Search,
    ) -> None:
        self.network, self.criterion, self.origin, self.streams = network, criterion, rows, streams
        self.x0, self.y = seeds.x[rows], seeds.labels[rows]
        self.norm = "linf" if options.norm == "linf" else "l2"
        self.radius = torch.full_like(self.y, options.radius, dtype=self.x0.dtype)
        if options.norm == "relative-l2":
            self.radius *= self.x0.flatten(1).norm(dim=1)
            self.radius.clamp_min_(torch.finfo(self.x0.dtype).tiny)  # an empty image has nowhere to go
        self.budget, self.row, self.turns_left = options.rows_per_seed, 1, 0
        self.queues: list[deque[Tensor]] = [deque() for _ in rows]
        self.covered = torch.zeros(len(rows), criterion.size, dtype=torch.bool, device=self.x0.device)
        self.cases: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []  # inputs, origins, gains, rows
        self.first = network.read(self.x0)
        self.spent, self.counts = [1], [self._cover(self.first)]

    def turns(self, trials: int, *, extra: int) -> Iterator[int]:
        """How many steps each turn may take, until the budget is spent; ``extra`` rows go before the first step."""
        steps = [min(trials, left - extra) for left in range(self.budget - 1, extra, -trials - extra)]
        for turn, n in enumerate(steps, 1):
            self.turns_left = len(steps) - turn
            self.counts.append(self.counts[-1].clone())
            self.row += extra
            yield n
            self.spent.append(self.row)

    def pop(self) -> tuple[Tensor, Tensor]:
        """The next input for each seed, the seed itself if its queue is empty; and for which it is."""
        fresh = torch.tensor([not queue for queue in self.queues], device=self.x0.device)
        x = [queue.popleft() if queue else x0 for queue, x0 in zip(self.queues, self.x0, strict=True)]
        return torch.stack(x), fresh

    def project(self, x: Tensor) -> Tensor:
        return project(x, self.x0, self.radius, self.norm, self.network.model.bounds)

    def note(self, x: Tensor, reading: Reading) -> Tensor:
        """Keep failures, and queue what covers something new; tells which rows fail."""
        self.row += 1
        gain = self._cover(reading)
        self.counts[-1] += gain
        for row in gain.nonzero().flatten().tolist():
            if len(self.queues[row]) < self.turns_left:  # one further back would never be taken
                self.queues[row].append(x[row].clone())
        failing = Goal().reached(reading.logits, self.y)
        rows = failing.nonzero().flatten()
        self.cases.append((x[rows], self.origin[rows], gain[rows], torch.full_like(rows, self.row)))
        return failing

    def _cover(self, reading: Reading) -> Tensor:
        """How many things each row covers for the first time in its seed's search."""
        hits = self.criterion.hits(reading.scaled if self.criterion.neurons.scaled else reading.values)
        rows, columns = ((hits >= 0) & ~self.covered.gather(1, hits.clamp_min(0))).nonzero(as_tuple=True)
        self.covered[rows, hits[rows, columns]] = True
        return torch.bincount(rows, minlength=len(hits))


# What is read of the network


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    logits: Tensor
    values: Tensor  # (N, neurons)
    scaled: Tensor  # the same brought to [0, 1] over each row's layer, as `Neurons` says

    @property
    def active(self) -> Tensor:
        return self.scaled > ACTIVE


class Network:
    """A model whose neurons are read, and climbed, in the same pass as its logits."""

    def __init__(self, model: Classifier, neurons: Neurons, x: Tensor) -> None:
        neurons(model, x[:MIN_ROWS])  # refuses layers that are not the model's
        self.model, self.neurons = model, neurons
        self.module = model.unwrap().eval().requires_grad_(False)
        self.channels_last = model.channels_last and x.ndim == 4
        parts = dict(self.module.named_modules())
        if self.channels_last:
            for part in parts.values():
                if isinstance(part, nn.Conv2d):
                    part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.taps: dict[str, tuple[Tensor, Tensor]] = {}
        for name in neurons.layers:
            if name != SOFTMAX:
                parts[name].register_forward_hook(self._tap(name))

    def read(self, x: Tensor) -> Reading:
        with torch.no_grad():
            return self._pass(x)

    def climb(self, x: Tensor, objective: Callable[[Reading], Tensor]) -> tuple[Reading, Tensor]:
        """A reading, and the gradient of an objective of it."""
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            r = self._pass(z)
            value = objective(r).sum() + 0.0 * z.sum()  # the last part for networks that do not look at their input
            (gradient,) = torch.autograd.grad(value, z)
        return Reading(logits=r.logits.detach(), values=r.values.detach(), scaled=r.scaled), gradient.nan_to_num(0.0)

    def _pass(self, x: Tensor) -> Reading:
        n = len(x)
        if n < MIN_ROWS:  # fewer rows would be rounded differently
            x = torch.cat([x, x[:1].detach().expand(MIN_ROWS - n, *x.shape[1:])])
        z = self.model.normalise(x)
        if self.channels_last:
            z = z.contiguous(memory_format=torch.channels_last)
        logits = self.module(z.clone() if z is x else z)  # the module may work on its input in place
        if SOFTMAX in self.neurons.layers:
            self.taps[SOFTMAX] = _values(logits.softmax(1))
        taps = [self.taps[name] for name in self.neurons.layers]
        values, scaled = (torch.cat(parts, 1)[:n] for parts in zip(*taps, strict=True))
        return Reading(logits=logits[:n], values=values, scaled=scaled)

    def _tap(self, name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda _module, _inputs, output: self.taps.__setitem__(name, _values(output))


def _values(output: Tensor) -> tuple[Tensor, Tensor]:
    """One value per neuron and row, plain and scaled, as `Neurons` reads them."""
    values = output.mean(tuple(range(2, output.ndim))) if output.ndim > 2 else output.clone()
    with torch.no_grad():
        rest = tuple(range(1, output.ndim))
        low, high = output.amin(rest)[:, None], output.amax(rest)[:, None]
        return values, torch.where(high > low, (values - low) / (high - low), 0.0)
