"""Sentences about parts of a description of the field."""

from collections.abc import Sequence

from operant.conditions import CONDITIONS
from operant.formatting import percent
from operant.profile.error_estimate import ErrorEstimate
from operant.profile.fit_conditions import FittedConditions
from operant.profile.priors import Priors
from operant.suite.drawing import is_picture

MAX_LISTED = 20  # sources, groups, classes and values that are listed
NEARLY_ALL, MOST = 0.15, 0.4  # unexplained shares below which conditions explain nearly all, or most


def describe_size(shape: Sequence[int]) -> str:
    """The shape of one input in words.

    >>> describe_size((1, 28, 28)), describe_size((3, 32, 40)), describe_size((12,))
    ('grey images of 28 x 28 pixels', 'colour images of 32 x 40 pixels', 'rows of 12 values')
    """
    if is_picture(shape):
        return f"{'grey' if shape[0] == 1 else 'colour'} images of {shape[1]} x {shape[2]} pixels"
    return f"rows of {shape[0]} values" if len(shape) == 1 else f"inputs of shape {tuple(shape)}"


def describe_conditions(fitted: FittedConditions) -> str:
    """The conditions that were found, with intervals, and what the unexplained share means."""
    if not fitted.parameters:
        return describe_unexplained(fitted)
    title = f"Conditions found, with {percent(fitted.confidence, 2)} intervals:"
    found = [f"  {p}  ({CONDITIONS[p.condition].meaning})" for p in fitted.parameters]
    return "\n".join([title, *found, describe_unexplained(fitted)])


def describe_unexplained(fitted: FittedConditions) -> str:
    """What the unexplained share means."""
    left, names = fitted.unexplained, fitted.active
    if not names and fitted.before <= fitted.floor_high:
        return (
            "No condition was found: in what they look like, field inputs differ from training inputs no more than "
            "from each other."
        )
    if not names:
        return (
            "No condition was found, although field inputs look different from training inputs: what changed is not "
            "among the conditions, or inputs are too few to find it."
        )
    number = f"Unexplained share: {percent(left, 2)} of the difference between training and field inputs."
    if left < NEARLY_ALL:
        return f"{number} Training inputs under these conditions look much like field inputs and can stand in for them."
    if left < MOST:
        return f"{number} The conditions explain most of it, but something is missing: compare the pictures."
    return (
        f"{number} The field differs in something that no condition imitates: labels of field inputs are worth more "
        "here than training inputs under conditions."
    )


def describe_shares(priors: Priors, names: Sequence[str]) -> str:
    """A table of class shares with intervals; of many classes, those that differ most from the labelled inputs."""
    far = sorted(range(len(names)), key=lambda c: -abs(priors.values[c] - priors.labelled[c]))
    shown = sorted(far[:MAX_LISTED])
    width = max(len(names[c]) for c in shown)
    rows = [
        f"  {names[c]:>{width}}  {share(priors.values[c]):>6}  "
        f"[{share(priors.lower[c]):>6}, {share(priors.upper[c]):>6}]   labelled {share(priors.labelled[c]):>6}"
        for c in shown
    ]
    more = [f"  and {len(names) - len(shown)} classes that differ less"] if len(names) > len(shown) else []
    title = f"Class shares in the field ({priors.method}, {priors.interval_words}):"
    return "\n".join([title, *rows, *more])


def share(value: float) -> str:
    """An estimated share as a percentage; less than a hundredth of a point is 0.

    >>> share(0.1234), share(0.00001), share(float("nan"))
    ('12.3 %', '0 %', '–')
    """
    return percent(round(value, 4))


def describe_error(error: ErrorEstimate) -> str:
    """The error without labels in a sentence or two."""
    estimate = (
        f"Without labels, the model is estimated to get {share(error.value)} of field inputs wrong "
        f"({share(error.lower)} to {share(error.upper)}, {error.method})."
    )
    if not error.unreliable:
        return f"{estimate} This is an estimate, not a bound."
    reason = error.unreliable[0].problem
    return f"{estimate} It is unreliable here, because {reason}; label {error.labels} field inputs: `operant assess`."
