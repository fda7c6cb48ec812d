"""What the study of seeds runs at each scale, and its data and networks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from torch.nn.functional import interpolate, pad

from operant.conditions import Recipe, apply, normal, uniform
from operant.data import Dataset, Samples, load_digits
from operant.model import Classifier
from operant.networks import LeNet5, fit, initialise, load_weights
from operant.rng import spawn
from operant_studies.shared import check_scale
from operant_studies.subjects import MNIST_FILES, find_mnist_networks, mnist_network, read_dataset

SETUPS = {
    "usps-field": "USPS, field pool",
    "usps-pool": "USPS, labelled pool",
    "zipf-field": "Zipf and conditions, field pool",
    "zipf-pool": "Zipf and conditions, broad pool",
}
RISK_MAP = "risk map"  # the score of `operant.profile.fit_risk`
STAND_IN = Recipe(severities={"shift_x": normal(0.12), "contrast": uniform(-0.9, -0.1), "blur": uniform(0.2, 0.6)})


@dataclass(frozen=True, kw_only=True)
class SeedsSetting:
    """One scale of the study."""

    dataset: str = "mnist"  # ``"mnist"`` with USPS, or the embedded ``"digits"``
    networks: tuple[str, ...] = ("plain", "robust")  # to be tested
    layer: str = "relu3"  # of the networks, for features
    # pool, field, fresh: numbers of inputs: of a made pool, of the field for the profile, and of the field for the
    # truth
    pool: int = 10_000
    field: int = 6_000
    fresh: int = 40_000
    # draws, repetitions: of every design
    draws: int = 200
    repetitions: int = 100
    dimensions: int = 32  # of the codes
    # seeds: of field, pool and fresh inputs for the comparison of weightings, and of risk maps; draws use the first
    seeds: tuple[int, ...] = (0, 1, 2)
    # scores, powers, defensives: the grid
    scores: tuple[str, ...] = ("margin", "gini", "entropy", "gradient", "dsa", RISK_MAP)
    powers: tuple[float, ...] = (0.5, 1.0, 2.0)
    defensives: tuple[float, ...] = (0.2, 0.1)
    references: int = 5_000  # training inputs that DSA compares with
    # clean, labelled, cases: of the risk map: training images that conditions are fitted with, labelled inputs that
    # class shares are estimated with, and cases
    clean: int = 5_000
    labelled: int = 2_000
    cases: int = 5_000


def setting_of(scale: str) -> SeedsSetting:
    """``small`` is the study; ``smoke`` shows that it runs, on the embedded digits."""
    check_scale(scale, "smoke", "small")
    if scale == "small":
        return SeedsSetting()
    return SeedsSetting(
        dataset="digits",
        networks=("plain",),
        layer="relu_fc2",
        pool=600,
        field=500,
        fresh=1_000,
        draws=40,
        repetitions=8,
        dimensions=8,
        seeds=(0, 1),
        scores=("margin", "dsa", RISK_MAP),
        powers=(1.0, 2.0),
        defensives=(0.2,),
        references=400,
        clean=400,
        labelled=200,
        cases=400,
    )


@dataclass(frozen=True)
class SeedsSources:
    """The data of a setting, read on first use."""

    setting: SeedsSetting
    data: Path | None

    @cached_property
    def known(self) -> Dataset:
        """The networks' training data, and test data of the same source."""
        return load_digits() if self.setting.dataset == "digits" else read_dataset("mnist", self.data)

    @cached_property
    def other(self) -> Dataset:
        """Another source of the same classes, in the frame of the first: USPS."""
        if self.setting.dataset == "digits":
            train, test = _changed(self.known.train, "train"), _changed(self.known.test, "test")
            return Dataset(train=train, test=test, classes=self.known.classes)
        usps = read_dataset("usps", self.data)
        return Dataset(train=framed(usps.train), test=framed(usps.test), classes=usps.classes)

    def network(self, kind: str) -> Classifier:
        if self.setting.dataset == "digits":
            return _digits_network()
        assert self.data is not None  # see `check`
        return Classifier(load_weights(mnist_network(), find_mnist_networks(self.data)[kind]))

    def check(self) -> None:
        """Raise if data or weights are missing, before hours are spent."""
        _ = self.known, self.other
        if self.setting.dataset != "digits" and self.data and not find_mnist_networks(self.data):
            raise ValueError(
                f"the study needs {' and '.join(MNIST_FILES.values())} in {self.data} or in weights below it"
            )


@cache
def _digits_network() -> Classifier:
    start = initialise(lambda: LeNet5(size=8), generator=spawn(0, "weights"))
    few, generator = load_digits().train[:500], spawn(0, "training")
    return Classifier(fit(start, few, epochs=8, learning_rate=4e-3, generator=generator, progress=False).module)


def framed(samples: Samples) -> Samples:
    """USPS images of 16 x 16 pixels enlarged to 20 x 20, centred in 28 x 28 like MNIST's digits."""
    x = interpolate(samples.x, size=(20, 20), mode="bilinear", align_corners=False).clamp(0, 1)
    return Samples(pad(x, (4, 4, 4, 4)), samples.y)


def _changed(samples: Samples, name: str) -> Samples:
    return Samples(apply(samples.x, STAND_IN.draw(len(samples), generator=spawn(0, "other", name))), samples.y)
