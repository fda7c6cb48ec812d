"""The tables of the study of rivals."""

from __future__ import annotations

from collections.abc import Sequence

from operant_studies.rivals.contests import BALLS, CONTESTS, Contest
from operant_studies.rivals.outcome import BEATS, RivalsOutcome, answer
from operant_studies.shared import Mean, mean, table, verdict

RIVALS = ("DeepXplore", "DLFuzz", "DeepHunter", "TensorFuzz")


def reasons(outcomes: Sequence[RivalsOutcome]) -> str:
    """How many beat random, and a line for each contest and model."""
    verdicts = [verdict(o.lead(contest, contest.arms[0])) for o in outcomes for contest in CONTESTS]
    counts = [verdicts.count(one) for one in ("held", "not held", "not decided")]
    text = "## Does each beat random mutation?\n\n"
    text += f"Of {len(verdicts)} answers: beats random {counts[0]}, loses {counts[1]}, not decided {counts[2]}.\n"
    for o in outcomes:
        lines = "\n".join(f"- {answer(o, contest, models=len(outcomes))}" for contest in CONTESTS)
        text += f"\n**{o.setting.title}**\n\n{lines}\n"
    return text


def contest(outcomes: Sequence[RivalsOutcome], one: Contest) -> str:
    """Coverage of one rival: as published, and with one thing changed."""
    rows = []
    for o in outcomes:
        for arm in one.arms:
            pairs, lead = o.pairs(one, arm), o.lead(one, arm)
            cells = [_covered([getattr(p, name) for p in pairs]) for name in ("start", "covered", "control")]
            changed = "" if arm == one.arms[0] else str(o.change(one, arm))
            spent = f"{sum(p.rows for p in pairs) / len(pairs):.0f}"
            rows.append([o.setting.title, arm.name, spent, *cells, str(lead), changed, f"**{BEATS[verdict(lead)]}**"])
    columns = ["model, data", "search", "rows", "inputs alone", "covered", "random", "lead, %", "change of lead", ""]
    return f"### {one.title}\n\nCriterion: {one.criterion}.\n\n" + table(columns, rows)


def _covered(values: Sequence[float]) -> str:
    """A share in percent, or a number of points."""
    average = sum(values) / len(values)
    return f"{100 * average:.2f} %" if average <= 1 else f"{average:.0f}"


FOUND = ["search", "seeds", "CPU s", "failures", "failures / CPU s", "natural, %", "natural failures / CPU s"]
FOUND += ["cells / CPU s"]


def finding(outcomes: Sequence[RivalsOutcome]) -> str:
    text = """## Failures per CPU second, and how natural they are

*Natural*: the share of failures that the judge calls natural. The judge was fitted on other field inputs than the guide
of our search, with other encoders (as in the study of operational fuzzing). *Cells* counts the distinct places of the
field with natural failures where use is dense: many failures of one seed are few cells. Means over seeds with 95 %
t-intervals; the natural share is over seeds with failures only. *Random conditions* draws conditions of the field
without any search: where a search has a smaller number than it, its guidance does not pay.

![Failures per CPU second](rivals-finding.svg)
"""
    for o in outcomes:
        genuine = mean(j.natural for j in o.judged).share
        text += f"\n### {o.setting.title}: failures\n\nThe judge calls {genuine} % of genuine field inputs natural.\n\n"
        text += table(FOUND, [_found(o, name) for name in o.found])
        text += f"\n{most(o)}\n"
    return text


def most(o: RivalsOutcome) -> str:
    """A sentence: which searches find most per CPU second, and which rival does."""
    best = []
    for what in ("natural", "cells"):
        rates = {name: mean(getattr(f, what) / f.seconds for f in each).value for name, each in o.found.items()}
        first, second, *_ = order = sorted(rates, key=lambda name: -rates[name])
        rival = next(name for name in order if name.startswith(RIVALS))
        of_rivals = "" if rival in (first, second) else f"; best rival: *{rival}* ({rates[rival]:.1f})"
        best.append(f"*{first}* ({rates[first]:.1f}), then *{second}* ({rates[second]:.1f}){of_rivals}")
    return f"Most natural failures per CPU second: {best[0]}. Most cells: {best[1]}."


