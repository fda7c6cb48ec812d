"""What the KuK study runs at each scale."""

from __future__ import annotations

from dataclasses import dataclass, replace

PATTERNS = ("LL", "HH", "LH", "HL")  # as Table 5 has them


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One model with its data: how much of them is used, and what is asked.

    Attributes:
        name: as the paper's tables are looked up.
        title: as the page has it.
        dataset: that inputs are taken from.
        train, epochs: of LeNet-5, which is trained here.
        places: layers that dropout may sit before, what costs least first; every set is tried with every rate.
        rates: share of the values to drop.
        calibration: inputs that decide where dropout sits; nothing else uses them.
        calibration_passes: T there.
        inputs: benign inputs of RQ1 and RQ2, which attacks start from.
        carlini, carlini_steps: of these, the ones that C&W starts from, and its steps for each of five weights.
        fuzzed, rows: of these, the seeds of the testing tools, and model rows a seed.
        reach: largest radius of the attacks that stop at the boundary.
        radius: of the same attacks where it is fixed.
        passes: T of VRO, the paper's.
        screen: passes in the search, if fewer.
        seeds, runs: of each search, and how many with other seeds; experiments have those of the first.
        controlled: whether the same is run without selection, which takes as long as a search that fails.
        chunk: seeds of a chunk, after which work is on disk.
        population, generations, tournament: of the searches.
        batch_size: rows computed at once.
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
    """``small`` is the study, with the paper's searches; ``smoke`` shows that it runs, on the embedded digits."""
    if scale == "smoke":
        return (_smoke(),)
    if scale != "small":
        raise ValueError(f"scale must be smoke or small, got {scale!r}")
    return _lenet5(), _nin(), _resnet20(), _mobilenet()


def _lenet5() -> Subject:
    dense = ("fc1", "fc2", "fc3")
    return Subject(
        name="lenet5",
        title="LeNet-5, MNIST",
        dataset="mnist",
        train=55_000,
        epochs=8,
        places=(("fc3",), ("fc2", "fc3"), dense, ("fc1",), ("conv2",), ("conv2", *dense), ("conv1",)),
        rates=(0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8),
        calibration=300,
        inputs=1_000,
        carlini=500,
        carlini_steps=500,
        fuzzed=300,
        radius=0.3,
        passes=50,
        seeds=50,
        runs=3,
        chunk=25,
    )


def _nin() -> Subject:
    """With the weights that ``python -m operant_studies.train_nin`` wrote."""
    return replace(
        _resnet20(),
        name="nin",
        title="NIN, CIFAR-10",
        places=(
            ("mlp3b",),
            ("conv3",),
            ("conv3", "mlp3a", "mlp3b"),
            ("conv2",),
            ("conv2", "conv3"),
            ("mlp1a", "mlp1b", "conv2", "mlp2a", "mlp2b", "conv3", "mlp3a", "mlp3b"),
            ("conv1",),
        ),
        calibration=60,
        inputs=200,
        carlini=100,
    )


def _resnet20() -> Subject:
    blocks = tuple(f"layer{stage}.{block}.conv2" for stage in (1, 2, 3) for block in (0, 1, 2))
    return Subject(
        name="resnet20",
        title="ResNet-20, CIFAR-10",
        dataset="cifar10",
        places=(
            ("linear",),
            ("layer3",),
            blocks[6:],
            ("layer2",),
            ("layer2", "layer3"),
            ("layer1",),
            blocks,
            ("conv1",),
        ),
        rates=(0.02, 0.05, 0.1, 0.2, 0.35, 0.5),
        calibration=80,
        inputs=300,
        carlini=150,
        fuzzed=100,
        radius=0.03,
        passes=100,
        screen=10,
        seeds=20,
        chunk=5,
    )


def _mobilenet() -> Subject:
    """Dropout in its last layers alone: before that, one generation of one seed takes minutes."""
    return Subject(
        name="mobilenet",
        title="MobileNet v2, ImageNet (the paper has v1)",
        dataset="imagenet-500",
        places=(("classifier",), ("features.18",), ("features.18", "classifier"), ("features.17",)),
        rates=(0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
        calibration=40,
        inputs=150,
        carlini=30,
        carlini_steps=100,
        fuzzed=20,
        rows=30,
        radius=0.03,
        passes=100,
        screen=10,
        seeds=10,
        controlled=False,
        chunk=2,
        batch_size=16,
    )


def _smoke() -> Subject:
    return Subject(
        name="lenet5",
        title="LeNet-5, digits",
        dataset="digits",
        train=900,
        epochs=4,
        places=(("fc3",), ("fc2", "fc3"), ("conv2",)),
        rates=(0.3, 0.6),
        calibration=20,
        calibration_passes=8,
        inputs=30,
        carlini=10,
        carlini_steps=20,
        fuzzed=10,
        rows=8,
        radius=0.2,
        passes=12,
        screen=6,
        seeds=4,
        runs=2,
        chunk=2,
        population=20,
        generations=3,
        tournament=4,
    )
