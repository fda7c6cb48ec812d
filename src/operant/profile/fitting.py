"""The operational profile: the distribution of field inputs, as a density of their codes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from operant import results
from operant.activity import activity
from operant.data import Samples
from operant.data.class_texts import class_name, class_names
from operant.density import KDE, Flow, Mixture, fit_kde
from operant.formatting import percent
from operant.model import Classifier, Finding
from operant.networks import PCA, VAE, Flat, fit_pca
from operant.profile._cells import box_mass, nearest_mass
from operant.profile._checks import warning
from operant.profile.priors import Priors, shares_of
from operant.rng import spawn
from operant.types import Density
from operant.validation import check_finite, check_positive, check_row_shape, check_share

MIN_INPUTS = 30  # field inputs to fit a profile to
HELD_SHARE = 0.2  # of the field inputs, held back to check the fit and to rank by
MAX_GAP = 1.0  # nats per dimension by which held-back inputs may be rated below fitted ones
PROBES = 4  # inputs stored to recognise the features
STRANGE_QUANTILE = 0.05  # of held-back field inputs; inputs of lower density are called strange

Features = Callable[[Tensor], Tensor]
"""Inputs ``(N, *shape)`` to features ``(N, ...)``, row by row: a layer of a model, or any other function."""

Encoder = Callable[[Tensor], Tensor]
"""Inputs or features to codes ``(N, d)``."""


class FitEncoder(Protocol):
    """Learns an encoder: `fit_flat`, `fit_pca`, `fit_vae`, or one of them with options, as ``partial(...)``."""

    def __call__(self, field: Samples, *, generator: torch.Generator) -> Encoder: ...


class FitDensity(Protocol):
    """Learns a density of codes: `fit_kde`, `fit_mixture`, `fit_flow`, or one with options, as ``partial(...)``."""

    def __call__(self, x: Tensor, *, weights: Tensor | None, generator: torch.Generator) -> Density: ...


DEFAULT_DENSITY: FitDensity = partial(fit_kde, bandwidth="likelihood")


@dataclass(frozen=True, eq=False, kw_only=True)
class Profile:
    """The operational profile as a density of field inputs' codes; made by `fit_profile`.

    The density is of codes, not of inputs: it ranks inputs and weights regions, but ignores whatever the codes leave
    out (`operant.measure.fit_naturalness` does not).
    """

    shape: tuple[int, ...]  # of one input
    encoder: Encoder  # from inputs (or their features) to codes
    density: Density  # of codes
    codes: Tensor = field(repr=False)  # of the fitted field inputs, (n, d)
    shares: Tensor = field(repr=False)  # weight of each of them, summing to 1; older ones weigh less after an update
    held: Tensor = field(repr=False)  # codes of the held-back field inputs
    probes: Tensor = field(repr=False)  # a few field inputs, to recognise the features
    findings: tuple[Finding, ...] = ()  # reasons to doubt this profile
    features: Features | None = None  # applied to inputs before the encoder

    def __str__(self) -> str:
        n, d = self.codes.shape
        first = f"Profile of {n + len(self.held)} field inputs of {self.shape}, by {d} numbers each: {self.density}"
        return "\n".join([first, *map(str, self.findings)])

    def encode(self, x: Tensor) -> Tensor:
        """The codes of inputs, ``(N, d)``."""
        check_row_shape(self.shape, inputs=x, advice="this profile is of such inputs")
        check_finite(inputs=x)
        return self.encoder(x if self.features is None else _featured(self.features, x))

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density of each input's code, ``(N,)``; differentiable in ``x`` if the encoder is."""
        return self.density.log_prob(self.encode(x))

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``(n, *shape)`` inputs, decoded from codes drawn from the density; for encoders that can decode."""
        if self.features is not None or not hasattr(self.encoder, "decode"):
            raise ValueError(
                "codes of features cannot be decoded to inputs; draw codes with profile.density.sample, or fit a "
                "profile of the inputs themselves"
            )
        decoded: Tensor = self.encoder.decode(self.density.sample(n, generator=generator))
        return decoded.view(-1, *self.shape)

    def quantile(self, x: Tensor) -> Tensor:
        """Density quantile of each input: the share of held-back field inputs whose density is no higher."""
        return self.quantile_of_codes(self.encode(x).detach())

    def quantile_of_codes(self, codes: Tensor) -> Tensor:
        """As `quantile`, from codes."""
        values = self.density.log_prob(codes).detach()
        return torch.searchsorted(self._held_log_prob, values, right=True).double() / len(self.held)

    def cell_mass(self, x: Tensor, radius: float) -> Tensor:
        """The probability that a field input's code lies in the box around each input's code, ``(N,)``.

        The box extends ``radius`` standard deviations of the field's codes to both sides. For kernel densities the
        result is exact, except that distant kernels with less than a thousandth of it together are skipped. For other
        densities it is the mean over 256 points of the box, at the same offsets for all inputs.
        """
        check_positive(radius=radius, advice="it is in standard deviations of codes")
        return box_mass(self.density, self.encode(x).detach(), radius * self._spread)

    def weights(self, pool: Samples, *, priors: Priors | Sequence[float] | None = None) -> Tensor:
        """The profile's mass distributed over a finite pool, ``(N,)``, summing to 1.

        Each input of the pool represents the part of the field nearest to it: the weights are those of a kernel density
        on the pool that make field data likely, after five steps of expectation-maximisation from equal weights.

            r_ji ∝ w_i K(z_j - z_i),  Σ_i r_ji = 1;   w_i ← Σ_j v_j r_ji        (1)

        z_j are the codes of field inputs with weights v_j, z_i those of the pool. Regions get the mass of the field
        there, but within a region it is uneven: even a pool drawn as the field data were has an effective size of less
        than half, so give such a pool equal masses instead. Normalised densities at the pool's inputs, which other
        tools use, would be right only for an evenly spaced pool, and in more than a few dimensions they put nearly all
        mass on few inputs.

        Args:
            pool: inputs; with labels, if priors are given.
            priors: class priors in the field, declared or from `estimate_priors`; each class's mass is scaled to its
                prior.
        """
        mass = nearest_mass(self.codes, self.shares, self.encode(pool.x).detach())
        return mass if priors is None else with_priors(mass, pool, priors)

    def save(self, path: str | Path) -> None:
        """Write everything except the features to a JSON file, with the tensors beside it; see `load_profile`."""
        parts: dict[str, object] = {}
        for part, kinds in ((self.encoder, ENCODERS), (self.density, DENSITIES)):
            if type(part) not in kinds.values():
                raise ValueError(f"a custom {type(part).__name__} cannot be saved; only the built-in ones can")
            parts |= {name: part if type(part) is kind else None for name, kind in kinds.items()}
        parts |= {name: getattr(self, name) for name in STORED}
        results.save(_StoredProfile(**parts, has_features=self.features is not None), path)  # type: ignore[arg-type]

    @cached_property
    def _held_log_prob(self) -> Tensor:
        return self.density.log_prob(self.held).detach().sort().values

    @cached_property
    def _spread(self) -> Tensor:
        mean = self.shares @ self.codes.double()
        return (self.shares @ (self.codes.double() - mean).square()).sqrt()


@activity("fitting the profile")
def fit_profile(
    field: Samples,
    *,
    encoder: FitEncoder = fit_pca,
    density: FitDensity = DEFAULT_DENSITY,
    features: Features | None = None,
    generator: torch.Generator,
) -> Profile:
    """Learn the profile of field data.

    A fifth of the inputs, chosen by id, is held back. If their median rating is more than one nat per dimension below
    that of the fitted ones, the density is overfitted and rejected.

    Args:
        field: inputs from operation; labels are not needed.
        encoder: learns the codes: `fit_flat` (none), `fit_pca` (whitened principal components), `fit_vae`, each with
            options as ``partial(fit_pca, dimensions=16)``.
        density: learns the density of codes: `fit_kde`, `fit_mixture` or `fit_flow`, with options in the same way
            (default: kernels with the bandwidth that maximises the leave-one-out likelihood).
        features: applied to inputs before the encoder: `layer_features` of a model, or any function of inputs.

    >>> from operant import load_digits
    >>> digits = load_digits().train
    >>> profile = fit_profile(digits, encoder=partial(fit_pca, dimensions=8), generator=spawn(0))
    >>> profile.log_prob(digits.x[:3]).shape
    torch.Size([3])

    References:
        | Assessing the Reliability of Deep Learning Classifiers Through Robustness Evaluation and Operational Profiles
        | (Zhao et al., 2021), https://arxiv.org/abs/2106.01258
    """
    _check_field(field)
    parts = field.split(fitting=1 - HELD_SHARE, held=HELD_SHARE)
    if features is None:
        fitting, held = parts["fitting"], parts["held"]
    else:
        fitting, held = (replace(part, x=_featured(features, part.x), y=None) for part in parts.values())
    learned = encoder(fitting, generator=generator)
    codes, held_codes = (_checked_codes(learned(part.x), len(part)) for part in (fitting, held))
    _check_spread(codes)
    shares = torch.full((len(codes),), 1 / len(codes), dtype=torch.float64, device=codes.device)
    profile = Profile(
        shape=tuple(field.shape),
        encoder=learned,
        density=density(codes, weights=shares, generator=generator),
        codes=codes,
        shares=shares,
        held=held_codes,
        probes=parts["held"].x[:PROBES].clone(),
        features=features,
    )
    _check_fit(profile)
    return replace(profile, findings=_findings(profile, field))


def layer_features(model: Classifier, layer: str) -> Features:
    """A function from inputs to a layer's flattened outputs: features for `fit_profile` and `fit_ratio`."""
    if layer not in model.layers:
        raise ValueError(f"no layer named {layer}; this model has {', '.join(model.layers)}")
    return partial(_outputs, model, layer)


