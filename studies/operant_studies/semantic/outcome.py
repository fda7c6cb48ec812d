"""What the study has found, read from disk: shares by repetition, and what may be said of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from operant.assess import clopper_pearson_interval
from operant.generate.semantic.validity import LEVEL
from operant.suite import Suite
from operant_studies.semantic.fields import SemanticImages
from operant_studies.semantic.injected import FaultCounts, FaultResult, load_tried
from operant_studies.semantic.instruments import RatedSource, SemanticInstruments
from operant_studies.semantic.settings import Flaw, SemanticSetting
from operant_studies.semantic.transfer import (
    TransferCounts,
    TransferResult,
    UntargetedResult,
    UntargetedTests,
    load_hunted,
    load_transferred,
    suite_folder,
)
from operant_studies.shared import Mean, mean, verdict


@dataclass(frozen=True)
class SemanticOutcome:
    """One data set, over its repetitions."""

    setting: SemanticSetting
    out: Path
    data: Path | None

    @cached_property
    def rated(self) -> tuple[RatedSource, ...]:
        return SemanticInstruments(SemanticImages(self.setting, self.data), self.out / "instruments").rated

    @property
    def tested(self) -> bool:
        """Whether a source was good enough to test with."""
        return self.rated[-1].passed

    @cached_property
    def tried(self) -> dict[Flaw, list[FaultResult]]:
        """By fault, a value a repetition."""
        s = self.setting
        return {flaw: [load_tried(s, self.out, seed, flaw) for seed in s.seeds] for flaw in s.flaws}

    @cached_property
    def hunted(self) -> list[UntargetedResult]:
        return [load_hunted(self.setting, self.out, seed) for seed in self.setting.seeds]

    @cached_property
    def transferred(self) -> list[TransferResult]:
        return [load_transferred(self.setting, self.out, seed) for seed in self.setting.seeds]

    def passed(self, search: str) -> list[dict[str, float | None]]:
        """Of failing untargeted tests, a value a repetition: the share that each part of validity lets pass."""
        return [
            _parts(Suite.open(suite_folder(self.setting, self.out, seed, search)), h.shots[search].failing > 0)
            for seed, h in zip(self.setting.seeds, self.hunted, strict=True)
        ]


def _parts(suite: Suite, failing: Tensor) -> dict[str, float | None]:
    parts = {
        "judges": suite["agree"] == 1,
        "likelihood": suite["likelihood_margin"] > 0,
        "naturalness": suite["naturalness"] >= LEVEL,
        "valid": suite["valid"] == 1,
    }
    return {name: _share(int(part[failing].sum()), int(failing.sum())) for name, part in parts.items()}


# Shares, a value a repetition; None where there is nothing to take a share of


def counts(each: Sequence[FaultResult], arm: str, way: int | None = None) -> list[FaultCounts]:
    """Of one direction, or of both together."""
    pairs = [tried.arms[arm] for tried in each]
    return [a + b if way is None else (a, b)[way] for a, b in pairs]


def revealing(each: Sequence[FaultCounts], *, valid: bool) -> list[float | None]:
    """The share of failing tests that reveal the fault; of valid ones, or of all."""
    if valid:
        return [_share(c.valid_revealing, c.valid_failing) for c in each]
    return [_share(c.revealing, c.failing) for c in each]


def of_seeds(each: Sequence[FaultCounts]) -> list[float | None]:
    """The share of seeds that give a valid test which reveals the fault."""
    return [_share(c.valid_revealing, c.seeds) for c in each]


def accuracies(each: Sequence[TransferCounts], robust: str, *, valid: bool) -> list[float | None]:
    """The share of failing tests that a robust model gets right; of valid ones, or of all."""
    if valid:
        return [_share(m.right_valid[robust], m.valid) for m in each]
    return [_share(m.right[robust], m.failing) for m in each]


def found(each: Sequence[UntargetedTests], *, valid: bool) -> list[Tensor]:
    """Which seeds have a failing test, 1 or 0; a valid one, or any."""
    return [s.failing * s.valid if valid else s.failing for s in each]


def found_by_either(
    first: Sequence[UntargetedTests], second: Sequence[UntargetedTests], *, valid: bool
) -> list[Tensor]:
    """The same for two searches together, which have the same seeds in the same order."""
    both = zip(found(first, valid=valid), found(second, valid=valid), strict=True)
    return [torch.maximum(a, b) for a, b in both]


def beyond(each: Sequence[UntargetedTests], norm: str, bound: float, *, valid: bool) -> list[Tensor]:
    """Which failing tests lie further from their seeds than a bound, 1 or 0."""
    return [(getattr(s, norm)[hit > 0] > bound).double() for s, hit in zip(each, found(each, valid=valid), strict=True)]


def shares(each: Sequence[Tensor]) -> list[float | None]:
    """Of ones among zeros and ones."""
    return [_share(int(hits.sum()), len(hits)) for hits in each]


def _share(k: int, n: int) -> float | None:
    return k / n if n else None


# What may be said


def known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def told(values: Sequence[float | None]) -> str:
    """A mean over repetitions with its interval, in percent; the mean alone where they agree or there is only one."""
    left = known(values)
    if not left:
        return "no tests"
    value = mean(left)
    text = f"{100 * value.value:.1f}" if _flat(value) else value.share
    return text + _some(len(left), len(values))


def pooled(each: Sequence[Tensor]) -> str:
    """All repetitions as one: how many of how many, and Clopper and Pearson's interval in percent."""
    k, n = sum(int(hits.sum()) for hits in each), sum(len(hits) for hits in each)
    if not n:
        return "no tests"
    interval = clopper_pearson_interval(k, n)
    return f"{k} of {n}, {100 * k / n:.1f} [{100 * interval.lower:.1f}, {100 * interval.upper:.1f}]"


