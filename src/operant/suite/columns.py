"""Further columns of a suite: numbers or short strings, one per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from operant.suite.shards import Column

ATTRIBUTES = ("x", "x0", "label", "seed", "prediction", "method", "seeds")  # of every suite; no names for columns


def rows_of(values: Column, rows: Tensor) -> Column:
    """Some rows of a column."""
    return values[rows] if isinstance(values, Tensor) else values[rows.numpy()]


def new_columns(columns: Mapping[str, Any], n: int) -> dict[str, Column]:
    """Columns of ``n`` values: strings and float32 unchanged, all other numbers as float64.

    Half precision is widened here because torch does not widen its NaNs to the same bits everywhere in a tensor.
    """
    if taken := [name for name in columns if name in ATTRIBUTES]:
        raise ValueError(f"a column cannot be named {', '.join(taken)}: every suite has that already; rename it")
    return {name: _column(name, values, n) for name, values in columns.items()}


def _column(name: str, values: Any, n: int) -> Column:
    array = values.detach().cpu() if isinstance(values, Tensor) else np.asarray(values)
    if array.shape != (n,):
        raise ValueError(f"column {name} must hold one value for each of {n} rows, got shape {tuple(array.shape)}")
    if isinstance(array, Tensor):
        if array.is_complex():
            raise ValueError(f"column {name} must hold numbers or strings, got {array.dtype}")
        return array if array.dtype == torch.float32 else array.double()
    if array.dtype.kind in "US":
        return array.astype(np.str_)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"column {name} must hold numbers or strings, got {array.dtype}")
    return torch.as_tensor(array if array.dtype == np.float32 else array.astype(np.float64))


def joined_column(name: str, parts: Sequence[tuple[Mapping[str, Column], int]]) -> Column:
    """One column of several suites, each given by its columns and its number of rows; NaN or "" where one lacks it."""
    known = [columns[name] for columns, _ in parts if name in columns]
    numbers = [values for values in known if isinstance(values, Tensor)]
    if not any(n for _, n in parts):
        return known[0]
    if 0 < len(numbers) < len(known):
        raise ValueError(f"column {name} holds numbers in one suite and strings in another; rename one of them")
    if numbers:
        missing = torch.full((1,), torch.nan)
        return torch.cat([torch.as_tensor(columns.get(name, missing.repeat(n))) for columns, n in parts])
    return np.concatenate([np.asarray(columns.get(name, np.full(n, ""))) for columns, n in parts])
