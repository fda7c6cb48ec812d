"""Random fields that depend only on each row's own seed, so that a row is the same in any batch."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from zlib import crc32

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from operant.rng import mix

STRIDE = -0x61C8864680B583EB  # odd, so that products with it are distinct: rows start far apart
MAX_KEPT = 400_000_000  # bytes of fields that `kept_fields` keeps
MAX_EXACT_MEAN = 30.0  # Poisson numbers of a larger mean are drawn from the normal distribution


def derive(seeds: Tensor, word: str) -> Tensor:
    """Seeds for one purpose, unrelated to those of other purposes: int64, below 2**53."""
    return (mix(seeds ^ (crc32(word.encode()) << 31)) * 2**53).long()


_kept: ContextVar[dict[tuple[object, ...], Tensor] | None] = ContextVar("kept", default=None)


@contextmanager
def kept_fields() -> Iterator[None]:
    """Compute equal fields only once within this block, up to `MAX_KEPT` bytes; for simulations with fixed seeds."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def _once(make: Callable[[Tensor, tuple[int, ...], str], Tensor], seeds: Tensor, *rest: Any) -> Tensor:
    fields = _kept.get()
    if fields is None:
        return make(seeds, *rest)
    key = (make.__name__, seeds.numpy().tobytes(), *rest)
    if key not in fields:
        made = make(seeds, *rest)
        if sum(f.nbytes for f in fields.values()) + made.nbytes > MAX_KEPT:
            return made
        fields[key] = made
    return fields[key]


def uniforms(seeds: Tensor, shape: tuple[int, ...], word: str) -> Tensor:
    """Numbers in (0, 1), ``(n, *shape)`` in float64: hashes of the row's seed, the word and the position."""
    return _once(_uniforms, seeds, shape, word)


def _uniforms(seeds: Tensor, shape: tuple[int, ...], word: str) -> Tensor:
    ids = (derive(seeds, word) * STRIDE)[:, None] + torch.arange(math.prod(shape))
    return mix(ids).clamp_min_(2**-54).view(-1, *shape)


def normals(seeds: Tensor, shape: tuple[int, ...], word: str) -> Tensor:
    """Standard normal numbers, ``(n, *shape)`` in float64."""
    return _once(_normals, seeds, shape, word)


def _normals(seeds: Tensor, shape: tuple[int, ...], word: str) -> Tensor:
    z: Tensor = torch.special.ndtri(_uniforms(seeds, shape, word))
    return z


def clouds(seeds: Tensor, size: tuple[int, int], word: str, *, roughness: float, ridged: bool = False) -> Tensor:
    """Smooth noise in [0, 1] with detail at every scale, ``(n, 1, *size)`` in float64.

        Σₖ roughnessᵏ · (a random grid of 2ᵏ + 1 points per side, enlarged),  then stretched to [0, 1]        (1)

    Args:
        seeds: one per row.
        size: height and width.
        word: name of the purpose.
        roughness: from 0, only the coarsest scale, to 1, equal weight of all scales.
        ridged: fold each grid at its middle value, which gives sharp lines.
    """
    total = torch.zeros(len(seeds), 1, *size, dtype=torch.float64)
    for k in range(1, max(1, math.ceil(math.log2(max(size)))) + 1):
        points = uniforms(seeds, (1, 2**k + 1, 2**k + 1), f"{word} {k}")
        grid = interpolate(points, size=size, mode="bilinear", align_corners=True)
        total = total + roughness**k * (1 - (2 * grid - 1).abs() if ridged else grid)  # (1)
    low, high = total.amin((1, 2, 3), keepdim=True), total.amax((1, 2, 3), keepdim=True)
    return (total - low) / (high - low).clamp_min(1e-12)


def poisson(u: Tensor, mean: Tensor) -> Tensor:
    """Poisson numbers by the inverse distribution function at ``u``; normal ones if the mean exceeds 30."""
    mean, u = mean.detach().double(), u.double()
    few = mean.clamp_max(MAX_EXACT_MEAN)
    most = float(few.max())
    term = (-few).exp()
    below, count = term.clone(), torch.zeros_like(term)
    for k in range(1, math.ceil(most + 9 * math.sqrt(most)) + 10):
        above = u > below
        if not bool(above.any()):
            break
        count += above
        below += term.mul_(few).div_(k)
    return torch.where(mean > MAX_EXACT_MEAN, mean + mean.sqrt() * torch.special.ndtri(u), count)
