"""What the study of defences runs at each scale: the KuK study's models, inputs and searches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from operant.generate import UncertaintyFuzz
from operant_studies.kuk.paper import ATTACKS
from operant_studies.kuk.search import fuzz_of
from operant_studies.kuk.settings import Subject
from operant_studies.kuk.settings import subjects as kuk_subjects

CLASSIFIER, MUTATION, DISTILLATION = "binary classifier", "mutation-based", "distillation"
SMOOTHING, SQUEEZING = "label smoothing", "feature squeezing"
TRANSFORMS, DEFLECTION = "input transformations", "pixel deflection"
TABLE_6 = (CLASSIFIER, MUTATION, DISTILLATION, SMOOTHING, SQUEEZING)
TABLE_7 = (MUTATION, TRANSFORMS, DEFLECTION)
SHOWN = (("FGSM", "BIM"), ("DeepFool", "C&W"), ("FGSM", "DeepFool"))  # to the binary classifier, by run


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One model: what is taken over from the KuK study, and what is fitted.

    Attributes:
        subject: the KuK study's, whose model, dropout and inputs are used, and its suites where they are at hand.
        cut: the same, for suites that are not; where a pass takes long, with searches that cost less.
        changes: what such searches for a pattern have otherwise than the KuK study's: one of its experiments.
        defences: that are tried.
        runs: repetitions, each with seeds, inputs and random numbers of its own.
        seeds: searched from for each pattern, in each run; fewer if ``quota`` cases are reached before.
        quota: cases of a pattern that are enough in a run.
        limits: seeds at most, of patterns whose searches take long.
        attacked, carlini: inputs that attacks start from, all runs together, and of these the ones for C&W.
        benign: inputs of each run that detectors are fitted and calibrated on.
        draws: of noise, for the control, from each seed of each search.
        level: the false-positive rate of every detector.
        mutants, mutation_rates: of mutation-based detection; the first rate is taken that leaves mutants accurate.
        train, validation: training inputs of each run for distillation and label smoothing, and those that choose the
            epoch.
        epochs, learning_rate: of both.
        from_scratch: whether both begin with new weights, as the paper's did, or with those of the model.
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
        """The search for a pattern, where its suite is not at hand."""
        return fuzz_of(self.cut, pattern, self.changes.get(pattern, ""))

    @property
    def name(self) -> str:
        return self.subject.name

    @property
    def title(self) -> str:
        return self.subject.title

    @property
    def repeats(self) -> int:
        """How many runs of the KuK study one run here takes seeds from."""
        return -(-self.seeds // self.subject.seeds)

    @property
    def wide(self) -> Subject:
        """The KuK study's subject with more seeds at its end: for more runs, and after these for detectors."""
        searched = self.runs * self.repeats * self.subject.seeds
        return replace(self.subject, runs=-(-(searched + self.runs * self.benign) // self.subject.seeds))

    def shown(self, run: int) -> tuple[str, ...]:
        """Attacks that the binary classifier learns from."""
        return SHOWN[run % len(SHOWN)] if CLASSIFIER in self.defences else ()

    def judged(self, run: int) -> tuple[str, ...]:
        """Attacks that every defence is judged on."""
        return tuple(method for method in ATTACKS if method not in self.shown(run))

    def parts(self, run: int) -> list[tuple[int, int, int, int]]:
        """Chunks of the KuK study's seeds that are searched from: its run, its chunk, first seed and the one after."""
        size, every = self.subject.chunk, self.subject.seeds
        own = [
            (of, chunk, of * every + first, of * every + min(first + size, every))
            for of in range(run * self.repeats, (run + 1) * self.repeats)
            for chunk, first in enumerate(range(0, every, size))
        ]
        taken, chosen = 0, []
        for part in own:
            if taken < self.seeds:
                chosen.append(part)
                taken += part[3] - part[2]
        return chosen


def plans(scale: str) -> tuple[Plan, ...]:
    """``small`` is the study; ``smoke`` shows that it runs, on the embedded digits."""
    by_name = {subject.name: subject for subject in kuk_subjects(scale)}
    if scale == "smoke":
        return (_smoke(by_name["lenet5"]),)
    return (
        _lenet5(by_name["lenet5"]),
        _resnet20(by_name["resnet20"]),
        _nin(by_name["nin"]),
        _mobilenet(by_name["mobilenet"]),
    )


def _lenet5(subject: Subject) -> Plan:
    return Plan(
        subject=subject,
        cut=subject,
        seeds=50,
        attacked=900,
        carlini=90,
        benign=1_200,
        draws=20,
        mutants=200,
        mutation_rates=(0.05, 0.02, 0.01),
        train=18_000,
        validation=1_000,
        epochs=8,
        learning_rate=3e-3,
        from_scratch=True,
    )


def _resnet20(subject: Subject) -> Plan:
    return Plan(
        subject=subject,
        cut=subject,
        seeds=10,
        attacked=300,
        carlini=45,
        benign=600,
        mutants=100,
        mutation_rates=(0.005, 0.003, 0.001),
        train=6_000,
        validation=1_000,
        epochs=2,
        learning_rate=1e-4,
    )


def _nin(subject: Subject) -> Plan:
    return replace(
        _resnet20(subject),
        attacked=200,
        carlini=30,
        mutants=60,
        mutation_rates=(0.005, 0.002, 0.001),
        train=5_000,
    )


def _mobilenet(subject: Subject) -> Plan:
    """One run, as each forward pass takes long, and no more searches for a pattern than it takes to have enough.

    LH cases are benign, and with all of the noise hardly an image is read correctly any more.
    """
    return Plan(
        subject=subject,
        cut=replace(subject, generations=10, population=50, tournament=10, passes=40, carlini_steps=40),
        changes={"LH": "a third of the noise"},
        defences=TABLE_7,
        runs=1,
        seeds=100,
        quota=52,
        limits={"LL": 6, "HH": 6},
        attacked=30,
        carlini=8,
        benign=90,
        draws=1,
        mutants=30,
        mutation_rates=(0.0005, 0.0002, 0.0001),
    )


def _smoke(subject: Subject) -> Plan:
    return Plan(
        subject=subject,
        cut=replace(subject, carlini_steps=10),
        defences=(*TABLE_6, TRANSFORMS, DEFLECTION),
        seeds=4,
        attacked=30,
        carlini=9,
        benign=60,
        level=0.1,
        mutants=12,
        mutation_rates=(0.02, 0.01),
        train=300,
        validation=100,
        epochs=2,
    )
