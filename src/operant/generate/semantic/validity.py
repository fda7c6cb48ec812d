"""Whether a test shows the class of its label: independent classifiers, class likelihoods, and naturalness."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from operant.data import Samples
from operant.formatting import percent
from operant.generate.engine import Goal
from operant.model import Classifier
from operant.networks.cvae import normal_kl
from operant.networks.vae import NOISE
from operant.profile import ClassVAEs, fit_class_vaes
from operant.suite import Suite
from operant.validation import check_between, check_not_empty

LEVEL = 0.05  # p-value from which a test counts as natural


@dataclass(frozen=True, kw_only=True)
class Validity:
    """Rates every test of a suite; ``validity(suite)`` returns the suite with further columns.

    A source may be asked for a 4 and show a 9: people found only about half of such tests truly misclassified. A test
    is ``valid`` (1, else 0) if it passes all of these:

    | column | what | valid from |
    |---|---|---|
    | ``agree`` | share of the judges that predict the label | 1 |
    | ``likelihood_margin`` | log-likelihood under the label's class, minus the largest under another | above 0 |
    | ``naturalness`` | calibrated p-value | ``level`` |

    A check that is not given is skipped, and its column is NaN. This is a filter, not an oracle: judges that share the
    fault of the model under test will reject valid tests; use `operant triage` to ask people.

    Args:
        judges: classifiers trained independently of the model under test, of the source, and of each other.
        likelihood: from images to log-likelihoods ``(N, classes)``: a `ClassLikelihood`, or ``cvae.evidence`` of a
            conditional VAE that is not the source itself.
        naturalness: from images to p-values, a `Naturalness` fitted on images of the source: it then rates whether a
            test still looks like the source's images. Fitted on training data alone it may reject all images of a
            source that is smoother, such as an autoencoder; `Quality` measures how real a source's images look.
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
        check_not_empty(judges=self.judges, advice="give an independently trained classifier")
        check_between(0, 1, level=self.level)

    def __call__(self, suite: Suite) -> Suite:
        nan = torch.full((len(suite),), math.nan, dtype=torch.float64)
        if len(suite) == 0:
            return suite.with_columns(agree=nan, likelihood_margin=nan, naturalness=nan, valid=nan)
        x, y = suite.x, suite.label
        agree = torch.stack([(judge.predict(x) == y).double() for judge in self.judges]).mean(0)
        margin = nan if self.likelihood is None else label_margin(self.likelihood(x), y)
        natural = nan if self.naturalness is None else self.naturalness(x).double().cpu()
        valid = (agree == 1) & ~(margin <= 0) & ~(natural < self.level)  # NaN passes
        return suite.with_columns(agree=agree, likelihood_margin=margin, naturalness=natural, valid=valid.double())


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
    """Log-likelihoods of an image under each class, by one autoencoder per class; made by `fit_class_likelihood`.

        evidence(x, c) = -|x - decode(mean)|² / (2 noise) - KL(N(mean, std²) ‖ codes of class c)        (1)

    up to a constant, with the code of x from the autoencoder of class c. `operant.results.save` stores it.
    """

    classes: ClassVAEs = field(repr=False)
    noise: float

    def __call__(self, x: Tensor) -> Tensor:
        """Lower bounds of log-likelihoods, ``(N, classes)``."""
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
    """Fit a `ClassLikelihood`, with `operant.profile.fit_class_vaes`.

    Args:
        labelled: at least 20 images of every class, 0 to the largest label.
        generator: draws initial weights, batches and codes.
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
    """Counts of tests, failing tests and valid tests; made by `tally`.

    Args:
        seeds: seeds that were searched from.
        tests, failing: all tests, and those that fail by the required margin.
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
        share = f"{percent(self.seeds_valid_failing / self.seeds)}" if self.seeds else "none"
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
