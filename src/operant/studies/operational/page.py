"""What the headline study came to: tables, what each loop needs for the same pmi, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from operant import results
from operant.studies._work import Mean, mean, table, verdict
from operant.studies.operational.settings import (
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
    Trial,
    seeds_of,
)
from operant.studies.operational.unit import Point, Points, slug, steps_of

COLOURS = {
    FULL: "#154360",
    RANDOM_SEEDS: "#7fb3d5",
    NO_PROFILE: "#48c9b0",
    NO_NATURALNESS: "#a569bd",
    NO_FEEDBACK: "#2471a3",
    DEEPGINI: "#7d8a6a",
    PGD_LOOP: "#c0392b",
    ROBOT_LOOP: "#e59866",
    LABELLED: "#27774a",
    AUGMENTED: "#b7950b",
}
SPENT = ("cases", "labels", "seconds")


@dataclass(frozen=True)
class Told:
    """The finished loops of one field."""

    trial: Trial
    out: Path

    @cached_property
    def loops(self) -> dict[str, list[tuple[Point, ...]]]:
        """By variant, one a seed; a loop that ended early stays as it was."""
        return {name: [self._loop(name, seed) for seed in seeds_of(self.trial)] for name in self.trial.variants}

    def _loop(self, name: str, seed: int) -> tuple[Point, ...]:
        path = steps_of(self.trial, seed, self.out).folder / f"{slug(name)}.json"
        points = results.load(path, Points).points
        return points + points[-1:] * (self.trial.rounds + 1 - len(points))

    def curve(self, name: str) -> NDArray[np.float64]:
        """pmi by seed and round."""
        return np.array([[p.pmi for p in points] for points in self.loops[name]])

    @cached_property
    def target(self) -> float:
        """The pmi that the whole loop has on average when half of its rounds are over."""
        return float(self.curve(FULL).mean(0)[(self.trial.rounds + 1) // 2])


def write_page(trials: Sequence[Trial], out: Path, *, scale: str) -> str:
    """The page; its picture is written beside it."""
    told = [Told(trial, out) for trial in trials]
    draw_curves(told, out / "operational.svg")
    return "\n".join([_INTRO.format(scale=scale), _claims(told), *(_field(t) for t in told)])


_INTRO = (
    """# Operational testing: fewer tests for the same reliability?

