"""Safe reading of files from others: regular files only, and no small file that unpacks to gigabytes.

An ordinary data set passes both limits below. The environment variable ``OPERANT_MAX_BYTES`` raises them all, or, if it
is not set, ``[data] max_bytes`` of ``operant.toml``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from operant.formatting import first_few

VARIABLE = "OPERANT_MAX_BYTES"
MAX_BYTES = 2**30  # what any file may unpack to, unless the environment variable says otherwise
_configured: int | None = None  # in its place; see `set_max_bytes`
MAX_RATIO = 20  # larger content is accepted up to this multiple of the file's size
PICTURES_PER_LIMIT = 4  # a picture may take a quarter: decoding needs several copies of its pixels


def existing(path: Path) -> Path:
    """The path itself; a ValueError that names what is beside it, most similar first, if it does not exist."""
    if path.exists():
        return path
    beside = sorted(p.name for p in path.parent.glob(f"*{path.suffix}")) if path.parent.is_dir() else []
    meant = get_close_matches(path.stem, [Path(name).stem for name in beside], n=1)
    hint = f"; beside it are {first_few(beside, 5)}" if beside else ""
    if meant:
        hint = f"; did you mean {meant[0]}{path.suffix}?"
    raise ValueError(f"there is no {path}{hint}")


def check_regular(path: Path) -> None:
    """Raise a ValueError if a path is neither a file nor a folder: reading a pipe or a device may never end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ValueError(f"{path} must be a regular file, but is a pipe, a socket or a device; remove it")


def read_regular(path: Path) -> bytes:
    """The content of a regular file; see `check_regular`."""
    check_regular(path)
    return path.read_bytes()


def set_max_bytes(limit: int | None) -> None:
    """Set what any file may unpack to in this process, if the environment does not; None for 1 GiB."""
    global _configured
    _configured = limit


def max_bytes() -> int:
    """What any file may unpack to: the environment variable ``OPERANT_MAX_BYTES``, or `set_max_bytes`, or 1 GiB.

    >>> max_bytes() == 2**30
    True
    """
    given = os.environ.get(VARIABLE, "").strip()
    if not given:
        return MAX_BYTES if _configured is None else _configured
    if not (given.isdecimal() and len(given) < 20 and int(given) > 0):
        raise ValueError(
            f"the environment variable {VARIABLE} must be a number of bytes such as {2**33}, got {given!r}"
        )
    return int(given)


def limit_for(size: int) -> int:
    """How many bytes a file of ``size`` bytes may unpack to."""
    return max(max_bytes(), MAX_RATIO * size)


def check_unpacked(unpacked: int, size: int, what: str = "it", *, needed: Callable[[], int] = lambda: 0) -> None:
    """Raise a ValueError if a file of ``size`` bytes would unpack to more than `limit_for` allows.

    The error names a limit that is enough for it; ``needed`` gives a higher one if other files need it.

    >>> check_unpacked(3 * 10**9, size=10**9)
    >>> check_unpacked(3 * 10**9, size=10**6)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: it unpacks to 3 GB, more than the limit of 1.07 GB (set OPERANT_MAX_BYTES=3000000000 to read it...
    """
    if unpacked > (limit := limit_for(size)):
        raise _too_large(unpacked, limit, max(unpacked, needed()), what)


def check_picture_bytes(unpacked: int, size: int, *, needed: Callable[[], int] = lambda: 0) -> None:
    """The same for one picture, with a quarter of the limit, or `MAX_RATIO` times the file's size."""
    if unpacked > (limit := max(max_bytes() // PICTURES_PER_LIMIT, MAX_RATIO * size)):
        raise _too_large(unpacked, limit, max(PICTURES_PER_LIMIT * unpacked, needed()), "it")


def _too_large(unpacked: int, limit: int, needed: int, what: str) -> ValueError:
    return ValueError(
        f"{what} unpacks to {unpacked / 1e9:.3g} GB, more than the limit of {limit / 1e9:.3g} GB "
        f"(set {VARIABLE}={needed} to read it anyway, or [data] max_bytes of operant.toml)"
    )
