"""The page of a report: one HTML file that holds everything and asks for nothing."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from operant.campaign.feedback import Decision
from operant.campaign.progress import STEPS
from operant.formatting import at_most, duration, percent
from operant.report.charts import Bar, bar_chart, epoch_chart, map_chart, plane_chart, pmi_chart
from operant.report.evidence import (
    Certainties,
    Change,
    Counts,
    Defences,
    Evidence,
    Region,
    Sources,
    labels_told,
    stayed,
)
from operant.suite.drawing import MAX_SMALL, is_picture

PAGE_SIZE = 48  # failures on the page at first, and with each click on "more"; page.js knows it too
MOST_BARS = 20  # classes or cells that get a bar
MOST_CLASSES = 20  # classes that get a row of a confusion matrix
SHARE = re.compile(r"(?<!\S)(\d+) (\d+%)")  # of a class or cell, as decisions tell it
MOST_PAIRS = 12  # pairs of classes told where there are more
MEANING = {
    "HL": "HL decided, stable",
    "LH": "LH neither",
    "LL": "LL stable only",
    "HH": "HH decided only",
    "": "between",
}  # the patterns of uncertainty


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of a confusion matrix: a count, its share of the row, and whether it is right."""

    count: int
    share: float
    right: bool


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A confusion matrix, or what is most often confused where it would be too large."""

    name: str
    names: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    pairs: tuple[tuple[str, str, int], ...]
    right: int
    total: int


def render_page(evidence: Evidence) -> str:
    """The whole page as text."""
    script, style = _file("page.js"), _file("page.css")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_together
    )
    environment.filters |= {"percent": percent, "at_most": at_most, "duration": duration, "number": number}
    environment.filters |= {"labels_told": labels_told}
    environment.tests |= {"unchanged": stayed}
    return environment.from_string(_file("page.html")).render(
        e=evidence,
        style=Markup(style),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        charts=_charts(evidence),
        matrices=[(change, _matrices(evidence, change)) for change in evidence.changes],
        decisions=[(r.number, [named(d, evidence) for d in r.decisions]) for r in evidence.rounds if r.decisions],
        pictured=is_picture(evidence.gallery.shape),
        page_size=PAGE_SIZE,
        place=shlex.quote(evidence.folder or evidence.name),
        steps=STEPS,
        small=max(evidence.gallery.shape, default=0) <= MAX_SMALL,
        **_choices(evidence),
    )


def _file(name: str) -> str:
    return (resources.files("operant.report") / name).read_text(encoding="utf-8")


def _together(value: object) -> object:
    """A number is not parted from its per cent at the end of a line."""
    return value.replace(" %", "\u00a0%") if type(value) is str else value


def number(value: float) -> str:
    """A number of a failure, with three digits.

    >>> number(0.46817), number(0.0000209)
    ('0.468', '2.09e-05')
    """
    return f"{value:.3g}"


def _choices(evidence: Evidence) -> dict[str, Any]:
    """What failures can be filtered by."""
    shown = evidence.gallery.failures
    return {
        "labels": [(label, evidence.class_name(label)) for label in sorted({f.label for f in shown})],
        "moves": [(move, move) for move in sorted({f.move for f in shown})],
        "numbers": [(n, n) for n in sorted({f.round for f in shown})],
        "learned": sum(f.learned for f in shown),
    }


# Charts


def _charts(evidence: Evidence) -> dict[str, Any]:
    sources, known = evidence.sources, evidence.certainties
    return {
        "pmi": {
            "wide": pmi_chart(evidence, width=880, height=340),
            "narrow": pmi_chart(evidence, width=400, height=320),
        },
        "priors": _priors(evidence),
        "map": map_chart(evidence.map, width=480, height=380) if evidence.map else "",
        "classes": _by_class(evidence, sources) if sources else "",
        "regions": _by_region(sources.regions) if sources else "",
        "patterns": _patterns(known) if known else "",
        "plane": plane_chart(known, width=480, height=340) if known and known.points else "",
        "stopped": _stopped(evidence.defences) if evidence.defences else "",
        "epochs": {done.number: epoch_chart(done) for done in evidence.rounds},
    }


def _priors(evidence: Evidence) -> Markup:
    bars = [
        Bar(
            name=evidence.class_name(c),
            value=p.share,
            told=percent(p.share),
            lower=p.lower,
            upper=p.upper,
            mark=p.train,
        )
        for c, p in enumerate(evidence.priors)
    ]
    return _top(bars, "How often each class occurs in the field", "priors")


def _patterns(known: Certainties) -> Markup:
    """How many failures follow each pattern; where only PCS is known, how many are decided."""
    between = known.looked_at - known.decided - known.undecided
    counts = {MEANING.get(name, name): n for name, n in known.patterns.items()} or {
        "decided": known.decided,
        "undecided": known.undecided,
        "between": between,
    }
    bars = [Bar(name=name, value=n / known.looked_at, told=str(n)) for name, n in counts.items()]
    return _top(bars, "Failures by how sure the model was", "bars")


def _stopped(known: Defences) -> Markup:
    """The share of failures that each defence would have stopped."""
    bars = [
        Bar(name=d.name, value=d.share, told=f"{d.stopped} of {d.failures}", lower=d.lower, upper=d.upper)
        for d in known.tried
    ]
    return _top(bars, "Operational failures that each defence would have stopped", "bars")


def _by_class(evidence: Evidence, sources: Sources) -> Markup:
    """Each class's share of the failures, and its share of the labelled inputs."""
    wrong = sources.by_class
    names = [evidence.class_name(c) for c in range(len(wrong))]
    return _sources(
        names, wrong, [n / sources.labels if sources.labels else 0.0 for _, n in wrong], "Failures by class"
    )


