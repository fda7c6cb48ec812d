"""The report for a CI server: JUnit XML."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from operant.campaign.result import Round
from operant.formatting import percent
from operant.report.evidence import Evidence, stayed

NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(evidence: Evidence) -> bytes:
    """One test case for the requirement, one for clean accuracy, one for drift, and one a round."""
    suite = ElementTree.Element("testsuite", name=clean(f"operant {evidence.name}"))
    _requirement(_case(suite, "requirement"), evidence)
    _accuracy(_case(suite, "clean accuracy"), evidence)
    _drift(_case(suite, "drift"), evidence)
    for done in evidence.rounds:
        _round(_case(suite, f"round {done.number}"), done)
    if evidence.under_way:
        _say(_case(suite, "round under way"), "skipped", evidence.under_way)
    counts = {
        "tests": "testcase",
        "failures": "testcase/failure",
        "skipped": "testcase/skipped",
        "errors": "testcase/error",
    }
    for name, path in counts.items():
        suite.set(name, str(len(suite.findall(path))))
    suite.set("time", f"{evidence.time:.1f}")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _case(suite: ElementTree.Element, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname="operant.campaign", name=name)


def _say(case: ElementTree.Element, kind: str, words: str) -> None:
    """What came of a case: ``failure`` or ``skipped`` with a message, or ``system-out``."""
    told = ElementTree.SubElement(case, kind)
    if kind != "system-out":
        told.set("message", clean(words.splitlines()[0]))
    told.text = clean(words)


def clean(words: str) -> str:
    return NOT_IN_XML.sub("\ufffd", words)


def _requirement(case: ElementTree.Element, evidence: Evidence) -> None:
    kind = "system-out" if evidence.met else "skipped" if evidence.latest is None else "failure"
    name, weights = evidence.judged
    judged = f"It is about the {name}{f', hash {weights}' if weights else ''}."
    told = (evidence.verdict, evidence.why, evidence.advice, judged if evidence.rounds else "")
    _say(case, kind, "\n".join(filter(None, told)))


def _accuracy(case: ElementTree.Element, evidence: Evidence) -> None:
    lost = evidence.clean_before - evidence.clean_after
    if not evidence.rounds:
        _say(case, "skipped", "No round is finished.")
        return
    told = (
        f"Clean accuracy was {percent(evidence.clean_before, 4)} and is {percent(evidence.clean_after, 4)}; "
        f"{percent(evidence.max_drop, 4)} may be lost. The same samples decide which epoch of a retraining is kept."
    )
    _say(case, "failure" if lost > evidence.max_drop + 1e-9 else "system-out", told)


def _drift(case: ElementTree.Element, evidence: Evidence) -> None:
    """A failure where the field changed and the model was not assessed in it."""
    changed = [done for done in evidence.rounds if done.drifted]
    if not changed:
        _say(case, "system-out" if evidence.compared else "skipped", _no_drift(evidence))
        return
    told = "\n".join(f"Round {done.number}: {done.drifted}" for done in changed)
    _say(case, "failure" if evidence.latest is None else "system-out", told)


def _no_drift(evidence: Evidence) -> str:
    if not evidence.compared:
        return "No new field inputs have arrived that could be compared with those before."
    return f"No change was noticed in rounds {', '.join(map(str, evidence.compared))}."


def _round(case: ElementTree.Element, done: Round) -> None:
    """Skipped where nothing new is known of the model."""
    a = done.assessment
    new = f"\nUnchanged: {a.bought} of the {a.labels} labels are new." if a and stayed(done) else ""
    _say(case, "skipped" if a is None else "system-out", f"{done}{new}")
