"""How certain the model was of its operational failures: patterns of uncertainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from operant.campaign.observers.base import ObservedRound, Section, chart_points, evenly, read_template
from operant.campaign.records import Round
from operant.data.samples import content_ids
from operant.measure import annotate, pattern, prediction_confidence
from operant.measure.patterns import PATTERNS
from operant.measure.uncertainty import DEFAULT_THRESHOLDS
from operant.suite import Suite


@dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """How certain a round's model was of its operational failures; ``uncertainty.json`` of a round that found some.

    Attributes:
        failures: number of operational failures of the round.
        pcs: prediction confidence scores of some of them.
        vro: variation ratios of the same ones; empty if the model has no dropout.
        passes: passes with dropout that each variation ratio is computed from.
        reason: why there are no variation ratios; empty if there are.
        cases: seed and content id of each measured failure, ``(n, 2)``; a later round can find the same ones again.
    """

    failures: int
    pcs: Tensor
    vro: Tensor
    passes: int
    reason: str
    cases: Tensor = field(default_factory=lambda: torch.empty((0, 2), dtype=torch.int64))


@dataclass(frozen=True)
class UncertaintyOfFailures:
    """Records the confidence and, for models with dropout, the stability of predictions on operational failures.

    Args:
        most: failures per round that are measured.
        passes: passes with dropout for each of them.
    """

    name: ClassVar[str] = "uncertainty"
    record: ClassVar[type] = Uncertainty
    template: ClassVar[str] = read_template(__file__)

    most: int = 200
    passes: int = 50

    def observe(self, seen: ObservedRound) -> Uncertainty | None:
        """The uncertainty of the model before retraining; None if it has no operational failures."""
        if seen.failures is None:
            return None
        some: Suite = seen.failures[evenly(len(seen.failures), self.most)]
        pcs, vro, reason = prediction_confidence(seen.before.probs(some.x)), torch.empty(0), ""
        try:
            generator = seen.spawn("patterns")
            vro = torch.as_tensor(annotate(seen.before, some, passes=self.passes, generator=generator)["vro"])
        except ValueError as error:  # the model has no dropout, or none that masks can be given to
            reason = str(error)
        return Uncertainty(
            failures=len(seen.failures),
            pcs=pcs.cpu(),
            vro=vro.cpu(),
            passes=self.passes,
            reason=reason,
            cases=torch.stack([some.seed.cpu(), content_ids(some.x)], 1),
        )

    def section(
        self, records: Mapping[int, Uncertainty], *, rounds: Sequence[Round], classes: Sequence[str]
    ) -> Section | None:
        """All rounds together, each failure once; if some know variation ratios, only those."""
        every = _once([records[number] for number in sorted(records)])
        used = [record for record in every if not record.reason] or every
        if not used:
            return None
        pcs, vro = (torch.cat([getattr(record, name).double() for record in used]) for name in ("pcs", "vro"))
        cuts, which = DEFAULT_THRESHOLDS, pattern(pcs, vro).tolist() if len(vro) else []
        values: dict[str, Any] = {
            "failures": sum(record.failures for record in used),
            "measured": len(pcs),
            "confident": int((pcs > cuts.high_pcs).sum()),
            "unconfident": int((pcs < cuts.low_pcs).sum()),
            "patterns": {name: which.count(name) for name in (*PATTERNS, "")} if which else {},
            "points": chart_points([torch.stack([pcs, vro], 1)]) if which else [],
            "cuts": {"pcs": [cuts.low_pcs, cuts.high_pcs], "vro": [cuts.low_vro, cuts.high_vro]},
            "passes": used[-1].passes,
            "reason": used[-1].reason,
        }
        title = "How certain the model was of its failures"
        return Section(name=self.name, title=title, summary=_summary(values), values=values)


def _once(records: Sequence[Uncertainty]) -> list[Uncertainty]:
    """The records without failures that an earlier round has measured."""
    once, seen = list[Uncertainty](), set[tuple[int, ...]]()
    for record in records:
        cases = [tuple(row) for row in record.cases.tolist()]
        new = torch.tensor([case not in seen for case in cases] or [True] * len(record.pcs), dtype=torch.bool)
        vro = record.vro[new] if len(record.vro) else record.vro
        failures = record.failures - int((~new).sum())
        once.append(replace(record, failures=failures, pcs=record.pcs[new], vro=vro))
        seen.update(cases)
    return once


def _summary(values: Mapping[str, Any]) -> str:
    measured = values["measured"]
    if not values["patterns"]:
        return (
            f"In {values['confident']} of {measured} failures the model was confident; a confidence threshold would "
            f"miss them. In {values['unconfident']} it was not confident."
        )
    sure, doubtful = values["patterns"]["HL"], values["patterns"]["LH"]
    return (
        f"In {sure} of {measured} failures the model was as certain as on inputs that it classifies correctly (HL); no "
        f"check of its certainty would stop them. In {doubtful} it was uncertain in both ways (LH); such a check would "
        "stop them."
    )
