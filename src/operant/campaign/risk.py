"""The risk map of a campaign, and the unselected cases behind it: most teach the map, others judge models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from operant import results
from operant.activity import activity
from operant.campaign.field import FieldState
from operant.campaign.reserving import TrainingParts, risk_seeds
from operant.conditions import Recipe, wider
from operant.data import Samples
from operant.data.class_rows import rows_per_class
from operant.execution.chunked_fuzzing import ChunkedFuzzing
from operant.execution.chunks import run_chunks
from operant.execution.round_state import RoundState
from operant.execution.run_folder import RUN, finished
from operant.generate import RecipeDraws
from operant.model import Classifier, Finding
from operant.model.hashing import hash_of
from operant.profile import RiskMap, fit_risk
from operant.rng import shuffled, spawn
from operant.suite import Suite

DRAWS = "draws"  # folder of the cases
TEACHING, WIDER, JUDGING = SUITES = ("teaching", "wider", "judging")  # in it
SHARES = "shares"  # in it: the class shares of the field
CHUNK = 250  # draws per chunk of work, at least: a draw costs little
CONDITIONS_UNLIKE_FIELD = "conditions unlike the field"  # finding that the level of risks is not to be believed
WIDER_SHARE = 1 / 2  # cases of wider conditions, per case of the conditions that teaches
JUDGING_SHARE = 1 / 3  # cases that judge, per case of the conditions that teaches


@dataclass(frozen=True, kw_only=True)
class ClassShares:
    """The share of each class in the field; ``shares.json`` beside a campaign's cases, which weights them."""

    values: tuple[float, ...]


class CampaignRisk:
    """Unselected cases of the field's conditions, and the risk map that they teach.

    Cases that teach come from reserved training inputs, if these suffice, and from half of the clean inputs. Nothing
    is searched from either, so that no retraining learns from their cases. The initial model has learned from the
    training inputs themselves, and retraining repeats them; no round learns from clean inputs. Half as many cases of
    `operant.conditions.wider` come from the same seeds: they teach the ranking what the conditions leave unexplained.
    Cases that judge models come from the other half of the clean inputs, so that neither the map nor a retraining ever
    learns from them or from their seeds. See `risk_seeds` for what happens if inputs are too few.

    All are drawn once, before seeds are first chosen, and kept as suites in ``draws`` with passes and failures: a
    later model can be run against them.

    Attributes:
        findings: why cases that teach may share their seeds with cases that are learned from.

    Args:
        recipe: the conditions.
        train: labelled training inputs by role.
        clean: labelled inputs that no round learns from.
        state: of the rounds, which knows the model and keeps the cases.
        draws: number of cases of the conditions that teach.
        chunk: seeds per chunk of work.
    """

    def __init__(
        self,
        recipe: Recipe,
        train: TrainingParts,
        clean: Samples,
        state: RoundState,
        *,
        draws: int,
        chunk: int,
    ) -> None:
        self.recipe, self.train, self.state = recipe, train.every, state
        self.seeds = risk_seeds(train, clean, draws=draws)
        self.findings = self.seeds.findings
        self.draws, self.chunk = draws, chunk
        self._suites: dict[str, Suite] = {}
        self._map: tuple[tuple[float, ...], RiskMap] | None = None  # with the class shares that it was fitted with

    def teaching(self, field: FieldState) -> Suite:
        """Cases of the conditions that the risk map is fitted to."""
        return self._drawn(TEACHING, RecipeDraws(recipe=self.recipe), self.seeds.teaching, self.draws, field)

    def wider(self, field: FieldState) -> Suite:
        """Cases of wider conditions that teach the map's ranking, from the same seeds."""
        fuzz = RecipeDraws(recipe=wider(self.recipe, tuple(self.train.shape)), dense=1.0)
        return self._drawn(WIDER, fuzz, self.seeds.teaching, _part(WIDER_SHARE, self.draws), field)

    def judging(self, field: FieldState) -> Suite:
        """Cases that models are judged with."""
        n = _part(JUDGING_SHARE, self.draws)
        return self._drawn(JUDGING, RecipeDraws(recipe=self.recipe), self.seeds.judging, n, field)

    @property
    def drawn(self) -> bool:
        """Whether the cases are on disk."""
        return all(finished(self.state.folder.path / DRAWS / name) for name in SUITES)

    def begin(self, field: FieldState) -> RiskMap:
        """Draw all cases, if that is still to be done, and fit the map for the current model."""
        self._keep_shares(field)
        self.judging(field)
        return self.map_for(self.state.model, field)

    def _keep_shares(self, field: FieldState) -> None:
        """Write the class shares of the present field beside the cases, which have others."""
        now = ClassShares(values=tuple(field.class_shares(self.train).tolist()))
        if self.state.folder.step(f"{DRAWS}/{SHARES}", ClassShares, lambda: now) != now:
            self.state.folder.replace(f"{DRAWS}/{SHARES}", now)

    def map_for(self, model: Classifier, field: FieldState) -> RiskMap:
        """The risk map of a model in the present field; fitted again when either has changed."""
        shares = tuple(field.class_shares(self.train).tolist())
        if self._map is None or self._map[0] != shares:
            cases, more = self.teaching(field), self.wider(field)
            self._map = shares, fit_risk(model, cases, wider=more, priors=shares, seeds=self.seeds.teaching)
        self._map = shares, self._map[1].for_model(model)
        return self._map[1]

    def _drawn(self, name: str, fuzz: RecipeDraws, inputs: Samples, n: int, field: FieldState) -> Suite:
        """A suite of draws: computed in chunks and saved, or read."""
        if name not in self._suites:
            work = partial(self._draw, name, fuzz, inputs, n, field)
            self._suites[name] = self.state.folder.suite(f"{DRAWS}/{name}", work)
            self.state.folder.clear(f"{DRAWS}/{name}-chunks")
        return self._suites[name]

    @activity("drawing cases from the conditions")
    def _draw(self, name: str, fuzz: RecipeDraws, inputs: Samples, n: int, field: FieldState) -> Suite:
        state = self.state
        seeds = spread_seeds(inputs, field.class_shares(self.train), n, generator=spawn(state.seed, DRAWS, name))
        path = (state.seed, DRAWS, name)
        work = ChunkedFuzzing(fuzz=fuzz, model=state.model, seeds=seeds, size=max(self.chunk, CHUNK), path=path)
        state.model.prepare(seeds.x)
        return run_chunks(
            state.folder,
            f"{DRAWS}/{name}-chunks",
            work,
            work.chunks,
            batch_size=state.model.batch_size,
            engine=state.engine,
            progress=partial(state.report, "risk"),
        )


