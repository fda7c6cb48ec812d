"""Are the bounds true? How often each one holds over many draws from pools whose failures are all known, and its price.

Three kinds of scores, by which inputs are drawn: good ones, poor ones, and blind ones, which are good but for a quarter
of the failures, taken for safe. With ``--data``, also the scores of trained networks on data from elsewhere. In each
pool every method gets the same number of labels, and a table shows

    given       in how many repetitions there was a bound at all (a normal one is rejected where it cannot be trusted)
    true        how many of those were no smaller than the truth; "low" if fewer than a 95 % bound can have by chance
                (below the level .01), "-" if none was given
    upper       the median bound
    labels      how many times as many labels Clopper-Pearson's bound needs on a simple sample, for the same mean bound
    variance    simple sampling's variance over the estimate's

"plain normal" is λ̂ + z · standard error, given without asking; "as released" has the variance of DeepEST's program,
around its first term. The confidence sequence, and Clopper-Pearson's bound for comparison, are looked at after every
label, and count as true only if they were at all times.

    python benchmarks/coverage.py [--quick] [--data DIR]

DIR holds usps.npz, tinyimagenet-as-cifar7.npz and, in it or in ``weights`` below it, mnist_lenet5_plain.safetensors,
mnist_lenet5_robust.safetensors and cifar10_resnet20.safetensors.
"""

import _timing  # isort: skip  # first: it sets what torch reads when it is imported

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.stats import beta, binom, norm
from torch import Tensor
from torch.nn.functional import interpolate, pad

from operant import Classifier, Samples, load, samples_from_npz, spawn
from operant.assess import estimators as of
from operant.assess.bounds import clopper_pearson, confidence_sequence, log_wealth
from operant.networks import load_weights
from operant.seeds import Draw, combine, draw
from operant_studies.networks import ResNet20
from operant_studies.subjects import find_mnist_networks, mnist_network

TAIL = 0.05
LABELS = 300
MANY = 2000  # labels, with which normal bounds are given
STRATA = 6
RATES = (1e-3, 1e-2, 3e-2, 5e-2)
KINDS = ("good", "poor", "blind")
DEFAULTS = ("Clopper-Pearson", "confidence sequence, any time", "stratified, score")
Bounds = tuple[float, float | None]  # an estimate and its bound


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A pool of which everything is known: mass, scores from 0 to 1, and which inputs fail."""

    name: str
    mass: Tensor
    scores: Tensor
    failed: Tensor

    @property
    def truth(self) -> float:
        return float(self.mass @ self.failed.double())


@dataclass(frozen=True, kw_only=True)
class Row:
    """How one method did on one pool."""

    method: str
    given: int
    true: int
    upper: float
    mean: float
    variance: float

    @property
    def coverage(self) -> float:
        return self.true / self.given if self.given else float("nan")

    @property
    def low(self) -> bool:
        return self.true < binom.ppf(0.01, self.given, 1 - TAIL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="60 repetitions instead of 2000, under 50 s")
    parser.add_argument("--data", type=Path, help="folder with data and weights of trained networks")
    options = parser.parse_args()
    repetitions = 60 if options.quick else 2000
    tasks = [(simulated(kind, rate), LABELS) for rate in RATES for kind in KINDS]
    tasks += [(simulated(kind, RATES[-1]), MANY) for kind in KINDS]
    tasks += [(pool, LABELS) for pool in trained(options.data)] if options.data else []
    found: dict[str, dict[str, Row]] = {}
    for pool, n in tasks:
        start = time.process_time()
        rows = judge(pool, n=n, repetitions=repetitions)
        name = f"{pool.name}, {n} labels"
        found[name] = {row.method: row for row in rows}
        title = f"{name}: truth {pool.truth:.4g}, {repetitions} repetitions, {time.process_time() - start:.0f} CPU s"
        _show(title, rows, pool.truth, n)
    _timing.finish("coverage", _ratios(found))
    wrong = [f"{method} on {name}" for name, rows in found.items() for method in DEFAULTS if rows[method].low]
    if wrong:
        raise SystemExit(f"bounds are not true at their confidence: {', '.join(wrong)}")


def _ratios(found: dict[str, dict[str, Row]]) -> dict[str, float]:
    ratios = {}
    for method in next(iter(found.values())):
        given = [rows[method] for rows in found.values() if rows[method].given >= 50]
        if given:
            ratios[f"lowest coverage: {method}"] = min(row.coverage for row in given)
    mean = found[f"good scores, rate 0.03, {LABELS} labels"]["stratified, score"].mean
    return ratios | {"labels saved by stratified, good scores, rate .03": _simple_labels(mean, 0.03) / LABELS}


def _show(title: str, rows: list[Row], truth: float, n: int) -> None:
    table = []
    for row in rows:
        true = f"{row.true} = {row.coverage:.1%}{' low' if row.low else ''}" if row.given else "-"
        upper = f"{row.upper:.4f}" if row.given else "-"
        labels = f"{_simple_labels(row.mean, truth) / n:.2f}" if row.given and not row.low else "-"
        table.append([row.method, str(row.given), true, upper, labels, f"{row.variance:.2f}"])
    _timing.show(title, ["method", "given", "true", "upper", "labels", "variance"], table)


def _simple_labels(upper: float, truth: float) -> int:
    """With how many labels Clopper-Pearson's bound on a simple sample is no larger than this in the mean."""

    def mean(n: int) -> float:
        k = np.arange(max(0, binom.ppf(1e-9, n, truth)), min(n - 1, binom.isf(1e-9, n, truth)) + 1)
        return float(binom.pmf(k, n, truth) @ beta.isf(TAIL, k + 1, n - k)) + float(binom.pmf(n, n, truth))

    low, high = 0, 1
    while mean(high) > upper and high < 10**5:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if mean(middle) <= upper else (middle, high)
    return high


