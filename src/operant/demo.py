"""The first minute with Operant: train a small network, ask the doctor, attack it, and show what came out."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from operant.data import Dataset, Samples, load_digits
from operant.doctor import Finding
from operant.generate import FGSM, PGD, CarliniWagner, DeepFool
from operant.model import Classifier
from operant.networks import LeNet5, fit, initialise, save_weights
from operant.report import write_gallery
from operant.results import TEMPORARY, save, write_atomically
from operant.rng import spawn
from operant.suite import Suite
from operant.types import Fuzzer

SIGNATURE = "Made by `operant demo`."
README = f"""{SIGNATURE} Every run replaces these files:

index.html         cases beside their seeds, for a browser
suites/            the cases themselves, one folder an attack: operant.Suite.open reads them
model.safetensors  the network's weights: operant.networks.load_weights puts them into a LeNet5
demo.json          the numbers of the table: operant.results.load reads them into an operant.demo.Demo
"""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A fuzzer, the name that its cases carry as their method, and what it does in a few words."""

    name: str
    about: str
    fuzzer: Fuzzer


ATTACKS = (
    Attack(
        name="fgsm-linf",
        about="One step along the sign of the gradient that changes no pixel by more than 0.1",
        fuzzer=FGSM(radius=0.1),
    ),
    Attack(
        name="pgd-linf",
        about="Ten steps along the sign of the gradient that change no pixel by more than 0.1",
        fuzzer=PGD(radius=0.1),
    ),
    Attack(
        name="pgd-l2",
        about="Ten steps along the gradient to a distance of at most 1.5",
        fuzzer=PGD(radius=1.5, norm="l2"),
    ),
    Attack(
        name="deepfool-l2",
        about="The shortest way across the nearest boundary, as far as straight lines can tell",
        fuzzer=DeepFool(),
    ),
    Attack(
        name="carlini-wagner-l2",
        about="The nearest failure that a patient search finds",
        fuzzer=CarliniWagner(steps=100, step_size=0.05, binary_search_steps=4, initial_const=1.0),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How many cases an attack made, how many of them fail, and how far those are from their seeds on average."""

    attack: str
    cases: int
    failures: int
    linf: float
    l2: float
    cpu_seconds: float


@dataclass(frozen=True, kw_only=True)
class Demo:
    """What a run of the demo found."""

    seed: int
    right: int  # of the test digits, before any attack
    tested: int
    findings: tuple[Finding, ...]
    outcomes: tuple[Outcome, ...]


def run_demo(
    out: str | Path,
    *,
    seed: int = 0,
    epochs: int = 8,
    seeds: int = 100,
    attacks: Sequence[Attack] = ATTACKS,
    console: Console | None = None,
) -> Demo:
    """Train a LeNet-5 on the embedded digits, examine it, attack it, and write what was found to a folder.

    Args:
        out: the folder: a new one, an empty one, or one of an earlier demo, whose files are replaced.
        seed: of everything random.
        epochs: of training.
        seeds: how many digits that the network gets right are attacked, at most.
        attacks: each is run on all of them.
        console: where to tell what happens; standard output unless given.
    """
    out, started = Path(out), time.process_time()
    console = Console(highlight=False) if console is None else console
    _claim(out)
    with _one_thread():
        digits = _data(console)
        model = _train(console, digits, seed=seed, epochs=epochs)
        findings = _examine(console, model, digits.test)
        right = model.correct(digits.test)
        suites = _attack(console, model, right[:seeds], attacks, seed=seed)
    result = Demo(
        seed=seed,
        right=len(right),
        tested=len(digits.test),
        findings=findings,
        outcomes=tuple(outcome for _, outcome in suites),
    )
    save_weights(model.unwrap(), out / "model.safetensors")
    _write(out, result, [suite for suite, _ in suites], attacks, digits.classes)
    _tell_outcomes(console, result)
    _tell_next(console, out, attacks[0].name, cpu_seconds=time.process_time() - started)
    return result


def snippet(out: Path, attack: str) -> str:
    """Three lines of Python that go on from what the demo wrote."""
    return (
        "from operant import Suite\n"
        f"suite = Suite.open({str(out / 'suites' / attack)!r})\n"
        'print(suite, suite.failures().distances("l2").mean())'
    )


# Steps


def _data(console: Console) -> Dataset:
    digits = load_digits(size=28)
    _tell(console, "data", f"{len(digits.train)} handwritten digits to train on, {len(digits.test)} to test with")
    return digits


def _train(console: Console, digits: Dataset, *, seed: int, epochs: int) -> Classifier:
    start = initialise(LeNet5, generator=spawn(seed, "demo", "weights"))
    fitted = fit(
        start,
        digits.train,
        epochs=epochs,
        batch_size=32,
        learning_rate=2e-3,
        generator=spawn(seed, "demo", "training"),
    )
    model = Classifier(fitted.module)
    right = int((model.predict(digits.test.x) == digits.test.labels).sum())
    n = len(digits.test)
    _tell(
        console, "model", f"LeNet-5, trained for {epochs} epochs: right on {right} of {n} test digits, {right / n:.1%}"
    )
    return model


def _examine(console: Console, model: Classifier, test: Samples) -> tuple[Finding, ...]:
    findings = model.doctor(test)
    _tell(console, "doctor", "healthy: nothing found that would make test results meaningless" if not findings else "")
    for finding in findings:
        _tell(console, "", str(finding))
    _tell(console, "", "; ".join(model.notes))
    return findings


def _attack(
    console: Console, model: Classifier, seeds: Samples, attacks: Sequence[Attack], *, seed: int
) -> list[tuple[Suite, Outcome]]:
    """Every attack's cases, and what became of them."""
    if len(seeds) == 0:
        raise ValueError("there must be digits that the network gets right to attack, got none; train it longer")
    _tell(console, "attacks", f"{len(attacks)}, each on the same {len(seeds)} test digits that the model gets right")
    results = []
    with _bar(len(attacks)) as bar:
        for attack in attacks:
            bar(attack.name)
            started = time.process_time()
            suite = attack.fuzzer(model, seeds, generator=spawn(seed, "demo", attack.name))
            results.append((suite, _outcome(attack.name, suite, time.process_time() - started)))
    return results


def _outcome(attack: str, suite: Suite, cpu_seconds: float) -> Outcome:
    failures = suite.failures()
    linf, l2 = (float(failures.distances(norm).mean()) for norm in ("linf", "l2"))
    return Outcome(attack=attack, cases=len(suite), failures=len(failures), linf=linf, l2=l2, cpu_seconds=cpu_seconds)


# Files


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


def _write(
    out: Path, result: Demo, suites: Sequence[Suite], attacks: Sequence[Attack], classes: tuple[str, ...]
) -> None:
    """Put the files of this run in place of those of the last."""
    fresh, place = out / "suites.new", out / "suites"
    _remove(fresh)  # a run that was killed may have left it
    for suite, attack in zip(suites, attacks, strict=True):
        suite.save(fresh / attack.name)
    _remove(place)
    fresh.rename(place)
    save(result, out / "demo.json")
    write_gallery(
        Suite.concat(suites),
        out / "index.html",
        title="Operant demo: digits a small network fails on",
        intro=(
            f"A LeNet-5 was trained on the handwritten digits inside scikit-learn; it is right on {result.right} of "
            f"{result.tested} test digits. Each attack started from the same {suites[0].attempted} digits that it gets "
            "right and looked for a small change that makes it fail. Pixels run from 0 to 1."
        ),
        about={attack.name: attack.about for attack in attacks},
        classes=classes,
    )


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


# What is told


def _tell(console: Console, step: str, text: str) -> None:
    console.print(f"[bold]{step:<9}[/]{escape(text)}", soft_wrap=True)


def _tell_outcomes(console: Console, result: Demo) -> None:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("attack", style="cyan")
    for heading in ("failures", "success", "mean L-inf", "mean L2", "CPU s"):
        table.add_column(heading, justify="right")
    for outcome in result.outcomes:
        table.add_row(
            escape(outcome.attack),
            f"{outcome.failures} of {outcome.cases}",
            f"{outcome.failures / outcome.cases:.0%}" if outcome.cases else "-",
            f"{outcome.linf:.3f}" if outcome.failures else "-",
            f"{outcome.l2:.3f}" if outcome.failures else "-",
            f"{outcome.cpu_seconds:.2f}",
        )
    console.print(table)
    console.print("Means are over the failures; pixels run from 0 to 1.")


def _tell_next(console: Console, out: Path, attack: str, *, cpu_seconds: float) -> None:
    console.print()
    _tell(console, "done", f"in {cpu_seconds:.0f} s of CPU time; everything is in the folder {out}")
    _tell(console, "look", f"open {out / 'index.html'} in a browser: seed, case and difference side by side")
    _tell(console, "go on", f"in Python ({_python()}):")
    console.print()
    for line in snippet(out, attack).splitlines():
        console.print(f"  {escape(line)}", soft_wrap=True)


def _python() -> str:
    """The interpreter that knows Operant, told as briefly as it can be."""
    path, here = Path(sys.executable), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


@contextmanager
def _bar(attacks: int) -> Iterator[Callable[[str], None]]:
    """A progress bar on the terminal's error stream, and the function that tells it which attack comes next."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("attacking", total=attacks)
        begun = -1

        def show(attack: str) -> None:
            nonlocal begun
            begun += 1
            bar.update(task, completed=begun, description=f"{attack} ({begun + 1} of {attacks})")

        yield show


@contextmanager
def _one_thread() -> Iterator[None]:
    """One torch thread, unless the environment names a number: on a small network more of them only cost."""
    before = torch.get_num_threads()
    if not {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys():
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