def _outputs(model: Classifier, layer: str, x: Tensor) -> Tensor:
    return model.features(x, layers=[layer])[layer].flatten(1)


def with_priors(mass: Tensor, pool: Samples, priors: Priors | Sequence[float]) -> Tensor:
    """The masses of a labelled pool's inputs, scaled so that each class has its prior."""
    given = shares_of(priors)
    if pool.y is None:
        raise ValueError(
            "priors need the class of each input of the pool; label it, or use predictions: "
            "Samples(pool.x, model.predict(pool.x))"
        )
    y = pool.y.cpu()
    if len(y) and int(y.max()) >= len(given):
        largest = class_name(int(y.max()), pool.classes)
        raise ValueError(f"there are priors for {len(given)} classes, but the pool has a class {largest}")
    held = torch.zeros(len(given), dtype=torch.float64).index_add_(0, y, mass.cpu().double())
    if missing := ((given > 0) & (held == 0)).nonzero().flatten().tolist():
        names = class_names(missing, pool.classes)
        raise ValueError(f"the pool has no mass in classes {names}, which occur in the field; add inputs of those")
    factor = torch.where(held > 0, given / held.clamp_min(torch.finfo(held.dtype).tiny), 0.0)
    weights = mass.cpu().double() * factor[y]
    return weights / weights.sum()


