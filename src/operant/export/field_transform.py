"""The conditions of the field as a transform for training images; ``recipe.json`` beside this file declares them.

    from field_transform import FieldTransform

    transform = FieldTransform()              # conditions as in the field
    transform = FieldTransform(strength=0.5)  # half as strong
    x = transform(x)                          # an image (C, H, W), or a batch (N, C, H, W)

Put it after the conversion to floating point and before normalisation: images must lie in the bounds of the recipe.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from operant import results
from operant.conditions import Recipe, apply

RECIPE = Path(__file__).with_name("recipe.json")
DIRECTIONS = ("motion_angle",)  # conditions that have no strength


def load_recipe() -> Recipe:
    """The recipe beside this file."""
    return results.load(RECIPE, Recipe)


@dataclass(frozen=True, kw_only=True)
class FieldTransform:
    """Puts images under conditions that are drawn anew at every call; works in any ``torch.utils.data.Dataset``.

    Args:
        recipe: the conditions and how likely each severity is (default: ``recipe.json``).
        strength: from 0, no change, to 1, as in the field; drawn severities are multiplied by it.
    """

    recipe: Recipe = field(default_factory=load_recipe)
    strength: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 1:
            raise ValueError(f"strength must be between 0 and 1, got {self.strength}")

    def __call__(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The images under drawn conditions, each image under its own.

        Args:
            x: floating-point image ``(C, H, W)``, or batch ``(N, C, H, W)``.
            generator: random numbers (default: torch's own, which a DataLoader seeds for each worker and epoch).
        """
        if not isinstance(x, Tensor) or x.ndim not in (3, 4) or not x.is_floating_point():
            got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"x must be a floating-point tensor (C, H, W) or (N, C, H, W), got {got}; convert it")
        batch = x if x.ndim == 4 else x[None]
        drawn = self.recipe.draw(len(batch), generator=torch.default_generator if generator is None else generator)
        factors = torch.tensor([1.0 if name in DIRECTIONS else self.strength for name in drawn.names])
        weakened = replace(drawn, values=drawn.values * factors)
        return apply(batch, weakened).view(x.shape)
