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
    LoopSetting,
    seeds_of,
)
from operant_studies.operational.unit import LoopCurve, LoopPoint, slug, steps_of
from operant_studies.shared import Mean, mean, table, verdict

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
WAYS = {"half": 0.5, "three quarters": 0.75}  # of the way from the pmi before to the lowest that any loop ends with
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

    trial: LoopSetting
    out: Path

    @cached_property
    def loops(self) -> dict[str, list[tuple[LoopPoint, ...]]]:
        """By variant, one a seed; a loop that ended early stays as it was."""
        return {name: [self._loop(name, seed) for seed in seeds_of(self.trial)] for name in self.trial.variants}

    def _loop(self, name: str, seed: int) -> tuple[LoopPoint, ...]:
        path = steps_of(self.trial, seed, self.out).folder / f"{slug(name)}.json"
        points = results.load(path, LoopCurve).points
        return points + points[-1:] * (self.trial.rounds + 1 - len(points))

    def curve(self, name: str) -> NDArray[np.float64]:
        """pmi by seed and round."""
        return np.array([[p.pmi for p in points] for points in self.loops[name]])

    def target(self, way: float) -> float:
        """The mean pmi after this share of the way from where all begin to the lowest that any loop ends with."""
        before = float(self.curve(FULL).mean(0)[0])
        return before - way * (before - min(float(self.curve(name).mean(0)[-1]) for name in self.trial.variants))


def write_page(trials: Sequence[LoopSetting], out: Path, *, scale: str) -> str:
    """The page; its picture is written beside it."""
    told = [FieldLoops(trial, out) for trial in trials]
    draw_curves(told, out / "operational.svg")
    return "\n".join([_INTRO.format(scale=scale), _claims(told), *(_field(t) for t in told)])


