"""Operational data from little data: labelled inputs made to look and to be distributed like those of the field."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from operant.conditions import Recipe, Severity, apply
from operant.data import Samples, row_index
from operant.model import slack_of
from operant.networks import VAE, fit_vae
from operant.profile.label_shift import Priors, shares_of
from operant.rng import global_streams

CHUNK = 256  # rows made together; a row is made again with the others of its chunk
ATTEMPTS = 100  # chunks simulated without a class coming up before it is given up
SEEDS = 2**53  # seeds stay below this, so that a column of doubles can hold them


@dataclass(frozen=True, kw_only=True, eq=False)
class Synthesised:
    """Labelled inputs, and how each was made: enough to make any row again, bit for bit, with `remake`.

    `operant.results.save` stores it.

    Attributes:
        x, y: the inputs and their labels.
        method: ``"images under conditions"``, ``"generative model"`` or ``"simulator"``, or as your own source says.
        source: id of the image that each row was made from; None where there is none.
        parameters: what was drawn for each row, by name: severities and noise seeds, or a simulator's parameters.
        chunk, place: the random seed of the rows that were made together, and which of them each row is.
        priors: as asked for; None if the source's own were taken.
    """

    x: Tensor = field(repr=False)
    y: Tensor = field(repr=False)
    method: str
    source: Tensor | None = field(repr=False)
    parameters: dict[str, Tensor] = field(repr=False)
    chunk: Tensor = field(repr=False)
    place: Tensor = field(repr=False)
    priors: tuple[float, ...] | None

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Any) -> Synthesised:
        """Some rows, by slice, mask or positions."""
        rows = row_index(index, len(self))
        return Synthesised(
            x=self.x[rows],
            y=self.y[rows],
            method=self.method,
            source=None if self.source is None else self.source[rows],
            parameters={name: column[rows] for name, column in self.parameters.items()},
            chunk=self.chunk[rows],
            place=self.place[rows],
            priors=self.priors,
        )

    @property
    def samples(self) -> Samples:
        """The inputs with their labels; ids are hashes of their content."""
        return Samples(self.x, self.y)

    def __str__(self) -> str:
        counts = ", ".join(f"{c}: {k}" for c, k in enumerate(self.y.bincount().tolist()))
        drawn = f", drawn: {', '.join(self.parameters)}" if self.parameters else ""
        return f"{len(self)} inputs of shape {tuple(self.x.shape[1:])} by {self.method}{drawn}; by class {counts}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Made:
    """What a source gives: inputs, labels, and for each row the id of its source image and all that was drawn."""

    x: Tensor
    y: Tensor
    source: Tensor | None = None
    parameters: dict[str, Tensor] = field(default_factory=dict)


class Source(Protocol):
    """Whatever makes labelled inputs; `FromImages`, `FromModel`, `FromSimulator`, or your own.

    It draws from nothing but the generator, so that the same generator gives the same rows.
    """

    @property
    def method(self) -> str: ...

    def __call__(self, n: int, *, priors: Sequence[float] | None, generator: torch.Generator) -> Made: ...


def synthesise(
    source: Source, n: int, *, priors: Priors | Sequence[float] | None = None, generator: torch.Generator
) -> Synthesised:
    """Make n labelled inputs as the field would send them.

    Labels are drawn from the priors, independently of each other, as in use; then an input for each. Rows are made in
    chunks of 256, each from a random seed of its own, which the result remembers.

    Args:
        source: makes the inputs: `FromImages` (labelled images under declared or fitted conditions), `FromModel` (a
            generative model) or `FromSimulator`.
        n: how many.
        priors: how often each class occurs in the field, one number a class, summing to 1; `estimate_priors` or
            `fit_conditions` have them. Unless given, the source's own are taken.
        generator: draws everything.

    >>> from operant import load_digits, spawn
    >>> from operant.conditions import Recipe, normal
    >>> source = FromImages(images=load_digits().train, recipe=Recipe(severities={"rotation": normal(12)}))
    >>> made = synthesise(source, 500, generator=spawn(0))
    >>> made.samples
    Samples(500 x (1, 8, 8), 10 classes)
    >>> torch.equal(remake(source, made[7:9]), made.x[7:9])
    True
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    device = generator.device
    seeds = torch.randint(SEEDS, (math.ceil(n / CHUNK),), generator=generator, device=device).cpu()
    shares = priors.values if isinstance(priors, Priors) else priors
    parts = [_chunk(source, int(seed), shares) for seed in seeds]
    sources = [part.source for part in parts if part.source is not None]
    return Synthesised(
        x=torch.cat([part.x for part in parts])[:n],
        y=torch.cat([part.y for part in parts])[:n],
        method=source.method,
        source=torch.cat(sources)[:n] if sources else None,
        parameters={name: torch.cat([part.parameters[name] for part in parts])[:n] for name in parts[0].parameters},
        chunk=seeds.repeat_interleave(CHUNK)[:n],
        place=torch.arange(CHUNK).repeat(len(seeds))[:n],
        priors=None if shares is None else tuple(float(p) for p in shares),
    )


