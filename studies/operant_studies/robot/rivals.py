"""The rivals that join the RobOT study if they are asked for."""

from __future__ import annotations

from collections.abc import Callable

from operant.generate.baselines import DeepHunter, DeepXplore, DLFuzz, TensorFuzz
from operant.model import Classifier
from operant.types import Fuzzer
from operant_studies.robot.settings import Setting

BALL = 0.1  # of DLFuzz, as a share of the seed's length
ROWS = 100  # model rows a seed, for all but DLFuzz, which has as many as ADAPT
CHUNK = 64  # seeds between two looks at the clock; what DeepHunter and TensorFuzz have covered is shared by as many


def rows_of(setting: Setting) -> int:
    """Model rows a seed for all but DLFuzz: never more than that has."""
    return min(ROWS, setting.adapt_rows)


def make_rival(name: str, setting: Setting, others: Callable[[], tuple[Classifier, ...]]) -> tuple[Fuzzer, int]:
    """A rival, and how many seeds it works on between two looks at the clock.

    Args:
        name: one of the setting's rivals.
        setting: of the study.
        others: gives the models that DeepXplore compares with.
    """
    rows = rows_of(setting)
    if name == "deepxplore":
        return DeepXplore(others=others(), constraint="occlusion", rows_per_seed=rows), CHUNK
    if name == "dlfuzz":
        return DLFuzz(radius=BALL, rows_per_seed=setting.adapt_rows), 8
    if name == "deephunter":
        return DeepHunter(rows_per_seed=rows), CHUNK
    return TensorFuzz(radius=setting.radius, std=setting.radius / 3, rows_per_seed=rows), CHUNK
