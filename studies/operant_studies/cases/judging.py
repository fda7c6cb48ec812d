"""The judge: which kinds of cases it accepts, beside the five scores, and how often it rejects field inputs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from torch import Tensor

from operant.data import Samples
from operant.measure import Judge, Naturalness, fit_judge, fit_naturalness
from operant.measure.judge import LEVEL
from operant.rng import shuffled, spawn
from operant_studies.cases.kinds import ADDED, kinds_of, make
from operant_studies.cases.settings import ESTIMATED, CasesSetting
from operant_studies.cases.unit import CasesField
from operant_studies.field.fields import in_field
from operant_studies.field.settings import FieldCase
from operant_studies.operational_fuzz.fields import under
from operant_studies.shared import Steps, Units, slug
from operant_studies.subjects import read_dataset


@dataclass(frozen=True, kw_only=True)
class KindJudged:
    """One kind of cases, by the five scores and by a judge that learned from other draws of that kind."""

    kind: str
    n: int
    # shares of cases with a p-value of at least .05
    scores: float
    judge: float
    # shares of unseen field inputs with a smaller one
    scores_rejects: float
    judge_rejects: float
    seconds: float  # CPU time of fitting the judge


@dataclass(frozen=True, kw_only=True)
class ShownCases:
    """Cases that pass the judge, beside their seeds."""

    seeds: Tensor
    cases: Tensor
    labels: Tensor
    predictions: Tensor


def units(setting: CasesSetting, data: Path | None, out: Path) -> Units:
    """One unit per field and seed, and one per field for the false rejects."""
    first: Units = [
        (f"judge, {name}, seed {seed}", partial(run_judge, setting, setting.case(name), data, seed, out))
        for seed in setting.judge_seeds
        for name in setting.judged
    ]
    second: Units = [
        (f"false rejects, {name}", partial(run_fresh, setting, setting.case(name), data, out))
        for name in setting.fitted
    ]
    return [*first, *second]


def run_judge(setting: CasesSetting, case: FieldCase, data: Path | None, seed: int, out: Path) -> None:
    """All kinds of one field; a module-level function, so that other processes can run it."""
    JudgeUnit(field=CasesField(setting=setting, case=case, data=data, seed=seed, out=out)).run()


def kind_step(kind: str) -> str:
    return f"judged-{slug(kind)}"


def shown_steps(out: Path) -> Steps:
    """Images for the sheets, apart from the numbers."""
    return Steps(out / "shown")


@dataclass(frozen=True, kw_only=True)
class JudgeUnit:
    """The judges of one field with one seed."""

    field: CasesField

    def run(self) -> None:
        for kind in kinds_of(self.field):
            self.field.steps.step(kind_step(kind), KindJudged, partial(self._judged, kind))

    @cached_property
    def scores(self) -> Naturalness:
        """The five fixed scores."""
        return fit_naturalness(self._seen, generator=self.field.generator("scores"), progress=False)

    @property
    def _seen(self) -> Samples:
        return self.field.inputs.seen.with_labels(None)

    def _judged(self, kind: str) -> KindJudged:
        _, draws = make(self.field, kind, 0)
        _, cases = make(self.field, kind, 1)
        start = time.process_time()
        judge = fit_judge(self._seen, draws, generator=self.field.generator("judge", kind), progress=False)
        seconds = time.process_time() - start
        p, fresh = judge(cases.x), self.field.inputs.truth.x[: self.field.setting.fresh]
        if kind == ESTIMATED and self.field.seed == self.field.setting.judge_seeds[0]:
            self._show(judge)
        return KindJudged(
            kind=kind,
            n=len(cases),
            scores=_share(self.scores(cases.x) >= LEVEL),
            judge=_share(p >= LEVEL),
            scores_rejects=_share(self.scores(fresh) < LEVEL),
            judge_rejects=_share(judge(fresh) < LEVEL),
            seconds=seconds,
        )

    def _show(self, judge: Judge) -> None:
        """The first cases that pass, of many draws if few do."""
        seeds, cases = make(self.field, ESTIMATED, 2)
        rows = (judge(cases.x) >= LEVEL).nonzero().flatten()[: self.field.setting.shown]
        x, labels = cases.x[rows], cases.labels[rows]
        shown = ShownCases(seeds=seeds.x[rows], cases=x, labels=labels, predictions=self.field.model.predict(x))
        shown_steps(self.field.out).step(self.field.case.name, ShownCases, lambda: shown)


def _share(found: Tensor) -> float:
    return float(found.double().mean())


# False rejects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FreshRejects:
    """Rejects of field inputs by one judge; no other fit uses any of its images."""

    rejected: int
    n: int
    accepted: float  # share of the judge's draws
    seconds: float


def fresh_steps(out: Path, case: FieldCase) -> Steps:
    return Steps(out / "steps" / f"fresh-{case.name}")


def run_fresh(setting: CasesSetting, case: FieldCase, data: Path | None, out: Path) -> None:
    """Many fits on images of which none is used twice, so that their rates are independent."""
    images, sizes = read_dataset(case.dataset, data), [setting.fit_field, setting.fresh, setting.fit_draws]
    enough = len(images.train) >= setting.fits * sum(sizes)
    known = images.train if enough else Samples.concat([images.train, images.test])
    order = shuffled(len(known), spawn(setting.judge_seeds[0], case.name, "fresh"))
    for i, rows in enumerate(order.split(sum(sizes))[: setting.fits]):
        work = partial(_fresh, setting, case, known, rows.split(sizes), i)
        fresh_steps(out, case).step(f"fit-{i}", FreshRejects, work)


def _fresh(
    setting: CasesSetting, case: FieldCase, images: Samples, parts: tuple[Tensor, ...], number: int
) -> FreshRejects:
    """Every second judge learns from draws of the field's own conditions, the others from those of a wrong recipe."""
    generator = spawn(setting.judge_seeds[0], case.name, "fresh", number)
    field, fresh, draws = (in_field(case, images[rows], generator=generator) for rows in parts)
    if number % 2:
        draws = under(ADDED, draws, generator=generator)
    start = time.process_time()
    judge = fit_judge(field.with_labels(None), draws, generator=generator, progress=False)
    seconds = time.process_time() - start
    rejected = int((judge(fresh.x) < LEVEL).sum())
    return FreshRejects(rejected=rejected, n=len(fresh), accepted=judge.accepted, seconds=seconds)
