"""The files of a suite: safetensors with a checksum, memory-mapped, so that rows are read only when needed."""

import hashlib
import json
import math
import re
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor

from operant.files import check_regular, read_regular
from operant.results import write_atomically

FORMAT = 1
MANIFEST = "manifest.json"
MAX_VALUES = 2**40  # of one case; a manifest that announces more is damaged
INPUT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DELETE = "delete it to continue without it"  # advice about a damaged file
Strings = npt.NDArray[np.str_]
Column = Tensor | Strings


class LazyRows:
    """Inputs that may still be on disk; `take` reads only the rows it returns.

    Args:
        parts: tensors that share one row shape.
        chosen: numbers of the selected rows in the concatenation of all parts, in order; None for all rows.
    """

    def __init__(self, parts: Sequence[Tensor], chosen: Tensor | None = None) -> None:
        self.parts = tuple(parts)
        self.chosen = chosen

    def __len__(self) -> int:
        return sum(len(p) for p in self.parts) if self.chosen is None else len(self.chosen)

    @property
    def shape(self) -> torch.Size:
        """The shape of one row."""
        return self.parts[0].shape[1:]

    def all(self) -> Tensor:
        """All rows; read once, then kept in memory."""
        if self.chosen is not None or len(self.parts) > 1:
            self.parts, self.chosen = (self.take(torch.arange(len(self))),), None
        return self.parts[0]

    def take(self, rows: Tensor) -> Tensor:
        """A copy of the rows with these numbers (0 or more)."""
        rows, part, starts = self._find(rows)
        places = part.argsort(stable=True).split(part.bincount(minlength=len(self.parts)).tolist())
        dtype = reduce(torch.promote_types, (p.dtype for p in self.parts))
        out = torch.empty((len(rows), *self.shape), dtype=dtype)
        for values, start, here in zip(self.parts, starts.tolist(), places, strict=True):
            if len(here):
                out[here] = values[rows[here] - start].to(dtype)
        return out

    def choose(self, rows: Tensor) -> "LazyRows":
        """The rows with these numbers, without reading them; unused parts are dropped."""
        rows, part, starts = self._find(rows)
        used = part.unique() if len(rows) else torch.tensor([0])
        parts = [self.parts[i] for i in used.tolist()]
        lengths = torch.tensor([len(p) for p in parts])
        shift = torch.zeros_like(starts).scatter(0, used, lengths.cumsum(0) - lengths - starts[used])
        return LazyRows(parts, rows + shift[part])

    def _find(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Row numbers in the concatenation, the part of each row, and the first row number of each part."""
        rows = rows if self.chosen is None else self.chosen[rows]
        lengths = torch.tensor([len(p) for p in self.parts])
        ends = lengths.cumsum(0)
        return rows, torch.bucketize(rows, ends, right=True), ends - lengths

    @staticmethod
    def join(several: Sequence["LazyRows"]) -> "LazyRows":
        """All rows of all, in order, without reading them."""
        several = [rows for rows in several if len(rows)] or several[:1]
        parts = [part for rows in several for part in rows.parts]
        if all(rows.chosen is None for rows in several):
            return LazyRows(parts)
        start, chosen = 0, []
        for rows in several:
            held = sum(len(p) for p in rows.parts)
            chosen.append(start + (torch.arange(held) if rows.chosen is None else rows.chosen))
            start += held
        return LazyRows(parts, torch.cat(chosen))


def write_manifest(folder: Path, shape: list[int]) -> None:
    """Write the shape of one case, by which a folder is known to be a suite."""
    write_atomically(folder / MANIFEST, json.dumps({"suite": FORMAT, "shape": shape}).encode() + b"\n")


def read_manifest(folder: Path) -> list[int]:
    """The shape of one case; anything but the manifest of a suite raises a ValueError."""
    file = folder / MANIFEST
    if not file.exists():
        raise ValueError(f"{folder} is not a suite: it has no {MANIFEST}; give the folder that Suite.save wrote")
    try:
        page = json.loads(read_regular(file))
        shape: list[int] = page["shape"]
        if page["suite"] != FORMAT or not isinstance(shape, list) or not shape:
            raise ValueError
        if not all(type(size) is int and size >= 0 for size in shape) or math.prod(map(float, shape)) > MAX_VALUES:
            raise ValueError
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        raise ValueError(f"{file} is not the manifest of a format-{FORMAT} suite; move the folder elsewhere") from None
    return shape


def numbered(folder: Path, word: str) -> dict[int, Path]:
    """The files ``word-000000.safetensors``, ``word-000001.safetensors`` ... of a folder, in order."""
    matches = [(re.fullmatch(rf"{word}-(\d{{6,}})\.safetensors", file.name), file) for file in folder.iterdir()]
    return dict(sorted((int(m[1]), file) for m, file in matches if m))


def write_next(folder: Path, word: str, tensors: dict[str, Tensor], words: dict[str, Any]) -> Path:
    """Write tensors and their metadata atomically under the next free number; never overwrites a file."""
    text = json.dumps(words, sort_keys=True)
    metadata = {"operant": f"suite {word}", "format": str(FORMAT), "words": text, "digest": digest(tensors, text)}
    apart = {name: values.clone(memory_format=torch.contiguous_format) for name, values in tensors.items()}
    content = save_tensors(apart, metadata)  # it rejects tensors that share memory
    while True:
        file = folder / f"{word}-{max(numbered(folder, word), default=-1) + 1:06d}.safetensors"
        try:
            write_atomically(file, content, overwrite=False)
        except FileExistsError:  # another writer took the number
            continue
        return file


def read_file(file: Path, word: str) -> tuple[dict[str, Tensor], dict[str, Any], str]:
    """Tensors, metadata and digest that `write_next` wrote; damaged or foreign files raise a ValueError."""
    try:
        check_regular(file)
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, LookupError, RuntimeError, TypeError) as error:
        raise ValueError(f"{file} is no complete safetensors file ({error}); {DELETE}") from None
    if metadata.get("operant") != f"suite {word}" or metadata.get("format") != str(FORMAT):
        raise ValueError(f"{file} is not the {word} file of a format-{FORMAT} suite; move it elsewhere")
    text = metadata.get("words", "")
    if digest(tensors, text) != metadata.get("digest"):
        raise ValueError(f"{file} has changed since it was written (its checksum differs); {DELETE}")
    try:
        words = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the metadata of {file} is not readable JSON ({error}); {DELETE}") from None
    if not isinstance(words, dict):
        raise ValueError(f"the metadata of {file} must be a JSON object, got a {type(words).__name__}; {DELETE}")
    return tensors, words, metadata["digest"]


def checked_columns(tensors: dict[str, Tensor], words: dict[str, Any]) -> dict[str, Column]:
    """The columns of a shard; raises a ValueError if anything in the shard contradicts itself."""
    _check_rows("x", tensors, ("label", "seed", "prediction"))
    _check_rows("seeds.x", tensors, ("seeds.y", "seeds.ids"))
    columns = unpack(tensors, words.get("vocabulary"))
    _check_columns(columns, len(tensors["x"]))
    ids = tensors["seeds.ids"]
    if not bool((ids[1:] > ids[:-1]).all()) or not bool(torch.isin(tensors["seed"], ids).all()):
        raise ValueError("its seeds must be sorted by id, and every case's seed must be among them")
    for name in ("attempted", "skipped"):
        if type(words.get(name)) is not int or words[name] < 0:
            raise ValueError(f"{name} must be a whole number, got {words.get(name)!r:.80}")
    if len(_strings("seeds.names", words, default=[""] * len(ids))) != len(ids):
        raise ValueError(f"seeds.names must have one name for each of {len(ids)} seeds")
    labels = torch.cat([tensors["label"], tensors["seeds.y"]])
    if bool((labels < 0).any()):
        raise ValueError(f"its labels must be 0 or more, got {int(labels.min())}")
    classes = _strings("classes", words, default=[])
    if classes and bool((labels >= len(classes)).any()):
        raise ValueError(f"classes must name every label up to {int(labels.max())}, got {len(classes)} names")
    return columns


def _strings(name: str, words: dict[str, Any], *, default: list[str]) -> list[str]:
    """A list of strings that a shard may lack."""
    values = words.get(name, default)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name} must be a list of strings, got {values!r:.80}")
    return values


def _check_rows(inputs: str, tensors: dict[str, Tensor], names: Sequence[str]) -> None:
    """Floating-point inputs, and one whole number for each of them under every name."""
    if missing := [name for name in (inputs, *names) if name not in tensors]:
        raise ValueError(f"it must hold {', '.join(missing)}")
    x = tensors[inputs]
    if x.ndim < 2 or x.dtype not in INPUT_TYPES:
        raise ValueError(f"{inputs} must be floating-point (N, *shape), got {x.dtype} of shape {tuple(x.shape)}")
    for name in names:
        values = tensors[name]
        if values.dtype != torch.int64 or values.shape != x.shape[:1]:
            got = f"{values.dtype} of shape {tuple(values.shape)}"
            raise ValueError(f"{name} must be int64, one for each of {len(x)} rows, got {got}")


def _check_columns(columns: dict[str, Column], n: int) -> None:
    if "method" not in columns or isinstance(columns["method"], Tensor):
        raise ValueError("it must hold a column of strings named method")
    for name, values in columns.items():
        if len(values) != n:
            raise ValueError(f"column {name} must have {n} rows, got {len(values)}")


def digest(tensors: dict[str, Tensor], text: str) -> str:
    """A hash of a text and of the names, types, shapes and contents of tensors."""
    total = hashlib.blake2b(text.encode(), digest_size=16)
    for name, values in sorted(tensors.items()):
        total.update(json.dumps([name, str(values.dtype), list(values.shape)]).encode())
        if values.numel():
            total.update(values.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def pack(columns: dict[str, Column]) -> tuple[dict[str, Tensor], dict[str, list[str]]]:
    """Columns as tensors; strings become indices into a vocabulary."""
    tensors, vocabulary = {}, {}
    for name, values in columns.items():
        if isinstance(values, Tensor):
            tensors[f"column.{name}"] = values
        else:
            words, codes = np.unique(values, return_inverse=True)
            tensors[f"column.{name}"] = torch.as_tensor(codes.astype(np.int32))
            vocabulary[name] = [str(word) for word in words]
    return tensors, vocabulary


def unpack(tensors: dict[str, Tensor], vocabulary: Any) -> dict[str, Column]:
    """The columns that were given to `pack`; anything else raises a ValueError."""
    if not isinstance(vocabulary, dict):
        raise ValueError(f"the vocabulary must be a JSON object, got {vocabulary!r:.80}")
    keys = sorted(key for key in tensors if key.startswith("column."))
    names = [key.removeprefix("column.") for key in keys]
    return {name: _unpacked(name, tensors[key], vocabulary.get(name)) for name, key in zip(names, keys, strict=True)}


def _unpacked(name: str, values: Tensor, words: Any) -> Column:
    if values.ndim != 1 or (words is None and values.dtype not in (torch.float32, torch.float64)):
        raise ValueError(f"column {name} must hold one number per row, got {values.dtype} of {tuple(values.shape)}")
    if words is None:
        return values
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"the vocabulary of column {name} must be a list of strings, got {words!r:.80}")
    if values.dtype != torch.int32 or bool(((values < 0) | (values >= len(words))).any()):
        raise ValueError(f"column {name} must hold int32 indices into its {len(words)} words")
    strings: Strings = np.array(words, dtype=np.str_)[values.numpy()]
    return strings
