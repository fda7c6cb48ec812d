"""Reader of numeric arrays in MATLAB 5 files: every tag and size is checked before it is used.

References:
    | MAT-File Format (The MathWorks)
    | https://www.mathworks.com/help/pdf_doc/matlab/matfile_format.pdf
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from operant.files import check_unpacked

Order = Literal["little", "big"]
Element = tuple[int, memoryview]  # type and content

HEADER = 128  # bytes of text, version and byte order before the first element
TAG = 8
INT8, INT32, UINT32, MATRIX, COMPRESSED, UTF8 = 1, 5, 6, 14, 15, 16
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}  # stored types
NUMERIC_CLASSES = range(6, 16)  # double, single, and integers of 8 to 64 bits
COMPLEX = 0x0800
MAX_DIMENSIONS = 32


def numeric_arrays(content: bytes, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """The arrays with these names, as far as the file has them; they have the type that their numbers are stored in.

    Args:
        content: of the whole file.
        names: of the variables to read; others are skipped, whatever they hold.
    """
    order = _byte_order(content)
    found: dict[str, NDArray[Any]] = {}
    for matrix in _matrices(memoryview(content)[HEADER:], order):
        if matrix.name in found:
            raise ValueError(f"it holds {matrix.name} twice")
        if matrix.name in names:
            found[matrix.name] = matrix.array(order)
    return found


def _byte_order(content: bytes) -> Order:
    mark, version = content[126:HEADER], {b"IM": content[125:126], b"MI": content[124:125]}
    if mark not in version or version[mark] != b"\x01":
        raise ValueError("it does not start as a MATLAB 5 file does")
    return "little" if mark == b"IM" else "big"


@dataclass(frozen=True)
class _Matrix:
    """A variable: its class, whether it is complex, its shape, its name, and the elements that hold its values."""

    kind: int
    is_complex: bool
    shape: tuple[int, ...]
    name: str
    values: Iterator[Element]

    def array(self, order: Order) -> NDArray[Any]:
        if self.kind not in NUMERIC_CLASSES or self.is_complex:
            raise ValueError(f"{self.name} must be an array of real numbers")
        elements = list(self.values)
        if len(elements) != 1 or elements[0][0] not in NUMBERS:
            raise ValueError(f"{self.name} must have one part of numbers, got types {[kind for kind, _ in elements]}")
        kind, values = elements[0]
        dtype = np.dtype(NUMBERS[kind]).newbyteorder("<" if order == "little" else ">")
        if math.prod(self.shape) * dtype.itemsize != len(values):
            raise ValueError(f"{self.name} has {len(values)} bytes for {dtype} of shape {self.shape}")
        return np.frombuffer(values, dtype).reshape(self.shape, order="F").astype(dtype.newbyteorder("="))


def _matrices(content: memoryview, order: Order) -> Iterator[_Matrix]:
    """All variables; compressed ones are unpacked one at a time, their sum within the limit."""
    unpacked = 0
    for kind, part in _elements(content, order):
        if kind == COMPRESSED:
            size = _announced(part, order)
            unpacked += size
            check_unpacked(unpacked, len(content))
            kind, part = next(_elements(_decompressed(part, size), order))
        if kind != MATRIX:
            raise ValueError(f"it has an element of type {kind} instead of a variable")
        yield _matrix(part, order)


def _elements(content: memoryview, order: Order) -> Iterator[Element]:
    """The elements of a file or a variable: a tag with type and size, then the content, padded to 8 bytes."""
    while len(content):
        if len(content) < TAG:
            raise ValueError("it ends within a tag")
        first, second = (int.from_bytes(content[i : i + 4], order) for i in (0, 4))
        kind, size, start = (first & 0xFFFF, first >> 16, 4) if first >> 16 else (first, second, TAG)
        if size > (4 if start == 4 else len(content) - TAG):
            raise ValueError(f"an element announces {size} bytes, more than the file has")
        yield kind, content[start : start + size]
        padded = size if kind == COMPRESSED else -(-size // 8) * 8
        content = content[TAG if start == 4 else TAG + padded :]


def _announced(part: memoryview, order: Order) -> int:
    """The size of a compressed element with its tag, from the first few unpacked bytes."""
    tag = zlib.decompressobj().decompress(part, TAG)
    if len(tag) < TAG:
        raise ValueError("a compressed element ends within its tag")
    return TAG + int.from_bytes(tag[4:], order)


def _decompressed(part: memoryview, size: int) -> memoryview:
    machine = zlib.decompressobj()
    content = machine.decompress(part, size)
    more = machine.decompress(machine.unconsumed_tail, 1)  # also compares the checksum
    if len(content) != size or more or not machine.eof:
        raise ValueError(f"a compressed element does not have the {size} bytes that it announces")
    return memoryview(content)


def _matrix(part: memoryview, order: Order) -> _Matrix:
    elements, head = _elements(part, order), []
    for allowed, what in (((UINT32,), "flags"), ((INT32,), "a shape"), ((INT8, UTF8), "a name")):
        kind, values = next(elements, (0, memoryview(b"")))
        if kind not in allowed:
            raise ValueError(f"a variable in it has an element of type {kind} instead of {what}")
        head.append(values)
    flags, sizes, name = head
    shape = tuple(int.from_bytes(sizes[i : i + 4], order, signed=True) for i in range(0, len(sizes), 4))
    if len(flags) != 8 or len(sizes) % 4 or not 2 <= len(shape) <= MAX_DIMENSIONS or min(shape) < 0:
        raise ValueError(f"a variable in it has {len(flags)} bytes of flags and the shape {shape[:MAX_DIMENSIONS]}")
    bits = int.from_bytes(flags[:4], order)
    return _Matrix(bits & 0xFF, bool(bits & COMPLEX), shape, bytes(name).decode("latin1"), elements)