def remake(source: Source, rows: Synthesised) -> Tensor:
    """The same inputs made again from what the rows remember; refuses if they do not come out the same, bit for bit."""
    x = torch.empty_like(rows.x)
    for seed in rows.chunk.unique().tolist():
        mine = (rows.chunk == seed).nonzero().flatten()
        x[mine] = _chunk(source, seed, rows.priors).x[rows.place[mine]].to(x)
    if not torch.equal(x, rows.x):
        wrong = int((x != rows.x).flatten(1).any(1).sum())
        raise ValueError(
            f"{wrong} of {len(rows)} rows come out otherwise than before; give the source they were made with, and see "
            "that it draws from nothing but the generator"
        )
    return x


def _chunk(source: Source, seed: int, priors: Sequence[float] | None) -> Made:
    made = source(CHUNK, priors=priors, generator=torch.Generator().manual_seed(seed))
    columns = [made.x, made.y, *made.parameters.values(), *([] if made.source is None else [made.source])]
    if sizes := sorted({len(column) for column in columns} - {CHUNK}):
        raise ValueError(f"a source that is asked for {CHUNK} rows must give {CHUNK} of everything, got {sizes}")
    return made


# Labelled images under conditions


@dataclass(frozen=True, kw_only=True, eq=False)
class FromImages:
    """Labelled images under field conditions, each drawn afresh from the images of its class.

    Args:
        images: labelled, ``(n, channels, height, width)``.
        recipe: the conditions, declared or from `fit_conditions`.
    """

    images: Samples
    recipe: Recipe
    method = "images under conditions"

    def __call__(self, n: int, *, priors: Sequence[float] | None, generator: torch.Generator) -> Made:
        y = self.images.labels.cpu()
        own = y.bincount() / len(y) if len(y) else y
        weights = checked_priors(own.tolist() if priors is None else priors, y)
        members = weights[y] / y.bincount()[y]  # every image of a class as likely as the others
        rows = _drawn(members, n, generator)
        drawn = self.recipe.draw(n, generator=generator)
        x = apply(self.images.x.detach()[rows], drawn)
        return Made(x=x, y=y[rows], source=self.images.ids[rows], parameters=drawn.columns())


# A generative model


@dataclass(frozen=True, kw_only=True, eq=False)
class FromModel:
    """Inputs from a generative model that can be asked for a class.

    Args:
        sample: ``(labels, generator) -> inputs``, one a label; `fit_class_vaes` makes one.
        classes: how many it knows.
        bounds: smallest and largest value of an input.
    """

    sample: Callable[[Tensor, torch.Generator], Tensor]
    classes: int
    bounds: tuple[float, float] = (0.0, 1.0)
    method = "generative model"

    def __call__(self, n: int, *, priors: Sequence[float] | None, generator: torch.Generator) -> Made:
        even = [1 / self.classes] * self.classes
        y = _drawn(checked_priors(even if priors is None else priors, torch.arange(self.classes)), n, generator)
        with global_streams(generator), torch.no_grad():
            x = self.sample(y, generator)
        _check_made("the generative model", x, n, self.bounds)
        return Made(x=x, y=y)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassVAEs:
    """One small autoencoder a class, and how the codes of its inputs are distributed; made by `fit_class_vaes`.

    ``vaes(labels, generator)`` gives inputs: codes from a normal distribution with the mean and covariance of those of
    the class, decoded. `operant.results.save` stores it.
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
    """Learn each class's inputs with `operant.networks.fit_vae`, to draw new ones from.

    Args:
        labelled: at least 20 inputs of every class, 0 to the largest label.
        latent: numbers in a code.
        epochs, batch_size: many small steps by default, since classes are small.
        bounds: smallest and largest value of an input.
        generator: draws first weights, batches and codes.
        progress: show a bar for each class where there is a terminal to show it on.
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


# A simulator


