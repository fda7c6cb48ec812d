"""The record of a repair, as it is kept on disk and printed."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass

from operant.formatting import percent
from operant.retrain import ArmRecord, Repaired
from operant.retrain.repaired import ORIGINAL

WIDTH = 100  # columns of what is printed


@dataclass(frozen=True, kw_only=True)
class RepairRecord:
    """The result of `operant repair` without the weights, which are in ``model.safetensors``.

    Attributes:
        kept: name of the arm that the model comes from; ``"original model"`` if nothing was kept.
        mix: share of the arm's weights in the model, the rest being the original's.
        reason: why, in a sentence.
        arms: what became of each arm.
        judges: number of judge labels.
        judge_names: the inputs that judged; a bound must not use their labels.
        taught: number of teaching labels.
        learning_rate: that the arms were trained with.
        clean: clean accuracy of the original model.
        unexplained: share of the difference between training and field inputs that conditions leave.
        notes: what was left out or reused, and why.
    """

    kept: str
    mix: float
    reason: str
    arms: tuple[ArmRecord, ...]
    judges: int
    judge_names: tuple[str, ...]
    taught: int
    learning_rate: float
    clean: float
    unexplained: float
    notes: tuple[str, ...]

    @staticmethod
    def of(
        done: Repaired,
        *,
        judge_names: tuple[str, ...],
        taught: int,
        clean: float,
        unexplained: float,
        notes: tuple[str, ...],
    ) -> RepairRecord:
        """The record of a finished repair."""
        return RepairRecord(
            kept=done.kept,
            mix=done.mix,
            reason=done.reason,
            arms=done.arms,
            judges=done.judges,
            judge_names=judge_names,
            taught=taught,
            learning_rate=done.learning_rate,
            clean=clean,
            unexplained=unexplained,
            notes=notes,
        )

    @property
    def changed(self) -> bool:
        """Whether the model differs from the original."""
        return self.kept != ORIGINAL

    def __str__(self) -> str:
        labels = f"{self.taught} labels teach, {self.judges} judge"
        before = f"the original model's clean accuracy is {percent(self.clean)}"
        reason = f"{self.reason[:1].upper()}{self.reason[1:]}."
        return "\n".join([f"{labels}; {before}.", *self._table(), textwrap.fill(reason, WIDTH)])

    def _table(self) -> list[str]:
        """One row per arm, and its verdict below: beside it, lines would be too long."""
        width = max(len(arm.name) for arm in self.arms)
        judged = "   Brier  gain over original" if self.judges else ""
        rows = [f"{'arm':<{width}}  trained  CPU s    clean{judged}"]
        for a in self.arms:
            scores = f"  {a.brier:6.4f}  {a.gain:+.4f} ± {a.gain_error:.4f}" if math.isfinite(a.brier) else ""
            clean = f"{100 * a.clean:>5.1f} %" if math.isfinite(a.clean) else ""
            rows.append(f"{a.name:<{width}}  {100 * a.trained:>5.0f} %  {a.seconds:>5.0f}  {clean}{scores}".rstrip())
            rows += textwrap.wrap(a.verdict, WIDTH, initial_indent="  ", subsequent_indent="  ")
        return rows
