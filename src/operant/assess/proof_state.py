"""What a proof fixes before its first label, and all that it must remember; plain values that are kept as JSON."""

from dataclasses import dataclass, field
from itertools import pairwise

from operant.assess.blocks import Block
from operant.validation import check_at_least, check_between

# The allowed error ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ErrorBudget:
    """How the allowed error is shared between the models of a list; nothing else spends any of it.

        alpha_r = alpha c / (r (r + 1)),  r = 1, 2, ...;  c = (models + 1) / models, or 1 without a limit        (1)

    All shares together are at most alpha. A model is charged by its position in the list, also if no bound is ever
    computed for it: the list is determined by teaching labels, and whoever skips a model may have seen proof labels.

    Attributes:
        alpha: probability that the bound of any model of the list is ever wrong.
        models: maximum length of the list; with 1, the only model gets all of alpha.
    """

    alpha: float
    models: int | None = None

    def __post_init__(self) -> None:
        check_between(0, 1, alpha=self.alpha)
        if self.models is not None:
            check_at_least(1, models=self.models)

    def share(self, position: int) -> float:
        """The part of alpha of the model at this position; the first is 1."""
        check_at_least(1, position=position)
        if self.models is not None and position > self.models:
            raise ValueError(f"position must be at most {self.models}, got {position}; allow more from the start")
        factor = 1.0 if self.models is None else (self.models + 1) / self.models
        return self.alpha * factor / (position * (position + 1))  # (1)


# State ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ProofOptions:
    """What is fixed before the first proof label.

    Attributes:
        requirement: pmi to show, between 0 and 1.
        labels: maximum number of proof labels; more may be added later.
        classes: number of classes: labels are from 0 to classes - 1.
        confidence: with which the upper bounds of all models of the list hold together; the same for lower bounds.
        models: maximum number of models that will be proved; None for no limit. Fewer leave more error for each.
        active: whether draws may follow the risk. Saves up to a sixth of the labels near the requirement, but then
            models whose risks do not rank failures pay more. Every later model should be guided too.
        seed: of the draws.
    """

    requirement: float
    labels: int
    classes: int
    confidence: float = 0.95
    models: int | None = None
    active: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_between(0, 1, requirement=self.requirement, advice="no number of labels shows 0, and 1 needs no proof")
        check_between(0, 1, confidence=self.confidence)
        check_at_least(1, labels=self.labels)
        check_at_least(2, classes=self.classes)
        _ = self.budget

    @property
    def budget(self) -> ErrorBudget:
        return ErrorBudget(alpha=1 - self.confidence, models=self.models)


@dataclass(frozen=True, kw_only=True)
class ListedModel:
    """A model's place in the list, which determines its share of the allowed error.

    Attributes:
        position: 1 for the first.
        digest: of `ScoredModel`.
        era: number of changes of the field or of the options before.
        guided: whether its risks guide the bets; decided by teaching labels.
    """

    position: int
    digest: str
    era: int
    guided: bool


@dataclass(frozen=True, kw_only=True)
class ProofState:
    """All that a proof must remember; save it with `operant.results.save` after every answer.

    Attributes:
        options: of the proof.
        pool: digest of the `BlockPool`.
        block: inputs per block, decided before the first label.
        blocks: with their labels; those of a batch that is being labelled come last.
        models: the list so far.
        era: number of changes of the field or of the options; older labels do not count.
        earlier_labels: bought before the last change.
    """

    options: ProofOptions
    pool: str
    block: int
    blocks: tuple[Block, ...] = field(default=(), repr=False)
    models: tuple[ListedModel, ...] = ()
    era: int = 0
    earlier_labels: int = 0

    def __post_init__(self) -> None:
        if any(after.start < before.start + before.size for before, after in pairwise(self.blocks)):
            raise ValueError("blocks must not share inputs, got overlapping ones; the state was changed by hand")
        if [model.position for model in self.models] != list(range(1, len(self.models) + 1)):
            raise ValueError("models must be numbered from 1 without gaps; the state was changed by hand")

    @property
    def finished(self) -> int:
        """Number of blocks whose whole batch is labelled; only they count, so that no order of answers matters."""
        return next((self._start_of(b.batch) for b in self.blocks if b.label is None), len(self.blocks))

    def _start_of(self, batch: int) -> int:
        return next(i for i, block in enumerate(self.blocks) if block.batch == batch)

    def model(self, digest: str) -> ListedModel | None:
        """The place of a model in the list since the last change."""
        return next((m for m in self.models if (m.digest, m.era) == (digest, self.era)), None)

    @property
    def places(self) -> int:
        """Places of the pool's order that blocks hold."""
        return self.blocks[-1].start + self.blocks[-1].size if self.blocks else 0

    @property
    def batches(self) -> int:
        return self.blocks[-1].batch + 1 if self.blocks else 0
