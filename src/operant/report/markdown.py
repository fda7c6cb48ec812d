"""The report for a pull request: Markdown."""

import re
from collections.abc import Sequence

from operant.campaign.observers import Section
from operant.campaign.progress import describe_times
from operant.campaign.records import Round
from operant.formatting import accuracy, at_most, percent
from operant.model import Finding
from operant.report.evidence import HASHED, Evidence, describe_labels

SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~@<>-])")
SIGN = {"met": "✅", "not met": "❌", "not known": "❔"}


def markdown(evidence: Evidence) -> str:
    """The verdict, the rounds, the summaries of all sections, the findings, and the settings folded away."""
    repeated = f" ({evidence.different_cases} different)" if evidence.different_cases < evidence.cases else ""
    cases = f"{evidence.cases} cases chosen{repeated}, {evidence.learned} learned from"
    counted = " so far; in finished rounds: " if evidence.under_way else ", "
    name, weights = evidence.judged_model
    parts = [
        f"## {SIGN[evidence.status]} {plain(evidence.name)}: {evidence.status}",
        plain(f"{evidence.verdict} {evidence.why} {evidence.advice}"),
        _rounds(evidence),
        f"{evidence.labels} labels{counted}{evidence.seeds} seeds, {cases}.",
        f"Time of all sessions: {describe_times(evidence.seconds)}." if evidence.seconds else "",
        f"The verdict is about the {name}{f', hash `{weights}`' if weights else ''}." if evidence.rounds else "",
        f"Moves: {plain('; '.join(str(test) for test in evidence.tests))}." if evidence.tests else "",
        *(part for section in evidence.sections for part in _section(section)),
        plain(str(evidence.triage)) if evidence.triage else "",
        "\n".join(f"Round {done.number}: {plain(done.drift.summary)}" for done in evidence.rounds if done.drift),
        "\n".join(_finding(finding) for _, finding in evidence.findings),
        "\n".join(_note(note) for note in (evidence.info.notes if evidence.info else ())),
        _settings(evidence),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def plain(text: str) -> str:
    """Text that Markdown shows as it is, in one line.

    >>> plain("a|b <i>*")
    'a\\\\|b \\\\<i\\\\>\\\\*'
    """
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _section(section: Section) -> list[str]:
    """The summary of a section, its table, its findings, and its details folded away."""
    details = "\n".join(f"- {plain(line)}" for line in section.lines)
    folded = f"<details><summary>{plain(section.title)}: details</summary>\n\n{details}\n\n</details>"
    findings = "\n".join(f"{_finding(f)}. {plain(f.advice)}." for f in section.findings)
    return [plain(section.summary), plain(section.caption), _table(section.table), findings, folded * bool(details)]


def _finding(finding: Finding) -> str:
    """A list item."""
    return f"- **{plain(finding.name)}** ({finding.severity}): {plain(finding.problem)}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """A table with its head first; empty without rows."""
    lines = [f"| {' | '.join(plain(cell) for cell in row)} |" for row in rows]
    return "\n".join([*lines[:1], "|---" + "|---:" * (len(rows[0]) - 1) + "|", *lines[1:]]) if rows else ""


def _note(note: str) -> str:
    """A list item; further lines of the note are items below it."""
    first, *others = note.splitlines()
    return "\n".join([f"- {plain(first)}", *(f"  - {plain(line)}" for line in others)])


def _rounds(evidence: Evidence) -> str:
    if not evidence.rounds:
        return plain(evidence.under_way)
    head = "| round | operational failures | chosen | clean | wrong | estimate | bound |"
    rows = [_row(done) for done in evidence.rounds]
    return "\n".join([head, "|---:" * 7 + "|", *rows, *([f"\n{plain(evidence.under_way)}"] * bool(evidence.under_way))])


def _row(done: Round) -> str:
    a = done.assessment
    why = "no new labels" if done.idle else "not assessed"
    assessed = [describe_labels(a), percent(a.pmi), f"**{at_most(a.upper)}**"] if a else [why, "", ""]
    number = f"{done.number}{' (field changed)' if done.drift else ' (unchanged)' if done.idle else ''}"
    found = [str(done.operational), str(done.chosen)] if done.attempted else ["", ""]
    return f"| {' | '.join([number, *found, accuracy(done.clean), *assessed])} |"


def _settings(evidence: Evidence) -> str:
    settings = [(name, value) for name, value in evidence.settings.items() if name not in HASHED]
    rows = [f"| {plain(name)} | {plain(value)} |" for name, value in [*settings, *evidence.hashes]]
    table = "\n".join(["| setting or hash | |", "|---|---|", *rows])
    return f"<details><summary>Settings and hashes</summary>\n\n{table}\n\n</details>"
