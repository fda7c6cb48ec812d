"""Readers of image file formats; a file that cannot be read raises a ValueError that names it.

No reader unpacks a small file to gigabytes; see `operant.files`.
"""

from __future__ import annotations

import gzip
import math
import pickletools
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from operant.activity import activity
from operant.data.matlab import numeric_arrays
from operant.files import PICTURES_PER_LIMIT, check_picture_bytes, check_regular, check_unpacked

Array = NDArray[Any]

IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
PICTURES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
PILLOW_FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # Pillow's others start programs, or have no limits
GREY_MODES = ("1", "L", "LA")  # of Pillow
CIFAR_SHAPE = (3, 32, 32)


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images of a file.

    Attributes:
        x: ``(N, C, H, W)``, uint8 in 0..255 or float32 in [0, 1].
        y: int64 ``(N,)``.
        classes: the name of each label, if the format has names.
        names: the file of each image, if it has its own.
    """

    x: Array
    y: Array
    classes: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None


@contextmanager
def _reading(path: Path, kind: str, advice: str) -> Iterator[None]:
    """Turn any error while a file is read into a ValueError that names the file."""
    check_regular(path)
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
        raise  # these name the file already
    except Exception as error:  # a damaged file makes parsers fail in any way
        reason = str(error).strip().rstrip(".") or type(error).__name__
        raise ValueError(f"{path} is not a readable {kind}: {reason}; {advice}") from None


# npz -----------------------------------------------------------------------------------------------------------------


def read_npz(path: str | Path) -> dict[str, Array]:
    """All arrays of an npz file by name; Python objects, NaN and infinity raise a ValueError."""
    path = Path(path)
    advice = "write it again with numpy.savez, arrays of numbers only"
    with _reading(path, "npz file", advice), zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
        check_unpacked(sum(part.file_size for part in parts), path.stat().st_size)
        content = {part.filename.removesuffix(".npy"): _read_part(archive, part) for part in parts}
    for name, array in content.items():
        if array.dtype.kind in "fc" and not _all_finite(array):
            raise ValueError(f"{path} holds NaN or infinity in {name}; remove or repair those rows and write it again")
    return content


def _read_part(archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> Array:
    """One array of an npz file; its size was checked, and zipfile reads no more than that."""
    if part.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others are unpacked without a limit
        raise ValueError(f"its part {part.filename} is compressed in a way that numpy does not use")
    with archive.open(part) as file:
        try:
            array: Array = np.lib.format.read_array(file, allow_pickle=False)
            rest = file.read(1)  # compares the checksum
        except zipfile.BadZipFile:
            raise ValueError(f"its part {part.filename} fails the checksum") from None
    if rest:
        raise ValueError(f"its part {part.filename} has more bytes than its array")
    return array


def _all_finite(array: Array) -> bool:
    """Whether all numbers fit into float32, without a copy of the array."""
    most = np.finfo(np.float32).max
    parts = (array.real, array.imag) if array.dtype.kind == "c" else (array,)
    return array.size == 0 or all(-most <= part.min() and part.max() <= most for part in parts)  # false for NaN


def images_from_arrays(arrays: dict[str, Array], x: str, y: str, path: Path) -> Images:
    """The images and labels that are stored under these two names."""
    if not {x, y} <= arrays.keys():
        raise ValueError(f"{path} must hold {x} and {y}, got {sorted(arrays)}; write it again with those names")
    images = as_images(arrays[x], f"{x} of {path}")
    return Images(images, as_labels(arrays[y], len(images), f"{y} of {path}"))


def as_images(x: Array, where: str) -> Array:
    """Images ``(N, H, W)``, ``(N, H, W, C)`` or ``(N, C, H, W)`` in the last form; uint8, or float in [0, 1]."""
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.ndim != 4 or x.shape[1] not in (1, 3) or 0 in x.shape:
        raise ValueError(f"{where} must be images (N, H, W) or (N, H, W, 3), got shape {x.shape}; reshape them")
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x)
    if x.dtype.kind != "f":
        raise ValueError(f"{where} must be uint8, or float in [0, 1], got {x.dtype}; convert and save it again")
    low, high = float(x.min()), float(x.max())
    if not (low >= 0 and high <= 1):
        raise ValueError(
            f"{where} must be uint8, or float in [0, 1], got floats from {low:g} to {high:g}; rescale them"
        )
    return np.ascontiguousarray(x, dtype=np.float32)


def scaled(x: Array) -> Array:
    """Images as float32 in [0, 1]."""
    return np.divide(x, 255, dtype=np.float32) if x.dtype == np.uint8 else x


def as_labels(y: Array, n: int, where: str) -> Array:
    """Integer labels ``(N,)`` or ``(N, 1)``, as int64 ``(N,)``."""
    if y.dtype.kind not in "iu" or y.shape not in ((n,), (n, 1)):
        got = f"{y.dtype} of shape {y.shape}"
        raise ValueError(f"{where} must be {n} integer labels, one per image, got {got}; convert them")
    labels = y.reshape(n).astype(np.int64)
    if n and labels.min() < 0:
        raise ValueError(f"{where} must be labels of 0 or more, got {labels.min()}; number the classes from 0")
    return labels


# IDX -----------------------------------------------------------------------------------------------------------------


def read_idx(path: str | Path) -> Array:
    """The array of an IDX file, the format of MNIST."""
    path = Path(path)
    with _reading(path, "IDX file", "download it again"):
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as opened:
            array = _read_idx(cast(BinaryIO, opened), path.stat().st_size)
    return array


def _read_idx(file: BinaryIO, size: int) -> Array:
    """The array that an IDX file of ``size`` bytes announces; no byte after it is kept."""
    start = file.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in IDX_TYPES:
        raise ValueError(f"it starts with {start!r}, not with two zeros and an IDX type")
    dtype, rank = np.dtype(IDX_TYPES[start[2]]), start[3]
    sizes = file.read(4 * rank)
    if len(sizes) < 4 * rank:
        raise ValueError(f"it ends within its header of {4 + 4 * rank} bytes")
    shape = tuple(int.from_bytes(sizes[i : i + 4], "big") for i in range(0, 4 * rank, 4))
    expected = math.prod(shape) * dtype.itemsize
    check_unpacked(expected, size)
    content = file.read(expected + 1)  # one more than announced, which also compares the checksum of gzip
    if len(content) != expected:
        found = f"{4 + 4 * rank + len(content)}{' or more' * (len(content) > expected)}"
        raise ValueError(f"its header announces {4 + 4 * rank + expected} bytes, it has {found}")
    array = np.frombuffer(content, dtype).reshape(shape)
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("it holds NaN or infinity")
    return array.astype(dtype.newbyteorder("="))


# CIFAR ---------------------------------------------------------------------------------------------------------------


def read_cifar_binary(path: str | Path) -> Images:
    """A batch of CIFAR-10's binary version: records of one label byte and 3072 pixel bytes."""
    path = Path(path)
    with _reading(path, "CIFAR-10 binary batch", "unpack cifar-10-binary.tar.gz again"):
        content = np.frombuffer(path.read_bytes(), np.uint8)
        record = 1 + math.prod(CIFAR_SHAPE)
        if len(content) == 0 or len(content) % record:
            raise ValueError(f"it has {len(content)} bytes, not a whole number of {record}-byte records")
        rows = content.reshape(-1, record)
        return _cifar_images(rows[:, 1:], rows[:, 0])


