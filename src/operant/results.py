"""Save and load results: frozen dataclasses as JSON, their tensors as safetensors."""

import dataclasses
import hashlib
import json
import math
import os
import re
import time
import types
import typing
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from operant.files import read_regular

FORMAT = 1
TEMPORARY = ".operant-tmp"  # suffix of files that are still being written
LOCK_FILE = ".lock.guard"
T = TypeVar("T")

try:
    import fcntl
except ImportError:  # not on every system
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes of this machine, if the file system supports locks."""
    with open(folder / LOCK_FILE, "ab") as file:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_atomically(path: Path, content: bytes, *, overwrite: bool = True, mode: int | None = None) -> None:
    """Write under a temporary name, flush to disk, rename: a kill at any moment leaves the old file or the new one.

    With ``overwrite=False`` an existing file is kept, and FileExistsError is raised. ``mode`` sets the permissions
    (default: those of every new file); nobody else can open the file before they are set.
    """
    _remove_leftovers(path.parent)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{TEMPORARY}")
    try:
        with open(temporary, "xb", opener=None if mode is None else partial(os.open, mode=0o600)) as file:
            if mode is not None:
                os.chmod(temporary, mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            os.replace(temporary, path)
        else:
            _link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def save(result: Any, path: str | Path) -> None:
    """Write a frozen dataclass as readable JSON, its tensors beside it as safetensors.

    Args:
        result: a dataclass whose fields are declared as numbers, strings, tensors, further dataclasses, tuples, lists
            or dicts of those, or any of these ``| None``. Other unions raise a TypeError: nothing says which member
            was saved.
        path: the JSON file; it names the file next to it that holds the tensors.
    """
    path = Path(path)
    if not dataclasses.is_dataclass(result) or isinstance(result, type):
        raise TypeError(f"a result must be a dataclass, got {result!r:.80}")
    tensors: dict[str, Tensor] = {}
    page = {"format": FORMAT, "type": type(result).__name__, "value": _encode(type(result), result, "", tensors)}
    path.parent.mkdir(parents=True, exist_ok=True)
    if tensors:
        content = save_tensors(tensors, {"format": str(FORMAT)})
        page["tensors"] = f"{path.name}.{_hash(content)}.safetensors"
        write_atomically(path.with_name(page["tensors"]), content)
    write_atomically(path, json.dumps(page, indent=2, allow_nan=False).encode() + b"\n")
    outdated = re.compile(re.escape(path.name) + r"\.[0-9a-f]{12}\.safetensors")
    for old in path.parent.iterdir():
        if outdated.fullmatch(old.name) and old.name != page.get("tensors"):
            old.unlink(missing_ok=True)


def load(path: str | Path, kind: type[T]) -> T:
    """Read a result that `save` wrote; any other file raises a ValueError that names it."""
    path = Path(path)
    wrong = f"{path} is not a format-{FORMAT} {kind.__name__}"
    try:
        page = json.loads(read_regular(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{wrong}: it is not readable JSON ({error}); write it again") from None
    if not isinstance(page, dict) or page.get("format") != FORMAT or page.get("type") != kind.__name__:
        found = f"format {page.get('format')} {page.get('type')}" if isinstance(page, dict) else "something else"
        raise ValueError(f"{wrong}: it holds {found}; run the step that made it again")
    try:
        tensors = _read_tensors(path.with_name(page["tensors"])) if "tensors" in page else {}
        result: T = _decode(kind, page["value"], tensors)
    except Exception as error:  # values of the right types may still contradict each other
        reason = str(error).strip() or type(error).__name__
        raise ValueError(f"{wrong}: {reason}; run the step that made it again") from None
    return result


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files older than an hour, left by killed writers; temporary folders belong to their owners."""
    for file in folder.glob(f".*{TEMPORARY}"):
        with suppress(OSError):  # the writer has just finished, or the file cannot be removed; both are harmless
            if not file.is_dir() and time.time() - file.stat().st_mtime > 3600:
                file.unlink()


