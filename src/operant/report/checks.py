"""The report of a test session: the results of all `operant.testing.assert_reliable` calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from operant import results
from operant.formatting import at_most, percent
from operant.reliability_checks import Check, InvalidCheck
from operant.report.junit import clean
from operant.report.markdown import plain

SIGN = {"met": "✅", "not met": "❌", "not shown": "❔"}


@dataclass(frozen=True, kw_only=True)
class Checks:
    """All checks of a session, and those that could not be run; `operant.results.load` reads ``report.json``."""

    checks: tuple[Check, ...]
    invalid: tuple[InvalidCheck, ...] = ()

    @property
    def status(self) -> str:
        """``met`` if all are, ``not met`` if one is not; otherwise, or without any check, ``not shown``."""
        found = {check.status for check in self.checks} | {"not shown" for _ in self.invalid}
        return "met" if found == {"met"} else "not met" if "not met" in found else "not shown"

    @property
    def verdict(self) -> str:
        asked = len(self.checks) + len(self.invalid)
        if not asked:
            return "No test checked the reliability of a model."
        not_shown = asked - sum(check.met for check in self.checks)
        if not not_shown:
            return f"All requirements on models are shown to hold: {asked} of {asked}."
        invalid = f"; {len(self.invalid)} could not be checked" if self.invalid else ""
        return f"{not_shown} of {asked} requirements on models are not shown to hold{invalid}."


def write_checks(found: Sequence[Check | InvalidCheck], folder: str | Path) -> Path:
    """Write ``report.html``, ``report.json``, ``report.xml`` (JUnit) and ``report.md``; returns the page.

    The folder is created if needed, and existing reports are replaced.
    """
    session = Checks(
        checks=tuple(check for check in found if isinstance(check, Check)),
        invalid=tuple(check for check in found if isinstance(check, InvalidCheck)),
    )
    page = Path(folder) / "report.html"
    results.save(session, page.with_suffix(".json"))
    results.write_atomically(page.with_suffix(".xml"), _junit(session))
    results.write_atomically(page.with_suffix(".md"), _markdown(session).encode())
    results.write_atomically(page, _page(session).encode())
    return page


def _page(session: Checks) -> str:
    files = resources.files("operant.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"at_most": at_most, "percent": percent}
    style = Markup((files / "page.css").read_text(encoding="utf-8"))
    template = environment.from_string((files / "checks.html").read_text(encoding="utf-8"))
    return template.render(session=session, style=style)


def _markdown(session: Checks) -> str:
    head = f"## {SIGN[session.status]} {session.verdict}"
    rows = [
        f"| {plain(c.test)} | {SIGN[c.status]} {c.status} | {c.failures} of {c.labels} | {percent(c.estimate)} | "
        f"**{at_most(c.upper)}** | {percent(c.required)} |"
        for c in session.checks
    ]
    rows += [f"| {plain(r.test)} | {SIGN['not shown']} could not be checked | | | | |" for r in session.invalid]
    if not rows:
        return f"{head}\n"
    missing = [f"- {plain(f'{c.test}: {c.advice}')}" for c in session.checks if not c.met]
    missing += [f"- {plain(f'{r.test}: {r.reason}')}" for r in session.invalid]
    table = ["| test | | wrong | estimate | bound | required |", "|---|---|---:|---:|---:|---:|", *rows]
    return "\n".join([head, "", *table, *([""] if missing else []), *missing]) + "\n"


def _junit(session: Checks) -> bytes:
    """One test case per check; ``not shown`` fails like ``not met``, as it does in the session."""
    outcomes = [(c.test, "system-out" if c.met else "failure", str(c)) for c in session.checks]
    outcomes += [(r.test, "error", r.reason) for r in session.invalid]
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(root, "testsuite", name="operant checks", tests=str(len(outcomes)), skipped="0")
    for name, outcome in (("failures", "failure"), ("errors", "error")):
        suite.set(name, str(sum(kind == outcome for _, kind, _ in outcomes)))
    for test, outcome, text in outcomes:
        case = ElementTree.SubElement(suite, "testcase", classname="operant.checks", name=clean(test))
        element = ElementTree.SubElement(case, outcome)
        element.text = clean(text)
        if outcome != "system-out":
            element.set("message", clean(text))
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"
