"""Mutation-based detection: the labels of adversarial inputs change more often when the network changes a little."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from operant.data import Samples
from operant.defend._common import check_benign, check_shape, dealt
from operant.defend.mutants import Weights, mutate
from operant.defend.sequential import ADVERSARIAL, GRID, OPEN, SequentialTest, critical_thresholds, on_grid
from operant.measure.conformal import check_level, fit_conformal
from operant.model import MIN_ROWS, Classifier
from operant.rng import spawn

TRIES = 5  # mutants made for each one that is kept, at most


class InaccurateMutants(ValueError):
    """Too few mutants read benign inputs as the network does."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Verdicts:
    """What the mutants said of each input.

    Attributes:
        adversarial: truths ``(N,)``.
        mutants: how many were asked, ``(N,)``.
        rate: the share of those that gave another label, ``(N,)``.
    """

    adversarial: Tensor
    mutants: Tensor
    rate: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class MutationDetector:
    """Asks mutant after mutant until it is clear whether an input's label is stable; made by `fit_mutation_detector`.

    Attributes:
        model: what is guarded.
        network: the module that is mutated.
        operator, rate: how; see `mutate`.
        seed: that mutants are drawn from, each by its number.
        numbers: of the mutants that are accurate enough.
        test: which decides, with its calibrated threshold.
        level: the false-positive rate.
        shape: of an input.
    """

    model: Classifier
    network: nn.Module = field(repr=False)
    operator: str
    rate: float
    seed: int = field(repr=False)
    numbers: tuple[int, ...] = field(repr=False)
    test: SequentialTest
    level: float
    shape: tuple[int, ...]

    def accepts(self, x: Tensor) -> Tensor:
        """Truths ``(N,)``: which inputs are taken for benign."""
        return ~self.verdicts(x).adversarial

    def verdicts(self, x: Tensor) -> Verdicts:
        """Undecided inputs meet the next mutant together; those that are decided have left."""
        check_shape(x, self.shape)
        self.model.check_inputs(x)
        z = _laid_out(self.model, x)
        label = _labels(self.network, {}, z, self.model.batch_size)
        place = torch.arange(len(x), device=z.device)
        answer = torch.zeros(len(x), dtype=torch.int8, device=z.device)
        changes, used = torch.zeros_like(place), torch.zeros_like(place)
        for seen, mutant in enumerate(self._mutants(), start=1):
            changes[place] += _labels(self.network, mutant, z, self.model.batch_size) != label
            used[place] = seen
            answer[place] = self.test.decide(changes[place], seen)
            open_ = answer[place] == OPEN
            if not bool(open_.all()):
                z, label, place = z[open_], label[open_], place[open_]
            if len(place) == 0:
                break
        answer[place] = self.test.finish(changes[place], len(self.numbers))
        return Verdicts(
            adversarial=(answer == ADVERSARIAL).to(x.device),
            mutants=used.to(x.device),
            rate=(changes.double() / used).to(x.device),
        )

    def changes(self, x: Tensor) -> Tensor:
        """Whether each mutant gives each input another label than the network: every mutant on every input."""
        check_shape(x, self.shape)
        self.model.check_inputs(x)
        return _changes(self.network, _laid_out(self.model, x), self._mutants(), self.model.batch_size).to(x.device)

    def _mutants(self) -> Iterable[Weights]:
        return (_mutant(self.network, self.operator, self.rate, self.seed, number) for number in self.numbers)


