"""Attacks of Foolbox and of the Adversarial Robustness Toolbox, as fuzzers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from operant.data import Samples
from operant.generate.engine import check_ball, judge
from operant.model import Classifier
from operant.rng import global_streams
from operant.suite import Suite


def from_foolbox(attack: Any, *, radius: float | None = None) -> FoolboxFuzzer:
    """A Foolbox attack as a fuzzer.

    Args:
        attack: for instance ``foolbox.attacks.LinfPGD()``.
        radius: what Foolbox calls epsilon; None for attacks that minimise the distance.
    """
    if radius is not None:
        check_ball(radius, "linf")
    return FoolboxFuzzer(attack=attack, radius=radius)


def from_art(attack: Any, **options: Any) -> ArtFuzzer:
    """An evasion attack of the Adversarial Robustness Toolbox as a fuzzer.

    Args:
        attack: the class, for instance ``art.attacks.evasion.ProjectedGradientDescent``; it is built for each model.
        options: its keyword arguments.
    """
    if options.get("targeted"):
        raise ValueError("targeted attacks are not run: ART would take each label for its target; leave targeted out")
    return ArtFuzzer(attack=attack, options=options)


@dataclass(frozen=True, kw_only=True)
class FoolboxFuzzer:
    """Runs a Foolbox attack on our model; its random numbers come from our generator."""

    attack: Any
    radius: float | None = None

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        foolbox = _require("foolbox", extra="attacks")
        model.check(seeds)
        wrapped = foolbox.PyTorchModel(_Logits(model, seeds.x.dtype).eval(), bounds=model.bounds, device=model.device)
        parts = []
        with global_streams(generator):
            for x, y in zip(seeds.x.split(model.batch_size), seeds.labels.split(model.batch_size), strict=True):
                _, clipped, _ = self.attack(wrapped, x.to(model.device), y.to(model.device), epsilons=self.radius)
                parts.append(clipped.detach().to(x))
        method = f"foolbox-{type(self.attack).__name__}"
        return judge(model, seeds, torch.cat(parts), method=method)


@dataclass(frozen=True, kw_only=True)
class ArtFuzzer:
    """Runs an attack of the Adversarial Robustness Toolbox on our model; it is seeded from our generator."""

    attack: Any
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        _require("art", extra="art")
        from art.estimators.classification import PyTorchClassifier

        model.check(seeds)
        classes = model.classes(seeds.x)
        wrapped = PyTorchClassifier(
            model=_Logits(model, seeds.x.dtype),
            loss=nn.CrossEntropyLoss(),
            input_shape=tuple(seeds.shape),
            nb_classes=classes,
            clip_values=model.bounds,
            device_type="cpu" if model.device.type == "cpu" else "gpu",
        )
        with global_streams(generator):
            attack = self.attack(wrapped, **self.options)
            cases = attack.generate(x=seeds.x.cpu().numpy(), y=np.eye(classes)[seeds.labels.cpu().numpy()])
        x = torch.as_tensor(cases).to(seeds.x).clamp(*model.bounds)
        method = f"art-{self.attack.__name__}"
        return judge(model, seeds, x, method=method)


class _Logits(nn.Module):
    """Our model as the bare module those libraries expect."""

    def __init__(self, model: Classifier, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, x: Tensor) -> Tensor:
        return self.model.logits(x.to(self.dtype))  # ART hands over float32 whatever it was given


def _require(name: str, *, extra: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        raise ImportError(f"{name} is not installed; pip install 'operant[{extra}]'") from None
