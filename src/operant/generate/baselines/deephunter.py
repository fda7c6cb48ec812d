"""DeepHunter: transformations that keep an image's meaning, from a queue of inputs that raised coverage."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.baselines._guided import Method, Queue, Select, check_budget, explore, uniformly
from operant.generate.baselines._mutations import NAMES, Lineage, Mutation
from operant.generate.baselines.adapt import Exploration, Factory, Network
from operant.generate.engine import Rows
from operant.measure.activations import find_neurons
from operant.measure.coverage import NC, Coverage, Criterion
from operant.model import Classifier
from operant.suite import Suite


def neuron_coverage(model: Classifier, x: Tensor) -> Criterion:
    """Neuron coverage at threshold .75 over the scaled neurons of every layer; it needs no training data."""
    return NC(neurons=find_neurons(model, x, scaled=True), threshold=0.75)


@dataclass(frozen=True, kw_only=True)
class DeepHunter:
    """Metamorphic mutation guided by coverage.

    Of one queue, which starts with the seeds, inputs are taken in turn, each with the probability

        P(s) = max(p_min, 1 − taken(s) / γ)                                                             (3)

    A mutant is the input under one transformation, of pixel values (contrast, brightness, blur, noise) or affine
    (translation, scale, shear, rotation; at most one on the way from a seed), with a random parameter, such that

        L0 < α · size   or   L∞ < β · (high − low)                                                      (1)

    for the distance between seed and mutant; around an affine transformation, which itself counts nothing, the L0 of
    what came before and after are added, and of the L∞ the larger is taken, (2). After ``tries`` that are invalid or
    change nothing, an input is passed over. A mutant that fails is a case; another one joins the queue if it covers
    something new.

    Queue and coverage belong to all seeds together, as in the paper: cases of a seed depend on which other seeds there
    are, though not on their order. The paper takes one input at a time and makes several mutants of it; here
    ``at_once`` inputs give one mutant each and pass through the model together. What these cover is credited in their
    order, but none can be taken before all are judged, so that the queue learns later, by at most ``at_once`` rows.

    Where the released program and the paper differ we follow the paper: there contrast, brightness and blur are among
    the affine transformations, and an affine one is applied to the seed to compare with, so that earlier changes count
    twice. γ, p_min, α, β and the ranges of parameters are the program's; its noises, some of which no image survives
    and some of which nobody sees, are scaled to what (1) allows; blur is Gaussian only; shear is about the middle.
    Values count as changed however little, where the program has bytes. Failures do not count as covered, in both.

    Misclassified seeds are skipped. Columns: ``mutations``, the transformations in order; ``l0``, ``linf``, as in (2);
    ``gain``, how many things the case covers that the queue's inputs had not; ``row``, how many model rows had been
    spent in all.

    Args:
        criterion: from the model and the seeds' inputs to what there is to cover, such as
            ``lambda model, x: KMNC(ranges=fit_ranges(model, train))``.
        rows_per_seed: model rows, times the number of seeds, for all together; the seeds are counted, the first and
            last judgement not.
        seconds_per_seed: CPU seconds, times the number of seeds, after which the search ends even if rows are left;
            with it, what is found depends on the machine's speed.
        at_once: inputs taken from the queue and passed through the model together; as many as there are seeds, unless
            given.
        alpha: α, the share of values that may change freely.
        beta: β, by which share of the range any number of values may change.
        gamma: γ, how slowly interest in an input fades.
        p_min: what it fades to.
        tries: mutants tried for each input taken.

    References:
        | DeepHunter: A Coverage-Guided Fuzz Testing Framework for Deep Neural Networks (Xie et al., 2019)
        | https://arxiv.org/abs/1809.01266
    """

    criterion: Factory = neuron_coverage
    rows_per_seed: int = 100
    seconds_per_seed: float | None = None
    at_once: int | None = None
    alpha: float = 0.02
    beta: float = 0.2
    gamma: float = 5.0
    p_min: float = 0.3
    tries: int = 50

    def __post_init__(self) -> None:
        _check(self)
        if not 0 < self.gamma < math.inf:
            raise ValueError(f"gamma must be positive and finite, got {self.gamma}")
        if not 0 < self.p_min <= 1:
            raise ValueError(f"p_min must be a probability above 0, got {self.p_min}")

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        return self.explore(model, seeds, generator=generator).suite

    def explore(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Exploration:
        """The same search, with how the coverage grew: one row, for all seeds share it."""
        return _explore(self, model, seeds, name="deephunter", generator=generator)

    def method(self, model: Classifier, x: Tensor, generator: torch.Generator) -> Method:
        """What the search is made of."""
        turns = StrategyChain(gamma=self.gamma, p_min=self.p_min, generator=generator)
        return _method(self, model, x, select=turns, guided=True, generator=generator)


@dataclass(frozen=True, kw_only=True)
class MetamorphicMutation:
    """The same mutations without guidance: what DeepHunter has to beat.

    Each input of the queue is as likely as any other to be taken, and every valid mutant joins it, unless it fails.

    Args:
        criterion: what is measured; it guides nothing.
        rows_per_seed, seconds_per_seed, at_once, alpha, beta, tries: as in `DeepHunter`.
    """

    criterion: Factory = neuron_coverage
    rows_per_seed: int = 100
    seconds_per_seed: float | None = None
    at_once: int | None = None
    alpha: float = 0.02
    beta: float = 0.2
    tries: int = 50

    def __post_init__(self) -> None:
        _check(self)

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        return self.explore(model, seeds, generator=generator).suite

    def explore(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Exploration:
        """The same search, with how the coverage grew: one row, for all seeds share it."""
        return _explore(self, model, seeds, name="metamorphic", generator=generator)

    def method(self, model: Classifier, x: Tensor, generator: torch.Generator) -> Method:
        """What the search is made of."""

        def select(queue: Queue, n: int) -> Tensor:
            return uniformly(queue, n, generator)

        return _method(self, model, x, select=select, guided=False, generator=generator)


class StrategyChain:
    """Takes inputs of a queue in turn, each with a probability that falls with how often it was taken."""

    def __init__(self, *, gamma: float, p_min: float, generator: torch.Generator) -> None:
        self.gamma, self.p_min, self.generator = gamma, p_min, generator
        self.taken, self.next = torch.zeros(0, dtype=torch.int64), 0

    def __call__(self, queue: Queue, n: int) -> Tensor:
        """The places of the next n, going round as often as it takes."""
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


# What both are made of


def _explore(
    options: DeepHunter | MetamorphicMutation,
    model: Classifier,
    seeds: Samples,
    *,
    name: str,
    generator: torch.Generator,
) -> Exploration:
    search, seeds = explore(model, seeds, options, generator=generator)

    def columns(cases: Rows) -> dict[str, Any]:
        return {
            "mutations": _ways(search.queue, cases),
            **{name: cases[name] for name in ("l0", "linf", "gain")},
        }

    return search.exploration(search.suite(model, seeds, name=name, columns=columns))


def _method(
    options: DeepHunter | MetamorphicMutation,
    model: Classifier,
    x: Tensor,
    *,
    select: Select,
    guided: bool,
    generator: torch.Generator,
) -> Method:
    if x.ndim != 4:
        raise ValueError(
            f"DeepHunter's mutations are for images (N, channels, height, width), got inputs of shape "
            f"{tuple(x.shape[1:])}; use TensorFuzz for others"
        )
    if not math.isfinite(model.bounds[1] - model.bounds[0]):
        raise ValueError(f"images must have finite bounds for their range to be known, got {model.bounds}")
    criterion = _criterion(options, model, x)
    network = Network(model, criterion.neurons, x)
    mutation = Mutation(alpha=options.alpha, beta=options.beta, bounds=model.bounds, tries=options.tries)

    def look(x: Tensor) -> tuple[Tensor, Tensor]:
        readings = [network.read(part) for part in x.split(model.batch_size)]
        points = [r.scaled if criterion.neurons.scaled else r.values for r in readings]
        return torch.cat([r.logits for r in readings]), torch.cat(points)

    none, far, itself = torch.tensor(0), torch.tensor(0, dtype=x.dtype), torch.tensor(-1)
    return Method(
        memory=Coverage.of(criterion),
        look=look,
        select=select,
        mutate=lambda queue, places: _mutated(queue, places, mutation, generator),
        guided=guided,
        state={
            "l0": none,
            "linf": far,
            "l0_before": none,
            "linf_before": far,
            "turned": torch.tensor(False),
            "reference": itself,
            "which": itself,
        },
    )


def _mutated(queue: Queue, places: Tensor, mutation: Mutation, generator: torch.Generator) -> Rows:
    """Mutants of the inputs at these places; ``reference`` is a place, or -1 for the input itself."""
    now = queue.take(places)
    reference = torch.where(now["reference"] < 0, places, now["reference"])
    known = {name: now[name] for name in ("x", "l0", "linf", "l0_before", "linf_before", "turned")}
    made = mutation(Lineage(**known, reference=queue.store["x"][reference]), generator=generator)
    after, row = vars(made.lineage), made.row
    turned = after["turned"] & ~now["turned"][row]
    return {
        **{name: after[name] for name in known},
        **{name: now[name][row] for name in ("origin", "root")},
        "parent": places[row],
        "which": made.which,
        "reference": torch.where(turned, -1, reference[row]),
    }


def _ways(queue: Queue, cases: Rows) -> list[str]:
    """The names of the transformations that led from its seed to each case, in order."""
    ways: list[tuple[str, ...]] = []
    size = len(queue)
    for parent, which in zip(queue.store["parent"][:size].tolist(), queue.store["which"][:size].tolist(), strict=True):
        ways.append((*ways[parent], NAMES[which]) if parent >= 0 else ())
    steps = zip(cases["parent"].tolist(), cases["which"].tolist(), strict=True)
    return [" ".join((*ways[parent], NAMES[which])) for parent, which in steps]


def _criterion(options: DeepHunter | MetamorphicMutation, model: Classifier, x: Tensor) -> Criterion:
    try:
        criterion = options.criterion(model, x)
    except TypeError as error:
        raise ValueError(_form(f"one that cannot be called so ({error})")) from error
    if not (hasattr(criterion, "hits") and hasattr(criterion, "neurons")):  # which ranges know, and None does not
        raise ValueError(_form(f"one that gives a {type(criterion).__name__} without them"))
    return criterion


def _form(what: str) -> str:
    return (
        "criterion must be a function from model and inputs to a criterion with what it needs, such as profiled "
        f"ranges, got {what}; write criterion=lambda model, x: KMNC(ranges=fit_ranges(model, train))"
    )


def _check(options: DeepHunter | MetamorphicMutation) -> None:
    check_budget(options)
    if isinstance(options.criterion, type):
        raise ValueError(_form(f"the class {options.criterion.__name__}"))
    if not callable(options.criterion):
        raise ValueError(_form(f"{options.criterion!r}"))
    if not (0 <= options.alpha <= 1 and 0 < options.beta <= 1):
        raise ValueError(
            f"alpha must be a share from 0 to 1 and beta one above 0, got {options.alpha} and {options.beta}"
        )
    if options.tries < 1:
        raise ValueError(f"tries must be at least 1, got {options.tries}")
