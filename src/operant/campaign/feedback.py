"""What one round tells the next: more of the budget where the failures come from, and some of it everywhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FLOOR = 0.3  # share of a budget that is spread whatever was learned


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What feedback changed for a round: how it would have been without, how it was, and why."""

    what: str
    before: str
    after: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.after} (without feedback {self.before}), since {self.why}"


def allocate(contribution: Tensor, base: Tensor, *, floor: float = FLOOR) -> Tensor:
    """Shares of a budget, in proportion to what each part contributed, with a floor for every part that there is.

        a_i = (1 - floor) s_i + floor b_i,    s_i = (c_i + b_i) / (Σ c + 1)        (1)

    b is how the budget would be spread if nothing were known, c what was counted: failures of a class among labelled
    field inputs, say. One imaginary count, spread as b, keeps few counts from deciding everything; with none, a = b.

    Args:
        contribution: c, one count a part, 0 or more.
        base: b, one share a part, summing to 1; a part with share 0 gets none.
        floor: share of the budget that is spread as b.

    >>> allocate(torch.tensor([3.0, 0.0]), torch.tensor([0.5, 0.5]), floor=0.2)
    tensor([0.8000, 0.2000], dtype=torch.float64)
    """
    c, b = contribution.double(), base.double()
    if c.shape != b.shape or not bool((c >= 0).all() and (b >= 0).all()) or not abs(float(b.sum()) - 1) < 1e-6:
        raise ValueError(
            f"contribution and base must be one number of 0 or more for each part, base summing to 1, got {c.tolist()} "
            f"and {b.tolist()}"
        )
    if not 0 <= floor <= 1:
        raise ValueError(f"floor must be a share from 0 to 1, got {floor}")
    c = torch.where(b > 0, c, 0.0)
    return (1 - floor) * (c + b) / (c.sum() + 1) + floor * b  # (1)


def reweighted(weights: Tensor, part: Tensor, shares: Tensor) -> Tensor:
    """Weights whose sum over each part is its share, and which within a part keep their proportions.

    A part that holds no weight cannot be given any; the others share what it would have had.

    >>> reweighted(torch.tensor([1.0, 1.0, 2.0]), torch.tensor([0, 0, 1]), torch.tensor([0.8, 0.2])).tolist()
    [0.4, 0.4, 0.2]
    """
    weights = weights.double()
    held = torch.zeros(len(shares), dtype=torch.float64).index_add_(0, part, weights)
    wanted = torch.where(held > 0, shares.double(), 0.0)
    factor = torch.where(held > 0, wanted / wanted.sum() / held.clamp_min(1e-300), 0.0)
    return weights * factor[part]


def told(shares: Tensor, names: list[str], *, most: int = 4) -> str:
    """The largest shares, by name."""
    order = shares.argsort(descending=True, stable=True)[:most].tolist()
    more = "" if len(names) <= most else ", …"
    return ", ".join(f"{names[i]} {float(shares[i]):.0%}" for i in order) + more
