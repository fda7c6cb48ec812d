"""The campaign: rounds of the five steps in one folder, until the requirement holds."""

from operant.campaign.assessment import Assessed, confidence_of
from operant.campaign.engine import Engine, Event, Interrupted, Watch, pool, serial
from operant.campaign.feedback import Decision, allocate
from operant.campaign.loop import Campaign
from operant.campaign.rounds import Delivered, Round

__all__ = [
    "Assessed",
    "Campaign",
    "Decision",
    "Delivered",
    "Engine",
    "Event",
    "Interrupted",
    "Round",
    "Watch",
    "allocate",
    "confidence_of",
    "pool",
    "serial",
]
