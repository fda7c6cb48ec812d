"""Do the bounds hold end to end? Field data from USPS, two networks of known robustness, and their cells."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from operant.assess import (
    Ball,
    CellEstimate,
    Separation,
    assess_reliability,
    cells_estimate,
    clopper_pearson_interval,
    local_failures,
    seed_masses,
    separation,
)
from operant.data import Samples, labels_of
from operant.profile import fit_profile
from operant.rng import spawn
from operant_studies.seeds.settings import SeedsSetting, SeedsSources, setting_of
from operant_studies.shared import Steps, run_units, sign_folder, table, write_sections

__all__ = ["run_study"]

RADIUS = 0.3
DESIGNS = ("stratified", "pps")
HOLD = {100: 89, 200: 182}  # repetitions, and how many bounds must hold not to be rejected at level .01


@dataclass(frozen=True, kw_only=True)
class BoundTrials:
    """Repeated assessments of one network, and the truth from all labels."""

    kind: str
    design: str
    labels: int
    # pool, field: true pmi over the pool of each repetition, and over all inputs
    pool: tuple[float, ...]
    field: float
    # pmi, upper, field_upper: estimate and bounds of each repetition
    pmi: tuple[float, ...]
    upper: tuple[float, ...]
    field_upper: tuple[float, ...]

    @property
    def pool_held(self) -> int:
        return sum(u >= truth for u, truth in zip(self.upper, self.pool, strict=True))

    @property
    def field_held(self) -> int:
        return sum(u >= self.field for u in self.field_upper)


@dataclass(frozen=True, kw_only=True)
class CellFailures:
    """The failure rates in the cells of one network."""

    kind: str
    estimate: CellEstimate
    rates: tuple[float, ...]
    untouched: int


def run_study(out: str | Path, *, data: Path | None, scale: str, workers: int, console: Console) -> Path:
    """Run the study and write its page; it needs MNIST, USPS and the weights of the networks."""
    out, setting = Path(out), setting_of(scale)
    SeedsSources(setting, data).check()
    sign_folder(out, scale=scale, setting=setting)
    work = [
        (f"{design}, {kind} network", partial(run_bounds, setting, kind, design, data, out / "steps"))
        for kind in setting.networks
        for design in DESIGNS
    ]
    cells = partial(run_cells, setting, data=data, folder=out / "steps")
    work += [(f"cells, {kind} network", partial(cells, kind)) for kind in setting.networks]
    work.append(("separation", partial(run_separation, setting, data, out / "steps")))
    run_units(work, workers=workers, console=console)
    return write_page(out, setting, scale=scale)


# Work -----------------------------------------------------------------------------------------------------------------


def run_bounds(setting: SeedsSetting, kind: str, design: str, data: Path | None, folder: Path) -> None:
    """Assess one network many times: one profile, and for each repetition another pool and other labels."""
    Steps(folder).step(f"{kind}-{design}", BoundTrials, lambda: _held(SeedsSources(setting, data), kind, design))


def _held(sources: SeedsSources, kind: str, design: str) -> BoundTrials:
    setting, model = sources.setting, sources.network(kind)
    repetitions = 200 if setting.dataset == "mnist" else 8
    labels = 300 if setting.dataset == "mnist" else 60
    field = Samples.concat([sources.other.train, sources.other.test])
    wrong = (model.predict(field.x) != field.labels).double()
    order = torch.randperm(len(field), generator=spawn(0, "profile"))
    third = len(field) // 3
    profile = fit_profile(field[order[:third]], generator=spawn(0, "codes"))
    rest, assessed, truths = order[third:], [], []
    for repetition in range(repetitions):
        rows = rest[torch.randperm(len(rest), generator=spawn(repetition, "pool"))[: len(rest) // 3]]
        pool = field[rows]
        truths.append(float(wrong[rows].mean()))
        assessed.append(
            assess_reliability(
                model, profile, labels_of(pool), pool=pool, labels=labels, design=design,
                generator=spawn(repetition, kind, design),
            )
        )  # fmt: skip
    return BoundTrials(
        kind=kind,
        design=design,
        labels=labels,
        pool=tuple(truths),
        field=float(wrong[rest].mean()),
        pmi=tuple(a.pmi for a in assessed),
        upper=tuple(1.0 if a.upper is None else a.upper for a in assessed),
        field_upper=tuple(1.0 if a.field_upper is None else a.field_upper for a in assessed),
    )


def run_cells(setting: SeedsSetting, kind: str, data: Path | None, folder: Path) -> None:
    """Estimate the failure rates in balls around field inputs of one network."""
    Steps(folder).step(f"cells-{kind}", CellFailures, lambda: _cells(SeedsSources(setting, data), kind))


def _cells(sources: SeedsSources, kind: str) -> CellFailures:
    mnist = sources.setting.dataset == "mnist"
    n, samples = (500, 400) if mnist else (40, 50)
    field = sources.other.test
    seeds = field[torch.randperm(len(field), generator=spawn(0, "seeds"))[:n]]
    rates = local_failures(
        sources.network(kind), seeds, Ball(radius=RADIUS), samples=samples, generator=spawn(0, "cells"), progress=False
    )
    again = seed_masses(len(seeds), resamples=1000, generator=spawn(0, "masses"))
    estimate = cells_estimate(rates, resampled=again, generator=spawn(0, "rates"))
    untouched = int(((rates.failures == 0) & ~rates.missed).sum())
    return CellFailures(kind=kind, estimate=estimate, rates=tuple(rates.rates.tolist()), untouched=untouched)


def run_separation(setting: SeedsSetting, data: Path | None, folder: Path) -> None:
    """Measure how far apart the classes of the field are."""
    sources = SeedsSources(setting, data)
    Steps(folder).step("separation", Separation, lambda: separation(sources.other.train))


# Page -----------------------------------------------------------------------------------------------------------------


def write_page(out: Path, setting: SeedsSetting, *, scale: str) -> Path:
    """Write ``reliability.md`` into ``out``."""
    steps = Steps(out / "steps")
    bounds = [steps.read(f"{kind}-{design}", BoundTrials) for kind in setting.networks for design in DESIGNS]
    cells = [steps.read(f"cells-{kind}", CellFailures) for kind in setting.networks]
    apart = steps.read("separation", Separation)
    return write_sections(out / "reliability.md", [_intro(scale), _bounds(bounds), _cell_table(cells, apart)])


def _intro(scale: str) -> str:
    return f"""# Reliability: does the bound hold?

