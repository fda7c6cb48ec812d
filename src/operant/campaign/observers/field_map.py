"""A map of the field: field inputs, training inputs and failures by the first two codes of the profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from operant.campaign.observers.base import (
    MAX_POINTS,
    ObservedRound,
    Section,
    chart_points,
    evenly,
    flat_codes,
    read_template,
)
from operant.campaign.records import Round


@dataclass(frozen=True, kw_only=True)
class FieldMap:
    """Positions on the map; ``field_map.json`` of a round.

    Attributes:
        new_profile: whether this round learned a new profile, so that earlier positions no longer apply.
        field, train: positions of field and training inputs, ``(n, 2)``; empty unless the profile is new.
        failures: positions of the round's operational failures.
    """

    new_profile: bool
    field: Tensor
    train: Tensor
    failures: Tensor


@dataclass(frozen=True)
class MapOfField:
    """Records where field inputs, training inputs and operational failures lie."""

    name: ClassVar[str] = "field_map"
    record: ClassVar[type] = FieldMap
    template: ClassVar[str] = read_template(__file__)

    def observe(self, seen: ObservedRound) -> FieldMap | None:
        """The positions that are new in this round; None if there are none."""
        profile, new, empty = seen.field.profile, seen.field.profile_is_new, torch.empty(0, 2, dtype=torch.float64)
        if not new and seen.failures is None:
            return None
        some = seen.train[evenly(len(seen.train), MAX_POINTS)]
        return FieldMap(
            new_profile=new,
            field=flat_codes(profile.codes) if new else empty,
            train=flat_codes(profile.encode(some.x)) if new else empty,
            failures=empty if seen.failures is None else flat_codes(profile.encode(seen.failures.x)),
        )

    def section(
        self, records: Mapping[int, FieldMap], *, rounds: Sequence[Round], classes: Sequence[str]
    ) -> Section | None:
        """The map with the newest profile."""
        latest = max((number for number, record in records.items() if record.new_profile), default=None)
        if latest is None:
            return None
        failures = [record.failures for number, record in sorted(records.items()) if number >= latest]
        values = {
            "field": chart_points([records[latest].field]),
            "train": chart_points([records[latest].train]),
            "failures": chart_points(failures),
        }
        return Section(name=self.name, title="Map of the field", summary="", values=values, after="field")
