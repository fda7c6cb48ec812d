"""The contact sheets as read by eye, once; places are (row, column), counted from 1.

The label is printed below each case, so the reading is not blind; doubtful cases were examined again, larger and beside
their seeds.
"""

from __future__ import annotations

from dataclasses import dataclass

Places = tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class SheetReading:
    """The reading of one sheet."""

    sheet: str  # fingerprint of the images; another sheet must be read again
    lost: Places  # cases that a person would no longer give their label
    unsure: Places  # cases that might be read either way; they count half

    def share(self, n: int) -> float:
        """The share of n cases whose label holds."""
        return 1 - (len(self.lost) + len(self.unsure) / 2) / n


READ: dict[str, SheetReading] = {
    "zipf": SheetReading(
        sheet="6bbf0e2f",
        lost=((1, 2),),
        unsure=((1, 1), (1, 3), (1, 9), (1, 10), (2, 6), (4, 4), (4, 8), (4, 10), (6, 9), (7, 4), (8, 8)),
    ),
    "usps": SheetReading(
        sheet="8cd79e95", lost=((5, 5),), unsure=((2, 3), (3, 2), (3, 5), (4, 5), (10, 1), (10, 4), (10, 6))
    ),
    "outdoors": SheetReading(sheet="41435281", lost=(), unsure=((1, 10), (2, 7), (3, 1), (4, 2), (5, 4), (9, 10))),
    "tinyimagenet": SheetReading(
        sheet="6b83ee56",
        lost=((1, 2), (1, 4), (1, 5), (4, 9), (9, 4), (9, 9)),
        unsure=((1, 3), (1, 6), (3, 4), (4, 7), (5, 3), (5, 5), (7, 9), (8, 10), (9, 7), (10, 4), (10, 5), (10, 9)),
    ),
}
