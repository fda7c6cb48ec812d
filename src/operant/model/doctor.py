"""Checks a model and its data for mistakes that make test results meaningless.

Every check is a small function that returns findings. After a finding, the doctor continues as if its advice had been
followed (rows with NaN removed, inputs of 0..255 divided by 255). So one mistake neither hides the next nor is reported
twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from scipy.stats import binomtest
from torch import Tensor
from torch.nn.functional import cross_entropy

from operant.activity import activity
from operant.data import Samples
from operant.data.class_texts import class_title
from operant.formatting import percent
from operant.model.classifier import MIN_ROWS, Classifier, slack_of
from operant.model.errors import ModuleFails, NotLogits, WrongChannels
from operant.model.remedies import Accuracy, accuracy_of, find_remedy
from operant.rng import normal_like, spawn, uniform_like
from operant.validation import check_share

MAX_ROWS = 256  # rows used to check accuracy and outputs
MAX_ROWS_REPEATED = 32  # rows used by checks that need several passes
CHANCE_LEVEL, SKILL_LEVEL = 0.05, 0.01  # significance levels of the tests against chance and against skill
MIN_BAD_SHARE = 0.1  # share of rows with zero or vanishing gradients from which on they are reported
LOW_ACCURACY = 0.9  # below it, other normalisations and class orders are tried
VERY_LOW_ACCURACY = 0.5  # below it, there is a warning even if nothing raises it
MIN_ERROR_GAIN = 0.1  # a change that raises accuracy by this much makes present results meaningless
VANISHED = 1e-20  # gradient of cross-entropy relative to that of the logits; trained networks reach 1e-14
TOLERANCE = 1e-4  # relative difference below which two logits count as equal


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A problem, and what to do about it."""

    name: str
    problem: str
    advice: str
    severity: str = "warning"  # "error": results would be meaningless; "warning": interpret them with care

    def __str__(self) -> str:
        return f"{self.severity}: {self.name}: {self.problem}. {self.advice}."


Findings = list[Finding]


def examine(model: Classifier, samples: Samples, *, expect: float | None = None) -> tuple[Finding, ...]:
    """All findings on at most a few hundred rows, errors first.

    Never raises because of the samples or the module, and restores the global random state.

    Args:
        expect: an accuracy on these samples, all of them, below which there is an error.
    """
    check_share(expect=0.0 if expect is None else expect)
    with activity("the doctor examines the model"), torch.random.fork_rng(devices=[]):
        found = _examine(model, samples)
        if expect is not None:
            found += below_expectation(measured_accuracy(model, samples, rows=len(samples)), expect)
    return tuple(sorted(found, key=lambda finding: finding.severity != "error"))


def measured_accuracy(model: Classifier, samples: Samples, *, rows: int = MAX_ROWS) -> Accuracy | None:
    """The accuracy on at most this many evenly spaced rows; None without labels or if the module does not run."""
    x, y = _finite_rows(samples)
    if y is None or x.numel() == 0:
        return None
    chosen = _evenly(len(x), rows)
    try:
        y = torch.where(y < model.classes(x[chosen]), y, -1)[chosen]
        return accuracy_of(_all_logits(model, x[chosen]).argmax(1).cpu(), y.cpu())
    except Exception:  # the user's code may raise anything; `examine` reports it
        return None


def _examine(model: Classifier, samples: Samples) -> Findings:
    found = missing_values(samples.x)
    x, y = _finite_rows(samples)
    if x.numel() == 0:
        return found
    found += wrong_range(x, model.bounds)
    rows = _evenly(len(x), MAX_ROWS)
    try:
        classes = model.classes(x[rows])
        known = None if y is None else _in_classes(y, classes)[rows]
        x, logits, chance = _best_scaling(model, x[rows], known, samples.classes)
    except Exception as error:  # the user's code may raise anything
        return found + does_not_run(error, x)
    labels = [] if y is None else foreign_labels(y, classes, samples.classes)
    found += not_a_number(logits)
    sound = logits.isfinite().all(1)
    if bool(sound.any()):
        found += _behaviour(model, x[sound.to(x.device)], logits[sound])
    if known is not None and not labels:
        low = low_accuracy(model, x, known, logits, samples.classes)
        known_why = bool(chance) or not bool(sound.all())
        chance += [finding for finding in low if not (known_why and finding.name == "low accuracy")]  # says less
    return found + labels + chance


