"""What every study shares: steps that are done once, units of work side by side, and intervals over few seeds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.console import Console
from scipy.stats import t as student

from operant import results
from operant.execution.engines import pool

T = TypeVar("T")


@dataclass(frozen=True)
class Steps:
    """A folder of finished steps; one that is there is read, one that is not is worked out and written."""

    folder: Path

    def done(self, name: str) -> bool:
        return (self.folder / f"{name}.json").exists()

    def step(self, name: str, kind: type[T], work: Callable[[], T]) -> T:
        path = self.folder / f"{name}.json"
        if path.exists():
            return results.load(path, kind)
        self.folder.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        value = work()
        results.save(value, path)
        print(f"{self.folder.name}: {name}, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        return value


def run_units(units: Sequence[tuple[str, Callable[[], None]]], *, workers: int, console: Console) -> None:
    """Run named pieces of work, each one-threaded, in this process or in as many others as there are workers."""
    start = time.monotonic()
    for count, (number, _) in enumerate(pool(workers)(_do, [work for _, work in units]), 1):
        spent = (time.monotonic() - start) / 60
        console.print(f"[{count}/{len(units)}] {units[number][0]}, {spent:.1f} min", highlight=False)


def _do(work: Callable[[], None]) -> None:
    work()


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over few repetitions, and the t-interval for what it would be over many, at 95 % unless said otherwise."""

    value: float
    lower: float
    upper: float
    n: int

    def __str__(self) -> str:
        """As a difference of shares, in percentage points."""
        return f"{100 * self.value:.1f} [{100 * self.lower:.1f}, {100 * self.upper:.1f}]"

    @property
    def share(self) -> str:
        """As a share, in percent, which cannot lie outside 0 to 100."""
        return f"{100 * self.value:.1f} [{100 * max(self.lower, 0):.1f}, {100 * min(self.upper, 1):.1f}]"

    @property
    def plain(self) -> str:
        return f"{self.value:.2f} [{self.lower:.2f}, {self.upper:.2f}]"


def mean(values: Iterable[float], *, confidence: float = 0.95) -> Mean:
    """Of independent repetitions; with one alone the interval is everything.

    >>> str(mean([0.1, 0.2, 0.3]))
    '20.0 [-4.8, 44.8]'
    """
    x = np.array(list(values), dtype=np.float64)
    if len(x) == 0:
        raise ValueError("there is nothing to take the mean of; run the study to its end first")
    if len(x) < 2:
        return Mean(value=float(x.mean()), lower=-np.inf, upper=np.inf, n=len(x))
    half = float(student.ppf((1 + confidence) / 2, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x)))
    return Mean(value=float(x.mean()), lower=float(x.mean()) - half, upper=float(x.mean()) + half, n=len(x))


def less(value: Mean, by: float) -> Mean:
    """The same, moved: by how much something exceeds what was claimed of it."""
    return replace(value, value=value.value - by, lower=value.lower - by, upper=value.upper - by)


def verdict(difference: Mean) -> str:
    """What a difference that a paper says is positive turned out to be."""
    if difference.upper - difference.lower < 1e-9:  # so few repetitions that agree by chance say nothing
        return "not decided"
    if difference.lower > 0:
        return "held"
    return "not held" if difference.upper < 0 else "not decided"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def sign_folder(folder: Path, **what: object) -> None:
    """Write what a study is made of, or refuse to mix it with another in the same folder."""
    path, told = folder / "study.json", {name: str(value) for name, value in what.items()}
    if path.exists():
        known = json.loads(path.read_bytes())
        if changed := [name for name in told if known.get(name) != told[name]]:
            raise ValueError(f"{folder} holds a study with another {' and another '.join(changed)}; choose a new --out")
        return
    folder.mkdir(parents=True, exist_ok=True)
    results.write_atomically(path, json.dumps(told, indent=2).encode() + b"\n")