def _part(share: float, draws: int) -> int:
    return max(1, round(share * draws))


def spread_seeds(inputs: Samples, shares: Tensor, n: int, *, generator: torch.Generator) -> Samples:
    """n labelled inputs: half of them by the given class shares, half evenly.

    So every class that has inputs is drawn, if n is at least twice the number of classes. Estimated shares can be
    wrong, and a class without cases could not be rated; weights make up for the other half. Within a class, every input
    is used once before one is used again.
    """
    labels = inputs.labels.cpu()
    counts = labels.bincount(minlength=len(shares))
    wanted = torch.where(counts > 0, shares.double() + 1 / len(shares), 0.0)
    ends = (wanted.cumsum(0) / wanted.sum() * n).round().long()
    chosen = rows_per_class(labels, ends.diff(prepend=ends.new_zeros(1)).tolist(), generator=generator)
    return inputs[chosen[shuffled(len(chosen), generator)]]


def unlike_field() -> Finding:
    """A judge rejects the conditions: a ranking stands up to that, probabilities do not."""
    problem = (
        "a judge tells most draws of the conditions from field inputs, so risks rank inputs, but their level and the "
        "expected failures are not to be believed"
    )
    advice = "Label a hundred random field inputs: the share of them that fail is the level"
    return Finding(name=CONDITIONS_UNLIKE_FIELD, problem=problem, advice=advice)


def with_risk(cases: Suite, model: Classifier, risk: RiskMap | None) -> Suite:
    """The same cases with a column ``risk``: how likely the model is to fail on field inputs like each of them."""
    return cases if risk is None or len(cases) == 0 else cases.with_columns(risk=risk(model, cases.x))


@dataclass(frozen=True, kw_only=True, eq=False)
class TeachingCases:
    """What a risk map is fitted to.

    Attributes:
        cases: of the conditions.
        wider: cases of wider conditions; None if there are none.
        shares: of the classes in the field, the ``priors`` of the map; None if the cases are taken to have them.
    """

    cases: Suite
    wider: Suite | None = None
    shares: tuple[float, ...] | None = None

    def digest(self) -> str:
        """A hash of all cases, and of the class shares."""
        own = self.cases.digest()
        more = [] if self.wider is None else [self.wider.digest().encode()]
        more += [] if self.shares is None else [repr(self.shares).encode()]
        return hash_of(own.encode(), *more) if more else own


def teaching_cases(folder: str | Path) -> TeachingCases:
    """The cases that teach a risk map: those of a campaign's folder, or a suite itself.

    A suite, and the folder of an earlier version, have no class shares.
    """
    place = Path(folder)
    if not (place / RUN).exists():
        _check_suite(place)
        return TeachingCases(cases=Suite.open(place))
    draws = place / DRAWS
    if not finished(draws / TEACHING):
        raise ValueError(
            f"{folder} has no cases for a risk map: a campaign draws them when it first searches, if there are "
            "conditions; give a suite of operant.generate.RecipeDraws instead"
        )
    more = Suite.open(draws / WIDER) if finished(draws / WIDER) else None  # earlier versions drew none
    file = draws / f"{SHARES}.json"
    shares = results.load(file, ClassShares).values if finished(file) else None
    return TeachingCases(cases=Suite.open(draws / TEACHING), wider=more, shares=shares)


def _check_suite(place: Path) -> None:
    """Refuse a folder that does not exist, and one inside a campaign's that is no suite."""
    if not place.exists():
        raise ValueError(f"the folder {place} does not exist; give the folder of a campaign, or of a suite")
    if place.resolve().name == DRAWS and (place / ".." / RUN).exists():
        raise ValueError(f"{place} is a part of a campaign's folder; give that folder, {place.parent}, instead")