@dataclass(frozen=True, eq=False, kw_only=True)
class ProfileUpdate:
    """An updated profile, and how far it moved.

    Attributes:
        moved: distance of the mean of the new inputs' codes from that of the old ones, in standard deviations.
        strange: share of new inputs with a density below that of 95 % of the old held-back ones; 5 % if nothing moved.
        divergence: mean log-density of the new held-back inputs under the new profile minus under the old, in nats.
    """

    profile: Profile
    moved: float
    strange: float
    divergence: float

    def __str__(self) -> str:
        return (
            f"The mean of new field inputs lies {self.moved:.2f} standard deviations from that of the old; "
            f"{percent(self.strange, 2)} of them are stranger than 95 % of the old ones; the updated profile rates "
            f"them {self.divergence:+.2f} nats relative to the old."
        )


@activity("updating the profile")
def update_profile(
    profile: Profile,
    new: Samples,
    *,
    keep: float = 0.5,
    density: FitDensity = DEFAULT_DENSITY,
    generator: torch.Generator,
) -> ProfileUpdate:
    """Learn the density again from old and new field inputs, with less weight on the old ones.

    The encoder does not change, so that profiles can be compared. The weight of an input is ``keep`` to the power of
    the number of updates since it arrived. The newly held-back inputs replace the old ones.

    Args:
        new: field inputs that arrived since.
        keep: weight of an old input relative to a new one, from 0 (forget) to 1 (equal).
        density, generator: as in `fit_profile`.
    """
    check_share(keep=keep, advice="0.5 halves the weight of old inputs")
    _check_field(new)
    parts = new.split(fitting=1 - HELD_SHARE, held=HELD_SHARE)
    codes, held = (_checked_codes(profile.encode(parts[role].x), len(parts[role])) for role in ("fitting", "held"))
    old = profile.shares / profile.shares.max() * keep  # the newest inputs weigh 1
    shares = torch.cat([old, torch.ones(len(codes)).to(old)])
    kept = shares > 0
    shares = shares[kept] / shares.sum()
    joined = torch.cat([profile.codes, codes])[kept]
    fitted = density(joined, weights=shares, generator=generator)
    probes = parts["held"].x[:PROBES].clone()
    updated = replace(profile, density=fitted, codes=joined, shares=shares, held=held, probes=probes)
    _check_fit(updated)
    apart = (codes.double().mean(0) - profile.shares @ profile.codes.double()) / profile._spread
    gain = fitted.log_prob(held).mean() - profile.density.log_prob(held).mean()
    return ProfileUpdate(
        profile=replace(updated, findings=_findings(updated, new)),
        moved=float(apart.norm()),
        strange=float((profile.quantile_of_codes(held) <= STRANGE_QUANTILE).double().mean()),
        divergence=float(gain),
    )


# Files ----------------------------------------------------------------------------------------------------------------

STORED = ("shape", "codes", "shares", "held", "probes", "findings")
ENCODERS: dict[str, type] = {"flat": Flat, "pca": PCA, "vae": VAE}
DENSITIES: dict[str, type] = {"kde": KDE, "mixture": Mixture, "flow": Flow}


