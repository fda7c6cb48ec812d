"""The judge of what searches found: fitted on other field inputs, with other encoders, and never used to search."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from operant.generate.operational.fuzz import QUANTILE
from operant.measure import Naturalness, fit_naturalness, load_naturalness
from operant.measure.conformal import min_bonferroni
from operant.measure.naturalness import LEVEL
from operant.model import Classifier
from operant.networks import LeNet5, fit_pca, initialise
from operant.profile import Profile, fit_profile, load_profile
from operant.rng import spawn
from operant_studies.operational_fuzz.fields import StudyField
from operant_studies.operational_fuzz.instruments import DIMENSIONS
from operant_studies.subjects import train_once

LATENT = 24  # dimensions of its VAE; the guide's has 16
CODES = DIMENSIONS * 5 // 8  # dimensions of its profile and of its cells
LAYER = "relu_fc2"  # of its network, for neighbours; it also compares pixels, as the guide does
PROBED = 1_000  # field inputs to add noise to
LEARNED = 10_000  # training inputs of its network


@dataclass(frozen=True, kw_only=True)
class JudgeFacts:
    """What the judge decides about genuine field inputs, the true ones."""

    natural: float  # share that it calls natural, which should be at least 1 - level
    counted: float  # share that would count if the model failed on them
    # rejected: share that it does not call natural after every pixel was moved up or down at random, by each radius of
    # the attacks. No search makes such noise; it shows what the judge can see
    rejected: tuple[float, ...]
    rejected_by_features: tuple[float, ...]  # the same with neighbours in features alone
    pmi: float  # share on which the model fails
    # reachable: mass of the cells in which the model fails on an input that would count: a lower limit of what an
    # endless search could find
    reachable: float
    cells: int
    seconds: float  # CPU time of fitting the judge; near 0 if it was read from disk


@dataclass(frozen=True, kw_only=True)
class JudgedCases:
    """Which cases are natural, which also lie where use is dense (operational if they fail), and by features alone."""

    natural: Tensor
    counted: Tensor
    counted_by_features: Tensor


@dataclass(frozen=True)
class Judge:
    """Fitted on `StudyField.judging` alone, once, and stored in a folder.

    It combines two measures of naturalness, with neighbours in features of its own network and in pixels, by
    min-Bonferroni, so that it rejects a genuine input with at most the level's probability. Features alone miss noise:
    in CIFAR-10, random noise of a tenth of the range passes as natural.
    """

    field: StudyField
    folder: Path

    @cached_property
    def network(self) -> Classifier:
        """A LeNet-5 that shares only training data with the model under test."""
        train, generator = self.field.train[:LEARNED], spawn(self.field.seed, "judge", "training")
        channels, _, size = train.shape
        build = partial(LeNet5, channels=channels, size=size)
        start = initialise(build, generator=spawn(self.field.seed, "judge", "weights"))
        return train_once(start, self._path("network.safetensors"), train, epochs=4, generator=generator)

    @cached_property
    def by_features(self) -> Naturalness:
        """With neighbours in the outputs of a layer of its own network."""
        path = self._path("by-features.json")
        if not path.exists():
            self._fitted("by features", model=self.network, layer=LAYER).save(path)
        return load_naturalness(path, model=self.network)

    @cached_property
    def by_pixels(self) -> Naturalness:
        path = self._path("by-pixels.json")
        if not path.exists():
            self._fitted("by pixels").save(path)
        return load_naturalness(path)

    def _fitted(self, name: str, **options: Any) -> Naturalness:
        generator = spawn(self.field.seed, "judge", name)
        return fit_naturalness(self.field.judging, latent=LATENT, generator=generator, progress=False, **options)

    @cached_property
    def profile(self) -> Profile:
        path = self._path("profile.json")
        if not path.exists():
            encoder, generator = partial(fit_pca, dimensions=CODES), spawn(self.field.seed, "judge", "profile")
            fit_profile(self.field.judging, encoder=encoder, generator=generator).save(path)
        return load_profile(path)

    @cached_property
    def masses(self) -> Tensor:
        """Share of true field inputs in the cell of each judging input."""
        hits = torch.bincount(self.cells(self.field.truth.x), minlength=len(self.field.judging))
        return hits.double() / len(self.field.truth)

    @cached_property
    def failing(self) -> Tensor:
        """Share of true field inputs in the cell of each judging input on which the model fails."""
        truth = self.field.truth
        wrong = self.field.model.predict(truth.x) != truth.labels
        hits = torch.bincount(self.cells(truth.x[wrong]), minlength=len(self.field.judging))
        return hits.double() / len(truth)

    def cells(self, x: Tensor) -> Tensor:
        """The judging input nearest to each input, in codes."""
        if len(x) == 0:
            return torch.zeros(0, dtype=torch.int64)
        parts = [torch.cdist(part, self._centres).argmin(1) for part in self.profile.encode(x).detach().split(2_000)]
        return torch.cat(parts)

    def judge(self, x: Tensor) -> JudgedCases:
        if len(x) == 0:
            none = torch.zeros(0, dtype=torch.bool)
            return JudgedCases(natural=none, counted=none, counted_by_features=none)
        by = [torch.cat([p(part) for part in x.split(2_000)]) for p in (self.by_features, self.by_pixels)]
        natural = min_bonferroni(torch.stack(by, 1)) >= LEVEL
        dense = self.profile.quantile(x) >= QUANTILE
        return JudgedCases(natural=natural, counted=natural & dense, counted_by_features=(by[0] >= LEVEL) & dense)

    def facts(self) -> JudgeFacts:
        start = time.process_time()
        _ = self.by_features, self.by_pixels, self.profile
        seconds = time.process_time() - start
        truth = self.field.truth
        failing = self.field.model.predict(truth.x) != truth.labels
        judged = self.judge(truth.x)
        hit = self.cells(truth.x[failing & judged.counted]).unique()
        noisy = [self._under_noise(radius) for radius in self.field.setting.radii]
        return JudgeFacts(
            natural=float(judged.natural.double().mean()),
            counted=float(judged.counted.double().mean()),
            rejected=tuple(float(1 - self.judge(x).natural.double().mean()) for x in noisy),
            rejected_by_features=tuple(float((self.by_features(x) < LEVEL).double().mean()) for x in noisy),
            pmi=float(failing.double().mean()),
            reachable=float(self.masses[hit].sum()),
            cells=len(self.masses),
            seconds=seconds,
        )

    def _under_noise(self, radius: float) -> Tensor:
        x = self.field.truth.x[:PROBED]
        up = torch.rand(x.shape, generator=spawn(self.field.seed, "judge", "noise")) < 0.5
        return (x + radius * torch.where(up, 1.0, -1.0)).clamp(*self.field.model.bounds)

    @cached_property
    def _centres(self) -> Tensor:
        return self.profile.encode(self.field.judging.x).detach()

    def _path(self, name: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / name