@dataclass(frozen=True, kw_only=True, eq=False)
class FromSimulator:
    """Inputs from your own simulator, whose parameters are drawn from declared distributions.

    Where priors are asked for, it is run until every class has come up often enough, and the rows too many are dropped.

    Args:
        simulate: from a table of parameters, one column ``(n,)`` a name, to labelled inputs, one a row. The table has a
            column more, ``seed``, for whatever is random inside the simulator.
        parameters: from name to distribution; see `operant.conditions.uniform`, ``normal``, ``half_normal``, ``fixed``.
        bounds: smallest and largest value of an input.
    """

    simulate: Callable[[dict[str, Tensor]], Samples]
    parameters: dict[str, Severity]
    bounds: tuple[float, float] = (0.0, 1.0)
    method = "simulator"

    def __call__(self, n: int, *, priors: Sequence[float] | None, generator: torch.Generator) -> Made:
        made = self._run(n, generator)
        if priors is None:
            return made
        wanted = _drawn(shares_of(priors), n, generator)
        parts, attempts = [made], 1
        while missing := _missing(wanted, torch.cat([part.y for part in parts]), len(priors)):
            if attempts == ATTEMPTS:
                raise ValueError(
                    f"the simulator did not make enough inputs of classes {missing} in {attempts * n} runs; widen its "
                    "parameters, or ask for priors of 0 there"
                )
            parts.append(self._run(n, generator))
            attempts += 1
        return _chosen(parts, wanted)

    def _run(self, n: int, generator: torch.Generator) -> Made:
        table = {name: s.value(_uniform(n, generator)) for name, s in self.parameters.items()}
        table = {
            name: torch.where(_uniform(n, generator) < s.absent, 0.0, table[name])
            for name, s in self.parameters.items()
        }
        table["seed"] = torch.randint(SEEDS, (n,), generator=generator, device=generator.device).cpu()
        with global_streams(generator), torch.no_grad():
            found = self.simulate({name: column.clone() for name, column in table.items()})
        _check_made("the simulator", found.x, n, self.bounds)
        return Made(x=found.x, y=found.labels, parameters=table)


def _missing(wanted: Tensor, y: Tensor, classes: int) -> list[int]:
    lack = wanted.bincount(minlength=classes) > y.bincount(minlength=classes)[:classes]
    return [int(c) for c in lack.nonzero().flatten()]


def _chosen(parts: list[Made], wanted: Tensor) -> Made:
    """For each wanted label the next row that has it."""
    x, y = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])
    rows = torch.empty_like(wanted)
    for c in wanted.unique().tolist():
        here = wanted == c
        rows[here] = (y == c).nonzero().flatten()[: int(here.sum())]
    names = parts[0].parameters
    return Made(x=x[rows], y=wanted, parameters={k: torch.cat([p.parameters[k] for p in parts])[rows] for k in names})


# Small things


def checked_priors(priors: Sequence[float], y: Tensor) -> Tensor:
    """Priors as numbers ``(classes,)`` in float64; refused where they do not fit the labels."""
    values = shares_of(priors)
    counts = y.bincount()
    if len(values) != len(counts):
        raise ValueError(
            f"priors must be one number for each class that the data have, 0 to {len(counts) - 1}, got {len(values)}; "
            "leave out classes that the data lack, or label some of those"
        )
    if lacking := [c for c in range(len(counts)) if values[c] > 0 and counts[c] == 0]:
        raise ValueError(
            f"a class with a positive prior must occur in the labelled data, and {lacking} do not; label some of those"
        )
    return values


def _uniform(n: int, generator: torch.Generator) -> Tensor:
    u = torch.rand(n, dtype=torch.float64, generator=generator, device=generator.device).cpu()
    return u.clamp_min(2**-54)


def _drawn(weights: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """n places, each as likely as its weight; any number of weights."""
    edges = weights.double().cumsum(0)
    at = torch.bucketize(_uniform(n, generator) * edges[-1], edges, right=True)
    return at.clamp_max(int(weights.nonzero().max()))


def _check_made(maker: str, x: Tensor, n: int, bounds: tuple[float, float]) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point() or len(x) != n:
        raise ValueError(f"{maker} must give a floating-point input for each of {n} rows, got {x!r:.60}")
    low, high = (float(v) for v in torch.aminmax(x))
    slack = slack_of(bounds)
    if not (low >= bounds[0] - slack and high <= bounds[1] + slack):
        raise ValueError(
            f"inputs must lie within bounds {bounds} and hold no NaN, {maker} gave values from {low:.4g} to "
            f"{high:.4g}; rescale them, or give the bounds of your data"
        )
