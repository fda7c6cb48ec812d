"""The cases of a suite, as a page asks for them: in an order, filtered, with what was said of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from operant.suite import open_with_index
from operant.suite.drawing import (
    FACTORS,
    MAX_SMALL,
    ROW_VIEWS,
    changes_of,
    draw_row,
    factor_of,
    is_picture,
    pair_of,
    range_of,
)
from operant.suite.verdicts import VERDICTS, Judgement
from operant.triage.agreement import agreements
from operant.triage.asking import Asked, Lists, Rows, Unknown
from operant.triage.export import csv_of
from operant.triage.sampling import Plan, page_of, plan_of, ranked_rows, sample_rows, share_of
from operant.triage.verdicts import Verdicts, checked_words

SHOWS = ("all", "todo", "done", *VERDICTS, "differ")
FIRST = ("naturalness", "mass")  # what is told of a case before other columns
OURS = ("verdict", "verdict_by", "verdict_at", "tags")
MOST_TAGS = 200  # offered


class SuiteDesk:
    """A suite whose cases people call valid, invalid or unsure.

    Args:
        path: its folder.
        plan: the sample to be judged; the one begun with, or the usual one, unless given.
        classes: the name of each label; the number stands for itself unless given.
        bounds: smallest and largest value of a pixel.
        by: whose verdicts they are unless the page says otherwise.
        blind: whether the page begins without the model's answers.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        plan: Plan | None = None,
        classes: Sequence[str] = (),
        bounds: tuple[float, float] | None = None,
        by: str = "me",
        blind: bool = False,
    ) -> None:
        self.path, self.blind = Path(path), blind
        self.suite, known = open_with_index(self.path)
        self.by = checked_words(by, "name")
        self.classes = classes
        self.pictured = is_picture(tuple(self.suite.rows.shape))
        self.bounds = range_of(self.suite, bounds)
        told = None if plan is None else page_of(plan)
        self.verdicts = Verdicts(self.path, self.suite, known, plan=told)
        self.plan = plan_of(self.verdicts.plan)
        self._version = token_hex(4)  # of pictures: another desk's rows are other cases
        self._label, self._prediction = self.suite.label.numpy(), self.suite.prediction.numpy()
        self._orders: dict[str, Rows] = {}
        self._lists, self._lock = Lists(), Lock()

    # What there is

    def about(self) -> dict[str, Any]:
        failing = int((self._label != self._prediction).sum())
        return {
            "mode": "verdicts",
            "title": self.path.resolve().name,
            "by": self.by,
            "blind": self.blind,
            "tests": len(self.suite),
            "failures": failing,
            "planned": min(self.plan.n, failing if self.plan.of == "failures" and failing else len(self.suite)),
            "pictured": self.pictured,
            "small": max(self.suite.rows.shape, default=0) <= MAX_SMALL,
            "channels": self.suite.rows.shape[0] if self.pictured else 0,
            "version": self._version,
            "factors": list(FACTORS),
            "labels": self._named(self._label),
            "predictions": self._named(self._prediction),
            "methods": np.unique(self.suite.method).tolist(),
            "columns": self._numeric(),
            "refused": [*self.suite.rejected, *self.verdicts.refused()],
        }

    def _named(self, labels: Rows) -> list[tuple[int, str]]:
        return [(label, self.name_of(label)) for label in np.unique(labels).tolist()]

    def name_of(self, label: int) -> str:
        return self.classes[label] if 0 <= label < len(self.classes) else str(label)

    def _numeric(self) -> list[str]:
        return [name for name, values in self.suite.columns.items() if isinstance(values, Tensor)]

    # Orders and filters

    def arrange(self, asked: Asked) -> dict[str, Any]:
        """Keep a list of rows, to be asked for in parts."""
        self.verdicts.refresh()
        by = checked_words(asked.text("by", self.by), "name")
        rows = self._order(asked.text("order", "sample"))
        rows = rows[self._shown(asked, by)[rows]]
        mine = self._mine(by)[rows] > 0
        first = 0 if not len(rows) or mine.all() else int(mine.argmin())
        return {"key": self._lists.keep(rows), "total": len(rows), "done": int(mine.sum()), "first": first}

    def _order(self, word: str) -> Rows:
        """Rows in an order; worked out when it is first asked for."""
        with self._lock:
            if word not in self._orders:
                self._orders[word] = self._ordered(word)
            return self._orders[word]

    def _ordered(self, word: str) -> Rows:
        if word == "sample":
            return sample_rows(self.suite, self.plan).numpy()
        if word == "ranked":
            return ranked_rows(self.suite).numpy()
        if word == "suite":
            return np.arange(len(self.suite))
        falling, name = word.startswith("-"), word.removeprefix("-")
        if name not in self._numeric():
            raise ValueError(f"order must be sample, ranked, suite or a column of numbers, got {word!r:.80}")
        column = torch.as_tensor(self.suite.columns[name]).double()
        return (-column if falling else column).nan_to_num(math.inf).argsort(stable=True).numpy()

    def _shown(self, asked: Asked, by: str) -> Any:
        """Which rows pass the filters."""
        kept = np.ones(len(self.suite), dtype=np.bool_)
        if (label := asked.maybe("label")) is not None:
            kept &= self._label == label
        if (prediction := asked.maybe("prediction")) is not None and not asked.truth("blind"):
            kept &= self._prediction == prediction
        if method := asked.text("method"):
            kept &= self.suite.method == method
        if tag := asked.text("tag"):
            mine = self._mine(by) > 0  # others are heard where one has spoken
            tagged = [s.row for s in self.verdicts.everything() if tag in s.tags and (s.by == by or mine[s.row])]
            kept &= np.isin(np.arange(len(kept)), tagged)
        return kept & self._judged(asked.text("show", "all"), by)

    def _judged(self, show: str, by: str) -> Any:
        if show not in SHOWS:
            raise ValueError(f"show must be one of {', '.join(SHOWS)}, got {show!r:.40}")
        mine = self._mine(by)
        if show == "differ":
            every = np.stack([mine, *self.verdicts.people().values()])
            return np.sum([(every == code).any(0) for code in (1, 2, 3)], axis=0) > 1
        if show in VERDICTS:
            return mine == 1 + VERDICTS.index(show)
        return {"all": mine >= 0, "todo": mine == 0, "done": mine > 0}[show]

    def _mine(self, by: str) -> Any:
        return self.verdicts.codes.get(by, np.zeros(len(self.suite), dtype=np.int8))

    # Rows

    def rows(self, asked: Asked) -> dict[str, Any]:
        """Some rows of a list."""
        start, rows = self._lists.part(asked)
        by, blind = checked_words(asked.text("by", self.by), "name"), asked.truth("blind")
        return {"start": start, "rows": [self._row(row, by, blind) for row in rows]}

    def _row(self, row: int, by: str, blind: bool) -> dict[str, Any]:
        seed, case = pair_of(self.suite, row)
        told = {
            "row": row,
            "label": self.name_of(int(self._label[row])),
            "prediction": None if blind else self.name_of(int(self._prediction[row])),
            "failing": None if blind else bool(self._label[row] != self._prediction[row]),
            "facts": self._facts(row, seed, case, blind),
            "changes": [] if self.pictured else changes_of(seed, case),
            "factor": factor_of(seed, case, self.bounds) if self.pictured else 1,
        }
        return told | self._said(row, by)

    def _facts(self, row: int, seed: Tensor, case: Tensor, blind: bool) -> list[tuple[str, str]]:
        """What columns tell of a case; who is blind sees none that may give the model's answer away."""
        change = (case.double() - seed.double()).flatten()
        distances = {"L∞": float(change.abs().max()), "L2": float(change.norm())} if len(change) else {}
        first = [(name, self._cell(name, row)) for name in FIRST if name in self.suite.columns]
        facts = [*first, *((name, _number(value)) for name, value in distances.items())]
        if not blind:
            rest = [name for name in self.suite.columns if name not in (*FIRST, *OURS)]
            facts += [("method", str(self.suite.method[row])), *((name, self._cell(name, row)) for name in rest)]
        return [(name, text) for name, text in facts if text]

    def _cell(self, name: str, row: int) -> str:
        column = self.suite.columns[name]
        return _number(float(column[row])) if isinstance(column, Tensor) else str(column[row])

    def _said(self, row: int, by: str) -> dict[str, Any]:
        """What a person says of a case; and the others, once the person has said something."""
        mine = self.verdicts.of(row, by)
        others = self.verdicts.others(row, by) if mine.verdict else []
        return {
            "verdict": mine.verdict,
            "tags": list(mine.tags),
            "others": [{"by": other.by, "verdict": other.verdict, "tags": list(other.tags)} for other in others],
        }

    # Verdicts

    def mark(self, asked: Asked) -> dict[str, Any]:
        """Take a verdict; it is on disk when this returns."""
        by = checked_words(asked.text("by", self.by), "name")
        said = self.verdicts.mark(asked.number("row"), by, asked.text("verdict"), asked.words("tags"))
        return {"row": said.row, **self._said(said.row, by)}

    def undo(self, asked: Asked) -> dict[str, Any]:
        """Take back a person's last step."""
        by = checked_words(asked.text("by", self.by), "name")
        said: Judgement | None = self.verdicts.undo(by)
        return {"row": None} if said is None else {"row": said.row, **self._said(said.row, by)}

    def state(self, asked: Asked) -> dict[str, Any]:
        """Counts, the share of valid cases, and how far people agree."""
        self.verdicts.refresh()
        by = checked_words(asked.text("by", self.by), "name")
        codes = self.verdicts.consensus_codes()
        people = {name: int((c > 0).sum()) for name, c in sorted(self.verdicts.people().items())}
        names = tuple(name for name, n in people.items() if n)
        share = share_of(
            self.suite, self.plan, codes > 0, codes == 1, names, begun=self.verdicts.begun, rows=self._order("sample")
        )
        mine = self._mine(by)
        return {
            "mine": {verdict: int((mine == 1 + i).sum()) for i, verdict in enumerate(VERDICTS)},
            "people": people,
            "share": {
                "of": share.of, "population": share.population, "planned": share.planned, "judged": share.judged,
                "valid": share.valid, "share": share.share if share.judged else None, "lower": share.lower,
                "upper": share.upper, "confidence": share.confidence, "finished": share.finished,
            },
            "agreement": [
                {
                    "people": pair.people, "both": pair.both, "same": pair.same,
                    "kappa": None if math.isnan(pair.kappa) else pair.kappa,
                }
                for pair in agreements(self.verdicts.people())
            ],
            "tags": self.verdicts.words()[:MOST_TAGS],
        }  # fmt: skip

    # Files

    def picture(self, row: int, what: str, factor: int) -> bytes:
        if not self.pictured or what not in ROW_VIEWS or not 0 <= row < len(self.suite):
            raise Unknown("there is no such picture")
        return draw_row(self.suite, row, what, self.bounds, factor)

    def table(self) -> str:
        self.verdicts.refresh()
        return csv_of(self.suite, self.verdicts.everything(), self.classes)


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3g}"
