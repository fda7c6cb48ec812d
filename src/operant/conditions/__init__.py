"""Field conditions: what happens to images in the field, such as blur, rotation or noise.

A `Recipe` declares the conditions and how likely each severity is; ``recipe.draw(n)`` returns `DrawnConditions`, which
can be stored; ``apply(x, drawn)`` applies them to images, always with the same result.
"""

from operant.conditions.corruptions import CORRUPTIONS
from operant.conditions.palette import default_palette, wider
from operant.conditions.recipe import (
    CONDITIONS,
    Condition,
    DrawnConditions,
    Recipe,
    apply,
    corruption,
)
from operant.conditions.severity import Severity, fixed, half_normal, normal, uniform

__all__ = [
    "CONDITIONS",
    "CORRUPTIONS",
    "Condition",
    "DrawnConditions",
    "Recipe",
    "Severity",
    "apply",
    "corruption",
    "default_palette",
    "fixed",
    "half_normal",
    "normal",
    "uniform",
    "wider",
]
