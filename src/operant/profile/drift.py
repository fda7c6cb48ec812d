"""Drift: whether the inputs that arrive now still come from where the earlier ones came from, and what to do if not."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.stats import chi2_contingency, ks_2samp
from torch import Tensor
from torch.nn.functional import one_hot

from operant.data import Samples
from operant.model import Classifier
from operant.model.doctor import Finding

TESTS = 3  # that can raise the alarm; each at its share of the level
FEWEST = 20  # inputs a side; with fewer, only a change of nearly everything would be noticed
BLOCK = 2**24  # numbers in one block of rows whose distances are computed at once: 128 MiB
SHOWN = 10  # classes in the printed table
REPEATED = 0.05  # share of inputs that may repeat others before it is told
SAME = 0.5  # share of inputs in both data sets from which on there is nothing to compare


@dataclass(frozen=True, kw_only=True)
class Drift:
    """What three tests say about the difference between reference and current inputs.

    Attributes:
        level: how often all tests together may raise an alarm where nothing has changed.
        sizes: how many reference and current inputs there are.
        compared: how many of each the tests on inputs looked at.
        outputs: p-value of the test on the model's outputs, corrected for the number of classes.
        inputs: p-value of the test on the inputs.
        within: p-value of the test on the inputs inside predicted classes, which a mere change of class shares does not
            disturb; None where the reference hardly has what most current inputs are predicted as.
        shares: p-value of the difference in predicted shares. Not part of the alarm.
        discrepancy: MMD² of the inputs, unbiased, so that it may be below 0.
        reference_shares, current_shares: how often each class is predicted.
        distances: how far each class's output has moved, from 0 to 1 (Kolmogorov-Smirnov).
        noticed: the distance from which on the test on outputs raises an alarm, about.
        findings: what was found, and what to do.
    """

    level: float
    sizes: tuple[int, int]
    compared: tuple[int, int]
    outputs: float
    inputs: float
    within: float | None
    shares: float
    discrepancy: float
    reference_shares: tuple[float, ...]
    current_shares: tuple[float, ...]
    distances: tuple[float, ...]
    noticed: float
    findings: tuple[Finding, ...]

    @property
    def p_value(self) -> float:
        """Of all tests together: the smallest, times three, since there were as many chances."""
        return min(1.0, TESTS * min(self.outputs, self.inputs, 1.0 if self.within is None else self.within))

    @property
    def alarm(self) -> bool:
        """Whether something has moved, at `level`."""
        return self.p_value <= self.level

    @property
    def moved(self) -> tuple[float, ...]:
        """How much the predicted share of each class has grown; negative where it shrank."""
        return tuple(b - a for a, b in zip(self.reference_shares, self.current_shares, strict=True))

    @property
    def most_moved(self) -> int:
        """The class whose output has moved furthest."""
        return int(np.argmax(self.distances))

    @property
    def summary(self) -> str:
        """The result of all tests together, in a sentence."""
        word = "Drift" if self.alarm else "No drift noticed"
        return (
            f"{word} (p = {self.p_value:.3g}, level {self.level:g}): {self.sizes[0]} reference inputs, "
            f"{self.sizes[1]} current ones."
        )

    @property
    def details(self) -> str:
        """Each test, the classes that moved most, and the findings."""
        within = "not comparable" if self.within is None else f"p = {self.within:.3g}"
        lines = [
            f"  model's outputs            p = {self.outputs:.3g}",
            f"  inputs                     p = {self.inputs:.3g}",
            f"  inputs within classes      {within}",
            f"  shares of predictions      p = {self.shares:.3g}",
            "  class  reference  current   moved  distance",
        ]
        rows = sorted(range(len(self.distances)), key=lambda c: -self.distances[c])
        for c in rows[:SHOWN]:
            a, b = self.reference_shares[c], self.current_shares[c]
            lines.append(f"  {c:>5}  {a:9.1%}  {b:7.1%}  {b - a:+6.1%}  {self.distances[c]:8.3f}")
        if len(rows) > SHOWN:
            lines.append(f"  ... and {len(rows) - SHOWN} classes that moved less")
        if not self.alarm:
            lines.append(
                f"No alarm is no proof: a change that moves no output by more than about {self.noticed:.2f} and leaves "
                "the inputs much alike goes unnoticed."
            )
        return "\n".join([*lines, *(str(finding) for finding in self.findings)])

    def __str__(self) -> str:
        return f"{self.summary}\n{self.details}"


def drift(
    reference: Samples,
    current: Samples,
    model: Classifier,
    *,
    level: float = 0.05,
    permutations: int = 500,
    rows: int = 2000,
    generator: torch.Generator,
) -> Drift:
    """Test whether current inputs come from the same distribution as the reference; labels are not needed.

        D_c = max over t of |F_c(t) - G_c(t)|, F_c and G_c the shares of reference and current inputs whose
        softmax output for class c is at most t; p-value: the smallest of all classes, times their number       (1)

        MMD² = mean of k(x, x') + mean of k(y, y') - 2 mean of k(x, y),   k(x, y) = exp(-‖x - y‖² / median),
        over pairs of different reference inputs x and current inputs y; p-value: by permutation                (2)

        Σᵢⱼ uᵢ uⱼ k(zᵢ, zⱼ), z all inputs, u 1 for those of the reference and 0 for others, less the mean of
        that over the inputs of the same predicted class; p-value: by permutation inside predicted classes      (3)

    (1) looks at what the model makes of the inputs (BBSD), (2) at the inputs themselves, as the model gets them, (3) at
    what differs between inputs of the same predicted class. Each is tested at a third of the level, so that all
    together keep it, if the inputs are independent of each other: frames of one video are not.

    Rabanser et al. run (2) on reduced inputs or outputs. Here it runs on the inputs: tried on digits, it noticed more
    there than on softmax outputs, logits or principal components, and above all what (1) misses, such as brightness,
    position and noise that the model withstands so far. (3) is ours: where all classes move alike it needs the fewest
    inputs, and it tells a change of the inputs from a change of class shares, unless the model often errs.

    Args:
        reference: inputs that stand for how things were. Not those that the model learned from: on them it is surer.
        current: inputs that arrived later.
        model: gives the outputs.
        level: how often an alarm may be raised where nothing has changed.
        permutations: for (2) and (3); the smallest p-value is 1 / (permutations + 1).
        rows: most inputs of a side that (2) and (3) look at, drawn at random; memory grows with their square.
        generator: draws rows and permutations.

    References:
        | Failing Loudly: An Empirical Study of Methods for Detecting Dataset Shift (Rabanser et al., 2019)
        | https://arxiv.org/abs/1810.11953
        | A Kernel Two-Sample Test (Gretton et al., 2012), https://jmlr.org/papers/v13/gretton12a.html
        | Detecting and Correcting for Label Shift with Black Box Predictors (Lipton et al., 2018), for BBSD
        | https://arxiv.org/abs/1802.03916
    """
    _check(reference, current, model, level, permutations, rows)
    sides = (reference, current)
    a, b = (model.batched_logits(s.x).cpu().double().log_softmax(1) for s in sides)  # as softmax, with fewer ties
    distances = ks_distances(a, b)
    counts = torch.stack([p.argmax(1).bincount(minlength=len(distances)) for p in (a, b)])
    chosen = [_some(len(s), rows, generator) for s in sides]
    kernel = gaussian_kernel(torch.cat([_as_seen(model, s, i) for s, i in zip(sides, chosen, strict=True)])).cpu()
    predicted = torch.cat([p.argmax(1)[i] for p, i in zip((a, b), chosen, strict=True)])
    first = torch.arange(len(predicted)) < len(chosen[0])
    values = mmd(kernel, splits(first, torch.zeros_like(predicted), permutations, generator=generator))
    found = Drift(
        level=level,
        sizes=(len(reference), len(current)),
        compared=(len(chosen[0]), len(chosen[1])),
        outputs=_outputs_p_value(a, b, distances),
        inputs=_permutation_p_value(values),
        within=_within_p_value(kernel, first, predicted, permutations, generator),
        shares=float(chi2_contingency(counts[:, counts.sum(0) > 0].numpy()).pvalue),
        discrepancy=float(values[0]),
        reference_shares=tuple((counts[0].double() / len(a)).tolist()),
        current_shares=tuple((counts[1].double() / len(b)).tolist()),
        distances=tuple(distances.tolist()),
        noticed=_noticed(len(a), len(b), len(distances), level),
        findings=(),
    )
    return replace(found, findings=(*_what_moved(found), *_dependence(reference, current)))


# Outputs


def ks_distances(a: Tensor, b: Tensor) -> Tensor:
    """D of (1) for each column of ``a`` and ``b``: the largest gap between their empirical distribution functions.

    >>> ks_distances(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.5], [2.0], [3.0]]))
    tensor([0.6667], dtype=torch.float64)
    """
    points = torch.cat([a, b]).T.contiguous()
    below = (torch.searchsorted(s.T.sort(1).values.contiguous(), points, right=True).double() / len(s) for s in (a, b))
    return torch.sub(*below).abs().amax(1)


def _outputs_p_value(a: Tensor, b: Tensor, distances: Tensor) -> float:
    """(1), exact up to 10000 inputs a side. All classes have equally many inputs: the largest D has the smallest p."""
    worst = int(distances.argmax())
    with warnings.catch_warnings():  # scipy warns that it is not exact where p is 1 but for rounding
        warnings.simplefilter("ignore", RuntimeWarning)
        p = float(ks_2samp(a[:, worst].numpy(), b[:, worst].numpy()).pvalue)
    return min(1.0, len(distances) * p)


def _noticed(n: int, m: int, classes: int, level: float) -> float:
    """The D whose p-value for many inputs, 2 exp(-2 D² nm / (n + m)), is what one class gets of the level."""
    return min(1.0, math.sqrt(math.log(2 * TESTS * classes / level) * (n + m) / (2 * n * m)))


# Inputs


def gaussian_kernel(x: Tensor) -> Tensor:
    """k of (2) for all pairs of rows, ``(N, N)``; the median is taken over pairs that differ by more than rounding."""
    kernel = torch.empty(len(x), len(x), dtype=torch.float64, device=x.device)
    for i, rows in _blocks(x):
        for j, others in _blocks(x):
            kernel[i : i + len(rows), j : j + len(others)] = torch.cdist(rows, others).square_()
    kernel.masked_fill_(kernel <= 1e-12 * float(torch.linalg.vector_norm(x, dim=1).max()) ** 2, 0)
    differ = int(kernel.count_nonzero())
    median = kernel.flatten().kthvalue(kernel.numel() - differ // 2).values if differ else torch.tensor(1.0)
    return kernel.div_(-float(median)).exp_()


def splits(first: Tensor, groups: Tensor, permutations: int, *, generator: torch.Generator) -> Tensor:
    """Which rows are in the first sample, as 0 and 1: a column as given, then columns permuted inside groups.

    >>> first, groups = torch.tensor([True, True, False, False]), torch.tensor([0, 0, 0, 1])
    >>> splits(first, groups, 2, generator=torch.Generator())[3]
    tensor([0., 0., 0.], dtype=torch.float64)
    """
    u = torch.rand(permutations, len(first), dtype=torch.float64, generator=generator, device=generator.device).cpu()
    order, given = (groups + u).argsort(1), first.double()
    by_group = given[groups.argsort(stable=True)].expand_as(u)  # order lists the rows group by group as well
    return torch.cat([given[None], torch.zeros_like(u).scatter(1, order, by_group)]).T


def mmd(kernel: Tensor, first: Tensor) -> Tensor:
    """MMD² of (2), unbiased, for every split of the rows in two: one for each column of 0 and 1 in ``first``.

    >>> kernel = gaussian_kernel(torch.tensor([[0.0], [1.0], [8.0], [9.0]]))
    >>> mmd(kernel, torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]).double())
    tensor([ 1.4091, -0.7177], dtype=torch.float64)
    """
    n = first.sum(0)
    m = len(first) - n
    same = ((kernel @ first) * first).sum(0)
    across = kernel.sum(0) @ first - same
    x, y = same - n, kernel.sum() - 2 * across - same - m  # without the pairs of a row with itself, whose k is 1
    return x / (n * (n - 1)) + y / (m * (m - 1)) - 2 * across / (n * m)  # (2)


def mmd_within(kernel: Tensor, first: Tensor, groups: Tensor) -> Tensor:
    """(3) for every split of the rows in two that is one of `splits` inside these groups."""
    member = one_hot(groups).double()
    means = member.T @ first / member.sum(0).clamp_min(1)[:, None]
    u = first - means[groups]
    return ((kernel @ u) * u).sum(0)  # (3)


def _within_p_value(
    kernel: Tensor, first: Tensor, predicted: Tensor, permutations: int, generator: torch.Generator
) -> float | None:
    """Of (3), if the reference has the predicted classes of at least half of the current inputs."""
    if float(torch.isin(predicted[~first], predicted[first]).double().mean()) < 0.5:
        return None
    inside = splits(first, predicted, permutations, generator=generator)
    return _permutation_p_value(mmd_within(kernel, inside, predicted))


def _permutation_p_value(values: Tensor) -> float:
    """The share of splits, the given one (the first) among them, whose value is at least as large as its."""
    return float((values >= values[0] - 1e-12).double().mean())


def _as_seen(model: Classifier, samples: Samples, rows: Tensor) -> Tensor:
    """Some of the inputs as the module gets them, so that columns of a table have the scale that it learned with."""
    return model.normalise(samples.x[rows.to(samples.x.device)].to(model.device)).flatten(1)


def _some(n: int, most: int, generator: torch.Generator) -> Tensor:
    """At most so many of n rows, at random."""
    return torch.randperm(n, generator=generator, device=generator.device)[:most].sort().values.cpu()


def _blocks(x: Tensor) -> Iterator[tuple[int, Tensor]]:
    size = max(1, BLOCK // x[0].numel())
    return ((start, x[start : start + size].double()) for start in range(0, len(x), size))


# What to say


def _what_moved(d: Drift) -> tuple[Finding, ...]:
    if not d.alarm:
        return ()
    c = d.most_moved
    before, now = d.reference_shares[c], d.current_shares[c]
    most = f"the output for class {c} moved most, its predicted share from {before:.1%} to {now:.1%}"
    shares = d.shares <= d.level
    if d.within is not None and d.within <= d.level / TESTS:
        name, problem = "inputs moved", f"inputs differ from the reference even within predicted classes; {most}"
        advice = (
            "How often the model is right on them is not known: label some, update the profile with them, and look for "
            "the conditions behind it with fit_conditions"
        )
        if shares:
            advice += ". Predicted shares moved as well: where a model often errs that may be all, see estimate_priors"
    elif d.within is not None and shares:
        name, problem = "class shares moved", f"{most}; within predicted classes no difference of inputs was noticed"
        advice = (
            "This looks like label shift: estimate the new priors with estimate_priors, which checks that nothing else "
            "moved, and re-weight by them"
        )
    else:
        name, problem = "cause not clear", f"{most}, and what lies behind it could not be told"
        advice = "Label some of the current inputs before the model is trusted on them; more inputs may show the cause"
    return (Finding(name=name, problem=problem, advice=advice, severity="warning"),)


def _dependence(reference: Samples, current: Samples) -> tuple[Finding, ...]:
    """Inputs that occur twice, which hides drift if in both data sets and feigns it if in one."""
    found, shared = [], _shared(reference, current)
    if shared:
        problem = f"{shared} of {len(current)} current inputs are among the reference inputs, which hides drift"
        advice = "Leave them out of one side"
        found.append(Finding(name="shared inputs", problem=problem, advice=advice, severity="warning"))
    for name, samples in (("reference", reference), ("current", current)):
        repeated = len(samples) - len(samples.ids.unique())
        if repeated > REPEATED * len(samples):
            problem = f"{repeated} of {len(samples)} {name} inputs repeat others, which can raise a false alarm"
            advice = "Keep each once; the tests take inputs to be independent"
            found.append(Finding(name="repeated inputs", problem=problem, advice=advice, severity="warning"))
    return tuple(found)


def _shared(reference: Samples, current: Samples) -> int:
    return int(torch.isin(current.ids.cpu(), reference.ids.cpu()).sum())


def _check(reference: Samples, current: Samples, model: Classifier, level: float, permutations: int, rows: int) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}; 0.05 is usual")
    if permutations + 1 < TESTS / level:
        raise ValueError(
            f"permutations must be at least {math.ceil(TESTS / level - 1)} for alarms at level {level} to be possible, "
            f"got {permutations}; 500 are usual at level 0.05"
        )
    if rows < FEWEST:
        raise ValueError(f"rows must be at least {FEWEST}, got {rows}; 2000 is usual")
    if reference.shape != current.shape:
        raise ValueError(
            f"reference and current inputs must have one shape, got {tuple(reference.shape)} and "
            f"{tuple(current.shape)}; resize them alike"
        )
    for name, samples in (("reference", reference), ("current", current)):
        _check_side(name, samples, model)
    if (shared := _shared(reference, current)) >= SAME * min(len(reference), len(current)):
        raise ValueError(
            f"reference and current inputs must be different ones, and {shared} of {len(current)} current inputs are "
            "in the reference; split them, or, if equal inputs did arrive twice, give Samples ids of their own"
        )


def _check_side(name: str, samples: Samples, model: Classifier) -> None:
    if len(samples) < FEWEST:
        raise ValueError(
            f"drift needs at least {FEWEST} {name} inputs, got {len(samples)}; a few hundred notice moderate shifts"
        )
    try:
        model.check_inputs(samples.x)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from error
    classes = model.classes(samples.x)
    if samples.y is not None and int(samples.y.max()) >= classes:
        raise ValueError(
            f"{name} inputs have a class {int(samples.y.max())} that the model does not have: it knows 0 to "
            f"{classes - 1}; leave such inputs out, or retrain with the class"
        )
