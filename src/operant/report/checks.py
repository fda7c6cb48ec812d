"""The report of a test session: what every `operant.testing.assert_reliable` found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from operant import results
from operant.checks import Check, at_most
from operant.report.junit import NOT_IN_XML
from operant.report.markdown import plain

SIGN = {"met": "✅", "not met": "❌", "not shown": "❔"}


@dataclass(frozen=True, kw_only=True)
class Checks:
    """All checks of a session; `operant.results.load` reads them from ``report.json``."""

    checks: tuple[Check, ...]

    @property
    def status(self) -> str:
        """``met`` if all are, ``not met`` if one is not; otherwise ``not shown``, also where nothing was asked."""
        found = {check.status for check in self.checks}
        return "met" if found == {"met"} else "not met" if "not met" in found else "not shown"

    @property
    def verdict(self) -> str:
        if not self.checks:
            return "No test asked how reliable a model is."
        open_ones = sum(not check.met for check in self.checks)
        if not open_ones:
            return f"All requirements on models in use are shown to hold: {len(self.checks)} of {len(self.checks)}."
        return f"{open_ones} of {len(self.checks)} requirements on models in use are not shown to hold."


def write_checks(checks: Sequence[Check], folder: str | Path) -> Path:
    """Write ``report.html``, ``report.json``, ``report.xml`` (JUnit) and ``report.md``; returns the page.

    Args:
        checks: in the order in which they are to be told.
        folder: made if it is not there. Reports that are there are replaced.
    """
    all_of_them = Checks(checks=tuple(checks))
    page = Path(folder) / "report.html"
    results.save(all_of_them, page.with_suffix(".json"))
    results.write_atomically(page.with_suffix(".xml"), _junit(all_of_them))
    results.write_atomically(page.with_suffix(".md"), _markdown(all_of_them).encode())
    results.write_atomically(page, _page(all_of_them).encode())
    return page


def _page(told: Checks) -> str:
    files = resources.files("operant.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"at_most": at_most, "percent": _percent}
    style = Markup((files / "page.css").read_text(encoding="utf-8"))
    return environment.from_string((files / "checks.html").read_text(encoding="utf-8")).render(told=told, style=style)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _markdown(told: Checks) -> str:
    head = f"## {SIGN[told.status]} {told.verdict}"
    if not told.checks:
        return f"{head}\n"
    rows = [
        f"| {plain(c.test)} | {SIGN[c.status]} {c.status} | {c.failures} of {c.labels} | {_percent(c.estimate)} | "
        f"**{at_most(c.upper)}** | {_percent(c.required)} |"
        for c in told.checks
    ]
    missing = [f"- {plain(f'{c.test}: {c.advice}')}" for c in told.checks if not c.met]
    table = ["| test | | wrong | estimate | bound | required |", "|---|---|---:|---:|---:|---:|", *rows]
    return "\n".join([head, "", *table, *([""] if missing else []), *missing]) + "\n"


def _junit(told: Checks) -> bytes:
    """One test case a check; what is not shown fails like what is not met, as it does in the session."""
    failed = sum(not check.met for check in told.checks)
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(root, "testsuite", name="operant checks", errors="0", skipped="0")
    suite.set("tests", str(len(told.checks)))
    suite.set("failures", str(failed))
    for check in told.checks:
        words = NOT_IN_XML.sub("\ufffd", str(check))
        name = NOT_IN_XML.sub("\ufffd", check.test)
        case = ElementTree.SubElement(suite, "testcase", classname="operant.checks", name=name)
        if check.met:
            ElementTree.SubElement(case, "system-out").text = words
        else:
            ElementTree.SubElement(case, "failure", message=words).text = words
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"
