"""The cases whose labels are judged, and the reference network that judges them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from operant.conditions import Recipe, apply
from operant.data import Samples
from operant.generate import OperationalFuzz
from operant.model import Classifier
from operant.networks import fit, initialise, load_weights
from operant.rng import normal_like, spawn
from operant.suite import Suite
from operant_studies.networks import ResNet20
from operant_studies.operational_fuzz.fields import StudyField, under
from operant_studies.operational_fuzz.finding import make_moves, recipe_of
from operant_studies.operational_fuzz.instruments import FieldInstruments
from operant_studies.operational_fuzz.settings import FieldSetting
from operant_studies.subjects import CIFAR_MEAN, CIFAR_STD, mnist_network, read_dataset, require_resnet20

CASES = 100  # per field, at most
AGREED = 0.9  # share of people who must have given a CIFAR-10 image its label
OTHERS = 5  # other images per case for the error at equal severity
MOVES = ("conditions", "gradient")
SEEDS = {"mnist": 1_200, "cifar10": 400, "digits": 100}  # per search; repeated until there are enough cases
TAUGHT = {"mnist": 20_000, "cifar10": 8_000, "digits": 400}  # training images of the reference, in three versions each
EPOCHS = {"mnist": 3, "cifar10": 1, "digits": 2}
RATE = {"mnist": 1e-3, "cifar10": 3e-4, "digits": 2e-3}


@dataclass(frozen=True, kw_only=True)
class AcceptedCases:
    """Operational failures, drawn at random from those that a search accepted."""

    seeds: int  # number of seeds of the search
    # candidates, ambiguous: number of inputs that seeds were chosen from, and how many were dropped because people
    # disagree about their class
    candidates: int
    ambiguous: int
    accepted: int  # number of operational failures
    # x, x0: cases and their seeds
    x: Tensor
    x0: Tensor
    # label, prediction: class of the seed, and the model's prediction for the case
    label: Tensor
    prediction: Tensor
    conditions: Tensor  # whether a case was made by conditions; else by gradients
    # values, noise: severities, one column per condition of the recipe, and the seeds of their random numbers
    values: Tensor
    noise: Tensor
    recipe: Recipe  # of the search


@dataclass(frozen=True, kw_only=True)
class ReferenceVerdicts:
    """The verdicts of the reference."""

    # model_error, reference_error: on field inputs, of the model and of the reference
    model_error: float
    reference_error: float
    wrong: Tensor  # whether the reference misclassifies each case
    equal: Tensor  # its error on other images at the severity of each case
    seeds_wrong: Tensor  # whether it misclassifies the case's seed
    field_failures: int  # number of field inputs that the model misclassifies
    field_wrong: float  # the reference's error on those, whose labels are true


# Cases ----------------------------------------------------------------------------------------------------------------


def make_cases(field: StudyField, instruments: FieldInstruments, data: Path | None) -> AcceptedCases:
    """Search for operational failures with both fast moves, and draw some of the accepted ones."""
    agreed, ambiguous = seeds_of(field, data)
    right = field.model.correct(agreed)
    recipe = recipe_of(field, instruments)
    accepted, used = _accepted(fuzz(field.setting, recipe, instruments), field, right)
    rows = torch.randperm(len(accepted), generator=spawn(field.seed, "labels", "drawn"))[:CASES]
    chosen = accepted[rows.sort().values]
    return AcceptedCases(
        seeds=used,
        candidates=len(agreed) + ambiguous,
        ambiguous=ambiguous,
        accepted=len(accepted),
        x=chosen.x,
        x0=chosen.x0,
        label=chosen.label,
        prediction=chosen.prediction,
        conditions=torch.from_numpy(np.asarray(chosen["move"]) == "conditions"),
        values=torch.stack([_column(chosen, name) for name in recipe.names], 1),
        noise=_column(chosen, "noise_seed").long(),
        recipe=recipe,
    )


def _accepted(search: OperationalFuzz, field: StudyField, right: Samples) -> tuple[Suite, int]:
    """The accepted cases of a search, and its number of seeds; searches in batches until there are enough cases."""
    order = torch.randperm(len(right), generator=spawn(field.seed, "labels"))
    found: list[Suite] = []
    used = 0
    for i, some in enumerate(order.split(SEEDS[field.setting.dataset])):
        path = ("fuzz", i) if i else ("fuzz",)
        found.append(search(field.model, right[some], generator=spawn(field.seed, "labels", *path)).operational())
        used += len(some)
        if sum(map(len, found)) >= CASES:
            break
    return Suite.concat(found), used


def fuzz(setting: FieldSetting, recipe: Recipe, instruments: FieldInstruments) -> OperationalFuzz:
    naturalness = instruments.naturalness
    moves = make_moves(setting, recipe, naturalness)
    return OperationalFuzz(
        moves={name: moves[name] for name in MOVES}, naturalness=naturalness, profile=instruments.profile
    )


def _column(suite: Suite, name: str) -> Tensor:
    """A column of numbers, 0 where a move did not fill it."""
    if name not in suite.columns:
        return torch.zeros(len(suite), dtype=torch.float64)
    return torch.as_tensor(suite[name]).double().nan_to_num(0.0)


def seeds_of(field: StudyField, data: Path | None) -> tuple[Samples, int]:
    """Inputs to make cases from, and how many were dropped; for CIFAR-10, test images on whose class people agree."""
    if field.setting.dataset != "cifar10":
        return field.train, 0
    assert data is not None  # see `check_data`
    test = read_dataset("cifar10", data).test
    with np.load(data / "cifar10h.npz") as file:
        counts = torch.from_numpy(file["counts"]).double()
    share = counts[torch.arange(len(test)), test.labels] / counts.sum(1)
    agreed = test[share >= AGREED]
    return agreed, len(test) - len(agreed)


# The reference --------------------------------------------------------------------------------------------------------


def reference(field: StudyField, recipe: Recipe, data: Path | None) -> Classifier:
    """A network trained on images that no case is made of: clean, under the recipe, and under the widest conditions."""
    name = field.setting.dataset
    known = read_dataset(name, data)
    images = known.train if name == "cifar10" else known.train[~torch.isin(known.train.ids, field.train.ids)]
    images = images[torch.randperm(len(images), generator=spawn(field.seed, "reference"))[: TAUGHT[name]]]
    harder = [
        under(r, images, generator=spawn(field.seed, "reference", which))
        for which, r in (("recipe", recipe), ("widest", field.setting.widest))
    ]
    mean, std = (CIFAR_MEAN, CIFAR_STD) if name == "cifar10" else (None, None)
    fitted = fit(
        _start(field, data),
        Samples.concat([images, *harder]),
        epochs=EPOCHS[name],
        learning_rate=RATE[name],
        mean=mean,
        std=std,
        generator=spawn(field.seed, "reference", "training"),
        progress=False,
    )
    return Classifier(fitted.module, mean=mean, std=std)


def _start(field: StudyField, data: Path | None) -> nn.Module:
    """ResNet-20 with given weights for CIFAR-10, else an untrained network with more channels than the model's."""
    if field.setting.dataset == "cifar10":
        return load_weights(ResNet20(), require_resnet20(data))
    return initialise(mnist_network, generator=spawn(field.seed, "reference", "weights"))


