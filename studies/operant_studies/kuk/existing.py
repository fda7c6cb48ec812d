"""RQ1 and RQ2: cases of attacks and testing tools, and the uncertainty of the model about them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate import BIM, FGSM, CarliniWagner, DeepFool
from operant.generate.baselines import DeepHunter, TensorFuzz
from operant.generate.engine import judge
from operant.measure import KMNC, annotate, fit_ranges
from operant.measure.patterns import MEASURES
from operant.model import Classifier
from operant.rng import spawn
from operant.suite import Suite
from operant.types import Fuzzer
from operant_studies.kuk.models import PreparedModel
from operant_studies.kuk.paper import TOOLS
from operant_studies.kuk.settings import Subject
from operant_studies.shared import slug

FIXED = ("FGSM, fixed radius", "BIM, fixed radius")
METHODS = ("benign", "BIM", "C&W", "DeepFool", "FGSM", *FIXED, *TOOLS)
NOISE_RADIUS = 0.3  # of TensorFuzz; the same as of the searches


@dataclass(frozen=True, kw_only=True)
class MeasuredCases:
    """All measures of the cases of one method.

    Attributes:
        method: what made them; benign inputs are unchanged.
        attempted: number of seeds.
        found: number of failing cases, or of benign inputs; at most `Subject.inputs` of them are measured.
        values: by measure, one value per case.
        passes: T.
        seconds: CPU time.
    """

    method: str
    attempted: int
    found: int
    values: dict[str, Tensor]
    passes: int
    seconds: float


def step_name(method: str) -> str:
    """
    >>> step_name("BIM, fixed radius")
    'measured-bim-fixed-radius'
    """
    return f"measured-{slug(method)}"


def measure(
    subject: Subject, given: PreparedModel, dropping: Classifier, method: str, *, keep: Callable[[Suite], None]
) -> MeasuredCases:
    """Make the cases of one method with the model without dropout, and measure them with dropout.

    All methods share their dropout masks. ``keep`` is called with all cases.
    """
    start = time.process_time()
    seeds = _seeds(subject, given, method)
    if method == "benign":
        cases = judge(given.model, seeds, seeds.x, method=method)
    else:
        generator = spawn(0, "kuk", subject.name, method)
        cases = fuzzer_of(subject, given, method)(given.model, seeds, generator=generator).failures()
    keep(cases)
    some: Suite = cases[torch.randperm(len(cases), generator=spawn(0, "kuk", "some"))[: subject.inputs]]
    masks = spawn(0, "kuk", subject.name, "masks")
    measured = annotate(dropping, some, passes=subject.passes, generator=masks)
    return MeasuredCases(
        method=method,
        attempted=len(seeds),
        found=len(cases),
        values={name: torch.as_tensor(measured[name]).double() for name in MEASURES},
        passes=subject.passes,
        seconds=time.process_time() - start,
    )


def _seeds(subject: Subject, given: PreparedModel, method: str) -> Samples:
    n = subject.carlini if method == "C&W" else subject.fuzzed if method in TOOLS else subject.inputs
    return given.inputs[:n]


def fuzzer_of(subject: Subject, given: PreparedModel, method: str) -> Fuzzer:
    """The fuzzer of a method, with Foolbox's defaults when the paper was written.

    FGSM and BIM stop at the boundary; C&W tries five weights from .01 on.
    """
    if method == "DeepHunter-KMNC":
        ranges = fit_ranges(given.model, given.train)
        return DeepHunter(criterion=lambda model, x: KMNC(ranges=ranges), rows_per_seed=subject.rows)
    fuzzers: dict[str, Fuzzer] = {
        "FGSM": FGSM(radius=subject.reach, minimal=True),
        "BIM": BIM(radius=subject.reach, minimal=True),
        "FGSM, fixed radius": FGSM(radius=subject.radius),
        "BIM, fixed radius": BIM(radius=subject.radius),
        "DeepFool": DeepFool(),
        "C&W": CarliniWagner(steps=subject.carlini_steps, binary_search_steps=5, initial_const=1e-2),
        "DeepHunter-NC": DeepHunter(rows_per_seed=subject.rows),
        "TensorFuzz": TensorFuzz(radius=NOISE_RADIUS, rows_per_seed=subject.rows),
    }
    return fuzzers[method]