def _best_scaling(
    model: Classifier, x: Tensor, y: Tensor | None, names: Sequence[str]
) -> tuple[Tensor, Tensor, Findings]:
    """Inputs, their logits, and a finding if accuracy is at chance.

    If range and bounds contradict each other, the first scaling with accuracy above chance is used, so that a wrong
    range is not also reported as accuracy at chance.
    """
    first, *others = scalings(x, model.bounds)
    best = first, (logits := _all_logits(model, first)), at_chance(logits, y, names)
    for other in others if best[2] else ():
        logits = _all_logits(model, other)
        if not at_chance(logits, y):
            return other, logits, []
    return best


def _behaviour(model: Classifier, x: Tensor, logits: Tensor) -> Findings:
    x = x[_evenly(len(x), MAX_ROWS_REPEATED)]
    found = already_probabilities(logits) + different_answers(model, x[:MIN_ROWS])
    return found + dependent_rows(model, x[:MIN_ROWS]) + bad_gradients(model, x)


# Inputs


def missing_values(x: Tensor) -> Findings:
    """No rows, or rows with NaN or infinite values."""
    if x.numel() == 0:
        return _error("no inputs", "there are no inputs to check", "Give at least one row, better a few hundred")
    bad = int((~x.flatten(1).isfinite().all(1)).sum())
    problem = f"{bad} of {len(x)} inputs hold NaN or infinite values"
    return _error("NaN inputs", problem, "Remove these rows, or fill the missing values as in training", when=bad > 0)


def wrong_range(x: Tensor, bounds: tuple[float, float]) -> Findings:
    """Inputs outside the bounds, or in a range that suggests wrong bounds or a missing rescaling."""
    low, high = _extremes(x)
    between = f"inputs run from {low:.4g} to {high:.4g}, but bounds are {bounds}"
    if _bytes_in_unit_bounds(low, high, bounds):
        advice = "Divide the inputs by 255, or give Classifier bounds=(0, 255) if the module takes them unchanged"
        return _error("range looks like 0..255", between, advice)
    if _unit_in_byte_bounds(low, high, bounds):
        advice = "Give Classifier bounds=(0, 1), or multiply the inputs by 255 if the module expects 0..255"
        return _error("range looks like 0..1", between, advice)
    slack = slack_of(bounds)
    outside = x.flatten(1)
    bad = int(((outside < bounds[0] - slack) | (outside > bounds[1] + slack)).any(1).sum())
    advice = "Give Classifier the bounds of your data, or rescale the inputs"
    if low < 0 <= bounds[0]:
        advice = (
            "If they are already normalised, give the original inputs, and give mean and std to Classifier; "
            "otherwise give it the bounds of your data"
        )
    return _error("inputs outside bounds", f"{between} ({bad} of {len(x)} inputs lie outside)", advice, when=bad > 0)


def scalings(x: Tensor, bounds: tuple[float, float]) -> list[Tensor]:
    """The inputs in each plausible scaling, likeliest first; several only if range and bounds contradict each other."""
    low, high = _extremes(x)
    if _bytes_in_unit_bounds(low, high, bounds):
        return [x / 255, x]
    if _unit_in_byte_bounds(low, high, bounds):
        return [x, x * 255]
    return [x]


# Outputs


def does_not_run(error: Exception, x: Tensor) -> Findings:
    """The module raises an error on these inputs, or does not return logits."""
    shape = f"inputs of shape {tuple(x.shape[1:])} and type {x.dtype}"
    if isinstance(error, NotLogits):
        advice = "Wrap it in a module that returns one score per class, before any softmax, as (N, classes)"
        return _error("not logits", error.problem, advice)
    cause = (error.__cause__ or error) if isinstance(error, ModuleFails) else error
    message = " ".join(str(cause).split())[:300]
    if isinstance(error, WrongChannels):
        return _error("does not run", message, "Give Classifier a mean and std that fit the inputs' channels")
    advice = "Give the shape and type the module was trained on, channels first; images as (N, channels, height, width)"
    if x.dtype == torch.float64 and "dtype" in message:  # as torch words it
        advice = "Convert the inputs with x.float(), or the module with module.double()"
    return _error("does not run", f"on {shape} the module fails with {type(cause).__name__}: {message}", advice)


