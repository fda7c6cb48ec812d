"""Mutation-based detection: the labels of adversarial inputs change more often when the network changes a little."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from operant.data import Samples
from operant.defend._common import check_predictions, check_shape, split_benign
from operant.defend.mutants import Weights, mutate
from operant.defend.sequential import ADVERSARIAL, GRID, OPEN, SequentialTest, critical_thresholds, on_grid
from operant.formatting import percent
from operant.measure.conformal import check_level, fit_conformal
from operant.model import MIN_ROWS, Classifier, freeze
from operant.retrain.training import laid_out, with_layout
from operant.rng import spawn
from operant.validation import check_at_least

MAX_TRIES = 5  # mutants tried per mutant needed


class InaccurateMutants(ValueError):
    """Too few mutants agree with the network on benign inputs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MutationDecisions:
    """Per input: whether it is adversarial, the number of mutants used, and the share of those with another label."""

    adversarial: Tensor
    mutants: Tensor
    rate: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class MutationDetector:
    """Runs mutants until it is clear whether an input's label is stable; from `fit_mutation_detector`.

    Attributes:
        network: the module that is mutated.
        seed: from which mutants are drawn, each by its number.
        numbers: of the mutants that are accurate enough.
        test: makes the decision, with its calibrated threshold.
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
        """Booleans ``(N,)``: which inputs are accepted as benign."""
        return ~self.decisions(x).adversarial

    def decisions(self, x: Tensor) -> MutationDecisions:
        """The decision on each input; undecided inputs share the next mutant, decided ones are dropped."""
        check_shape(x, self.shape)
        self.model.check_inputs(x)
        z = laid_out(self.model, x)
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
        return MutationDecisions(
            adversarial=(answer == ADVERSARIAL).to(x.device),
            mutants=used.to(x.device),
            rate=(changes.double() / used).to(x.device),
        )

    def changes(self, x: Tensor) -> Tensor:
        """Booleans ``(N, mutants)``: where each mutant predicts another label than the network; runs all mutants."""
        check_shape(x, self.shape)
        self.model.check_inputs(x)
        return _changes(self.network, laid_out(self.model, x), self._mutants(), self.model.batch_size).to(x.device)

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
    """A detector with mutants that agree with the network on most benign inputs, and a calibrated threshold.

    One part of the benign inputs selects mutants by their agreement with the network; the rest calibrates. Calibration
    is of the sequential test's decision itself (`critical_thresholds`): at most a share ``level`` of new benign inputs
    from the same distribution is rejected. The threshold is never so small that an input whose label never changes
    would need more mutants than there are.

    The public program computes the ratio before it counts the current mutant, and only when the label has changed, so
    that benign inputs always run through all mutants; here it is computed after every mutant. Its indifference is 0.1,
    with which an unchanging label takes 15 / threshold mutants: more than there are, for most thresholds.

    Args:
        benign: inputs that it classifies correctly and was not trained on.
        operator: ``"NAI"``, ``"GF"``, ``"WS"`` or ``"NS"``; see `operant.defend.mutants.mutate`.
        rate: share of neurons or weights that a mutant changes.
        mutants: maximum number per input.
        min_accuracy: minimum agreement of a mutant with the network on benign inputs.
        level: the false-positive rate.
        calibration: share of the benign inputs for calibration, split by id.
        indifference, alpha, beta: of the `SequentialTest`.

    References:
        | Adversarial Sample Detection for Deep Neural Network through Model Mutation Testing (Wang et al., 2019)
        | https://arxiv.org/abs/1812.05793
    """
    check_predictions(model, benign, correct=True)
    check_at_least(1, mutants=mutants)
    selecting, held = split_benign(benign, calibration)
    check_level(level, len(held))
    model.prepare(benign.x[:MIN_ROWS])
    network = freeze(model.unwrap())
    if model.channels_last:
        network = with_layout(network, channels_last=True)
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    z = laid_out(model, selecting.x)
    label = _labels(network, {}, z, model.batch_size)
    numbers: list[int] = []
    for number in range(MAX_TRIES * mutants):
        mutant = _mutant(network, operator, rate, seed, number)
        if float((_labels(network, mutant, z, model.batch_size) == label).double().mean()) >= min_accuracy:
            numbers.append(number)
        if len(numbers) == mutants:
            break
    else:
        few = f"only {len(numbers)} of {MAX_TRIES * mutants} mutants agree with the network on at least"
        share = f"{percent(min_accuracy, 2)} of the benign inputs, {mutants} are needed"
        raise InaccurateMutants(f"{few} {share}; lower the rate ({rate}) or min_accuracy")
    chosen = (_mutant(network, operator, rate, seed, number) for number in numbers)
    changed = _changes(network, laid_out(model, held.x), chosen, model.batch_size).cpu()
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
    """The test with the calibrated threshold, or the smallest one that can decide about an unchanging label."""
    top = on_grid(GRID - 1, options["indifference"])
    if threshold > top:
        raise ValueError("mutants change the labels of nearly all benign inputs; lower the rate")
    low, high = 0.0, top
    while high - low > 1e-9:
        middle = (low + high) / 2
        enough = SequentialTest(threshold=middle, **options).shortest <= mutants
        low, high = (low, middle) if enough else (middle, high)
    return SequentialTest(threshold=max(threshold, high), **options)


def _mutant(network: nn.Module, operator: str, rate: float, seed: int, number: int) -> Weights:
    return mutate(network, operator=operator, rate=rate, generator=spawn(seed, "mutant", number))


@torch.no_grad()
def _labels(network: nn.Module, mutant: Weights, z: Tensor, batch_size: int) -> Tensor:
    """A mutant's predictions; small batches are padded as in `Classifier`."""
    labels = []
    for part in z.split(batch_size):
        n = len(part)
        more = part[:1].expand(max(0, MIN_ROWS - n), *part.shape[1:])
        part = torch.cat([part, more]) if len(more) else part.clone()  # the module may work on its input in place
        labels.append(functional_call(network, mutant, (part,))[:n].argmax(1))
    return torch.cat(labels)


def _changes(network: nn.Module, z: Tensor, mutants: Iterable[Weights], batch_size: int) -> Tensor:
    """Booleans ``(N, mutants)``: where a mutant predicts another label than the network."""
    label = _labels(network, {}, z, batch_size)
    return torch.stack([_labels(network, mutant, z, batch_size) != label for mutant in mutants], 1)
