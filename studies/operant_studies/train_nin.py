"""Training of NIN on CIFAR-10 within a given time, with checkpoints to resume from."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from operant import results
from operant.activity import activity
from operant.data import Samples
from operant.model import Classifier
from operant.model.hashing import described
from operant.networks.training import initialise, shuffled_batches
from operant.networks.weights import save_weights
from operant.rng import global_streams, spawn
from operant_studies.networks.nin import NIN
from operant_studies.subjects import CIFAR_MEAN, CIFAR_STD

KIND = "operant training of NIN, format 1"


@dataclass(frozen=True, kw_only=True)
class NINRecipe:
    """Options of training NIN: SGD with momentum, a learning rate that rises and falls once, augmented images.

    At share t of the time the learning rate is

        η(t) = η t / w                              for t < w                   (1)
        η(t) = η (1 + cos(π (t - w) / (1 - w))) / 2      after that

    The schedule follows the clock, so that training ends with low rates on every machine; the result depends on its
    speed. The defaults suit two cores: the network has batch norm and half the paper's width, which allows many more
    epochs; a batch is split into two parts, each normalised separately and computed by its own thread, which is faster
    than two threads per operation. Nothing is blanked: with a square of 8 and 13.7 epochs, accuracy on training images
    was no higher than on others.
    """

    minutes: float = 120.0
    width: int = 96
    dropout: float = 0.1  # after the first two poolings
    batch_size: int = 128
    learning_rate: float = 0.1  # η, the highest
    rise: float = 0.15  # w, the share of the time in which the rate rises
    momentum: float = 0.9
    weight_decay: float = 5e-4
    shift: int = 4  # maximum shift of an image in pixels, in each direction
    hole: int = 0  # side of the square that is blanked, in pixels
    parts: int = 2  # of a batch, computed in parallel
    bfloat16: bool = False  # for convolutions: twice as fast if the processor supports it, else slower
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.minutes < math.inf or not 0 < self.learning_rate < math.inf:
            raise ValueError(f"minutes and learning_rate must be positive, got {self.minutes} and {self.learning_rate}")
        if not 0 < self.rise < 1:
            raise ValueError(f"rise must be a share between 0 and 1, got {self.rise}")
        if self.shift < 0 or self.hole < 0:
            raise ValueError(f"shift and hole must be at least 0, got {self.shift} and {self.hole}")
        if self.parts < 1 or self.batch_size < 2 * self.parts:
            raise ValueError(
                "parts must be at least 1 and batch_size at least 2 for each of them, "
                f"got {self.parts} and {self.batch_size}"
            )

    def network(self, *, channels: int, classes: int) -> NIN:
        """The untrained network of this recipe, for its weights too."""
        places = ("pool1", "pool2") if self.dropout else ()
        return NIN(
            channels=channels,
            classes=classes,
            width=self.width,
            batch_norm=True,
            dropout=self.dropout,
            dropout_after=places,
        )

    def rate(self, t: float) -> float:
        """The learning rate at share ``t`` of the time, (1)."""
        if t < self.rise:
            return self.learning_rate * t / self.rise
        return self.learning_rate * (1 + math.cos(math.pi * (min(t, 1.0) - self.rise) / (1 - self.rise))) / 2


@dataclass(frozen=True, kw_only=True)
class NINEpoch:
    """One pass over the augmented training images; the last one is cut short by the clock."""

    loss: float
    accuracy: float
    images: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TrainedNIN:
    """The accuracy on test images that decided nothing, and the record of the training."""

    accuracy: float
    recipe: NINRecipe
    channels: int
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train_images: int
    test_images: int
    data: str  # hash of the training images and labels
    history: tuple[NINEpoch, ...]

    def __str__(self) -> str:
        seen, seconds = sum(e.images for e in self.history), sum(e.seconds for e in self.history)
        return (
            f"NIN of width {self.recipe.width} classifies {self.accuracy:.2%} of {self.test_images} test images "
            f"correctly, after {seen / self.train_images:.1f} passes over {self.train_images} in {seconds / 60:.1f} "
            f"minutes ({seen / seconds:.0f} images per second)."
        )


def checkpoint_of(out: Path) -> Path:
    """The file with the state of a training that writes its weights to ``out``; it is there while one has epochs."""
    return out.with_suffix(".checkpoint.safetensors")


def train_nin(
    train: Samples,
    test: Samples,
    out: Path,
    *,
    recipe: NINRecipe,
    console: Console,
    clock: Callable[[], float] = time.monotonic,
) -> TrainedNIN:
    """Train for the given time, then write weights to ``out`` and accuracy and recipe to a JSON file beside it.

    Each epoch writes a checkpoint, from which the same call resumes. The final weights are used: no epoch is chosen, so
    that the test images are used once. With dropout and more than one part, the order in which parts draw their dropout
    depends on the machine; everything else is seeded.

    Args:
        train, test: labelled images ``(N, 3, H, W)`` in [0, 1].
        out: the safetensors file to write.
        console: prints a line per epoch.
        clock: seconds; time between runs does not count.
    """
    if out.suffix != ".safetensors":
        raise ValueError(f"out must be named *.safetensors, got {out}")
    page = out.with_suffix(".json")
    belongs = {"recipe": described(recipe), "set of training images": described(train)}
    if page.exists() and out.exists():
        return _finished(page, belongs["set of training images"], recipe)
    state = _State(recipe, train, belongs, path=checkpoint_of(out))
    with activity("training NIN", unit="epochs") as work, _in_parallel(recipe.parts) as compute:
        while sum(e.seconds for e in state.history) < 60 * recipe.minutes:
            state.history.append(_epoch(state, compute, train, recipe, clock))
            state.write()
            work.advance()
            console.print(escape(_progress(state.history, recipe)), soft_wrap=True, highlight=False)
    save_weights(state.learner, out)
    trained = TrainedNIN(
        accuracy=Classifier(state.learner, mean=CIFAR_MEAN, std=CIFAR_STD).accuracy(test),
        recipe=recipe,
        channels=train.shape[0],
        classes=state.classes,
        mean=CIFAR_MEAN,
        std=CIFAR_STD,
        train_images=len(train),
        test_images=len(test),
        data=belongs["set of training images"],
        history=tuple(state.history),
    )
    results.save(trained, page)
    state.path.unlink(missing_ok=True)
    return trained


def augment(x: Tensor, *, shift: int, hole: int, generator: torch.Generator) -> Tensor:
    """Images randomly mirrored, shifted by up to ``shift`` pixels with zeros outside, and with a square set to zero.

    The square's centre lies on the image, a part of it possibly outside.
    """
    n, _, height, width = x.shape

    def draw(high: int) -> Tensor:
        return torch.randint(high, (n, 1), generator=generator, device=generator.device).to(x.device)

    i, j = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
    mirrored = torch.where(draw(2) == 1, j.flip(0), j)
    rows, columns = i + draw(2 * shift + 1), mirrored + draw(2 * shift + 1)
    moved = pad(x, (shift,) * 4).movedim(1, -1)
    moved = moved[torch.arange(n, device=x.device)[:, None, None], rows[:, :, None], columns[:, None, :]].movedim(-1, 1)
    above, left = draw(height) - hole // 2, draw(width) - hole // 2
    blank_rows, blank_columns = (i >= above) & (i < above + hole), (j >= left) & (j < left + hole)
    return moved.masked_fill((blank_rows[:, :, None] & blank_columns[:, None, :])[:, None], 0.0)


# One epoch


_Compute = Callable[..., Iterator[tuple[float, int, tuple[Tensor, ...]]]]  # the type of `map`


@contextmanager
def _in_parallel(parts: int) -> Iterator[_Compute]:
    """A `map` with one thread per part, which share the threads of torch while it is open."""
    before = torch.get_num_threads()
    each = max(1, before // parts)
    try:
        with ThreadPoolExecutor(parts, initializer=lambda: torch.set_num_threads(each)) as pool:
            yield pool.map
    finally:
        torch.set_num_threads(before)


def _epoch(state: _State, compute: _Compute, train: Samples, recipe: NINRecipe, clock: Callable[[], float]) -> NINEpoch:
    """One pass, or less if the time is over; its random numbers depend only on its number."""
    before, start = sum(e.seconds for e in state.history), clock()
    generator = spawn(recipe.seed, "epoch", len(state.history))
    losses, right, images, spent = 0.0, 0, 0, 0.0
    with global_streams(generator):
        for x, y in shuffled_batches(train, math.ceil(len(train) / recipe.batch_size), generator=generator):
            x = augment(state.normalise(x), shift=recipe.shift, hole=recipe.hole, generator=generator)
            loss, hits = _step(state, compute, x, y, recipe.rate((before + spent) / (60 * recipe.minutes)))
            losses, right, images = losses + loss * len(x), right + hits, images + len(x)
            spent = clock() - start
            if before + spent >= 60 * recipe.minutes:
                break
    return NINEpoch(loss=losses / images, accuracy=right / images, images=images, seconds=spent)


def _step(state: _State, compute: _Compute, x: Tensor, y: Tensor, rate: float) -> tuple[float, int]:
    """One step of gradient descent on one batch; the loss and the number of hits before the step."""
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    n = len(state.twins)
    part = partial(_part, rows=len(x), bfloat16=state.recipe.bfloat16)
    parts = list(compute(part, state.twins, x.tensor_split(n), y.tensor_split(n)))
    loss, hits = sum(part[0] for part in parts), sum(part[1] for part in parts)
    if not math.isfinite(loss):
        raise ValueError(f"training was stopped because the loss became {loss}; try a lower learning_rate")
    for p, *gradients in zip(state.learner.parameters(), *(part[2] for part in parts), strict=True):
        p.grad = torch.stack(gradients).sum(0) if n > 1 else gradients[0]
    state.optimizer.step()
    return loss, hits


def _part(twin: nn.Module, x: Tensor, y: Tensor, *, rows: int, bfloat16: bool) -> tuple[float, int, tuple[Tensor, ...]]:
    """The contribution of a part of a batch of ``rows`` to its mean loss, hits and gradient."""
    with torch.autocast(x.device.type, torch.bfloat16, enabled=bfloat16):
        logits = twin(x.contiguous(memory_format=torch.channels_last)).float()
    loss = cross_entropy(logits, y, reduction="sum") / rows
    gradient = torch.autograd.grad(loss, list(twin.parameters()))
    return float(loss.detach()), int((logits.argmax(1) == y).sum()), gradient


def _progress(history: list[NINEpoch], recipe: NINRecipe) -> str:
    last, spent = history[-1], sum(e.seconds for e in history)
    return (
        f"epoch {len(history)}: {spent / 60:.1f} of {recipe.minutes:g} min, loss {last.loss:.3f}, "
        f"{last.accuracy:.1%} right on augmented images, {last.images / max(last.seconds, 1e-9):.0f} images/s"
    )


# On disk


@dataclass
class _State:
    """The network, the optimiser and the epochs so far; resumed from the checkpoint if there is one."""

    recipe: NINRecipe
    train: Samples
    belongs: Mapping[str, str]
    path: Path = field(kw_only=True)

    def __post_init__(self) -> None:
        self.classes = int(self.train.labels.max()) + 1
        module = initialise(
            lambda: self.recipe.network(channels=self.train.shape[0], classes=self.classes),
            generator=spawn(self.recipe.seed, "weights"),
        )
        wrapped = Classifier(module, mean=CIFAR_MEAN, std=CIFAR_STD, strict=True)
        wrapped.check(self.train)
        self.normalise = wrapped.normalise
        self.learner: nn.Module = module.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        shared = {id(p): p for p in self.learner.parameters()}
        others = (copy.deepcopy(self.learner, dict(shared)) for _ in range(self.recipe.parts - 1))
        self.twins = (self.learner, *others)  # same weights; only the running means of the first are kept
        self.optimizer = torch.optim.SGD(
            self.learner.parameters(),
            lr=self.recipe.learning_rate,
            momentum=self.recipe.momentum,
            weight_decay=self.recipe.weight_decay,
            nesterov=self.recipe.momentum > 0,
        )
        self.history: list[NINEpoch] = []
        if self.path.exists():
            self._resume()

    def write(self) -> None:
        """Write the checkpoint; if killed, either the previous or this one is left."""
        momenta = {
            f"momentum/{name}": self.optimizer.state[p]["momentum_buffer"]
            for name, p in self.learner.named_parameters()
            if "momentum_buffer" in self.optimizer.state[p]
        }
        tensors = {f"learner/{name}": v for name, v in self.learner.state_dict().items()} | momenta
        words = json.dumps({"belongs": self.belongs, "history": [asdict(e) for e in self.history]})
        apart = {name: v.detach().cpu().clone(memory_format=torch.contiguous_format) for name, v in tensors.items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        results.write_atomically(self.path, save(apart, {"kind": KIND, "words": words}))

    def _resume(self) -> None:
        hint = "resume it with its own settings, or delete it to start again"
        try:
            with safe_open(self.path, "pt") as opened:
                metadata = opened.metadata() or {}
                tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
        except (SafetensorError, ValueError) as error:
            raise ValueError(f"{self.path} is damaged or not a checkpoint of a training ({error}); {hint}") from None
        if metadata.get("kind") != KIND:
            raise ValueError(f'{self.path} is not an "{KIND}"; {hint}')
        words = json.loads(metadata["words"])
        if other := [name for name, value in self.belongs.items() if words["belongs"].get(name) != value]:
            raise ValueError(f"{self.path} holds a training with another {' and another '.join(other)}; {hint}")
        self.history += [NINEpoch(**e) for e in words["history"]]
        self.learner.load_state_dict(
            {n.removeprefix("learner/"): v for n, v in tensors.items() if n.startswith("learner/")}
        )
        for name, p in self.learner.named_parameters():
            if (buffer := tensors.get(f"momentum/{name}")) is not None:
                self.optimizer.state[p]["momentum_buffer"] = torch.empty_like(p, requires_grad=False).copy_(buffer)


def _finished(page: Path, data: str, recipe: NINRecipe) -> TrainedNIN:
    """The result of an earlier call with the same recipe and images."""
    trained = results.load(page, TrainedNIN)
    if trained.recipe != recipe or trained.data != data:
        other = "recipe" if trained.recipe != recipe else "set of training images"
        raise ValueError(f"{page} describes a finished training with another {other}; choose a new --out")
    return trained


if __name__ == "__main__":
    from operant_studies.train_nin_command import app

    app()
