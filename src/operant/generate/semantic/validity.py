"""Whether a test shows what its label says: independent classifiers, likelihood of each class, and naturalness."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.engine import Goal
from operant.model import Classifier
from operant.networks.cvae import normal_kl
from operant.networks.vae import NOISE
from operant.profile import ClassVAEs, fit_class_vaes
from operant.suite import Suite

LEVEL = 0.05  # p-value from which a test counts as natural


@dataclass(frozen=True, kw_only=True)
class Validity:
    """Rates every test of a suite, not only its seed; ``validity(suite)`` gives the suite with columns more.

    A source may be asked for a 4 and show a 9: people found only about half of such tests truly misclassified. A test
    is ``valid`` (1, else 0) if all of its parts say so:

    | column | what | valid from |
    |---|---|---|
    | ``agree`` | share of the judges that see the label | 1 |
    | ``likelihood_margin`` | log-likelihood under the label's class, less the largest under another | above 0 |
    | ``naturalness`` | calibrated p-value | ``level`` |

    A part that is not given has NaN and no say. This is a filter, not an oracle: judges that share the fault of the
    model under test will call a valid test invalid, and `operant triage` asks people.

    Args:
        judges: classifiers that were trained apart from the model under test, from the source, and from each other.
        likelihood: from images to log-likelihoods ``(N, classes)``: a `ClassLikelihood`, or ``cvae.evidence`` of a
            conditional VAE that is not the source itself.
        naturalness: from images to p-values, a `Naturalness` that was fitted on images of the source: it then asks
            whether a test still looks like what the source makes. Fitted on training data alone it may call every image
            of a source strange that is smoother than they are, as those of autoencoders; how real a source's images
            look is part of `Quality`.
        level: smallest p-value of a natural test.

    References:
        | When and Why Test Generators for Deep Learning Produce Invalid Inputs (Riccio and Tonella, 2023)
        | https://arxiv.org/abs/2212.11368
    """

    judges: tuple[Classifier, ...] = field(repr=False)
    likelihood: Callable[[Tensor], Tensor] | None = field(default=None, repr=False)
    naturalness: Callable[[Tensor], Tensor] | None = field(default=None, repr=False)
    level: float = LEVEL

    def __post_init__(self) -> None:
        if not self.judges:
            raise ValueError("there must be at least one judge, got none; give a classifier that was trained apart")
        if not 0 < self.level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {self.level}")

    def __call__(self, suite: Suite) -> Suite:
        nothing = torch.full((len(suite),), math.nan, dtype=torch.float64)
        if len(suite) == 0:
            return suite.with_columns(agree=nothing, likelihood_margin=nothing, naturalness=nothing, valid=nothing)
        x, y = suite.x, suite.label
        agree = torch.stack([(judge.predict(x) == y).double() for judge in self.judges]).mean(0)
        margin = nothing if self.likelihood is None else label_margin(self.likelihood(x), y)
        natural = nothing if self.naturalness is None else self.naturalness(x).double().cpu()
        valid = (agree == 1) & ~(margin <= 0) & ~(natural < self.level)  # NaN has no say
        return suite.with_columns(
            agree=agree, likelihood_margin=margin, naturalness=natural, valid=valid.double()
        )  # fmt: skip


def label_margin(evidence: Tensor, y: Tensor) -> Tensor:
    """By how much the log-likelihood under the label exceeds the largest under another class, one value per row."""
    if evidence.ndim != 2 or len(evidence) != len(y) or int(y.max()) >= evidence.shape[1]:
        raise ValueError(
            f"likelihood must give (N, classes) for {len(y)} tests with labels up to {int(y.max())}, got "
            f"{tuple(evidence.shape)}"
        )
    return -Goal().margin(evidence.double().cpu(), y.cpu())


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassLikelihood:
    """How well each class explains an image, by one autoencoder a class; made by `fit_class_likelihood`.

        evidence(x, c) = -|x - decode(mean)|² / (2 noise) - KL(N(mean, std²) ‖ codes of class c)        (1)

    up to a constant, with the code of x by the autoencoder of class c. `operant.results.save` stores it.
    """

    classes: ClassVAEs = field(repr=False)
    noise: float

    def __call__(self, x: Tensor) -> Tensor:
        """Log-likelihoods ``(N, classes)``, bounded from below."""
        parts = zip(self.classes.vaes, self.classes.means, self.classes.roots, strict=True)
        with torch.no_grad():
            return torch.stack(
                [
                    -vae.residual(x).square().sum(1) / (2 * self.noise) - normal_kl(*vae.encode(x), centre, root)
                    for vae, centre, root in parts
                ],
                1,
            )  # (1)


def fit_class_likelihood(labelled: Samples, *, generator: torch.Generator, **options: Any) -> ClassLikelihood:
    """Learn what images of each class look like, with `operant.profile.fit_class_vaes`.

    Args:
        labelled: at least 20 images of every class, 0 to the largest label.
        generator: draws first weights, batches and codes.
        options: of `fit_class_vaes`: ``latent``, ``epochs``, ``batch_size``, ``bounds``, ``progress``.
    """
    vaes = fit_class_vaes(labelled, generator=generator, **options)
    with torch.no_grad():
        errors = [
            float(vae.reconstruction_error(labelled.x[labelled.labels == c]).mean()) for c, vae in enumerate(vaes.vaes)
        ]
    return ClassLikelihood(classes=vaes, noise=sum(errors) / len(errors) + NOISE)


@dataclass(frozen=True, kw_only=True)
class Tally:
    """How many tests there are, fail and are valid; of all and of valid tests. Made by `tally`.

    Args:
        seeds: that were worked on.
        tests, failing: all, and those that fail by the margin asked for.
        valid, valid_failing: the same, of valid tests.
        seeds_failing, seeds_valid_failing: seeds with at least one such test.
    """

    seeds: int
    tests: int
    failing: int
    valid: int
    valid_failing: int
    seeds_failing: int
    seeds_valid_failing: int

    def __str__(self) -> str:
        share = f"{self.seeds_valid_failing / self.seeds:.1%}" if self.seeds else "none"
        return (
            f"{self.tests} tests from {self.seeds} seeds: {self.failing} fail; {self.valid} are valid, and "
            f"{self.valid_failing} of those fail ({share} of the seeds have one)"
        )


def tally(suite: Suite, *, margin: float = 0.0) -> Tally:
    """Count the tests of a suite that was rated by `Validity`.

    Args:
        suite: with the columns ``valid`` and ``margin``.
        margin: a test fails if its margin exceeds this: in logits, towards the target where there is one.
    """
    if missing := [name for name in ("valid", "margin") if name not in suite.columns]:
        raise ValueError(f"the suite must have columns {', '.join(missing)}; rate it with Validity first")
    failing, valid = suite["margin"] > margin, suite["valid"] == 1
    both = failing & valid
    return Tally(
        seeds=suite.attempted,
        tests=len(suite),
        failing=int(failing.sum()),
        valid=int(valid.sum()),
        valid_failing=int(both.sum()),
        seeds_failing=len(suite.seed[failing].unique()),
        seeds_valid_failing=len(suite.seed[both].unique()),
    )