def not_a_number(logits: Tensor) -> Findings:
    """Logits that are NaN or infinite."""
    bad = int((~logits.isfinite().all(1)).sum())
    problem = f"the module returns NaN or infinite logits for {bad} of {len(logits)} inputs"
    advice = "Look for a division by zero, a logarithm or root of zero, overflow, or NaN in the weights"
    return _error("NaN logits", problem, advice, when=bad > 0)


def already_probabilities(logits: Tensor) -> Findings:
    """Outputs within [0, 1] that sum to 1: a softmax was already applied."""
    within = bool(((logits >= -1e-6) & (logits <= 1 + 1e-6)).all())
    problem = "every row of the outputs lies within [0, 1] and sums to 1, so a softmax was already applied"
    advice = "Return the scores before the softmax; with probabilities, losses and gradients are wrong"
    sums_to_one = bool(((logits.sum(1) - 1).abs() < 1e-3).all())
    return _error("outputs are probabilities", problem, advice, when=within and sums_to_one)


def at_chance(logits: Tensor, y: Tensor | None, names: Sequence[str] = ()) -> Findings:
    """Accuracy no better than that of predictions that ignore the inputs.

    Reported only if there are enough rows to detect a model half way between chance and perfection. Rows with infinite
    or NaN logits, or with label -1 (the model has no such class), are not counted.
    """
    if y is None:
        return []
    classes = logits.shape[1]
    counted = (y.cpu() >= 0) & logits.isfinite().all(1).cpu()
    predictions, y = logits.argmax(1).cpu()[counted], y.cpu()[counted]
    n = len(y)
    if n == 0:
        return []
    shares = [torch.bincount(v, minlength=classes).double() / n for v in (predictions, y)]
    one_class = bool(shares[1].amax() == 1)  # then the class shares say nothing about independence
    chance = 1 / classes if one_class else float((shares[0] * shares[1]).sum())
    right = int((predictions == y).sum())
    common = int(shares[0].argmax())
    name = class_title(common, names if len(names) == classes else ())
    return _error(
        "accuracy at chance",
        f"{right} of {n} predictions are right ({percent(right / n)}); predictions that ignore the inputs would reach "
        f"{percent(chance)}. The most frequent prediction, {name}, is given for "
        f"{percent(float(shares[0].amax()), 2)} of the inputs",
        "Check that the weights were loaded, that mean, std and bounds are those of training, and that labels and "
        "model outputs number the classes alike",
        when=_guessed(right, n, chance),
    )


def low_accuracy(model: Classifier, x: Tensor, y: Tensor, logits: Tensor, names: Sequence[str]) -> Findings:
    """A low accuracy that another normalisation, channel order or class order would raise, or may be caused by one."""
    accuracy = accuracy_of(logits.argmax(1).cpu(), y.cpu())
    if accuracy is None or accuracy.share >= LOW_ACCURACY:
        return []
    try:
        remedy = find_remedy(model, x, y, partial(_all_logits, model), names=names)
    except Exception:  # the user's code may raise anything, for instance on inputs in another range
        remedy = None
    if remedy is None:
        return unsure_order(accuracy, names, logits.shape[1]) or very_low(accuracy)
    problem = f"the accuracy is {remedy.before}, and would be {remedy.after} with another {remedy.kind}: {remedy.name}"
    severity = "error" if remedy.gain >= MIN_ERROR_GAIN else "warning"
    return _error(f"{remedy.kind} may be wrong", problem, remedy.advice, severity=severity)


def unsure_order(accuracy: Accuracy, names: Sequence[str], classes: int) -> Findings:
    """Class names whose order may differ from that of the model's outputs, where the accuracy is low."""
    advice = "Check in which order the model was trained to number the classes, and give them in that order"
    if names and len(names) != classes:
        problem = f"{len(names)} class folders are numbered from 0, and the model has {classes} outputs"
    elif sorted(names) != list(names):
        problem = "the class names sort differently as numbers and as text"
    else:
        return []
    problem += f", so labels and outputs may not agree; the accuracy is {accuracy}"
    return _warning("class order may be wrong", problem, advice)


def very_low(accuracy: Accuracy) -> Findings:
    """An accuracy below one half that no usual change of the settings raises."""
    return _warning(
        "low accuracy",
        f"the accuracy is {accuracy}, and no usual normalisation, channel order or class order was found to raise it",
        "Look at some of these inputs and their labels: if the labels are right, the inputs are hard for the model, as "
        "those of a field unlike its training data may be. Give expect (--expect) to make a low accuracy an error",
        when=accuracy.share < VERY_LOW_ACCURACY,
    )


