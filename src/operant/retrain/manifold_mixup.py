"""Manifold mixup: a loss on mixtures of inputs, or of a hidden layer's outputs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from scipy.special import betaincinv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from operant.model import MIN_ROWS, Classifier
from operant.retrain.losses import TrainingBatch
from operant.retrain.training import TrainableModel
from operant.validation import check_one_of, check_positive

INPUT = "input"


@dataclass(frozen=True, kw_only=True)
class ManifoldMixup:
    """Cross-entropy of mixtures of rows, made at a layer that is drawn for every batch.

        h ← λ h(x) + (1 - λ) h(x'),    J = λ J(f, y) + (1 - λ) J(f, y'),    λ ~ Beta(alpha, alpha)        (1)

    for rows (x, y) and their partners (x', y') of one batch, with h the output of the drawn layer and J the
    cross-entropy.

    Args:
        layers: names of submodules, each of which runs once per pass; ``"input"`` is the input itself, which makes it
            plain mixup. Verma et al. take the input and the outputs of the first two blocks.
        alpha: small values hardly mix; the paper has 2.
        mix: ``"all"``, every row with any other of its batch, as Verma et al.; ``"cases"``, cases with each other, and
            training data unmixed, as Zhang retrains; ``"across"``, cases with training data, which stay unmixed too.

    References:
        | Manifold Mixup: Better Representations by Interpolating Hidden States (Verma et al., 2019)
        | https://arxiv.org/abs/1806.05236
        | Uncertainty-Guided Testing and Robustness Enhancement for Deep Learning Systems (Zhang, 2020), section 2.4
    """

    layers: Sequence[str] = (INPUT,)
    alpha: float = 2.0
    mix: str = "all"

    def __post_init__(self) -> None:
        if isinstance(self.layers, str) or not self.layers:
            raise ValueError(f'layers must be several names, such as ["input", "conv1"], got {self.layers!r}')
        check_positive(alpha=self.alpha)
        check_one_of(("all", "cases", "across"), mix=self.mix)

    def __call__(self, model: TrainableModel, batch: TrainingBatch, *, generator: torch.Generator) -> Tensor:
        layer, weight, partner = self._drawn(batch.is_case.to(generator.device), generator)
        return mixed_loss(model, batch.x, batch.y, layer=layer, weight=weight, partner=partner)

    def _drawn(self, is_case: Tensor, generator: torch.Generator) -> tuple[str, Tensor, Tensor]:
        """A layer; and the weight and the partner of each row of a batch. The weight of an unmixed row is 1."""
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

    def check(self, model: Classifier, x: Tensor) -> None:
        """Raise ValueError unless the model runs each of the layers once per pass."""
        hidden = [name for name in self.layers if name != INPUT]
        if unknown := [name for name in hidden if name not in model.layers]:
            raise ValueError(f"no layer named {', '.join(unknown)}; this model has {', '.join((INPUT, *model.layers))}")
        module, runs = model.unwrap().eval(), dict.fromkeys(hidden, 0)
        for name in runs:
            module.get_submodule(name).register_forward_hook(_counter(runs, name))
        with torch.no_grad():
            module(model.normalise(x[:MIN_ROWS].to(model.device)))
        for name, n in runs.items():
            if n != 1:
                raise ValueError(f"layer {name} must run once per pass to be mixed, and runs {n} times; choose another")


def mixed_loss(model: TrainableModel, x: Tensor, y: Tensor, *, layer: str, weight: Tensor, partner: Tensor) -> Tensor:
    """The mean over a batch of (1) of `ManifoldMixup`, with a weight λ and a partner for each row."""
    w, other = weight.to(x), partner.to(x.device)
    if layer == INPUT:
        z = model.logits(mixture(x, w, other))
    else:
        with _mixing(model.module, layer, w, other):
            z = model.logits(x)
    w = w.to(z)
    own, its = (cross_entropy(z, labels.to(z.device), reduction="none") for labels in (y, y[other]))
    return (w * own + (1 - w) * its).mean()  # (1)


def mixture(h: Tensor, weight: Tensor, partner: Tensor) -> Tensor:
    """Rows mixed with their partners' rows."""
    w = weight.to(h).view(-1, *[1] * (h.ndim - 1))
    return w * h + (1 - w) * h[partner.to(h.device)]  # (1)


@contextmanager
def _mixing(module: nn.Module, layer: str, weight: Tensor, partner: Tensor) -> Iterator[None]:
    """Mix the outputs of a layer inside the block."""

    def mix(_module: nn.Module, _inputs: Any, output: Any) -> Tensor:
        if not isinstance(output, Tensor) or len(output) != len(weight):
            raise ValueError(f"layer {layer} must return one tensor with a row for each input; choose another")
        return mixture(output, weight, partner)

    handle = module.get_submodule(layer).register_forward_hook(mix)
    try:
        yield
    finally:
        handle.remove()


def _counter(runs: dict[str, int], name: str) -> Any:
    """A forward hook that counts the runs of a layer."""
    return lambda _module, _inputs, _output: runs.__setitem__(name, runs[name] + 1)
