"""One file of a suite: safetensors with a checksum, mapped into memory, so that rows are read when they are needed."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor

from operant.results import write_atomically

FORMAT = 1
Strings = npt.NDArray[np.str_]
Column = Tensor | Strings


def write_shard(file: Path, tensors: dict[str, Tensor], words: dict[str, Any]) -> None:
    """Write tensors and a few words about them; whole or not at all."""
    text = json.dumps(words, sort_keys=True)
    metadata = {"operant": "suite", "format": str(FORMAT), "words": text, "digest": digest(tensors, text)}
    write_atomically(file, save_tensors(tensors, metadata))


def read_shard(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_shard` wrote; a torn, truncated, altered or foreign file is refused by name."""
    try:
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"{file} is torn or not a safetensors file ({error}); delete it to go on without it") from None
    if metadata.get("operant") != "suite" or metadata.get("format") != str(FORMAT):
        raise ValueError(f"{file} is not part of a format-{FORMAT} suite; move it elsewhere")
    if digest(tensors, metadata["words"]) != metadata["digest"]:
        raise ValueError(
            f"{file} has changed since it was written (its checksum differs); delete it to go on without it"
        )
    return tensors, json.loads(metadata["words"])


def digest(tensors: dict[str, Tensor], text: str) -> str:
    """A hash of names, types, shapes and contents."""
    total = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        values = tensors[name].contiguous()
        total.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        total.update(values.numpy().data if values.numel() else b"")
    return total.hexdigest()


def pack(columns: dict[str, Column]) -> tuple[dict[str, Tensor], dict[str, list[str]]]:
    """Columns as tensors: strings become numbers into a vocabulary."""
    tensors, vocabulary = {}, {}
    for name, values in columns.items():
        if isinstance(values, Tensor):
            tensors[f"column.{name}"] = values.contiguous()
        else:
            words, codes = np.unique(values, return_inverse=True)
            tensors[f"column.{name}"] = torch.as_tensor(codes.astype(np.int32))
            vocabulary[name] = [str(word) for word in words]
    return tensors, vocabulary


def unpack(tensors: dict[str, Tensor], vocabulary: dict[str, list[str]]) -> dict[str, Column]:
    """The columns that `pack` packed."""
    columns: dict[str, Column] = {}
    for key, values in tensors.items():
        if key.startswith("column."):
            name = key.removeprefix("column.")
            words = np.array(vocabulary.get(name, ()), dtype=np.str_)
            columns[name] = words[values.numpy()] if name in vocabulary else values
    return columns
