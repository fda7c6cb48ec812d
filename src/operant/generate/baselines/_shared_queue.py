"""A search with one queue, one coverage and one budget for all seeds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.baselines.exploration import Exploration, correct_rows
from operant.generate.engine import CaseList, Goal, Rows, chosen, judge
from operant.measure.coverage import Coverage, NeighbourCoverage
from operant.model import Classifier
from operant.suite import Suite
from operant.validation import check_at_least, check_positive

if TYPE_CHECKING:
    from operant.generate.baselines.deephunter import DeepHunter
    from operant.generate.baselines.tensorfuzz import TensorFuzz

MAX_IDLE_ROUNDS = 10  # stop after this many rounds of the queue without a valid mutant


class Queue:
    """Inputs in order of arrival, with further columns: tensors that grow."""

    def __init__(self, rows: Rows) -> None:
        self.store, self.size = {name: values.clone() for name, values in rows.items()}, len(rows["x"])

    def __len__(self) -> int:
        return self.size

    def take(self, places: Tensor) -> Rows:
        return chosen(self.store, places)

    def append(self, rows: Rows) -> None:
        start, self.size = self.size, self.size + len(rows["x"])
        for name, values in self.store.items():
            if self.size > len(values):
                self.store[name] = torch.cat([values, values.new_empty(self.size, *values.shape[1:])])
            self.store[name][start : self.size] = rows[name]


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchPlan:
    """The parts of a search.

    Args:
        name, control: method names in the suite, of the search and of its control without guidance.
        covered: coverage before the first input.
        read: from inputs to logits, and to the points that coverage is computed from; one pass of the model.
        select: from a queue and a number to the places of that many inputs to mutate; repeats are allowed.
        mutate: from a queue and places to mutants, with all columns of the queue: the seed's row as ``origin``, the
            places of the seed and of the mutated input as ``root`` and ``parent``. Some may be missing.
        columns: from the queue and the cases to columns of the suite.
        guided: whether an input must cover something new to join the queue; else all that do not fail join.
        state: further columns of the queue, with one initial value for all seeds.
    """

    name: str
    control: str
    covered: Coverage | NeighbourCoverage
    read: Callable[[Tensor], tuple[Tensor, Tensor]]
    select: Callable[[Queue, int], Tensor]
    mutate: Callable[[Queue, Tensor], Rows]
    columns: Callable[[Queue, Rows], dict[str, Any]]
    guided: bool = True
    state: dict[str, Tensor] = field(default_factory=dict)


def explore_shared(
    model: Classifier, seeds: Samples, options: DeepHunter | TensorFuzz, *, guided: bool, generator: torch.Generator
) -> Exploration:
    """Search from all seeds together, and judge every case in one final pass of the model.

    Args:
        guided: False runs the control: inputs are selected uniformly, and all that do not fail join the queue.
    """
    search = search_shared(model, seeds, options, guided=guided, generator=generator)
    rows = torch.tensor(search.spent, dtype=torch.float64) / search.n
    coverage = torch.tensor(search.coverage, dtype=torch.float64)[None]
    return Exploration(suite=search.suite(model), rows=rows, coverage=coverage)


def search_shared(
    model: Classifier, seeds: Samples, options: DeepHunter | TensorFuzz, *, guided: bool, generator: torch.Generator
) -> SharedQueueSearch:
    """Search from the correctly classified seeds until the budget is spent.

    They are taken in the order of their ids, so that results do not depend on the order of the seeds.
    """
    model.check(seeds)
    seeds = seeds.to(model.device)
    right = correct_rows(model, seeds)
    right = right[seeds.ids.to(right.device)[right].argsort(stable=True)]
    plan = options.plan(model, seeds.x[right], generator)
    if not guided:
        plan = replace(plan, name=plan.control, guided=False, select=lambda queue, n: uniformly(queue, n, generator))
    search = SharedQueueSearch(plan, seeds, right)
    search.run(options)
    return search


class SharedQueueSearch:
    """A search in progress: its queue, and the rows spent, coverage and cases so far."""

    def __init__(self, plan: SearchPlan, seeds: Samples, right: Tensor) -> None:
        n, x = len(right), seeds.x[right]
        self.plan, self.seeds, self.n, self.started = plan, seeds, n, time.process_time()
        root, none = torch.arange(n, device=x.device), torch.full_like(right, -1)
        state = {name: value.to(x.device).expand(n, *value.shape) for name, value in plan.state.items()}
        self.queue = Queue({"x": x, "origin": right, "root": root, "parent": none, **state})
        _, points = plan.read(x)
        self.covered: Coverage | NeighbourCoverage = plan.covered.update(points)[1]
        self.spent, self.coverage = [n], [self.covered.coverage]
        self.cases = CaseList(seeds, *self.queue.store, "gain", "row")
        self._add_cases(self.queue.take(root), points, root < 0)

    def run(self, options: DeepHunter | TensorFuzz) -> None:
        """Take inputs from the queue, mutate them and pass the mutants through the model, until the budget is spent."""
        seconds = math.inf if options.seconds_per_seed is None else options.seconds_per_seed * self.n
        at_once = self.n if options.at_once is None else options.at_once
        idle = 0  # inputs taken since the last valid mutant
        while (left := options.rows_per_seed * self.n - self.spent[-1]) > 0:
            if time.process_time() - self.started >= seconds:
                break
            places = self.plan.select(self.queue, min(at_once, left))
            mutants = self.plan.mutate(self.queue, places)
            idle = 0 if len(mutants["x"]) else idle + len(places)
            if idle > MAX_IDLE_ROUNDS * len(self.queue):
                raise ValueError(
                    f"inputs must have valid mutants, and {idle} times in a row one had none; allow larger changes, or "
                    "give other seeds"
                )
            if len(mutants["x"]):
                self._note(mutants)

    def _note(self, mutants: Rows) -> None:
        """Keep failures as cases, which do not count as covered; of the others, those that cover something new join."""
        logits, points = self.plan.read(mutants["x"])
        fails = Goal().reached(logits, self.seeds.labels[mutants["origin"]])
        self.spent.append(self.spent[-1] + len(fails))
        self._add_cases(mutants, points, fails)
        new, self.covered = self.covered.update(points[~fails])
        joins = (~fails).nonzero().flatten()
        joins = joins[new > 0] if self.plan.guided else joins
        self.queue.append(chosen(mutants, joins))
        self.coverage.append(self.covered.coverage)

    def _add_cases(self, mutants: Rows, points: Tensor, fails: Tensor) -> None:
        cases = chosen(mutants, fails)
        row = torch.full_like(cases["origin"], self.spent[-1])
        self.cases.add({**cases, "gain": self.covered.gain(points[fails]), "row": row}, slice(None))

    def suite(self, model: Classifier) -> Suite:
        """The failures in seed order, then in the order they were found."""
        cases, skipped = self.cases.rows(), len(self.seeds) - self.n
        suite = judge(model, self.seeds, cases["x"], origin=cases["origin"], method=self.plan.name, skipped=skipped)
        return suite.with_columns(row=cases["row"], **self.plan.columns(self.queue, cases)).failures()


def uniformly(queue: Queue, n: int, generator: torch.Generator) -> Tensor:
    """``n`` places of a queue, all equally likely."""
    places = torch.randint(len(queue), (n,), generator=generator, device=generator.device)
    return places.to(queue.store["x"].device)


def check_budget(options: DeepHunter | TensorFuzz) -> None:
    check_at_least(2, rows_per_seed=options.rows_per_seed, advice="the seed and one mutant")
    if options.seconds_per_seed is not None:
        check_positive(seconds_per_seed=options.seconds_per_seed, advice="None for no limit")
    if options.at_once is not None:
        check_at_least(1, at_once=options.at_once)
