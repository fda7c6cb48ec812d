"""Field conditions: what happens to images in use, declared, drawn, stored and applied again.

A `Recipe` says which conditions there are and how likely each severity is; ``recipe.draw(n)`` gives a `Drawn`, a value
that can be stored; ``apply(x, drawn)`` does it to images, the same way every time.
"""

from operant.conditions.corruptions import CORRUPTIONS
from operant.conditions.recipe import (
    CONDITIONS,
    Condition,
    Drawn,
    Recipe,
    apply,
    corruption,
)
from operant.conditions.severity import Severity, fixed, half_normal, normal, uniform

__all__ = [
    "CONDITIONS",
    "CORRUPTIONS",
    "Condition",
    "Drawn",
    "Recipe",
    "Severity",
    "apply",
    "corruption",
    "fixed",
    "half_normal",
    "normal",
    "uniform",
]
