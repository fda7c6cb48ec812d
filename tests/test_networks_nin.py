"""NIN: what it computes, its weights on disk, and its training within a given time."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import count as numbers
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor, fx, nn
from torch.nn import functional as F
from typer.testing import CliRunner

from operant import results
from operant.data import Samples
from operant.model import Classifier
from operant.networks.training import initialise
from operant.networks.weights import load_weights, save_weights
from operant_studies.networks.nin import NIN
from operant_studies.subjects import CIFAR_MEAN, CIFAR_STD
from operant_studies.train_nin import (
    NINRecipe,
    TrainedNIN,
    _in_parallel,
    _State,
    _step,
    augment,
    train_nin,
)
from operant_studies.train_nin_command import app

PLACES = ["conv1", "mlp1a", "mlp1b", "pool1", "conv2", "mlp2a", "mlp2b", "pool2", "conv3", "mlp3a"]


def seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# Counts, shapes, names


def test_parameters_counted_by_hand():
    first = (25 * 3 * 192 + 192) + (192 * 160 + 160) + (160 * 96 + 96)
    second = (25 * 96 * 192 + 192) + 2 * (192 * 192 + 192)
    third = (9 * 192 * 192 + 192) + (192 * 192 + 192) + (192 * 10 + 10)
    assert parameters(NIN()) == first + second + third == 966_986
    assert parameters(NIN(batch_norm=True)) == 966_986 + 6 * 192 + 160 + 96  # a bias becomes a scale and a shift


@settings(max_examples=15)
@given(
    channels=st.integers(1, 4),
    classes=st.integers(2, 12),
    height=st.integers(1, 33),
    width=st.integers(1, 33),
    channels_inside=st.integers(2, 13),
    batch_norm=st.booleans(),
)
def test_logits_for_any_channels_classes_and_size(channels, classes, height, width, channels_inside, batch_norm):
    network = NIN(channels=channels, classes=classes, width=channels_inside, batch_norm=batch_norm).eval()
    assert network(torch.rand(3, channels, height, width)).shape == (3, classes)


def test_layers_give_the_neurons_that_coverage_counts():
    layers = ["relu_conv1", "relu_mlp1a", "relu_mlp1b", "pool1", "relu_mlp2b", "pool2", "relu_mlp3a", "mlp3b"]
    taps = Classifier(NIN(width=12)).features(torch.rand(3, 3, 32, 32), layers=layers)
    sides = [32, 32, 32, 16, 16, 8, 8, 8]
    channels = [12, 10, 6, 6, 12, 12, 12, 10]
    assert [tuple(taps[name].shape[1:]) for name in layers] == [(c, s, s) for c, s in zip(channels, sides, strict=True)]
    assert all(bool((taps[name] >= 0).all()) for name in layers[:-1])
    assert bool((taps["mlp3b"] < 0).any())


# What it computes, against a formula written down again


def formula(w: dict[str, Tensor], x: Tensor) -> Tensor:
    def layer(h: Tensor, name: str) -> Tensor:
        h = F.conv2d(h, w[f"{name}.weight"], w.get(f"{name}.bias"), padding="same")
        if f"bn_{name}.weight" in w:
            mean, var, scale, shift = (w[f"bn_{name}.{k}"] for k in ("running_mean", "running_var", "weight", "bias"))
            h = ((h.movedim(1, -1) - mean) / (var + 1e-5).sqrt() * scale + shift).movedim(-1, 1)
        return h.relu()

    def windows(h: Tensor, outside: float) -> Tensor:
        """3x3 around every second pixel, what lies outside filled in: ``(N, C, H, W, 9)``."""
        patches = F.pad(h, (1, 1, 1, 1), value=outside).unfold(2, 3, 2).unfold(3, 3, 2)
        return patches.flatten(4)

    h = windows(layer(layer(layer(x, "conv1"), "mlp1a"), "mlp1b"), -math.inf).amax(-1)
    h = windows(layer(layer(layer(h, "conv2"), "mlp2a"), "mlp2b"), math.nan).nanmean(-1)
    h = layer(layer(h, "conv3"), "mlp3a").mean((2, 3))  # the mean and the last layer may change places
    return h @ w["mlp3b.weight"][:, :, 0, 0].T + w["mlp3b.bias"]


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("size", [(16, 16), (9, 14)])
def test_network_computes_its_formula(batch_norm, size):
    network = initialise(lambda: NIN(width=12, batch_norm=batch_norm), generator=seeded(1)).double()
    x = torch.rand(8, 3, *size, dtype=torch.float64, generator=seeded(2))
    network.train()(x)  # gives batch norm statistics that are not 0 and 1
    torch.testing.assert_close(network.eval()(x), formula(network.state_dict(), x))


def test_network_can_be_traced_and_run_channels_last():
    x, network = torch.rand(3, 3, 32, 32, generator=seeded(0)), NIN(width=12, batch_norm=True).eval()
    expected = network(x)
    torch.testing.assert_close(fx.symbolic_trace(network)(x), expected)
    last = network.to(memory_format=torch.channels_last)
    torch.testing.assert_close(last(x.contiguous(memory_format=torch.channels_last)), expected, rtol=1e-4, atol=1e-5)


def test_classifier_folds_every_batch_norm():
    model = Classifier(NIN(width=12, batch_norm=True, dropout=0.2, dropout_after=["pool1", "pool2"]))
    model.predict(torch.rand(16, 3, 32, 32))
    assert "8 of 8 batch norms folded" in model.notes


# Dropout


def test_dropout_sits_where_it_was_asked_for():
    network = NIN(width=6, dropout=0.3, dropout_after=["mlp1a", "pool1", "pool2"])
    order = [name for name, _ in network.named_children()]
    found = [(order[i - 1], name) for i, name in enumerate(order) if "dropout" in name]
    assert found == [("relu_mlp1a", "dropout_mlp1a"), ("pool1", "dropout_pool1"), ("pool2", "dropout_pool2")]
    assert network.dropout_pool1.p == 0.3
    assert not any(isinstance(part, nn.Dropout) for part in NIN(width=6).modules())


@pytest.mark.parametrize("place", PLACES)
def test_dropout_acts_in_training_only(place):
    network = NIN(width=12, dropout=0.5, dropout_after=[place])
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
        ({"width": 1}, "width must be at least 2, got 1"),
        ({"dropout": 0.5, "dropout_after": ["pool3"]}, "among conv1, .*, mlp3a; got pool3"),
        ({"dropout": 0.5}, "needs a place"),
    ],
)
def test_wrong_options_are_rejected(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        NIN(**options)


# Weights on disk


def test_weights_round_trip_and_others_are_rejected_with_what_is_missing(tmp_path):
    first, path = NIN(width=12, batch_norm=True), tmp_path / "nin.safetensors"
    first.train()(torch.rand(4, 3, 8, 8))  # moves the running statistics
    save_weights(first, path)
    second = load_weights(NIN(width=12, batch_norm=True, dropout=0.5, dropout_after=["pool1"]), path)
    assert all(torch.equal(values, second.state_dict()[name]) for name, values in first.state_dict().items())
    with pytest.raises(ValueError, match=r"it is missing conv1.bias, mlp1a.bias, .*; it has unexpected .*bn_"):
        load_weights(NIN(width=12), path)
    with pytest.raises(ValueError, match=r"other shapes: mlp3b.weight \(10, 12, 1, 1\) instead of \(7, 12, 1, 1\)"):
        load_weights(NIN(width=12, batch_norm=True, classes=7), path)


# Changed images


def test_images_are_mirrored_or_not():
    x = torch.rand(40, 2, 4, 5, generator=seeded(0))
    changed = augment(x, shift=0, hole=0, generator=seeded(1))
    mirrored, same = ((changed == other).flatten(1).all(1) for other in (x.flip(3), x))
    assert bool((mirrored ^ same).all())
    assert 5 < int(mirrored.sum()) < 35


def test_images_move_by_at_most_the_shift_with_zeros_moved_in():
    x, shift = torch.rand(60, 2, 6, 5, generator=seeded(0)) + 0.1, 2
    changed = augment(x, shift=shift, hole=0, generator=seeded(1))
    found = torch.zeros(60, dtype=torch.int64)
    for image, down, right in product((x, x.flip(3)), range(2 * shift + 1), range(2 * shift + 1)):
        moved = F.pad(image, (shift,) * 4)[:, :, down : down + 6, right : right + 5]
        found += (changed == moved).flatten(1).all(1)
    assert bool((found == 1).all())


@pytest.mark.parametrize("hole", [1, 2, 3, 4])
def test_a_square_is_blanked_in_all_channels(hole):
    x = torch.rand(80, 3, 9, 7, generator=seeded(0)) + 0.1
    blank = augment(x, shift=0, hole=hole, generator=seeded(1)) == 0
    assert bool((blank == blank[:, :1]).all())
    rows, columns = blank[:, 0].any(2).sum(1), blank[:, 0].any(1).sum(1)
    assert torch.equal(blank[:, 0].sum((1, 2)), rows * columns)  # a rectangle
    assert int(rows.max()) == int(columns.max()) == hole
    assert int(rows.min()) >= 1  # its centre is on the image


def test_same_generator_same_changes_and_images_stay_as_they_were():
    x = torch.rand(10, 3, 8, 8, generator=seeded(0))
    before = x.clone()
    a, b, c = (augment(x, shift=2, hole=3, generator=seeded(number)) for number in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(x, before)


# The recipe


def test_the_rate_rises_and_falls_once():
    recipe = NINRecipe(learning_rate=0.4, rise=0.25)
    rates = [recipe.rate(i / 1000) for i in range(1001)]
    assert rates[0] == 0
    assert recipe.rate(0.125) == pytest.approx(0.2)
    assert recipe.rate(0.25) == max(rates) == 0.4
    assert recipe.rate(0.625) == pytest.approx(0.2)
    assert recipe.rate(1.0) == recipe.rate(1.5) == pytest.approx(0, abs=1e-12)
    assert rates[:251] == sorted(rates[:251])
    assert rates[250:] == sorted(rates[250:], reverse=True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"minutes": 0.0}, "minutes and learning_rate must be positive, got 0.0 and 0.1"),
        ({"learning_rate": math.nan}, "got 120.0 and nan"),
        ({"rise": 1.0}, "rise must be a share between 0 and 1, got 1.0"),
        ({"batch_size": 3}, "parts must be at least 1 and batch_size at least 2 for each of them, got 2 and 3"),
        ({"parts": 0}, "got 0 and 128"),
        ({"hole": -1}, "shift and hole must be at least 0, got 4 and -1"),
    ],
)
def test_wrong_recipes_are_rejected(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        NINRecipe(**options)


RECIPE = NINRecipe(minutes=1.0, width=12, batch_size=32, shift=1, hole=2, parts=1, learning_rate=0.05)
QUIET = Console(quiet=True)


def stripes(n: int, seed: int) -> Samples:
    """Noisy images of three kinds: stripes across, stripes down, and none."""
    y = torch.arange(n) % 3
    wave = (torch.arange(8) % 2).float() - 0.5
    kinds = torch.stack([wave[:, None].expand(8, 8), wave[None].expand(8, 8), torch.zeros(8, 8)])
    noise = torch.rand(n, 3, 8, 8, generator=seeded(seed)) * 0.4
    return Samples((kinds[y][:, None] * 0.6 + 0.3 + noise).clamp(0, 1), y)


def ticks(*, seconds: float, stop_after: int | None = None) -> Callable[[], float]:
    """A clock that moves on whenever it is read, and is interrupted after so many readings."""
    readings = numbers()

    def clock() -> float:
        reading = next(readings)
        if reading == stop_after:
            raise KeyboardInterrupt
        return reading * seconds

    return clock


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "nin.safetensors"
    summary = train_nin(stripes(160, 0), stripes(90, 1), out, recipe=RECIPE, console=QUIET, clock=ticks(seconds=1.0))
    return out, summary


def test_training_learns_and_reports(trained):
    out, summary = trained
    assert summary.accuracy > 0.8
    assert sorted(p.name for p in out.parent.iterdir()) == ["nin.json", "nin.safetensors"]
    assert results.load(out.with_suffix(".json"), TrainedNIN) == summary
    network = load_weights(summary.recipe.network(channels=summary.channels, classes=summary.classes), out)
    assert Classifier(network, mean=summary.mean, std=summary.std).accuracy(stripes(90, 1)) == summary.accuracy
    assert sum(e.seconds for e in summary.history) == 60
    assert [e.images for e in summary.history] == [160] * 12  # five batches of 32 per epoch, one second each
    assert str(summary).startswith(
        f"NIN of width 12 classifies {summary.accuracy:.2%} of 90 test images correctly, after 12.0 passes"
    )


def test_the_clock_cuts_the_last_epoch_short(tmp_path):
    recipe = replace(RECIPE, minutes=0.2)
    summary = train_nin(
        stripes(160, 0),
        stripes(30, 1),
        tmp_path / "n.safetensors",
        recipe=recipe,
        console=QUIET,
        clock=ticks(seconds=1),
    )
    assert [(e.images, e.seconds) for e in summary.history] == [(160, 5), (160, 5), (64, 2)]


@pytest.mark.parametrize("stop_after", [3, 17, 33])
def test_a_stopped_training_resumes_to_the_same_weights(trained, tmp_path, stop_after):
    out, summary = trained
    again = tmp_path / "nin.safetensors"
    options = {"recipe": RECIPE, "console": QUIET}
    clock = ticks(seconds=1.0, stop_after=stop_after)
    with pytest.raises(KeyboardInterrupt):
        train_nin(stripes(160, 0), stripes(90, 1), again, **options, clock=clock)
    assert not again.exists()
    assert (tmp_path / "nin.checkpoint.safetensors").exists() == (stop_after > 6)
    assert train_nin(stripes(160, 0), stripes(90, 1), again, **options, clock=ticks(seconds=1.0)) == summary
    first, second = load_file(out), load_file(again)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_parts_of_a_batch_in_parallel_give_the_same_weights_every_time(tmp_path):
    threads = torch.get_num_threads()
    recipe = replace(RECIPE, parts=3, dropout=0.0)
    data = stripes(160, 0), stripes(90, 1)
    files = [tmp_path / f"{i}.safetensors" for i in range(2)]
    first, second = (train_nin(*data, out, recipe=recipe, console=QUIET, clock=ticks(seconds=1.0)) for out in files)
    assert first == second
    assert files[0].read_bytes() == files[1].read_bytes()
    assert first.accuracy > 0.8
    assert torch.get_num_threads() == threads


def test_a_step_of_parts_follows_the_mean_gradient_of_the_batch(tmp_path):
    """On a batch made of one half twice, a part is normalised as the whole is, so both give one gradient."""
    half = stripes(12, 0)
    both = Samples(torch.cat([half.x, half.x]), torch.cat([half.labels, half.labels]))
    weights = []
    for parts in (1, 2):
        recipe = replace(RECIPE, parts=parts, dropout=0.0)
        state = _State(recipe, both, {}, path=tmp_path / "none")
        with _in_parallel(parts) as compute:
            loss, hits = _step(state, compute, both.x, both.labels, 0.1)
        weights.append((loss, hits, *state.learner.parameters()))
    assert weights[0][0] == pytest.approx(weights[1][0], rel=1e-5)
    assert weights[0][1] == weights[1][1]
    for whole, dealt in zip(weights[0][2:], weights[1][2:], strict=True):
        torch.testing.assert_close(whole, dealt, rtol=1e-3, atol=1e-5)


def test_a_step_in_half_the_bits_follows_nearly_the_same_gradient_and_keeps_weights_whole(tmp_path):
    batch, moved = stripes(24, 0), []
    for bfloat16 in (False, True):
        recipe = replace(RECIPE, dropout=0.0, bfloat16=bfloat16)
        state = _State(recipe, batch, {}, path=tmp_path / "none")
        before = [p.detach().clone() for p in state.learner.parameters()]
        with _in_parallel(1) as compute:
            _step(state, compute, batch.x, batch.labels, 0.1)
        after = list(state.learner.parameters())
        assert all(p.dtype == torch.float32 for p in after)
        moved.append(torch.cat([(p - b).detach().flatten() for p, b in zip(after, before, strict=True)]))
    assert not torch.equal(*moved)
    assert torch.cosine_similarity(*moved, dim=0) > 0.95


def test_a_finished_training_is_not_repeated(trained):
    out, summary = trained
    stopped = ticks(seconds=1.0, stop_after=0)
    assert train_nin(stripes(160, 0), stripes(90, 1), out, recipe=RECIPE, console=QUIET, clock=stopped) == summary
    for train, recipe, what in [
        (stripes(160, 0), replace(RECIPE, width=6), "another recipe"),
        (stripes(160, 5), RECIPE, "another set of training images"),
    ]:
        with pytest.raises(
            ValueError, match=rf"nin.json describes a finished training with {what}; choose a new --out"
        ):
            train_nin(train, stripes(90, 1), out, recipe=recipe, console=QUIET, clock=stopped)


def test_the_state_of_another_training_is_rejected(tmp_path):
    out, state = tmp_path / "nin.safetensors", tmp_path / "nin.checkpoint.safetensors"
    data = stripes(160, 0), stripes(90, 1)
    with pytest.raises(KeyboardInterrupt):
        train_nin(*data, out, recipe=RECIPE, console=QUIET, clock=ticks(seconds=1.0, stop_after=9))
    with pytest.raises(
        ValueError, match=r"checkpoint.safetensors holds a training with another recipe; resume it with"
    ):
        train_nin(*data, out, recipe=replace(RECIPE, seed=1), console=QUIET)
    with pytest.raises(ValueError, match="holds a training with another set of training images; resume it with"):
        train_nin(stripes(160, 5), data[1], out, recipe=RECIPE, console=QUIET)
    state.write_bytes(state.read_bytes()[:-50])
    with pytest.raises(ValueError, match="is damaged or not a checkpoint of a training"):
        train_nin(*data, out, recipe=RECIPE, console=QUIET)
    save_file({"a": torch.zeros(1)}, state)
    with pytest.raises(ValueError, match='is not an "operant training of NIN, format 1"'):
        train_nin(*data, out, recipe=RECIPE, console=QUIET)


def test_what_cannot_be_trained_is_rejected(tmp_path):
    data = stripes(160, 0), stripes(90, 1)
    with pytest.raises(ValueError, match=r"out must be named \*.safetensors, got .*weights.json"):
        train_nin(*data, tmp_path / "weights.json", recipe=RECIPE, console=QUIET)
    wild = replace(RECIPE, learning_rate=1e30)
    with pytest.raises(ValueError, match="the loss became (nan|inf); try a lower learning_rate"):
        train_nin(*data, tmp_path / "w.safetensors", recipe=wild, console=QUIET, clock=ticks(seconds=1.0))
    with pytest.raises(ValueError, match="carry no labels"):
        train_nin(Samples(data[0].x), data[1], tmp_path / "w.safetensors", recipe=RECIPE, console=QUIET)


# The command


def test_the_command_trains_on_cifar10_and_writes_beside_the_weights(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    y = np.arange(40) % 10
    np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    out = tmp_path / "nin.safetensors"
    words = [
        "--data",
        str(tmp_path),
        "--out",
        str(out),
        "--minutes",
        "0.0001",
        "--width",
        "6",
        "--bfloat16",
    ]
    for _ in range(2):  # the second time it is finished
        ended = CliRunner().invoke(app, words)
        assert ended.exit_code == 0, ended.output
        assert "NIN of width 6 classifies" in ended.output
    summary = results.load(out.with_suffix(".json"), TrainedNIN)
    assert (summary.train_images, summary.classes, summary.mean, summary.std) == (40, 10, CIFAR_MEAN, CIFAR_STD)
    assert (summary.recipe.width, summary.recipe.bfloat16) == (6, True)


def test_the_command_says_why_it_cannot_run(tmp_path):
    out = str(tmp_path / "nin.safetensors")
    ended = CliRunner().invoke(app, ["--data", str(tmp_path), "--out", out])
    assert ended.exit_code == 2
    assert "cannot run: no cifar10 under" in ended.output