def _by_region(regions: Sequence[Region]) -> Markup:
    """Each cell's share of the failures, and its share of the field."""
    wrong = [(region.failures, region.labels) for region in regions]
    names = [f"cell {i}" for i in range(len(wrong))]
    return _sources(names, wrong, [region.mass for region in regions], "Failures by cell of the profile")


def _sources(names: Sequence[str], wrong: Sequence[tuple[int, int]], marks: Sequence[float], title: str) -> Markup:
    failures = sum(k for k, _ in wrong) or 1
    bars = [
        Bar(name=name, value=k / failures, told=f"{k} of {n}", mark=mark)
        for name, (k, n), mark in zip(names, wrong, marks, strict=True)
    ]
    return _top(bars, title, "bars")


def _top(bars: list[Bar], title: str, kind: str) -> Markup:
    """A chart of all bars; of too many, the longest."""
    if not bars:
        return Markup("")
    shown = sorted(bars, key=lambda bar: -bar.value)[:MOST_BARS] if len(bars) > MOST_BARS else bars
    left = f" The {len(bars) - len(shown)} smallest are left out." if len(shown) < len(bars) else ""
    described = "; ".join(f"{bar.name}: {bar.told}" for bar in shown)
    return bar_chart(shown, title=title + "." + left, description=described, kind=kind)


# Words


def named(decision: Decision, evidence: Evidence) -> dict[str, str]:
    """A decision with classes and cells by their names."""

    def told(found: re.Match[str]) -> str:
        of = int(found[1])
        return f"{evidence.class_name(of) if decision.what == 'seeds by class' else f'cell {of}'} {found[2]}"

    numbered = decision.what in ("seeds by class", "seeds by cell")
    before, after = (SHARE.sub(told, d) if numbered else d for d in (decision.before, decision.after))
    return {"what": decision.what, "before": before, "after": after, "why": decision.why}


# Confusion


def _matrices(evidence: Evidence, change: Change) -> list[Matrix]:
    """Before and after, where the round changed the model."""
    field = "field inputs labelled in this round"
    changed = any(done.changed for done in evidence.rounds if done.number == change.round)
    before = [matrix(evidence, change.before, f"Before: {field}")] if changed else []
    after, clean = (f"{'After: ' if changed else ''}{what}" for what in (field, "clean inputs"))
    return [*before, matrix(evidence, change.after, after), matrix(evidence, change.clean, clean)]


def matrix(evidence: Evidence, counts: Counts, name: str) -> Matrix:
    """Counts with names; where there are too many classes, the pairs that are most often confused."""
    wrong = [(t, p, n) for t, row in enumerate(counts) for p, n in enumerate(row) if t != p and n]
    pairs = sorted(wrong, key=lambda pair: -pair[2])[:MOST_PAIRS]
    large = len(counts) > MOST_CLASSES
    return Matrix(
        name=name[0].upper() + name[1:],
        names=tuple(evidence.class_name(c) for c in range(len(counts))),
        rows=() if large else tuple(_cells(t, row) for t, row in enumerate(counts)),
        pairs=tuple((evidence.class_name(t), evidence.class_name(p), n) for t, p, n in pairs) if large else (),
        right=sum(row[t] for t, row in enumerate(counts)),
        total=sum(map(sum, counts)),
    )


def _cells(true: int, row: Sequence[int]) -> tuple[Cell, ...]:
    total = sum(row) or 1
    return tuple(Cell(count=n, share=n / total, right=p == true) for p, n in enumerate(row))
