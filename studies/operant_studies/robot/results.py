"""Results of the RobOT study, read from the finished steps of each seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from operant_studies.robot.settings import RobotSetting
from operant_studies.robot.unit import RetrainedModel
from operant_studies.shared import Mean, Steps, T, mean

MEASURES: dict[str, Callable[[RetrainedModel], float]] = {
    "static": lambda j: j.pooled,
    "adaptive": lambda j: j.robustness.adaptive[-1].value,
    "adaptive, a third of the radius": lambda j: j.near.value,
}


@dataclass(frozen=True)
class RobotStudyResults:
    """The finished steps of one setting, for all seeds."""

    setting: RobotSetting
    folder: Path

    def of(self, name: str, kind: type[T]) -> list[T]:
        folders = [Steps(self.folder / f"{self.setting.name}-seed{seed}") for seed in self.setting.seeds]
        return [value for steps in folders if (value := steps.load(name, kind)) is not None]

    def judged(self, strategy: str, share: float) -> list[RetrainedModel]:
        return self.of(f"judged-{strategy}-{share:g}", RetrainedModel)

    def over_seeds(self, strategy: str, share: float, measure: Callable[[RetrainedModel], float]) -> Mean:
        return mean(measure(j) for j in self.judged(strategy, share))
