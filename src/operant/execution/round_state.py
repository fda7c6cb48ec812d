"""Rounds of fuzzing and retraining in a run folder: what campaigns and RobOT have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, Protocol, TypeVar

import torch
from torch import Tensor

from operant import formatting
from operant.activity import activity
from operant.data import Samples
from operant.execution.chunked_fuzzing import ChunkedFuzzing, ChunkPrediction
from operant.execution.chunks import chunk_name, run_chunks
from operant.execution.engines import Engine, closing_results
from operant.execution.events import Event, EventHandler
from operant.execution.interrupt import Interrupted, defer_interrupt
from operant.execution.run_folder import RunFolder, finished, require_existing
from operant.model import Classifier
from operant.retrain import CaseRetrainer, FinetuneEpoch, FinetuneRecord
from operant.retrain._checkpoint import finished_epochs
from operant.rng import spawn
from operant.suite import Suite
from operant.types import Fuzzer, Monitor


class RoundRecord(Protocol):
    """What `RoundState` must know about a finished round to resume after it."""

    @property
    def chosen(self) -> int:
        """Number of cases chosen to learn from."""

    @property
    def changed(self) -> bool:
        """Whether the round changed the model."""


WEIGHTS = "weights.safetensors"  # of a round that changed the model
R = TypeVar("R", bound=RoundRecord)
V = TypeVar("V")


@dataclass(frozen=True, kw_only=True)
class LabelBatch:
    """Labels of some inputs, by id; ``labels-NNN.json`` of a round."""

    ids: Tensor
    labels: Tensor


@dataclass(frozen=True, kw_only=True)
class PredictionBatch:
    """The model's predictions for some inputs, by id; ``predictions-NNN.json`` of a round."""

    ids: Tensor
    predictions: Tensor


def weights_after(rounds: Sequence[RoundRecord]) -> str:
    """Where the weights of the model after the last of these rounds are, in words."""
    changed = [number for number, done in enumerate(rounds) if done.changed]
    return f"its weights are in round-{changed[-1]:03d}/{WEIGHTS}" if changed else "it is the initial model"


