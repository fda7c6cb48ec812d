"""All files of a report."""

from collections.abc import Sequence
from pathlib import Path

from operant.activity import activity
from operant.campaign.observers import OBSERVERS, Observer
from operant.campaign.observers.risk import RISKS
from operant.report.failures import LIMIT
from operant.report.gathering import gather, newest_risks
from operant.report.junit import junit_xml
from operant.report.markdown import markdown
from operant.report.page import render_page
from operant.report.risks import risks_csv
from operant.results import save, write_atomically


@activity("writing the report")
def write_report(
    folder: str | Path,
    out: str | Path | None = None,
    *,
    limit: int = LIMIT,
    valid: bool = False,
    observers: Sequence[Observer] = OBSERVERS,
) -> Path:
    """Write ``report.html``, ``report.json``, ``report.xml`` (JUnit) and ``report.md`` of a campaign; returns the page.

    If the campaign has a risk map, ``risks.csv`` lists all rated field inputs: name or id, predicted class, and risk,
    riskiest first.

    The campaign may be under way: the report shows what is finished. Files are only read, nothing is computed, and a
    running campaign is not disturbed.

    Args:
        folder: that `Campaign` or ``operant run`` wrote.
        out: folder to write to, created if needed (default: the campaign's own); existing reports are replaced.
        limit: maximum number of failures shown. The page has space for about 6 MB of images; it says how many failures
            are shown.
        valid: show only failures that people called valid with ``operant triage``; an error if nobody has judged any.
        observers: whose sections are included, also your own.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    evidence = gather(folder, limit=limit, valid=valid, observers=observers)
    place = Path(folder if out is None else out)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ValueError(f"a report is written to a folder, but {place} is a file; choose another") from None
    page = place / "report.html"
    if evidence.lists_risks and (listing := newest_risks(folder)) is not None:
        write_atomically(place / RISKS, risks_csv(listing, evidence.info.classes if evidence.info else ()).encode())
    save(evidence, page.with_suffix(".json"))
    write_atomically(page.with_suffix(".xml"), junit_xml(evidence))
    write_atomically(page.with_suffix(".md"), markdown(evidence).encode())
    write_atomically(page, render_page(evidence, observers).encode())
    return page
