"""A small conditional variational autoencoder: generates images of a class, and scores how well a class fits."""

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, relu

from operant.activity import activity
from operant.data import Samples
from operant.networks.gan import (
    DEFAULT_STEPS,
    ConditionalGenerator,
    TrainedGenerator,
    check_images,
    image_shape,
    untrained_generator,
)
from operant.networks.training import (
    OneCycle,
    check_options,
    finite_loss,
    shuffled_batches,
    validation_split,
)
from operant.networks.vae import LOG_STD, NOISE, VALIDATION, in_chunks
from operant.rng import global_streams, normal_like
from operant.validation import check_at_least


@dataclass(frozen=True, eq=False, kw_only=True)
class CVAE(TrainedGenerator):
    """An encoder and a decoder that take the class as input; made by `fit_cvae`.

        code ~ N(mean(x, y), std(x, y)²),   x ≈ decode(code, y),   g(z, y) = decode(centre[y] + root[y] · z, y)     (1)

    The codes of each class are normal with their own mean and covariance, estimated after training: with few images,
    codes depend on the class too, and codes from a common distribution would give images of any class.

    The fields of `TrainedGenerator` are those of the decoder.

    Args:
        encoder: weights of the encoder, by name.
        noise: mean squared error of a value on held-back images, in units of the width of the bounds.
        history: validation loss (negative evidence bound, up to a constant) after each epoch; the weights are those of
            the lowest.

    References:
        | Learning Structured Output Representation using Deep Conditional Generative Models (Sohn et al., 2015)
        | Auto-Encoding Variational Bayes (Kingma and Welling, 2014), https://arxiv.org/abs/1312.6114
    """

    encoder: dict[str, Tensor] = field(repr=False)
    noise: float
    history: tuple[float, ...] = field(repr=False)

    def evidence(self, x: Tensor) -> Tensor:
        """How well each class explains each image, ``(N, classes)``: lower bounds of log-likelihoods.

            evidence(x, y) = -|x - decode(mean)|² / (2 noise) - KL(N(mean, std²) ‖ N(centre, root · rootᵀ))        (2)

        up to a constant, with mean and standard deviation of the code of x as an image of class y, and the normal
        distribution of the codes of that class. The decoder runs at the mean code, so that an image always has the same
        value.
        """
        return torch.stack([self._evidence(x, c) for c in range(self.classes)], 1)

    def _evidence(self, x: Tensor, c: int) -> Tensor:
        pair = self._pair

        def of(part: Tensor) -> Tensor:
            y = torch.full((len(part),), c, device=part.device)
            mean, std = pair.code(part, y)
            error = ((pair.decoder.decode(mean, y) - part) / pair.range).flatten(1).square().sum(1)
            return -error / (2 * self.noise) - normal_kl(mean, std, pair.decoder.centre[c], pair.decoder.root[c])  # (2)

        with torch.no_grad():
            return in_chunks(of, x.float())

    @cached_property
    def _pair(self) -> "_Pair":
        pair = _Pair(self.module, _Encoder(self.shape, self.classes, self.latent, self.width))
        pair.encoder.load_state_dict(self.encoder)
        return pair.eval().requires_grad_(False)


def fit_cvae(
    labelled: Samples,
    *,
    latent: int = 16,
    width: int = 32,
    epochs: int | None = None,
    batch_size: int = 64,
    learning_rate: float = 2e-3,
    bounds: tuple[float, float] = (0.0, 1.0),
    generator: torch.Generator,
    progress: bool = True,
) -> CVAE:
    """Train a conditional VAE by maximising the evidence bound on the likelihood of images, given their classes.

        loss = D/2 · log(mean squared error of g(z, y) in the batch) + KL(N(mean, std²) ‖ N(0, 1))        (1)

    as in `fit_vae`; the class is a further input of encoder and decoder. The learning rate rises and falls once; the
    weights of the epoch with the lowest validation loss are kept.

    Args:
        latent, width: of the decoder, a `ConditionalGenerator`, and of the encoder.
        labelled, epochs, batch_size, learning_rate, bounds, generator, progress: as in `fit_gan`.
    """
    classes = check_images(labelled, bounds)
    check_options(learning_rate, latent=latent, batch_size=batch_size)
    if epochs is not None:
        check_at_least(1, epochs=epochs)
    part, held = validation_split(labelled, VALIDATION)
    shape = image_shape(labelled)
    options = {"classes": classes, "latent": latent, "width": width}
    with global_streams(generator):
        decoder = untrained_generator(shape, bounds=bounds, **options)
        pair = _Pair(decoder, _Encoder(shape, classes, latent, width)).to(labelled.x.device)
    steps = math.ceil(len(part) / batch_size)
    epochs = max(1, round(DEFAULT_STEPS / steps)) if epochs is None else epochs
    descend = OneCycle.of(pair.parameters(), learning_rate, steps=epochs * steps)
    history, kept = list[float](), dict[str, Tensor]()
    with activity("training the conditional VAE", epochs, unit="epochs", show=progress) as work:
        for _ in range(epochs):
            for x, y in shuffled_batches(part, steps, generator=generator):
                descend(pair.loss(x, y, generator=generator)[0])
            with torch.no_grad():
                history.append(finite_loss(float(pair.loss(held.x, held.labels, generator=None)[0])))
            if history[-1] == min(history):
                kept = _copied(pair)
            work.advance()
    pair.load_state_dict(kept)
    with torch.no_grad():
        noise = float(pair.loss(held.x, held.labels, generator=None)[1])
        pair.fit_codes(labelled.x, labelled.labels)
    return CVAE(
        shape=shape,
        bounds=bounds,
        weights=_copied(pair.decoder),
        encoder=_copied(pair.encoder),
        noise=noise + NOISE,
        history=tuple(history),
        **options,
    )


