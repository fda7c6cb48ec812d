"""ADAPT's strategies: features of neurons, the choice of neurons to climb towards, and breeding."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from operant.model import MIN_ROWS, on_output

if TYPE_CHECKING:
    from operant.generate.baselines._network import Network

FEATURES = 29
BOUND = 5.0  # largest absolute weight of a strategy
NOISE = 1.0  # standard deviation of a mutation
PARENTS = 0.5  # parents of a generation, as a share of its size
KINDS = {"batchnorm": 0, "instancenorm": 0, "normalization": 0, "pooling": 1, "conv": 2, "padding": 2, "linear": 3}
ACTIVATION, SEVERAL, OTHER = 4, 5, 6  # further kinds of layers: with several inputs, and none of these

# Features of neurons that do not change

Run = tuple[str, nn.Module, int]  # a layer that ran: its name, itself, and how many inputs it had


def fixed_features(network: Network, x: Tensor) -> Tensor:
    """``(3, neurons)``: which of the first 17 features holds in each group: quarter, weight band, kind of layer."""
    runs: list[Run] = []
    parts = [(name, part) for name, part in network.module.named_modules() if not list(part.children())]
    handles = [on_output(part, name, _note_run(runs, name)) for name, part in parts]
    network.read(x[:MIN_ROWS])
    for handle in handles:
        handle.remove()
    layers, sizes = network.neurons.layers, network.neurons.sizes
    sources = [_source(name, runs) for name in layers]
    quarter = torch.arange(len(layers)) * 4 // len(layers)
    weight = torch.cat([_mean_weights(run, size) for run, size in zip(sources, sizes, strict=True)])
    rank = weight.argsort(descending=True, stable=True).argsort()
    band = (10 * rank // len(weight)).clamp_max(5)
    kind = torch.tensor([_kind(run) for run in sources])
    each = torch.tensor(sizes)
    return torch.stack([quarter.repeat_interleave(each), 4 + band, 10 + kind.repeat_interleave(each)]).to(x.device)


def _note_run(runs: list[Run], name: str) -> Callable[[nn.Module, Any, Any], None]:
    return lambda module, inputs, _output: runs.append((name, module, len(inputs)))


def _source(name: str, runs: list[Run]) -> Run | None:
    """The layer whose weights and kind describe a neuron: for an activation, the layer before it."""
    place = max((i for i, run in enumerate(runs) if run[0] == name), default=-1)
    while place > 0 and _kind(runs[place]) == ACTIVATION:
        place -= 1
    return runs[place] if place >= 0 else None


def _kind(run: Run | None) -> int:
    if run is None or run[2] > 1:
        return OTHER if run is None else SEVERAL
    files = [kind.__module__.removeprefix("torch.nn.modules.") for kind in type(run[1]).__mro__]
    return next((KINDS.get(file, ACTIVATION) for file in files if file in KINDS or file == "activation"), OTHER)


def _mean_weights(run: Run | None, size: int) -> Tensor:
    """The mean of each neuron's incoming weights; 0 where a layer has none."""
    weight = getattr(run[1], "weight", None) if run else None
    if not isinstance(weight, Tensor) or len(weight) != size:
        return torch.zeros(size)
    return weight.detach().reshape(size, -1).mean(1).cpu().float()


# The choice of neurons


class Strategies:
    """Each seed's strategies: the current one, the neurons that earlier ones reached, and the next generation."""

    def __init__(self, fixed: Tensor, streams: list[torch.Generator], population: int, history: int) -> None:
        n, neurons, device = len(streams), fixed.shape[1], fixed.device
        self.fixed, self.streams, self.population = fixed, streams, population
        shape = (population, FEATURES)
        self.pool = torch.stack([BOUND * (2 * torch.rand(shape, generator=g) - 1) for g in streams]).to(device)
        self.begun = torch.zeros(n, dtype=torch.int64, device=device)
        self.past = torch.zeros(n, history, FEATURES, device=device)  # the last strategies, in no order
        self.past_reached = torch.zeros(n, history, neurons, dtype=torch.bool, device=device)
        self.reached = torch.zeros(n, neurons, dtype=torch.bool, device=device)
        self.failing = torch.zeros_like(self.reached)
        self.counts = torch.zeros(n, neurons, dtype=torch.int64, device=device)

    def next(self, fresh: Tensor) -> None:
        """Give the seeds that start again (``fresh``) their next strategy."""
        rows = (fresh & (self.begun > 0)).nonzero().flatten()
        slots = (self.begun[rows] - 1) % self.past.shape[1]
        self.past[rows, slots] = self._current()[rows]
        self.past_reached[rows, slots] = self.reached[rows]
        for row in rows[self.begun[rows] % self.population == 0].tolist():
            past = slice(int(self.begun[row]))
            self.pool[row] = breed(
                self.past[row, past], self.past_reached[row, past], self.population, generator=self.streams[row]
            )
        self.begun += fresh
        self.reached &= ~fresh[:, None]

    def see(self, active: Tensor, failing: Tensor) -> None:
        """Count the active neurons of one input per seed."""
        self.counts += active
        self.reached |= active
        self.failing |= active & failing[:, None]

    def choose(self, k: int) -> Tensor:
        """``(seeds, neurons)``: 1 for the k neurons of the highest score, else 0."""
        w = self._current()
        quarter, band, kind = self.fixed
        score = w[:, quarter] + w[:, band] + w[:, kind] + w[:, 17:18] * self.failing + w.gather(1, self._activity())
        return torch.zeros_like(score).scatter_(1, score.topk(k).indices, 1.0)  # (1)

    def _current(self) -> Tensor:
        """``(seeds, 29)``: the strategy that each seed uses."""
        return self.pool[torch.arange(len(self.pool)), (self.begun - 1) % self.population]

    def _activity(self) -> Tensor:
        """Which of features 18 to 28 holds: never active, or the tenth in which its number of activations ranks."""
        order = self.counts.argsort(dim=1, descending=True, stable=True)
        rank = torch.empty_like(order).scatter_(1, order, torch.arange(order.shape[1]).to(order).expand_as(order))
        ever = self.counts > 0
        return torch.where(ever, 19 + 10 * rank // ever.sum(1, keepdim=True).clamp_min(1), 18)


def breed(past: Tensor, reached: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
    """``(n, 29)`` strategies bred from past ones and the neurons they reached: choose parents, cross, mutate."""
    parents = past[parents_of(reached, max(1, int(n * PARENTS)))].cpu()
    left, right = (parents[torch.randperm(len(parents), generator=generator)] for _ in range(2))
    pair = torch.arange(n) % len(parents)
    coin = torch.rand(n, FEATURES, generator=generator) < 0.5
    noise = NOISE * torch.randn(n, FEATURES, generator=generator)
    return (torch.where(coin, left[pair], right[pair]) + noise).clamp(-BOUND, BOUND)


def parents_of(reached: Tensor, n: int) -> list[int]:
    """Up to n rows: a greedy set cover of what all reach, then those that reach most."""
    chosen: list[int] = []
    missing = reached.any(0)
    while len(chosen) < n and bool(missing.any()):
        chosen.append(int((reached & missing).sum(1).argmax()))
        missing &= ~reached[chosen[-1]]
    rest = [row for row in reached.sum(1).argsort(descending=True, stable=True).tolist() if row not in chosen]
    return chosen + rest[: n - len(chosen)]
