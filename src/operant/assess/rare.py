"""The probability of failure in cells where plain sampling finds none: multilevel splitting and the last particle.

Both estimate the probability that a point drawn uniformly from a cell fails, as a product. N particles climb the margin

    s(x) = max_{j ≠ y} f_j(x) - f_y(x),   a failure where s ≥ 0,

level by level: the k particles up to the new level are removed, which multiplies the probability by 1 - k/N, copies of
the others replace them, and a random walk above the level separates each copy from its original. All runs of all cells
climb together, so that a move is one batch of the model. Logarithms are natural everywhere.

The result is conditional on mixing: the formulas hold if the walk makes copies independent. More `moves` help, but
nothing proves it. Failures in a corner that no particle came near are not counted.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from scipy.stats import chi2, gamma, norm
from scipy.stats import t as student
from torch import Tensor

from operant.assess.bounds import check_confidence
from operant.data import Samples
from operant.formatting import at_least, percent, rounded_up
from operant.generate.engine import Goal, check_ball, column
from operant.model import Classifier
from operant.model.doctor import Finding
from operant.rng import spawn
from operant.validation import check_between, check_from_below

ASSUMPTION = "conditional on mixing: the walk is assumed to make copied particles independent of their originals"
TARGET_ACCEPTANCE = 0.3  # share of accepted moves that the step length is adapted to
INERTIA = 50  # moves after which the adaptation has half its weight
MIN_STEP = 1e-6  # as a share of the cell's side
BATCH_ROWS = 1024  # rows moved at once, or the model's batch size if that is larger
MAX_COORDINATES = 2**24  # coordinates of particles in memory
MAX_VARIANCE_RATIO, TEST_LEVEL = 1.5, 1e-3  # tolerated variance between runs, and level of the test for more
MIN_ACCEPTANCE, MIN_TRAVEL = 0.1, 1 / 3  # below these a finding is reported


@dataclass(frozen=True, kw_only=True, eq=False)
class RareFailures:
    """The probability of failure in each of C cells, from R runs per cell.

    Attributes:
        method: ``"splitting"`` or ``"last particle"``.
        radius, particles, moves, floor, confidence: as given.
        log_p: natural logarithm of the probability ``(C,)``; where not `reached`, of an estimated upper limit.
        lower, upper: interval for the probability ``(C,)``; lower is 0 where not `reached`.
        reached: whether every run found failures ``(C,)``; otherwise some run ended at the floor or stalled.
        runs: log_p of every run ``(C, R)``.
        variance_ratio: variance between runs relative to the formulas ``(C,)``; about 1 if the walk mixes.
        acceptance: share of accepted moves ``(C,)``.
        travel: squared length of the walks relative to the squared distance between particles ``(C,)``; near 0,
            copies stayed close to their originals.
        evaluations: model evaluations, in rows ``(C,)``.
        findings: evidence against the assumption.
    """

    method: str
    radius: float
    particles: int
    moves: int
    floor: float
    confidence: float
    log_p: Tensor
    lower: Tensor
    upper: Tensor
    reached: Tensor
    runs: Tensor
    variance_ratio: Tensor
    acceptance: Tensor
    travel: Tensor
    evaluations: Tensor
    assumption: str = ASSUMPTION
    findings: tuple[Finding, ...] = ()

    @property
    def p(self) -> Tensor:
        """The probability of failure in each cell ``(C,)``."""
        return self.log_p.exp()

    def __len__(self) -> int:
        return len(self.log_p)

    def __str__(self) -> str:
        shown = [
            f"{p:.2g} [{low:.2g}, {high:.2g}]" if known else f"at most {rounded_up(float(high), 2):.2g}"
            for p, low, high, known in zip(self.p, self.lower, self.upper, self.reached, strict=True)
        ]
        cells = ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
        text = (
            f"Failure probability within {self.radius:g} of {len(self)} seeds by {self.method}: {cells}; "
            f"{at_least(self.confidence)} confidence, {self.assumption}. Each from {self.runs.shape[1]} runs of "
            f"{self.particles} particles, {self.moves} moves per level; {int(self.evaluations.sum())} model rows."
        )
        return "\n".join((text, *map(str, self.findings)))


def splitting(
    model: Classifier,
    seeds: Samples,
    *,
    radius: float,
    particles: int = 128,
    quantile: float = 0.25,
    moves: int = 20,
    repeats: int = 8,
    floor: float = 1e-9,
    confidence: float = 0.95,
    generator: torch.Generator,
) -> RareFailures:
    """Adaptive multilevel splitting: a share ρ of the particles survives each level.

        p̂ = Π (1 - k_i / N),   Var ln p̂ ≈ Σ k_i / (N (N - k_i)),   k_i = (1 - ρ) N but for the last        (1)

    The runs' p̂ are averaged. The interval is normal for ln p̂, with the variance of (1) or with the runs' own and
    Student's quantile, whichever is wider: the variance of (1) is too small where the walk mixes poorly.

    Differs from the paper in three ways. The walk is reflected at the walls of the cell (a symmetric proposal that
    needs no correction; step 1 forgets its start) and each run adapts its step length to the acceptance. Copies are
    drawn systematically. A run ends at the floor, or where no particle is above the new level, and is then reported as
    "at most".

    All coordinates share one step length; where failures depend on one coordinate alone, the others mix slowly.

    A cell's random numbers depend only on the generator and the seed's id, not on the other cells.

    Args:
        seeds: labelled; a cell is the L∞ ball of this radius around one, within the model's bounds.
        particles: N.
        quantile: ρ; the paper uses .1, which needs fewer levels and more moves per level.
        moves: of every particle, after each level.
        repeats: runs per cell.
        floor: smallest probability of interest.

    References:
        | A Statistical Approach to Assessing Neural Network Robustness (Webb et al., 2019)
        | https://arxiv.org/abs/1811.07209
    """
    options = _Options(radius, particles, quantile, moves, repeats, floor, confidence)
    runs = _runs(model, seeds, options, generator)
    log_p = runs.log_p.logsumexp(1) - math.log(repeats)
    half = float(norm.isf(options.tail)) * (runs.variance.mean(1) / repeats).sqrt()  # (1)
    return _result("splitting", options, runs, log_p, log_p - half, log_p + half)


def last_particle(
    model: Classifier,
    seeds: Samples,
    *,
    radius: float,
    particles: int = 64,
    moves: int = 20,
    repeats: int = 8,
    floor: float = 1e-9,
    confidence: float = 0.95,
    generator: torch.Generator,
) -> RareFailures:
    """Splitting where only the lowest particle is removed at each level, so that the number of levels is Poisson.

        M ~ Poisson(-N ln p),   p̂ = (1 - 1/N)^M,   -ln p ∈ [Γ(α/2; M), Γ(1 - α/2; M + 1)] / N        (1)

    Γ(q; a) is the q-quantile of the gamma distribution of shape a: the interval is exact for any p and N if the walk
    mixes and no margins tie. R runs count as one of R N particles with the sum of their M. Where the runs' own variance
    and Student's quantile give a wider interval, that one is used; with ``repeats=1``, only (1) is available.

    The walk, the stopping rule and the random numbers are those of `splitting`. A run has many short sequential steps,
    -N ln p levels, so this is for many cells at once; its cost is similar.

    Arguments are those of `splitting`, except that ``moves`` applies only to the copy that replaces the last particle.

    References:
        | Efficient Statistical Assessment of Neural Network Corruption Robustness (Tit et al., 2021)
        | https://proceedings.neurips.cc/paper/2021/hash/4d215ab7508a3e089af43fb605dd27d1-Abstract.html
    """
    options = _Options(radius, particles, None, moves, repeats, floor, confidence)
    runs, everyone = _runs(model, seeds, options, generator), particles * repeats
    m = runs.log_p.sum(1) / math.log1p(-1 / particles)  # not a whole number where tied particles were removed together
    lower = torch.as_tensor(-gamma.isf(options.tail, m.numpy() + 1) / everyone)  # (1)
    upper = torch.as_tensor(-gamma.ppf(options.tail, m.clamp_min(1e-9).numpy()) / everyone)
    return _result("last particle", options, runs, m * math.log1p(-1 / everyone), lower, upper)


@dataclass(frozen=True)
class _Options:
    """The options of both methods; without a quantile, one particle is removed per level."""

    radius: float
    particles: int
    quantile: float | None
    moves: int
    repeats: int
    floor: float
    confidence: float

    def __post_init__(self) -> None:
        check_ball(self.radius, "linf")
        check_confidence(self.confidence)
        for name, least in (("particles", 2), ("moves", 1), ("repeats", 1)):
            if (value := getattr(self, name)) != int(value) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value}")
        if self.quantile is not None:
            check_between(0, 1, quantile=self.quantile, advice="it is the share that survives")
        check_from_below(1e-300, 1, floor=self.floor, advice="1e-9 is usual")

    @property
    def removed(self) -> int:
        share = 0.0 if self.quantile is None else 1 - self.quantile
        return min(max(round(share * self.particles), 1), self.particles - 1)

    @property
    def tail(self) -> float:
        return (1 - self.confidence) / 2


@dataclass(kw_only=True)
class _Runs:
    """The result of each run, and statistics of its walk."""

    log_p: Tensor
    variance: Tensor
    reached: Tensor
    stalled: Tensor
    step: Tensor  # maximum move, as a share of the cell's side
    proposed: Tensor
    accepted: Tensor
    length: Tensor  # squared length of the walks
    apart: Tensor  # squared distance between particles

    @staticmethod
    def new(n: int) -> "_Runs":
        number, no = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.bool)
        names = ("log_p", "variance", "proposed", "accepted", "length", "apart")
        return _Runs(reached=no, stalled=no.clone(), step=number + 1, **{name: number.clone() for name in names})

    @staticmethod
    def table(parts: "list[_Runs]", repeats: int) -> "_Runs":
        """All runs, one row per cell."""
        return _Runs(**{k: torch.cat([vars(part)[k] for part in parts]).view(-1, repeats) for k in vars(parts[0])})


class _Populations:
    """The particles of several runs: positions ``u`` as shares of the cell's sides, and margins ``s``.

    Every run has its own random stream, so it does not depend on the other runs.
    """

    def __init__(
        self, model: Classifier, options: _Options, cells: tuple[Tensor, ...], streams: list[torch.Generator]
    ) -> None:
        self.model, self.options, self.streams = model, options, streams
        self.low, self.side, self.y = cells
        runs, n = len(streams), options.particles
        u = self.draw(list(range(runs)), [n] * runs)[0]
        self.s = self.margins(torch.arange(runs).repeat_interleave(n), u).view(runs, n)
        self.u = u.view(runs, n, *u.shape[1:])

    def draw(self, run: list[int], count: list[int], *, times: int = 1) -> Tensor:
        """Uniform numbers for ``count`` particles of each run ``(times, particles, *shape)``."""
        shape = self.low.shape[1:]
        parts = [torch.rand(times, n, *shape, generator=self.streams[r]) for r, n in zip(run, count, strict=True)]
        return torch.cat(parts, 1).to(self.low)

    def margins(self, run: Tensor, u: Tensor) -> Tensor:
        logits = self.model.batched_logits(self.low[run] + self.side[run] * u)
        return Goal().margin(logits, self.y[run]).double().cpu()


def _runs(model: Classifier, seeds: Samples, options: _Options, generator: torch.Generator) -> _Runs:
    """All runs of all cells, as many at a time as fill a batch and fit in memory."""
    model.check(seeds)
    seeds = seeds.to(model.device)
    low = (seeds.x - options.radius).clamp(*model.bounds)
    side = (seeds.x + options.radius).clamp(*model.bounds) - low
    root = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    moved = 1 if options.removed == 1 else options.particles
    most = min(max(model.batch_size, BATCH_ROWS) // moved, MAX_COORDINATES // (options.particles * low[0].numel()))
    parts, ids = [], seeds.ids.tolist()
    for run in torch.arange(len(seeds) * options.repeats).split(max(1, most)):
        cell = run // options.repeats
        names = zip(cell.tolist(), (run % options.repeats).tolist(), strict=True)
        streams = [spawn(root, "rare", ids[c], r) for c, r in names]
        parts.append(_climb(_Populations(model, options, (low[cell], side[cell], seeds.labels[cell]), streams)))
    return _Runs.table(parts, options.repeats)


def _climb(populations: _Populations) -> _Runs:
    """Raise the level of each run until its particles fail, none is above it, or the floor is reached."""
    n, removed, runs = populations.options.particles, populations.options.removed, _Runs.new(len(populations.s))
    alive = torch.arange(len(populations.s))
    while len(alive):
        s = populations.s[alive]
        level = s.kthvalue(removed, dim=1).values
        done = level >= 0
        k = torch.where(done, (s < 0).sum(1), (s <= level[:, None]).sum(1))
        stalled = k == n
        k = torch.where(stalled, 0, k).double()
        runs.reached[alive], runs.stalled[alive] = done, stalled
        runs.log_p[alive] += torch.log1p(-k / n)
        runs.variance[alive] += torch.where(done, (k + 1) / (n - k + 1), k / (n - k)) / n  # the last must not add 0
        on = ~done & ~stalled & (runs.log_p[alive] > math.log(populations.options.floor))
        alive, level = alive[on], level[on]
        if len(alive):
            copies = _replace(populations, alive, s[on], k[on].long())
            everyone = torch.arange(len(alive)).repeat_interleave(n), torch.arange(n).repeat(len(alive))
            _walk(populations, runs, alive, level, *(copies if removed == 1 else everyone))
    return runs


def _replace(populations: _Populations, alive: Tensor, s: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Put copies of survivors, drawn systematically, in the places of the k lowest; returns those places."""
    order, survivors = s.argsort(1), s.shape[1] - k
    start = torch.cat([torch.rand(1, generator=populations.streams[r]) for r in alive.tolist()]).double()
    j = torch.arange(int(k.max()))
    rank = ((survivors / k)[:, None] * (j + start[:, None])).long()  # evenly spaced: all survivors equally likely
    rank = k[:, None] + torch.minimum(rank, survivors[:, None] - 1)
    row, which = (j < k[:, None]).nonzero(as_tuple=True)
    run, place, parent = alive[row], order[row, which], order[row, rank[row, which]]
    populations.u[run, place], populations.s[run, place] = populations.u[run, parent], populations.s[run, parent]
    return row, place


