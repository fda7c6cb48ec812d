"""Manifold mixup: learning from mixtures, of inputs or of what a layer in the middle says of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.special import betaincinv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from operant.data import Samples
from operant.model import MIN_ROWS, Classifier
from operant.retrain._loop import Learner, check_training
from operant.retrain.finetune import Retrained, Told, check_data, learn
from operant.types import Monitor

INPUT = "input"
MIXES = ("all", "cases", "across")


@dataclass(frozen=True, kw_only=True)
class ManifoldMixup:
    """Train on from a model's weights with mixtures of rows, made at a layer that is drawn anew for every batch.

        h ← λ h(x) + (1 - λ) h(x'),    J = λ J(f, y) + (1 - λ) J(f, y'),    λ ~ Beta(alpha, alpha)        (1)

    for rows (x, y) and their partners (x', y') of one batch, with h what the drawn layer says and J the cross-entropy.
    Training data and cases are shuffled together in every epoch. Which epoch is kept, and when the original weights
    stay, is as in `Finetune`.

    Args:
        layers: names of submodules, each run once in a pass; ``"input"`` is the input itself, which makes it plain
            mixup. Verma et al. take the input and the outputs of the first two blocks.
        alpha: small ones hardly mix; the paper has 2.
        mix: ``"all"``, every row with any other of its batch, as Verma et al.; ``"cases"``, cases with each other while
            training data stay as they are, as Zhang retrains; ``"across"``, cases with training data, which stay too.
        epochs, batch_size, learning_rate, optimiser, max_drop, progress: as in `Finetune`.

    References:
        | Manifold Mixup: Better Representations by Interpolating Hidden States (Verma et al., 2019)
        | https://arxiv.org/abs/1806.05236
        | Uncertainty-Guided Testing and Robustness Enhancement for Deep Learning Systems (Zhang, 2020), section 2.4
    """

    layers: Sequence[str] = (INPUT,)
    alpha: float = 2.0
    mix: str = "all"
    epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 1e-3
    optimiser: str = "adam"
    max_drop: float = 0.01
    progress: bool = True

    def __post_init__(self) -> None:
        check_training(self)
        if isinstance(self.layers, str) or not self.layers:
            raise ValueError(f'layers must be several names, such as ["input", "conv1"], got {self.layers!r}')
        if not 0 < self.alpha < float("inf"):
            raise ValueError(f"alpha must be positive, got {self.alpha}")
        if self.mix not in MIXES:
            raise ValueError(f'mix must be "all", "cases" or "across", got {self.mix!r}')

    def __call__(
        self,
        model: Classifier,
        train: Samples,
        cases: Samples,
        *,
        validation: Samples,
        monitor: Monitor | None = None,
        generator: torch.Generator,
        checkpoint: str | Path | None = None,
        told: Told | None = None,
    ) -> Retrained:
        """Retrain a model; it stays as it is, and so does torch's own random state.

        Args:
            model: where to start from.
            train: labelled training data.
            cases: labelled cases, for instance ``suite.samples()``; none for a control.
            validation: labelled, with no input of the above: it chooses the epoch.
            monitor, checkpoint, told: as in `Finetune`.
            generator: shuffles, draws layers, partners and λ, and seeds dropout; the same one gives the same weights,
                bit for bit.
        """
        roles = {"train": train, "cases": cases, "validation": validation}
        check_data(model, **roles)
        self._check_layers(model, train.x)
        data = Samples.concat([train, cases.to(train.x.device)]) if len(cases) else train

        def loss(learner: Learner, rows: Tensor) -> Tensor:
            is_case = (rows >= len(train)).to(generator.device)
            layer, weight, partner = self._drawn(is_case, generator)
            return mixed_loss(learner, data.x[rows], data.labels[rows], layer=layer, weight=weight, partner=partner)

        return learn(
            self,
            model,
            loss=loss,
            rows=len(data),
            roles=roles,
            monitor=monitor,
            generator=generator,
            checkpoint=checkpoint,
            told=told,
        )

    def _drawn(self, is_case: Tensor, generator: torch.Generator) -> tuple[str, Tensor, Tensor]:
        """A layer; and for each row of a batch its weight, 1 if it stays as it is, and its partner."""
        device = generator.device
        layer = self.layers[int(torch.randint(len(self.layers), (), generator=generator, device=device))]
        u = torch.rand((), generator=generator, device=device, dtype=torch.float64)
        weight = torch.full((len(is_case),), float(betaincinv(self.alpha, self.alpha, float(u))), dtype=torch.float64)
        partner = torch.arange(len(is_case), device=device)
        if self.mix == "all":
            return layer, weight, torch.randperm(len(is_case), generator=generator, device=device)
        cases, others = is_case.nonzero().flatten(), (~is_case).nonzero().flatten()
        if self.mix == "cases":
            partner[cases] = cases[torch.randperm(len(cases), generator=generator, device=device)]
        elif len(others):
            partner[cases] = others[torch.randint(len(others), (len(cases),), generator=generator, device=device)]
        return layer, torch.where(partner.cpu() == torch.arange(len(partner)), 1.0, weight), partner

    def _check_layers(self, model: Classifier, x: Tensor) -> None:
        inner = [name for name in self.layers if name != INPUT]
        if unknown := [name for name in inner if name not in model.layers]:
            raise ValueError(f"no layer named {', '.join(unknown)}; this model has {', '.join((INPUT, *model.layers))}")
        module, runs = model.unwrap().eval(), dict.fromkeys(inner, 0)
        with torch.no_grad(), _watched(module, runs):
            module(model.normalise(x[:MIN_ROWS].to(model.device)))
        for name, n in runs.items():
            if n != 1:
                raise ValueError(
                    f"layer {name} must run once in a pass to be mixed at, and runs {n} times; take another"
                )


def mixed_loss(learner: Learner, x: Tensor, y: Tensor, *, layer: str, weight: Tensor, partner: Tensor) -> Tensor:
    """The mean over a batch of (1) of `ManifoldMixup`, with a weight λ and a partner for each row."""
    w, other = weight.to(x), partner.to(x.device)
    if layer == INPUT:
        z = learner.logits(mixture(x, w, other))
    else:
        with _mixing(learner.module, layer, w, other):
            z = learner.logits(x)
    w = w.to(z)
    own, its = (cross_entropy(z, labels.to(z.device), reduction="none") for labels in (y, y[other]))
    return (w * own + (1 - w) * its).mean()  # (1)


def mixture(h: Tensor, weight: Tensor, partner: Tensor) -> Tensor:
    """Rows mixed with their partners' rows."""
    w = weight.to(h).view(-1, *[1] * (h.ndim - 1))
    return w * h + (1 - w) * h[partner.to(h.device)]  # (1)


@contextmanager
def _mixing(module: nn.Module, layer: str, weight: Tensor, partner: Tensor) -> Iterator[None]:
    """Mix what a layer says while this lasts."""

    def mix(_module: nn.Module, _inputs: Any, output: Any) -> Tensor:
        if not isinstance(output, Tensor) or len(output) != len(weight):
            raise ValueError(f"layer {layer} must give one tensor with a row for each input; take another")
        return mixture(output, weight, partner)

    handle = module.get_submodule(layer).register_forward_hook(mix)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _watched(module: nn.Module, runs: dict[str, int]) -> Iterator[None]:
    """Count how often layers run while this lasts."""

    def count(name: str) -> Any:
        return lambda _module, _inputs, _output: runs.__setitem__(name, runs[name] + 1)

    handles = [module.get_submodule(name).register_forward_hook(count(name)) for name in runs]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
