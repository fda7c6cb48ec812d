"""Epochs of training: their options, a trainable copy of a model, and steps of the optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from operant.model import Classifier, copy_module
from operant.networks.training import training_bar
from operant.rng import global_streams

OPTIMISERS = ("adam", "sgd")


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The options that every retrainer has.

    Args:
        epochs: passes over training data and cases, at most.
        batch_size: rows per step, at most.
        learning_rate: of the optimiser.
        optimiser: ``"adam"``, or ``"sgd"`` with momentum 0.9.
        max_drop: largest loss of clean validation accuracy allowed.
        progress: show a progress bar on a terminal.
    """

    epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 1e-3
    optimiser: str = "adam"
    max_drop: float = 0.01
    progress: bool = True

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(f"epochs and batch_size must be at least 1, got {self.epochs} and {self.batch_size}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        if self.optimiser not in OPTIMISERS:
            raise ValueError(f'optimiser must be "adam" or "sgd", got {self.optimiser!r}')
        if not 0 <= self.max_drop <= 1:
            raise ValueError(f"max_drop must be a share from 0 to 1, got {self.max_drop}; 0.01 is one point")


class TrainingDiverged(Exception):
    """The loss or the logits are no longer finite."""


class TrainableModel:
    """A trainable copy of a classifier, and its optimiser.

    Args:
        original: the classifier to copy.
        optimiser: ``"adam"``, or ``"sgd"`` with momentum 0.9.
        learning_rate: initial one.

    Attributes:
        module: the network, with normalised inputs.
    """

    def __init__(self, original: Classifier, *, optimiser: str, learning_rate: float) -> None:
        self.original = original
        self.module = _with_layout(original.unwrap(), channels_last=original.channels_last)
        trainable = [p for p in self.module.parameters() if p.requires_grad]
        if optimiser == "sgd":
            self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
                trainable, lr=learning_rate, momentum=0.9, fused=True
            )
        else:
            self.optimizer = torch.optim.Adam(trainable, lr=learning_rate, fused=True)

    def logits(self, x: Tensor) -> Tensor:
        """Logits of inputs in input units, on the model's device; in training mode while a loss is computed."""
        z = self.original.normalise(x.to(self.original.device))
        last = self.original.channels_last and z.ndim == 4
        out: Tensor = self.module(z.contiguous(memory_format=torch.channels_last) if last else z)
        return out

    def descend(self, loss: Tensor, *, rate: float) -> float:
        """Take one optimiser step at this learning rate; returns the loss before the step."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def classifier(self, module: nn.Module | None = None) -> Classifier:
        """An independent classifier with the present weights, or with those of another module of the same kind."""
        now = copy_module(self.module if module is None else module).eval()
        return self.original.rewrap(_with_layout(now, channels_last=False))


def run_epochs(
    model: TrainableModel,
    *,
    order: Callable[[], Tensor],
    step: Callable[[int, Tensor], float],
    candidate: Callable[[], Classifier],
    accuracies: Callable[[], Sequence[float]],
    epochs: int,
    steps: int,
    progress: bool,
    generator: torch.Generator,
    begin: Callable[[], object],
) -> Generator[tuple[float, Classifier]]:
    """Yield the mean loss and the candidate model after each epoch; the caller judges it in between.

    Args:
        order: returns the rows of the next epoch in order. They are split into ``steps`` batches of even size, so that
            batch norm never gets a last batch of one row.
        step: trains on some rows and returns their loss; its first argument is the number of steps before it.
        candidate: returns the model to judge.
        accuracies: returns those of the finished epochs; epochs finished before the first call are not repeated.
        begin: called once the global random streams are seeded.
    """
    with global_streams(generator), training_bar(progress, epochs=epochs, steps=steps) as show:
        begin()
        shown = 0
        for epoch in range(len(accuracies()) + 1, epochs + 1):
            model.module.train()
            before, total, rows = accuracies(), 0.0, order()
            for number, some in enumerate(rows.tensor_split(steps), start=(epoch - 1) * steps):
                loss = step(number, some)
                if not math.isfinite(loss):
                    raise TrainingDiverged(f"the loss became {loss} in epoch {epoch}")
                show(before, loss, number + 1 - shown)
                shown = number + 1
                total += loss * len(some)
            loss = total / len(rows)
            yield loss, candidate()
            show(accuracies(), loss, 0)


@torch.no_grad()
def average_in(average: nn.Module, module: nn.Module, decay: float) -> None:
    """Move averaged weights and statistics towards those of a module; integers are copied."""
    olds, news = (chain(m.parameters(), m.buffers()) for m in (average, module))
    for old, new in zip(olds, news, strict=True):
        if old.is_floating_point():
            old.lerp_(new, 1 - decay)
        else:
            old.copy_(new)


def _with_layout(module: nn.Module, *, channels_last: bool) -> nn.Module:
    """The module with the weights of its convolutions in channels-last order, or in torch's default one."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            part.to(memory_format=layout)  # type: ignore[call-overload]
    return module
