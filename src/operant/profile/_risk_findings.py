"""What a risk map has to do without: reasons to doubt it, each with its fallback."""

from collections.abc import Sequence

from torch import Tensor

from operant.data.class_texts import class_names
from operant.model import Finding
from operant.profile._checks import warning
from operant.profile._risk_terms import Known

ADVISED_CASES = 3000
LEVEL_OF_WIDER = "level of wider conditions"  # finding that the level of probabilities is not to be believed
MIN_OUTCOMES = 10  # seeds with a failing case, and seeds with a passing one, that a fit needs


def missing_layer(tapped: bool) -> tuple[Finding, ...]:
    if tapped:
        return ()
    problem = "no linear or convolutional layer of the model can be observed, so neighbours are found by logits"
    advice = "Pass a plain module with its layers, not a scripted one or one that only calls a function"
    return (warning("no penultimate layer", problem, advice),)


def few_cases(n: int) -> tuple[Finding, ...]:
    if n >= ADVISED_CASES:
        return ()
    problem = f"the map was fitted to {n} cases; below {ADVISED_CASES} it ranks inputs less well"
    return (warning("few cases", problem, "Draw more, from as many seeds as there are; they need no labels"),)


def lacking_classes(known: Known, classes: Sequence[str], k: int) -> tuple[Finding, ...]:
    """Classes without cases, and classes that are predicted for too few of them."""
    every = range(known.outputs.logits.shape[1])
    labels, found = set(known.label.tolist()), []
    if len(labels) == 1:
        problem = f"all cases are of class {class_names(sorted(labels), classes)}"
        advice = "Draw cases of every class that occurs in the field; risks of the others are guesses"
        found.append(warning("cases of one class", problem, advice))
    elif missing := sorted(set(every) - labels):
        problem = f"no case is of class {class_names(missing, classes)}, so nothing is known about its inputs"
        found.append(warning("class without cases", problem, "Draw cases of it, if it occurs in the field"))
    counts = known.outputs.predicted.bincount(minlength=len(every))
    if rare := [c for c in every if counts[c] < k]:
        problem = (
            f"fewer than {k} cases are predicted as class {class_names(rare, classes)}, so that inputs with this "
            "prediction are compared with cases of all classes"
        )
        found.append(warning("class with few cases", problem, "Draw more cases of it, if it occurs in the field"))
    return tuple(found)


def one_outcome(known: Known, mass: Tensor) -> Finding | None:
    """Too few failures or passes to learn from."""
    counts = [known.group[(known.failed == outcome) & (mass > 0)] for outcome in (1, 0)]
    failing, passing = (len(groups.unique()) for groups in counts)
    if min(failing, passing) >= MIN_OUTCOMES:
        return None
    problem = (
        f"cases of {failing} seeds fail and cases of {passing} seeds pass; with fewer than {MIN_OUTCOMES} of either, "
        "inputs are ranked by the margin alone"
    )
    what = "stronger" if failing < MIN_OUTCOMES else "weaker"
    advice = f"Draw more cases; if the field has {what} conditions than the recipe, correct the recipe"
    return warning("too few failures or passes", problem, advice)


def no_second_head() -> tuple[Finding, ...]:
    problem = "there are too many cases, features and classes to train a second last layer in minutes; it is left out"
    return (warning("no second head", problem, "Draw fewer cases, if this term matters to you"),)


def only_wider() -> Finding:
    """Nearly all cases of the recipe itself have one outcome."""
    problem = (
        f"fewer than {MIN_OUTCOMES} seeds have a failing case, or a passing one, under the recipe itself, so that "
        "probabilities are fitted to cases of wider conditions too; the ranking holds, their level does not"
    )
    return warning(LEVEL_OF_WIDER, problem, "Draw more cases, from inputs that the model has not learned")