_INTRO = (
    """# Operational testing: fewer tests for the same reliability?

Zhao et al. (2021) hope that testing where use and weakness meet, for failures that are natural, takes "significantly
fewer test cases" for the same reliability. Here campaigns run against the same loop with parts replaced, by `operant
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

Every loop has at most the same rounds and cases a round, the same labels to assess and monitor with, the same
retraining and the same guard on clean accuracy; the one that learns from labelled inputs pays for those as well. Where
rounds find fewer failures than they may learn from, as on USPS, choosing among them changes little. Seeds that do not
come from the profile cannot be steered by classes and cells either, so there feedback is left with the moves. A
campaign ends early where two rounds change nothing; the last two loops go on. A first run was stopped after two seeds:
retraining was watched by counting errors on the labels bought so far, half of all campaigns ended early with most
labels unspent, and a look at eight retrainings (MNIST and USPS with seed 1, CIFAR-10 with seed 0, judged by the true
pmi) showed that the Brier score of the same labels chooses the better epoch more often in every one. So `Campaign` now
watches that score, and buys labels also after a retraining that it refused; then every loop was run afresh. Those seeds
are not untouched, in the same way for every loop. The goals were also set afterwards: a first one was read off the
whole loop's own curve, which favours it. CPU time leaves out the search for the attacks' radius and, of a run that was
cut off, the round it was in; a campaign's includes what it works out for its report, about half a second a round.
Intervals are 95 %, over seeds.

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


def _claims(told: Sequence[FieldLoops]) -> str:
    """The paper's hope against each other loop, and which parts made no difference."""
    names = [name for name in max((t.trial.variants for t in told), key=len) if name != FULL]
    rows = [
        [name, way, *(_fewer(t, name, share) if name in t.trial.variants else "" for t in told)]
        for name in names
        for way, share in WAYS.items()
    ]
    return f"""## Fewer cases for the same reliability?

Two goals: half, and three quarters, of the way from the pmi before to the lowest that any loop ends with, on average
over seeds. *Held*: on every seed the whole loop needs fewer cases than this one to get there (of five seeds all five
agree by chance once in 32 times; of so many lines one may); *not held*: on every seed as many or more; in brackets on
how many it needs fewer, and the median of its cases divided by theirs where both get there. Labelled inputs count as
cases; augmentation has none, so that there the line speaks of CPU time.

{table(["against", "of the way", *(t.trial.field.title for t in told)], rows)}
{_parts(told)}
"""


def _fewer(t: FieldLoops, name: str, way: float) -> str:
    what, target = "seconds" if name == AUGMENTED else "cases", t.target(way)
    ours = [_or_never(needed(points, target, what)) for points in t.loops[FULL]]
    theirs = [_or_never(needed(points, target, what)) for points in t.loops[name]]
    won = [a < b for a, b in zip(ours, theirs, strict=True)]
    ratios = [a / b for a, b in zip(ours, theirs, strict=True) if np.isfinite(a) and np.isfinite(b) and b > 0]
    times = f", {np.median(ratios):.2f} times" if ratios else ", it never gets there" if all(won) else ""
    found = "one seed" if len(won) == 1 else "held" if all(won) else "not held" if not any(won) else "not decided"
    return f"**{found}** ({sum(won)} of {len(won)}{times})"


def _parts(told: Sequence[FieldLoops]) -> str:
    """Sentences on parts whose removal does not show in the pmi after the last round."""
    lines = []
    for t in told:
        found = {part: verdict(_worse(t, name)) for name, part in PARTS.items() if name in t.trial.variants}
        if found and len(seeds_of(t.trial)) > 1:
            by = {which: [p for p, v in found.items() if v == which] for which in ("held", "not decided", "not held")}
            lines.append(
                f"- {t.trial.field.title}: helped: {_names(by['held'])}; "
                f"no difference that {len(seeds_of(t.trial))} seeds can tell: {_names(by['not decided'])}; "
                f"harmed: {_names(by['not held'])}."
            )
    return "\n".join(["What helped and what did not, by pmi after the last round:\n", *lines]) if lines else ""


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _worse(t: FieldLoops, name: str) -> Mean:
    return mean(t.curve(name)[:, -1] - t.curve(FULL)[:, -1])


# One field ------------------------------------------------------------------------------------------------------------


def _field(t: FieldLoops) -> str:
    trial, n = t.trial, len(seeds_of(t.trial))
    ends = [[name, *_end(t, name)] for name in trial.variants]
    needs = [[name, *(_need(t, name, what, way) for way in WAYS.values() for what in SPENT)] for name in trial.variants]
    goals = " and ".join(f"{100 * t.target(way):.1f} %, {name} of the way" for name, way in WAYS.items())
    range_ = "; in brackets the least and the most, which hold the median of all seeds with 94 % confidence"
    before = mean(t.curve(FULL)[:, 0])
    return f"""## {trial.field.title}

{n} seed{"s" if n > 1 else ""}, {trial.rounds} rounds of {trial.seeds_per_round} seeds and {trial.cases_per_round}
cases. Before: pmi {_share(before)} %.

After the last round; *worse than the whole loop* by so many points of pmi, paired by seed:

{table(["loop", "rounds", "cases", "labels", "CPU, s", "pmi, %", "clean, %", "worse than the whole loop", ""], ends)}
To reach a pmi of {goals} (median over seeds, linear between rounds{range_ if n == 5 else ""}):

{table(["loop", *(f"{what}, {name}" for name in WAYS for what in ("cases", "labels", "CPU s"))], needs)}"""


def _end(t: FieldLoops, name: str) -> list[object]:
    last = [points[-1] for points in t.loops[name]]
    worse = _worse(t, name)
    told = ["", ""] if name == FULL else [_points(worse), f"**{verdict(worse)}**" if worse.n > 1 else "one seed"]
    return [
        f"{np.mean([p.round for p in last]):.1f}",
        f"{np.mean([p.cases for p in last]):.0f}",
        f"{np.mean([p.labels for p in last]):.0f}",
        f"{np.mean([p.seconds for p in last]):.0f}",
        _share(mean(p.pmi for p in last)),
        f"{100 * np.mean([p.clean for p in last]):.2f}",
        *told,
    ]


def _need(t: FieldLoops, name: str, what: str, way: float) -> str:
    """The median of what was spent when the target was reached, and the range; more than all where it never was."""
    found = sorted(_or_never(needed(points, t.target(way), what)) for points in t.loops[name])
    low, middle, high = (_spent(found[i]) for i in (0, (len(found) - 1) // 2, -1))
    return middle if len(found) == 1 else f"{middle} [{low}, {high}]"


def _or_never(value: float | None) -> float:
    return np.inf if value is None else value


def _spent(value: float) -> str:
    return "never" if np.isinf(value) else f"{value:.0f}"


def needed(points: Sequence[LoopPoint], target: float, what: str) -> float | None:
    """How much of something was spent when pmi first was at the target; None if it never was.

    >>> points = [LoopPoint(round=i, cases=10 * i, labels=0, seconds=0, pmi=p, clean=1) for i, p in enumerate([0.3, 0.1])]
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


def draw_curves(told: Sequence[FieldLoops], path: Path) -> None:
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
