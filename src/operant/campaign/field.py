"""The field as a campaign knows it: inputs as they arrive, split into roles, and the profile learned from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from operant.assess.reliability import centres_of
from operant.campaign.records import DriftNote, FieldIds
from operant.data import Samples
from operant.execution.run_folder import RunFolder
from operant.measure import Naturalness, fit_naturalness, load_naturalness
from operant.model import Classifier
from operant.model.hashing import bytes_of, hash_of
from operant.networks import fit_pca
from operant.profile import Drift, Profile, RiskMap, drift, fit_profile, load_profile, update_profile
from operant.rng import spawn

MIN_PROFILE_INPUTS = 250  # field inputs needed to learn a profile
DRIFT_LEVEL = 0.05  # probability that a campaign sees drift in a field that has not changed
MAX_COPIES = 0.01  # share of field inputs that may be copies of others
MIN_NEW_INPUTS = 50  # new field inputs needed to compare them with earlier ones

Arrivals = Callable[[int], Samples]
"""From the number of a round to all field inputs that have arrived by then."""


class FewFieldInputs(ValueError):
    """There are too few field inputs for a campaign."""


def check_field_size(inputs: Samples) -> None:
    """Refuse field inputs that are too few to learn the profile from one half of them and to assess with the other."""
    parts = inputs.split(profile=0.5, assessment=0.5)
    if len(parts["profile"]) >= MIN_PROFILE_INPUTS and len(parts["assessment"]):
        return
    groups = "" if inputs.groups is None else f" in {len(inputs.units.unique())} groups, which are never separated"
    raise FewFieldInputs(
        f"a campaign needs about {2 * MIN_PROFILE_INPUTS} field inputs, half of them to learn the profile and half to "
        f"assess, got {len(inputs)}{groups}; collect more. `operant field` and `fit_risk` work with fewer"
    )


class FieldState:
    """The field inputs of a campaign and what was learned from them.

    Attributes:
        pool: field inputs to assess with.
        profile, naturalness: fitted to the other field inputs.
        judged_by: the inputs that the profile was fitted to, for judges of the moves.
        fitted_in: folder of the round in which they were fitted.
        centres: of the cells of the profile.
        drift: the drift found when the current round began; None if there was none.
        profile_is_new: whether the profile was fitted when the current round began.
        changed: whether the field has drifted since the campaign began.
        risk: where the current model is likely to fail; None if no cases are drawn for it.

    Args:
        arrived: field inputs by round.
        model: the initial model; drift is tested on its outputs.
        used: ids of training and clean inputs; field inputs among them cannot be used to assess.
        run: where everything is kept.
        seed: random seed.
        dimensions: of the profile's codes.
        follow: whether to learn a new profile when the field drifts.
        classes: names of the model's classes, for the results of drift tests.
        priors: class shares of the first field, if they were estimated with its conditions.
    """

    profile: Profile
    naturalness: Naturalness
    judged_by: Samples
    fitted_in: str
    centres: Tensor
    pool: Samples
    _waiting: Samples  # arrived, but too few to be compared yet
    _reference: Samples  # what the profile was learned from

    def __init__(
        self,
        arrived: Arrivals,
        model: Classifier,
        used: Tensor,
        run: RunFolder,
        *,
        seed: int,
        dimensions: int,
        follow: bool,
        classes: tuple[str, ...] = (),
        priors: Sequence[float] = (),
    ) -> None:
        self.arrived, self.model, self.used, self.run = arrived, model, used, run
        self.seed, self.dimensions, self.follow, self.classes = seed, dimensions, follow, classes
        self.priors = tuple(priors)
        self.drift: Drift | None = None
        self.profile_is_new = self.changed = False
        self.risk: RiskMap | None = None
        self._seen = torch.empty(0, dtype=torch.int64)

    @property
    def size(self) -> int:
        """Number of field inputs that have arrived."""
        return len(self._seen)

    @property
    def inputs(self) -> Samples:
        """The inputs of the current field: those that the profile was learned from, and those to assess with."""
        return Samples.concat([self._reference, self.pool])

    def class_shares(self, train: Samples) -> Tensor:
        """The share of each of the model's classes in the present field, in float64.

        They are those that were estimated with the conditions, until the field changes. Otherwise they are estimated
        by the profile, as the likeness of training inputs to field inputs.
        """
        classes = self.model.classes(train.x[:1])
        if self.priors and not self.changed:  # training data may lack the last classes
            return torch.tensor([*self.priors, *[0.0] * (classes - len(self.priors))], dtype=torch.float64)
        mass = torch.bincount(train.labels.cpu(), self.profile.weights(train).cpu().double(), minlength=classes)
        return mass / mass.sum()

    def cells(self, x: Tensor) -> Tensor:
        """The profile cell of each input."""
        return torch.cdist(self.profile.encode(x).detach().cpu().double(), self.centres).argmin(1)

    def update(self, number: int) -> None:
        """Add the inputs that have arrived when a round begins; a resumed campaign adds the same ones.

        Inputs that arrive later wait until there are enough of them to be compared with earlier ones.
        """
        name, new = f"round-{number:03d}", self._new_inputs(number)
        self._seen = torch.cat([self._seen, new.ids])
        self._waiting = Samples.concat([self._waiting, new]) if number else new
        self.drift, self.profile_is_new = None, False
        if number and len(self._waiting) < MIN_NEW_INPUTS:
            return
        new, self._waiting = self._waiting, new[:0]
        parts = new.split(profile=0.5, assessment=0.5)
        fresh = parts["assessment"]
        fresh = fresh[~torch.isin(fresh.ids, self.used)]
        if number == 0:
            check_field_size(new)
        self.drift = self._compare(name, number, parts["profile"]) if number else None
        self.changed = self.changed or self.drift is not None
        if number == 0 or (self.drift and self.follow):  # earlier inputs are not, or no longer, the field
            few = number > 0 and len(parts["profile"]) < MIN_PROFILE_INPUTS
            natural = Samples.concat([self._reference, parts["profile"]]) if few else parts["profile"]
            self._reference, self.pool = parts["profile"], fresh
            self._fit(name, parts["profile"], natural, first=number == 0)
        elif self.drift is None:
            self._reference = Samples.concat([self._reference, parts["profile"]])
            self.pool = Samples.concat([self.pool, fresh])

    def _new_inputs(self, number: int) -> Samples:
        everything = self.arrived(number)
        if (copies := len(everything) - len(everything.ids.unique())) > MAX_COPIES * len(everything):
            raise ValueError(
                f"{copies} of {len(everything)} field inputs are copies of others, but the bound holds for different "
                "inputs only; remove the copies, or give each use its own id"
            )
        ids = everything.ids.sort().values
        now = partial(FieldIds, ids=ids, groups=_groups_hash(everything, ids))
        began = self.run.step(f"round-{number:03d}/field", FieldIds, now)
        known = began.ids
        if missing := int((~torch.isin(known, everything.ids)).sum()):
            raise ValueError(
                f"{missing} of {len(known)} field inputs that round {number} began with are missing; restore them, or "
                "start a new folder"
            )
        if began.groups != _groups_hash(everything, known):
            raise ValueError(
                f"the groups of field inputs have changed since round {number} began, so their roles would change too; "
                "restore the groups, or start a new folder"
            )
        inputs = everything[everything.rows_of(known)]  # always in the same order
        self.model.check_inputs(inputs.x)
        new: Samples = inputs[~torch.isin(inputs.ids, self._seen)]
        return new

    def _compare(self, name: str, number: int, new: Samples) -> Drift | None:
        """The drift of new inputs against earlier ones; None if there is no alarm."""

        def work() -> DriftNote:
            level = DRIFT_LEVEL / (number * (number + 1))  # sums to DRIFT_LEVEL over all rounds
            permutations = max(500, math.ceil(6 / level))  # with fewer, none of three tests could reach its level
            generator = spawn(self.seed, name, "drift")
            reference = replace(self._reference, classes=self.classes or self._reference.classes)
            found = drift(reference, new, self.model, level=level, permutations=permutations, generator=generator)
            return DriftNote(drift=found if found.alarm else None)

        return self.run.step(f"{name}/drift", DriftNote, work).drift

    def _fit(self, name: str, inputs: Samples, natural: Samples, *, first: bool) -> None:
        """Fit profile and naturalness, or read them if they are on disk.

        The first few inputs of a changed field are enough for its profile. For naturalness they are too few, so
        earlier inputs are added.
        """

        def fit() -> Profile:
            generator = spawn(self.seed, name, "profile")
            if not first:
                return update_profile(self.profile, inputs, generator=generator).profile
            return fit_profile(inputs, encoder=partial(fit_pca, dimensions=self.dimensions), generator=generator)

        def fit_natural() -> Naturalness:
            generator = spawn(self.seed, name, "naturalness")
            return fit_naturalness(natural, bounds=self.model.bounds, generator=generator, progress=False)

        self.profile = self.run.cached(f"{name}/profile.json", fit, save=Profile.save, load=load_profile)
        self.naturalness = self.run.cached(
            f"{name}/naturalness.json", fit_natural, save=Naturalness.save, load=load_naturalness
        )
        self.judged_by, self.fitted_in = inputs, name  # not earlier inputs: judges would learn the earlier field
        self.centres = centres_of(self.profile, generator=spawn(self.seed, name, "cells"))
        self.profile_is_new = True


def _groups_hash(inputs: Samples, ids: Tensor) -> str:
    """A hash of the groups of the inputs with these ids; empty if the inputs have no groups."""
    return "" if inputs.groups is None else hash_of(bytes_of(inputs.units[inputs.rows_of(ids)]))
