"""Inputs with labels and ids, which know where they come from."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from operant.rng import mix

HASHED_BYTES = 1 << 26  # of inputs copied at once while their ids are computed


@dataclass(frozen=True, eq=False, repr=False)
class Samples:
    """Inputs ``(N, *shape)`` with an id each, their labels if known, and where they come from.

    Args:
        x: floating-point inputs, one per row, in input units (never normalised).
        y: integer labels ``(N,)``, or None if unknown.
        ids: int64 ``(N,)`` (default: content hashes, so that equal inputs have equal ids).
        names: where each input comes from, such as ``"cat/0001.png"`` or ``"field.npz[17]"``; ``""`` if unknown.
        groups: inputs that depend on each other (scene, session, device) have the same group and are never separated;
            ``""`` for an input that is alone.
        occurrence: int64 ``(N,)``, tells apart inputs of one id (default: 0 for the first, 1 for the second, ...).
        classes: the name of each label; empty if labels have only numbers.

    >>> pool = Samples(torch.rand(100, 4), torch.arange(100) % 3)
    >>> parts = pool.split(seeds=0.5, assessment=0.5)
    >>> len(parts["seeds"]) + len(parts["assessment"])
    100
    """

    x: Tensor
    y: Tensor | None = None
    ids: Tensor = None  # type: ignore[assignment]  # never None after construction
    names: tuple[str, ...] | None = field(default=None, kw_only=True)
    groups: tuple[str, ...] | None = field(default=None, kw_only=True)
    occurrence: Tensor = field(default=None, kw_only=True)  # type: ignore[assignment]  # never None after construction
    classes: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        _check_inputs(self.x)
        n = len(self.x)
        if self.y is not None:
            object.__setattr__(self, "y", _checked_labels(self.y, n))
        ids = content_ids(self.x) if self.ids is None else torch.as_tensor(self.ids)
        if ids.dtype != torch.int64 or ids.shape != (n,):
            raise ValueError(f"ids must be int64 of shape ({n},), got {ids.dtype} of shape {tuple(ids.shape)}")
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "occurrence", _checked_occurrence(self.occurrence, ids))
        for name, values in (("names", self.names), ("groups", self.groups)):
            if values is not None:
                object.__setattr__(self, name, _checked_strings(values, n, name))
        object.__setattr__(self, "classes", _checked_classes(self.classes, self.y))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Any) -> Samples:
        """Rows by slice, mask or positions; always returns `Samples`, never a single row.

        A row that is chosen several times gets a new occurrence each time.
        """
        rows = row_index(index, len(self))
        here = rows.to(self.ids.device)
        ids, occurrence = self.ids[here], self.occurrence[here]
        places = [] if self.names is None and self.groups is None else rows.tolist()
        return self._derived(
            x=self.x[rows],
            y=None if self.y is None else self.y[rows],
            ids=ids,
            occurrence=_distinct(ids, occurrence) if _has_repeats(rows, len(self)) else occurrence,
            names=None if self.names is None else tuple(self.names[i] for i in places),
            groups=None if self.groups is None else tuple(self.groups[i] for i in places),
        )

    def _derived(self, **changes: Any) -> Samples:
        """The same samples with other values, which are correct because of how they were computed: nothing is checked.

        Checking again that no two rows have the same id and occurrence would sort the rows at every selection.
        """
        new = copy(self)
        new.__dict__.update(changes)
        return new

    def __repr__(self) -> str:
        labels = "no labels" if self.y is None else f"{len(self.y.unique())} classes"
        groups = "" if self.groups is None else f", {len(self.units.unique())} groups"
        return f"Samples({len(self)} x {tuple(self.shape)}, {labels}{groups})"

    @property
    def shape(self) -> torch.Size:
        """The shape of one input."""
        return self.x.shape[1:]

    @property
    def labels(self) -> Tensor:
        """The labels; raises a ValueError if there are none."""
        if self.y is None:
            raise ValueError("these samples carry no labels; ask a labeller and build Samples(x, y)")
        return self.y

    def to(self, device: torch.device | str) -> Samples:
        """The same samples with inputs and labels on another device."""
        return self._derived(x=self.x.to(device), y=None if self.y is None else self.y.to(device))

    def with_labels(self, y: Tensor | None) -> Samples:
        """The same samples with other labels, or with none."""
        y = None if y is None else _checked_labels(y, len(self))
        return self._derived(y=y, classes=_checked_classes(self.classes, y))

    def in_classes(self, classes: Sequence[str]) -> Samples:
        """The same samples with labels that number these classes; samples without class names keep their labels.

        >>> Samples(torch.rand(2, 3), [0, 1], classes=("cat", "dog")).in_classes(("bird", "dog", "cat")).y
        tensor([2, 1])
        """
        if unknown := [name for name in self.classes if name not in classes]:
            some = ", ".join(classes[:10]) + ", …" * (len(classes) > 10)
            raise ValueError(f"there is no class {unknown[0]} among {some}; rename it, or leave it out")
        if self.y is None or not self.classes:
            return replace(self, classes=tuple(classes))
        places = torch.tensor([classes.index(name) for name in self.classes], device=self.y.device)
        return replace(self, y=places[self.y], classes=tuple(classes))

    @property
    def units(self) -> Tensor:
        """What roles are assigned by, int64 ``(N,)``: a hash of the input's group; its id if it has none."""
        if self.groups is None:
            return self.ids
        hashes = {name: _hash_of(f"group {name}") for name in set(self.groups)}
        return torch.tensor(
            [hashes[name] if name else i for name, i in zip(self.groups, self.ids.tolist(), strict=True)],
            dtype=torch.int64,
        )

    @property
    def titles(self) -> list[str]:
        """What to call each input in front of people: its name; if it has none, or others have the same, its id.

        >>> Samples(torch.zeros(3, 2), ids=torch.tensor([7, 8, 9]), names=("a.png", "b.png", "b.png")).titles
        ['a.png', 'i0000000000000008', 'i0000000000000009']
        """
        names, ids = self.names or ("",) * len(self), self.ids.tolist()
        ids_of = Counter(name for name, _ in set(zip(names, ids, strict=True)))
        return [name if name and ids_of[name] == 1 else name_of(i) for name, i in zip(names, ids, strict=True)]

    def split(self, **roles: float) -> dict[str, Samples]:
        """Assign the inputs to named roles in the given shares, by a hash of their groups, or of their ids.

        An input keeps its role whatever data is added later, so data for assessment never becomes data for retraining;
        an input that arrives later in a known group gets the role of its group.
        The hash includes the names of the roles, so that a part can be split again under other names.
        """
        shares = torch.tensor(list(roles.values()), dtype=torch.float64)
        if not roles or not bool((shares > 0).all()) or not abs(float(shares.sum()) - 1) <= 1e-6:
            raise ValueError(f"shares of the roles must be positive and sum to 1, got {roles}")
        hashes = mix(self.units ^ _hash_of("/".join(roles)))
        part = torch.bucketize(hashes, shares.cumsum(0)[:-1], right=True)
        return {role: self[part == i] for i, role in enumerate(roles)}

    def rows_of(self, ids: Tensor) -> Tensor:
        """The first row with each of these ids; -1 if there is none.

        >>> Samples(torch.rand(3, 2), ids=torch.tensor([7, 5, 7])).rows_of(torch.tensor([5, 7, 6]))
        tensor([ 1,  0, -1])
        """
        order = self.ids.argsort(stable=True)
        known = self.ids[order]
        found = torch.isin(ids, known)
        place = torch.searchsorted(known, ids) * found
        return torch.where(found, order[place], -1) if len(order) else torch.full_like(ids, -1)

    @staticmethod
    def concat(parts: Sequence[Samples]) -> Samples:
        """All rows of all parts, in order.

        Labels are kept only if every part has them. Names and groups that a part lacks are empty. A row whose id and
        occurrence are taken by an earlier row gets the next free occurrence of that id.
        """
        if not parts:
            raise ValueError("nothing to join: concat needs at least one Samples")
        shapes = sorted({tuple(p.shape) for p in parts})
        if len(shapes) > 1:
            raise ValueError(f"inputs to join must have one shape, got {shapes}; resize them first")
        y = None if any(p.y is None for p in parts) else torch.cat([p.labels for p in parts])
        ids = torch.cat([p.ids for p in parts])
        classes = _common_classes(parts, labelled=y is not None)
        return parts[0]._derived(
            x=torch.cat([p.x for p in parts]),
            y=y,
            ids=ids,
            names=_joined([p.names for p in parts], [len(p) for p in parts]),
            groups=_joined([p.groups for p in parts], [len(p) for p in parts]),
            occurrence=_distinct(ids, torch.cat([p.occurrence for p in parts])),
            classes=_checked_classes(classes, y),
        )


