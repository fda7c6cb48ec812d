"""MobileNets v1 and v2: what they compute, with and without batch norm, their names, and their weights on disk."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, fx, nn
from torch.nn import functional as F

from operant.model import Classifier
from operant.networks.training import initialise
from operant.networks.weights import load_weights, save_weights
from operant_studies.networks.mobilenet import MobileNetV1, MobileNetV2, PadSame, folded

BOTH = pytest.mark.parametrize("kind", [MobileNetV1, MobileNetV2])


def seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def small(kind: type[nn.Module], **options: object) -> nn.Module:
    """A narrow network in double precision whose batch norms have statistics that are not 0 and 1."""
    network = initialise(lambda: kind(width=0.25, classes=5, **options), generator=seeded(1)).double()
    with torch.no_grad():
        for part in network.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.copy_(torch.randn(part.num_features, generator=seeded(2)) / 5)
                part.running_var.copy_(torch.rand(part.num_features, generator=seeded(3)) + 0.5)
                part.weight.copy_(torch.rand(part.num_features, generator=seeded(4)) + 0.5)
                part.bias.copy_(torch.randn(part.num_features, generator=seeded(5)) / 5)
    return network.eval()


def images(*shape: int) -> Tensor:
    return torch.rand(shape, generator=seeded(0), dtype=torch.float64)


# Counts, shapes, names


@pytest.mark.parametrize(
    ("kind", "width", "millions"),  # tables 6 and 7 of the first paper; the second's 1.0, and 0.5 and 1.4 as released
    [
        (MobileNetV1, 1.0, 4.2),
        (MobileNetV1, 0.75, 2.6),
        (MobileNetV1, 0.5, 1.3),
        (MobileNetV1, 0.25, 0.5),
        (MobileNetV2, 1.0, 3.5),
        (MobileNetV2, 0.5, 2.0),
        (MobileNetV2, 1.4, 6.1),
    ],
)
def test_parameters_are_as_many_as_published(kind, width, millions):
    assert round(count(kind(width=width)) / 1e6, 1) == millions


def test_parameters_of_v1_counted_by_hand():
    wide = [32, 64, 128, 128, 256, 256, *[512] * 6, 1024, 1024]
    blocks = sum(9 * i + 2 * i + i * o + 2 * o for i, o in pairwise(wide))
    assert count(MobileNetV1()) == (27 * 32 + 64) + blocks + 1024 * 1000 + 1000 == 4_231_976


@settings(max_examples=8)
@given(
    channels=st.integers(1, 4),
    classes=st.integers(2, 12),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    options=st.fixed_dictionaries(
        {
            "first_stride": st.sampled_from([1, 2]),
            "batch_norm": st.booleans(),
            "padding": st.sampled_from(["even", "same"]),
        }
    ),
)
def test_logits_for_any_channels_classes_and_size(channels, classes, height, width, options):
    x = torch.rand(3, channels, height, width)
    for kind in (MobileNetV1, MobileNetV2):
        network = kind(channels=channels, classes=classes, width=0.25, **options).eval()
        assert network(x).shape == (3, classes)


@BOTH
@pytest.mark.parametrize(("first_stride", "side"), [(1, 4), (2, 2)])
def test_the_first_stride_decides_how_much_is_left_of_an_image(kind, first_stride, side):
    network = kind(width=0.25, first_stride=first_stride).eval()
    assert network.features(torch.rand(2, 3, 64, 64)).shape[-2:] == (side, side)


def names_of_weights(blocks: dict[int, int], last: int | None) -> set[str]:
    inside = {f"features.{k}.conv.{j}" for k, convolutions in blocks.items() for j in range(convolutions)}
    layers = {"features.0", "classifier", *inside, *([f"features.{last}"] if last else [])}
    return {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}


def test_folded_layers_are_named_as_in_weight_files():
    first, second = (kind(batch_norm=False).state_dict() for kind in (MobileNetV1, MobileNetV2))
    assert set(first) == names_of_weights(dict.fromkeys(range(1, 14), 2), None)
    assert set(second) == names_of_weights({1: 2} | dict.fromkeys(range(2, 18), 3), 18)
    shapes = {name: tuple(second[f"{name}.weight"].shape) for name in ("features.0", "features.18", "classifier")}
    assert shapes == {"features.0": (32, 3, 3, 3), "features.18": (1280, 320, 1, 1), "classifier": (1000, 1280)}
    assert second["features.1.conv.0.weight"].shape == (32, 1, 3, 3)
    assert second["features.14.conv.0.weight"].shape == (576, 96, 1, 1)
    assert second["features.14.conv.2.weight"].shape == (160, 576, 1, 1)


def test_v2_adds_inputs_where_shapes_agree():
    features = MobileNetV2().features
    adds = [features.get_submodule(str(k)).adds for k in range(1, 18)]
    assert [k for k, added in enumerate(adds, 1) if not added] == [1, 2, 4, 7, 11, 14, 17]


# What they compute, against formulas written down again


def tensorflow_same(n: int) -> tuple[int, int]:
    """Zeros before and behind ``n`` pixels for a filter of 3 that moves by 2, from TensorFlow's definition."""
    total = max((math.ceil(n / 2) - 1) * 2 + 3 - n, 0)
    return total // 2, total - total // 2


