"""All rated field inputs by risk, stored compactly: thousands of inputs in every round's record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from operant.campaign.observers.risk_regions import Rated


@dataclass(frozen=True, kw_only=True, eq=False)
class RiskListing:
    """Name, prediction and risk of all rated field inputs, riskiest first.

    Attributes:
        names: of the inputs, as the bytes of a JSON list; see `rows`.
        predictions, risks: one per input.
    """

    names: Tensor = field(repr=False)
    predictions: Tensor = field(repr=False)
    risks: Tensor = field(repr=False)

    def __len__(self) -> int:
        return len(self.risks)

    def rows(self) -> Iterator[tuple[str, int, float]]:
        """Name, predicted class and risk of each input."""
        names = json.loads(bytes(self.names.tolist()))
        return zip(names, self.predictions.tolist(), self.risks.tolist(), strict=True)


def list_risks(titles: Sequence[str], rated: Rated) -> RiskListing:
    """All rated inputs, riskiest first; inputs of equal risk stay in their order."""
    order = rated.risk.argsort(descending=True, stable=True)
    names = json.dumps([titles[row] for row in order.tolist()]).encode()
    return RiskListing(
        names=torch.tensor(list(names), dtype=torch.uint8),
        predictions=rated.predicted[order].int(),
        risks=rated.risk[order].float(),
    )
