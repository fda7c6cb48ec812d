"""Samples from whatever file or folder a user names."""

from __future__ import annotations

from pathlib import Path

from operant.activity import activity
from operant.data.formats import PICTURES, class_folders, read_npz
from operant.data.groups import with_groups
from operant.data.samples import Samples
from operant.data.sources import samples_from_folder, samples_from_npz, samples_from_pictures
from operant.files import existing


def read_samples(
    path: str | Path, *, size: tuple[int, int] | None = None, part: str = "test", groups: str | Path | None = None
) -> Samples:
    """Samples from an npz file with x and y, or from a folder of pictures, with or without one folder per class.

    Every input has a name: its file in the folder, such as ``cat/0001.png``, or its row, such as ``field.npz[17]``.

    Args:
        path: the file or folder.
        size: height and width to resize pictures to.
        part: ``"train"``, ``"test"`` or ``"field"``: which arrays to read from an npz file that has no x. Without
            x_field, x_test is read for ``"field"``.
        groups: csv table with file,group: inputs of one group (scene, session, device) are never separated (default:
            the array groups of an npz file, if it has one). Every input must be in it.
    """
    path = existing(Path(path))
    with activity(f"reading {path}"):
        samples = _read(path, size, part)
        return samples if groups is None else with_groups(samples, groups)


def folder_classes(path: str | Path) -> tuple[str, ...]:
    """The classes that `read_samples` would find, without reading any picture; empty unless classes have folders."""
    path = Path(path)
    return tuple(f.name for f in class_folders(path)) if path.is_dir() and not _holds_pictures(path) else ()


def _read(path: Path, size: tuple[int, int] | None, part: str) -> Samples:
    if not path.is_dir():
        if path.suffix != ".npz":
            raise ValueError(f"{path} must be an npz file, or a folder of pictures; write it with numpy.savez")
        fallback = part == "field" and not {"x", "x_field"} & set(read_npz(path))
        return samples_from_npz(path, part="test" if fallback else part)
    return samples_from_pictures(path, size=size) if _holds_pictures(path) else samples_from_folder(path, size=size)


def _holds_pictures(path: Path) -> bool:
    """Whether a folder holds pictures itself, rather than one folder per class."""
    return any(f.suffix.lower() in PICTURES for f in path.iterdir())
