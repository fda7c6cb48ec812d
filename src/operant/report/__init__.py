"""What was found, for people to look at."""

from operant.report.evidence import Evidence, load_evidence
from operant.report.field import write_field
from operant.report.gallery import write_gallery
from operant.report.gathering import gather
from operant.report.writing import write_report

__all__ = ["Evidence", "gather", "load_evidence", "write_field", "write_gallery", "write_report"]
