"""Attacks of Foolbox and of the Adversarial Robustness Toolbox, and AutoAttack, as fuzzers."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from operant.data import Samples
from operant.extras import install_command
from operant.generate.engine import check_ball, judge, project
from operant.model import Classifier
from operant.rng import global_streams
from operant.suite import Suite
from operant.validation import check_at_least, check_one_of, check_positive


def from_foolbox(attack: Any, *, radius: float | None = None) -> FoolboxFuzzer:
    """A Foolbox attack as a fuzzer.

    Args:
        attack: for instance ``foolbox.attacks.LinfPGD()``.
        radius: what Foolbox calls epsilon; None for attacks that minimise the distance.
    """
    if radius is not None:
        check_positive(radius=radius)
    return FoolboxFuzzer(attack=attack, radius=radius)


def from_art(attack: Any, **options: Any) -> ArtFuzzer:
    """An evasion attack of the Adversarial Robustness Toolbox as a fuzzer.

    Args:
        attack: the class, for instance ``art.attacks.evasion.ProjectedGradientDescent``; an instance is made per model.
        options: its keyword arguments.
    """
    if options.get("targeted"):
        raise ValueError("targeted must not be set: ART would take each label for its target; leave it out")
    return ArtFuzzer(attack=attack, options=options)


def from_autoattack(*, radius: float, norm: str = "linf", version: str = "standard") -> AutoAttackFuzzer:
    """AutoAttack, an ensemble of four attacks without parameters to tune, as a fuzzer; needs `pyautoattack`.

    Args:
        radius: of the ball around each seed, in input units.
        norm: ``"linf"`` or ``"l2"``.
        version: ``"standard"`` (APGD on cross-entropy, targeted APGD and FAB, Square), or ``"rand"`` for
            randomised models (APGD on cross-entropy and on DLR, with gradients averaged over 20 passes).

    References:
        | Reliable Evaluation of Adversarial Robustness with an Ensemble of Diverse Parameter-free Attacks
        | (Croce and Hein, 2020)
        | https://arxiv.org/abs/2003.01690
    """
    return AutoAttackFuzzer(radius=radius, norm=norm, version=version)


@dataclass(frozen=True, kw_only=True)
class FoolboxFuzzer:
    """A Foolbox attack; its random numbers come from our generator."""

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
        return judge(model, seeds, torch.cat(parts), method=f"foolbox-{type(self.attack).__name__}")


@dataclass(frozen=True, kw_only=True)
class ArtFuzzer:
    """An attack of the Adversarial Robustness Toolbox, seeded from our generator."""

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
        return judge(model, seeds, x, method=f"art-{self.attack.__name__}")


@dataclass(frozen=True, kw_only=True)
class AutoAttackFuzzer:
    """AutoAttack, seeded from our generator; its random numbers are drawn batch by batch.

    Each attack continues with the seeds that withstood the ones before; a seed that withstands them all is its own
    case. AutoAttack's log is switched off: `Classifier.doctor` checks for the same mistakes.
    """

    radius: float
    norm: str = "linf"
    version: str = "standard"
    batch_size: int = 250

    def __post_init__(self) -> None:
        check_ball(self.radius, self.norm)
        check_one_of(tuple(MIN_CLASSES), version=self.version)
        check_at_least(1, batch_size=self.batch_size)

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        pyautoattack = _require("pyautoattack", extra="attacks")
        model.check(seeds)
        _check_for_autoattack(model, seeds, self.version)
        low, high = model.bounds
        unit = ((seeds.x - low) / (high - low)).float()  # it takes float32 in [0, 1] only
        with _quiet(), global_streams(generator):
            attack = pyautoattack.AutoAttack(
                _Logits(model, seeds.x.dtype, bounds=model.bounds),
                eps=self.radius / (high - low),
                norm={"linf": "Linf", "l2": "L2"}[self.norm],
                version=self.version,
                seed=torch.initial_seed() % 2**31,
                device=model.device,
            )
            attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = min(9, model.classes(seeds.x) - 1)
            cases, _ = attack.run_standard_evaluation(unit, seeds.labels, batch_size=self.batch_size)
        x = seeds.x + (cases - unit).to(seeds.x) * (high - low)
        x = project(x, seeds.x, self.radius, self.norm, model.bounds)
        return judge(model, seeds, x, method=f"autoattack-{self.version}-{self.norm}")


MIN_CLASSES = {"standard": 4, "rand": 3}  # for the difference of logits ratio, targeted and not


def _check_for_autoattack(model: Classifier, seeds: Samples, version: str) -> None:
    if seeds.x.ndim != 4:
        raise ValueError(f"AutoAttack needs images (N, C, H, W), got shape {tuple(seeds.x.shape)}; use PGD")
    classes, needed = model.classes(seeds.x), MIN_CLASSES[version]
    if classes < needed:
        raise ValueError(f'AutoAttack in version "{version}" needs at least {needed} classes, got {classes}; use PGD')
    if not math.isfinite(model.bounds[1] - model.bounds[0]):
        raise ValueError(f"AutoAttack needs finite bounds, got {model.bounds}; give Classifier the bounds of your data")


@contextmanager
def _quiet() -> Iterator[None]:
    """Switch off AutoAttack's log, and restore the debugger's trace, which AutoAttack removes."""
    log, trace = logging.getLogger("auto-attack"), sys.gettrace()
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
        sys.settrace(trace)


class _Logits(nn.Module):
    """Our model as the module that those libraries expect; ``bounds`` maps [0, 1] to our range."""

    def __init__(self, model: Classifier, dtype: torch.dtype, *, bounds: tuple[float, float] = (0.0, 1.0)) -> None:
        super().__init__()
        self.model, self.dtype, self.bounds = model, dtype, bounds

    def forward(self, x: Tensor) -> Tensor:
        low, high = self.bounds
        x = x.to(self.dtype)  # ART always passes float32
        return self.model.logits(x if self.bounds == (0.0, 1.0) else low + (high - low) * x)


def _require(name: str, *, extra: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        raise ImportError(f"{name} is not installed; {install_command(extra)}") from None
