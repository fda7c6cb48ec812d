"""Zero- and first-order loss: the loss of a case, and how far it could still rise inside the ball around its seed."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from operant.model import Classifier, value_and_gradient
from operant.validation import check_one_of, check_positive

NORMS = ("linf", "l2", "l2-paper")


def zero_order_loss(model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    """The loss of each case x, y the label of its seed.

        ZOL(x) = J(f(x), y), J the cross-entropy        (1)

    References:
        | RobOT: Robustness-Oriented Testing for Deep Learning Systems (Wang et al., 2021), Eq. 4
        | https://arxiv.org/abs/2102.05913
    """
    y = _labels(model, x, y)
    return cross_entropy(model.batched_logits(x), y, reduction="none")  # (1)


def first_order_loss(
    model: Classifier, x: Tensor, y: Tensor, *, x0: Tensor, radius: float, norm: str = "linf"
) -> Tensor:
    """How far the loss, linearised at the case, could still rise inside the ball around its seed.

        FOL(x) = max ⟨z - x, g⟩ over all z with ‖z - x0‖ ≤ r,   where g = ∇J(f(x), y)        (1)

        "linf"        r ‖g‖₁ - ⟨x - x0, g⟩        (2)
        "l2"          r ‖g‖₂ - ⟨x - x0, g⟩        (3)
        "l2-paper"    r ‖g‖₂                      (4)

    Zero at a maximum; never negative for ``x`` inside the ball. (2) and (3) are the exact maxima. For L2 the paper
    gives (4), the maximum over a ball around the case instead of the seed: it does not vanish on the boundary, where
    searches end, and equals (3) only if x - x0 is zero or orthogonal to g. It is provided to repeat the paper's
    experiments. The model's bounds are ignored.

    Args:
        x, y, x0: cases, labels of their seeds, and the seeds, row by row.
        radius: of the ball, in input units.

    References:
        | RobOT: Robustness-Oriented Testing for Deep Learning Systems (Wang et al., 2021), Eq. 5 to 7
        | https://arxiv.org/abs/2102.05913
        | On the Convergence and Robustness of Adversarial Training (Wang et al., 2019)
        | https://proceedings.mlr.press/v97/wang19i.html
    """
    y = _labels(model, x, y)
    if x0.shape != x.shape:
        raise ValueError(f"x0 must hold one seed per case, of shape {tuple(x.shape)}, got {tuple(x0.shape)}")
    model.check_inputs(x0)
    check_positive(radius=radius)
    check_one_of(NORMS, norm=norm)
    batches = zip(*(rows.split(model.batch_size) for rows in (x, y, x0)), strict=True)
    return torch.cat([rise(loss_gradient(model, z, c)[1], z - z0, radius=radius, norm=norm) for z, c, z0 in batches])


def loss_gradient(model: Classifier, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy, its gradient and the logits of one batch, from a single pass."""
    kept: list[Tensor] = []

    def objective(z: Tensor) -> Tensor:
        kept.append(model.logits(z).to(x.device))
        return cross_entropy(kept[0], y.to(x.device), reduction="none")

    loss, gradient = value_and_gradient(objective, x)
    if not bool(gradient.isfinite().all() & loss.isfinite().all()):
        raise ValueError("the loss or its gradient is NaN or infinite for some inputs; run doctor() on the model")
    return loss, gradient, kept[0].detach()


def rise(gradient: Tensor, moved: Tensor, *, radius: float, norm: str) -> Tensor:
    """`first_order_loss` from the gradient; ``moved`` is ``x - x0``.

    >>> rise(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2), radius=0.1, norm="l2")
    tensor([0.5000])
    """
    g, moved = gradient.flatten(1), moved.flatten(1)
    if norm == "linf":
        return (radius * g.abs() - moved * g).sum(1)  # (2), summed per term so that rounding cannot make it negative
    reach: Tensor = radius * torch.linalg.vector_norm(g, dim=1)
    return reach if norm == "l2-paper" else reach - (moved * g).sum(1)  # (4), (3)


def checked_labels(y: Tensor, n: int, classes: int) -> Tensor:
    """The labels of n rows in int64; raises if they are not classes."""
    if y.shape != (n,) or y.is_floating_point() or y.dtype == torch.bool:
        raise ValueError(f"labels must be integers of shape ({n},), got {y.dtype} of shape {tuple(y.shape)}")
    if int(y.min()) < 0 or int(y.max()) >= classes:
        raise ValueError(f"labels must be from 0 to {classes - 1}, got {int(y.min())} to {int(y.max())}")
    return y.long()


def _labels(model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    model.check_inputs(x)
    return checked_labels(y, len(x), model.classes(x)).to(x.device)
