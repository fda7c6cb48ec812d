"""The shipped networks, their weights on disk, and training."""

import math
from dataclasses import FrozenInstanceError

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from torch import Tensor, fx, nn
from torch.nn import functional as F

from operant.data import Samples
from operant.model import Classifier, value_and_gradient
from operant.networks import LeNet5, fit, initialise, load_weights, save_weights
from operant.networks.training import validation_split
from operant_studies.networks import ResNet20

BATCH_SIZES = [1, 2, 3, 7, 15, 16, 17, 100]


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    x, y = a.state_dict(), b.state_dict()
    return x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)


# Shapes, names, counts


def test_lenet_has_the_parameters_counted_by_hand():
    convolutions = (6 * 1 * 25 + 6) + (16 * 6 * 25 + 16)
    dense = (16 * 7 * 7 * 120 + 120) + (120 * 84 + 84) + (84 * 10 + 10)
    assert count(LeNet5()) == convolutions + dense == 107_786


def test_resnet_has_the_parameters_counted_by_hand():
    def stage(inward, outward):
        return 9 * outward * (inward + 5 * outward) + 6 * 2 * outward

    assert count(ResNet20()) == (9 * 3 * 16 + 32) + stage(16, 16) + stage(16, 32) + stage(32, 64) + 650 == 269_722


@settings(max_examples=15)
@given(channels=st.integers(1, 4), classes=st.integers(2, 12), size=st.integers(4, 33))
def test_logits_for_any_channels_classes_and_size(channels, classes, size):
    x = torch.rand(3, channels, size, size)
    assert LeNet5(channels=channels, classes=classes, size=size)(x).shape == (3, classes)
    assert ResNet20(channels=channels, classes=classes)(x).shape == (3, classes)


def test_lenet_layers_give_the_neurons_that_coverage_counts():
    layers = ["relu_conv1", "pool1", "relu_conv2", "pool2", "relu_fc1", "relu_fc2", "fc3"]
    taps = Classifier(LeNet5()).features(torch.rand(3, 1, 28, 28), layers=layers)
    assert [taps[name].shape[1] for name in layers] == [6, 6, 16, 16, 120, 84, 10]
    assert all(bool((taps[name] >= 0).all()) for name in layers[:-1])
    assert {"conv1", "conv2", "fc1", "fc2", "fc3"} < set(Classifier(LeNet5()).layers)


def test_resnet_layers_are_named_as_in_weight_files():
    names = set(ResNet20().state_dict())
    inside = {f"layer{i}.{j}.{part}.weight" for i in (1, 2, 3) for j in range(3) for part in ("conv1", "bn2")}
    assert inside | {"conv1.weight", "bn1.running_mean", "linear.bias"} < names
    assert len([name for name in names if name.endswith("conv1.weight")]) == 10


@pytest.mark.parametrize("factory", [lambda: LeNet5(channels=3, size=32), ResNet20], ids=["lenet", "resnet"])
def test_networks_can_be_traced_and_run_channels_last(factory):
    x = torch.rand(3, 3, 32, 32)
    network = factory().eval()
    expected = network(x)
    torch.testing.assert_close(fx.symbolic_trace(network)(x), expected)
    last = network.to(memory_format=torch.channels_last)
    torch.testing.assert_close(last(x.contiguous(memory_format=torch.channels_last)), expected, rtol=1e-4, atol=1e-5)


# What they compute, against formulas written down again


def test_lenet_computes_its_formula():
    network = initialise(LeNet5, generator=seeded(1)).double()
    w = network.state_dict()
    x = torch.rand(3, 1, 28, 28, dtype=torch.float64)
    h = F.max_pool2d(F.conv2d(x, w["conv1.weight"], w["conv1.bias"], padding="same").relu(), 2)
    h = F.max_pool2d(F.conv2d(h, w["conv2.weight"], w["conv2.bias"], padding="same").relu(), 2).flatten(1)
    h = (h @ w["fc1.weight"].T + w["fc1.bias"]).relu()
    h = (h @ w["fc2.weight"].T + w["fc2.bias"]).relu()
    torch.testing.assert_close(network(x), h @ w["fc3.weight"].T + w["fc3.bias"])


