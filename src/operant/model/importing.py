"""Import the user's code by name: ``package.module:callable`` or ``file.py:callable``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from operant.files import existing
from operant.model.errors import how_to_wrap


def build_module(target: str, *, root: Path | None = None) -> nn.Module:
    """The module that ``package.module:callable`` or ``file.py:callable`` returns when called without arguments.

    Every problem is raised as a ValueError with a one-sentence message.

    Args:
        root: the folder that imports also search, and that relative paths of files start from (default: the current).
    """
    build = find_callable(target, root=root)
    try:
        module = build()
    except Exception as error:  # the user's code may raise anything
        wrap = how_to_wrap(build) if isinstance(error, TypeError) else ""  # it may be the model, called without inputs
        what = f"{target}() must build the model without arguments, but raised {_message(error)}"
        raise ValueError(f"{what}{wrap}") from error
    if not isinstance(module, nn.Module):
        got = f"{type(module).__name__}{how_to_wrap(module)}"
        raise ValueError(f"{target}() must return a torch.nn.Module, got {got}")
    return module


def find_callable(target: str, *, root: Path | None = None) -> Callable[..., Any]:
    """What ``package.module:callable`` or ``file.py:callable`` names.

    Worker processes import it again, so a file is imported by its name, from its own folder.
    """
    source, colon, path = target.rpartition(":")
    if not (source and colon and path):
        raise ValueError(f"a callable must be given as package.module:callable or file.py:callable, got {target!r}")
    root = Path.cwd() if root is None else root
    if not source.endswith(".py"):
        _add_to_import_path(root)
        return _find(source, path)
    file = existing((root / Path(source).expanduser()).resolve())
    _add_to_import_path(file.parent)
    found = _find(file.stem, path)
    imported = getattr(sys.modules[file.stem], "__file__", None)
    if imported is None or Path(imported).resolve() != file:
        raise ValueError(f"{file.name} has the same name as another module, {imported or file.stem}; rename the file")
    return found


def _add_to_import_path(folder: Path) -> None:
    if (place := str(folder.resolve())) not in sys.path:
        sys.path.insert(0, place)


def _find(module_name: str, path: str) -> Callable[..., Any]:
    """The callable at a dotted path in a module."""
    target = f"{module_name}:{path}"
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # the user's code may raise anything
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            where = "run this from the folder that holds it, or install it"
            raise ValueError(f"there is no module {module_name}; {where}") from error
        raise ValueError(f"importing {module_name} failed: {_message(error)}") from error
    for name in path.split("."):
        if not hasattr(found, name):
            names = [n for n, v in vars(found).items() if callable(v) and not n.startswith("_")]
            raise ValueError(f"{module_name} has no {path}; it has {', '.join(names) or 'no callables'}")
        found = getattr(found, name)
    if not callable(found):
        raise ValueError(f"{target} must be a callable, got {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def _message(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
