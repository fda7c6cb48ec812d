"""The results of retraining: tables, how many cases each arm needs, and whether the goals held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from operant.rng import spawn
from operant_studies.operational_fuzz.repair import (
    AUGMENTED,
    CONTROL,
    FOL_CASES,
    PGD_CASES,
    RANDOM,
    ROUNDS,
    SIZED,
    UNDECLARED,
    RepairResult,
    names,
    sized_arms,
    steps_of,
)
from operant_studies.operational_fuzz.settings import FieldSetting
from operant_studies.shared import mean, save_figure, table

IGNORE_THE_FIELD = (PGD_CASES, FOL_CASES)
RESAMPLES = 2000
COLOURS = ("#7fb3d5", "#2471a3", "#154360", "#b7950b", "#c0392b", "#e59866", "#7d8a6a", "#27774a")
COLOUR_OF = dict(zip(SIZED, COLOURS, strict=True))


@dataclass(frozen=True)
class FieldRepairs:
    """The finished retrainings of one field."""

    setting: FieldSetting
    out: Path

    @cached_property
    def outcomes(self) -> dict[tuple[str, int], list[RepairResult]]:
        """By arm and number of cases, one per seed."""
        steps = [steps_of(self.setting, seed, self.out) for seed in self.setting.seeds]
        return {key: [s.read(name, RepairResult) for s in steps] for name, key in names(self.setting).items()}

    def curve(self, arm: str) -> NDArray[np.float64]:
        """pmi by seed and number of cases."""
        return np.array([[o.pmi for o in self.outcomes[arm, n]] for n in self.setting.sizes]).T


def section(settings: Sequence[FieldSetting], out: Path) -> str:
    """The section of the page about repair; writes its picture."""
    fields = [FieldRepairs(setting, out) for setting in settings if setting.sizes]
    draw_curves(fields, out / "operational-fuzz-repair.svg")
    return "\n".join([_INTRO, _left_out(settings), _goals(fields), *(_field(t) for t in fields)])


def _left_out(settings: Sequence[FieldSetting]) -> str:
    titles = "; ".join(s.title for s in settings if not s.sizes)
    return f"Searched and read, but not repaired: {titles}.\n" if titles else ""


_INTRO = """## Repair

True pmi on field inputs used for nothing else, after retraining with n cases. Every arm is retrained in the same way
(`OperationalFinetune`; a quarter of the rows are cases; one monitor on labelled field inputs, the same for all arms,
chooses the epoch; the original weights stay if no epoch is better), so that only the cases differ. Intervals are 95 %,
over seeds of the network (MNIST), of the division of field inputs, of cases and of retraining.

- *OperationalFuzz*: operational failures from training images; *declared*: with the field's own recipe or, for another
  source, a person's guess; *undeclared*: with conditions that `fit_conditions` estimates from unlabelled field inputs;
  *in rounds*: the same, found in rounds, each with the model retrained on the cases so far.
- *random conditions*: training images under the estimated conditions, failing or not, with the class
  frequencies of OperationalFuzz.
- *PGD*, *FOL-Fuzz + BE-ST*: from random training images, at the one of three radii whose PGD cases help most by
  the monitor. They ignore the field.
- *DeepGini*, *labelled at random*: field inputs with their true labels, which cost.
- *augmentation*: every case row is a training image under newly drawn estimated conditions, without a search.

![True pmi by number of cases](operational-fuzz-repair.svg)
"""


# Tables ---------------------------------------------------------------------------------------------------------------


def _field(t: FieldRepairs) -> str:
    sizes = t.setting.sizes
    before, control, augmented = (t.outcomes[arm, 0] for arm in ("before", CONTROL, AUGMENTED))
    arms = sized_arms(t.setting)
    rows = [[arm, *(_share(t.outcomes[arm, n]) for n in sizes)] for arm in arms]
    clean = [[arm, *(_clean(t.outcomes[arm, n]) for n in sizes)] for arm in arms]
    few = [f"{arm}: {_smallest(t, arm)}" for arm in arms if _smallest(t, arm)]
    return f"""### {t.setting.title}

{len(t.setting.seeds)} seeds. Initial: pmi {_share(before)} %, clean accuracy {_clean(before)} %. Clean control: pmi
{_share(control)} %, clean {_clean(control)} %. Augmentation without cases: pmi {_share(augmented)} %, clean
{_clean(augmented)} %.

True pmi, %, after retraining with n cases:

{table(["cases from", *(f"n = {n}" for n in sizes)], rows)}
Clean accuracy, %:

{table(["cases from", *(f"n = {n}" for n in sizes)], clean)}
{"Fewer cases than requested, at the largest n: " + "; ".join(few) + "." if few else ""}
"""


def _share(outcomes: Sequence[RepairResult]) -> str:
    return mean(o.pmi for o in outcomes).share


def _clean(outcomes: Sequence[RepairResult]) -> str:
    return f"{100 * mean(o.clean for o in outcomes).value:.2f}"


def _smallest(t: FieldRepairs, arm: str) -> str:
    n = max(t.setting.sizes)
    least = min(o.cases for o in t.outcomes[arm, n])
    return str(least) if least < n else ""


# Goals ----------------------------------------------------------------------------------------------------------------


def _goals(fields: Sequence[FieldRepairs]) -> str:
    rows = [row for t in fields for row in _needed(t)]
    columns = ["field", "to reach", "pmi, %", UNDECLARED, "ratio", ROUNDS, "ratio", "goal", "", "in rounds"]
    return f"""### How many cases each needs

