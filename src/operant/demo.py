"""The demo: a small network is used in a field that differs from its training data, and is hardened for it."""

import math
import os
import shutil
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape

from operant.activity import activity, showing_on
from operant.campaign import Campaign, CampaignResult, SequentialAssessment
from operant.campaign.progress import show_progress
from operant.conditions import Recipe, apply, half_normal, normal, uniform
from operant.data import Samples, labels_of, load_digits
from operant.execution.engines import one_thread
from operant.execution.timing import Stopwatch
from operant.formatting import at_most, percent
from operant.model import Classifier
from operant.networks import LeNet5, fit, initialise
from operant.profile import fit_conditions
from operant.report import write_report
from operant.results import TEMPORARY, save, write_atomically
from operant.retrain import OperationalFinetune
from operant.rng import spawn

SIGNATURE = "Made by `operant demo`."
README = f"""{SIGNATURE} Every run replaces these files:

report.html   the report, for a browser
report.json   the same, for programs: operant.report.load_evidence reads it
report.xml    the same, for CI servers (JUnit)
report.md     the same, for a pull request
risks.csv     all field inputs by the risk that the model fails on them
demo.json     the result: operant.results.load reads it into an operant.demo.DemoResult
run/          the campaign: all cases, labels, decisions and weights, round by round
"""
DEMO_FILES = ("report.html", "report.json", "report.xml", "report.md", "risks.csv", "demo.json", "run")
CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

# What a meter-reading camera does to digits. The campaign does not know it; it knows only the limits WIDEST.
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
class DemoSize:
    """Sizes of the demo's data and budgets; tests use smaller ones."""

    epochs: int = 8
    field: int = 2500
    truth: int = 10_000
    simulated: int = 1000
    rounds: int = 3
    seeds_per_round: int = 200
    cases_per_round: int = 200
    labels: int = 800
    draws: int = 3000


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """The result of a run of the demo.

    Attributes:
        seed: random seed.
        requirement: largest pmi that is accepted.
        met, reason: whether the requirement is proved, and why the campaign ended.
        before, after: assessment of the initial and of the final network.
        true_before, true_after: their error rates on many further pictures of the camera.
        labels, cases: number of labels and of generated cases used.
        cpu_seconds: CPU time of the run.
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
class DemoData:
    """The demo's data: balanced clean digits to learn from, and digits from the camera."""

    train: Samples
    clean: Samples
    field: Samples
    truth: Samples


def run_demo(
    out: str | Path,
    *,
    seed: int = 0,
    requirement: float = 0.15,
    size: DemoSize = DemoSize(),  # frozen
    console: Console | None = None,
) -> DemoResult:
    """Train a LeNet-5 on clean digits, harden it for digits from a meter-reading camera, and write a report.

    Args:
        out: a new or empty folder, or that of an earlier demo, whose files are replaced.
        seed: random seed.
        requirement: largest pmi that is accepted.
        size: sizes of data and budgets.
        console: where progress is printed (default: standard output).
    """
    console = Console(highlight=False) if console is None else console
    with showing_on(console):
        return _run(Path(out), seed, requirement, size, console)


def _run(out: Path, seed: int, requirement: float, size: DemoSize, console: Console) -> DemoResult:
    started, stopwatch = time.process_time(), Stopwatch()
    _claim(out)
    with _one_thread():
        with activity("photographing digits"):
            data = make_data(seed, size)
        model = _train(console, data, seed=seed, epochs=size.epochs)
        with stopwatch.timed("conditions"):
            recipe = _estimate(console, data, seed=seed, simulated=size.simulated)
        goal = f"its error rate in the field (pmi) is at most {percent(requirement)} with 95 % confidence"
        _print(console, "campaign", f"find failures, retrain and assess the model, in rounds, until {goal}")
        run = partial(_harden, console, data, model, recipe, out / "run", stopwatch=stopwatch)
        done = run(seed=seed, requirement=requirement, size=size)
        with activity("measuring the true error rates"):
            true_before, true_after = (1 - m.accuracy(data.truth) for m in (model, done.model))
    result = _result(done, seed, requirement, true_before, true_after, cpu_seconds=time.process_time() - started)
    save(result, out / "demo.json")
    with stopwatch.timed("report"):
        page = write_report(out / "run", out)
    _print_result(console, result, size)
    _print_next_steps(console, out, page, cpu_seconds=result.cpu_seconds)
    return result