def content_ids(x: Tensor) -> Tensor:
    """A 64-bit hash of each row's content; float32 and float64 copies of an input have the same hash."""
    key, rows = repr(tuple(x.shape[1:])).encode()[:64], max(1, HASHED_BYTES // max(1, 4 * x[:1].numel()))
    digests = b"".join(
        hashlib.blake2b(row, digest_size=8, key=key).digest()
        for part in x.detach().split(rows)
        for row in (part.to("cpu", torch.float32) + 0.0).flatten(1).contiguous().numpy()  # + 0.0 turns -0 into 0
    )
    return torch.frombuffer(bytearray(digests), dtype=torch.int64).clone() if len(x) else torch.empty(0).long()


def name_of(identity: int) -> str:
    """An id as text; it starts with a letter, so that spreadsheets do not read it as a number."""
    return f"i{identity & (2**64 - 1):016x}"


def row_index(index: Any, n: int) -> Tensor:
    """Row numbers, 0 or more, for a slice, a mask (torch, numpy or list) or positions."""
    if isinstance(index, slice):
        return torch.arange(n)[index].contiguous()
    rows = torch.as_tensor(index)
    allowed = "rows are chosen by slice, mask or positions"
    if rows.ndim == 0:
        raise TypeError(f"{allowed}, got the single index {index}; use [{index}:{index}+1]")
    if rows.ndim > 1 or (rows.is_floating_point() and len(rows)):
        raise TypeError(f"{allowed}, got {rows.dtype} of shape {tuple(rows.shape)}")
    if rows.dtype == torch.bool:
        if len(rows) != n:
            raise IndexError(f"the mask has {len(rows)} entries for {n} rows")
        return rows.nonzero().flatten()
    return torch.arange(n, device=rows.device)[rows.long()]


def _check_inputs(x: Any) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = f"a tensor of {x.dtype}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise ValueError(f"inputs must be a floating-point tensor, got {kind}; convert it (images: x.float() / 255)")
    if x.ndim < 2:
        raise ValueError(f"inputs must have shape (N, *shape), got {tuple(x.shape)}; add the missing dimension")


def _checked_labels(y: Any, n: int) -> Tensor:
    y = torch.as_tensor(y)
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or y.shape != (n,):
        raise ValueError(f"labels must be integers of shape ({n},), got {y.dtype} of shape {tuple(y.shape)}")
    labels: Tensor = y.long()
    if n and int(labels.min()) < 0:
        raise ValueError(f"labels must be 0 or more, got {int(labels.min())}; number the classes from 0")
    return labels


def _checked_occurrence(given: Any, ids: Tensor) -> Tensor:
    if given is None:
        return _distinct(ids, torch.zeros_like(ids))
    occurrence = torch.as_tensor(given)
    if occurrence.dtype != torch.int64 or occurrence.shape != ids.shape:
        got = f"{occurrence.dtype} of shape {tuple(occurrence.shape)}"
        raise ValueError(f"occurrence must be int64 of shape {tuple(ids.shape)}, got {got}")
    occurrence = occurrence.to(ids.device)
    if not torch.equal(_distinct(ids, occurrence), occurrence):
        raise ValueError("two rows have the same id and occurrence; number the rows of an id, or leave out occurrence")
    return occurrence


def _has_repeats(rows: Tensor, n: int) -> bool:
    """Whether one of ``n`` rows is chosen more than once."""
    chosen = torch.zeros(n, dtype=torch.bool, device=rows.device)
    chosen[rows] = True
    return int(chosen.sum()) < len(rows)


def _distinct(ids: Tensor, occurrence: Tensor) -> Tensor:
    """The occurrences with repeated uses of an id renumbered: they follow its highest, in the order of the rows."""
    by_id = ids.argsort(stable=True)
    same = ids[by_id].diff() == 0  # the id of the row before
    if not bool(same.any()):
        return occurrence
    if not bool(occurrence.any()):
        return _numbered(by_id, same)
    order = occurrence.argsort(stable=True)
    order = order[ids[order].argsort(stable=True)]  # by id, then by occurrence, then by row
    repeated = torch.zeros_like(ids)
    repeated[order[1:]] = (same & (occurrence[order].diff() == 0)).long()
    if not bool(repeated.any()):
        return occurrence
    first = torch.cat([same.new_ones(1), ~same])  # of its id
    starts, which = first.nonzero().flatten(), first.cumsum(0) - 1
    highest = occurrence[order[torch.cat([starts[1:], starts.new_tensor([len(ids)])]) - 1]]
    total = repeated[by_id].cumsum(0)
    before = (total - repeated[by_id])[starts]  # repeated rows of smaller ids
    rank = total - before[which]  # 1 for the first repeated row of an id, and so on
    following = torch.empty_like(ids)
    following[by_id] = highest[which] + rank
    return torch.where(repeated > 0, following, occurrence)


def _numbered(by_id: Tensor, same: Tensor) -> Tensor:
    """The number of each row among those of its id, from 0: the occurrences if all were 0, which is common."""
    place = torch.arange(len(by_id), device=by_id.device)
    starts = place.clone()
    starts[1:] *= ~same
    numbers = torch.empty_like(by_id)
    numbers[by_id] = place - starts.cummax(0).values
    return numbers


def _checked_strings(values: Any, n: int, what: str) -> tuple[str, ...]:
    strings = () if isinstance(values, str) else tuple(values)
    if isinstance(values, str) or len(strings) != n or not all(isinstance(value, str) for value in strings):
        got = repr(values) if isinstance(values, str) else f"{len(strings)} values, such as {strings[:1]}"
        raise ValueError(f"{what} must be {n} strings, one per input, got {got:.80}; convert them")
    return strings


def _checked_classes(classes: Any, y: Tensor | None) -> tuple[str, ...]:
    if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
        raise ValueError(f'classes must be the name of each label, such as ("cat", "dog"), got {classes!r:.80}')
    names = tuple(classes)
    if names and y is not None and len(y) and int(y.max()) >= len(names):
        raise ValueError(f"classes must name every label up to {int(y.max())}, got {len(names)} names; add the others")
    return names


def _joined(columns: Sequence[tuple[str, ...] | None], lengths: Sequence[int]) -> tuple[str, ...] | None:
    if all(column is None for column in columns):
        return None
    filled = (("",) * n if column is None else column for column, n in zip(columns, lengths, strict=True))
    return tuple(value for column in filled for value in column)


def _common_classes(parts: Sequence[Samples], *, labelled: bool) -> tuple[str, ...]:
    """The class names of all parts that have some; different ones are an error if there are labels to mix up."""
    known = list(dict.fromkeys(part.classes for part in parts if part.classes))
    if len(known) > 1 and labelled:
        some = " and ".join(", ".join(names[:5]) for names in known[:2])
        raise ValueError(f"samples to join must have the same classes, got {some}; see in_classes")
    return known[0] if len(known) == 1 else ()


def _hash_of(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)
