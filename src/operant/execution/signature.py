"""The settings of a run as text, so that two runs are never mixed in one folder."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import fields
from typing import Any

from operant.model.hashing import described


def signature_of(options: Any, *, free: Collection[str] = (), **parts: object) -> dict[str, str]:
    """The settings and data of a run, by name, as text that is equal whenever they are.

    Args:
        options: a dataclass; all fields count except ``progress`` and those in ``free``.
        free: fields that may change between a run and its resumption.
        parts: further models, samples, numbers or strings.
    """
    names = [f.name for f in fields(options) if f.name not in (*free, "progress")]
    signature = {name: described(getattr(options, name)) for name in names}
    signature |= {name: described(part) for name, part in parts.items()}
    for name, text in signature.items():
        if local := re.search(r"[\w.]*<(lambda|locals)>[\w.<>]*", text):
            raise ValueError(
                f"{name} must use functions and classes defined at the top of a module, got {local[0]}, which cannot "
                "be restored on resume or sent to another process; define it there, and set options with "
                "functools.partial"
            )
    return signature


def difference(name: str, old: str, new: str) -> str:
    """A setting's name and, if that is short, what changed in it."""
    a, b = (re.findall(r"[^,(){}\[\]]+", text) for text in (old, new))
    pairs = [(x.strip(), y.strip()) for x, y in zip(a, b, strict=True) if x != y] if len(a) == len(b) else [(old, new)]
    changes = ", ".join(dict.fromkeys(f"{x} -> {y}" for x, y in pairs))  # each once, in order
    return f"{name} ({changes})" if len(changes) <= 160 else name
