"""Rankings of field inputs by risk that need no case."""

from __future__ import annotations

import torch
from scipy.special import softmax
from torch import Tensor
from torch.nn.functional import pad

from operant.data import Samples
from operant.measure import mc_dropout, with_dropout
from operant.model import Classifier
from operant.model.classifier import WEIGHTED
from operant.profile._error_methods import fit_temperature
from operant_studies.cases.unit import CasesField

MARGIN, CORRECTED, NEIGHBOURS = "margin", "prior-corrected confidence", "neighbours in training data"
TRUST, DROPOUT, SHIFTED = "trust score in training data", "dropout passes", "shifted copies"
RIVALS = (MARGIN, CORRECTED, NEIGHBOURS, TRUST, DROPOUT, SHIFTED)
K = 25
LAYERS, RATE = 3, 0.2  # dropout before this many of the last layers, and its rate
ROWS = 1_000  # inputs whose distances are in memory at once


def rankings(field: CasesField, x: Tensor, logits: Tensor) -> dict[str, Tensor]:
    """A risk per input by each rival; higher is riskier."""
    neighbours, trust = _by_training_data(field, x, logits.argmax(1))
    return {
        MARGIN: -margins(logits),
        CORRECTED: _corrected(field, logits),
        NEIGHBOURS: neighbours,
        TRUST: trust,
        DROPOUT: _by_dropout(field, x, logits.argmax(1)),
        SHIFTED: _by_shifts(field.model, x, logits.argmax(1)),
    }


def margins(logits: Tensor) -> Tensor:
    """The largest logit minus the second largest."""
    best = logits.double().topk(2, dim=1).values
    return best[:, 0] - best[:, 1]


def _corrected(field: CasesField, logits: Tensor) -> Tensor:
    """One minus the confidence, with a temperature of clean labelled inputs and the estimated priors."""
    labelled, priors = field.inputs.labelled, torch.tensor(field.known.priors.values)
    known = field.model.batched_logits(labelled.x).double().numpy()
    y = labelled.labels.numpy()
    frequency = labelled.labels.bincount(minlength=known.shape[1]).double() / len(y)
    weights = (priors / frequency)[labelled.labels].numpy()
    temperature = fit_temperature(known, y, weights / weights.sum())
    p = torch.tensor(softmax(logits.double().numpy() / temperature, axis=1)) * (priors / frequency)
    return 1 - _own(p / p.sum(1, keepdim=True).clamp_min(1e-300), logits.argmax(1))


def _by_training_data(field: CasesField, x: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
    """By clean images in the penultimate features: training images, and the labelled inputs that cases are made of.

    The share of the nearest with another label than the prediction; and the distance to the nearest with that label,
    divided by the distance to the nearest with another one (To Trust Or Not To Trust A Classifier, Jiang et al., 2018).
    """
    clean = Samples.concat([field.inputs.clean, field.inputs.labelled])
    known, asked = field.model.penultimate(clean.x), field.model.penultimate(x)
    assert known is not None
    assert asked is not None
    shares, ratios = [], []
    for part, own in zip(asked.split(ROWS), predicted.split(ROWS), strict=True):
        distance = torch.cdist(part.double(), known.double())
        other = clean.labels != own[:, None]
        nearest = distance.topk(min(K, len(clean)), largest=False).indices
        shares.append(other.gather(1, nearest).double().mean(1))
        same, rest = (distance.masked_fill(hidden, 1e9).amin(1) for hidden in (other, ~other))
        ratios.append(same / rest.clamp_min(1e-9))
    return torch.cat(shares), torch.cat(ratios)


def _by_dropout(field: CasesField, x: Tensor, predicted: Tensor) -> Tensor:
    """One minus the mean probability of the prediction over passes with dropout before the last layers."""
    names = [name for name, module in field.model.unwrap().named_modules() if isinstance(module, WEIGHTED)]
    model = with_dropout(field.model, before=names[-LAYERS:], rate=RATE)
    found = mc_dropout(model, x, passes=field.setting.passes, generator=field.generator("dropout"))
    return 1 - _own(found.probs.double().mean(0), predicted)


def _by_shifts(model: Classifier, x: Tensor, predicted: Tensor) -> Tensor:
    """One minus the mean probability of the prediction over the image and four copies, shifted by one pixel."""
    height, width = x.shape[2:]
    wide = pad(x, (1, 1, 1, 1), mode="replicate")
    places = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
    probs = [model.probs(wide[:, :, top : top + height, left : left + width]) for top, left in places]
    return 1 - _own(torch.stack(probs).double().mean(0), predicted)


def _own(probs: Tensor, predicted: Tensor) -> Tensor:
    return probs.gather(1, predicted[:, None])[:, 0]