class _Encoder(nn.Module):
    """Mean and log standard deviation of the code of an image of a given class."""

    def __init__(self, shape: tuple[int, ...], classes: int, latent: int, width: int) -> None:
        super().__init__()
        self.classes = classes
        self.conv1 = nn.Conv2d(shape[0], width, 4, stride=2, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 4, stride=2, padding=1)
        self.fc1 = nn.Linear(2 * width * (shape[1] // 4) ** 2 + classes, 8 * width)
        self.fc2 = nn.Linear(8 * width, 2 * latent)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = relu(self.conv2(relu(self.conv1(x)))).flatten(1)
        h = relu(self.fc1(torch.cat([h, one_hot(y, self.classes).to(h)], 1)))
        codes: Tensor = self.fc2(h)
        return codes


class _Pair(nn.Module):
    """Encoder and decoder together."""

    def __init__(self, decoder: ConditionalGenerator, encoder: _Encoder) -> None:
        super().__init__()
        self.decoder, self.encoder = decoder, encoder
        self.low, self.range = decoder.bounds[0], decoder.bounds[1] - decoder.bounds[0]

    def code(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.encoder((x - self.low) / self.range, y).chunk(2, 1)
        return mean, log_std.clamp(*LOG_STD).exp()

    def loss(self, x: Tensor, y: Tensor, *, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """The loss and its mean squared error; without a generator, at the mean codes."""
        mean, std = self.code(x, y)
        z = mean if generator is None else mean + std * normal_like(mean, generator=generator)
        error = ((self.decoder.decode(z, y) - x) / self.range).square().mean()
        return x[0].numel() / 2 * (error + NOISE).log() + normal_kl(mean, std).mean(), error  # (1)

    def fit_codes(self, x: Tensor, y: Tensor) -> None:
        """Store the mean and covariance of the codes of each class in the decoder."""
        codes = in_chunks(lambda rows: torch.cat(self.code(x[rows], y[rows]), 1), torch.arange(len(x), device=x.device))
        for c in range(self.decoder.classes):
            mean, std = codes[y == c].chunk(2, 1)
            covariance = torch.cov(mean.T).view(self.decoder.latent, -1) + torch.diag(std.square().mean(0))
            self.decoder.centre[c] = mean.mean(0)
            self.decoder.root[c] = torch.linalg.cholesky(covariance)


def normal_kl(mean: Tensor, std: Tensor, centre: Tensor | None = None, root: Tensor | None = None) -> Tensor:
    """KL divergence of each row's N(mean, std²) from N(centre, root · rootᵀ) (default: from N(0, 1)).

    The root is lower triangular.
    """
    if centre is None or root is None:
        return (mean.square() + std.square() - 1 - 2 * std.log()).sum(1) / 2
    inverse = torch.linalg.inv(root)
    far = ((mean - centre) @ inverse.T).square().sum(1)
    wide = (std.square() @ inverse.square().sum(0)[:, None])[:, 0]
    kl: Tensor = (far + wide - mean.shape[1] - 2 * std.log().sum(1)) / 2 + root.diagonal().log().sum()
    return kl


def _copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: values.detach().cpu().clone() for name, values in module.state_dict().items()}
