"""The turns of a campaign in its folder: seeds, generate, select, retrain, assess."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from operant.campaign.assessment import SequentialAssessment, assess_model, confidence_of, what_it_takes
from operant.campaign.choosing import Shares
from operant.campaign.feedback import Decision, allocate, told
from operant.campaign.field import FieldState
from operant.campaign.observers.defences import DefenceTrials, guards_of
from operant.campaign.records import Certainty, FieldMap, Insight, StopRecord, certainty_of, insight_of, map_of
from operant.campaign.result import CampaignResult, Round
from operant.data import Samples
from operant.execution.memory import in_batches, with_smaller_batches
from operant.execution.rounds import LabelBatch, RoundState
from operant.generate import OperationalFuzz
from operant.model import Classifier
from operant.retrain import FinetuneRecord, OnEpoch, Retrained, brier_monitor
from operant.suite import Suite
from operant.types import Labeller

if TYPE_CHECKING:
    from operant.campaign.campaign import Campaign

ROUND_SHARE = 2 / 3  # of the labels that are left, which a round may use up, unless it is the last
MAX_IDLE_ROUNDS = 2  # rounds in a row that change nothing, after which no round is thought to help


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How many labels an assessment buys."""

    fewest: int
    most: int


class CampaignRun:
    """A campaign in its folder.

    Attributes:
        loop: the model as it is now, and the cases it has learned from.
        labelled: inputs of the field as it is now whose labels were bought.
        bought: ids of all inputs whose labels were bought, also before the field drifted.
        rounds: that are finished.
    """

    def __init__(
        self, options: Campaign, view: FieldState, loop: RoundState, train: Samples, labeller: Labeller
    ) -> None:
        self.options, self.view, self.loop = options, view, loop
        self.train, self.labeller = train, labeller
        self.labelled = train[:0]
        self.bought = torch.empty(0, dtype=torch.int64)
        self.rounds: list[Round] = []

    def run(self) -> CampaignResult:
        number, reason = 0, ""
        while not reason or self._goes_on(number):  # what was finished with a larger budget still counts
            self.loop.begin(number)
            before = self.loop.model
            self.loop.tell("profile", number, max(number, self.options.rounds))
            self.view.arrive(number)
            if self.view.drifted:
                self.labelled = self.labelled[:0]
            done, finished = self.loop.turn(Round, partial(self._round, number))
            if finished and done.assessment:
                self._take_in(done.assessment.bought)
            self._keep_for_report(before, done)
            self.rounds.append(done)
            self.loop.tell(
                "round", number, max(number, self.options.rounds), round=str(done), assessed=str(self._latest)
            )
            number, reason = number + 1, self._ended(done)
        return self._delivered(reason)

    def _goes_on(self, number: int) -> bool:
        return self.loop.folder.has(f"round-{number:03d}/round")

    def _keep_for_report(self, before: Classifier, done: Round) -> None:
        """Where training inputs lie in the field, and where the model fails."""
        folder, place = self.loop.folder, self.loop.place
        if folder.has(f"{place}/profile"):
            folder.step(f"{place}/map", FieldMap, partial(map_of, self.view.profile, self.train))
        if done.assessment and done.assessment.bought:
            labelled = self.labelled[len(self.labelled) - done.assessment.bought :]
            look = partial(insight_of, before, self.loop.model, labelled, self.loop.guard)
            place_in = {"profile": self.view.profile, "centres": self.view.centres}
            folder.step(f"{place}/insight", Insight, partial(look, **place_in))

    # One round

    def _round(self, number: int) -> Round:
        self.loop.folder.drop("ended")
        if number == 0 or self.view.drifted:  # another field: first of all, how reliable is the model in it?
            stop = number > 0 and self.options.when_drifted == "stop"
            return self._told(drifted=self.view.drifted, assessment=None if stop else self._assess(changed=True))
        shares = self.loop.folder.step(f"{self.loop.place}/shares", Shares, self._shares)
        self._tell_decisions(shares)
        found = self._generate(shares)
        good = found.operational(self.options.level, self.options.mass_quantile) if len(found) else found
        if len(good):
            self.loop.folder.step(f"{self.loop.place}/patterns", Certainty, partial(self._certainty, good))
            self.loop.folder.step(f"{self.loop.place}/defences", DefenceTrials, partial(self._guards, good))
        chosen = self.loop.choose(partial(self._chosen, good))
        record = self._retrain() if len(chosen) else None
        return self._told(
            decisions=shares.decisions,
            attempted=found.attempted,
            found=len(found),
            operational=len(good),
            moves=shares.moves,
            by_move=self._count(good),
            first=self._first(good),
            chosen=len(chosen),
            retraining=record,
            assessment=self._assess(
                changed=record is not None and record.best_epoch > 0,
                refused=record is not None and record.refused_by_monitor,
            ),
        )

    def _count(self, good: Suite) -> dict[str, int]:
        moves = good["move"].tolist() if len(good) else []
        return {name: moves.count(name) for name in self.options.moves}

    def _first(self, good: Suite) -> dict[str, int]:
        """Seeds that have an operational failure of the move that was tried on them first."""
        if len(good) == 0:
            return dict.fromkeys(self.options.moves, 0)
        first = good[good["turn"] == 0]
        moves = np.asarray(first["move"])
        return {name: len(first.seed[torch.from_numpy(moves == name)].unique()) for name in self.options.moves}

    def _told(self, **what: Any) -> Round:
        loop = self.loop
        accuracy = loop.model.accuracy(loop.guard)
        return Round(number=loop.number, arrived=self.view.known, cases=len(loop.learned), clean=accuracy, **what)

    def _tell_decisions(self, shares: Shares) -> None:
        if shares.decisions:
            self.loop.tell("decide", 1, 1, **{d.what: str(d) for d in shares.decisions})

    # Where the seeds of a round come from

    def _shares(self) -> Shares:
        """As the field is spread or, with feedback, more of what fails and of what finds failures."""
        mass = self.view.profile.weights(self.train)
        by_class = torch.bincount(self.train.labels, mass, minlength=self.loop.model.classes(self.train.x[:1]))
        by_cell = torch.bincount(self.view.cells(self.train.x), mass, minlength=len(self.view.centres))
        names = list(self.options.moves)
        equal = torch.full((len(names),), 1 / len(names), dtype=torch.float64)
        if not self.options.feedback or len(self.labelled) == 0:
            return self._spread(by_class, by_cell, equal)
        failing = self.labelled[self.loop.model.predict(self.labelled.x).cpu() != self.labelled.labels.cpu()]
        classes = allocate(torch.bincount(failing.labels, minlength=len(by_class)), by_class)
        cells = allocate(torch.bincount(self.view.cells(failing.x), minlength=len(by_cell)), by_cell)
        yields = torch.tensor([self._yield(name) for name in names])
        moves = allocate(yields, equal)
        why = f"{len(failing)} of {len(self.labelled)} labelled field inputs fail"
        finds = ", ".join(f"{n} of {y:.0f}" for n, y in zip(names, yields.tolist(), strict=True))
        decisions = [
            _decision("seeds by class", by_class, classes, why),
            _decision("seeds by cell", by_cell, cells, why),
        ]
        if bool(yields.any()):
            why = f"tried first on 100 seeds, each found operational failures: {finds}"
            decisions.append(_decision("moves", equal, moves, why, names))
        return self._spread(classes, cells, moves, *decisions)

    def _spread(self, classes: Tensor, cells: Tensor, moves: Tensor, *decisions: Decision) -> Shares:
        return Shares(
            classes=tuple(classes.tolist()),
            cells=tuple(cells.tolist()),
            moves=dict(zip(self.options.moves, moves.tolist(), strict=True)),
            decisions=decisions,
        )

    def _yield(self, name: str) -> float:
        """Of a hundred seeds on which a move was the first to be tried, those it led to an operational failure.

        Only since the field last changed; and only where it came first, since what is left for later moves depends on
        how often they are.
        """
        drifts = [i for i, r in enumerate(self.rounds) if r.drifted]
        since = self.rounds[drifts[-1] :] if drifts else self.rounds
        tried = sum(r.attempted * r.moves.get(name, 0.0) for r in since)
        return 100 * sum(r.first.get(name, 0) for r in since) / tried if tried else 0.0

    def _seeds(self, shares: Shares) -> Samples:
        """Training inputs that the model gets right."""
        right = self.loop.model.correct(self.train)
        if len(right) == 0:
            raise ValueError("the model gets no training input right; check labels and normalisation with doctor()")
        return self.options.seeds(
            self.loop.model,
            right,
            self.options.seeds_per_round,
            view=self.view,
            shares=shares,
            generator=self.loop.spawn("seeds"),
        )

    # Cases, and what is learned from them

    def _generate(self, shares: Shares) -> Suite:
        fuzz = OperationalFuzz(
            moves={name: make(naturalness=self.view.naturalness) for name, make in self.options.moves.items()},
            naturalness=self.view.naturalness,
            profile=self.view.profile,
            shares=shares.moves if len(shares.moves) > 1 else {},
            level=self.options.level,
            mass_quantile=self.options.mass_quantile,
        )
        return self.loop.generate(fuzz, self._seeds(shares), chunk=self.options.chunk)

    def _certainty(self, good: Suite) -> Certainty:
        """How sure the model was of its failures, before it learns from them; for the report."""

        def look(rows: int) -> Certainty:
            return certainty_of(in_batches(self.loop.model, rows), good, generator=self.loop.spawn("patterns"))

        return with_smaller_batches(look, self.loop.model.batch_size)[0]

    def _guards(self, good: Suite) -> DefenceTrials:
        """What cheap defences would have stopped; for the report."""

        def look(rows: int) -> DefenceTrials:
            model = in_batches(self.loop.model, rows)
            return guards_of(model, good, self.loop.guard, generator=self.loop.spawn("defences"))

        return with_smaller_batches(look, self.loop.model.batch_size)[0]

    def _chosen(self, good: Suite) -> Suite:
        n = min(len(good), self.options.cases_per_round, self.options.cases - len(self.loop.learned))
        if n == 0:
            none: Suite = good[:0]
            return none
        rows = self.options.choose(
            self.loop.model,
            good,
            n,
            profile=self.view.profile,
            learned=self.loop.learned,
            generator=self.loop.spawn("select"),
        )
        kept: Suite = good[rows.sort().values]
        return kept

    def _retrain(self) -> FinetuneRecord:
        def work(max_drop: float, checkpoint: Path, on_epoch: OnEpoch) -> Retrained:
            return replace(self.options.finetune, progress=False)(
                self.loop.model,
                self.train,
                self.loop.learned,
                validation=self.loop.guard,
                monitor=brier_monitor(self.labelled) if len(self.labelled) else None,
                max_drop=max_drop,
                generator=self.loop.spawn("retrain"),
                checkpoint=checkpoint,
                on_epoch=on_epoch,
            )

        return self.loop.retrain(FinetuneRecord, self.options.finetune.epochs, work)

    # Assess

    def _assess(self, *, changed: bool, refused: bool = False) -> SequentialAssessment | None:
        """Of a model that changed, a bound of its own; of one that did not, more labels if they can show anything.

        Where the monitor refused what was learned, labels are bought all the same: by so few it may have been wrong,
        and the next round is judged by more.
        """
        fresh = self._fresh()
        left = min(self.options.labels - len(self.bought), len(fresh))
        budget = self.loop.folder.step(
            f"{self.loop.place}/budget", Budget, partial(self._budget, left, changed=changed, refused=refused)
        )
        self.loop.tell("assess", 0, budget.most)
        known = None if changed else self._latest
        earlier = sum(r.assessment is not None and not r.assessment.before for r in self.rounds)
        assessed = assess_model(
            self.loop.answers(fresh[: budget.most], chunk=self.options.chunk),
            fresh,
            partial(self._labels, budget.most),
            requirement=self.options.requirement,
            confidence=known.confidence if known else confidence_of(earlier, self.options.confidence),
            batch=self.options.label_batch,
            fewest=budget.fewest,
            most=budget.most,
            known=known,
        )
        if known and not assessed.bought:
            return None
        self._take_in(assessed.bought)
        self.loop.tell("assess", assessed.bought, assessed.bought, assessed=str(assessed))
        return assessed

    def _fresh(self) -> Samples:
        pool = self.view.pool
        fresh = pool[torch.randperm(len(pool), generator=self.loop.spawn("assessment"))]
        return fresh[~torch.isin(fresh.ids, self.bought)]

    def _budget(self, left: int, *, changed: bool, refused: bool) -> Budget:
        """Labels of this round's assessment, settled when it begins: the campaign's budget may change in between."""
        options, quiet = self.options, 0 if changed else self._quiet + 1
        last = self.loop.number == options.rounds or len(self.loop.learned) >= options.cases or quiet >= MAX_IDLE_ROUNDS
        fewest = max(1, min(50, options.labels // (options.rounds + 1))) if changed or refused else 0
        return Budget(fewest=fewest, most=left if last else math.ceil(left * ROUND_SHARE))

    def _labels(self, most: int, i: int, asked: Samples) -> Tensor:
        """The labels of batch i, bought once."""
        self.loop.tell("assess", i * self.options.label_batch, most)

        def ask() -> LabelBatch:
            told = self.labeller(Samples(asked.x, ids=asked.ids)).cpu()
            _check_labels(told, len(asked), self.loop.model.classes(asked.x[:1]))
            return LabelBatch(ids=asked.ids, labels=told)

        return self.loop.known(f"{self.loop.place}/labels-{i:03d}", asked, ask)

    def _take_in(self, labels: int) -> None:
        """The labels of this round: from now on they are monitor and feedback, and are not drawn again."""
        for i in range(math.ceil(labels / self.options.label_batch)):
            known = self.loop.folder.step(f"{self.loop.place}/labels-{i:03d}", LabelBatch, self.loop.gone)
            rows = self.view.pool.rows_of(known.ids)
            some = Samples(self.view.pool.x[rows], known.labels, known.ids)
            self.labelled = Samples.concat([self.labelled, some]) if len(self.labelled) else some
            self.bought = torch.cat([self.bought, known.ids])

    # The end

    def _ended(self, done: Round) -> str:
        """Why the campaign ends with this round; empty if it goes on."""
        options, number = self.options, done.number
        if done.drifted and options.when_drifted == "stop":
            return f"Stopped in round {number}, since the field has changed: {done.drifted.splitlines()[0]}"
        if self._latest.upper <= options.requirement:
            return f"The requirement was met after round {number}"
        if len(self.bought) >= options.labels:
            return f"All labels are spent after round {number}"
        if bool(torch.isin(self.view.pool.ids, self.bought).all()):
            return f"All field inputs are assessed after round {number}"
        if len(self.loop.learned) >= options.cases:
            return f"All cases are spent after round {number}"
        if self._quiet >= MAX_IDLE_ROUNDS:
            return f"Rounds {number - 1} and {number} changed nothing"
        return f"All rounds are spent after round {number}" if number >= options.rounds else ""

    @property
    def _quiet(self) -> int:
        """How many rounds in a row, up to the last one, changed nothing."""
        busy = [bool(r.changed or r.drifted or r.number == 0) for r in reversed(self.rounds)]
        return busy.index(True)

    @property
    def _latest(self) -> SequentialAssessment:
        return next(r.assessment for r in reversed(self.rounds) if r.assessment)

    @property
    def _obstacle(self) -> str:
        """Why the last round left the model as it was, and what could be done about it; empty if it did not."""
        last = self.rounds[-1]
        if self._quiet == 0:
            return ""
        if last.retraining is None:
            return "The last round found no operational failure: declare wider conditions, or larger radii."
        allowed = self.options.max_drop * len(self.loop.guard)
        few = f" Of {len(self.loop.guard)} clean samples {allowed:.0f} may be lost: give more, or a larger max_drop."
        return f"The last retraining was not kept: {last.retraining.reason}.{few if allowed < 5 else ''}"

    def _delivered(self, reason: str) -> CampaignResult:
        last, wanted = self._latest, self.options.requirement
        stopped = reason.startswith("Stopped")
        met = last.upper <= wanted and not stopped
        if stopped:
            advice = 'To go on, begin a new folder with the field as it is now, or with when_drifted="update".'
        else:
            more = (f"To meet it: {what_it_takes(last, wanted)}.", self._better_before(last), self._obstacle)
            advice = "" if met else " ".join(part for part in more if part)
        budget = {name: getattr(self.options, name) for name in ("rounds", "cases", "labels")}
        ended = StopRecord(met=met, why=f"{reason}.", advice=advice, last=self.rounds[-1].number, **budget)
        self.loop.folder.renew("ended", ended)
        return CampaignResult(
            model=self.loop.model,
            met=met,
            reason=f"{reason}: {last}; required {wanted:.2%}. {advice}".strip(),
            assessment=last,
            suite=Suite.concat(self.loop.suites) if self.loop.suites else None,
            rounds=tuple(self.rounds),
        )

    def _better_before(self, last: SequentialAssessment) -> str:
        """Says so where an earlier model of the present field has the smaller bound."""
        drifts = [r.number for r in self.rounds if r.drifted]
        since = [r for r in self.rounds if r.assessment and r.number >= (drifts[-1] if drifts else 0)]
        best = min(since, key=lambda r: r.assessment.upper if r.assessment else 1.0)
        other = any(r.changed for r in self.rounds[best.number + 1 :])
        if best.assessment is None or best.assessment.upper >= last.upper or not other:
            return ""
        return f"The smallest bound, {best.assessment.upper:.2%}, is that of the model after round {best.number}."


def _check_labels(told: Tensor, n: int, classes: int) -> None:
    whole = told.dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    if told.shape != (n,) or not whole or not bool(((told >= 0) & (told < classes)).all()):
        shape, some = tuple(told.shape), told.flatten()[:5].tolist()
        raise ValueError(
            f"labels must be {n} whole numbers from 0 to {classes - 1}, one for each input asked about, got "
            f"{told.dtype} of shape {shape}, beginning {some}; mend the labels and run again"
        )


def _decision(what: str, old: Tensor, new: Tensor, why: str, names: list[str] | None = None) -> Decision:
    names = names or [str(i) for i in range(len(old))]
    return Decision(what=what, before=told(old, names), after=told(new, names), why=why)