def _walk(populations: _Populations, runs: _Runs, alive: Tensor, level: Tensor, row: Tensor, place: Tensor) -> None:
    """Move particles (each ``place`` of the run ``alive[row]``) at random in their cells, above their run's level."""
    run, count, moves = alive[row], torch.bincount(row, minlength=len(alive)), populations.options.moves
    first, other = populations.u[run, place], populations.u[run, (place + 1) % populations.options.particles]
    u, s, step = first, populations.s[run, place], runs.step[alive]
    times = moves if populations.options.removed == 1 else 1  # one particle per run: draw all its numbers at once
    for move in range(moves):
        if move % times == 0:
            noise = populations.draw(alive.tolist(), count.tolist(), times=times)
        proposal = reflected(u, column(step[row].to(u), u) * (2 * noise[move % times] - 1))
        margin = populations.margins(run, proposal)
        accept = margin > level[row]
        u, s = torch.where(column(accept.to(u.device), u), proposal, u), torch.where(accept, margin, s)
        accepted = _sums(accept, row, len(alive))
        runs.accepted[alive] += accepted
        step = (step * ((accepted - TARGET_ACCEPTANCE * count) / (count + INERTIA)).exp()).clamp(MIN_STEP, 1)
    populations.u[run, place], populations.s[run, place], runs.step[alive] = u, s, step
    runs.proposed[alive] += moves * count
    runs.length[alive] += _sums((u - first).square().flatten(1).sum(1), row, len(alive))
    runs.apart[alive] += _sums((other - first).square().flatten(1).sum(1), row, len(alive))


