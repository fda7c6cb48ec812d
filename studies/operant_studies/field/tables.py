"""The tables of the study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from operant_studies.field.claims import Curves
from operant_studies.field.large import LargeFit
from operant_studies.field.outcome import MAX_OFF, FieldOutcome, average, off, sum_of
from operant_studies.field.scores import covered, doubted, names_of, proportion, withheld
from operant_studies.field.settings import FieldCase
from operant_studies.field.unit import ALONE, COMBINED, ESTIMATES, FieldError
from operant_studies.operational.unit import LoopCurve, TimedConditions
from operant_studies.shared import mean, table

# Conditions -----------------------------------------------------------------------------------------------------------


def conditions_section(outcomes: Sequence[FieldOutcome]) -> str:
    made = [o for o in outcomes if o.case.recipe is not None]
    known = [o for o in made if o.case.covered]
    total, kinds = (sum_of(o.counts(kinds=k) for o in known) for k in (False, True))
    return f"""## Conditions

Nothing was declared: `fit_conditions(field, clean)` with its defaults. Numbers in brackets count seeds. Where the
palette holds the truth, precision is {100 * total.precision:.0f} % ({total.right} of {total.found} conditions found)
and recall {100 * total.recall:.0f} % ({total.right} of {total.true}). If similar conditions count as one (blur,
defocus, motion blur and downsampling; exposure, brightness, gamma, contrast and fog; the three kinds of noise), they
are {100 * kinds.precision:.0f} % and {100 * kinds.recall:.0f} %. A direction belongs to its motion blur. *Inside*:
fitted parameters of true conditions whose interval holds the true value. *Unexplained*: share of the difference that
the recipe leaves, by the program's own measure.

{table(["field", "true", "missed", "found besides", "inside", "unexplained", "CPU s"], map(_condition_row, outcomes))}
### Parameters

{_parameters(known)}
### Field and simulated images, compared by a network

AUC of a fresh two-sample network between {made[0].likeness[0].n} other field images and as many other training images:
as they are, under the fitted recipe in the estimated class shares, and under the true recipe in the true shares, which
is as good as can be. 0.5 means that the network cannot tell them apart. Means over seeds.

{table(["field", "as they are", "fitted", "true"], map(_likeness_row, outcomes))}"""


def _condition_row(o: FieldOutcome) -> list[str]:
    true = names_of(o.case.recipe.names) if o.case.recipe else frozenset[str]()
    found = [names_of(f.active) for f in o.fitted]
    rows = o.parameters()
    return [
        o.case.title,
        _true_names(o.case),
        _counted(name for names in found for name in true - names),
        _counted(name for names in found for name in names - true),
        f"{sum(ok for *_, ok in rows)} of {len(rows)}" if rows else "",
        f"{100 * average([f.unexplained for f in o.fitted]):.1f} %",
        f"{average([fit.seconds for fit in o.fits]):.0f}",
    ]


def _true_names(case: FieldCase) -> str:
    if case.recipe is None:
        return "not known"
    names = [name for name in case.recipe.names if name in names_of(case.recipe.names)]
    return ", ".join([*names, *(["waves"] if case.waves else [])]) or "none"


def _counted(names: Iterable[str]) -> str:
    return ", ".join(f"{name} ({n})" for name, n in Counter(names).most_common()) or "none"


def _parameters(outcomes: Sequence[FieldOutcome]) -> str:
    rows = [(o.case.name, *row) for o in outcomes for row in o.parameters()]
    names = dict.fromkeys((field, p.condition, p.name) for field, p, *_ in rows)
    lines = []
    for key in names:
        each = [(p, true, ok) for field, p, true, ok in rows if (field, p.condition, p.name) == key]
        stated = "; ".join(f"{p.value:.3g} [{p.lower:.3g}, {p.upper:.3g}]" for p, *_ in each)
        lines.append(
            [key[0], f"{key[1]} {key[2]}", f"{each[0][1]:g}", stated, f"{sum(ok for *_, ok in each)} of {len(each)}"]
        )
    return table(["field", "parameter", "true", "fitted, 95 % interval", "inside"], lines)


def _likeness_row(o: FieldOutcome) -> list[str]:
    values = [o.mean_likeness(of) for of in (lambda e: e.before, lambda e: e.fitted, lambda e: e.true)]
    return [o.case.title, *("" if v is None else f"{v:.3f}" for v in values)]


# Class shares ---------------------------------------------------------------------------------------------------------


def shares_section(outcomes: Sequence[FieldOutcome]) -> str:
    names = [name for name in ESTIMATES if any(o.distances(name) for o in outcomes)]
    intervals = [name for name in (ALONE, COMBINED) if name in names]
    rows = [[o.case.title, *(f"{average(o.distances(n)):.3f}" for n in names)] for o in outcomes]
    rows.append(["mean", *(f"{average([average(o.distances(n)) for o in outcomes]):.3f}" for n in names)])
    stated = [[o.case.title, *(cell for n in intervals for cell in _interval_cells(o, n))] for o in outcomes]
    columns = [f"{n}: {what}" for n in intervals for what in ("inside", "withheld", "doubted", "said")]
    return f"""## Class shares

