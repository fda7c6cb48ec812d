"""What is already known of the field: the description of ``operant field``, or that of a campaign."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from operant import results
from operant.campaign.build import CONDITIONS, ESTIMATED
from operant.campaign.observers import DescriptionOfField
from operant.campaign.records import Round
from operant.execution.round_state import WEIGHTS
from operant.execution.run_folder import finished
from operant.model import Classifier
from operant.networks import load_weights
from operant.profile import FieldDescription, FittedConditions

MIN_KNOWN = 0.5  # share of the field inputs that a description must be about


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredDescription:
    """A description of the field, and the file that it was read from."""

    description: FieldDescription
    file: Path


def stored_description(described: Path, run: Path | None, ids: Tensor, notes: list[str]) -> StoredDescription | None:
    """The description in a folder of ``operant field``, or else the newest one of a campaign; None if neither fits.

    Args:
        described: folder that ``operant field`` wrote.
        run: folder of a campaign, if there is one.
        ids: of the field inputs; a description of mostly others is not used.
        notes: says why a description is not used, or how many inputs it does not know.
    """
    for file in (described / "field.json", *(_campaign_descriptions(run) if run else ())):
        try:
            found = results.load(file, FieldDescription)
        except FileNotFoundError:
            continue
        except ValueError as error:
            notes.append(f"{file} was not used: {error}.")
            continue
        known = int(torch.isin(ids, found.ids).sum())
        if known >= MIN_KNOWN * len(ids):
            if known < len(ids):
                notes.append(
                    f"{file} is about {known} of {len(ids)} field inputs; `operant field` describes all of them."
                )
            return StoredDescription(description=found, file=file)
        notes.append(f"{file} was not used: it is about only {known} of {len(ids)} field inputs.")
    return None


def _campaign_descriptions(run: Path) -> list[Path]:
    """The campaign's newest description, if there is one."""
    files = sorted(run.glob(f"round-*/{DescriptionOfField.name}.json"), key=lambda file: (len(str(file)), file))
    return files[-1:]


def campaign_conditions(run: Path) -> FittedConditions | None:
    """The conditions that a campaign has estimated; None if it has none, or if its field has changed since."""
    file = run / CONDITIONS / f"{ESTIMATED}.json"
    if not finished(file) or any(record.drift is not None for _, record in _rounds(run)):
        return None
    with suppress(ValueError):  # of another version; they are estimated again
        return results.load(file, FittedConditions)
    return None


def retrained_model(run: Path, model: Classifier) -> Classifier | None:
    """The model after a campaign's last retraining that changed it; None if there was none.

    Args:
        run: folder of the campaign.
        model: the initial model.
    """
    changed = [place for place, record in _rounds(run) if record.changed]
    if not changed:
        return None
    return model.rewrap(load_weights(model.unwrap(), changed[-1] / WEIGHTS))


def _rounds(run: Path) -> Iterator[tuple[Path, Round]]:
    """The folder and the record of each finished round, in their order."""
    files = [file for file in run.glob("round-*/round.json") if finished(file)]
    for file in sorted(files, key=lambda file: (len(str(file)), file)):
        yield file.parent, results.load(file, Round)
