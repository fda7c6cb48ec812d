"""All files of a report."""

from __future__ import annotations

from pathlib import Path

from operant.report.evidence import save_evidence
from operant.report.failures import LIMIT
from operant.report.gathering import gather
from operant.report.junit import junit_xml
from operant.report.markdown import markdown
from operant.report.page import render_page
from operant.results import write_atomically


def write_report(folder: str | Path, out: str | Path | None = None, *, limit: int = LIMIT, valid: bool = False) -> Path:
    """Write ``report.html``, ``report.json``, ``report.xml`` (JUnit) and ``report.md`` of a campaign.

    The campaign may be under way. Only what is finished is told, and only files are read: nothing is worked out anew,
    and a campaign that is running does not notice.

    Args:
        folder: that `Campaign` or ``operant run`` wrote.
        out: folder to write to, made if it is not there; the campaign's own unless given. Reports that are there are
            replaced.
        limit: most failures shown. The page has room for about 6 MB of pictures; what does not fit is left out, and
            the page says how many are shown.
        valid: show only failures that people called valid with ``operant triage``; refused while nobody has judged
            any.

    Returns:
        The page.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    evidence = gather(folder, limit=limit, valid=valid)
    place = Path(folder if out is None else out)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ValueError(f"a report is written to a folder, and {place} is a file; choose another") from None
    page = place / "report.html"
    save_evidence(evidence, page.with_suffix(".json"))
    write_atomically(page.with_suffix(".xml"), junit_xml(evidence))
    write_atomically(page.with_suffix(".md"), markdown(evidence).encode())
    write_atomically(page, render_page(evidence).encode())
    return page
