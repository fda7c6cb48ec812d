"""Synthesises labelled inputs that look and are distributed like field data."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from operant.conditions import Recipe, Severity, apply
from operant.data import Samples, row_index
from operant.data.class_texts import class_names
from operant.networks import VAE, fit_vae
from operant.profile._checks import check_bounds
from operant.profile.priors import Priors, shares_of
from operant.rng import global_streams
from operant.validation import check_at_least

CHUNK = 256  # rows generated together; one row is reproduced with all others of its chunk
MAX_ATTEMPTS = 100  # chunks simulated until every class has enough rows
SEEDS = 2**53  # seeds stay below this, so that a column of doubles can hold them


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceBatch:
    """Inputs and labels from a source, with the id of each row's source image and the parameters drawn for it."""

    x: Tensor = field(repr=False)
    y: Tensor = field(repr=False)
    source: Tensor | None = field(default=None, repr=False)
    parameters: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def take(self, rows: Tensor | slice) -> Self:
        parameters = {name: column[rows] for name, column in self.parameters.items()}
        source = None if self.source is None else self.source[rows]
        return replace(self, x=self.x[rows], y=self.y[rows], source=source, parameters=parameters)

    @staticmethod
    def concat(parts: "Sequence[SourceBatch]") -> "SourceBatch":
        sources = [part.source for part in parts if part.source is not None]
        return SourceBatch(
            x=torch.cat([part.x for part in parts]),
            y=torch.cat([part.y for part in parts]),
            source=torch.cat(sources) if sources else None,
            parameters={name: torch.cat([part.parameters[name] for part in parts]) for name in parts[0].parameters},
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Synthesised(SourceBatch):
    """Labelled inputs, with everything needed to reproduce any row bit for bit (see `remake`).

    `operant.results.save` stores it.

    Attributes:
        method: ``"images under conditions"``, ``"generative model"``, ``"simulator"`` or that of a custom source.
        source: id of the image that each row was made from; None for other sources.
        parameters: values drawn for each row, by name: severities and noise seeds, or a simulator's parameters.
        chunk, place: random seed of each row's chunk, and position of the row in it.
        priors: as requested; None for the source's own.
    """

    method: str
    chunk: Tensor = field(repr=False)
    place: Tensor = field(repr=False)
    priors: tuple[float, ...] | None

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Any) -> "Synthesised":
        """Some rows, by slice, mask or positions."""
        rows = row_index(index, len(self))
        return replace(self.take(rows), chunk=self.chunk[rows], place=self.place[rows])

    @property
    def samples(self) -> Samples:
        """The labelled inputs; ids are hashes of their content."""
        return Samples(self.x, self.y)

    def __str__(self) -> str:
        counts = ", ".join(f"{c}: {k}" for c, k in enumerate(self.y.bincount().tolist()))
        drawn = f", drawn: {', '.join(self.parameters)}" if self.parameters else ""
        return f"{len(self)} inputs of shape {tuple(self.x.shape[1:])} by {self.method}{drawn}; by class {counts}"


class Source(Protocol):
    """Generates labelled inputs: `FromImages`, `FromModel`, `FromSimulator`, or your own.

    All its random numbers come from the generator, so the same generator gives the same rows.
    """

    @property
    def method(self) -> str: ...

    def __call__(self, n: int, *, priors: Sequence[float] | None, generator: torch.Generator) -> SourceBatch: ...


def synthesise(
    source: Source, n: int, *, priors: Priors | Sequence[float] | None = None, generator: torch.Generator
) -> Synthesised:
    """Generate n labelled inputs distributed like field data.

    Labels are drawn independently from the priors, then an input for each. Rows are generated in chunks of 256, each
    from its own random seed, which the result stores.

    Args:
        source: `FromImages` (labelled images under declared or fitted conditions), `FromModel` (a generative model),
            `FromSimulator` or your own.
        priors: class priors in the field, one per class, summing to 1, for example from `estimate_priors` or
            `fit_conditions` (default: the source's own).

    >>> from operant import load_digits, spawn
    >>> from operant.conditions import Recipe, normal
    >>> source = FromImages(images=load_digits().train, recipe=Recipe(severities={"rotation": normal(12)}))
    >>> made = synthesise(source, 500, generator=spawn(0))
    >>> made.samples
    Samples(500 x (1, 8, 8), 10 classes)
    >>> torch.equal(remake(source, made[7:9]), made.x[7:9])
    True
    """
    check_at_least(1, n=n)
    seeds = torch.randint(SEEDS, (math.ceil(n / CHUNK),), generator=generator, device=generator.device).cpu()
    shares = priors.values if isinstance(priors, Priors) else priors
    batch = SourceBatch.concat([_chunk(source, int(seed), shares) for seed in seeds]).take(slice(n))
    return Synthesised(
        **vars(batch),
        method=source.method,
        chunk=seeds.repeat_interleave(CHUNK)[:n],
        place=torch.arange(CHUNK).repeat(len(seeds))[:n],
        priors=None if shares is None else tuple(float(p) for p in shares),
    )


