"""Opening the desk that fits a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from operant import results
from operant.campaign.records import CampaignInfo
from operant.data.label_folder import TABLE
from operant.data.samples import Samples
from operant.triage.label_desk import LabelDesk
from operant.triage.sampling import SamplePlan
from operant.triage.suite_desk import SuiteDesk

Desk = SuiteDesk | LabelDesk
"""The server side of a page: the cases of a suite, or inputs that wait for labels. Answers are plain JSON."""


def open_desk(
    path: str | Path,
    *,
    plan: SamplePlan | None = None,
    classes: Sequence[str] = (),
    bounds: tuple[float, float] | None = None,
    by: str = "me",
    blind: bool = False,
    examples: Samples | None = None,
) -> Desk:
    """The desk for a folder: a suite, a campaign (its cases), or ``to_label`` of a campaign or an assessment.

    Args:
        plan: the sample of a suite to be judged (default: the plan in its log, or ``SamplePlan()``).
        classes: the name of each label (default: those of the campaign, of the suite or of ``to_label``).
        bounds: smallest and largest value of a pixel.
        by: initial name of the person.
        blind: whether the model's predictions are hidden at first.
        examples: labelled inputs; the first one of each class is shown to people who label.
    """
    place = Path(path)
    if (labels := labels_in(place)) is not None:
        return LabelDesk(labels.resolve(), classes=classes, by=by, examples=examples, bounds=bounds or (0.0, 1.0))
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
    """The folder with a table of labels at or below a path, if any."""
    if (place / "manifest.json").exists():
        return None
    return next((folder for folder in (place, place / "to_label") if (folder / TABLE).is_file()), None)


def suite_in(place: Path) -> Path:
    """The suite at a path, or the cases of the campaign there."""
    for folder in (place, place / "cases"):
        if (folder / "manifest.json").is_file():
            return folder
    if (labels := labels_in(place)) is not None:
        raise ValueError(f"{place} holds inputs to label, not cases; the table of their labels is {labels / TABLE}")
    if not place.is_dir():
        raise ValueError(f"there is no folder {place}; name a suite, a campaign's folder, or a folder to label")
    nothing = f"neither a suite (manifest.json), nor a campaign's cases (written when it ends), nor {TABLE}"
    raise ValueError(f"{place} holds nothing to judge: {nothing}")


def about_of(suite: Path) -> CampaignInfo | None:
    """The description of the campaign that a suite belongs to, if any."""
    for place in suite.resolve().parents[:3]:
        if (place / "info.json").is_file():
            try:
                return results.load(place / "info.json", CampaignInfo)
            except (ValueError, OSError):
                return None
    return None
