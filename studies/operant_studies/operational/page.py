"""The page of the headline study: tables, what each loop needs for the same pmi, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from operant_studies.operational.settings import (
    AUGMENTED,
    DEEPGINI,
    FULL,
    LABELLED,
    NO_FEEDBACK,
    NO_NATURALNESS,
    NO_PROFILE,
    PGD_LOOP,
    RANDOM_SEEDS,
    ROBOT_LOOP,
    VARIANTS,
    LoopSetting,
    seeds_of,
)
from operant_studies.operational.unit import LoopCurve, LoopPoint, steps_of
from operant_studies.shared import Mean, mean, save_figure, slug, table, verdict

COLOURS = ("#154360", "#7fb3d5", "#48c9b0", "#a569bd", "#2471a3", "#7d8a6a", "#c0392b", "#e59866", "#27774a", "#b7950b")
COLOUR_OF = dict(zip(VARIANTS, COLOURS, strict=True))
SPENT = ("cases", "labels", "seconds")
GOALS = {"half": 0.5, "three quarters": 0.75}  # of the way from the initial pmi to the lowest final pmi of any loop
PARTS = {
    RANDOM_SEEDS: "seeds by use and weakness",
    NO_PROFILE: "the profile",
    NO_NATURALNESS: "naturalness",
    NO_FEEDBACK: "feedback",
    DEEPGINI: "choosing cases that cover (DeepGini instead)",
}


@dataclass(frozen=True)
class FieldLoops:
    """The finished loops of one field."""

    setting: LoopSetting
    out: Path

    @cached_property
    def loops(self) -> dict[str, list[tuple[LoopPoint, ...]]]:
        """By variant, one per seed; a loop that ended early repeats its last point."""
        return {name: [self._loop(name, seed) for seed in seeds_of(self.setting)] for name in self.setting.variants}

    def _loop(self, name: str, seed: int) -> tuple[LoopPoint, ...]:
        points = steps_of(self.setting, seed, self.out).read(slug(name), LoopCurve).points
        return points + points[-1:] * (self.setting.rounds + 1 - len(points))

    def curve(self, name: str) -> NDArray[np.float64]:
        """pmi by seed and round."""
        return np.array([[p.pmi for p in points] for points in self.loops[name]])

    def target(self, way: float) -> float:
        """The mean pmi after this share of the way from the initial pmi to the lowest final pmi of any loop."""
        before = float(self.curve(FULL).mean(0)[0])
        return before - way * (before - min(float(self.curve(name).mean(0)[-1]) for name in self.setting.variants))


def write_page(settings: Sequence[LoopSetting], out: Path, *, scale: str) -> list[str]:
    """The sections of the page; writes its picture."""
    fields = [FieldLoops(setting, out) for setting in settings]
    draw_curves(fields, out / "operational.svg")
    return [_intro(scale), _claims(fields), *(_field(f) for f in fields)]


def _intro(scale: str) -> str:
    return f"""# Operational testing: fewer tests for the same reliability?

