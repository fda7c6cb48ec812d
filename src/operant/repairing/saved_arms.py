"""An engine that keeps the arms of a race, so that an interrupted race resumes and decides as it would have done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from operant.activity import activity
from operant.execution.engines import Engine, closing_results
from operant.execution.run_folder import RunFolder, require_existing
from operant.model import Classifier
from operant.retrain.race import Candidate

RACE = "race"  # folder of the arms


@dataclass(frozen=True, kw_only=True)
class ArmState:
    """What became of an arm, without its weights."""

    name: str
    trained: float
    seconds: float
    problem: str
    has_model: bool


@dataclass(kw_only=True, eq=False)
class SavedArms:
    """An engine for `operant.retrain.repair` that trains every arm once, also if the race is interrupted.

    Which arms train to the end depends on how well they do after a part of their training. Read again, these parts
    must be the same, although the state of the training on disk may have advanced since.

    Args:
        run: open folder of the run.
        model: the original model.
        engine: trains the arms.
        calls: of this engine so far; races call it in the same order whenever they are repeated.
    """

    run: RunFolder
    model: Classifier
    engine: Engine
    calls: int = field(default=0, init=False)

    def __call__(self, work: Callable[[Any], Any], items: Iterable[Any], /) -> Iterator[tuple[int, Any]]:
        arms = list(items)
        names = [f"{RACE}/part-{self.calls}-arm-{number}" for number in range(len(arms))]
        self.calls += 1
        missing = [number for number, name in enumerate(names) if not self.run.has(name)]
        with activity("training arms of the race", len(arms), unit="arms") as shown:
            shown.reach(len(arms) - len(missing))
            with closing_results(self.engine(work, [arms[number] for number in missing])) as results:
                for place, candidate in results:
                    self._save(names[missing[place]], candidate)
                    shown.advance()
        yield from ((number, self._load(name)) for number, name in enumerate(names))

    def _save(self, name: str, candidate: Candidate) -> None:
        """Keep the weights, then the state, which says that both are there."""
        if (model := candidate.model) is not None:
            self.run.weights(f"{name}-model", self.model, lambda: model)
        state = ArmState(
            name=candidate.name,
            trained=candidate.trained,
            seconds=candidate.seconds,
            problem=candidate.problem,
            has_model=candidate.model is not None,
        )
        self.run.step(name, ArmState, lambda: state)

    def _load(self, name: str) -> Candidate:
        lost = require_existing(self.run.path / RACE)
        state = self.run.step(name, ArmState, lost)
        model = self.run.weights(f"{name}-model", self.model, lost) if state.has_model else None
        return Candidate(
            name=state.name, model=model, trained=state.trained, seconds=state.seconds, problem=state.problem
        )
