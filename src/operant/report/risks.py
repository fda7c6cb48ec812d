"""The table of all rated field inputs by risk."""

from collections.abc import Sequence

from operant.campaign.observers.risk_listing import RiskListing
from operant.data.class_texts import class_name
from operant.triage.export import csv_text, safe_cell

HEAD = ("name", "prediction", "risk")


def risks_csv(listing: RiskListing, classes: Sequence[str]) -> str:
    """Name or id, predicted class and risk of each input, riskiest first."""
    rows = ((safe_cell(name), safe_cell(class_name(p, classes)), f"{risk:.4g}") for name, p, risk in listing.rows())
    return csv_text([HEAD, *rows])
