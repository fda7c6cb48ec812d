"""Searches and measures on modules of all kinds: without gradients, saturated, in half precision, scripted, failing."""

import foolbox
import pytest
import torch
from art.attacks.evasion import HopSkipJump, ProjectedGradientDescent
from torch import Tensor, nn

from operant import Classifier, Samples, spawn
from operant.conditions import Recipe, normal
from operant.execution.chunked_fuzzing import ChunkedFuzzing, InMemory
from operant.execution.engines import serial
from operant.generate import (
    BIM,
    FGSM,
    PGD,
    CarliniWagner,
    ConditionMove,
    DeepFool,
    FOLFuzz,
    GradientMove,
    from_art,
    from_autoattack,
    from_foolbox,
)
from operant.generate.baselines import ADAPT, DeepXplore, DLFuzz, RandomMutation
from operant.measure import Naturalness, first_order_loss, fit_naturalness
from operant.model import NoGradients
from operant.retrain import OperationalFinetune
from operant.seeds import gradient_risk
from operant.testing import toy_classifier


class After(nn.Module):
    """The toy network after some function of its input."""

    def __init__(self, function, network: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.network = function, toy_classifier().unwrap() if network is None else network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(self.function(x))


def detached(x: Tensor) -> Tensor:
    return x.detach()


def rounded(x: Tensor) -> Tensor:
    return (8 * x).round() / 8


def rooted(x: Tensor) -> Tensor:
    """The identity, with gradients of 0 / 0."""
    return x + (x - x).square().sqrt()


def dimmed(x: Tensor) -> Tensor:
    return 0.9 * x


BLIND = {"detached": detached, "rounded": rounded, "NaN": rooted}


def seeds_of(model: Classifier, n: int = 20, dtype: torch.dtype = torch.float64) -> Samples:
    x = torch.rand(n, 1, 8, 8, dtype=torch.float64, generator=spawn(0, "seeds")).to(dtype)
    return Samples(x, model.predict(x))


@pytest.fixture(scope="module")
def natural() -> Naturalness:
    field = Samples(torch.rand(400, 1, 8, 8, generator=spawn(0, "field")))
    return fit_naturalness(field, latent=4, epochs=1, generator=spawn(0), progress=False)


SEARCHES = {
    "fgsm": FGSM(radius=0.3),
    "fgsm minimal": FGSM(radius=0.3, minimal=True),
    "bim": BIM(radius=0.3, steps=3),
    "bim minimal": BIM(radius=0.3, steps=3, minimal=True, norm="l2"),
    "pgd": PGD(radius=0.3, steps=3),
    "pgd l2": PGD(radius=0.5, norm="l2", steps=3, stop_early=True),
    "pgd targeted": PGD(radius=0.3, steps=3, target=1),
    "deepfool": DeepFool(steps=5),
    "carlini-wagner": CarliniWagner(steps=5, binary_search_steps=2),
    "fol-fuzz": FOLFuzz(radius=0.3, rows_per_seed=6),
    "fol-fuzz released": FOLFuzz(radius=0.5, norm="l2", step="gradient", iters=2, variant="released", rows_per_seed=6),
    "adapt": ADAPT(radius=0.3, rows_per_seed=8, k=3, population=4, history=8),
    "dlfuzz": DLFuzz(radius=0.3, rows_per_seed=8, neurons=3),
    "foolbox": from_foolbox(foolbox.attacks.LinfPGD(steps=3), radius=0.3),
    "art": from_art(ProjectedGradientDescent, eps=0.3, max_iter=3, verbose=False),
    "autoattack": from_autoattack(radius=0.3, version="rand"),
}


def gradient_move(natural: Naturalness) -> GradientMove:
    return GradientMove(naturalness=natural, radius=0.5, steps=3)


# Gradients


@pytest.mark.parametrize("kind", BLIND)
@pytest.mark.parametrize("name", SEARCHES)
def test_searches_refuse_models_without_gradients(name, kind):
    """They would stay where they are, and the model would look robust."""
    model = Classifier(After(BLIND[kind]))
    with pytest.raises(NoGradients, match=r"gradients are needed here.*the module has none.*search without gradients"):
        SEARCHES[name](model, seeds_of(model), generator=spawn(0))


@pytest.mark.parametrize("kind", BLIND)
def test_moves_measures_and_retraining_refuse_them_too(kind, natural):
    model = Classifier(After(BLIND[kind]))
    seeds, other = seeds_of(model), Classifier(After(dimmed))
    for needs_gradients in (
        lambda: gradient_move(natural)(model, seeds, generator=spawn(0)),
        lambda: DeepXplore(others=(other,), rows_per_seed=8)(model, seeds_of(other), generator=spawn(0)),
        lambda: DeepXplore(others=(model,), rows_per_seed=8)(other, seeds_of(other), generator=spawn(0)),
        lambda: first_order_loss(model, seeds.x, seeds.labels, x0=seeds.x, radius=0.1),
        lambda: gradient_risk(model, seeds.x, seeds.labels),
        lambda: OperationalFinetune(epochs=1, inner="rs-fgsm", radius=0.1)(
            model, seeds, seeds, validation=seeds_of(model, 30)[20:], generator=spawn(0)
        ),
    ):
        with pytest.raises(NoGradients, match="the module has none"):
            needs_gradients()


@pytest.mark.parametrize("kind", BLIND)
def test_searches_without_gradients_take_them(kind, natural):
    model = Classifier(After(BLIND[kind]))
    seeds = seeds_of(model, 4)
    recipe = Recipe(severities={"rotation": normal(30)})
    for fuzz in (
        RandomMutation(search=SEARCHES["adapt"]),
        ConditionMove(naturalness=natural, recipe=recipe, population=5, steps=3, level=0.01),
        from_art(HopSkipJump, max_iter=1, max_eval=20, init_eval=5, verbose=False),
        DeepXplore(others=(Classifier(After(dimmed)),), direction="random", rows_per_seed=8),
    ):
        assert fuzz(model, seeds, generator=spawn(0)).attempted == 4


class Saturated(nn.Module):
    """Logits so far apart that no cross-entropy has a gradient in float32, though every logit has one."""

    def __init__(self) -> None:
        super().__init__()
        self.network = toy_classifier().unwrap().float()

    def forward(self, x: Tensor) -> Tensor:
        return 1e5 * self.network(x)


@pytest.mark.parametrize("n", [1, 20])
def test_saturated_models_are_not_refused(n):
    model = Classifier(Saturated())
    seeds = seeds_of(model, n, torch.float32)
    assert first_order_loss(model, seeds.x, seeds.labels, x0=seeds.x, radius=0.1).eq(0).any()
    for name in ("fgsm", "pgd", "fol-fuzz", "deepfool", "dlfuzz", "adapt"):
        assert SEARCHES[name](model, seeds, generator=spawn(0)).attempted == n


class Gate(nn.Module):
    """A network that ignores inputs whose first value is below one half."""

    def __init__(self) -> None:
        super().__init__()
        self.network = toy_classifier().unwrap()

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x * (x[:, :, :1, :1] > 0.5))