def _result(
    done: CampaignResult, seed: int, requirement: float, true_before: float, true_after: float, *, cpu_seconds: float
) -> DemoResult:
    first = done.rounds[0].assessment
    assert first is not None
    return DemoResult(
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
        cpu_seconds=cpu_seconds,
    )


def snippet(out: Path) -> str:
    """Python code that reads the report of the demo."""
    return f"from operant.report import load_evidence\nprint(load_evidence({str(out / 'report.json')!r}).verdict)"


# Data -----------------------------------------------------------------------------------------------------------------


def make_data(seed: int, size: DemoSize) -> DemoData:
    """Split the 1797 digits of scikit-learn: 90 per class for training, the rest for clean, field and truth."""
    digits = load_digits(size=28)
    everything = Samples.concat([digits.train, digits.test])
    order = torch.randperm(len(everything), generator=spawn(seed, "demo", "deal"))
    rank = torch.zeros(len(order), dtype=torch.int64)
    for label in range(10):
        rows = order[everything.labels[order] == label]
        rank[rows] = torch.arange(len(rows))
    rest = order[rank[order] >= 90]
    clean, shown = everything[rest[:200]], everything[rest[200:]]
    return DemoData(
        train=everything[rank < 90],
        clean=clean,
        field=_photographed(shown, size.field, generator=spawn(seed, "demo", "field")),
        truth=_photographed(shown, size.truth, generator=spawn(seed, "demo", "truth")),
    )


def _photographed(images: Samples, n: int, *, generator: torch.Generator) -> Samples:
    """n pictures of these digits by the camera, with the class frequencies of meters."""
    chances = (meter_priors() / torch.bincount(images.labels, minlength=10))[images.labels]
    rows = torch.multinomial(chances, n, replacement=True, generator=generator)
    x = apply(images.x[rows], CAMERA.draw(n, generator=generator))
    return Samples(x, images.labels[rows], classes=images.classes)


def meter_priors() -> torch.Tensor:
    """Class priors of meters: Benford's law for the digits 1 to 9, log10(1 + 1 / d), and a tenth of zeros.

    >>> [round(p, 2) for p in meter_priors().tolist()]
    [0.1, 0.27, 0.16, 0.11, 0.09, 0.07, 0.06, 0.05, 0.05, 0.04]
    """
    return torch.tensor([0.1] + [0.9 * math.log10(1 + 1 / d) for d in range(1, 10)])


# Steps ----------------------------------------------------------------------------------------------------------------


def _train(console: Console, data: DemoData, *, seed: int, epochs: int) -> Classifier:
    start = initialise(LeNet5, generator=spawn(seed, "demo", "weights"))
    generator = spawn(seed, "demo", "training")
    fitted = fit(start, data.train, epochs=epochs, batch_size=32, learning_rate=2e-3, generator=generator)
    model = Classifier(fitted.module)
    right = f"{percent(model.accuracy(data.clean))} of {len(data.clean)} other clean digits"
    _print(console, "model", f"a LeNet-5, trained on {len(data.train)} clean digits; it classifies {right} correctly")
    effects = "blurred, dark or bright, off-centre and noisy, with low digits more often than high ones"
    pictures = f"{len(data.field)} unlabelled pictures of digits from a meter-reading camera"
    _print(console, "field", f"{pictures}: {effects}")
    return model


def _estimate(console: Console, data: DemoData, *, seed: int, simulated: int) -> Recipe:
    fitted = fit_conditions(
        _unlabelled(data.field.split(profile=0.5, assessment=0.5)["profile"]),  # the rest is for the assessment
        data.train,
        widest=WIDEST,
        simulated=simulated,
        resamples=20,
        generator=spawn(seed, "demo", "conditions"),
    )
    found = [f"{name} {_severity(fitted.recipe, name)}" for name in CAMERA.names]
    _print(console, "estimate", f"the camera's effects, estimated without labels: {', '.join(found)}")
    return fitted.recipe


