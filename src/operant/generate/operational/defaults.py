"""Default moves of a campaign, with radii that fit the training inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch

from operant.conditions import Recipe
from operant.data import Samples
from operant.generate.operational.conditions import ConditionMove
from operant.generate.operational.draws import RecipeDraws
from operant.generate.operational.genetic import GeneticMove
from operant.generate.operational.gradient import GradientMove
from operant.generate.uncertainty import UncertaintyFuzz
from operant.measure import Naturalness
from operant.types import Fuzzer, Move

IMAGE_RADII = (0.02, 0.05)  # shares of the range of training inputs, per value of an input
TABLE_RADII = (0.05, 0.1)  # shares of the spread of a column
GENETIC_RADIUS = 0.3  # share of the range; naturalness, not the ball, keeps these cases near
PATTERN_RADIUS = 0.1  # share of the range, per value; only the ball keeps these cases near
DRAWS_PER_SEED = 8  # half the rows of a climb; three failures per seed are kept
PATTERN_POPULATION, PATTERN_GENERATIONS = 50, 20  # the paper's 100 and 50 take five times as long


def default_moves(
    train: Samples,
    *,
    recipe: Recipe | None = None,
    radii: Sequence[float] | None = None,
    norm: str = "l2",
    steps: int = 10,
    climb: bool = False,
    genetic: bool = False,
    patterns: Sequence[str] = (),
    own: Mapping[str, Move] | None = None,
) -> dict[str, Move]:
    """The moves that ``operant.toml`` gives a campaign, by name.

    In this order: draws of conditions, the search over their severities, one gradient search per radius, the genetic
    search, one search per pattern, your own. Gradient searches of images are opt-in: their cases seldom look like
    field inputs and teach little. Tables, and images without a recipe, have no other search, so they have them by
    default.

    Args:
        train: training inputs, whose range or spread scales the default radii.
        recipe: field conditions to draw from; None leaves that move out.
        radii: of the gradient searches, in input units (default: none with a recipe, else `default_radii`).
        norm: of the gradient searches, ``"l2"`` or ``"linf"``.
        steps: of each gradient search.
        climb: add `ConditionMove`, which searches the severities of the recipe.
        genetic: add `GeneticMove`; images only.
        patterns: add `UncertaintyFuzz` for each of these; images only.
        own: further moves by name.
    """
    moves: dict[str, Move] = {}
    if recipe is not None:
        moves["conditions"] = partial(unguided, RecipeDraws(recipe=recipe, per_seed=DRAWS_PER_SEED))
    if climb:
        if recipe is None:
            raise ValueError("climb searches the severities of conditions, but there are none; declare some")
        moves["climb"] = partial(ConditionMove, recipe=recipe)
    if radii is None:
        radii = default_radii(train, norm=norm) if recipe is None else ()
    for radius in radii:
        moves[f"gradient-{radius:g}"] = partial(GradientMove, radius=radius, norm=norm, steps=steps)
    for name, wanted in (("genetic", genetic), ("patterns", patterns)):
        if wanted and len(train.shape) != 3:
            raise ValueError(f"{name} is for images, but inputs have the shape {tuple(train.shape)}")
    if genetic:
        moves["genetic"] = partial(GeneticMove, radius=GENETIC_RADIUS * _range(train))
    for pattern in dict.fromkeys(patterns):
        fuzz = UncertaintyFuzz(
            pattern=pattern,
            radius=PATTERN_RADIUS * _range(train),
            population=PATTERN_POPULATION,
            generations=PATTERN_GENERATIONS,
        )
        moves[f"uncertainty-{pattern}"] = partial(unguided, fuzz)
    if taken := sorted(moves.keys() & (own or {}).keys()):
        raise ValueError(f"own moves must have names of their own, got {', '.join(taken)}; rename them")
    moves |= own or {}
    if not moves:
        raise ValueError("there must be a move to search with; give radii, conditions or moves of your own")
    return moves


def default_radii(train: Samples, *, norm: str = "l2") -> list[float]:
    """Two radii, scaled to the inputs, at which cases keep their labels.

    For images they are shares of the range of inputs (2 % and 5 %), in L2 per value of an input. For tables they are
    shares of a column's interquartile range (5 % and 10 %), in L2 independent of the number of columns: the distance
    of an input from another class depends on how separable the classes are, not on how many columns there are.

    The shares for tables were found on Gaussian classes of 10 and 30 columns, plain or heavy-tailed, standardised or
    scaled to [0, 1], whose best rule is known and has an error rate of 4 %, with PGD on networks with error rates of 5
    to 31 %. Of all cases, 99 % stay on their seed's side of the rule. Of the failures among them, 96 % do at the
    smaller radius and 93 % at the larger one, on average over eight settings, and fewer (four in five) where the
    network is as good as the rule; at 0.25 of the spread it would be 56 to 95 %. Where classes overlap by more than
    that, inspect failures and set the radii yourself.
    """
    d, image = train.shape.numel(), len(train.shape) == 3
    scale = _range(train) * math.sqrt(d) if image else _spread(train)
    shares = IMAGE_RADII if image else TABLE_RADII
    return [float(f"{share * scale / (1.0 if norm == 'l2' else math.sqrt(d)):.2g}") for share in shares]


def unguided(fuzz: Fuzzer, *, naturalness: Naturalness) -> Fuzzer:
    """Make a move of a fuzzer that naturalness does not guide: ``partial(unguided, UncertaintyFuzz(pattern="HL"))``.

    A campaign still rates its cases by naturalness, and retrains only on operational failures.

    Args:
        fuzz: any fuzzer; its benign cases are dropped.
        naturalness: of field inputs, which a campaign passes to every move; not used.
    """
    return fuzz


def _spread(train: Samples) -> float:
    """Interquartile range of a typical column: the median of the positive ones, else of standard deviations."""
    x = train.x.flatten(1).numpy()
    low, high = np.quantile(x, (0.25, 0.75), axis=0)
    for spreads in (high - low, x.std(0)):
        if (spreads > 0).any():
            return float(np.median(spreads[spreads > 0]))
    raise ValueError("training inputs must differ, got the same values in all of them")


def _range(train: Samples) -> float:
    low, high = torch.aminmax(train.x)
    return float(high - low)
