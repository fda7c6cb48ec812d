"""Drift: tests whether current inputs still have the distribution of earlier ones, and advises what to do if not."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.stats import chi2_contingency, ks_2samp
from torch import Tensor
from torch.nn.functional import one_hot

from operant.activity import activity
from operant.data import Samples
from operant.data.class_texts import class_name, class_title
from operant.formatting import p_text, percent
from operant.model import Classifier, Finding
from operant.profile._checks import check_classes, check_same_shape, names_of, warning
from operant.rng import shuffled
from operant.validation import check_at_least, check_between

TESTS = 3  # that can raise the alarm, each at its share of the level
MIN_INPUTS = 20  # per side; with fewer, only extreme changes would be detected
BLOCK = 2**24  # values per block of rows whose distances are computed at once: 128 MiB
MAX_SHOWN = 10  # classes in the printed table
MAX_REPEATED = 0.05  # share of inputs that may repeat others without a warning
MAX_SHARED = 0.5  # share of inputs that may be in both data sets; above it there is nothing to compare


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Results of three tests for a difference between reference and current inputs.

    Attributes:
        level: false-alarm probability of all tests together.
        sizes, compared: number of reference and current inputs; number of each that the tests on inputs used.
        outputs: p-value of the test on the model's outputs, corrected for the number of classes.
        inputs: p-value of the test on the inputs.
        within: p-value of the test on the inputs inside predicted classes, which does not react to class shares; None
            if the reference has too few inputs of the classes that are now predicted.
        shares: p-value of the difference in predicted shares. Not part of the alarm.
        discrepancy: MMD² of the inputs, unbiased, so it may be negative.
        reference_shares, current_shares: how often each class is predicted.
        classes: their names; empty if they have only numbers.
        distances: how far each class's output moved, from 0 to 1 (Kolmogorov-Smirnov).
        detectable: approximate distance above which the test on outputs raises an alarm.
        findings: causes and advice.
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
    detectable: float
    findings: tuple[Finding, ...]
    classes: tuple[str, ...] = ()

    @property
    def p_value(self) -> float:
        """Of all tests together: three times the smallest (Bonferroni)."""
        return min(1.0, TESTS * min(self.outputs, self.inputs, 1.0 if self.within is None else self.within))

    @property
    def alarm(self) -> bool:
        """Whether the tests found a change at `level`."""
        return self.p_value <= self.level

    @property
    def moved(self) -> tuple[float, ...]:
        """Change of each class's predicted share."""
        return tuple(b - a for a, b in zip(self.reference_shares, self.current_shares, strict=True))

    @property
    def most_moved(self) -> int:
        """The class whose output moved furthest."""
        return int(np.argmax(self.distances))

    @property
    def summary(self) -> str:
        """The result of all tests together, in a sentence."""
        verdict, (n, m) = "Drift" if self.alarm else "No drift detected", self.sizes
        return f"{verdict} ({p_text(self.p_value, 3)}, level {self.level:g}): {n} reference inputs, {m} current ones."

    @property
    def details(self) -> str:
        """Each test, the classes that moved most, and the findings."""
        within = "not comparable" if self.within is None else p_text(self.within, 3)
        lines = [
            f"  model's outputs            {p_text(self.outputs, 3)}",
            f"  inputs                     {p_text(self.inputs, 3)}",
            f"  inputs within classes      {within}",
            f"  shares of predictions      {p_text(self.shares, 3)}",
        ]
        rows = sorted(range(len(self.distances)), key=lambda c: -self.distances[c])
        names = [class_name(c, self.classes) for c in rows[:MAX_SHOWN]]
        width = max(len("class"), *map(len, names))
        lines.append(f"  {'class':>{width}}  reference  current   moved  distance")
        for c, name in zip(rows, names, strict=False):
            before, now, points = self.reference_shares[c], self.current_shares[c], 100 * self.moved[c]
            shares = f"{percent(before):>9}  {percent(now):>7}  {points:+6.1f}"
            lines.append(f"  {name:>{width}}  {shares}  {self.distances[c]:8.3f}")
        if len(rows) > MAX_SHOWN:
            lines.append(f"  ... and {len(rows) - MAX_SHOWN} classes that moved less")
        if not self.alarm:
            lines.append(
                "No alarm is no proof: a change that moves no output by more than about "
                f"{self.detectable:.2f} and hardly changes the inputs is not detected."
            )
        return "\n".join([*lines, *(str(finding) for finding in self.findings)])

    def __str__(self) -> str:
        return f"{self.summary}\n{self.details}"


