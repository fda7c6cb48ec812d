"""Settings of the study of defences at each scale: the KuK study's models, inputs and searches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

from operant.generate import UncertaintyFuzz
from operant_studies.kuk.paper import ATTACKS
from operant_studies.kuk.search import make_search
from operant_studies.kuk.settings import Subject
from operant_studies.kuk.settings import subjects as kuk_subjects

CLASSIFIER, MUTATION, DISTILLATION = "binary classifier", "mutation-based", "distillation"
SMOOTHING, SQUEEZING = "label smoothing", "feature squeezing"
TRANSFORMS, DEFLECTION = "input transformations", "pixel deflection"
TABLE_6 = (CLASSIFIER, MUTATION, DISTILLATION, SMOOTHING, SQUEEZING)
TABLE_7 = (MUTATION, TRANSFORMS, DEFLECTION)
SHOWN = (
    ("FGSM", "BIM"),
    ("DeepFool", "C&W"),
    ("FGSM", "DeepFool"),
)  # to the binary classifier in training, by run


class SeedChunk(NamedTuple):
    """A chunk of the KuK study's seeds: its run, its number there, the first seed, and the one after the last."""

    run: int
    number: int
    first: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.first


@dataclass(frozen=True, kw_only=True)
class DefencePlan:
    """One model: what is taken from the KuK study, and what is fitted.

    Attributes:
        subject: the KuK study's; its model, dropout and inputs are used, and its suites if they exist.
        cut: the same for suites that are made here; with cheaper searches where a pass takes long.
        changes: by pattern, the change of such searches against the KuK study's: one of its experiments.
        defences: defences to try.
        runs: repetitions, each with its own seeds, inputs and random numbers.
        seeds: seeds per pattern and run; fewer if ``quota`` cases are reached before.
        quota: cases of a pattern that suffice in a run.
        limits: maximum number of seeds of patterns whose searches take long.
        attacked, carlini: inputs that attacks start from, all runs together, and how many of them C&W starts from.
        benign: inputs per run that detectors are fitted and calibrated on.
        draws: noise draws per seed and search, for the control.
        level: false-positive rate of every detector.
        mutants, mutation_rates: of mutation-based detection; uses the first rate that leaves mutants accurate.
        train, validation: training inputs per run for distillation and label smoothing, and those that choose the
            epoch.
        epochs, learning_rate: of both.
        from_scratch: whether both start from new weights, as in the paper, or from the model's.
    """

    subject: Subject
    cut: Subject
    changes: dict[str, str] = field(default_factory=dict)
    defences: tuple[str, ...] = TABLE_6
    runs: int = 3
    seeds: int
    quota: int = 10**6
    limits: dict[str, int] = field(default_factory=dict)
    attacked: int
    carlini: int
    benign: int
    draws: int = 5
    level: float = 0.05
    mutants: int
    mutation_rates: tuple[float, ...]
    train: int = 0
    validation: int = 0
    epochs: int = 0
    learning_rate: float = 1e-3
    from_scratch: bool = False

    def fuzz(self, pattern: str) -> UncertaintyFuzz:
        """The search for a pattern whose suite is made here."""
        return make_search(self.cut, pattern, self.changes.get(pattern, ""))

    @property
    def name(self) -> str:
        return self.subject.name

    @property
    def title(self) -> str:
        return self.subject.title

    @property
    def repeats(self) -> int:
        """Runs of the KuK study that give the seeds of one run here."""
        return -(-self.seeds // self.subject.seeds)

    @property
    def wide(self) -> Subject:
        """The KuK study's subject with additional seeds: for more runs, then for detectors."""
        searched = self.runs * self.repeats * self.subject.seeds
        return replace(self.subject, runs=-(-(searched + self.runs * self.benign) // self.subject.seeds))

    def shown(self, run: int) -> tuple[str, ...]:
        """Attacks that the binary classifier learns from."""
        return SHOWN[run % len(SHOWN)] if CLASSIFIER in self.defences else ()

    def judged(self, run: int) -> tuple[str, ...]:
        """Attacks that every defence is tested on."""
        return tuple(method for method in ATTACKS if method not in self.shown(run))

    def parts(self, run: int) -> list[SeedChunk]:
        """Chunks of the KuK study's seeds for the searches of a run."""
        size, every = self.subject.chunk, self.subject.seeds
        own = [
            SeedChunk(of, chunk, of * every + first, of * every + min(first + size, every))
            for of in range(run * self.repeats, (run + 1) * self.repeats)
            for chunk, first in enumerate(range(0, every, size))
        ]
        before = accumulate((part.size for part in own), initial=0)
        return [part for part, taken in zip(own, before, strict=False) if taken < self.seeds]


def plans(scale: str) -> tuple[DefencePlan, ...]:
    """The models of a scale."""
    by_name = {subject.name: subject for subject in kuk_subjects(scale)}
    if scale == "smoke":
        return (_smoke(by_name["lenet5"]),)
    return (
        _lenet5(by_name["lenet5"]),
        _resnet20(by_name["resnet20"]),
        _nin(by_name["nin"]),
        _mobilenet(by_name["mobilenet"]),
    )


def _lenet5(subject: Subject) -> DefencePlan:
    return DefencePlan(
        subject=subject, cut=subject, seeds=50, attacked=900, carlini=90, benign=1_200, draws=20, mutants=200,
        mutation_rates=(0.05, 0.02, 0.01), train=18_000, validation=1_000, epochs=8, learning_rate=3e-3,
        from_scratch=True,
    )  # fmt: skip


def _resnet20(subject: Subject) -> DefencePlan:
    return DefencePlan(
        subject=subject, cut=subject, seeds=10, attacked=300, carlini=45, benign=600, mutants=100,
        mutation_rates=(0.005, 0.003, 0.001), train=6_000, validation=1_000, epochs=2, learning_rate=1e-4,
    )  # fmt: skip


def _nin(subject: Subject) -> DefencePlan:
    return replace(
        _resnet20(subject), attacked=200, carlini=30, mutants=60, mutation_rates=(0.005, 0.002, 0.001), train=5_000,
    )  # fmt: skip


def _mobilenet(subject: Subject) -> DefencePlan:
    """One run, because each forward pass takes long, and only as many searches as needed for enough cases.

    LH cases are benign, and with all of the noise hardly any image is classified correctly.
    """
    return DefencePlan(
        subject=subject,
        cut=replace(subject, generations=10, population=50, tournament=10, passes=40, carlini_steps=40),
        changes={"LH": "a third of the noise"}, defences=TABLE_7, runs=1, seeds=100, quota=52,
        limits={"LL": 6, "HH": 6}, attacked=30, carlini=8, benign=90, draws=1, mutants=30,
        mutation_rates=(0.0005, 0.0002, 0.0001),
    )  # fmt: skip


def _smoke(subject: Subject) -> DefencePlan:
    return DefencePlan(
        subject=subject, cut=replace(subject, carlini_steps=10), defences=(*TABLE_6, TRANSFORMS, DEFLECTION), seeds=4,
        attacked=30, carlini=9, benign=60, level=0.1, mutants=12, mutation_rates=(0.02, 0.01), train=300,
        validation=100, epochs=2,
    )  # fmt: skip
