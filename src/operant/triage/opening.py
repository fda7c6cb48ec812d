"""What a folder is, and the desk that fits it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from operant import results
from operant.campaign.records import CampaignInfo
from operant.data.labels import TABLE
from operant.triage.label_desk import LabelDesk
from operant.triage.sampling import Plan
from operant.triage.suite_desk import SuiteDesk


def open_desk(
    path: str | Path,
    *,
    plan: Plan | None = None,
    classes: Sequence[str] = (),
    bounds: tuple[float, float] | None = None,
    by: str = "me",
    blind: bool = False,
) -> SuiteDesk | LabelDesk:
    """The desk for a folder: a suite, a campaign (its cases), or ``to_label`` of a campaign or an assessment.

    Args:
        path: the folder.
        plan: the sample of a suite to be judged; the one begun with, or the usual one, unless given.
        classes: the name of each label; those that a campaign or ``to_label`` tells unless given.
        bounds: smallest and largest value of a pixel.
        by: who judges, unless the page says otherwise.
        blind: whether the page begins without the model's answers.
    """
    place = Path(path)
    if (labels := labels_in(place)) is not None:
        return LabelDesk(labels.resolve(), classes=classes, by=by)
    suite = suite_in(place).resolve()
    about = about_of(suite)
    return SuiteDesk(
        suite,
        plan=plan,
        classes=tuple(classes) or (about.classes if about else ()),
        bounds=bounds or (about.bounds if about else None),
        by=by,
        blind=blind,
    )


def labels_in(place: Path) -> Path | None:
    """The folder with a table of labels that a path means, if it does."""
    if (place / "manifest.json").exists():
        return None
    return next((folder for folder in (place, place / "to_label") if (folder / TABLE).is_file()), None)


def suite_in(place: Path) -> Path:
    """The suite that a path means: itself, or the cases of a campaign."""
    for folder in (place, place / "cases"):
        if (folder / "manifest.json").is_file():
            return folder
    if (labels := labels_in(place)) is not None:
        raise ValueError(f"{place} holds inputs to label and no cases; the table of their labels is {labels / TABLE}")
    if not place.is_dir():
        raise ValueError(f"there is no folder {place}; name a suite, a campaign's folder, or a folder to label")
    raise ValueError(
        f"{place} holds nothing to judge: neither a suite (manifest.json), nor a campaign's cases, nor {TABLE}; if a "
        "campaign is under way, its cases are there when it ends"
    )


def about_of(suite: Path) -> CampaignInfo | None:
    """What the campaign that a suite lies in is about, if it lies in one."""
    for place in suite.resolve().parents[:3]:
        if (place / "info.json").is_file():
            try:
                return results.load(place / "info.json", CampaignInfo)
            except (ValueError, OSError):
                return None
    return None
