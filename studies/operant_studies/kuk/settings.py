"""Settings of the KuK study at each scale."""

from __future__ import annotations

from dataclasses import dataclass, replace

from operant_studies.shared import check_scale

PATTERNS = ("LL", "HH", "LH", "HL")  # in the order of Table 5


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One model with its data and the size of each experiment.

    Attributes:
        name: key of the paper's tables.
        title: name on the page.
        dataset: source of the inputs.
        train, epochs: training inputs and epochs of LeNet-5, which is trained here.
        places: sets of layers to put dropout before, the cheapest first; each is tried with each rate.
        rates: dropout rates to try.
        calibration: inputs that decide where dropout sits; nothing else uses them.
        calibration_passes: T for these inputs.
        inputs: benign inputs of RQ1 and RQ2, which attacks start from.
        carlini, carlini_steps: how many of these C&W starts from, and its steps for each of five weights.
        fuzzed, rows: how many of these the testing tools start from, and model rows per seed.
        reach: maximum radius of attacks that stop at the boundary.
        radius: radius of the same attacks where it is fixed.
        passes: T of VRO, as in the paper.
        screen: passes during the search, if fewer.
        seeds, runs: seeds per search, and the number of runs with different seeds; experiments use the first run's.
        controlled: whether the control without selection runs, which takes as long as a search that fails.
        chunk: seeds per chunk; each finished chunk is on disk.
        population, generations, tournament: options of the searches.
        batch_size: rows per forward pass.
    """

    name: str
    title: str
    dataset: str
    train: int = 0
    epochs: int = 0
    places: tuple[tuple[str, ...], ...]
    rates: tuple[float, ...]
    calibration: int
    calibration_passes: int = 20
    inputs: int
    carlini: int
    carlini_steps: int = 200
    fuzzed: int
    rows: int = 50
    reach: float = 0.5
    radius: float
    passes: int
    screen: int | None = None
    seeds: int
    runs: int = 1
    controlled: bool = True
    chunk: int
    population: int = 100
    generations: int = 50
    tournament: int = 20
    batch_size: int = 256


def subjects(scale: str) -> tuple[Subject, ...]:
    """The models of a scale; ``small`` has the paper's searches."""
    check_scale(scale, "smoke", "small")
    if scale == "smoke":
        return (_smoke(),)
    return _lenet5(), _nin(), _resnet20(), _mobilenet()


def _lenet5() -> Subject:
    dense = ("fc1", "fc2", "fc3")
    return Subject(
        name="lenet5", title="LeNet-5, MNIST", dataset="mnist", train=55_000, epochs=8,
        places=(("fc3",), ("fc2", "fc3"), dense, ("fc1",), ("conv2",), ("conv2", *dense), ("conv1",)),
        rates=(0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8), calibration=300, inputs=1_000, carlini=500, carlini_steps=500,
        fuzzed=300, radius=0.3, passes=50, seeds=50, runs=3, chunk=25,
    )  # fmt: skip


def _nin() -> Subject:
    """Uses the weights that ``python -m operant_studies.train_nin`` wrote."""
    return replace(
        _resnet20(), name="nin", title="NIN, CIFAR-10",
        places=(
            ("mlp3b",), ("conv3",), ("conv3", "mlp3a", "mlp3b"), ("conv2",), ("conv2", "conv3"),
            ("mlp1a", "mlp1b", "conv2", "mlp2a", "mlp2b", "conv3", "mlp3a", "mlp3b"), ("conv1",),
        ),
        calibration=60, inputs=200, carlini=100,
    )  # fmt: skip


def _resnet20() -> Subject:
    blocks = tuple(f"layer{stage}.{block}.conv2" for stage in (1, 2, 3) for block in (0, 1, 2))
    return Subject(
        name="resnet20", title="ResNet-20, CIFAR-10", dataset="cifar10",
        places=(
            ("linear",), ("layer3",), blocks[6:], ("layer2",), ("layer2", "layer3"), ("layer1",), blocks, ("conv1",),
        ),
        rates=(0.02, 0.05, 0.1, 0.2, 0.35, 0.5), calibration=80, inputs=300, carlini=150, fuzzed=100, radius=0.03,
        passes=100, screen=10, seeds=20, chunk=5,
    )  # fmt: skip


def _mobilenet() -> Subject:
    """Dropout sits in the last layers only; before them, one generation of one seed takes minutes."""
    return Subject(
        name="mobilenet", title="MobileNet v2, ImageNet (the paper has v1)", dataset="imagenet-500",
        places=(("classifier",), ("features.18",), ("features.18", "classifier"), ("features.17",)),
        rates=(0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), calibration=40, inputs=150, carlini=30, carlini_steps=100,
        fuzzed=20, rows=30, radius=0.03, passes=100, screen=10, seeds=10, controlled=False, chunk=2, batch_size=16,
    )  # fmt: skip


def _smoke() -> Subject:
    return Subject(
        name="lenet5", title="LeNet-5, digits", dataset="digits", train=900, epochs=4,
        places=(("fc3",), ("fc2", "fc3"), ("conv2",)), rates=(0.3, 0.6), calibration=20, calibration_passes=8,
        inputs=30, carlini=10, carlini_steps=20, fuzzed=10, rows=8, radius=0.2, passes=12, screen=6, seeds=4, runs=2,
        chunk=2, population=20, generations=3, tournament=4,
    )  # fmt: skip
