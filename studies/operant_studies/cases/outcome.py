"""The results of the study, read from its finished steps."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scipy.stats import ttest_1samp

from operant.measure.judge import LEVEL
from operant_studies.cases.judging import FreshRejects, KindJudged, ShownCases, fresh_steps, kind_step, shown_steps
from operant_studies.cases.ranking import MOVES, RISK, MoveRanked, Ranked, RiskCost, cost_steps, move_step
from operant_studies.cases.rivals import RIVALS
from operant_studies.cases.selection import Compared, checkpoint_step
from operant_studies.cases.settings import ESTIMATED, TRUE, CasesSetting, Selection
from operant_studies.cases.unit import Known, steps_of
from operant_studies.field.settings import FieldCase
from operant_studies.operational_fuzz.sheets import fingerprint
from operant_studies.shared import HELD, NOT_DECIDED, NOT_HELD, Mean, Steps, mean

READ_FILE = "labels.json"
"""What a reader of the sheets found: ``{"zipf": {"sheet": "0a1b2c3d", "right": 97}}``."""
REJECTS_P = 0.01  # below which too many rejects are no chance


@dataclass(frozen=True)
class Outcome:
    """The whole study."""

    setting: CasesSetting
    out: Path

    @property
    def cases(self) -> tuple[FieldCase, ...]:
        return self.setting.inputs.cases

    # The judge

    @cached_property
    def judged(self) -> dict[str, dict[str, list[KindJudged]]]:
        """By field and kind, one per seed."""
        return {name: self._kinds(self.setting.case(name)) for name in self.setting.judged}

    def _kinds(self, case: FieldCase) -> dict[str, list[KindJudged]]:
        steps = [steps_of(self.out, case, seed) for seed in self.setting.judge_seeds]
        found = {kind: [s.load(kind_step(kind), KindJudged) for s in steps] for kind in self.setting.kinds}
        return {kind: [j for j in each if j is not None] for kind, each in found.items() if any(each)}

    def accepted(self, name: str, kind: str, by: str = "judge") -> Mean:
        """Share of a kind that is accepted, by the judge or by the scores."""
        return mean(getattr(each, by) for each in self.judged[name][kind])

    @cached_property
    def rejects(self) -> dict[str, list[FreshRejects]]:
        """By field, one per fit."""
        steps = {name: fresh_steps(self.out, self.setting.case(name)) for name in self.setting.fitted}
        return {n: [s.read(f"fit-{i}", FreshRejects) for i in range(self.setting.fits)] for n, s in steps.items()}

    def shown(self, name: str) -> ShownCases:
        return shown_steps(self.out).read(name, ShownCases)

    def right_labels(self, name: str) -> tuple[int, int] | None:
        """Right labels on a sheet, and cases on it; None if nobody has read this sheet."""
        path, cases = self.out / READ_FILE, self.shown(name).cases
        read = json.loads(path.read_bytes()).get(name) if path.exists() else None
        if read is None or not len(cases) or read["sheet"] != fingerprint(cases):
            return None
        return int(read["right"]), len(cases)

    # The risk map

    @cached_property
    def ranked(self) -> dict[str, list[Ranked]]:
        """By field, one per seed."""
        return {c.name: [self._steps(c, s).read("ranked", Ranked) for s in self.setting.seeds] for c in self.cases}

    @cached_property
    def known(self) -> dict[str, list[Known]]:
        return {c.name: [self._steps(c, s).read("known", Known) for s in self.setting.seeds] for c in self.cases}

    @cached_property
    def moves(self) -> dict[str, dict[str, list[MoveRanked]]]:
        """By field and move, one per seed."""
        seeds = self.setting.move_seeds
        return {
            c.name: {
                move: [self._steps(c, s).read(move_step(i), MoveRanked) for s in seeds] for i, move in enumerate(MOVES)
            }
            for c in self.cases
        }

    def gain(self, name: str, rival: str, *, ten: bool = False) -> Mean:
        """Lift of the risk map minus that of a rival, paired by seed."""
        lifts = [r.lift10 if ten else r.lift5 for r in self.ranked[name]]
        return mean(each[RISK] - each[rival] for each in lifts)

    def best_rival(self, name: str) -> str:
        """The rival with the largest mean lift at 5 %, as known afterwards."""
        return max(RIVALS, key=lambda rival: mean(r.lift5[rival] for r in self.ranked[name]).value)

    def ratio(self, name: str, ranking: str) -> Mean:
        """How much oftener riskier inputs fail within class and margin; infinite ones count as the largest finite."""
        values = [r.ratio[ranking] for r in self.ranked[name]]
        finite = [v for v in values if math.isfinite(v)]
        return mean(min(v, max(finite, default=1.0)) if not math.isnan(v) else 1.0 for v in values)

    @cached_property
    def cost(self) -> RiskCost:
        return cost_steps(self.out).read("risk", RiskCost)

    # Models without labels

    def compared(self, selection: Selection) -> list[list[Compared]]:
        """Checkpoints by seed."""
        steps = [self._steps(self.setting.case(selection.case), seed) for seed in selection.seeds]
        numbers = range(len(selection.checkpoints))
        return [[s.read(checkpoint_step(i), Compared) for i in numbers] for s in steps]

    def _steps(self, case: FieldCase, seed: int) -> Steps:
        return steps_of(self.out, case, seed)


def first_kind(kinds: dict[str, list[KindJudged]]) -> str:
    """The kind that should be accepted: the true recipe, or the estimated one if no truth is known."""
    return TRUE if TRUE in kinds else ESTIMATED


def together(verdicts: Sequence[str]) -> str:
    """Held if all are, not held if one is not.

    >>> together(["held", "not decided"])
    'not decided'
    """
    if NOT_HELD in verdicts:
        return NOT_HELD
    return HELD if verdicts and set(verdicts) == {HELD} else NOT_DECIDED


def too_many_rejects(fits: Sequence[FreshRejects]) -> float:
    """P-value against a mean rate of at most 5 %: a one-sided t-test of the rates of independent fits.

    Inputs of one fit share its calibration, so that a test of single inputs would be too sure. Fits share no image.
    """
    rates = [fit.rejected / fit.n for fit in fits]
    if len(set(rates)) < 2:
        return float(mean(rates).value <= LEVEL)
    return float(ttest_1samp(rates, LEVEL, alternative="greater").pvalue)
