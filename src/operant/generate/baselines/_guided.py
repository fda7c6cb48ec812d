"""A search that all seeds share: one queue, one memory of what has been covered, one budget, and the failures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, Self

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.baselines.adapt import Exploration
from operant.generate.engine import Goal, Rows, judge
from operant.model import Classifier
from operant.suite import Suite

PATIENCE = 10  # rounds of the queue without any mutant before a search gives up


class Memory(Protocol):
    """What has been covered: `Coverage` or `NeighbourCoverage`."""

    @property
    def coverage(self) -> float: ...

    def gain(self, points: Tensor, /) -> Tensor: ...

    def update(self, points: Tensor, /) -> tuple[Tensor, Self]: ...


class Queue:
    """Inputs in the order they came, with what is known of each: tensors that grow."""

    def __init__(self, rows: Rows) -> None:
        self.store, self.size = {name: values.clone() for name, values in rows.items()}, len(rows["x"])

    def __len__(self) -> int:
        return self.size

    def take(self, places: Tensor) -> Rows:
        return {name: values[places] for name, values in self.store.items()}

    def append(self, rows: Rows) -> None:
        start, self.size = self.size, self.size + len(rows["x"])
        for name, values in self.store.items():
            if self.size > len(values):
                self.store[name] = torch.cat([values, values.new_empty(self.size, *values.shape[1:])])
            self.store[name][start : self.size] = rows[name]


Select = Callable[[Queue, int], Tensor]
Mutate = Callable[[Queue, Tensor], Rows]


@dataclass(frozen=True, kw_only=True, eq=False)
class Method:
    """What a search is made of.

    Args:
        memory: of what is covered, before any input.
        look: from inputs to logits, and to the points that the memory is told of; one pass of the model.
        select: from a queue and a number to the places of that many inputs to mutate; one may be taken twice.
        mutate: from a queue and places to mutants, with all that the queue knows: the seed's row as ``origin``, the
            places of the seed and of the input each was made of as ``root`` and ``parent``. Some may be missing.
        guided: whether an input must cover something new to join the queue; else all that do not fail do.
        state: what else the queue knows of a seed, one value for all.
    """

    memory: Memory
    look: Callable[[Tensor], tuple[Tensor, Tensor]]
    select: Select
    mutate: Mutate
    guided: bool
    state: dict[str, Tensor] = field(default_factory=dict)


class Guided(Protocol):
    """Options that every search of this kind has, and how it begins."""

    @property
    def rows_per_seed(self) -> int: ...

    @property
    def seconds_per_seed(self) -> float | None: ...

    @property
    def at_once(self) -> int | None: ...

    def method(self, model: Classifier, x: Tensor, generator: torch.Generator) -> Method: ...


def explore(
    model: Classifier, seeds: Samples, options: Guided, *, generator: torch.Generator
) -> tuple[Search, Samples]:
    """Search from the seeds that the model gets right until the budget is spent.

    They are taken in the order of their ids, so that what is found does not depend on the order they came in.
    """
    model.check(seeds)
    seeds = seeds.to(model.device)
    right = (model.predict(seeds.x) == seeds.labels).nonzero().flatten()
    if len(right) == 0:
        raise ValueError(
            f"at least one seed must be classified correctly to start from, got {len(seeds)} that the model gets "
            "wrong; check the labels, or give other seeds"
        )
    right = right[seeds.ids.to(right.device)[right].argsort(stable=True)]
    method = options.method(model, seeds.x[right], generator)
    search = Search(method, seeds, right)
    search.run(options)
    return search, seeds


class Search:
    """A queue on its way: what was spent, covered and found."""

    def __init__(self, method: Method, seeds: Samples, right: Tensor) -> None:
        n, x = len(right), seeds.x[right]
        self.method, self.y, self.seeds, self.started = method, seeds.labels, n, time.process_time()
        root, none = torch.arange(n, device=x.device), torch.full_like(right, -1)
        state = {name: value.to(x.device).expand(n, *value.shape) for name, value in method.state.items()}
        self.queue = Queue({"x": x, "origin": right, "root": root, "parent": none, **state})
        _, points = method.look(x)
        _, self.memory = method.memory.update(points)
        self.spent, self.coverage = [n], [self.memory.coverage]
        self.cases = [self._case(self.queue.take(right[:0]), points[:0])]

    def run(self, options: Guided) -> None:
        """Take inputs from the queue, mutate them and look at the mutants, many at once, until the budget is spent."""
        seconds = math.inf if options.seconds_per_seed is None else options.seconds_per_seed * self.seeds
        at_once = self.seeds if options.at_once is None else options.at_once
        idle = 0  # inputs taken in a row that had no mutant
        while (left := options.rows_per_seed * self.seeds - self.spent[-1]) > 0:
            if time.process_time() - self.started >= seconds:
                break
            places = self.method.select(self.queue, min(at_once, left))
            mutants = self.method.mutate(self.queue, places)
            idle = 0 if len(mutants["x"]) else idle + len(places)
            if idle > PATIENCE * len(self.queue):
                raise ValueError(
                    f"inputs must have valid mutants, and {idle} times in a row one had none; allow larger changes, or "
                    "give other seeds"
                )
            if len(mutants["x"]):
                self._note(mutants)

    def _note(self, mutants: Rows) -> None:
        """Failures are cases, and are not told to the memory; of the others, those that cover something new join."""
        logits, points = self.method.look(mutants["x"])
        fails = Goal().reached(logits, self.y[mutants["origin"]])
        self.spent.append(self.spent[-1] + len(fails))
        self.cases.append(self._case({name: values[fails] for name, values in mutants.items()}, points[fails]))
        new, self.memory = self.memory.update(points[~fails])
        joins = (~fails).nonzero().flatten()
        joins = joins[new > 0] if self.method.guided else joins
        self.queue.append({name: values[joins] for name, values in mutants.items()})
        self.coverage.append(self.memory.coverage)

    def _case(self, mutants: Rows, points: Tensor) -> Rows:
        row = torch.full_like(mutants["origin"], self.spent[-1])
        return {**mutants, "gain": self.memory.gain(points), "row": row}

    def suite(
        self, model: Classifier, seeds: Samples, *, name: str, columns: Callable[[Rows], dict[str, object]]
    ) -> Suite:
        """The failures in seed order and, for one seed, in the order they were found."""
        cases = {key: torch.cat([case[key] for case in self.cases]) for key in self.cases[0]}
        order = cases["origin"].argsort(stable=True)
        cases = {key: values[order] for key, values in cases.items()}
        skipped = len(seeds) - self.seeds
        suite = judge(model, seeds, cases["x"], origin=cases["origin"], method=name, skipped=skipped)
        return suite.with_columns(row=cases["row"], **columns(cases)).failures()

    def exploration(self, suite: Suite) -> Exploration:
        rows = torch.tensor(self.spent, dtype=torch.float64) / self.seeds
        return Exploration(suite=suite, rows=rows, coverage=torch.tensor(self.coverage, dtype=torch.float64)[None])


def uniformly(queue: Queue, n: int, generator: torch.Generator) -> Tensor:
    """So many places of a queue, each as likely as any other."""
    places = torch.randint(len(queue), (n,), generator=generator, device=generator.device)
    return places.to(queue.store["x"].device)


def check_budget(options: Guided) -> None:
    if options.rows_per_seed < 2:
        raise ValueError(f"rows_per_seed must be at least 2, the seed and one mutant, got {options.rows_per_seed}")
    if options.seconds_per_seed is not None and not 0 < options.seconds_per_seed < math.inf:
        raise ValueError(f"seconds_per_seed must be positive and finite, or None, got {options.seconds_per_seed}")
    if options.at_once is not None and options.at_once < 1:
        raise ValueError(f"at_once must be at least 1, or None, got {options.at_once}")
