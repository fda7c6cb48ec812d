"""The campaign: its options, and the call that runs or resumes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from operant.activity import activity
from operant.campaign.choosers import CaseChooser, SeedChooser, most_covering_cases, risk_weighted_seeds
from operant.campaign.field import Arrivals, FieldState
from operant.campaign.judging import DRAWS, check_draws
from operant.campaign.labels import FieldLabels
from operant.campaign.observers import OBSERVERS, Observer, check_names
from operant.campaign.records import CampaignInfo, CampaignResult, Requirement, describe_campaign, known_classes
from operant.campaign.reserving import reserve
from operant.campaign.risk import CampaignRisk
from operant.campaign.run import CampaignRun
from operant.conditions import Recipe
from operant.data import Samples
from operant.execution.engines import Engine, serial
from operant.execution.events import EventHandler, ignore
from operant.execution.round_state import RoundState
from operant.execution.run_folder import RunFolder
from operant.execution.signature import signature_of
from operant.execution.timing import Stopwatch
from operant.generate import default_moves
from operant.generate.operational._cases import check_same_bounds
from operant.model import Classifier
from operant.profile import FittedConditions
from operant.retrain import CaseRetrainer, OperationalFinetune, without_bar
from operant.types import Labeller, Move
from operant.validation import check_at_least, check_between, check_one_of, check_share

MAY_CHANGE = ("rounds", "cases", "labels", "engine", "observers")  # options that may differ when a run is resumed


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Find operational failures, retrain with them and assess, until the model is shown to be reliable enough.

    Field data are split by group or id: one half is for the profile and naturalness, the other half is labelled in
    batches to assess. Every assessed model gets its own bound, from inputs that nothing was learned from; that of the
    r-th model may be wrong with probability α / (r (r + 1)), where α = 1 - confidence. So whichever round the campaign
    ends with, its bound holds with the campaign's confidence, provided that field inputs are independent and hardly
    ever repeat. In later rounds these labels decide which epoch of a retraining is kept (`brier_monitor`) and show
    where failures come from; the model never learns from them. If they reject a retraining, the round buys some more,
    since few labels may be wrong.

    With ``feedback``, seeds and moves of the next round are allocated in proportion to the failures they contributed;
    30 % of the search is spread as without feedback (`allocate`).

    Every finished chunk, retraining and batch of labels is on disk before the next begins. Called again with the same
    folder, the campaign resumes and ends with the same result as without the interruption.

    Args:
        requirement: largest accepted pmi, the probability of misclassification per field input.
        moves: searches that `OperationalFuzz` mixes, by name: functions that get the fitted naturalness and return a
            fuzzer, ``{"gradient": partial(GradientMove, radius=0.1)}`` (default: `default_moves` of the training data
            and of the conditions that the call is given).
        confidence: probability that the final bound holds.
        max_drop: clean accuracy that may be lost in all.
        rounds, cases, labels: the budget.
        seeds_per_round, cases_per_round: maximum number of seeds to search from, and of cases to learn from.
        label_batch: labels per request.
        chunk: seeds or field inputs per chunk of work; finished chunks are on disk.
        dimensions: number of values that the profile encodes an input into.
        judge_draws: unselected draws of each move that its judge learns from, at least 100; a move whose draws do not
            look like field inputs is not searched with. 0 for no judges: the five scores of naturalness rate all cases.
        level, mass_quantile: a failure is operational if its naturalness is at least ``level``, and the field is at
            least as dense there as at this quantile of field inputs.
        retrainer: how to retrain; any `CaseRetrainer`.
        when_drifted: ``"update"`` the profile or ``"stop"`` when new field inputs differ from earlier ones.
        feedback: whether rounds learn from each other where to search.
        draws: unselected cases of the field's conditions that teach the risk map, if there are conditions, with half as
            many of wider conditions; they come from reserved training inputs, if there are enough, and from half of the
            clean inputs. A third as many, from the other half, judge every round's model without labels. 0 for none.
        seed_chooser: chooses training inputs to search from; any `SeedChooser`.
        case_chooser: chooses operational failures to learn from; any `CaseChooser`.
        engine: runs chunks of work (default: one after the other in this process; see `pool`).
        observers: record what the report shows; nothing else depends on them.

    References:
        | Detecting Operational Adversarial Examples for Reliable Deep Learning (Zhao et al., 2021), Figure 1
        | https://arxiv.org/abs/2104.06015
    """

    requirement: float
    moves: Mapping[str, Move] | None = None
    confidence: float = 0.95
    max_drop: float = 0.005
    rounds: int = 5
    cases: int = 5000
    labels: int = 400
    seeds_per_round: int = 500
    cases_per_round: int = 300
    label_batch: int = 25
    chunk: int = 100
    dimensions: int = 16
    judge_draws: int = DRAWS
    level: float = 0.05
    mass_quantile: float = 0.1
    retrainer: CaseRetrainer = OperationalFinetune(progress=False)  # noqa: RUF009  # frozen
    when_drifted: str = "update"
    feedback: bool = True
    draws: int = 3000
    seed_chooser: SeedChooser = risk_weighted_seeds
    case_chooser: CaseChooser = most_covering_cases
    engine: Engine = serial
    observers: Sequence[Observer] = OBSERVERS

    def __post_init__(self) -> None:
        check_between(0, 1, requirement=self.requirement, advice="it is the highest error rate allowed, such as 0.05")
        check_between(0, 1, confidence=self.confidence, advice="0.95 is usual")
        check_at_least(1, rounds=self.rounds, cases=self.cases, labels=self.labels, chunk=self.chunk)
        check_at_least(1, seeds_per_round=self.seeds_per_round, cases_per_round=self.cases_per_round)
        check_at_least(1, label_batch=self.label_batch)
        check_draws(self.judge_draws)
        check_at_least(0, draws=self.draws, advice="3000 are advised, 0 switches the risk map off")
        check_share(max_drop=self.max_drop, advice="0.005 is half a point")
        check_one_of(("update", "stop"), when_drifted=self.when_drifted)
        if self.moves is not None and not self.moves:
            raise ValueError("there must be at least one move, got none; leave moves out for the default ones")
        check_names(self.observers)

    def __call__(
        self,
        model: Classifier,
        *,
        train: Samples,
        clean: Samples,
        field: Samples | Arrivals,
        labeller: Labeller,
        folder: str | Path,
        seed: int = 0,
        classes: Sequence[str] = (),
        notes: Sequence[str] = (),
        conditions: FittedConditions | None = None,
        recipe: Recipe | None = None,
        on_event: EventHandler = ignore,
        stopwatch: Stopwatch | None = None,
    ) -> CampaignResult:
        """Run the campaign, or resume it.

        Args:
            model: the initial model; it is not changed.
            train: labelled training data, to search from and to retrain with.
            clean: labelled data of the same kind that no round learns from; clean accuracy is measured on it.
            field: field inputs, labels not needed; or a function from the number of a round to all field inputs that
                have arrived by then.
            labeller: gives the true labels of field inputs.
            folder: where everything is kept.
            seed: random seed.
            classes: the name of each label, for people (default: the classes of ``train``, or numbers).
            notes: choices that were made before, for the report.
            conditions: estimated before from field inputs, for the report.
            recipe: conditions that cases of the risk map are drawn from, and that are searched with if there are no
                ``moves`` (default: those of ``conditions``).
            on_event: called with every progress event.
            stopwatch: of a session that began earlier (default: it begins now).
        """
        stopwatch = Stopwatch() if stopwatch is None else stopwatch
        _check_data(model, train, clean)
        names = known_classes(model, train, classes)
        clean = clean.in_classes(train.classes) if train.classes and clean.classes else clean
        train, clean = replace(train, classes=names), replace(clean, classes=names)
        recipe = conditions.recipe if recipe is None and conditions is not None else recipe
        searched = recipe if recipe is not None and recipe.names else None
        moves = dict(default_moves(train, recipe=searched) if self.moves is None else self.moves)
        if searched is not None:
            _check_recipe(searched, model, train)
        draws = 0 if searched is None else self.draws
        priors = () if conditions is None else conditions.priors
        parts = {"seed": seed, "model": model, "train": train, "clean": clean, "classes": tuple(classes)}
        parts |= {"recipe": searched} if draws else {}
        parts |= {"priors": priors} if priors and (draws or self.judge_draws) else {}
        with activity("checking model and data"):
            signature = signature_of(replace(self, moves=moves), free=MAY_CHANGE, **parts)
        with RunFolder(Path(folder), signature=signature, stopwatch=stopwatch) as run:
            describe = partial(describe_campaign, self._requirement, model, train, clean)
            info = run.step("info", CampaignInfo, partial(describe, feedback=self.feedback, notes=notes))
            if info.notes != tuple(notes):  # those of the present data
                run.replace("info", replace(info, notes=tuple(notes)))
            field_state = FieldState(
                field if callable(field) else lambda number: field,
                model,
                torch.cat([train.ids, clean.ids]),
                run,
                seed=seed,
                dimensions=self.dimensions,
                follow=self.when_drifted == "update",
                classes=names,
                priors=priors,
            )
            with activity("measuring clean accuracy"):
                state = RoundState(
                    run, model, clean=clean, max_drop=self.max_drop, seed=seed, engine=self.engine, on_event=on_event
                )
            options = replace(self, retrainer=without_bar(self.retrainer))  # progress is shown by on_event
            labels = FieldLabels(options, labeller, field_state, state)
            split = reserve(train, judge_draws=self.judge_draws, draws=draws)
            risk = None
            if searched is not None and draws:
                risk = CampaignRisk(searched, split, clean, state, draws=draws, chunk=self.chunk)
            result = CampaignRun(
                options, moves, split, field=field_state, state=state, labels=labels, conditions=conditions, risk=risk
            ).run()
            with activity("writing the final model and all cases"):
                run.deliver(result.model, result.suite)
            return result

    @property
    def _requirement(self) -> Requirement:
        return Requirement(
            pmi=self.requirement,
            confidence=self.confidence,
            max_drop=self.max_drop,
            level=self.level,
            mass_quantile=self.mass_quantile,
        )


def _check_recipe(recipe: Recipe, model: Classifier, train: Samples) -> None:
    if len(train.shape) != 3:
        raise ValueError(f"conditions are for images, but inputs have the shape {tuple(train.shape)}; leave recipe out")
    check_same_bounds(recipe, model)


def _check_data(model: Classifier, train: Samples, clean: Samples) -> None:
    for name, part in (("train", train), ("clean", clean)):
        if len(part) == 0:
            raise ValueError(f"there are no {name} samples; give at least one")
        model.check(part)
    if shared := int(torch.isin(clean.ids, train.ids).sum()):
        raise ValueError(
            f"train and clean must not share inputs, got {shared} in both; split by id, with Samples.split"
        )
