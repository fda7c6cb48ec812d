"""What guides a search: profile, naturalness and conditions of a field, fitted once and stored."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from operant import results
from operant.measure import Naturalness, fit_naturalness, load_naturalness
from operant.networks import fit_pca
from operant.profile import FittedConditions, Profile, fit_conditions, fit_profile, load_profile
from operant.rng import spawn
from operant_studies.operational_fuzz.fields import StudyField

DIMENSIONS = 32  # of the profile's codes


@dataclass(frozen=True)
class FieldInstruments:
    """Fitted on the inputs of `StudyField.seen`, without labels."""

    field: StudyField
    folder: Path  # where they are stored; stored ones are read

    @cached_property
    def profile(self) -> Profile:
        path = self._path("profile")
        if not path.exists():
            encoder = partial(fit_pca, dimensions=DIMENSIONS)
            fit_profile(self.field.seen, encoder=encoder, generator=spawn(self.field.seed, "profile")).save(path)
        return load_profile(path)

    @cached_property
    def naturalness(self) -> Naturalness:
        path = self._path("naturalness")
        if not path.exists():
            generator = spawn(self.field.seed, "naturalness")
            fit_naturalness(self.field.seen, generator=generator, progress=False).save(path)
        return load_naturalness(path)

    @cached_property
    def conditions(self) -> FittedConditions:
        """Conditions estimated from field inputs."""
        path = self._path("conditions")
        if not path.exists():
            fitted = fit_conditions(
                self.field.seen,
                self.field.train,
                widest=self.field.setting.widest,
                simulated=self.field.setting.simulated,
                resamples=20,
                generator=spawn(self.field.seed, "conditions"),
                progress=False,
            )
            results.save(fitted, path)
        return results.load(path, FittedConditions)

    def _path(self, name: str) -> Path:
        folder = self.folder / f"{self.field.setting.name}-{self.field.seed}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}.json"
