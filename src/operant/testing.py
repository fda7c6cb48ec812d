"""Assertions for tests: that a model is reliable in the field, and that a fuzzer obeys all laws.

>>> from operant.generate import PGD
>>> check_fuzzer(PGD(radius=0.1))
"""

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from scipy.stats import norm
from torch import Tensor, nn

from operant.assess import clopper_pearson, plan
from operant.data import Samples, content_ids
from operant.model import Classifier
from operant.reliability_checks import Check, InvalidCheck, publish
from operant.rng import spawn
from operant.suite import Suite
from operant.types import Fuzzer

MAX_COPIES = 0.01  # largest accepted share of field inputs that are copies of others
MAX_EXACT_LABELS = 50_000  # above this, the number of labels needed is a normal approximation
POWER = 0.8  # probability that the proof succeeds with the number of labels needed


# Reliability ----------------------------------------------------------------------------------------------------------


def assert_reliable(
    model: Classifier,
    field: Samples,
    *,
    pmi: float,
    confidence: float = 0.95,
    classes: Sequence[str] | None = None,
    used: Tensor | None = None,
) -> Check:
    """Pass if the model misclassifies at most a share ``pmi`` of field inputs, with confidence.

        B(1 - α; k + 1, n - k) ≤ pmi        (1)

    for k failures in n labelled field inputs and α = 1 - ``confidence``: the exact bound. It holds for one model and
    one test. If the same inputs select the best of several models, divide α between them.

    ``pytest --operant-report=DIR`` writes all checks of a session to a report.

    Args:
        model: the model to check.
        field: inputs drawn independently from the field, with their true labels. Nothing may have been learned from
            them. For other sampling designs, use `operant.assess.assess_reliability`.
        pmi: the largest share that may be misclassified.
        confidence: of the bound.
        classes: class names for the message, in the order of the labels (default: those of ``field``).
        used: `content_ids` of all inputs that were learned from; raises a ValueError if any field input is among them.

    Returns:
        The result of the check. If the requirement is not met, an AssertionError reports the estimate, the bound, the
        number of labels and how many are needed, and the worst classes. Bad input raises a ValueError.
    """
    __tracebackhide__ = True
    try:
        _check_request(model, field, pmi, classes, used)
        named = len(field.classes) == model.classes(field.x)
        check = _check(model, field, pmi, confidence, field.classes if classes is None and named else classes)
    except Exception as error:
        publish(InvalidCheck(reason=str(error) or type(error).__name__))
        raise
    publish(check)
    if not check.met:
        raise AssertionError(str(check))
    return check


def _check(model: Classifier, field: Samples, pmi: float, confidence: float, classes: Sequence[str] | None) -> Check:
    __tracebackhide__ = True
    wrong = (model.predict(field.x) != field.labels).cpu()
    k, n = int(wrong.sum()), len(field)
    check = Check(
        required=pmi,
        confidence=confidence,
        estimate=k / n,
        lower=1 - clopper_pearson(n - k, n, confidence=confidence).upper,  # from the bound of the success rate
        upper=clopper_pearson(k, n, confidence=confidence).upper,  # (1)
        failures=k,
        labels=n,
        worst=_worst(field.labels.cpu(), wrong, classes),
    )
    if check.met or check.estimate >= pmi:
        return check
    return replace(check, needed=max(n + 1, _labels_needed(check.estimate, pmi, confidence)))


def _worst(y: Tensor, wrong: Tensor, classes: Sequence[str] | None) -> tuple[tuple[str, int, int], ...]:
    """Name, failures and inputs of every class with failures."""
    labels, failures = (torch.bincount(of, minlength=int(y.max()) + 1).tolist() for of in (y, y[wrong]))
    ranked = sorted((c for c, k in enumerate(failures) if k), key=lambda c: (-failures[c], labels[c], c))
    return tuple((f"class {c}" if classes is None else classes[c], failures[c], labels[c]) for c in ranked)


def _labels_needed(estimate: float, pmi: float, confidence: float) -> int:
    """The number of labels with which the proof succeeds with probability `POWER`."""
    deviation, target = math.sqrt(estimate * (1 - estimate)), math.sqrt(pmi * (1 - pmi))
    reach = norm.isf(1 - confidence) * target + norm.ppf(POWER) * deviation
    rough = (reach / (pmi - estimate)) ** 2
    if rough > MAX_EXACT_LABELS:
        return int(float(f"{rough:.1e}"))
    return plan(pmi, confidence=confidence, expected=estimate, power=POWER).labels or 0


