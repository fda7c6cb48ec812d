"""Risk scores that estimate how likely an input is to fail without its true label, and their mix with the mass.

Each is a `operant.types.Score`: ``(model, x, y) -> one value per row``, higher is riskier. For field inputs, whose
labels are unknown, y is the model's own prediction; `risk_of` takes care of that. Any function of that shape works.
"""

from collections.abc import Callable
from functools import partial
from math import inf

import torch
from torch import Tensor

from operant.data import Samples
from operant.measure.loss import loss_gradient
from operant.measure.mc_dropout import check_passes, mc_dropout
from operant.measure.uncertainty import CHUNK, entropy, gini, margin, variation_ratio_original
from operant.model import Classifier
from operant.rng import spawn
from operant.seeds.designs import checked_values, normalised, one_per_input
from operant.types import Score
from operant.validation import check_finite, check_nonnegative, check_one_of, check_share

NORMS = {"l1": 1.0, "l2": 2.0, "linf": inf}
FLAT = 1e-8  # relative difference below which risks count as equal


def risk_of(model: Classifier, pool: Samples, score: Score, *, labelled: bool = False) -> Tensor:
    """The score of each input of a pool, ``(N,)`` in double precision.

    Args:
        labelled: pass the pool's labels to the score. By default the model's predictions replace them even if there
            are labels, because most draws are made to choose which inputs to label.
    """
    y = pool.labels if labelled else model.predict(pool.x)
    values = one_per_input(score(model, pool.x, y), len(pool), "score")
    check_finite(score=values, advice="use another score")
    return values


def combine(
    mass: Tensor, risk: Tensor, *, mass_power: float = 1.0, risk_power: float = 1.0, defensive: float = 0.2
) -> Tensor:
    """Sampling weights that sum to 1: large for inputs that are both likely in the field and likely to fail.

        q ∝ p^a r^b                     (1)
        w = (1 - ε) q + ε p             (2)

    The mixture uses the mass p, not the uniform distribution: every input that the field can send can be drawn, however
    safe it looks, and since w ≥ ε p, none counts more than 1 / ε times in an estimate. If risk is the probability of
    failing, b = ½ gives the smallest variance, and b = 1 finds more failures.

    Args:
        mass: p, the profile's mass per input, on any scale.
        risk: r, one per input, 0 or more, on any scale; for scores that can be negative, such as LSA, use `ranked`.
        mass_power: a; 0 removes the profile from (1).
        risk_power: b; 0 removes the risk.
        defensive: ε, from 0 to 1.

    >>> combine(torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.0, 1.0, 3.0]))
    tensor([0.1000, 0.2500, 0.6500], dtype=torch.float64)

    References:
        | Weighted Average Importance Sampling and Defensive Mixture Distributions (Hesterberg, 1995)
        | https://doi.org/10.1080/00401706.1995.10484303
    """
    check_nonnegative(mass_power=mass_power, risk_power=risk_power)
    check_share(defensive=defensive, advice="0.2 is usual")
    p = normalised(mass, len(mass), "mass")
    r = checked_values(risk, len(p), "risk", advice="; for a score that can be negative use ranked(risk)")
    product = (p / p.max()) ** mass_power * (r / r.max().clamp_min(torch.finfo(r.dtype).tiny)) ** risk_power
    if not bool((product > 0).any()):
        raise ValueError(f"risk is 0 for every input that has mass, of {len(p)}; use another, or draw by mass alone")
    return (1 - defensive) * (product / product.sum()) + defensive * p  # (1), (2)


def is_flat(risk: Tensor, mass: Tensor) -> bool:
    """Whether the risk is the same for all inputs that have mass, so that it cannot guide a draw.

    That is so for a model that is certain of everything: its margins round to 1, and their risk to 0.

    >>> mass = torch.tensor([0.5, 0.5, 0.0])
    >>> is_flat(torch.tensor([0.0, 0.0, 1.0]), mass), is_flat(torch.tensor([0.0, 0.1, 0.0]), mass)
    (True, False)
    """
    values = risk.cpu()[mass.cpu() > 0]
    if len(values) == 0:
        return False
    low, high = float(values.min()), float(values.max())
    return low >= 0 and high - low <= FLAT * high


def ranked(values: Tensor) -> Tensor:
    """Ranks as shares in (0, 1]: the share of the pool whose value is no larger. For scores of any sign and scale.

    >>> ranked(torch.tensor([-3.0, 5.0, 5.0, 9.0])).tolist()
    [0.25, 0.75, 0.75, 1.0]
    """
    if values.ndim != 1 or len(values) == 0 or bool(values.isnan().any()):
        raise ValueError(f"values must be numbers (N,), one at least, got shape {tuple(values.shape)} or NaN in it")
    places = torch.searchsorted(values.sort().values, values, right=True)
    return places.double() / len(values)


def margin_risk(model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    """1 - margin: 0 where the model is sure of y, 1 where another class is as probable, 2 where it is sure of another.

    With the model's own predictions for y it stays between 0 and 1.
    """
    return 1 - margin(model.probs(x), y)


def gini_risk(model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    """Gini impurity of the model's probabilities, as in DeepGini; y is not used."""
    return gini(model.probs(x))


def entropy_risk(model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    """Entropy of the model's probabilities; y is not used."""
    return entropy(model.probs(x))


def gradient_risk(model: Classifier, x: Tensor, y: Tensor, *, norm: str = "l2") -> Tensor:
    """How steep the loss is at each input: the norm of the gradient of the cross-entropy for y.

    Args:
        norm: ``"l1"`` (times a radius: by how much a small L-infinity ball can raise the loss), ``"l2"``, or ``"linf"``
            (used by HDA, see `operant.seeds.draw`). For a norm other than ``"l2"``, pass ``partial(gradient_risk,
            norm=...)``.
    """
    check_one_of(NORMS, norm=norm)
    model.check(Samples(x, y, torch.arange(len(x))))
    batches = zip(x.split(model.batch_size), y.split(model.batch_size), strict=True)
    gradients = (loss_gradient(model, rows, labels)[1].flatten(1) for rows, labels in batches)
    return torch.cat([torch.linalg.vector_norm(g, ord=NORMS[norm], dim=1) for g in gradients])


def vro_risk(*, passes: int = 50, generator: torch.Generator) -> Score:
    """A score: the share of dropout passes that predict another class than the model without dropout; y is not used.

    All rows and calls share the same masks, so an input's risk depends only on the input and the model. They are seeded
    by one number from the generator, drawn when this is called.
    """
    check_passes(passes)
    seed = int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
    return partial(_vro, passes=passes, seed=seed)


def _vro(model: Classifier, x: Tensor, y: Tensor, *, passes: int, seed: int) -> Tensor:
    model.check_inputs(x)
    rows = model.batch_size * max(1, CHUNK // (passes * model.classes(x) * model.batch_size))
    ratios = []
    for part in x.split(rows):
        mc = mc_dropout(model, part, passes=passes, generator=spawn(seed, "masks"))
        ratios.append(variation_ratio_original(mc.probs, model.predict(part)))
    return torch.cat(ratios)


def surprise_risk(surprise: Callable[[Classifier, Tensor], Tensor]) -> Score:
    """A score from a fitted surprise measure (the result of `fit_lsa`, `fit_dsa` or `fit_mdsa`); y is not used.

    LSA is a logarithm and can be negative: pass its values through `ranked` before `combine`.
    """
    return partial(_surprise, surprise)


def _surprise(surprise: Callable[[Classifier, Tensor], Tensor], model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    return surprise(model, x)
