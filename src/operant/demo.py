"""The first minutes with Operant: a small network goes into a field that differs, and is hardened for it."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape

from operant.campaign import Campaign, CampaignResult, SequentialAssessment
from operant.campaign.progress import show_progress
from operant.conditions import Recipe, apply, half_normal, normal, uniform
from operant.data import Samples, labels_of, load_digits
from operant.execution.engines import one_thread
from operant.generate import ConditionMove, GradientMove
from operant.model import Classifier
from operant.networks import LeNet5, fit, initialise
from operant.profile import fit_conditions
from operant.report import write_report
from operant.results import TEMPORARY, save, write_atomically
from operant.retrain import OperationalFinetune
from operant.rng import spawn

SIGNATURE = "Made by `operant demo`."
README = f"""{SIGNATURE} Every run replaces these files:

report.html   what happened, for a browser
report.json   the same, for programs: operant.report.load_evidence reads it
report.xml    the same, for CI servers (JUnit)
report.md     the same, for a pull request
demo.json     the numbers at the end: operant.results.load reads them into an operant.demo.Demo
run/          the campaign: every case, label, decision and weight, round by round
"""
OURS = ("report.html", "report.json", "report.xml", "report.md", "demo.json", "run")
CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

# What a camera that reads meters does to digits; the method is not told, only that it is nothing worse than WIDEST.
CAMERA = Recipe(
    severities={
        "blur": uniform(0, 1.6),
        "brightness": normal(0.15),
        "shift_x": uniform(-0.1, 0.1),
        "shift_y": uniform(-0.1, 0.1),
        "gaussian_noise": half_normal(0.08, high=0.25),
    }
)
WIDEST = Recipe(
    severities={
        "blur": uniform(0, 3),
        "brightness": normal(0.3),
        "contrast": normal(0.4),
        "rotation": normal(20),
        "shift_x": uniform(-0.2, 0.2),
        "shift_y": uniform(-0.2, 0.2),
        "gaussian_noise": half_normal(0.2, high=0.5),
    }
)


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of everything the demo has; smaller ones are for tests."""

    epochs: int = 8
    field: int = 2500
    truth: int = 10_000
    simulated: int = 1000
    rounds: int = 3
    seeds_per_round: int = 200
    cases_per_round: int = 100
    labels: int = 800


@dataclass(frozen=True, kw_only=True)
class Demo:
    """What a run of the demo came to.

    Attributes:
        requirement: largest pmi that was to be accepted.
        met, reason: whether that could be shown, and why the campaign ended.
        before, after: what labels said of the network as it came, and as it left.
        true_before, true_after: the same in truth, on many inputs that the camera took of the same digits later.
        labels, cases: what it took.
        cpu_seconds: likewise.
    """

    seed: int
    requirement: float
    met: bool
    reason: str
    before: SequentialAssessment
    after: SequentialAssessment
    true_before: float
    true_after: float
    labels: int
    cases: int
    cpu_seconds: float


@dataclass(frozen=True, kw_only=True)
class World:
    """The demo's data: balanced clean digits to learn from, and digits as the camera sends them."""

    train: Samples
    clean: Samples
    field: Samples
    truth: Samples


def run_demo(
    out: str | Path,
    *,
    seed: int = 0,
    requirement: float = 0.15,
    size: Size = Size(),  # frozen
    console: Console | None = None,
) -> Demo:
    """Train a LeNet-5 on clean digits, harden it for digits that a meter-reading camera sends, and report.

    Args:
        out: the folder: a new one, an empty one, or one of an earlier demo, whose files are replaced.
        seed: of everything random.
        requirement: largest pmi that is accepted.
        size: how much of everything.
        console: where to tell what happens; standard output unless given.
    """
    out, started = Path(out), time.process_time()
    console = Console(highlight=False) if console is None else console
    _claim(out)
    with _one_thread():
        world = make_world(seed, size)
        model = _train(console, world, seed=seed, epochs=size.epochs)
        recipe = _estimate(console, world, seed=seed, simulated=size.simulated)
        _tell(
            console, "campaign", f"rounds of finding, retraining and assessing, until pmi is at most {requirement:.0%}"
        )
        done = _harden(console, world, model, recipe, out / "run", seed=seed, requirement=requirement, size=size)
        true_before, true_after = (1 - m.accuracy(world.truth) for m in (model, done.model))
    first = done.rounds[0].assessment
    assert first is not None
    result = Demo(
        seed=seed,
        requirement=requirement,
        met=done.met,
        reason=done.reason,
        before=first,
        after=done.assessment,
        true_before=true_before,
        true_after=true_after,
        labels=done.labels,
        cases=done.rounds[-1].cases,
        cpu_seconds=time.process_time() - started,
    )
    save(result, out / "demo.json")
    page = write_report(out / "run", out)
    _tell_outcome(console, result, size)
    _tell_next(console, out, page, cpu_seconds=result.cpu_seconds)
    return result


