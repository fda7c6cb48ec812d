"""What every loop of rounds shares: finished rounds are read, cases add up, and retraining stays within its limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

import torch

from operant.campaign.engine import Engine, Event, Watch, in_batches, run_chunks
from operant.campaign.folder import RunFolder, gone
from operant.data import Samples
from operant.model import Classifier
from operant.retrain import FinetuneRecord, Retrained
from operant.rng import spawn
from operant.suite import Suite
from operant.types import Fuzzer


class Turn(Protocol):
    """What a loop must know of a finished round."""

    @property
    def chosen(self) -> int:
        """Cases to learn from."""

    @property
    def changed(self) -> bool:
        """Whether the model left the round another than it came."""


R = TypeVar("R", bound=Turn)
F = TypeVar("F", bound=FinetuneRecord)


class Hardening:
    """A model on its way through the rounds of a loop, in the loop's folder.

    What it carries from round to round are values that stand there too: a finished round is read, with all that later
    ones need of it, and one that was cut off is gone on with at the last thing that was finished.

    Attributes:
        model: as it is now.
        learned: cases of all rounds, which every retraining learns from.
        suites: the same, round by round.
        place: of the present round in the folder.

    Args:
        folder: where everything is kept.
        model: as it came.
        guard: labelled; the accuracy on it is clean accuracy.
        max_drop: how much clean accuracy may be lost over all rounds.
        seed: of everything random.
        engine: where chunks are worked out.
        watch: is told what happens.
    """

    def __init__(
        self,
        folder: RunFolder,
        model: Classifier,
        *,
        guard: Samples,
        max_drop: float,
        seed: int,
        engine: Engine,
        watch: Watch,
    ) -> None:
        self.folder, self.model, self.guard, self.max_drop = folder, model, guard, max_drop
        self.seed, self.engine, self.watch = seed, engine, watch
        self.accuracy = model.accuracy(guard)
        self.learned = guard[:0]
        self.suites: list[Suite] = []
        self.number, self.place = 0, "round-000"

    def begin(self, number: int) -> None:
        self.number, self.place = number, f"round-{number:03d}"

    def turn(self, kind: type[R], work: Callable[[], R]) -> tuple[R, bool]:
        """The present round, and whether it was there already."""
        finished = self.folder.has(f"{self.place}/round")
        done = self.folder.step(f"{self.place}/round", kind, work)
        if finished and done.chosen:
            self._learn(self.folder.suite(f"{self.place}/cases", self.gone))
        if finished and done.changed:
            self.model = self.folder.weights(f"{self.place}/weights", self.model, self.gone)
        return done, finished

    def generate(self, fuzz: Fuzzer, seeds: Samples, *, chunk: int) -> Suite:
        """Fuzz the seeds, a chunk of them at a time; each is on disk before the next begins."""
        self.model.prepare(seeds.x)  # once for all chunks, whoever works on them
        work = Fuzzing(fuzz=fuzz, model=self.model, seeds=seeds, size=chunk, path=(self.seed, self.number))
        return run_chunks(
            self.folder,
            f"{self.place}/suite",
            work,
            work.chunks,
            batch_size=self.model.batch_size,
            engine=self.engine,
            watch=self.watch,
        )

    def choose(self, choice: Callable[[], Suite]) -> Suite:
        """The cases of this round, added to those before."""
        chosen = self.folder.suite(f"{self.place}/cases", choice)
        if len(chosen):
            self._learn(chosen)
        return chosen

    def retrain(self, kind: type[F], work: Callable[[float, Path], Retrained]) -> F:
        """Train on from the present weights.

        Args:
            kind: of the record that is kept.
            work: from the clean accuracy that may still be lost, and a file for finished epochs, to the model.
        """
        left = min(max(self.max_drop - (self.accuracy - self.model.accuracy(self.guard)), 0.0), 1.0)

        def train() -> F:
            with self.folder.writing("the state of retraining"):
                done = work(left, self.folder.draft(f"{self.place}/retraining"))
            self.folder.weights(f"{self.place}/weights", self.model, lambda: done.model)
            assert isinstance(done.record, kind)
            return done.record

        self.tell("retrain", 0, 1, cases=str(len(self.learned)))
        record = self.folder.step(f"{self.place}/retraining", kind, train)
        self.model = self.folder.weights(f"{self.place}/weights", self.model, self.gone)
        self.tell("retrain", 1, 1, record=str(record))
        return record

    def spawn(self, *path: int | str) -> torch.Generator:
        return spawn(self.seed, self.place, *path)

    def tell(self, step: str, done: int, total: int, **what: str) -> None:
        self.watch(Event(step=step if step == "round" else f"{self.place}/{step}", done=done, total=total, told=what))

    def gone(self) -> NoReturn:
        gone(self.folder.path / self.place)()

    def _learn(self, chosen: Suite) -> None:
        cases = chosen.samples()
        self.learned = Samples.concat([self.learned, cases]) if len(self.learned) else cases
        self.suites.append(chosen)


@dataclass(frozen=True, kw_only=True, eq=False)
class Fuzzing:
    """The fuzzing of one round, a chunk of seeds at a time; another process can be asked for any of them."""

    fuzz: Fuzzer
    model: Classifier
    seeds: Samples
    size: int
    path: tuple[int, int]

    @property
    def chunks(self) -> int:
        return math.ceil(len(self.seeds) / self.size)

    def __call__(self, chunk: int, batch_size: int) -> Suite:
        some = self.seeds[chunk * self.size : (chunk + 1) * self.size]
        return self.fuzz(in_batches(self.model, batch_size), some, generator=spawn(*self.path, "fuzz", chunk))
