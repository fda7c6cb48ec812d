"""A network whose neurons are read in the same pass as its logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from operant.measure.activations import SOFTMAX, Neurons
from operant.model import MIN_ROWS, Classifier, freeze, on_output

ACTIVE = 0.5  # a neuron is active in a row where its value, scaled over its layer, exceeds this


@dataclass(frozen=True, kw_only=True, eq=False)
class NeuronReading:
    """Logits and neuron values of a batch.

    Attributes:
        values: ``(N, neurons)``.
        scaled: the same, scaled to [0, 1] over each row's layer, as in `Neurons`.
    """

    logits: Tensor
    values: Tensor
    scaled: Tensor

    @property
    def active(self) -> Tensor:
        return self.scaled > ACTIVE


Objective = Callable[[NeuronReading], Tensor]
"""From a reading to one value per row, to be raised."""


class Network:
    """A model that returns its neurons' values, and gradients of objectives on them."""

    def __init__(self, model: Classifier, neurons: Neurons, x: Tensor) -> None:
        neurons(model, x[:MIN_ROWS])  # raises for layers that are not the model's
        self.model, self.neurons = model, neurons
        self.module = freeze(model.unwrap())
        self.channels_last = model.channels_last and x.ndim == 4
        parts = dict(self.module.named_modules())
        if self.channels_last:
            for part in parts.values():
                if isinstance(part, nn.Conv2d):
                    part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.taps: dict[str, tuple[Tensor, Tensor]] = {}
        for name in neurons.layers:
            if name != SOFTMAX:
                on_output(parts[name], name, self._tap(name))

    def read(self, x: Tensor) -> NeuronReading:
        with torch.no_grad():
            return self._pass(x)

    def climb(self, x: Tensor, objective: Objective) -> tuple[NeuronReading, Tensor]:
        """A reading, and the gradient of an objective of it."""
        self.model.check_gradients(x)
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            r = self._pass(z)
            value = objective(r).sum() + 0.0 * z.sum()  # the last part for neurons that ignore the input
            (gradient,) = torch.autograd.grad(value, z)
        reading = NeuronReading(logits=r.logits.detach(), values=r.values.detach(), scaled=r.scaled)
        return reading, gradient.nan_to_num(0.0)

    def _pass(self, x: Tensor) -> NeuronReading:
        n = len(x)
        if n < MIN_ROWS:  # fewer rows would be rounded differently
            x = torch.cat([x, x[:1].detach().expand(MIN_ROWS - n, *x.shape[1:])])
        z = self.model.normalise(x)
        if self.channels_last:
            z = z.contiguous(memory_format=torch.channels_last)
        logits = self.module(z.clone() if z is x else z)  # the module may change its input in place
        if SOFTMAX in self.neurons.layers:
            self.taps[SOFTMAX] = _values(logits.softmax(1))
        taps = [self.taps[name] for name in self.neurons.layers]
        values, scaled = (torch.cat(parts, 1)[:n] for parts in zip(*taps, strict=True))
        return NeuronReading(logits=logits[:n], values=values, scaled=scaled)

    def _tap(self, name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda _module, _inputs, output: self.taps.__setitem__(name, _values(output))


def _values(output: Tensor) -> tuple[Tensor, Tensor]:
    """One value per neuron and row, raw and scaled, as in `Neurons`."""
    values = output.mean(tuple(range(2, output.ndim))) if output.ndim > 2 else output.clone()
    with torch.no_grad():
        rest = tuple(range(1, output.ndim))
        low, high = output.amin(rest)[:, None], output.amax(rest)[:, None]
        return values, torch.where(high > low, (values - low) / (high - low), 0.0)
