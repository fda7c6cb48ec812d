"""The charts of a report, as SVG that takes its colours from the page."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from operant.campaign.assessing import SequentialAssessment
from operant.campaign.records import Round
from operant.formatting import at_most, percent
from operant.report.evidence import Evidence, describe_labels

TICK_STEPS = (1, 2, 2.5, 5, 10)  # distance between two lines of a scale, times a power of ten
MAX_BARS = 20  # bars of a chart
EMPTY = Markup("")
Points = Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Where values go in a chart: ranges of x and y, and the rectangle they are mapped to."""

    x: tuple[float, float]
    y: tuple[float, float]
    left: float
    top: float
    width: float
    height: float

    def across(self, value: float) -> float:
        low, high = self.x
        return self.left + self.width * (value - low) / (high - low)

    def down(self, value: float) -> float:
        low, high = self.y
        return self.top + self.height * (high - value) / (high - low)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A row of a bar chart: its value, the text beside it, an interval, and a tick mark."""

    name: str
    value: float
    text: str
    lower: float | None = None
    upper: float | None = None
    mark: float | None = None


def drawing(inner: Markup, *, width: float, height: float, title: str, description: str, kind: str) -> Markup:
    """A chart with a title and a description for screen readers."""
    return Markup(
        '<svg class="chart {}" viewBox="0 0 {:g} {:g}" role="img" xmlns="http://www.w3.org/2000/svg">'
        "<title>{}</title><desc>{}</desc>{}</svg>"
    ).format(kind, width, height, title, description, inner)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>').format(x1, y1, x2, y2, kind)


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" class="{}" text-anchor="{}">{}</text>').format(x, y, kind, anchor, words)


def circle(x: float, y: float, radius: float, kind: str) -> Markup:
    return Markup('<circle cx="{:.1f}" cy="{:.1f}" r="{:g}" class="{}"/>').format(x, y, radius, kind)


def box(frame: Frame, *, radius: float = 0) -> Markup:
    rect = Markup('<rect x="{:g}" y="{:g}" width="{:g}" height="{:g}" rx="{:g}" class="box"/>')
    return rect.format(frame.left, frame.top, frame.width, frame.height, radius)


def dots(points: Points, frame: Frame, kind: str) -> Markup:
    """Many dots as one path: each is a line of length zero with round ends."""
    path = "".join(f"M{frame.across(x):.1f} {frame.down(y):.1f}h0" for x, y in points)
    return Markup('<path d="{}" class="dots {}"/>').format(path, kind)


def polyline(points: Points, kind: str) -> Markup:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return Markup('<polyline points="{}" class="{}"/>').format(path, kind)


def joined(parts: Sequence[Markup]) -> Markup:
    return EMPTY.join(parts)


def scale(most: float, lines: int = 4) -> list[float]:
    """Round numbers from 0 to at least ``most``, about this many.

    >>> scale(0.41)
    [0.0, 0.2, 0.4, 0.6]
    """
    most = most if most > 0 else 1.0
    rough = most / lines
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in TICK_STEPS if s * power >= rough * 0.999)
    return [round(i * step, 12) for i in range(math.ceil(most / step - 1e-9) + 1)]


# pmi over the rounds


def _assessment(done: Round) -> SequentialAssessment | None:
    """The assessment of a round, if it is based on labels."""
    return done.assessment if done.assessment and done.assessment.labels else None


def pmi_chart(evidence: Evidence, *, width: float, height: float) -> Markup:
    """The estimate and the bound of each round, against the requirement."""
    rounds = evidence.rounds
    most = max([a.upper for a in map(_assessment, rounds) if a], default=0.0)
    ticks = scale(min(1.0, 1.08 * max(most, evidence.requirement)))
    last = max((done.number for done in rounds), default=0)
    inner, rows = width - 60, max(last, 1)
    beside = max(0.5, (rows + 0.4) * 62 / (inner - 62))  # space for the numbers of the last round
    frame = Frame(x=(-0.4, rows + beside), y=(0, ticks[-1]), left=50, top=20, width=inner, height=height - 62)
    few = last <= 8 and (width > 500 or last <= 3)
    newest = max((done.number for done in rounds if _assessment(done)), default=0)
    required = frame.down(evidence.requirement)
    marks = [_round(frame, done, required, few=few, numbers=few or done.number == newest) for done in rounds]
    described = " ".join(_describe_round(done) for done in rounds)
    return drawing(
        joined([*_against(frame, ticks, evidence.requirement), *_paths(frame, rounds), *marks]),
        width=width,
        height=height,
        title="pmi over the rounds",
        description=f"Required: at most {percent(evidence.requirement)}. {described}",
        kind="pmi",
    )


def _paths(frame: Frame, rounds: Sequence[Round]) -> list[Markup]:
    """A line through the estimates of one field; a round without an assessment repeats the estimate before it."""
    parts: list[list[tuple[float, float]]] = []
    hollow = []
    for done in rounds:
        x = frame.across(done.number)
        if done.drift or not parts:
            parts.append([])
        if known := _assessment(done):
            parts[-1].append((x, frame.down(known.pmi)))
        elif parts[-1] and not done.drift:
            parts[-1].append((x, parts[-1][-1][1]))
            hollow.append(circle(*parts[-1][-1], 5, "hollow"))
    return [polyline(part, "path") for part in parts] + hollow


def _grid(frame: Frame, ticks: Sequence[float], number: Callable[[float], str] = percent) -> Markup:
    right = frame.left + frame.width
    rows = [
        line(frame.left, frame.down(t), right, frame.down(t), "axis" if t == 0 else "grid")
        + text(frame.left - 10, frame.down(t) + 4, number(t), "tick", "end")
        for t in ticks
    ]
    return joined(rows)


def _against(frame: Frame, ticks: Sequence[float], required: float) -> list[Markup]:
    """The requirement as a line with its number on the scale, in place of numbers that it would cover."""
    y, right = frame.down(required), frame.left + frame.width
    free = [t for t in ticks if abs(frame.down(t) - y) > 14]
    bare = [line(frame.left, frame.down(t), right, frame.down(t), "grid") for t in ticks if t not in free and t > 0]
    axis = [line(frame.left, frame.down(0), right, frame.down(0), "axis")] if 0 not in free else []
    number = text(frame.left - 10, y + 4, percent(required), "required-text", "end")
    return [_grid(frame, free), *bare, *axis, line(frame.left, y, right, y, "required"), number]


def _round(frame: Frame, done: Round, required: float, *, few: bool, numbers: bool) -> Markup:
    """A round's mark; few rounds have space for words, and numbers are kept off the requirement's line."""
    x, bottom = frame.across(done.number), frame.top + frame.height
    name = text(x, bottom + 20, f"round {done.number}" if few else str(done.number), "tick", "middle")
    if done.drift:
        name += line(x - 22, frame.top, x - 22, bottom, "changed")
        name += text(x - 29, frame.top + 11, "field changed", "note", "end")
    known, same = _assessment(done), done.idle
    if few and (same or known is None):
        name += text(x, bottom + 36, "unchanged" if same else "not assessed", "note", "middle")
    if known is None:
        return name
    pmi, upper = frame.down(known.pmi), frame.down(known.upper)
    mark = line(x, pmi, x, upper, "range") + line(x - 9, upper, x + 9, upper, "cap")
    mark += circle(x, pmi, 5 if same else 5.5, "hollow" if same else "point")
    if numbers:
        beside = upper if abs(upper - required) > 10 else required + 10 if upper >= required else required - 10
        lowest = min(max(pmi + 4, beside + 20), bottom - 4)  # beside the dot, below the bound, above the axis
        mark += text(x + 14, min(beside + 4, lowest - 16), f"≤ {at_most(known.upper)}", "value")
        mark += text(x + 14, lowest, percent(known.pmi), "value strong")
    return name + mark


def _describe_round(done: Round) -> str:
    change = "field changed; " if done.drift else "model unchanged; " if done.idle else ""
    a = done.assessment
    if a is None:
        return f"Round {done.number}: {change}{'no new labels' if done.idle else 'not assessed'}."
    wrong = f"{describe_labels(a)} wrong, estimate {percent(a.pmi)}, bound {at_most(a.upper)}"
    return f"Round {done.number}: {change}{wrong}."


# Bars


def bar_chart(bars: Sequence[Bar], title: str, *, kind: str = "bars", width: float = 460) -> Markup:
    """A row per bar: its name, the bar or a dot with its interval, and its text; of too many, the longest bars."""
    if not bars:
        return EMPTY
    shown = sorted(bars, key=lambda bar: -bar.value)[:MAX_BARS] if len(bars) > MAX_BARS else bars
    left = f" The {len(bars) - len(shown)} smallest are left out." if len(shown) < len(bars) else ""
    most = max([v for b in shown for v in (b.value, b.upper or 0.0, b.mark or 0.0)], default=1.0) or 1.0
    side = min(176.0, 16.0 + 8.0 * max(len(_short(b.name)) for b in shown))
    right = 18.0 + 7.4 * max(len(b.text) for b in shown)
    frame = Frame(x=(0, most), y=(0, 1), left=side, top=6, width=width - side - right, height=26.0 * len(shown))
    return drawing(
        joined([_bar(frame, b, 6 + 26 * i + 13) for i, b in enumerate(shown)]),
        width=width,
        height=12 + 26 * len(shown),
        title=f"{title}.{left}",
        description="; ".join(f"{bar.name}: {bar.text}" for bar in shown),
        kind=kind,
    )


def _bar(frame: Frame, bar: Bar, y: float) -> Markup:
    start, end = frame.left, frame.across(bar.value)
    row = text(start - 10, y + 4, _short(bar.name), "name", "end")
    row += text(frame.left + frame.width + 12, y + 4, bar.text, "value")
    row += line(start, y, start + frame.width, y, "track")
    if bar.lower is not None and bar.upper is not None:
        row += line(frame.across(bar.lower), y, frame.across(bar.upper), y, "range")
        row += circle(end, y, 4.5, "point")
    elif bar.value > 0:
        row += line(start, y, end, y, "bar")
    if bar.mark is not None:
        row += line(frame.across(bar.mark), y - 8, frame.across(bar.mark), y + 8, "mark")
    return row


def _short(name: str) -> str:
    return name if len(name) <= 20 else name[:19] + "…"


def count_bars(counts: Mapping[str, int], total: int, title: str, names: Mapping[str, str]) -> Markup:
    """A bar per count, relative to the total."""
    bars = [Bar(name=names.get(name, name), value=n / total, text=str(n)) for name, n in counts.items()]
    return bar_chart(bars, title)


def failure_bars(rows: Sequence[Mapping[str, Any]], title: str) -> Markup:
    """Shares of all failures, from rows with ``name``, ``failures``, ``labels`` and the ``expected`` share (a tick)."""
    total = sum(row["failures"] for row in rows) or 1
    bars = [
        Bar(
            name=row["name"],
            value=row["failures"] / total,
            text=f"{row['failures']} of {row['labels']}",
            mark=row["expected"],
        )
        for row in rows
    ]
    return bar_chart(bars, title)


def share_bars(rows: Sequence[Mapping[str, Any]], title: str) -> Markup:
    """Shares with intervals, from rows with ``name``, ``stopped``, ``failures``, ``lower`` and ``upper``."""
    bars = [
        Bar(
            name=row["name"],
            value=row["stopped"] / row["failures"],
            text=f"{row['stopped']} of {row['failures']}",
            lower=row["lower"],
            upper=row["upper"],
        )
        for row in rows
    ]
    return bar_chart(bars, title)


def interval_bars(rows: Sequence[Mapping[str, Any]], title: str) -> Markup:
    """Shares with intervals, from rows with ``name``, ``value``, ``lower``, ``upper``, ``text`` and ``mark`` (a tick).

    An interval that is not a number is left out.
    """
    bars = [Bar(**row) for row in rows]
    finite = [b if _known(b.lower) and _known(b.upper) else replace(b, lower=None, upper=None) for b in bars]
    return bar_chart(finite, title, kind="priors")


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def severity_bars(rows: Sequence[Mapping[str, Any]], title: str, *, width: float = 460) -> Markup:
    """Values with intervals, each on its own scale from ``low`` to ``high``; the tick is at 0, no change.

    Rows have ``name``, ``value``, ``lower``, ``upper``, ``low``, ``high`` and ``text``.
    """
    if not rows:
        return EMPTY
    side = min(176.0, 16.0 + 8.0 * max(len(_short(row["name"])) for row in rows))
    right = 18.0 + 7.4 * max(len(row["text"]) for row in rows)
    marks = []
    for i, row in enumerate(rows):
        low, high = row["low"], row["high"] if row["high"] > row["low"] else row["low"] + 1
        frame = Frame(x=(low, high), y=(0, 1), left=side, top=6, width=width - side - right, height=26)
        bar = Bar(**{name: row[name] for name in ("name", "value", "text", "lower", "upper")})
        marks.append(_bar(frame, replace(bar, mark=0.0 if low <= 0 <= high else None), 6 + 26 * i + 13))
    return drawing(
        joined(marks),
        width=width,
        height=12 + 26 * len(rows),
        title=title,
        description="; ".join(f"{row['name']}: {row['text']}" for row in rows),
        kind="severities",
    )


# Points


def map_chart(
    layers: Sequence[tuple[str, Points]], *, title: str, description: str, width: float = 480, height: float = 380
) -> Markup:
    """Layers of points, each with its kind: ``"field"``, ``"train"`` or ``"failure"``."""
    frame = _around([point for _, points in layers for point in points], width, height)
    outline = Frame(x=frame.x, y=frame.y, left=0.5, top=0.5, width=width - 1, height=height - 1)
    return drawing(
        joined([box(outline, radius=10), *(dots(points, frame, kind) for kind, points in layers)]),
        width=width,
        height=height,
        title=title,
        description=description,
        kind="map",
    )


def _around(points: Points, width: float, height: float) -> Frame:
    """A frame around all but the outermost thousandth of the points."""
    ranges = []
    for values in (sorted(p[0] for p in points), sorted(p[1] for p in points)):
        cut = len(values) // 1000
        low, high = (values[cut], values[-1 - cut]) if values else (0.0, 1.0)
        middle = max(high - low, 1e-9)
        ranges.append((low - 0.04 * middle, high + 0.04 * middle))
    return Frame(x=ranges[0], y=ranges[1], left=8, top=8, width=width - 16, height=height - 16)


CORNERS = (
    ("HL", 0.99, 0.02, "end"),
    ("LH", 0.01, 0.94, "start"),
    ("LL", 0.01, 0.02, "start"),
    ("HH", 0.99, 0.94, "end"),
)


def plane_chart(
    points: Points,
    patterns: Mapping[str, int],
    cuts: Mapping[str, Sequence[float]],
    *,
    width: float = 480,
    height: float = 340,
) -> Markup:
    """Failures by PCS and VRO, with the thresholds of the patterns and the count of each."""
    frame = Frame(x=(-0.02, 1.02), y=(-0.02, 1.02), left=48, top=10, width=width - 60, height=height - 56)
    right, bottom = frame.left + frame.width, frame.top + frame.height
    lines = [line(frame.across(v), frame.top, frame.across(v), bottom, "grid") for v in cuts["pcs"]]
    lines += [line(frame.left, frame.down(v), right, frame.down(v), "grid") for v in cuts["vro"]]
    names = [
        text(frame.across(x), frame.down(y), f"{name} {patterns[name]}", "note", anchor)
        for name, x, y, anchor in CORNERS
    ]
    ticks = [text(frame.across(v), bottom + 18, f"{v:g}", "tick", "middle") for v in (0, *cuts["pcs"], 1)]
    ticks += [text(frame.left - 8, frame.down(v) + 4, f"{v:g}", "tick", "end") for v in (0, *cuts["vro"], 1)]
    ticks.append(text(frame.left + frame.width / 2, height - 8, "PCS, confidence →", "tick", "middle"))
    counts = ", ".join(f"{name or 'no pattern'}: {n}" for name, n in patterns.items())
    return drawing(
        joined([box(frame), *lines, dots(points, frame, "failure"), *names, *ticks]),
        width=width,
        height=height,
        title="Failures by PCS and VRO",
        description=f"{len(points)} failures by PCS, from left to right, and VRO, from bottom to top. {counts}.",
        kind="plane",
    )


# Retraining


def _score(value: float) -> str:
    return f"{value:.3g}"


def epoch_chart(done: Round, *, width: float = 460, height: float = 190) -> Markup:
    """The monitor before the first epoch and after each; the epoch that was kept is marked."""
    record = done.retraining
    if record is None or not record.history:
        return EMPTY
    values = [(float(epoch.epoch), epoch.monitor) for epoch in record.history if math.isfinite(epoch.monitor)]
    if record.monitor_before is not None:
        values.insert(0, (0.0, record.monitor_before))
    if not values:
        return EMPTY
    ticks = scale(max(value for _, value in values) or 1.0, 3)
    frame = Frame(x=(0, len(record.history)), y=(0, ticks[-1]), left=48, top=14, width=width - 70, height=height - 52)
    places = [(frame.across(e), frame.down(v)) for e, v in values]
    marks = [circle(x, y, 5.5 if e == record.best_epoch else 3, "point" if e == record.best_epoch else "small-point")
             for (e, _), (x, y) in zip(values, places, strict=True)]  # fmt: skip
    names = [
        text(frame.across(e), height - 18, "before" if e == 0 else str(int(e)), "tick", "middle") for e, _ in values
    ]
    described = ", ".join(f"{'before' if e == 0 else f'epoch {int(e)}'} {_score(v)}" for e, v in values)
    kept = f"epoch {record.best_epoch}" if record.best_epoch else "the weights from before"
    return drawing(
        joined([_grid(frame, ticks, _score), polyline(places, "path"), *marks, *names]),
        width=width,
        height=height,
        title=f"Retraining in round {done.number}",
        description=f"The monitor, the Brier score of labelled field inputs: {described}. Kept: {kept}.",
        kind="epochs",
    )
