"""Uncertainty of a model, from its class probabilities and from those of many passes with dropout.

``probs`` are class probabilities ``(N, classes)``, ``mc`` those of T passes ``(T, N, classes)``, from `mc_dropout`.

References:
    | Towards Characterizing Adversarial Defects of Deep Learning Software from the Lens of Uncertainty
    | (Zhang et al., 2020), sections 2.1, 2.2 and 5.1, https://arxiv.org/abs/2004.11573
    | Uncertainty-Guided Testing and Robustness Enhancement for Deep Learning Systems (Zhang, 2020), section 2.2
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from operant.measure.loss import checked_labels
from operant.measure.mc_dropout import check_passes, mc_dropout
from operant.model import MIN_ROWS, Classifier
from operant.rng import spawn
from operant.suite import Suite

CHUNK = 2**22  # probabilities of many passes in memory at once

# From the probabilities of one pass -----------------------------------------------------------------------------------


def prediction_confidence(probs: Tensor) -> Tensor:
    """Prediction confidence score: how much more probable the predicted class is than the next (PCS, Definition 4).

        PCS(x) = max_i P[i] − max_{i ≠ c*} P[i],    c* = argmax_i P[i]        (1)

    >>> prediction_confidence(torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.125, 0.875]])).tolist()
    [0.25, 0.75]
    """
    best = _checked(probs, dims=2).topk(2, dim=1).values
    return best[:, 0] - best[:, 1]  # (1)


def margin(probs: Tensor, label: Tensor | None = None) -> Tensor:
    """How much more probable the label is than the best other class: negative where the model is wrong.

        margin(x, y) = P[y] − max_{i ≠ y} P[i]        (1)

    1 - margin is a risk score: 0 for a certain correct prediction, 2 for a certain wrong one. The default label is the
    predicted class, which gives `prediction_confidence`.
    """
    if label is None:
        return prediction_confidence(probs)
    own = checked_labels(label, *_checked(probs, dims=2).shape).to(probs.device)[:, None]
    return (probs.gather(1, own) - probs.scatter(1, own, -torch.inf).amax(1, keepdim=True))[:, 0]  # (1)


def gini(probs: Tensor) -> Tensor:
    """Gini impurity: the probability that two draws differ, from 0 (certain) to 1 - 1 / classes.

        gini(x) = 1 − Σ_i P[i]²        (1)

    References:
        | DeepGini: Prioritizing Massive Tests to Enhance the Robustness of Deep Neural Networks (Feng et al., 2020)
        | https://arxiv.org/abs/1903.00661
    """
    return (1 - _checked(probs, dims=2).square().sum(1)).clamp_min(0)  # (1); rounding must not make it negative


def entropy(probs: Tensor) -> Tensor:
    """Entropy of the probabilities in nats; a class of probability 0 adds nothing.

    H(x) = − Σ_i P[i] log P[i]        (1)
    """
    return _entropy(_checked(probs, dims=2)).to(probs.dtype)  # (1)


# From the probabilities of many passes --------------------------------------------------------------------------------


def variation_ratio(mc: Tensor, label: Tensor | None = None) -> Tensor:
    """Variation ratio: the share of passes that do not predict the label l (VR, Definition 5).

        VR(x) = 1 − (1/T) Σ_k [argmax_i P_k[i] = l]        (1)

    In Definition 5, l is the most frequent prediction (the default); in the follow-up paper (Zhang, 2020) it is given.
    Shares are exact, in double precision, so that they can be compared with thresholds such as 0.4.
    """
    passes, n, classes = _checked(mc, dims=3).shape
    votes = mc.argmax(2)
    if label is not None:
        agree = (votes == checked_labels(label, n, classes).to(mc.device)).sum(0)
    else:
        count = torch.zeros(n, classes, dtype=torch.int64, device=mc.device)
        agree = count.scatter_add_(1, votes.T, torch.ones_like(votes.T)).amax(1)
    return (passes - agree).double() / passes  # (1)


def variation_ratio_original(mc: Tensor, prediction: Tensor) -> Tensor:
    """The `variation_ratio` for l the prediction ``(N,)`` of the model without dropout (VRO, Definition 6)."""
    return variation_ratio(mc, prediction)


def predictive_entropy(mc: Tensor) -> Tensor:
    """Entropy of the mean probabilities, in nats (PE, Definition 7).

    PE(x) = − Σ_i m_i log m_i,    m_i = (1/T) Σ_k P_k[i]        (1)
    """
    return _entropy(_mean(_checked(mc, dims=3))).to(mc.dtype)  # (1)


def mutual_information(mc: Tensor) -> Tensor:
    """Mutual information of prediction and weights, in nats: how much passes disagree (MI, Definition 8).

        MI(x) = PE(x) + (1/T) Σ_{k,i} P_k[i] log P_k[i]        (1)

    Never negative: values below zero come from rounding and are set to zero.
    """
    each = sum(_entropy(probs) for probs in _checked(mc, dims=3)) / len(mc)
    return (_entropy(_mean(mc)) - each).clamp_min(0).to(mc.dtype)  # (1)


def _mean(mc: Tensor) -> Tensor:
    """Mean over the passes in double precision, without a double-precision copy of all passes."""
    total = torch.zeros_like(mc[0], dtype=torch.float64)
    for probs in mc:
        total += probs
    return total / len(mc)


def _entropy(probs: Tensor) -> Tensor:
    """In double precision, because differences of entropies may be far smaller than the entropies."""
    terms: Tensor = torch.special.entr(probs.double())
    return terms.sum(1)


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Low is below the lower threshold and high above the upper one; the defaults are the paper's (section 5.1).

    VRO depends on where dropout is and on its rate, which the paper does not state.
    """

    low_pcs: float = 0.3
    high_pcs: float = 0.7
    low_vro: float = 0.4
    high_vro: float = 0.6

    def __post_init__(self) -> None:
        for what, low, high in (("pcs", self.low_pcs, self.high_pcs), ("vro", self.low_vro, self.high_vro)):
            if not 0 <= low <= high <= 1:
                raise ValueError(f"low_{what} and high_{what} must be in [0, 1], low not above high, got {low}, {high}")


