"""The risk map of a campaign, and the unselected cases behind it: some teach the map, others judge models."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from operant.activity import activity
from operant.campaign.field import FieldState
from operant.campaign.reserving import TrainingParts
from operant.conditions import Recipe
from operant.data import Samples
from operant.data.class_rows import rows_per_class
from operant.execution.chunked_fuzzing import ChunkedFuzzing
from operant.execution.chunks import run_chunks
from operant.execution.round_state import RoundState
from operant.execution.run_folder import RUN, finished
from operant.generate import RecipeDraws
from operant.model import Classifier
from operant.profile import RiskMap, fit_risk
from operant.rng import shuffled, spawn
from operant.suite import Suite

DRAWS, TEACHING, JUDGING = "draws", "teaching", "judging"  # folder of the cases, and the two suites in it
CHUNK = 250  # draws per chunk of work, at least: a draw costs little
JUDGING_SHARE = 1 / 3  # cases that judge, per case that teaches


class CampaignRisk:
    """Unselected cases of the field's conditions, and the risk map that they teach.

    Cases that teach come from reserved training inputs, if these suffice. Nothing is searched from those, so that no
    retraining learns from their cases; but the initial model has learned from the inputs themselves, and retraining
    repeats them. Cases that judge models come from clean inputs, so that nothing ever learns from them or from their
    seeds. Both are drawn in the first round that searches, and kept as suites in ``draws`` with passes and failures: a
    later model can be run against them.

    Attributes:
        findings: why cases that teach may share their seeds with cases that are learned from.

    Args:
        recipe: the conditions.
        train: labelled training inputs by role.
        clean: labelled inputs that cases that judge are drawn from.
        state: of the rounds, which knows the model and keeps the cases.
        draws: number of cases that teach.
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
        self.recipe, self.train, self.clean, self.state = recipe, train.every, clean, state
        self.seeds, self.findings = train.teaching(draws)
        self.draws, self.chunk = draws, chunk
        self._suites: dict[str, Suite] = {}
        self._map: tuple[tuple[float, ...], RiskMap] | None = None  # with the class shares that it was fitted with

    def teaching(self, field: FieldState) -> Suite:
        """Cases that the risk map is fitted to."""
        return self._drawn(TEACHING, self.seeds, self.draws, field)

    def judging(self, field: FieldState) -> Suite:
        """Cases that models are judged with."""
        return self._drawn(JUDGING, self.clean, max(1, round(JUDGING_SHARE * self.draws)), field)

    @property
    def drawn(self) -> bool:
        """Whether the cases are on disk."""
        return all(finished(self.state.folder.path / DRAWS / name) for name in (TEACHING, JUDGING))

    def begin(self, field: FieldState) -> RiskMap:
        """Draw all cases, if that is still to be done, and fit the map for the current model."""
        self.judging(field)
        return self.map_for(self.state.model, field)

    def map_for(self, model: Classifier, field: FieldState) -> RiskMap:
        """The risk map of a model in the present field; fitted again when either has changed."""
        shares = tuple(field.class_shares(self.train).tolist())
        if self._map is None or self._map[0] != shares:
            self._map = shares, fit_risk(model, self.teaching(field), priors=shares)
        self._map = shares, self._map[1].for_model(model)
        return self._map[1]

    def _drawn(self, name: str, inputs: Samples, n: int, field: FieldState) -> Suite:
        """A suite of draws: computed in chunks and saved, or read."""
        if name not in self._suites:
            work = partial(self._draw, name, inputs, n, field)
            self._suites[name] = self.state.folder.suite(f"{DRAWS}/{name}", work)
            self.state.folder.clear(f"{DRAWS}/{name}-chunks")
        return self._suites[name]

    @activity("drawing cases from the conditions")
    def _draw(self, name: str, inputs: Samples, n: int, field: FieldState) -> Suite:
        state = self.state
        seeds = spread_seeds(inputs, field.class_shares(self.train), n, generator=spawn(state.seed, DRAWS, name))
        path, fuzz = (state.seed, DRAWS, name), RecipeDraws(recipe=self.recipe)
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


def spread_seeds(inputs: Samples, shares: Tensor, n: int, *, generator: torch.Generator) -> Samples:
    """n labelled inputs: half of them by the given class shares, half evenly, so that every class has some.

    Estimated shares can be wrong, and a class without cases could not be rated; weights make up for the other half.
    Within a class, every input is used once before one is used again.
    """
    labels = inputs.labels.cpu()
    counts = labels.bincount(minlength=len(shares))
    wanted = torch.where(counts > 0, shares.double() + 1 / len(shares), 0.0)
    ends = (wanted.cumsum(0) / wanted.sum() * n).round().long()
    chosen = rows_per_class(labels, ends.diff(prepend=ends.new_zeros(1)).tolist(), generator=generator)
    return inputs[chosen[shuffled(len(chosen), generator)]]


def with_risk(cases: Suite, model: Classifier, risk: RiskMap | None) -> Suite:
    """The same cases with a column ``risk``: how likely the model is to fail on field inputs like each of them."""
    return cases if risk is None or len(cases) == 0 else cases.with_columns(risk=risk(model, cases.x))


def teaching_cases(folder: str | Path) -> Suite:
    """The cases that teach a risk map: those of a campaign's folder, or a suite itself."""
    place = Path(folder)
    if (place / RUN).exists():
        place = place / DRAWS / TEACHING
        if not finished(place):
            raise ValueError(
                f"{folder} has no cases for a risk map: a campaign draws them when it first searches, if there are "
                "conditions; give a suite of operant.generate.RecipeDraws instead"
            )
    return Suite.open(place)