def fit_mutation_detector(
    model: Classifier,
    benign: Samples,
    *,
    operator: str = "NAI",
    rate: float = 0.05,
    mutants: int = 500,
    min_accuracy: float = 0.9,
    level: float = 0.05,
    calibration: float = 0.5,
    indifference: float = 0.5,
    alpha: float = 0.05,
    beta: float = 0.05,
    generator: torch.Generator,
) -> MutationDetector:
    """Make mutants that still read most benign inputs as the network does, and find the rate of changes to reject at.

    Of each mutant it is asked how much of one part of the benign inputs it still reads as the network does; the rest
    calibrates. What is calibrated is the decision of the sequential test itself (`critical_thresholds`): of fresh
    benign inputs, drawn as these were, a share ``level`` is rejected at most. The threshold is never so small that an
    input whose label never changes would need more mutants than there are.

    The public program computes the ratio before it counts the mutant at hand, and only when the label has changed, so
    that benign inputs are always put to all mutants; here it is computed after every mutant. Its indifference is 0.1,
    with which an unchanging label takes 15 / threshold mutants: more than there are, for most thresholds.

    Args:
        model: what is to be guarded.
        benign: inputs that it reads correctly and was not trained on.
        operator: ``"NAI"``, ``"GF"``, ``"WS"`` or ``"NS"``; see `operant.defend.mutants.mutate`.
        rate: share of neurons or weights that a mutant differs in.
        mutants: how many, at most, an input is put to.
        min_accuracy: share of benign inputs that a mutant must read as the network does, or it is not used.
        level: the false-positive rate.
        calibration: share of the benign inputs that calibrates, dealt by id.
        indifference, alpha, beta: of the `SequentialTest`.
        generator: is asked for one number, from which all mutants are drawn.

    References:
        | Adversarial Sample Detection for Deep Neural Network through Model Mutation Testing (Wang et al., 2019)
        | https://arxiv.org/abs/1812.05793
    """
    check_benign(model, benign)
    if mutants < 1:
        raise ValueError(f"mutants must be at least 1, got {mutants}")
    judged, held = dealt(benign, calibration)
    check_level(level, len(held))
    network = _network(model, benign.x)
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    z = _laid_out(model, judged.x)
    label = _labels(network, {}, z, model.batch_size)
    numbers: list[int] = []
    for number in range(TRIES * mutants):
        mutant = _mutant(network, operator, rate, seed, number)
        if float((_labels(network, mutant, z, model.batch_size) == label).double().mean()) >= min_accuracy:
            numbers.append(number)
        if len(numbers) == mutants:
            break
    else:
        raise InaccurateMutants(
            f"only {len(numbers)} of {TRIES * mutants} mutants read at least {min_accuracy:.0%} of the benign inputs "
            f"as the network does, and {mutants} are needed; lower the rate ({rate}) or min_accuracy"
        )
    made = (_mutant(network, operator, rate, seed, number) for number in numbers)
    changed = _changes(network, _laid_out(model, held.x), made, model.batch_size).cpu()
    options = {"indifference": indifference, "alpha": alpha, "beta": beta}
    threshold = fit_conformal(critical_thresholds(changed, **options)).threshold(level)
    return MutationDetector(
        model=model,
        network=network,
        operator=operator,
        rate=rate,
        seed=seed,
        numbers=tuple(numbers),
        test=_test(threshold, mutants, options),
        level=level,
        shape=tuple(benign.shape),
    )


def _test(threshold: float, mutants: int, options: dict[str, float]) -> SequentialTest:
    """With the calibrated threshold, or the smallest that lets an unchanging label be decided."""
    top = on_grid(GRID - 1, options["indifference"])
    if threshold > top:
        raise ValueError("mutants change the labels of benign inputs nearly always; lower the rate")
    low, high = 0.0, top
    while high - low > 1e-9:
        middle = (low + high) / 2
        enough = SequentialTest(threshold=middle, **options).shortest <= mutants
        low, high = (low, middle) if enough else (middle, high)
    return SequentialTest(threshold=max(threshold, high), **options)


# Running mutants ------------------------------------------------------------------------------------------------------


def _network(model: Classifier, x: Tensor) -> nn.Module:
    """The module that mutants are made of: as the user wrote it, with its convolutions in the order that runs fast."""
    model.prepare(x[:MIN_ROWS])
    module = model.unwrap().eval().requires_grad_(False)
    if model.channels_last:
        for part in module.modules():
            if isinstance(part, nn.Conv2d):
                part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module


def _mutant(network: nn.Module, operator: str, rate: float, seed: int, number: int) -> Weights:
    return mutate(network, operator=operator, rate=rate, generator=spawn(seed, "mutant", number))


def _laid_out(model: Classifier, x: Tensor) -> Tensor:
    """Inputs as the bare module wants them."""
    z = model.normalise(x.to(model.device))
    return z.contiguous(memory_format=torch.channels_last) if model.channels_last and z.ndim == 4 else z


@torch.no_grad()
def _labels(network: nn.Module, mutant: Weights, z: Tensor, batch_size: int) -> Tensor:
    """What a mutant says; small batches are padded, as `Classifier` does it."""
    said = []
    for part in z.split(batch_size):
        n = len(part)
        more = part[:1].expand(max(0, MIN_ROWS - n), *part.shape[1:])
        part = torch.cat([part, more]) if len(more) else part.clone()  # the module may work on its input in place
        said.append(functional_call(network, mutant, (part,))[:n].argmax(1))
    return torch.cat(said)


def _changes(network: nn.Module, z: Tensor, mutants: Iterable[Weights], batch_size: int) -> Tensor:
    """Truths ``(N, mutants)``: where a mutant says something else than the network."""
    label = _labels(network, {}, z, batch_size)
    return torch.stack([_labels(network, mutant, z, batch_size) != label for mutant in mutants], 1)