DEFAULT_THRESHOLDS = Thresholds()


def pattern(pcs: Tensor, vro: Tensor, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> npt.NDArray[np.str_]:
    """The uncertainty pattern of each row: ``LL``, ``LH``, ``HL``, ``HH``, or ``""`` between thresholds.

    The first letter is for PCS and the second for VRO. Benign inputs mostly follow HL and the cases of known attacks
    LH; such tests miss the other patterns.

    >>> pattern(torch.tensor([0.9, 0.1, 0.9, 0.5]), torch.tensor([0.1, 0.7, 0.8, 0.7])).tolist()
    ['HL', 'LH', 'HH', '']
    >>> pattern(torch.tensor([0.9, 0.1]), torch.tensor([0.3, 0.3]), Thresholds(low_vro=0.2, high_vro=0.2)).tolist()
    ['HH', 'LH']
    """
    if pcs.ndim != 1 or pcs.shape != vro.shape or bool(pcs.isnan().any()) or bool(vro.isnan().any()):
        raise ValueError(
            f"PCS and VRO must be one number per row, got shapes {tuple(pcs.shape)} and {tuple(vro.shape)}"
            f" with {int(pcs.isnan().sum())} and {int(vro.isnan().sum())} NaN"
        )
    first = _letters(pcs, thresholds.low_pcs, thresholds.high_pcs)
    second = _letters(vro, thresholds.low_vro, thresholds.high_vro)
    return np.where((first == "") | (second == ""), "", np.char.add(first, second))


def _letters(values: Tensor, low: float, high: float) -> npt.NDArray[np.str_]:
    return np.where((values < low).cpu().numpy(), "L", np.where((values > high).cpu().numpy(), "H", ""))


def annotate(model: Classifier, suite: Suite, *, passes: int = 50, generator: torch.Generator) -> Suite:
    """The suite with additional columns for each case: ``pcs gini entropy label_margin vr vro pe mi pattern``.

    All cases get the same masks, as in one call of `mc_dropout`, but are processed in chunks to limit memory. VRO
    refers to the model's present predictions. ``label_margin`` is the `margin` of the case's label in probabilities;
    attacks store theirs in the column ``margin``, in logits and with the opposite sign. The paper uses 50 passes for
    MNIST and 100 for larger images.
    """
    check_passes(passes)
    seed = int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
    if len(suite) == 0:
        return suite.with_columns(**dict.fromkeys(COLUMNS, torch.empty(0)), pattern=np.array([], dtype=np.str_))
    classes = model.classes(suite.rows.take(torch.arange(min(len(suite), MIN_ROWS))))
    rows = model.batch_size * max(1, CHUNK // (passes * classes * model.batch_size))
    parts = [
        _columns(model, suite.rows.take(part), suite.label[part], passes=passes, seed=seed)
        for part in torch.arange(len(suite)).split(rows)
    ]
    columns: dict[str, Any] = {name: torch.cat([part[name] for part in parts]) for name in COLUMNS}
    return suite.with_columns(**columns, pattern=pattern(columns["pcs"], columns["vro"]))


COLUMNS = ("pcs", "gini", "entropy", "label_margin", "vr", "vro", "pe", "mi")


def _columns(model: Classifier, x: Tensor, label: Tensor, *, passes: int, seed: int) -> dict[str, Tensor]:
    mc = mc_dropout(model, x, passes=passes, generator=spawn(seed, "masks")).probs
    probs = model.probs(x)
    return {
        "pcs": prediction_confidence(probs),
        "gini": gini(probs),
        "entropy": entropy(probs),
        "label_margin": margin(probs, label),
        "vr": variation_ratio(mc),
        "vro": variation_ratio_original(mc, probs.argmax(1)),
        "pe": predictive_entropy(mc),
        "mi": mutual_information(mc),
    }


def _checked(probs: Tensor, *, dims: int) -> Tensor:
    """The probabilities, if they are valid; with ``dims=3`` there must be at least two passes."""
    shape = "(N, classes)" if dims == 2 else "(T, N, classes)"
    if probs.ndim != dims or not probs.is_floating_point() or probs.shape[-1] < 2:
        raise ValueError(f"probabilities must have shape {shape}, got {probs.dtype} of shape {tuple(probs.shape)}")
    if probs.numel() == 0:
        raise ValueError(f"there are no probabilities: got shape {tuple(probs.shape)}; give at least one row")
    if dims == 3 and len(probs) < 2:
        raise ValueError("measures over passes need at least 2 of them, got 1; run mc_dropout with more")
    off = float((probs.sum(-1) - 1).abs().amax())
    if not off <= 1e-3 or float(probs.amin()) < 0:  # NaN fails the first
        raise ValueError(
            f"probabilities must be 0 or more and sum to 1 in each row, got sums that are off by up to {off:.3g} and "
            f"a smallest value of {float(probs.amin()):.3g}; apply softmax to logits"
        )
    return probs
