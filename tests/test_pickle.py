"""Fitted objects travel between processes, before and after they are used, and give the same values bit for bit."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import foolbox
import pytest
import torch
from torch import Tensor, nn

from operant import Classifier, Samples, spawn
from operant.conditions import Recipe, normal
from operant.defend import (
    JPEG,
    BitDepth,
    CropRescale,
    Median,
    NonLocalMeans,
    PixelDeflection,
    TotalVariation,
    TransformedInputs,
    fit_feature_squeezing,
    fit_logit_detector,
    fit_mutation_detector,
)
from operant.density import fit_flow, fit_kde, fit_mixture
from operant.generate import (
    PGD,
    ConditionMove,
    FeatureFuzz,
    FeatureSource,
    FOLFuzz,
    GeneticMove,
    GradientMove,
    OperationalFuzz,
    UncertaintyFuzz,
    fit_class_likelihood,
    from_foolbox,
)
from operant.generate.baselines import ADAPT, DeepHunter, DeepXplore, DLFuzz, RandomMutation, TensorFuzz
from operant.measure import (
    KMNC,
    NBC,
    NC,
    SNAC,
    TKNC,
    Coverage,
    NeighbourCoverage,
    find_neurons,
    fit_conformal,
    fit_dsa,
    fit_lsa,
    fit_mdsa,
    fit_naturalness,
    fit_ranges,
)
from operant.networks import fit_cvae, fit_flat, fit_gan, fit_pca, fit_vae
from operant.profile import fit_class_vaes, fit_profile, fit_ratio, layer_features
from operant.retrain import Finetune, ManifoldMixup, OperationalFinetune, brier_monitor, pmi_monitor
from operant.seeds import surprise_risk, vro_risk

GENERATOR = partial(spawn, 0)
FEW = {"epochs": 1, "progress": False}


IMAGES = torch.rand(500, 1, 8, 8, generator=spawn(0, "images"))


def network() -> nn.Module:
    layers = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(36, 4),
    )
    for parameter in layers.parameters():
        nn.init.normal_(parameter, std=0.3, generator=spawn(0, parameter.numel()))
    layers.eval()
    with torch.no_grad():
        layers[-1].bias -= layers(IMAGES).median(0).values  # every class is predicted
    return layers


MODEL = Classifier(network())
LABELLED = Samples(IMAGES, MODEL.predict(IMAGES))
TRAIN, FIELD, X = LABELLED[:200], Samples(IMAGES[200:]), IMAGES[:20]
WRONG = Samples(IMAGES[400:], (LABELLED.labels[400:] + 1) % 4)
SEEDS = LABELLED[:6]


@dataclass
class Fitted:
    """Something learned, and what is computed with it."""

    make: Callable[[], Any]
    use: Callable[[Any], Any]


def called(made: Any) -> Any:
    return made(X)


def with_model(made: Any) -> Any:
    return made(MODEL, X)


def fuzzed(made: Any) -> Any:
    suite = made(MODEL, SEEDS, generator=GENERATOR())
    return suite.x, suite.prediction


def density(made: Any) -> Any:
    codes = X.flatten(1)[:, :3]
    return made.log_prob(codes), made.sample(5, generator=GENERATOR())


def naturalness(**options: Any) -> Any:
    return fit_naturalness(FIELD, latent=4, generator=GENERATOR(), **FEW, **options)


def profile(**options: Any) -> Any:
    return fit_profile(FIELD, encoder=partial(fit_pca, dimensions=4), generator=GENERATOR(), **options)


def rated(made: Any) -> Any:
    return made(X), made.surrogate(X), made.scores(X)


def profiled(made: Any) -> Any:
    return made.log_prob(X), made.quantile(X), made.weights(TRAIN)


def retrained(made: Any) -> Any:
    done = made(MODEL, TRAIN, LABELLED[200:220], validation=LABELLED[220:], generator=GENERATOR())
    return done.model.batched_logits(X)


def source() -> Any:
    return FeatureSource.of(fit_cvae(TRAIN, latent=4, width=4, generator=GENERATOR(), **FEW))


def judged(made: Any) -> Any:
    return made.accepts(X)


def covered(made: Any) -> Any:
    gain, after = made.update(made.criterion.neurons(MODEL, X))
    return gain, after.covered


def neurons(scaled: bool) -> Any:
    return find_neurons(MODEL, X, layers=["0", "2"], scaled=scaled)


def other_model() -> Classifier:
    other = network()
    other[0].weight.data *= 1.1
    return Classifier(other)


def operational() -> Any:
    natural = naturalness()
    moves = {"gradient": GradientMove(naturalness=natural, radius=0.5)}
    return OperationalFuzz(moves=moves, naturalness=natural, profile=profile())


RECIPE = Recipe(severities={"rotation": normal(20)})
ADAPTED = ADAPT(radius=0.3, rows_per_seed=8, k=3, population=4, history=8)

FITTED = {
    "classifier": Fitted(lambda: Classifier(network(), mean=0.5, std=0.2), lambda m: (m.probs(X), m.notes)),
    "strict classifier": Fitted(lambda: Classifier(network(), strict=True), lambda m: m.batched_logits(X)),
    "naturalness": Fitted(naturalness, rated),
    "naturalness in a layer": Fitted(lambda: naturalness(model=MODEL, layer="4"), rated),
    "profile": Fitted(profile, profiled),
    "profile of a layer": Fitted(lambda: profile(features=layer_features(MODEL, "4")), profiled),
    "ratio": Fitted(lambda: fit_ratio(TRAIN, FIELD, dimensions=4, generator=GENERATOR()), lambda m: m.weights(TRAIN)),
    "class VAEs": Fitted(
        lambda: fit_class_vaes(TRAIN, latent=2, generator=GENERATOR(), **FEW),
        lambda m: m(LABELLED.labels[:5], GENERATOR()),
    ),
    "class likelihood": Fitted(lambda: fit_class_likelihood(TRAIN, latent=2, generator=GENERATOR(), **FEW), called),
    "kde": Fitted(lambda: fit_kde(IMAGES.flatten(1)[:, :3]), density),
    "adaptive kde": Fitted(
        lambda: fit_kde(IMAGES.flatten(1)[:, :3], bandwidth="adaptive", generator=GENERATOR()), density
    ),
    "mixture": Fitted(lambda: fit_mixture(IMAGES.flatten(1)[:, :3], components=2, generator=GENERATOR()), density),
    "flow": Fitted(lambda: fit_flow(IMAGES.flatten(1)[:, :3], width=8, generator=GENERATOR(), **FEW), density),
    "flat": Fitted(lambda: fit_flat(FIELD, generator=GENERATOR()), called),
    "pca": Fitted(lambda: fit_pca(FIELD, dimensions=5, generator=GENERATOR()), called),
    "vae": Fitted(lambda: fit_vae(FIELD, latent=4, generator=GENERATOR(), **FEW), called),
    "cvae": Fitted(lambda: fit_cvae(TRAIN, latent=4, width=4, generator=GENERATOR(), **FEW), lambda m: m.evidence(X)),
    "gan": Fitted(
        lambda: fit_gan(TRAIN, latent=4, width=4, generator=GENERATOR(), **FEW),
        lambda m: m.module(torch.ones(4, 4), torch.arange(4)),
    ),
    "source": Fitted(source, lambda m: m.seeds(8, model=None, generator=GENERATOR()).x),
    "conformal": Fitted(lambda: fit_conformal(torch.rand(50)), lambda m: m.p_values(X[:, 0, 0, 0])),
    "lsa": Fitted(lambda: fit_lsa(MODEL, TRAIN, layers=["6"], max_features=2), with_model),
    "dsa": Fitted(lambda: fit_dsa(MODEL, TRAIN, layers=["6"]), with_model),
    "mdsa": Fitted(lambda: fit_mdsa(MODEL, TRAIN, layers=["6"]), with_model),
    "neurons": Fitted(lambda: find_neurons(MODEL, X, layers=["0", "2"]), with_model),
    "ranges": Fitted(lambda: fit_ranges(MODEL, TRAIN), lambda m: (m.low, m.high)),
    **{
        kind.__name__: Fitted(lambda kind=kind: Coverage.of(kind(ranges=fit_ranges(MODEL, TRAIN))), covered)
        for kind in (KMNC, NBC, SNAC)
    },
    "NC": Fitted(lambda: Coverage.of(NC(neurons=neurons(scaled=True), threshold=0.5)), covered),
    "TKNC": Fitted(lambda: Coverage.of(TKNC(neurons=neurons(scaled=False), k=2)), covered),
    "neighbour coverage": Fitted(
        lambda: NeighbourCoverage(threshold=0.5).update(X.flatten(1))[1], lambda m: m.gain(IMAGES[20:40].flatten(1))
    ),
    "squeezing": Fitted(
        lambda: fit_feature_squeezing(MODEL, TRAIN, squeezers=[BitDepth(bits=2), Median(size=2)]), judged
    ),
    "mutation detector": Fitted(
        lambda: fit_mutation_detector(MODEL, TRAIN, mutants=5, min_accuracy=0.1, generator=GENERATOR()), judged
    ),
    "logit detector": Fitted(
        lambda: fit_logit_detector(MODEL, TRAIN[:100], WRONG, epochs=1, generator=GENERATOR()), judged
    ),
    **{
        type(t).__name__: Fitted(lambda t=t: t, called)
        for t in (
            JPEG(),
            BitDepth(bits=3),
            Median(size=2),
            NonLocalMeans(),
            TotalVariation(),
            CropRescale(),
            PixelDeflection(),
        )
    },
    "transformed inputs": Fitted(
        lambda: TransformedInputs(model=MODEL, transforms=(JPEG(), Median(size=2))), lambda m: m.predict(X)
    ),
    "pgd": Fitted(lambda: PGD(radius=0.3), fuzzed),
    "fol-fuzz": Fitted(lambda: FOLFuzz(radius=0.3, rows_per_seed=6), fuzzed),
    "adapt": Fitted(lambda: ADAPTED, fuzzed),
    "dlfuzz": Fitted(lambda: DLFuzz(radius=0.3, rows_per_seed=8, neurons=3), fuzzed),
    "deephunter": Fitted(lambda: DeepHunter(rows_per_seed=8), fuzzed),
    "tensorfuzz": Fitted(lambda: TensorFuzz(radius=0.3, threshold=0.1, rows_per_seed=8), fuzzed),
    "random mutation": Fitted(lambda: RandomMutation(search=ADAPTED), fuzzed),
    "uncertainty": Fitted(
        lambda: UncertaintyFuzz(pattern="HL", population=4, generations=2, tournament=2, passes=4), fuzzed
    ),
    "gradient move": Fitted(lambda: GradientMove(naturalness=naturalness(), radius=0.5), fuzzed),
    "genetic move": Fitted(
        lambda: GeneticMove(naturalness=naturalness(), radius=0.3, population=6, elites=2, generations=2), fuzzed
    ),
    "condition move": Fitted(lambda: ConditionMove(naturalness=naturalness(), recipe=RECIPE), fuzzed),
    "operational fuzz": Fitted(operational, fuzzed),
    "feature fuzz": Fitted(
        lambda: FeatureFuzz(source=source(), budget=2.0, steps=3, trust=True),
        lambda m: m(MODEL, m.source.seeds(4, model=None, generator=GENERATOR()), generator=GENERATOR()).x,
    ),
    "deepxplore": Fitted(lambda: DeepXplore(others=(other_model(),), rows_per_seed=8), fuzzed),
    "foolbox": Fitted(lambda: from_foolbox(foolbox.attacks.LinfPGD(steps=2), radius=0.3), fuzzed),
    "manifold mixup": Fitted(lambda: Finetune(epochs=1, loss=ManifoldMixup()), retrained),
    "finetune": Fitted(lambda: Finetune(epochs=1), retrained),
    "operational finetune": Fitted(lambda: OperationalFinetune(epochs=1, inner="rs-fgsm", radius=0.1), retrained),
    "pmi monitor": Fitted(lambda: pmi_monitor(TRAIN), lambda m: m(MODEL)),
    "brier monitor": Fitted(lambda: brier_monitor(TRAIN), lambda m: m(MODEL)),
    "vro risk": Fitted(lambda: vro_risk(passes=4, generator=GENERATOR()), lambda m: m(MODEL, X, LABELLED.labels[:20])),
    "surprise risk": Fitted(
        lambda: surprise_risk(fit_mdsa(MODEL, TRAIN, layers=["6"])), lambda m: m(MODEL, X, LABELLED.labels[:20])
    ),
}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b) or bool((a == b).logical_or(a.isnan() & b.isnan()).all())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "__dataclass_fields__"):
        return all(same(getattr(a, name), getattr(b, name)) for name in a.__dataclass_fields__)
    return bool(a == b)


def through_a_pipe(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("name", FITTED)
def test_fitted_objects_travel_before_and_after_they_are_used(name):
    made = FITTED[name].make()
    sent = through_a_pipe(made)
    expected = FITTED[name].use(made)
    sent_after = through_a_pipe(made)
    assert same(FITTED[name].use(sent), expected)
    assert same(FITTED[name].use(sent_after), expected)
    assert same(FITTED[name].use(made), expected)
