"""Arms of the race: ways to learn from what is known about the field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from operant.data import Samples
from operant.model import Classifier
from operant.retrain._sampling import capped_chances
from operant.retrain.augmentation import generic_augmentation
from operant.retrain.field_training import BatchNorm, Schedule, TrainingRows, train_on_rows
from operant.retrain.knowledge import FieldKnowledge
from operant.retrain.operational import OperationalFinetune
from operant.retrain.retrainer import CaseRetrainer, Retrained
from operant.retrain.rows import (
    Change,
    RowSource,
    Sometimes,
    UnderConditions,
    chances_by_class,
    equal_chances,
    resized,
)
from operant.retrain.training import TrainingDiverged
from operant.retrain.unlabelled import UnlabelledRows
from operant.rng import global_streams
from operant.types import Fuzzer
from operant.validation import check_above_to, check_at_least, check_from_to, check_nonnegative

HALF_TRUST, HALF_USE = 500, 50  # teaching labels that get half of their places where conditions explain all, or nothing
LABEL_SHARE = 0.6  # of the field's rows that labels may take, at most
WEAK, STRONG = 0.5, 0.7  # strength of conditions on labelled and on unlabelled field inputs
UNKNOWN = 0.4  # unexplained share from which augmentation of field inputs is generic instead
CASE_CAP = 10.0  # chance of a failure, relative to the mean, at most
CASE_SHARE = 0.25  # of the field's rows that failures take


class Retrainer(Protocol):
    """One arm of the race: returns a candidate, given a model and what is known about the field.

    Neither ``model`` nor torch's global random state changes. The same generator gives the same candidate. Raise
    `TrainingDiverged` if training fails; the race goes on without the arm.

    Args:
        model: to start from.
        known: everything that may be learned from.
        generator: all randomness.
        until: share of the training after which to return; a later call with the same checkpoint resumes there.
        checkpoint: file for the state of the training, if it can be interrupted.
    """

    def __call__(
        self,
        model: Classifier,
        known: FieldKnowledge,
        *,
        generator: torch.Generator,
        until: float = 1.0,
        checkpoint: str | Path | None = None,
    ) -> Classifier: ...


@dataclass(frozen=True, kw_only=True)
class FieldTraining:
    """Train on rows that resemble the field; which ones, the options say.

    Of the ``field_rows`` of a step, with L teaching labels and the unexplained share u,

        labels:      0.6 · max(u · L / (L + 50), L / (L + 500)) of them                             (1)
        failures:    a quarter of the rest, if ``failures``
        simulated:   the others: training inputs drawn by the field's class shares, each under fresh
                     draws of the conditions or, a share ``min(u, generic)`` of them, of generic
                     augmentation                                                                    (2)

    So labels count more the more there are and the less conditions explain, and where conditions do not explain the
    field, augmentation knows nothing of it. Half of the labelled rows are changed too: by conditions at half strength
    or, where those explain little, by generic augmentation.

    Args:
        schedule: steps and learning rate.
        labels: whether to learn from teaching labels.
        conditions: whether simulated rows are under the estimated conditions.
        generic: see (2); 1 with ``conditions=False`` is generic augmentation alone.
        priors: whether simulated rows are drawn by the field's class shares; otherwise by the training data's.
        failures: whether to learn from operational failures, drawn by mass times naturalness.
        self_training, information: weights of the two terms of `UnlabelledRows`.
        clean_rows, field_rows, unlabelled_rows: per step.
    """

    schedule: Schedule = Schedule()  # noqa: RUF009  # frozen
    labels: bool = True
    conditions: bool = True
    generic: float = 0.5
    priors: bool = True
    failures: bool = False
    self_training: float = 0.0
    information: float = 0.3
    clean_rows: int = 16
    field_rows: int = 80
    unlabelled_rows: int = 48

    def __post_init__(self) -> None:
        check_from_to(0, 1, generic=self.generic)
        check_nonnegative(self_training=self.self_training, information=self.information)
        check_at_least(1, clean_rows=self.clean_rows, field_rows=self.field_rows, unlabelled_rows=self.unlabelled_rows)

    def __call__(
        self,
        model: Classifier,
        known: FieldKnowledge,
        *,
        generator: torch.Generator,
        until: float = 1.0,
        checkpoint: str | Path | None = None,
    ) -> Classifier:
        identity = {"arm": replace(self, schedule=Schedule()), "known": known.identity}
        rows = self.rows(model, known)
        return train_on_rows(
            model, rows, self.schedule, generator=generator, until=until, checkpoint=checkpoint, identity=identity
        )

    def rows(self, model: Classifier, known: FieldKnowledge) -> TrainingRows:
        """What the arm learns from."""
        any_change = generic_augmentation(model, known.train, known.clean)
        labelled = self._labelled(known, any_change)
        n = self.field_rows - sum(source.rows for source in labelled)
        failing = self._failing(known, round(CASE_SHARE * n))
        simulated = self._simulated(known, n - sum(source.rows for source in failing), any_change)
        plain = RowSource(samples=known.train, chances=equal_chances(known.train), rows=self.clean_rows)
        sources = [plain, *labelled, *failing, *simulated]
        return TrainingRows(
            sources=[s for s in sources if s.rows], unlabelled=self._unlabelled(model, known, any_change)
        )

    def _explains(self, known: FieldKnowledge) -> bool:
        return self.conditions and known.has_conditions and known.unexplained < UNKNOWN

    def _labelled(self, known: FieldKnowledge, any_change: Change) -> list[RowSource]:
        labels = known.labels
        if not self.labels or len(labels) == 0:
            return []
        u = known.unexplained if self.conditions else 1.0
        n = len(labels)
        rows = round(LABEL_SHARE * self.field_rows * max(u * n / (n + HALF_USE), n / (n + HALF_TRUST)))  # (1)
        change = self._weak(known, any_change)
        return [RowSource(samples=labels, chances=equal_chances(labels), rows=max(1, rows), change=change)]

    def _weak(self, known: FieldKnowledge, any_change: Change) -> Change | None:
        """What happens to half of the labelled rows."""
        if self._explains(known):
            assert known.recipe is not None
            return Sometimes(change=UnderConditions(recipe=known.recipe, strength=WEAK))
        return Sometimes(change=any_change) if self.generic else None

    def _failing(self, known: FieldKnowledge, rows: int) -> list[RowSource]:
        if not self.failures or known.failures is None or len(known.failures) == 0:
            return []
        cases = known.failures.samples()
        return [RowSource(samples=cases, chances=capped_chances(known.failure_weights, CASE_CAP), rows=rows)]

    def _simulated(self, known: FieldKnowledge, rows: int, any_change: Change) -> list[RowSource]:
        chances = chances_by_class(known.train, known.class_shares) if self.priors else equal_chances(known.train)
        under = UnderConditions(recipe=known.recipe) if self.conditions and known.recipe is not None else None
        share = min(known.unexplained, self.generic) if under is not None and under.recipe.names else self.generic
        anyhow = round(share * rows)
        parts = ((any_change, anyhow), (under, rows - anyhow))
        return [RowSource(samples=known.train, chances=chances, rows=n, change=change) for change, n in parts]

    def _unlabelled(self, model: Classifier, known: FieldKnowledge, any_change: Change) -> UnlabelledRows | None:
        if not (self.self_training or self.information) or len(known.field) == 0:
            return None
        change: Change | None = None
        if self.self_training:
            explains = self._explains(known) and known.recipe is not None
            change = UnderConditions(recipe=known.recipe, strength=STRONG) if explains else any_change  # type: ignore[arg-type]
        return UnlabelledRows(
            field=known.field,
            rows=self.unlabelled_rows,
            priors=resized(known.class_shares, model.classes(known.train.x)),
            change=change,
            pseudo_weight=self.self_training,
            information_weight=self.information,
        )


@dataclass(frozen=True, kw_only=True)
class BatchNormStatistics:
    """The model with batch-norm statistics mixed between training and field; no weight is trained.

        statistics = (1 - mix) · training + mix · field        (1)

    References:
        | Improving robustness against common corruptions by covariate shift adaptation (Schneider et al., 2020)
        | https://arxiv.org/abs/2006.16971
    """

    mix: float = 0.5

    def __post_init__(self) -> None:
        check_above_to(0, 1, mix=self.mix)

    def __call__(
        self,
        model: Classifier,
        known: FieldKnowledge,
        *,
        generator: torch.Generator,
        until: float = 1.0,
        checkpoint: str | Path | None = None,
    ) -> Classifier:
        module = model.unwrap().eval()
        before = batch_norms(module)
        if not before:
            raise ValueError("the model has no batch norm with statistics")
        measured = batch_norms(_with_statistics_of(model, known.field.x))
        for old, new in zip(before, measured, strict=True):
            for kept, found in zip(_statistics(old), _statistics(new), strict=True):
                kept.lerp_(found, self.mix)  # (1)
        return model.rewrap(module)


def batch_norms(module: nn.Module) -> list[BatchNorm]:
    """Layers of batch norm that have statistics."""
    return [m for m in module.modules() if isinstance(m, BatchNorm) and m.running_mean is not None]


def _statistics(layer: BatchNorm) -> tuple[Tensor, Tensor]:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return layer.running_mean, layer.running_var


@torch.no_grad()
def _with_statistics_of(model: Classifier, x: Tensor) -> nn.Module:
    """The module with batch-norm statistics of these inputs alone."""
    module = model.unwrap().eval()
    for part in batch_norms(module):
        part.reset_running_stats()
        part.momentum = None  # the mean over all batches
        part.train()
    for some in x.tensor_split(max(1, len(x) // model.batch_size)):
        module(model.normalise(some.to(model.device)))
    return module.eval()


@dataclass(frozen=True, kw_only=True)
class CaseTraining:
    """Learn from cases with a retrainer of the papers: operational failures, or cases of a fuzzer.

    With the default it is the retraining of papers/1: failures drawn by mass times naturalness, and the epoch chosen on
    clean inputs. With ``fuzz=UncertaintyFuzz(...)`` and ``retrainer=Finetune(loss=ManifoldMixup(...))`` it learns from
    uncertainty patterns.

    Args:
        retrainer: such as `OperationalFinetune` or `Finetune`.
        fuzz: makes cases from training inputs (default: the known operational failures are learned from).
        seeds: training inputs that ``fuzz`` starts from.
    """

    retrainer: CaseRetrainer = OperationalFinetune(must_improve=False, progress=False)  # noqa: RUF009  # frozen
    fuzz: Fuzzer | None = None
    seeds: int = 200

    def __call__(
        self,
        model: Classifier,
        known: FieldKnowledge,
        *,
        generator: torch.Generator,
        until: float = 1.0,
        checkpoint: str | Path | None = None,
    ) -> Classifier:
        cases, weights = self._cases(model, known, generator)
        if len(cases) == 0:
            raise ValueError("there are no cases to learn from")
        retrain: Callable[..., Retrained] = self.retrainer
        if isinstance(self.retrainer, OperationalFinetune):
            retrain = partial(self.retrainer, weights=weights)
        done = retrain(
            model,
            known.train,
            cases,
            validation=known.clean,
            max_drop=1.0,
            generator=generator,
            checkpoint=checkpoint,
        )
        if done.record.diverged:
            raise TrainingDiverged(done.record.reason)
        return done.model

    def _cases(
        self, model: Classifier, known: FieldKnowledge, generator: torch.Generator
    ) -> tuple[Samples, Tensor | None]:
        if self.fuzz is None:
            none = known.failures is None or len(known.failures) == 0
            return (known.train[:0], None) if none else (known.failures.samples(), known.failure_weights)  # type: ignore[union-attr]
        chances = chances_by_class(known.train, known.class_shares)
        rows = torch.multinomial(chances, min(self.seeds, len(known.train)), generator=generator)
        return self.fuzz(model, known.train[rows], generator=generator).samples(), None


@dataclass(frozen=True, kw_only=True)
class OwnTraining:
    """A user's own training function as an arm.

    Args:
        function: takes a trainable copy of the network, the knowledge and a generator; returns the trained network.
            Inputs are in input units: pass them through ``model.normalise`` first if the model has mean or std.
    """

    function: Callable[[nn.Module, FieldKnowledge, torch.Generator], nn.Module]

    def __call__(
        self,
        model: Classifier,
        known: FieldKnowledge,
        *,
        generator: torch.Generator,
        until: float = 1.0,
        checkpoint: str | Path | None = None,
    ) -> Classifier:
        with global_streams(generator):  # for dropout and the like
            module = self.function(model.unwrap(), known, generator)
        if not isinstance(module, nn.Module):
            raise ValueError(f"your training function must return the trained module, got {type(module).__name__}")
        return model.rewrap(module.eval())