def _link(temporary: Path, path: Path) -> None:
    """Rename a finished file unless the name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if path.exists():
            raise FileExistsError(f"{path} already exists") from None
        os.rename(temporary, path)


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=6).hexdigest()


def _read_tensors(file: Path) -> dict[str, Tensor]:
    content = read_regular(file)
    if not file.name.endswith(f".{_hash(content)}.safetensors"):
        raise ValueError(f"{file.name} has changed since it was written")
    return load_tensors(content)


def _encode(hint: Any, value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The JSON form of a value, chosen by its type hint so that `_decode` can read it."""
    if _is_union(hint):
        return None if value is None else _encode(_member(hint), value, name, tensors)
    if dataclasses.is_dataclass(hint) and type(value) is hint:
        return {k: _encode(h, getattr(value, k), f"{name}.{k}", tensors) for k, h in _fields(hint).items()}
    if hint is Tensor and isinstance(value, Tensor):
        return {"tensor": _keep(value, name.lstrip("."), tensors)}
    if _is_list(hint) and isinstance(value, (tuple, list)):
        return [_encode(h, v, f"{name}.{i}", tensors) for i, (h, v) in enumerate(_items(hint, value))]
    if _is_dict(hint) and isinstance(value, Mapping) and all(_is_plain(typing.get_args(hint)[0], k) for k in value):
        return {str(k): _encode(typing.get_args(hint)[1], v, f"{name}.{k}", tensors) for k, v in value.items()}
    if hint is float and isinstance(value, (int, float)):
        return float(value) if math.isfinite(value) else str(value)  # JSON has no infinity and no NaN
    if hint is Any and isinstance(value, tuple | list):
        return [_encode(Any, v, f"{name}.{i}", tensors) for i, v in enumerate(value)]
    if hint is Any and isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _encode(Any, v, f"{name}.{key}", tensors) for key, v in value.items()}
    if _is_plain(hint, value) or (hint is Any and _is_json(value)):
        return value
    raise TypeError(
        f"{name.lstrip('.')} is declared {hint} and holds {value!r:.80}; a result holds numbers, strings, tensors, "
        "dataclasses, and tuples, lists and dicts of them"
    )


def _decode(hint: Any, value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value that `_encode` turned into JSON."""
    if _is_union(hint):
        return None if value is None else _decode(_member(hint), value, tensors)
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        hints = _fields(hint)
        if unknown := [k for k in value if k not in hints]:
            raise ValueError(f"a {getattr(hint, '__name__', hint)} has no field {unknown[0]!r:.80}")
        return hint(**{k: _decode(hints[k], v, tensors) for k, v in value.items()})  # type: ignore[operator]
    if hint is Tensor and isinstance(value, dict):
        if (name := value.get("tensor")) not in tensors:
            raise ValueError(f"there is no tensor {name!r:.80}")
        return tensors[name]
    if _is_list(hint) and isinstance(value, list):
        items = [_decode(h, v, tensors) for h, v in _items(hint, value)]
        return items if typing.get_origin(hint) is list else tuple(items)
    if _is_dict(hint) and isinstance(value, dict):
        key, item = typing.get_args(hint)
        return {key(k): _decode(item, v, tensors) for k, v in value.items()}
    if hint is float and (isinstance(value, (int, float)) or value in ("inf", "-inf", "nan")):
        return float(value)
    if _is_plain(hint, value) or hint is Any:
        return value
    raise ValueError(f"expected {hint}, got {value!r:.80}")


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _member(hint: Any) -> Any:
    """The ``X`` of ``X | None``."""
    members = [a for a in typing.get_args(hint) if a is not type(None)]
    if len(members) != 1:
        raise TypeError(f"a field may hold one type or None, got {hint}, which cannot be read back; declare two fields")
    return members[0]


def _fields(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind) if f.init}


def _is_list(hint: Any) -> bool:
    return typing.get_origin(hint) in (tuple, list, Sequence)


def _is_dict(hint: Any) -> bool:
    return typing.get_origin(hint) in (dict, Mapping) and typing.get_args(hint)[0] in (str, int)


def _items(hint: Any, values: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Each item with its type hint: ``tuple[int, str]`` has one per item, ``list[int]`` one for all."""
    arguments = typing.get_args(hint)
    fixed = typing.get_origin(hint) is tuple and arguments[-1:] != (...,)
    if fixed and len(arguments) != len(values):
        raise ValueError(f"{hint} has {len(arguments)} items, got {len(values)}")
    return list(zip(arguments if fixed else arguments[:1] * len(values), values, strict=True))


def _is_plain(hint: Any, value: Any) -> bool:
    """Whether an int, str, bool or literal has the declared type; a bool does not count as an int."""
    if typing.get_origin(hint) is typing.Literal:
        return any(value is a or (type(value) is type(a) and value == a) for a in typing.get_args(hint))
    return hint in (int, str, bool) and isinstance(value, hint) and isinstance(value, bool) == (hint is bool)


def _is_json(value: Any) -> bool:
    """Whether a single value declared ``Any`` comes back from JSON as it is."""
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))


def _keep(value: Tensor, name: str, tensors: dict[str, Tensor]) -> str:
    """Add a tensor under a free name and return that name."""
    while name in tensors:  # dict keys may contain dots
        name += "'"
    tensors[name] = value.detach().cpu().contiguous().clone()
    return name
