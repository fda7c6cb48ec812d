"""Other fuzzers, which join the RobOT study on request."""

from __future__ import annotations

from collections.abc import Callable

from operant.generate.baselines import DeepHunter, DeepXplore, DLFuzz, TensorFuzz
from operant.model import Classifier
from operant.types import Fuzzer
from operant_studies.robot.settings import RobotSetting

BALL = 0.1  # of DLFuzz, as a share of the seed's length
ROWS = 100  # model rows per seed, for all but DLFuzz, which has as many as ADAPT
CHUNK = 64  # seeds between checks of the clock, which also share the coverage of DeepHunter and TensorFuzz


def rows_of(setting: RobotSetting) -> int:
    """Model rows per seed of all rivals but DLFuzz; at most as many as it has."""
    return min(ROWS, setting.adapt_rows)


def make_rival(name: str, setting: RobotSetting, others: Callable[[], tuple[Classifier, ...]]) -> tuple[Fuzzer, int]:
    """A rival, and its number of seeds between checks of the clock; ``others`` gives DeepXplore's further models."""
    rows = rows_of(setting)
    if name == "deepxplore":
        return DeepXplore(others=others(), constraint="occlusion", rows_per_seed=rows), CHUNK
    if name == "dlfuzz":
        return DLFuzz(radius=BALL, rows_per_seed=setting.adapt_rows), 8
    if name == "deephunter":
        return DeepHunter(rows_per_seed=rows), CHUNK
    return TensorFuzz(radius=setting.radius, std=setting.radius / 3, rows_per_seed=rows), CHUNK
