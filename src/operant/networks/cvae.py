"""A small conditional variational autoencoder: images of a class that one may ask for, and how well a class fits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, relu

from operant.data import Samples
from operant.networks.gan import (
    ConditionalGenerator,
    check_images,
    check_training,
    finite_loss,
    shown,
    untrained_generator,
)
from operant.networks.training import shuffled_batches, validation_split
from operant.networks.vae import LOG_STD, NOISE, in_chunks
from operant.rng import global_streams, normal_like

STEPS = 6_000  # of training, unless told otherwise
VALIDATION = 0.1  # share of the images that the best epoch is chosen on


@dataclass(frozen=True, eq=False, kw_only=True)
class CVAE:
    """Encoder and decoder that know the class; made by `fit_cvae`.

        code ~ N(mean(x, y), std(x, y)²),   x ≈ decode(code, y),   g(z, y) = decode(centre[y] + root[y] · z, y)     (1)

    The codes of a class are normal with a mean and covariance of their own, found after training: a decoder learns from
    few images that codes tell the class as well, and codes drawn at large would give images of any class.

    Write it with `operant.results.save(cvae, path)` and read it with `load(path, CVAE)`: every number comes back as it
    was. `operant.generate.FeatureSource.of(cvae)` makes its decoder a source of tests.

    Args:
        shape: of one image, ``(channels, size, size)``.
        classes, latent, width: of the decoder, a `ConditionalGenerator`.
        bounds: smallest and largest value of an image.
        weights: of the decoder, by name.
        encoder: of the encoder, by name.
        noise: mean squared error of a value on held-back images, in units of the width of the bounds.
        history: validation loss (negative evidence bound, up to a constant) after each epoch; the weights are of the
            lowest.

    References:
        | Learning Structured Output Representation using Deep Conditional Generative Models (Sohn et al., 2015)
        | Auto-Encoding Variational Bayes (Kingma and Welling, 2014), https://arxiv.org/abs/1312.6114
    """

    shape: tuple[int, int, int]
    classes: int
    latent: int
    width: int
    bounds: tuple[float, float]
    weights: dict[str, Tensor] = field(repr=False)
    encoder: dict[str, Tensor] = field(repr=False)
    noise: float
    history: tuple[float, ...] = field(repr=False)

    @property
    def module(self) -> ConditionalGenerator:
        """The decoder ``(z, y) -> images``, in evaluation mode."""
        options = {"classes": self.classes, "latent": self.latent, "width": self.width}
        module = untrained_generator(self.shape, bounds=self.bounds, **options)
        module.load_state_dict(self.weights)
        return module.eval().requires_grad_(False)

    def evidence(self, x: Tensor) -> Tensor:
        """How well each class explains each image, ``(N, classes)``: log-likelihoods, bounded from below.

            evidence(x, y) = -|x - decode(mean)|² / (2 noise) - KL(N(mean, std²) ‖ N(centre, root · rootᵀ))        (2)

        up to a constant, with the mean and standard deviation of the code of x as an image of class y, and the normal
        distribution of the codes of that class. The decoder is run at the mean code, so that the same image always has
        the same value.
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
    def _pair(self) -> _Pair:
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
    """Learn to pass images of a known class through a few numbers, by raising the evidence bound on their likelihood.

        loss = D/2 · log(mean squared error of g(z, y) in the batch) + KL(N(mean, std²) ‖ N(0, 1))        (1)

    as in `fit_vae`, with the class beside the image in the encoder and beside the code in the decoder. The learning
    rate rises and falls once; the weights of the epoch with the lowest loss on held-back images are kept.

    Args:
        labelled: square images, at least 20 of every class, 0 to the largest label.
        latent, width: of the decoder, a `ConditionalGenerator`; the encoder follows from them.
        epochs: passes over the data; unless given, as many as make 6000 steps.
        batch_size, learning_rate: of Adam.
        bounds: smallest and largest value of an image.
        generator: draws first weights, batches and codes; the same one gives the same weights, bit for bit.
        progress: show a bar where there is a terminal to show it on.
    """
    classes = check_images(labelled, bounds)
    check_training(latent=latent, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate)
    part, held = validation_split(labelled, VALIDATION)
    shape = (labelled.shape[0], labelled.shape[1], labelled.shape[2])
    options = {"classes": classes, "latent": latent, "width": width}
    with global_streams(generator):
        decoder = untrained_generator(shape, bounds=bounds, **options)
        pair = _Pair(decoder, _Encoder(shape, classes, latent, width)).to(labelled.x.device)
    steps = math.ceil(len(part) / batch_size)
    epochs = max(1, round(STEPS / steps)) if epochs is None else epochs
    optimizer = torch.optim.Adam(pair.parameters(), lr=learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=epochs * steps)
    history, kept = list[float](), dict[str, Tensor]()
    for _ in shown(epochs, progress, what="training the conditional VAE"):
        for x, y in shuffled_batches(part, steps, generator=generator):
            loss, _ = pair.loss(x, y, generator=generator)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            history.append(finite_loss(float(pair.loss(held.x, held.labels, generator=None)[0])))
        if history[-1] == min(history):
            kept = _copied(pair)
    pair.load_state_dict(kept)
    with torch.no_grad():
        noise = float(pair.loss(held.x, held.labels, generator=None)[1])
        pair.spread_codes(labelled.x, labelled.labels)
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
    """Mean and log of the standard deviation of the code of an image whose class is known."""

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
        """The loss, and the mean squared error in it; without a generator, at the mean codes."""
        mean, std = self.code(x, y)
        z = mean if generator is None else mean + std * normal_like(mean, generator=generator)
        error = ((self.decoder.decode(z, y) - x) / self.range).square().mean()
        return x[0].numel() / 2 * (error + NOISE).log() + normal_kl(mean, std).mean(), error  # (1)

    def spread_codes(self, x: Tensor, y: Tensor) -> None:
        """Give the decoder the mean and covariance of the codes of each class."""
        codes = in_chunks(lambda rows: torch.cat(self.code(x[rows], y[rows]), 1), torch.arange(len(x), device=x.device))
        for c in range(self.decoder.classes):
            mean, std = codes[y == c].chunk(2, 1)
            spread = torch.cov(mean.T).view(self.decoder.latent, -1) + torch.diag(std.square().mean(0))
            self.decoder.centre[c] = mean.mean(0)
            self.decoder.root[c] = torch.linalg.cholesky(spread)


def normal_kl(mean: Tensor, std: Tensor, centre: Tensor | None = None, root: Tensor | None = None) -> Tensor:
    """KL divergence of each row's N(mean, std²) from N(centre, root · rootᵀ), with a lower triangular root.

    From N(0, 1) unless those are given.
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
