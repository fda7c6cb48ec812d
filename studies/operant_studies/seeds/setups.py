"""The four set-ups: a pool to draw seeds from, and its field."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from operant.conditions import Recipe, apply, normal, uniform
from operant.data import Samples
from operant.rng import spawn
from operant_studies.seeds.settings import SeedsSetting, SeedsSources

FIELD = Recipe(severities={"rotation": normal(12), "blur": uniform(0, 1.3), "brightness": normal(0.15)})
BROAD = Recipe(severities={"rotation": uniform(-40, 40), "blur": uniform(0, 2), "brightness": uniform(-0.4, 0.4)})


@dataclass(frozen=True, kw_only=True)
class SeedsSetup:
    """A pool and, if it is not itself field data, the field."""

    pool: Samples  # labelled inputs to draw from
    # field: inputs for the profile, used without labels; None if the pool is a sample from the field, whose inputs have
    # equal mass
    field: Samples | None = None
    fresh: Samples | None = None  # labelled field inputs for the truth, used for nothing else


def make_setup(name: str, sources: SeedsSources, seed: int) -> SeedsSetup:
    """One of `SETUPS`; the seed decides field inputs and conditions."""
    return SETUP_OF[name](sources.setting, sources, seed)


def _usps_field(setting: SeedsSetting, sources: SeedsSources, seed: int) -> SeedsSetup:
    return SeedsSetup(pool=Samples.concat([sources.other.train, sources.other.test]))


def _usps_pool(setting: SeedsSetting, sources: SeedsSources, seed: int) -> SeedsSetup:
    """The profile is fitted on some of USPS's training images; all of USPS is the truth."""
    train = sources.other.train
    rows = torch.randperm(len(train), generator=spawn(seed, "usps"))[: setting.field]
    everything = Samples.concat([train, sources.other.test])
    return SeedsSetup(pool=sources.known.test[: setting.pool], field=train[rows], fresh=everything)


def _zipf_field(setting: SeedsSetting, sources: SeedsSources, seed: int) -> SeedsSetup:
    return SeedsSetup(pool=in_field(sources.known.test, setting.pool, spawn(seed, "zipf", "pool")))


def _zipf_pool(setting: SeedsSetting, sources: SeedsSources, seed: int) -> SeedsSetup:
    """The profile is fitted on training images; pool and truth are test images; each under its own conditions."""
    test = sources.known.test
    broad = test[: setting.pool]
    drawn = BROAD.draw(len(broad), generator=spawn(seed, "zipf", "broad"))
    return SeedsSetup(
        pool=Samples(apply(broad.x, drawn), broad.y),
        field=in_field(sources.known.train, setting.field, spawn(seed, "zipf", "field")),
        fresh=in_field(test, setting.fresh, spawn(seed, "zipf", "fresh")),
    )


SETUP_OF = {"usps-field": _usps_field, "usps-pool": _usps_pool, "zipf-field": _zipf_field, "zipf-pool": _zipf_pool}


def in_field(samples: Samples, n: int, generator: torch.Generator) -> Samples:
    """n images, class c with a frequency of 1 / (c + 1) by Zipf's law, under the field's conditions."""
    rows = zipf_rows(samples.labels, n, generator)
    drawn = FIELD.draw(n, generator=generator)
    parts = [apply(samples.x[rows[some]], drawn[some]) for some in torch.arange(n).split(5_000)]
    return Samples(torch.cat(parts), samples.labels[rows])


def zipf_rows(y: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """The images that `in_field` draws with the same generator."""
    return torch.multinomial(zipf_chances(y), n, replacement=True, generator=generator)


def zipf_chances(y: Tensor) -> Tensor:
    return (1 / (1 + y.double())) / torch.bincount(y)[y]
