"""A proof that a model meets its requirement, label by label, with labels that count for every later model.

The argument and its assumptions are on the page "Why a proof holds" (docs/explanation/proof.md).

    proof = begin_proof(options, pool, model)
    while not proof.bound.met and proof.labels_left:
        proof = proof.ask()
        proof = proof.answer({i: label_of(i) for i in proof.asked})
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from operant.assess.betting import Array, Integers, spread
from operant.assess.blocks import BlockPool, block_size, draw_block, see
from operant.assess.evidence import GuidedEvidence, PlainEvidence, best_active, guided_evidence
from operant.assess.forecast import LabelForecast, forecast
from operant.assess.proof_state import ListedModel, ProofOptions, ProofState
from operant.assess.scored import RatePrior, ScoredModel
from operant.formatting import at_least, at_most, percent
from operant.rng import spawn
from operant.validation import check_at_least

MIN_AUC = 0.8  # of a risk that guides a proof


@dataclass(frozen=True, kw_only=True)
class ProofBound:
    """What the proof labels so far say about one model. Each bound holds at all times with its confidence.

    Attributes:
        upper, lower: pmi is at most, and at least, this.
        estimate: unbiased estimate of pmi.
        confidence: of each of the two bounds.
        requirement: pmi to show.
        labels, failures: proof labels that count, and how many of them the model misclassifies.
        position: of the model in the list.
        guided: whether the model's risks guided the bets.
    """

    upper: float
    lower: float
    estimate: float
    confidence: float
    requirement: float
    labels: int
    failures: int
    position: int
    guided: bool

    @property
    def met(self) -> bool:
        """The requirement is shown."""
        return self.upper <= self.requirement

    @property
    def missed(self) -> bool:
        """It is shown that the model does not meet the requirement."""
        return self.lower > self.requirement

    def __str__(self) -> str:
        verdict = "met" if self.met else "missed" if self.missed else "not decided yet"
        return (
            f"At most {at_most(self.upper)} of field inputs are misclassified, with {at_least(self.confidence)} "
            f"confidence; estimate {percent(self.estimate)}, from {self.labels} proof labels with {self.failures} "
            f"failures. The requirement of {percent(self.requirement)} is {verdict}."
        )


# The proof -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class Proof:
    """One model's proof: which inputs to label next, and the bound from the labels so far.

    A value: every method returns a new proof. Get one from `begin_proof` or `resume_proof`.
    """

    state: ProofState
    pool: BlockPool
    model: ScoredModel
    evidence: GuidedEvidence | PlainEvidence

    @property
    def listed(self) -> ListedModel:
        found = self.state.model(self.model.digest)
        assert found is not None
        return found

    @property
    def alpha(self) -> float:
        """The allowed error of this model's upper bound, and again of its lower bound."""
        return self.state.options.budget.share(self.listed.position)

    @property
    def bound(self) -> ProofBound:
        """The bound now, from all batches that are completely labelled."""
        upper, lower = self.evidence.bounds(self.alpha)
        blocks = self.state.blocks[: self.state.finished]
        return ProofBound(
            upper=upper,
            lower=lower,
            estimate=float(self.evidence.estimate),
            confidence=1 - self.alpha,
            requirement=self.state.options.requirement,
            labels=len(blocks),
            failures=sum(int(self.model.predictions[b.drawn]) != b.label for b in blocks),
            position=self.listed.position,
            guided=self.listed.guided,
        )

    @property
    def forecast(self) -> LabelForecast:
        """Labels still needed if the present estimate is true; pausing and resuming by it is valid."""
        return forecast(self.evidence, requirement=self.state.options.requirement, alpha=self.alpha)

    @property
    def labels_left(self) -> int:
        """Labels that may still be asked for; those of the present batch do not count."""
        return self.state.options.labels - self.state.earlier_labels - len(self.state.blocks)

    @property
    def asked(self) -> tuple[int, ...]:
        """Positions in the pool of the inputs that wait for their labels."""
        return tuple(block.drawn for block in self.state.blocks if block.label is None)

    @property
    def held(self) -> Integers:
        """Positions of all inputs of blocks, drawn or not, with their groups: never teach, judge or adapt with them."""
        return self.pool.held(self.state.places)

    def ask(self, batch: int | None = None) -> Self:
        """With a batch of inputs to label; unchanged while one waits. All draws are fixed before the first answer.

        Args:
            batch: labels to ask for (default: a quarter of the forecast, from 5 to 25).
        """
        if self.asked:
            return self
        if self.labels_left <= 0:
            raise ValueError(f"all {self.state.options.labels} proof labels are spent; add some with `more_labels`")
        wanted = self.forecast.batch if batch is None else batch
        check_at_least(1, batch=wanted)
        active = best_active(self.evidence, self.state.options.requirement) if self.state.options.active else 0.0
        rates = self.evidence.ready(active).bets.rates if isinstance(self.evidence, GuidedEvidence) else np.zeros(1)
        uncertainty = spread(rates)[_bins(self.model, self.listed.guided)]
        state = self.state
        for _ in range(min(wanted, self.labels_left)):
            state = _with_block(state, self.pool, uncertainty, active, batch=self.state.batches)
        return replace(self, state=state)

    def answer(self, labels: Mapping[int, int]) -> Self:
        """With true labels of inputs that were asked for, by position; some of a batch may come later.

        A label is the class, not whether the model is right: later models may differ.
        """
        for i, label in labels.items():
            if i not in self.asked:
                raise ValueError(f"labels must be of inputs that were asked for, got one of input {i}; see `asked`")
            if not isinstance(label, int | np.integer) or not 0 <= label < self.state.options.classes:
                raise ValueError(
                    f"labels must be classes from 0 to {self.state.options.classes - 1}, got {label} for input {i}"
                )
        blocks = tuple(
            replace(b, label=int(labels[b.drawn])) if b.label is None and b.drawn in labels else b
            for b in self.state.blocks
        )
        state = replace(self.state, blocks=blocks)
        return replace(self, state=state, evidence=self._after(self.evidence, state))

    def _after(self, evidence: GuidedEvidence | PlainEvidence, state: ProofState) -> GuidedEvidence | PlainEvidence:
        bins = _bins(self.model, self.listed.guided)
        for block in state.blocks[evidence.labels : state.finished]:
            evidence = evidence.add(see(block, self.pool, self.model, bins))
        return evidence

    def next_model(self, model: ScoredModel) -> "Proof":
        """The proof of the next model of the list, from all labels so far: they are run through again for it.

        Call it for every model of the list, in order, also for those that are not to be proved: skipping one must not
        save its share of the allowed error. An unchanged model keeps its place.
        """
        return resume_proof(_listed(self.state, self.pool, model), self.pool, model)

    def more_labels(self, labels: int) -> Self:
        """With a new maximum number of proof labels, the one option that may change in the middle of a proof."""
        check_at_least(self.state.options.labels, labels=labels, advice="labels can only be added")
        state = replace(self.state, options=replace(self.state.options, labels=labels))
        _check_enough(self.pool, state.places, labels - state.earlier_labels - len(state.blocks))
        return replace(self, state=state)

    def start_over(self, options: ProofOptions, pool: BlockPool, model: ScoredModel) -> "Proof":
        """A new proof after drift, or after a change of options that affect models: old labels stop counting.

        The pool must hold inputs of the present field that no block held. The list of models goes on, with all that it
        was charged.
        """
        if options.budget != self.state.options.budget:
            raise ValueError("confidence and models must stay: part of the error is spent; keep them")
        held = {self.pool.ids[i] for i in self.held}
        if both := sum(i in held for i in pool.ids):
            raise ValueError(f"a new proof needs inputs that no block held, got {both} old ones; leave out `held`")
        earlier = self.state.earlier_labels + len(self.state.blocks)
        state = replace(_empty(options, pool, earlier), models=self.state.models, era=self.state.era + 1)
        return resume_proof(_listed(state, pool, model), pool, model)


