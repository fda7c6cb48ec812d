"""Looks for the mistakes that make test results meaningless."""

from __future__ import annotations

from dataclasses import dataclass

from operant.data import Samples
from operant.model import Classifier


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that is wrong, and what to do about it."""

    name: str
    problem: str
    advice: str
    severity: str  # "error": results would be meaningless; "warning": read them with care


def examine(model: Classifier, samples: Samples) -> tuple[Finding, ...]:
    """Run every check and return what was found, gravest first."""
    raise NotImplementedError