def remake(source: Source, rows: Synthesised) -> Tensor:
    """Generate the same inputs again from their stored seeds; raises if they differ in any bit."""
    x = torch.empty_like(rows.x)
    for seed in rows.chunk.unique().tolist():
        mine = (rows.chunk == seed).nonzero().flatten()
        x[mine] = _chunk(source, seed, rows.priors).x[rows.place[mine]].to(x)
    if not torch.equal(x, rows.x):
        wrong = int((x != rows.x).flatten(1).any(1).sum())
        raise ValueError(
            f"{wrong} of {len(rows)} rows differ from before; give the source they were made with, and make sure that "
            "all its random numbers come from the generator"
        )
    return x


def _chunk(source: Source, seed: int, priors: Sequence[float] | None) -> SourceBatch:
    batch = source(CHUNK, priors=priors, generator=torch.Generator().manual_seed(seed))
    columns = [batch.x, batch.y, *batch.parameters.values(), *([] if batch.source is None else [batch.source])]
    if sizes := sorted({len(column) for column in columns} - {CHUNK}):
        raise ValueError(f"a source called with n={CHUNK} must return {CHUNK} rows of everything, got {sizes}")
    return batch


@dataclass(frozen=True, kw_only=True, eq=False)
class FromImages:
    """Labelled images under field conditions, drawn with replacement from the images of each class."""

    images: Samples  # labelled, (n, channels, height, width)
    recipe: Recipe  # the conditions, declared or from `fit_conditions`
    method = "images under conditions"

    def __call__(self, n: int, *, priors: Sequence[float] | None, generator: torch.Generator) -> SourceBatch:
        y = self.images.labels.cpu()
        own = y.bincount() / len(y) if len(y) else y
        weights = checked_priors(own.tolist() if priors is None else priors, y, self.images.classes)
        members = weights[y] / y.bincount()[y]  # every image of a class as likely as the others
        rows = _drawn(members, n, generator)
        drawn = self.recipe.draw(n, generator=generator)
        x = apply(self.images.x.detach()[rows], drawn)
        return SourceBatch(x=x, y=y[rows], source=self.images.ids[rows], parameters=drawn.columns())


