"""What the study of rivals runs at each scale: models, inputs, and model rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from operant_studies.operational_fuzz.settings import FieldSetting
from operant_studies.operational_fuzz.settings import settings as fields
from operant_studies.shared import check_scale

SEEDS = tuple(range(8))  # with three, half of the comparisons were not decided


@dataclass(frozen=True, kw_only=True)
class RivalsSetting:
    """One model with its data."""

    title: str  # on the page
    field: FieldSetting  # data, and the judge of naturalness: a field of the study of operational fuzzing
    explored: int = 60  # seeds of searches for coverage; all three models classify them correctly
    rows: int = 90  # model rows per seed of these
    profiled: int = 5_000  # training inputs for the ranges of KMNC
    noise: float = 0.1  # standard deviation of TensorFuzz's noise, in input units; its ball is three times as large
    # hunted, hunted_rows: seeds of the rivals' searches for failures, and model rows per seed, as for FOL-Fuzz
    hunted: int = 100
    hunted_rows: int = 60
    # learned, epochs: training inputs and epochs of the models that DeepXplore compares ResNet-20 with
    learned: int = 20_000
    epochs: int = 6

    @property
    def name(self) -> str:
        return self.field.dataset

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.field.seeds


def settings(scale: str) -> tuple[RivalsSetting, ...]:
    """``small`` is the study; ``smoke`` shows that it runs, on the embedded digits."""
    check_scale(scale, "smoke", "small")
    if scale == "smoke":
        field = replace(fields("smoke")[0], hunted=60)
        return (RivalsSetting(title="LeNet-5, digits", field=field, explored=16, rows=24, hunted=12, hunted_rows=12),)
    by = {field.name: field for field in fields("small")}
    mnist = replace(by["zipf"], seen=2_000, truth=4_000, hunted=200, seeds=SEEDS)
    cifar = replace(by["outdoors"], seen=2_000, truth=2_000, hunted=150, seeds=SEEDS)
    return (
        RivalsSetting(title="LeNet-5, MNIST", field=mnist),
        RivalsSetting(
            title="ResNet-20, CIFAR-10", field=cifar, explored=24, rows=48, profiled=2_000, noise=0.02, hunted=24
        ),
    )