def _check_request(
    model: Classifier, field: Samples, pmi: float, classes: Sequence[str] | None, used: Tensor | None
) -> None:
    __tracebackhide__ = True
    if not isinstance(model, Classifier):
        raise ValueError(f"model must be a Classifier, got {type(model).__name__}; wrap it: Classifier(module)")
    if not isinstance(field, Samples):
        raise ValueError(f"field must be Samples, got {type(field).__name__}; build Samples(x, y)")
    if not 0 < pmi < 1:
        raise ValueError(f"pmi must be a share between 0 and 1, such as 0.02, got {pmi}")
    model.check(field)
    if classes is not None and len(classes) != model.classes(field.x):
        raise ValueError(f"there must be a name for each of {model.classes(field.x)} classes, got {len(classes)}")
    if (copies := len(field) - len(field.ids.unique())) > MAX_COPIES * len(field):
        problem = f"{copies} of {len(field)} field inputs are copies of others and would be counted twice"
        raise ValueError(f"{problem}; remove the copies, or give each occurrence its own id")
    if used is not None and (learned := int(torch.isin(content_ids(field.x), used.cpu()).sum())):
        problem = f"{learned} of {len(field)} field inputs were learned from, so they are no evidence"
        raise ValueError(f"{problem}; leave them out: field[~torch.isin(content_ids(field.x), used)]")


# Laws of fuzzers ------------------------------------------------------------------------------------------------------


def check_fuzzer(fuzzer: Fuzzer, *, model: Classifier | None = None, seeds: Samples | None = None) -> None:
    """Check a fuzzer against all laws; the first violation raises an AssertionError that explains it.

    Args:
        fuzzer: ``(model, seeds, *, generator) -> Suite``. If it has ``radius`` and ``norm``, its cases must stay in
            that ball.
        model: a float64 model, because the laws compare closely (default: a small network on 8x8 images).
        seeds: at least eight seeds that the model classifies correctly (default: seeds for that network).
    """
    model = toy_classifier() if model is None else model
    seeds = toy_seeds(model) if seeds is None else seeds
    for law in LAWS:
        law(fuzzer, model, seeds)


def toy_classifier(*, classes: int = 4) -> Classifier:
    """A small smooth float64 network on 1x8x8 images with fixed weights."""
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(144, classes)).double()
    generator = spawn(0, "toy")
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return Classifier(network)


def toy_seeds(model: Classifier, *, n: int = 12) -> Samples:
    """Inputs for `toy_classifier`, labelled with its predictions."""
    x = torch.rand(n, 1, 8, 8, dtype=torch.float64, generator=spawn(0, "toy seeds"))
    return Samples(x, model.predict(x))


def _run(fuzzer: Fuzzer, model: Classifier, seeds: Samples) -> Suite:
    return fuzzer(model, seeds, generator=spawn(0, "law"))


def cases_belong_to_their_seeds(fuzzer: Fuzzer, model: Classifier, seeds: Samples) -> None:
    """Each case has the id, label and input of a given seed; cases come in seed order; counts add up."""
    suite = _run(fuzzer, model, seeds)
    rows = seeds.rows_of(suite.seed)
    unknown = int((rows < 0).sum())
    assert not unknown, f"{unknown} cases name a seed that was not given"
    assert bool((rows.diff() >= 0).all()), "cases must come in the order of their seeds"
    assert torch.equal(suite.label, seeds.labels[rows]), "a case must carry its seed's label"
    assert torch.equal(suite.x0, seeds.x[rows]), "x0 must be the seed itself"
    assert suite.attempted + suite.skipped == len(seeds), (
        f"attempted and skipped must add up to {len(seeds)} seeds, got {suite.attempted} and {suite.skipped}"
    )


