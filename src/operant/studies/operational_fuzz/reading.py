"""What was read by eye on the contact sheets, once; places are (row, column), counted from 1.

The label stands below each case, so the reading is not blind; doubtful cases were looked at again, larger and beside
their seeds.
"""

from __future__ import annotations

from dataclasses import dataclass

Places = tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Of one sheet.

    Attributes:
        sheet: fingerprint of the images that were read; another sheet must be read anew.
        lost: cases that a person would no longer give their label.
        unsure: cases that might be read so or otherwise; they count half.
    """

    sheet: str
    lost: Places
    unsure: Places

    def share(self, n: int) -> float:
        """Of n cases, the share whose label holds."""
        return 1 - (len(self.lost) + len(self.unsure) / 2) / n


READ: dict[str, Reading] = {
    "zipf": Reading(
        sheet="d20e6c12",
        lost=((1, 1), (1, 2), (1, 10), (2, 1)),
        unsure=((1, 6), (2, 4), (3, 6), (3, 10), (5, 3), (6, 6), (7, 3)),
    ),
    "usps": Reading(sheet="13323fda", lost=(), unsure=((6, 2), (8, 10), (10, 3))),
    "outdoors": Reading(
        sheet="c8729f1b",
        lost=((7, 2), (10, 10)),
        unsure=((2, 4), (2, 5), (5, 8), (8, 2)),
    ),
    "tinyimagenet": Reading(
        sheet="66295430",
        lost=((1, 1), (1, 4), (2, 2), (2, 9), (4, 2), (5, 10), (6, 9), (7, 6), (7, 10), (8, 5)),
        unsure=(
            (1, 7),
            (1, 8),
            (2, 1),
            (4, 8),
            (6, 4),
            (6, 5),
            (7, 7),
            (7, 8),
            (7, 9),
            (9, 7),
            (9, 8),
            (9, 9),
            (9, 10),
            (10, 5),
            (10, 7),
        ),
    ),
}