def judge(field: StudyField, cases: AcceptedCases, network: Classifier, data: Path | None) -> ReferenceVerdicts:
    """Judge cases, other images at equal severity, and field inputs."""
    truth = field.truth[:4_000]
    failing = truth[field.model.predict(truth.x) != truth.labels]
    equal = torch.where(
        cases.conditions, _equal_conditions(field, cases, network, data), _equal_noise(field, cases, network)
    )
    return ReferenceVerdicts(
        model_error=1 - field.model.accuracy(truth),
        reference_error=1 - network.accuracy(truth),
        wrong=network.predict(cases.x) != cases.label,
        equal=equal,
        seeds_wrong=network.predict(cases.x0) != cases.label,
        field_failures=len(failing),
        field_wrong=1 - network.accuracy(failing) if len(failing) else 0.0,
    )


def _equal_conditions(field: StudyField, cases: AcceptedCases, network: Classifier, data: Path | None) -> Tensor:
    """The error on other images of each case's class, under the conditions of the case."""
    pool, _ = seeds_of(field, data)
    generator = spawn(field.seed, "labels", "others")
    same = (pool.labels == cases.label[:, None]).double()
    rows = torch.multinomial(same, OTHERS, replacement=True, generator=generator).flatten()
    each = torch.arange(len(cases.label)).repeat_interleave(OTHERS)
    drawn = replace(cases.recipe.neutral(len(each)), values=cases.values[each], seeds=cases.noise[each])
    wrong = network.predict(apply(pool.x[rows], drawn)) != cases.label[each]
    return wrong.double().view(-1, OTHERS).mean(1)


def _equal_noise(field: StudyField, cases: AcceptedCases, network: Classifier) -> Tensor:
    """The error on each case's seed under noise that moves it as far."""
    noise = normal_like(cases.x.repeat_interleave(OTHERS, 0), generator=spawn(field.seed, "labels", "noise"))
    far = (cases.x - cases.x0).flatten(1).norm(dim=1).repeat_interleave(OTHERS)
    noise *= (far / noise.flatten(1).norm(dim=1)).view(-1, 1, 1, 1)
    x = (cases.x0.repeat_interleave(OTHERS, 0) + noise).clamp(0, 1)
    wrong = network.predict(x) != cases.label.repeat_interleave(OTHERS)
    return wrong.double().view(-1, OTHERS).mean(1)