@activity("testing for drift")
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
    """Test whether current inputs have the distribution of the reference; labels are not needed.

        D_c = max over t of |F_c(t) - G_c(t)|, F_c and G_c the shares of reference and current inputs whose
        softmax output for class c is at most t; p-value: the smallest of all classes, times their number       (1)

        MMD² = mean of k(x, x') + mean of k(y, y') - 2 mean of k(x, y),   k(x, y) = exp(-‖x - y‖² / median),
        over pairs of different reference inputs x and current inputs y; p-value: by permutation                (2)

        Σᵢⱼ uᵢ uⱼ k(zᵢ, zⱼ), z all inputs, u 1 for those of the reference and 0 for others, less the mean of
        that over the inputs of the same predicted class; p-value: by permutation inside predicted classes      (3)

    (1) compares the model's outputs (BBSD), (2) the inputs after the model's normalisation, (3) inputs of the same
    predicted class. Each is tested at a third of the level, so that together they keep it if the inputs are independent
    of each other; frames of one video are not.

    Rabanser et al. run (2) on reduced inputs or outputs. Here it runs on the inputs: in a trial on digits it detected
    more there than on softmax outputs, logits or principal components, in particular what (1) misses, such as
    brightness, position and noise that do not yet change predictions. (3) is ours: if all classes move alike it needs
    the fewest inputs, and unless the model often errs it separates changed inputs from changed class shares.

    Args:
        reference: earlier inputs. Not the training data, on which the model is more confident.
        level: false-alarm probability.
        permutations: for (2) and (3); the smallest p-value is 1 / (permutations + 1).
        rows: maximum number of inputs per side for (2) and (3), drawn at random; memory grows with its square.

    References:
        | Failing Loudly: An Empirical Study of Methods for Detecting Dataset Shift (Rabanser et al., 2019)
        | https://arxiv.org/abs/1810.11953
        | A Kernel Two-Sample Test (Gretton et al., 2012), https://jmlr.org/papers/v13/gretton12a.html
        | Detecting and Correcting for Label Shift with Black Box Predictors (Lipton et al., 2018), for BBSD
        | https://arxiv.org/abs/1802.03916
    """
    _check(reference, current, model, level, permutations, rows)
    sides = (reference, current)
    a, b = (model.batched_logits(s.x).cpu().double().log_softmax(1) for s in sides)  # fewer ties than softmax
    distances = ks_distances(a, b)
    counts = torch.stack([p.argmax(1).bincount(minlength=len(distances)) for p in (a, b)])
    chosen = [shuffled(len(s), generator)[:rows].sort().values for s in sides]
    kernel = gaussian_kernel(torch.cat([_normalised(model, s, i) for s, i in zip(sides, chosen, strict=True)])).cpu()
    predicted = torch.cat([p.argmax(1)[i] for p, i in zip((a, b), chosen, strict=True)])
    first = torch.arange(len(predicted)) < len(chosen[0])
    values = mmd(kernel, splits(first, torch.zeros_like(predicted), permutations, generator=generator))
    result = Drift(
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
        detectable=_detectable(len(a), len(b), len(distances), level),
        findings=(),
        classes=names_of(reference, len(distances)) or names_of(current, len(distances)),
    )
    return replace(result, findings=(*_causes(result), *_dependence(reference, current)))


def ks_distances(a: Tensor, b: Tensor) -> Tensor:
    """D of (1) for each column of ``a`` and ``b``: the largest gap between their empirical distribution functions.

    >>> ks_distances(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.5], [2.0], [3.0]]))
    tensor([0.6667], dtype=torch.float64)
    """
    points = torch.cat([a, b]).T.contiguous()
    below = (torch.searchsorted(s.T.sort(1).values.contiguous(), points, right=True).double() / len(s) for s in (a, b))
    return torch.sub(*below).abs().amax(1)


