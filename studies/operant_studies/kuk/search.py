"""RQ3: searches for uncommon patterns, also with one suspected cause of a difference changed."""

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
from operant_studies.shared import in_percent

MAX_GAP = 0.15  # a larger difference from the paper needs a cause
COLUMNS = ("pcs", "vro", "vro_search", "reached", "confirmed", "generation")
WIDER_SCREEN = 3  # factor on the passes of the screen, in one experiment
MAX_FEW_PASSES = 10  # passes in the experiment with few of them
CONTROL = "no selection"
MORE_SEEDS, EXTRA_RUNS = "more seeds", 2  # the experiment on a difference that may be chance, and its additional runs
CAUSES = {  # suspected causes of differences, in the order in which they are tried
    "a third of the noise": "first members and mutants have noise up to a third of the radius instead of the whole",
    "a tenth of the noise": "up to a tenth",
    "a twentieth of the noise": "up to a twentieth; added after a tenth had come near the paper's share for LH of NIN",
    "a sixth of the noise": "up to a sixth; added after a third and a tenth had enclosed the paper's share for HL of "
    "ResNet-20",
    "fresh masks": "new masks in every generation, as a program that leaves dropout on draws them; more members "
    "succeed by luck then, so the confirmed share matters",
    "stronger dropout": "the next higher rate that was tried at the same places",
    "weaker dropout": "the next lower rate",
    "wider screen": f"{WIDER_SCREEN} times as many passes in the search, where it has few",
    "early and fresh": "dropout before the first of the layers that were tried, at its nearest rate, and fresh masks",
    "early dropout": "the same without fresh masks",
    "small tournaments": "a parent is the fitter of two members instead of the fittest of a fifth of all",
    "other dropout": "dropout at the places that came second",
    "values mutated": "the mutation rate applies to single values instead of images",
    "few passes": "T = {few} in search and confirmation",
}


@dataclass(frozen=True, kw_only=True)
class PatternSearch:
    """The result of searches for one pattern, one row per seed.

    Attributes:
        label, prediction: of the case.
        pcs, vro: with fresh masks.
        vro_search: with the masks of the search.
        reached, confirmed: 1 if the objective was met in the search, and also with fresh masks; else 0.
        generation: in which the search of a seed ended.
        seconds: CPU time.
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
        """A suite without inputs, for the picture of the plane."""
        n = len(self.label)
        rows = Samples(torch.arange(n, dtype=torch.float32)[:, None], self.label, torch.arange(n))
        columns = {name: getattr(self, name) for name in COLUMNS} | {"aim": [self.pattern] * n}
        return Suite.of(
            rows.x, seeds=rows, origin=rows.ids, prediction=self.prediction, method=self.pattern, columns=columns
        )


def run_searches(
    subject: Subject,
    model: Classifier,
    seeds: Samples,
    pattern: str,
    *,
    cause: str,
    path: Sequence[str],
    keep: Callable[[Suite], None],
) -> PatternSearch:
    """Search from some seeds.

    Args:
        subject: gives the options.
        model: with dropout.
        seeds: inputs that the model gets right.
        pattern: of Table 5.
        cause: the change, `CONTROL` or one of `CAUSES`; empty for none.
        path: seeds the random numbers; the same for every cause, so that searches start with the same populations.
        keep: called with the cases.
    """
    start = time.process_time()
    suite = make_search(subject, pattern, cause)(model, seeds, generator=spawn(0, "kuk", subject.name, *path))
    columns = {name: torch.as_tensor(suite[name]).double() for name in COLUMNS}
    seconds = time.process_time() - start
    keep(suite)
    return PatternSearch(pattern=pattern, label=suite.label, prediction=suite.prediction, **columns, seconds=seconds)


def make_search(subject: Subject, pattern: str, cause: str) -> UncertaintyFuzz:
    """The paper's search, with a screen of few passes if the subject has one, and with one change."""
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
        "wider screen": replace(fuzz, screen=min(WIDER_SCREEN * (subject.screen or 1), subject.passes)),
        "fresh masks": replace(fuzz, fresh_masks=True),
        "early and fresh": replace(fuzz, fresh_masks=True),
        "a third of the noise": replace(fuzz, noise=fuzz.radius / 3),
        "a tenth of the noise": replace(fuzz, noise=fuzz.radius / 10),
        "a twentieth of the noise": replace(fuzz, noise=fuzz.radius / 20),
        "a sixth of the noise": replace(fuzz, noise=fuzz.radius / 6),
        "small tournaments": replace(fuzz, tournament=2),
        "values mutated": replace(fuzz, mutated="values"),
        "few passes": replace(fuzz, passes=few_passes(subject), screen=None),
    }
    return changes.get(cause, fuzz)


def few_passes(subject: Subject) -> int:
    """Passes in the experiment with few of them."""
    return min(MAX_FEW_PASSES, max(2, subject.passes // 2))


def join(parts: Sequence[PatternSearch]) -> PatternSearch:
    """Several results as one."""
    names = ("label", "prediction", *COLUMNS)
    columns = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return PatternSearch(pattern=parts[0].pattern, **columns, seconds=sum(part.seconds for part in parts))


def share_interval(of: Tensor) -> Interval:
    """The 95 % interval of a share (Clopper-Pearson)."""
    return clopper_pearson_interval(int(of.sum()), len(of), confidence=0.95)


def percent(of: Tensor) -> str:
    """A share in percent, with its interval."""
    interval = share_interval(of)
    return in_percent(float(of.mean()), interval.lower, interval.upper, digits=0)


def mcnemar(first: Tensor, second: Tensor) -> float:
    """Two-sided p of McNemar's exact test that the same seeds reach a pattern equally often in both.

    >>> from torch import tensor
    >>> mcnemar(tensor([1, 1, 1, 1, 1]), tensor([0, 0, 0, 0, 1]))
    0.125
    """
    more, fewer = int((first > second).sum()), int((first < second).sum())
    return float(binomtest(more, more + fewer).pvalue) if more + fewer else 1.0


def gap(subject: Subject, search: PatternSearch) -> float:
    """The difference of the share reached in the search from the paper's."""
    return float(search.reached.mean()) - paper.reached(subject.name, search.pattern)


def p_of_gap(subject: Subject, search: PatternSearch) -> float:
    """Two-sided p of Fisher's exact test that the paper's seeds and ours reach a pattern equally often."""
    here, n = int(search.reached.sum()), len(search.label)
    there = round(paper.reached(subject.name, search.pattern) * paper.SEEDS)
    return float(fisher_exact([[here, n - here], [there, paper.SEEDS - there]]).pvalue)


def differing(subject: Subject, found: dict[str, PatternSearch]) -> list[str]:
    """Patterns whose share differs from the paper's by more than `MAX_GAP`."""
    return [p for p in PATTERNS if p in found and abs(gap(subject, found[p])) > MAX_GAP]
