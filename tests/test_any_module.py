"""Searches and measures on modules of all kinds: without gradients, saturated, in half precision, scripted, failing."""

import pickle
import warnings
from functools import partial

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
    GeneticMove,
    GradientMove,
    UncertaintyFuzz,
    from_art,
    from_autoattack,
    from_foolbox,
)
from operant.generate.baselines import ADAPT, DeepHunter, DeepXplore, DLFuzz, RandomMutation, TensorFuzz
from operant.measure import Naturalness, find_neurons, first_order_loss, fit_naturalness, with_dropout
from operant.model import ModuleFails, NoGradients, NotLogits
from operant.retrain import Finetune, OperationalFinetune
from operant.seeds import gradient_risk
from operant.testing import toy_classifier
from operant.types import Fuzzer


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


def through_numpy(x: Tensor) -> Tensor:
    """Numpy refuses tensors that require gradients, so the forward pass itself fails where gradients are wanted."""
    return torch.from_numpy(x.numpy().copy())


def dimmed(x: Tensor) -> Tensor:
    return 0.9 * x


BLIND = {"detached": detached, "rounded": rounded, "NaN": rooted, "numpy": through_numpy}


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
        work = ChunkedFuzzing(fuzz=fuzz, model=model, seeds=seeds, size=2, path=(0,))
        assert InMemory(serial)(work).attempted == 4


@pytest.mark.parametrize("n", [4, 20])
def test_noise_that_a_module_refuses_does_not_stop_searches_without_gradients(n):
    """Few rows without gradients are examined with noise too, which need not be an input that the module takes."""

    class Particular(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if bool((x > 0.5).any()):
                raise KeyError("too bright")
            return rounded(x).flatten(1)[:, :3]

    model, x = Classifier(Particular()), seeds_of(toy_classifier(), n).x / 2
    assert not model.has_gradients(x)
    with pytest.raises(NoGradients if n == 20 else ModuleFails):
        model.check_gradients(x)


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


# Half precision, scripted and traced modules


def network() -> nn.Module:
    """A network with batch norm and dropout that predicts all of its four classes."""
    layers = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(36, 4),
    ).eval()
    for parameter in layers.parameters():
        nn.init.normal_(parameter, std=0.3, generator=spawn(0, parameter.numel()))
    with torch.no_grad():
        layers[-1].bias -= layers(torch.rand(300, 1, 8, 8, generator=spawn(1))).median(0).values
    return layers


@pytest.fixture(scope="module", params=["scripted", "traced", "scripted inside"])
def scripted(request) -> Classifier:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch would rather have modules exported
        if request.param == "traced":
            return Classifier(torch.jit.trace(network(), torch.rand(16, 1, 8, 8)))
        whole = torch.jit.script(network())
    return Classifier(nn.Sequential(whole) if request.param == "scripted inside" else whole)


