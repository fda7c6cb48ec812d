"""Observers look at finished rounds for the report; nothing that a campaign computes depends on them.

Each owns a record, kept in every round's folder, and a section of the report. `Campaign` takes any number of them:
``Campaign(observers=())`` switches all off, ``observers=(*OBSERVERS, MyObserver())`` adds one.
"""

from operant.campaign.observers.base import ObservedRound, Observer, Section, check_names, observe_round
from operant.campaign.observers.defences import CheapDefences
from operant.campaign.observers.error_sources import ErrorSources
from operant.campaign.observers.field_description import DescriptionOfField
from operant.campaign.observers.field_map import MapOfField
from operant.campaign.observers.risk import RiskOfField
from operant.campaign.observers.uncertainty import UncertaintyOfFailures

OBSERVERS: tuple[Observer, ...] = (
    DescriptionOfField(),
    MapOfField(),
    ErrorSources(),
    RiskOfField(),
    UncertaintyOfFailures(),
    CheapDefences(),
)
"""The default observers, in the order of their sections."""

__all__ = [
    "OBSERVERS",
    "CheapDefences",
    "DescriptionOfField",
    "ErrorSources",
    "MapOfField",
    "ObservedRound",
    "Observer",
    "RiskOfField",
    "Section",
    "UncertaintyOfFailures",
    "check_names",
    "observe_round",
]
