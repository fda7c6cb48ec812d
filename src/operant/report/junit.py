"""The report for a CI server: JUnit XML."""

import re
from xml.etree import ElementTree

from operant.campaign.records import Round
from operant.formatting import accuracy, points
from operant.report.evidence import Evidence

NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(evidence: Evidence) -> bytes:
    """One test case for the requirement, one for clean accuracy, one for drift, and one per round."""
    suite = ElementTree.Element("testsuite", name=clean(f"operant {evidence.name}"))
    _requirement(_case(suite, "requirement"), evidence)
    _accuracy(_case(suite, "clean accuracy"), evidence)
    _drift(_case(suite, "drift"), evidence)
    for done in evidence.rounds:
        _round(_case(suite, f"round {done.number}"), done)
    if evidence.under_way:
        _add_outcome(_case(suite, "round under way"), "skipped", evidence.under_way)
    counts = {
        "tests": "testcase",
        "failures": "testcase/failure",
        "skipped": "testcase/skipped",
        "errors": "testcase/error",
    }
    for name, path in counts.items():
        suite.set(name, str(len(suite.findall(path))))
    suite.set("time", f"{evidence.seconds.get('total', 0.0):.1f}")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _case(suite: ElementTree.Element, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname="operant.campaign", name=name)


def _add_outcome(case: ElementTree.Element, kind: str, text: str) -> None:
    """Add the outcome of a test case: ``failure`` or ``skipped`` with a message, or ``system-out``."""
    outcome = ElementTree.SubElement(case, kind)
    if kind != "system-out":
        outcome.set("message", clean(text.splitlines()[0]))
    outcome.text = clean(text)


def clean(text: str) -> str:
    """Text without characters that XML does not allow."""
    return NOT_IN_XML.sub("\ufffd", text)


def _requirement(case: ElementTree.Element, evidence: Evidence) -> None:
    kind = "system-out" if evidence.met else "skipped" if evidence.latest is None else "failure"
    name, weights = evidence.judged_model
    judged = f"The verdict is about the {name}{f', hash {weights}' if weights else ''}."
    lines = (evidence.verdict, evidence.why, evidence.advice, judged if evidence.rounds else "")
    _add_outcome(case, kind, "\n".join(filter(None, lines)))


def _accuracy(case: ElementTree.Element, evidence: Evidence) -> None:
    lost = evidence.clean_before - evidence.clean_after
    if evidence.info is None or not evidence.rounds:
        _add_outcome(case, "skipped", "No round is finished.")
        return
    max_drop = evidence.info.requirement.max_drop
    text = (
        f"Clean accuracy was {accuracy(evidence.clean_before)} and is {accuracy(evidence.clean_after)}; "
        f"{points(max_drop)} may be lost. The same samples decide which epoch of a retraining is kept."
    )
    _add_outcome(case, "failure" if lost > max_drop + 1e-9 else "system-out", text)


def _drift(case: ElementTree.Element, evidence: Evidence) -> None:
    """A failure if the field changed and the model was not assessed in it."""
    changed = [(done.number, done.drift) for done in evidence.rounds if done.drift]
    if changed:
        text = "\n".join(f"Round {number}: {drift}" for number, drift in changed)
        _add_outcome(case, "failure" if evidence.latest is None else "system-out", text)
    elif evidence.compared:
        _add_outcome(case, "system-out", f"No change was found in rounds {', '.join(map(str, evidence.compared))}.")
    else:
        _add_outcome(case, "skipped", "Not enough new field inputs have arrived to compare them with earlier ones.")


def _round(case: ElementTree.Element, done: Round) -> None:
    """Skipped if the round did not assess the model."""
    a = done.assessment
    new = f"\nUnchanged: {a.bought} of the {a.labels} labels are new." if a and done.idle else ""
    _add_outcome(case, "skipped" if a is None else "system-out", f"{done}{new}")