def read_cifar_python(path: str | Path) -> Images:
    """A batch of CIFAR-10's Python version: a pickled dict with ``data`` and ``labels``. No code in it is run."""
    path = Path(path)
    with _reading(path, "CIFAR-10 Python batch", "unpack cifar-10-python.tar.gz again"):
        page = _unpickled(path.read_bytes())
        if not isinstance(page, dict):
            raise ValueError(f"it holds a {type(page).__name__}, not a dict")
        fields = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in page.items()}
        if "data" not in fields or "labels" not in fields:
            raise ValueError(f"it holds {sorted(map(str, fields))}, not data and labels")
        labels = _expect(fields["labels"], list)
        if not all(type(label) is int for label in labels):
            raise ValueError("its labels must be integers")
        return _cifar_images(fields["data"], np.array(labels, dtype=np.int64))


def _cifar_images(x: Any, y: Array) -> Images:
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != math.prod(CIFAR_SHAPE):
        kind = f"{x.dtype} of shape {x.shape}" if isinstance(x, np.ndarray) else f"a {type(x).__name__}"
        raise ValueError(f"its images must be uint8 (N, {math.prod(CIFAR_SHAPE)}), got {kind}")
    if len(x) == 0:
        raise ValueError("it holds no images")
    labels = as_labels(y, len(x), "its label list")
    if labels.max() > 9:
        raise ValueError(f"its labels must be 0..9, got {labels.max()}")
    return Images(x.reshape(-1, *CIFAR_SHAPE).copy(), labels)


