"""RobOT's loop: fuzz, choose, retrain, and again, until the model is as robust as it must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from operant.assess import Rate, Robustness, attack_cases, empirical_robustness
from operant.assess.robustness import MODES
from operant.data import Samples
from operant.execution.engines import pool
from operant.execution.rounds import Fuzzing, InMemory, RoundState, Spread
from operant.execution.run_folder import RunFolder
from operant.execution.signature import signature_of
from operant.model import Classifier
from operant.retrain import Finetune, FinetuneRecord, OnEpoch, Retrained
from operant.rng import spawn
from operant.select import be_st
from operant.suite import Suite
from operant.types import Fuzzer

FREE = ("rounds", "requirement")  # options that decide only when to stop


@dataclass(frozen=True, kw_only=True)
class RobotRound:
    """One turn of the loop, and how robust the model was after it; round 0 is the model as it came.

    Attributes:
        found: failures the fuzzer made, and of how many ``attempted`` seeds ``broken`` had one.
        chosen: how many of them were kept to retrain with; ``cases`` of all rounds were learned from.
        branches: how many of the failures each branch of the fuzzer gave, where it tells.
        retraining: how that went.
        robustness: on the test samples, adaptive and static.
    """

    number: int
    found: int = 0
    attempted: int = 0
    broken: int = 0
    chosen: int = 0
    cases: int = 0
    branches: dict[str, int] = field(default_factory=dict)
    retraining: FinetuneRecord | None = None
    robustness: Robustness

    @property
    def changed(self) -> bool:
        """Whether the model left the round another than it came."""
        return self.retraining is not None and self.retraining.best_epoch > 0


@dataclass(frozen=True, kw_only=True)
class RobotResult:
    """The model after the last round, whether it meets the requirement, and how it came about."""

    model: Classifier = field(repr=False)
    met: bool
    reason: str
    rounds: tuple[RobotRound, ...]

    def __str__(self) -> str:
        lines = [f"{self.reason}.", "round  found  chosen  clean   adaptive [95 %]          static [95 %]"]
        for r in self.rounds:
            static = r.robustness.static
            told = f"{_told(r.robustness.adaptive[-1]):<23}  {_told(static[-1]) if static else '-'}"
            lines.append(f"{r.number:>5}  {r.found:>5}  {r.chosen:>6}  {r.robustness.clean.value:6.1%}  {told}")
        if self.rounds[0].robustness.static is None:
            lines.append("Static could not be measured: the original model withstood every attack, so it has no cases.")
        return "\n".join(lines)


def _told(rate: Rate) -> str:
    return f"{rate.value:6.1%} [{rate.lower:5.1%}, {rate.upper:5.1%}]"


@dataclass(frozen=True, kw_only=True)
class RobOT:
    """Algorithm 1: while the model is not robust enough, find failures, choose some, retrain with them.

        while ER(f, D_v, ATT) < r:   D ← D ∪ select(fuzz(f, D));   f ← retrain(f, D)        (1)

    A configuration of the campaign's loop (`operant.execution.rounds`), with other seeds, another choice and another
    judge: every finished chunk, epoch and round is on disk before the next begins, and called again with the same
    folder, the loop goes on where it stopped and ends with the same rounds. Each round fuzzes other training inputs,
    drawn at random. The epoch is chosen on the validation samples, the requirement is checked on the test samples, and
    neither is ever learned from. Clean accuracy may fall by ``finetune.max_drop`` in all, not in every round.

    Args:
        fuzz: makes cases from training inputs.
        attacks: by name: what the model must withstand.
        requirement: the empirical robustness to reach, from 0 to 1.
        mode: ``"adaptive"`` or ``"static"``: which meaning of robustness the requirement has; both are told.
        value: the suite's column that cases are chosen by.
        select: from one value per case and n to n row numbers: `be_st`, or anything of `operant.select`.
        seeds_per_round: training inputs to fuzz in each round.
        cases_per_round: how many of the failures found are kept, at most.
        rounds: the budget.
        chunk: seeds of a chunk, or inputs to be judged on, after which work is on disk.
        finetune: how to retrain.

    References:
        | RobOT: Robustness-Oriented Testing for Deep Learning Systems (Wang et al., 2021), Algorithm 1
        | https://arxiv.org/abs/2102.05913
    """

    fuzz: Fuzzer
    attacks: Mapping[str, Fuzzer]
    requirement: float
    mode: str = "adaptive"
    value: str = "fol"
    select: Callable[..., Tensor] = be_st
    seeds_per_round: int = 1000
    cases_per_round: int = 1000
    rounds: int = 5
    chunk: int = 250
    finetune: Finetune = Finetune()  # noqa: RUF009  # frozen

    def __post_init__(self) -> None:
        if not 0 <= self.requirement <= 1:
            raise ValueError(f"requirement must be a share of inputs from 0 to 1, got {self.requirement}")
        if self.mode not in MODES:
            raise ValueError(f'mode must be "adaptive" or "static", got {self.mode!r}')
        for name in ("seeds_per_round", "cases_per_round", "rounds", "chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def __call__(
        self,
        model: Classifier,
        train: Samples,
        *,
        validation: Samples,
        test: Samples,
        folder: str | Path,
        seed: int = 0,
        workers: int = 1,
        console: Console | None = None,
    ) -> RobotResult:
        """Run the loop, or go on with it.

        Args:
            model: where to start from; it stays as it is.
            train: labelled training data, to fuzz from and to learn from.
            validation: labelled; chooses the epoch of each retraining.
            test: labelled; what the requirement is checked on.
            folder: where rounds are kept.
            seed: of everything random.
            workers: processes that chunks are spread over.
            console: where to tell what happens; nowhere unless given.
        """
        parts = {"train": train, "validation": validation, "test": test}
        _check_apart(**parts)
        signature = signature_of(self, free=FREE, seed=seed, model=model, **parts)
        judges = {"validation": validation, "test": test}
        for role, samples in judges.items():  # before there is a folder
            _check_right(model, role, samples)
        with RunFolder(folder, signature=signature) as run:
            loop = RoundState(
                run,
                model,
                guard=validation,
                max_drop=self.finetune.max_drop,
                seed=seed,
                engine=pool(workers),
                watch=lambda event: None,
            )
            return _RobotRun(
                self, _RobustnessJudge(self, loop, judges), loop, train, console or Console(quiet=True)
            ).run()


class _RobotRun:
    """A run of Algorithm 1."""

    def __init__(
        self, options: RobOT, judge: _RobustnessJudge, loop: RoundState, train: Samples, console: Console
    ) -> None:
        self.options, self.judge, self.loop = options, judge, loop
        self.train, self.console = train, console

    def run(self) -> RobotResult:
        rounds: list[RobotRound] = []
        number = 0
        while number <= self.options.rounds or self.loop.folder.has(f"round-{number:03d}/round"):
            self.loop.begin(number)
            done, _ = self.loop.turn(RobotRound, partial(self._round, number))
            rounds.append(done)
            self._tell(done)
            if done.robustness.value >= self.options.requirement:
                return self._end(rounds, met=True, reason=f"The requirement was met after round {number}")
            if number and done.found == 0:
                return self._end(rounds, met=False, reason=f"RobotRound {number} found no failure to learn from")
            number += 1
        return self._end(rounds, met=False, reason=f"The budget is spent after round {number - 1}")

    def _end(self, rounds: list[RobotRound], *, met: bool, reason: str) -> RobotResult:
        value, wanted = rounds[-1].robustness.value, self.options.requirement
        told = f"{reason}: {self.options.mode} robustness {value:.1%}, required {wanted:.1%}"
        return RobotResult(model=self.loop.model, met=met, reason=told, rounds=tuple(rounds))

    # One round

    def _round(self, number: int) -> RobotRound:
        if number == 0:
            return RobotRound(number=0, robustness=self.judge.of_round())
        found = self.loop.generate(self.options.fuzz, self._seeds(number), chunk=self.options.chunk)
        failures = found.failures()
        chosen = self.loop.choose(partial(self._choose, failures, number)) if len(failures) else failures
        record = self._retrain(number) if len(chosen) else None
        return RobotRound(
            number=number,
            found=len(failures),
            attempted=found.attempted,
            broken=len(failures.seed.unique()),
            chosen=len(chosen),
            cases=len(self.loop.learned),
            branches=_branches(failures),
            retraining=record,
            robustness=self.judge.of_round(),
        )

    def _seeds(self, number: int) -> Samples:
        """Training inputs that the model gets right, other ones in each round until all had their turn."""
        order = torch.randperm(len(self.train), generator=spawn(self.loop.seed, "order"))
        n = min(self.options.seeds_per_round, len(order))
        start = (number - 1) * n % len(order)
        seeds = self.loop.model.correct(self.train[torch.cat([order, order])[start : start + n]])
        if len(seeds) == 0:
            raise ValueError(
                f"the model classifies none of the {n} seeds of round {number} correctly; "
                "check labels, bounds and normalisation with doctor()"
            )
        return seeds

    def _choose(self, suite: Suite, number: int) -> Suite:
        options, n = self.options, min(self.options.cases_per_round, len(suite))
        if options.value not in suite.columns:
            raise ValueError(
                f"cases are chosen by the column {options.value}, and the fuzzer gives {', '.join(suite.columns)}; "
                "name one of these as value"
            )
        rows = options.select(suite[options.value], n, generator=spawn(self.loop.seed, number, "select"))
        chosen: Suite = suite[rows.sort().values]
        return chosen

    def _retrain(self, number: int) -> FinetuneRecord:
        def work(max_drop: float, checkpoint: Path, on_epoch: OnEpoch) -> Retrained:
            return self.options.finetune(
                self.loop.model,
                self.train,
                self.loop.learned,
                validation=self.loop.guard,
                monitor=self.judge.monitor,
                max_drop=max_drop,
                generator=spawn(self.loop.seed, number, "finetune"),
                checkpoint=checkpoint,
                on_epoch=on_epoch,
            )

        return self.loop.retrain(FinetuneRecord, self.options.finetune.epochs, work)

    def _tell(self, done: RobotRound) -> None:
        rate, wanted = done.robustness.value, self.options.requirement
        work = f"{done.found} failures of {done.attempted} seeds, {done.chosen} chosen, " if done.number else ""
        self.console.print(
            f"round {done.number}: {work}clean {done.robustness.clean.value:.1%}, {self.options.mode} robustness "
            f"{rate:.1%} of {wanted:.1%} required",
            highlight=False,
            soft_wrap=True,
        )
        if done.retraining is not None and done.retraining.best_epoch == 0:
            self.console.print(f"  {done.retraining.reason}", highlight=False, soft_wrap=True)


class _RobustnessJudge:
    """How robust a model is: attacks on samples by their role, a chunk of them at a time, wherever the loop's are."""

    def __init__(self, options: RobOT, loop: RoundState, roles: Mapping[str, Samples]) -> None:
        self.options, self.loop, self.roles = options, loop, roles
        self.static = {role: self._static_cases(role) for role in roles}

    def of_round(self) -> Robustness:
        """Of the loop's model on the test samples; chunks are on disk until all are done."""
        places = [f"{self.loop.place}/judged-{i}" for i in range(len(self.options.attacks))]
        robustness = self.loop.folder.step(
            f"{self.loop.place}/robustness",
            Robustness,
            lambda: self._robustness(self.loop.model, "test", self._attacks("judged")),
        )
        for place in places:
            self.loop.folder.clear(place)
        return robustness

    def monitor(self, model: Classifier) -> float:
        """Share of the validation samples on which a model is not robust."""
        run = InMemory(self.loop.engine)
        attacks = {name: self._spread(attack, run) for name, attack in self.options.attacks.items()}
        return 1 - self._robustness(model, "validation", attacks).value

    def _robustness(self, model: Classifier, role: str, attacks: Mapping[str, Fuzzer]) -> Robustness:
        return empirical_robustness(
            model,
            self.roles[role],
            attacks,
            mode=self.options.mode,
            cases=self.static[role],
            generator=spawn(self.loop.seed, "judge", role),  # the same in every round: luck must not add up
        )

    def _static_cases(self, role: str) -> Suite | None:
        """Cases against the original model; none if it withstands every attack."""
        cases = attack_cases(
            self.loop.model,
            self.roles[role],
            self._attacks(f"static-{role}"),
            generator=spawn(self.loop.seed, "static", role),
        )
        if len(cases) == 0 and self.options.mode == "static":
            raise ValueError(
                f"the model withstands every attack on the {role} samples, so there are no static cases to judge on; "
                'give stronger attacks, or mode="adaptive", and a new folder'
            )
        return cases if len(cases) else None

    def _attacks(self, place: str) -> dict[str, Fuzzer]:
        """The attacks, whose chunks are kept in the folder."""
        return {
            name: self._spread(attack, partial(self.loop.in_chunks, f"{place}-{i}"))
            for i, (name, attack) in enumerate(self.options.attacks.items())
        }

    def _spread(self, attack: Fuzzer, run: Callable[[Fuzzing], Suite]) -> Fuzzer:
        return Spread(fuzz=attack, size=self.options.chunk, run=run)


def _check_right(model: Classifier, role: str, samples: Samples) -> None:
    if len(model.correct(samples)) == 0:
        raise ValueError(
            f"the model classifies none of the {len(samples)} {role} samples correctly; "
            "check labels, bounds and normalisation with doctor()"
        )


def _branches(suite: Suite) -> dict[str, int]:
    if "branch" not in suite.columns:
        return {}
    names = suite["branch"].tolist()
    return {name: names.count(name) for name in sorted(set(names))}


def _check_apart(**roles: Samples) -> None:
    """No input may have two roles."""
    names = list(roles)
    shapes = {name: tuple(samples.shape) for name, samples in roles.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"inputs must have one shape, got {shapes}; resize them first")
    for name, samples in roles.items():
        if len(samples) == 0:
            raise ValueError(f"there are no {name} samples; give at least one")
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            if shared := int(torch.isin(roles[b].ids, roles[a].ids).sum()):
                raise ValueError(
                    f"{a} and {b} must not share inputs, got {shared} of {len(roles[b])} in both; "
                    "split by id, with Samples.split"
                )
