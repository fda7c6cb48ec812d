"""The settings of a run as text, to refuse mixing two runs in one folder."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import fields
from typing import Any

from operant.model.hashing import described


def signature_of(options: Any, *, free: Collection[str] = (), **parts: object) -> dict[str, str]:
    """What a run is made of, by name, as text that is the same whenever the settings are.

    Args:
        options: a dataclass; every field counts but those that are ``free``, and how progress is shown.
        parts: further models, samples, numbers or words.
    """
    counts = [f.name for f in fields(options) if f.name not in (*free, "progress")]
    told = {name: described(getattr(options, name)) for name in counts}
    told |= {name: described(part) for name, part in parts.items()}
    for name, text in told.items():
        if local := re.search(r"[\w.]*<(lambda|locals)>[\w.<>]*", text):
            raise ValueError(
                f"{name} must be made of functions and classes at the top of a module, got {local[0]}, which neither a "
                "run that is gone on with nor another process would know again; define it there, and give it options "
                "with functools.partial"
            )
    return told
