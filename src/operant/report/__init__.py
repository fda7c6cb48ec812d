"""What was found, for people to look at."""

from operant.report.gallery import write_gallery

__all__ = ["write_gallery"]