def below_expectation(accuracy: Accuracy | None, expect: float) -> Findings:
    """An accuracy below the expected one, or none that could be measured."""
    advice = "Look at the other findings; if there are none, the model is not as good on these data as expected"
    if accuracy is None:
        advice = "Give labelled inputs that the module can run"
        return _error(
            "accuracy unknown", f"an accuracy of {percent(expect)} is expected, and none was measured", advice
        )
    problem = f"{percent(expect)} is expected, got {accuracy}"
    return _error("accuracy below expectation", problem, advice, when=accuracy.share < expect)


def foreign_labels(y: Tensor, classes: int, names: Sequence[str] = ()) -> Findings:
    """Labels that the model has no class for."""
    bad = int((y >= classes).sum())
    advice = "Remove these rows, or number the labels like the model's outputs"
    if _starts_at_one(y, classes):
        advice = "The labels seem to start at 1: subtract 1"
    largest = str(int(y.max())) + (f", {names[int(y.max())]}" if names and len(y) else "")
    problem = f"{bad} of {len(y)} labels are {classes} or more (largest {largest}), and the model has {classes}"
    return _error("labels outside the classes", f"{problem} classes", advice, when=bad > 0)


# Behaviour


def different_answers(model: Classifier, x: Tensor) -> Findings:
    """A module whose outputs change from call to call."""
    first, second = _logits(model, x), _logits(model, x)
    if first is None or second is None or _same(first, second):
        return []
    problem = f"in two calls with the same {len(x)} inputs, the logits differ by up to {_difference(first, second):.3g}"
    advice = "Remove the randomness: dropout must be nn.Dropout, or F.dropout with training=self.training"
    return _error("answers differ", problem, advice)


def dependent_rows(model: Classifier, x: Tensor) -> Findings:
    """Rows whose logits depend on the other rows of their batch.

    Every pass replays the same random numbers, so that dropout is not mistaken for dependence. If passes still differ,
    nothing is reported.
    """
    state = torch.get_rng_state()
    low, high = _extremes(x)
    others = uniform_like(x, low, high if high > low else low + 1, generator=spawn(0, "doctor", "others"))
    among_equals = _logits(model, torch.cat([x, x]), state)
    again = _logits(model, torch.cat([x, x]), state)
    among_others = _logits(model, torch.cat([x, others]), state)
    if among_equals is None or again is None or among_others is None or not _same(among_equals, again):
        return []
    first, second = among_equals[: len(x)], among_others[: len(x)]
    problem = f"an input's logits change by up to {_difference(first, second):.3g} with the other inputs in its batch"
    advice = (
        "Use batch norm with running statistics (track_running_stats=True), and normalise each input separately, "
        "never over the batch"
    )
    return _error("rows influence each other", problem, advice, when=not _same(first, second))


def bad_gradients(model: Classifier, x: Tensor) -> Findings:
    """Gradients that do not exist, are NaN, are zero, or vanish in the loss."""
    try:
        size, loss = _gradient_sizes(model, x)
    except Exception as error:
        return no_gradient(error)
    return nan_gradients(size) + zero_gradients(size) + vanishing_gradients(size, loss)


def no_gradient(error: Exception) -> Findings:
    """Logits that cannot be differentiated with respect to the inputs."""
    detached = "does not require grad" in str(error) or "to not have been used in the graph" in str(error)
    why = "its logits do not depend on them differentiably" if detached else f"{type(error).__name__}: {error}"
    return _error(
        "no gradients",
        f"the module cannot be differentiated with respect to its inputs ({' '.join(why.split())[:300]})",
        "Look for detach, no_grad, argmax, numpy or in-place changes in its forward pass; without gradients only "
        "black-box searches work",
    )


def nan_gradients(size: Tensor) -> Findings:
    """Gradients of the logits that are NaN or infinite."""
    bad = int((~size.isfinite()).sum())
    problem = f"the logits of {bad} of {len(size)} inputs have NaN or infinite gradients"
    advice = "Look for a root or norm of zero, or a division by zero in its forward pass; add a small number"
    return _error("NaN gradients", problem, advice, when=bad > 0)


