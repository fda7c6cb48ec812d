"""What every way of retraining shares: a copy of the model that learns, and passes over the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor, nn

from operant.model import Classifier, copy_module
from operant.networks.training import training_bar
from operant.rng import global_streams

OPTIMISERS = ("adam", "sgd")


class Training(Protocol):
    """The options that every way of retraining has."""

    @property
    def epochs(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def optimiser(self) -> str: ...
    @property
    def max_drop(self) -> float: ...
    @property
    def progress(self) -> bool: ...


class Diverged(Exception):
    """Training went where no number is."""


@dataclass(frozen=True, kw_only=True)
class FinetuneEpoch:
    """One pass: its mean loss, and then the clean accuracy on the validation samples and what the monitor said."""

    epoch: int  # counted from 1
    loss: float
    accuracy: float
    monitor: float


class Learner:
    """A trainable copy of a model, laid out to run fast, and its optimiser.

    Args:
        model: where to start from; it stays as it is.
        optimiser: ``"adam"``, or ``"sgd"`` with momentum 0.9.
        learning_rate: to begin with.
    """

    def __init__(self, model: Classifier, *, optimiser: str, learning_rate: float) -> None:
        self.model = model
        self.module = _laid_out(model.unwrap(), channels_last=model.channels_last)
        trainable = [p for p in self.module.parameters() if p.requires_grad]
        if optimiser == "sgd":
            self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
                trainable, lr=learning_rate, momentum=0.9, fused=True
            )
        else:
            self.optimizer = torch.optim.Adam(trainable, lr=learning_rate, fused=True)

    def logits(self, x: Tensor) -> Tensor:
        """Logits of inputs in input units, as the module is now: training or not."""
        z = self.model.normalise(x.to(self.model.device))
        last = self.model.channels_last and z.ndim == 4
        out: Tensor = self.module(z.contiguous(memory_format=torch.channels_last) if last else z)
        return out

    def descend(self, loss: Tensor, *, rate: float) -> float:
        """One step down the loss of one batch at this learning rate; its loss before the step."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def classifier(self, module: nn.Module | None = None) -> Classifier:
        """The model as it is now, or with the weights of another module of its kind: a value of its own."""
        now = copy_module(self.module if module is None else module).eval()
        return self.model.rewrap(_laid_out(now, channels_last=False))


def passes(
    learner: Learner,
    *,
    order: Callable[[], Tensor],
    step: Callable[[int, Tensor], float],
    candidate: Callable[[], Classifier],
    accuracies: Callable[[], Sequence[float]],
    epochs: int,
    steps: int,
    progress: bool,
    generator: torch.Generator,
    begin: Callable[[], object] = lambda: None,
) -> Generator[tuple[float, Classifier]]:
    """After each epoch its mean loss and the model as it then is; the caller judges it in between.

    Args:
        order: the rows of the next epoch, in the order they are learned from; cut into ``steps`` of even size, so that
            batch norm never meets a last batch of one row.
        step: learns from some rows and tells their loss; also gets how many steps were made before.
        candidate: the model to judge.
        accuracies: of the epochs so far; those that are there before the first are done and not made again.
        begin: called once the global random streams are set.
    """
    with global_streams(generator), training_bar(progress, epochs=epochs, steps=steps) as show:
        begin()
        shown = 0
        for epoch in range(len(accuracies()) + 1, epochs + 1):
            learner.module.train()
            before, total, rows = accuracies(), 0.0, order()
            for number, some in enumerate(rows.tensor_split(steps), start=(epoch - 1) * steps):
                loss = step(number, some)
                if not math.isfinite(loss):
                    raise Diverged(f"the loss became {loss} in epoch {epoch}")
                show(before, loss, number + 1 - shown)
                shown = number + 1
                total += loss * len(some)
            loss = total / len(rows)
            yield loss, candidate()
            show(accuracies(), loss, 0)


@torch.no_grad()
def average_in(average: nn.Module, module: nn.Module, decay: float) -> None:
    """Move an average of weights and statistics towards those of a module; what cannot be averaged is copied."""
    olds, news = (chain(m.parameters(), m.buffers()) for m in (average, module))
    for old, new in zip(olds, news, strict=True):
        if old.is_floating_point():
            old.lerp_(new, 1 - decay)
        else:
            old.copy_(new)


def shuffled(n: int, *, generator: torch.Generator) -> Tensor:
    """All row numbers in random order."""
    return torch.randperm(n, generator=generator, device=generator.device)


def check_training(options: Training) -> None:
    """Refuse what no retraining can be run with."""
    if options.epochs < 1 or options.batch_size < 1:
        raise ValueError(f"epochs and batch_size must be at least 1, got {options.epochs} and {options.batch_size}")
    if not 0 < options.learning_rate < math.inf:
        raise ValueError(f"learning_rate must be positive, got {options.learning_rate}")
    if options.optimiser not in OPTIMISERS:
        raise ValueError(f'optimiser must be "adam" or "sgd", got {options.optimiser!r}')
    if not 0 <= options.max_drop <= 1:
        raise ValueError(f"max_drop must be a share from 0 to 1, got {options.max_drop}; 0.01 is one point")


def _laid_out(module: nn.Module, *, channels_last: bool) -> nn.Module:
    """The module with the weights of its convolutions in the order that runs fastest, or in torch's usual one."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            part.to(memory_format=layout)  # type: ignore[call-overload]
    return module