def _severity(recipe: Recipe, name: str) -> str:
    s = recipe.severities.get(name)
    if s is None:
        return "none"
    return f"{s.low:.2g} to {s.high:.2g}" if math.isinf(s.std) else f"± {s.std:.2g}"


def _harden(
    console: Console,
    data: DemoData,
    model: Classifier,
    recipe: Recipe,
    folder: Path,
    *,
    seed: int,
    requirement: float,
    size: DemoSize,
    stopwatch: Stopwatch,
) -> CampaignResult:
    campaign = Campaign(
        requirement=requirement,
        max_drop=0.02,
        rounds=size.rounds,
        cases=size.rounds * size.cases_per_round,
        labels=size.labels,
        seeds_per_round=size.seeds_per_round,
        cases_per_round=size.cases_per_round,
        draws=size.draws,
        retrainer=OperationalFinetune(epochs=4, steps=60, patience=None, progress=False),
    )
    with show_progress(console) as on_event:
        return campaign(
            model,
            train=data.train,
            clean=data.clean,
            field=_unlabelled(data.field),
            labeller=labels_of(data.field),
            folder=folder,
            seed=seed,
            recipe=recipe,
            classes=CLASSES,
            on_event=on_event,
            stopwatch=stopwatch,
        )


def _unlabelled(samples: Samples) -> Samples:
    return samples.with_labels(None)


# Files ----------------------------------------------------------------------------------------------------------------


def _claim(out: Path) -> None:
    """Create the folder, or empty that of an earlier demo; raises a ValueError if it holds other files."""
    readme = out / "README.txt"
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file, not a folder; choose another with --out")
    held = [file for file in out.iterdir() if not file.name.endswith(TEMPORARY)] if out.exists() else []
    if held and not (readme.is_file() and readme.read_bytes().startswith(SIGNATURE.encode())):
        raise ValueError(
            f"{out} must be new, empty or made by a demo, but holds other files; choose another with --out"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the folder {out} cannot be created ({error.strerror}); choose another with --out") from None
    write_atomically(readme, README.encode())
    for name in DEMO_FILES:
        shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink(missing_ok=True)


# Output ---------------------------------------------------------------------------------------------------------------


def _print(console: Console, step: str, text: str) -> None:
    console.print(f"[bold]{step:<9}[/] {escape(text)}", soft_wrap=True)


def _print_result(console: Console, result: DemoResult, size: DemoSize) -> None:
    console.print()
    runs = {"before": (result.before, result.true_before), "after": (result.after, result.true_after)}
    for name, (assessment, true) in runs.items():
        bound = f"pmi {percent(assessment.pmi)} ({assessment.labels} labels), at most {at_most(assessment.upper)}"
        _print(console, name, f"{bound}; true error rate on {size.truth} further pictures: {percent(true)}")
    verdict = "met" if result.met else "not met"
    _print(console, "verdict", f"pmi at most {percent(result.requirement)} with 95 % confidence: {verdict}")


def _print_next_steps(console: Console, out: Path, page: Path, *, cpu_seconds: float) -> None:
    console.print()
    _print(console, "done", f"in {cpu_seconds:.0f} s of CPU time; all files are in the folder {out}")
    _print(console, "report", f"open {page} in a browser")
    _print(console, "next", f"read the result in Python ({_python()}):")
    console.print()
    for line in snippet(out).splitlines():
        console.print(f"  {escape(line)}", soft_wrap=True)


def _python() -> str:
    """The path of this Python interpreter, relative to the current folder if it is inside."""
    path, here = Path(sys.executable), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _one_thread() -> AbstractContextManager[None]:
    """One torch thread, unless the environment sets a number: on a small network more threads are slower."""
    chosen = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys()
    return nullcontext() if chosen else one_thread()
