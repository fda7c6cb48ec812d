"""The results of the study, read from disk: shares by repetition, and the verdicts that they support."""

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
from operant_studies.semantic.injected import FaultCounts, FaultResult, steps_of
from operant_studies.semantic.instruments import RatedSource, SemanticInstruments
from operant_studies.semantic.settings import Flaw, SemanticSetting
from operant_studies.semantic.transfer import (
    TransferCounts,
    TransferResult,
    UntargetedResult,
    UntargetedTests,
    suite_folder,
)
from operant_studies.shared import Mean, Steps, mean, minus, verdict


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
        """Whether a source is good enough to test with."""
        return self.rated[-1].passed

    @cached_property
    def tried(self) -> dict[Flaw, list[FaultResult]]:
        """By fault, one result per repetition."""
        return {flaw: [steps.read(flaw.name, FaultResult) for steps in self._steps] for flaw in self.setting.flaws}

    @cached_property
    def hunted(self) -> list[UntargetedResult]:
        return [steps.read("hunted", UntargetedResult) for steps in self._steps]

    @cached_property
    def transferred(self) -> list[TransferResult]:
        return [steps.read("transferred", TransferResult) for steps in self._steps]

    @property
    def _steps(self) -> list[Steps]:
        return [steps_of(self.setting, self.out, seed) for seed in self.setting.seeds]

    def passed(self, search: str) -> list[dict[str, float | None]]:
        """Per repetition, the share of failing untargeted tests that passes each part of validity."""
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


# Shares, one per repetition; None where there are no tests


def counts(each: Sequence[FaultResult], arm: str, way: int | None = None) -> list[FaultCounts]:
    """Counts of one direction, or of both together."""
    pairs = [tried.arms[arm] for tried in each]
    return [a + b if way is None else (a, b)[way] for a, b in pairs]


def revealing(each: Sequence[FaultCounts], *, valid: bool) -> list[float | None]:
    """The share of failing tests, valid ones or all, that reveal the fault."""
    if valid:
        return [_share(c.valid_revealing, c.valid_failing) for c in each]
    return [_share(c.revealing, c.failing) for c in each]


def of_seeds(each: Sequence[FaultCounts]) -> list[float | None]:
    """The share of seeds with a valid test that reveals the fault."""
    return [_share(c.valid_revealing, c.seeds) for c in each]


def accuracies(each: Sequence[TransferCounts], robust: str, *, valid: bool) -> list[float | None]:
    """The share of failing tests, valid ones or all, that a robust model classifies correctly."""
    if valid:
        return [_share(m.right_valid[robust], m.valid) for m in each]
    return [_share(m.right[robust], m.failing) for m in each]


def found(each: Sequence[UntargetedTests], *, valid: bool) -> list[Tensor]:
    """Which seeds have a failing test, valid or any: 1 or 0."""
    return [s.failing * s.valid if valid else s.failing for s in each]


def found_by_either(
    first: Sequence[UntargetedTests], second: Sequence[UntargetedTests], *, valid: bool
) -> list[Tensor]:
    """The same for two searches together, with the same seeds in the same order."""
    both = zip(found(first, valid=valid), found(second, valid=valid), strict=True)
    return [torch.maximum(a, b) for a, b in both]


def beyond(each: Sequence[UntargetedTests], norm: str, bound: float, *, valid: bool) -> list[Tensor]:
    """Which failing tests lie further from their seeds than a bound: 1 or 0."""
    return [(getattr(s, norm)[hit > 0] > bound).double() for s, hit in zip(each, found(each, valid=valid), strict=True)]


def shares(each: Sequence[Tensor]) -> list[float | None]:
    """The shares of ones."""
    return [_share(int(hits.sum()), len(hits)) for hits in each]


def _share(k: int, n: int) -> float | None:
    return k / n if n else None


# Verdicts


def present(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def mean_of(values: Sequence[float | None]) -> str:
    """Mean over repetitions with its interval, in percent; without an interval if they agree or there is only one."""
    left = present(values)
    if not left:
        return "no tests"
    value = mean(left)
    text = f"{100 * value.value:.1f}" if _flat(value) else value.share
    return text + _some(len(left), len(values))


def pooled(each: Sequence[Tensor]) -> str:
    """All repetitions together: how many of how many, and Clopper and Pearson's interval in percent."""
    k, n = sum(int(hits.sum()) for hits in each), sum(len(hits) for hits in each)
    if not n:
        return "no tests"
    interval = clopper_pearson_interval(k, n)
    return f"{k} of {n}, {100 * k / n:.1f} [{100 * interval.lower:.1f}, {100 * interval.upper:.1f}]"


def difference(first: Sequence[float | None], second: Sequence[float | None]) -> Mean | None:
    """Mean difference of shares, paired by repetition; None if no repetition has both."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    return mean(a - b for a, b in pairs) if pairs else None


@dataclass(frozen=True, kw_only=True)
class ClaimResult:
    """The verdict on a claim, and its numbers."""

    verdict: str
    text: str

    def __str__(self) -> str:
        return f"**{self.verdict}** {self.text}"


NOTHING = ClaimResult(verdict="not decided", text="nothing to compare")


def exceeds(first: Sequence[float | None], second: Sequence[float | None], *, tests: int = 0) -> ClaimResult:
    """Whether the first shares are greater than the second, in percentage points; intervals end at ±100."""
    value = difference(first, second)
    if value is None:
        return NOTHING
    some, wide = _some(value.n, len(first)), _widened(value, tests)
    if _flat(wide):
        return ClaimResult(verdict="not decided", text=f"{100 * value.value:.1f}{some}")
    cut = replace(wide, lower=max(wide.lower, -1.0), upper=min(wide.upper, 1.0))
    return ClaimResult(verdict=verdict(wide), text=f"{cut}{some}")


def at_least(values: Sequence[float | None], goal: float, *, tests: int = 0) -> ClaimResult:
    """Whether a share is greater than a goal."""
    left = present(values)
    if not left:
        return NOTHING
    wide = _widened(mean(left), tests)
    if _flat(wide):
        return ClaimResult(verdict="not decided", text=mean_of(values))
    return ClaimResult(verdict=verdict(minus(wide, goal)), text=wide.share + _some(len(left), len(values)))


def all_of(each: Sequence[Tensor]) -> ClaimResult:
    """Whether something holds for all tests; one counterexample is enough against it."""
    if not sum(len(hits) for hits in each):
        return NOTHING
    held = all(bool(hits.all()) for hits in each)
    return ClaimResult(verdict="held" if held else "not held", text=pooled(each))


def _widened(value: Mean, tests: int) -> Mean:
    """The same mean; if repetitions agree, with 1 / √tests as half the interval.

    No share of so many tests is likely to be wrong by more.
    """
    if value.n < 2 or not tests or not _flat(value):
        return value
    return replace(value, lower=value.value - tests**-0.5, upper=value.value + tests**-0.5)


def _flat(value: Mean) -> bool:
    """Whether there is no interval, because there is one repetition or all agree."""
    return value.n < 2 or value.upper - value.lower < 1e-9


def _some(n: int, of: int) -> str:
    return "" if n == of else f" ({n} of {of} repetitions)"