# Pickles of plain data -----------------------------------------------------------------------------------------------

NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
STRINGS = ("BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES")
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
KNOWN_NAMES = (*RECONSTRUCT, "numpy ndarray", "numpy dtype", "_codecs encode")


class _Name:
    """A function or class that a pickle names; it is compared, never imported or called."""

    def __init__(self, text: str) -> None:
        if text not in KNOWN_NAMES:
            raise ValueError(f"it names {text.replace(' ', '.')}; only arrays, strings and numbers are read")
        self.text = text


@dataclass(eq=False)
class _Unfinished:
    """An array, or a dtype if one is given, that a later BUILD opcode completes; then ``done`` is its value."""

    dtype: str | None = None
    done: Any = None


def _unpickled(content: bytes) -> Any:
    """The value of a pickle made of numpy arrays, strings, bytes, numbers, lists, tuples and dicts.

    This interpreter executes the opcodes (protocols 2 to 4) without Python's unpickler. Opcodes and names outside the
    short list above raise a ValueError, so a pickle cannot import or call anything. Its time and memory are linear in
    the size of the pickle.
    """
    machine = _Machine(encodable=len(content))
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name == "STOP":
            break
        machine.step(opcode.name, argument)
    if len(machine.stack) != 1 or machine.outer:
        raise ValueError("it does not end in exactly one value")
    return machine.stack[0]


@dataclass
class _Machine:
    """The stack and memory of a pickle; `outer` holds the stacks below each open mark.

    ``encodable`` is how many more bytes may be made from strings. A pickle has every string once, so its own size is
    enough.
    """

    encodable: int
    stack: list[Any] = field(default_factory=list)
    outer: list[list[Any]] = field(default_factory=list)
    memory: dict[int, Any] = field(default_factory=dict)

    def step(self, name: str, argument: Any) -> None:
        """Execute one opcode."""
        stack = self.stack
        if name in ("PROTO", "FRAME"):
            return
        elif name in NUMBERS or name in STRINGS:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in ("BINSTRING", "SHORT_BINSTRING"):  # Python 2's str: bytes
            stack.append(argument.encode("latin1"))
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            stack.append([] if name == "EMPTY_LIST" else {})
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memory[len(self.memory) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            value = self.memory[argument]
            stack.append(value.done if isinstance(value, _Unfinished) and value.done is not None else value)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            stack.append(_Name(argument if name == "GLOBAL" else " ".join(self.take(2))))
        elif name == "REDUCE":
            stack.append(value := _reduced(*self.take(2)))
            self.encodable -= len(value) if isinstance(value, bytes) else 0
            if self.encodable < 0:
                raise ValueError("it turns one string into bytes many times")
        elif name == "BUILD":
            self.build(stack.pop())
        else:
            self.collect(name)

    def collect(self, name: str) -> None:
        """Execute an opcode that builds a tuple, list or dict."""
        if name == "MARK":
            self.outer.append(self.stack)
            self.stack = []
        elif name in SHORT_TUPLES or name == "TUPLE":
            values = self.take(SHORT_TUPLES[name]) if name in SHORT_TUPLES else self.since_mark()
            self.stack.append(tuple(values))
        elif name in ("APPEND", "APPENDS"):
            values = self.take(1) if name == "APPEND" else self.since_mark()
            _expect(self.stack[-1], list).extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            values = self.take(2) if name == "SETITEM" else self.since_mark()
            if not all(isinstance(key, (str, bytes, int)) for key in values[::2]):
                raise ValueError("a dict in it has a key that is neither a string nor a number")
            _expect(self.stack[-1], dict).update(zip(values[::2], values[1::2], strict=True))
        else:
            raise ValueError(f"it uses the opcode {name}; only arrays, strings and numbers are read")

    def take(self, n: int) -> list[Any]:
        """Remove the topmost n values."""
        if len(self.stack) < n:
            raise ValueError("it takes more values than its stack holds")
        values = self.stack[-n:]
        del self.stack[-n:]
        return values

    def since_mark(self) -> list[Any]:
        """Remove the last mark and all values above it."""
        if not self.outer:
            raise ValueError("it takes more values than its stack holds")
        values, self.stack = self.stack, self.outer.pop()
        return values

    def build(self, state: Any) -> None:
        """Complete the array or dtype on top of the stack; `step` replaces its copies in memory when they are used."""
        started = _expect(self.stack[-1], _Unfinished)
        started.done = _array(state) if started.dtype is None else _dtype(started.dtype, state)
        self.stack[-1] = started.done


def _reduced(function: Any, arguments: Any) -> Any:
    """The result of calling one of the few known names, computed without calling it."""
    name, arguments = _expect(function, _Name).text, _expect(arguments, tuple)
    if name in RECONSTRUCT and _expect(arguments[0], _Name).text == "numpy ndarray":
        return _Unfinished()
    if name == "numpy dtype" and re.fullmatch("[biuf][1248]", _text(arguments[0])):
        return _Unfinished(_text(arguments[0]))
    if name == "_codecs encode" and arguments[1:] in (("latin1",), ("latin-1",)):  # how Python 3 writes bytes
        return _expect(arguments[0], str).encode("latin1")
    raise ValueError(f"it calls {name.replace(' ', '.')} for something other than plain numbers")


def _dtype(text: str, state: Any) -> np.dtype[Any]:
    """A dtype from its name and its state, which gives the byte order."""
    order = _text(_expect(state, tuple)[1])
    if order not in ("<", ">", "|", "="):
        raise ValueError(f"an array in it has the byte order {order!r}")
    return np.dtype(text if order == "|" else order + text)


def _array(state: Any) -> Array:
    """An array from its state: version, shape, dtype, column-major order or not, values."""
    _, shape, dtype, fortran, values = _expect(state, tuple)
    flat = np.frombuffer(_expect(values, bytes), _expect(dtype, np.dtype))
    if not all(type(size) is int and size >= 0 for size in _expect(shape, tuple)) or math.prod(shape) != flat.size:
        raise ValueError(f"an array in it has {flat.size} values, which do not fit its shape")
    return flat.reshape(shape, order="F" if fortran else "C")


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"it has a {type(value).__name__} instead of a {kind.__name__}")
    return value


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(_expect(value, str))