def snippet(out: Path) -> str:
    """Lines of Python that go on from what the demo wrote."""
    return f"from operant.report import load_evidence\nprint(load_evidence({str(out / 'report.json')!r}).verdict)"


# The world ------------------------------------------------------------------------------------------------------------


def make_world(seed: int, size: Size) -> World:
    """Deal the 1797 embedded digits: 90 of each class to learn from, the rest to guard, field and truth."""
    digits = load_digits(size=28)
    everything = Samples.concat([digits.train, digits.test])
    order = torch.randperm(len(everything), generator=spawn(seed, "demo", "deal"))
    rank = torch.zeros(len(order), dtype=torch.int64)
    for label in range(10):
        rows = order[everything.labels[order] == label]
        rank[rows] = torch.arange(len(rows))
    rest = order[rank[order] >= 90]
    guard, read = everything[rest[:200]], everything[rest[200:]]
    return World(
        train=everything[rank < 90],
        clean=guard,
        field=_sent(read, size.field, generator=spawn(seed, "demo", "field")),
        truth=_sent(read, size.truth, generator=spawn(seed, "demo", "truth")),
    )


def _sent(images: Samples, n: int, *, generator: torch.Generator) -> Samples:
    """n of these digits as the camera sends them, each as often as meters show it."""
    chances = (meter_priors() / torch.bincount(images.labels, minlength=10))[images.labels]
    rows = torch.multinomial(chances, n, replacement=True, generator=generator)
    return Samples(apply(images.x[rows], CAMERA.draw(n, generator=generator)), images.labels[rows])


def meter_priors() -> torch.Tensor:
    """Benford's law for the digits 1 to 9, log10(1 + 1 / d), and one digit in ten a zero.

    >>> [round(p, 2) for p in meter_priors().tolist()]
    [0.1, 0.27, 0.16, 0.11, 0.09, 0.07, 0.06, 0.05, 0.05, 0.04]
    """
    return torch.tensor([0.1] + [0.9 * math.log10(1 + 1 / d) for d in range(1, 10)])


# Steps ----------------------------------------------------------------------------------------------------------------


def _train(console: Console, world: World, *, seed: int, epochs: int) -> Classifier:
    start = initialise(LeNet5, generator=spawn(seed, "demo", "weights"))
    generator = spawn(seed, "demo", "training")
    fitted = fit(start, world.train, epochs=epochs, batch_size=32, learning_rate=2e-3, generator=generator)
    model = Classifier(fitted.module)
    _tell(
        console,
        "model",
        f"a LeNet-5 that learned from {len(world.train)} clean digits, as many of each; it reads "
        f"{model.accuracy(world.clean):.1%} of {len(world.clean)} others",
    )
    _tell(
        console,
        "field",
        f"{len(world.field)} digits as a meter-reading camera sends them, without labels: blurred, dark or bright, off "
        "centre, noisy, and small digits more often than large ones; how, nobody tells",
    )
    return model


