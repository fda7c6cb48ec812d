"""Tables of the study of enhancement, and verdicts on the paper's claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from operant_studies.enhance import paper
from operant_studies.enhance.results import EnhanceResults, Quantity, change, rate
from operant_studies.enhance.settings import CONTROL
from operant_studies.kuk.paper import ATTACKS
from operant_studies.kuk.settings import PATTERNS
from operant_studies.shared import HELD, NOT_DECIDED, NOT_HELD, Mean, mean, minus, table, verdict

# Claims


def claims(found: Sequence[EnhanceResults]) -> str:
    """Verdicts on the paper's claims about NIN, for each model."""
    rows = [row for f in found for row in (*_accuracy(f), *_transfer(f))]
    text = f"""## What held

The paper's claims are about NIN; the other model is tested in the same way. Differences are in points, over
{_runs(found)} runs, paired by run, with 95 % t-intervals. *Held*: the interval lies above the claim; *not held*: below;
*not decided*: neither. A group is *best* if it exceeds every other one in this way; it is not if another exceeds it, by
intervals corrected for the number of groups (Bonferroni). With {len(rows)} rows at 95 %, a few are significant by
chance. Runs have different training and test inputs, but share the cases of a pattern: intervals do not cover the
choice of cases.

"""
    return text + table(["claim", "model", "measured", "verdict"], rows)


def _accuracy(f: EnhanceResults) -> list[list[object]]:
    first, second = paper.BEST_ACCURACY, paper.SECOND
    rows = [_row(f"{first} data improve accuracy", f, f.mean(first, change))]
    rows.append(_best_row(f, "… most of all groups", first, change, f.groups))
    lead = f.lead(first, second, change)
    rows.append(_row(f"… more than {second} data", f, lead))
    rows.append(_ratio(f))
    for group in paper.NEGATIVE:
        own = f.mean(group, change)
        rows.append(_row(f"{group} data lower accuracy", f, own, sign=-1))
        rows.append(
            _row(f"{group} data lower it more than the clean control", f, f.lead(group, CONTROL, change), sign=-1)
        )
    return rows


def _transfer(f: EnhanceResults) -> list[list[object]]:
    group = paper.BEST_TRANSFER
    among = [other for other in f.groups if other in PATTERNS]
    rows = [
        _best_row(f, f"of the patterns, {group} data are best against transfer attacks", group, rate, among),
        _best_row(f, "… and better than data of attacks", group, rate, [g for g in f.groups if g in ATTACKS]),
    ]
    own = f.mean(group, rate)
    claim = f"… with a transfer calibration rate of {100 * paper.RATE:.1f} %"
    if own is None:
        return [*rows, _row(claim, f, None)]
    return [*rows, [claim, f.title, own.share, f"**{verdict(minus(own, paper.RATE))}**"]]


def _row(claim: str, f: EnhanceResults, value: Mean | None, *, sign: int = 1) -> list[object]:
    if value is None:
        return [claim, f.title, "too few cases", f"**{NOT_DECIDED}**"]
    turned = value if sign > 0 else replace(value, value=-value.value, lower=-value.upper, upper=-value.lower)
    return [claim, f.title, value, f"**{verdict(turned)}**"]


def _best_row(f: EnhanceResults, claim: str, group: str, of: Quantity, among: Sequence[str]) -> list[object]:
    """The lead of a group over its nearest rival, and whether it leads all others."""
    if f.mean(group, of) is None:
        return [claim, f.title, "too few cases", f"**{NOT_DECIDED}**"]
    others = [other for other in among if other != group and f.lead(group, other, of)]
    if not others:
        return [claim, f.title, "nothing to compare with", f"**{NOT_DECIDED}**"]
    plain, wide = (
        {other: f.lead(group, other, of, confidence=confidence) for other in others}
        for confidence in (0.95, 1 - 0.05 / len(others))
    )
    rival = min(others, key=lambda other: plain[other].value)  # type: ignore[union-attr]
    word = best([m for m in plain.values() if m], [m for m in wide.values() if m])
    return [claim, f.title, f"less {rival}: {plain[rival]}", f"**{word}**"]


def best(leads: Sequence[Mean], wide: Sequence[Mean]) -> str:
    """Whether something is the best, by its leads over all others; wider intervals decide that it is not."""
    if any(verdict(lead) == NOT_HELD for lead in wide):
        return NOT_HELD
    return HELD if all(verdict(lead) == HELD for lead in leads) else NOT_DECIDED


def _ratio(f: EnhanceResults) -> list[object]:
    """Whether HL improves accuracy by 64 % more than LL, which needs an improvement by LL."""
    first, second = (f.mean(group, change) for group in (paper.BEST_ACCURACY, paper.SECOND))
    claim = f"… by {100 * (paper.LEAD - 1):.0f} %"
    if first is None or second is None:
        return [claim, f.title, "too few cases", f"**{NOT_DECIDED}**"]
    if not second.lower > 0:
        word = NOT_HELD if second.upper < 0 else NOT_DECIDED
        return [claim, f.title, f"{paper.SECOND} data: {second}, no improvement to compare with", f"**{word}**"]
    high, low = (f.values(group, change) for group in (paper.BEST_ACCURACY, paper.SECOND))
    more = mean(high[run] - paper.LEAD * low[run] for run in high if run in low)
    text = f"{100 * (first.value / second.value - 1):.0f} %"
    text += f"; {paper.BEST_ACCURACY} less {paper.LEAD} {paper.SECOND}: {more}"
    return [claim, f.title, text, f"**{verdict(more)}**"]


