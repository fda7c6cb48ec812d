"""Classifier: the user's module is never touched, and every rearrangement computes the same function."""

import warnings
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from operant.data import Samples
from operant.model import Classifier, copy_module, value_and_gradient
from operant.model.fast import fold_batch_norm
from operant.rng import spawn


def draw(module: nn.Module, seed: int = 0) -> nn.Module:
    """Random weights and random running statistics: fresh ones would let wrong folding pass."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in (*module.named_parameters(), *module.named_buffers()):
            if name.endswith("running_var"):
                value.copy_(torch.rand(value.shape, generator=generator) + 0.2)
            elif value.is_floating_point():
                value.copy_(torch.randn(value.shape, generator=generator) / max(1, value[0].numel()) ** 0.5)
    return module


def inputs(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def convnet() -> nn.Module:
    return draw(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, stride=2),
            nn.BatchNorm2d(8),
            nn.Dropout(0.5),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 5),
        )
    )


def mlp() -> nn.Module:
    return draw(nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)))


# The user's module


def photograph(module: nn.Module) -> dict[str, object]:
    """Everything about a module that a guest could disturb."""
    tensors = {name: v.clone() for name, v in module.state_dict().items()}
    grads = {name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}
    return {
        "tensors": {name: v.tolist() for name, v in tensors.items()},
        "grads": {name: None if g is None else g.tolist() for name, g in grads.items()},
        "requires_grad": {name: p.requires_grad for name, p in module.named_parameters()},
        "training": {name: m.training for name, m in module.named_modules()},
        "hooks": {name: (len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in module.named_modules()},
        "objects": [id(m) for m in module.modules()] + [id(p) for p in module.parameters()],
        "attributes": {name: sorted(vars(m)) for name, m in module.named_modules()},
        "formats": [v.stride() for v in module.state_dict().values()],
    }


@pytest.mark.parametrize("strict", [False, True])
def test_the_users_module_is_never_touched(strict: bool) -> None:
    module = convnet().train()
    module[3].weight.requires_grad_(False)
    module[8].register_forward_hook(lambda _m, _i, output: output * 2)
    module(inputs(4, 3, 9, 9)).sum().backward()
    before = photograph(module)
    x = inputs(20, 3, 9, 9)

    model = Classifier(module, mean=0.4, std=0.3, strict=strict)
    model.predict(x)
    model.probs(x)
    value_and_gradient(lambda z: model.logits(z)[:, 0], x)
    model.features(x, layers=["0", "7"])
    for parameter in model.unwrap().parameters():
        parameter.data.zero_()
    model.rewrap(model.unwrap()).predict(x)
    model.doctor(Samples(x, torch.arange(20) % 5))

    assert photograph(module) == before


def test_a_trained_module_does_not_change_the_classifier() -> None:
    module, x = convnet(), inputs(20, 3, 9, 9)
    model = Classifier(module)
    before = model.batched_logits(x)
    module.train()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    assert torch.equal(model.batched_logits(x), before)


@pytest.mark.parametrize("strict", [False, True])
def test_a_module_that_works_on_its_input_in_place_leaves_the_inputs_alone(strict: bool) -> None:
    class InPlace(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sub_(0.5).mul_(2.0).flatten(1)[:, :3]

    x = inputs(20, 1, 4, 4)
    before = x.clone()
    model = Classifier(InPlace(), strict=strict)
    assert torch.allclose(model.batched_logits(x), (2 * x - 1).flatten(1)[:, :3])
    _, gradient = value_and_gradient(lambda z: model.logits(z).sum(1), x)
    assert gradient.flatten(1)[:, :3].unique().tolist() == [2.0]
    assert torch.equal(x, before)


# What it computes


def test_logits_are_the_modules_own_with_normalisation_by_hand() -> None:
    module, x = convnet(), inputs(40, 3, 9, 9)
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]
    model = Classifier(module, mean=mean, std=std)
    by_hand = (x - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    expected = module.eval()(by_hand)
    assert torch.allclose(model.batched_logits(x), expected, atol=1e-5)
    assert torch.allclose(model.probs(x), expected.softmax(1), atol=1e-6)
    assert torch.equal(model.predict(x), expected.argmax(1))
    assert torch.allclose(model.normalise(x), by_hand)


def test_one_number_normalises_every_channel() -> None:
    x = inputs(20, 3, 9, 9)
    one = Classifier(convnet(), mean=0.4, std=0.2).batched_logits(x)
    assert torch.allclose(one, Classifier(convnet(), mean=[0.4] * 3, std=[0.2] * 3).batched_logits(x))


def test_a_tables_columns_are_its_channels() -> None:
    module, x = mlp().eval(), inputs(40, 6)
    mean, std = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    model = Classifier(module, mean=mean, std=std)
    expected = module((x - torch.tensor(mean)) / torch.tensor(std))
    assert torch.allclose(model.batched_logits(x), expected, atol=1e-5)


@pytest.mark.parametrize(("module", "shape"), [(convnet(), (3, 9, 9)), (mlp(), (6,))])
def test_gradients_are_torchs_own(module: nn.Module, shape: tuple[int, ...]) -> None:
    module, x = module.double().eval(), inputs(20, *shape, dtype=torch.float64)
    model = Classifier(module, mean=0.5, std=0.5)
    labels = torch.arange(20) % 4
    values, gradient = value_and_gradient(lambda z: F.cross_entropy(model.logits(z), labels, reduction="none"), x)
    z = x.clone().requires_grad_()
    loss = F.cross_entropy(module((z - 0.5) / 0.5), labels, reduction="none")
    loss.sum().backward()
    assert torch.allclose(values, loss.detach(), atol=1e-10)
    assert torch.allclose(gradient, z.grad, atol=1e-10)


@pytest.mark.parametrize(("module", "shape"), [(convnet(), (3, 9, 9)), (mlp(), (6,))])
@pytest.mark.parametrize("strict", [False, True])
def test_padding_small_batches_changes_nothing(module: nn.Module, shape: tuple[int, ...], strict: bool) -> None:
    x = inputs(16, *shape, dtype=torch.float64)
    model = Classifier(module.double(), strict=strict)
    whole = model.batched_logits(x)
    for n in (1, 2, 15):
        assert torch.equal(model.batched_logits(x[:n]), whole[:n])
        gradients = [value_and_gradient(lambda z: model.logits(z)[:, 1], part)[1][:n] for part in (x[:n], x)]
        assert torch.equal(*gradients)


@pytest.mark.parametrize(("module", "shape"), [(convnet(), (3, 9, 9)), (mlp(), (6,))])
def test_the_batch_size_changes_nothing(module: nn.Module, shape: tuple[int, ...]) -> None:
    x = inputs(50, *shape, dtype=torch.float64)
    answers = [Classifier(module.double(), batch_size=size).batched_logits(x) for size in (1, 7, 16, 256)]
    for other in answers[1:]:
        assert torch.allclose(other, answers[0], rtol=0, atol=1e-12)


def test_one_row_padded_with_detached_copies_gets_only_its_own_gradient() -> None:
    model = Classifier(nn.Linear(3, 2))
    _, gradient = value_and_gradient(lambda z: model.logits(z)[:, 0], inputs(1, 3))
    assert torch.allclose(gradient[0], dict(model.unwrap().named_parameters())["weight"][0])


# Folding


@st.composite
def stacks(draw_from: st.DrawFn) -> tuple[nn.Module, Tensor, int]:
    """A stack of convolutions and batch norms, inputs for it, and how many of its batch norms can be folded."""
    dimensions = draw_from(st.integers(1, 3))
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dimensions - 1]
    channels, layers, foldable = 2, list[nn.Module](), 0
    for _ in range(draw_from(st.integers(1, 4))):
        after_convolution = draw_from(st.booleans())
        if after_convolution:
            out = draw_from(st.sampled_from([2, 4, 6]))
            groups = draw_from(st.sampled_from([1, 2]))
            padding = draw_from(st.integers(0, 1))
            layers.append(conv(channels, out, 3, padding=padding + 1, groups=groups, bias=draw_from(st.booleans())))
            channels = out
        if in_between := draw_from(st.booleans()):
            layers.append(nn.ReLU())
        tracked = draw_from(st.booleans())
        layers.append(norm(channels, affine=draw_from(st.booleans()), track_running_stats=tracked))
        foldable += after_convolution and not in_between and tracked
    module = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3)).double()
    x = inputs(17, 2, *[5] * dimensions, seed=draw_from(st.integers(0, 1000)), dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that lazy modules are young
        module(x)
    return draw(module, seed=draw_from(st.integers(0, 1000))).eval(), x, foldable


@given(stacks())
@settings(max_examples=40)
def test_folding_keeps_the_function_and_folds_every_pair(stack: tuple[nn.Module, Tensor, int]) -> None:
    module, x, foldable = stack
    folded, note = fold_batch_norm(module)
    total = sum("BatchNorm" in type(m).__name__ for m in module)
    assert note == f"{foldable} of {total} batch norms folded"
    assert (folded is None) == (foldable == 0)
    model = Classifier(module)
    assert torch.allclose(model.logits(x), module(x), rtol=1e-9, atol=1e-9)
    if folded is not None:
        assert [name for name, _ in folded.named_modules()] == [name for name, _ in module.named_modules()]
        assert model.notes[0].startswith("batch norm folded")
        assert model.notes[0].endswith("in use")
        mine, theirs = (value_and_gradient(lambda z, m=m: m(z)[:, 0], x)[1] for m in (model.logits, module))
        assert torch.allclose(mine, theirs, rtol=1e-8, atol=1e-9)


class Pair(nn.Module):
    """Convolution and batch norm, to be used by each trap in its own way."""

    def __init__(self, conv: nn.Module | None = None, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.conv = conv or nn.Conv2d(3, 3, 3, padding=1)
        self.norm = norm or nn.BatchNorm2d(3)
        self.fc = nn.Linear(3, 4)

    def body(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x).relu().mean((2, 3)))


class ConvTwice(Pair):
    def body(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(self.conv(x)))


class SharedNorm(Pair):
    def body(self, x: Tensor) -> Tensor:
        return self.norm(self.norm(self.conv(x)))


class OutputUsedTwice(Pair):
    def body(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y) + y


class WeightRead(Pair):
    def body(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) + F.conv2d(x, self.conv.weight, padding=1)


class WeightMeasured(Pair):
    """Reads the weight outside the traced graph: only the logits show it."""

    def body(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) * dict(self.conv.named_parameters())["weight"].norm()


class Alias(Pair):
    def __init__(self) -> None:
        super().__init__()
        self.other_name = self.conv

    def body(self, x: Tensor) -> Tensor:
        return self.norm(self.other_name(x))


class ControlFlow(Pair):
    def body(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) if x.mean() > 0 else self.conv(x)


class ReplacedOutput(Pair):
    """A hook around the convolution changes what batch norm gets to see."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1))
        self.conv.register_forward_hook(lambda _m, _i, output: output * 2 + 1)


