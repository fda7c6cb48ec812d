"""A normalising flow: a network that maps a Gaussian to the density. Needs the extra ``flows``."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from operant.activity import activity
from operant.density.kde import check_data, check_rows, check_weights
from operant.extras import install_command
from operant.networks.training import step
from operant.rng import global_streams, normal_like, shuffled
from operant.validation import check_at_least

ROWS = 4096  # computed at once
MIN_ROWS = 50  # needed for training
VALIDATION = 0.1  # share of the rows that the best epoch is chosen on


@dataclass(frozen=True, eq=False, kw_only=True)
class Flow:
    """A neural spline flow on standardised rows; made by `fit_flow`.

        log p(z) = log N(T(a); 0, I) + log |det T'(a)| - Σ log s,   a = (z - m) / s        (1)

    Args:
        centre, scale: m and s, ``(d,)``.
        transforms, width: number of layers of T, and width of the networks in them.
        state: the weights, by name.
        history: log-likelihood of the held-back rows after each epoch; the weights are those of the best.

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
        check_rows(x, self.shape)
        a = (x.to(self.centre) - self.centre) / self.scale
        values = torch.cat([self._network().log_prob(part) for part in a.split(ROWS)])
        return (values.double() - self.scale.double().log().sum()).to(x.device)  # (1)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``(n, d)`` draws: Gaussian points, mapped back through the layers."""
        check_at_least(0, n=n)
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
    """Fit a flow by maximum likelihood; the epoch with the highest likelihood of held-back rows is kept.

    Args:
        x: ``(n, d)``, at least 50 rows.
        weights: weight of each row, ``(n,)`` (default: equal).
        transforms, width: size of the flow.
        epochs, batch_size, learning_rate: of Adam, whose rate falls to 0 along half a cosine.
        generator: draws initial weights, held-back rows and batches.
        progress: show progress on stderr.
    """
    check_data(x)
    if len(x) < MIN_ROWS:
        raise ValueError(f"a flow needs at least {MIN_ROWS} rows to learn from, got {len(x)}; use fit_kde")
    v = torch.ones(len(x), device=x.device) if weights is None else weights.float().to(x.device)
    check_weights(v, len(x))
    order = shuffled(len(x), generator).to(x.device)
    n = max(5, int(VALIDATION * len(x)))
    held, part = order[:n], order[n:]
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
    with activity("training the flow", epochs, unit="epochs", show=progress) as work:
        for _ in range(epochs):
            for rows in part[torch.randperm(len(part), generator=generator).to(part.device)].tensor_split(steps):
                step(optimizer, -(v[rows] @ network().log_prob(a[rows])) / v[rows].sum().clamp_min(1e-12))
                schedule.step()
            with torch.no_grad():
                history.append(float(v[held] @ network().log_prob(a[held]) / v[held].sum().clamp_min(1e-12)))
            if not math.isfinite(history[-1]):
                raise ValueError(
                    f"training was stopped because the likelihood became {history[-1]}; lower learning_rate"
                )
            if history[-1] == max(history):
                best = {name: w.detach().clone() for name, w in network.state_dict().items()}
            work.advance()
    return Flow(centre=centre, scale=scale, transforms=transforms, width=width, state=best, history=tuple(history))


def _build(features: int, transforms: int, width: int) -> Any:
    try:
        from zuko.flows import NSF
    except ImportError:
        raise ImportError(f"zuko is not installed; {install_command('flows')}") from None
    return NSF(features, transforms=transforms, hidden_features=(width, width))
