"""What the study of semantic tests runs at each scale: data, faults, sources and searches."""

from __future__ import annotations

from dataclasses import dataclass, replace

from operant_studies.faults import FEATURES, Fault
from operant_studies.shared import check_scale

KINDS = ("gan", "cvae")  # of sources, in the order of trial


@dataclass(frozen=True, kw_only=True)
class Flaw:
    """A fault to inject: a feature that decides between two classes, with its values (default: the library's)."""

    feature: str
    classes: tuple[int, int]
    low: float | None = None
    high: float | None = None

    @property
    def fault(self) -> Fault:
        feature = FEATURES[self.feature]
        low = feature.low if self.low is None else self.low
        high = feature.high if self.high is None else self.high
        return Fault(feature=replace(feature, low=low, high=high), classes=self.classes)

    @property
    def name(self) -> str:
        """
        >>> Flaw(feature="stroke width", classes=(3, 5)).name
        'stroke-width-3-5'
        """
        return f"{self.feature.replace(' ', '-')}-{self.classes[0]}-{self.classes[1]}"


@dataclass(frozen=True, kw_only=True)
class SemanticSetting:
    """One data set with its features, faults and source.

    Every image has one of two values of each flaw's feature, independent of its class; without flaws, images are
    unchanged.
    """

    title: str  # on the page; it also seeds random numbers
    dataset: str  # source of the images
    names: tuple[str, ...] = tuple("0123456789")  # of the classes, one word each
    size: int = 28  # of an image
    channels: int = 1
    flaws: tuple[Flaw, ...] = ()  # injected one at a time; none for the study of a model without an injected fault
    # deal: training images by role; no image has two. ``judge`` is the number for each of two
    deal: tuple[tuple[str, int], ...]
    # rated, held: test images to rate sources, and to confirm faults
    rated: int = 2_000
    held: int = 2_000
    # epochs, batch_size, learning_rate: of all classifiers
    epochs: int = 8
    batch_size: int = 64
    learning_rate: float = 2e-3
    # kinds, source_steps: of sources, tried until one passes, and training steps of each
    kinds: tuple[str, ...] = KINDS
    source_steps: int = 2_000
    # latent, width: of the source
    latent: int = 16
    width: int = 24
    likelihood_epochs: int = 12  # of the autoencoders of each class
    images: int = 1_500  # of the source, to fit naturalness
    # layers, budget, steps: of the searches, without anchors and with them
    layers: tuple[str, ...] = ("z", "fc1", "fc2")
    budget: float = 10.0
    steps: int = 60
    hold: float = 4.0  # of the anchors
    # wide_layers, wide_budget, wide_steps, wide_hold: of a second anchored search, for the model without a fault
    wide_layers: tuple[str, ...] = ("fc1", "fc2", "up1")
    wide_budget: float = 8.0
    wide_steps: int = 100
    wide_hold: float = 8.0
    confidence: float = 1.0  # logits by which a test must fail
    # radius, pgd_steps: of PGD
    radius: float = 0.3
    pgd_steps: int = 40
    tests: int = 50  # seeds per direction of a fault
    hunted: int = 0  # seeds of untargeted tests
    # pairs, aimed: pairs of classes for targeted tests, and seeds per direction
    pairs: tuple[tuple[int, int], ...] = ()
    aimed: int = 0
    bounds: tuple[float, float] = (0.3, 2.0)  # usual bounds on pixels, in L-infinity and L2
    # tuned_radius, tuned_epochs: of adversarial fine-tuning
    tuned_radius: float = 0.3
    tuned_epochs: int = 10
    seeds: tuple[int, ...] = (0, 1, 2)  # repetitions, each with its own models and seeds

    @property
    def name(self) -> str:
        return self.title.lower().replace(" ", "-")


DEAL = (
    ("source", 20_000),
    ("model", 10_000),
    ("judge", 7_000),
    ("second judge", 7_000),
    ("likelihood", 4_000),
    ("anchor", 6_000),
    ("second anchor", 6_000),
)
CLOTHES = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")


def settings(scale: str) -> tuple[SemanticSetting, ...]:
    """``small`` is the study; ``smoke`` shows that it runs, on the embedded digits. The last one has no flaws."""
    check_scale(scale, "smoke", "small")
    return _smoke() if scale == "smoke" else _small()


def _small() -> tuple[SemanticSetting, ...]:
    mnist = SemanticSetting(
        title="MNIST",
        dataset="mnist",
        deal=DEAL,
        flaws=(
            Flaw(feature="position", classes=(3, 8), low=-0.1, high=0.1),
            Flaw(feature="slant", classes=(4, 9), low=-0.35, high=0.35),
            Flaw(feature="stroke width", classes=(3, 5), low=0.0, high=1.2),
        ),
    )
    fashion = replace(
        mnist,
        title="Fashion-MNIST",
        dataset="fashion-mnist",
        names=CLOTHES,
        flaws=(
            Flaw(feature="position", classes=(1, 3), low=-0.1, high=0.1),
            Flaw(feature="size", classes=(7, 9)),
            Flaw(feature="brightness", classes=(1, 8)),
        ),
        epochs=12,
        radius=0.1,
    )
    colours = (Flaw(feature="hue", classes=(3, 8)), Flaw(feature="saturation", classes=(4, 9), low=0.25))
    plain = replace(
        mnist,
        title="MNIST as it is",
        flaws=(),
        layers=("fc1", "fc2"),
        steps=80,
        hold=6.0,
        hunted=200,
        pairs=((3, 8), (4, 9), (3, 5), (1, 7), (0, 6)),
        aimed=20,
    )
    return mnist, fashion, replace(mnist, title="Coloured MNIST", channels=3, flaws=colours), plain


def _smoke() -> tuple[SemanticSetting, ...]:
    deal = tuple((role, n) for (role, _), n in zip(DEAL, (480, 150, 80, 80, 440, 99, 99), strict=True))
    digits = SemanticSetting(
        title="Digits",
        dataset="digits",
        size=8,
        deal=deal,
        rated=180,
        held=180,
        epochs=20,
        batch_size=16,
        learning_rate=4e-3,
        kinds=("cvae",),
        source_steps=1_000,
        latent=8,
        width=12,
        likelihood_epochs=4,
        images=300,
        steps=12,
        wide_steps=12,
        pgd_steps=10,
        tests=8,
        seeds=(0, 1),
        flaws=(Flaw(feature="background", classes=(3, 8)),),
    )
    plain = replace(
        digits,
        title="Digits as they are",
        flaws=(),
        source_steps=800,
        hunted=12,
        pairs=((3, 8),),
        aimed=4,
        tuned_radius=0.1,
        tuned_epochs=1,
    )
    return digits, plain
