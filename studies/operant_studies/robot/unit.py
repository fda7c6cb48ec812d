"""One data set, one radius, one seed: train, make a pool of cases, choose, retrain, test; then the race of fuzzers.

Every step is written before the next begins, except for the pool, which is made again from the original weights.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from operant import measure, select
from operant.assess import Robustness, attack_cases, empirical_robustness
from operant.data import Samples
from operant.generate import FOLFuzz
from operant.generate.baselines import ADAPT, RandomMutation
from operant.model import Classifier
from operant.networks import LeNet5, initialise, load_weights, save_weights
from operant.rng import spawn
from operant.suite import Suite
from operant.types import Fuzzer
from operant_studies.robot.rivals import make_rival
from operant_studies.robot.settings import RobotSetting
from operant_studies.shared import Steps
from operant_studies.subjects import load_resnet20, read_dataset, train_once

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
STEP_SIZES = (1.0, 3.0, 6.0, 12.0)  # of the random mutation that ADAPT is compared with
MIN_RIVAL_CASES = 20  # with fewer cases of a rival, all are chosen
CHOOSE = {"be-st": select.be_st, "km-st": select.km_st, "deepgini": select.gini, "random": select.random}


@dataclass(frozen=True, kw_only=True)
class Quantiles:
    """Quantiles (5, 25, 50, 75, 95 %) of one value over cases."""

    n: int
    quantiles: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class CasePool:
    """The cases to choose from."""

    attempted: int
    fgsm: int
    pgd: int
    fol: Quantiles
    loss: Quantiles


@dataclass(frozen=True, kw_only=True)
class RetrainedModel:
    """A model after retraining, tested on inputs that nothing else uses.

    Attributes:
        strategy, share, n: choice of the cases, percentage of the pool (or CPU seconds of the race), and their number.
        best_epoch: 0 if the limit on clean accuracy kept the original weights.
        robustness: at the setting's radius, adaptive and static.
        pooled: accuracy on all static cases together, as in the paper.
        near: adaptive, PGD at a third of the radius.
        loss, fol: of the chosen cases (Fig. 4).
    """

    strategy: str
    share: float
    n: int
    best_epoch: int
    robustness: Robustness
    pooled: float
    near: Robustness
    loss: Quantiles | None
    fol: Quantiles | None


@dataclass(frozen=True, kw_only=True)
class OriginalModel:
    """The model before retraining, tested in the same way; ``pooled`` is 0 by construction."""

    robustness: Robustness
    pooled: float
    near: Robustness


@dataclass(frozen=True, kw_only=True)
class FirstOrderLosses:
    """First-order loss of the adversarial examples of one model, by attack (Fig. 5 and 6)."""

    model: str
    robust: float
    fgsm: Quantiles
    pgd: Quantiles


@dataclass(frozen=True, kw_only=True)
class CaseAccuracy:
    """Accuracy of retrained models, by name, on the cases of a fuzzer against the original one (Table IV)."""

    cases: int
    accuracy: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class CoverageCheck:
    """Mean neuron coverage of a seed, and after ``rows`` inputs of ADAPT and of random steps of the best length."""

    rows: int
    seed: float
    adapt: float
    random: float
    step_size: float


@dataclass(frozen=True, kw_only=True)
class RaceResult:
    """Progress of a fuzzer at each time limit: CPU seconds spent, cases found, seeds tried."""

    fuzzer: str
    seconds: tuple[float, ...]
    cases: tuple[int, ...]
    seeds: tuple[int, ...]


class RobotUnit:
    """The experiments on one setting with one seed, in one folder."""

    def __init__(self, setting: RobotSetting, seed: int, *, data: Path | None, folder: Path) -> None:
        self.setting, self.seed, self.data = setting, seed, data
        self.steps = Steps(folder / f"{setting.name}-seed{seed}")

    def run(self) -> None:
        """Run all steps that are not finished."""
        s = self.setting
        self.steps.step("original", OriginalModel, lambda: OriginalModel(**self._measure(self.original)))
        self.steps.step("pool", CasePool, self._pool)
        self._judge("control", 0)
        for share in s.shares:
            for strategy in s.strategies:
                self._judge(strategy, share)
        for model in ("original", *(f"be-st-{share}" for share in s.shares if share in (5, 10))):
            self.steps.step(f"fol-{model}", FirstOrderLosses, partial(self._fols, model))
        if s.race:
            self.steps.step("on-adapt", CaseAccuracy, partial(self._on_cases, "adapt"))
            self.steps.step("fair", CoverageCheck, self._fair)
            for name in s.racers:
                self._race(name)
            for name in s.rivals:
                self.steps.step(f"on-{name}", CaseAccuracy, partial(self._on_cases, name))
                for strategy in s.strategies:
                    self._judge(strategy, s.shares[-1], rival=name)

    # Data and models

    @cached_property
    def samples(self) -> dict[str, Samples]:
        """Training, validation and test inputs; only this seed has these test inputs.

        Existing weights were trained on all training inputs; their validation inputs are the last test inputs.
        """
        s, data = self.setting, read_dataset(self.setting.dataset, self.data)
        start = s.test * self.seed
        given = s.dataset == "cifar10"
        parts = {
            "train": data.train[: s.train],
            "validation": data.test[-s.validation :] if given else data.train[s.train : s.train + s.validation],
            "test": data.test[start : start + s.test],
        }
        for name, part in parts.items():
            if len(part) < getattr(s, name):
                raise ValueError(f"{s.dataset} has too few inputs: {name} needs {getattr(s, name)}, got {len(part)}")
        return parts

    @cached_property
    def original(self) -> Classifier:
        """The model before retraining: LeNet-5 trained here, or ResNet-20 with its existing weights."""
        if self.setting.dataset == "cifar10":
            return load_resnet20(self.data)
        return self._lenet("original")

    def _others(self) -> tuple[Classifier, ...]:
        """Two more networks of the same kind, for DeepXplore."""
        return self._lenet("other1", "other1"), self._lenet("other2", "other2")

    def _lenet(self, name: str, *path: str) -> Classifier:
        """A network trained for this seed; ``path`` seeds random numbers other than the original's."""
        file, train = self.steps.folder / f"{name}.safetensors", self.samples["train"]
        start, order = self._random("w", *path), self._random("train", *path)
        module = initialise(lambda: LeNet5(channels=train.shape[0], size=train.shape[1]), generator=start)
        return train_once(module, file, train, epochs=self.setting.epochs, generator=order)

    def _random(self, *path: str | int) -> torch.Generator:
        return spawn(self.seed, "robot", self.setting.name, *path)

    # The pool of cases and the choice from it

    @cached_property
    def pool(self) -> Suite:
        """Failures of FGSM and PGD on the training inputs, with FOL, loss and Gini of each."""
        return self._rated(
            attack_cases(self.original, self.samples["train"], self.setting.attacks(), generator=self._random("pool"))
        )

    def _rated(self, cases: Suite) -> Suite:
        x, y = cases.x, cases.label
        fol = measure.first_order_loss(self.original, x, y, x0=cases.x0, radius=self.setting.radius)
        probs = self.original.probs(x)
        return cases.with_columns(fol=fol, gini=measure.gini(probs), loss=measure.zero_order_loss(self.original, x, y))

    def _pool(self) -> CasePool:
        fgsm, pgd = (int((self.pool.method == name).sum()) for name in ("fgsm", "pgd"))
        fol, loss = quantiles(self.pool["fol"]), quantiles(self.pool["loss"])
        return CasePool(attempted=len(self.samples["train"]), fgsm=fgsm, pgd=pgd, fol=fol, loss=loss)

    def _judge(self, strategy: str, share: float, rival: str = "") -> RetrainedModel:
        """Retrain with cases of the pool, or with those that a rival found in the race, and test the model."""
        arm = f"{rival}.{strategy}" if rival else strategy
        return self.steps.step(
            f"judged-{arm}-{share:g}",
            RetrainedModel,
            lambda: self._retrained(arm, share, self._chosen(strategy, share, rival)),
        )

    def _chosen(self, strategy: str, share: float, rival: str) -> Suite | None:
        if strategy == "control":
            return None
        pool = Suite.open(self._place(rival)) if rival else self.pool
        if rival and len(pool) < MIN_RIVAL_CASES:
            return pool
        pool = self._rated(pool) if rival else pool
        values, n = pool["gini" if strategy == "deepgini" else "fol"], max(int(len(pool) * share / 100), 2)
        path = ("choose", strategy, f"{share:g}", *([rival] if rival else []))
        chosen: Suite = pool[CHOOSE[strategy](values, n, generator=self._random(*path))]
        return chosen

    # Retraining and testing

    def _retrained(self, strategy: str, share: float, cases: Suite | None) -> RetrainedModel:
        train = self.samples["train"]
        retrained = self.setting.finetune(
            self.original,
            train,
            train[:0] if cases is None else cases.samples(),
            validation=self.samples["validation"],
            monitor=self._monitor,
            generator=self._random("finetune"),
        )
        save_weights(retrained.model.unwrap(), self.steps.folder / f"{strategy}-{share:g}.safetensors")
        return RetrainedModel(
            strategy=strategy,
            share=share,
            n=0 if cases is None else len(cases),
            best_epoch=retrained.record.best_epoch,
            **self._measure(retrained.model),
            loss=quantiles(cases["loss"]) if cases is not None and "loss" in cases.columns else None,
            fol=quantiles(cases["fol"]) if cases is not None and "fol" in cases.columns else None,
        )

    def _measure(self, model: Classifier) -> dict[str, Any]:
        """The robustness of a model on the test inputs."""
        test, static = self.samples["test"], self.static["test"]
        attacks, near = self.setting.attacks(), self.setting.near()
        return {
            "robustness": empirical_robustness(model, test, attacks, cases=static, generator=self._random("judge")),
            "near": empirical_robustness(model, test, near, generator=self._random("near")),
            "pooled": accuracy(model, static),
        }

    @cached_property
    def static(self) -> dict[str, Suite]:
        """Cases made once against the original: of validation inputs, to choose epochs, and of test inputs."""
        return {
            role: attack_cases(
                self.original, self.samples[role], self.setting.attacks(), generator=self._random("static", role)
            )
            for role in ("validation", "test")
        }

    def _monitor(self, model: Classifier) -> float:
        return 1 - accuracy(model, self.static["validation"])

    # First-order loss of models that grow more robust

    def _fols(self, model: str) -> FirstOrderLosses:
        classifier = self.original if model == "original" else self._load(model)
        test = self.samples["test"]
        cases = attack_cases(classifier, test, self.setting.attacks(), generator=self._random("fol"))
        fgsm, pgd = fol_by_attack(classifier, cases, self.setting.radius)
        return FirstOrderLosses(model=model, robust=accuracy(classifier, self.static["test"]), fgsm=fgsm, pgd=pgd)

    def _on_cases(self, fuzzer: str) -> CaseAccuracy:
        seeds = self.samples["test"][: self.setting.adapt_seeds]
        cases = self._racer(fuzzer)[0](self.original, seeds, generator=self._random(fuzzer)).failures()
        models = ["control-0", *(f"{strategy}-{self.setting.shares[-1]}" for strategy in self.setting.strategies)]
        return CaseAccuracy(cases=len(cases), accuracy={name: accuracy(self._load(name), cases) for name in models})

    def _load(self, model: str) -> Classifier:
        module = self.original.unwrap()
        return self.original.rewrap(load_weights(module, self.steps.folder / f"{model}.safetensors"))

    # The race

    def _race(self, name: str) -> None:
        """Run one fuzzer against the clock, then retrain with the cases that it had found at each limit."""
        place = self._place(name)
        race = self.steps.step(f"race-{name}", RaceResult, lambda: self._run_against_the_clock(name, place))
        for limit, cases in zip(self.setting.race, race.cases, strict=True):
            step = partial(lambda limit, n: self._retrained(name, limit, Suite.open(place)[:n]), limit, cases)
            self.steps.step(f"judged-{name}-{limit:g}", RetrainedModel, step)

    def _place(self, name: str) -> Path:
        return self.steps.folder / f"race-{name}"

    def _racer(self, name: str) -> tuple[Fuzzer, int]:
        """A fuzzer, and its number of seeds between checks of the clock."""
        if name in self.setting.rivals:
            return make_rival(name, self.setting, self._others)
        if name == "fol-fuzz":
            return FOLFuzz(radius=self.setting.radius), 32
        adapt = self._adapt()
        return adapt if name == "adapt" else replace(adapt, radius=self.setting.radius, norm="linf"), 8

    def _run_against_the_clock(self, name: str, place: Path) -> RaceResult:
        """Fuzz chunks of training inputs until the last limit; a started chunk is finished.

        The cases are written to ``place``.
        """
        fuzzer, chunk = self._racer(name)
        suites: list[Suite] = []
        seconds, cases, seeds = [], [], []
        limits, model = list(self.setting.race), self.original
        order = torch.randperm(len(self.samples["train"]), generator=self._random("race", name))
        start = time.process_time()
        for number, rows in enumerate(order.split(chunk)):
            some = model.correct(self.samples["train"][rows])
            if len(some):
                suites.append(fuzzer(model, some, generator=self._random("race", name, number)).failures())
            spent = time.process_time() - start
            while limits and (spent >= limits[0] or rows[-1] == order[-1]):
                seconds.append(spent)
                cases.append(sum(map(len, suites)))
                seeds.append(number * chunk + len(rows))
                limits.pop(0)
            if not limits:
                break
        shutil.rmtree(place, ignore_errors=True)  # incomplete, from a killed run
        Suite.concat(suites).save(place)
        return RaceResult(fuzzer=name, seconds=tuple(seconds), cases=tuple(cases), seeds=tuple(seeds))

    def _adapt(self) -> ADAPT:
        """ADAPT with its published settings: relative L2 distance below .5."""
        return ADAPT(radius=0.5, norm="relative-l2", rows_per_seed=self.setting.adapt_rows)

    def _fair(self) -> CoverageCheck:
        """Check that ADAPT works: it must cover more than random steps with as many inputs."""
        fuzzer, seeds = self._adapt(), self.samples["test"][: self.setting.adapt_seeds]
        grown = fuzzer.explore(self.original, seeds, generator=self._random("fair")).coverage.mean(0)
        others = {}
        for size in STEP_SIZES:
            rival = RandomMutation(
                radius=fuzzer.radius, norm=fuzzer.norm, rows_per_seed=fuzzer.rows_per_seed, step_size=size
            )
            found = rival.explore(self.original, seeds, generator=self._random("fair", f"{size:g}"))
            others[float(found.coverage.mean(0)[-1])] = size
        best = max(others)
        return CoverageCheck(
            rows=fuzzer.rows_per_seed,
            seed=float(grown[0]),
            adapt=float(grown[-1]),
            random=best,
            step_size=others[best],
        )


def accuracy(model: Classifier, cases: Suite) -> float:
    return float((model.predict(cases.x) == cases.label).double().mean()) if len(cases) else 0.0


def fol_by_attack(model: Classifier, cases: Suite, radius: float) -> tuple[Quantiles, Quantiles]:
    """First-order loss of FGSM's cases and of PGD's."""
    fol = torch.zeros(0)
    if len(cases):
        fol = measure.first_order_loss(model, cases.x, cases.label, x0=cases.x0, radius=radius)
    fgsm, pgd = (quantiles(fol[torch.from_numpy(cases.method == name)]) for name in ("fgsm", "pgd"))
    return fgsm, pgd


def quantiles(values: Tensor) -> Quantiles:
    if len(values) == 0:
        return Quantiles(n=0, quantiles=())
    return Quantiles(
        n=len(values), quantiles=tuple(values.double().quantile(torch.tensor(QUANTILES, dtype=torch.float64)).tolist())
    )
