"""Train networks from scratch: seeded, with the best epoch chosen on held-back data."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from operant.activity import activity
from operant.data import Samples
from operant.formatting import percent
from operant.model import Classifier
from operant.rng import global_streams, shuffled
from operant.validation import check_at_least, check_between, check_positive

M = TypeVar("M", bound=nn.Module)
ShowStep = Callable[[Sequence[float], float, int], None]


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One pass over the training part: its mean loss, and the module's scores on the validation part afterwards."""

    epoch: int  # counted from 1
    loss: float
    validation_loss: float
    validation_accuracy: float


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A trained module in evaluation mode with the weights of its best epoch, and the history of its training."""

    module: nn.Module = field(repr=False)
    best_epoch: int
    history: tuple[Epoch, ...]


def initialise(factory: Callable[[], M], *, generator: torch.Generator) -> M:
    """A new network whose initial weights depend only on the generator.

    >>> a, b = (initialise(lambda: nn.Linear(3, 2), generator=torch.Generator().manual_seed(0)) for _ in range(2))
    >>> torch.equal(a.weight, b.weight)
    True
    """
    with global_streams(generator):
        return factory()


def fit(
    module: nn.Module,
    train: Samples,
    *,
    epochs: int,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    weight_decay: float = 0.0,
    validation: float = 0.1,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    generator: torch.Generator,
    progress: bool = True,
) -> Fitted:
    """Train a copy of ``module`` with cross entropy and keep the epoch with the best validation accuracy.

    Among equally accurate epochs, the one with the lowest validation loss is kept. The module itself and torch's global
    random state do not change; the same generator gives bit-identical weights.

    Args:
        module: takes ``(N, *shape)``, returns logits ``(N, classes)``.
        train: labelled inputs. The validation part is chosen by id, so that copies of an input stay together.
        epochs: passes over the training part.
        batch_size: maximum rows per step.
        learning_rate, weight_decay: of AdamW.
        validation: share of the inputs held back to choose the epoch.
        mean, std: normalisation, as in `Classifier`.
        generator: shuffles the batches and seeds dropout.
        progress: show progress on stderr.
    """
    check_options(learning_rate, epochs=epochs, batch_size=batch_size)
    check_between(0, 1, advice="0.1 holds back a tenth", validation=validation)
    wrapped = Classifier(module, bounds=(-math.inf, math.inf), mean=mean, std=std, strict=True)
    wrapped.check(train)
    part, held = validation_split(train, validation)
    learner = wrapped.unwrap()
    trainable = [p for p in learner.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=learning_rate, weight_decay=weight_decay)

    def logits(x: Tensor) -> Tensor:
        out: Tensor = learner(wrapped.normalise(x.to(wrapped.device)))
        return out

    history: list[Epoch] = []
    weights: dict[str, Tensor] = {}
    steps = math.ceil(len(part) / batch_size)
    with global_streams(generator), announced_training(progress, epochs=epochs, steps=steps) as show:
        for number in range(1, epochs + 1):
            learner.train()
            total = 0.0
            accuracies = [e.validation_accuracy for e in history]
            for x, y in shuffled_batches(part, steps, generator=generator):
                loss = finite_loss(float(descend(optimizer, logits, x, y)))
                show(accuracies, loss, 1)
                total += loss * len(x)
            learner.eval()
            epoch = Epoch(epoch=number, loss=total / len(part), **_validation(logits, held, batch_size))
            history.append(epoch)
            show([*accuracies, epoch.validation_accuracy], epoch.loss, 0)
            if epoch is _best(history):
                weights = {name: values.clone() for name, values in learner.state_dict().items()}
    learner.load_state_dict(weights)
    learner.zero_grad()
    return Fitted(module=learner, best_epoch=_best(history).epoch, history=tuple(history))


def check_options(learning_rate: float, **counts: int) -> None:
    """Raise a ValueError if the learning rate is not positive or a count is below 1."""
    check_at_least(1, advice="", **counts)
    check_positive(learning_rate=learning_rate)


def validation_split(train: Samples, share: float) -> tuple[Samples, Samples]:
    """The training part and the validation part, chosen by id."""
    parts = train.split(training=1 - share, validation=share)
    for role, samples in parts.items():
        if len(samples) == 0:
            split = f"{len(train)} inputs were split with validation={share}"
            raise ValueError(f"the {role} part is empty: {split}; give more inputs or a share nearer to a half")
    return parts["training"], parts["validation"]


def shuffled_batches(part: Samples, steps: int, *, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Every row once, in batches of even size, so that batch norm never sees a last batch of one row."""
    order = shuffled(len(part), generator).to(part.x.device)
    for rows in order.tensor_split(steps):
        yield part.x[rows], part.labels[rows]


def descend(optimizer: torch.optim.Optimizer, logits: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Take one step on the cross entropy of a batch; returns the loss before the step."""
    z = logits(x)
    loss = cross_entropy(z, y.to(z.device))
    step(optimizer, loss)
    return loss.detach()


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take one optimiser step on a loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@dataclass(frozen=True)
class OneCycle:
    """Adam with a learning rate that rises and falls once; call it with each loss."""

    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler

    @staticmethod
    def of(weights: Iterable[Tensor], learning_rate: float, *, steps: int) -> "OneCycle":
        optimizer = torch.optim.Adam(weights, lr=learning_rate, fused=True)
        return OneCycle(optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps))

    def __call__(self, loss: Tensor) -> None:
        step(self.optimizer, loss)
        self.schedule.step()


def _validation(logits: Callable[[Tensor], Tensor], held: Samples, batch_size: int) -> dict[str, float]:
    with torch.no_grad():
        z = torch.cat([logits(x) for x in held.x.split(batch_size)])
        y = held.labels.to(z.device)
        loss, accuracy = float(cross_entropy(z, y)), float((z.argmax(1) == y).double().mean())
    return {"validation_loss": finite_loss(loss), "validation_accuracy": accuracy}


def finite_loss(loss: float) -> float:
    """The loss; raises a ValueError if training diverged."""
    if not math.isfinite(loss):
        raise ValueError(f"training was stopped because the loss became {loss}; try a lower learning_rate")
    return loss


def _best(history: Sequence[Epoch]) -> Epoch:
    """The first epoch with the best validation scores."""
    return max(history, key=lambda e: (e.validation_accuracy, -e.validation_loss))


@contextmanager
def announced_training(shown: bool, *, epochs: int, steps: int) -> Iterator[ShowStep]:
    """Announce a training, on stderr if ``shown``; yields the function that updates it.

    That function takes the validation accuracy of each epoch so far, the latest loss, and the number of new steps.
    """
    with activity("training", epochs * steps, show=shown) as work:

        def show(accuracies: Sequence[float], loss: float, steps: int) -> None:
            accuracy = f", validation {percent(accuracies[-1])}" if accuracies else ""
            work.note = f"epoch {min(len(accuracies) + 1, epochs)} of {epochs}, loss {loss:.3f}{accuracy}"
            work.advance(steps)

        yield show