def reflected(u: Tensor, move: Tensor) -> Tensor:
    """``u`` in [0, 1] moved by at most 1 and reflected at the walls.

    A move and its reverse are equally likely, so uniform stays uniform; a uniform move in [-1, 1] forgets its start.
    """
    return 1 - (1 - (u + move).abs()).abs()


def _sums(values: Tensor, row: Tensor, rows: int) -> Tensor:
    return torch.zeros(rows, dtype=torch.float64).index_add_(0, row, values.double().cpu())


def _result(method: str, options: _Options, runs: _Runs, log_p: Tensor, lower: Tensor, upper: Tensor) -> RareFailures:
    """The result from logarithmic interval ends, widened where the runs vary more than the interval allows."""
    reached, variance_ratio, repeats = runs.reached.all(1), torch.ones_like(log_p), options.repeats
    if repeats > 1:
        own = runs.log_p.var(1)
        variance_ratio = own / runs.variance.mean(1).clamp_min(1e-12)
        half = float(student.isf(options.tail, repeats - 1)) * (own / repeats).sqrt()
        lower, upper = torch.minimum(lower, log_p - half), torch.maximum(upper, log_p + half)
    acceptance, travel = _share(runs.accepted, runs.proposed), _share(runs.length, runs.apart)
    return RareFailures(
        method=method,
        radius=float(options.radius),
        particles=options.particles,
        moves=options.moves,
        floor=float(options.floor),
        confidence=float(options.confidence),
        log_p=log_p,
        lower=torch.where(reached, lower.exp(), 0.0),
        upper=upper.exp().clamp_max(1),
        reached=reached,
        runs=runs.log_p,
        variance_ratio=variance_ratio,
        acceptance=acceptance,
        travel=travel,
        evaluations=(runs.proposed.sum(1) + options.particles * repeats).long(),
        findings=tuple(_findings(runs.stalled.any(1), acceptance, travel, variance_ratio[reached], repeats - 1)),
    )


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """The ratio over all runs of a cell; 1 where there was no walk."""
    return torch.where(whole.sum(1) > 0, part.sum(1) / whole.sum(1), 1.0)


