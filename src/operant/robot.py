"""The loop of the RobOT paper: fuzz, choose, retrain, and repeat, until the model is robust enough."""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from operant.activity import activity, showing_on
from operant.assess import Rate, Robustness, attack_cases, empirical_robustness
from operant.assess.robustness import MODES
from operant.data import Samples
from operant.execution.chunked_fuzzing import ChunkedFuzzer, ChunkedFuzzing, InMemory
from operant.execution.engines import Engine, serial
from operant.execution.events import Event, StepActivity
from operant.execution.round_state import RoundState, weights_after
from operant.execution.run_folder import RunFolder
from operant.execution.signature import signature_of
from operant.formatting import accuracy, percent
from operant.model import Classifier
from operant.retrain import CaseRetrainer, Finetune, FinetuneRecord
from operant.rng import spawn
from operant.select import be_st
from operant.suite import Suite
from operant.types import Fuzzer
from operant.validation import check_at_least, check_share

UNITS = {"generate": "chunks", "retrain": "epochs"}  # of the steps that report events
MAY_CHANGE = ("rounds", "requirement", "engine")  # options that may differ when a run is resumed


@dataclass(frozen=True, kw_only=True)
class RobotRound:
    """One round of the loop, and the model's robustness after it; round 0 is the initial model.

    Attributes:
        found: failures that the fuzzer made; ``broken`` of ``attempted`` seeds have at least one.
        chosen: failures chosen to retrain with; ``cases`` of all rounds so far are learned from.
        branches: failures per branch of the fuzzer, if it has branches.
        retraining: its record; None if there was nothing to learn from.
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
        """Whether the round changed the model."""
        return self.retraining is not None and self.retraining.changed


@dataclass(frozen=True, kw_only=True)
class RobotResult:
    """The model after the last round, whether it meets the requirement, why the loop ended, and all rounds."""

    model: Classifier = field(repr=False)
    met: bool
    reason: str
    rounds: tuple[RobotRound, ...]

    def __str__(self) -> str:
        lines = [f"{self.reason}.", "round  found  chosen  clean    adaptive [95 %]          static [95 %]"]
        for r in self.rounds:
            static = r.robustness.static
            rates = f"{_interval(r.robustness.adaptive[-1]):<23}  {_interval(static[-1]) if static else '-'}"
            lines.append(
                f"{r.number:>5}  {r.found:>5}  {r.chosen:>6}  {accuracy(r.robustness.clean.value):>7}  {rates}"
            )
        if self.rounds[0].robustness.static is None:
            lines.append("Static robustness is not measured: no attack succeeds on the initial model.")
        return "\n".join(lines)


def _interval(rate: Rate) -> str:
    return f"{percent(rate.value):>6} [{percent(rate.lower):>6}, {percent(rate.upper):>6}]"


@dataclass(frozen=True, kw_only=True)
class RobOT:
    """Algorithm 1: while the model is not robust enough, find failures, choose some, retrain with them.

        while ER(f, D_v, ATT) < r:   D ← D ∪ select(fuzz(f, D));   f ← retrain(f, D)        (1)

    Every finished chunk, epoch and round is on disk before the next begins. Called again with the same folder, the loop
    resumes and ends with the same rounds. Each round fuzzes other training inputs, drawn at random. The epoch is chosen
    on the validation samples, the requirement is checked on the test samples, and neither is ever learned from.

    Args:
        fuzz: makes cases from training inputs.
        attacks: attacks that the model must withstand, by name.
        requirement: the empirical robustness to reach, from 0 to 1.
        mode: ``"adaptive"`` or ``"static"``: the kind of robustness that is required; both are reported.
        value: the suite's column that cases are chosen by.
        select: from one value per case and n to n row numbers: `be_st`, or any function of `operant.select`.
        seeds_per_round: training inputs to fuzz in each round.
        cases_per_round: maximum number of failures to learn from, per round.
        rounds: the budget.
        chunk: seeds or samples per chunk of work; finished chunks are on disk.
        max_drop: clean accuracy that may be lost in all.
        retrainer: how to retrain; any `CaseRetrainer`. Its own ``max_drop`` is replaced by the loop's.
        engine: runs chunks of work (default: one after the other in this process; see `pool`).

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
    max_drop: float = 0.01
    retrainer: CaseRetrainer = Finetune()  # noqa: RUF009  # frozen
    engine: Engine = serial

    def __post_init__(self) -> None:
        check_share(requirement=self.requirement, max_drop=self.max_drop)
        if self.mode not in MODES:
            raise ValueError(f'mode must be "adaptive" or "static", got {self.mode!r}')
        check_at_least(1, seeds_per_round=self.seeds_per_round, cases_per_round=self.cases_per_round)
        check_at_least(1, rounds=self.rounds, chunk=self.chunk)

    def __call__(
        self,
        model: Classifier,
        train: Samples,
        *,
        validation: Samples,
        test: Samples,
        folder: str | Path,
        seed: int = 0,
        console: Console | None = None,
    ) -> RobotResult:
        """Run the loop, or resume it.

        Args:
            model: the initial model; it is not changed.
            train: labelled training data, to fuzz and to learn from.
            validation: labelled; chooses the epoch of each retraining.
            test: labelled; the requirement is checked on it.
            folder: where rounds are kept.
            console: where to print progress (default: nowhere).
        """
        with nullcontext() if console is None else showing_on(console):
            parts = {"train": train, "validation": validation, "test": test}
            return self._run(model, parts, folder, seed, console or Console(quiet=True))

    def _run(
        self, model: Classifier, parts: dict[str, Samples], folder: str | Path, seed: int, console: Console
    ) -> RobotResult:
        _check_apart(**parts)
        judged_on = {role: parts[role] for role in ("validation", "test")}
        with activity("checking model and data"):
            signature = signature_of(self, free=MAY_CHANGE, seed=seed, model=model, **parts)
            for role, samples in judged_on.items():  # before the folder is created
                _check_some_correct(model, role, samples)
        announce = StepActivity(_title, lambda event: f"{event.done} of {event.total} {UNITS[event.step]}")
        with RunFolder(folder, signature=signature) as run, closing(announce):
            state = RoundState(
                run,
                model,
                clean=parts["validation"],
                max_drop=self.max_drop,
                seed=seed,
                engine=self.engine,
                on_event=announce,
            )
            judge = _RobustnessJudge(self, state, judged_on)
            return _RobotRun(self, judge, state, parts["train"], console).run()