def begin_proof(options: ProofOptions, pool: BlockPool, model: ScoredModel) -> Proof:
    """A proof without labels, for the first model of the list.

    >>> from operant.assess import block_pool, scored_model
    >>> risk = np.linspace(0, 1, 1000)
    >>> model = scored_model(np.zeros(1000), risk, profile_risk=risk, auc=0.9)
    >>> options = ProofOptions(requirement=0.1, labels=100, classes=2)
    >>> proof = begin_proof(options, block_pool(range(1000), seed=0), model)
    >>> while not proof.bound.met:
    ...     proof = proof.ask()
    ...     proof = proof.answer({i: 0 for i in proof.asked})
    >>> 36 <= proof.bound.labels <= 50
    True
    """
    return resume_proof(_listed(_empty(options, pool, 0), pool, model), pool, model)


def resume_proof(state: ProofState, pool: BlockPool, model: ScoredModel) -> Proof:
    """The proof of a model of the list as it was when the state was saved; all labels are run through again."""
    if state.pool != pool.digest:
        raise ValueError(
            "the pool must be the one of the proof, got other inputs, groups or another seed; give the same"
        )
    _check_model(pool, model)
    listed = state.model(model.digest)
    if listed is None:
        raise ValueError("the model must be one of the proof's list, got an unknown one; list it with `next_model`")
    evidence = _no_evidence(state, pool, model, listed)
    proof = Proof(state=state, pool=pool, model=model, evidence=evidence)
    return replace(proof, evidence=proof._after(evidence, state))


