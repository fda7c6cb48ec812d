"""What a campaign knows of the field: inputs as they arrive, dealt to roles, and what is learned from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from operant.assess.reliability import centres_of
from operant.campaign.records import FieldIds
from operant.data import Samples
from operant.execution.run_folder import RunFolder
from operant.measure import Naturalness, fit_naturalness, load_naturalness
from operant.model import Classifier
from operant.networks import fit_pca
from operant.profile import Profile, drift, fit_profile, load_profile, update_profile
from operant.rng import spawn

FEWEST = 250  # field inputs to learn from
DRIFT_LEVEL = 0.05  # how often a campaign may take a field that has not changed for another
REPEATS = 0.01  # share of field inputs that may be copies of others
MIN_NEW_INPUTS = 50  # field inputs from which on it is asked whether they differ from those before


@dataclass(frozen=True, kw_only=True)
class DriftNote:
    """What was noticed about new field inputs; empty if nothing."""

    told: str


class FieldState:
    """The field as a campaign sees it.

    Attributes:
        pool: field inputs to assess with.
        profile, naturalness: fitted to other field inputs.
        centres: of the cells of the profile.
        drifted: what was noticed about inputs that arrived for the present round; empty if nothing.
        known: how many inputs have arrived.

    Args:
        arrived: from the number of a round to all field inputs that have arrived by then.
        model: as it came; drift is looked for in what it makes of inputs.
        used: ids of inputs that the model learns from or is guarded by; field inputs among them cannot assess.
        run: where all this is kept.
        seed: of everything random.
        dimensions: of the profile's codes.
        follow: whether the view follows a field that drifts.
    """

    profile: Profile
    naturalness: Naturalness
    centres: Tensor
    pool: Samples
    waiting: Samples
    reference: Samples

    def __init__(
        self,
        arrived: Callable[[int], Samples],
        model: Classifier,
        used: Tensor,
        run: RunFolder,
        *,
        seed: int,
        dimensions: int,
        follow: bool,
    ) -> None:
        self.arrived, self.model, self.used, self.run = arrived, model, used, run
        self.seed, self.dimensions, self.follow = seed, dimensions, follow
        self.seen = torch.empty(0, dtype=torch.int64)
        self.drifted = ""

    @property
    def known(self) -> int:
        return len(self.seen)

    def arrive(self, number: int) -> None:
        """Take in what is there when a round begins: the same inputs whenever the campaign is gone on with.

        Later ones wait until they are enough to be compared with those before.
        """
        place, new = f"round-{number:03d}", self._new(number)
        self.seen = torch.cat([self.seen, new.ids])
        self.waiting = Samples.concat([self.waiting, new]) if number else new
        self.drifted = ""
        if number and len(self.waiting) < MIN_NEW_INPUTS:
            return
        new, self.waiting = self.waiting, new[:0]
        parts = new.split(profile=0.5, assessment=0.5)
        fresh = parts["assessment"]
        fresh = fresh[~torch.isin(fresh.ids, self.used)]
        if number == 0 and len(parts["profile"]) < FEWEST:
            raise ValueError(
                f"a campaign needs about {2 * FEWEST} field inputs, half of them to learn what the field looks like, "
                f"half to assess, got {len(new)}; collect more"
            )
        self.drifted = self._compare(place, number, parts["profile"]) if number else ""
        if number == 0 or (self.drifted and self.follow):  # what was before is not, or no longer, the field
            few = number > 0 and len(parts["profile"]) < FEWEST
            looks = Samples.concat([self.reference, parts["profile"]]) if few else parts["profile"]
            self.reference, self.pool = parts["profile"], fresh
            self._look(place, parts["profile"], looks, first=number == 0)
        elif not self.drifted:
            self.reference = Samples.concat([self.reference, parts["profile"]])
            self.pool = Samples.concat([self.pool, fresh])

    def cells(self, x: Tensor) -> Tensor:
        """The cell of the profile that each input lies in."""
        return torch.cdist(self.profile.encode(x).detach().cpu().double(), self.centres).argmin(1)

    def _new(self, number: int) -> Samples:
        everything = self.arrived(number)
        if len(everything) - len(everything.ids.unique()) > REPEATS * len(everything):
            raise ValueError(
                f"{len(everything) - len(everything.ids.unique())} of {len(everything)} field inputs are copies of "
                "others, and a bound would speak of different inputs only; leave the copies out, or give each use its "
                "own id"
            )
        known = self.run.step(
            f"round-{number:03d}/field", FieldIds, lambda: FieldIds(ids=everything.ids.sort().values)
        ).ids
        if gone := int((~torch.isin(known, everything.ids)).sum()):
            raise ValueError(
                f"{gone} of {len(known)} field inputs that round {number} began with are gone; put them back, or start "
                "a new folder"
            )
        there = everything[everything.rows_of(known)]  # in the same order, in whichever they come
        self.model.check_inputs(there.x)
        new: Samples = there[~torch.isin(there.ids, self.seen)]
        return new

    def _compare(self, place: str, number: int, new: Samples) -> str:
        """What three tests say of inputs that have arrived; empty if nothing."""

        def work() -> DriftNote:
            level = DRIFT_LEVEL / (number * (number + 1))  # over all rounds together
            enough = max(500, math.ceil(6 / level))  # of fewer permutations none of three tests could reach its level
            generator = spawn(self.seed, place, "drift")
            found = drift(self.reference, new, self.model, level=level, permutations=enough, generator=generator)
            return DriftNote(told=str(found) if found.alarm else "")

        return self.run.step(f"{place}/drift", DriftNote, work).told

    def _look(self, place: str, inputs: Samples, looks: Samples, *, first: bool) -> None:
        """Learn from inputs where the field lies and what it looks like; what was learned is read.

        The first few inputs of a new field show where it lies. To say what looks natural they are too few, and those
        before help.
        """

        def fit() -> Profile:
            generator = spawn(self.seed, place, "profile")
            if not first:
                return update_profile(self.profile, inputs, generator=generator).profile
            return fit_profile(inputs, encoder=partial(fit_pca, dimensions=self.dimensions), generator=generator)

        def fit_natural() -> Naturalness:
            generator = spawn(self.seed, place, "naturalness")
            return fit_naturalness(looks, bounds=self.model.bounds, generator=generator, progress=False)

        self.profile = self.run.kept(f"{place}/profile.json", fit, save=Profile.save, load=load_profile)
        self.naturalness = self.run.kept(
            f"{place}/naturalness.json", fit_natural, save=Naturalness.save, load=load_naturalness
        )
        self.centres = centres_of(self.profile, generator=spawn(self.seed, place, "cells"))