def _runs(found: Sequence[EnhanceResults]) -> str:
    return " and ".join(str(n) for n in dict.fromkeys(f.plan.suites.runs for f in found))


# By group


def groups(found: Sequence[EnhanceResults]) -> str:
    rows = []
    for f in found:
        for group, each in f.runs.items():
            cases = ", ".join(str(e.cases) for e in each.values())
            rows.append([f.title, group, cases, *_numbers(f, group)])
    columns = ["model", "learned from", "cases, by run", "accuracy change", "… less the control's"]
    columns += ["transfer calibration, %", "… less the control's"]
    text = """## By group of cases

The effect of retraining with each group, mean over runs with a 95 % t-interval. *Accuracy change*: in points, on clean
test inputs that no case starts from, different in each run. *Transfer calibration*: the share of attacks on the initial
model that the retrained one classifies correctly, the mean over the four attacks, from seeds not used in retraining.
*Clean control*: the same retraining with the unchanged seeds of the searches as cases; its effect is not due to any
group.

![What retraining brought](enhance.svg)

"""
    return text + table(columns, rows)


def _numbers(f: EnhanceResults, group: str) -> list[object]:
    cells: list[object] = []
    for of in (change, rate):
        own, lead = f.mean(group, of), f.lead(group, CONTROL, of)
        text = "left out" if own is None else own.share if of is rate else str(own)
        cells += [text, "" if group == CONTROL else "left out" if lead is None else str(lead)]
    return cells


def by_attack(found: Sequence[EnhanceResults]) -> str:
    rows = [[f.title, group, *(_counted(f, group, attack) for attack in ATTACKS)] for f in found for group in f.runs]
    text = """## Transfer calibration by attack

In percent, all runs together, and the number of attacks that had succeeded on the initial model.

"""
    return text + table(["model", "learned from", *ATTACKS], rows)


def _counted(f: EnhanceResults, group: str, attack: str) -> str:
    runs = [e.transfer for e in f.runs[group].values() if e.transfer]
    rates = [each for transfer in runs for each in transfer.rates if _is(each.defence, attack)]
    n = sum(each.n for each in rates)
    return f"{100 * sum(each.k for each in rates) / n:.0f} of {n}" if n else "-"


def _is(method: str, attack: str) -> bool:
    """Whether the name of a method in a suite is that of an attack.

    >>> _is("bim-linf-minimal", "BIM"), _is("carlini-wagner-l2", "C&W"), _is("deepfool-l2", "FGSM")
    (True, True, False)
    """
    return method.startswith("carlini" if attack == "C&W" else attack.lower())


# What was run


def method(found: Sequence[EnhanceResults]) -> str:
    rows = []
    for f in found:
        e = f.plan
        rows.append([f.title, e.suites.runs, e.cases, e.case_rows, e.train, e.epochs, e.learning_rate, _test(f)])
        rows[-1] += [", ".join(e.layers), f"{f.seconds / 60:.0f}"]
    columns = ["model", "runs", "cases of a group at most", "rows of cases in an epoch", "training inputs", "epochs"]
    columns += ["learning rate", "test inputs", "mixed at", "CPU minutes without suites"]
    return f"## What was run\n\n{table(columns, rows)}{DIFFERENCES}"


def _test(f: EnhanceResults) -> int:
    changes = [e.accuracy for each in f.runs.values() for e in each.values() if e.accuracy]
    return changes[0].n if changes else 0


DIFFERENCES = """
- Every group is retrained in the same way from the same weights, with the same random numbers: manifold mixup of its
  cases with each other, beside clean training data of the run. Cases have the labels of their seeds. No limit stops a
  loss of accuracy; the epoch is chosen by validation inputs that are neither training nor test inputs. - Suites are
  those of `operant study defences`. Cases of a pattern come from all of its runs, because one run has few, so that runs
  share cases and differ in training and test inputs; cases of an attack come from two thirds of the attacked inputs,
  and the rest measures transfer. Groups with few distinct cases repeat them more often.
- The paper gives neither the number of cases, epochs or layers nor the three attacks of its mean; here the mean is over
  four. It retrains with the whole training set, here with a part of it, so that changes are small. - Test inputs
  exclude the seeds of all cases, which the model gets right: accuracy on the rest is lower than on the whole test set,
  and because a loss on the excluded inputs is not seen, changes of all groups are a little too high.
- Training and validation inputs may have been in the models' training data.
- Chosen after first results: NIN's learning rate, a quarter of the first, with which the clean control alone had lost
  more than a point of accuracy.
- Changed after the numbers were known: whether HL data improve accuracy at all is a row of its own, and the claim of
  64 % is not held, rather than not decided, where LL data lower accuracy.
"""


def again(scale: str) -> str:
    return f"""## Run it again

`operant study enhance --scale {scale} --data DATA --weights nin.safetensors --out OUT`. The same command resumes it.
In the folder of `operant study defences` it uses the suites of that study; `--kuk DIR` adds those of a KuK study.
"""
