"""The turns of a campaign in its folder: seeds, generate, select, retrain, assess."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from operant import select
from operant.campaign.assessment import Assessed, assess_round, confidence_of, missing
from operant.campaign.engine import Engine, Event, Watch, in_batches, run_chunks
from operant.campaign.feedback import Decision, allocate, reweighted, told
from operant.campaign.folder import RunFolder, gone
from operant.campaign.rounds import Delivered, Round
from operant.campaign.view import View, rows_of
from operant.data import Samples
from operant.generate import OperationalFuzz
from operant.model import Classifier
from operant.retrain import OperationalRecord, pmi_monitor
from operant.rng import spawn
from operant.seeds import combine, draw, margin_risk, risk_of
from operant.suite import Suite
from operant.types import Fuzzer, Labeller

if TYPE_CHECKING:
    from operant.campaign.loop import Campaign

ROUND_SHARE = 2 / 3  # of the labels that are left, which a round may use up, unless it is the last
IN_VAIN = 2  # rounds in a row that change nothing, after which no round is thought to help


@dataclass(frozen=True, kw_only=True)
class Known:
    """Labels of some inputs, by id."""

    ids: Tensor
    labels: Tensor


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How many labels an assessment buys."""

    fewest: int
    most: int


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How the seeds of a round are spread, and what was decided about it."""

    classes: tuple[float, ...]
    cells: tuple[float, ...]
    moves: dict[str, float]
    decisions: tuple[Decision, ...] = ()


class Turns:
    """A campaign in its folder.

    What it carries from round to round are values that stand there too: a finished round is read, with all that later
    ones need of it, and one that was cut off is gone on with at the last thing that was finished.

    Attributes:
        model: as it is now.
        learned: cases that it was retrained with.
        labelled: inputs of the field as it is now whose labels were bought.
        bought: ids of all inputs whose labels were bought, also before the field drifted.
    """

    def __init__(
        self,
        options: Campaign,
        model: Classifier,
        view: View,
        run: RunFolder,
        *,
        train: Samples,
        clean: Samples,
        labeller: Labeller,
        seed: int,
        engine: Engine,
        watch: Watch,
    ) -> None:
        self.options, self.view, self.folder = options, view, run
        self.train, self.clean, self.labeller = train, clean, labeller
        self.seed, self.engine, self.watch = seed, engine, watch
        self.model, self.accuracy = model, model.accuracy(clean)
        self.learned = self.labelled = train[:0]
        self.bought = torch.empty(0, dtype=torch.int64)
        self.suites: list[Suite] = []
        self.rounds: list[Round] = []

    def run(self) -> Delivered:
        reason = ""
        for number in range(self.options.rounds + 1):
            self.place = f"round-{number:03d}"
            self._tell("profile", number, self.options.rounds)
            self.view.arrive(number)
            if self.view.drifted:
                self.labelled = self.labelled[:0]
            self.rounds.append(self._turn(number))
            self._tell("round", number, self.options.rounds, round=str(self.rounds[-1]))
            if reason := self._ended(self.rounds[-1]):
                break
        return self._delivered(reason)

    # One round

    def _turn(self, number: int) -> Round:
        """Worked out, or read, with all that later rounds need of it."""
        finished = self.folder.has(f"{self.place}/round")
        done = self.folder.step(f"{self.place}/round", Round, partial(self._round, number))
        if finished:
            if done.chosen:
                self._learn(self.folder.suite(f"{self.place}/cases", self._gone))
            if done.changed:
                self.model = self.folder.weights(f"{self.place}/weights", self.model, self._gone)
            if done.assessment:
                self._take_in(done.assessment.labels)
        return done

    def _round(self, number: int) -> Round:
        if number == 0 or self.view.drifted:  # another field: first of all, how reliable is the model in it?
            stop = number > 0 and self.options.when_drifted == "stop"
            return self._told(number, drifted=self.view.drifted, assessment=None if stop else self._assess(number))
        shares = self.folder.step(f"{self.place}/shares", Shares, self._shares)
        found = self._generate(number, shares)
        good = found.operational(self.options.level, self.options.mass_quantile) if len(found) else found
        chosen = self.folder.suite(f"{self.place}/cases", partial(self._chosen, good))
        moves = good["move"].tolist() if len(good) else []
        done = {
            "decisions": shares.decisions,
            "attempted": found.attempted,
            "found": len(found),
            "operational": len(good),
            "moves": shares.moves,
            "by_move": {name: moves.count(name) for name in self.options.moves},
            "chosen": len(chosen),
        }
        if len(chosen) == 0:
            return self._told(number, **done)
        self._learn(chosen)
        record = self._retrain()
        assessment = self._assess(number) if record.best_epoch else None
        return self._told(number, **done, retraining=record, assessment=assessment)

    def _told(self, number: int, **what: Any) -> Round:
        cases, accuracy = len(self.learned), self.model.accuracy(self.clean)
        return Round(number=number, arrived=self.view.known, cases=cases, clean=accuracy, **what)

    # Where the seeds of a round come from

    def _shares(self) -> Shares:
        """As the field is spread or, with feedback, more of what fails and of what finds failures."""
        mass = self.view.profile.weights(self.train)
        by_class = torch.bincount(self.train.labels, mass, minlength=self.model.classes(self.train.x[:1]))
        by_cell = torch.bincount(self.view.cells(self.train.x), mass, minlength=len(self.view.centres))
        names = list(self.options.moves)
        equal = torch.full((len(names),), 1 / len(names), dtype=torch.float64)
        if not self.options.feedback or len(self.labelled) == 0:
            return _spread(by_class, by_cell, names, equal)
        failing = self.labelled[self.model.predict(self.labelled.x).cpu() != self.labelled.labels.cpu()]
        classes = allocate(torch.bincount(failing.labels, minlength=len(by_class)), by_class)
        cells = allocate(torch.bincount(self.view.cells(failing.x), minlength=len(by_cell)), by_cell)
        yields = torch.tensor([self._yield(name) for name in names])
        moves = allocate(yields, equal)
        why = f"{len(failing)} of {len(self.labelled)} labelled field inputs fail"
        finds = ", ".join(f"{n} gave {y:.0f}" for n, y in zip(names, yields.tolist(), strict=True))
        decisions = [
            _decision("seeds by class", by_class, classes, why),
            _decision("seeds by cell", by_cell, cells, why),
        ]
        if bool(yields.any()):
            why = f"of 100 seeds {finds} operational failures so far"
            decisions.append(_decision("moves", equal, moves, why, names))
        return _spread(classes, cells, names, moves, *decisions)

    def _yield(self, name: str) -> float:
        """Operational failures that a move made, of a hundred seeds that it was the first to be tried on."""
        tried = sum(r.attempted * r.moves.get(name, 0.0) for r in self.rounds)
        return 100 * sum(r.by_move.get(name, 0) for r in self.rounds) / tried if tried else 0.0

    def _seeds(self, shares: Shares) -> Samples:
        """Training inputs that the model gets right, where use and weakness meet, spread as was decided."""
        right = self.model.correct(self.train)
        if len(right) == 0:
            raise ValueError("the model gets no training input right; check labels and normalisation with doctor()")
        weights = combine(self.view.profile.weights(right), risk_of(self.model, right, margin_risk))
        weights = reweighted(weights, self.view.cells(right.x), torch.tensor(shares.cells))
        weights = reweighted(weights, right.labels.cpu(), torch.tensor(shares.classes))
        n = min(self.options.seeds_per_round, int((weights > 0).sum()))
        return draw(right, weights, n, design="sequential", generator=self._spawn("seeds")).samples(right)

    # Cases

    def _generate(self, number: int, shares: Shares) -> Suite:
        fuzz = OperationalFuzz(
            moves={name: make(naturalness=self.view.naturalness) for name, make in self.options.moves.items()},
            naturalness=self.view.naturalness,
            profile=self.view.profile,
            shares=shares.moves if len(shares.moves) > 1 else {},
            level=self.options.level,
            mass_quantile=self.options.mass_quantile,
        )
        seeds = self._seeds(shares)
        self.model.prepare(seeds.x)  # once for all chunks, whoever works on them
        work = Fuzzing(fuzz=fuzz, model=self.model, seeds=seeds, size=self.options.chunk, path=(self.seed, number))
        return run_chunks(
            self.folder,
            f"{self.place}/suite",
            work,
            work.chunks,
            batch_size=self.model.batch_size,
            engine=self.engine,
            watch=self.watch,
        )

    def _chosen(self, good: Suite) -> Suite:
        """Operational failures that together cover most, far from what was learned from.

        Seeds are drawn as the field has their like, so each failure stands for the same share of it.
        """
        n = min(len(good), self.options.cases_per_round, self.options.cases - len(self.learned))
        if n == 0:
            return self._none(good)
        codes, covered = (self.view.profile.encode(x).detach() for x in (good.x, self.learned.x))
        rows = select.operational(
            torch.ones(len(good)),
            n,
            codes=codes,
            covered=covered if len(covered) else None,
            shared=False,
            generator=self._spawn("select"),
        )
        kept: Suite = good[rows.sort().values]
        return kept

    @staticmethod
    def _none(suite: Suite) -> Suite:
        none: Suite = suite[:0]
        return none

    def _learn(self, chosen: Suite) -> None:
        cases = chosen.samples()
        self.learned = Samples.concat([self.learned, cases]) if len(self.learned) else cases
        self.suites.append(chosen)

    # Retrain

    def _retrain(self) -> OperationalRecord:
        """Train on from the present weights, within what is left of the accuracy that may be lost."""
        lost = self.accuracy - self.model.accuracy(self.clean)
        finetune = replace(
            self.options.finetune,
            monitor=pmi_monitor(self.labelled) if len(self.labelled) else None,
            max_drop=min(max(self.options.max_drop - lost, 0.0), 1.0),
            progress=False,
        )
        generator, weights = self._spawn("retrain"), f"{self.place}/weights"

        def work() -> OperationalRecord:
            with self.folder.writing("the state of retraining"):
                done = finetune(
                    self.model,
                    self.train,
                    self.learned,
                    validation=self.clean,
                    generator=generator,
                    checkpoint=self.folder.path / self.place / ".retraining.safetensors",
                )
            self.folder.weights(weights, self.model, lambda: done.model)
            return done.record

        self._tell("retrain", 0, 1, cases=str(len(self.learned)))
        record = self.folder.step(f"{self.place}/retraining", OperationalRecord, work)
        self.model = self.folder.weights(weights, self.model, self._gone)
        self._tell("retrain", 1, 1, record=str(record))
        return record

    # Assess

    def _assess(self, number: int) -> Assessed:
        pool = self.view.pool
        fresh = pool[torch.randperm(len(pool), generator=self._spawn("assessment"))]
        fresh = fresh[~torch.isin(fresh.ids, self.bought)]
        left = min(self.options.labels - len(self.bought), len(fresh))
        budget = self.folder.step(f"{self.place}/budget", Budget, partial(self._budget, number, left))

        def ask(i: int, asked: Samples) -> Tensor:
            self._tell("assess", i * self.options.label_batch, budget.most)
            known = self.folder.step(f"{self.place}/labels-{i:03d}", Known, partial(self._ask, asked))
            if not torch.equal(known.ids, asked.ids):
                raise ValueError(
                    f"{self.place}/labels-{i:03d}.json in {self.folder.path} has labels of other inputs than those to "
                    "be assessed: something before it has changed; put it back as it was, or choose a new folder"
                )
            return known.labels

        assessed = assess_round(
            self.model,
            fresh,
            ask,
            requirement=self.options.requirement,
            confidence=confidence_of(sum(r.assessment is not None for r in self.rounds), self.options.confidence),
            batch=self.options.label_batch,
            fewest=budget.fewest,
            most=budget.most,
        )
        self._take_in(assessed.labels)
        self._tell("assess", assessed.labels, assessed.labels, assessed=str(assessed))
        return assessed

    def _budget(self, number: int, left: int) -> Budget:
        """Labels of this round's assessment, settled when it begins: the campaign's budget may change in between."""
        fewest = max(1, min(50, self.options.labels // (self.options.rounds + 1)))
        return Budget(fewest=fewest, most=left if number == self.options.rounds else math.ceil(left * ROUND_SHARE))

    def _ask(self, asked: Samples) -> Known:
        return Known(ids=asked.ids, labels=self.labeller(Samples(asked.x, ids=asked.ids)).cpu())

    def _take_in(self, labels: int) -> None:
        """The labels of this round: from now on they are monitor and feedback, and are not drawn again."""
        for i in range(math.ceil(labels / self.options.label_batch)):
            known = self.folder.step(f"{self.place}/labels-{i:03d}", Known, self._gone)
            rows = rows_of(known.ids, self.view.pool)
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
        if len(self.learned) >= options.cases:
            return f"All cases are spent after round {number}"
        quiet = [not (r.changed or r.drifted) for r in self.rounds[1:]][-IN_VAIN:]
        if len(quiet) == IN_VAIN and all(quiet):
            return f"Rounds {number - 1} and {number} changed nothing"
        return f"All rounds are spent after round {number}" if number == options.rounds else ""

    @property
    def _latest(self) -> Assessed:
        return next(r.assessment for r in reversed(self.rounds) if r.assessment)

    def _delivered(self, reason: str) -> Delivered:
        last, wanted = self._latest, self.options.requirement
        met = last.upper <= wanted and not reason.startswith("Stopped")
        more = "" if met else f". To meet it: {missing(last, wanted)}"
        return Delivered(
            model=self.model,
            met=met,
            reason=f"{reason}: {last}; required {wanted:.2%}{more}.",
            assessment=last,
            suite=Suite.concat(self.suites) if self.suites else None,
            rounds=tuple(self.rounds),
        )

    def _gone(self) -> NoReturn:
        gone(self.folder.path / self.place)()

    def _spawn(self, *path: int | str) -> torch.Generator:
        return spawn(self.seed, self.place, *path)

    def _tell(self, step: str, done: int, total: int, **what: str) -> None:
        self.watch(Event(step=step, done=done, total=total, told=what))


@dataclass(frozen=True, kw_only=True, eq=False)
class Fuzzing:
    """The fuzzing of one round, a chunk of seeds at a time; another process can be asked for any of them."""

    fuzz: Fuzzer
    model: Classifier
    seeds: Samples
    size: int
    path: tuple[int, int]

    @property
    def chunks(self) -> int:
        return math.ceil(len(self.seeds) / self.size)

    def __call__(self, chunk: int, batch_size: int) -> Suite:
        some = self.seeds[chunk * self.size : (chunk + 1) * self.size]
        return self.fuzz(in_batches(self.model, batch_size), some, generator=spawn(*self.path, "fuzz", chunk))


def _spread(classes: Tensor, cells: Tensor, names: list[str], moves: Tensor, *decisions: Decision) -> Shares:
    by_name: Mapping[str, float] = dict(zip(names, moves.tolist(), strict=True))
    return Shares(
        classes=tuple(classes.tolist()), cells=tuple(cells.tolist()), moves=dict(by_name), decisions=decisions
    )


def _decision(what: str, old: Tensor, new: Tensor, why: str, names: list[str] | None = None) -> Decision:
    names = names or [str(i) for i in range(len(old))]
    return Decision(what=what, before=told(old, names), after=told(new, names), why=why)
