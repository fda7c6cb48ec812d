"""What the study of semantic tests runs at each scale: data, faults, sources and searches."""

from __future__ import annotations

from dataclasses import dataclass, replace

from operant.generate.semantic.faults import FEATURES, Fault

KINDS = ("gan", "cvae")  # of sources, in the order they are tried


@dataclass(frozen=True, kw_only=True)
class Flaw:
    """A fault to inject: a feature that decides between two classes; its values are the library's unless given."""

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

    Every image has each of the flaws' features with one of two values, whatever its class; without flaws the data are
    as they are.

    Attributes:
        title: as the page has it.
        dataset: that images are taken from.
        names: of the classes, one word each.
        size: of an image.
        flaws: that are injected, one at a time; none for the study of a model that has no fault on purpose.
        deal: training images by role; no image has two. ``judge`` is the number for each of two.
        rated, held: test images that sources are rated on, and that faults are confirmed on.
        epochs, batch_size, learning_rate: of all classifiers.
        kinds, source_steps: of sources that are tried, until one passes, and how long each is trained.
        latent, width: of the source.
        likelihood_epochs: of the autoencoders of each class.
        images: of the source, that naturalness is learned from.
        layers, budget, steps: of the searches, without anchors and with them.
        hold: of the anchors.
        wide_layers, wide_budget, wide_steps, wide_hold: of a second search with anchors, for the model without a fault.
        confidence: logits by which a test must fail.
        radius, pgd_steps: of PGD.
        tests: seeds for each direction of a fault.
        hunted: seeds of untargeted tests.
        pairs, aimed: of classes that targeted tests go between, and seeds for each direction.
        bounds: on pixels that are usual, in L-infinity and L2.
        tuned_radius, tuned_epochs: of adversarial fine-tuning.
        seeds: repetitions, each with models and seeds of its own.
    """

    title: str
    dataset: str
    names: tuple[str, ...] = tuple("0123456789")
    size: int = 28
    channels: int = 1
    flaws: tuple[Flaw, ...] = ()
    deal: tuple[tuple[str, int], ...]
    rated: int = 2_000
    held: int = 2_000
    epochs: int = 8
    batch_size: int = 64
    learning_rate: float = 2e-3
    kinds: tuple[str, ...] = KINDS
    source_steps: int = 2_000
    latent: int = 16
    width: int = 24
    likelihood_epochs: int = 12
    images: int = 1_500
    layers: tuple[str, ...] = ("z", "fc1", "fc2")
    budget: float = 10.0
    steps: int = 60
    hold: float = 4.0
    wide_layers: tuple[str, ...] = ("fc1", "fc2", "up1")
    wide_budget: float = 8.0
    wide_steps: int = 100
    wide_hold: float = 8.0
    confidence: float = 1.0
    radius: float = 0.3
    pgd_steps: int = 40
    tests: int = 50
    hunted: int = 0
    pairs: tuple[tuple[int, int], ...] = ()
    aimed: int = 0
    bounds: tuple[float, float] = (0.3, 2.0)
    tuned_radius: float = 0.3
    tuned_epochs: int = 10
    seeds: tuple[int, ...] = (0, 1, 2)

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
    if scale == "smoke":
        return _smoke()
    if scale != "small":
        raise ValueError(f"scale must be smoke or small, got {scale!r}")
    return _mnist(), _fashion(), _coloured(), _plain()


def _mnist() -> SemanticSetting:
    return SemanticSetting(
        title="MNIST",
        dataset="mnist",
        deal=DEAL,
        flaws=(
            Flaw(feature="position", classes=(3, 8), low=-0.1, high=0.1),
            Flaw(feature="slant", classes=(4, 9), low=-0.35, high=0.35),
            Flaw(feature="stroke width", classes=(3, 5), low=0.0, high=1.2),
        ),
    )


def _fashion() -> SemanticSetting:
    return SemanticSetting(
        title="Fashion-MNIST",
        dataset="fashion-mnist",
        names=CLOTHES,
        deal=DEAL,
        flaws=(
            Flaw(feature="position", classes=(1, 3), low=-0.1, high=0.1),
            Flaw(feature="size", classes=(7, 9)),
            Flaw(feature="brightness", classes=(1, 8)),
        ),
        epochs=12,
        radius=0.1,
    )


def _coloured() -> SemanticSetting:
    return SemanticSetting(
        title="Coloured MNIST",
        dataset="mnist",
        channels=3,
        deal=DEAL,
        flaws=(Flaw(feature="hue", classes=(3, 8)), Flaw(feature="saturation", classes=(4, 9), low=0.25)),
    )


def _plain() -> SemanticSetting:
    """MNIST as it is, for the model without a fault on purpose."""
    return SemanticSetting(
        title="MNIST as it is",
        dataset="mnist",
        deal=DEAL,
        layers=("fc1", "fc2"),
        steps=80,
        hold=6.0,
        hunted=200,
        pairs=((3, 8), (4, 9), (3, 5), (1, 7), (0, 6)),
        aimed=20,
    )


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
