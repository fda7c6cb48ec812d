"""Import the user's code by name: ``package.module:callable``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn


def build_module(target: str) -> nn.Module:
    """The module that ``package.module:callable`` returns when called without arguments.

    Imports also search the current folder. Every problem is raised as a ValueError with a one-sentence message.
    """
    build = find_callable(target)
    try:
        module = build()
    except Exception as error:  # the user's code may raise anything
        raise ValueError(f"{target}() must build the model without arguments, but raised {_message(error)}") from error
    if not isinstance(module, nn.Module):
        raise ValueError(f"{target}() must return a torch.nn.Module, got {type(module).__name__}")
    return module


def find_callable(target: str) -> Callable[..., Any]:
    """What ``package.module:callable`` names."""
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise ValueError(f"the model must be given as package.module:callable, got {target!r}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
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
