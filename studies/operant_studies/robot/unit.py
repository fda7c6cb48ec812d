"""One data set, one radius, one seed: train, make a pool of cases, choose, retrain, judge; then the race of fuzzers.

Every step is on disk before the next begins. The pool is not: it is made again from the original weights.
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
from operant.networks import LeNet5, ResNet20, fit, initialise, load_weights, save_weights
from operant.rng import spawn
from operant.suite import Suite
from operant.types import Fuzzer
from operant_studies.robot.rivals import make_rival
from operant_studies.robot.settings import Setting
from operant_studies.shared import Steps
from operant_studies.subjects import find_resnet20

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
STEP_SIZES = (1.0, 3.0, 6.0, 12.0)  # of the random steps that ADAPT is compared with
FEW = 20  # cases of a rival that are too few to choose from
CHOOSE = {"be-st": select.be_st, "km-st": select.km_st, "deepgini": select.gini, "random": select.random}


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Quantiles (5, 25, 50, 75, 95 %) of one value over cases."""

    n: int
    quantiles: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The cases there were to choose from."""

    attempted: int
    fgsm: int
    pgd: int
    fol: Spread
    loss: Spread


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A model after retraining, on test inputs that nothing else has seen.

    Attributes:
        strategy, share, n: how the cases were chosen, percent of the pool (or CPU seconds of the race), and how many.
        best_epoch: 0 if the guard on clean accuracy kept the original weights.
        robustness: at the setting's radius, adaptive and static.
        pooled: accuracy on all static cases together, the paper's number.
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
    loss: Spread | None
    fol: Spread | None


@dataclass(frozen=True, kw_only=True)
class Original:
    """The model before any retraining, judged as those after it; ``pooled`` is 0 by construction."""

    robustness: Robustness
    pooled: float
    near: Robustness


@dataclass(frozen=True, kw_only=True)
class FOLs:
    """First-order loss of the adversarial examples of one model, by attack (Fig. 5 and 6)."""

    model: str
    robust: float
    fgsm: Spread
    pgd: Spread


@dataclass(frozen=True, kw_only=True)
class OnAdapt:
    """Accuracy of retrained models, by name, on the cases that ADAPT made against the original one (Table IV)."""

    cases: int
    accuracy: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Fair:
    """Mean neuron coverage of a seed's inputs: at the seed, and after ``rows`` inputs of ADAPT and of random steps.

    Random steps have the best of several lengths.
    """

    rows: int
    seed: float
    adapt: float
    random: float
    step_size: float


@dataclass(frozen=True, kw_only=True)
class Race:
    """What a fuzzer had found at each time limit: CPU seconds really spent, cases, seeds tried."""

    fuzzer: str
    seconds: tuple[float, ...]
    cases: tuple[int, ...]
    seeds: tuple[int, ...]


class Unit:
    """The experiments on one setting with one seed, in a folder of their own."""

    def __init__(self, setting: Setting, seed: int, *, data: Path | None, folder: Path) -> None:
        self.setting, self.seed, self.data = setting, seed, data
        self.steps = Steps(folder / f"{setting.name}-seed{seed}")

    def run(self) -> None:
        """Everything that is not there yet."""
        s = self.setting
        self.steps.step("original", Original, lambda: Original(**self._told(self.original)))
        self.steps.step("pool", Pool, self._pool)
        self._judge("control", 0)
        for share in s.shares:
            for strategy in s.strategies:
                self._judge(strategy, share)
        for model in ("original", *(f"be-st-{share}" for share in s.shares if share in (5, 10))):
            self.steps.step(f"fol-{model}", FOLs, partial(self._fols, model))
        if s.race:
            self.steps.step("on-adapt", OnAdapt, partial(self._on_cases, "adapt"))
            self.steps.step("fair", Fair, self._fair)
            for name in s.racers:
                self._race(name)
            for name in s.rivals:
                self.steps.step(f"on-{name}", OnAdapt, partial(self._on_cases, name))
                for strategy in s.strategies:
                    self._judge(strategy, s.shares[-1], rival=name)

    # Data and models

    @cached_property
    def samples(self) -> dict[str, Samples]:
        """Training, validation and test inputs; the test inputs are this seed's own.

        Given weights have learned from all training inputs: there, validation inputs are the last test inputs.
        """
        s, data = self.setting, self.setting.read(self.data)
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
        """The model before any retraining: LeNet-5 trained here, or ResNet-20 with the weights that were given."""
        if self.setting.dataset == "cifar10":
            weights = None if self.data is None else find_resnet20(self.data)
            assert weights is not None  # else the settings would have left CIFAR-10 out
            mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
            return Classifier(load_weights(ResNet20(), weights), mean=mean, std=std)
        return self._lenet("original")

    def _others(self) -> tuple[Classifier, ...]:
        """Two more of the original's kind, for DeepXplore to compare it with."""
        return self._lenet("other1", "other1"), self._lenet("other2", "other2")

    def _lenet(self, name: str, *path: str) -> Classifier:
        """A network that is trained once; ``path`` tells its random numbers from the original's."""
        file, train = self.steps.folder / f"{name}.safetensors", self.samples["train"]
        start, order = self._random("w", *path), self._random("train", *path)
        module = initialise(lambda: LeNet5(channels=train.shape[0], size=train.shape[1]), generator=start)
        if not file.exists():
            fitted = fit(module, train, epochs=self.setting.epochs, generator=order, progress=False)
            save_weights(fitted.module, file)
        return Classifier(load_weights(module, file))

    def _random(self, *path: str | int) -> torch.Generator:
        return spawn(self.seed, "robot", self.setting.name, *path)

    # The pool of cases and what is chosen from it

    @cached_property
    def pool(self) -> Suite:
        """FGSM's and PGD's failures on the training inputs, with FOL, loss and Gini of each."""
        return self._rated(
            attack_cases(self.original, self.samples["train"], self.setting.attacks(), generator=self._random("pool"))
        )

    def _rated(self, cases: Suite) -> Suite:
        x, y = cases.x, cases.label
        fol = measure.first_order_loss(self.original, x, y, x0=cases.x0, radius=self.setting.radius)
        probs = self.original.probs(x)
        return cases.with_columns(fol=fol, gini=measure.gini(probs), loss=measure.zero_order_loss(self.original, x, y))

    def _pool(self) -> Pool:
        fgsm, pgd = (int((self.pool.method == name).sum()) for name in ("fgsm", "pgd"))
        fol, loss = spread(self.pool["fol"]), spread(self.pool["loss"])
        return Pool(attempted=len(self.samples["train"]), fgsm=fgsm, pgd=pgd, fol=fol, loss=loss)

    def _judge(self, strategy: str, share: float, rival: str = "") -> Judged:
        """A model retrained with cases of the pool or, if one is named, of what a rival found in the race."""
        arm = f"{rival}.{strategy}" if rival else strategy
        return self.steps.step(
            f"judged-{arm}-{share:g}",
            Judged,
            lambda: self._retrained(arm, share, self._chosen(strategy, share, rival)),
        )

    def _chosen(self, strategy: str, share: float, rival: str) -> Suite | None:
        if strategy == "control":
            return None
        pool = Suite.open(self._place(rival)) if rival else self.pool
        if rival and len(pool) < FEW:
            return pool
        pool = self._rated(pool) if rival else pool
        values, n = pool["gini" if strategy == "deepgini" else "fol"], max(int(len(pool) * share / 100), 2)
        path = ("choose", strategy, f"{share:g}", *([rival] if rival else []))
        chosen: Suite = pool[CHOOSE[strategy](values, n, generator=self._random(*path))]
        return chosen

    # Retraining and judging

    def _retrained(self, strategy: str, share: float, cases: Suite | None) -> Judged:
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
        return Judged(
            strategy=strategy,
            share=share,
            n=0 if cases is None else len(cases),
            best_epoch=retrained.record.best_epoch,
            **self._told(retrained.model),
            loss=spread(cases["loss"]) if cases is not None and "loss" in cases.columns else None,
            fol=spread(cases["fol"]) if cases is not None and "fol" in cases.columns else None,
        )

    def _told(self, model: Classifier) -> dict[str, Any]:
        """How a model does on the test inputs."""
        test, static = self.samples["test"], self.static["test"]
        attacks, near = self.setting.attacks(), self.setting.near()
        return {
            "robustness": empirical_robustness(model, test, attacks, cases=static, generator=self._random("judge")),
            "near": empirical_robustness(model, test, near, generator=self._random("near")),
            "pooled": accuracy(model, static),
        }

    @cached_property
    def static(self) -> dict[str, Suite]:
        """Cases made once against the original: of validation inputs to choose epochs, of test inputs to judge."""
        return {
            role: attack_cases(
                self.original, self.samples[role], self.setting.attacks(), generator=self._random("static", role)
            )
            for role in ("validation", "test")
        }

    def _monitor(self, model: Classifier) -> float:
        return 1 - accuracy(model, self.static["validation"])

    # First-order loss of models that grow more robust

    def _fols(self, model: str) -> FOLs:
        classifier = self.original if model == "original" else self._load(model)
        test = self.samples["test"]
        cases = attack_cases(classifier, test, self.setting.attacks(), generator=self._random("fol"))
        fgsm, pgd = fol_by_attack(classifier, cases, self.setting.radius)
        return FOLs(model=model, robust=accuracy(classifier, self.static["test"]), fgsm=fgsm, pgd=pgd)

    def _on_cases(self, fuzzer: str) -> OnAdapt:
        seeds = self.samples["test"][: self.setting.adapt_seeds]
        cases = self._racer(fuzzer)[0](self.original, seeds, generator=self._random(fuzzer)).failures()
        models = ["control-0", *(f"{strategy}-{self.setting.shares[-1]}" for strategy in self.setting.strategies)]
        return OnAdapt(cases=len(cases), accuracy={name: accuracy(self._load(name), cases) for name in models})

    def _load(self, model: str) -> Classifier:
        module = self.original.unwrap()
        return self.original.rewrap(load_weights(module, self.steps.folder / f"{model}.safetensors"))

    # The race

    def _race(self, name: str) -> None:
        """Run one fuzzer against the clock, then retrain with what it had found at each limit."""
        place = self._place(name)
        race = self.steps.step(f"race-{name}", Race, lambda: self._run_against_the_clock(name, place))
        for limit, cases in zip(self.setting.race, race.cases, strict=True):
            step = partial(lambda limit, n: self._retrained(name, limit, Suite.open(place)[:n]), limit, cases)
            self.steps.step(f"judged-{name}-{limit:g}", Judged, step)

    def _place(self, name: str) -> Path:
        return self.steps.folder / f"race-{name}"

    def _racer(self, name: str) -> tuple[Fuzzer, int]:
        """A fuzzer, and how many seeds it works on between two looks at the clock."""
        if name in self.setting.rivals:
            return make_rival(name, self.setting, self._others)
        if name == "fol-fuzz":
            return FOLFuzz(radius=self.setting.radius), 32
        return (
            self._adapt() if name == "adapt" else replace(self._adapt(), radius=self.setting.radius, norm="linf")
        ), 8

    def _run_against_the_clock(self, name: str, place: Path) -> Race:
        """Chunk after chunk of training inputs until the longest time is spent; a chunk that has begun is finished.

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
        shutil.rmtree(place, ignore_errors=True)  # what a kill may have left
        Suite.concat(suites).save(place)
        return Race(fuzzer=name, seconds=tuple(seconds), cases=tuple(cases), seeds=tuple(seeds))

    def _adapt(self) -> ADAPT:
        """At its published settings: its own distance, relative L2 below .5."""
        return ADAPT(radius=0.5, norm="relative-l2", rows_per_seed=self.setting.adapt_rows)

    def _fair(self) -> Fair:
        """Is ADAPT a rival worth racing? It must cover more than random steps do with as many inputs."""
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
        return Fair(
            rows=fuzzer.rows_per_seed,
            seed=float(grown[0]),
            adapt=float(grown[-1]),
            random=best,
            step_size=others[best],
        )


def accuracy(model: Classifier, cases: Suite) -> float:
    return float((model.predict(cases.x) == cases.label).double().mean()) if len(cases) else 0.0


def fol_by_attack(model: Classifier, cases: Suite, radius: float) -> tuple[Spread, Spread]:
    """First-order loss of FGSM's cases and of PGD's."""
    fol = torch.zeros(0)
    if len(cases):
        fol = measure.first_order_loss(model, cases.x, cases.label, x0=cases.x0, radius=radius)
    fgsm, pgd = (spread(fol[torch.from_numpy(cases.method == name)]) for name in ("fgsm", "pgd"))
    return fgsm, pgd


def spread(values: Tensor) -> Spread:
    if len(values) == 0:
        return Spread(n=0, quantiles=())
    return Spread(
        n=len(values), quantiles=tuple(values.double().quantile(torch.tensor(QUANTILES, dtype=torch.float64)).tolist())
    )