def test_single_rows_of_zero_gradient_are_normal():
    """The decision is made over all seeds, and over noise where they are few: a chunk may be a single dead row."""
    seeds = seeds_of(Classifier(Gate()), 40)
    dead = seeds[seeds.x[:, 0, 0, 0] < 0.5]
    assert 16 <= len(dead) < 40
    assert PGD(radius=0.01)(Classifier(Gate()), seeds, generator=spawn(0)).attempted == 40
    assert PGD(radius=0.01)(Classifier(Gate()), dead[:1], generator=spawn(0)).attempted == 1
    mixed = Samples(torch.cat([dead.x, seeds.x]), torch.cat([dead.labels, seeds.labels]), torch.arange(len(dead) + 40))
    work = ChunkedFuzzing(fuzz=PGD(radius=0.01), model=Classifier(Gate()), seeds=mixed, size=len(dead), path=(0,))
    assert InMemory(serial)(work).attempted == len(mixed)
    with pytest.raises(NoGradients, match=f"zero or NaN at all {len(dead)} of them"):
        PGD(radius=0.01)(Classifier(Gate()), dead, generator=spawn(0))


class Noisy(nn.Module):
    """Draws from torch's global stream in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.network = toy_classifier().unwrap()

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x + 0.01 * torch.randn_like(x))


def test_the_check_draws_no_random_numbers_and_runs_once_per_model():
    model = Classifier(Noisy())
    seeds, passed = seeds_of(model), []
    before = torch.random.get_rng_state()
    model.check_gradients(seeds.x)
    assert torch.equal(torch.random.get_rng_state(), before)
    model._plain.register_forward_hook(lambda _m, x, _y: passed.append(len(x[0])))
    model.check_gradients(seeds.x)
    assert passed == []