Zhao et al. (2021) hope that testing where use and weakness meet, for failures that are natural, takes "significantly
fewer test cases" for the same reliability. Here campaigns run against the same loop with one part replaced, by `operant
study operational --scale {scale}`. *pmi* is the true one, on field inputs that nothing else has seen. No loop is told
the field's conditions: those that use any have them from unlabelled field inputs (`fit_conditions`, whose CPU time
counts).

- *{full}*: seeds where use and weakness meet, moves by conditions and by gradient, operational failures that together
  cover most, feedback between rounds.
- *{random}*: seeds from anywhere. *{profile}*: seeds by margin alone, failures from anywhere, chosen at random.
  *{natural}*: moves that do not ask what looks natural, every failure counts. *{feedback}*. *{gini}*: of the
  operational failures those that the model is least sure about.
- *{pgd}*, *{robot}*: the same rounds with attacks from random seeds, at the best of three radii; they ignore the field.
- *{labelled}*: each round learns from as many random field inputs with their true labels. *{augmented}*: each round
  learns from training inputs under newly drawn estimated conditions; nothing is searched or kept.

Every loop has the same rounds and cases a round, the same labels to assess and monitor with, the same retraining and
the same guard on clean accuracy; the one that learns from labelled inputs pays for those as well. Seeds that do not
come from the profile cannot be steered by classes and cells either, so there feedback is left with the moves. A
campaign ends early where two rounds change nothing; the last two loops go on. A first run was stopped after two seeds:
retraining was watched by counting errors on the labels bought so far, half of all campaigns ended early with most
labels unspent, and a look at the epochs of eight retrainings showed that the Brier score of the same labels chooses
better in every one. So `Campaign` now watches that score, and buys labels also after a retraining that was refused;
then every loop was run afresh. CPU time leaves out the search for the
attacks' radius and, of a run that was cut off, the round it was in. Intervals are 95 %, over seeds.

![True pmi by round](operational.svg)
""".replace("{full}", FULL)
    .replace("{random}", RANDOM_SEEDS)
    .replace("{profile}", NO_PROFILE)
    .replace("{natural}", NO_NATURALNESS)
    .replace("{feedback}", NO_FEEDBACK)
    .replace("{gini}", DEEPGINI)
    .replace("{pgd}", PGD_LOOP)
    .replace("{robot}", ROBOT_LOOP)
    .replace("{labelled}", LABELLED)
    .replace("{augmented}", AUGMENTED)
)


# Claims ---------------------------------------------------------------------------------------------------------------


def _claims(told: Sequence[Told]) -> str:
    """The paper's hope against each other loop, and which parts made no difference."""
    names = [name for name in max((t.trial.variants for t in told), key=len) if name != FULL]
    rows = [[name, *(_fewer(t, name) if name in t.trial.variants else "" for t in told)] for name in names]
    return f"""## Fewer cases for the same reliability?

*Held*: on every seed the whole loop needs fewer cases than this one to reach the pmi below (of five seeds all five
agree by chance once in 32 times); *not held*: on every seed as many or more; in brackets on how many it needs fewer,
and the median of its cases divided by theirs where both get there. Labelled inputs count as cases; augmentation has
none, so that there the line speaks of CPU time.

{table(["against", *(t.trial.field.title for t in told)], rows)}
{_parts(told)}
"""


def _fewer(t: Told, name: str) -> str:
    what = "seconds" if name == AUGMENTED else "cases"
    ours = [_or_never(needed(points, t.target, what)) for points in t.loops[FULL]]
    theirs = [_or_never(needed(points, t.target, what)) for points in t.loops[name]]
    won = [a < b for a, b in zip(ours, theirs, strict=True)]
    ratios = [a / b for a, b in zip(ours, theirs, strict=True) if np.isfinite(a) and np.isfinite(b) and b > 0]
    times = f", {np.median(ratios):.2f} times" if ratios else ", it never gets there" if all(won) else ""
    found = "one seed" if len(won) == 1 else "held" if all(won) else "not held" if not any(won) else "not decided"
    return f"**{found}** ({sum(won)} of {len(won)}{times})"


def _parts(told: Sequence[Told]) -> str:
    """Sentences on parts whose removal does not show in the pmi after the last round."""
    parts = (RANDOM_SEEDS, NO_PROFILE, NO_NATURALNESS, NO_FEEDBACK, DEEPGINI)
    lines = []
    for t in told:
        same = {name: verdict(_worse(t, name)) for name in parts if name in t.trial.variants}
        if same and len(seeds_of(t.trial)) > 1:
            by = {found: [n for n, v in same.items() if v == found] for found in ("held", "not decided", "not held")}
            lines.append(
                f"- {t.trial.field.title}: worse after the last round without it: {_names(by['held'])}; "
                f"no difference that {len(seeds_of(t.trial))} seeds can tell: {_names(by['not decided'])}; "
                f"better without it: {_names(by['not held'])}."
            )
    return "\n".join(["What helped and what did not, part by part:\n", *lines]) if lines else ""


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _worse(t: Told, name: str) -> Mean:
    return mean(t.curve(name)[:, -1] - t.curve(FULL)[:, -1])


# One field ------------------------------------------------------------------------------------------------------------


def _field(t: Told) -> str:
    trial, n = t.trial, len(seeds_of(t.trial))
    ends = [[name, *_end(t, name)] for name in trial.variants]
    needs = [[name, *(_need(t, name, what) for what in SPENT)] for name in trial.variants]
    before = mean(t.curve(FULL)[:, 0])
    return f"""## {trial.field.title}

{n} seed{"s" if n > 1 else ""}, {trial.rounds} rounds of {trial.seeds_per_round} seeds and {trial.cases_per_round}
cases. Before: pmi {_share(before)} %.

After the last round; *worse than the whole loop* by so many points of pmi, paired by seed:

{table(["loop", "cases", "labels", "CPU, s", "pmi, %", "clean, %", "worse than the whole loop", "which"], ends)}
To reach a pmi of {100 * t.target:.1f} %, where the whole loop is on average after half of its rounds, which favours no
other (median over seeds, linear between rounds; in brackets the least and the most, which with five seeds hold the
median of all seeds with 94 % confidence):

{table(["loop", "cases", "labels", "CPU, s"], needs)}"""


def _end(t: Told, name: str) -> list[object]:
    last = [points[-1] for points in t.loops[name]]
    worse = _worse(t, name)
    told = ["", ""] if name == FULL else [_points(worse), f"**{verdict(worse)}**" if worse.n > 1 else "one seed"]
    return [
        f"{np.mean([p.cases for p in last]):.0f}",
        f"{np.mean([p.labels for p in last]):.0f}",
        f"{np.mean([p.seconds for p in last]):.0f}",
        _share(mean(p.pmi for p in last)),
        f"{100 * np.mean([p.clean for p in last]):.2f}",
        *told,
    ]


def _need(t: Told, name: str, what: str) -> str:
    """The median of what was spent when the target was reached, and the range; more than all where it never was."""
    found = sorted(_or_never(needed(points, t.target, what)) for points in t.loops[name])
    low, middle, high = (_spent(found[i]) for i in (0, (len(found) - 1) // 2, -1))
    return middle if len(found) == 1 else f"{middle} [{low}, {high}]"


def _or_never(value: float | None) -> float:
    return np.inf if value is None else value


def _spent(value: float) -> str:
    return "never" if np.isinf(value) else f"{value:.0f}"


def needed(points: Sequence[Point], target: float, what: str) -> float | None:
    """How much of something was spent when pmi first was at the target; None if it never was.

    >>> points = [Point(round=i, cases=10 * i, labels=0, seconds=0, pmi=p, clean=1) for i, p in enumerate([0.3, 0.1])]
    >>> round(needed(points, 0.2, "cases"), 6)
    5.0
    """
    falling = np.minimum.accumulate([p.pmi for p in points])
    if falling[-1] > target:
        return None
    i = int(np.argmax(falling <= target))
    spent = [float(getattr(p, what)) for p in points]
    if i == 0:
        return spent[0]
    share = (falling[i - 1] - target) / (falling[i - 1] - falling[i])
    return float(spent[i - 1] + share * (spent[i] - spent[i - 1]))


def _share(told: Mean) -> str:
    return told.share if told.n > 1 else f"{100 * told.value:.1f}"


def _points(told: Mean) -> str:
    return str(told) if told.n > 1 else f"{100 * told.value:.1f}"


# Picture --------------------------------------------------------------------------------------------------------------


def draw_curves(told: Sequence[Told], path: Path) -> None:
    """True pmi by round, a line a loop."""
    figure = Figure(figsize=(4.2 * len(told), 3.9), layout="constrained")
    for ax, t in zip(figure.subplots(1, len(told), squeeze=False)[0], told, strict=True):
        for name in t.trial.variants:
            width = 2.2 if name == FULL else 1.0
            ax.plot(100 * t.curve(name).mean(0), marker="o", ms=3, color=COLOURS[name], label=name, linewidth=width)
        ax.set(xlabel="round", ylim=(0, None), xticks=range(t.trial.rounds + 1))
        ax.set_title(t.trial.field.title, fontsize=8)
    figure.axes[0].set_ylabel("true pmi, %")
    lines, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    figure.savefig(path, metadata={"Date": None})
