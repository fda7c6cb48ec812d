"""What tests need: a source that passes, judges of validity, and anchors; trained once and stored."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from operant.generate import ClassLikelihood, FeatureSource, Quality, Validity, fit_class_likelihood
from operant.measure import Naturalness, fit_naturalness
from operant.model import Classifier
from operant.networks import CVAE, GAN, fit_cvae, fit_gan
from operant_studies.semantic.fields import SemanticImages, trained_network
from operant_studies.shared import Steps

LAYER = "relu_fc2"  # of LeNet-5, for comparisons
JUDGES = ("judge", "second judge")
ANCHORS = ("anchor", "second anchor")
SHARE = 0.9  # of its images that a conditional VAE is trained on


@dataclass(frozen=True, kw_only=True)
class RatedSource:
    """A trained source: its kind, its quality, and the CPU time of training it."""

    kind: str
    quality: Quality
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.quality.problems


class SemanticInstruments:
    """The instruments of one setting, read from its folder or made."""

    def __init__(self, field: SemanticImages, folder: Path) -> None:
        self.field, self.setting = field, field.setting
        self.folder = folder / field.setting.name
        self.steps = Steps(self.folder)

    # Classifiers

    @cached_property
    def judges(self) -> tuple[Classifier, ...]:
        return tuple(self._network(role) for role in JUDGES)

    @cached_property
    def anchors(self) -> tuple[Classifier, ...]:
        return tuple(self._network(role) for role in ANCHORS)

    def _network(self, role: str) -> Classifier:
        return trained_network(self.field, self.folder, role.replace(" ", "-"), self.field.neutral(role))

    # Sources

    @cached_property
    def rated(self) -> tuple[RatedSource, ...]:
        """The kinds of sources in order, up to the first that passes."""
        tried: list[RatedSource] = []
        for kind in self.setting.kinds:
            tried.append(self.steps.step(f"source-{kind}-rated", RatedSource, partial(self._rate, kind)))
            if tried[-1].passed:
                break
        return tuple(tried)

    @cached_property
    def source(self) -> FeatureSource | None:
        """The first source that passes, if any; rated by an anchor, which judges no test."""
        last = self.rated[-1]
        return replace(FeatureSource.of(self._learned(last.kind)), quality=last.quality) if last.passed else None

    def _rate(self, kind: str) -> RatedSource:
        start = time.process_time()
        learned = self._learned(kind)
        seconds = time.process_time() - start
        quality = self._rating(FeatureSource.of(learned)).quality
        assert quality is not None
        return RatedSource(kind=kind, quality=quality, seconds=seconds)

    def _rating(self, source: FeatureSource) -> FeatureSource:
        real, generator = self.field.neutral("rated"), self.field.spawn("quality")
        return source.rated(real, judge=self.anchors[0], layer=LAYER, generator=generator)

    def _learned(self, kind: str) -> CVAE | GAN:
        if kind == "cvae":
            return self.steps.step("source-cvae", CVAE, partial(self._fit, fit_cvae, SHARE))
        return self.steps.step("source-gan", GAN, partial(self._fit, fit_gan, 1.0))

    def _fit(self, fit: Callable[..., Any], share: float) -> Any:
        s, images = self.setting, self.field.neutral("source")
        epochs = max(1, round(s.source_steps * s.batch_size / (share * len(images))))
        options = {"latent": s.latent, "width": s.width, "epochs": epochs, "batch_size": s.batch_size}
        return fit(images, **options, generator=self.field.spawn("source"), progress=False)

    # Validity

    @cached_property
    def validity(self) -> Validity:
        """Judges, likelihoods and naturalness, which is fitted on the source's images."""
        likelihood = self.steps.step("likelihood", ClassLikelihood, self._likelihood)
        naturalness = self.steps.step("naturalness", Naturalness, self._naturalness)
        return Validity(judges=self.judges, likelihood=likelihood, naturalness=naturalness)

    def _likelihood(self) -> ClassLikelihood:
        images, generator = self.field.neutral("likelihood"), self.field.spawn("likelihood")
        return fit_class_likelihood(images, epochs=self.setting.likelihood_epochs, generator=generator, progress=False)

    def _naturalness(self) -> Naturalness:
        assert self.source is not None  # else nothing is tested
        images = self.source.seeds(self.setting.images, generator=self.field.spawn("naturalness", "images"))
        return fit_naturalness(images, generator=self.field.spawn("naturalness"), progress=False)


def prepare(field: SemanticImages, folder: Path) -> None:
    """Make and store all instruments that are missing."""
    made = SemanticInstruments(field, folder)
    if made.source is not None:
        assert made.validity.judges