@dataclass(frozen=True, kw_only=True, eq=False)
class FromModel:
    """Inputs from a class-conditional generative model."""

    sample: Callable[[Tensor, torch.Generator], Tensor]  # (labels, generator) -> inputs, such as `fit_class_vaes` makes
    classes: int  # number of classes
    bounds: tuple[float, float] = (0.0, 1.0)  # smallest and largest value of an input
    method = "generative model"

    def __call__(self, n: int, *, priors: Sequence[float] | None, generator: torch.Generator) -> SourceBatch:
        even = [1 / self.classes] * self.classes
        y = _drawn(checked_priors(even if priors is None else priors, torch.arange(self.classes)), n, generator)
        with global_streams(generator), torch.no_grad():
            x = self.sample(y, generator)
        _check_inputs("the generative model", x, n, self.bounds)
        return SourceBatch(x=x, y=y)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassVAEs:
    """One small variational autoencoder per class, with the distribution of its codes; made by `fit_class_vaes`.

    ``vaes(labels, generator)`` draws codes from a normal distribution with the mean and covariance of the class's codes
    and decodes them to inputs. `operant.results.save` stores it.
    """

    vaes: tuple[VAE, ...]
    means: tuple[Tensor, ...] = field(repr=False)
    roots: tuple[Tensor, ...] = field(repr=False)

    def __call__(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        x = torch.empty(len(labels), *self.vaes[0].shape)
        for c, (vae, mean, root) in enumerate(zip(self.vaes, self.means, self.roots, strict=True)):
            here = (labels == c).nonzero().flatten()
            z = torch.randn(len(here), vae.latent, generator=generator, device=generator.device)
            if len(here):
                x[here] = vae.decode(mean + z.to(mean) @ root.T).to(x)
        return x


def fit_class_vaes(
    labelled: Samples,
    *,
    latent: int = 8,
    epochs: int = 100,
    batch_size: int = 16,
    bounds: tuple[float, float] = (0.0, 1.0),
    generator: torch.Generator,
    progress: bool = True,
) -> ClassVAEs:
    """Learn to generate inputs of each class, with `operant.networks.fit_vae`.

    Args:
        labelled: at least 20 inputs of every class from 0 to the largest label.
        latent, epochs, batch_size, bounds, generator, progress: as for `fit_vae`; many small steps by default, because
            classes are small.
    """
    y = labelled.labels
    vaes, means, roots = [], [], []
    for c in range(int(y.max()) + 1):
        part = labelled[y == c]
        options = {"latent": latent, "epochs": epochs, "batch_size": batch_size}
        vae = fit_vae(part, **options, bounds=bounds, generator=generator, progress=progress)
        mean, std = vae.encode(part.x)
        spread = torch.cov(mean.T) + torch.diag(std.square().mean(0))
        vaes.append(vae)
        means.append(mean.mean(0).detach())
        roots.append(torch.linalg.cholesky(spread).detach().contiguous())
    return ClassVAEs(vaes=tuple(vaes), means=tuple(means), roots=tuple(roots))


@dataclass(frozen=True, kw_only=True, eq=False)
class FromSimulator:
    """Inputs from your own simulator, whose parameters are drawn from declared distributions.

    With priors, it runs until every class has occurred often enough, and surplus rows are dropped.

    Args:
        simulate: from a table of parameters, one column ``(n,)`` per name, to labelled inputs, one per row. The
            additional column ``seed`` is for the simulator's own random numbers.
        parameters: from name to distribution; see `operant.conditions.uniform`, ``normal``, ``half_normal``, ``fixed``.
    """

    simulate: Callable[[dict[str, Tensor]], Samples]
    parameters: dict[str, Severity]
    bounds: tuple[float, float] = (0.0, 1.0)  # smallest and largest value of an input
    method = "simulator"

    def __call__(self, n: int, *, priors: Sequence[float] | None, generator: torch.Generator) -> SourceBatch:
        parts = [self._run(n, generator)]
        if priors is None:
            return parts[0]
        wanted = _drawn(shares_of(priors), n, generator)
        while missing := _missing(wanted, torch.cat([part.y for part in parts]), len(priors)):
            if len(parts) == MAX_ATTEMPTS:
                raise ValueError(
                    f"the simulator did not make enough inputs of classes {missing} in {len(parts) * n} runs; widen "
                    "its parameters, or set those priors to 0"
                )
            parts.append(self._run(n, generator))
        return _chosen(parts, wanted)

    def _run(self, n: int, generator: torch.Generator) -> SourceBatch:
        table = {name: s.value(_uniform(n, generator)) for name, s in self.parameters.items()}
        for name, s in self.parameters.items():
            table[name] = torch.where(_uniform(n, generator) < s.absent, 0.0, table[name])
        table["seed"] = torch.randint(SEEDS, (n,), generator=generator, device=generator.device).cpu()
        with global_streams(generator), torch.no_grad():
            samples = self.simulate({name: column.clone() for name, column in table.items()})
        _check_inputs("the simulator", samples.x, n, self.bounds)
        return SourceBatch(x=samples.x, y=samples.labels, parameters=table)


def _missing(wanted: Tensor, y: Tensor, classes: int) -> list[int]:
    lack = wanted.bincount(minlength=classes) > y.bincount(minlength=classes)[:classes]
    return [int(c) for c in lack.nonzero().flatten()]


def _chosen(parts: list[SourceBatch], wanted: Tensor) -> SourceBatch:
    """For each wanted label the next row that has it."""
    batch, rows = SourceBatch.concat(parts), torch.empty_like(wanted)
    for c in wanted.unique().tolist():
        here = wanted == c
        rows[here] = (batch.y == c).nonzero().flatten()[: int(here.sum())]
    return batch.take(rows)


def checked_priors(priors: Sequence[float], y: Tensor, names: Sequence[str] = ()) -> Tensor:
    """Priors as a float64 tensor ``(classes,)``; raises if they do not fit the labels, whose ``names`` it then uses."""
    values = shares_of(priors)
    counts = y.bincount()
    if len(values) != len(counts):
        raise ValueError(
            f"priors must be one number for each class that the data have, 0 to {len(counts) - 1}, got {len(values)}; "
            "leave out classes that the data lack, or label some inputs of those"
        )
    if lacking := [c for c in range(len(counts)) if values[c] > 0 and counts[c] == 0]:
        which = class_names(lacking, names)
        raise ValueError(f"a class with a positive prior must occur among the labels, and {which} do not; label some")
    return values


def _uniform(n: int, generator: torch.Generator) -> Tensor:
    u = torch.rand(n, dtype=torch.float64, generator=generator, device=generator.device).cpu()
    return u.clamp_min(2**-54)


def _drawn(weights: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """n indices drawn in proportion to the weights; unlike `torch.multinomial`, for any number of weights."""
    edges = weights.double().cumsum(0)
    at = torch.bucketize(_uniform(n, generator) * edges[-1], edges, right=True)
    return at.clamp_max(int(weights.nonzero().max()))


def _check_inputs(maker: str, x: Tensor, n: int, bounds: tuple[float, float]) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point() or len(x) != n:
        raise ValueError(f"{maker} must return a floating-point input for each of {n} rows, got {x!r:.60}")
    check_bounds(f"inputs of {maker}", x, bounds)