def _outputs_p_value(a: Tensor, b: Tensor, distances: Tensor) -> float:
    """(1), exact up to 10000 inputs per side. Classes have equal sample sizes: the largest D has the smallest p."""
    worst = int(distances.argmax())
    with warnings.catch_warnings():  # scipy warns that p is not exact where it is almost 1
        warnings.simplefilter("ignore", RuntimeWarning)
        p = float(ks_2samp(a[:, worst].numpy(), b[:, worst].numpy()).pvalue)
    return min(1.0, len(distances) * p)


def _detectable(n: int, m: int, classes: int, level: float) -> float:
    """The D whose asymptotic p-value, 2 exp(-2 D² nm / (n + m)), is one class's share of the level."""
    return min(1.0, math.sqrt(math.log(2 * TESTS * classes / level) * (n + m) / (2 * n * m)))


def gaussian_kernel(x: Tensor) -> Tensor:
    """k of (2) for all pairs of rows, ``(N, N)``; the median is over pairs that differ by more than rounding."""
    kernel = torch.empty(len(x), len(x), dtype=torch.float64, device=x.device)
    for i, rows in _blocks(x):
        for j, others in _blocks(x):
            kernel[i : i + len(rows), j : j + len(others)] = torch.cdist(rows, others).square_()
    kernel.masked_fill_(kernel <= 1e-12 * float(torch.linalg.vector_norm(x, dim=1).max()) ** 2, 0)
    differ = int(kernel.count_nonzero())
    median = kernel.flatten().kthvalue(kernel.numel() - differ // 2).values if differ else torch.tensor(1.0)
    return kernel.div_(-float(median)).exp_()


def splits(first: Tensor, groups: Tensor, permutations: int, *, generator: torch.Generator) -> Tensor:
    """Which rows are in the first sample, as 0 and 1: the given column, then columns permuted inside groups.

    >>> first, groups = torch.tensor([True, True, False, False]), torch.tensor([0, 0, 0, 1])
    >>> splits(first, groups, 2, generator=torch.Generator())[3]
    tensor([0., 0., 0.], dtype=torch.float64)
    """
    u = torch.rand(permutations, len(first), dtype=torch.float64, generator=generator, device=generator.device).cpu()
    order, given = (groups + u).argsort(1), first.double()
    by_group = given[groups.argsort(stable=True)].expand_as(u)  # order also lists the rows group by group
    return torch.cat([given[None], torch.zeros_like(u).scatter(1, order, by_group)]).T


def mmd(kernel: Tensor, first: Tensor) -> Tensor:
    """MMD² of (2), unbiased, for every split of the rows in two, one per column of 0 and 1 in ``first``.

    >>> kernel = gaussian_kernel(torch.tensor([[0.0], [1.0], [8.0], [9.0]]))
    >>> mmd(kernel, torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]).double())
    tensor([ 1.4091, -0.7177], dtype=torch.float64)
    """
    n = first.sum(0)
    m = len(first) - n
    same = ((kernel @ first) * first).sum(0)
    across = kernel.sum(0) @ first - same
    x, y = same - n, kernel.sum() - 2 * across - same - m  # without pairs of a row with itself, whose k is 1
    return x / (n * (n - 1)) + y / (m * (m - 1)) - 2 * across / (n * m)  # (2)


def mmd_within(kernel: Tensor, first: Tensor, groups: Tensor) -> Tensor:
    """(3) for every split of the rows in two, from `splits` inside these groups."""
    member = one_hot(groups).double()
    means = member.T @ first / member.sum(0).clamp_min(1)[:, None]
    u = first - means[groups]
    return ((kernel @ u) * u).sum(0)  # (3)


def _within_p_value(
    kernel: Tensor, first: Tensor, predicted: Tensor, permutations: int, generator: torch.Generator
) -> float | None:
    """Of (3); None unless the reference has the predicted classes of at least half of the current inputs."""
    if float(torch.isin(predicted[~first], predicted[first]).double().mean()) < 0.5:
        return None
    inside = splits(first, predicted, permutations, generator=generator)
    return _permutation_p_value(mmd_within(kernel, inside, predicted))


def _permutation_p_value(values: Tensor) -> float:
    """The share of splits with a value at least as large as the given one, which is the first and counts too."""
    return float((values >= values[0] - 1e-12).double().mean())


def _normalised(model: Classifier, samples: Samples, rows: Tensor) -> Tensor:
    """Some inputs as the module receives them, so that columns of a table have the scale of the training."""
    return model.normalise(samples.x[rows.to(samples.x.device)].to(model.device)).flatten(1)


def _blocks(x: Tensor) -> Iterator[tuple[int, Tensor]]:
    size = max(1, BLOCK // x[0].numel())
    return ((start, x[start : start + size].double()) for start in range(0, len(x), size))


def _causes(d: Drift) -> tuple[Finding, ...]:
    if not d.alarm:
        return ()
    c = d.most_moved
    before, now = d.reference_shares[c], d.current_shares[c]
    shares_moved = f"its predicted share from {percent(before)} to {percent(now)}"
    most = f"the output for {class_title(c, d.classes)} moved most, {shares_moved}"
    shares = d.shares <= d.level
    if d.within is not None and d.within <= d.level / TESTS:
        name, problem = "inputs moved", f"inputs differ from the reference even within predicted classes; {most}"
        advice = (
            "The model's accuracy on them is unknown: label some, update the profile with them, and search for the "
            "conditions behind the change with fit_conditions"
        )
        if shares:
            advice += ". Predicted shares moved too; if the model often errs, they may be the cause: estimate_priors"
    elif d.within is not None and shares:
        name, problem = "class shares moved", f"{most}; within predicted classes no difference of inputs was detected"
        advice = (
            "This looks like label shift: estimate the new priors with estimate_priors, which checks that nothing else "
            "moved, and re-weight by them"
        )
    else:
        name, problem = "cause not clear", f"{most}; the cause could not be determined"
        advice = "Label some of the current inputs before trusting the model on them; more inputs may show the cause"
    return (warning(name, problem, advice),)


def _dependence(reference: Samples, current: Samples) -> tuple[Finding, ...]:
    """Inputs that occur twice: in both data sets they hide drift, in one they can cause a false alarm."""
    found, shared = [], _shared(reference, current)
    if shared:
        problem = f"{shared} of {len(current)} current inputs are among the reference inputs, which hides drift"
        found.append(warning("shared inputs", problem, "Leave them out of one side"))
    for name, samples in (("reference", reference), ("current", current)):
        repeated = len(samples) - len(samples.ids.unique())
        if repeated > MAX_REPEATED * len(samples):
            problem = f"{repeated} of {len(samples)} {name} inputs repeat others, which can raise a false alarm"
            found.append(warning("repeated inputs", problem, "Keep each once; the tests assume independent inputs"))
    return tuple(found)


def _shared(reference: Samples, current: Samples) -> int:
    return int(torch.isin(current.ids.cpu(), reference.ids.cpu()).sum())


def _check(reference: Samples, current: Samples, model: Classifier, level: float, permutations: int, rows: int) -> None:
    check_between(0, 1, level=level, advice="0.05 is usual")
    least = math.ceil(TESTS / level - 1)
    check_at_least(least, permutations=permutations, advice=f"with fewer no alarm is possible at level {level}")
    check_at_least(MIN_INPUTS, rows=rows, advice="2000 is usual")
    check_same_shape("reference", reference, "current", current)
    for name, samples in (("reference", reference), ("current", current)):
        number = {f"the number of {name} inputs": len(samples)}
        check_at_least(MIN_INPUTS, **number, advice="a few hundred detect moderate shifts")
        try:
            model.check_inputs(samples.x)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from error
        check_classes(name, samples, model.classes(samples.x))
    if (shared := _shared(reference, current)) >= MAX_SHARED * min(len(reference), len(current)):
        raise ValueError(
            f"reference and current inputs must be different ones, but {shared} of {len(current)} current inputs are "
            "in the reference; split them, or, if equal inputs did arrive twice, give the Samples separate ids"
        )
