"""What the arms of a repair cost: a training step against a plain torch loop, and the race against its winner.

`step, …`: CPU time of a training on rows that were drawn and changed before, over that of a plain loop on the same
rows. The loop does the same forward and backward passes, fused Adam at the same rates and the running average; if there
are unlabelled rows, it learns the same from them. Both must end with the same weights. Operant lays convolutions out
channels-last, which makes them faster; `step laid out alike, …` is against a loop that does so too. `arm, …`: a whole
arm, as a race calls it, over a loop that draws and changes its rows step by step. The arm writes checkpoints, the loop
does not. For batch-norm statistics, the loop passes the same batches through the network in training mode. Below 1,
Operant is faster; no ratio of steps may be above 1.15.

`race`: CPU time of a race with its range test and decision, over that of its winner trained alone with a range test; it
may not be above 2.5. `race, if … won` follows from the parts that the arms were trained.

What it costs to choose 500 of 100 000 inputs to label is measured by `acquire.py`.

    python benchmarks/repair.py [--quick]
"""

import _timing  # isort: skip  # first: it sets what torch reads when it is imported

import argparse
import copy
import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from operant import Classifier, Samples, load_digits, spawn
from operant.conditions import Recipe, apply, normal, uniform
from operant.generate import RecipeDraws
from operant.networks import LeNet5, fit, initialise
from operant.retrain import (
    BatchNormStatistics,
    FieldKnowledge,
    FieldTraining,
    Retrainer,
    RowSource,
    Schedule,
    TeachingLabels,
    TrainingRows,
    UnlabelledRows,
    default_arms,
    repair,
    train_on_rows,
)
from operant.rng import global_streams
from operant_studies.networks import ResNet20

FIELD = Recipe(severities={"rotation": normal(12), "gaussian_noise": uniform(0, 0.3)})
SCHEDULE = Schedule(learning_rate=1e-3)
HIGHEST_STEP, HIGHEST_RACE = 1.15, 2.5
Batch = tuple[Tensor, Tensor, Tensor]  # inputs, labels, inputs without labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="steps of one network, small images in the race, under 50 s"
    )
    quick = parser.parse_args().quick
    lenet, resnet = subject(partial(LeNet5, size=28)), subject(partial(ResNet20, channels=1))
    ratios = steps("LeNet-5", lenet, n=20 if quick else 40, repeats=2 if quick else 5)
    if not quick:
        ratios |= steps("ResNet-20", resnet, n=20, repeats=3)
    ratios |= statistics("ResNet-20", resnet, repeats=3 if quick else 5)
    ratios |= race(subject(partial(LeNet5, size=8), size=8) if quick else lenet)
    too_slow = [k for k, v in ratios.items() if k.startswith("step") and v > HIGHEST_STEP]
    _timing.finish("repair", ratios)
    if too_slow or (ratios["race"] > HIGHEST_RACE and not quick):
        raise SystemExit(f"a step must cost at most {HIGHEST_STEP} and the race {HIGHEST_RACE}; see the ratios")


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    model: Classifier
    known: FieldKnowledge
    judges: Samples


def subject(network: Callable[[], nn.Module], size: int = 28) -> Subject:
    """A network, briefly trained on digits, and a field whose conditions are known, with 100 labels and 100 judges."""
    digits = load_digits(size=size)
    parts = digits.train.split(train=0.5, field=0.5)
    start = initialise(network, generator=spawn(0, "weights"))
    options = {"epochs": 2, "learning_rate": 2e-3, "generator": spawn(0, "training"), "progress": False}
    model = Classifier(fit(start, parts["train"], **options).module)
    field = parts["field"]
    field = Samples(apply(field.x, FIELD.draw(len(field), generator=spawn(0, "field"))), field.y)
    known = FieldKnowledge(
        train=parts["train"],
        clean=digits.test,
        field=field[:-100],
        taught=(TeachingLabels(samples=field[:100]),),
        recipe=FIELD,
        unexplained=0.2,
        failures=RecipeDraws(recipe=FIELD)(model, parts["train"], generator=spawn(0, "cases")).failures(),
    )
    return Subject(model=model, known=known, judges=field[-100:])


# A training step ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Replayed(TrainingRows):
    """Rows that were drawn and changed before."""

    given: Iterator[Batch]

    def batches(self, steps: int, *, generator: torch.Generator) -> Iterator[Batch]:
        return itertools.islice(self.given, steps)


