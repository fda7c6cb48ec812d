"""What the study has found, read from disk: shares by seed, and what may be said of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from operant.studies._work import Mean, mean, verdict
from operant.studies.semantic.fields import Field
from operant.studies.semantic.injected import Counts, Tried, load_tried
from operant.studies.semantic.instruments import Instruments, Rated
from operant.studies.semantic.settings import Flaw, Setting
from operant.studies.semantic.transfer import Hunted, Moved, Shots, Transferred, load_hunted, load_transferred


@dataclass(frozen=True)
class Outcome:
    """One data set, over its seeds."""

    setting: Setting
    out: Path
    data: Path | None

    @cached_property
    def rated(self) -> tuple[Rated, ...]:
        return Instruments(Field(self.setting, self.data), self.out / "instruments").rated

    @property
    def tested(self) -> bool:
        """Whether a source was good enough to test with."""
        return self.rated[-1].passed

    @cached_property
    def tried(self) -> dict[Flaw, list[Tried]]:
        """By fault, a value a seed."""
        s = self.setting
        return {flaw: [load_tried(s, self.out, seed, flaw) for seed in s.seeds] for flaw in s.flaws}

    @cached_property
    def hunted(self) -> list[Hunted]:
        return [load_hunted(self.setting, self.out, seed) for seed in self.setting.seeds]

    @cached_property
    def transferred(self) -> list[Transferred]:
        return [load_transferred(self.setting, self.out, seed) for seed in self.setting.seeds]


# Shares, a value a seed; None where there is nothing to take a share of


def counts(each: Sequence[Tried], arm: str, way: int | None = None) -> list[Counts]:
    """Of one direction, or of both together."""
    pairs = [tried.arms[arm] for tried in each]
    return [a + b if way is None else (a, b)[way] for a, b in pairs]


def revealing(each: Sequence[Counts], *, valid: bool) -> list[float | None]:
    """The share of failing tests that reveal the fault; of valid ones, or of all."""
    if valid:
        return [_share(c.valid_revealing, c.valid_failing) for c in each]
    return [_share(c.revealing, c.failing) for c in each]


def of_seeds(each: Sequence[Counts]) -> list[float | None]:
    """The share of seeds that give a valid test which reveals the fault."""
    return [_share(c.valid_revealing, c.seeds) for c in each]


def accuracies(each: Sequence[Moved], robust: str, *, valid: bool) -> list[float | None]:
    """The share of failing tests that a robust model gets right; of valid ones, or of all."""
    if valid:
        return [_share(m.right_valid[robust], m.valid) for m in each]
    return [_share(m.right[robust], m.failing) for m in each]


def found(each: Sequence[Shots], *, valid: bool) -> list[float]:
    """The share of seeds with a failing test; with a valid one, or with any."""
    return [float((s.failing * s.valid if valid else s.failing).mean()) for s in each]


def found_by_either(first: Sequence[Shots], second: Sequence[Shots], *, valid: bool) -> list[float]:
    """The same for two searches together, which have the same seeds in the same order."""
    both = [[s.failing * s.valid if valid else s.failing for s in pair] for pair in zip(first, second, strict=True)]
    return [float(torch.maximum(a, b).mean()) for a, b in both]


def beyond(each: Sequence[Shots], norm: str, bound: float, *, valid: bool) -> list[float | None]:
    """The share of failing tests that lie further from their seeds than a bound."""
    shares = []
    for shots in each:
        which = shots.failing * shots.valid > 0 if valid else shots.failing > 0
        far = getattr(shots, norm)[which] > bound
        shares.append(_share(int(torch.count_nonzero(far)), len(far)))
    return shares


def _share(k: int, n: int) -> float | None:
    return k / n if n else None


# What may be said


def known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def told(values: Sequence[float | None]) -> str:
    """A mean over seeds with its interval, in percent."""
    left = known(values)
    if not left:
        return "no tests"
    return mean(left).share if len(left) > 1 else f"{100 * left[0]:.1f}"


def difference(first: Sequence[float | None], second: Sequence[float | None]) -> Mean | None:
    """Of shares, seed by seed; seeds without one of the two are left out. None if none is left."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    return mean(a - b for a, b in pairs) if pairs else None


def judged(value: Mean | None, *, tests: int = 0) -> str:
    """A difference that the paper says is positive, with what became of it.

    Where all seeds agree, their spread says nothing; 1 / √tests, which no share of so many tests is likely to miss by,
    stands for half the interval.
    """
    if value is None:
        return "nothing to compare **not decided**"
    if value.n < 2:
        return f"{100 * value.value:.1f} **not decided**"
    if value.upper - value.lower < 1e-9:
        if not tests:
            return f"{value} **not decided**"
        value = replace(value, lower=value.value - tests**-0.5, upper=value.value + tests**-0.5)
    return f"{value} **{verdict(value)}**"


def all_of(values: Sequence[float | None]) -> str:
    """A share that the paper says is 1: held if it is, in every seed."""
    left = known(values)
    if len(left) < 2:
        return f"{told(values)} **not decided**"
    if min(left) == 1:
        return "100.0 **held**"
    told_ = mean(left)
    return f"{told_.share} **{'not held' if told_.upper < 1 else 'not decided'}**"