class StandardisedConv(nn.Conv2d):
    """Does not depend on the scale of its weight, so folding a scale into it goes wrong."""

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / w.std((1, 2, 3), keepdim=True)
        return F.conv2d(x, w, self.bias, padding=self.padding)


class NormWithActivation(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh()


def hooked() -> Pair:
    module = Pair()
    module.conv.register_forward_hook(lambda _m, _i, output: output * 2)
    return module


def pre_hooked_norm() -> Pair:
    module = Pair()
    module.norm.register_forward_pre_hook(lambda _m, args: (args[0] + 1,))
    return module


def tied() -> Pair:
    module = Pair()
    parametrize.register_parametrization(module.conv, "weight", nn.Tanh())
    return module


def old_style(norm: str) -> Pair:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Pair(getattr(nn.utils, norm)(nn.Conv2d(3, 3, 3, padding=1)))


SEEN_IN_THE_GRAPH = {
    "conv called twice": ConvTwice,
    "shared batch norm": SharedNorm,
    "conv output used twice": OutputUsedTwice,
    "weight read functionally": WeightRead,
    "conv under two names": Alias,
    "control flow": ControlFlow,
    "hook between conv and norm": ReplacedOutput,
    "hook on conv": hooked,
    "hook on norm": pre_hooked_norm,
    "parametrised": tied,
    "weight norm": lambda: Pair(parametrizations.weight_norm(nn.Conv2d(3, 3, 3, padding=1))),
    "spectral norm": lambda: Pair(parametrizations.spectral_norm(nn.Conv2d(3, 3, 3, padding=1))),
    "old weight norm": lambda: old_style("weight_norm"),
    "old spectral norm": lambda: old_style("spectral_norm"),
    "batch norm with activation": lambda: Pair(norm=NormWithActivation(3)),
    "no running statistics": lambda: Pair(norm=nn.BatchNorm2d(3, track_running_stats=False)),
}


SEEN_IN_THE_LOGITS = {
    "weight read outside the graph": WeightMeasured,
    "weight standardisation": lambda: Pair(StandardisedConv(3, 3, 3, padding=1)),
}


@pytest.mark.parametrize("trap", SEEN_IN_THE_GRAPH | SEEN_IN_THE_LOGITS)
def test_where_folding_is_unsafe_the_module_runs_unfolded_and_the_notes_say_so(trap: str) -> None:
    module, x = draw((SEEN_IN_THE_GRAPH | SEEN_IN_THE_LOGITS)[trap]()).eval(), inputs(24, 3, 6, 6)
    assert (fold_batch_norm(module)[0] is None) == (trap in SEEN_IN_THE_GRAPH)
    model = Classifier(module)
    with torch.no_grad():
        assert torch.allclose(model.logits(x), module(x), atol=1e-4)
    in_use = [note for note in model.notes if note.endswith("in use")]
    assert in_use in (["parameters frozen, channels last: in use"], ["parameters frozen: in use"])
    assert "not folded" in model.notes[-1] or model.notes[-1].startswith("0 of")


@pytest.mark.parametrize("x", [torch.zeros(1, 3, 6, 6), torch.zeros(20, 3, 6, 6)])
def test_an_empty_first_batch_does_not_let_a_wrong_fold_pass(x: Tensor) -> None:
    module = draw(Pair(StandardisedConv(3, 3, 3, padding=1))).eval()
    model = Classifier(module)
    model.predict(x)  # zeros look the same to any weight
    real = inputs(20, 3, 6, 6)
    assert torch.allclose(model.batched_logits(real), module(real).detach(), atol=1e-5)


def test_a_hardly_varying_answer_does_not_let_a_wrong_fold_pass() -> None:
    module = draw(Pair(StandardisedConv(3, 3, 3, padding=1))).eval()
    module.fc.weight.data.mul_(1e-5)
    model = Classifier(module)
    model.predict(inputs(20, 3, 6, 6))
    assert model.notes[-1].startswith("batch norm not folded")


def test_a_plain_pair_is_folded() -> None:
    model = Classifier(draw(Pair()))
    model.predict(inputs(20, 3, 6, 6))
    assert model.notes == ("batch norm folded, channels last: in use", "1 of 1 batch norms folded")


def test_a_view_that_channels_last_cannot_give_falls_back_to_the_plain_layout() -> None:
    class FieldState(Pair):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.body(x).view(x.size(0), 36, 3).mean(1))

    module, x = draw(FieldState()).eval(), inputs(20, 3, 6, 6)
    model = Classifier(module)
    assert torch.allclose(model.logits(x), module(x), atol=1e-5)
    assert model.notes[0].startswith("batch norm folded, channels last: not used, it fails (view size")
    assert model.notes[1:] == ("batch norm folded: in use", "1 of 1 batch norms folded")