The number of cases after which OperationalFuzz with the recipe undeclared is as good as a rival with its own number.
It comes from the running minimum of the mean over seeds, linear in log n between the sizes; intervals are from
resampled seeds. *≤* marks a target that the smallest size already reaches, *>* one that the largest does not reach.
*Held*: the whole interval of the ratio is at most the goal. The first row of a field is the best rival that ignores the
field; where that improves no model with any number of cases, its largest number is used. The verdict is also *not
decided* where the smallest size already suffices and a twentieth of the rival's number would be fewer. Both rules were
made after results had been seen.

{table(columns, rows)}"""


def _needed(t: FieldRepairs) -> list[list[object]]:
    """Against the best rival that ignores the field (a twentieth), and random conditions where a third can be seen."""
    ends = {(arm, n): t.curve(arm).mean(0)[i] for arm in IGNORE_THE_FIELD for i, n in enumerate(t.setting.sizes)}
    arm, n = min(ends, key=lambda key: (ends[key], -key[1]))
    rows = [_row(t, arm, n, 1 / 20)]
    smallest = min(t.setting.sizes)
    return rows + [_row(t, RANDOM, n, 1 / 3) for n in t.setting.sizes if n >= 3 * smallest]


def _row(t: FieldRepairs, rival: str, n: int, goal: float) -> list[object]:
    target = t.curve(rival)[:, t.setting.sizes.index(n)]
    cells: list[object] = [t.setting.title, f"{rival}, {n} cases", f"{100 * target.mean():.1f}"]
    verdicts: list[str] = []
    for arm in (UNDECLARED, ROUNDS):
        if arm not in sized_arms(t.setting):
            cells, verdicts = [*cells, "", ""], [*verdicts, ""]
            continue
        count, low, high = cases_needed(t.curve(arm), target, t.setting.sizes)
        cells += [_count(count, t.setting.sizes), f"{count / n:.2f} [{low / n:.2f}, {high / n:.2f}]"]
        verdicts.append(_verdict(low, high, goal * n, floor=min(t.setting.sizes)))
    return [*cells, f"{goal:.2f}", *(f"**{v}**" if v else "" for v in verdicts)]


def _verdict(low: float, high: float, most: float, *, floor: int) -> str:
    """Whether at most ``most`` cases are needed; undecided if the smallest size, ``floor``, already suffices."""
    if high <= most:
        return "held"
    return "not held" if low > most and low > floor else "not decided"


def _count(count: float, sizes: Sequence[int]) -> str:
    if count <= min(sizes):
        return f"≤ {min(sizes)}"
    return f"> {max(sizes)}" if count > max(sizes) else f"{count:.0f}"


def cases_needed(
    curves: NDArray[np.float64], target: NDArray[np.float64], sizes: Sequence[int]
) -> tuple[float, float, float]:
    """Cases until the mean curve reaches the mean target, with a 95 % interval over resampled seeds.

    Args:
        curves: by seed and size.
        target: by seed, paired with the curves.
        sizes: cases of each column; a target that the last does not reach counts as ten times as many.
    """
    rows = torch.randint(len(curves), (RESAMPLES, len(curves)), generator=spawn(0, "cases needed")).numpy()
    again = [crossing(curves[some].mean(0), target[some].mean(), sizes) for some in rows]
    low, high = np.quantile(again, [0.025, 0.975])
    return crossing(curves.mean(0), target.mean(), sizes), float(low), float(high)


def crossing(curve: NDArray[np.float64], target: float, sizes: Sequence[int]) -> float:
    """Where the running minimum of a curve first reaches the target; linear in the logarithm of the size.

    >>> crossing(np.array([0.3, 0.1, 0.2]), 0.2, [10, 1000, 2000])
    100.0
    """
    falling = np.minimum.accumulate(curve)
    if falling[0] <= target:
        return float(sizes[0])
    if falling[-1] > target:
        return 10.0 * sizes[-1]
    i = int(np.argmax(falling <= target))
    share = (falling[i - 1] - target) / (falling[i - 1] - falling[i])
    return float(np.exp(np.log(sizes[i - 1]) + share * np.log(sizes[i] / sizes[i - 1])).round(9))


def draw_curves(fields: Sequence[FieldRepairs], path: Path) -> None:
    """True pmi by number of cases, one line per arm; dotted: initial model, and augmentation without cases."""
    figure = Figure(figsize=(4.2 * len(fields), 3.6), layout="constrained")
    for ax, t in zip(figure.subplots(1, len(fields), squeeze=False)[0], fields, strict=True):
        for arm in sized_arms(t.setting):
            ax.plot(t.setting.sizes, 100 * t.curve(arm).mean(0), marker="o", ms=3, color=COLOUR_OF[arm], label=arm)
        for arm, style in (("before", ":"), (AUGMENTED, "--")):
            level = 100 * mean(o.pmi for o in t.outcomes[arm, 0]).value
            ax.axhline(level, color="black", linewidth=0.8, linestyle=style, label=arm)
        ax.set(xscale="log", xlabel="cases", ylim=(0, None))
        ax.set_title(t.setting.title, fontsize=8)
    figure.axes[0].set_ylabel("true pmi, %")
    figure.axes[-1].legend(fontsize=6)
    save_figure(figure, path)
