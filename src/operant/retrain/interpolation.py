"""Interpolated weights between an original and a retrained model."""

import torch

from operant.model import Classifier
from operant.model.hashing import tensors_of


@torch.no_grad()
def interpolate(original: Classifier, candidate: Classifier, share: float) -> Classifier:
    """The model with weights (1 - share) · original + share · candidate.

    Often keeps most of what was learned and forgets less. Integer buffers are the candidate's.

    >>> from torch import nn
    >>> a, b = Classifier(nn.Linear(2, 3)), Classifier(nn.Linear(2, 3))
    >>> torch.equal(interpolate(a, b, 1.0).unwrap().weight, b.unwrap().weight)
    True

    References:
        | Robust fine-tuning of zero-shot models (Wortsman et al., 2022), https://arxiv.org/abs/2109.01903
    """
    module = candidate.unwrap()
    before = tensors_of(original.unwrap())
    for name, value in tensors_of(module).items():
        if value.is_floating_point() and share != 1:
            value.copy_(before[name].lerp(value, share))
    return candidate.rewrap(module)
