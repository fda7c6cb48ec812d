"""Shared by all defences: calibration on benign inputs, checks, units, and random seeds."""

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from operant.data import Samples
from operant.measure.conformal import Conformal, check_level, fit_conformal
from operant.model import Classifier
from operant.validation import check_between, check_row_shape

Transform = Callable[[Tensor], Tensor]
"""Images in [0, 1] to images of the same shape; the result for a row does not depend on the batch."""


def calibrated(scores: Tensor, level: float) -> Conformal:
    """Conformal calibration from scores of held-out benign inputs; raises if they are too few or all equal."""
    check_level(level, len(scores))
    conformal = fit_conformal(scores.detach().cpu())
    if not conformal.varies:
        equal = f"the scores of all {len(scores)} calibration inputs are equal ({float(scores[0]):.4g})"
        raise ValueError(f"{equal}; choose another setting of this detector")
    return conformal


def check_predictions(model: Classifier, samples: Samples, *, correct: bool) -> None:
    """Raise if there are no inputs, or labelled ones that the model does not classify as required."""
    kind, source = ("benign", "model.correct(samples)") if correct else ("adversarial", "suite.failures().samples()")
    if len(samples) == 0:
        raise ValueError(f"there are no {kind} inputs; give {source}")
    model.check_inputs(samples.x)
    right = None if samples.y is None else model.predict(samples.x) == samples.labels.to(samples.x.device)
    if right is not None and (bad := int((right != correct).sum())):
        must = f"{kind} inputs must be {'classified correctly' if correct else 'misclassified'}"
        raise ValueError(f"{must}, got {bad} of {len(samples)} that are not; give {source}")


def split_benign(benign: Samples, calibration: float) -> tuple[Samples, Samples]:
    """Inputs to learn from and inputs to calibrate on, split by id, so that copies of an input stay together."""
    check_between(0, 1, calibration=calibration)
    parts = benign.split(learning=1 - calibration, calibration=calibration)
    for role, part in parts.items():
        if len(part) == 0:
            raise ValueError(f"the {role} part of {len(benign)} benign inputs is empty; give more benign inputs")
    return parts["learning"], parts["calibration"]


def check_shape(x: Tensor, shape: Sequence[int]) -> None:
    """Raise if inputs have another shape than the defence was fitted on."""
    check_row_shape(tuple(shape), inputs=x, advice="fit a defence on inputs of this shape")


def check_images(x: Tensor) -> None:
    """Raise if this is not a batch of images."""
    if x.ndim != 4:
        raise ValueError(f"images must have shape (N, channels, height, width), got {tuple(x.shape)}")


def transformed(x: Tensor, transform: Transform, bounds: tuple[float, float]) -> Tensor:
    """Apply a transform of images in [0, 1] to inputs within ``bounds``."""
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
    """One seed per input, from ``seed`` and the input's values at a few hundred evenly spaced places."""
    values = x.detach().flatten(1)
    rows = values[:, :: max(1, values.shape[1] // 512)].to("cpu", torch.float32).contiguous().numpy()
    key = repr((tuple(x.shape[1:]), seed)).encode()[:64]
    digests = b"".join(hashlib.blake2b(row, digest_size=8, key=key).digest() for row in rows)
    return torch.frombuffer(bytearray(digests), dtype=torch.int64) if len(rows) else torch.empty(0).long()


def mirrored(x: Tensor, before: int, after: int) -> Tensor:
    """Images continued beyond their edges by mirroring at the edge: ``b a | a b c | c b``."""
    return _mirrored(_mirrored(x, before, after, 2), before, after, 3)


def _mirrored(x: Tensor, before: int, after: int, dim: int) -> Tensor:
    n = x.shape[dim]
    if max(before, after) > n:
        raise ValueError(f"the window reaches {max(before, after)} pixels beyond images of side {n}; make it smaller")
    place = torch.arange(-before, n + after, device=x.device)
    place = torch.where(place < 0, -place - 1, place)
    return x.index_select(dim, torch.where(place >= n, 2 * n - 1 - place, place))
