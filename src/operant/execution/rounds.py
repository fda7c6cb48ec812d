"""What every loop of rounds shares: finished rounds are read, cases add up, and retraining stays within its limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

import torch
from torch import Tensor

from operant.data import Samples
from operant.execution.chunks import run_chunks
from operant.execution.engines import Engine, closed
from operant.execution.events import Event, EventHandler
from operant.execution.interrupt import Interrupted, defer_interrupt
from operant.execution.memory import in_batches, with_smaller_batches
from operant.execution.run_folder import RunFolder, gone
from operant.model import Classifier
from operant.retrain import FinetuneEpoch, FinetuneRecord, OnEpoch, Retrained
from operant.rng import spawn
from operant.suite import Suite
from operant.types import Fuzzer


@dataclass(frozen=True, kw_only=True)
class LabelBatch:
    """Labels of some inputs, by id; in ``labels-NNN.json`` of a round."""

    ids: Tensor
    labels: Tensor


@dataclass(frozen=True, kw_only=True)
class PredictionBatch:
    """What the model said of some inputs, by id; in ``answers-NNN.json`` of a round."""

    ids: Tensor
    predictions: Tensor


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


class RoundState:
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
        watch: EventHandler,
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
        work = Fuzzing(fuzz=fuzz, model=self.model, seeds=seeds, size=chunk, path=(self.seed, self.number))
        return self.in_chunks("suite", work)

    def in_chunks(self, name: str, work: Fuzzing) -> Suite:
        """Cases of all chunks, wherever they are worked out; each chunk is on disk before the next begins."""
        work.model.prepare(work.seeds.x)  # once for all chunks, whoever works on them
        return run_chunks(
            self.folder,
            f"{self.place}/{name}",
            work,
            work.chunks,
            batch_size=work.model.batch_size,
            engine=self.engine,
            watch=self.watch,
        )

    def answers(self, some: Samples, *, chunk: int) -> Tensor:
        """What the model says of inputs, in chunks as above."""
        self.model.prepare(some.x)
        parts = [some[start : start + chunk] for start in range(0, len(some), chunk)]
        names = [f"{self.place}/answers-{i:03d}" for i in range(len(parts))]
        todo = [i for i, name in enumerate(names) if not self.folder.has(name)]
        with defer_interrupt() as asked, self.folder.timed(f"{self.place}/answers"):
            items = (parts[i].x for i in todo if not asked())
            with closed(self.engine(Predicting(self.model), items)) as finished:
                for number, labels in finished:
                    i = todo[number]
                    self.folder.step(
                        names[i], PredictionBatch, partial(PredictionBatch, ids=parts[i].ids.cpu(), predictions=labels)
                    )
        if asked():
            raise Interrupted(f"what was answered of {self.place}'s assessment is kept in {self.folder.path}")
        said = [torch.empty(0, dtype=torch.int64)]
        for name, part in zip(names, parts, strict=True):
            answered = self.folder.step(name, PredictionBatch, self.gone)
            self._check_ids(name, answered.ids, part)
            said.append(answered.predictions)
        return torch.cat(said)

    def known(self, name: str, some: Samples, ask: Callable[[], LabelBatch]) -> Tensor:
        """Labels of inputs, bought once."""
        known = self.folder.step(name, LabelBatch, ask)
        self._check_ids(name, known.ids, some)
        return known.labels

    def _check_ids(self, name: str, ids: Tensor, some: Samples) -> None:
        if not torch.equal(ids, some.ids.cpu()):
            raise ValueError(
                f"{name}.json in {self.folder.path} is about other inputs than those to be assessed: something before "
                "it has changed; put it back as it was, or choose a new folder"
            )

    def choose(self, choice: Callable[[], Suite]) -> Suite:
        """The cases of this round, added to those before."""
        chosen = self.folder.suite(f"{self.place}/cases", choice)
        if len(chosen):
            self._learn(chosen)
        return chosen

    def retrain(self, kind: type[F], epochs: int, work: Callable[[float, Path, OnEpoch], Retrained]) -> F:
        """Train on from the present weights.

        Args:
            kind: of the record that is kept.
            epochs: at most.
            work: from the clean accuracy that may still be lost, a file for finished epochs, and who is told of them,
                to the model.
        """
        left = min(max(self.max_drop - (self.accuracy - self.model.accuracy(self.guard)), 0.0), 1.0)

        def told(epoch: FinetuneEpoch) -> None:
            self.tell("retrain", epoch.epoch, epochs, cases=str(len(self.learned)))

        def train() -> F:
            with self.folder.writing("the state of retraining"):
                done = work(left, self.folder.draft(f"{self.place}/retraining"), told)
            self.folder.weights(f"{self.place}/weights", self.model, lambda: done.model)
            assert isinstance(done.record, kind)
            return done.record

        if not self.folder.draft(f"{self.place}/retraining").exists():  # else epochs are counted from the next one on
            self.tell("retrain", 0, epochs, cases=str(len(self.learned)))
        record = self.folder.step(f"{self.place}/retraining", kind, train)
        self.model = self.folder.weights(f"{self.place}/weights", self.model, self.gone)
        self.tell("retrain", epochs, epochs, record=str(record))
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
    """A fuzzer on seeds, a chunk of them at a time; another process can be asked for any of them."""

    fuzz: Fuzzer
    model: Classifier
    seeds: Samples
    size: int
    path: tuple[int, ...]

    @property
    def chunks(self) -> int:
        return math.ceil(len(self.seeds) / self.size)

    def __call__(self, chunk: int, batch_size: int) -> Suite:
        some = self.seeds[chunk * self.size : (chunk + 1) * self.size]
        return self.fuzz(in_batches(self.model, batch_size), some, generator=spawn(*self.path, "fuzz", chunk))


@dataclass(frozen=True)
class Predicting:
    """What a model says of some inputs, in whatever process."""

    model: Classifier

    def __call__(self, x: Tensor) -> Tensor:
        def predict(rows: int) -> Tensor:
            return in_batches(self.model, rows).predict(x).cpu()

        return with_smaller_batches(predict, self.model.batch_size)[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class Spread:
    """A fuzzer like another, whose seeds are cut into chunks that are worked out one by one, by whoever it may be.

    Args:
        fuzz: the other one.
        size: seeds of a chunk; it decides which random numbers each seed has.
        run: the cases of all chunks of some fuzzing.
    """

    fuzz: Fuzzer
    size: int
    run: Callable[[Fuzzing], Suite]

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        root = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        return self.run(Fuzzing(fuzz=self.fuzz, model=model, seeds=seeds, size=self.size, path=(root,)))


@dataclass(frozen=True)
class InMemory:
    """Works out the chunks of a fuzzing on an engine, for those who need no chunk again."""

    engine: Engine

    def __call__(self, work: Fuzzing) -> Suite:
        work.model.prepare(work.seeds.x)
        done = dict(self.engine(Whole(work), range(work.chunks)))
        return Suite.concat([done[i] for i in range(work.chunks)])


@dataclass(frozen=True)
class Whole:
    """A chunk of a fuzzing in as large batches as memory allows."""

    work: Fuzzing

    def __call__(self, chunk: int) -> Suite:
        return with_smaller_batches(partial(self.work, chunk), self.work.model.batch_size)[0]