class RoundState:
    """The current model and the cases it has learned from, kept round by round in a run folder.

    Everything here can be restored from the folder: a finished round is read, and an unfinished one is resumed after
    the last step that was finished.

    Attributes:
        model: the current model.
        learned: cases of all rounds so far; every retraining learns from all of them.
        suites: the same cases, one suite per round.
        number: of the current round.
        name: of the current round's folder, for instance ``round-003``.

    Args:
        folder: where everything is kept.
        model: the initial model.
        clean: labelled samples that clean accuracy is measured on.
        max_drop: clean accuracy that may be lost over all rounds.
        seed: random seed.
        engine: runs chunks of work.
        on_event: called with every progress event.
    """

    def __init__(
        self,
        folder: RunFolder,
        model: Classifier,
        *,
        clean: Samples,
        max_drop: float,
        seed: int,
        engine: Engine,
        on_event: EventHandler,
    ) -> None:
        self.folder, self.model, self.clean, self.max_drop = folder, model, clean, max_drop
        self.seed, self.engine, self.on_event = seed, engine, on_event
        self.initial_accuracy = model.accuracy(clean)
        self.learned = clean[:0]
        self.suites: list[Suite] = []
        self.begin(0)

    # Rounds

    def begin(self, number: int) -> None:
        """Make a round the current one."""
        self.number, self.name = number, f"round-{number:03d}"

    def has_round(self, number: int) -> bool:
        """Whether a round is finished."""
        return self.folder.has(f"round-{number:03d}/round")

    def restore_round(self, kind: type[R]) -> R:
        """The record of the current round, which is finished; its cases and weights are restored."""
        record = self.existing("round", kind)
        if record.chosen:
            self._add_cases(self.folder.suite(f"{self.name}/cases", self._missing))
        if record.changed:
            self.model = self.folder.weights(f"{self.name}/weights", self.model, self._missing)
        return record

    def step(self, name: str, kind: type[V], work: Callable[[], V]) -> V:
        """A result of the current round: computed and saved, or read if it is on disk."""
        return self.folder.step(f"{self.name}/{name}", kind, work)

    def existing(self, name: str, kind: type[V]) -> V:
        """A result of the current round that must be on disk."""
        return self.folder.step(f"{self.name}/{name}", kind, self._missing)

    def timed(self, name: str) -> AbstractContextManager[None]:
        """Record how long a part of the current round takes."""
        return self.folder.timed(f"{self.name}/{name}")

    def spawn(self, *path: int | str) -> torch.Generator:
        """A random generator for a part of the current round."""
        return spawn(self.seed, self.name, *path)

    def report(self, step: str, done: int, total: int, **details: object) -> None:
        """Send a progress event, and record the time until now."""
        self.folder.stopwatch.lap()
        self.on_event(Event(step=step, round=self.number, done=done, total=total, details=details))

    # Cases

    def generate(self, fuzz: Fuzzer, seeds: Samples, *, chunk: int) -> Suite:
        """Fuzz the seeds, a chunk of them at a time."""
        work = ChunkedFuzzing(fuzz=fuzz, model=self.model, seeds=seeds, size=chunk, path=(self.seed, self.number))
        return self.run_chunks("suite", work)

    def run_chunks(self, name: str, work: ChunkedFuzzing) -> Suite:
        """The cases of all chunks; each chunk is on disk before the next begins."""
        work.model.prepare(work.seeds.x)  # once for all chunks, whichever process runs them
        work.model.has_gradients(work.seeds.x)  # over all chunks, since a chunk may hold only rows of zero gradient
        return run_chunks(
            self.folder,
            f"{self.name}/{name}",
            work,
            work.chunks,
            batch_size=work.model.batch_size,
            engine=self.engine,
            progress=partial(self.report, "generate"),
        )

    def existing_cases(self, name: str) -> Suite:
        """The cases of all chunks that `run_chunks` has finished in the current round."""
        folder = f"{self.name}/{name}"
        chunks = range(len(list((self.folder.path / folder).glob("chunk-*"))))
        return Suite.concat([self.folder.suite(chunk_name(folder, i), self._missing) for i in chunks])

    def choose_cases(self, choose: Callable[[], Suite]) -> Suite:
        """Choose the cases of the current round, save them, and add them to ``learned``."""
        chosen = self.folder.suite(f"{self.name}/cases", choose)
        if len(chosen):
            self._add_cases(chosen)
        return chosen

    def _add_cases(self, chosen: Suite) -> None:
        cases = chosen.samples()
        self.learned = Samples.concat([self.learned, cases]) if len(self.learned) else cases
        self.suites.append(chosen)

    # Retraining

    def retrain(
        self, retrainer: CaseRetrainer, train: Samples, *, monitor: Monitor | None, generator: torch.Generator
    ) -> FinetuneRecord:
        """Retrain the current model with all cases so far; clean accuracy may fall by what is left of ``max_drop``."""
        left = min(max(self.max_drop - (self.initial_accuracy - self.model.accuracy(self.clean)), 0.0), 1.0)
        epochs = getattr(retrainer, "epochs", 1)
        draft = self.folder.draft(f"{self.name}/retraining")

        def on_epoch(epoch: FinetuneEpoch) -> None:
            self.report("retrain", epoch.epoch, max(epochs, epoch.epoch), cases=len(self.learned))

        def work() -> FinetuneRecord:
            with self.folder.writing("the state of retraining"):
                retrained = retrainer(
                    self.model,
                    train,
                    self.learned,
                    validation=self.clean,
                    monitor=monitor,
                    max_drop=left,
                    generator=generator,
                    checkpoint=draft,
                    on_epoch=on_epoch,
                )
            kept = retrained.model if retrained.record.changed else self.model
            self._check_clean_accuracy(kept, left)
            self.folder.weights(f"{self.name}/weights", self.model, lambda: kept)
            return retrained.record

        done = finished_epochs(draft)  # more than 0 if the retraining is resumed
        self.report("retrain", done, max(epochs, done), cases=len(self.learned))
        record = self.step("retraining", FinetuneRecord, work)
        self.model = self.folder.weights(f"{self.name}/weights", self.model, self._missing)
        self.report("retrain", epochs, epochs, record=record)
        return record

    def _check_clean_accuracy(self, model: Classifier, left: float) -> None:
        """Reject a model of a user's retrainer that lost more clean accuracy than it may."""
        floor, accuracy = self.model.accuracy(self.clean) - left, model.accuracy(self.clean)
        if accuracy < floor - 1e-6:
            raise ValueError(
                f"the retrainer returned a model with clean accuracy {formatting.accuracy(accuracy)}, but "
                f"{formatting.accuracy(floor)} must be kept; return the original model in this case, with best_epoch=0 "
                "in the record"
            )

    # Predictions and labels

    def predictions(self, inputs: Samples, *, chunk: int) -> Tensor:
        """The current model's predictions, a chunk of inputs at a time."""
        self.model.prepare(inputs.x)
        parts = [inputs[start : start + chunk] for start in range(0, len(inputs), chunk)]
        names = [f"predictions-{i:03d}" for i in range(len(parts))]
        todo = [i for i, name in enumerate(names) if not self.folder.has(f"{self.name}/{name}")]
        announced = activity("predicting field inputs", len(todo), unit="chunks")
        with announced as progress, defer_interrupt() as interrupted, self.folder.timed(f"{self.name}/predictions"):
            items = (parts[i].x for i in todo if not interrupted())
            with closing_results(self.engine(ChunkPrediction(self.model), items)) as finished:
                for number, labels in finished:
                    i = todo[number]
                    work = partial(PredictionBatch, ids=parts[i].ids.cpu(), predictions=labels)
                    self.step(names[i], PredictionBatch, work)
                    progress.advance()
        if signal := interrupted():
            raise Interrupted(f"finished predictions of {self.name} are saved in {self.folder.path}", signal)
        found = [torch.empty(0, dtype=torch.int64)]
        for name, part in zip(names, parts, strict=True):
            batch = self.existing(name, PredictionBatch)
            self._check_ids(name, batch.ids, part)
            found.append(batch.predictions)
        return torch.cat(found)

    def labels(self, name: str, inputs: Samples, ask: Callable[[], LabelBatch]) -> Tensor:
        """Labels of inputs, asked for once."""
        batch = self.step(name, LabelBatch, ask)
        self._check_ids(name, batch.ids, inputs)
        return batch.labels

    def answers(self) -> LabelBatch:
        """All labels in the folder, also those of later and unfinished rounds."""
        files = sorted(file for file in self.folder.path.glob("round-*/labels-*.json") if finished(file))
        names = [file.relative_to(self.folder.path).with_suffix("").as_posix() for file in files]
        batches = [self.folder.step(name, LabelBatch, self._missing) for name in names]
        none = torch.empty(0, dtype=torch.int64)
        ids, labels = ([none, *(getattr(batch, part) for batch in batches)] for part in ("ids", "labels"))
        return LabelBatch(ids=torch.cat(ids), labels=torch.cat(labels).long())

    def _check_ids(self, name: str, ids: Tensor, inputs: Samples) -> None:
        if not torch.equal(ids, inputs.ids.cpu()):
            raise ValueError(
                f"{self.name}/{name}.json in {self.folder.path} belongs to other inputs than those to be assessed: an "
                "earlier step has changed; restore it, or choose a new folder"
            )

    @property
    def _missing(self) -> Callable[[], NoReturn]:
        return require_existing(self.folder.path / self.name)
