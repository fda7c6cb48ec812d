"""What all studies share: steps that run once, parallel units of work, intervals over few seeds, pages and tables."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from safetensors.torch import load_file
from scipy.stats import t as student

from operant import results
from operant.activity import activity, showing_on
from operant.execution.engines import pool

T = TypeVar("T")
Units = list[tuple[str, Callable[[], None]]]
"""Named pieces of work; module-level functions, so that other processes can run them."""

HELD, NOT_HELD, NOT_DECIDED = "held", "not held", "not decided"


def check_scale(scale: str, *allowed: str) -> None:
    """Raise unless the scale is one of those that a study has.

    >>> check_scale("tiny", "smoke", "small", "paper")
    Traceback (most recent call last):
    ValueError: scale must be smoke, small or paper, got 'tiny'
    """
    if scale not in allowed:
        raise ValueError(f"scale must be {', '.join(allowed[:-1])} or {allowed[-1]}, got {scale!r}")


# Work


@dataclass(frozen=True)
class Steps:
    """A folder of finished steps: a finished step is read, any other is computed and written."""

    folder: Path

    def done(self, name: str) -> bool:
        return self._path(name).exists()

    def load(self, name: str, kind: type[T]) -> T | None:
        """The result of a step; None if it is not finished."""
        return results.load(self._path(name), kind) if self.done(name) else None

    def read(self, name: str, kind: type[T]) -> T:
        """The result of a step; raises if it is not finished."""
        if not self.done(name):
            raise ValueError(f"{self.folder}: {name} is missing; run the study to its end first")
        return results.load(self._path(name), kind)

    def load_all(self, names: Iterable[str], kind: type[T]) -> list[T]:
        """The results of those steps that are finished, in order."""
        return [value for name in names if (value := self.load(name, kind)) is not None]

    def load_runs(self, names: Iterable[str], runs: int, kind: type[T]) -> dict[str, dict[int, T]]:
        """Results of finished steps by name and number of the run; names without any are left out."""
        found = {
            name: {run: value for run in range(runs) if (value := self.load(run_step(name, run), kind)) is not None}
            for name in names
        }
        return {name: each for name, each in found.items() if each}

    def step(self, name: str, kind: type[T], work: Callable[[], T]) -> T:
        if self.done(name):
            return results.load(self._path(name), kind)
        self.folder.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        value = work()
        results.save(value, self._path(name))
        print(f"{self.folder.name}: {name}, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        return value

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def slug(text: str) -> str:
    """Text as part of a file name.

    >>> slug("BIM, fixed radius")
    'bim-fixed-radius'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower())


def run_step(name: str, run: int) -> str:
    """
    >>> run_step("C&W", 1)
    'c-w-1'
    """
    return f"{slug(name)}-{run}"


def run_units(units: Sequence[tuple[str, Callable[[], None]]], *, workers: int, console: Console) -> None:
    """Run named pieces of work, each one-threaded: in this process, or in several if there is more than one worker."""
    start = time.monotonic()
    with showing_on(console), activity("pieces of work", len(units)) as progress:
        for count, (number, _) in enumerate(pool(workers)(_do, [work for _, work in units]), 1):
            spent = (time.monotonic() - start) / 60
            progress.advance()
            console.print(f"[{count}/{len(units)}] {units[number][0]}, {spent:.1f} min", highlight=False)


def _do(work: Callable[[], None]) -> None:
    work()


def sign_folder(folder: Path, **settings: object) -> None:
    """Write the settings of a study into its folder; raise if the folder belongs to a study with other settings."""
    path, signature = folder / "study.json", {name: str(value) for name, value in settings.items()}
    if path.exists():
        existing = json.loads(path.read_bytes())
        if changed := [name for name in signature if existing.get(name) != signature[name]]:
            raise ValueError(f"{folder} holds a study with another {' and another '.join(changed)}; choose a new --out")
        return
    folder.mkdir(parents=True, exist_ok=True)
    results.write_atomically(path, json.dumps(signature, indent=2).encode() + b"\n")


# Numbers


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over few repetitions, with its t-interval (default: 95 %)."""

    value: float
    lower: float
    upper: float
    n: int

    def __str__(self) -> str:
        """As a difference of shares, in percentage points."""
        return in_percent(self.value, self.lower, self.upper)

    @property
    def share(self) -> str:
        """As a share in percent, with an interval within 0 to 100."""
        return in_percent(self.value, max(self.lower, 0), min(self.upper, 1))

    @property
    def plain(self) -> str:
        return f"{self.value:.2f} [{self.lower:.2f}, {self.upper:.2f}]"


def in_percent(value: float, lower: float, upper: float, *, digits: int = 1) -> str:
    """
    >>> in_percent(0.5, 0.25, 0.75, digits=0)
    '50 [25, 75]'
    """
    return f"{100 * value:.{digits}f} [{100 * lower:.{digits}f}, {100 * upper:.{digits}f}]"


def mean(values: Iterable[float], *, confidence: float = 0.95) -> Mean:
    """The mean of independent repetitions; the interval of a single one is infinite.

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


def minus(value: Mean, claimed: float) -> Mean:
    """The amount by which a mean exceeds a claimed value."""
    return replace(value, value=value.value - claimed, lower=value.lower - claimed, upper=value.upper - claimed)


def verdict(difference: Mean) -> str:
    """Whether a difference that a paper claims to be positive is."""
    if difference.upper - difference.lower < 1e-9:  # a few repetitions that agree by chance decide nothing
        return NOT_DECIDED
    return compare(difference.lower, difference.upper)


def compare(lower: float, upper: float, claimed: float = 0.0) -> str:
    """Held if an interval lies above the claimed value, not held if below, else not decided.

    >>> compare(0.4, 0.6, claimed=0.5)
    'not decided'
    """
    return HELD if lower > claimed else NOT_HELD if upper < claimed else NOT_DECIDED


# Pages


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def write_sections(path: Path, sections: Iterable[str]) -> Path:
    """Write a page; empty sections are left out."""
    results.write_atomically(path, "\n".join(section for section in sections if section).encode())
    return path


def write_numbers(path: Path, steps: Path) -> None:
    """Write the values of all steps below a folder into one JSON file, tensors as lists."""
    files = [file for file in sorted(steps.rglob("*.json")) if file.name != "manifest.json"]  # which is a suite's
    numbers = {file.relative_to(steps).with_suffix("").as_posix(): _step_value(file) for file in files}
    results.write_atomically(path, json.dumps(numbers).encode() + b"\n")


def _step_value(file: Path) -> Any:
    page = json.loads(file.read_bytes())
    tensors = load_file(file.with_name(page["tensors"])) if "tensors" in page else {}

    def plain(value: Any) -> Any:
        if isinstance(value, dict) and value.keys() == {"tensor"}:
            return [round(number, 6) for number in tensors[value["tensor"]].tolist()]
        return {name: plain(v) for name, v in value.items()} if isinstance(value, dict) else value

    return plain(page["value"])


def save_figure(figure: Figure, path: Path) -> None:
    """Write a picture without the date, so that the same numbers give the same file."""
    figure.savefig(path, metadata={"Date": None})