def _title(event: Event) -> str:
    return f"round {event.round}, {'retraining' if event.step == 'retrain' else 'searching for failures'}"


class _RobotRun:
    """A run of Algorithm 1 in its folder."""

    def __init__(
        self, options: RobOT, judge: "_RobustnessJudge", state: RoundState, train: Samples, console: Console
    ) -> None:
        self.options, self.judge, self.state = options, judge, state
        self.train, self.console = train, console

    def run(self) -> RobotResult:
        """The loop."""
        rounds: list[RobotRound] = []
        number = 0
        while number <= self.options.rounds or self.state.has_round(number):
            self.state.begin(number)
            done = self._round(number)
            rounds.append(done)
            self._print(done)
            if done.robustness.value >= self.options.requirement:
                return self._result(rounds, met=True, reason=f"The requirement was met after round {number}")
            if number and done.found == 0:
                return self._result(rounds, met=False, reason=f"Round {number} found no failure to learn from")
            number += 1
        return self._result(rounds, met=False, reason=f"The budget is spent after round {number - 1}")

    def _result(self, rounds: list[RobotRound], *, met: bool, reason: str) -> RobotResult:
        value, wanted = rounds[-1].robustness.value, self.options.requirement
        robustness = f"robustness {percent(value)}, required {percent(wanted)}"
        reached = f"{reason}: {self.options.mode} {robustness}{_better_before(rounds)}"
        return RobotResult(model=self.state.model, met=met, reason=reached, rounds=tuple(rounds))

    def _round(self, number: int) -> RobotRound:
        """One round: fuzz, choose, retrain, judge; a finished round is only read."""
        state = self.state
        if state.has_round(number):
            return state.restore_round(RobotRound)
        if number == 0:
            return self._finish(RobotRound(number=0, robustness=self.judge.current()))
        found = state.generate(self.options.fuzz, self._seeds(number), chunk=self.options.chunk)
        failures = found.failures()
        chosen = state.choose_cases(partial(self._choose, failures, number)) if len(failures) else failures
        record = self._retrain(number) if len(chosen) else None
        return self._finish(
            RobotRound(
                number=number,
                found=len(failures),
                attempted=found.attempted,
                broken=len(failures.seed.unique()),
                chosen=len(chosen),
                cases=len(state.learned),
                branches=_branches(failures),
                retraining=record,
                robustness=self.judge.current(),
            )
        )

    def _finish(self, record: RobotRound) -> RobotRound:
        return self.state.step("round", RobotRound, lambda: record)

    def _seeds(self, number: int) -> Samples:
        """Training inputs that the model classifies correctly, others in each round until all were used."""
        order = torch.randperm(len(self.train), generator=spawn(self.state.seed, "order"))
        n = min(self.options.seeds_per_round, len(order))
        start = (number - 1) * n % len(order)
        seeds = self.state.model.correct(self.train[torch.cat([order, order])[start : start + n]])
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
                f"cases are chosen by the column {options.value}, but the fuzzer gives {', '.join(suite.columns)}; "
                "name one of these as value"
            )
        rows = options.select(suite[options.value], n, generator=spawn(self.state.seed, number, "select"))
        chosen: Suite = suite[rows.sort().values]
        return chosen

    def _retrain(self, number: int) -> FinetuneRecord:
        generator = spawn(self.state.seed, number, "finetune")
        return self.state.retrain(self.options.retrainer, self.train, monitor=self.judge.monitor, generator=generator)

    def _print(self, done: RobotRound) -> None:
        rate, wanted = done.robustness.value, self.options.requirement
        work = f"{done.found} failures from {done.attempted} seeds, {done.chosen} chosen, " if done.number else ""
        self.console.print(
            f"round {done.number}: {work}clean accuracy {accuracy(done.robustness.clean.value)}, {self.options.mode} "
            f"robustness {percent(rate)} of {percent(wanted)} required",
            highlight=False,
            soft_wrap=True,
        )
        if done.retraining is not None and done.retraining.best_epoch == 0:
            self.console.print(f"  {done.retraining.reason}", highlight=False, soft_wrap=True)