# SVHN ----------------------------------------------------------------------------------------------------------------


def read_svhn(path: str | Path) -> Images:
    """SVHN's cropped digits: a MATLAB file with ``X`` (32, 32, 3, N) and ``y`` 1..10, where 10 is the digit 0."""
    path = Path(path)
    with _reading(path, "SVHN file of cropped digits", "download it again"):
        page = numeric_arrays(path.read_bytes(), ("X", "y"))
        if "X" not in page or "y" not in page:
            raise ValueError("it must hold X and y")
        x, y = page["X"], page["y"]
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3 or 0 in x.shape:
            raise ValueError(f"X must be uint8 (H, W, 3, N), got {x.dtype} of shape {x.shape}")
        labels = as_labels(y, x.shape[3], "y")
        if labels.min() < 1 or labels.max() > 10:
            raise ValueError(f"y must be 1..10, got {labels.min()}..{labels.max()}")
        return Images(np.ascontiguousarray(x.transpose(3, 2, 0, 1)), labels % 10)


# Image folders -------------------------------------------------------------------------------------------------------


def read_image_folder(path: str | Path, *, size: tuple[int, int] | None = None) -> Images:
    """Pictures in one folder per class, ``path/<class name>/<picture>``, both in alphabetical order.

    If all class names are whole numbers, classes are in the order of these numbers: 2 comes before 10.

    Args:
        path: the folder that holds the class folders. Hidden files and files that are not pictures are ignored.
        size: ``(height, width)`` to resize every picture to (default: all must have one size).
    """
    path = Path(path)
    folders = class_folders(path)
    if not folders:
        advice = f"put the pictures into {path}/<class name>/, or, without labels, into {path}"
        raise ValueError(f"{path} must hold one folder per class, got none; {advice}")
    by_class = [pictures_in(folder) for folder in folders]
    files = [file for some in by_class for file in some]
    y = np.repeat(np.arange(len(folders)), [len(some) for some in by_class])
    names = tuple(f"{file.parent.name}/{file.name}" for file in files)
    return Images(read_pictures(files, size=size), y, tuple(folder.name for folder in folders), names)


