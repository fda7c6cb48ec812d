"""DeepHunter's metamorphic mutations: eight transformations of images, and the limits that keep their meaning."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from operant.conditions import operations
from operant.conditions.operations import column
from operant.generate.engine import Rows, chosen

# The transformations, of images in [0, 1]

SHIFT = 0.1  # largest translation, as a share of the side: three pixels of 28 or 32
PIXEL = {"contrast": (0.5, 1.2), "brightness": (-20 / 255, 20 / 255), "blur": (0.3, 1.4), "noise": (0.0, 1.0)}
AFFINE = {"translation": (-SHIFT, SHIFT), "scale": (0.7, 1.2), "shear": (-0.6, 0.6), "rotation": (-50.0, 50.0)}
RANGES = PIXEL | AFFINE
NAMES = tuple(RANGES)


def change_pixels(x: Tensor, name: str, value: Tensor, *, seeds: Tensor) -> Tensor:
    """The images under one transformation of pixel values; the value is a factor, offset, width or strength."""
    if name == "contrast":
        return (x * column(value, x)).clamp(0, 1)  # as in DeepHunter; `operations.contrast` keeps the mean
    if name == "brightness":
        return operations.brighten(x, value)
    return operations.blur(x, value) if name == "blur" else noise(x, value, seeds=seeds)


def noise(x: Tensor, strength: Tensor, *, seeds: Tensor) -> Tensor:
    """Gaussian, salt-and-pepper or shot noise, chosen by each row's seed."""
    out = torch.empty_like(x)
    for which, (most, add) in enumerate(
        ((0.08, operations.gaussian_noise), (0.02, operations.impulse_noise), (0.08, operations.shot_noise))
    ):
        rows = (seeds % 3 == which).nonzero().flatten()
        if len(rows):
            at = rows.to(x.device)
            out[at] = add(x[at], most * strength[at], seeds=seeds[rows])
    return out


def change_geometry(x: Tensor, which: Tensor, value: Tensor, second: Tensor) -> Tensor:
    """Each image under affine transformation ``NAMES[which]``, padded with black; ``second`` is a shift down."""
    only = {name: which == number for number, name in enumerate(NAMES)}
    return operations.warp(
        x,
        rotation=torch.where(only["rotation"], value, 0.0),
        scale=torch.where(only["scale"], value, 1.0).log(),
        shear=torch.where(only["shear"], value, 0.0),
        shift_x=torch.where(only["translation"], value, 0.0),
        shift_y=torch.where(only["translation"], second, 0.0),
        padding="zeros",
    ).clamp(0, 1)


def transform(x: Tensor, which: Tensor, u: Tensor, seeds: Tensor, *, bounds: tuple[float, float]) -> Tensor:
    """Each row under transformation ``NAMES[which]``, at ``u`` of its range; unchanged values stay bit-identical."""
    low, high = bounds
    z = ((x - low) / (high - low)).clamp(0, 1)
    least, most = torch.tensor(tuple(RANGES.values()), dtype=u.dtype, device=u.device)[which].unbind(1)
    value, second = least + (most - least) * u[:, 0], SHIFT * (2 * u[:, 1] - 1)
    out = z.clone()
    for number, name in enumerate(PIXEL):
        rows = (which == number).nonzero().flatten()
        if len(rows):
            out[rows] = change_pixels(z[rows], name, value[rows], seeds=seeds[rows.cpu()])
    rows = (which >= len(PIXEL)).nonzero().flatten()
    if len(rows):
        out[rows] = change_geometry(z[rows], which[rows], value[rows], second[rows])
    return torch.where(out == z, x, (low + (high - low) * out).clamp(low, high))


# Limits that keep the meaning


@dataclass(frozen=True, kw_only=True)
class ImageMutation:
    """Random transformations that keep an image's meaning.

        valid(s₀, s) ⇔ L0 < α · size   or   L∞ < β · (high − low)                                        (1)
        L0 = L0(s₀, s_{j−1}) + L0(s_j, s),   L∞ = max(L∞(s₀, s_{j−1}), L∞(s_j, s))                       (2)

    where the affine transformation turned s_{j−1} into s_j; without one, both are between s₀ and s.

    Images are `Rows` with columns ``x``; ``reference``, the image that pixels are compared with (the seed, or the
    result of the affine transformation); ``l0`` and ``linf``, how many values changed, and the largest change, (2);
    ``l0_before`` and ``linf_before``, the same before the affine transformation, 0 if there was none; ``affine``,
    whether there was one.
    """

    alpha: float
    beta: float
    bounds: tuple[float, float]
    tries: int

    def __call__(self, now: Rows, *, generator: torch.Generator) -> Rows:
        """The first valid mutant of each row that differs from it, of ``tries``; rows without one are left out.

        Further columns: ``row``, the mutated row; ``which``, the number of the transformation. All rows are tried once,
        those without success three times, then nine times, and so on.
        """
        waiting = torch.arange(len(now["x"]), device=now["x"].device)
        parts: list[Rows] = []
        tried, together = 0, 1
        while len(waiting) and tried < self.tries:
            together = min(together, self.tries - tried)
            rows = waiting.repeat_interleave(together)
            after = self._tried(chosen(now, rows), generator) | {"row": rows}
            moved = (after["x"] != now["x"][rows]).flatten(1).any(1)
            valid = (self.valid(after) & moved).view(-1, together)
            success = valid.any(1)
            first = torch.arange(len(valid), device=rows.device) * together + valid.long().argmax(1)
            parts.append(chosen(after, first[success]))
            waiting, tried, together = waiting[~success], tried + together, 3 * together
        mutants = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return chosen(mutants, mutants["row"].argsort())

    def valid(self, now: Rows) -> Tensor:
        """(1), for each row."""
        width = self.bounds[1] - self.bounds[0]
        return (now["l0"] < self.alpha * now["x"][0].numel()) | (now["linf"] < self.beta * width)

    def _tried(self, now: Rows, generator: torch.Generator) -> Rows:
        """A random transformation, of pixel values only after an affine one, with a random parameter."""
        n, device = len(now["x"]), now["x"].device
        draw = partial(torch.rand, generator=generator, device=generator.device, dtype=torch.float64)
        choice, u = draw(n).to(device), draw(n, 2).to(device)
        seeds = torch.randint(2**53, (n,), generator=generator, device=generator.device).cpu()
        which = (choice * torch.where(now["affine"], len(PIXEL), len(NAMES))).long()
        x = transform(now["x"], which, u, seeds, bounds=self.bounds)
        return self.after(now, x, affine=which >= len(PIXEL)) | {"which": which}

    def after(self, now: Rows, x: Tensor, *, affine: Tensor) -> Rows:
        """The rows of ``x``, made from ``now`` by one transformation each, ``affine`` or not."""
        reference = torch.where(column(affine, x).bool(), x, now["reference"])
        change = (x - reference).flatten(1)
        l0_before = torch.where(affine, now["l0"], now["l0_before"])
        linf_before = torch.where(affine, now["linf"], now["linf_before"])
        return {
            "x": x,
            "reference": reference,
            "l0": l0_before + (change != 0).sum(1),  # (2)
            "linf": torch.maximum(linf_before, change.abs().amax(1)),
            "l0_before": l0_before,
            "linf_before": linf_before,
            "affine": now["affine"] | affine,
        }
