"""What would make an inaccurate model accurate: another normalisation, channel order or numbering of the classes.

Each candidate is compared with the present settings on the same rows, by an exact sign test on the rows where exactly
one of the two is right (McNemar's test). The candidate that gains most is named if its gain is significant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import binomtest
from torch import Tensor

from operant.formatting import first_few, percent
from operant.model.classifier import Classifier
from operant.rng import spawn

KINDS = ("normalisation", "channel order", "class order")
LEVEL = 0.01  # of the tests of all candidates together
MIN_GAIN = 0.02  # a smaller gain of accuracy is not worth a message
MUCH_BETTER = 0.1  # further gain from which on an unusual order of classes is named instead of a usual change
USUAL_NORMALISATIONS: dict[str, tuple[Sequence[float], Sequence[float]]] = {
    "ImageNet's": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CIFAR-10's": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "CIFAR-100's": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "MNIST's": ((0.1307,), (0.3081,)),
    "inputs in [-1, 1]": ((0.5,), (0.5,)),
    "inputs in 0..255": ((0.0,), (1 / 255,)),
    "none": ((0.0,), (1.0,)),
}


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """How many predictions are right, with a 95 % interval for the share (Clopper and Pearson)."""

    right: int
    n: int

    @property
    def share(self) -> float:
        return self.right / self.n

    @property
    def interval(self) -> tuple[float, float]:
        low, high = binomtest(self.right, self.n).proportion_ci(0.95)
        return float(low), float(high)

    def __str__(self) -> str:
        low, high = self.interval
        interval = f"95 % interval {percent(low)} to {percent(high)}"
        return f"{percent(self.share)} ({self.right} of {self.n} right; {interval})"


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A change that raises the accuracy: what it is, how to make it, and what it gives on the same rows."""

    kind: str  # one of KINDS
    name: str
    advice: str
    before: Accuracy
    after: Accuracy

    @property
    def gain(self) -> float:
        return self.after.share - self.before.share


def accuracy_of(predictions: Tensor, y: Tensor) -> Accuracy | None:
    """The accuracy over the rows with a known class (label -1: none); None if there are none."""
    known = y >= 0
    right = int((predictions[known] == y[known]).sum())
    return Accuracy(right=right, n=int(known.sum())) if bool(known.any()) else None


def find_remedy(
    model: Classifier, x: Tensor, y: Tensor, logits: Callable[[Tensor], Tensor], *, names: Sequence[str] = ()
) -> Remedy | None:
    """The change that raises the accuracy most, or None if no change does so significantly.

    Args:
        x, y: labelled inputs in the model's units.
        logits: the model's logits of any number of inputs.
        names: class names that the labels index, in the order in which they were numbered.
    """
    present = logits(x).cpu()
    rows = (y.cpu() >= 0) & present.isfinite().all(1)
    x, y, present = x[rows.to(x.device)], y.cpu()[rows], present[rows]
    if len(y) < 2:
        return None
    predicted = present.argmax(1)
    trials = [
        *((kind, name, advice, logits(z).cpu().argmax(1), y) for kind, name, advice, z in _inputs(model, x)),
        *(("class order", name, advice, predicted, labels) for name, advice, labels in _orders(y, present, names)),
    ]
    named = [_compared(*trial, before=predicted == y, level=LEVEL / len(trials)) for trial in trials]
    best = max((r for r in named if r), key=lambda r: r.gain, default=None)
    other = _renumbered(predicted, y, present.shape[1])
    if other and other.gain > (best.gain + MUCH_BETTER if best else 0):
        return other
    return best and with_ties(best, [r for r in named if r])


def as_options(advice: str) -> str:
    """An advice on mean and std as options of the command line; other advice is returned as it is.

    >>> as_options("Give mean = [0.49, 0.48, 0.45] and std = 0.5, or those of training")
    'Give `--mean 0.49,0.48,0.45 --std 0.5`, or those of training'
    """
    values = r"(\[[^]]*\]|[-.\de]*\d)"
    found = re.search(f"mean = {values} and std = {values}", advice)
    if found is None:
        return advice
    mean, std = (re.sub(r"[][ ]", "", text) for text in found.groups())
    return f"{advice[: found.start()]}`--mean {mean} --std {std}`{advice[found.end() :]}"


def with_ties(best: Remedy, others: Sequence[Remedy]) -> Remedy:
    """The best remedy; its advice names other normalisations that fit about as well."""
    least = best.after.interval[0]
    ties = [r for r in others if r is not best and r.kind == best.kind == "normalisation" and r.after.share >= least]
    if not ties:
        return best
    named = first_few([f"{r.name} ({percent(r.after.share)})" for r in ties])
    return replace(best, advice=f"{best.advice}, or those of training: about as well fit {named}")


