"""RQ3: searches for uncommon patterns, and the same with one suspected cause of a difference changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from scipy.stats import binomtest, fisher_exact
from torch import Tensor

from operant.assess import Interval, clopper_pearson_interval
from operant.data import Samples
from operant.generate import UncertaintyFuzz
from operant.model import Classifier
from operant.rng import spawn
from operant.suite import Suite
from operant_studies.kuk import paper
from operant_studies.kuk.settings import PATTERNS, Subject

GAP = 0.15  # a difference from the paper that asks for a cause
TOLD = ("pcs", "vro", "vro_search", "reached", "confirmed", "generation")
WIDER, FEW = 3, 10  # times as many passes in the screen, and passes at most, of experiments
CONTROL = "no selection"
MORE, MORE_RUNS = "more seeds", 2  # the experiment on a difference that may be chance, and its further runs
CAUSES = {  # of differences, in the order in which they are tried
    "a third of the noise": "first members and mutants have noise up to a third of the radius, not all of it",
    "a tenth of the noise": "up to a tenth",
    "a twentieth of the noise": "up to a twentieth; added after a tenth had come near the paper's share for LH of NIN",
    "a sixth of the noise": "up to a sixth; added after a third and a tenth had come out on both sides of the paper's "
    "share for HL of ResNet-20",
    "fresh masks": "new masks in every generation, as a program draws them that leaves dropout on; more members have "
    "luck then, so look at what is confirmed",
    "stronger dropout": "the next higher rate that was tried at the same places",
    "weaker dropout": "the next lower rate",
    "wider screen": f"{WIDER} times as many passes in the search, where it has few",
    "early and fresh": "dropout before the first of the layers that were tried, at the rate that is nearest there, and "
    "fresh masks",
    "early dropout": "the same without fresh masks",
    "small tournaments": "a parent is the fitter of two members, not the fittest of a fifth of all",
    "other dropout": "dropout at the places that came second",
    "values mutated": "the mutation rate counts single values, not images",
    "few passes": "T = {few} in search and judgement",
}


@dataclass(frozen=True, kw_only=True)
class Bred:
    """What searches for one pattern came to, one row a seed.

    Attributes:
        label, prediction: of the case.
        pcs, vro: by fresh masks.
        vro_search: by those of the search.
        reached, confirmed: 1 if the objective was met in the search, and with fresh masks too; else 0.
        generation: when the search of a seed ended.
        seconds: of CPU time.
    """

    pattern: str
    label: Tensor
    prediction: Tensor
    pcs: Tensor
    vro: Tensor
    vro_search: Tensor
    reached: Tensor
    confirmed: Tensor
    generation: Tensor
    seconds: float

    @property
    def wrong(self) -> Tensor:
        return self.prediction != self.label

    def suite(self) -> Suite:
        """Rows as a suite without inputs, for the picture of the plane."""
        n = len(self.label)
        rows = Samples(torch.arange(n, dtype=torch.float32)[:, None], self.label, torch.arange(n))
        columns = {name: getattr(self, name) for name in TOLD} | {"aim": [self.pattern] * n}
        return Suite.of(
            rows.x, seeds=rows, origin=rows.ids, prediction=self.prediction, method=self.pattern, columns=columns
        )


def breed(
    subject: Subject,
    model: Classifier,
    seeds: Samples,
    pattern: str,
    *,
    cause: str,
    path: Sequence[str],
    keep: Callable[[Suite], None],
) -> Bred:
    """Search from some seeds.

    Args:
        subject: whose options count.
        model: with dropout.
        seeds: that it gets right.
        pattern: of Table 5.
        cause: what is changed, `CONTROL` or out of `CAUSES`, or nothing.
        path: names the random numbers; the same for every cause, so that a search begins with the same populations.
        keep: is given the cases.
    """
    start = time.process_time()
    suite = fuzz_of(subject, pattern, cause)(model, seeds, generator=spawn(0, "kuk", subject.name, *path))
    columns = {name: torch.as_tensor(suite[name]).double() for name in TOLD}
    seconds = time.process_time() - start
    keep(suite)
    return Bred(pattern=pattern, label=suite.label, prediction=suite.prediction, **columns, seconds=seconds)


def fuzz_of(subject: Subject, pattern: str, cause: str) -> UncertaintyFuzz:
    """The paper's search; of a subject whose passes take long, screened with few of them."""
    fuzz = UncertaintyFuzz(
        pattern=pattern,
        population=subject.population,
        generations=subject.generations,
        tournament=subject.tournament,
        passes=subject.passes,
        screen=subject.screen,
    )
    changes = {
        CONTROL: replace(fuzz, tournament=1, elites=0),
        "wider screen": replace(fuzz, screen=min(WIDER * (subject.screen or 1), subject.passes)),
        "fresh masks": replace(fuzz, fresh_masks=True),
        "early and fresh": replace(fuzz, fresh_masks=True),
        "a third of the noise": replace(fuzz, noise=fuzz.radius / 3),
        "a tenth of the noise": replace(fuzz, noise=fuzz.radius / 10),
        "a twentieth of the noise": replace(fuzz, noise=fuzz.radius / 20),
        "a sixth of the noise": replace(fuzz, noise=fuzz.radius / 6),
        "small tournaments": replace(fuzz, tournament=2),
        "values mutated": replace(fuzz, mutated="values"),
        "few passes": replace(fuzz, passes=few(subject), screen=None),
    }
    return changes.get(cause, fuzz)


def few(subject: Subject) -> int:
    """Passes of the experiment with few of them."""
    return min(FEW, max(2, subject.passes // 2))


def joined(parts: Sequence[Bred]) -> Bred:
    """Several as one."""
    names = ("label", "prediction", *TOLD)
    columns = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return Bred(pattern=parts[0].pattern, **columns, seconds=sum(part.seconds for part in parts))


def share(of: Tensor) -> Interval:
    """How often, with a 95 % interval (Clopper-Pearson)."""
    return clopper_pearson_interval(int(of.sum()), len(of), confidence=0.95)


def percent(of: Tensor) -> str:
    """How often, in percent, with its interval."""
    interval = share(of)
    return f"{100 * float(of.mean()):.0f} [{100 * interval.lower:.0f}, {100 * interval.upper:.0f}]"


def mcnemar(first: Tensor, second: Tensor) -> float:
    """Two-sided p that the same seeds reach as often in both, exact: of seeds that differ, either way is as likely.

    >>> from torch import tensor
    >>> mcnemar(tensor([1, 1, 1, 1, 1]), tensor([0, 0, 0, 0, 1]))
    0.125
    """
    more, fewer = int((first > second).sum()), int((first < second).sum())
    return float(binomtest(more, more + fewer).pvalue) if more + fewer else 1.0


def gap(subject: Subject, bred: Bred) -> float:
    """By how much the count that was reached in the search differs from the paper's."""
    return float(bred.reached.mean()) - paper.reached(subject.name, bred.pattern)


def p_of_gap(subject: Subject, bred: Bred) -> float:
    """Two-sided p that the paper's seeds and ours reach a pattern as often (Fisher's exact test)."""
    here, n = int(bred.reached.sum()), len(bred.label)
    there = round(paper.reached(subject.name, bred.pattern) * paper.SEEDS)
    return float(fisher_exact([[here, n - here], [there, paper.SEEDS - there]]).pvalue)


def to_explain(subject: Subject, found: dict[str, Bred]) -> list[str]:
    """Patterns for which we differ from the paper by more than can be let stand."""
    return [p for p in PATTERNS if p in found and abs(gap(subject, found[p])) > GAP]