# One pool -------------------------------------------------------------------------------------------------------------


def judge(pool: Pool, *, n: int, repetitions: int) -> list[Row]:
    """Every method on draws of n labels from one pool; add a pool of your own to see how they do on it."""
    inputs = Samples(torch.zeros(len(pool.mass), 1), ids=torch.arange(len(pool.mass)))
    claims = combine(pool.mass, pool.scores, risk_power=0.5, defensive=0.5)
    risky = combine(pool.mass, pool.scores, risk_power=0.5, defensive=0.2)
    rows: list[Row] = []
    for design, weights, methods in _plan(pool, claims, risky):
        g = spawn(0, pool.name, design, str(weights is pool.mass))
        results: dict[str, list[Bounds]] = {}
        for _ in range(repetitions):
            drawn = draw(inputs, weights, n, design=design, mass=pool.mass, strata=STRATA, generator=g)
            for method in methods:
                for name, bounds in method(drawn, pool.failed[drawn.indices]).items():
                    results.setdefault(name, []).append(bounds)
        rows += [_row(name, found, pool, n) for name, found in results.items()]
    return rows[:1] + _any_time(pool, n, repetitions) + rows[1:]


Method = Callable[[Draw, Tensor], dict[str, Bounds]]


def _plan(pool: Pool, claims: Tensor, risky: Tensor) -> Iterator[tuple[str, Tensor, list[Method]]]:
    """Designs, their weights, and what is made of each draw."""
    yield "pps", pool.mass, [partial(_safe, "Clopper-Pearson", of.hansen_hurwitz)]
    bounds = ("score", "laplace", "beta")
    yield (
        "stratified",
        claims,
        [partial(_safe, f"stratified, {bound}", partial(of.stratified, bound=bound)) for bound in bounds],
    )
    powered = partial(of.prediction_powered, scores=pool.scores, mass=pool.mass)
    weighed = partial(_weighed, "Hansen-Hurwitz", of.hansen_hurwitz), partial(_weighed, "prediction-powered", powered)
    yield "pps", risky, list(weighed)
    yield "poisson", risky, [partial(_weighed, "Horvitz-Thompson", of.horvitz_thompson)]
    yield "rhc", risky, [partial(_weighed, "Rao-Hartley-Cochran", of.rao_hartley_cochran)]
    yield "sequential", risky, [partial(_weighed, "LURE", of.lure), partial(_weighed, "Des Raj", of.des_raj), _deepest]


def _safe(name: str, estimator: Callable[..., of.Estimate], drawn: Draw, failed: Tensor) -> dict[str, Bounds]:
    result = estimator(drawn, failed, confidence=1 - TAIL)
    return {name: (result.estimate, result.upper)}


def _weighed(name: str, estimator: Callable[..., of.Estimate], drawn: Draw, failed: Tensor) -> dict[str, Bounds]:
    """The estimate and bound, and the plain normal bound for comparison."""
    result = estimator(drawn, failed, confidence=1 - TAIL)
    assert result.standard_error is not None
    plain = result.estimate + float(norm.isf(TAIL)) * result.standard_error
    return {name: (result.estimate, result.upper), f"{name}, plain normal": (result.estimate, plain)}


def _deepest(drawn: Draw, failed: Tensor) -> dict[str, Bounds]:
    """Des Raj's estimate, with the distances from its first term for a variance."""
    values = drawn.mass * failed.double()
    z = values.cumsum(0) - values + values / drawn.chances
    variance = float(((z[1:] - z[0]) ** 2).sum()) / (len(z) * (len(z) - 1))
    upper = float(z.mean()) + float(norm.isf(TAIL)) * variance**0.5
    return {"DeepEST, as released": (float(z.mean()), upper)}


