"""What every retrainer takes and returns."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from operant.data import Samples
from operant.model import Classifier
from operant.types import Monitor


@dataclass(frozen=True, kw_only=True)
class FinetuneEpoch:
    """One epoch, and whether its weights were the best so far.

    Attributes:
        epoch: counted from 1.
        loss: mean over the rows.
        accuracy, monitor: after the epoch, on the validation samples and by the monitor.
        kept, why: whether its weights replaced the best ones so far, and the reason, in a sentence.
    """

    epoch: int
    loss: float
    accuracy: float
    monitor: float
    kept: bool
    why: str


OnEpoch = Callable[[FinetuneEpoch], object]
"""Callback: called with each finished epoch."""


@dataclass(frozen=True, kw_only=True)
class FinetuneRecord:
    """How a retraining went.

    Attributes:
        best_epoch, reason: epoch whose weights the model has, and why; 0 if the original weights were kept.
        n_train, n_cases: number of inputs of each kind.
        accuracy_before, monitor_before: values for the original model; None if the monitor's was not needed.
        train_rows, case_rows: rows of each kind per epoch.
        effective_cases: number of equally likely cases that would be as varied as those drawn, 1 / Σ p².
        stopped_early: whether the last epochs were skipped because none was acceptable and better for some time.
        diverged: whether the loss or the outputs became infinite or NaN; the original weights are kept then.
    """

    best_epoch: int
    reason: str
    n_train: int
    n_cases: int
    accuracy_before: float
    history: tuple[FinetuneEpoch, ...]
    monitor_before: float | None
    train_rows: int
    case_rows: int
    effective_cases: float
    stopped_early: bool
    diverged: bool = False

    @property
    def changed(self) -> bool:
        """Whether the retrained weights were kept."""
        return self.best_epoch > 0

    @property
    def rejected_by_monitor(self) -> bool:
        """Whether no epoch improved the monitor; False if only the accuracy limit or a diverging loss rejected it."""
        before = self.monitor_before
        return before is not None and bool(self.history) and all(epoch.monitor >= before for epoch in self.history)

    def __str__(self) -> str:
        before = "" if self.monitor_before is None else f" The monitor was {self.monitor_before:.4g} before."
        return (
            f"{len(self.history)} epochs, each with {self.train_rows} training rows and {self.case_rows} rows drawn "
            f"from {self.n_cases} cases (effective number: {self.effective_cases:.0f}).{before} "
            f"{self.reason[:1].upper()}{self.reason[1:]}."
        )


@dataclass(frozen=True, kw_only=True)
class Retrained:
    """A retrained model, and the record of its retraining."""

    model: Classifier = field(repr=False)
    record: FinetuneRecord


class CaseRetrainer(Protocol):
    """Returns a model retrained with training data and cases; any function with this signature is a retrainer.

    Neither ``model`` nor torch's global random state changes. The same generator gives the same weights, bit for bit.

    Args:
        model: initial model. It is returned unchanged if no epoch is acceptable.
        train: labelled training data.
        cases: labelled cases, for instance ``suite.samples()``; ``train[:0]`` for none.
        validation: labelled clean data that shares no input with ``train`` or ``cases``; checks clean accuracy.
        monitor: chooses the epoch, smaller is better (default: the error rate on ``validation``). Report results on
            inputs that it has not used.
        max_drop: largest loss of clean validation accuracy allowed (default: the retrainer's option of that name).
        generator: draws and shuffles the rows and seeds dropout.
        checkpoint: file for the state after each epoch. Called again with the same arguments, an interrupted retraining
            resumes after its last finished epoch and returns the same weights and record, bit for bit, if the monitor
            is deterministic. The file stays: delete it once the model is saved.
        on_epoch: called with each finished epoch.
    """

    def __call__(
        self,
        model: Classifier,
        train: Samples,
        cases: Samples,
        *,
        validation: Samples,
        monitor: Monitor | None = None,
        max_drop: float | None = None,
        generator: torch.Generator,
        checkpoint: str | Path | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Retrained: ...


def without_bar(retrainer: CaseRetrainer) -> CaseRetrainer:
    """The same retrainer, which shows no progress of its own."""
    if "progress" not in getattr(retrainer, "__dataclass_fields__", {}):
        return retrainer
    options: Any = retrainer
    quiet: CaseRetrainer = replace(options, progress=False)
    return quiet
