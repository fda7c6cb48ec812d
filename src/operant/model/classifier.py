"""Wraps a PyTorch module as a classifier with a known input range."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from operant.data import Samples
from operant.model.copies import copy_module, freeze, on_output
from operant.model.errors import (
    ModuleFails,
    NoGradients,
    NotLogits,
    WrongChannels,
    explained,
    first_line,
    how_to_wrap,
    no_gradients,
)
from operant.model.fast import FastCopy, fast_copies
from operant.model.gradients import rows_with_gradient
from operant.rng import spawn, uniform_like
from operant.validation import check_ascending, check_at_least, check_within

if TYPE_CHECKING:
    from operant.model.doctor import Finding

MIN_ROWS = 16
"""Smaller batches are padded to this many rows, since CPU kernels round differently below it."""
WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # the last of these that runs gives the logits
PROBE_ROWS = 32  # rows on which a fast copy is compared with the module


class Classifier:
    """A classifier to test, made from any module that returns logits.

    Inputs are always in input units, within ``bounds``; the classifier normalises them itself. It works on a frozen
    copy of the module in evaluation mode and never changes the original.

    Args:
        module: takes ``(N, *shape)``, returns logits ``(N, classes)``.
        bounds: smallest and largest value an input may have.
        mean, std: subtracted from the inputs, then divided by, before the module runs: a number, or one value per
            channel (the first dimension of an input).
        batch_size: rows computed at once.
        strict: run the module unchanged, without the optimisations that `notes` lists.

    >>> model = Classifier(nn.Linear(4, 3))
    >>> model.predict(torch.rand(5, 4)).shape
    torch.Size([5])
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        bounds: tuple[float, float] = (0.0, 1.0),
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        batch_size: int = 256,
        strict: bool = False,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}{how_to_wrap(module)}")
        check_ascending(finite=False, bounds=bounds)
        check_at_least(1, batch_size=batch_size)
        _check_normalisation("mean", mean)
        _check_normalisation("std", std, positive=True)
        self.bounds = (float(bounds[0]), float(bounds[1]))
        self.batch_size = batch_size
        self.strict = strict
        self._mean, self._std = mean, std
        self._trainable = {name for name, p in module.named_parameters() if p.requires_grad}
        self._plain = freeze(copy_module(module))
        self._run: nn.Module | None = self._plain if strict else None  # chosen on the first batch
        self._on_meta = any(values.is_meta for values in chain(module.parameters(), module.buffers()))
        self._channels_last = False
        self._classes: int | None = None
        self._hash: str | None = None  # of its content, see `operant.model.hashing.content_hash`
        self._known = {"gradients": False}  # shared with shallow copies, so that each model is examined once
        self.notes: tuple[str, ...] = ("strict: the module runs unchanged" if strict else "not run yet",)

    def __repr__(self) -> str:
        return f"Classifier({type(self._plain).__name__}, bounds={self.bounds}, batch_size={self.batch_size})"

    # Outputs

    def logits(self, x: Tensor) -> Tensor:
        """Logits ``(N, classes)`` of one batch, differentiable in ``x``.

        Raises a ValueError if ``x`` requires gradients and the module has none; see `check_gradients`.
        """
        if x.requires_grad and torch.is_grad_enabled():
            self.check_gradients(x)
        return self.unchecked_logits(x)

    def unchecked_logits(self, x: Tensor) -> Tensor:
        """The same, also for a module without gradients."""
        self.prepare(x)
        return self._forward(self._run, x, channels_last=self._channels_last)  # type: ignore[arg-type]

    def prepare(self, x: Tensor) -> None:
        """Choose the fastest way to run the module, which takes a few passes; `logits` calls this by itself.

        Call it before hooking into the module, so that the hooks see none of these extra passes.
        """
        if self._run is None:
            self._choose(x.detach())

    def predict(self, x: Tensor) -> Tensor:
        """Predicted classes ``(N,)``, computed in batches, on the device of ``x``."""
        return self.batched_logits(x).argmax(1)

    def probs(self, x: Tensor) -> Tensor:
        """Class probabilities ``(N, classes)``, computed in batches, on the device of ``x``."""
        return self.batched_logits(x).softmax(1)

    def batched_logits(self, x: Tensor) -> Tensor:
        """Logits of any number of inputs, without gradients; raises on bad inputs and on NaN or infinite logits."""
        self.check_inputs(x)
        with torch.no_grad(), explained(x):
            logits = torch.cat([self.logits(part) for part in x.split(self.batch_size)])
        if not bool(torch.isfinite(logits).all()):
            bad = int((~torch.isfinite(logits)).any(1).sum())
            raise ValueError(f"the module returned NaN or infinite logits for {bad} of {len(x)} inputs; run doctor()")
        return logits.to(x.device)

    def features(self, x: Tensor, *, layers: Sequence[str]) -> dict[str, Tensor]:
        """Outputs of the named submodules, one row per input, computed in batches without gradients.

        They come from the unoptimised copy, so every layer computes what the user's code says. A submodule that runs
        more than once in a pass gives its last output.
        """
        self.check_inputs(x)
        if isinstance(layers, str):
            raise ValueError(f"layers must be several names, got the single string {layers!r}; write [{layers!r}]")
        modules = dict(self._plain.named_modules())
        if unknown := [name for name in layers if name not in modules]:
            raise ValueError(f"no layer named {', '.join(unknown)}; this model has {', '.join(self.layers)}")
        taps: dict[str, Any] = {}

        def tap(name: str) -> Callable[[nn.Module, Any, Any], None]:
            return lambda _module, _inputs, output: taps.__setitem__(name, _tapped(output))

        parts: dict[str, list[Tensor]] = {name: [] for name in layers}
        with ExitStack() as hooks, torch.no_grad():
            for name in layers:
                hooks.enter_context(on_output(modules[name], name, tap(name)))
            for part in x.split(self.batch_size):
                with explained(part):
                    self._forward(self._plain, part)
                for name in layers:
                    output = _one_per_row(name, taps.pop(name, None), max(len(part), MIN_ROWS))
                    parts[name].append(output[: len(part)].to(x.device))
        return {name: torch.cat(values) for name, values in parts.items()}

    def penultimate(self, x: Tensor) -> Tensor | None:
        """What the last linear or convolutional layer reads, ``(N, d)``, computed in batches without gradients.

        Feature maps are averaged over their positions. None if no such layer can be observed, as in scripted modules.
        """
        self.check_inputs(x)
        read: list[Tensor] = []
        parts: list[Tensor] = []
        with ExitStack() as hooks, torch.no_grad():
            for module in self._plain.modules():
                if isinstance(module, WEIGHTED):
                    hooks.enter_context(
                        module.register_forward_pre_hook(lambda _module, inputs: read.extend(inputs[:1]))
                    )
            for part in x.split(self.batch_size):
                read.clear()
                with explained(part):
                    self._forward(self._plain, part)
                if not read or len(read[-1]) != max(len(part), MIN_ROWS):
                    return None
                parts.append(_flat(read[-1])[: len(part)].to(x.device))
        return torch.cat(parts)

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the submodules that `features` can return."""
        return tuple(name for name, _ in self._plain.named_modules() if name)

    def classes(self, x: Tensor) -> int:
        """The number of classes, found by running a few rows of ``x``."""
        if self._classes is None:
            with torch.no_grad(), explained(x):
                self.logits(x[:MIN_ROWS])
        assert self._classes is not None
        return self._classes

    @property
    def channels_last(self) -> bool:
        """Whether images run in channels-last memory format; set by `prepare` or the first batch."""
        return self._channels_last

    @property
    def device(self) -> torch.device:
        """The module's device; inputs are moved there and outputs are moved back."""
        return next((t.device for t in chain(self._plain.parameters(), self._plain.buffers())), torch.device("cpu"))

    # Modules and samples

    def normalise(self, x: Tensor) -> Tensor:
        """Inputs as the bare module expects them: minus mean, divided by std."""
        if self._mean is not None:
            x = x - self._per_channel(self._mean, x)
        if self._std is not None:
            x = x / self._per_channel(self._std, x)
        return x

    def unwrap(self) -> nn.Module:
        """A trainable copy of the user's module; its inputs must be passed through `normalise`.

        Parameters that the user had frozen stay frozen, unless all of them were.
        """
        module = copy_module(self._plain)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in self._trainable or not self._trainable)
        return module

    def rewrap(self, module: nn.Module) -> Classifier:
        """A classifier for another module (such as a retrained copy) with the same settings."""
        settings = {"bounds": self.bounds, "mean": self._mean, "std": self._std, "batch_size": self.batch_size}
        return Classifier(module, strict=self.strict, **settings)  # type: ignore[arg-type]

    def match_dtype(self, samples: Samples) -> Samples:
        """The samples with inputs in the floating-point type of the module; files are read as float32.

        >>> Classifier(nn.Linear(4, 3).double()).match_dtype(Samples(torch.rand(5, 4))).x.dtype
        torch.float64
        """
        dtype = next((p.dtype for p in self._plain.parameters() if p.is_floating_point()), samples.x.dtype)
        return replace(samples, x=samples.x.to(dtype))

    # Checks

    def check_inputs(self, x: Tensor) -> None:
        """Raise a ValueError if inputs are empty, NaN or outside `bounds`."""
        if x.numel() == 0:
            raise ValueError("there are no inputs; give at least one row")
        advice = "rescale them, or set the model's bounds to those of your data"
        check_within(self.bounds, slack=slack_of(self.bounds), advice=advice, inputs=x)

    def check(self, samples: Samples) -> None:
        """Raise a ValueError on bad inputs, missing labels or labels outside the classes."""
        self.check_inputs(samples.x)
        with torch.no_grad(), explained(samples.x):
            self.logits(samples.x[:MIN_ROWS])
        classes, highest = self.classes(samples.x), int(samples.labels.max())
        if highest >= classes:
            advice = "check the label encoding"
            called = f" ({samples.classes[highest]})" if samples.classes else ""
            raise ValueError(f"labels must be below the model's {classes} classes, got {highest}{called}; {advice}")

    def check_gradients(self, x: Tensor) -> None:
        """Raise a ValueError if the logits have no gradient at any of these inputs.

        A search that follows gradients would stay where it is, and the model would look robust. Rows of zero gradient
        are normal, so a single row that has one suffices, and the model is not examined again. Fewer rows than
        `MIN_ROWS` may all be such rows, so noise is examined too.
        """
        if self._known["gradients"]:
            return
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):  # random layers draw the same as without
            self._known["gradients"] = any(rows_with_gradient(self.unchecked_logits, part) for part in self._probes(x))
        if not self._known["gradients"]:
            raise no_gradients(f"the gradients of its logits are zero or NaN at all {len(x)} of them")

    def has_gradients(self, x: Tensor) -> bool:
        """Whether `check_gradients` passes; a module that fails gets its own error when it is used."""
        try:
            self.check_gradients(x)
        except (NoGradients, ModuleFails):
            return False
        return True

    def correct(self, samples: Samples) -> Samples:
        """The samples that the model classifies correctly; most tests start from these."""
        self.check(samples)
        return samples[self.predict(samples.x) == samples.labels]

    def accuracy(self, samples: Samples) -> float:
        """Share of the samples that the model classifies correctly."""
        self.check(samples)
        return float((self.predict(samples.x) == samples.labels).double().mean())

    def doctor(self, samples: Samples, *, expect: float | None = None) -> tuple[Finding, ...]:
        """Find mistakes that make test results meaningless, and an accuracy below ``expect``.

        See `operant.model.doctor`.
        """
        from operant.model.doctor import examine

        return examine(self, samples, expect=expect)

    # Implementation

    def _forward(self, module: nn.Module, x: Tensor, *, rows: int = MIN_ROWS, channels_last: bool = False) -> Tensor:
        """Logits of ``x``, computed in a batch of at least ``rows``."""
        n = len(x)
        if n == 0:
            raise ValueError("there are no inputs; give at least one row")
        if self._on_meta:
            raise ModuleFails("the module's weights are on the meta device and have no values; load them first")
        z = self.normalise(x.to(self.device))
        if n < rows:
            z = torch.cat([z, z[:1].detach().expand(rows - n, *z.shape[1:])])
        if channels_last and z.ndim == 4:
            z = z.contiguous(memory_format=torch.channels_last)
        if z is x:
            z = z.clone()  # the module may modify its input in place
        logits = _checked_logits(module(z), len(z))
        self._classes = logits.shape[1]
        return logits[:n]

    def _choose(self, x: Tensor) -> None:
        """Use the fastest copy that reproduces the module's logits on the first batch."""
        x = x[:PROBE_ROWS]
        with torch.no_grad():
            self._forward(self._plain, x)  # errors of the module itself reach the user
            notes: list[str] = []
            for copy in fast_copies(self._plain, images=x.ndim == 4):
                if problem := self._problem(copy, x):
                    notes.append(f"{copy.name}: not used, {problem}")
                    continue
                self._run, self._channels_last = copy.module, copy.channels_last
                self.notes = (*notes, f"{copy.name}: in use", *copy.notes)
                return

    def _problem(self, copy: FastCopy, x: Tensor) -> str | None:
        """Why a copy cannot replace the module; None if it can.

        One batch may not expose a difference (empty images, outputs that hardly vary). So the copy is also compared on
        noise and in double precision, where a difference cannot be rounding.
        """
        if copy.module is self._plain:
            return None
        try:
            if not self._agree(copy, self._plain, x, tolerance=1e-4):
                return "its logits differ from the module's"
        except Exception as error:  # the user's code may raise anything
            return f"it fails ({first_line(error)})"
        try:
            plain = copy_module(self._plain).double()
            double = next(c for c in fast_copies(plain, images=x.ndim == 4) if c.name == copy.name)
            same = self._agree(double, plain, self._probe(x).double(), tolerance=1e-9)
        except Exception:  # the device or module lacks float64, or rejects noise: the batch must suffice
            return None
        return None if same else "its logits differ from the module's in double precision"

    def _agree(self, copy: FastCopy, plain: nn.Module, x: Tensor, *, tolerance: float) -> bool:
        a = self._forward(plain, x, rows=1)
        b = self._forward(copy.module, x, rows=1, channels_last=copy.channels_last)
        scale = 1 + float(a[a.isfinite()].abs().amax()) if bool(a.isfinite().any()) else 1.0
        return torch.allclose(a, b, rtol=10 * tolerance, atol=tolerance * scale, equal_nan=True)

    def _probe(self, x: Tensor) -> Tensor:
        """A few real inputs and as many inputs of noise."""
        return torch.cat([x[:4], self._noise(x[:4])])

    def _noise(self, x: Tensor) -> Tensor:
        """Uniform numbers within bounds, shaped like ``x``."""
        low, high = (b if math.isfinite(b) else math.copysign(1.0, b) for b in self.bounds)
        return uniform_like(x, low, high, generator=spawn(0, "probe"))

    def _probes(self, x: Tensor) -> Iterator[Tensor]:
        """Inputs whose gradients are examined, cheapest first."""
        yield x[:MIN_ROWS]
        yield from x[MIN_ROWS:].split(self.batch_size) if len(x) > MIN_ROWS else ()
        if len(x) < MIN_ROWS:
            yield self._noise(x[:1].expand(MIN_ROWS, *x.shape[1:]))

    @staticmethod
    def _per_channel(value: float | Sequence[float], x: Tensor) -> Tensor:
        v = torch.as_tensor(value, dtype=x.dtype, device=x.device)
        if v.ndim == 0:
            return v
        if v.ndim != 1 or len(v) != x.shape[1]:
            raise WrongChannels(f"mean and std must be a number or one value per channel ({x.shape[1]}), got {value}")
        return v.view(-1, *[1] * (x.ndim - 2))