A network that has never seen USPS is assessed for use on USPS, by `operant study reliability --scale {scale}`. The
profile is fitted on a third of the field inputs. In every repetition a third of the others, drawn again, is the pool;
`assess_reliability` buys labels for some of it and gives a bound at 95 % confidence. Since all labels are known, the
bound can be compared with the truth.
"""


def _bounds(trials: list[BoundTrials]) -> str:
    columns = [
        "network", "design", "labels", "true pmi", "mean estimate", "median bound", "bound holds, pool", "holds, field",
        "judged",
    ]  # fmt: skip
    rows = []
    for h in trials:
        n = len(h.pmi)
        least = HOLD.get(n)
        judged = "-" if least is None else ("not rejected" if min(h.pool_held, h.field_held) >= least else "rejected")
        uppers = torch.tensor(h.upper)
        rows.append([
            h.kind, h.design, h.labels, f"{h.field:.4f}", f"{sum(h.pmi) / n:.4f}", f"{float(uppers.median()):.4f}",
            f"{h.pool_held} of {n} {_interval(h.pool_held, n)}",
            f"{h.field_held} of {n} {_interval(h.field_held, n)}", judged,
        ])  # fmt: skip
    return f"""## Bounds from few labels

*Pool*: the bound against the truth over the pool's inputs. *Field*: the bound for the field, against the truth over all
inputs that pools are drawn from. A pool is a third of these, which is somewhat easier than an infinite field. A missing
bound counts as 1. One network of each kind; 200 repetitions stand for seeds. Judged: not rejected against 95 % at level
.01.

{table(columns, rows)}"""


def _cell_table(cells: list[CellFailures], apart: Separation) -> str:
    columns = ["network", "cells", "inputs from each", "share that fails", "at most, 95 %", "no failure found in"]
    rows = [
        [
            c.kind, c.estimate.cells, c.estimate.samples,
            f"{c.estimate.estimate:.4f} ± {c.estimate.standard_error:.4f}", f"{c.estimate.upper:.4f}",
            f"{c.untouched} cells",
        ]
        for c in cells
    ]  # fmt: skip
    compared = ""
    if len(cells) == 2:
        difference = torch.tensor(cells[0].rates) - torch.tensor(cells[1].rates)
        error = float(difference.std() / len(difference) ** 0.5)
        middle = float(difference.mean())
        compared = (
            f"\nThe {cells[0].kind} network's cells fail more often than the {cells[1].kind} one's by {middle:.4f} "
            f"[{middle - 1.96 * error:.4f}, {middle + 1.96 * error:.4f}], cell by cell.\n"
        )
    return f"""## Cells

Balls of L-infinity radius {RADIUS} around field inputs, inputs drawn uniformly from each; a cell whose centre is
misclassified counts fully. Errors are from the bootstrap of the whole sum.

{table(columns, rows)}{compared}
{apart}
"""


def _interval(k: int, n: int) -> str:
    interval = clopper_pearson_interval(k, n)
    return f"[{interval.lower:.1%}, {interval.upper:.1%}]"