Total variation to the true class shares, mean over seeds. *MLLS* is the plain maximum of likelihood on labelled inputs
that nobody trained on; the last two are what `estimate_priors` states, without and with the fitted conditions.

{table(["field", *names], rows)}
Stated 95 % intervals, over classes and seeds: how many hold the true share; in how many seeds they were withheld, or
stated with a reason to doubt them; and what the program said.

{table(["field", *columns], stated)}"""


def _interval_cells(o: FieldOutcome, name: str) -> list[str]:
    each = [(e, s.true) for s in o.shares if (e := s.of(name))]
    hits, n = (sum(column) for column in zip(*(covered(e, true) for e, true in each), strict=True))
    return [
        f"{hits} of {n}",
        str(sum(withheld(e) for e, _ in each)),
        str(sum(doubted(e) for e, _ in each)),
        _counted(finding for e, _ in each for finding in e.findings),
    ]


# Error without labels -------------------------------------------------------------------------------------------------


def errors_section(outcomes: Sequence[FieldOutcome]) -> str:
    some = [o for o in outcomes if o.errors]
    if not some:
        return ""
    methods = list(dict.fromkeys(m for o in some for e in o.errors for m in e.by_method))
    rows = [_error_row(o, methods) for o in some]
    means = [average([average(size) for o in some if (size := _sizes(o, m))]) for m in methods]
    rows.append(["mean", "", "", *(f"{100 * value:.1f}" for value in means), _mean_size(some), "", ""])
    each = [e for o in some for e in o.errors]
    wrong, right = [e for e in each if off(e)], [e for e in each if not off(e)]
    return f"""## Error without labels

True error on labelled field inputs that the program never gets, and by how many points each estimate is off, mean over
seeds. *Stated* is the one that the program states. It is an estimate, never a bound.

{table(["field", "n", "true error, %", *methods, "stated", "interval holds it", "said"], rows)}
Off by more than {100 * MAX_OFF:g} points: {len(wrong)} of {len(each)}. The program called {_said(wrong)}
of them unreliable, and {_said(right)} of the others. *Said* has all its findings.

