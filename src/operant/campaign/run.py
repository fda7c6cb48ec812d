"""The campaign loop: rounds of five steps in a folder, until the requirement is met or the budget is spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from operant.activity import activity
from operant.campaign.assessing import SequentialAssessment
from operant.campaign.choosers import risk_score, risk_weighted_seeds
from operant.campaign.feedback import count_by_move, count_first_moves, search_shares
from operant.campaign.field import FieldState
from operant.campaign.judging import JudgedMoves, are_judged, judged_moves
from operant.campaign.labels import FieldLabels
from operant.campaign.observers import DescriptionOfField, ObservedRound, observe_round
from operant.campaign.observers.field_description import campaign_lines
from operant.campaign.records import CampaignResult, MoveTest, Round, SearchShares, SeedRows, StopReason, seed_rows
from operant.campaign.reserving import TrainingParts
from operant.campaign.risk import CampaignRisk, unlike_field, with_risk
from operant.campaign.stopping import latest_assessment, stop_reason, stop_record
from operant.data import Samples
from operant.execution.round_state import RoundState
from operant.formatting import at_least, percent
from operant.generate import OperationalFuzz
from operant.model import Classifier, Finding
from operant.profile import FieldDescription, FittedConditions, RiskMap
from operant.retrain import FinetuneRecord, brier_monitor
from operant.suite import Suite
from operant.types import Move

NO_ROWS = torch.empty(0, dtype=torch.int64)

if TYPE_CHECKING:
    from operant.campaign.campaign import Campaign


class CampaignRun:
    """A campaign in its folder.

    Attributes:
        state: the current model and the cases it has learned from.
        field: field inputs and the profile learned from them.
        labels: of field inputs, as far as they were bought.
        conditions: estimated before the campaign, for observers; None if they were not.
        risk: draws cases of the field's conditions; None if there are none to draw from.
        rounds: finished so far.
        judged: the moves that are searched with.
    """

    judged: JudgedMoves

    def __init__(
        self,
        options: Campaign,
        moves: dict[str, Move],
        train: TrainingParts,
        *,
        field: FieldState,
        state: RoundState,
        labels: FieldLabels,
        conditions: FittedConditions | None = None,
        risk: CampaignRisk | None = None,
    ) -> None:
        self.options, self.moves, self.parts, self.train = options, moves, train, train.every
        self.field, self.state, self.labels, self.conditions, self.risk = field, state, labels, conditions, risk
        self.rounds: list[Round] = []

    def run(self) -> CampaignResult:
        """The loop."""
        self.labels.check_answers()
        self.state.folder.stopwatch.start_is_over()
        number, stop = 0, None
        while stop is None or self.state.has_round(number):  # a smaller budget does not undo finished rounds
            self.state.begin(number)
            before = self.state.model
            record = self._round(number)
            with self.state.timed("observers"):
                self._observe(before, record)
            self.rounds.append(record)
            described = self._described()
            self._report("round", record=record, assessment=latest_assessment(self.rounds), **described)
            number, stop = number + 1, self._stop_reason()
        return self._result(stop)

    def _round(self, number: int) -> Round:
        """One round of five steps; each is on disk before the next begins, and a finished round is only read."""
        self._learn_profile(number)  # step 1
        if self.state.has_round(number):
            return self._resume_round()
        self.state.folder.drop("stop")  # the campaign continues after an earlier end
        if number == 0 or self.field.drift:  # a new field: first assess the model in it
            return self._finish_round(assessment=self._assess_in_new_field())
        self.judged = self._judge_moves()  # before the first search in a field
        self.field.risk = self._fit_risk()
        with self.state.timed("seeds"):
            seeds, shares = self._choose_seeds()  # step 2
        failures, operational = self._generate(seeds, shares)  # step 3
        chosen, retraining = self._retrain(operational)  # step 4
        assessment = self._assess(retraining)  # step 5
        return self._finish_round(
            decisions=shares.decisions,
            tests=self.judged.tests,
            attempted=failures.attempted,
            found=len(failures),
            operational=len(operational),
            moves=shares.moves,
            by_move=count_by_move(operational, self.moves),
            first=count_first_moves(operational, self.moves),
            chosen=len(chosen),
            retraining=retraining,
            assessment=assessment,
        )

    @activity("finishing the round")
    def _finish_round(self, **values: Any) -> Round:
        state = self.state
        record = Round(
            number=state.number,
            arrived=self.field.size,
            drift=self.field.drift,
            cases=len(state.learned),
            clean=state.model.accuracy(state.clean),
            **values,
        )
        return state.step("round", Round, lambda: record)

    def _resume_round(self) -> Round:
        record = self.state.restore_round(Round)
        self.labels.add_bought(record.assessment.bought if record.assessment else 0)
        return record

    # Step 1: profile

    def _learn_profile(self, number: int) -> None:
        self._report("profile")
        self.field.update(number)
        if self.field.drift:
            self.labels.drop_labelled()

    # Step 2: seeds

    def _fit_risk(self) -> RiskMap | None:
        """The risk map of the current model; None without conditions. Conditions that a judge rejects still rank."""
        if self.risk is None:
            return None
        tests, new = self.judged.tests, not self.risk.drawn
        with self.state.timed("risk"):
            found = self.risk.begin(self.field)
        doubts = self._risk_doubts(tests)
        if new or (doubts and all(r.tests != tests for r in self.rounds)):  # another field may be judged otherwise
            self.state.report("risk", 1, 1, findings=(*self.risk.findings, *found.findings, *doubts))
        return found

    def _risk_doubts(self, tests: Sequence[MoveTest]) -> tuple[Finding, ...]:
        """A finding if a judge has found that draws of the risk map's conditions do not look like field inputs."""
        if self.risk is None:
            return ()
        dropped = [self.moves[test.move](naturalness=self.field.naturalness) for test in tests if not test.searched]
        rejected = any(getattr(fuzz, "recipe", None) == self.risk.recipe for fuzz in dropped)
        return (unlike_field(),) if rejected else ()

    @activity("choosing seeds")
    def _choose_seeds(self) -> tuple[Samples, SearchShares]:
        """Training inputs to search from, which the model classifies correctly, and how the search is spread."""
        state = self.state
        shares = state.step("shares", SearchShares, self._search_shares)
        if shares.decisions:
            state.report("decide", 1, 1, decisions=shares.decisions)
        return state.step("seeds", SeedRows, partial(self._draw_seeds, shares)).samples(self.train), shares

    def _draw_seeds(self, shares: SearchShares) -> SeedRows:
        state, choose = self.state, self.options.seed_chooser
        right = state.model.correct(self.parts.search)
        if len(right) == 0:
            raise ValueError("the model gets every training input wrong; check labels and normalisation with doctor()")
        n, generator = self.options.seeds_per_round, state.spawn("seeds")
        chosen = choose(state.model, right, n, field=self.field, shares=shares, generator=generator)
        by = "risk map" if risk_score(self.field.risk) is self.field.risk else "margin"
        return replace(seed_rows(chosen, self.train), by=by if choose is risk_weighted_seeds else "")

    def _search_shares(self) -> SearchShares:
        return search_shares(
            self.state.model,
            self.train,
            field=self.field,
            labelled=self.labels.labelled,
            moves=list(self.judged.moves or self.moves),
            rounds=self.rounds,
            feedback=self.options.feedback,
        )

    # Step 3: generate

    def _judge_moves(self) -> JudgedMoves:
        """Which moves make cases like field inputs; judges are fitted once per field."""
        state, draws = self.state, self.options.judge_draws
        new = bool(draws) and not are_judged(self.moves, self.field)
        if new:
            state.report("judge", 0, 1)
        judged = judged_moves(self.moves, state.model, self.parts, field=self.field, draws=draws)
        if new:
            state.report("judge", 1, 1, tests=judged.tests)
        return judged

    def _generate(self, seeds: Samples, shares: SearchShares) -> tuple[Suite, Suite]:
        """All failures found around the seeds, and the operational ones among them; none without a usable move."""
        judged = self.judged
        if not judged.moves:
            none = Suite.of(seeds.x[:0], seeds=seeds[:0], origin=NO_ROWS, prediction=NO_ROWS, method="none")
            return none, none
        given = {name: shares.moves[name] for name in judged.moves}
        fuzz = OperationalFuzz(
            moves=judged.moves,
            naturalness=judged.naturalness,
            profile=self.field.profile,
            shares=given if len(given) > 1 else {},  # a single move needs no shares
            level=self.options.level,
            mass_quantile=self.options.mass_quantile,
        )
        found = self.state.generate(fuzz, seeds, chunk=self.options.chunk)
        return found, self._operational(found)

    def _operational(self, found: Suite) -> Suite:
        return found.operational(self.options.level, self.options.mass_quantile) if len(found) else found

    # Step 4: retrain

    def _retrain(self, failures: Suite) -> tuple[Suite, FinetuneRecord | None]:
        """The cases chosen to learn from, and the record of the retraining; None if there are no cases."""
        labelled = self.labels.labelled
        chosen = self.state.choose_cases(partial(self._choose_cases, failures))
        if len(chosen) == 0:
            return chosen, None
        monitor = brier_monitor(labelled) if len(labelled) else None
        generator = self.state.spawn("retrain")
        return chosen, self.state.retrain(self.options.retrainer, self.train, monitor=monitor, generator=generator)

    @activity("choosing cases to learn from")
    def _choose_cases(self, failures: Suite) -> Suite:
        state, profile = self.state, self.field.profile
        n = min(len(failures), self.options.cases_per_round, self.options.cases - len(state.learned))
        if n == 0:
            none: Suite = failures[:0]
            return none
        choose, generator = self.options.case_chooser, state.spawn("select")
        rows = choose(state.model, failures, n, profile=profile, learned=state.learned, generator=generator)
        chosen: Suite = failures[rows.sort().values]
        return with_risk(chosen, state.model, self.field.risk)

    # Step 5: assess

    def _assess(self, retraining: FinetuneRecord | None) -> SequentialAssessment | None:
        """A new bound for a changed model; for an unchanged one more labels, if they can show anything."""
        changed = retraining is not None and retraining.changed
        rejected = retraining is not None and retraining.rejected_by_monitor
        budget = self.labels.budget(self.rounds, changed=changed, rejected_by_monitor=rejected)
        earlier = None if changed else latest_assessment(self.rounds)
        assessment = self.labels.assess(budget, self.rounds, earlier=earlier)
        return assessment if changed or assessment.bought else None

    def _assess_in_new_field(self) -> SequentialAssessment | None:
        """The first assessment of a model in a new field; None if the campaign is to stop when the field drifts."""
        if self.field.drift and self.options.when_drifted == "stop":
            return None
        budget = self.labels.budget(self.rounds, changed=True)
        return self.labels.assess(budget, self.rounds, earlier=None)

    # After a round

    def _observe(self, before: Classifier, record: Round) -> None:
        """Let observers record what the report needs."""
        state, bought = self.state, record.assessment.bought if record.assessment else 0
        known = self.labels.labelled

        @cache
        def load_failures() -> Suite | None:
            return self._operational(state.existing_cases("suite")) if record.operational else None

        seen = ObservedRound(
            record=record,
            before=before,
            after=state.model,
            labelled=known[len(known) - bought :],  # the newest are last
            train=self.train,
            clean=state.clean,
            field=self.field,
            spawn=state.spawn,
            load_failures=load_failures,
            conditions=self.conditions,
            known=known,
            risk=self._observed_risk(record),
            risk_doubts=self._risk_doubts(record.tests),
        )
        observe_round(seen, self.options.observers, state)

    def _observed_risk(self, record: Round) -> CampaignRisk | None:
        """The risk map's cases, from the round on that drew them; others only assess."""
        drew = any(r.number and not r.drift for r in (*self.rounds, record))  # the same on resume
        return self.risk if self.risk is not None and drew and self.risk.drawn else None

    def _described(self) -> dict[str, tuple[str, ...]]:
        """What is estimated without labels of a field that is new in this round, in sentences; it decides nothing."""
        state, name = self.state, DescriptionOfField.name
        if not self.field.profile_is_new or not state.folder.has(f"{state.name}/{name}"):
            return {}
        try:
            found = state.existing(name, FieldDescription)
        except ValueError:  # damaged, or of another version: a campaign does not depend on it
            return {}
        names = self.field.classes or found.classes
        return {"field": campaign_lines(replace(found, classes=names), self.options.requirement)}

    def _report(self, step: str, **details: object) -> None:
        number = self.state.number
        self.state.report(step, number, max(number, self.options.rounds), **details)

    def _stop_reason(self) -> StopReason | None:
        used = {"labels": len(self.labels.bought), "cases": len(self.state.learned)}
        return stop_reason(self.options, self.rounds, **used, unlabelled=self.labels.unlabelled)

    def _claim(self) -> str:
        confidence, requirement = self.options.confidence, self.options.requirement
        return f"with {at_least(confidence)} confidence over all rounds; required {percent(requirement)}"

    def _result(self, reason: StopReason) -> CampaignResult:
        stop = stop_record(self.options, reason, self.rounds, clean=len(self.state.clean))
        last = latest_assessment(self.rounds)
        self.state.folder.replace("stop", stop)
        return CampaignResult(
            model=self.state.model,
            met=stop.met,
            reason=f"{stop.sentence}: {last}, {self._claim()}. {stop.advice}".strip(),
            assessment=last,
            suite=Suite.concat(self.state.suites) if self.state.suites else None,
            rounds=tuple(self.rounds),
        )