def _better_before(rounds: list[RobotRound]) -> str:
    """Names an earlier model, and its file, if it was more robust on the test samples than the last."""
    best = max(rounds, key=lambda done: done.robustness.value)
    if best.robustness.value <= rounds[-1].robustness.value:
        return ""
    where = weights_after(rounds[: best.number + 1])
    return f". The model after round {best.number} was the most robust, {percent(best.robustness.value)}: {where}"


class _RobustnessJudge:
    """Measures robustness: attacks on validation or test samples, a chunk at a time."""

    def __init__(self, options: RobOT, state: RoundState, roles: Mapping[str, Samples]) -> None:
        self.options, self.state, self.roles = options, state, roles
        self.static = {role: self._static_cases(role) for role in roles}

    @activity("measuring robustness on test samples")
    def current(self) -> Robustness:
        """Robustness of the current model on the test samples; chunks stay on disk until all are finished."""
        state = self.state
        robustness = state.step(
            "robustness", Robustness, lambda: self._robustness(state.model, "test", self._attacks("judged"))
        )
        for i in range(len(self.options.attacks)):
            state.folder.clear(f"{state.name}/judged-{i}")
        return robustness

    @activity("measuring robustness on validation samples")
    def monitor(self, model: Classifier) -> float:
        """Share of the validation samples on which a model is not robust."""
        run = InMemory(self.state.engine)
        attacks = {name: self._chunked(attack, run) for name, attack in self.options.attacks.items()}
        return 1 - self._robustness(model, "validation", attacks).value

    def _robustness(self, model: Classifier, role: str, attacks: Mapping[str, Fuzzer]) -> Robustness:
        return empirical_robustness(
            model,
            self.roles[role],
            attacks,
            mode=self.options.mode,
            cases=self.static[role],
            generator=spawn(self.state.seed, "judge", role),  # the same in every round, so that chance does not add up
        )

    @activity("attacking the initial model")
    def _static_cases(self, role: str) -> Suite | None:
        """Cases against the initial model; None if no attack succeeds."""
        cases = attack_cases(
            self.state.model,
            self.roles[role],
            self._attacks(f"static-{role}"),
            generator=spawn(self.state.seed, "static", role),
        )
        if len(cases) == 0 and self.options.mode == "static":
            raise ValueError(
                f"no attack on the {role} samples succeeds, so there are no static cases; "
                'use stronger attacks, or mode="adaptive", and a new folder'
            )
        return cases if len(cases) else None

    def _attacks(self, place: str) -> dict[str, Fuzzer]:
        """The attacks, with their chunks kept in the folder."""
        return {
            name: self._chunked(attack, partial(self.state.run_chunks, f"{place}-{i}"))
            for i, (name, attack) in enumerate(self.options.attacks.items())
        }

    def _chunked(self, attack: Fuzzer, run: Callable[[ChunkedFuzzing], Suite]) -> Fuzzer:
        return ChunkedFuzzer(fuzz=attack, size=self.options.chunk, run=run)


def _check_some_correct(model: Classifier, role: str, samples: Samples) -> None:
    if len(model.correct(samples)) == 0:
        raise ValueError(
            f"the model classifies none of the {len(samples)} {role} samples correctly; "
            "check labels, bounds and normalisation with doctor()"
        )


def _branches(suite: Suite) -> dict[str, int]:
    if "branch" not in suite.columns:
        return {}
    return dict(sorted(Counter(suite["branch"].tolist()).items()))


def _check_apart(**roles: Samples) -> None:
    """Reject inputs that have two roles."""
    shapes = {name: tuple(samples.shape) for name, samples in roles.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"inputs must have one shape, got {shapes}; resize them first")
    for name, samples in roles.items():
        if len(samples) == 0:
            raise ValueError(f"there are no {name} samples; give at least one")
    for a, b in combinations(roles, 2):
        if shared := int(torch.isin(roles[b].ids, roles[a].ids).sum()):
            got = f"{shared} of {len(roles[b])} in both"
            raise ValueError(f"{a} and {b} must not share inputs, got {got}; split by id, with Samples.split")
