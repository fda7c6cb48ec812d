"""A small conditional GAN: generates images of a given class."""

import math
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, leaky_relu, one_hot, relu
from torch.nn.utils.parametrizations import spectral_norm

from operant.activity import activity
from operant.data import Samples
from operant.data.class_texts import class_name
from operant.networks.training import check_options, finite_loss, shuffled_batches, step
from operant.networks.vae import check_field
from operant.rng import global_streams
from operant.validation import check_ascending, check_at_least

MIN_IMAGES = 20  # of each class, needed for training
DEFAULT_STEPS = 6_000  # training steps, if the number of epochs is not given
BETAS = (0.0, 0.99)  # of Adam
CRITIC_RATE = 0.5  # discriminator's learning rate relative to the generator's: on few images it learns too fast
DECAY = 0.998  # of the running mean of the weights, in long training
SLOPE = 0.1  # of the discriminator's activations below 0


class ConditionalGenerator(nn.Module):
    """Images from latents ``(N, latent)`` and classes ``(N,)``: two dense layers, two that double the size, one more.

    Layers run in the order ``fc1 fc2 up1 up2 out``. The first takes the class beside the latent. Images stay within
    ``bounds``. The decoder of a conditional VAE is the same network; its codes of class y are centre[y] + root[y] · z
    for a standard normal z, those of a GAN are z itself.

    Args:
        channels, size: an image is ``(channels, size, size)``; the size must be a multiple of 4, at least 8.
        classes: number of classes.
        latent: numbers that an image is generated from.
        width: twice the channels before the last layer; the other layers scale with it.
        bounds: smallest and largest value of an image.

    >>> ConditionalGenerator(channels=3)(torch.zeros(2, 32), torch.tensor([0, 9])).shape
    torch.Size([2, 3, 28, 28])
    """

    def __init__(
        self,
        *,
        channels: int = 1,
        classes: int = 10,
        size: int = 28,
        latent: int = 32,
        width: int = 32,
        bounds: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        super().__init__()
        if size % 4 or size < 8 or channels < 1 or classes < 1 or latent < 1 or width < 2:
            raise ValueError(
                "a generator needs a size of 8, 12, 16 … , channels, classes and latent of at least 1 and width of at "
                f"least 2, got size {size}, channels {channels}, classes {classes}, latent {latent}, width {width}"
            )
        self.classes, self.latent, self.bounds = classes, latent, bounds
        self.register_buffer("centre", torch.zeros(classes, latent))
        self.register_buffer("root", torch.eye(latent).repeat(classes, 1, 1))
        self.fc1 = nn.Linear(latent + classes, 8 * width)
        self.fc2 = nn.Linear(8 * width, 2 * width * (size // 4) ** 2)
        self.grid = nn.Unflatten(1, (2 * width, size // 4, size // 4))
        self.up1 = nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1)
        self.up2 = nn.ConvTranspose2d(width, width // 2, 4, stride=2, padding=1)
        self.out = nn.Conv2d(width // 2, channels, 3, padding=1)

    centre: Tensor
    root: Tensor

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return self.decode(self.centre[y] + torch.einsum("nij,nj->ni", self.root[y], z), y)

    def decode(self, code: Tensor, y: Tensor) -> Tensor:
        """Images for codes."""
        h = relu(self.fc1(torch.cat([code, one_hot(y, self.classes).to(code)], 1)))
        h = self.grid(relu(self.fc2(h)))
        h = relu(self.up2(relu(self.up1(h))))
        low, high = self.bounds
        x: Tensor = low + (high - low) * self.out(h).sigmoid()
        return x.clamp(low, high)  # rounding must not leave the range


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainedGenerator:
    """The options and weights of a trained `ConditionalGenerator`.

    `operant.results.save` and `load` store it without loss. `operant.generate.FeatureSource.of` generates tests with
    it.

    Args:
        shape: of one image, ``(channels, size, size)``.
        classes, latent, width: of the `ConditionalGenerator`.
        bounds: smallest and largest value of an image.
        weights: of the generator, by name.
    """

    shape: tuple[int, int, int]
    classes: int
    latent: int
    width: int
    bounds: tuple[float, float]
    weights: dict[str, Tensor] = field(repr=False)

    @property
    def module(self) -> ConditionalGenerator:
        """The generator ``(z, y) -> images``, in evaluation mode."""
        options = {"classes": self.classes, "latent": self.latent, "width": self.width}
        module = untrained_generator(self.shape, bounds=self.bounds, **options)
        module.load_state_dict(self.weights)
        return module.eval().requires_grad_(False)


@dataclass(frozen=True, eq=False, kw_only=True)
class GAN(TrainedGenerator):
    """The trained generator of a conditional GAN; made by `fit_gan`.

    ``history`` has the mean loss of discriminator and generator in each epoch. They show whether training diverged, not
    how good the images are.
    """

    history: tuple[tuple[float, float], ...] = field(repr=False)


def fit_gan(
    labelled: Samples,
    *,
    latent: int = 32,
    width: int = 32,
    epochs: int | None = None,
    batch_size: int = 64,
    learning_rate: float = 2e-3,
    bounds: tuple[float, float] = (0.0, 1.0),
    generator: torch.Generator,
    progress: bool = True,
) -> GAN:
    """Train a generator of images of each class against a discriminator.

        discriminator:  E max(0, 1 - d(x, y)) + E max(0, 1 + d(g(z, y), y)) + E -log q(y | x)        (1)
        generator:      -E d(g(z, y), y) + E -log q(y | g(z, y))                                       (2)

    with real images x and their labels y, and q a second head of the discriminator that predicts the class: as in the
    paper, the generator is rewarded for the likelihood of the label and for images that pass as real. The
    discriminator's layers have spectral norm 1, and the label enters by a projection of its features. The returned
    generator has the running mean of the weights, whose images vary less than those of single steps.

    Args:
        labelled: square images, at least 20 of every class, 0 to the largest label.
        latent, width: of the `ConditionalGenerator`.
        epochs: passes over the data (default: enough for 6000 steps).
        batch_size, learning_rate: of Adam; the discriminator's learning rate is half of this.
        bounds: smallest and largest value of an image.
        generator: draws initial weights, batches and latents; the same one gives bit-identical weights.
        progress: show progress on stderr.

    References:
        | Exposing Previously Undetectable Faults in Deep Neural Networks (Dunn et al., 2021), section 2
        | https://arxiv.org/abs/2106.00576
        | cGANs with Projection Discriminator (Miyato and Koyama, 2018)
        | https://arxiv.org/abs/1802.05637
    """
    classes = check_images(labelled, bounds)
    check_options(learning_rate, latent=latent, batch_size=batch_size)
    if epochs is not None:
        check_at_least(1, epochs=epochs)
    options = {"classes": classes, "latent": latent, "width": width}
    steps = math.ceil(len(labelled) / batch_size)
    epochs = max(1, round(DEFAULT_STEPS / steps)) if epochs is None else epochs
    history = []
    with global_streams(generator):
        maker = untrained_generator(tuple(labelled.shape), bounds=bounds, **options).to(labelled.x.device)
        critic = _Critic(labelled.shape[0], classes, labelled.shape[1], width).to(labelled.x.device)
        duel = _Duel(maker, critic, learning_rate=learning_rate)
        with activity("training the GAN", epochs, unit="epochs", show=progress) as work:
            for _ in range(epochs):
                batches = shuffled_batches(labelled, steps, generator=generator)
                losses = [duel.step(x, y, generator) for x, y in batches]
                means = torch.tensor(losses).mean(0).tolist()
                history.append((finite_loss(means[0]), finite_loss(means[1])))
                work.advance()
    weights = {name: values.detach().cpu() for name, values in duel.mean.state_dict().items()}
    return GAN(shape=image_shape(labelled), bounds=bounds, weights=weights, history=tuple(history), **options)


class _Critic(nn.Module):
    """The discriminator: scores how real an image of a class is, and predicts its class."""

    def __init__(self, channels: int, classes: int, size: int, width: int) -> None:
        super().__init__()
        self.conv1 = spectral_norm(nn.Conv2d(channels, width, 4, stride=2, padding=1))
        self.conv2 = spectral_norm(nn.Conv2d(width, 2 * width, 4, stride=2, padding=1))
        self.fc = spectral_norm(nn.Linear(2 * width * (size // 4) ** 2, 4 * width))
        self.real = spectral_norm(nn.Linear(4 * width, 1))
        self.of_class = spectral_norm(nn.Embedding(classes, 4 * width))
        self.label = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        h = leaky_relu(self.conv2(leaky_relu(self.conv1(x), SLOPE)), SLOPE)
        h = leaky_relu(self.fc(h.flatten(1)), SLOPE)
        return self.real(h)[:, 0] + (self.of_class(y) * h).sum(1), self.label(h)


class _Duel:
    """The two networks with their optimisers, and the running mean of the generator."""

    def __init__(self, maker: ConditionalGenerator, critic: _Critic, *, learning_rate: float) -> None:
        self.maker, self.critic, self.mean = maker, critic, deepcopy(maker).requires_grad_(False)
        self.taken = 0
        adam = partial(torch.optim.Adam, betas=BETAS, fused=True)
        self.maker_steps = adam(maker.parameters(), lr=learning_rate)
        self.critic_steps = adam(critic.parameters(), lr=CRITIC_RATE * learning_rate)

    def step(self, x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[float, float]:
        """One step of each network; returns their losses before it."""
        z = torch.randn(len(x), self.maker.latent, generator=generator, device=generator.device).to(x)
        made = self.maker.decode(z, y)
        (real, label), (fake, _) = self._criticise(x, y), self._criticise(made.detach(), y)
        first = relu(1 - real).mean() + relu(1 + fake).mean() + cross_entropy(label, y)  # (1)
        step(self.critic_steps, first)
        self.critic.requires_grad_(False)
        fake, label = self._criticise(made, y)
        second = -fake.mean() + cross_entropy(label, y)  # (2)
        step(self.maker_steps, second)
        self.critic.requires_grad_(True)
        self._average()
        return float(first.detach()), float(second.detach())

    def _criticise(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self.maker.bounds
        scores: tuple[Tensor, Tensor] = self.critic(2 * (x - low) / (high - low) - 1, y)
        return scores

    def _average(self) -> None:
        self.taken += 1
        decay = min(DECAY, self.taken / (self.taken + 10))
        for mean, now in zip(self.mean.parameters(), self.maker.parameters(), strict=True):
            mean.lerp_(now.detach(), 1 - decay)


# Shared with the conditional VAE


def untrained_generator(
    shape: tuple[int, ...], *, classes: int, latent: int, width: int, bounds: tuple[float, float]
) -> ConditionalGenerator:
    return ConditionalGenerator(
        channels=shape[0], size=shape[1], classes=classes, latent=latent, width=width, bounds=bounds
    )


def image_shape(labelled: Samples) -> tuple[int, int, int]:
    return (labelled.shape[0], labelled.shape[1], labelled.shape[2])


def check_images(labelled: Samples, bounds: tuple[float, float]) -> int:
    """The number of classes; raises a ValueError if a conditional generator cannot be trained on the images."""
    if len(labelled.shape) != 3 or labelled.shape[1] != labelled.shape[2] or labelled.shape[1] % 4:
        needed = "images must have shape (channels, size, size) with a size that is a multiple of 4"
        raise ValueError(f"{needed}, got {tuple(labelled.shape)}; pad or resize them")
    check_ascending(bounds=bounds)
    check_field(labelled, bounds, at_least=MIN_IMAGES)
    counts = labelled.labels.bincount().tolist()
    if few := [f"class {class_name(c, labelled.classes)} has {n}" for c, n in enumerate(counts) if n < MIN_IMAGES]:
        needed = f"at least {MIN_IMAGES} images of every class from 0 to {len(counts) - 1} are needed to learn from"
        raise ValueError(f"{needed}, but {', '.join(few)}; give more, or number the classes without gaps")
    return len(counts)
