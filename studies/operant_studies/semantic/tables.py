"""Table 2: injected faults, the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence

from operant_studies.semantic import paper
from operant_studies.semantic.injected import ANCHORED, FEATURES, PIXELS, SEARCHES, SOUND, FaultCounts
from operant_studies.semantic.outcome import SemanticOutcome, counts, mean_of, revealing
from operant_studies.semantic.plain_tables import TITLES
from operant_studies.semantic.settings import Flaw, SemanticSetting
from operant_studies.shared import table


def fault_name(setting: SemanticSetting, flaw: Flaw) -> str:
    first, second = (setting.names[c] for c in flaw.classes)
    return f"{setting.title}: {first} or {second} by {flaw.feature}"


def table_2(outcomes: Sequence[SemanticOutcome]) -> str:
    low, high = 100 * paper.LEAST, 100 * paper.MOST
    text = f"""## Table 2: injected faults

Each row is a fault: a model was trained to distinguish two classes by a feature that should not matter. Tests start at
an image of one class and aim at the other, in both directions; both models and all searches have the same seeds, target
and margin. Numbers are percentages of the tests that fail by the margin, means over repetitions with 95 % t-intervals.
A test reveals the fault if the feature moved towards the other class, across the midpoint or by a standard deviation.
Without brackets: all repetitions agree; *1 of 3 repetitions*: the others have no such test. *Sound*: the same search on
a model of the same data without the fault, to show how often the feature moves anyway. The paper has {low:.0f} to
{high:.0f} % by fault and direction, read by eye, without a check of validity and without a sound model.

"""
    columns = ["fault", *(f"{TITLES[name]}, valid tests" for name in (FEATURES, ANCHORED))]
    columns += ["sound model, valid tests", "sound model, anchored, valid tests", "PGD, valid tests", "PGD, all tests"]
    rows = [_shares(o.setting, flaw, o) for o in outcomes for flaw in o.tried]
    text += table(columns, rows) + "\nBy direction, from the first class to the second and back:\n\n"
    text += table(
        ["fault", "way", *(f"{TITLES[name]}, {which}" for name in (FEATURES, ANCHORED) for which in ("valid", "all"))],
        [row for o in outcomes for flaw in o.tried for row in _ways(o, flaw)],
    )
    return text + _paper() + _confirmations(outcomes) + _all_counts(outcomes)


def _paper() -> str:
    rows = [[fault, *both] for fault, both in paper.TABLE_2.items()]
    columns = ["the paper's fault", "first class to second", "back"]
    return "\nThe paper's, in percent of 100 tests each way:\n\n" + table(columns, rows)


def _shares(setting: SemanticSetting, flaw: Flaw, o: SemanticOutcome) -> list[str]:
    each = o.tried[flaw]
    arms = [(FEATURES, True), (ANCHORED, True), (SOUND + FEATURES, True), (SOUND + ANCHORED, True)]
    arms += [(PIXELS, True), (PIXELS, False)]
    return [fault_name(setting, flaw), *(mean_of(revealing(counts(each, arm), valid=valid)) for arm, valid in arms)]


def _ways(o: SemanticOutcome, flaw: Flaw) -> list[list[str]]:
    rows = []
    for way in (0, 1):
        a, b = (o.setting.names[flaw.classes[i]] for i in (way, 1 - way))
        shares = [
            mean_of(revealing(counts(o.tried[flaw], name, way), valid=valid))
            for name in (FEATURES, ANCHORED)
            for valid in (True, False)
        ]
        rows.append([fault_name(o.setting, flaw) if way == 0 else "", f"{a} to {b}", *shares])
    return rows


def _confirmations(outcomes: Sequence[SemanticOutcome]) -> str:
    text = """
### Is the fault there?

Accuracy in percent on the two classes, on test images used for nothing else: where the feature agrees with the class,
and where it disagrees. Low and high are the mean of the feature in each class of the training data.

"""
    rows = []
    for o in outcomes:
        for flaw, each in o.tried.items():
            cells = [
                mean_of([getattr(getattr(t, of), where) for t in each])
                for of in ("faulty", "sound")
                for where in ("aligned", "opposed")
            ]
            cue, there = each[0].cue, sum(t.faulty.confirmed for t in each)
            means = f"{cue.means[0]:.3g} to {cue.means[1]:.3g}"
            rows.append([fault_name(o.setting, flaw), means, *cells, f"{there} of {len(each)}"])
    columns = ["fault", "low to high", "faulty, same", "faulty, opposite", "sound, same", "sound, opposite"]
    columns.append("confirmed")
    return text + table(columns, rows)


def _all_counts(outcomes: Sequence[SemanticOutcome]) -> str:
    text = """
### Counts, of all and of valid tests

All repetitions and both directions together. *Valid*: tests that show their label, failing or not.

"""
    rows = []
    for o in outcomes:
        for flaw, each in o.tried.items():
            for where in ("", SOUND):
                for search in SEARCHES:
                    total = summed(counts(each, where + search))
                    model = "sound" if where else "faulty"
                    rows.append([fault_name(o.setting, flaw), model, TITLES[search], *_cells(total)])
    columns = ["fault", "model", "search", "seeds", "valid", "failing", "valid and failing"]
    return text + table([*columns, "revealing, of all", "revealing, of valid"], rows)


def _cells(c: FaultCounts) -> list[int]:
    return [c.seeds, c.valid, c.failing, c.valid_failing, c.revealing, c.valid_revealing]


def summed(each: Sequence[FaultCounts]) -> FaultCounts:
    total = each[0]
    for one in each[1:]:
        total = total + one
    return total