def test_three_dimensional_convolutions_beside_flat_ones_are_no_obstacle() -> None:
    class Both(Pair):
        def __init__(self) -> None:
            super().__init__()
            self.deep = nn.Conv3d(1, 1, 3, padding=1)

        def body(self, x: Tensor) -> Tensor:
            return self.deep(super().body(x).unsqueeze(1)).squeeze(1)

    module, x = draw(Both()).eval(), inputs(20, 3, 6, 6)
    model = Classifier(module)
    assert torch.allclose(model.logits(x), module(x), atol=1e-5)
    assert model.notes[0] == "batch norm folded, channels last: in use"


def test_a_cache_filled_on_the_first_pass_survives_tracing() -> None:
    class Cached(Pair):
        cache: Tensor | None = None

        def body(self, x: Tensor) -> Tensor:
            if self.cache is None:
                self.cache = x.new_ones(3, 1, 1)
            return super().body(x) * self.cache

    module, x = draw(Cached()).eval(), inputs(20, 3, 6, 6)
    model = Classifier(module)
    assert torch.allclose(model.logits(x), module(x), atol=1e-5)


def test_strict_runs_the_module_unchanged() -> None:
    module, x = convnet().eval(), inputs(32, 3, 9, 9)
    model = Classifier(module, strict=True)
    assert torch.equal(model.logits(x), module(x))
    assert model.notes == ("strict: the module runs unchanged",)


