"""Which unlabelled field inputs to label, and what their labels may be used for.

>>> from torch import nn
>>> from operant import Classifier, Samples, spawn
>>> pool = Samples(torch.rand(100, 4, generator=spawn(0)))
>>> chosen = acquire(Classifier(nn.Linear(4, 3)), pool, 10, generator=spawn(1))
>>> len(chosen), chosen.use
(10, 'teaching only')
"""

from dataclasses import dataclass, field
from operator import index

import torch
from torch import Tensor

from operant.activity import activity
from operant.data import Samples
from operant.model import Classifier, Finding
from operant.seeds.strategies import Badge, Choice, Strategy, Use
from operant.validation import check_at_least, check_not_empty

DEFAULT_STRATEGY = Badge()
SENTENCES: dict[Use, str] = {
    "teaching only": "Use their labels for teaching only: chosen inputs are no sample of the field.",
    "teaching, judging and estimates": "Use their labels for teaching, judging and estimates, each label for one only.",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Acquired:
    """Inputs of a pool that are worth a label; made by `acquire`.

    Attributes:
        rows: of the pool, in the order in which they were chosen.
        ids: of these inputs.
        reason: why these were chosen.
        use: what their labels may be used for. Labels of chosen inputs are for teaching only: the error rate among
            them is far from that of the field, and they are hardest for the model that they were chosen for, so that
            even a comparison of models would be unfair. Labels of a random draw suit everything, each for one purpose.
        candidates: inputs that could have been chosen: different ones that were not labelled.
        pool_size: all inputs.
        findings: what the strategy had to do without, and what that means.
    """

    rows: Tensor = field(repr=False)
    ids: Tensor = field(repr=False)
    reason: str
    use: Use
    candidates: int
    pool_size: int
    findings: tuple[Finding, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def samples(self, pool: Samples) -> Samples:
        """The chosen inputs of this pool; raises if they were chosen from another."""
        if len(pool) != self.pool_size or not torch.equal(pool.ids.cpu()[self.rows], self.ids):
            pools = f"another pool, of {self.pool_size} inputs, and not from this one of {len(pool)}"
            raise ValueError(f"these inputs were chosen from {pools}; give the same inputs in the same order")
        return pool[self.rows]

    def __str__(self) -> str:
        first = f"{len(self)} of {self.candidates} inputs to label, {self.reason}. {SENTENCES[self.use]}"
        return "\n".join([first, *(str(finding) for finding in self.findings)])


@activity("choosing which inputs to label")
def acquire(
    model: Classifier,
    pool: Samples,
    n: int,
    *,
    strategy: Strategy = DEFAULT_STRATEGY,
    already: Tensor | None = None,
    generator: torch.Generator,
) -> Acquired:
    """Choose n inputs of a pool to label.

    Inputs of the same id are chosen once at most. The choice depends on which inputs the pool has, not on their order:
    strategies see them in the order of their ids. Groups play no part; `Acquired.samples` keeps them.

    Args:
        model: the present model, which the labels will teach; if it was adapted to the field, the adapted one.
        pool: field inputs; their labels, if they have any, are not used.
        n: how many to choose.
        strategy: how; see `operant.seeds.strategies` (default: `Badge`).
        already: ids of inputs that are labelled, which are not chosen again; ids that the pool does not have are
            ignored (default: none).
        generator: random numbers.
    """
    n = index(n)
    check_at_least(1, n=n)
    check_not_empty(pool=pool, advice="give the field inputs that can be labelled")
    if isinstance(strategy, type):
        raise ValueError(f"strategy must be a strategy, got a class; write {strategy.__name__}(...)")
    rows = _candidates(pool, already)
    if n > len(rows):
        most = f"{len(rows)}, the inputs of the pool that differ and are not labelled yet"
        raise ValueError(f"n must be at most {most}, got {n}; label fewer, or add field inputs")
    choice = strategy(model, pool[rows].with_labels(None), n, generator=generator)
    chosen = rows[_checked_rows(choice.rows, n, len(rows))]
    return Acquired(
        rows=chosen,
        ids=pool.ids.cpu()[chosen],
        reason=choice.reason,
        use=choice.use,
        candidates=len(rows),
        pool_size=len(pool),
        findings=(*choice.findings, *_left_out(choice, len(rows), len(pool))),
    )


def _candidates(pool: Samples, already: Tensor | None) -> Tensor:
    """The first row of each id that is not labelled, in the order of ids."""
    ids, order = pool.ids.cpu().sort(stable=True)
    free = torch.cat([torch.ones(1, dtype=torch.bool), ids[1:] != ids[:-1]])
    if already is not None:
        if not isinstance(already, Tensor) or already.dtype != torch.int64 or already.ndim != 1:
            got = f"{already.dtype} of shape {tuple(already.shape)}" if isinstance(already, Tensor) else repr(already)
            raise ValueError(f"already must be ids, an int64 tensor (N,), got {got:.80}; give samples.ids")
        free &= ~torch.isin(ids, already.cpu())
    return order[free]


def _checked_rows(rows: Tensor, n: int, size: int) -> Tensor:
    """Rows of the user's own strategy may be wrong."""
    right = isinstance(rows, Tensor) and rows.dtype == torch.int64 and rows.shape == (n,)
    if not right or len(rows.unique()) < n or int(rows.min()) < 0 or int(rows.max()) >= size:
        raise ValueError(
            f"a strategy must choose {n} different rows from 0 to {size - 1} as an int64 tensor, got {rows}"
        )
    return rows.cpu()


def _left_out(choice: Choice, candidates: int, size: int) -> tuple[Finding, ...]:
    """What a random draw no longer stands for."""
    if choice.use == "teaching only" or candidates == size:
        return ()
    problem = (
        f"{size - candidates} of {size} inputs could not be drawn, because they are labelled already or copies of "
        f"others, so estimates describe the other {candidates}, unless the labelled ones were drawn at random too"
    )
    advice = "For estimates of the field, draw before inputs are chosen for teaching, or from a part that is kept apart"
    return (Finding(name="not all inputs could be drawn", problem=problem, advice=advice),)
