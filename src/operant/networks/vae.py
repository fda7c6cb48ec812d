"""A small variational autoencoder: codes each input as a few numbers."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from operant.activity import activity
from operant.data import Samples
from operant.model import MIN_ROWS, slack_of
from operant.networks.training import OneCycle, check_options, finite_loss, validation_split
from operant.rng import global_streams, normal_like, shuffled
from operant.validation import check_ascending, check_at_least, check_finite, check_row_shape, check_within

ROWS = 1024  # computed at once
MIN_INPUTS = 20  # needed for training
DEFAULT_ROWS = 150_000  # rows of all epochs together, if the number of epochs is not given: 30 epochs of 5000
DEFAULT_EPOCHS = (5, 30)  # minimum and maximum, if the number of epochs is not given
VALIDATION = 0.1  # share of the inputs that the best epoch is chosen on
LOG_STD = (-10.0, 5.0)  # range of the logarithm of a code's standard deviation
NOISE = 1e-6  # minimum variance of the noise of a value, in units of `scale`


@dataclass(frozen=True, eq=False, kw_only=True)
class VAE:
    """An encoder to ``latent`` numbers and a decoder from them; made by `fit_vae`.

        encode:  z ~ N(mean(x), std(x)²)        decode:  x ≈ decode(z)        (1)

    Both have one hidden layer and work on flat vectors (x - centre) / scale. `operant.results.save(vae, path)` and
    `load(path, VAE)` store it without loss.

    Args:
        shape: of one input.
        bounds: smallest and largest value of an input. If both are finite, reconstructions stay within them.
        centre, scale: ``(D,)``, the lower bound and the width of the bounds; if a bound is infinite, mean and standard
            deviation of each value.
        encoder, decoder: weight and bias of the hidden layer, then of the last layer.
        history: validation loss (negative evidence bound, up to a constant) after each epoch; the weights are those of
            the lowest.

    References:
        | Auto-Encoding Variational Bayes (Kingma and Welling, 2014)
        | https://arxiv.org/abs/1312.6114
    """

    shape: tuple[int, ...]
    bounds: tuple[float, float]
    centre: Tensor = field(repr=False)
    scale: Tensor = field(repr=False)
    encoder: tuple[Tensor, ...] = field(repr=False)
    decoder: tuple[Tensor, ...] = field(repr=False)
    history: tuple[float, ...] = field(repr=False)

    @property
    def latent(self) -> int:
        """Numbers per code."""
        return self.decoder[0].shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        """The mean code of each input, ``(N, latent)``, so that a VAE can be used as an encoder."""
        return self.encode(x)[0]

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each input's code, ``(N, latent)`` both; differentiable in ``x``."""
        self.check(x)
        parts = in_chunks(lambda part: torch.cat(self._code(self.flat(part)), 1), x)
        mean, std = parts.chunk(2, 1)
        return mean, std

    def decode(self, z: Tensor) -> Tensor:
        """Inputs ``(N, *shape)`` for codes ``(N, latent)``; differentiable in ``z``."""
        check_row_shape((self.latent,), codes=z)
        out = in_chunks(lambda part: self._drawn(part.to(self.centre)), z)
        return (out * self.scale + self.centre).clamp(*self.bounds).view(-1, *self.shape)

    def reconstruct(self, x: Tensor) -> Tensor:
        """``decode`` of the mean code of each input."""
        return self.decode(self.encode(x)[0])

    def residual(self, x: Tensor) -> Tensor:
        """Input minus reconstruction, ``(N, D)``, in units of ``scale``; differentiable in ``x``."""
        self.check(x)
        return in_chunks(lambda part: self._residual(self.flat(part)), x)

    def reconstruction_error(self, x: Tensor) -> Tensor:
        """Mean squared `residual` of each input; for bounds (0, 1) the mean squared error. Differentiable in ``x``."""
        self.check(x)
        return in_chunks(lambda part: self._residual(self.flat(part)).square().mean(1), x)

    def check(self, x: Tensor) -> None:
        """Raise a ValueError on another shape, NaN, or values outside `bounds`."""
        check_row_shape(self.shape, inputs=x)
        _check_values(x, self.bounds)

    def flat(self, x: Tensor) -> Tensor:
        """Inputs as vectors ``(N, D)`` in units of ``scale``, as the networks take them."""
        return (x.flatten(1).to(self.centre) - self.centre) / self.scale

    # On flat inputs in units of scale

    def _code(self, v: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = _perceptron(v, self.encoder).chunk(2, 1)
        return mean, log_std.clamp(*LOG_STD).exp()

    def _drawn(self, z: Tensor) -> Tensor:
        v = _perceptron(z, self.decoder)
        return v.sigmoid() if _finite(self.bounds) else v

    def _residual(self, v: Tensor) -> Tensor:
        return v - self._drawn(self._code(v)[0])


def fit_vae(
    field: Samples,
    *,
    latent: int = 16,
    width: int = 256,
    epochs: int | None = None,
    batch_size: int = 64,
    learning_rate: float = 2e-3,
    bounds: tuple[float, float] = (0.0, 1.0),
    generator: torch.Generator,
    progress: bool = True,
) -> VAE:
    """Train a VAE by maximising the evidence bound on the likelihood of the inputs.

        loss = D/2 · log(mean squared error of decode(z) in the batch) + KL(N(mean, std²) ‖ N(0, 1))        (1)

    with z drawn from the code of each input. The first term is the Gaussian likelihood of D values under the noise that
    fits the batch best, so that reconstruction and codes need no relative weight. The learning rate rises and falls
    once (one cycle); the weights of the epoch with the lowest validation loss are kept.

    Args:
        field: at least 20 inputs of any shape, flat vectors or small images; labels are not used. A tenth, chosen by
            id, is held back for validation.
        latent: numbers per code; at most the number of values of an input.
        width: units of the hidden layers.
        epochs: passes over the data (default: 30, or fewer for more than 5000 inputs, but at least 5).
        batch_size, learning_rate: of Adam.
        bounds: smallest and largest value of an input; ``(-math.inf, math.inf)`` for features of any scale.
        generator: draws initial weights, batches and codes; the same one gives bit-identical weights.
        progress: show progress on stderr.

    References:
        | Auto-Encoding Variational Bayes (Kingma and Welling, 2014), https://arxiv.org/abs/1312.6114
        | Simple and Effective VAE Training with Calibrated Decoders (Rybkin et al., 2021), for the noise
        | https://arxiv.org/abs/2006.13202
    """
    check_options(learning_rate, latent=latent, width=width, batch_size=batch_size)
    if epochs is not None:
        check_at_least(1, epochs=epochs)
    check_field(field, bounds, at_least=MIN_INPUTS)
    part, held = validation_split(field, VALIDATION)
    least, most = DEFAULT_EPOCHS
    epochs = min(most, max(least, DEFAULT_ROWS // len(part))) if epochs is None else epochs
    with global_streams(generator):
        vae = _untrained(part.x, latent=latent, width=width, bounds=bounds)
    weights = [w.requires_grad_() for w in (*vae.encoder, *vae.decoder)]
    steps = math.ceil(len(part) / batch_size)
    descend = OneCycle.of(weights, learning_rate, steps=epochs * steps)
    check = _flat_with_noise(vae, held.x, generator=generator)
    best, history = vae, list[float]()
    with activity("training the VAE", epochs, unit="epochs", show=progress) as work:
        for _ in range(epochs):
            for rows in shuffled(len(part), generator).to(part.x.device).tensor_split(steps):
                descend(_loss(vae, *_flat_with_noise(vae, part.x[rows], generator=generator)))
            with torch.no_grad():
                history.append(finite_loss(float(_loss(vae, *check))))
            if history[-1] == min(history):
                best = _copied(vae)
            work.advance()
    return replace(best, history=tuple(history))


def _loss(vae: VAE, v: Tensor, noise: Tensor) -> Tensor:
    mean, std = vae._code(v)
    error = (vae._drawn(mean + std * noise) - v).square().mean()
    kl = (mean.square() + std.square() - 1 - 2 * std.log()).sum(1).mean() / 2
    return v.shape[1] / 2 * (error + NOISE).log() + kl  # (1)


def _untrained(x: Tensor, *, latent: int, width: int, bounds: tuple[float, float]) -> VAE:
    flat = x.flatten(1)
    size = flat.shape[1]
    latent = min(latent, size)
    if _finite(bounds):
        centre, scale = torch.full((size,), bounds[0]), torch.full((size,), bounds[1] - bounds[0])
    else:
        std, centre = torch.std_mean(flat, 0)
        scale = torch.where(std > 0, std, 1.0)  # constant values are not scaled
    return VAE(
        shape=tuple(x.shape[1:]),
        bounds=(float(bounds[0]), float(bounds[1])),
        centre=centre.to(flat.device, torch.float32),
        scale=scale.to(flat.device, torch.float32),
        encoder=_initial_weights(size, width, 2 * latent, flat.device),
        decoder=_initial_weights(latent, width, size, flat.device),
        history=(),
    )


def _initial_weights(inward: int, width: int, outward: int, device: torch.device) -> tuple[Tensor, ...]:
    layers = nn.Linear(inward, width, dtype=torch.float32), nn.Linear(width, outward, dtype=torch.float32)
    return tuple(w.detach().to(device) for layer in layers for w in (layer.weight, layer.bias))


def _perceptron(v: Tensor, layers: tuple[Tensor, ...]) -> Tensor:
    w1, b1, w2, b2 = layers
    return linear(linear(v, w1, b1).relu(), w2, b2)


def _copied(vae: VAE) -> VAE:
    encoder, decoder = (tuple(w.detach().clone() for w in layers) for layers in (vae.encoder, vae.decoder))
    return replace(vae, encoder=encoder, decoder=decoder)


def _flat_with_noise(vae: VAE, x: Tensor, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    v = vae.flat(x)
    return v, normal_like(v[:, :1].expand(-1, vae.latent), generator=generator)


def in_chunks(f: Callable[[Tensor], Tensor], x: Tensor, *, rows: int = ROWS) -> Tensor:
    """``f`` applied to ``rows`` rows at a time; fewer than 16 rows are padded, since they would round differently."""
    parts = []
    for part in x.split(rows):
        n = len(part)
        if 0 < n < MIN_ROWS:
            part = torch.cat([part, part[:1].detach().expand(MIN_ROWS - n, *part.shape[1:])])
        parts.append(f(part)[:n])
    return torch.cat(parts)


def _finite(bounds: tuple[float, float]) -> bool:
    return math.isfinite(bounds[0]) and math.isfinite(bounds[1])


def check_field(field: Samples, bounds: tuple[float, float], *, at_least: int) -> None:
    """Raise a ValueError if inputs are too few, NaN, out of bounds or all equal."""
    check_ascending(finite=False, bounds=bounds)
    if len(field) < at_least:
        raise ValueError(f"at least {at_least} inputs are needed to learn from, got {len(field)}; give more field data")
    _check_values(field.x, bounds)
    if bool((field.x == field.x[:1]).all()):
        raise ValueError(f"the {len(field)} inputs are all equal: there is nothing to learn; give inputs that vary")


def _check_values(x: Tensor, bounds: tuple[float, float]) -> None:
    check_finite(inputs=x)
    check_within(bounds, slack=slack_of(bounds), advice="rescale them, or give the bounds of your data", inputs=x)
