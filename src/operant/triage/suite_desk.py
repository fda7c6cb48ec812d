"""The desk for the cases of a suite: ordered and filtered rows, with their verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from operant.data.class_texts import class_name
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
from operant.suite.verdicts import VERDICTS
from operant.triage.agreement import agreements
from operant.triage.desk import NotFound, RequestFields, RowLists, Rows
from operant.triage.export import csv_of
from operant.triage.sampling import SamplePlan, plan_from_log, ranked_rows, sample_rows, share_of
from operant.triage.verdicts import VerdictStore, checked_name
from operant.validation import check_one_of

FILTERS = ("all", "todo", "done", *VERDICTS, "differ")
LEADING_COLUMNS = ("naturalness", "mass")  # shown before other columns
VERDICT_COLUMNS = ("verdict", "verdict_by", "verdict_at", "tags")
MAX_OFFERED_TAGS = 200


class SuiteDesk:
    """A desk on which people call a suite's cases valid, invalid or unsure; arguments as in `open_desk`."""

    def __init__(
        self,
        path: str | Path,
        *,
        plan: SamplePlan | None = None,
        classes: Sequence[str] = (),
        bounds: tuple[float, float] | None = None,
        by: str = "me",
        blind: bool = False,
    ) -> None:
        self.path, self.blind = Path(path), blind
        self.suite, known = open_with_index(self.path)
        self.by, self.classes = checked_name(by, "name"), tuple(classes) or self.suite.classes
        self.pictured = is_picture(tuple(self.suite.rows.shape))
        self.bounds = range_of(self.suite, bounds)
        stored = None if plan is None else asdict(plan)
        self.verdicts = VerdictStore(self.path, self.suite, known, plan=stored)
        self.plan = plan_from_log(self.verdicts.plan)
        self._version = token_hex(4)  # so that browsers do not reuse another desk's pictures
        self._label, self._prediction = self.suite.label.numpy(), self.suite.prediction.numpy()
        self._seed_names = self.suite.seed_names
        self._orders: dict[str, Rows] = {}
        self._lists, self._lock = RowLists(), Lock()

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
            "rejected": [*self.suite.rejected, *self.verdicts.rejected()],
        }

    def _named(self, labels: Rows) -> list[tuple[int, str]]:
        return [(label, self.name_of(label)) for label in np.unique(labels).tolist()]

    def name_of(self, label: int) -> str:
        return class_name(label, self.classes)

    def _numeric(self) -> list[str]:
        return [name for name, values in self.suite.columns.items() if isinstance(values, Tensor)]

    def arrange(self, fields: RequestFields) -> dict[str, Any]:
        """Store a list of rows, to be requested in parts."""
        self.verdicts.refresh()
        by = self._person(fields)
        rows = self._order(fields.text("order", "sample"))
        rows = rows[self._shown(fields, by)[rows]]
        return self._lists.arranged(rows, self._mine(by)[rows] > 0)

    def _order(self, word: str) -> Rows:
        """Rows in an order, computed at the first request."""
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

    def _shown(self, fields: RequestFields, by: str) -> Any:
        """Which rows pass the filters."""
        kept = np.ones(len(self.suite), dtype=np.bool_)
        if (label := fields.optional_number("label")) is not None:
            kept &= self._label == label
        if (prediction := fields.optional_number("prediction")) is not None and not fields.flag("blind"):
            kept &= self._prediction == prediction
        if method := fields.text("method"):
            kept &= self.suite.method == method
        if tag := fields.text("tag"):
            mine = self._mine(by) > 0  # others' tags only count where this person has judged
            tagged = [s.row for s in self.verdicts.everything() if tag in s.tags and (s.by == by or mine[s.row])]
            kept &= np.isin(np.arange(len(kept)), tagged)
        return kept & self._judged(fields.text("show", "all"), by)

    def _judged(self, show: str, by: str) -> Any:
        check_one_of(FILTERS, show=show)
        mine = self._mine(by)
        if show == "differ":
            every = np.stack([mine, *self.verdicts.people().values()])
            return np.sum([(every == code).any(0) for code in (1, 2, 3)], axis=0) > 1
        if show in VERDICTS:
            return mine == 1 + VERDICTS.index(show)
        return {"all": mine >= 0, "todo": mine == 0, "done": mine > 0}[show]

    def _person(self, fields: RequestFields) -> str:
        return checked_name(fields.text("by", self.by), "name")

    def _mine(self, by: str) -> Any:
        return self.verdicts.codes.get(by, np.zeros(len(self.suite), dtype=np.int8))

    # Rows

    def rows(self, fields: RequestFields) -> dict[str, Any]:
        """Some rows of a list."""
        start, rows = self._lists.rows(fields)
        by, blind = self._person(fields), fields.flag("blind")
        return {"start": start, "rows": [self._row(row, by, blind) for row in rows]}

    def _row(self, row: int, by: str, blind: bool) -> dict[str, Any]:
        seed, case = pair_of(self.suite, row)
        return {
            "row": row,
            "label": self.name_of(int(self._label[row])),
            "prediction": None if blind else self.name_of(int(self._prediction[row])),
            "failing": None if blind else bool(self._label[row] != self._prediction[row]),
            "facts": self._facts(row, seed, case, blind),
            "changes": [] if self.pictured else changes_of(seed, case),
            "factor": factor_of(seed, case, self.bounds) if self.pictured else 1,
            **self._judgements(row, by),
        }

    def _facts(self, row: int, seed: Tensor, case: Tensor, blind: bool) -> list[tuple[str, str]]:
        """Values of a case's columns; in blind mode none that may reveal the model's prediction."""
        change = (case.double() - seed.double()).flatten()
        distances = {"L∞": float(change.abs().max()), "L2": float(change.norm())} if len(change) else {}
        first = [(name, self._cell(name, row)) for name in LEADING_COLUMNS if name in self.suite.columns]
        facts = [
            *first,
            *((name, _number(value)) for name, value in distances.items()),
            ("seed", self._seed_names[row]),
        ]
        if not blind:
            rest = [name for name in self.suite.columns if name not in (*LEADING_COLUMNS, *VERDICT_COLUMNS)]
            facts += [("method", str(self.suite.method[row])), *((name, self._cell(name, row)) for name in rest)]
        return [(name, text) for name, text in facts if text]

    def _cell(self, name: str, row: int) -> str:
        column = self.suite.columns[name]
        return _number(float(column[row])) if isinstance(column, Tensor) else str(column[row])

    def _judgements(self, row: int, by: str) -> dict[str, Any]:
        """A person's judgement of a case, and the others' once the person has judged it."""
        mine = self.verdicts.of(row, by)
        others = self.verdicts.others(row, by) if mine.verdict else []
        return {
            "verdict": mine.verdict,
            "tags": list(mine.tags),
            "others": [{"by": other.by, "verdict": other.verdict, "tags": list(other.tags)} for other in others],
        }

    def mark(self, fields: RequestFields) -> dict[str, Any]:
        """Record a verdict; it is on disk when this returns."""
        by = self._person(fields)
        marked = self.verdicts.mark(fields.number("row"), by, fields.text("verdict"), fields.words("tags"))
        return {"row": marked.row, **self._judgements(marked.row, by)}

    def undo(self, fields: RequestFields) -> dict[str, Any]:
        """Undo a person's last step."""
        by = self._person(fields)
        restored = self.verdicts.undo(by)
        return {"row": None} if restored is None else {"row": restored.row, **self._judgements(restored.row, by)}

    def state(self, fields: RequestFields) -> dict[str, Any]:
        """Counts, the share of valid cases, and the agreement between people."""
        self.verdicts.refresh()
        by = self._person(fields)
        codes = self.verdicts.consensus_codes()
        people = {name: int((c > 0).sum()) for name, c in sorted(self.verdicts.people().items())}
        names = tuple(name for name, n in people.items() if n)
        share = share_of(
            self.suite, self.plan, codes > 0, codes == 1, names,
            first_plan=self.verdicts.first_plan, rows=self._order("sample"),
        )  # fmt: skip
        mine = self._mine(by)
        return {
            "mine": {verdict: int((mine == 1 + i).sum()) for i, verdict in enumerate(VERDICTS)},
            "people": people,
            "share": {
                **asdict(share), "share": share.share if share.judged else None, "finished": share.finished,
            },
            "agreement": [
                {
                    "people": pair.people, "both": pair.both, "same": pair.same,
                    "kappa": None if math.isnan(pair.kappa) else pair.kappa,
                }
                for pair in agreements(self.verdicts.people())
            ],
            "tags": self.verdicts.known_tags()[:MAX_OFFERED_TAGS],
        }  # fmt: skip

    def picture(self, row: int, what: str, factor: int) -> bytes:
        if not self.pictured or what not in ROW_VIEWS or not 0 <= row < len(self.suite):
            raise NotFound("there is no such picture")
        return draw_row(self.suite, row, what, self.bounds, factor)

    def table(self) -> str:
        self.verdicts.refresh()
        return csv_of(self.suite, self.verdicts.everything(), self.classes)


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3g}"