def steps(network: str, of: Subject, *, n: int, repeats: int) -> dict[str, float]:
    """Ratios of the first n steps of each arm; prints a table."""
    rows, ratios = [], {}
    for name, arm in default_arms(of.model, of.known, SCHEDULE).items():
        if isinstance(arm, FieldTraining):
            ms = {k: 1000 * v / n for k, v in step_times(arm, of.model, of.known, n=n, repeats=repeats).items()}
            step, alike, whole = ms["ours"] / ms["plain"], ms["ours"] / ms["alike"], ms["arm"] / ms["drawing"]
            ratios |= {f"step, {network}, {name}": step, f"step laid out alike, {network}, {name}": alike}
            ratios |= {f"arm, {network}, {name}": whole}
            rows.append([name, f"{ms['ours']:.1f}", f"{step:.2f}", f"{alike:.2f}", f"{ms['arm']:.1f}", f"{whole:.2f}"])
    columns = ["arm", "step in ms", "of a plain loop's", "laid out alike", "with drawing in ms", "of a plain loop's"]
    _timing.show(f"{network}, a training step", columns, rows)
    return ratios


def step_times(
    arm: FieldTraining, model: Classifier, known: FieldKnowledge, *, n: int, repeats: int
) -> dict[str, float]:
    """CPU seconds of the first n steps, ours and plain."""
    rows, until = arm.rows(model, known), n / SCHEDULE.steps
    given = list(rows.batches(n, generator=spawn(0, "rows")))

    def ours() -> Classifier:
        replayed = Replayed(sources=rows.sources, unlabelled=rows.unlabelled, given=iter(given))
        return train_on_rows(model, replayed, SCHEDULE, generator=spawn(1), until=until)

    def whole() -> Classifier:
        with tempfile.TemporaryDirectory() as folder:
            return arm(model, known, generator=spawn(1), until=until, checkpoint=Path(folder) / "state")

    check_equal(model.unwrap(), ours().unwrap(), plain_loop(model, rows.unlabelled, given))
    return _timing.cpu_times(
        {
            "ours": ours,
            "plain": lambda: plain_loop(model, rows.unlabelled, given),
            "alike": lambda: plain_loop(model, rows.unlabelled, given, channels_last=True),
            "arm": whole,
            "drawing": lambda: plain_loop(model, rows.unlabelled, drawn(rows, n, generator=spawn(0, "rows"))),
        },
        repeats=repeats,
    )


def drawn(rows: TrainingRows, n: int, *, generator: torch.Generator) -> Iterator[Batch]:
    """Rows as a plain loop would draw and change them: for each step anew."""
    for _ in range(n):
        xs, ys = zip(*(draw_from(source, generator) for source in rows.sources), strict=True)
        bare = xs[0][:0]
        if rows.unlabelled is not None:
            field = rows.unlabelled.field.x
            bare = field[torch.randint(len(field), (rows.unlabelled.rows,), generator=generator)]
        yield torch.cat(xs), torch.cat(ys), bare


