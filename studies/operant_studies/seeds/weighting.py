"""Ways to distribute the field's mass over a pool that is no sample from it, compared with the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from operant.data import Samples
from operant.model import Classifier
from operant.networks import fit_pca
from operant.profile import Priors, Profile, estimate_priors, fit_profile, fit_ratio, layer_features, with_priors
from operant.rng import spawn
from operant_studies.seeds.settings import SeedsSetting
from operant_studies.seeds.setups import SeedsSetup

CHOSEN = "profile, features"  # the weighting of all draws
RESAMPLES = 20  # the minimum; intervals of priors are not used here


@dataclass(frozen=True, kw_only=True)
class Weighting:
    """One weighting of one pool."""

    name: str  # with "+ priors" if the class masses were corrected to the estimated priors
    pmi: float  # the mass of the pool's failing inputs
    distance: float  # total variation between class masses and class frequencies in the field
    effective: float  # effective number of inputs
    largest: float  # the largest mass of an input


@dataclass(frozen=True, kw_only=True, eq=False)
class PoolWeightings:
    """All weightings of one pool, the failing share among fresh field inputs, and the masses for draws."""

    truth: float
    fresh: int
    ways: tuple[Weighting, ...]
    mass: Tensor = field(repr=False)

    def way(self, name: str) -> Weighting:
        return next(way for way in self.ways if way.name == name)


def weigh_pool(model: Classifier, setup: SeedsSetup, setting: SeedsSetting, seed: int) -> PoolWeightings:
    assert setup.field is not None
    assert setup.fresh is not None
    pool, fresh = setup.pool, setup.fresh
    masses = _masses(model, pool, setup.field, setting, seed)
    priors = estimate_priors(model, pool, setup.field, resamples=RESAMPLES, generator=spawn(seed, "priors"))
    failed = (model.predict(pool.x) != pool.labels).double()
    classes = torch.bincount(fresh.labels, minlength=len(priors.values)).double() / len(fresh)
    ways = []
    for name, mass in masses.items():
        ways.append(_judged(name, mass, pool, failed, classes))
        ways.append(_judged(f"{name} + priors", _corrected(mass, pool, priors), pool, failed, classes))
    truth = float((model.predict(fresh.x) != fresh.labels).double().mean())
    return PoolWeightings(truth=truth, fresh=len(fresh), ways=tuple(ways), mass=masses[CHOSEN])


def _masses(model: Classifier, pool: Samples, seen: Samples, setting: SeedsSetting, seed: int) -> dict[str, Tensor]:
    """Each weighting on pixels and on features; features are computed once and used as inputs."""
    masses = {"equal": torch.full((len(pool),), 1 / len(pool), dtype=torch.float64)}
    features = layer_features(model, setting.layer)
    views: dict[str, Callable[[Tensor], Tensor]] = {"pixels": lambda x: x.flatten(1), "features": features}
    for view, encode in views.items():
        p, f = (Samples(encode(samples.x), samples.y, samples.ids) for samples in (pool, seen))
        encoder = partial(fit_pca, dimensions=setting.dimensions)
        profile = fit_profile(f, encoder=encoder, generator=spawn(seed, "profile", view))
        ratio = fit_ratio(p, f, dimensions=setting.dimensions, generator=spawn(seed, "ratio", view))
        masses[f"density, {view}"] = _density(profile, p)
        masses[f"ratio, {view}"] = ratio.weights(p)
        masses[f"profile, {view}"] = profile.weights(p)
    return masses


def _density(profile: Profile, pool: Samples) -> Tensor:
    """Normalised densities at the pool's inputs."""
    return torch.softmax(profile.log_prob(pool.x).detach().double(), 0)


def _corrected(mass: Tensor, pool: Samples, priors: Priors) -> Tensor:
    """Masses corrected to the estimated priors; a class without mass gets the smallest positive number."""
    return with_priors(mass.clamp_min(torch.finfo(torch.float64).tiny), pool, priors)


def _judged(name: str, mass: Tensor, pool: Samples, failed: Tensor, classes: Tensor) -> Weighting:
    held = torch.zeros(len(classes), dtype=torch.float64).index_add_(0, pool.labels, mass.double())
    return Weighting(
        name=name,
        pmi=float(mass @ failed),
        distance=float((held - classes).abs().sum() / 2),
        effective=1 / float(mass.square().sum()),
        largest=float(mass.max()),
    )
