"""What a risk map is fitted to: cases and labelled field inputs in one table, with their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from operant.data import Samples
from operant.model import Classifier
from operant.profile.priors import Priors, shares_of
from operant.suite import Suite

TAUGHT_WEIGHT = 5.0  # of a labelled field input, in cases
SMALL, SMALLEST = 0.4, 0.02  # of an even class share: below the first, a class counts less; at least the second


@dataclass(frozen=True, kw_only=True, eq=False)
class RiskCases:
    """What a risk map is fitted to, whatever the model: cases, cases of wider conditions, labelled field inputs.

    Attributes:
        group: inputs of the same seed, or of the same group of seeds, share a number.
        weight: in the ranking, 1 on average over all cases; see `fit_risk` for classes that are rare in the field.
        mass: in the calibration, by the priors as they were given; 0 for cases of wider conditions.
        wider, taught: numbers of cases of wider conditions, and of labelled field inputs, which are the last rows.
        classes: the name of each class; empty if they have only numbers.
    """

    x: Tensor = field(repr=False)
    label: Tensor = field(repr=False)
    group: Tensor = field(repr=False)
    weight: Tensor = field(repr=False)
    mass: Tensor = field(repr=False)
    wider: int
    taught: int
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.label)

    @property
    def own(self) -> int:
        """Number of cases of the recipe itself, the first rows."""
        return len(self) - self.wider - self.taught


def gather(
    model: Classifier,
    cases: Suite,
    *,
    wider: Suite | None,
    priors: Priors | Sequence[float] | None,
    taught: Samples | None,
    seeds: Samples | None,
) -> RiskCases:
    """Cases and labelled field inputs in one table; the arguments are those of `fit_risk`."""
    suites = [cases] if wider is None or len(wider) == 0 else [cases, wider]
    label, classes = torch.cat([s.label for s in suites]), model.classes(cases.x)
    values = None if priors is None else shares_of(priors)
    mass = torch.zeros(len(label), dtype=torch.float64)
    mass[: len(cases)] = _by_shares(cases.label, values, classes)
    table = RiskCases(
        x=torch.cat([s.x for s in suites]),
        label=label,
        group=_groups(torch.cat([s.seed for s in suites]), seeds),
        weight=_by_shares(label, None if values is None else _believed(values), classes),
        mass=mass,
        wider=len(label) - len(cases),
        taught=0,
        classes=cases.classes,
    )
    return table if taught is None or len(taught) == 0 else _with_taught(table, model, taught)


def _with_taught(table: RiskCases, model: Classifier, taught: Samples) -> RiskCases:
    model.check(taught)
    if taught.shape != table.x.shape[1:]:
        shapes = f"{tuple(taught.shape)} and {tuple(table.x.shape[1:])}"
        raise ValueError(f"labelled field inputs and cases must have one shape, got {shapes}; resize them")
    _, group = taught.units.cpu().unique(return_inverse=True)
    more = torch.full((len(taught),), TAUGHT_WEIGHT, dtype=torch.float64)
    return replace(
        table,
        x=torch.cat([table.x, taught.x.cpu().to(table.x)]),
        label=torch.cat([table.label, taught.labels.cpu()]),
        group=torch.cat([table.group, int(table.group.max()) + 1 + group]),
        weight=torch.cat([table.weight, more]),
        mass=torch.cat([table.mass, more]),
        taught=len(taught),
    )


def _groups(seed: Tensor, seeds: Samples | None) -> Tensor:
    """A number per case, the same for cases of one seed, and for seeds of one group."""
    group: Tensor
    ids, group = seed.unique(return_inverse=True)
    if seeds is None or seeds.groups is None:
        return group
    order = seeds.ids.cpu().argsort()
    place = torch.searchsorted(seeds.ids.cpu()[order], ids).clamp(max=len(order) - 1)
    found = order[place]
    if not bool((seeds.ids.cpu()[found] == ids).all()):
        raise ValueError("seeds must hold every input that cases were drawn from; give the same samples")
    units: Tensor = seeds.units.cpu()[found].unique(return_inverse=True)[1]
    return units[group]


def _by_shares(label: Tensor, shares: Tensor | None, classes: int) -> Tensor:
    """Weights, 1 on average, that give the classes these shares; all 1 without shares."""
    if shares is None:
        return torch.ones(len(label), dtype=torch.float64)
    if len(shares) != classes:
        raise ValueError(f"priors must have one value for each of the model's {classes} classes, got {len(shares)}")
    weight = (shares / (label.bincount(minlength=classes).double() / len(label)))[label]
    if not bool((weight > 0).any()):
        raise ValueError("no case has a class with a positive prior; draw cases of the classes that occur in the field")
    return weight / weight.mean()


def _believed(priors: Tensor) -> Tensor:
    """(2) of `fit_risk`: no class counts less than an even share, unless its prior is far below that."""
    ratio = priors * len(priors)
    return torch.maximum(ratio, (ratio / SMALL).clamp(max=1).square()).clamp_min(SMALLEST) / len(priors)