def difference(first: Sequence[float | None], second: Sequence[float | None]) -> Mean | None:
    """Of shares, repetition by repetition; those without one of the two are left out. None if none is left."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    return mean(a - b for a, b in pairs) if pairs else None


@dataclass(frozen=True, kw_only=True)
class ClaimResult:
    """What became of a claim, and the numbers that say so."""

    verdict: str
    text: str

    def __str__(self) -> str:
        return f"**{self.verdict}** {self.text}"


NOTHING = ClaimResult(verdict="not decided", text="nothing to compare")


def judged(first: Sequence[float | None], second: Sequence[float | None], *, tests: int = 0) -> ClaimResult:
    """Whether the first shares are greater than the second, in percentage points; cut at ±100, where all ends."""
    value = difference(first, second)
    if value is None:
        return NOTHING
    some, wide = _some(value.n, len(first)), _widened(value, tests)
    if _flat(wide):
        return ClaimResult(verdict="not decided", text=f"{100 * value.value:.1f}{some}")
    cut = replace(wide, lower=max(wide.lower, -1.0), upper=min(wide.upper, 1.0))
    return ClaimResult(verdict=verdict(wide), text=f"{cut}{some}")


def at_least(values: Sequence[float | None], goal: float, *, tests: int = 0) -> ClaimResult:
    """Whether a share is greater than a number."""
    left = known(values)
    if not left:
        return NOTHING
    wide = _widened(mean(left), tests)
    if _flat(wide):
        return ClaimResult(verdict="not decided", text=told(values))
    over = replace(wide, value=wide.value - goal, lower=wide.lower - goal, upper=wide.upper - goal)
    return ClaimResult(verdict=verdict(over), text=wide.share + _some(len(left), len(values)))


def all_of(each: Sequence[Tensor]) -> ClaimResult:
    """Whether something is so of all tests: one of which it is not is enough against it."""
    if not sum(len(hits) for hits in each):
        return NOTHING
    held = all(bool(hits.all()) for hits in each)
    return ClaimResult(verdict="held" if held else "not held", text=pooled(each))


def _widened(value: Mean, tests: int) -> Mean:
    """Where repetitions agree, their spread says nothing.

    1 / √tests, which no share of so many tests is likely to miss by, then stands for half the interval.
    """
    if value.n < 2 or not tests or not _flat(value):
        return value
    return replace(value, lower=value.value - tests**-0.5, upper=value.value + tests**-0.5)


def _flat(value: Mean) -> bool:
    """Whether there is no interval, since there is one repetition or all agree."""
    return value.n < 2 or value.upper - value.lower < 1e-9


def _some(n: int, of: int) -> str:
    return "" if n == of else f" ({n} of {of} repetitions)"
