"""A search with one queue and one coverage per seed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from operant.data import Samples, content_ids
from operant.generate.baselines._network import Network, NeuronReading, Objective
from operant.generate.baselines.exploration import Exploration, correct_rows
from operant.generate.engine import CaseList, Goal, project
from operant.measure.activations import every_layer, find_neurons
from operant.measure.coverage import NC, Criterion
from operant.model import MIN_ROWS, Classifier
from operant.rng import spawn
from operant.suite import Suite

if TYPE_CHECKING:
    from operant.generate.baselines.adapt import ADAPT
    from operant.generate.baselines.dlfuzz import DLFuzz

NORMS = ("linf", "l2", "relative-l2")


def neuron_coverage(model: Classifier, x: Tensor) -> Criterion:
    """Neuron coverage at threshold .5 over the scaled neurons of every layer but the softmax at the end."""
    layers = every_layer(model, x[:MIN_ROWS])[:-1]
    return NC(neurons=find_neurons(model, x, layers=layers, scaled=True), threshold=0.5)


def explore_each(
    model: Classifier,
    seeds: Samples,
    options: ADAPT | DLFuzz,
    walk: Callable[[SeedQueues], None],
    *,
    method: str,
    generator: torch.Generator,
) -> Exploration:
    """Search from the seeds batch by batch, and judge every case in one final pass of the model.

    Args:
        walk: spends the budget of one batch of seeds.
        method: name of the method in the suite.
    """
    model.check(seeds)
    seeds = seeds.to(model.device)
    names = torch.randint(2**62, (len(seeds),), generator=generator, device=generator.device).tolist()
    chosen = correct_rows(model, seeds)
    criterion = options.criterion(model, seeds.x)
    network = Network(model, criterion.neurons, seeds.x[chosen])
    batches: list[SeedQueues] = []
    for rows in chosen.split(model.batch_size):
        streams = [spawn(names[row]) for row in rows.tolist()]
        batches.append(SeedQueues(network, criterion, seeds, rows, streams, options))
        walk(batches[-1])
    coverage = torch.cat([torch.stack(batch.counts, 1) for batch in batches]).cpu() / criterion.size
    suite = _suite(model, seeds, batches, method=method, skipped=len(seeds) - len(chosen))
    return Exploration(suite=suite, rows=torch.tensor(batches[0].spent), coverage=coverage)


def _suite(model: Classifier, seeds: Samples, batches: list[SeedQueues], *, method: str, skipped: int) -> Suite:
    """The failures in seed order, then in the order they were found; duplicates of a seed are dropped."""
    found, kept = CaseList(seeds, "gain", "row"), CaseList(seeds, "gain", "row")
    found.parts = [part for batch in batches for part in batch.cases.parts]
    rows = found.rows()
    first: dict[tuple[int, int], int] = {}
    for place, key in enumerate(zip(rows["origin"].tolist(), content_ids(rows["x"]).tolist(), strict=True)):
        first.setdefault(key, place)
    kept.add(rows, torch.tensor(list(first.values()), dtype=torch.int64, device=seeds.x.device))
    return kept.suite(model, method=method, skipped=skipped).failures()


class SeedQueues:
    """Queues, coverage and failures of a batch of seeds, separate for each seed."""

    def __init__(
        self,
        network: Network,
        criterion: Criterion,
        seeds: Samples,
        rows: Tensor,
        streams: list[torch.Generator],
        options: ADAPT | DLFuzz,
    ) -> None:
        self.network, self.criterion, self.origin, self.streams = network, criterion, rows, streams
        self.x0, self.y = seeds.x[rows], seeds.labels[rows]
        self.norm = "linf" if options.norm == "linf" else "l2"
        self.radius = torch.full_like(self.y, options.radius, dtype=self.x0.dtype)
        if options.norm == "relative-l2":
            self.radius *= self.x0.flatten(1).norm(dim=1)
            self.radius.clamp_min_(torch.finfo(self.x0.dtype).tiny)  # a zero image cannot move
        self.budget, self.row, self.turns_left = options.rows_per_seed, 1, 0
        self.queues: list[deque[Tensor]] = [deque() for _ in rows]
        self.covered = torch.zeros(len(rows), criterion.size, dtype=torch.bool, device=self.x0.device)
        self.cases = CaseList(seeds, "gain", "row")
        self.first = network.read(self.x0)
        self.spent, self.counts = [1], [self._cover(self.first)]

    def turns(self, trials: int, *, extra: int) -> Iterator[int]:
        """The number of steps of each turn, until the budget is spent; ``extra`` rows precede the first step."""
        steps = [min(trials, left - extra) for left in range(self.budget - 1, extra, -trials - extra)]
        for turn, n in enumerate(steps, 1):
            self.turns_left = len(steps) - turn
            self.counts.append(self.counts[-1].clone())
            self.row += extra
            yield n
            self.spent.append(self.row)

    def pop(self) -> tuple[Tensor, Tensor]:
        """The next input of each seed (the seed itself if its queue is empty), and which queues were empty."""
        fresh = torch.tensor([not queue for queue in self.queues], device=self.x0.device)
        x = [queue.popleft() if queue else x0 for queue, x0 in zip(self.queues, self.x0, strict=True)]
        return torch.stack(x), fresh

    def climb(
        self, x: Tensor, objective: Objective, move: Callable[[Tensor], Tensor], *, steps: int
    ) -> Iterator[tuple[NeuronReading, Tensor]]:
        """Climb an objective by moves along its gradient: each point's reading, and which rows fail there."""
        _, gradient = self.network.climb(x, objective)
        for left in reversed(range(steps)):
            x = self.project(x + move(gradient))
            if left:
                reading, gradient = self.network.climb(x, objective)
            else:
                reading = self.network.read(x)
            yield reading, self.note(x, reading)

    def project(self, x: Tensor) -> Tensor:
        return project(x, self.x0, self.radius, self.norm, self.network.model.bounds)

    def note(self, x: Tensor, reading: NeuronReading) -> Tensor:
        """Keep failures, queue inputs that cover something new, and return which rows fail."""
        self.row += 1
        gain = self._cover(reading)
        self.counts[-1] += gain
        for row in gain.nonzero().flatten().tolist():
            if len(self.queues[row]) < self.turns_left:  # later ones would never be taken
                self.queues[row].append(x[row].clone())
        failing = Goal().reached(reading.logits, self.y)
        row = torch.full_like(self.origin, self.row)
        self.cases.add({"x": x, "origin": self.origin, "gain": gain, "row": row}, failing)
        return failing

    def _cover(self, reading: NeuronReading) -> Tensor:
        """How many things each row covers for the first time in its seed's search."""
        hits = self.criterion.hits(reading.scaled if self.criterion.neurons.scaled else reading.values)
        rows, columns = ((hits >= 0) & ~self.covered.gather(1, hits.clamp_min(0))).nonzero(as_tuple=True)
        self.covered[rows, hits[rows, columns]] = True
        return torch.bincount(rows, minlength=len(hits))