def slack_of(bounds: tuple[float, float]) -> float:
    """How far rounding may push an input outside the bounds."""
    width = bounds[1] - bounds[0]
    return 1e-6 * width if math.isfinite(width) else 0.0


def _check_normalisation(name: str, value: float | Sequence[float] | None, *, positive: bool = False) -> None:
    """Finite numbers, also once they are rounded to the type of the inputs."""
    if value is None:
        return
    what = "positive and finite" if positive else "finite"
    for dtype, where in ((torch.float64, ""), (None, " in float32 too, from 1.4e-45 to 3.4e+38 in size")):
        v = torch.as_tensor(value, dtype=dtype)
        if not bool(v.isfinite().all()) or (positive and not bool((v > 0).all())):
            raise ValueError(f"{name} must be {what}{where}, got {value}")


def _one_per_row(name: str, output: Any, n: int) -> Tensor:
    if output is None:
        raise ValueError(f"layer {name} was not run by the module's forward pass; choose another")
    if not isinstance(output, Tensor):
        raise ValueError(f"layer {name} returns a {type(output).__name__}, not a tensor; choose a layer inside it")
    if len(output) != n:
        got = f"{len(output)} for {n} inputs"
        raise ValueError(f"layer {name} must give one output per input, got {got}; choose another")
    return output


def _flat(features: Tensor) -> Tensor:
    """One row per input; feature maps are averaged over their positions."""
    return features.flatten(2).mean(2) if features.ndim > 2 else features.clone()


def _tapped(output: Any) -> Any:
    return output.clone() if isinstance(output, Tensor) else output  # a later layer may modify it in place


def _checked_logits(logits: Any, n: int) -> Tensor:
    if not isinstance(logits, Tensor):
        raise NotLogits(f"the module must return logits (N, classes), got a {type(logits).__name__}")
    if logits.ndim != 2 or len(logits) != n or logits.shape[1] < 2 or not logits.is_floating_point():
        raise NotLogits(
            "the module must return floating-point logits (N, classes) with at least two classes, got "
            f"{logits.dtype} of shape {tuple(logits.shape)} for {n} inputs"
        )
    return logits
