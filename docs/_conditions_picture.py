"""Draws images/conditions.png, every condition at five severities: ``python docs/_conditions_picture.py``."""

from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.nn.functional import interpolate

from operant import load_digits
from operant.conditions import CONDITIONS, DrawnConditions, apply

PICTURE = Path(__file__).parent / "images" / "conditions.png"
GAP, TEXT = 4, 120  # pixels between images, and for a name
CELL = 2 * 28 + GAP
STRONGEST = {  # in the direction of the last column; conditions with a negative range start at its opposite
    "rotation": 30,
    "scale": 0.4,
    "shear": 0.4,
    "shift_x": 0.2,
    "shift_y": 0.2,
    "occlusion": 0.5,
    "shadow": 0.9,
    "fog": 0.8,
    "motion_blur": 8,
    "defocus": 3,
    "blur": 2,
    "vignetting": 1,
    "exposure": 1,
    "warmth": 0.4,
    "tint": 0.3,
    "brightness": 0.4,
    "contrast": 1,
    "gamma": 0.8,
    "downsampling": 0.8,
    "shot_noise": 0.4,
    "gaussian_noise": 0.25,
    "impulse_noise": 0.2,
    "saturation": 1.5,
    "jpeg": 6,
} | {name: 5 for name in CONDITIONS if name.startswith("c/")}


def digit() -> Tensor:
    """A digit in two colours, ``(3, 28, 28)``."""
    ink = interpolate(load_digits().test.x[2:3], size=28, mode="bicubic", align_corners=False).clamp(0, 1)[0]
    paper, pen = (torch.tensor(colour).view(3, 1, 1) for colour in ((0.25, 0.4, 0.45), (0.85, 0.65, 0.35)))
    return paper + ink * (pen - paper)


def severities(name: str) -> Tensor:
    most = STRONGEST[name]
    return torch.linspace(-most, most, 5) if CONDITIONS[name].low < 0 else torch.linspace(0.2, 1, 5) * most


def draw() -> None:
    x, rows = digit().expand(5, -1, -1, -1), (len(STRONGEST) + 1) // 2
    sheet = Image.new("RGB", (2 * (TEXT + 5 * CELL), rows * CELL), "white")
    pen = ImageDraw.Draw(sheet)
    for i, name in enumerate(STRONGEST):
        left, top = i // rows * (TEXT + 5 * CELL), i % rows * CELL
        pen.text((left + TEXT - 8, top + CELL // 2), name, "black", anchor="rm", font_size=11)
        drawn = DrawnConditions(names=(name,), values=severities(name)[:, None], seeds=torch.full((5,), 6))
        for j, image in enumerate(apply(x, drawn)):
            coarse = (image * 63).round() / 63 * 255  # invisible, and half of the file's size
            pixels = coarse.byte().permute(1, 2, 0).numpy().repeat(2, 0).repeat(2, 1)
            sheet.paste(Image.fromarray(pixels), (left + TEXT + j * CELL, top + GAP // 2))
    sheet.save(PICTURE, optimize=True)


if __name__ == "__main__":
    draw()