def _findings(
    stalled: Tensor, acceptance: Tensor, travel: Tensor, variance_ratio: Tensor, freedom: int
) -> Iterator[Finding]:
    if n := int(stalled.sum()):
        yield Finding(
            name="stalled",
            problem=f"in {n} of {len(stalled)} cells a run had no particle above its next level: the margin is flat "
            "there, or the walk is stuck; the upper bound is for the level where it stopped",
            advice="draw plain samples there, or use more particles and moves",
        )
    if n := int((acceptance < MIN_ACCEPTANCE).sum()):
        problem = (
            f"in {n} of {len(acceptance)} cells fewer than {percent(MIN_ACCEPTANCE, 2)} of the moves were accepted"
        )
        yield Finding(name="few moves accepted", problem=problem, advice="use more moves")
    if n := int((travel < MIN_TRAVEL).sum()):
        near = f"at {float(travel.min()):.2g} of the squared distance between particles"
        problem = f"in {n} of {len(travel)} cells copies stayed near their originals, {near}"
        yield Finding(name="short walks", problem=problem, advice="use more moves")
    if freedom and len(variance_ratio) and _differ(variance_ratio, freedom):
        yield Finding(
            name="runs disagree",
            problem=f"runs of one cell vary {float(variance_ratio.mean()):.2g} times as much as they should if the "
            f"walk mixed, {float(variance_ratio.max()):.2g} times in the worst cell",
            advice="the intervals are widened accordingly; use more moves or particles until the runs agree",
        )


def _differ(variance_ratio: Tensor, freedom: int) -> bool:
    """Whether the runs of all cells together, or of one cell, vary significantly more than tolerated."""
    squares = variance_ratio * freedom / MAX_VARIANCE_RATIO
    together = chi2.sf(float(squares.sum()), freedom * len(variance_ratio))
    one = chi2.sf(float(squares.max()), freedom) * len(variance_ratio)
    return bool(min(together, one) < TEST_LEVEL)
