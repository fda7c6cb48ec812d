"""The page of a report: one HTML file that contains everything and loads nothing."""

import base64
import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from operant.campaign.observers import OBSERVERS, Observer
from operant.campaign.progress import PARTS, SHOWN_SECONDS
from operant.campaign.records import Decision, describe_shares
from operant.formatting import accuracy, at_most, duration, percent
from operant.report import charts
from operant.report.evidence import HASHED, Evidence, describe_labels
from operant.suite.drawing import MAX_SMALL, is_picture

PAGE_SIZE = 48  # failures on the page at first, and per click on "more"; page.js uses it too
CHART_FUNCTIONS = {
    name: getattr(charts, name)
    for name in (
        *("count_bars", "failure_bars", "interval_bars", "severity_bars", "share_bars"),
        *("map_chart", "plane_chart"),
    )
}  # for the templates of sections


def render_page(evidence: Evidence, observers: Sequence[Observer] = OBSERVERS) -> str:
    """The whole page as text; the templates of ``observers`` render the sections."""
    script, style = page_file("page.js"), page_file("page.css")
    environment = page_environment()
    return environment.from_string(page_file("page.html")).render(
        e=evidence,
        style=Markup(style),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        charts=_charts(evidence),
        sections=_sections(evidence, environment, observers),
        decisions=[(r.number, [_decision(d, evidence) for d in r.decisions]) for r in evidence.rounds if r.decisions],
        pictured=is_picture(evidence.gallery.shape),
        hashed=HASHED,
        page_size=PAGE_SIZE,
        place=shlex.quote(evidence.folder or evidence.name),
        parts={name: text for name, text in PARTS.items() if evidence.seconds.get(name, 0.0) >= SHOWN_SECONDS},
        small=max(evidence.gallery.shape, default=0) <= MAX_SMALL,
        **_choices(evidence),
    )


def page_environment() -> Environment:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_unbreakable
    )
    environment.filters |= {
        "percent": percent,
        "accuracy": accuracy,
        "at_most": at_most,
        "duration": duration,
        "number": number,
    }
    environment.filters |= {"describe_labels": describe_labels}
    environment.globals |= CHART_FUNCTIONS
    return environment


def _sections(evidence: Evidence, environment: Environment, observers: Sequence[Observer]) -> list[dict[str, Any]]:
    """Name, title, place and HTML of each section."""
    templates = {observer.name: environment.from_string(observer.template) for observer in observers}
    return [
        {
            "name": s.name,
            "title": s.title,
            "after": s.after,
            "html": Markup(templates[s.name].render(s.values | {"summary": s.summary})),
        }
        for s in evidence.sections
        if s.name in templates
    ]


def page_file(name: str) -> str:
    return (resources.files("operant.report") / name).read_text(encoding="utf-8")


def _unbreakable(value: object) -> object:
    """No line break between a number and its per cent sign."""
    return value.replace(" %", "\u00a0%") if type(value) is str else value


def number(value: float) -> str:
    """A number with three digits.

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


def _charts(evidence: Evidence) -> dict[str, Any]:
    priors = [
        charts.Bar(
            name=evidence.class_name(c),
            value=p.share,
            text=percent(p.share),
            lower=p.lower,
            upper=p.upper,
            mark=p.train,
        )
        for c, p in enumerate(evidence.priors)
    ]
    return {
        "pmi": {
            "wide": charts.pmi_chart(evidence, width=880, height=340),
            "narrow": charts.pmi_chart(evidence, width=400, height=320),
        },
        "priors": charts.bar_chart(priors, "How often each class occurs in the field", kind="priors"),
        "epochs": {done.number: charts.epoch_chart(done) for done in evidence.rounds},
    }


def _decision(decision: Decision, evidence: Evidence) -> dict[str, str]:
    """A decision with the names of classes and cells."""
    if decision.what == "class":
        decision = replace(decision, names=tuple(evidence.class_name(c) for c in range(len(decision.names))))
    before, after = (describe_shares(shares, decision.shown_names) for shares in (decision.before, decision.after))
    return {"title": decision.title, "before": before, "after": after, "why": decision.why}
