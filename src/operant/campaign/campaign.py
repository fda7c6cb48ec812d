"""The campaign: the five steps in turns, until the model is as reliable in its field as it must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from operant.campaign.choosing import most_covering_cases, risk_weighted_seeds
from operant.campaign.field import FieldState
from operant.campaign.records import About, about_of
from operant.campaign.result import CampaignResult
from operant.campaign.run import CampaignRun
from operant.data import Samples
from operant.execution.engines import pool
from operant.execution.events import EventHandler
from operant.execution.rounds import RoundState
from operant.execution.run_folder import RunFolder
from operant.execution.signature import signature_of
from operant.model import Classifier
from operant.retrain import OperationalFinetune
from operant.types import Fuzzer, Labeller

FREE = ("rounds", "cases", "labels")  # options that decide only when to stop


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Find operational failures, retrain with them, assess, and again, until pmi is as small as it must be.

    Field data are dealt by id: one half is for profile and naturalness, the other is labelled, a batch at a time, to
    assess. Each assessed model has a bound of its own, from inputs that nothing had seen, the r-th at the level
    α / (r (r + 1)); so whichever round the campaign ends with, its bound holds with the campaign's confidence, for
    inputs that come as the field inputs did, independently of each other and hardly ever the same one twice. Once
    assessed, labelled inputs serve the next rounds as monitor (`brier_monitor`), and to say where failures come from;
    they are never learned from. A round whose retraining the monitor refuses buys some more of them.

    With ``feedback``, the next round's seeds are spread over classes and cells, and over moves, in proportion to what
    those contributed to failures, with a floor of 30 % spread as before (`allocate`).

    Every finished chunk, retraining and batch of labels is on disk before the next begins. Called again with the same
    folder the campaign goes on where it stopped, and ends as if it had not been stopped.

    Args:
        requirement: largest pmi that is accepted.
        moves: by name, what `OperationalFuzz` mixes, each still without its naturalness, which is fitted to field data:
            ``{"gradient": partial(GradientMove, radius=0.1)}``. Two radii are two moves; feedback chooses between them.
        confidence: of the final bound.
        max_drop: how much clean accuracy may be lost in all.
        rounds, cases, labels: the budget.
        seeds_per_round, cases_per_round: seeds to fuzz, and cases to learn from, at most.
        label_batch: labels asked for at a time.
        chunk: seeds of a chunk, or inputs to be assessed, after which work is on disk.
        dimensions: of the profile's codes.
        level, mass_quantile: what makes a failure operational.
        finetune: how to retrain; its ``monitor`` and ``max_drop`` are the campaign's.
        when_drifted: ``"update"`` or ``"stop"``: what to do where new field inputs differ from those before.
        feedback: whether rounds learn from each other.
        seeds: which training inputs to start from; `risk_weighted_seeds`, or another function of its arguments.
        choose: which operational failures to learn from; `most_covering_cases`, or another function of its arguments.

    References:
        | Detecting Operational Adversarial Examples for Reliable Deep Learning (Zhao et al., 2021), Figure 1
        | https://arxiv.org/abs/2104.06015
    """

    requirement: float
    moves: Mapping[str, Callable[..., Fuzzer]]
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
    level: float = 0.05
    mass_quantile: float = 0.1
    finetune: OperationalFinetune = OperationalFinetune(progress=False)  # noqa: RUF009  # frozen
    when_drifted: str = "update"
    feedback: bool = True
    seeds: Callable[..., Samples] = risk_weighted_seeds
    choose: Callable[..., Tensor] = most_covering_cases

    def __post_init__(self) -> None:
        for name in ("requirement", "confidence"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must be a probability between 0 and 1, got {getattr(self, name)}")
        for name in ("rounds", "cases", "labels", "seeds_per_round", "cases_per_round", "label_batch", "chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.max_drop <= 1:
            raise ValueError(f"max_drop must be a share from 0 to 1, got {self.max_drop}; 0.005 is half a point")
        if self.when_drifted not in ("update", "stop"):
            raise ValueError(f'when_drifted must be "update" or "stop", got {self.when_drifted!r}')
        if not self.moves:
            raise ValueError("there must be at least one move, got none")

    def __call__(
        self,
        model: Classifier,
        *,
        train: Samples,
        clean: Samples,
        field: Samples | Callable[[int], Samples],
        labeller: Labeller,
        folder: str | Path,
        seed: int = 0,
        classes: Sequence[str] = (),
        workers: int = 1,
        watch: EventHandler | None = None,
    ) -> CampaignResult:
        """Run the campaign, or go on with it.

        Args:
            model: where to start from; it stays as it is.
            train: labelled training data, to start cases from and to retrain with.
            clean: labelled data like it that nothing learns from: the guard on clean accuracy.
            field: inputs from use, labels not needed; or a function of the round that gives all that have arrived.
            labeller: tells the true labels of field inputs.
            folder: where everything is kept.
            seed: of everything random.
            classes: the name of each label, for the report; numbers unless given.
            workers: processes that chunks are spread over.
            watch: is told what happens.
        """
        _check(model, train, clean)
        signature = signature_of(self, free=FREE, seed=seed, model=model, train=train, clean=clean)
        arrived = field if callable(field) else lambda _: field
        with RunFolder(Path(folder), signature=signature) as run:
            run.step("about", About, partial(about_of, model, train, clean, names=classes))
            view = FieldState(
                arrived,
                model,
                torch.cat([train.ids, clean.ids]),
                run,
                seed=seed,
                dimensions=self.dimensions,
                follow=self.when_drifted == "update",
            )
            loop = RoundState(
                run,
                model,
                guard=clean,
                max_drop=self.max_drop,
                seed=seed,
                engine=pool(workers),
                watch=watch or (lambda event: None),
            )
            done = CampaignRun(self, view, loop, train, labeller).run()
            run.deliver(done.model, done.suite)
            return done


def _check(model: Classifier, train: Samples, clean: Samples) -> None:
    for name, part in (("train", train), ("clean", clean)):
        if len(part) == 0:
            raise ValueError(f"there are no {name} samples; give at least one")
        model.check(part)
    if shared := int(torch.isin(clean.ids, train.ids).sum()):
        raise ValueError(
            f"train and clean must not share inputs, got {shared} in both; split by id, with Samples.split"
        )
