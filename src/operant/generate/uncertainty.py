"""KuK: a population for each seed, bred for a pattern of uncertainty that other tests miss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from operant.data import Samples
from operant.generate._uncertainty_fitness import Aim
from operant.generate.engine import Rows, advance, check_ball, judge, project
from operant.measure.mc_dropout import check_passes, mc_dropout
from operant.measure.uncertainty import (
    CHUNK,
    DEFAULT_THRESHOLDS,
    Thresholds,
    pattern,
    prediction_confidence,
    variation_ratio_original,
)
from operant.model import MIN_ROWS, Classifier
from operant.rng import spawn
from operant.suite import Suite
from operant.validation import check_above_to, check_at_least, check_from_to, check_one_of, check_share

MAX_VALUES = 2**25  # values of all members that are searched together
CANDIDATES = 3  # members per seed and generation that met the objective in the screen's passes and get all passes
SEARCH_COLUMNS = ("reached", "generation", "vro_search")

MaskName = tuple[int, str | int]
"""Seed and path of dropout masks, for `spawn`."""


@dataclass(frozen=True, kw_only=True)
class UncertaintyFuzz:
    """Breed a population around each seed, without gradients, for one pattern of PCS and VRO.

        LL   PCS(x) < p  and  VRO(x) < v                      undecided, yet stable
        HH   PCS(x) > p  and  VRO(x) > v                      confident, yet unstable
        HL   PCS(x) > p  and  VRO(x) < v  and x is an AE      wrong, but looks right
        LH   PCS(x) < p  and  VRO(x) > v  and x is a BE       right, but looks wrong                       (1)

    A case is adversarial (AE) if the model does not predict its seed's label, else benign (BE). The first members are
    the seed with noise. Fitness follows the paper's piecewise equations, `Aim.fitness`. Each child has two parents, the
    fittest of a tournament and the fittest of another one among the rest, takes each pixel from the first with
    probability ``crossover``, and may be mutated by noise. As soon as members meet the objective, the fittest of them
    is the seed's case.

    VRO takes many passes, so it is computed only where needed: for populations on the last line of their equation, the
    only one that contains it, and there for members that are fit enough, by the rest of that line, to matter in a
    tournament of this generation. All passes of a search use the same dropout masks for every member, so that fitness
    is one function for all generations. But a case bred for some masks may not hold for others: at the end, every case
    is judged again with fresh masks, and both results are columns.

    Every seed gives one case. Columns: ``aim``, the pattern; ``reached`` (1 or 0), whether the search met the
    objective, where 0 marks the best member of a seed that failed; ``confirmed``, whether the case also meets it with
    fresh masks; ``pcs`` and ``vro`` (fresh masks), ``vro_search`` (masks of the search), ``pattern`` of the case by the
    fresh ones; ``generation``, when the search ended. Misclassified seeds are skipped.

    The paper says neither how large tournaments are nor whether the fittest survive, nor whether its mutation rate
    counts images or values, and its program is not public. The defaults, 20, one and images, are our choice. So are
    these: its crossover rate of .5 is the probability of each pixel; a pair of parents, never the same member twice,
    has one child; of equally fit members, those that meet more of the objective's conditions come first. Each seed has
    its own random stream, so that seeds do not affect each other.

    Args:
        pattern: ``"LL"``, ``"HH"``, ``"HL"`` (adversarial) or ``"LH"`` (benign).
        radius: of the ball around each seed in L∞, in input units.
        noise: largest change of a value by noise, in first members and mutants (default: the radius, as the paper
            states no other number).
        population: members per seed.
        generations: maximum number after the first.
        crossover: probability that a pixel, with all its channels, comes from the first parent; of a value where inputs
            are not images.
        mutation: probability of a mutation, by uniform white noise, clipped to the ball.
        mutated: what mutates with that probability: ``"images"``, with all values at once, or single ``"values"``.
        tournament: members that compete to be a parent.
        elites: fittest members that survive.
        passes: T of VRO; the paper takes 50 for MNIST and 100 for larger images.
        screen: passes in the search, if fewer; of the members that meet the objective in these, the fittest three of a
            generation get all passes, in which they must meet it too.
        fresh_masks: draw new masks in every generation, and rate elites again.
        thresholds: p and v are the lower thresholds where the pattern says L and the upper ones where it says H.

    References:
        | Towards Characterizing Adversarial Defects of Deep Learning Software from the Lens of Uncertainty
        | (Zhang et al., 2020), sections 4 and 5.1
        | https://arxiv.org/abs/2004.11573
    """

    pattern: str
    radius: float = 0.3
    noise: float | None = None
    population: int = 100
    generations: int = 50
    crossover: float = 0.5
    mutation: float = 0.005
    mutated: str = "images"
    tournament: int = 20
    elites: int = 1
    passes: int = 50
    screen: int | None = None
    fresh_masks: bool = False
    thresholds: Thresholds = DEFAULT_THRESHOLDS
    norm: ClassVar[str] = "linf"

    def __post_init__(self) -> None:
        _ = self.aim
        check_ball(self.radius, self.norm)
        check_passes(self.passes)
        if self.noise is not None:
            check_above_to(0, self.radius, noise=self.noise, advice="it cannot exceed the radius")
        check_at_least(2, population=self.population, advice="the paper takes 100")
        check_at_least(1, generations=self.generations)
        check_share(crossover=self.crossover, mutation=self.mutation)
        check_one_of(("images", "values"), mutated=self.mutated)
        fewer = "give fewer than the population"
        check_from_to(1, self.population - 1, tournament=self.tournament, advice=fewer)
        check_from_to(0, self.population - 1, elites=self.elites, advice=fewer)
        if self.screen is not None:
            check_from_to(2, self.passes, screen=self.screen, advice="give at most the passes, or None")

    @property
    def aim(self) -> Aim:
        """The objective and its fitness."""
        return Aim.at(self.pattern, self.thresholds)

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        model.check(seeds)
        seeds = seeds.to(model.device)
        masks, *names = torch.randint(
            2**62, (1 + len(seeds),), generator=generator, device=generator.device
        ).tolist()  # drawn for all seeds before any is dropped
        mc_dropout(model, seeds.x[:MIN_ROWS], passes=2, generator=spawn(masks, "try"))  # raises without dropout
        chosen = (model.predict(seeds.x) == seeds.labels).nonzero().flatten()
        parts = [
            self._search(
                model, seeds, some, [torch.Generator().manual_seed(names[row]) for row in some.tolist()], masks
            )
            for some in chosen.split(max(1, MAX_VALUES // (self.population * seeds.x[0].numel())))
            if len(some)
        ]
        x = torch.cat([seeds.x[:0], *(part["case"] for part in parts)])
        skipped, method = len(seeds) - len(chosen), f"uncertainty-{self.pattern}"
        suite = judge(model, seeds, x, origin=chosen, method=method, skipped=skipped)
        none = torch.empty(0, dtype=torch.float64)
        columns = {name: torch.cat([none, *(part[name].double().cpu() for part in parts)]) for name in SEARCH_COLUMNS}
        return self._judged(model, suite, columns, masks)

    def _judged(self, model: Classifier, suite: Suite, columns: Rows, masks: int) -> Suite:
        """The suite with columns of the search, and of a final rating with fresh masks."""
        n, x = len(suite), suite.x.to(model.device)
        pcs = prediction_confidence(model.probs(x)).double().cpu() if n else torch.empty(0).double()
        fresh = _vro(model, x, suite.prediction.to(x.device), self.passes, (masks, "fresh")).cpu()
        met = self.aim.met(pcs, suite.prediction != suite.label, fresh)
        return suite.with_columns(
            aim=np.array([self.pattern] * n, dtype=np.str_),
            reached=columns["reached"],
            confirmed=(met & (columns["reached"] > 0)).double(),
            pcs=pcs,
            vro=fresh,
            vro_search=columns["vro_search"],
            pattern=pattern(pcs, fresh, self.thresholds),
            generation=columns["generation"],
        )

    # One batch of seeds

    def _search(
        self, model: Classifier, seeds: Samples, some: Tensor, streams: list[torch.Generator], masks: int
    ) -> Rows:
        """Breed the populations of these seeds; the state has one row per seed, with one entry per member."""
        number = torch.arange(len(some), device=some.device)
        rows = {"x0": seeds.x[some], "y": seeds.labels[some], "stream": number, "generation": number}
        rows |= {"reached": number < 0, "vro_search": number.double(), "case": rows["x0"]}
        generation = count()

        def step(rows: Rows) -> tuple[Rows, Tensor]:
            now = next(generation)
            rows = self._bred(rows, streams, model.bounds) if now else rows
            rows = self._evaluated(model, rows, streams, self._masks(masks, now))
            rows = self._with_case(model, rows, self._masks(masks, now))
            return rows | {"generation": torch.full_like(rows["y"], now)}, rows["reached"]

        rows = advance(self._first(rows, streams, model.bounds), step, steps=self.generations + 1)
        return self._with_nearest(model, rows, self._masks(masks, self.generations))

    def _masks(self, seed: int, generation: int) -> MaskName:
        return seed, generation if self.fresh_masks else "search"

    def _first(self, rows: Rows, streams: list[torch.Generator], bounds: tuple[float, float]) -> Rows:
        """The first population: copies of the seed with noise, not evaluated yet."""
        x0 = rows["x0"]
        x = x0.new_empty(len(x0), self.population, *x0.shape[1:])
        for row, stream in enumerate(streams):
            x[row] = self._projected(x0[row] + self._noise(x[row], stream), x0[row], bounds)
        unknown = torch.full(x.shape[:2], torch.nan, dtype=torch.float64, device=x.device)
        none = torch.full(x.shape[:2], -1, device=x.device)
        parents = none[:, None, self.elites :].repeat(1, 2, 1)
        values = {"pcs": unknown, "vro": unknown, "vro_all": unknown, "prediction": none}
        return rows | values | {"x": x, "parents": parents}

    def _evaluated(self, model: Classifier, rows: Rows, streams: list[torch.Generator], masks: MaskName) -> Rows:
        """The same members with predictions, PCS and VRO, and the ranks of the next parents."""
        new = rows["prediction"] < 0
        probs = model.probs(rows["x"][new])
        pcs, prediction = rows["pcs"].clone(), rows["prediction"].clone()
        pcs[new], prediction[new] = prediction_confidence(probs).double(), probs.argmax(1)
        parents = torch.stack([self._ranks(streams[row]) for row in rows["stream"].tolist()]).to(pcs.device)
        rows = rows | {"pcs": pcs, "prediction": prediction, "parents": parents}
        if self.fresh_masks:
            rows["vro"] = rows["vro_all"] = torch.full_like(rows["vro"], torch.nan)
        return rows | {"vro": self._vro_where_needed(model, rows, masks)}

    def _vro_where_needed(self, model: Classifier, rows: Rows, masks: MaskName) -> Tensor:
        """VRO of members whose rank matters; a tier from which no parent is taken is left out."""
        wrong = _wrong(rows)
        tier = self.aim.tier(rows["pcs"], wrong)
        above = (tier[:, None, :] > tier[:, :, None]).sum(2)
        deepest = rows["parents"].flatten(1).amax(1).clamp_min(self.elites - 1)
        needed = self.aim.last(rows["pcs"], wrong)[:, None] & (above <= deepest[:, None]) & rows["vro"].isnan()
        vro = rows["vro"].clone()
        vro[needed] = _vro(model, rows["x"][needed], rows["prediction"][needed], self.screen or self.passes, masks)
        return vro

    def _with_case(self, model: Classifier, rows: Rows, masks: MaskName) -> Rows:
        """Add the fittest member of each seed that meets the objective, in all passes; arbitrary if none does."""
        pcs, wrong, vro = rows["pcs"], _wrong(rows), rows["vro"]
        met = self.aim.met(pcs, wrong, vro)
        fitness = self._fitness(rows).masked_fill(~met, -math.inf)
        if self.screen is not None:
            met &= fitness.argsort(dim=1, descending=True, stable=True).argsort(dim=1) < CANDIDATES
            vro, ask = rows["vro_all"].clone(), met & rows["vro_all"].isnan()
            vro[ask] = _vro(model, rows["x"][ask], rows["prediction"][ask], self.passes, masks)
            met &= self.aim.met(pcs, wrong, vro)
        best = fitness.masked_fill(~met, -math.inf).argmax(1)
        each = torch.arange(len(best), device=best.device)
        case = {"reached": met.any(1), "case": rows["x"][each, best], "vro_search": vro[each, best]}
        return rows | case | {"vro_all": vro}

    def _with_nearest(self, model: Classifier, rows: Rows, masks: MaskName) -> Rows:
        """For seeds that did not reach the objective, take the nearest member of their last population."""
        failed, vro = ~rows["reached"], rows["vro"].clone()
        unknown = vro.isnan() & failed[:, None]
        vro[unknown] = _vro(model, rows["x"][unknown], rows["prediction"][unknown], self.screen or self.passes, masks)
        best = self.aim.nearness(rows["pcs"], _wrong(rows), vro).argmax(1)
        place = failed.nonzero().flatten(), best[failed]
        case, case_vro = rows["x"][place], vro[place]
        if self.screen is not None:
            case_vro = _vro(model, case, rows["prediction"][place], self.passes, masks)
        rows["case"][failed], rows["vro_search"][failed] = case, case_vro
        return {name: rows[name] for name in (*SEARCH_COLUMNS, "case")}

    # Breeding

    def _fitness(self, rows: Rows) -> Tensor:
        return self.aim.fitness(rows["pcs"], _wrong(rows), rows["vro"])

    def _ranks(self, stream: torch.Generator) -> Tensor:
        """Two different parents for each child, by rank; 0 is the fittest.

        Only the winner of a tournament matters, so its rank is drawn directly: it is r or more if all ranks are,

            P(rank ≥ r) = Π_{i<t} (n − r − i) / (n − i),    t members of n                                  (1)
        """
        n, t = self.population, self.tournament
        children = n - self.elites
        u = torch.rand(2, children, generator=stream, dtype=torch.float64)
        first, second = ((_reaching(size, t)[1:] > u[k][:, None]).sum(1) for k, size in enumerate((n, n - 1)))
        return torch.stack([first, second + (second >= first)])  # the second is one of the others

    def _bred(self, rows: Rows, streams: list[torch.Generator], bounds: tuple[float, float]) -> Rows:
        """The next generation: elites with their values, and children; one seed at a time for its random stream."""
        order = self._order(rows)
        elite, names = order[:, : self.elites], ("pcs", "vro", "vro_all", "prediction")
        kept = {name: rows[name].gather(1, elite) for name in names}
        x = torch.empty_like(rows["x"])
        for row, stream in enumerate(rows["stream"].tolist()):
            old, x0 = rows["x"][row], rows["x0"][row]
            first, second = (old[order[row, ranks]] for ranks in rows["parents"][row])
            children = self._mutated(self._crossed(first, second, streams[stream]), streams[stream])
            x[row] = torch.cat([old[elite[row]], self._projected(children, x0, bounds)])
        unknown = dict.fromkeys(names, torch.nan) | {"prediction": -1}
        new = {name: kept[name].new_full((len(x), x.shape[1] - self.elites), unknown[name]) for name in names}
        return rows | {"x": x} | {name: torch.cat([kept[name], new[name]], 1) for name in names}

    def _crossed(self, first: Tensor, second: Tensor, stream: torch.Generator) -> Tensor:
        """Children with each pixel from either parent; the channels of a pixel stay together."""
        shape = (len(first), 1, *first.shape[2:]) if first.ndim == 4 else first.shape
        u = torch.rand(shape, generator=stream).to(first.device)
        return torch.where(u < self.crossover, first, second)

    def _order(self, rows: Rows) -> Tensor:
        """Members by fitness, then by conditions met; those with unknown VRO come last."""
        wrong = _wrong(rows)
        fitness = self._fitness(rows).nan_to_num(-math.inf)
        tier = self.aim.tier(rows["pcs"], wrong) * self.aim.last(rows["pcs"], wrong)[:, None]
        by_tier = tier.argsort(dim=1, descending=True, stable=True)
        return by_tier.gather(1, fitness.gather(1, by_tier).argsort(dim=1, descending=True, stable=True))

    def _mutated(self, children: Tensor, stream: torch.Generator) -> Tensor:
        """The children, some of them or of their values with noise."""
        shape = children.shape[:1] if self.mutated == "images" else children.shape
        chosen = (torch.rand(shape, generator=stream) < self.mutation).to(children.device)
        if bool(chosen.any()):
            children[chosen] += self._noise(children[chosen], stream)
        return children

    def _noise(self, like: Tensor, stream: torch.Generator) -> Tensor:
        u = torch.rand(like.shape, generator=stream, dtype=torch.float32)
        return (self.noise or self.radius) * (2 * u - 1).to(like)

    def _projected(self, x: Tensor, x0: Tensor, bounds: tuple[float, float]) -> Tensor:
        return project(x, x0[None], self.radius, self.norm, bounds)


def _wrong(rows: Rows) -> Tensor:
    return rows["prediction"] != rows["y"][:, None]


def _reaching(n: int, t: int) -> Tensor:
    """(1) for r from 0 to n."""
    r, i = torch.arange(n + 1, dtype=torch.float64)[:, None], torch.arange(t, dtype=torch.float64)
    return ((n - r - i).clamp_min(0) / (n - i)).prod(1)


def _vro(model: Classifier, x: Tensor, prediction: Tensor, passes: int, masks: MaskName) -> Tensor:
    """VRO of each row, with the same masks in every call; in parts, to limit memory."""
    if len(x) == 0:
        return torch.empty(0, dtype=torch.float64, device=x.device)
    rows = model.batch_size * max(1, CHUNK // (passes * model.classes(x) * model.batch_size))
    parts = zip(x.split(rows), prediction.split(rows), strict=True)
    return torch.cat(
        [
            variation_ratio_original(mc_dropout(model, part, passes=passes, generator=spawn(*masks)).probs, predicted)
            for part, predicted in parts
        ]
    )
