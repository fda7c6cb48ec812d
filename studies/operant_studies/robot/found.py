"""What the RobOT study has found so far: each step of every seed, read from disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from operant import results
from operant_studies.robot.settings import Setting
from operant_studies.robot.unit import Judged
from operant_studies.shared import Mean, mean

MEASURES: dict[str, Callable[[Judged], float]] = {
    "static": lambda j: j.pooled,
    "adaptive": lambda j: j.robustness.adaptive[-1].value,
    "adaptive, a third of the radius": lambda j: j.near.value,
}


@dataclass(frozen=True)
class Found:
    """What is on disk for one setting: each step of every seed."""

    setting: Setting
    folder: Path

    def of(self, name: str, kind: type[results.T]) -> list[results.T]:
        places = [self.folder / f"{self.setting.name}-seed{seed}" / f"{name}.json" for seed in self.setting.seeds]
        return [results.load(place, kind) for place in places if place.exists()]

    def judged(self, strategy: str, share: float) -> list[Judged]:
        return self.of(f"judged-{strategy}-{share:g}", Judged)

    def over_seeds(self, strategy: str, share: float, measure: Callable[[Judged], float]) -> Mean:
        return mean(measure(j) for j in self.judged(strategy, share))


def label(setting: Setting) -> str:
    return f"{setting.dataset}, {setting.radius:g}"