def test_same_padding_is_tensorflows():
    for height in range(1, 12):
        for width in range(1, 12):
            x = torch.rand(2, 3, height, width)
            expected = F.pad(x, (*tensorflow_same(width), *tensorflow_same(height)))
            assert torch.equal(PadSame()(x), expected)


def convolved(w: dict[str, Tensor], x: Tensor, row: str, at: int, stride: int, padding: str) -> Tensor:
    """Convolution ``at`` of a row, with its batch norm written out."""
    kernel = w[f"{row}.{at}.weight"]
    around = (1, 1, 1, 1) if kernel.shape[-1] == 3 else (0, 0, 0, 0)
    if stride == 2 and padding == "same":
        around = (*tensorflow_same(x.shape[3]), *tensorflow_same(x.shape[2]))
    h = F.conv2d(F.pad(x, around), kernel, stride=stride, groups=x.shape[1] // kernel.shape[1])
    mean, var, scale, shift = (w[f"{row}.bn{at}.{k}"] for k in ("running_mean", "running_var", "weight", "bias"))
    return ((h.movedim(1, -1) - mean) / (var + 1e-5).sqrt() * scale + shift).movedim(-1, 1)


def v1_formula(w: dict[str, Tensor], x: Tensor, padding: str) -> Tensor:
    h = convolved(w, x, "features", 0, 2, padding).relu()
    for k, stride in enumerate([1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1], 1):
        h = convolved(w, h, f"features.{k}.conv", 0, stride, padding).relu()
        h = convolved(w, h, f"features.{k}.conv", 1, 1, padding).relu()
    return h.mean((2, 3)) @ w["classifier.weight"].T + w["classifier.bias"]


def v2_formula(w: dict[str, Tensor], x: Tensor, padding: str) -> Tensor:
    h = convolved(w, x, "features", 0, 2, padding).clamp(0, 6)
    for k in range(1, 18):
        row, inner = f"features.{k}.conv", h
        for j in range(k > 1):
            inner = convolved(w, inner, row, j, 1, padding).clamp(0, 6)
        at = int(k > 1)
        inner = convolved(w, inner, row, at, 2 if k in (2, 4, 7, 14) else 1, padding).clamp(0, 6)
        inner = convolved(w, inner, row, at + 1, 1, padding)
        h = inner + h if inner.shape == h.shape else inner
    h = convolved(w, h, "features", 18, 1, padding).clamp(0, 6)
    return h.mean((2, 3)) @ w["classifier.weight"].T + w["classifier.bias"]


@pytest.mark.parametrize("padding", ["even", "same"])
@pytest.mark.parametrize("size", [(32, 32), (45, 22)])
@pytest.mark.parametrize(("kind", "formula"), [(MobileNetV1, v1_formula), (MobileNetV2, v2_formula)])
def test_networks_compute_their_formula(kind, formula, size, padding):
    network, x = small(kind, padding=padding), images(3, 3, *size) * 4
    torch.testing.assert_close(network(x), formula(network.state_dict(), x, padding))


def test_paddings_differ_for_even_sizes_only():
    for kind in (MobileNetV1, MobileNetV2):
        even, same = small(kind), small(kind, padding="same")
        assert even.state_dict().keys() == same.state_dict().keys()
        assert not torch.allclose(even(images(2, 3, 32, 32)), same(images(2, 3, 32, 32)))
        torch.testing.assert_close(even(images(2, 3, 33, 33)), same(images(2, 3, 33, 33)))  # 33, 17, 9, 5, 3: all odd


# Folding


@BOTH
@pytest.mark.parametrize("padding", ["even", "same"])
def test_folded_computes_the_same_without_batch_norm(kind, padding, tmp_path):
    network = small(kind, padding=padding, dropout=0.2, dropout_after=["block", "pool"]).train()
    before = {name: values.clone() for name, values in network.state_dict().items()}
    plain = folded(network)
    assert network.training
    assert not plain.training
    assert all(torch.equal(values, before[name]) for name, values in network.state_dict().items())
    assert not any(isinstance(part, nn.BatchNorm2d) for part in plain.modules())
    x = images(4, 3, 40, 40)
    torch.testing.assert_close(plain(x), network.eval()(x))
    save_weights(plain, tmp_path / "folded.safetensors")
    twin = kind(width=0.25, classes=5, padding=padding, batch_norm=False).double().eval()
    torch.testing.assert_close(load_weights(twin, tmp_path / "folded.safetensors")(x), network(x))


@BOTH
def test_what_has_no_batch_norm_is_not_folded(kind):
    with pytest.raises(ValueError, match=f"this {kind.__name__} has no batch norm to fold"):
        folded(kind(width=0.25, batch_norm=False))


@pytest.mark.parametrize(("kind", "norms"), [(MobileNetV1, 27), (MobileNetV2, 52)])
def test_classifier_folds_every_batch_norm(kind, norms):
    model = Classifier(kind(width=0.25, classes=5, padding="same", dropout=0.2, dropout_after=["stage3", "block"]))
    model.predict(torch.rand(16, 3, 32, 32))
    assert f"{norms} of {norms} batch norms folded" in model.notes
    assert "batch norm folded, channels last: in use" in model.notes


@BOTH
def test_networks_can_be_traced_and_run_channels_last(kind):
    network, x = small(kind, padding="same"), images(3, 3, 32, 48)
    expected = network(x)
    torch.testing.assert_close(fx.symbolic_trace(network)(x), expected)
    last = network.to(memory_format=torch.channels_last)
    torch.testing.assert_close(last(x.contiguous(memory_format=torch.channels_last)), expected)


# Dropout


def dropouts(network: nn.Module) -> list[str]:
    return [name for name, part in network.named_modules() if isinstance(part, nn.Dropout)]


def test_dropout_sits_where_it_was_asked_for():
    options = {"width": 0.25, "dropout": 0.3}
    assert dropouts(MobileNetV1(**options, dropout_after=["stage2", "pool"])) == [
        "features.dropout_stage2",
        "dropout_pool",
    ]
    second = MobileNetV2(**options, dropout_after=["stage7", "last", "pool"])
    assert dropouts(second) == ["features.dropout_stage7", "features.dropout_last", "dropout_pool"]
    order = [name for name, _ in second.features.named_children()]
    assert order[-6:] == ["17", "dropout_stage7", "18", "bn18", "relu18", "dropout_last"]
    assert [name for name, _ in second.named_children()] == [
        "features",
        "pool",
        "flatten",
        "dropout_pool",
        "classifier",
    ]
    assert second.dropout_pool.p == 0.3
    assert dropouts(MobileNetV1(width=0.25)) == dropouts(MobileNetV2(width=0.25)) == []


def test_dropout_within_blocks_sits_behind_the_depthwise_convolution():
    first = MobileNetV1(width=0.25, dropout=0.3, dropout_after=["block"])
    second = MobileNetV2(width=0.25, dropout=0.3, dropout_after=["block"])
    assert dropouts(first) == [f"features.{k}.conv.dropout_block" for k in range(1, 14)]
    assert dropouts(second) == [f"features.{k}.conv.dropout_block" for k in range(1, 18)]
    inside = [name for name, _ in second.features.get_submodule("2.conv").named_children()]
    assert inside == ["0", "bn0", "relu0", "1", "bn1", "relu1", "dropout_block", "2", "bn2"]


@BOTH
@pytest.mark.parametrize("place", ["stage1", "stage5", "pool", "block"])
def test_dropout_acts_in_training_only(kind, place):
    network = kind(width=0.25, classes=3, batch_norm=False, dropout=0.5, dropout_after=[place])
    x = torch.rand(4, 3, 16, 16, generator=seeded(0))
    with torch.no_grad():
        assert not torch.equal(network(x), network(x))
        network.eval()
        assert torch.equal(network(x), network(x))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"channels": 0}, "channels must be at least 1, got 0"),
        ({"classes": 1}, "classes must be at least 2, got 1"),
        ({"width": 0.0}, "width must be positive and finite, got 0.0"),
        ({"width": math.nan}, "width must be positive and finite, got nan"),
        ({"first_stride": 4}, "first_stride must be one of 1, 2, got 4"),
        ({"padding": "valid"}, "padding must be one of even, same, got 'valid'"),
        ({"dropout": 0.5, "dropout_after": ["stage9"]}, "dropout_after must name places among stage1, .*; got stage9"),
        ({"dropout": 0.5}, "needs a place"),
    ],
)
@BOTH
def test_wrong_options_are_rejected(kind, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        kind(**options)


# Training and weights on disk


@BOTH
def test_a_step_of_training_reaches_every_weight(kind):
    network = kind(width=0.25, classes=4).train()
    loss = F.cross_entropy(network(torch.rand(4, 3, 64, 64, generator=seeded(0))), torch.arange(4))
    loss.backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in network.parameters())


