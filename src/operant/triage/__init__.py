"""People's verdicts on generated cases: a web page to give them, and statistics of the results."""

from operant.suite.verdicts import Judgement
from operant.triage.agreement import Agreement, agreement, cohens_kappa
from operant.triage.export import export_csv, export_pictures
from operant.triage.opening import open_desk
from operant.triage.sampling import SamplePlan, ValidShare, anytime_interval, exact_interval, valid_share
from operant.triage.server import serve
from operant.triage.verdicts import VerdictStore, read_verdicts, verdicts_for

__all__ = [
    "Agreement",
    "Judgement",
    "SamplePlan",
    "ValidShare",
    "VerdictStore",
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
