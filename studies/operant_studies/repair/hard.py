"""Never worse: small runs of repair where it has every chance to do harm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from operant.conditions import Recipe, normal
from operant.data import Dataset, Samples
from operant.model import Classifier
from operant.networks import initialise
from operant.retrain import FieldKnowledge, Schedule, TeachingLabels, judge_labels, repair
from operant.rng import shuffled, spawn
from operant.seeds import AtRandom, Badge, acquire
from operant_studies.operational_fuzz.fields import under
from operant_studies.repair.settings import RepairSetting
from operant_studies.shared import Steps, Units
from operant_studies.subjects import read_dataset, train_once

ONE_CLASS, FOREIGN, WRONG_RECIPE = "one class", "30 % foreign inputs", "wrong conditions"
SAME, TEN, WRONG_LABELS = "field equal to training", "ten labels", "a tenth of labels wrong"
KINDS = (ONE_CLASS, FOREIGN, WRONG_RECIPE, SAME, TEN, WRONG_LABELS)
LABELS = (0, 10, 50, 100, 250)  # in turn
NETWORKS = 10  # models, in turn
STEPS = 150  # of training, per arm
TURNED = Recipe(
    severities={"rotation": normal(10, mean=12), "gaussian_noise": normal(0.05, mean=0.12, low=0, high=0.4)}
)
DARK = Recipe(severities={"exposure": normal(0.3, mean=-1.0), "blur": normal(0.3, mean=0.9, low=0, high=2)})
ROLES = {"train": 4_000, "clean": 600, "field": 800, "truth": 3_000}


@dataclass(frozen=True, kw_only=True)
class HardRun:
    """One run: the true error before and after, and what was kept."""

    kind: str
    labels: int
    before: float
    after: float
    kept: str


def units(setting: RepairSetting, data: Path | None, out: Path) -> Units:
    return [
        (f"hard cases, run {number}", partial(run_hard, setting, data, number, out))
        for number in range(setting.hard_runs)
    ]


def run_hard(setting: RepairSetting, data: Path | None, number: int, out: Path) -> None:
    """One run, if it is not finished; a module-level function, so that other processes can run it."""
    steps = Steps(out / "steps" / "hard")
    if not steps.done(f"run-{number}"):
        dataset = setting.inputs.cases[0].dataset
        steps.step(f"run-{number}", HardRun, lambda: hard_run(dataset, data, number, out))


def hard_run(dataset: str, data: Path | None, number: int, out: Path) -> HardRun:
    kind = KINDS[number % len(KINDS)]
    labels = 10 if kind == TEN else LABELS[number // len(KINDS) % len(LABELS)]
    parts = hard_parts(read_dataset(dataset, data), number % NETWORKS)
    model = small_network(parts["train"], number % NETWORKS, out, dataset)
    field, truth = (in_hard_field(kind, parts[role], number, role) for role in ("field", "truth"))
    known = FieldKnowledge(
        train=parts["train"],
        clean=parts["clean"],
        field=with_foreign(field, dataset, data, number) if kind == FOREIGN else field,
        recipe=None if kind == SAME else DARK if kind == WRONG_RECIPE else TURNED,
        unexplained=1.0 if kind == SAME else 0.05,
    )
    known, judges = bought(model, known, field, labels, kind, number)
    done = repair(model, known, judges=judges, schedule=Schedule(steps=STEPS), generator=spawn(number, "repair"))
    before, after = (1 - m.accuracy(truth) for m in (model, done.model))
    return HardRun(kind=kind, labels=labels, before=before, after=after, kept=done.kept)


def hard_parts(known: Dataset, seed: int) -> dict[str, Samples]:
    """Small copies of images by role; field and truth are test images."""
    rows = {part: shuffled(len(getattr(known, part)), spawn(seed, "hard", part)) for part in ("train", "test")}
    train, test = small_images(known.train[rows["train"]]), small_images(known.test[rows["test"]])
    n, clean = ROLES["train"], ROLES["clean"]
    n = min(n, len(train) * 4 // 5)
    half = min(ROLES["field"], len(test) // 2)
    return {
        "train": train[:n],
        "clean": train[n : n + clean],
        "field": test[:half],
        "truth": test[half : half + ROLES["truth"]],
    }


def small_images(samples: Samples) -> Samples:
    return Samples(avg_pool2d(samples.x, 2), samples.labels)


def small_network(train: Samples, seed: int, out: Path, dataset: str) -> Classifier:
    start = initialise(_network, generator=spawn(seed, "hard", "weights"))
    path = out / "networks" / f"hard-{dataset}-{seed}.safetensors"
    return train_once(start, path, train, epochs=6, generator=spawn(seed, "hard", "training"))


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32 * 9, 10),
    )


def in_hard_field(kind: str, images: Samples, number: int, role: str) -> Samples:
    """Field inputs of a kind."""
    generator = spawn(number, "hard", role)
    if kind == SAME:
        return images
    if kind == ONE_CLASS:
        rare = torch.rand(len(images), generator=generator) < 0.05
        own = images.labels == number // len(KINDS) % 10
        rows = (own | rare).nonzero().flatten()
        images = images[rows[torch.randint(len(rows), (len(images),), generator=generator)]]
    return under(TURNED, images, generator=generator)


def with_foreign(field: Samples, dataset: str, data: Path | None, number: int) -> Samples:
    """Field inputs, three in ten of which show something else."""
    n = round(len(field) * 3 / 7)
    if dataset == "digits":
        return Samples.concat([field.with_labels(None), Samples(field.x[:n].flip(1).transpose(2, 3))])
    other = read_dataset("fashion-mnist", data).test
    rows = torch.randint(len(other), (n,), generator=spawn(number, "foreign"))
    return Samples.concat([field.with_labels(None), Samples(avg_pool2d(other.x[rows], 2))])


def bought(
    model: Classifier, known: FieldKnowledge, labelled: Samples, n: int, kind: str, number: int
) -> tuple[FieldKnowledge, Samples | None]:
    """So many labels: random ones that judge, and chosen ones that teach."""
    if n == 0:
        return known, None
    labelled = unique(labelled)
    generator = spawn(number, "buy")
    drawn = acquire(model, labelled, max(judge_labels(n), 1), strategy=AtRandom(), generator=generator)
    judges = drawn.samples(labelled) if judge_labels(n) else None
    already = drawn.ids if judges is not None else None
    taught = n - (0 if judges is None else len(judges))
    chosen = acquire(model, labelled, taught, strategy=Badge(), already=already, generator=generator)
    taught_samples = spoiled(chosen.samples(labelled), kind, generator)
    judges = None if judges is None else spoiled(judges, kind, generator)
    return known.with_labels(TeachingLabels(samples=taught_samples)), judges


def unique(samples: Samples) -> Samples:
    """Each input once: images of one class repeat."""
    return samples[samples.rows_of(samples.ids.unique())]


def spoiled(samples: Samples, kind: str, generator: torch.Generator) -> Samples:
    """A tenth of the labels are replaced by others, if that is the kind."""
    if kind != WRONG_LABELS:
        return samples
    wrong = torch.rand(len(samples), generator=generator) < 0.1
    other: Tensor = (samples.labels + torch.randint(1, 10, (len(samples),), generator=generator)) % 10
    return replace(samples, y=torch.where(wrong, other, samples.labels))