def resnet_formula(w: dict[str, Tensor], x: Tensor) -> Tensor:
    def normed(h: Tensor, conv: str, bn: str, stride: int) -> Tensor:
        h = F.conv2d(h, w[f"{conv}.weight"], stride=stride, padding=1)
        mean, var, scale, shift = (w[f"{bn}.{k}"] for k in ("running_mean", "running_var", "weight", "bias"))
        return ((h.movedim(1, -1) - mean) / (var + 1e-5).sqrt() * scale + shift).movedim(-1, 1)

    h = normed(x, "conv1", "bn1", 1).relu()
    for stage in (1, 2, 3):
        for block in range(3):
            at, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            kept = h[:, :, ::stride, ::stride]
            zeros = torch.zeros_like(kept[:, : h.shape[1] // 2]) if stride == 2 else kept[:, :0]
            inner = normed(h, f"{at}.conv1", f"{at}.bn1", stride).relu()
            h = (normed(inner, f"{at}.conv2", f"{at}.bn2", 1) + torch.cat([zeros, kept, zeros], 1)).relu()
    return h.mean((2, 3)) @ w["linear.weight"].T + w["linear.bias"]


@pytest.mark.parametrize("size", [16, 9])
def test_resnet_computes_its_formula(size):
    network = initialise(ResNet20, generator=seeded(1)).double()
    x = torch.rand(8, 3, size, size, dtype=torch.float64)
    network.train()(x)  # gives batch norm statistics that are not 0 and 1
    torch.testing.assert_close(network.eval()(x), resnet_formula(network.state_dict(), x))


def test_batch_norm_of_resnet_folds_away_entirely():
    for network in (ResNet20(), ResNet20(dropout=0.2, dropout_after=["block", "layer2", "pool"])):
        model = Classifier(network)
        model.predict(torch.rand(16, 3, 16, 16))
        assert "19 of 19 batch norms folded" in model.notes
        assert "batch norm folded, channels last: in use" in model.notes


# Batch size changes nothing, not even a bit


def answers(model: Classifier, x: Tensor, y: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Logits and input gradients, computed in batches of ``size``."""
    logits, gradients = [], []
    for part, labels in zip(x.split(size), y.split(size), strict=True):
        _, gradient = value_and_gradient(
            lambda z, labels=labels: F.cross_entropy(model.logits(z), labels, reduction="none"), part
        )
        gradients.append(gradient)
        logits.append(model.logits(part))
    return torch.cat(logits), torch.cat(gradients)


@pytest.mark.parametrize(
    ("network", "shape", "rows"),
    [(LeNet5, (1, 28, 28), 100), (lambda: LeNet5(size=8), (1, 8, 8), 256), (ResNet20, (3, 16, 16), 34)],
    ids=["lenet", "lenet8", "resnet"],
)
@pytest.mark.parametrize("strict", [False, True])
def test_batch_size_and_row_order_change_no_bit(network, shape, rows, strict):
    x, y = torch.rand(rows, *shape, generator=seeded(2)), torch.arange(rows) % 10
    model = Classifier(initialise(network, generator=seeded(1)), strict=strict)
    logits, gradients = answers(model, x, y, rows)
    for size in BATCH_SIZES:
        again = answers(model, x, y, size)
        assert torch.equal(again[0], logits), f"logits in batches of {size}"
        assert torch.equal(again[1], gradients), f"gradients in batches of {size}"
    order = torch.randperm(rows, generator=seeded(3))
    moved = answers(model, x[order], y[order], 17)
    assert torch.equal(moved[0], logits[order])
    assert torch.equal(moved[1], gradients[order])


# Dropout


def test_dropout_sits_where_it_was_asked_for():
    network = LeNet5(dropout=0.3, dropout_after=["conv2", "fc1"])
    found = [(before, name) for before, name in zip(names(network), names(network)[1:], strict=False) if "drop" in name]
    assert found == [("relu_conv2", "dropout_conv2"), ("relu_fc1", "dropout_fc1")]
    assert network.dropout_fc1.p == 0.3
    assert not any(isinstance(m, nn.Dropout) for m in [*LeNet5().modules(), *ResNet20().modules()])
    deep = ResNet20(dropout=0.3, dropout_after=["layer1", "pool", "block"])
    assert [name for name, m in deep.named_modules() if isinstance(m, nn.Dropout)] == [
        *(f"layer1.{i}.dropout" for i in range(3)),
        "dropout_layer1",
        *(f"layer{s}.{i}.dropout" for s in (2, 3) for i in range(3)),
        "dropout_pool",
    ]


def names(network: nn.Module) -> list[str]:
    return [name for name, _ in network.named_children()]


@pytest.mark.parametrize("place", ["conv1", "conv2", "fc1", "fc2"])
def test_dropout_acts_in_training_only_lenet(place):
    assert_dropout_acts_in_training_only(LeNet5(size=8, dropout=0.5, dropout_after=[place]), (6, 1, 8, 8))


@pytest.mark.parametrize("place", ["layer1", "layer2", "layer3", "pool", "block"])
def test_dropout_acts_in_training_only_resnet(place):
    assert_dropout_acts_in_training_only(ResNet20(dropout=0.5, dropout_after=[place]), (6, 3, 8, 8))


def assert_dropout_acts_in_training_only(network: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.rand(shape, generator=seeded(0))
    with torch.no_grad():
        network.train()
        assert not torch.equal(network(x), network(x))
        network.eval()
        assert torch.equal(network(x), network(x))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dropout": 0.5, "dropout_after": ["fc9", "fc1"]}, "among conv1, conv2, fc1, fc2; got fc9"),
        ({"dropout": 0.5, "dropout_after": "fc1"}, r"write \('fc1',\)"),
        ({"dropout": 0.5}, "dropout=0.5 needs a place"),
        ({"dropout_after": ["fc1"]}, "needs a rate"),
        ({"dropout": 1.0, "dropout_after": ["fc1"]}, "below 1, got 1.0"),
        ({"dropout": math.nan, "dropout_after": ["fc1"]}, "below 1, got nan"),
        ({"size": 3}, "size must be at least 4, got 3"),
        ({"classes": 1}, "classes must be at least 2, got 1"),
        ({"channels": 0}, "channels must be at least 1, got 0"),
    ],
)
def test_lenet_rejects_wrong_options(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        LeNet5(**options)


def test_resnet_rejects_wrong_options():
    with pytest.raises(ValueError, match="among layer1, layer2, layer3, pool, block; got fc1"):
        ResNet20(dropout=0.5, dropout_after=["fc1"])
    with pytest.raises(ValueError, match="channels must be at least 1, got 0"):
        ResNet20(channels=0)


# Weights on disk


def test_weights_round_trip(tmp_path):
    first = ResNet20(classes=4)
    first.train()(torch.rand(4, 3, 8, 8))  # moves the running statistics
    save_weights(first, tmp_path / "deep" / "resnet.safetensors")
    second = ResNet20(classes=4)
    assert not same_weights(first, second)
    assert load_weights(second, tmp_path / "deep" / "resnet.safetensors") is second
    assert same_weights(first, second)
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["resnet.safetensors"]


def test_weights_of_tied_and_channels_last_layers_round_trip(tmp_path):
    def tied() -> nn.Sequential:
        conv = nn.Conv2d(2, 2, 3, padding=1)
        return nn.Sequential(conv, nn.ReLU(), conv).to(memory_format=torch.channels_last)

    first, second = tied(), tied()
    save_weights(first, tmp_path / "tied.safetensors")
    assert same_weights(load_weights(second, tmp_path / "tied.safetensors"), first)


def test_batch_norm_counters_may_be_missing(tmp_path):
    first, path = ResNet20(), tmp_path / "w.safetensors"
    save_weights(first, path)
    save_file({k: v for k, v in load_file(path).items() if "num_batches_tracked" not in k}, path)
    assert same_weights(load_weights(ResNet20(), path), first)


def test_wrong_weights_are_rejected_and_change_nothing(tmp_path):
    path = tmp_path / "lenet.safetensors"
    save_weights(LeNet5(), path)
    network = LeNet5(classes=7)
    before = {name: values.clone() for name, values in network.state_dict().items()}
    with pytest.raises(ValueError, match=r"lenet.*other shapes: fc3.weight \(10, 84\) instead of \(7, 84\), fc3.bias"):
        load_weights(network, path)
    assert all(torch.equal(values, before[name]) for name, values in network.state_dict().items())
    with pytest.raises(ValueError, match=r"is missing bn1.weight.* and \d+ more; it has unexpected .*; build the net"):
        load_weights(ResNet20(), path)


@pytest.mark.parametrize("content", [b"", b"not weights", b"\xff" * 64, b"PK\x03\x04" * 20])
def test_corrupt_weights_are_rejected_by_name(tmp_path, content):
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="broken.safetensors is not a readable safetensors file"):
        load_weights(LeNet5(), path)


def test_truncated_weights_are_rejected(tmp_path):
    path = tmp_path / "short.safetensors"
    save_weights(LeNet5(), path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="short.safetensors is not a readable"):
        load_weights(LeNet5(), path)


# Training


@pytest.fixture(scope="module")
def digits() -> tuple[Samples, Samples]:
    x, y = load_digits(return_X_y=True)
    x = torch.as_tensor(x, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    parts = Samples(x, torch.as_tensor(y)).split(train=0.75, test=0.25)
    return parts["train"], parts["test"]


def small() -> nn.Module:
    return LeNet5(size=8, dropout=0.2, dropout_after=["fc1"])


def test_fit_learns_the_digits(digits, generator):
    train, test = digits
    fitted = fit(
        initialise(small, generator=generator), train, epochs=12, batch_size=32, learning_rate=2e-3, generator=generator
    )
    accuracy = (Classifier(fitted.module).predict(test.x) == test.labels).double().mean()
    assert accuracy > 0.9
    assert not fitted.module.training
    assert [e.epoch for e in fitted.history] == list(range(1, 13))
    assert fitted.history[-1].loss < fitted.history[0].loss / 3
    with pytest.raises(FrozenInstanceError):
        fitted.best_epoch = 1
    _, held = validation_split(train, 0.1)
    right = (Classifier(fitted.module, strict=True).predict(held.x) == held.labels).double().mean()
    best = max(fitted.history, key=lambda e: (e.validation_accuracy, -e.validation_loss))
    assert (fitted.best_epoch, float(right)) == (best.epoch, best.validation_accuracy)


def test_same_generator_same_weights_and_nothing_else_changes(digits):
    train = digits[0][:200]
    module = initialise(small, generator=seeded(1)).train()
    module.fc3.requires_grad_(False)
    before = {name: values.clone() for name, values in module.state_dict().items()}
    state = torch.get_rng_state()
    first = fit(module, train, epochs=2, generator=seeded(5))
    torch.manual_seed(77)  # what torch's own state is must not matter
    second = fit(module, train, epochs=2, generator=seeded(5))
    torch.set_rng_state(state)
    third = fit(module, train, epochs=2, generator=seeded(6))
    assert torch.equal(torch.get_rng_state(), state)
    assert same_weights(first.module, second.module)
    assert first.history == second.history
    assert not same_weights(first.module, third.module)
    assert all(torch.equal(values, before[name]) for name, values in module.state_dict().items())
    assert module.training
    assert [p.requires_grad for p in module.parameters()] == [True] * 8 + [False] * 2
    assert all(p.grad is None for p in [*module.parameters(), *first.module.parameters()])
    assert torch.equal(first.module.fc3.weight, module.fc3.weight)  # what came frozen stays as it is


def test_initialise_depends_on_the_generator_alone():
    state = torch.get_rng_state()
    first = initialise(LeNet5, generator=seeded(1))
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert same_weights(first, initialise(LeNet5, generator=seeded(1)))
    assert not same_weights(first, initialise(LeNet5, generator=seeded(2)))


def two_sides(*, contrary: bool) -> tuple[nn.Module, Samples]:
    """A line that is right about every input, and samples whose training labels may all say the contrary."""
    x = torch.rand(200, 2, generator=seeded(0))
    y = (x[:, 0] > 0.5).long()
    _, held = validation_split(Samples(x, y), 0.3)
    line = nn.Linear(2, 2)
    with torch.no_grad():
        line.weight.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
        line.bias.copy_(torch.tensor([0.5, -0.5]))
    flipped = ~torch.isin(Samples(x).ids, held.ids) & torch.tensor(contrary)
    return line, Samples(x, torch.where(flipped, 1 - y, y))


def test_best_epoch_is_chosen_on_validation_not_on_training():
    line, samples = two_sides(contrary=True)
    options = {"validation": 0.3, "learning_rate": 0.05}
    fitted = fit(line, samples, epochs=10, generator=seeded(1), **options)
    assert fitted.history[-1].loss < fitted.history[0].loss
    assert fitted.history[-1].validation_accuracy < 0.5 < 0.9 < fitted.history[0].validation_accuracy
    best = max(fitted.history, key=lambda e: (e.validation_accuracy, -e.validation_loss))
    assert fitted.best_epoch == best.epoch < 4
    again = fit(line, samples, epochs=best.epoch, generator=seeded(1), **options)
    assert same_weights(fitted.module, again.module)


@pytest.mark.parametrize(("contrary", "expected"), [(False, 4), (True, 1)])
def test_equally_accurate_epochs_are_ranked_by_validation_loss(contrary, expected):
    line, samples = two_sides(contrary=contrary)
    fitted = fit(line, samples, epochs=4, learning_rate=1e-5, validation=0.3, generator=seeded(1))
    assert {e.validation_accuracy for e in fitted.history} == {1.0}
    assert fitted.best_epoch == expected


def test_nothing_is_learned_from_the_validation_part(digits):
    train = digits[0][:200]
    held = torch.isin(train.ids, validation_split(train, 0.3)[1].ids)
    other = Samples(train.x, torch.where(held, (train.labels + 1) % 10, train.labels), train.ids)
    options = {"epochs": 1, "validation": 0.3}
    module = initialise(small, generator=seeded(1))
    a, b = (fit(module, samples, generator=seeded(1), **options) for samples in (train, other))
    assert same_weights(a.module, b.module)
    assert a.history[0].loss == b.history[0].loss
    assert a.history[0].validation_loss != b.history[0].validation_loss


@pytest.mark.parametrize("ids", [torch.arange(4000), torch.randint(2**62, (4000,), generator=seeded(0))])
def test_validation_takes_its_share_of_any_part_dealt_before(ids):
    pool = Samples(torch.rand(4000, 1), torch.zeros(4000, dtype=torch.long), ids)
    for part in pool.split(train=0.75, test=0.25).values():
        training, held = validation_split(part, 0.1)
        assert abs(len(held) / len(part) - 0.1) < 0.03
        assert set(training.ids.tolist()) | set(held.ids.tolist()) == set(part.ids.tolist())
        assert not set(training.ids.tolist()) & set(held.ids.tolist())


def test_copies_of_one_input_stay_on_one_side():
    x = torch.rand(300, 2, generator=seeded(0)).repeat(3, 1)
    training, held = validation_split(Samples(x, torch.zeros(900, dtype=torch.long)), 0.3)
    assert not torch.isin(held.ids, training.ids).any()
    assert len(held.ids.unique()) * 3 == len(held) > 0


def test_mean_and_std_mean_the_same_as_in_classifier(digits):
    train = digits[0][:200]
    module = initialise(small, generator=seeded(1))
    inside = fit(module, train, epochs=1, mean=[0.3], std=[0.4], generator=seeded(1))
    normalised = Classifier(module, mean=[0.3], std=[0.4]).normalise(train.x)
    outside = fit(module, Samples(normalised, train.y, train.ids), epochs=1, generator=seeded(1))
    assert same_weights(inside.module, outside.module)
    assert not same_weights(inside.module, fit(module, train, epochs=1, generator=seeded(1)).module)


def test_batch_norm_never_meets_a_batch_of_one_row(generator):
    samples = Samples(torch.rand(40, 3, generator=seeded(0)), torch.arange(40) % 2)
    size = len(validation_split(samples, 0.1)[0]) - 1  # would leave one row over
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    fitted = fit(module, samples, epochs=2, batch_size=size, generator=generator)
    assert int(fitted.module[1].num_batches_tracked) == 2 * fitted.best_epoch


def test_quick_progress_is_shown_on_a_terminal_only(digits, generator, on_terminal, capsys):
    train = digits[0][:100]
    on_terminal(False)
    fit(small(), train, epochs=2, generator=generator)
    assert capsys.readouterr() == ("", "")
    on_terminal(True)
    fit(small(), train, epochs=2, generator=generator, progress=False)
    assert capsys.readouterr() == ("", "")
    fit(small(), train, epochs=2, generator=generator)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert all(word in shown.err for word in ("epoch 2 of 2", "loss", "validation"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"validation": 0.0}, "validation must be between 0 and 1, got 0.0"),
        ({"validation": 1.0}, "between 0 and 1, got 1.0"),
        ({"validation": 1e-9}, "the validation part is empty: 100 inputs"),
        ({"validation": 1 - 1e-9}, "the training part is empty"),
        ({"learning_rate": -1.0}, "learning_rate must be positive and finite, got -1.0"),
        ({"learning_rate": math.nan}, "learning_rate must be positive and finite, got nan"),
        ({"learning_rate": 1e30, "epochs": 3}, "the loss became (nan|inf); try a lower learning_rate"),
        ({"std": 0.0}, "std must be positive"),
        ({"mean": [0.1, 0.2]}, "one value per channel"),
    ],
)
def test_fit_rejects_wrong_options(digits, generator, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        fit(small(), digits[0][:100], **{"epochs": 1, **options}, generator=generator)


def test_fit_rejects_samples_it_cannot_learn_from(digits, generator):
    train = digits[0][:100]
    spoiled = train.x.clone()
    spoiled[3, 0, 2, 2] = torch.nan
    for samples, sentence in [
        (Samples(train.x), "carry no labels"),
        (train[:0], "no inputs"),
        (Samples(spoiled, train.y), "NaN in 1 of 100 rows"),
        (Samples(train.x, train.labels + 3), "below the model's 10 classes, got 12"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            fit(small(), samples, epochs=1, generator=generator)


def small_network() -> nn.Module:
    """With a buffer that holds infinity on purpose, as masks for attention do."""
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    network.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
    return network


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["0.weight", "1.running_var", "mask"])
def test_weights_that_are_no_numbers_are_rejected_by_name(tmp_path, name, bad):
    path, network = tmp_path / "net.safetensors", small_network()
    state = {n: values.clone() for n, values in network.state_dict().items()}
    state[name].flatten()[0] = bad
    state[name][..., 0] = bad
    save_file(state, path)
    with pytest.raises(ValueError, match=f"net.safetensors has NaN or infinity in {name};"):
        load_weights(network, path)


def test_complex_weights_are_rejected_by_name(tmp_path):
    path, network = tmp_path / "net.safetensors", small_network()
    save_file({n: v.to(torch.complex64) if n == "0.bias" else v for n, v in network.state_dict().items()}, path)
    with pytest.raises(ValueError, match=r"net.safetensors .* has complex numbers in 0.bias;"):
        load_weights(network, path)


def test_a_networks_own_infinity_and_half_precision_are_read(tmp_path):
    path, network = tmp_path / "net.safetensors", small_network()
    save_file({n: v.half() if v.is_floating_point() else v for n, v in network.state_dict().items()}, path)
    read = load_weights(small_network(), path)
    assert torch.equal(read.mask, network.mask)
    assert torch.allclose(read[0].weight, network[0].weight, atol=1e-3)
