"""Contact sheets of accepted cases, to be read by eye."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

ACROSS = 10  # cases per row
CAPTION, EDGE = 13, 18  # pixels: text below a case, and margin for the numbers of rows and columns
CLASS_NAMES = {"cifar10": ("plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")}


def draw_sheet(x: Tensor, labels: Tensor, predictions: Tensor, names: Sequence[str], path: Path, *, scale: int) -> None:
    """Draw cases in rows of ten, numbered from 1; below each its label and the model's prediction."""
    height, width = (scale * side for side in x.shape[2:])
    rows = -(-len(x) // ACROSS)
    sheet = Image.new("RGB", (EDGE + ACROSS * (width + 4), EDGE + rows * (height + CAPTION + 2)), "white")
    pen = ImageDraw.Draw(sheet)
    for column in range(ACROSS):
        pen.text((EDGE + column * (width + 4) + width // 2, 3), str(column + 1), fill="black")
    for place, (picture, y, prediction) in enumerate(
        zip(pictures(x), labels.tolist(), predictions.tolist(), strict=True)
    ):
        row, column = divmod(place, ACROSS)
        left, top = EDGE + column * (width + 4), EDGE + row * (height + CAPTION + 2)
        if column == 0:
            pen.text((2, top + height // 2), str(row + 1), fill="black")
        sheet.paste(
            Image.fromarray(picture).convert("RGB").resize((width, height), Image.Resampling.NEAREST), (left, top)
        )
        pen.text((left + 2, top + height), f"{names[y]}: {names[prediction]}", fill="black")
    sheet.save(path, quality=70, optimize=True)


def pictures(x: Tensor) -> list[np.ndarray]:
    """Each image as bytes, ``(height, width)`` or ``(height, width, 3)``."""
    array = (255 * x.clamp(0, 1)).round().byte().numpy()
    return [image[0] if len(image) == 1 else image.transpose(1, 2, 0) for image in array]


def fingerprint(x: Tensor) -> str:
    """Eight letters that identify these images."""
    return hashlib.sha256(b"".join(picture.tobytes() for picture in pictures(x))).hexdigest()[:8]


def names_of(dataset: str) -> tuple[str, ...]:
    """Names of the ten classes of a data set."""
    return CLASS_NAMES.get(dataset, tuple("0123456789"))
