"""Options of training, a trainable copy of a model, and steps of the optimiser."""

from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from operant.model import Classifier, copy_module
from operant.networks.training import step
from operant.validation import check_at_least, check_one_of, check_positive, check_share


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The options that every retrainer has.

    Args:
        epochs: passes over training data and cases, at most.
        batch_size: rows per step, at most.
        optimiser: ``"adam"``, or ``"sgd"`` with momentum 0.9.
        max_drop: largest loss of clean validation accuracy allowed.
        progress: show progress on stderr.
    """

    epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 1e-3
    optimiser: str = "adam"
    max_drop: float = 0.01
    progress: bool = True

    def __post_init__(self) -> None:
        check_at_least(1, epochs=self.epochs, batch_size=self.batch_size)
        check_positive(learning_rate=self.learning_rate)
        check_one_of(("adam", "sgd"), optimiser=self.optimiser)
        check_share(max_drop=self.max_drop, advice="0.01 is one point")


class TrainingDiverged(Exception):
    """The loss or the logits are no longer finite."""


class TrainableModel:
    """A trainable copy of a classifier, and its optimiser; ``module`` is the network, with normalised inputs."""

    def __init__(self, original: Classifier, *, optimiser: str, learning_rate: float) -> None:
        self.original = original
        self.module = with_layout(original.unwrap(), channels_last=original.channels_last)
        weights = [p for p in self.module.parameters() if p.requires_grad]
        self.optimizer: torch.optim.Optimizer
        if optimiser == "sgd":
            self.optimizer = torch.optim.SGD(weights, lr=learning_rate, momentum=0.9, fused=True)
        else:
            self.optimizer = torch.optim.Adam(weights, lr=learning_rate, fused=True)

    def logits(self, x: Tensor) -> Tensor:
        """Logits of inputs in input units, on the model's device; in training mode while a loss is computed."""
        out: Tensor = self.module(laid_out(self.original, x))
        return out

    def descend(self, loss: Tensor, *, rate: float) -> float:
        """Take one optimiser step at this learning rate; returns the loss before the step."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        step(self.optimizer, loss)
        return float(loss.detach())

    def classifier(self, module: nn.Module | None = None) -> Classifier:
        """An independent classifier with the present weights, or with those of another module of the same kind."""
        now = copy_module(self.module if module is None else module).eval()
        return self.original.rewrap(with_layout(now, channels_last=False))


@torch.no_grad()
def average_in(average: nn.Module, module: nn.Module, decay: float) -> None:
    """Move averaged weights and statistics towards those of a module; integers are copied."""
    olds, news = (chain(m.parameters(), m.buffers()) for m in (average, module))
    for old, new in zip(olds, news, strict=True):
        if old.is_floating_point():
            old.lerp_(new, 1 - decay)
        else:
            old.copy_(new)


def laid_out(model: Classifier, x: Tensor) -> Tensor:
    """Inputs normalised and laid out for the model's bare module."""
    z = model.normalise(x.to(model.device))
    return z.contiguous(memory_format=torch.channels_last) if model.channels_last and z.ndim == 4 else z


def with_layout(module: nn.Module, *, channels_last: bool) -> nn.Module:
    """The module with the weights of its convolutions in channels-last order, or in torch's default one."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            part.to(memory_format=layout)  # type: ignore[call-overload]
    return module