def others(natural: Naturalness) -> dict[str, Fuzzer]:
    small = {"population": 6, "elites": 2, "generations": 2}
    return SEARCHES | {
        "gradient move": gradient_move(natural),
        "genetic move": GeneticMove(naturalness=natural, radius=0.3, **small),
        "condition move": ConditionMove(naturalness=natural, recipe=Recipe(severities={"rotation": normal(30)})),
        "deephunter": DeepHunter(rows_per_seed=8),
        "tensorfuzz": TensorFuzz(radius=0.3, threshold=0.1, rows_per_seed=8),
        "random": RandomMutation(search=SEARCHES["adapt"]),
        "uncertainty": UncertaintyFuzz(pattern="HL", population=4, generations=2, tournament=2, passes=4),
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_searches_take_modules_of_half_precision(dtype, natural):
    model, plain = Classifier(network().to(dtype)), Classifier(network())
    seeds, found = seeds_of(model, 20, dtype), {}
    for name, fuzz in others(natural).items():
        if name == "carlini-wagner":
            with pytest.raises(ValueError, match="inputs must be float32 or float64 here, got torch"):
                fuzz(model, seeds, generator=spawn(0))
            continue
        suite = fuzz(model, seeds, generator=spawn(0))
        assert suite.x.dtype == dtype
        found[name] = len(suite.failures())
    seeds = seeds_of(plain, 20, torch.float32)
    for name in ("pgd", "bim", "fgsm minimal", "fol-fuzz", "dlfuzz", "foolbox", "art", "tensorfuzz"):
        assert found[name] >= 0.8 * len(others(natural)[name](plain, seeds, generator=spawn(0)).failures()), name
    assert first_order_loss(model, seeds.x.to(dtype), seeds.labels, x0=seeds.x.to(dtype), radius=0.1).isfinite().all()


READ_LAYERS = ("adapt", "dlfuzz", "deephunter", "random")


def test_searches_take_scripted_modules_or_say_why_not(scripted, natural):
    plain = Classifier(network(), strict=True)
    seeds = seeds_of(plain, 20, torch.float32)
    for name, fuzz in others(natural).items():
        if name in READ_LAYERS:
            with pytest.raises(ValueError, match="scripted or traced module, whose layers cannot be read"):
                fuzz(scripted, seeds, generator=spawn(0))
        elif name == "uncertainty":
            with pytest.raises(ValueError, match="dropout inside a scripted or traced module cannot be seen"):
                fuzz(scripted, seeds, generator=spawn(0))
        else:
            expected = fuzz(plain, seeds, generator=spawn(0))
            found = fuzz(scripted, seeds, generator=spawn(0))
            assert abs(len(found.failures()) - len(expected.failures())) <= 2, name


def test_scripted_modules_travel_are_retrained_and_have_no_layers_to_read(scripted):
    x = torch.rand(20, 1, 8, 8, generator=spawn(0))
    assert torch.equal(pickle.loads(pickle.dumps(scripted)).batched_logits(x), scripted.batched_logits(x))
    assert torch.equal(scripted.rewrap(scripted.unwrap()).batched_logits(x), scripted.batched_logits(x))
    data = seeds_of(scripted, 60, torch.float32)
    tuned = Finetune(epochs=1)(scripted, data[:40], data[40:45], validation=data[45:], max_drop=1.0, generator=spawn(0))
    assert not torch.equal(tuned.model.batched_logits(x), scripted.batched_logits(x))
    assert scripted.doctor(data) == Classifier(network()).doctor(data)
    for reads_layers in (
        lambda: scripted.features(x, layers=[scripted.layers[0]]),
        lambda: find_neurons(scripted, x),
        lambda: with_dropout(scripted, before=[scripted.layers[0]], rate=0.1),
        lambda: fit_naturalness(
            Samples(torch.rand(400, 1, 8, 8)), model=scripted, layer=scripted.layers[-1], generator=spawn(0)
        ),
    ):
        with pytest.raises(ValueError, match="scripted or traced module"):
            reads_layers()


def test_modules_without_values_are_refused():
    with pytest.raises(ValueError, match="on the meta device and have no values; load them first"):
        Classifier(network().to("meta")).predict(torch.rand(4, 1, 8, 8))


# Modules that fail


class Picky(nn.Module):
    """Raises for bright images, as a user's code may."""

    def forward(self, x: Tensor) -> Tensor:
        if bool((x > 0.9).any()):
            raise KeyError("too bright")
        return x.flatten(1)[:, :3]


@pytest.mark.parametrize("method", ["predict", "probs", "batched_logits", "features", "classes", "check", "accuracy"])
def test_the_error_of_a_module_becomes_a_sentence(method):
    model, x = Classifier(Picky()), torch.full((4, 1, 2, 2), 0.95)
    use = getattr(model, method)
    if method == "features":
        use = partial(use, layers=[""])
    given = Samples(x, torch.zeros(4, dtype=torch.int64)) if method in ("check", "accuracy") else x
    with pytest.raises(ModuleFails, match=r"inputs of shape \(1, 2, 2\) and type torch.float32 \(KeyError: ") as info:
        use(given)
    assert isinstance(info.value.__cause__, KeyError)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: not enough memory: you tried")])
def test_running_out_of_memory_stays_what_it_is(error):
    class Large(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise error

    with pytest.raises(type(error)):
        Classifier(Large()).predict(torch.rand(4, 3))


@pytest.mark.parametrize("error", [NotLogits("it is a list"), NoGradients("none"), ModuleFails("it fails")])
def test_errors_travel_unchanged(error):
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
