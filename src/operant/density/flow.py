"""A normalising flow: a density bent out of a Gaussian by a network. Needs ``pip install 'operant[flows]'``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from operant.density.kde import check_weights
from operant.rng import global_streams, normal_like

ROWS = 4096  # computed at once
FEWEST = 50  # rows to learn from
HELD = 0.1  # share of the rows that the best epoch is chosen on


@dataclass(frozen=True, eq=False, kw_only=True)
class Flow:
    """A neural spline flow on standardised rows; made by `fit_flow`.

        log p(z) = log N(T(a); 0, I) + log |det T'(a)| - Σ log s,   a = (z - m) / s        (1)

    Args:
        centre, scale: m and s, ``(d,)``.
        transforms, width: how many layers T has, and how wide the networks in them are.
        state: the weights, by name.
        history: log-likelihood of the held-back rows after each epoch; the weights are of the best.

    References:
        | Neural Spline Flows (Durkan et al., 2019), https://arxiv.org/abs/1906.04032
    """

    centre: Tensor = field(repr=False)
    scale: Tensor = field(repr=False)
    transforms: int
    width: int
    state: dict[str, Tensor] = field(repr=False)
    history: tuple[float, ...] = field(default=(), repr=False)

    @property
    def shape(self) -> torch.Size:
        """The shape of one input."""
        return self.centre.shape

    @cached_property
    def _network(self) -> Any:
        network = _build(len(self.centre), self.transforms, self.width)
        network.load_state_dict(self.state)
        return network.requires_grad_(False).to(self.centre.device)

    def log_prob(self, x: Tensor) -> Tensor:
        """log p of each row of ``x``, in float64; differentiable in ``x``."""
        if x.ndim != 2 or x.shape[1:] != self.shape:
            raise ValueError(f"x must have shape (N, {self.shape[0]}), got {tuple(x.shape)}")
        if bad := int((~x.detach().isfinite()).any(1).sum()):
            raise ValueError(f"x must be finite, got NaN or infinity in {bad} of {len(x)} rows; remove them")
        a = (x.to(self.centre) - self.centre) / self.scale
        values = torch.cat([self._network().log_prob(part) for part in a.split(ROWS)])
        return (values.double() - self.scale.double().log().sum()).to(x.device)  # (1)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``(n, d)`` draws: a Gaussian point, and back through the layers."""
        if n < 0:
            raise ValueError(f"n must be 0 or more, got {n}")
        noise = normal_like(self.centre.expand(n, -1), generator=generator)
        with torch.no_grad():
            parts = [self._network().transform.inv(part) for part in noise.split(ROWS)]
        return torch.cat(parts) * self.scale + self.centre


def fit_flow(
    x: Tensor,
    *,
    weights: Tensor | None = None,
    transforms: int = 3,
    width: int = 64,
    epochs: int = 60,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    generator: torch.Generator,
    progress: bool = True,
) -> Flow:
    """Fit a flow by maximum likelihood; the epoch that rates held-back rows highest is kept.

    Args:
        x: ``(n, d)``, at least 50 rows.
        weights: how much each row counts, ``(n,)``; all alike unless given.
        transforms, width: size of the flow.
        epochs, batch_size, learning_rate: of Adam, whose rate falls to 0 along half a cosine.
        generator: draws first weights, what is held back, and batches.
        progress: show a bar where there is a terminal to show it on.
    """
    v = _check_data(x, weights)
    order = torch.randperm(len(x), generator=generator, device=generator.device).to(x.device)
    held, part = order[: max(5, int(HELD * len(x)))], order[max(5, int(HELD * len(x))) :]
    scale, centre = torch.std_mean(x[part].float(), 0)
    if not bool((scale > 0).all()):
        raise ValueError("every dimension must vary; leave out those that do not")
    a = (x.float() - centre) / scale
    with global_streams(generator):
        network = _build(x.shape[1], transforms, width).to(x.device)
    steps = math.ceil(len(part) / batch_size)
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    history, best = list[float](), dict[str, Tensor]()
    console = Console(stderr=True)
    shown = progress and console.is_terminal
    for _ in track(range(epochs), description="training the flow", console=console, disable=not shown):
        for rows in part[torch.randperm(len(part), generator=generator).to(part.device)].tensor_split(steps):
            loss = -(v[rows] @ network().log_prob(a[rows])) / v[rows].sum().clamp_min(1e-12)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            history.append(float(v[held] @ network().log_prob(a[held]) / v[held].sum().clamp_min(1e-12)))
        if not math.isfinite(history[-1]):
            raise ValueError(f"training was stopped because the likelihood became {history[-1]}; lower learning_rate")
        if history[-1] == max(history):
            best = {name: w.detach().clone() for name, w in network.state_dict().items()}
    return Flow(centre=centre, scale=scale, transforms=transforms, width=width, state=best, history=tuple(history))


def _build(features: int, transforms: int, width: int) -> Any:
    try:
        from zuko.flows import NSF
    except ImportError:
        raise ImportError("zuko is not installed; pip install 'operant[flows]'") from None
    return NSF(features, transforms=transforms, hidden_features=(width, width))


def _check_data(x: Tensor, weights: Tensor | None) -> Tensor:
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim != 2:
        got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"x must be a floating-point tensor of shape (n, d), got {got}")
    if len(x) < FEWEST:
        raise ValueError(f"a flow needs at least {FEWEST} rows to learn from, got {len(x)}; use fit_kde")
    if not bool(x.isfinite().all()):
        raise ValueError("x must be finite, got NaN or infinity; remove those rows")
    v = torch.ones(len(x), device=x.device) if weights is None else weights.float().to(x.device)
    check_weights(v, len(x))
    return v
