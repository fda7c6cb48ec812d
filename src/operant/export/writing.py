"""Writes an export: all files appear together, and only an earlier export is replaced."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from operant import results
from operant.activity import activity
from operant.export import field_transform
from operant.export.class_weights import weights_csv
from operant.export.contents import RECIPE, TO_LABEL, TRANSFORM, WEIGHTS, ExportContents
from operant.export.failures import write_failures
from operant.export.labelling import to_label_csv
from operant.export.readme import readme
from operant.files import read_regular
from operant.formatting import first_few
from operant.model.hashing import hash_of

RECORD, README = "export.json", "README.md"
CACHE = "__pycache__"  # of the transform, once it was imported


@dataclass(frozen=True, kw_only=True)
class ExportRecord:
    """What an export wrote; ``export.json``.

    Attributes:
        files: a hash of each file, by its path in the export.
    """

    files: dict[str, str]


@activity("writing the export")
def write_export(contents: ExportContents, out: str | Path) -> Path:
    """Write an export to a folder, which must be new, empty or an unchanged export; returns its ``README.md``."""
    place = Path(out)
    check_replaceable(place)
    with _replacing(place.resolve()) as new:
        _write_files(contents, new, name=place.as_posix())
        results.save(ExportRecord(files=_hashes(new)), new / RECORD)
    return place / README


def check_replaceable(place: Path) -> None:
    """Raise a ValueError if an export would replace anything that no export wrote."""
    if not place.exists():
        return
    if not place.is_dir():
        raise ValueError(f"an export is written to a folder, but {place} is a file; choose another with --out")
    if not any(place.iterdir()):
        return
    if not (place / RECORD).is_file():
        raise ValueError(f"{place} is not empty and holds no export; choose a new folder with --out")
    known, now = results.load(place / RECORD, ExportRecord).files, _hashes(place)
    if changed := [file for file, content in now.items() if known.get(file) != content]:
        raise ValueError(
            f"{place} holds files that an export did not write, or that have changed since: {first_few(changed, 3)}; "
            "move them elsewhere, or choose another folder with --out"
        )


def _write_files(contents: ExportContents, place: Path, *, name: str) -> None:
    if contents.recipe is not None:
        (place / TRANSFORM).write_bytes(read_regular(Path(field_transform.__file__)))
        results.save(contents.recipe, place / RECIPE)
    if contents.weights:
        (place / WEIGHTS).write_text(weights_csv(contents.weights), encoding="utf-8")
    if contents.to_label is not None:
        (place / TO_LABEL).write_text(to_label_csv(contents.to_label), encoding="utf-8")
    if contents.failures is not None:
        write_failures(contents.failures, place)
    (place / README).write_text(readme(contents, name), encoding="utf-8")


@contextmanager
def _replacing(place: Path) -> Iterator[Path]:
    """A new folder that takes the place of another when it is complete; an error leaves the other as it is."""
    place.parent.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex[:12]
    new, old = (place.with_name(f".{place.name}.{mark}.{word}") for word in ("new", "old"))
    new.mkdir()
    try:
        yield new
        if place.exists():
            os.rename(place, old)
        os.rename(new, place)
    finally:
        if old.exists() and not place.exists():  # the second renaming failed
            os.rename(old, place)
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _hashes(place: Path) -> dict[str, str]:
    """A hash of each file of an export, by its path; neither of its record nor of what Python keeps."""
    files = sorted(file for file in place.rglob("*") if file.is_file() and CACHE not in file.parts)
    return {
        name: hash_of(read_regular(file)) for file in files if (name := file.relative_to(place).as_posix()) != RECORD
    }