# Copies


def weight_normed() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 4)))


class Caching(nn.Module):
    """Keeps activations, as an attribute and in nests of lists and dicts (one contains itself)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.fc(x)
        self.kept = {"by name": [self.last, (self.last.relu(),)]}
        self.kept["itself"] = self.kept
        return self.last


@pytest.mark.parametrize("build", [weight_normed, Caching])
def test_a_module_is_copied_after_a_forward_pass_left_tensors_in_it(build: type[nn.Module]) -> None:
    module, x = build(), inputs(20, 6)
    expected = module(x)
    with pytest.raises(RuntimeError, match="deepcopy"):
        deepcopy(module)
    copy = copy_module(module)
    assert torch.equal(copy(x), expected)
    assert not {id(p) for p in copy.parameters()} & {id(p) for p in module.parameters()}
    for strict in (False, True):
        model = Classifier(module, strict=strict)
        value_and_gradient(lambda z, model=model: model.logits(z)[:, 0], x)
        assert torch.allclose(model.unwrap()(x), expected)


def test_unwrap_and_rewrap_are_a_round_trip() -> None:
    x = inputs(30, 3, 9, 9)
    model = Classifier(convnet(), bounds=(-1, 2), mean=[0.4, 0.5, 0.6], std=0.5, batch_size=13, strict=True)
    again = model.rewrap(model.unwrap())
    assert (again.bounds, again.batch_size, again.strict) == (model.bounds, model.batch_size, model.strict)
    assert torch.equal(again.batched_logits(x), model.batched_logits(x))
    assert torch.equal(model.unwrap()(model.normalise(x)), model.logits(x))


def test_match_dtype_changes_only_the_type_of_the_inputs() -> None:
    samples = Samples(inputs(5, 6), torch.arange(5) % 4)
    double = Classifier(mlp().double()).match_dtype(samples)
    assert double.x.dtype == torch.float64
    assert torch.equal(double.x, samples.x.double())
    assert torch.equal(double.labels, samples.labels)
    assert torch.equal(double.ids, samples.ids)
    assert Classifier(mlp()).match_dtype(double).x.dtype == torch.float32
    assert Classifier(nn.Flatten()).match_dtype(double).x.dtype == torch.float64, "no parameters: type unchanged"


def test_unwrap_gives_back_the_trainable_parameters_unfolded() -> None:
    module = convnet()
    module[0].weight.requires_grad_(False)
    model = Classifier(module)
    model.predict(inputs(20, 3, 9, 9))
    copy = model.unwrap()
    assert {n for n, p in copy.named_parameters() if not p.requires_grad} == {"0.weight"}
    assert list(copy.state_dict()) == list(module.state_dict())
    frozen = Classifier(module.requires_grad_(False)).unwrap()
    assert all(p.requires_grad for p in frozen.parameters())


# Features


def test_features_are_what_the_users_code_computes() -> None:
    module, x = convnet().eval(), inputs(40, 3, 9, 9)
    model = Classifier(module, mean=0.5, std=0.5, batch_size=16)
    features = model.features(x, layers=["0", "1", "7"])
    z = 2 * x - 1
    assert torch.allclose(features["0"], module[0](z), atol=1e-5)
    assert torch.allclose(features["1"], module[:2](z), atol=1e-5), "the in-place ReLU behind it must not show"
    assert torch.allclose(features["7"], module[:8](z), atol=1e-5)
    assert all(len(values) == 40 and not values.requires_grad for values in features.values())


def test_unknown_layers_are_rejected_with_the_list_of_existing_ones() -> None:
    with pytest.raises(ValueError, match="no layer named conv9; this model has 0, 1, 2, 3"):
        Classifier(mlp()).features(inputs(4, 6), layers=["0", "conv9"])


def test_layers_that_cannot_be_tapped_are_rejected() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.idle = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.gru(x)[0][:, -1]

    model, x = Classifier(Recurrent()), inputs(20, 4, 2)
    assert model.predict(x).shape == (20,)
    with pytest.raises(ValueError, match="layer gru returns a tuple"):
        model.features(x, layers=["gru"])
    with pytest.raises(ValueError, match="layer idle was not run"):
        model.features(x, layers=["idle"])
    assert not any(m._forward_hooks for m in model._plain.modules())


# Invalid arguments


def test_bad_inputs_are_rejected() -> None:
    model, x = Classifier(mlp()), inputs(5, 6)
    with pytest.raises(ValueError, match="no inputs; give at least one row"):
        model.predict(x[:0])
    with pytest.raises(ValueError, match="no inputs; give at least one row"):
        model.logits(x[:0])
    with pytest.raises(ValueError, match="NaN in 2 of 5 rows"):
        model.predict(torch.where(torch.arange(5).view(5, 1) < 2, torch.nan, x))
    with pytest.raises(ValueError, match=r"within bounds \(0.0, 1.0\), got values from 0.5 to 1.5"):
        model.predict(torch.linspace(0.5, 1.5, 30).view(5, 6))
    with pytest.raises(ValueError, match="rescale them, or set the model's bounds to those of your data"):
        model.predict(x - 1)
    model.predict(x.clamp(max=1 - 1e-8) + 1e-8)


def test_bad_labels_are_rejected() -> None:
    model, x = Classifier(mlp()), inputs(5, 6)
    with pytest.raises(ValueError, match="below the model's 4 classes, got 4; check the label encoding"):
        model.check(Samples(x, torch.tensor([0, 1, 2, 3, 4])))
    with pytest.raises(ValueError, match=r"below the model's 4 classes, got 4 \(zebra\); check"):
        model.check(Samples(x, torch.tensor([0, 1, 2, 3, 4]), classes=("a", "b", "c", "d", "zebra")))
    with pytest.raises(ValueError, match="carry no labels; ask a labeller"):
        model.check(Samples(x))
    model.check(Samples(x, torch.tensor([0, 1, 2, 3, 3])))


class Returning(nn.Module):
    def __init__(self, make: object) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> object:
        return self.make(x)


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (lambda x: (x, x), "got a tuple"),
        (lambda x: {"logits": x}, "got a dict"),
        (lambda x: x[:, 0], r"shape \(16,\)"),
        (lambda x: x[:, :1], r"shape \(16, 1\)"),
        (lambda x: x[:3], r"shape \(3, 6\)"),
        (lambda x: x.unsqueeze(2), r"shape \(16, 6, 1\)"),
        (lambda x: x.argmax(1, keepdim=True).expand(-1, 3), "got torch.int64"),
    ],
)
def test_modules_that_do_not_return_logits_are_rejected(make: object, got: str) -> None:
    with pytest.raises(ValueError, match=f"must return .*logits \\(N, classes\\).*{got}.*; wrap it"):
        Classifier(Returning(make)).predict(inputs(5, 6))


def test_nan_logits_are_rejected() -> None:
    module = Returning(lambda x: torch.where(x[:, :1] > 0.5, torch.inf, x))
    x = inputs(50, 6)
    with pytest.raises(ValueError, match=rf"infinite logits for {int((x[:, 0] > 0.5).sum())} of 50 inputs"):
        Classifier(module).predict(x)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"bounds": (1, 0)}, "low < high, got (1, 0)"),
        ({"bounds": (0, 0)}, "low < high, got (0, 0)"),
        ({"std": 0.0}, "std must be positive and finite, got 0.0"),
        ({"std": [1.0, 0.0]}, "std must be positive"),
        ({"std": float("nan")}, "std must be positive and finite, got nan"),
        ({"std": float("inf")}, "std must be positive and finite, got inf"),
        ({"std": 1e308}, "std must be positive and finite in float32 too, from 1.4e-45 to 3.4e+38 in size, got 1e+308"),
        ({"std": [1.0, 1e-60]}, "std must be positive and finite in float32 too"),
        ({"mean": -1e39}, "mean must be finite in float32 too"),
        ({"mean": float("nan")}, "mean must be finite, got nan"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ],
)
def test_bad_settings_are_rejected(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        Classifier(mlp(), **options)
    assert sentence in str(error.value)


def test_what_is_no_module_is_rejected() -> None:
    with pytest.raises(TypeError, match="must be a torch.nn.Module, got function; a function .* wrapped in a module"):
        Classifier(draw)
    with pytest.raises(TypeError, match="must be a torch.nn.Module, got int$"):
        Classifier(3)
    with pytest.raises(ValueError, match=r"one value per channel \(6\), got \[0.1, 0.2\]"):
        Classifier(mlp(), mean=[0.1, 0.2]).predict(inputs(4, 6))


def test_unbounded_inputs_are_allowed() -> None:
    model = Classifier(mlp(), bounds=(-torch.inf, torch.inf))
    assert model.predict(1000 * inputs(20, 6)).shape == (20,)


def test_the_device_is_found_where_only_buffers_are() -> None:
    class Prototypes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("centres", torch.zeros(3, 6, device="meta"))

    assert Classifier(Prototypes()).device == torch.device("meta")


def test_a_layer_that_does_not_see_inputs_as_rows_is_not_tapped() -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.fc = nn.Linear(2, 2), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.inner(x.reshape(-1, 2)).reshape(-1, 4))

    model = Classifier(Mixing())
    with pytest.raises(ValueError, match="layer inner must give one output per input, got 40 for 20 inputs"):
        model.features(torch.rand(20, 4), layers=["inner"])
    assert model.features(torch.rand(20, 4), layers=["fc"])["fc"].shape == (20, 3)


class Skipping(nn.Module):
    """Its last layer reads a sum that no layer returns."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.first(x).relu() + x).mean((2, 3)))


def test_penultimate_features_are_what_the_last_layer_reads() -> None:
    x = torch.rand(300, 1, 6, 6, generator=spawn(0))
    model = Classifier(Skipping(), batch_size=128)
    features = model.penultimate(x)
    assert features is not None
    module = model.unwrap()
    assert torch.allclose(module.head(features), model.batched_logits(x), atol=1e-6)
    pooled = Classifier(
        nn.Sequential(nn.Conv2d(1, 5, 3), nn.ReLU(), nn.Conv2d(5, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    )
    maps = pooled.features(x, layers=["1"])["1"]
    assert torch.allclose(pooled.penultimate(x), maps.mean((2, 3)), atol=1e-6)


def test_penultimate_features_of_a_module_without_layers_are_none() -> None:
    class Bare(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, -x], 1)

    assert Classifier(Bare()).penultimate(torch.rand(5, 2)) is None
    with pytest.warns(DeprecationWarning, match="torch.jit.trace"):
        scripted = torch.jit.trace(nn.Linear(4, 3), torch.rand(16, 4))
    assert Classifier(scripted).penultimate(torch.rand(5, 4)) is None
