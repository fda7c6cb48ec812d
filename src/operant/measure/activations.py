"""Activations of neurons: one number per row for each unit or channel of a layer. Coverage and surprise use them."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from operant.model import MIN_ROWS, Classifier
from operant.validation import check_finite

SOFTMAX = "softmax"  # reserved name for the class probabilities, which are not a layer of the module
LOGITS = ""  # the name of the module itself: its output
PASS_THROUGH = {"torch.nn.modules.dropout", "torch.nn.modules.flatten"}
FINISHERS = {f"torch.nn.modules.{kind}" for kind in ("activation", "batchnorm", "instancenorm", "normalization")}


@dataclass(frozen=True, kw_only=True)
class Neurons:
    """Which neurons of a model to read: the units or channels of these layers, concatenated.

    A feature map ``(N, channels, ...)`` has one neuron per channel, whose value is the mean over all positions, as in
    DeepXplore and the surprise adequacy paper. With ``scaled``, a layer's whole output is first scaled to [0, 1] row by
    row,

        s = (v − min v) / (max v − min v),   0 where max v = min v,                (1)

    which is DeepXplore's scaling for neuron coverage (for the papers see `operant.measure.coverage` and ``surprise``).
    """

    layers: tuple[str, ...]  # names of submodules; "softmax" stands for the class probabilities
    sizes: tuple[int, ...]  # neurons per layer
    scaled: bool = False  # apply (1)

    def __post_init__(self) -> None:
        if not self.layers or len(self.layers) != len(self.sizes):
            raise ValueError(f"layers must not be empty and need one size each, got {self.layers} and {self.sizes}")
        if repeated := [name for name, n in Counter(self.layers).items() if n > 1]:
            raise ValueError(f"each layer must be named once, got {', '.join(repeated)} more than once")

    @property
    def count(self) -> int:
        """Total number of neurons."""
        return sum(self.sizes)

    def __call__(self, model: Classifier, x: Tensor) -> Tensor:
        """Activations ``(N, count)``, computed in batches without gradients."""
        return torch.cat(list(self.parts(model, x)))

    def parts(self, model: Classifier, x: Tensor) -> Iterator[Tensor]:
        """The activations batch by batch, so that they need not all be in memory."""
        for part in x.split(model.batch_size):
            outputs = _outputs(model, part, self.layers)
            columns = [_values(outputs[name], scaled=self.scaled) for name in self.layers]
            for name, size, values in zip(self.layers, self.sizes, columns, strict=True):
                if values.shape[1] != size:
                    raise ValueError(
                        f"layer {name} must have {size} neurons, this model has {values.shape[1]} there; "
                        "use the model whose neurons these are"
                    )
            yield torch.cat(columns, 1)

    def check(self, activations: Tensor) -> None:
        """Raise unless these can be activations of these neurons."""
        check_activations(activations)
        if activations.shape[1] != self.count:
            raise ValueError(
                f"activations must have one column for each of {self.count} neurons, got shape "
                f"{tuple(activations.shape)}; read them with the same Neurons"
            )


def find_neurons(model: Classifier, x: Tensor, *, layers: Sequence[str] | None = None, scaled: bool = False) -> Neurons:
    """The neurons of the named layers (default: of every layer), counted by running a few rows of ``x``.

    Every layer means: each innermost submodule that runs, in the order they run, and finally the softmax of the logits.
    Submodules that only pass values through (dropout, flatten, identity) are left out, and so are those whose output
    goes directly into an activation or a normalisation: its output represents the whole layer. By this rule LeNet-5
    has 6 + 6 + 16 + 16 + 120 + 84 + 10 + 10 = 268 neurons, as in DeepHunter. If an activation is a function instead of
    a submodule, or one submodule that several layers share, those layers are represented by their output before it.

    >>> from operant.networks import LeNet5
    >>> neurons = find_neurons(Classifier(LeNet5()), torch.rand(2, 1, 28, 28))
    >>> neurons.layers
    ('relu_conv1', 'pool1', 'relu_conv2', 'pool2', 'relu_fc1', 'relu_fc2', 'fc3', 'softmax')
    >>> neurons.sizes, neurons.count
    ((6, 6, 16, 16, 120, 84, 10, 10), 268)

    References:
        | DeepHunter: A Coverage-Guided Fuzz Testing Framework for Deep Neural Networks (Xie et al., 2019)
        | https://arxiv.org/abs/1809.01266
    """
    if isinstance(layers, str):
        raise ValueError(f"layers must be a list of names, got the single string {layers!r}; write [{layers!r}]")
    if layers is not None and len(layers) == 0:
        raise ValueError(f"layers must name at least one of {', '.join((*model.layers, SOFTMAX))}; got none")
    x = x[:MIN_ROWS]
    names = every_layer(model, x) if layers is None else tuple(layers)
    outputs = _outputs(model, x, names)
    return Neurons(layers=names, sizes=tuple(_values(outputs[name]).shape[1] for name in names), scaled=scaled)


def neurons(model: Classifier, x: Tensor, *, layers: Sequence[str] | None = None) -> Tensor:
    """Activations ``(N, neurons)`` of the named layers (default: every layer); see `find_neurons`."""
    return find_neurons(model, x, layers=layers)(model, x)


def every_layer(model: Classifier, x: Tensor) -> tuple[str, ...]:
    """The default layers of `find_neurons`."""
    model.check_inputs(x)
    module = model.unwrap().eval()
    trace = _Trace(rows=2 * len(x))
    for name, part in module.named_modules():
        if _is_innermost(name, part):
            part.register_forward_hook(trace.hook(name))
    with torch.no_grad():
        module(model.normalise(torch.cat([x, x]).to(model.device)))
    return (*trace.layers(), SOFTMAX)


def check_activations(activations: Tensor) -> None:
    """Raise unless this is a finite matrix ``(N, neurons)`` of floating-point numbers."""
    if activations.ndim != 2 or not activations.is_floating_point():
        raise ValueError(
            f"activations must be floating-point numbers (N, neurons), got {activations.dtype} of shape "
            f"{tuple(activations.shape)}; flatten or average each row's values"
        )
    check_finite(activations=activations)


class _Trace:
    """Which submodules ran, in which order, and whose output went directly into which other.

    An output is recognised by its memory address; all outputs are kept alive so that addresses stay unique.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.runs: Counter[str] = Counter()  # in the order of the first run
        self.maker: dict[int, str] = {}
        self.finisher: dict[str, str] = {}
        self.alive: list[Tensor] = []

    def hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def record(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if not isinstance(output, Tensor) or output.ndim < 2 or len(output) != self.rows:
                return
            before = self.maker.get(inputs[0].data_ptr()) if inputs and isinstance(inputs[0], Tensor) else None
            if not _is_of(module, PASS_THROUGH) and not isinstance(module, nn.Identity):
                self.runs[name] += 1
                if before is not None and _is_of(module, FINISHERS):
                    self.finisher[before] = name
                before = name
            if before is not None:
                self.maker[output.data_ptr()] = before
            self.alive.append(output)

        return record

    def layers(self) -> list[str]:
        """Submodules that are not directly followed by an activation or normalisation that runs once."""
        return [name for name in self.runs if name not in self.finisher or self.runs[self.finisher[name]] > 1]


def _is_innermost(name: str, module: nn.Module) -> bool:
    """Whether a module contains no other layers; parametrisations, which compute weights, do not count as layers."""
    parts = name.split(".")
    return "parametrizations" not in parts and all(child == "parametrizations" for child, _ in module.named_children())


def _is_of(module: nn.Module, files: set[str]) -> bool:
    return any(kind.__module__ in files for kind in type(module).__mro__)


def _outputs(model: Classifier, x: Tensor, layers: Sequence[str]) -> dict[str, Tensor]:
    taps = dict.fromkeys(LOGITS if name == SOFTMAX else name for name in layers)
    outputs = model.features(x, layers=list(taps))
    if SOFTMAX in layers:
        outputs[SOFTMAX] = outputs[LOGITS].softmax(1)
    return outputs


def _values(output: Tensor, *, scaled: bool = False) -> Tensor:
    """One value per neuron and row."""
    values = output.flatten(2).mean(2) if output.ndim > 2 else output.reshape(len(output), -1)
    if not scaled:
        return values
    low, high = output.flatten(1).amin(1, keepdim=True), output.flatten(1).amax(1, keepdim=True)
    return torch.where(high > low, (values - low) / (high - low), 0.0)  # (1)
