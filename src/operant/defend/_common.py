"""What defences share: benign inputs that calibrate them, the shape they were made for, units, random numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from operant.data import Samples
from operant.measure.conformal import Conformal, check_level, fit_conformal
from operant.model import Classifier

Transform = Callable[[Tensor], Tensor]
"""Images in [0, 1] to images of the same shape; a row comes out alike in any batch."""


# Calibration ----------------------------------------------------------------------------------------------------------


def calibrated(scores: Tensor, level: float) -> Conformal:
    """The scores of held-out benign inputs, if a p-value from them can fall below the level and they say something."""
    if len(scores) == 0:
        raise ValueError("there are no benign inputs to calibrate on; give more, or a larger share for calibration")
    check_level(level, len(scores))
    conformal = fit_conformal(scores.detach().cpu())
    if not conformal.varies:
        raise ValueError(
            f"the scores of all {len(scores)} calibration inputs are equal ({float(scores[0]):.4g}), so nothing is "
            "stranger than anything else; choose another setting of this detector"
        )
    return conformal


def check_benign(model: Classifier, benign: Samples) -> None:
    """Refuse benign inputs that the model gets wrong, as far as their labels tell."""
    if len(benign) == 0:
        raise ValueError("there are no benign inputs; give some that the model reads correctly")
    model.check_inputs(benign.x)
    if benign.y is None:
        return
    if wrong := int((model.predict(benign.x) != benign.labels.to(benign.x.device)).sum()):
        raise ValueError(
            f"benign inputs must be read correctly, got {wrong} of {len(benign)} that the model gets wrong; "
            "give model.correct(samples)"
        )


def dealt(benign: Samples, calibration: float) -> tuple[Samples, Samples]:
    """What to learn from and what to calibrate on, dealt by id, so that copies of one input stay together."""
    if not 0 < calibration < 1:
        raise ValueError(f"calibration must be a share between 0 and 1, got {calibration}; 0.5 is half")
    parts = benign.split(learning=1 - calibration, calibration=calibration)
    for role, part in parts.items():
        if len(part) == 0:
            raise ValueError(f"the {role} part of {len(benign)} benign inputs is empty; give more benign inputs")
    return parts["learning"], parts["calibration"]


# Inputs ---------------------------------------------------------------------------------------------------------------


def check_shape(x: Tensor, shape: Sequence[int]) -> None:
    """Refuse inputs of another shape than the defence was fitted on."""
    if tuple(x.shape[1:]) != tuple(shape):
        raise ValueError(
            f"this defence was fitted on inputs of shape {tuple(shape)}, got {tuple(x.shape[1:])}; "
            "fit one on inputs of this shape"
        )


def check_images(x: Tensor) -> None:
    """Refuse what is no batch of images."""
    if x.ndim != 4:
        raise ValueError(f"images must have shape (N, channels, height, width), got {tuple(x.shape)}")


def transformed(x: Tensor, transform: Transform, bounds: tuple[float, float]) -> Tensor:
    """A transform of images in [0, 1], for inputs within ``bounds``."""
    low, high = bounds
    width = high - low
    if not width < float("inf"):
        raise ValueError(f"transforms need finite bounds, got {bounds}; give Classifier the bounds of your data")
    unit = x if bounds == (0.0, 1.0) else (x - low) / width
    made = transform(unit.clamp(0, 1))
    if made.shape != x.shape:
        raise ValueError(f"a transform must keep the shape {tuple(x.shape)}, got {tuple(made.shape)}")
    return made.to(x).clamp(0, 1) if bounds == (0.0, 1.0) else (low + width * made.to(x)).clamp(low, high)


def seeds_of(x: Tensor, seed: int) -> Tensor:
    """A seed for each input that depends on ``seed`` and on its content, at a few hundred evenly spaced places."""
    values = x.detach().flatten(1)
    rows = values[:, :: max(1, values.shape[1] // 512)].to("cpu", torch.float32).contiguous().numpy()
    key = repr((tuple(x.shape[1:]), seed)).encode()[:64]
    digests = b"".join(hashlib.blake2b(row, digest_size=8, key=key).digest() for row in rows)
    return torch.frombuffer(bytearray(digests), dtype=torch.int64) if len(rows) else torch.empty(0).long()


def mirrored(x: Tensor, before: int, after: int) -> Tensor:
    """Images continued beyond their edges as in a mirror that stands on the edge: ``b a | a b c | c b``."""
    return _mirrored(_mirrored(x, before, after, 2), before, after, 3)


def _mirrored(x: Tensor, before: int, after: int, dim: int) -> Tensor:
    n = x.shape[dim]
    if max(before, after) > n:
        raise ValueError(f"the window reaches {max(before, after)} pixels beyond images of side {n}; make it smaller")
    place = torch.arange(-before, n + after, device=x.device)
    place = torch.where(place < 0, -place - 1, place)
    return x.index_select(dim, torch.where(place >= n, 2 * n - 1 - place, place))
