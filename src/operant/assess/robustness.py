"""Empirical robustness: the share of inputs that a model still gets right under attack."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from operant.assess.bounds import clopper_pearson_interval
from operant.data import Samples
from operant.formatting import percent
from operant.model import Classifier
from operant.rng import spawn
from operant.suite import Suite
from operant.types import Fuzzer
from operant.validation import check_not_empty, check_one_of

MODES = ("adaptive", "static")
ALL = "all"  # name of the row for all attacks together


@dataclass(frozen=True, kw_only=True)
class Rate:
    """k of n inputs were classified correctly, with an interval for the probability."""

    name: str
    k: int
    n: int
    lower: float
    upper: float

    @property
    def value(self) -> float:
        return self.k / self.n


@dataclass(frozen=True, kw_only=True)
class Robustness:
    """Empirical robustness by both definitions; `value` follows ``mode``.

    Attributes:
        clean: accuracy on the unchanged samples.
        adaptive: the samples classified correctly both clean and under attack on this model; one row per attack, and
            last the row ``all`` for samples that withstand every attack.
        static: the seeds of existing cases whose cases are all classified correctly; one row per method among the
            cases, and last the row ``all``. None if there were no cases.
    """

    mode: str
    confidence: float
    clean: Rate
    adaptive: tuple[Rate, ...]
    static: tuple[Rate, ...] | None

    @property
    def value(self) -> float:
        rows = self.adaptive if self.mode == "adaptive" else self.static
        assert rows is not None  # checked by empirical_robustness
        return rows[-1].value

    def __str__(self) -> str:
        rows = [("clean", self.clean), *(("adaptive", rate) for rate in self.adaptive)]
        rows += [("static", rate) for rate in self.static or ()]
        width = max(len(rate.name) for _, rate in rows)
        lines = [
            f"Empirical robustness {percent(self.value)} ({self.mode}), with {percent(self.confidence, 2)} intervals:"
        ]
        lines += [
            f"  {kind:<8}  {'' if kind == 'clean' else rate.name:<{width}}  {percent(rate.value):>6}"
            f"  [{percent(rate.lower):>6}, {percent(rate.upper):>6}]  {rate.k} of {rate.n}"
            for kind, rate in rows
        ]
        lines.append("Adaptive: attacks on this model; static: cases generated once against a reference model.")
        if self.static is None:
            lines.append("Static was not measured, because no cases were given; generate them with attack_cases.")
        return "\n".join(lines)


def attack_cases(
    model: Classifier, samples: Samples, attacks: Mapping[str, Fuzzer], *, generator: torch.Generator
) -> Suite:
    """Successful attacks on a reference model, as fixed test cases for other models.

    As in the paper's experiments only successful cases are kept: for each attack, the failures on samples that the
    model classifies correctly; `method` names the attack. So the reference itself scores 0 on them by construction, and
    the score of another model measures how little the cases transfer to it, not how it withstands its own attacks.

    Args:
        model: the reference.
        samples: labelled inputs to start from, the paper's D_v.
        attacks: fuzzers by name; each one's random numbers depend only on the generator and this name.
    """
    _check_attacks(attacks)
    correct = model.correct(samples)
    if len(correct) == 0:
        raise ValueError(f"none of the {len(samples)} samples is classified correctly; check labels and normalisation")
    return Suite.concat([suite.failures() for suite in _attacked(model, correct, attacks, generator)])


def empirical_robustness(
    model: Classifier,
    samples: Samples,
    attacks: Mapping[str, Fuzzer],
    *,
    mode: str = "adaptive",
    cases: Suite | None = None,
    generator: torch.Generator,
    confidence: float = 0.95,
) -> Robustness:
    """The accuracy of a model under attack (Definition 2), with Clopper-Pearson intervals.

        ER(f, D_v, ATT) = share of (x, y) in D_v with f(x) = y and f(x') = y for all x' of ATT on ⟨(x, y), f⟩        (1)

    That is ``"adaptive"``: the attacks run against the assessed model. The paper's experiments use cases that were
    generated once against another model instead: ``"static"``, counted here by seed, since cases of one seed are not
    independent. Both are reported if there are cases, whatever the mode.

    Args:
        samples: labelled inputs, the paper's D_v. One that is misclassified unchanged counts as not robust.
        attacks: fuzzers by name, as in `attack_cases`.
        mode: the definition that `value` follows.
        cases: result of `attack_cases` on a reference model; required for ``"static"``.

    References:
        | RobOT: Robustness-Oriented Testing for Deep Learning Systems (Wang et al., 2021), Definition 2
        | https://arxiv.org/abs/2102.05913
    """
    check_one_of(MODES, mode=mode)
    if mode == "static" and cases is None:
        raise ValueError('mode="static" needs existing cases; pass cases=attack_cases(reference, samples, ...)')
    _check_attacks(attacks)
    model.check(samples)
    right = (model.predict(samples.x) == samples.labels).cpu()
    return Robustness(
        mode=mode,
        confidence=confidence,
        clean=_rate("clean", right, confidence),
        adaptive=_adaptive(model, samples, right, attacks, generator, confidence),
        static=None if cases is None else _static(model, samples, cases, confidence),
    )


def _adaptive(
    model: Classifier,
    samples: Samples,
    right: Tensor,
    attacks: Mapping[str, Fuzzer],
    generator: torch.Generator,
    confidence: float,
) -> tuple[Rate, ...]:
    """(1) for each attack and for all together; only samples that are classified correctly have to be attacked."""
    rates, robust, ids = [], right, samples.ids.cpu()
    suites = _attacked(model, samples[right], attacks, generator) if bool(right.any()) else [None] * len(attacks)
    for name, suite in zip(attacks, suites, strict=True):
        withstood = right if suite is None else right & ~torch.isin(ids, suite.failures().seed)
        rates.append(_rate(name, withstood, confidence))
        robust = robust & withstood
    return (*rates, _rate(ALL, robust, confidence))


def _attacked(
    model: Classifier, seeds: Samples, attacks: Mapping[str, Fuzzer], generator: torch.Generator
) -> Iterator[Suite]:
    """Each attack's cases, under its name, from a random stream of its own."""
    root = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    for name, attack in attacks.items():
        suite = attack(model, seeds, generator=spawn(root, "attack", name))
        yield replace(suite, method=np.array([name] * len(suite), dtype=np.str_))


def _static(model: Classifier, samples: Samples, cases: Suite, confidence: float) -> tuple[Rate, ...]:
    """For each method and for all together, the seeds without a misclassified case."""
    _check_cases(model, samples, cases)
    wrong = model.predict(cases.x) != cases.label
    rates = []
    for name in (*dict.fromkeys(cases.method.tolist()), ALL):
        rows = torch.ones(len(cases), dtype=torch.bool) if name == ALL else torch.from_numpy(cases.method == name)
        withstood = ~torch.isin(cases.seed[rows].unique(), cases.seed[rows & wrong])
        rates.append(_rate(name, withstood, confidence))
    return tuple(rates)


def _rate(name: str, hits: Tensor, confidence: float) -> Rate:
    k, n = int(hits.sum()), len(hits)
    interval = clopper_pearson_interval(k, n, confidence=confidence)
    return Rate(name=name, k=k, n=n, lower=interval.lower, upper=interval.upper)


def _check_attacks(attacks: Mapping[str, Fuzzer]) -> None:
    if not isinstance(attacks, Mapping) or not attacks:
        raise ValueError(f'attacks must be fuzzers by name, at least one, as {{"pgd": PGD(radius=0.1)}}; got {attacks}')
    if ALL in attacks:
        raise ValueError(f'no attack may be named "{ALL}", the name of the row for all attacks; rename it')


def _check_cases(model: Classifier, samples: Samples, cases: Suite) -> None:
    check_not_empty(cases=cases, advice="generate them with stronger attacks, or leave cases out")
    shape, label, classes = cases.rows.shape, int(cases.label.max()), model.classes(samples.x)
    if shape != samples.shape or label >= classes:
        wanted = f"cases must have the samples' shape {tuple(samples.shape)} and labels below {classes}"
        raise ValueError(f"{wanted}, got shape {tuple(shape)} and labels up to {label}; use the same data")
    if ALL in cases.method:
        raise ValueError(f'no method among the cases may be named "{ALL}", the name of the row for all; rename it')