![Absolute error of the estimates without labels, by method](field-error.svg)
"""


def _said(errors: Sequence[FieldError]) -> str:
    return proportion(sum(bool(e.unreliable) for e in errors), len(errors))


def _mean_size(outcomes: Sequence[FieldOutcome]) -> str:
    return f"{100 * average([average([abs(e.value - e.true) for e in o.errors]) for o in outcomes]):.1f}"


def _sizes(o: FieldOutcome, method: str) -> list[float]:
    """By how much a method is off, one per seed; empty if it does not apply to the field."""
    return [abs(e.by_method[method] - e.true) for e in o.errors if method in e.by_method]


def _error_row(o: FieldOutcome, methods: Sequence[str]) -> list[str]:
    sizes = [_sizes(o, method) for method in methods]
    return [
        o.case.title,
        str(o.errors[0].n),
        f"{100 * average([e.true for e in o.errors]):.1f}",
        *(f"{100 * average(size):.1f}" if size else "" for size in sizes),
        _mean_size([o]),
        f"{sum(e.lower <= e.true <= e.upper for e in o.errors)} of {len(o.errors)}",
        _counted(finding for e in o.errors for finding in e.findings),
    ]


# Downstream, cost, control --------------------------------------------------------------------------------------------

WAY_TITLES = {"before": "conditions that had to be declared", "palette": "default palette"}


def downstream_section(case: FieldCase, curves: Curves) -> str:
    rows = [
        [variant, WAY_TITLES[way], *_curve_cells(each)] for variant, by in curves.items() for way, each in by.items()
    ]
    columns = ["", "recipe from", "error before, %", "error after, %", "clean accuracy after, %", "CPU s", "seeds"]
    rounds = max(len(c.points) - 1 for by in curves.values() for each in by.values() for c in each)
    return f"""## Downstream

On *{case.title}*, search and retraining as they are, at most {rounds} rounds: training inputs under the recipe, without
a search; and the loop. Only the recipe differs. CPU time includes its estimate.

{table(columns, rows)}"""


def _curve_cells(curves: Sequence[LoopCurve]) -> list[str]:
    first, last = [c.points[0] for c in curves], [c.points[-1] for c in curves]
    shares = (mean(p.pmi for p in first), mean(p.pmi for p in last), mean(p.clean for p in last))
    cells = [s.share if s.n > 1 else f"{100 * s.value:.1f}" for s in shares]
    return [*cells, f"{average([p.seconds for p in last]):.0f}", str(len(curves))]


def cost_section(outcomes: Sequence[FieldOutcome], large: Sequence[LargeFit]) -> str:
    sizes = {"mnist": "28 x 28", "fashion-mnist": "28 x 28", "digits": "28 x 28", "cifar10": "32 x 32 x 3"}
    rows = []
    for size in dict.fromkeys(sizes.values()):
        seconds = [fit.seconds for o in outcomes if sizes[o.case.dataset] == size for fit in o.fits]
        if seconds:
            rows.append([size, f"{average(seconds):.0f}", f"{max(seconds):.0f}", len(seconds), "", ""])
    if large:
        seconds = [fit.seconds for fit in large]
        first, memory = large[0], max(fit.memory for fit in large)
        found = _counted(name for fit in large for name in names_of(fit.found))
        size = f"{first.side} x {first.side} x 3, {first.images} images on either side"
        rows.append([size, f"{average(seconds):.0f}", f"{max(seconds):.0f}", len(large)])
        rows[-1] += [f"{memory / 1e9:.2f}", found]
    columns = ["images", "CPU s, mean", "most", "fits", "peak memory, GB", "found"]
    return f"""## Cost

One fit by default settings, in one thread. The large images are under motion blur, vignetting, exposure, contrast and
gaussian noise; the memory is that of a whole process, with libraries and with reading the images.

{table(columns, rows)}"""


def control_section(controls: dict[str, list[TimedConditions]]) -> str:
    rows = []
    for name, fits in controls.items():
        fitted = [fit.conditions for fit in fits]
        some = proportion(sum(bool(f.active) for f in fitted), len(fitted))
        differ = sum(f.before > f.floor_high for f in fitted)
        rows.append([name, some, _counted(n for f in fitted for n in names_of(f.active)), str(differ)])
        rows[-1].append(f"{average([fit.seconds for fit in fits]):.0f}")
    return f"""## Control

Field inputs that are other images of the training source, without any condition, drawn anew each time.

{table(["images", "fits with a condition", "found", "fits that see a difference", "CPU s"], rows)}"""
