"""Campaigns: rounds of the five steps in one folder, until the requirement is met."""

from operant.campaign.assessing import SequentialAssessment, confidence_of
from operant.campaign.campaign import Campaign
from operant.campaign.choosers import CaseChooser, SeedChooser, most_covering_cases, risk_weighted_seeds
from operant.campaign.feedback import allocate
from operant.campaign.observers import OBSERVERS, ObservedRound, Observer, Section
from operant.campaign.records import CampaignResult, Decision, Round

__all__ = [
    "OBSERVERS",
    "Campaign",
    "CampaignResult",
    "CaseChooser",
    "Decision",
    "ObservedRound",
    "Observer",
    "Round",
    "Section",
    "SeedChooser",
    "SequentialAssessment",
    "allocate",
    "confidence_of",
    "most_covering_cases",
    "risk_weighted_seeds",
]
