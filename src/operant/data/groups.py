"""Groups of inputs, from a table with the columns file and group."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from operant.data.samples import Samples, name_of
from operant.data.tables import cell, read_csv, table_key, unambiguous_endings


def with_groups(samples: Samples, path: str | Path) -> Samples:
    """The samples with the groups that a csv table gives them; it must name every input, and no other.

    Args:
        samples: with names.
        path: table with the columns ``file`` and ``group``. A file may be called by any ending of its name that no
            other input shares, such as ``0001.png`` for ``monday/0001.png``. In place of ``file``, the column ``name``
            of a table of labels is read, whose names may also be ids. An empty group: the input is alone.
    """
    path = Path(path)
    known = _groups(path)
    names = samples.names or ("",) * len(samples)
    endings = unambiguous_endings(names)
    keys = [
        [table_key(name) for name in (*each, name_of(i))] for each, i in zip(endings, samples.ids.tolist(), strict=True)
    ]
    found = [{known[key] for key in each if key in known} for each in keys]
    if missing := [row for row, groups in enumerate(found) if not groups]:
        example = "".join(endings[missing[0]][-1:]) or name_of(int(samples.ids[missing[0]]))
        raise ValueError(
            f"{path} must give the group of every input, but {len(missing)} of {len(samples)} are missing; add rows "
            f"such as {example},scene 1"
        )
    if double := [row for row, groups in enumerate(found) if len(groups) > 1]:
        raise ValueError(
            f"{path}: {names[double[0]]} has the groups {' and '.join(sorted(found[double[0]]))}; leave one"
        )
    used = {key for each in keys for key in each}
    if unknown := [key for key in known if key not in used]:
        raise ValueError(
            f"{path} must name only files that are there, but {len(unknown)} of its {len(known)} are not, such as "
            f"{unknown[0]}; correct or remove those rows"
        )
    return replace(samples, groups=tuple(group for groups in found for group in groups))


def _groups(path: Path) -> dict[str, str]:
    """The group of each file in a table, by its key."""
    table = read_csv(path)
    file, group = table.column("file", "name"), table.column("group")
    if file is None or group is None:
        first = table.separator.join(table.header)
        raise ValueError(f"the first line of {path} must be file,group, got {first!r:.80}; replace it")
    known: dict[str, str] = {}
    for line, row in enumerate(table.rows, 2):
        key, name = table_key(cell(row, file)), cell(row, group)
        if key and known.setdefault(key, name) != name:
            raise ValueError(f"line {line} of {path}: {cell(row, file)} has two groups; leave only one")
    return known
