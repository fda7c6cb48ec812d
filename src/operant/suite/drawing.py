"""Draw cases as pictures or list their values; shared by galleries, reports and triage."""

import base64
import io
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from operant.suite.suite import Suite
from operant.validation import check_ascending

FACTORS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # amplification of differences
CLIPPED = 0.05  # largest share of pixels whose amplified difference may be clipped
UNCHANGED, DARKER, BRIGHTER = np.array([[235, 235, 235], [33, 102, 172], [178, 24, 43]], dtype=np.float64)
MAX_SMALL = 64  # pictures up to this side length are enlarged pixel by pixel
ROW_VIEWS = ("seed", "case", "difference")
MAX_RANGE_ROWS = 256  # rows from which a missing value range is estimated
FAINT = 0.4  # pictures whose values span less than this share of the range are dark, pale or foggy
MAX_CHANGES = 12  # changed values listed for a case that is not a picture

Values = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.uint8]


def is_picture(shape: Sequence[int]) -> bool:
    return len(shape) == 3 and shape[0] in (1, 3)


def shades(unit: Values) -> Pixels:
    """Values in 0..1 as 8-bit pixels."""
    pixels: Pixels = np.rint(255 * unit.clip(0, 1)).astype(np.uint8)
    return pixels


def colours(change: Values) -> Pixels:
    """Changes in -1..1 as pixels: one channel from blue over grey to red, three channels as colours around grey."""
    change = change.clip(-1, 1)
    if change.shape[-1] == 3:
        return shades((1 + change) / 2)
    end = np.where(change > 0, BRIGHTER, DARKER)
    pixels: Pixels = np.rint(UNCHANGED + np.abs(change) * (end - UNCHANGED)).astype(np.uint8)
    return pixels


def range_of(suite: Suite, bounds: tuple[float, float] | None) -> tuple[float, float]:
    """The given bounds; else, from a sample of cases, 0 to 1 if it lies there, or its smallest and largest value."""
    if bounds is not None:
        check_ascending(bounds=bounds)
        return bounds
    n = len(suite)
    if n == 0:
        return (0.0, 1.0)
    some = suite.rows.take(torch.linspace(0, n - 1, min(n, MAX_RANGE_ROWS)).long()).double().nan_to_num(0)
    low, high = float(some.min()), float(some.max())
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low, max(high, low + 1e-6))


def pair_of(suite: Suite, row: int) -> tuple[Tensor, Tensor]:
    """The seed and the case of one row; reads nothing else."""
    at = torch.tensor([row])
    return suite.pool.take(suite.seed[at])[0], suite.rows.take(at)[0]


def unit(x: Tensor, bounds: tuple[float, float]) -> Values:
    """An input rescaled from bounds to 0..1, channels last."""
    low, high = bounds
    values: Values = ((x.double().nan_to_num(0) - low) / (high - low)).movedim(0, -1).numpy()
    return values


def draw_row(suite: Suite, row: int, what: str, bounds: tuple[float, float], factor: int) -> bytes:
    """Seed, case or amplified difference of a row as a PNG file."""
    seed, case = (unit(x, bounds) for x in pair_of(suite, row))
    if what == "difference":
        return png(colours(factor * (case - seed)))
    return png(shades(seed if what == "seed" else case))


def png(pixels: Pixels, *, optimize: bool = False) -> bytes:
    """A picture (height, width, channels) as a PNG file; to optimise its size takes longer."""
    file = io.BytesIO()
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image.save(file, "PNG", optimize=optimize, compress_level=-1 if optimize else 1)
    return file.getvalue()


def data_uri(pixels: Pixels) -> str:
    """A picture as text that a page can show without loading anything."""
    return f"data:image/png;base64,{base64.b64encode(png(pixels, optimize=True)).decode()}"


def factor_of(seed: Tensor, case: Tensor, bounds: tuple[float, float]) -> int:
    """The largest factor that amplifies a difference without clipping more than a few pixels."""
    change = 0.99 * float(np.quantile(np.abs(unit(case, bounds) - unit(seed, bounds)), 1 - CLIPPED))
    return max((factor for factor in FACTORS if factor * change <= 1), default=1)


def changes_of(seed: Tensor, case: Tensor) -> list[tuple[str, str, str]]:
    """The values that changed most as (name, in the seed, in the case), largest change first."""
    before, after = seed.flatten().double(), case.flatten().double()
    places = (after - before).abs().nan_to_num(math.inf).topk(min(MAX_CHANGES, len(before))).indices.tolist()
    changes = [(f"value {i}", f"{float(before[i]):.4g}", f"{float(after[i]):.4g}") for i in places]
    return [(name, a, b) for name, a, b in changes if a != b]


def shrunk(x: Tensor, most: int) -> Tensor:
    """Pictures ``(n, channels, height, width)`` whose longer side has at most this many pixels."""
    height, width = x.shape[2:]
    scale = most / max(height, width)
    size = (max(1, round(scale * height)), max(1, round(scale * width)))
    return x if scale >= 1 else interpolate(x.float(), size=size, mode="area")


def is_faint(picture: Values) -> bool:
    """Whether little can be seen in a picture with values in 0..1, since nearly all of them are much alike."""
    low, high = np.quantile(picture, [0.02, 0.98])
    return bool(0 < high - low < FAINT)


def stretched(picture: Values) -> Values:
    """A picture with values in 0..1 whose darkest and brightest hundredth are black and white."""
    low, high = np.quantile(picture, [0.01, 0.99])
    values: Values = ((picture - low) / max(high - low, 1e-9)).clip(0, 1)
    return values