# Inputs ---------------------------------------------------------------------------------------------------------------


def _inputs(model: Classifier, x: Tensor) -> Iterator[tuple[str, str, str, Tensor]]:
    """Kind, name, advice and the inputs that the present model must get to see what a change would show it."""
    channels = x.shape[1]
    own = (x.transpose(0, 1).flatten(1).mean(1).tolist(), x.transpose(0, 1).flatten(1).std(1).clamp_min(1e-6).tolist())
    for name, (mean, std) in {**USUAL_NORMALISATIONS, "that of these inputs": own}.items():
        if len(mean) in (1, channels):
            z = (x - _column(mean, x)) / _column(std, x)
            if not torch.allclose(z, model.normalise(x)):
                yield "normalisation", name, f"Give mean = {_numbers(mean)} and std = {_numbers(std)}", _undo(model, z)
    if x.ndim == 4 and channels == 3:
        yield "channel order", "blue, green, red", "Reverse the channels of the inputs, or in the module", x.flip(1)


def _undo(model: Classifier, z: Tensor) -> Tensor:
    """The inputs that the model normalises to ``z``."""
    zero, one = model.normalise(torch.zeros_like(z[:1])), model.normalise(torch.ones_like(z[:1]))
    return (z - zero) / (one - zero)


def _column(values: Sequence[float], x: Tensor) -> Tensor:
    return torch.tensor(values, dtype=x.dtype, device=x.device).view(-1, *[1] * (x.ndim - 2))


def _numbers(values: Sequence[float]) -> str:
    rounded = [round(value, 4) for value in values]
    return str(rounded[0]) if len(rounded) == 1 else f"[{first_few(rounded)}]"


# Classes --------------------------------------------------------------------------------------------------------------


def _orders(y: Tensor, logits: Tensor, names: Sequence[str]) -> Iterator[tuple[str, str, Tensor]]:
    """Name, advice and labels for each usual way to number classes in another way."""
    classes = logits.shape[1]
    yield "counted from 1", "The model seems to count classes from 1: add 1 to the labels", _shifted(y, 1, classes)
    yield "shifted down by one", "Subtract 1 from the labels", _shifted(y, -1, classes)
    yield "reversed", "Reverse the order of the classes", classes - 1 - y
    for name, order in {"sorted as text": sorted(names), "sorted as numbers": sorted(names, key=_as_number)}.items():
        if len(names) > int(y.max()) and order != list(names):
            place = torch.tensor([order.index(n) for n in names])
            advice = f"The model numbers the classes {first_few(order)}: give classes in this order"
            yield f"class names {name}", advice, place[y]


def _shifted(y: Tensor, by: int, classes: int) -> Tensor:
    return (y + by).remainder(classes)


def _as_number(name: str) -> tuple[float, str]:
    return (int(name), name) if name.isdecimal() else (float("inf"), name)


def _renumbered(predicted: Tensor, y: Tensor, classes: int) -> Remedy | None:
    """Any other numbering: found on a random half of the rows, tested on the others."""
    fit, test = torch.randperm(len(y), generator=spawn(0, "doctor", "halves")).tensor_split(2)
    counts = torch.zeros(classes, classes).index_put_((y[fit], predicted[fit]), torch.tensor(1.0), accumulate=True)
    place = torch.from_numpy(linear_sum_assignment(-counts.numpy())[1])
    moved = [f"{label} is the model's {new}" for label, new in enumerate(place.tolist()) if label != new]
    advice = f"Number the labels like the model's outputs: {first_few(moved)}"
    predicted, y = predicted[test], y[test]
    return _compared("class order", "another order", advice, predicted, place[y], before=predicted == y, level=LEVEL)


def _compared(
    kind: str, name: str, advice: str, predicted: Tensor, y: Tensor, *, before: Tensor, level: float
) -> Remedy | None:
    """The change as a remedy, if it is right on significantly more rows than the present settings."""
    after = predicted == y
    better, worse = int((after & ~before).sum()), int((before & ~after).sum())
    if better - worse < max(1, MIN_GAIN * len(y)):
        return None
    if binomtest(better, better + worse, alternative="greater").pvalue >= level:
        return None
    old, new = (Accuracy(right=int(right.sum()), n=len(y)) for right in (before, after))
    return Remedy(kind=kind, name=name, advice=advice, before=old, after=new)
