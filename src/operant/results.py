"""Results are values: frozen dataclasses that print, compare, and come back from disk as they were."""

import dataclasses
import hashlib
import json
import math
import os
import tempfile
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

FORMAT = 1
T = TypeVar("T")


def write_atomically(path: Path, content: bytes) -> None:
    """Write under a temporary name, flush to disk, rename: a kill at any moment leaves the old file or the new one."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def save(result: Any, path: str | Path) -> None:
    """Write a frozen dataclass as readable JSON, its tensors beside it as safetensors.

    Args:
        result: a dataclass of numbers, strings, tensors, tuples, string-keyed dicts and further dataclasses.
        path: the JSON file; tensors go to a file next to it that the JSON names.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    page = {"format": FORMAT, "type": type(result).__name__, "value": _encode(result, "", tensors)}
    if tensors:
        content = save_tensors(tensors, {"format": str(FORMAT)})
        name = f"{path.stem}.{hashlib.blake2b(content, digest_size=6).hexdigest()}.safetensors"
        write_atomically(path.with_name(name), content)
        page["tensors"] = name
    write_atomically(path, json.dumps(page, indent=2, allow_nan=False).encode() + b"\n")
    for old in path.parent.glob(f"{path.stem}.{'?' * 12}.safetensors"):
        if old.name != page.get("tensors"):
            old.unlink()


def load(path: str | Path, kind: type[T]) -> T:
    """Read back what `save` wrote; anything else is refused with a sentence that names the file."""
    path = Path(path)
    wrong = f"{path} is not a format-{FORMAT} {kind.__name__}"
    try:
        page = json.loads(path.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{wrong}: it is not readable JSON ({error}); write it again") from None
    if not isinstance(page, dict) or page.get("format") != FORMAT or page.get("type") != kind.__name__:
        found = f"format {page.get('format')} {page.get('type')}" if isinstance(page, dict) else "something else"
        raise ValueError(f"{wrong}: it holds {found}; run the step that made it again")
    try:
        tensors = load_tensors((path.parent / page["tensors"]).read_bytes()) if "tensors" in page else {}
        result: T = _decode(kind, page["value"], tensors)
    except (KeyError, TypeError, ValueError, OSError, SafetensorError) as error:
        raise ValueError(f"{wrong}: {error}; run the step that made it again") from None
    return result


def _encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _encode(getattr(value, f.name), f"{name}.{f.name}", tensors) for f in dataclasses.fields(value)}
    if isinstance(value, Tensor):
        tensors[name.lstrip(".")] = value.detach().cpu().contiguous().clone()
        return {"tensor": name.lstrip(".")}
    if isinstance(value, dict):
        return {str(k): _encode(v, f"{name}.{k}", tensors) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [_encode(v, f"{name}.{i}", tensors) for i, v in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity and no NaN
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a result holds numbers, strings, tensors, tuples and dicts; {name.lstrip('.')} is {type(value)}")


def _decode(hint: Any, value: Any, tensors: dict[str, Tensor]) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _decode(next(a for a in arguments if a is not type(None)), value, tensors)
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{k: _decode(hints[k], v, tensors) for k, v in value.items()})  # type: ignore[operator]
    if hint is Tensor:
        return tensors[value["tensor"]]
    if origin in (tuple, list):
        same = len(arguments) == 1 or arguments[-1] is ...  # tuple[float, ...] and list[float]
        return origin(_decode(arguments[0 if same else i], v, tensors) for i, v in enumerate(value))
    if origin is dict:
        return {k: _decode(arguments[1], v, tensors) for k, v in value.items()}
    return float(value) if hint is float else value