def _estimate(console: Console, world: World, *, seed: int, simulated: int) -> Recipe:
    fitted = fit_conditions(
        _unlabelled(world.field.split(profile=0.5, assessment=0.5)["profile"]),  # the rest is to assess
        world.train,
        widest=WIDEST,
        simulated=simulated,
        resamples=20,
        generator=spawn(seed, "demo", "conditions"),
    )
    found = [f"{name} {_told(fitted.recipe, name)}" for name in CAMERA.names]
    _tell(console, "estimate", f"what the camera does: {', '.join(found)}")
    return fitted.recipe


def _told(recipe: Recipe, name: str) -> str:
    s = recipe.severities.get(name)
    if s is None:
        return "none"
    return f"{s.low:.2g} to {s.high:.2g}" if math.isinf(s.std) else f"± {s.std:.2g}"


def _harden(
    console: Console,
    world: World,
    model: Classifier,
    recipe: Recipe,
    folder: Path,
    *,
    seed: int,
    requirement: float,
    size: Size,
) -> CampaignResult:
    campaign = Campaign(
        requirement=requirement,
        moves={
            "conditions": partial(ConditionMove, recipe=recipe),
            "gradient": partial(GradientMove, radius=1.0),
        },
        max_drop=0.02,
        rounds=size.rounds,
        cases=size.rounds * size.cases_per_round,
        labels=size.labels,
        seeds_per_round=size.seeds_per_round,
        cases_per_round=size.cases_per_round,
        retrainer=OperationalFinetune(epochs=4, steps=60, patience=None, progress=False),
    )
    with show_progress(console) as on_event:
        return campaign(
            model,
            train=world.train,
            clean=world.clean,
            field=_unlabelled(world.field),
            labeller=labels_of(world.field),
            folder=folder,
            seed=seed,
            classes=CLASSES,
            on_event=on_event,
        )


def _unlabelled(samples: Samples) -> Samples:
    return Samples(samples.x, ids=samples.ids)


# Files ----------------------------------------------------------------------------------------------------------------


def _claim(out: Path) -> None:
    """Make the folder, or take over that of an earlier demo; never one with anybody's other files."""
    readme = out / "README.txt"
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} must be a folder, and is a file; choose another with --out")
    held = [file for file in out.iterdir() if not file.name.endswith(TEMPORARY)] if out.exists() else []
    if held and not (readme.is_file() and readme.read_bytes().startswith(SIGNATURE.encode())):
        raise ValueError(
            f"{out} must be new, empty or made by a demo, and holds other files; choose another with --out"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the folder {out} cannot be made ({error.strerror}); choose another with --out") from None
    write_atomically(readme, README.encode())
    for name in OURS:
        _remove(out / name)


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


# What is told ---------------------------------------------------------------------------------------------------------


def _tell(console: Console, step: str, text: str) -> None:
    console.print(f"[bold]{step:<9}[/] {escape(text)}", soft_wrap=True)


def _tell_outcome(console: Console, result: Demo, size: Size) -> None:
    console.print()
    for name, told, true in (
        ("before", result.before, result.true_before),
        ("after", result.after, result.true_after),
    ):
        bound = f"pmi {told.pmi:.1%} on {told.labels} labels, at most {told.upper:.1%}"
        _tell(console, name, f"{bound}; in truth, on {size.truth} further pictures, {true:.1%}")
    verdict = "met" if result.met else "not met"
    _tell(console, "required", f"at most {result.requirement:.0%} with 95 % confidence: {verdict}")


def _tell_next(console: Console, out: Path, page: Path, *, cpu_seconds: float) -> None:
    console.print()
    _tell(console, "done", f"in {cpu_seconds:.0f} s of CPU time; everything is in the folder {out}")
    _tell(console, "look", f"open {page} in a browser")
    _tell(console, "go on", f"in Python ({_python()}):")
    console.print()
    for line in snippet(out).splitlines():
        console.print(f"  {escape(line)}", soft_wrap=True)


def _python() -> str:
    """The interpreter that knows Operant, told as briefly as it can be."""
    path, here = Path(sys.executable), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


@contextmanager
def _one_thread() -> Iterator[None]:
    """One torch thread, unless the environment names a number: on a small network more of them only cost."""
    named = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys()
    with nullcontext() if named else one_thread():
        yield