@BOTH
def test_weights_round_trip(kind, tmp_path):
    first, second = kind(width=0.25, classes=4), kind(width=0.25, classes=4)
    first.train()(torch.rand(4, 3, 32, 32))  # moves the running statistics
    save_weights(first, tmp_path / "net.safetensors")
    load_weights(second, tmp_path / "net.safetensors")
    assert all(torch.equal(values, second.state_dict()[name]) for name, values in first.state_dict().items())


def test_weights_in_half_precision_are_read_into_floats(tmp_path):
    network, path = MobileNetV2(width=0.25, batch_norm=False, padding="same"), tmp_path / "half.safetensors"
    save_file({name: values.half() for name, values in network.state_dict().items()}, path)
    read = load_weights(MobileNetV2(width=0.25, batch_norm=False, padding="same"), path)
    assert {p.dtype for p in read.parameters()} == {torch.float32}
    halves = load_file(path)
    assert all(torch.equal(values, halves[name].float()) for name, values in read.state_dict().items())


def test_wrong_weights_are_rejected_with_what_is_missing(tmp_path):
    path = tmp_path / "plain.safetensors"
    save_weights(MobileNetV2(width=0.25, classes=4, batch_norm=False), path)
    normed = MobileNetV2(width=0.25, classes=4)
    before = normed.features[0].weight.clone()
    with pytest.raises(ValueError, match=r"is missing features.bn0.weight, .* more; it has unexpected features.*bias"):
        load_weights(normed, path)
    assert torch.equal(normed.features[0].weight, before)
    with pytest.raises(ValueError, match=r"other shapes: classifier.weight \(4, 1280\) instead of \(7, 1280\)"):
        load_weights(MobileNetV2(width=0.25, classes=7, batch_norm=False), path)
    with pytest.raises(ValueError, match=r"this MobileNetV1: it has unexpected features.*other shapes"):
        load_weights(MobileNetV1(width=0.25, classes=4, batch_norm=False), path)
