"""A campaign's operational failures as labelled data for other training code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from operant import results
from operant.campaign.records import CampaignInfo
from operant.model import Finding
from operant.report.gathering import operational_failures
from operant.suite import Suite
from operant.suite.drawing import is_picture
from operant.triage.export import class_folders, numbered_folders, picture_names, write_pictures

FOLDER, ARRAYS = "failures", "failures.npz"


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportedFailures:
    """Operational failures of a campaign; made by `read_failures`.

    Attributes:
        suite: the failures of all rounds, each once, with the column ``round``.
        classes: the name of each label.
        bounds: smallest and largest value of an input.
        findings: about damaged files.
    """

    suite: Suite
    classes: tuple[str, ...]
    bounds: tuple[float, float]
    findings: tuple[Finding, ...] = ()

    @property
    def pictures(self) -> bool:
        """Whether they can be drawn."""
        return is_picture(tuple(self.suite.rows.shape))

    @property
    def names(self) -> list[str]:
        """What to call each failure: its file below ``failures``, or a number if it is not a picture."""
        if self.pictures:
            return picture_names(self.suite, _folders(self.suite.label.tolist(), self.classes))
        return [f"case-{row:06d}" for row in range(len(self.suite))]


def read_failures(run: Path) -> ExportedFailures | None:
    """The operational failures in a campaign's folder; None if it has found none yet."""
    parts, damaged = operational_failures(run)
    found = [part.suite.with_columns(round=torch.full((len(part.suite),), float(part.round))) for part in parts]
    suites = [suite for suite in found if len(suite)]
    if not suites:
        return None
    info = results.load(run / "info.json", CampaignInfo)
    return ExportedFailures(
        suite=Suite.concat(suites),
        classes=info.classes,
        bounds=info.bounds,
        findings=tuple(finding for _, finding in damaged),
    )


def write_failures(failures: ExportedFailures, place: Path) -> None:
    """Write ``failures.npz`` and, if inputs are images, one picture per failure in the folder of its class."""
    (place / ARRAYS).write_bytes(arrays_of(failures))
    if failures.pictures:
        write_pictures(failures.suite, dict(enumerate(failures.names)), place / FOLDER, bounds=failures.bounds)


def arrays_of(failures: ExportedFailures) -> bytes:
    """The npz file: inputs ``x``, true labels ``y``, names, predictions, class names, and columns of finite numbers."""
    suite = failures.suite
    columns = {name: values for name, values in suite.columns.items() if name not in ("file", "allow_pickle")}
    arrays: dict[str, Any] = {
        name: values.numpy() for name, values in columns.items() if isinstance(values, Tensor) and _is_finite(values)
    }
    arrays |= {"x": suite.x.numpy(), "y": suite.label.numpy(), "prediction": suite.prediction.numpy()}
    arrays |= {"names": np.array(failures.names, dtype=np.str_), "classes": np.array(failures.classes, dtype=np.str_)}
    content = BytesIO()
    np.savez_compressed(content, **arrays)
    return content.getvalue()


def _is_finite(values: Tensor) -> bool:
    """Whether a column has no NaN, which `operant.read_samples` and other readers refuse."""
    return bool(values.isfinite().all())


def _folders(labels: Sequence[int], classes: Sequence[str]) -> dict[int, str]:
    """The folder of each label, named like its class if all these names differ and can be names of folders."""
    folders = class_folders(labels, classes)
    distinct = len({name.casefold() for name in folders.values()}) == len(folders)
    return folders if distinct and all(folders.values()) else numbered_folders(labels, classes)
