"""The genetic move: a population for each seed, bred first for failure, then for naturalness."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.engine import CaseList, Goal, Rows, check_ball, project
from operant.generate.operational._cases import LEVEL, check_level
from operant.measure.naturalness import Naturalness
from operant.model import Classifier
from operant.suite import Suite
from operant.validation import (
    check_at_least,
    check_from_to,
    check_nonnegative,
    check_one_of,
    check_positive,
    check_share,
)

MAX_MEMBERS = 8192  # members of all populations that are searched together
TINY = 1e-12  # avoids division by 0


@dataclass(frozen=True, kw_only=True)
class GeneticMove:
    """Breed a population around each seed, without gradients: first for failure, then also for naturalness.

        fitness = scaled(margin)                                 while less than ``switch`` of the population fails
        fitness = scaled(margin) + weight · scaled(quality)      from then on                                      (1)

    with margin how far past the boundary a member is, quality the naturalness's surrogate, both scaled to [0, 1] over
    the seed's population. A member's genes are the difference between its code and the seed's, in the VAE that
    naturalness has learned from the field, so that a member is the seed, changed as field inputs differ; or they are
    its values, as in HDA, which look like noise. The first genes are random; the ``elites`` fittest members survive;
    every child has two of them as parents, drawn by the softmax of their fitness, takes each gene from either with a
    probability in proportion to their fitness, and is mutated. Members are projected into the ball and into bounds.

    A seed leaves once its ``stop_after`` most natural failures all reach the level. When it leaves, or at the end, its
    most natural failures are cases, at most ``keep``; the column ``generation`` is the generation of that. Each member
    is evaluated once, and quality only in the second phase. Each seed has its own random stream, so that seeds do not
    affect each other. `hda` is the published program that this is modelled on.

    Args:
        naturalness: rates failures and decides which are natural. None, with ``genes="values"``, rates by closeness
            (minus the mean squared distance from the seed) and counts every failure as natural.
        radius: of the ball around each seed, in input units.
        norm: ``"linf"`` or ``"l2"``.
        genes: ``"codes"`` or ``"values"``.
        population: children in a generation, each one row of the model.
        generations: maximum number after the first.
        elites: parents of the next generation.
        start: standard deviation of the first genes, in units of codes (about 1 in the field) or of inputs.
        mutation: standard deviation of a gene's mutation, in the same units.
        mutation_rate: share of a generation's genes that mutate.
        switch: share of the population that must fail before quality counts.
        weight: of quality in (1).
        stop_after: natural failures after which a seed leaves; None breeds every generation.
        keep: maximum number of cases per seed.
        level: the p-value from which a failure is natural.

    References:
        | Hierarchical Distribution-Aware Testing of Deep Learning (Huang et al., 2023), for the two phases
        | https://arxiv.org/abs/2205.08589
    """

    naturalness: Naturalness | None = field(repr=False)
    radius: float
    norm: str = "linf"
    genes: str = "codes"
    population: int = 30
    generations: int = 10
    elites: int = 10
    start: float = 1.0
    mutation: float = 0.5
    mutation_rate: float = 0.2
    switch: float = 0.2
    weight: float = 1.0
    stop_after: int | None = 1
    keep: int = 1
    level: float = LEVEL

    def __post_init__(self) -> None:
        check_ball(self.radius, self.norm)
        check_level(self.level)
        check_one_of(("codes", "values"), genes=self.genes)
        if self.genes == "codes" and self.naturalness is None:
            raise ValueError('genes="codes" needs naturalness, got None; give one, or genes="values"')
        check_at_least(1, population=self.population, generations=self.generations, keep=self.keep)
        if self.stop_after is not None:
            check_at_least(1, stop_after=self.stop_after)
        check_from_to(1, self.population, elites=self.elites, advice="give at most the population")
        check_positive(start=self.start)
        check_nonnegative(weight=self.weight, mutation=self.mutation)
        check_share(mutation_rate=self.mutation_rate, switch=self.switch)

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        model.check(seeds)
        seeds = seeds.to(model.device)
        names = torch.randint(2**62, (len(seeds),), generator=generator, device=generator.device).tolist()
        cases = CaseList(seeds, "generation")
        for some in torch.arange(len(seeds)).split(max(1, MAX_MEMBERS // self.population)):
            rows = {"x0": seeds.x[some], "y": seeds.labels[some], "origin": some.to(seeds.x.device)}
            streams = [torch.Generator().manual_seed(names[row]) for row in some.tolist()]
            self._search(model, rows | self._codes(rows["x0"]), streams, cases)
        return cases.suite(model, method=f"genetic-{self.norm}").failures()

    def _search(self, model: Classifier, rows: Rows, streams: list[torch.Generator], cases: CaseList) -> None:
        """Breed the populations of one batch of seeds; the state has one row per seed, with one entry per member."""
        children = self._first(rows["x0"], streams)
        members: Rows = {}
        for generation in range(self.generations + 1):
            members = _joined(members, self._evaluated(model, rows, children))
            late, last = members["failing"].double().mean(1) >= self.switch, generation == self.generations
            self._rate(members, rows["x0"], late | last)
            done = torch.full_like(late, True) if last else self._satisfied(members, late)
            self._collect(cases, rows, members, done, generation)
            if bool(done.all()):
                return
            streams = [stream for stream, gone in zip(streams, done.tolist(), strict=True) if not gone]
            rows, members = ({name: v[~done] for name, v in part.items()} for part in (rows, members))
            members, fitness = self._survivors(members, late[~done])
            children = self._bred(members["genes"], fitness, streams)

    # Evaluation of members

    def _evaluated(self, model: Classifier, rows: Rows, genes: Tensor) -> Rows:
        """New members from their genes, with their margins; their quality is unknown (NaN)."""
        m, size = genes.shape[:2]
        x = self._expressed(model, {name: values.repeat_interleave(size, 0) for name, values in rows.items()}, genes)
        logits, y = model.batched_logits(x), rows["y"].repeat_interleave(size)
        margin = Goal().margin(logits, y).view(m, size)
        return {
            "genes": genes if self.genes == "codes" else x.view(m, size, -1),
            "x": x.view(m, size, *x.shape[1:]),
            "margin": margin,
            "failing": Goal().reached(logits, y).view(m, size),
            "quality": torch.full_like(margin, torch.nan).double(),
        }

    def _expressed(self, model: Classifier, rows: Rows, genes: Tensor) -> Tensor:
        """The inputs that genes stand for, in the ball and in bounds; one row per member."""
        x0, x = rows["x0"], genes.flatten(0, 1)
        if self.naturalness is not None and self.genes == "codes":
            with torch.no_grad():
                x = x0 + (self.naturalness.vae.decode(rows["code"] + x) - rows["decoded"]).to(x0)
        return project(x.view(x0.shape), x0, self.radius, self.norm, model.bounds)

    def _codes(self, x0: Tensor) -> Rows:
        """The code of each seed and its reconstruction, where genes are codes."""
        if self.naturalness is None or self.genes == "values":
            return {}
        with torch.no_grad():
            code = self.naturalness.vae(x0)
            return {"code": code, "decoded": self.naturalness.vae.decode(code)}

    def _rate(self, members: Rows, x0: Tensor, which: Tensor) -> None:
        """Compute the unknown quality of all members of these seeds."""
        unknown = members["quality"].isnan() & which[:, None]
        if not bool(unknown.any()):
            return
        x = members["x"][unknown]
        if self.naturalness is None:
            seed = unknown.nonzero()[:, 0]
            quality = -(x - x0[seed]).flatten(1).square().mean(1)
        else:
            with torch.no_grad():
                quality = self.naturalness.surrogate(x)
        members["quality"][unknown] = quality.to(members["quality"])

    def _most_natural(self, members: Rows, n: int) -> tuple[Tensor, Tensor]:
        """The n members of the highest quality of each seed, failures first, and whether they are failures."""
        quality = members["quality"].nan_to_num(-math.inf).masked_fill(~members["failing"], -math.inf)
        top = quality.topk(min(n, quality.shape[1]))
        return top.indices, top.values > -math.inf

    def _satisfied(self, members: Rows, late: Tensor) -> Tensor:
        """Seeds in the second phase whose ``stop_after`` most natural failures reach the level."""
        if self.stop_after is None or not bool(late.any()):
            return torch.zeros_like(late)
        place, good = self._most_natural(members, self.stop_after)
        good &= late[:, None]
        if self.naturalness is not None and bool(good.any()):
            x = members["x"][torch.arange(len(place))[:, None], place]
            good[good.clone()] = (self.naturalness(x[good]) >= self.level).to(good.device)
        return good.sum(1) >= self.stop_after

    def _collect(self, cases: CaseList, rows: Rows, members: Rows, done: Tensor, generation: int) -> None:
        place, failing = self._most_natural(members, self.keep)
        each = torch.arange(len(place), device=place.device)[:, None].expand_as(place)
        chosen = failing & done[:, None]
        x, origin = members["x"][each[chosen], place[chosen]], rows["origin"][each[chosen]]
        when = torch.full((len(x),), float(generation), dtype=torch.float64)
        cases.add({"x": x, "origin": origin, "generation": when}, torch.ones(len(x), dtype=torch.bool))

    # Breeding

    def _first(self, x0: Tensor, streams: list[torch.Generator]) -> Tensor:
        codes = self.naturalness is not None and self.genes == "codes"
        size = self.naturalness.vae.latent if self.naturalness is not None and codes else x0[0].numel()
        noise = torch.stack([torch.randn(self.population, size, generator=stream) for stream in streams])
        return self.start * noise.to(x0) + (0.0 if codes else x0.flatten(1)[:, None])

    def _survivors(self, members: Rows, late: Tensor) -> tuple[Rows, Tensor]:
        """The elites of each seed, and their fitness."""
        fitness = _scaled(members["margin"].double())
        quality = _scaled(members["quality"].nan_to_num(0.0))
        fitness = fitness + torch.where(late[:, None], self.weight * quality, 0.0)  # (1)
        fitness, place = fitness.topk(self.elites)
        each = torch.arange(len(place), device=place.device)[:, None]
        return {name: values[each, place] for name, values in members.items()}, fitness

    def _bred(self, elites: Tensor, fitness: Tensor, streams: list[torch.Generator]) -> Tensor:
        """Genes of children: from two parents each, some mutated; one seed at a time for its random stream."""
        size = elites.shape[2]
        children = elites.new_empty(len(elites), self.population, size)
        mutants = round(self.mutation_rate * self.population * size)
        for row, stream in enumerate(streams):
            chance = fitness[row].softmax(0).cpu()
            pairs = torch.multinomial(chance, 2 * self.population, replacement=True, generator=stream)
            first, second = pairs.view(2, -1).to(elites.device)
            f1, f2 = fitness[row, first] + TINY, fitness[row, second] + TINY
            u = torch.rand(self.population, size, generator=stream).to(elites)
            children[row] = torch.where(u < (f1 / (f1 + f2)).to(u)[:, None], elites[row, first], elites[row, second])
            place = torch.randint(self.population * size, (mutants,), generator=stream).to(elites.device)
            noise = self.mutation * torch.randn(mutants, generator=stream).to(elites)
            children[row].view(-1).index_add_(0, place, noise)
        return children


def hda(*, radius: float = 0.1) -> GeneticMove:
    """The published settings of HDA: 1000 members, 20 elites, 100 generations, and no early end.

    Its radius is .1 for MNIST, .08 for Fashion-MNIST, .03 for SVHN and CIFAR-10. We differ from its released program in
    two places: values come from the fitter parent more often (in the program, by a slip, from the other one); and the
    ten cases of a seed are its most natural failures (in the program, the members of the highest loss).
    ``replace(hda(), stop_after=10)`` ends a seed's search once it has ten failures and the second phase has begun.

    References:
        | Hierarchical Distribution-Aware Testing of Deep Learning (Huang et al., 2023)
        | https://arxiv.org/abs/2205.08589
    """
    return GeneticMove(
        naturalness=None,
        radius=radius,
        norm="linf",
        genes="values",
        population=1000,
        generations=100,
        elites=20,
        start=0.01,
        mutation=0.003,
        mutation_rate=0.2,
        switch=0.6,
        stop_after=None,
        keep=10,
    )


def _joined(old: Rows, new: Rows) -> Rows:
    """Survivors, if there are any, and the new members."""
    return {name: torch.cat([old[name], values], 1) if old else values for name, values in new.items()}


def _scaled(values: Tensor) -> Tensor:
    """Scaled to [0, 1] over each row."""
    low, high = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
    return (values - low) / (high - low).clamp_min(TINY)
