"""Progress events: how far a step is, for whoever displays it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Event:
    """What has happened: how much of a step is done, and a few words by name."""

    step: str
    done: int
    total: int
    told: Mapping[str, Any] = field(default_factory=dict)


EventHandler = Callable[[Event], None]
"""Is told what happens."""
