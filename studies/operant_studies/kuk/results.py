"""Results of the KuK study, read from the finished steps of each model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from operant.measure import pattern
from operant.measure.patterns import AUC, MEASURES, auc, auc_difference, toward_adversarial
from operant.results import load
from operant_studies.kuk.dropout import DropoutChoice
from operant_studies.kuk.existing import METHODS, MeasuredCases, step_name
from operant_studies.kuk.search import CAUSES, CONTROL, EXTRA_RUNS, PatternSearch, join
from operant_studies.kuk.settings import PATTERNS, Subject
from operant_studies.shared import Steps, slug


def search_name(pattern: str, run: int, cause: str, chunk: int) -> str:
    """The step of a chunk of seeds.

    >>> search_name("LL", 0, "fresh masks", 3)
    'why-fresh-masks-LL-3'
    """
    head = f"why-{slug(cause)}-{pattern}" if cause else f"kuk-{pattern}-run{run}"
    return f"{head}-{chunk}"


@dataclass(frozen=True)
class KukResults:
    """All finished steps of one model."""

    subject: Subject
    folder: Path

    @cached_property
    def dropout(self) -> DropoutChoice:
        return load(self._steps.folder / "dropout.json", DropoutChoice)

    @cached_property
    def measured(self) -> dict[str, MeasuredCases]:
        """By method; methods that have not run are left out."""
        return {m.method: m for m in self._steps.load_all(map(step_name, METHODS), MeasuredCases)}

    def searches(self, cause: str = "") -> dict[str, PatternSearch]:
        """By pattern, all finished runs together."""
        runs = range(1 if cause else self.subject.runs)
        found = {p: [part for run in runs for part in self._chunks(p, run, cause)] for p in PATTERNS}
        return {pattern: join(parts) for pattern, parts in found.items() if parts}

    def by_run(self, pattern: str) -> list[PatternSearch]:
        parts = [self._chunks(pattern, run, "") for run in range(self.subject.runs)]
        return [join(chunks) for chunks in parts if chunks]

    def baseline(self, pattern: str) -> PatternSearch | None:
        """The main search from the seeds of controls and experiments; None if it is not finished."""
        return self._first_run(pattern, "")

    def with_more_seeds(self, pattern: str) -> PatternSearch | None:
        """The main search from its own and from additional seeds; None if the latter are not finished."""
        runs = [self._chunks(pattern, run, "") for run in range(self.subject.runs + EXTRA_RUNS)]
        return join([part for parts in runs for part in parts]) if all(map(self._is_complete, runs)) else None

    def control(self, pattern: str) -> PatternSearch | None:
        """The search without selection."""
        return self._first_run(pattern, CONTROL)

    def experiments(self, pattern: str) -> dict[str, PatternSearch]:
        """The finished experiments on one pattern, by cause."""
        found = {cause: self._first_run(pattern, cause) for cause in CAUSES}
        return {cause: search for cause, search in found.items() if search is not None}

    def _first_run(self, pattern: str, cause: str) -> PatternSearch | None:
        parts = self._chunks(pattern, 0, cause)
        return join(parts) if self._is_complete(parts) else None

    def _is_complete(self, parts: Sequence[PatternSearch]) -> bool:
        """Whether these are all chunks of a run."""
        return len(parts) == len(self._chunk_numbers)

    def areas(self, method: str) -> dict[str, AUC]:
        """AUC of each measure, a method's cases against benign inputs; empty if there are too few cases."""
        kinds = self._against_benign(method)
        return {name: auc(kinds[0][name], kinds[1]) for name in MEASURES} if kinds else {}

    def leads(self, method: str, first: str, others: Sequence[str]) -> dict[str, AUC]:
        """By how much the AUC of one measure exceeds those of others; empty if there are too few cases."""
        kinds = self._against_benign(method)
        return {name: auc_difference(kinds[0][first], kinds[0][name], kinds[1]) for name in others} if kinds else {}

    def patterns(self, method: str) -> list[str]:
        """The pattern of each of a method's cases; empty text for none."""
        values = self.measured[method].values
        return [str(name) for name in pattern(values["pcs"], values["vro"])]

    @property
    def seconds(self) -> float:
        """Total CPU time."""
        total = self.dropout.seconds + sum(m.seconds for m in self.measured.values())
        for cause in ("", CONTROL, *CAUSES):
            total += sum(search.seconds for search in self.searches(cause).values())
        extra = range(self.subject.runs, self.subject.runs + EXTRA_RUNS)
        return total + sum(s.seconds for p in PATTERNS for run in extra for s in self._chunks(p, run, ""))

    def _against_benign(self, method: str) -> tuple[dict[str, Tensor], Tensor] | None:
        benign, other = self.measured.get("benign"), self.measured.get(method)
        if benign is None or other is None or len(other.values["pcs"]) < 2:
            return None
        values = {
            name: toward_adversarial(name, torch.cat([benign.values[name], other.values[name]])) for name in MEASURES
        }
        n = len(benign.values["pcs"])
        return values, torch.arange(len(values["pcs"])) >= n

    def _chunks(self, pattern: str, run: int, cause: str) -> list[PatternSearch]:
        names = [search_name(pattern, run, cause, i) for i in self._chunk_numbers]
        return self._steps.load_all(names, PatternSearch)

    @property
    def _chunk_numbers(self) -> range:
        return range(-(-self.subject.seeds // self.subject.chunk))

    @property
    def _steps(self) -> Steps:
        return Steps(self.folder / self.subject.name)
