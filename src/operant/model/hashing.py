"""Hashes of models, samples, settings and files: equal contents give equal hashes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from operant.data import Samples
from operant.files import check_regular
from operant.model.classifier import Classifier


def described(value: object) -> str:
    """A value as text, or as its hash if it is large; `progress` options are left out."""
    if (parts := _contents(value)) is not None:
        return hash_of(*parts)
    if isinstance(value, Classifier):
        return _described_model(value)
    if is_dataclass(value) and not isinstance(value, type):
        inner = [f"{f.name}={described(getattr(value, f.name))}" for f in fields(value) if f.name != "progress"]
        return f"{type(value).__qualname__}({', '.join(inner)})"
    if isinstance(value, partial):
        inner = [*map(described, value.args), *(f"{name}={described(v)}" for name, v in value.keywords.items())]
        return f"{described(value.func)}({', '.join(inner)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {described(v)}" for name, v in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(described, value)) + "]"
    if callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__)  # without its module, whose name differs when it is run as a script
    return without_addresses(repr(value))


def _contents(value: object) -> list[bytes] | None:
    """The content of a module, samples, tensor or array as bytes; None for anything else."""
    if isinstance(value, nn.Module):
        return [*_structure(value), *_weights(value)]
    if isinstance(value, Samples):
        parts = (value.x, value.ids, value.y, None if value.groups is None else value.units)
        return [bytes_of(part) for part in parts if part is not None]
    if isinstance(value, Tensor):
        return [f"{value.dtype} {tuple(value.shape)}".encode(), bytes_of(value)]
    if isinstance(value, np.ndarray):
        return [f"{value.dtype} {value.shape}".encode(), value.tobytes()]
    return None


def _described_model(model: Classifier) -> str:
    """The parts of a model, so that two descriptions show which of them differ."""
    module = model.unwrap()
    parts = {
        "module": hash_of(*_structure(module)),
        "weights": hash_of(*_weights(module)),
        "mean": _numbers(model._mean),
        "std": _numbers(model._std),
        "bounds": _numbers(model.bounds),
        "strict": model.strict,
    }
    return f"Classifier({', '.join(f'{name}={part}' for name, part in parts.items())})"


def content_hash(model: Classifier) -> str:
    """A hash of a model's structure, weights and normalisation, computed once per model; empty if it has no weights."""
    if model._hash is None:
        weights = _weights(model._plain)
        scale = f"{_numbers(model._mean)}, {_numbers(model._std)}".encode()
        model._hash = hash_of(*_structure(model._plain), *weights, scale) if weights else ""
    return model._hash


def _numbers(value: object) -> str:
    """Numbers without commas, which separate the parts of a model."""
    plain = value.tolist() if isinstance(value, Tensor | np.ndarray | np.generic) else value
    return " ".join(map(repr, plain)) if isinstance(plain, Iterable) else repr(plain)


def _structure(module: nn.Module) -> list[bytes]:
    """Structure and trainable parameters of a module."""
    learned = [name for name, p in module.named_parameters() if p.requires_grad]
    return [repr(learned).encode(), without_addresses(repr(module)).encode()]


def _weights(module: nn.Module) -> list[bytes]:
    return [part for name, v in tensors_of(module).items() for part in (name.encode(), bytes_of(v))]


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, including buffers that a state dict leaves out."""
    return dict(chain(module.named_parameters(), module.named_buffers()))


def without_addresses(text: str) -> str:
    """A repr without memory addresses.

    >>> without_addresses("<function f at 0x7f3a>")
    '<function f>'
    """
    return re.sub(r" at 0x\w+", "", text)


def bytes_of(values: Tensor) -> bytes:
    """The content of a tensor on any device."""
    return values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def hash_of(*parts: bytes) -> str:
    """A short hash of several parts; their lengths are hashed too, so that boundaries count.

    >>> hash_of(b"ab", b"c") == hash_of(b"a", b"bc")
    False
    """
    total = hashlib.blake2b(digest_size=8)
    for part in parts:
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.hexdigest()


def fingerprint(file: Path) -> str:
    """A hash of a file's content; the header keys of a safetensors file are sorted first, since their order varies."""
    check_regular(file)
    with open(file, "rb") as opened:
        return fingerprint_of(opened, safetensors=file.suffix == ".safetensors")


def fingerprint_of(opened: BinaryIO, *, safetensors: bool) -> str:
    """The same for an open file, or for content that is only in memory."""
    total = hashlib.blake2b(digest_size=16)
    if safetensors:
        total.update(_header(opened))
    while block := opened.read(1 << 20):
        total.update(block)
    return total.hexdigest()


def _header(opened: BinaryIO) -> bytes:
    size = int.from_bytes(opened.read(8), "little")
    try:
        return json.dumps(json.loads(opened.read(min(size, 1 << 26))), sort_keys=True).encode()
    except (ValueError, RecursionError):  # not a safetensors file: hash it unchanged
        opened.seek(0)
        return b""
