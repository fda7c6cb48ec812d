"""Everything about the field that a model may learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from operant.conditions import Recipe
from operant.data import Samples
from operant.model import Classifier
from operant.profile import FittedConditions, Priors, Profile
from operant.profile.priors import shares_of
from operant.seeds.strategies import Use
from operant.suite import Suite
from operant.validation import check_not_empty, check_share

WEIGHTED_BY = ("mass", "naturalness")  # columns of operational failures


@dataclass(frozen=True, kw_only=True, eq=False)
class TeachingLabels:
    """Labelled field inputs, and how they were drawn.

    Args:
        samples: inputs with their true labels.
        use: what the labels may be used for, as `operant.seeds.Acquired.use` says. Labels of inputs that were chosen
            for what a model does on them can teach and nothing else; only random draws can judge.
        drawn: how the inputs were drawn, in words.
    """

    samples: Samples
    use: Use = "teaching only"
    drawn: str = "chosen"

    def __post_init__(self) -> None:
        check_not_empty(samples=self.samples, advice="leave out draws without labels")
        _ = self.samples.labels  # raises without labels

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def random(self) -> bool:
        """Whether the inputs are a random sample of the field."""
        return self.use != "teaching only"


@dataclass(frozen=True, kw_only=True, eq=False)
class FieldKnowledge:
    """Everything that may be learned from, and nothing else: inputs of the assessment half are rejected by id.

    Args:
        train: labelled training data.
        clean: labelled inputs like the training data that nothing learns from; clean accuracy is measured on them.
        field: field inputs of the learning half; labels, if they have any, are removed.
        taught: teaching labels, one entry per draw; their inputs may or may not be among ``field``.
        recipe: conditions of the field, estimated or declared (default: none are known).
        unexplained: share of the difference between training and field data that the recipe leaves, from 0 to 1
            (default: all of it).
        priors: class shares in the field (default: those of the training data).
        profile: the operational profile.
        failures: operational failures, with columns ``mass`` and ``naturalness`` if they are known.
        reserved: ids of the assessment half, which none of the above may contain (default: there is none).
    """

    train: Samples
    clean: Samples
    field: Samples
    taught: tuple[TeachingLabels, ...] = ()
    recipe: Recipe | None = None
    unexplained: float = 1.0
    priors: tuple[float, ...] = ()
    profile: Profile | None = None
    failures: Suite | None = None
    reserved: Tensor | None = None

    def __post_init__(self) -> None:
        check_not_empty(train=self.train, advice="field inputs alone would make the model forget the rest")
        check_not_empty(clean=self.clean, advice="hold some labelled inputs back, for instance with train.split(...)")
        check_share(unexplained=self.unexplained)
        _ = self.train.labels, self.clean.labels
        object.__setattr__(self, "field", self.field.with_labels(None))
        if self.priors:
            object.__setattr__(self, "priors", tuple(shares_of(self.priors).tolist()))
        self._check_reserved()
        self._check_clean()
        self._check_repeated()

    @property
    def labels(self) -> Samples:
        """All teaching labels; empty, but never None, if there are none."""
        parts = [draw.samples for draw in self.taught]
        return Samples.concat(parts) if parts else self.train[:0]

    @property
    def has_conditions(self) -> bool:
        """Whether conditions are known that change inputs."""
        return self.recipe is not None and bool(self.recipe.severities)

    @property
    def class_shares(self) -> Tensor:
        """Class shares in the field; those of the training data if no others are known."""
        return torch.tensor(self.priors, dtype=torch.float64) if self.priors else shares_among(self.train)

    @property
    def failure_weights(self) -> Tensor:
        """Mass times naturalness of each operational failure; what is not known counts as equal."""
        assert self.failures is not None
        weights = torch.ones(len(self.failures), dtype=torch.float64)
        for name in WEIGHTED_BY:
            if name in self.failures.columns:
                weights = weights * self.failures[name].double()
        return weights

    @property
    def identity(self) -> tuple[object, ...]:
        """What identifies this knowledge: two that are equal in it teach the same."""
        labels = self.labels
        failures = None
        if self.failures is not None:
            failures = (self.failures.samples().ids, self.failures.label, self.failure_weights)
        ids = (self.train.ids, self.train.labels, self.clean.ids, self.clean.labels, self.field.ids)
        return (*ids, labels.ids, labels.y, self.recipe, self.unexplained, self.priors, failures)

    def with_labels(self, *draws: TeachingLabels) -> FieldKnowledge:
        """The same with further teaching labels."""
        return replace(self, taught=(*self.taught, *draws))

    def without(self, ids: Tensor) -> FieldKnowledge:
        """The same without what could teach these inputs: themselves, their labels, and failures bred from them."""
        kept = [
            replace(draw, samples=draw.samples[~torch.isin(draw.samples.ids, ids)])
            for draw in self.taught
            if not bool(torch.isin(draw.samples.ids, ids).all())
        ]
        return replace(
            self,
            train=self.train[~torch.isin(self.train.ids, ids)],
            field=self.field[~torch.isin(self.field.ids, ids)],
            taught=tuple(kept),
            failures=None if self.failures is None else self.failures[~torch.isin(self.failures.seed, ids.cpu())],
        )

    def with_shares_of(self, model: Classifier) -> FieldKnowledge:
        """The same with class shares half-way to those that a model predicts for the field inputs.

        Call it with each repaired model: the better the model, the better its predicted shares.
        """
        classes = model.classes(self.train.x[:1])
        predicted = torch.bincount(model.predict(self.field.x).cpu(), minlength=classes).double() + 1
        known = self.class_shares if self.priors else shares_among(self.train, classes)
        return replace(self, priors=tuple(((known + predicted / predicted.sum()) / 2).tolist()))

    def check_model(self, model: Classifier) -> None:
        """Raise ValueError if the model cannot be used with these inputs and labels."""
        for part in (self.train, self.clean, self.labels):
            if len(part):
                model.check(part)
        if len(self.field):
            model.check_inputs(self.field.x)
        classes = model.classes(self.train.x[:1])
        if self.priors and len(self.priors) != classes:
            raise ValueError(f"there must be a prior for each of the model's {classes} classes, got {len(self.priors)}")

    def _check_reserved(self) -> None:
        if self.reserved is None:
            return
        named = {"field": self.field.ids, "train": self.train.ids}
        named |= {f"taught[{i}]": draw.samples.ids for i, draw in enumerate(self.taught)}
        if self.failures is not None:
            named |= {"failures": self.failures.samples().ids, "the seeds of failures": self.failures.seed}
        for name, ids in named.items():
            if shared := int(torch.isin(ids.cpu(), self.reserved.cpu()).sum()):
                raise ValueError(
                    f"{name} must hold no input of the assessment half, got {shared} of {len(ids)}: a bound on inputs "
                    "that a model has learned from would mean nothing; leave them out"
                )

    def _check_clean(self) -> None:
        named = {"train": self.train, "field": self.field, "the teaching labels": self.labels}
        for name, part in named.items():
            if len(part) and (shared := int(torch.isin(self.clean.ids, part.ids).sum())):
                got = f"{shared} of {len(self.clean)} that are in {name} too"
                raise ValueError(f"clean must hold no input that is learned from, got {got}; split with Samples.split")

    def _check_repeated(self) -> None:
        labels = self.labels
        order = labels.ids.argsort(stable=True)
        same = labels.ids[order].diff() == 0
        if len(labels) and bool((same & (labels.labels[order].diff() != 0)).any()):
            raise ValueError("an input has two different teaching labels; keep one of them")


def known_field(
    *,
    train: Samples,
    clean: Samples,
    field: Samples,
    conditions: FittedConditions | None = None,
    priors: Priors | Sequence[float] | None = None,
    taught: Sequence[TeachingLabels] = (),
    profile: Profile | None = None,
    failures: Suite | None = None,
    reserved: Tensor | None = None,
) -> FieldKnowledge:
    """`FieldKnowledge` from what `fit_conditions` and `estimate_priors` return.

        shares = (1 - v) · priors + v · shares of the training data,  v = min(1, 2 u)        (1)

    with u the unexplained share. Estimated priors are the less right the less conditions explain, and wrong ones cost
    more than unknown ones: on one field, a total variation of .1 from the true shares cost four points of error.
    """
    unexplained = 1.0 if conditions is None else conditions.unexplained
    shares = () if priors is None else tuple(_mixed(shares_of(priors), train, unexplained).tolist())
    return FieldKnowledge(
        train=train,
        clean=clean,
        field=field,
        taught=tuple(taught),
        recipe=None if conditions is None else conditions.recipe,
        unexplained=unexplained,
        priors=shares,
        profile=profile,
        failures=failures,
        reserved=reserved,
    )


def _mixed(shares: Tensor, train: Samples, unexplained: float) -> Tensor:
    return shares.lerp(shares_among(train, len(shares)), min(1.0, 2 * unexplained))  # (1)


def shares_among(samples: Samples, classes: int = 0) -> Tensor:
    """The share of each class among labelled inputs."""
    counts = torch.bincount(samples.labels.cpu(), minlength=classes).double()
    return counts / counts.sum()
