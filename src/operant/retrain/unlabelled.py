"""What is learned from field inputs without labels: pseudo-labels, and confident outputs in the field's shares."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from operant.data import Samples
from operant.retrain._sampling import drawn_rows
from operant.retrain.rows import Change, equal_chances
from operant.retrain.training import TrainableModel, laid_out
from operant.rng import shuffled


@dataclass(frozen=True, kw_only=True, eq=False)
class UnlabelledRows:
    """Field inputs in a batch, and their loss.

        pseudo_weight · mean [max q ≥ confidence] J(f(x'), argmax q)                                    (1)
        + information_weight · (mean H(f(x)) + KL(mean f(x) ‖ priors))                                  (2)

    q are the outputs of the averaged weights on the input x as it is, x' is the input under ``change``. (1) is
    self-training in the form of FixMatch with a mean teacher; (2) is information maximisation, as SHOT has it, with the
    field's class shares in place of equal ones.

    Args:
        field: inputs without labels.
        rows: per step.
        priors: class shares in the field.
        change: strong augmentation for (1); None for the inputs as they are.
        pseudo_weight, confidence: see (1).
        information_weight: see (2).

    References:
        | FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence (Sohn et al., 2020)
        | https://arxiv.org/abs/2001.07685
        | Do We Really Need to Access the Source Data? Source Hypothesis Transfer (Liang et al., 2020)
        | https://arxiv.org/abs/2002.08546
    """

    field: Samples
    rows: int
    priors: Tensor
    change: Change | None = None
    pseudo_weight: float = 0.0
    confidence: float = 0.9
    information_weight: float = 0.0

    def draw(self, steps: int, *, generator: torch.Generator) -> Tensor:
        """Inputs for so many steps."""
        chosen = drawn_rows(equal_chances(self.field), steps * self.rows, generator=generator)
        return self.field.x[chosen[shuffled(len(chosen), generator)]]

    @torch.no_grad()
    def targets(self, trainable: TrainableModel, average: nn.Module, x: Tensor) -> Tensor:
        """Outputs of the averaged weights."""
        if not self.pseudo_weight:
            return x[:0]
        average.eval()
        q: Tensor = average(laid_out(trainable.original, x))
        return q.softmax(1)

    def changed(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        return x if self.change is None else self.change(x, generator=generator)

    def loss(self, z: Tensor, targets: Tensor) -> Tensor:
        """(1) + (2)."""
        total = z.new_zeros(())
        if self.pseudo_weight:
            sure, label = targets.max(1)
            each = cross_entropy(z, label, reduction="none")
            total = total + self.pseudo_weight * (each * (sure >= self.confidence)).mean()  # (1)
        if self.information_weight:
            p = z.softmax(1)
            entropy = -(p * p.clamp_min(1e-8).log()).sum(1).mean()
            mean, priors = p.mean(0), self.priors.to(p).clamp_min(1e-4)
            apart = (mean * (mean.clamp_min(1e-8) / priors).log()).sum()
            total = total + self.information_weight * (entropy + apart)  # (2)
        return total
