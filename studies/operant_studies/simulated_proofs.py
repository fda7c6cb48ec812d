"""Simulated proofs, many at once: fields whose failures are known, and labels until a requirement is met."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from scipy.stats import norm

from operant.assess.betting import Array, draw_weights, spread
from operant.assess.bounds import log_wealth
from operant.assess.evidence import Bets, GuidedEvidence, SeenBlock, guided_evidence
from operant.assess.forecast import batch_size, guided_walk, plain_walk
from operant.assess.scored import CUTS, RatePrior

Generator = np.random.Generator
CLAIMED_AUC = 0.95  # every model believes that its risk ranks failures so well


@dataclass(frozen=True, eq=False, kw_only=True)
class SimulatedField:
    """Risk bins of a field: their masses, true error rates, and the risks that the model claims."""

    masses: Array
    rates: Array
    risks: Array

    @property
    def pmi(self) -> float:
        return float(self.masses @ self.rates)

    def scaled(self, pmi: float) -> "SimulatedField":
        """With this pmi: rates rise or fall in proportion, as far as they can."""
        low, high = 0.0, 1e6
        for _ in range(100):
            factor = (low + high) / 2
            low, high = (factor, high) if self.masses @ np.minimum(factor * self.rates, 1) < pmi else (low, factor)
        return replace(self, rates=np.minimum(high * self.rates, 1))


def binormal(auc: float, pmi: float, *, blind: float = 0.0, n: int = 200_000) -> SimulatedField:
    """Normal scores that are larger for failures; a share of the failures looks like successes."""
    g = np.random.default_rng([round(1000 * auc), round(1e6 * pmi), round(100 * blind)])
    failed = g.random(n) < pmi
    z = g.normal(size=n) + np.sqrt(2) * norm.ppf(auc) * (failed & (g.random(n) >= blind))
    shift = np.sqrt(2) * norm.ppf(CLAIMED_AUC)
    risk = 1 / (1 + np.exp(-(np.log(pmi / (1 - pmi)) + shift * z - shift**2 / 2)))
    bins = np.searchsorted(np.quantile(risk, CUTS), risk, side="right")
    counts = np.bincount(bins, minlength=5)
    found = SimulatedField(
        masses=np.array([0.7, 0.2, 0.07, 0.02, 0.01]),
        rates=np.bincount(bins, failed, minlength=5) / counts,
        risks=np.bincount(bins, risk, minlength=5) / counts,
    )
    return found.scaled(pmi)


def regimes(pmi: float) -> dict[str, SimulatedField]:
    """Fields with this pmi whose models know much, little, nothing, or the opposite of the truth about it."""
    good = binormal(0.95, pmi)
    safest = np.array([pmi / 0.7, 0, 0, 0, 0])
    return {
        "AUC .95": good,
        "AUC .72": binormal(0.72, pmi),
        "a quarter blind": binormal(0.95, pmi, blind=0.25),
        "blind": binormal(0.5, pmi),
        "reversed": replace(good, risks=good.risks[::-1]),
        "failures in the safest bin": replace(good, rates=safest),
    }


def labels_until_met(
    field: SimulatedField,
    requirement: float,
    *,
    alpha: float,
    repetitions: int,
    most: int,
    generator: Generator,
    guided: bool = True,
    block: int = 25,
    batch: int | None = None,
    active: float = 0.0,
) -> Array:
    """Labels bought until the upper bound is at most the requirement, ``(repetitions,)``; infinite beyond ``most``.

    Args:
        field: of the model.
        requirement: of pmi.
        alpha: allowed error.
        repetitions: number of proofs.
        most: labels after which a proof gives up.
        generator: of blocks, draws and failures.
        guided: whether the risks guide the bets; otherwise the plain sequence.
        block: inputs per block.
        batch: labels per batch (default: by forecast).
        active: eps of all draws.
    """
    runs = _guided(field, requirement, repetitions, block) if guided else np.zeros(repetitions)
    bought, alive, batch_end = np.full(repetitions, np.inf), np.arange(repetitions), np.zeros(repetitions)
    for n in range(most):
        walk = guided_walk(runs, requirement) if isinstance(runs, GuidedEvidence) else plain_walk(runs, n, requirement)
        due = batch_end <= n
        batch_end = np.where(due, n + (batch or batch_size(*walk.labels(alpha))), batch_end)
        if isinstance(runs, GuidedEvidence):
            runs = runs.add(_block(field, runs, len(alive), block, active, generator))
            met = runs.up[:, 0] >= -np.log(alpha)
        else:
            runs = runs + (generator.random(len(alive)) < field.pmi)
            below = runs < (n + 1) * requirement
            met = below & (log_wealth(np.where(below, runs, 0), n + 1, requirement) >= -np.log(alpha))
        bought[alive[met]] = np.minimum(batch_end[met], most)
        alive, batch_end, runs = alive[~met], batch_end[~met], _select(runs, ~met)
        if len(alive) == 0:
            break
    return bought


def _guided(field: SimulatedField, requirement: float, repetitions: int, block: int) -> GuidedEvidence:
    prior = RatePrior.of(field.masses, field.risks, requirement=requirement)
    grid = np.array([requirement])
    return guided_evidence(prior, requirement=requirement, block=block, grid=grid, shape=(repetitions,))


def _block(
    field: SimulatedField, runs: GuidedEvidence, n: int, block: int, active: float, generator: Generator
) -> SeenBlock:
    """A fresh block for every run, with its drawn input and whether it fails."""
    bins = generator.choice(len(field.masses), size=(n, block), p=field.masses / field.masses.sum())
    sizes = np.ones(bins.shape)
    uncertainty = np.take_along_axis(spread(runs.ready(active).bets.rates), bins, -1)
    weights = draw_weights(uncertainty, sizes, active)
    drawn = ((1 / weights).cumsum(1) / block < generator.random((n, 1))).sum(1).clip(max=block - 1)
    own = np.take_along_axis(bins, drawn[:, None], 1)[:, 0]
    return SeenBlock(
        bins=bins,
        sizes=sizes,
        drawn=drawn,
        weight=np.take_along_axis(weights, drawn[:, None], 1)[:, 0],
        active=active,
        failed=(generator.random(n) < field.rates[own]).astype(float),
    )


def _select(runs: Any, keep: Array) -> Any:
    """Some of the repetitions."""
    if not isinstance(runs, GuidedEvidence):
        return runs[keep]
    bets = Bets(**{f.name: getattr(runs.bets, f.name)[keep] for f in fields(Bets)})
    names = ("bin_labels", "bin_failures", "up", "down", "best_up", "best_down", "sizes", "sum")
    return replace(runs, bets=bets, **{name: getattr(runs, name)[keep] for name in names})
