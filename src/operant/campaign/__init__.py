"""The campaign: rounds of the five steps in one folder, until the requirement holds."""

from operant.campaign.assessment import SequentialAssessment, confidence_of
from operant.campaign.campaign import Campaign
from operant.campaign.feedback import Decision, allocate
from operant.campaign.result import CampaignResult, Round
from operant.execution.engines import Engine, pool, serial
from operant.execution.events import Event, EventHandler
from operant.execution.interrupt import Interrupted

__all__ = [
    "Campaign",
    "CampaignResult",
    "Decision",
    "Engine",
    "Event",
    "EventHandler",
    "Interrupted",
    "Round",
    "SequentialAssessment",
    "allocate",
    "confidence_of",
    "pool",
    "serial",
]