# Parts ---------------------------------------------------------------------------------------------------------------


def _empty(options: ProofOptions, pool: BlockPool, earlier: int) -> ProofState:
    left = options.labels - earlier
    check_at_least(1, labels=left, advice="add proof labels: all were spent before")
    _check_enough(pool, 0, left)
    size = block_size(len(pool.order), left)
    return ProofState(options=options, pool=pool.digest, block=size, earlier_labels=earlier)


def _check_enough(pool: BlockPool, places: int, labels: int) -> None:
    left = len(pool.order) - places
    if left < labels:
        what = "inputs" if len(pool.order) == len(pool) else "groups of inputs"
        raise ValueError(
            f"a proof with {labels} labels needs as many {what}, got {left}; add field inputs or plan with fewer labels"
        )


def _check_model(pool: BlockPool, model: ScoredModel) -> None:
    if len(model) != len(pool):
        raise ValueError(f"the model must have a prediction per input of the pool, got {len(model)} for {len(pool)}")


def _listed(state: ProofState, pool: BlockPool, model: ScoredModel) -> ProofState:
    """With the model at the end of the list, unless it is in it."""
    _check_model(pool, model)
    if state.model(model.digest):
        return state
    position = len(state.models) + 1
    state.options.budget.share(position)  # raises if the list is full
    guided = state.block > 1 and model.auc >= MIN_AUC
    listed = ListedModel(position=position, digest=model.digest, era=state.era, guided=guided)
    return replace(state, models=(*state.models, listed))


def _no_evidence(
    state: ProofState, pool: BlockPool, model: ScoredModel, listed: ListedModel
) -> GuidedEvidence | PlainEvidence:
    """Guided by the model's bins; otherwise plain, or with one bin for all inputs where draws differ in weight."""
    options = state.options
    equal = not options.active and bool((pool.sizes == 1).all())
    if not listed.guided and equal:
        return PlainEvidence(alpha=options.budget.share(listed.position))
    masses, risks = (model.masses, model.risks) if listed.guided else (np.ones(1), np.ones(1))
    prior = RatePrior.of(masses, risks, requirement=options.requirement)
    return guided_evidence(prior, requirement=options.requirement, block=state.block)


def _bins(model: ScoredModel, guided: bool) -> Integers:
    return model.bins if guided else np.zeros_like(model.bins)


def _with_block(state: ProofState, pool: BlockPool, uncertainty: Array, active: float, *, batch: int) -> ProofState:
    start, options = state.places, state.options
    left = options.labels - state.earlier_labels - len(state.blocks)
    block = draw_block(
        pool,
        start=start,
        size=min(state.block, (len(pool.order) - start) // left),
        batch=batch,
        active=active,
        uncertainty=uncertainty,
        generator=spawn(options.seed, "proof", state.era, "block", len(state.blocks)),
    )
    return replace(state, blocks=(*state.blocks, block))
