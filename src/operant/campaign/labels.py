"""Step 5: buys labels of fresh field inputs, keeps them, and assesses the current model with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from operant.activity import activity
from operant.campaign.assessing import (
    LabelBudget,
    SequentialAssessment,
    assess_model,
    confidence_of,
    label_budget,
    why_no_labels,
)
from operant.campaign.field import FieldState
from operant.campaign.records import Round
from operant.campaign.stopping import MAX_IDLE_ROUNDS, idle_rounds
from operant.data import Samples
from operant.data.class_texts import class_title
from operant.execution.round_state import LabelBatch, RoundState
from operant.types import Labeller, StoredLabels

if TYPE_CHECKING:
    from operant.campaign.campaign import Campaign


class FieldLabels:
    """Labels of field inputs, bought in batches and each only once.

    Attributes:
        labelled: labelled inputs of the present field; they monitor retraining and guide the search.
        bought: ids of all inputs whose labels were bought, also before the field drifted.

    Args:
        options: of the campaign.
        labeller: gives the true labels.
        field: where the inputs come from.
        state: of the rounds, which keeps the batches.
    """

    def __init__(self, options: Campaign, labeller: Labeller, field: FieldState, state: RoundState) -> None:
        self.options, self.labeller, self.field, self.state = options, labeller, field, state
        self.labelled = state.clean[:0]
        self.bought = torch.empty(0, dtype=torch.int64)

    def check_answers(self) -> None:
        """Raise a ValueError if labels that this run already has are different in their source now.

        Only stored labels are read again. People and functions are not asked twice, since each label costs.
        """
        if not isinstance(self.labeller, StoredLabels):
            return
        answers = self.state.answers()
        now = self.labeller.stored(answers.ids)
        before = dict(zip(answers.ids.tolist(), answers.labels.tolist(), strict=True))
        if changed := [i for i in before if i in now and now[i][1] != before[i]]:
            name, label = now[changed[0]]
            was, is_now = (class_title(y, self.state.clean.classes) for y in (before[changed[0]], label))
            raise ValueError(
                f"{len(changed)} of {len(before)} labels that {self.state.folder.path} already has are different now, "
                f"for instance that of {name}, which was {was} and is {is_now} now; restore the labels, "
                "or start a new folder"
            )

    def drop_labelled(self) -> None:
        """Drop the labelled inputs: the field has changed."""
        self.labelled = self.labelled[:0]

    def fresh_inputs(self) -> Samples:
        """Field inputs to assess with that are not labelled yet, in random order."""
        pool = self.field.pool
        fresh = pool[torch.randperm(len(pool), generator=self.state.spawn("assessment"))]
        return fresh[~torch.isin(fresh.ids, self.bought)]

    @property
    def unlabelled(self) -> int:
        """Number of field inputs to assess with that are not labelled yet."""
        return int((~torch.isin(self.field.pool.ids, self.bought)).sum())

    def budget(self, rounds: Sequence[Round], *, changed: bool, rejected_by_monitor: bool = False) -> LabelBudget:
        """The labels that the current round may buy; kept, and raised if the campaign's budget was before a resume.

        The bound holds whenever one stops, so an assessment under way may get more labels. It never gets fewer, and
        keeps its number once it has bought its last batch, if that is smaller than a full one.

        Args:
            rounds: finished so far.
            changed: whether the current round changed the model.
            rejected_by_monitor: whether the monitor rejected its retraining.
        """
        options, state = self.options, self.state
        left = min(options.labels - len(self.bought), len(self.fresh_inputs()))
        idle = 0 if changed else idle_rounds(rounds) + 1
        last = state.number == options.rounds or len(state.learned) >= options.cases or idle >= MAX_IDLE_ROUNDS
        total = {"labels": options.labels, "rounds": options.rounds}
        work = partial(label_budget, left, **total, last=last, changed=changed, rejected_by_monitor=rejected_by_monitor)
        kept, now = state.step("budget", LabelBudget, work), work()
        return self._raise_budget(kept, now) if now.most > kept.most else kept

    def _raise_budget(self, kept: LabelBudget, now: LabelBudget) -> LabelBudget:
        """Replace the budget of the current round; predictions of a chunk that grows are computed again."""
        state, options = self.state, self.options
        batch, chunk = kept.most // options.label_batch, kept.most // options.chunk
        if kept.most % options.label_batch and state.folder.has(f"{state.name}/labels-{batch:03d}"):
            return kept
        state.folder.drop(f"{state.name}/predictions-{chunk:03d}")
        state.folder.replace(f"{state.name}/budget", now)
        return now

    def assess(
        self, budget: LabelBudget, rounds: Sequence[Round], *, earlier: SequentialAssessment | None
    ) -> SequentialAssessment:
        """Assess the current model: label fresh field inputs until the bound decides.

        Args:
            budget: labels of this round.
            rounds: finished so far; each new model's bound has a higher confidence.
            earlier: assessment of the same model in an earlier round, which is continued.
        """
        options, state, fresh = self.options, self.state, self.fresh_inputs()
        if why := why_no_labels(budget, len(fresh), requirement=options.requirement, earlier=earlier):
            state.report("assess", 0, 0, no_labels=why)
        else:
            state.report("assess", 0, budget.most)
        models = sum(r.assessment is not None and not r.assessment.before for r in rounds)
        assessment = assess_model(
            state.predictions(fresh[: budget.most], chunk=options.chunk),
            fresh,
            partial(self._buy, budget.most),
            requirement=options.requirement,
            confidence=earlier.confidence if earlier else confidence_of(models, options.confidence),
            batch=options.label_batch,
            budget=budget,
            earlier=earlier,
        )
        self.add_bought(assessment.bought)
        if assessment.bought:
            state.report("assess", assessment.bought, assessment.bought, assessment=assessment)
        return assessment

    def _buy(self, most: int, i: int, inputs: Samples) -> Tensor:
        """The labels of batch i of the current round, of at most ``most`` labels."""
        self.state.report("assess", i * self.options.label_batch, most)

        def ask() -> LabelBatch:
            with activity(f"waiting for {len(inputs)} labels"):
                labels = self.labeller(replace(inputs, y=None, classes=self.state.clean.classes)).cpu()
            _check_labels(labels, len(inputs), self.state.model.classes(inputs.x[:1]))
            return LabelBatch(ids=inputs.ids, labels=labels)

        return self.state.labels(f"labels-{i:03d}", inputs, ask)

    def add_bought(self, labels: int) -> None:
        """Add the labels bought in the current round: they may now be used, and are not drawn again."""
        for i in range(-(-labels // self.options.label_batch)):
            batch = self.state.existing(f"labels-{i:03d}", LabelBatch)
            some = self.field.pool[self.field.pool.rows_of(batch.ids)]
            some = replace(some, y=batch.labels, classes=self.state.clean.classes)
            self.labelled = Samples.concat([self.labelled, some]) if len(self.labelled) else some
            self.bought = torch.cat([self.bought, batch.ids])


def _check_labels(labels: Tensor, n: int, classes: int) -> None:
    whole = labels.dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    if labels.shape != (n,) or not whole or not bool(((labels >= 0) & (labels < classes)).all()):
        shape, some = tuple(labels.shape), labels.flatten()[:5].tolist()
        raise ValueError(
            f"labels must be {n} whole numbers from 0 to {classes - 1}, one per input, got {labels.dtype} of shape "
            f"{shape}, starting with {some}; fix the labels and run again"
        )
