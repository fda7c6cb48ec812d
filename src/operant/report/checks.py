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
from operant.checks import Check, InvalidCheck
from operant.formatting import at_most, percent
from operant.report.junit import clean
from operant.report.markdown import plain

SIGN = {"met": "✅", "not met": "❌", "not shown": "❔"}


@dataclass(frozen=True, kw_only=True)
class Checks:
    """All checks of a session; `operant.results.load` reads them from ``report.json``.

    Attributes:
        checks: those that were answered.
        refused: those that could not be.
    """

    checks: tuple[Check, ...]
    refused: tuple[InvalidCheck, ...] = ()

    @property
    def status(self) -> str:
        """``met`` if all are, ``not met`` if one is not; otherwise ``not shown``, also where nothing was asked."""
        found = {check.status for check in self.checks} | {"not shown" for _ in self.refused}
        return "met" if found == {"met"} else "not met" if "not met" in found else "not shown"

    @property
    def verdict(self) -> str:
        asked = len(self.checks) + len(self.refused)
        if not asked:
            return "No test asked how reliable a model is."
        open_ones = asked - sum(check.met for check in self.checks)
        if not open_ones:
            return f"All requirements on models in use are shown to hold: {asked} of {asked}."
        refused = f"; {len(self.refused)} could not be checked" if self.refused else ""
        return f"{open_ones} of {asked} requirements on models in use are not shown to hold{refused}."


def write_checks(told: Sequence[Check | InvalidCheck], folder: str | Path) -> Path:
    """Write ``report.html``, ``report.json``, ``report.xml`` (JUnit) and ``report.md``; returns the page.

    Args:
        told: what was found, in the order in which it is to be told.
        folder: made if it is not there. Reports that are there are replaced.
    """
    all_of_them = Checks(
        checks=tuple(check for check in told if isinstance(check, Check)),
        refused=tuple(check for check in told if isinstance(check, InvalidCheck)),
    )
    page = Path(folder) / "report.html"
    results.save(all_of_them, page.with_suffix(".json"))
    results.write_atomically(page.with_suffix(".xml"), _junit(all_of_them))
    results.write_atomically(page.with_suffix(".md"), _markdown(all_of_them).encode())
    results.write_atomically(page, _page(all_of_them).encode())
    return page


def _page(told: Checks) -> str:
    files = resources.files("operant.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"at_most": at_most, "percent": percent}
    style = Markup((files / "page.css").read_text(encoding="utf-8"))
    return environment.from_string((files / "checks.html").read_text(encoding="utf-8")).render(told=told, style=style)


def _markdown(told: Checks) -> str:
    head = f"## {SIGN[told.status]} {told.verdict}"
    rows = [
        f"| {plain(c.test)} | {SIGN[c.status]} {c.status} | {c.failures} of {c.labels} | {percent(c.estimate)} | "
        f"**{at_most(c.upper)}** | {percent(c.required)} |"
        for c in told.checks
    ]
    rows += [f"| {plain(r.test)} | {SIGN['not shown']} could not be checked | | | | |" for r in told.refused]
    if not rows:
        return f"{head}\n"
    missing = [f"- {plain(f'{c.test}: {c.advice}')}" for c in told.checks if not c.met]
    missing += [f"- {plain(f'{r.test}: {r.reason}')}" for r in told.refused]
    table = ["| test | | wrong | estimate | bound | required |", "|---|---|---:|---:|---:|---:|", *rows]
    return "\n".join([head, "", *table, *([""] if missing else []), *missing]) + "\n"


def _junit(told: Checks) -> bytes:
    """One test case a check; what is not shown fails like what is not met, as it does in the session."""
    outcomes = [(c.test, "system-out" if c.met else "failure", str(c)) for c in told.checks]
    outcomes += [(r.test, "error", r.reason) for r in told.refused]
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(root, "testsuite", name="operant checks", tests=str(len(outcomes)), skipped="0")
    for name, outcome in (("failures", "failure"), ("errors", "error")):
        suite.set(name, str(sum(came == outcome for _, came, _ in outcomes)))
    for test, outcome, words in outcomes:
        case = ElementTree.SubElement(suite, "testcase", classname="operant.checks", name=clean(test))
        said = ElementTree.SubElement(case, outcome)
        said.text = clean(words)
        if outcome != "system-out":
            said.set("message", clean(words))
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"