def _row(name: str, found: list[Bounds], pool: Pool, n: int) -> Row:
    estimates = np.array([estimate for estimate, _ in found])
    uppers = np.array([upper for _, upper in found if upper is not None])
    return Row(
        method=name,
        given=len(uppers),
        true=int((uppers >= pool.truth * (1 - 1e-9)).sum()),
        upper=float(np.median(uppers)) if len(uppers) else float("nan"),
        mean=float(uppers.mean()) if len(uppers) else float("nan"),
        variance=pool.truth * (1 - pool.truth) / n / max(float(estimates.var()), 1e-300),
    )


def _any_time(pool: Pool, n: int, repetitions: int) -> list[Row]:
    """Simple sampling with a look after each label: is the truth below the bound every time?"""
    u = torch.rand(repetitions, n, generator=spawn(0, pool.name, "looks"), dtype=torch.float64)
    k, looks, truth = (u < pool.truth).cumsum(1).double().numpy(), np.arange(1.0, n + 1), pool.truth
    below = k < looks * truth  # only there can a bound be below the truth
    winnings = np.where(below, log_wealth(np.where(below, k, 0), looks, truth), 0)
    sequence = (winnings >= -np.log(TAIL)).any(1)
    exact = (binom.cdf(k, looks, truth) < TAIL).any(1)
    counts, place = np.unique(k[:, -1], return_inverse=True)
    rows = []
    tried = [("Clopper-Pearson", clopper_pearson, exact), ("confidence sequence", confidence_sequence, sequence)]
    for name, bound, wrong in tried:
        uppers = np.array([bound(int(count), n, confidence=1 - TAIL).upper for count in counts])[place]
        rows.append(
            Row(
                method=f"{name}, any time",
                given=repetitions,
                true=int((~wrong).sum()),
                upper=float(np.median(uppers)),
                mean=float(uppers.mean()),
                variance=1.0,
            )
        )
    return rows


# Pools ----------------------------------------------------------------------------------------------------------------


def simulated(kind: str, rate: float, *, size: int = 10_000) -> Pool:
    """Inputs of equal mass, most of them nearly safe and a few nearly certain to fail; the share of failures is exact.

    Good scores are the probabilities of failing themselves (area under the ROC curve about .97), poor ones carry noise
    (about .7). Blind ones are good but for a quarter of the failures, which get scores of the safer half.
    """
    g = np.random.default_rng([KINDS.index(kind), round(1e6 * rate)])
    risk = g.beta(0.05, 0.05 * (1 - rate) / rate, size).clip(1e-12, 1 - 1e-12)
    odds = risk / (1 - risk)
    keys = np.log(odds) - np.log(1 / g.random(size) - 1)  # fails first the likelier it is
    failed = np.zeros(size, dtype=bool)
    failed[np.argsort(-keys)[: round(rate * size)]] = True
    scores = risk
    if kind == "poor":
        scores = np.exp((np.log(risk.clip(1e-4)) + g.normal(0, 6, size)).clip(-30, 0))
    if kind == "blind":
        unseen = g.permutation(np.flatnonzero(failed))[: round(0.25 * failed.sum())]
        scores = risk.copy()
        scores[unseen] = g.choice(np.sort(risk)[: size // 2], len(unseen))
    return Pool(
        name=f"{kind} scores, rate {rate:g}",
        mass=torch.full((size,), 1 / size, dtype=torch.float64),
        scores=torch.from_numpy(scores),
        failed=torch.from_numpy(failed),
    )


def trained(data: Path) -> Iterator[Pool]:
    """MNIST's plain and robust networks on USPS, and CIFAR-10's ResNet-20 on pictures from Tiny ImageNet."""
    usps = load("usps", data)
    digits = Samples.concat([usps.train, usps.test])
    x = interpolate(digits.x, size=(20, 20), mode="bilinear", align_corners=False).clamp(0, 1)
    digits = Samples(pad(x, (4, 4, 4, 4)), digits.y)
    weights = find_mnist_networks(data)
    if not weights:
        raise SystemExit(f"{data} must hold mnist_lenet5_plain.safetensors and mnist_lenet5_robust.safetensors")
    for kind, path in weights.items():
        yield _judged(f"{kind} LeNet on USPS", Classifier(load_weights(mnist_network(), path)), digits)
    folder = next(iter(weights.values())).parent
    resnet = load_weights(ResNet20(), folder / "cifar10_resnet20.safetensors")
    model = Classifier(resnet, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    yield _judged("ResNet-20 on Tiny ImageNet", model, samples_from_npz(data / "tinyimagenet-as-cifar7.npz"))


def _judged(name: str, model: Classifier, samples: Samples) -> Pool:
    """The score is one minus the model's confidence."""
    probabilities = model.probs(samples.x).double()
    return Pool(
        name=name,
        mass=torch.full((len(samples),), 1 / len(samples), dtype=torch.float64),
        scores=1 - probabilities.max(1).values,
        failed=probabilities.argmax(1) != samples.labels,
    )


if __name__ == "__main__":
    main()