@dataclass(frozen=True, eq=False, kw_only=True)
class _StoredProfile:
    """A profile as saved: with one of the encoders and one of the densities."""

    shape: tuple[int, ...]
    codes: Tensor
    shares: Tensor
    held: Tensor
    probes: Tensor
    findings: tuple[Finding, ...]
    has_features: bool
    flat: Flat | None
    pca: PCA | None
    vae: VAE | None
    kde: KDE | None
    mixture: Mixture | None
    flow: Flow | None


def load_profile(path: str | Path, *, features: Features | None = None) -> Profile:
    """Read the file of `Profile.save`, given the features that it was fitted with, if any; others are rejected."""
    stored = results.load(path, _StoredProfile)
    if stored.has_features != (features is not None):
        need = "of features: give the function for them" if stored.has_features else "of inputs: give no features"
        raise ValueError(f"the profile in {path} is {need}")
    encoder = next((e for e in (stored.flat, stored.pca, stored.vae) if e is not None), None)
    density = next((d for d in (stored.kde, stored.mixture, stored.flow) if d is not None), None)
    if encoder is None or density is None:
        raise ValueError(f"{path} has no {'encoder' if encoder is None else 'density'}; fit the profile again")
    plain = {name: getattr(stored, name) for name in STORED}
    profile = Profile(**plain, encoder=encoder, density=density, features=features)
    if features is not None:
        now = profile.encode(stored.probes)
        if not torch.allclose(now, stored.held[: len(now)].to(now), rtol=1e-3, atol=1e-3):
            raise ValueError(f"these features are not those of the profile in {path}; give those it was fitted on")
    return profile


def _featured(features: Features, x: Tensor) -> Tensor:
    h = features(x)
    if not isinstance(h, Tensor) or h.ndim < 2 or len(h) != len(x) or not h.is_floating_point():
        got = f"{h.dtype} of shape {tuple(h.shape)}" if isinstance(h, Tensor) else f"a {type(h).__name__}"
        raise ValueError(f"features must be floating-point (N, ...), one row for each of {len(x)} inputs, got {got}")
    return h.detach() if not x.requires_grad else h


def _check_field(field: Samples) -> None:
    if len(field) < MIN_INPUTS:
        raise ValueError(f"a profile needs at least {MIN_INPUTS} field inputs, got {len(field)}; collect more")
    check_finite(inputs=field.x)


def _checked_codes(codes: Tensor, n: int) -> Tensor:
    if codes.ndim != 2 or len(codes) != n or not bool(codes.isfinite().all()):
        raise ValueError(f"codes must be finite numbers (N, d) for {n} inputs, got shape {tuple(codes.shape)}")
    return codes.detach()


def _check_spread(codes: Tensor) -> None:
    n, d = codes.shape
    if n <= d:
        raise ValueError(
            f"there must be more field inputs than dimensions, got {n} to fit {d} dimensions; collect more, or use "
            "fewer: encoder=partial(fit_pca, dimensions=...)"
        )
    if constant := (codes == codes[:1]).all(0).nonzero().flatten().tolist():
        raise ValueError(
            f"{len(constant)} of {d} features never vary in the field data (number {constant[0]} first); leave them "
            "out, or use encoder=fit_pca, which does so"
        )


def _check_fit(profile: Profile) -> None:
    fitted = profile.density.log_prob(profile.codes[:: max(1, len(profile.codes) // 2000)]).detach()
    low = fitted.median() - profile._held_log_prob.median()
    limit = MAX_GAP * profile.codes.shape[1] + 2
    if not math.isfinite(float(low)):
        raise ValueError("the density of the field inputs is not finite; many may be copies of a few: remove copies")
    if float(low) > limit:
        raise ValueError(
            f"the density rates held-back field inputs {float(low):.1f} nats below the ones it was fitted on, more "
            f"than {limit:.0f}: it is overfitted; use a wider bandwidth (bandwidth='likelihood'), fewer components, "
            "fewer dimensions, or more field data"
        )


def _findings(profile: Profile, field: Samples) -> tuple[Finding, ...]:
    found = []
    if field.y is not None and len(field.y.unique()) == 1:
        problem = f"all {len(field)} field inputs are labelled {int(field.y[0])}"
        advice = "If other classes occur in operation, this profile lacks them: collect field data again"
        found.append(warning("one class", problem, advice))
    drawn = profile.density.sample(256, generator=spawn(0, "own samples"))
    gap = float(profile._held_log_prob.median() - profile.density.log_prob(drawn).detach().median())
    if not gap <= MAX_GAP * profile.codes.shape[1] + 2:
        problem = f"the profile rates its own samples {gap:.1f} nats below field inputs"
        found.append(warning("strange samples", problem, "Do not use its samples; choose another density"))
    return tuple(found)
