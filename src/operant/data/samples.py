"""Inputs with labels and ids."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from operant.rng import mix


@dataclass(frozen=True, eq=False, repr=False)
class Samples:
    """Inputs ``(N, *shape)`` with an id each, and their labels if known.

    Args:
        x: floating-point inputs, one per row, in input units (never normalised).
        y: integer labels ``(N,)``, or None if unknown.
        ids: int64 ``(N,)`` (default: content hashes, so that equal inputs have equal ids).

    >>> pool = Samples(torch.rand(100, 4), torch.arange(100) % 3)
    >>> parts = pool.split(seeds=0.5, assessment=0.5)
    >>> len(parts["seeds"]) + len(parts["assessment"])
    100
    """

    x: Tensor
    y: Tensor | None = None
    ids: Tensor = None  # type: ignore[assignment]  # never None after construction

    def __post_init__(self) -> None:
        _check_inputs(self.x)
        n = len(self.x)
        if self.y is not None:
            object.__setattr__(self, "y", _checked_labels(self.y, n))
        ids = content_ids(self.x) if self.ids is None else torch.as_tensor(self.ids)
        if ids.dtype != torch.int64 or ids.shape != (n,):
            raise ValueError(f"ids must be int64 of shape ({n},), got {ids.dtype} of shape {tuple(ids.shape)}")
        object.__setattr__(self, "ids", ids)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Any) -> Samples:
        """Rows by slice, mask or positions; always returns `Samples`, never a single row."""
        rows = row_index(index, len(self))
        return Samples(self.x[rows], None if self.y is None else self.y[rows], self.ids[rows.to(self.ids.device)])

    def __repr__(self) -> str:
        labels = "no labels" if self.y is None else f"{len(self.y.unique())} classes"
        return f"Samples({len(self)} x {tuple(self.shape)}, {labels})"

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
        return Samples(self.x.to(device), None if self.y is None else self.y.to(device), self.ids)

    def split(self, **roles: float) -> dict[str, Samples]:
        """Assign the inputs to named roles in the given shares, by a hash of their ids.

        An input keeps its role whatever data is added later, so data for assessment never becomes data for retraining.
        The hash includes the names of the roles, so that a part can be split again under other names.
        """
        shares = torch.tensor(list(roles.values()), dtype=torch.float64)
        if not roles or not bool((shares > 0).all()) or not abs(float(shares.sum()) - 1) <= 1e-6:
            raise ValueError(f"shares of the roles must be positive and sum to 1, got {roles}")
        names = hashlib.blake2b("/".join(roles).encode(), digest_size=8).digest()
        hashes = mix(self.ids ^ int.from_bytes(names, "little", signed=True))
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
        """All rows of all parts, in order; labels are kept only if every part has them."""
        if not parts:
            raise ValueError("nothing to join: concat needs at least one Samples")
        shapes = sorted({tuple(p.shape) for p in parts})
        if len(shapes) > 1:
            raise ValueError(f"inputs to join must have one shape, got {shapes}; resize them first")
        y = None if any(p.y is None for p in parts) else torch.cat([p.labels for p in parts])
        return Samples(torch.cat([p.x for p in parts]), y, torch.cat([p.ids for p in parts]))


def content_ids(x: Tensor) -> Tensor:
    """A 64-bit hash of each row's content; float32 and float64 copies of an input have the same hash."""
    rows = (x.detach().to("cpu", torch.float32) + 0.0).flatten(1).contiguous().numpy()  # + 0.0 turns -0 into 0
    shape = repr(tuple(x.shape[1:])).encode()
    digests = b"".join(hashlib.blake2b(row, digest_size=8, key=shape[:64]).digest() for row in rows)
    return torch.frombuffer(bytearray(digests), dtype=torch.int64).clone() if len(rows) else torch.empty(0).long()


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