Zhao et al. (2021) expect that testing for natural failures, where use and weakness meet, takes "significantly fewer
test cases" for the same reliability. Here campaigns run against the same loop with parts replaced, by `operant study
operational --scale {scale}`. *pmi* is the true one, on field inputs used for nothing else. No loop knows the field's
conditions: loops that use conditions estimate them from unlabelled field inputs (`fit_conditions`, whose CPU time
counts).

- *{FULL}*: seeds where use and weakness meet, moves by conditions and by gradient, operational failures that together
  cover most, feedback between rounds.
- *{RANDOM_SEEDS}*: seeds at random. *{NO_PROFILE}*: seeds by margin alone, failures from anywhere, chosen at random.
  *{NO_NATURALNESS}*: moves that ignore naturalness; every failure counts. *{NO_FEEDBACK}*. *{DEEPGINI}*: learns from
  the operational failures about which the model is least sure.
- *{PGD_LOOP}*, *{ROBOT_LOOP}*: the same rounds with attacks from random seeds, at the best of three radii; they ignore
  the field.
- *{LABELLED}*: each round learns from as many random field inputs with their true labels. *{AUGMENTED}*: each round
  learns from training inputs under newly drawn estimated conditions, without a search.

Every loop has the same maximum of rounds and of cases per round, the same labels for assessment and monitor, the same
retraining and the same limit on lost clean accuracy; the loop that learns from labelled inputs pays for those as well.
Where rounds find fewer failures than they may learn from, as on USPS, the choice among them changes little. Seeds that
do not come from the profile cannot be steered by classes and cells, so their feedback only steers the moves. A campaign
ends early after two rounds without a change; the last two loops continue. A first run was stopped after two seeds: its
monitor counted errors on the labels bought so far, and half of all campaigns ended early with most labels unspent.
Eight retrainings (MNIST and USPS with seed 1, CIFAR-10 with seed 0, judged by the true pmi) showed that the Brier score
of the same labels chooses the better epoch more often in every one. So `Campaign` now monitors that score, and buys
labels also after a rejected retraining; then every loop was run again. Those seeds were therefore used for tuning, by
every loop alike. The goals were also set afterwards: the first goal came from the whole loop's own curve, which favours
it. CPU time excludes the search for the attacks' radius and, after an interruption, the unfinished round; a campaign's
time includes its report, about half a second per round. Intervals are 95 %, over seeds.

![True pmi by round](operational.svg)
"""


# Claims ---------------------------------------------------------------------------------------------------------------


def _claims(fields: Sequence[FieldLoops]) -> str:
    """The paper's expectation against each other loop, and which parts made no difference."""
    names = [name for name in max((t.setting.variants for t in fields), key=len) if name != FULL]
    rows = [
        [name, way, *(_fewer(t, name, share) if name in t.setting.variants else "" for t in fields)]
        for name in names
        for way, share in GOALS.items()
    ]
    return f"""## Fewer cases for the same reliability?

Two goals: half, and three quarters, of the way from the initial pmi to the lowest final pmi of any loop, on average
over seeds. *Held*: on every seed the whole loop needs fewer cases than this one (five of five seeds agree by chance
once in 32 times; with so many rows one may); *not held*: on every seed as many or more. In brackets: the seeds on which
it needs fewer, and the median of its cases divided by theirs where both reach the goal. Labelled inputs count as cases;
augmentation has no cases, so its rows compare CPU time.

{table(["against", "of the way", *(t.setting.field.title for t in fields)], rows)}
{_parts(fields)}
"""


def _fewer(t: FieldLoops, name: str, way: float) -> str:
    what, target = "seconds" if name == AUGMENTED else "cases", t.target(way)
    ours, theirs = ([needed(points, target, what) for points in t.loops[loop]] for loop in (FULL, name))
    won = [a < b for a, b in zip(ours, theirs, strict=True)]
    ratios = [a / b for a, b in zip(ours, theirs, strict=True) if np.isfinite(a) and np.isfinite(b) and b > 0]
    times = f", {np.median(ratios):.2f} times" if ratios else ", it never gets there" if all(won) else ""
    found = "one seed" if len(won) == 1 else "held" if all(won) else "not held" if not any(won) else "not decided"
    return f"**{found}** ({sum(won)} of {len(won)}{times})"


def _parts(fields: Sequence[FieldLoops]) -> str:
    """Which parts help, harm or make no difference, by the pmi after the last round."""
    lines = []
    for t in fields:
        found = {part: verdict(_worse(t, name)) for name, part in PARTS.items() if name in t.setting.variants}
        if found and len(seeds_of(t.setting)) > 1:
            by = {which: [p for p, v in found.items() if v == which] for which in ("held", "not decided", "not held")}
            lines.append(
                f"- {t.setting.field.title}: helped: {_names(by['held'])}; "
                f"no difference in {len(seeds_of(t.setting))} seeds: {_names(by['not decided'])}; "
                f"harmed: {_names(by['not held'])}."
            )
    return "\n".join(["What helped and what did not, by pmi after the last round:\n", *lines]) if lines else ""


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _worse(t: FieldLoops, name: str) -> Mean:
    return mean(t.curve(name)[:, -1] - t.curve(FULL)[:, -1])


# One field ------------------------------------------------------------------------------------------------------------


def _field(t: FieldLoops) -> str:
    setting, n = t.setting, len(seeds_of(t.setting))
    ends = [[name, *_end(t, name)] for name in setting.variants]
    goals = [(way, what) for way in GOALS.values() for what in SPENT]
    needs = [[name, *(_need(t, name, what, way) for way, what in goals)] for name in setting.variants]
    targets = " and ".join(f"{100 * t.target(way):.1f} %, {name} of the way" for name, way in GOALS.items())
    range_ = "; in brackets the minimum and maximum, a 94 % interval for the median of all seeds"
    before = mean(t.curve(FULL)[:, 0])
    return f"""## {setting.field.title}

{n} seed{"s" if n > 1 else ""}, {setting.rounds} rounds of {setting.seeds_per_round} seeds and {setting.cases_per_round}
cases. Initial pmi: {_share(before)} %.

After the last round; *worse than the whole loop*: difference in pmi, percentage points, paired by seed:

{table(["loop", "rounds", "cases", "labels", "CPU, s", "pmi, %", "clean, %", "worse than the whole loop", ""], ends)}
To reach a pmi of {targets} (median over seeds, linear between rounds{range_ if n == 5 else ""}):

{table(["loop", *(f"{what}, {name}" for name in GOALS for what in ("cases", "labels", "CPU s"))], needs)}"""


def _end(t: FieldLoops, name: str) -> list[object]:
    last = [points[-1] for points in t.loops[name]]
    worse = _worse(t, name)
    compared = ["", ""] if name == FULL else [_points(worse), f"**{verdict(worse)}**" if worse.n > 1 else "one seed"]
    return [
        f"{np.mean([p.round for p in last]):.1f}",
        f"{np.mean([p.cases for p in last]):.0f}",
        f"{np.mean([p.labels for p in last]):.0f}",
        f"{np.mean([p.seconds for p in last]):.0f}",
        _share(mean(p.pmi for p in last)),
        f"{100 * np.mean([p.clean for p in last]):.2f}",
        *compared,
    ]


def _need(t: FieldLoops, name: str, what: str, way: float) -> str:
    """Median and range over seeds of what was spent to reach the target."""
    found = sorted(needed(points, t.target(way), what) for points in t.loops[name])
    low, middle, high = (_spent(found[i]) for i in (0, (len(found) - 1) // 2, -1))
    return middle if len(found) == 1 else f"{middle} [{low}, {high}]"


def _spent(value: float) -> str:
    return "never" if np.isinf(value) else f"{value:.0f}"


def needed(points: Sequence[LoopPoint], target: float, what: str) -> float:
    """Amount of a resource spent until pmi first reached the target; infinity if it never did.

    >>> spent = dict(labels=0, seconds=0, clean=1)
    >>> points = [LoopPoint(round=i, cases=10 * i, pmi=pmi, **spent) for i, pmi in enumerate([0.3, 0.1])]
    >>> round(needed(points, 0.2, "cases"), 6)
    5.0
    """
    falling = np.minimum.accumulate([p.pmi for p in points])
    if falling[-1] > target:
        return np.inf
    i = int(np.argmax(falling <= target))
    spent = [float(getattr(p, what)) for p in points]
    if i == 0:
        return spent[0]
    share = (falling[i - 1] - target) / (falling[i - 1] - falling[i])
    return float(spent[i - 1] + share * (spent[i] - spent[i - 1]))


def _share(value: Mean) -> str:
    return value.share if value.n > 1 else f"{100 * value.value:.1f}"


def _points(value: Mean) -> str:
    return str(value) if value.n > 1 else f"{100 * value.value:.1f}"


def draw_curves(fields: Sequence[FieldLoops], path: Path) -> None:
    """True pmi by round, one line per loop."""
    figure = Figure(figsize=(4.2 * len(fields), 3.9), layout="constrained")
    for ax, t in zip(figure.subplots(1, len(fields), squeeze=False)[0], fields, strict=True):
        for name in t.setting.variants:
            width = 2.2 if name == FULL else 1.0
            ax.plot(100 * t.curve(name).mean(0), marker="o", ms=3, color=COLOUR_OF[name], label=name, linewidth=width)
        ax.set(xlabel="round", ylim=(0, None), xticks=range(t.setting.rounds + 1))
        ax.set_title(t.setting.field.title, fontsize=8)
    figure.axes[0].set_ylabel("true pmi, %")
    lines, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    save_figure(figure, path)
