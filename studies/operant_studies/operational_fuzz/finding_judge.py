"""Who judges what searches found: fitted on other field inputs, by other encoders, and never searched with."""

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
from operant.networks import LeNet5, fit, fit_pca, initialise, load_weights, save_weights
from operant.profile import Profile, fit_profile, load_profile
from operant.rng import spawn
from operant_studies.operational_fuzz.fields import StudyField
from operant_studies.operational_fuzz.instruments import DIMENSIONS

LATENT = 24  # numbers of its VAE; the guide's has 16
CODES = DIMENSIONS * 5 // 8  # dimensions of its profile, and of its cells
LAYER = "relu_fc2"  # of its network, in which it looks for neighbours; it looks at pixels as well, as the guide does
PROBED = 1_000  # field inputs that noise is added to
LEARNED = 10_000  # inputs of its network


@dataclass(frozen=True, kw_only=True)
class JudgeFacts:
    """What the judge says of genuine field inputs, those that tell what is true.

    Attributes:
        natural: share of them that it calls natural, which should be at least 1 - level.
        counted: share that would count if the model failed on them.
        refused: share of them that it does not call natural after each pixel was moved up or down by a radius, by
            chance: for each radius that attacks try. Noise that no search makes, to see what the judge can see.
        refused_by_features: the same, for its neighbours in features alone.
        pmi: share on which the model fails.
        reachable: mass of the cells in which the model fails on an input that would count: what a search without end
            and without its own inventions could find, at least.
        cells: how many there are.
        seconds: that fitting the judge took; near 0 where it was on disk already.
    """

    natural: float
    counted: float
    refused: tuple[float, ...]
    refused_by_features: tuple[float, ...]
    pmi: float
    reachable: float
    cells: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class JudgedCases:
    """Which cases are natural, which are so where use is dense (operational, if they fail), and by features alone."""

    natural: Tensor
    counted: Tensor
    counted_by_features: Tensor


@dataclass(frozen=True)
class Judge:
    """Fitted on `StudyField.judging` alone, once, and kept in a folder.

    It asks two measures of naturalness, with neighbours in features of its own network and in pixels, and takes both
    p-values as one by min-Bonferroni, so that a genuine input is still refused with at most the level's probability.
    Features alone see no noise: in those of CIFAR-10 a tenth of the range, up or down by chance, passes as natural.
    """

    field: StudyField
    folder: Path

    @cached_property
    def network(self) -> Classifier:
        """A LeNet-5 that the searched model has nothing to do with but its training data."""
        path, start = self._path("network.safetensors"), self._start()
        if not path.exists():
            train, generator = self.field.train[:LEARNED], spawn(self.field.seed, "judge", "training")
            save_weights(fit(start, train, epochs=4, generator=generator, progress=False).module, path)
        return Classifier(load_weights(start, path).eval())

    @cached_property
    def by_features(self) -> Naturalness:
        """With neighbours in what a layer of its own network says."""
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
            encoder = partial(fit_pca, dimensions=CODES)
            fit_profile(self.field.judging, encoder=encoder, generator=spawn(self.field.seed, "judge", "profile")).save(
                path
            )
        return load_profile(path)

    @cached_property
    def masses(self) -> Tensor:
        """Of the cell of each judging input: the share of true field inputs that are nearest to it."""
        hits = torch.bincount(self.cells(self.field.truth.x), minlength=len(self.field.judging))
        return hits.double() / len(self.field.truth)

    @cached_property
    def failing(self) -> Tensor:
        """Of the cell of each judging input: the share of true field inputs that are nearest to it and fail."""
        truth = self.field.truth
        wrong = self.field.model.predict(truth.x) != truth.labels
        hits = torch.bincount(self.cells(truth.x[wrong]), minlength=len(self.field.judging))
        return hits.double() / len(truth)

    def cells(self, x: Tensor) -> Tensor:
        """The judging input nearest to each of these, in codes."""
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
        told = self.judge(truth.x)
        hit = self.cells(truth.x[failing & told.counted]).unique()
        noisy = [self._under_noise(radius) for radius in self.field.setting.radii]
        return JudgeFacts(
            natural=float(told.natural.double().mean()),
            counted=float(told.counted.double().mean()),
            refused=tuple(float(1 - self.judge(x).natural.double().mean()) for x in noisy),
            refused_by_features=tuple(float((self.by_features(x) < LEVEL).double().mean()) for x in noisy),
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

    def _start(self) -> LeNet5:
        channels, _, size = self.field.train.shape
        build = partial(LeNet5, channels=channels, size=size)
        return initialise(build, generator=spawn(self.field.seed, "judge", "weights"))

    def _path(self, name: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / name
