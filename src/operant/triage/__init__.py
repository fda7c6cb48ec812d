"""What people say about generated cases: a page to say it on, and what it comes to."""

from operant.suite.verdicts import Judgement
from operant.triage.agreement import Agreement, agreement, cohens_kappa
from operant.triage.export import export_csv, export_pictures
from operant.triage.opening import open_desk
from operant.triage.sampling import Plan, ValidShare, anytime_interval, exact_interval, valid_share
from operant.triage.server import serve
from operant.triage.verdicts import Verdicts, read_verdicts, verdicts_for

__all__ = [
    "Agreement",
    "Judgement",
    "Plan",
    "ValidShare",
    "Verdicts",
    "agreement",
    "anytime_interval",
    "cohens_kappa",
    "exact_interval",
    "export_csv",
    "export_pictures",
    "open_desk",
    "read_verdicts",
    "serve",
    "valid_share",
    "verdicts_for",
]