def _found(o: RivalsOutcome, name: str) -> list[object]:
    each = o.found[name]
    share = [f.natural / f.failures for f in each if f.failures]
    return [
        name,
        each[0].seeds,
        f"{mean(f.seconds for f in each).value:.2f}",
        f"{mean(f.failures for f in each).value:.0f}",
        rate(mean(f.failures / f.seconds for f in each)),
        mean(share).share if share else "no failures",
        rate(mean(f.natural / f.seconds for f in each)),
        rate(mean(f.cells / f.seconds for f in each)),
    ]


def rate(value: Mean) -> str:
    """A rate with its interval, which is never below 0."""
    if value.n < 2:
        return f"{value.value:.1f}"
    return f"{value.value:.1f} [{max(value.lower, 0):.1f}, {value.upper:.1f}]"


def method(outcomes: Sequence[RivalsOutcome]) -> str:
    rows = []
    for o in outcomes:
        s, facts = o.setting, o.facts
        right = [mean(f.accuracy[i] for f in facts).share for i in range(3)]
        move = f"{sum(f.move for f in facts) / len(facts):.2f}"
        rows.append([s.title, facts[0].explored, s.rows, *right, s.noise, move, s.profiled, len(s.seeds)])
    each = " and ".join(sorted({str(o.setting.hunted_rows) for o in outcomes}))
    columns = ["model, data", "inputs", "rows for each", "accuracy", "of the first other", "of the second"]
    columns += ["noise of TensorFuzz", "moves logits by, median", "inputs for KMNC's ranges", "seeds"]
    return f"## What was run\n\n{table(columns, rows)}{METHOD.format(rows=each)}"


METHOD = f"""
- Every search of a contest starts from the same inputs: training inputs drawn at random that all three models
  classify correctly. Seeds differ in these, in all random numbers, and for LeNet-5 in the model; ResNet-20 has given
  weights.
- A row is one input passed through one model, forward or forward and backward. A lead is measured after as many rows as
  both searches have spent. DeepXplore leaves a seed once its case is found, so its searches are compared with random
  after different numbers of rows, and a change of lead includes that difference. Where there are several random
  searches, the best counts, chosen by the reported numbers, which favours random.
- DeepXplore compares the model with two LeNet-5 of the same data: for MNIST those of two other seeds; for CIFAR-10 two
  with short training, which are often wrong and soon disagree, so searches are short. λ1 = 1 and λ2 = 0.1 are the usual
  options of the released program, λ1 = 3 and λ2 = 10 our defaults for three models. Its control is the same steps in
  random directions. *Anywhere* removes the constraint: every pixel may change by itself, in the search and in its
  control.
- DLFuzz stays in balls of {BALLS["dlfuzz"]:g} and {BALLS["dlfuzz-near"]:g} of the seed's length; the second is the
  released program's. Its control is random steps in the same ball, of the same length and of two others.
- DeepHunter's control mutates any input alike and keeps all. *Any input alike* and *no guidance* each remove one of
  its two ideas: taking inputs in turn with a fading probability, and keeping only inputs that cover something new.
  *100 sections* is another, coarser criterion, with a control of its own. Failures are not counted as covered.
- TensorFuzz stays in a ball of three times its noise. Thresholds are relative to the distance that one mutation
  moves the logits. The number of points depends on the threshold, so each has its own control.
- Searches for failures: the rivals with their defaults and {{rows}} rows per seed, as FOL-Fuzz; OperationalFuzz with
  the mix of three moves of the study of operational fuzzing. CPU time excludes fitting its profile and naturalness,
  KMNC's ranges and the training of other models; it includes passes through other models.
- The field: MNIST by Zipf's law and CIFAR-10, both under conditions, as in the study of operational fuzzing.
"""
