"""RobOT's loop: fuzz, choose, retrain, and again, until the model is as robust as it must be."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from operant import results
from operant.assess import Rate, Robustness, attack_cases, empirical_robustness
from operant.assess.robustness import MODES
from operant.data import Samples
from operant.model import Classifier
from operant.networks import load_weights, save_weights
from operant.results import write_atomically
from operant.retrain import Finetune, FinetuneRecord, Retrained
from operant.rng import spawn
from operant.select import be_st
from operant.suite import Suite
from operant.types import Fuzzer

FREE = ("rounds", "requirement")  # options that decide only when to stop


@dataclass(frozen=True, kw_only=True)
class Round:
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


@dataclass(frozen=True, kw_only=True)
class Hardened:
    """The model after the last round, whether it meets the requirement, and how it came about."""

    model: Classifier = field(repr=False)
    met: bool
    reason: str
    rounds: tuple[Round, ...]

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

    Every finished round is on disk before the next begins; called again with the same folder, the loop goes on where it
    stopped and ends with the same rounds. Each round fuzzes other training inputs, drawn at random. The epoch is chosen
    on the validation samples, the requirement is checked on the test samples, and neither is ever learned from. Clean
    accuracy may fall by ``finetune.max_drop`` in all, not in every round.

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
    finetune: Finetune = Finetune()  # noqa: RUF009  # frozen

    def __post_init__(self) -> None:
        if not 0 <= self.requirement <= 1:
            raise ValueError(f"requirement must be a share of inputs from 0 to 1, got {self.requirement}")
        if self.mode not in MODES:
            raise ValueError(f'mode must be "adaptive" or "static", got {self.mode!r}')
        if min(self.seeds_per_round, self.cases_per_round, self.rounds) < 1:
            raise ValueError(
                "seeds_per_round, cases_per_round and rounds must be at least 1, got "
                f"{self.seeds_per_round}, {self.cases_per_round} and {self.rounds}"
            )

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
    ) -> Hardened:
        """Run the loop, or go on with it.

        Args:
            model: where to start from; it stays as it is.
            train: labelled training data, to fuzz from and to learn from.
            validation: labelled; chooses the epoch of each retraining.
            test: labelled; what the requirement is checked on.
            folder: where rounds are kept.
            seed: of everything random.
            console: where to tell what happens; nowhere unless given.
        """
        loop = _Loop(self, model, train, validation, test, Path(folder), seed, console or Console(quiet=True))
        return loop.run()


class _Loop:
    """A run of Algorithm 1 in a folder."""

    def __init__(
        self,
        options: RobOT,
        original: Classifier,
        train: Samples,
        validation: Samples,
        test: Samples,
        folder: Path,
        seed: int,
        console: Console,
    ) -> None:
        _check_apart(train=train, validation=validation, test=test)
        self.options, self.original, self.train, self.folder = options, original, train, folder
        self.seed, self.console = seed, console
        self.judges = {"validation": validation, "test": test}
        self.model, self.cases = original, train[:0]
        signature = self._signature()
        _check_same_run(folder, signature)
        self.static = {role: self._static_cases(role) for role in self.judges}
        self.accuracy = original.accuracy(validation)
        _sign(folder, signature)  # last: what cannot run leaves the folder free

    def run(self) -> Hardened:
        rounds: list[Round] = []
        finished = len(list(self.folder.glob("round-*/round.json"))) - 1
        for number in range(max(self.options.rounds, finished) + 1):
            rounds.append(self._round(number))
            self._tell(rounds[-1])
            if rounds[-1].robustness.value >= self.options.requirement:
                return self._end(rounds, met=True, reason=f"The requirement was met after round {number}")
            if number and rounds[-1].found == 0:
                return self._end(rounds, met=False, reason=f"Round {number} found no failure to learn from")
        return self._end(rounds, met=False, reason=f"The budget is spent after round {number}")

    def _end(self, rounds: list[Round], *, met: bool, reason: str) -> Hardened:
        value, wanted = rounds[-1].robustness.value, self.options.requirement
        told = f"{reason}: {self.options.mode} robustness {value:.1%}, required {wanted:.1%}"
        return Hardened(model=self.model, met=met, reason=told, rounds=tuple(rounds))

    # One round: read if it is there, else worked out and written

    def _round(self, number: int) -> Round:
        place = self.folder / f"round-{number:03d}"
        if (place / "round.json").exists():
            return self._read(place)
        place.mkdir(exist_ok=True)
        done = Round(number=0, robustness=self._robustness(self.model, "test")) if number == 0 else self._work(number)
        results.save(done, place / "round.json")  # last: without it the round has not been
        return done

    def _read(self, place: Path) -> Round:
        try:
            done = results.load(place / "round.json", Round)
            if done.chosen:
                self._learned(_read_cases(place / "cases", done.chosen))
                self.model = self._read_model(place)
        except (ValueError, OSError) as error:
            raise ValueError(
                f"a finished round cannot be read: {error}. Delete the folder {place} to have it worked out again"
            ) from None
        return done

    def _read_model(self, place: Path) -> Classifier:
        return self.original.rewrap(load_weights(self.original.unwrap(), place / "weights.safetensors"))

    def _work(self, number: int) -> Round:
        options, place = self.options, self.folder / f"round-{number:03d}"
        suite = options.fuzz(self.model, self._seeds(number), generator=spawn(self.seed, number, "fuzz")).failures()
        if len(suite) == 0:
            robustness = self._robustness(self.model, "test")
            return Round(number=number, attempted=suite.attempted, cases=len(self.cases), robustness=robustness)
        chosen = self._choose(suite, number)
        _write_cases(chosen, place / "cases")
        self._learned(chosen.samples())
        retrained = self._retrain(number)
        save_weights(retrained.model.unwrap(), place / "weights.safetensors")
        self.model = self._read_model(place)  # goes on from what is on disk, as a later run would
        return Round(
            number=number,
            found=len(suite),
            attempted=suite.attempted,
            broken=len(suite.seed.unique()),
            chosen=len(chosen),
            cases=len(self.cases),
            branches=_branches(suite),
            retraining=retrained.record,
            robustness=self._robustness(self.model, "test"),
        )

    def _seeds(self, number: int) -> Samples:
        """Training inputs that the model gets right, other ones in each round until all had their turn."""
        order = torch.randperm(len(self.train), generator=spawn(self.seed, "order"))
        n = min(self.options.seeds_per_round, len(order))
        start = (number - 1) * n % len(order)
        seeds = self.model.correct(self.train[torch.cat([order, order])[start : start + n]])
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
        rows = options.select(suite[options.value], n, generator=spawn(self.seed, number, "select"))
        chosen: Suite = suite[rows.sort().values]
        return chosen

    def _learned(self, cases: Samples) -> None:
        self.cases = Samples.concat([self.cases, cases]) if len(self.cases) else cases

    def _retrain(self, number: int) -> Retrained:
        """Train on from the present weights, within what is left of the accuracy that may be lost."""
        lost = self.accuracy - self.model.accuracy(self.judges["validation"])
        left = min(max(self.options.finetune.max_drop - lost, 0.0), 1.0)
        return replace(self.options.finetune, max_drop=left)(
            self.model,
            self.train,
            self.cases,
            validation=self.judges["validation"],
            monitor=lambda model: 1 - self._robustness(model, "validation").value,
            generator=spawn(self.seed, number, "finetune"),
        )

    def _static_cases(self, role: str) -> Suite | None:
        """Cases against the original model; none if it withstands every attack."""
        options, samples = self.options, self.judges[role]
        if len(self.original.correct(samples)) == 0:
            raise ValueError(
                f"the model classifies none of the {len(samples)} {role} samples correctly; "
                "check labels, bounds and normalisation with doctor()"
            )
        cases = attack_cases(self.original, samples, options.attacks, generator=spawn(self.seed, "static", role))
        if len(cases) == 0 and options.mode == "static":
            raise ValueError(
                f"the model withstands every attack on the {role} samples, so there are no static cases to judge on; "
                'give stronger attacks, or mode="adaptive"'
            )
        return cases if len(cases) else None

    def _robustness(self, model: Classifier, role: str) -> Robustness:
        return empirical_robustness(
            model,
            self.judges[role],
            self.options.attacks,
            mode=self.options.mode,
            cases=self.static[role],
            generator=spawn(self.seed, "judge", role),  # the same in every round: luck must not add up
        )

    def _tell(self, done: Round) -> None:
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

    def _signature(self) -> dict[str, str]:
        """What must be the same for a folder to be gone on with; when to stop may change."""
        options = replace(self.options, finetune=replace(self.options.finetune, progress=False))
        return {
            **{f.name: _without_places(repr(getattr(options, f.name))) for f in fields(options) if f.name not in FREE},
            "seed": str(self.seed),
            "model": _hash(*_content(self.original)),
            **{
                name: _hash(_bytes(samples.ids), _bytes(samples.labels))
                for name, samples in {"train": self.train, **self.judges}.items()
            },
        }


def _write_cases(cases: Suite, place: Path) -> None:
    """Replace what a round that was killed may have left."""
    if place.exists():
        for file in place.iterdir():
            file.unlink()
    cases.save(place)


def _read_cases(place: Path, n: int) -> Samples:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they would say is said below
        cases = Suite.open(place)
    if len(cases) != n:
        raise ValueError(f"{place} must hold {n} cases, got {len(cases)}; {'; '.join(cases.refused)}")
    return cases.samples()


def _branches(suite: Suite) -> dict[str, int]:
    if "branch" not in suite.columns:
        return {}
    names = suite["branch"].tolist()
    return {name: names.count(name) for name in sorted(set(names))}


def _content(model: Classifier) -> list[bytes]:
    """Everything that decides what a model computes, as far as one can see from outside."""
    module = model.unwrap()
    settings = [_without_places(repr(module)), repr((model.bounds, model._mean, model._std))]
    weights = [part for name, v in module.state_dict().items() for part in (name.encode(), _bytes(v))]
    return [*(text.encode() for text in settings), *weights]


def _without_places(text: str) -> str:
    """Functions and objects without where in memory they are."""
    return re.sub(r" at 0x\w+", "", text)


def _bytes(values: Tensor) -> bytes:
    return values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _hash(*parts: bytes) -> str:
    return hashlib.blake2b(b"\0".join(parts), digest_size=8).hexdigest()


def _check_same_run(folder: Path, signature: dict[str, str]) -> None:
    """Refuse to mix two runs."""
    path = folder / "run.json"
    if not path.exists() and not list(folder.glob("round-*")):
        return
    try:
        known = dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError, RecursionError, OSError):
        raise ValueError(
            f"{path} is damaged or missing; choose a new folder, or delete this one to start again"
        ) from None
    if changed := [name for name in signature if known.get(name) != signature[name]]:
        raise ValueError(
            f"{folder} holds a run with another {' and another '.join(changed)}; "
            "choose a new folder, or put things back as they were"
        )


def _sign(folder: Path, signature: dict[str, str]) -> None:
    """Write what the run is made of."""
    if not (folder / "run.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "run.json", json.dumps(signature, indent=2).encode() + b"\n")


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