def draw_from(source: RowSource, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    chosen = torch.multinomial(source.chances, source.rows, replacement=True, generator=generator)
    x = source.samples.x[chosen]
    return x if source.change is None else source.change(x, generator=generator), source.samples.labels[chosen]


def plain_loop(
    model: Classifier, unlabelled: UnlabelledRows | None, batches: Iterable[Batch], *, channels_last: bool = False
) -> nn.Module:
    """A training as one would write it in torch; the averaged weights."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    module = model.unwrap().train().to(memory_format=layout)
    average = copy.deepcopy(module).eval()
    optimiser = torch.optim.Adam(module.parameters(), fused=True)
    generator = spawn(1)
    with global_streams(generator):  # so that it draws the same numbers as ours
        for t, (x, y, bare) in enumerate(batches, 1):
            for group in optimiser.param_groups:
                group["lr"] = SCHEDULE.rate(t, SCHEDULE.learning_rate)
            x, bare = (part.contiguous(memory_format=layout) for part in (x, bare))
            loss = plain_loss(module, average, unlabelled, x, y, bare, generator)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if not math.isfinite(loss.item()):
                raise SystemExit(f"the loss of the plain loop became {loss.item()}")
            average_in(average, module)
    return average


@torch.no_grad()
def average_in(average: nn.Module, module: nn.Module) -> None:
    olds, news = (itertools.chain(m.parameters(), m.buffers()) for m in (average, module))
    for old, new in zip(olds, news, strict=True):
        if new.is_floating_point():
            old.lerp_(new, 1 - SCHEDULE.average)
        else:
            old.copy_(new)


def plain_loss(
    module: nn.Module,
    average: nn.Module,
    unlabelled: UnlabelledRows | None,
    x: Tensor,
    y: Tensor,
    bare: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Cross-entropy of labelled rows, information maximisation and self-training on the others."""
    if unlabelled is None:
        return cross_entropy(module(x), y, label_smoothing=SCHEDULE.smoothing)
    seen = bare
    if unlabelled.pseudo_weight:
        with torch.no_grad():
            sure, label = average(bare).softmax(1).max(1)
        seen = unlabelled.change(bare, generator=generator)
    z, z_bare = module(torch.cat([x, seen])).split([len(x), len(bare)])
    p = z_bare.softmax(1)
    mean, priors = p.mean(0), unlabelled.priors.to(p).clamp_min(1e-4)
    entropy = -(p * p.clamp_min(1e-8).log()).sum(1).mean()
    more = unlabelled.information_weight * (entropy + (mean * (mean.clamp_min(1e-8) / priors).log()).sum())
    if unlabelled.pseudo_weight:
        each = cross_entropy(z_bare, label, reduction="none")
        more = more + unlabelled.pseudo_weight * (each * (sure >= unlabelled.confidence)).mean()
    return cross_entropy(z, y, label_smoothing=SCHEDULE.smoothing) + more * len(bare) / len(x)


def check_equal(start: nn.Module, ours: nn.Module, plain: nn.Module) -> None:
    """Stop if two trainings do not end with the same weights, apart from rounding."""
    before, a, b = (torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (start, ours, plain))
    apart = float((a - b).norm() / (b - before).norm())
    if apart > 0.02:
        raise SystemExit(f"both loops must train the same, but weights differ by {apart:.1%} of their change")


# Batch-norm statistics ------------------------------------------------------------------------------------------------


def statistics(network: str, of: Subject, *, repeats: int) -> dict[str, float]:
    model, arm, x = of.model, BatchNormStatistics(mix=0.5), of.known.field.x

    @torch.no_grad()
    def plain() -> nn.Module:
        module = model.unwrap().eval()
        old = copy.deepcopy(module.state_dict())
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.reset_running_stats()
                part.momentum = None
                part.train()
        for some in x.tensor_split(len(x) // 256):
            module(some)
        for name, value in module.state_dict().items():
            if "running" in name:
                value.lerp_(old[name], 1 - arm.mix)
        return module.eval()

    runs = {"ours": lambda: arm(model, of.known, generator=spawn(0)), "plain": plain}
    times = _timing.cpu_times(runs, repeats=repeats)
    ratio = times["ours"] / times["plain"]
    print(
        f"{network}, batch-norm statistics of {len(x)} inputs: {times['ours']:.2f} s, {ratio:.2f} of a plain loop's\n"
    )
    return {f"step, {network}, batch-norm statistics": ratio}


# The race -------------------------------------------------------------------------------------------------------------


def race(of: Subject) -> dict[str, float]:
    """Cost of a race over that of its winner, and of each arm that might have won; prints tables."""
    arms = default_arms(of.model, of.known)
    start = time.process_time()
    done = repair(of.model, of.known, judges=of.judges, generator=spawn(0, "race"))
    total = time.process_time() - start
    print(done, "\n")
    if done.kept not in arms:
        raise SystemExit("a race that keeps the original model has no winner to compare with")
    alone = {name: seconds(arm, of) for name, arm in arms.items()}
    trained = {arm.name: arm.trained for arm in done.arms}
    _, second = (name for name, share in trained.items() if share == 1)
    rows, ratios = [], {"race": total / alone[done.kept]}
    for name in alone:  # had another arm reached the end in place of the second, the rest of its training would count
        costs = total if trained[name] == 1 else total + (1 - trained[name]) * (alone[name] - alone[second])
        ratios[f"race, if {name} won"] = costs / alone[name]
        rows.append([name, f"{alone[name]:.1f}", f"{costs:.1f}", f"{costs / alone[name]:.2f}"])
    _timing.show("The race, by the arm that wins", ["winner", "alone, CPU s", "race, CPU s", "ratio"], rows)
    return ratios


def seconds(arm: Retrainer, of: Subject) -> float:
    """CPU seconds of the whole training of an arm, with its range test and checkpoints."""
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        arm(of.model, of.known, generator=spawn(0, "alone"), checkpoint=Path(folder) / "state")
    return time.process_time() - start


if __name__ == "__main__":
    main()