def class_folders(path: Path) -> list[Path]:
    """The folders of classes in the order of their labels: by number if all names are numbers, otherwise by name."""
    folders = sorted(f for f in path.iterdir() if f.is_dir() and not f.name.startswith("."))
    numbers = all(folder.name.isascii() and folder.name.isdecimal() for folder in folders)
    return sorted(folders, key=lambda folder: int(folder.name)) if numbers else folders


def read_pictures(files: Sequence[Path], *, size: tuple[int, int] | None = None) -> Array:
    """The pictures in these files: uint8 ``(N, C, H, W)``; see `read_image_folder`."""
    needed = partial(_needed_limit, files, size)
    pictures, bytes_read, unpacked = [], 0, 0
    with activity("reading pictures", len(files)) as work:
        for file in files:
            pictures.append(_read_picture(file, size, needed))
            if size is None:  # otherwise the user decides how many bytes each picture takes
                bytes_read += file.stat().st_size
                unpacked += pictures[-1].nbytes
                check_unpacked(unpacked, bytes_read, f"{file.parent}, up to {file.name},", needed=needed)
            work.advance()
    _check_sizes(files, pictures)
    if any(p.ndim == 3 for p in pictures):  # if one picture is in colour, all become colour
        pictures = [p if p.ndim == 3 else np.repeat(p[:, :, None], 3, axis=2) for p in pictures]
    return as_images(np.stack(pictures), str(files[0].parent))


def pictures_in(folder: Path) -> list[Path]:
    """The picture files of a folder, in order; raises a ValueError if there are none."""
    files = sorted(f for f in folder.iterdir() if f.suffix.lower() in PICTURES and not f.name.startswith("."))
    if not files:
        raise ValueError(f"{folder} must hold pictures ({', '.join(PICTURES)}), got none; fill or remove that folder")
    return files


def _needed_limit(files: Sequence[Path], size: tuple[int, int] | None) -> int:
    """The limit that admits all of these pictures, from their headers; unreadable ones are refused in any case."""
    from PIL import Image

    largest = total = 0
    for file in files:
        with suppress(Exception), _own_limit():
            check_regular(file)
            with Image.open(file, formats=PILLOW_FORMATS) as picture:
                pixels = picture.width * picture.height
                largest, total = max(largest, 4 * pixels), total + pixels * (1 if picture.mode in GREY_MODES else 3)
    return max(PICTURES_PER_LIMIT * largest, total if size is None else 0)


def _read_picture(path: Path, size: tuple[int, int] | None, needed: Callable[[], int]) -> Array:
    """One picture as uint8: ``(H, W)`` if it is grey, else ``(H, W, 3)``."""
    from PIL import Image

    with _reading(path, "picture", "replace or remove it"), _own_limit():
        with Image.open(path, formats=PILLOW_FORMATS) as picture:
            check_picture_bytes(4 * picture.width * picture.height, path.stat().st_size, needed=needed)
            picture.verify()  # checksums; the file has to be opened again afterwards
        with Image.open(path, formats=PILLOW_FORMATS) as picture:
            if picture.mode[0] in "IF":
                raise ValueError(f"its pixels have mode {picture.mode}, not 8 bits each")
            if picture.has_transparency_data and picture.convert("RGBA").getchannel("A").getextrema()[0] != 255:
                raise ValueError("parts of it are transparent, so its colours depend on the background")
            plain = picture.convert("L" if picture.mode in GREY_MODES else "RGB")
        return np.array(plain if size is None else plain.resize((size[1], size[0]), Image.Resampling.BILINEAR))


@contextmanager
def _own_limit() -> Iterator[None]:
    """Switch off Pillow's limit of pixels, which only warns below twice its value; ours raises an error before it."""
    from PIL import Image

    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _check_sizes(files: Sequence[Path], pictures: Sequence[Array]) -> None:
    sizes = [p.shape[:2] for p in pictures]
    usual = Counter(sizes).most_common(1)[0][0]
    for file, (height, width) in zip(files, sizes, strict=True):
        if (height, width) != usual:
            raise ValueError(
                f"all pictures must have one size: {file} is {height} x {width} (height x width), most are "
                f"{usual[0]} x {usual[1]}; pass size={usual} to resize every picture, or remove that file"
            )
