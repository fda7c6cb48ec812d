"""The results of finding: tables, verdicts and a picture."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from matplotlib.figure import Figure

from operant_studies.operational_fuzz.finding import (
    ATTACKS,
    ENDING,
    MIX,
    MOVES,
    PUBLISHED,
    RANDOM,
    ROWS,
    SHARES,
    SearchResult,
    arm_names,
    attack_name,
    load_facts,
    load_results,
    steps_of,
)
from operant_studies.operational_fuzz.finding_judge import CODES, LATENT, LAYER, JudgeFacts
from operant_studies.operational_fuzz.settings import FieldSetting
from operant_studies.shared import Mean, Steps, mean, save_figure, table, verdict

PICTURE = "operational_fuzz-finding.svg"
OVER_ATTACKS, OVER_GENETIC = 5.0, 2.0  # the goals
OURS, THEIRS, CHANCE = "#2471a3", "#b7950b", "#7f8c8d"


@dataclass(frozen=True)
class FindingOutcome:
    """All searches of one field, over its seeds."""

    setting: FieldSetting
    out: Path

    @cached_property
    def found(self) -> dict[str, list[SearchResult]]:
        return load_results(self._steps, arm_names(self.setting))

    @cached_property
    def facts(self) -> list[JudgeFacts]:
        return load_facts(self._steps)

    @property
    def _steps(self) -> list[Steps]:
        return [steps_of(self.setting, self.out, seed) for seed in self.setting.seeds]

    def rate(self, name: str) -> float:
        return mean(f.rate for f in self.found[name]).value

    @cached_property
    def attacks(self) -> dict[str, str]:
        """Each attack at its best radius, chosen by the reported numbers, which favours the attack."""
        tried = {name: [attack_name(name, radius) for radius in self.setting.radii] for name in ATTACKS}
        return {name: max(arms, key=self.rate) for name, arms in tried.items()}

    @property
    def best_attack(self) -> str:
        return max(self.attacks.values(), key=self.rate)

    @property
    def best_genetic(self) -> str:
        return max((ENDING, PUBLISHED), key=self.rate)

    @property
    def shown(self) -> list[str]:
        without = [f"mix without {move}" for move in MOVES]
        return [*MOVES, MIX, *without, RANDOM, *self.attacks.values(), ENDING, PUBLISHED]

    def lead(self, name: str, other: str, times: float = 1.0) -> Mean:
        """The mass per CPU second of one search minus ``times`` that of another."""
        return mean(a.rate - times * b.rate for a, b in zip(self.found[name], self.found[other], strict=True))


def section(settings: tuple[FieldSetting, ...], out: Path) -> str:
    """The section of the page; writes its picture."""
    outcomes = [FindingOutcome(setting, out) for setting in settings]
    draw(outcomes, out / PICTURE)
    parts = [_intro(settings), _goals(outcomes), _adds(outcomes)]
    parts += [f"### {o.setting.title}\n\n{_arms(o)}" for o in outcomes]
    return "\n".join([*parts, _judge(outcomes)])


def _intro(settings: tuple[FieldSetting, ...]) -> str:
    weights = ", ".join(f"{share:g} ({move})" for move, share in SHARES.items())
    return f"""## Finding

What mass of distinct failing cells does each search find per CPU second?

Every search starts from the same training inputs; slow searches (FOL-Fuzz, the genetic ones) use the first few of them.
CPU time is that of the search in one thread, with its guidance and the columns of its suite, but without the judge and
without fitting profile and naturalness once per field. Attacks are shown at the best of their
{len(settings[0].radii)} radii, chosen by the numbers shown; PGD stops early. *Random conditions* tries {ROWS} draws of
the recipe on every seed and keeps the failures. The recipe is the declared one where field inputs are made under
conditions; for inputs of another source it is estimated from unlabelled ones. The *mix* tries one move per seed,
drawn with weights {weights}. Moves and weights are the same for all fields:
of some twenty settings, the one that found most per CPU second on seed 0 of the first field was taken. That seed is
among those reported, and seed 0 of other fields had been examined by then, so seed 0 flatters the mix.

A case counts if the model fails on it, the judge calls it natural (level .05), and its density in the judge's profile
is above the .1 quantile of field inputs. A cell contains what lies nearest to one of the judge's field inputs, in its
codes; its mass is the share of the true field sample in it; *truly failing* is the share in it on which the model
fails, and *lift* the failure rate in the cells found, divided by that of the field. The judge was fitted on other field
inputs; see below for what it can see. Intervals are 95 %, over seeds.

![Mass of distinct failing cells found per CPU second]({PICTURE})
"""


def _goals(outcomes: list[FindingOutcome]) -> str:
    rows = []
    for o in outcomes:
        for other, times, what in (
            (o.best_attack, OVER_ATTACKS, "best attack"),
            (o.best_genetic, OVER_GENETIC, "genetic search"),
            (RANDOM, 1.0, "random conditions"),
        ):
            ratio, decided = _ratio(o.rate(MIX), o.rate(other)), verdict(o.lead(MIX, other, times))
            rows.append([o.setting.title, f"{times:g} times the {what}", other, ratio, f"**{decided}**"])
    text = """### What held

*Held*: the mix's mass per CPU second minus the stated multiple of the other's has an interval above 0; *not held*:
below 0. The first two are the goals.

