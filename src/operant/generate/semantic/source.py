"""Generative modules as sources of tests: images of a class, features to perturb, and a memory of latents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from operant.data import Samples
from operant.generate.semantic.quality import Quality, compare
from operant.model import MIN_ROWS, Classifier, copy_module, slack_of
from operant.networks import CVAE, GAN
from operant.rng import spawn
from operant.validation import (
    check_ascending,
    check_at_least,
    check_not_empty,
    check_positive,
    check_row_shape,
    check_within,
)

BATCH = 256  # images per batch
MAX_CLASSES = 16  # classes that the spread of features is measured on
BLOCK = re.compile(r"linear|blocks(\.\d+)+")  # names of layers of a BigGAN
WEIGHTED_LAYERS = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)


@dataclass(frozen=True, eq=False, kw_only=True)
class FeatureSource:
    """A generative module g(z, y) as a source of tests.

    ``FeatureSource.of(fitted)`` makes one from the result of `fit_gan` or `fit_cvae`, `from_biggan` from a module like
    BigGAN; any other module that makes images from latents and classes works as well. The module is copied; the copy is
    frozen and in evaluation mode.

    `seeds` draws labelled images and remembers their latents, so that `FeatureFuzz` can make each image again with its
    features perturbed. ``operant.results.save(source.latents, path)`` stores the memory, and
    ``source.remember(load(path, Samples))`` restores it.

    Args:
        module: takes latents ``(N, latent)`` and classes ``(N,)``, returns images ``(N, *shape)``.
        latent: size of a latent.
        classes: number of classes; class y is label y.
        bounds: smallest and largest value of an image, as in the model under test.
        output: the range that the module returns, scaled linearly to ``bounds``; ``(-1, 1)`` where a module ends in
            tanh. None if its output is within bounds already.
        embed: from classes to what the module takes in their place.
        std: of the latents, normal with mean 0; below 1 it resembles BigGAN's truncation.
        layers: names of submodules in the order they run (default: all dense and convolutional ones that run once).
        quality: measured by `rated`.
        spreads: by layer, the standard deviation of each value of its output within a class; measured on first use.
        memory: the latents of seeds that were drawn.
    """

    module: nn.Module = field(repr=False)
    latent: int
    classes: int
    bounds: tuple[float, float] = (0.0, 1.0)
    output: tuple[float, float] | None = None
    embed: Callable[[Tensor], Tensor] | None = field(default=None, repr=False)
    std: float = 1.0
    layers: tuple[str, ...] = ()
    quality: Quality | None = None
    spreads: dict[str, Tensor] = field(default_factory=dict, repr=False)
    memory: list[Samples] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        check_at_least(1, latent=self.latent, classes=self.classes)
        check_positive(std=self.std)
        check_ascending(finite=self.output is not None, bounds=self.bounds)
        if self.output is not None:
            check_ascending(output=self.output)
        object.__setattr__(self, "module", copy_module(self.module).eval().requires_grad_(False))
        if not self.layers:
            object.__setattr__(self, "layers", self._layers_in_order())

    @staticmethod
    def of(fitted: GAN | CVAE) -> FeatureSource:
        """A source from the result of `fit_gan` or `fit_cvae`."""
        return FeatureSource(module=fitted.module, latent=fitted.latent, classes=fitted.classes, bounds=fitted.bounds)

    # Images

    def __call__(self, z: Tensor, y: Tensor, moves: Mapping[str, Tensor] | None = None) -> Tensor:
        """Images of classes ``y`` from latents ``z``, differentiable in ``z`` and ``moves``.

            t(g(z, y), p) = (g'ₙ ∘ … ∘ g'₁)(z, y, p),   g'ᵢ(o, p) = gᵢ(o) + pᵢ        (1)

        Args:
            z, y: one per row.
            moves: by layer name, what is added to its output, one per row; ``"z"`` is the latent itself.
        """
        n, moves = len(z), dict(moves or {})
        if "z" in moves:
            z = z + moves.pop("z")
        z, y = _padded(z), _padded(y)
        with self._hooked({name: partial(_add, _padded(move)) for name, move in moves.items()}):
            x = self.module(z, y if self.embed is None else self.embed(y))
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2 or len(x) != len(z):
            raise ValueError(f"the module must return an image for each of {len(z)} latents, got {x!r:.60}")
        if self.output is not None:
            (a, b), (low, high) = self.output, self.bounds
            x = low + (high - low) * ((x - a) / (b - a))
        return x[:n]

    def images(self, z: Tensor, y: Tensor) -> Tensor:
        """Images in batches, without gradients; raises if they leave `bounds` or are NaN."""
        with torch.no_grad():
            x = torch.cat([self(*part) for part in zip(z.split(BATCH), y.split(BATCH), strict=True)])
        advice = "give the range that the module returns: output=(-1, 1) where it ends in tanh"
        check_within(self.bounds, slack=slack_of(self.bounds), images=x, advice=advice)
        return x.clamp(*self.bounds)

    # Seeds

    def seeds(
        self,
        n: int,
        *,
        labels: Sequence[int] | None = None,
        model: Classifier | None = None,
        tries: int = 100,
        generator: torch.Generator,
    ) -> Samples:
        """New labelled images to start tests from; their latents are remembered.

        Args:
            n: how many.
            labels: their classes, in turn (default: all of the source's).
            model: if given, a latent is drawn again until this model predicts the class of its image.
            tries: maximum number of draws per seed; then a ValueError is raised.
            generator: draws the latents.
        """
        if model is not None:
            self.check(model)
        y = self._in_turn(n, labels)
        z = self._drawn(n, generator)
        x = self.images(z, y)
        waiting = self._missed(model, x, y)
        for _ in range(tries - 1):
            if len(waiting) == 0:
                break
            z[waiting] = self._drawn(len(waiting), generator)
            x[waiting] = self.images(z[waiting], y[waiting])
            waiting = waiting[self._missed(model, x[waiting], y[waiting])]
        if len(waiting):
            raise ValueError(
                f"the model must predict the class of each seed within {tries} draws, and did not for {len(waiting)} "
                f"of {n}, of classes {y[waiting].unique().tolist()}; choose other labels, or a better source or model"
            )
        seeds = Samples(x, y)
        self.remember(Samples(z, y, seeds.ids))
        return seeds

    @property
    def latents(self) -> Samples:
        """The memory: latents in place of inputs, with classes, and the ids of their images."""
        if not self.memory:
            none = torch.empty(0, dtype=torch.int64)
            return Samples(torch.empty(0, self.latent, dtype=self.dtype, device=self.device), none, none)
        return self.memory[0]

    def remember(self, latents: Samples) -> None:
        """Add latents to the memory, by the ids of their images."""
        check_row_shape((self.latent,), latents=latents.x)
        new = latents[self.latents.rows_of(latents.ids) < 0].to(self.device)
        joined = Samples.concat([self.latents.to(self.device), new])
        self.memory[:] = [Samples(joined.x.to(self.dtype), joined.y, joined.ids)]

    def recall(self, seeds: Samples) -> Samples:
        """The latents of these seeds, row by row; raises for seeds that this source did not draw."""
        rows = self.latents.rows_of(seeds.ids.cpu())
        if unknown := int((rows < 0).sum()):
            raise ValueError(
                f"{unknown} of {len(seeds)} seeds were not drawn by this source, so that their latents are unknown; "
                "draw them with source.seeds(...), or restore their latents with source.remember(...)"
            )
        return self.latents[rows]

    # Properties

    def check(self, model: Classifier) -> None:
        """Raise for a model with other bounds."""
        if self.bounds != model.bounds:
            raise ValueError(
                f"the source must give images within the model's bounds {model.bounds}, got {self.bounds}; give the "
                "source bounds=model.bounds, and output= where its module returns another range"
            )

    def rated(self, real: Samples, *, judge: Classifier, layer: str, generator: torch.Generator) -> FeatureSource:
        """The same source with its `quality` measured.

        Args:
            real: labelled images that the judge was not trained on, some hundreds at least; as many are made, of the
                same classes.
            judge: a classifier that had no part in training the source, and is not the model under test.
            layer: the judge's layer of features for the Fréchet distance; usually the last but one.
            generator: draws latents.
        """
        self.check(judge)
        self._check_classes(real.labels.unique().tolist())
        y = real.labels.to(self.device)
        made = Samples(self.images(self._drawn(len(real), generator), y), y)
        if made.shape != real.shape:
            raise ValueError(f"real images must have the source's shape {tuple(made.shape)}, got {tuple(real.shape)}")
        return replace(self, quality=compare(made, real.to(self.device), judge=judge, layer=layer))

    def spread(self, layers: Sequence[str]) -> dict[str, Tensor]:
        """Standard deviation of each value of these layers' outputs, between images of a class.

        It is taken within classes, so that values which separate classes are not perturbed more than others; a value
        that depends on the class alone has 0. Always from the same 16 latents of each of up to 16 classes.
        """
        known = ("z", *(name for name, _ in self.module.named_modules() if name))
        if isinstance(layers, str) or not layers:
            raise ValueError(
                f"layers must be one or more names, got {layers!r}; this source has z, {', '.join(self.layers)}"
            )
        if unknown := [name for name in layers if name not in known and name not in self.spreads]:
            raise ValueError(f"no layer named {', '.join(unknown)}; this source has z, {', '.join(self.layers)}")
        if missing := [name for name in layers if name not in self.spreads]:
            self.spreads.update(self._measured(missing))
        return {name: self.spreads[name] for name in layers}

    @property
    def dtype(self) -> torch.dtype:
        return next((p.dtype for p in self._tensors() if p.is_floating_point()), torch.float32)

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self._tensors()), torch.device("cpu"))

    # Helpers

    def _tensors(self) -> Iterator[Tensor]:
        yield from self.module.parameters()
        yield from self.module.buffers()

    def _drawn(self, n: int, generator: torch.Generator) -> Tensor:
        z = torch.randn(n, self.latent, generator=generator, device=generator.device)
        return self.std * z.to(self.device, self.dtype)

    @staticmethod
    def _missed(model: Classifier | None, x: Tensor, y: Tensor) -> Tensor:
        """Rows where the model, if there is one, does not predict the class."""
        if model is None:
            return torch.arange(0, device=x.device)
        model.check(Samples(x, y))
        return (model.predict(x) != y).nonzero().flatten()

    def _in_turn(self, n: int, labels: Sequence[int] | None) -> Tensor:
        check_at_least(1, n=n)
        names = list(range(self.classes)) if labels is None else [int(c) for c in labels]
        check_not_empty(labels=names)
        self._check_classes(names)
        return torch.tensor(names, device=self.device)[torch.arange(n, device=self.device) % len(names)]

    def _check_classes(self, labels: Sequence[int]) -> None:
        if wrong := sorted({c for c in labels if not 0 <= c < self.classes}):
            raise ValueError(f"labels must be the source's classes, 0 to {self.classes - 1}, got {wrong}")

    def _hooked(self, hooks: Mapping[str, Callable[[nn.Module, Any, Any], Any]]) -> ExitStack:
        """A context in which these forward hooks are registered."""
        parts, stack = dict(self.module.named_modules()), ExitStack()
        for name, hook in hooks.items():
            stack.enter_context(parts[name].register_forward_hook(hook))
        return stack

    def _layers_in_order(self) -> tuple[str, ...]:
        names = [name for name, part in self.module.named_modules() if name and isinstance(part, WEIGHTED_LAYERS)]
        ran: list[str] = []
        with self._hooked({name: lambda *_, name=name: ran.append(name) for name in names}), torch.no_grad():
            y = torch.zeros(MIN_ROWS, dtype=torch.int64, device=self.device)
            self(torch.zeros(MIN_ROWS, self.latent, dtype=self.dtype, device=self.device), y)
        return tuple(name for name in ran if ran.count(name) == 1)

    def _measured(self, layers: Sequence[str]) -> dict[str, Tensor]:
        generator, classes = spawn(0, "spread"), min(self.classes, MAX_CLASSES)
        variances: dict[str, list[Tensor]] = {name: [] for name in layers if name != "z"}
        for c in torch.linspace(0, self.classes - 1, classes).round().long().tolist():
            taps: dict[str, list[Any]] = {name: [] for name in variances}
            with self._hooked({name: partial(_tap, taps[name]) for name in taps}), torch.no_grad():
                self(self._drawn(MIN_ROWS, generator), torch.full((MIN_ROWS,), c, device=self.device))
            for name, outputs in taps.items():
                variances[name].append(_one_each(name, outputs).var(0))
        spreads = {name: torch.stack(values).mean(0).sqrt() for name, values in variances.items()}
        if "z" in layers:
            spreads["z"] = torch.full((self.latent,), self.std, dtype=self.dtype, device=self.device)
        return spreads


def from_biggan(
    module: nn.Module,
    *,
    latent: int,
    classes: int,
    bounds: tuple[float, float] = (0.0, 1.0),
    output: tuple[float, float] = (-1.0, 1.0),
    embed: Callable[[Tensor], Tensor] | None = None,
    truncation: float = 1.0,
) -> FeatureSource:
    """A source from a generator like BigGAN, with its weights: ``module(z, embedding of y)``.

    Its layers are ``linear`` and its ``blocks``, in order, as BigGAN-PyTorch names them. Their output must be the input
    of the next one, with one row per latent. Measure it with `FeatureSource.rated` before testing.

    Args:
        module: for BigGAN-PyTorch, ``Generator(...)`` with its weights loaded.
        latent: size of z (``dim_z``).
        classes: how many it was trained on.
        bounds: of the model under test.
        output: smallest and largest value that the module returns; BigGAN ends in tanh.
        embed: from classes to the module's second input, such as one-hot vectors (default: the module's ``shared``
            layer if it has one, else the classes themselves).
        truncation: standard deviation of latents. BigGAN instead redraws values that exceed a threshold; both trade
            variety for quality.

    References:
        | Large Scale GAN Training for High Fidelity Natural Image Synthesis (Brock et al., 2019)
        | https://arxiv.org/abs/1809.11096
    """
    shared = getattr(module, "shared", None)
    if embed is None and isinstance(shared, nn.Module):
        embed = copy_module(shared).eval().requires_grad_(False)
    blocks = tuple(
        name
        for name, part in module.named_modules()
        if BLOCK.fullmatch(name) and not isinstance(part, nn.ModuleList | nn.Sequential)
    )
    return FeatureSource(
        module=module,
        latent=latent,
        classes=classes,
        bounds=bounds,
        output=output,
        embed=embed,
        std=truncation,
        layers=blocks,
    )


def _padded(rows: Tensor) -> Tensor:
    """Padded to at least 16 rows, since fewer would be rounded differently."""
    n = len(rows)
    return rows if n >= MIN_ROWS else torch.cat([rows, rows[:1].detach().expand(MIN_ROWS - n, *rows.shape[1:])])


def _add(move: Tensor, _module: nn.Module, _inputs: Any, output: Any) -> Any:
    return output + move  # (1)


def _tap(kept: list[Any], _module: nn.Module, _inputs: Any, output: Any) -> None:
    kept.append(output.clone() if isinstance(output, Tensor) else output)  # a later layer may change it in place


def _one_each(name: str, outputs: list[Any]) -> Tensor:
    if len(outputs) != 1:
        raise ValueError(f"layer {name} must run once per image, got {len(outputs)} times; choose another")
    output = outputs[0]
    if not isinstance(output, Tensor) or not output.is_floating_point() or len(output) != MIN_ROWS:
        raise ValueError(
            f"layer {name} must return a tensor with one row per latent, got {output!r:.60}; choose another"
        )
    return output
