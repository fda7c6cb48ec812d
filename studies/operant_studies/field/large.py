"""The fit on large images, in a process of its own, so that its peak memory can be measured."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from operant.conditions import Recipe, normal
from operant.data import Samples
from operant.rng import shuffled, spawn
from operant_studies.field.fields import read_large
from operant_studies.field.settings import FieldStudySetting, settings
from operant_studies.field.unit import fit_timed
from operant_studies.operational_fuzz.fields import under
from operant_studies.shared import Steps, Units

STATUS = Path("/proc/self/status")


@dataclass(frozen=True, kw_only=True)
class LargeFit:
    """The fit on large images under five conditions."""

    side: int
    images: int  # on either side
    found: tuple[str, ...]
    unexplained: float
    seconds: float  # CPU time of the fit
    memory: int  # peak of the process in bytes, with reading the images


def units(scale: str, setting: FieldStudySetting, data: Path | None, out: Path) -> Units:
    """One unit per seed."""
    names = [f"large-{seed}" for seed in setting.seeds]
    return [(name, partial(run_large, scale, data, out, seed)) for name, seed in zip(names, setting.seeds, strict=True)]


def large_steps(out: Path) -> Steps:
    return Steps(out / "steps" / "large")


def run_large(scale: str, data: Path | None, out: Path, seed: int) -> None:
    """Run the fit in a new process, if it is not finished."""
    if not large_steps(out).done(f"fit-{seed}"):
        code = f"import sys; from {__name__} import main; main(*sys.argv[1:])"
        subprocess.run([sys.executable, "-c", code, scale, str(data or ""), str(out), str(seed)], check=True)


def five_conditions(side: int) -> Recipe:
    """Five conditions of a camera; blur grows with the image."""
    severities = {
        "motion_blur": normal(side / 112, mean=side / 28, low=0, high=side / 11),
        "vignetting": normal(0.1, mean=0.5, low=0, high=1),
        "exposure": normal(0.3, mean=-0.8, low=-4, high=4),
        "contrast": normal(0.15, mean=-0.3),
        "gaussian_noise": normal(0.02, mean=0.06, low=0, high=0.3),
    }
    return Recipe(severities=severities)


def fit_large(setting: FieldStudySetting, data: Path | None, seed: int) -> LargeFit:
    _, side, n = setting.large
    x = read_large(setting, data)
    x = x[shuffled(len(x), spawn(seed, "large"))]
    field = Samples(x[:n], torch.zeros(n, dtype=torch.long))
    field = under(five_conditions(side), field, generator=spawn(seed, "large", "field"))
    fitted = fit_timed(field, Samples(x[n : 2 * n]), generator=spawn(seed, "large", "fit"))
    return LargeFit(
        side=side,
        images=n,
        found=fitted.conditions.active,
        unexplained=fitted.conditions.unexplained,
        seconds=fitted.seconds,
        memory=peak_memory(),
    )


def peak_memory() -> int:
    """Largest memory of this process so far, in bytes.

    Where Linux states it, without the memory that the parent process had when it started this one.
    """
    if STATUS.exists():
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(scale: str, data: str, out: str, seed: str) -> None:
    """The work of the new process."""
    torch.set_num_threads(1)
    work = partial(fit_large, settings(scale), Path(data) if data else None, int(seed))
    large_steps(Path(out)).step(f"fit-{seed}", LargeFit, work)
