"""What the KuK study has found so far, read from disk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from operant import results
from operant.measure.patterns import AUC, MEASURES, auc, auc_difference, patterns, toward_adversarial
from operant_studies.kuk.dropout import Dropout
from operant_studies.kuk.existing import METHODS, Measured, step_name
from operant_studies.kuk.search import CAUSES, CONTROL, MORE_RUNS, Bred, joined
from operant_studies.kuk.settings import PATTERNS, Subject


def search_name(pattern: str, run: int, cause: str, chunk: int) -> str:
    """The step of a chunk of seeds.

    >>> search_name("LL", 0, "fresh masks", 3)
    'why-fresh-masks-LL-3'
    """
    head = f"why-{re.sub('[^a-z]+', '-', cause)}-{pattern}" if cause else f"kuk-{pattern}-run{run}"
    return f"{head}-{chunk}"


@dataclass(frozen=True)
class Found:
    """All finished steps of one model."""

    subject: Subject
    folder: Path

    @cached_property
    def dropout(self) -> Dropout:
        return results.load(self._path("dropout"), Dropout)

    @cached_property
    def measured(self) -> dict[str, Measured]:
        """By method; those that have not run are left out."""
        places = {method: self._path(step_name(method)) for method in METHODS}
        return {method: results.load(path, Measured) for method, path in places.items() if path.exists()}

    def searches(self, cause: str = "") -> dict[str, Bred]:
        """By pattern, all runs together, as far as they are finished."""
        found = {pattern: self._bred(pattern, cause) for pattern in PATTERNS}
        return {pattern: joined(parts) for pattern, parts in found.items() if parts}

    def by_run(self, pattern: str) -> list[Bred]:
        parts = [self._chunks(pattern, run, "") for run in range(self.subject.runs)]
        return [joined(chunks) for chunks in parts if chunks]

    def as_it_is(self, pattern: str) -> Bred | None:
        """The main search from the seeds that controls and experiments have; None if it is not finished."""
        return self._first_run(pattern, "")

    def more(self, pattern: str) -> Bred | None:
        """The main search from its own and from further seeds; None if those are not searched from."""
        runs = [self._chunks(pattern, run, "") for run in range(self.subject.runs + MORE_RUNS)]
        return joined([part for parts in runs for part in parts]) if all(map(self._whole, runs)) else None

    def control(self, pattern: str) -> Bred | None:
        """The same without selection."""
        return self._first_run(pattern, CONTROL)

    def experiments(self, pattern: str) -> dict[str, Bred]:
        """By cause, those on one pattern that are finished."""
        found = {cause: self._first_run(pattern, cause) for cause in CAUSES}
        return {cause: bred for cause, bred in found.items() if bred is not None}

    def _first_run(self, pattern: str, cause: str) -> Bred | None:
        parts = self._chunks(pattern, 0, cause)
        return joined(parts) if self._whole(parts) else None

    def _whole(self, parts: Sequence[Bred]) -> bool:
        """Whether these are all chunks of a run."""
        return len(parts) == -(-self.subject.seeds // self.subject.chunk)

    def areas(self, method: str) -> dict[str, AUC]:
        """AUC of each measure, the method's cases against benign inputs; none where there are too few cases."""
        kinds = self._against_benign(method)
        if kinds is None:
            return {}
        values, adversarial = kinds
        return {name: auc(values[name], adversarial) for name in MEASURES}

    def leads(self, method: str, first: str, others: Sequence[str]) -> dict[str, AUC]:
        """By how much one measure's area exceeds those of others; none where there are too few cases."""
        kinds = self._against_benign(method)
        return {name: auc_difference(kinds[0][first], kinds[0][name], kinds[1]) for name in others} if kinds else {}

    def patterns(self, method: str) -> list[str]:
        """That a method's cases follow; empty words for none."""
        values = self.measured[method].values
        return [str(name) for name in patterns(values["pcs"], values["vro"])]

    @property
    def seconds(self) -> float:
        """CPU time of everything."""
        total = self.dropout.seconds + sum(m.seconds for m in self.measured.values())
        for cause in ("", CONTROL, *CAUSES):
            total += sum(bred.seconds for bred in self.searches(cause).values())
        further = range(self.subject.runs, self.subject.runs + MORE_RUNS)
        return total + sum(b.seconds for p in PATTERNS for run in further for b in self._chunks(p, run, ""))

    def _against_benign(self, method: str) -> tuple[dict[str, Tensor], Tensor] | None:
        benign, other = self.measured.get("benign"), self.measured.get(method)
        if benign is None or other is None or len(other.values["pcs"]) < 2:
            return None
        values = {
            name: toward_adversarial(name, torch.cat([benign.values[name], other.values[name]])) for name in MEASURES
        }
        n = len(benign.values["pcs"])
        return values, torch.arange(len(values["pcs"])) >= n

    def _bred(self, pattern: str, cause: str) -> list[Bred]:
        runs = range(1 if cause else self.subject.runs)
        return [part for run in runs for part in self._chunks(pattern, run, cause)]

    def _chunks(self, pattern: str, run: int, cause: str) -> list[Bred]:
        numbers = range(-(-self.subject.seeds // self.subject.chunk))
        places = [self._path(search_name(pattern, run, cause, i)) for i in numbers]
        return [results.load(path, Bred) for path in places if path.exists()]

    def _path(self, step: str) -> Path:
        return self.folder / self.subject.name / f"{step}.json"
