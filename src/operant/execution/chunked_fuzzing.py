"""Fuzzing and prediction cut into chunks that any process can compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from operant.data import Samples
from operant.execution.engines import Engine
from operant.execution.memory import in_batches, with_smaller_batches
from operant.model import Classifier
from operant.rng import spawn
from operant.suite import Suite
from operant.types import Fuzzer


@dataclass(frozen=True, kw_only=True, eq=False)
class ChunkedFuzzing:
    """A fuzzer on seeds, a chunk at a time; any process can compute any chunk."""

    fuzz: Fuzzer
    model: Classifier
    seeds: Samples
    size: int
    path: tuple[int, *tuple[int | str, ...]]

    @property
    def chunks(self) -> int:
        return math.ceil(len(self.seeds) / self.size)

    def __call__(self, chunk: int, batch_size: int) -> Suite:
        some = self.seeds[chunk * self.size : (chunk + 1) * self.size]
        return self.fuzz(in_batches(self.model, batch_size), some, generator=spawn(*self.path, "fuzz", chunk))


@dataclass(frozen=True)
class ChunkPrediction:
    """A model's predictions for some inputs, in any process."""

    model: Classifier

    def __call__(self, x: Tensor) -> Tensor:
        def predict(rows: int) -> Tensor:
            return in_batches(self.model, rows).predict(x).cpu()

        return with_smaller_batches(predict, self.model.batch_size)[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class ChunkedFuzzer:
    """A fuzzer that runs another one chunk by chunk.

    Args:
        fuzz: the other fuzzer.
        size: seeds per chunk; decides which random numbers each seed gets.
        run: function that runs a `ChunkedFuzzing` and returns the cases of all its chunks.
    """

    fuzz: Fuzzer
    size: int
    run: Callable[[ChunkedFuzzing], Suite]

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        root = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        return self.run(ChunkedFuzzing(fuzz=self.fuzz, model=model, seeds=seeds, size=self.size, path=(root,)))


@dataclass(frozen=True)
class InMemory:
    """Runs the chunks of a fuzzing on an engine without saving them."""

    engine: Engine

    def __call__(self, work: ChunkedFuzzing) -> Suite:
        work.model.prepare(work.seeds.x)
        work.model.has_gradients(work.seeds.x)  # over all chunks, since a chunk may hold only rows of zero gradient
        done = dict(self.engine(ChunkInMemory(work), range(work.chunks)))
        return Suite.concat([done[i] for i in range(work.chunks)])


@dataclass(frozen=True)
class ChunkInMemory:
    """A chunk of a fuzzing in batches as large as memory allows."""

    work: ChunkedFuzzing

    def __call__(self, chunk: int) -> Suite:
        return with_smaller_batches(partial(self.work, chunk), self.work.model.batch_size)[0]