"""
    return text + table(["field", "goal for the mix", "which is", "times, measured", ""], rows)


def _adds(outcomes: list[FindingOutcome]) -> str:
    rows = []
    for o in outcomes:
        for move in MOVES:
            without = f"mix without {move}"
            gain = o.lead(MIX, without)
            more = mean(a.total - b.total for a, b in zip(o.found[MIX], o.found[without], strict=True))
            effect = "adds" if gain.lower > 0 else "costs more than it adds" if gain.upper < 0 else "not decided"
            rows.append([o.setting.title, move, _ratio(o.rate(MIX), o.rate(without)), str(more), f"**{effect}**"])
    text = """### Which move adds nothing

The mix against the mix without one move: mass per CPU second, and total mass in percentage points.

"""
    return text + table(["field", "move", "mix / mix without it, per CPU second", "more total mass", ""], rows)


def _arms(o: FindingOutcome) -> str:
    budget = min(mean(f.seconds for f in o.found[name]).value for name in o.shown)
    rows = []
    for name in o.shown:
        each = o.found[name]
        failures = sum(f.failures for f in each)
        rows.append(
            [
                f"**{name}**" if name == MIX else name,
                each[0].seeds,
                f"{mean(f.seconds for f in each).value:.2f}",
                f"{failures / len(each):.0f}",
                f"{sum(f.natural for f in each) / max(1, failures):.0%}",
                f"{sum(f.guided for f in each) / max(1, failures):.0%}",
                f"{mean(f.cells for f in each).value:.0f}",
                mean(f.total for f in each).share,
                _interval(mean(100 * f.rate for f in each)),
                _interval(mean(100 * f.truly / f.seconds for f in each)),
                _lift(each, o.facts),
                f"{100 * mean(f.by_features / f.seconds for f in each).value:.2f}",
                f"{100 * mean(f.within(budget) for f in each).value:.2f}",
            ]
        )
    columns = ["search", "seeds", "CPU s", "failures", "natural, judge", "natural, guide", "cells", "mass, %"]
    columns += [
        "mass per CPU second, %",
        "of it truly failing, %",
        "lift",
        "mass, judged by features alone",
        f"mass in {budget:.2f} CPU s, %",
    ]
    return table(columns, rows)


def _lift(found: list[SearchResult], facts: list[JudgeFacts]) -> str:
    """Failure rate of true field inputs in the cells found, relative to all of the field; empty if nothing is found."""
    values = [f.truly / f.total / fact.pmi for f, fact in zip(found, facts, strict=True) if f.total and fact.pmi]
    return f"{sum(values) / len(values):.2f}" if values else ""


def _judge(outcomes: list[FindingOutcome]) -> str:
    rows = []
    for o in outcomes:
        each = o.facts
        for at, radius in enumerate(o.setting.radii):
            rows.append(
                [
                    o.setting.title,
                    mean(f.natural for f in each).share,
                    mean(f.counted for f in each).share,
                    mean(f.reachable for f in each).share,
                    f"{radius:g}",
                    mean(f.rejected[at] for f in each).share,
                    mean(f.rejected_by_features[at] for f in each).share,
                ]
            )
    text = f"""### What the judge can see

The judge combines two measures of naturalness into one p-value. Both are fitted on other field inputs than the guide's,
with a VAE of {LATENT} dimensions (the guide's has 16); one compares neighbours in layer `{LAYER}` of a network of its
own, the other in pixels. Its profile has {CODES} dimensions. It must call at least 95 % of true field inputs natural.
With noise that no search makes, every pixel moved up or down by a radius at random, they should look unnatural, unless
the field itself is as noisy. *Reachable* is the mass of the cells in which a true field input fails and counts.

The judge was planned with features only. A first run of seed 0 showed that these miss noise in CIFAR-10: a tenth of the
range in every pixel passed as natural, and FGSM with that radius seemed to find most. The second measure was added
after these results; the tables above show both. Each measure has half the level, so the judge is now more lenient where
features alone notice something, as the table shows.

"""
    columns = ["field", "genuine: natural, %", "genuine: would count, %", "reachable, %", "noise", "rejected, %"]
    return text + table([*columns, "rejected by features alone, %"], rows)


def draw(outcomes: list[FindingOutcome], path: Path) -> None:
    """Mass per CPU second, one bar per search, on a logarithmic scale."""
    figure = Figure(figsize=(5.5 * len(outcomes), 4.2), layout="constrained")
    for ax, o in zip(figure.subplots(1, len(outcomes), squeeze=False)[0], outcomes, strict=True):
        names = o.shown
        values = [100 * o.rate(name) for name in names]
        floor = min([v for v in values if v > 0], default=1.0) / 3
        colours = [
            OURS if name in MOVES or name.startswith(MIX) else CHANCE if name == RANDOM else THEIRS for name in names
        ]
        ax.barh(range(len(names)), [max(v, floor) for v in values], left=floor / 10, color=colours)
        for y, name in enumerate(names):
            dots = [max(100 * f.rate, floor) for f in o.found[name]]
            ax.plot(dots, [y] * len(dots), "o", color="black", markersize=2.5)
        ax.set_yticks(range(len(names)), names, fontsize=7)
        ax.invert_yaxis()
        ax.set(xscale="log", xlabel="mass of distinct failing cells per CPU second, %")
        ax.set_title(o.setting.title, fontsize=9)
    save_figure(figure, path)


def _interval(value: Mean) -> str:
    if value.n < 2:
        return f"{value.value:.2f}"
    return f"{value.value:.2f} [{max(value.lower, 0):.2f}, {value.upper:.2f}]"


def _ratio(a: float, b: float) -> str:
    return f"{a / b:.2f}" if b > 0 else "the other found nothing"
