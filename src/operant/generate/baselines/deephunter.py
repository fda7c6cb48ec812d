"""DeepHunter: transform images of a queue, which keeps those that raise coverage, within limits that keep meaning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.baselines._image_mutations import NAMES, ImageMutation
from operant.generate.baselines._network import Network
from operant.generate.baselines._shared_queue import Queue, SearchPlan, check_budget, explore_shared
from operant.generate.baselines.exploration import CriterionFactory, Exploration
from operant.generate.engine import Rows
from operant.measure.activations import find_neurons
from operant.measure.coverage import NC, Coverage, Criterion
from operant.model import Classifier
from operant.suite import Suite
from operant.validation import check_above_to, check_at_least, check_positive, check_share


def neuron_coverage(model: Classifier, x: Tensor) -> Criterion:
    """Neuron coverage at threshold .75 over the scaled neurons of every layer; it needs no training data."""
    return NC(neurons=find_neurons(model, x, scaled=True), threshold=0.75)


@dataclass(frozen=True, kw_only=True)
class DeepHunter:
    """Metamorphic mutation guided by coverage.

    Inputs of one queue, which starts with the seeds, are visited in turn, each taken with the probability

        P(s) = max(p_min, 1 − taken(s) / γ)                                                             (3)

    A mutant is the input under one transformation, of pixel values (contrast, brightness, blur, noise) or affine
    (translation, scale, shear, rotation; at most one between seed and mutant), with a random parameter, such that

        L0 < α · size   or   L∞ < β · (high − low)                                                      (1)

    for the distance between seed and mutant; around an affine transformation, which itself counts nothing, the L0 of
    the changes before and after are added, and the larger L∞ is taken, (2). After ``tries`` that are invalid or change
    nothing, an input is passed over. A mutant that fails is a case; another one joins the queue if it covers something
    new.

    All seeds share queue and coverage, as in the paper: cases of a seed depend on which other seeds there are, though
    not on their order. The paper takes one input at a time and makes several mutants of it; here ``at_once`` inputs
    give one mutant each and pass through the model together. Coverage is credited in their order, but none can be taken
    before all are judged, so that the queue learns later, by at most ``at_once`` rows.

    Where the released program and the paper differ we follow the paper: in the program contrast, brightness and blur
    are among the affine transformations, and an affine one is applied to the seed to compare with, so that earlier
    changes count twice. γ, p_min, α, β and the ranges of parameters are the program's; its noises, some of which
    destroy the image and some of which are invisible, are scaled to what (1) allows; blur is Gaussian only; shear is
    about the middle. Values count as changed however little, where the program has bytes. Failures do not count as
    covered, in both.

    Misclassified seeds are skipped. Columns: ``mutations``, the transformations in order; ``l0``, ``linf``, as in (2);
    ``gain``, how many things the case covers that the queue's inputs had not; ``row``, how many model rows had been
    spent in all. `RandomMutation` is the control.

    Args:
        criterion: from the model and the seeds' inputs to what there is to cover, such as
            ``lambda model, x: KMNC(ranges=fit_ranges(model, train))``.
        rows_per_seed: model rows per seed, as one budget for all; the seeds are counted, the first and last judgement
            are not.
        seconds_per_seed: CPU seconds per seed, as one budget for all, after which the search ends even if rows are
            left; results then depend on the machine's speed.
        at_once: inputs taken from the queue and passed through the model together (default: the number of seeds).
        alpha: α, the share of values that may change freely.
        beta: β, the share of the range by which any number of values may change.
        gamma: γ, after how many visits the probability (3) would reach 0.
        p_min: its minimum.
        tries: mutants tried per input taken.

    References:
        | DeepHunter: A Coverage-Guided Fuzz Testing Framework for Deep Neural Networks (Xie et al., 2019)
        | https://arxiv.org/abs/1809.01266
    """

    criterion: CriterionFactory = neuron_coverage
    rows_per_seed: int = 100
    seconds_per_seed: float | None = None
    at_once: int | None = None
    alpha: float = 0.02
    beta: float = 0.2
    gamma: float = 5.0
    p_min: float = 0.3
    tries: int = 50

    def __post_init__(self) -> None:
        check_budget(self)
        if isinstance(self.criterion, type):
            raise ValueError(_wrong_criterion(f"the class {self.criterion.__name__}"))
        if not callable(self.criterion):
            raise ValueError(_wrong_criterion(f"{self.criterion!r}"))
        check_share(alpha=self.alpha)
        check_above_to(0, 1, beta=self.beta, p_min=self.p_min)
        check_positive(gamma=self.gamma)
        check_at_least(1, tries=self.tries)

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        return self.explore(model, seeds, generator=generator).suite

    def explore(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Exploration:
        """The same search, with the growth of its coverage: one line for all seeds."""
        return explore_shared(model, seeds, self, guided=True, generator=generator)

    def plan(self, model: Classifier, x: Tensor, generator: torch.Generator) -> SearchPlan:
        """The parts of the search."""
        _check_images(model, x)
        criterion = self._criterion(model, x)
        network = Network(model, criterion.neurons, x)
        mutation = ImageMutation(alpha=self.alpha, beta=self.beta, bounds=model.bounds, tries=self.tries)

        def read(x: Tensor) -> tuple[Tensor, Tensor]:
            readings = [network.read(part) for part in x.split(model.batch_size)]
            points = [r.scaled if criterion.neurons.scaled else r.values for r in readings]
            return torch.cat([r.logits for r in readings]), torch.cat(points)

        zero, zero_distance, itself = torch.tensor(0), torch.tensor(0, dtype=x.dtype), torch.tensor(-1)
        state = {"l0": zero, "linf": zero_distance, "l0_before": zero, "linf_before": zero_distance}
        state |= {"affine": torch.tensor(False), "reference": itself, "which": itself}
        return SearchPlan(
            name="deephunter",
            control="metamorphic",
            covered=Coverage.of(criterion),
            read=read,
            select=FadingRoundRobin(gamma=self.gamma, p_min=self.p_min, generator=generator),
            mutate=lambda queue, places: _mutated(queue, places, mutation, generator),
            columns=_columns,
            state=state,
        )

    def _criterion(self, model: Classifier, x: Tensor) -> Criterion:
        try:
            criterion = self.criterion(model, x)
        except TypeError as error:
            raise ValueError(_wrong_criterion(f"one that cannot be called so ({error})")) from error
        if not (hasattr(criterion, "hits") and hasattr(criterion, "neurons")):  # which ranges lack, and None
            raise ValueError(_wrong_criterion(f"one that gives a {type(criterion).__name__} without them"))
        return criterion


class FadingRoundRobin:
    """Visits the inputs of a queue in turn, and takes each with a probability that falls each time it is taken."""

    def __init__(self, *, gamma: float, p_min: float, generator: torch.Generator) -> None:
        self.gamma, self.p_min, self.generator = gamma, p_min, generator
        self.taken, self.next = torch.zeros(0, dtype=torch.int64), 0

    def __call__(self, queue: Queue, n: int) -> Tensor:
        """The places of the next n inputs, in as many rounds of the queue as needed."""
        self.taken = torch.cat([self.taken, self.taken.new_zeros(len(queue) - len(self.taken))])
        chosen: list[Tensor] = []
        while n > 0:
            round_ = (self.next + torch.arange(len(queue))) % len(queue)
            u = torch.rand(len(queue), generator=self.generator, device=self.generator.device, dtype=torch.float64)
            p = (1 - self.taken[round_] / self.gamma).clamp_min(self.p_min)  # (3)
            places = round_[u.cpu() < p][:n]
            n -= len(places)
            if n == 0:
                self.next = (int(places[-1]) + 1) % len(queue)
            self.taken[places] += 1
            chosen.append(places)
        return torch.cat(chosen).to(queue.store["x"].device)


def _mutated(queue: Queue, places: Tensor, mutation: ImageMutation, generator: torch.Generator) -> Rows:
    """Mutants of the inputs at these places; ``reference`` is a place, or -1 for the input itself."""
    now = queue.take(places)
    reference = torch.where(now["reference"] < 0, places, now["reference"])
    known = ("x", "l0", "linf", "l0_before", "linf_before", "affine")
    images = {name: now[name] for name in known} | {"reference": queue.store["x"][reference]}
    mutants = mutation(images, generator=generator)
    row = mutants.pop("row")
    newly_affine = mutants["affine"] & ~now["affine"][row]
    reference = torch.where(newly_affine, -1, reference[row])
    inherited = {name: now[name][row] for name in ("origin", "root")}
    return mutants | inherited | {"parent": places[row], "reference": reference}


def _columns(queue: Queue, cases: Rows) -> dict[str, Any]:
    """Columns of the suite: the transformations between each case and its seed, distances and gain."""
    paths: list[tuple[str, ...]] = []
    size = len(queue)
    for parent, which in zip(queue.store["parent"][:size].tolist(), queue.store["which"][:size].tolist(), strict=True):
        paths.append((*paths[parent], NAMES[which]) if parent >= 0 else ())
    steps = zip(cases["parent"].tolist(), cases["which"].tolist(), strict=True)
    mutations = [" ".join((*paths[parent], NAMES[which])) for parent, which in steps]
    return {"mutations": mutations, **{name: cases[name] for name in ("l0", "linf", "gain")}}


def _check_images(model: Classifier, x: Tensor) -> None:
    if x.ndim != 4:
        raise ValueError(
            f"DeepHunter's mutations are for images (N, channels, height, width), got inputs of shape "
            f"{tuple(x.shape[1:])}; use TensorFuzz for others"
        )
    if not math.isfinite(model.bounds[1] - model.bounds[0]):
        raise ValueError(f"images must have finite bounds for their range to be known, got {model.bounds}")


def _wrong_criterion(what: str) -> str:
    return (
        "criterion must be a function from model and inputs to a criterion with what it needs, such as profiled "
        f"ranges, got {what}; write criterion=lambda model, x: KMNC(ranges=fit_ranges(model, train))"
    )