def cases_stay_in_bounds_and_ball(fuzzer: Fuzzer, model: Classifier, seeds: Samples) -> None:
    """Every case lies within the model's bounds and, if the fuzzer has one, in its ball."""
    suite = _run(fuzzer, model, seeds)
    low, high = model.bounds
    slack = 1e-6 * max(1.0, *(abs(b) for b in model.bounds if math.isfinite(b)))  # for rounding, in input units
    assert bool((suite.x >= low - slack).all() and (suite.x <= high + slack).all()), f"a case leaves bounds {low, high}"
    radius, norm = getattr(fuzzer, "radius", None), getattr(fuzzer, "norm", None)
    if radius is not None and norm is not None and len(suite):
        furthest = float(suite.distances(norm).max())
        assert furthest <= radius + slack, f"a case lies {furthest} from its seed, beyond the radius {radius}"


def predictions_are_the_models(fuzzer: Fuzzer, model: Classifier, seeds: Samples) -> None:
    """`prediction` is the model's prediction for the finished case."""
    suite = _run(fuzzer, model, seeds)
    if len(suite):
        assert torch.equal(suite.prediction, model.predict(suite.x)), "a prediction is not the model's own"


def same_generator_same_suite(fuzzer: Fuzzer, model: Classifier, seeds: Samples) -> None:
    """Equal runs give bit-identical suites and leave torch's global stream alone."""
    before = torch.random.get_rng_state()
    assert _run(fuzzer, model, seeds).digest() == _run(fuzzer, model, seeds).digest(), "two equal runs differ"
    assert torch.equal(before, torch.random.get_rng_state()), "the fuzzer draws from torch's global random stream"


def seeds_do_not_affect_each_other(fuzzer: Fuzzer, model: Classifier, seeds: Samples) -> None:
    """Reordering the later seeds does not change the cases of the earlier ones."""
    half = len(seeds) // 2
    other = Samples.concat([seeds[:half], seeds[half:][torch.arange(len(seeds) - half).flip(0)]])
    keep = torch.isin(seeds.ids, seeds.ids[:half])
    first, second = (_cases_of(_run(fuzzer, model, s), seeds.ids[keep]) for s in (seeds, other))
    _assert_close(first, second, "a case depends on other seeds in the batch")


def batch_size_changes_nothing(fuzzer: Fuzzer, model: Classifier, seeds: Samples) -> None:
    """The cases do not depend on the model's batch size."""
    small = model.rewrap(model.unwrap())
    small.batch_size = 5
    _assert_close(_run(fuzzer, model, seeds).x, _run(fuzzer, small, seeds).x, "cases depend on the batch size")


def save_and_open_is_the_identity(fuzzer: Fuzzer, model: Classifier, seeds: Samples) -> None:
    """A suite that is saved and opened is unchanged."""
    suite = _run(fuzzer, model, seeds)
    with tempfile.TemporaryDirectory() as folder:
        again = Suite.open(suite.save(Path(folder) / "suite"))
        assert again.digest() == suite.digest(), "the suite read back differs from the one written"


def bad_seeds_are_rejected(fuzzer: Fuzzer, model: Classifier, seeds: Samples) -> None:
    """Missing or invalid labels, NaN, inputs out of bounds and empty seeds raise a ValueError."""
    classes = model.classes(seeds.x)
    nan = seeds.x.clone()
    nan[1] = torch.nan
    bad = {
        "seeds without labels": replace(seeds, y=None),
        "labels outside the classes": replace(seeds, y=seeds.labels + classes),
        "NaN": Samples(nan, seeds.y),
        "inputs out of bounds": Samples(seeds.x + model.bounds[1], seeds.y),
        "empty seeds": seeds[:0],
    }
    for what, samples in bad.items():
        try:
            _run(fuzzer, model, samples)
        except ValueError:
            continue
        raise AssertionError(f"{what} must raise a ValueError")


LAWS: tuple[Callable[[Fuzzer, Classifier, Samples], None], ...] = (
    cases_belong_to_their_seeds,
    cases_stay_in_bounds_and_ball,
    predictions_are_the_models,
    same_generator_same_suite,
    seeds_do_not_affect_each_other,
    batch_size_changes_nothing,
    save_and_open_is_the_identity,
    bad_seeds_are_rejected,
)


def _cases_of(suite: Suite, ids: Tensor) -> Tensor:
    chosen: Suite = suite[torch.isin(suite.seed, ids)]
    return chosen.x


def _assert_close(a: Tensor, b: Tensor, message: str) -> None:
    assert a.shape == b.shape, message
    assert torch.allclose(a, b, rtol=0, atol=1e-7), message