def zero_gradients(size: Tensor) -> Findings:
    """Gradients of the logits that are exactly zero."""
    bad = int((size == 0).sum())
    advice = "Look for rounding, thresholds, sign or clamp in its forward pass; they block gradient attacks"
    problem = f"the logits of {bad} of {len(size)} inputs have gradients of exactly zero"
    severity, enough = "error" if bad == len(size) else "warning", bad >= max(1.0, MIN_BAD_SHARE * len(size))
    return _error("zero gradients", problem, advice, when=enough, severity=severity)


def vanishing_gradients(size: Tensor, loss: Tensor) -> Findings:
    """Gradients of cross-entropy that vanish because the logits are far apart."""
    bad = int((loss < VANISHED * size).sum())
    return _warning(
        "vanishing gradients",
        f"for {bad} of {len(size)} inputs the logits are so far apart that the gradient of cross-entropy vanishes, "
        "while the logits themselves have gradients",
        "Attacks that follow cross-entropy (FGSM, BIM, PGD) will seem weaker than they are: use DeepFool or "
        "Carlini-Wagner, which follow the logits",
        when=bad >= MIN_BAD_SHARE * len(size),
    )


# Helpers


def _error(name: str, problem: str, advice: str, *, when: bool = True, severity: str = "error") -> Findings:
    return [Finding(name=name, problem=problem, advice=advice, severity=severity)] if when else []


_warning = partial(_error, severity="warning")


def _guessed(right: int, n: int, chance: float) -> bool:
    """Whether this accuracy fits chance and does not fit a model half way between chance and perfection."""
    fits_chance: bool = binomtest(right, n, chance, alternative="greater").pvalue >= CHANCE_LEVEL
    fits_skill: bool = binomtest(right, n, (1 + chance) / 2, alternative="less").pvalue >= SKILL_LEVEL
    return fits_chance and not fits_skill


def _extremes(x: Tensor) -> tuple[float, float]:
    return float(x.min()), float(x.max())


def _bytes_in_unit_bounds(low: float, high: float, bounds: tuple[float, float]) -> bool:
    return bounds[1] == 1 and low >= 0 and 128 <= high <= 255


def _unit_in_byte_bounds(low: float, high: float, bounds: tuple[float, float]) -> bool:
    return bounds[1] == 255 and bounds[0] <= 0 <= low and high <= 1


def _finite_rows(samples: Samples) -> tuple[Tensor, Tensor | None]:
    finite = samples.x.flatten(1).isfinite().all(1)
    kept = samples if bool(finite.all()) else samples[finite]
    return kept.x.detach(), kept.y


def _evenly(n: int, most: int) -> Tensor:
    """At most ``most`` evenly spaced row numbers, since files are often sorted by class."""
    return torch.arange(n) if n <= most else torch.linspace(0, n - 1, most, dtype=torch.float64).long()


def _all_logits(model: Classifier, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([model.logits(part) for part in x.split(model.batch_size)])


def _logits(model: Classifier, x: Tensor, state: Tensor | None = None) -> Tensor | None:
    """Logits of one batch, from a given random state; None if the module fails."""
    if state is not None:
        torch.set_rng_state(state)
    try:
        with torch.no_grad():
            return model.logits(x)
    except Exception:  # the user's code may raise anything
        return None


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).nan_to_num(math.inf).abs().amax())


def _same(a: Tensor, b: Tensor) -> bool:
    scale = 1e-3 + float(a.nan_to_num().abs().amax())
    return torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True)


def _gradient_sizes(model: Classifier, x: Tensor) -> tuple[Tensor, Tensor]:
    """Largest gradient entry of each row, for a random mixture of its logits and for its cross-entropy."""
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        logits = model.unchecked_logits(z)
        weights = normal_like(logits[0].detach(), generator=spawn(0, "doctor", "weights"))
        mixture = torch.autograd.grad((logits * weights).sum(), z, retain_graph=True)[0]
        loss = torch.autograd.grad(cross_entropy(logits, logits.argmax(1), reduction="sum"), z)[0]
    return mixture.flatten(1).abs().amax(1), loss.flatten(1).abs().amax(1)


def _starts_at_one(y: Tensor, classes: int) -> bool:
    return int(y.min()) == 1 and int(y.max()) == classes


def _in_classes(y: Tensor, classes: int) -> Tensor:
    """Labels numbered like the model's classes; -1 where it has no such class."""
    y = y - 1 if _starts_at_one(y, classes) else y
    return torch.where(y < classes, y, -1)
