"""A retraining that is killed and resumed ends the same: weights, record and random streams.

Run as a script this file is a retraining that is killed while it writes its state for the third time.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, wraps
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from operant import Classifier, Samples, spawn
from operant.networks import initialise
from operant.retrain import Finetune, OperationalFinetune, Retrained, TrainableModel, pmi_monitor
from operant.retrain._checkpoint import Checkpoint
from operant.rng import global_streams, put_streams, streams_now
from operant.types import Monitor

IMAGES = Samples(torch.rand(100, 2, 8, 8, generator=spawn(1)), torch.arange(100) % 3)
TRAIN, CASES, VALIDATION, FIELD = IMAGES[:36], IMAGES[36:56], IMAGES[56:76], IMAGES[76:]
WEIGHTS = torch.rand(20, generator=spawn(2)) + 0.1
ROWS = {"train": TRAIN, "cases": CASES, "validation": VALIDATION, "weights": WEIGHTS}


class Net(nn.Module):
    """Convolutions, batch norm and dropout; and it counts its batches where no state dict shows it."""

    def __init__(self, last: int = 10**6) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Dropout(0.3), nn.Flatten()
        )
        self.head = nn.Linear(64, 3)
        self.unused = nn.Linear(2, 2)  # an optimiser remembers nothing of it
        self.last = last
        self.register_buffer("met", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.met = self.met + 1
        z: Tensor = self.head(self.layers(x))
        return z * float("nan") if int(self.met) > self.last else z


@cache
def start(last: int = 10**6) -> Classifier:
    module = initialise(lambda: Net(last), generator=spawn(0, "weights"))
    model = Classifier(module, mean=0.4, std=[0.5, 0.6], strict=True)
    model._channels_last = True  # so that weights are kept in another order while learning
    return model


def loss(model: Classifier) -> float:
    return float(cross_entropy(model.batched_logits(FIELD.x), FIELD.labels))


def noisy(model: Classifier) -> float:
    """Draws from both global streams, of numpy's one of a pair."""
    return loss(model) + 0.2 * float(torch.rand(())) + 0.1 * np.random.standard_normal()  # noqa: NPY002


def rising(model: Classifier) -> float:
    """How far the weights have moved."""
    pairs = zip(model.unwrap().parameters(), start().unwrap().parameters(), strict=True)
    return float(sum((a - b).detach().square().sum() for a, b in pairs))


PLAIN = OperationalFinetune(
    epochs=3,
    batch_size=16,
    steps=3,
    learning_rate=0.01,
    patience=None,
    max_drop=1,
    must_improve=False,
    progress=False,
)
SETTINGS = {
    "adam": PLAIN,
    "sgd": replace(PLAIN, optimiser="sgd", case_share=None),
    "adam averaged": replace(PLAIN, ema=0.8, inner="n-fgsm", radius=0.05),
    "sgd averaged": replace(PLAIN, optimiser="sgd", ema=0.6, inner="rs-fgsm", radius=0.05, consistency=1.0),
    "guarded": replace(PLAIN, must_improve=True, max_drop=0.05),
    "patient": replace(PLAIN, patience=1),
    "diverging": PLAIN,
}
MONITORS: dict[str, Monitor] = {"guarded": pmi_monitor(FIELD), "patient": rising}  # else noisy


def tune(name: str, generator: torch.Generator, monitor: Monitor | None = None, **options: Any) -> Retrained:
    monitor = MONITORS.get(name, noisy) if monitor is None else monitor
    model = start(4 if name == "diverging" else 10**6)
    return SETTINGS[name](model, **ROWS, monitor=monitor, generator=generator, **options)


@cache
def undisturbed(name: str) -> tuple[Retrained, Tensor]:
    """Without a file; and the generator's state after it."""
    generator = spawn(5)
    return tune(name, generator), generator.get_state()


def same(done: Retrained, generator: torch.Generator, name: str) -> bool:
    expected, state = undisturbed(name)
    a, b = (dict([*m.named_parameters(), *m.named_buffers()]) for m in (done.model._plain, expected.model._plain))
    weights = a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
    return weights and done.record == expected.record and torch.equal(generator.get_state(), state)


class Killed(Exception):
    """As far as a kill can be had inside a process."""


def dying(function: Callable[..., Any], at: int, *, after: bool = False) -> Callable[..., Any]:
    """The function until its call number ``at``, which dies before or after its work."""
    calls = count(1)

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        last = next(calls) == at
        if last and not after:
            raise Killed
        value = function(*args, **options)
        if last:
            raise Killed
        return value

    return call


def deaths(name: str, file: Path) -> Iterator[None]:
    """A retraining that dies in each epoch: while it learns, and when that is on disk."""
    for k in count(1):
        moments: list[tuple[type, str, Callable[..., Any]]] = [
            (TrainableModel, "descend", dying(TrainableModel.descend, 3 * k - 1)),
            (Checkpoint, "write", dying(Checkpoint.write, k, after=True)),
        ]
        for kind, method, deadly in moments:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(kind, method, deadly)
                try:
                    tune(name, spawn(5), checkpoint=file)
                except Killed:
                    yield
                else:
                    return


# Killed and resumed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTINGS)
def test_killed_at_any_moment_and_resumed_it_ends_the_same(name: str, tmp_path: Path) -> None:
    file, kills = tmp_path / "state.safetensors", 0
    for _ in deaths(name, file):
        kills += 1
        for _ in range(2):  # the second time all epochs are there, or all but the one that diverges
            generator = spawn(5)
            assert same(tune(name, generator, checkpoint=file), generator, name)
        file.unlink()
    assert kills == {"patient": 4, "diverging": 3}.get(name, 6)
    assert list(tmp_path.iterdir()) == [file]  # of the last one, which nobody killed


@pytest.mark.parametrize("name", ["adam", "sgd", "sgd averaged", "patient"])
def test_killed_by_the_monitor_in_every_epoch_in_turn(name: str, tmp_path: Path) -> None:
    """Each time it comes one epoch further, and the last time it ends."""
    file, monitor = tmp_path / "deep" / "state.safetensors", MONITORS.get(name, noisy)
    epochs = len(undisturbed(name)[0].record.history)
    for finished in range(1, epochs):
        with pytest.raises(Killed):
            tune(name, spawn(5), dying(monitor, 2), checkpoint=file)
        assert len(state_of(file)["history"]) == finished
    generator = spawn(5)
    assert same(tune(name, generator, dying(monitor, 2), checkpoint=file), generator, name)


def state_of(file: Path) -> dict[str, Any]:
    with safe_open(file, "pt") as opened:
        state: dict[str, Any] = json.loads(opened.metadata()["state"])
    return state


@pytest.mark.slow
def test_killed_with_sigkill_while_writing(tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"
    script = [sys.executable, str(Path(__file__).resolve()), str(file)]
    assert subprocess.run(script, timeout=120, check=False).returncode == -signal.SIGKILL
    assert len(state_of(file)["history"]) == 2
    assert len(list(tmp_path.iterdir())) == 2  # and what was being written
    generator = spawn(5)
    assert same(tune("sgd averaged", generator, checkpoint=file), generator, "sgd averaged")


def killed_while_writing(file: str) -> None:
    flushed = count(1)

    def flush(_: int) -> None:
        if next(flushed) == 5:  # a file and its folder for each epoch
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = flush
    tune("sgd averaged", spawn(5), checkpoint=file)


# What the matrix above is made of -------------------------------------------------------------------------------------


def test_the_settings_are_what_they_are_called() -> None:
    done = {name: undisturbed(name)[0].record for name in SETTINGS}
    assert not undisturbed("adam")[0].model.channels_last
    assert not next(
        c for c in TrainableModel(start(), optimiser="sgd", learning_rate=1.0).module.parameters()
    ).is_contiguous()
    assert (len(done["patient"].history), done["patient"].best_epoch, done["patient"].stopped_early) == (2, 1, True)
    assert (len(done["diverging"].history), done["diverging"].best_epoch) == (1, 0)
    assert "the loss became nan in epoch 2" in done["diverging"].reason
    assert all(len(done[name].history) == 3 for name in ("adam", "sgd", "adam averaged", "sgd averaged", "guarded"))
    assert len({record.best_epoch for record in done.values()}) > 2


def test_the_file_changes_nothing_and_the_streams_stay_as_they_are(tmp_path: Path) -> None:
    torch.random.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    before = streams_now()
    generator = spawn(5)
    assert same(tune("adam", generator, checkpoint=str(tmp_path / "state.safetensors")), generator, "adam")
    assert all(torch.equal(values, before[name]) for name, values in streams_now().items())


def test_streams_resume_where_they_were() -> None:
    def drawn() -> list[float]:
        numbers = np.random.standard_normal(3).tolist()  # noqa: NPY002
        return [*numbers, *torch.rand(5).tolist(), *torch.randn(3).tolist()]

    with global_streams(spawn(0)):
        drawn()
        states = streams_now()
        expected = drawn()
    with global_streams(spawn(1)):
        assert drawn() != expected
        put_streams(states)
        assert drawn() == expected


# Rejected files ------------------------------------------------------------------------------------------------------


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The file of a retraining that was killed in its third epoch."""
    file = tmp_path / "state.safetensors"
    with pytest.raises(Killed):
        tune("sgd averaged", spawn(5), dying(noisy, 3), checkpoint=file)
    return file


def test_no_byte_of_the_file_can_change_unnoticed(left: Path) -> None:
    whole = left.read_bytes()
    step = len(whole) // 40
    for i in [*range(0, 40, 3), *range(40, len(whole), step), len(whole) - 1]:
        left.write_bytes(whole[:i] + bytes([whole[i] ^ 0x11]) + whole[i + 1 :])
        assert_rejected(left)
    for n in [0, 1, 7, 8, 100, len(whole) // 2, len(whole) - 1]:
        left.write_bytes(whole[:n])
        assert_rejected(left)
    left.write_bytes(whole)
    generator = spawn(5)
    assert same(tune("sgd averaged", generator, checkpoint=left), generator, "sgd averaged")


def assert_rejected(file: Path) -> None:
    generator, content = spawn(5), file.read_bytes()
    with pytest.raises(ValueError) as error:
        tune("sgd averaged", generator, checkpoint=file)
    assert str(error.value).startswith(f"{file} ")
    assert "delete it to restart the retraining" in str(error.value)
    assert torch.equal(generator.get_state(), spawn(5).get_state())
    assert file.read_bytes() == content


def test_a_file_of_something_else_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_file(start().unwrap().state_dict(), file)
    with pytest.raises(ValueError, match="weights.safetensors is not the state of a retraining"):
        tune("adam", spawn(5), checkpoint=file)


def less_dropout() -> nn.Module:
    module = start().unwrap()
    module.get_submodule("layers.4").p = 0.1
    return module


@pytest.mark.parametrize(
    ("options", "change", "names"),
    [
        ({"epochs": 5}, {}, "epochs"),
        ({"ema": 0.5, "consistency": 2.0}, {}, "consistency, ema"),
        ({"optimiser": "adam"}, {}, "optimiser"),
        ({}, {"monitor": loss}, "monitor"),
        ({}, {"monitor": pmi_monitor(FIELD)}, "monitor"),
        ({}, {"model": start().rewrap(initialise(Net, generator=spawn(1)))}, "model"),
        ({}, {"model": start().rewrap(less_dropout())}, "model"),
        ({}, {"model": Classifier(start().unwrap(), strict=True)}, "model"),  # without mean and std
        ({}, {"train": TRAIN[:35]}, "train, weights or seeds"),
        ({}, {"train": Samples(TRAIN.x, 2 - TRAIN.labels, TRAIN.ids)}, "train"),
        ({}, {"cases": CASES[list(range(19, -1, -1))]}, "cases"),
        ({}, {"validation": VALIDATION[1:]}, "validation"),
        ({}, {"weights": None}, "weights or seeds"),
        ({}, {"generator": spawn(6)}, "generator"),
    ],
)
def test_the_file_of_another_retraining_is_rejected(
    left: Path, options: dict[str, Any], change: dict[str, Any], names: str
) -> None:
    content = left.read_bytes()
    other = {"model": start(), **ROWS, "monitor": noisy, "generator": spawn(5), **change}
    with pytest.raises(ValueError) as error:
        replace(SETTINGS["sgd averaged"], **options)(**other, checkpoint=left)
    assert str(error.value) == (
        f"{left} holds the state of another retraining, which differs in {names}; call with the same "
        "arguments to resume it, or delete it to start again"
    )
    assert left.read_bytes() == content


def test_how_progress_is_shown_does_not_matter(left: Path) -> None:
    generator = spawn(5)
    settings = replace(SETTINGS["sgd averaged"], progress=True)
    done = settings(start(), **ROWS, monitor=noisy, generator=generator, checkpoint=left)
    assert same(done, generator, "sgd averaged")


if __name__ == "__main__":
    torch.set_num_threads(1)
    killed_while_writing(sys.argv[1])


# The plain one --------------------------------------------------------------------------------------------------------

PLAIN_ROWS = {name: ROWS[name] for name in ("train", "cases", "validation")}


def plain(generator: torch.Generator, **options: Any) -> Retrained:
    finetune = Finetune(epochs=4, batch_size=16, optimiser="sgd", learning_rate=0.01, max_drop=1, progress=False)
    return finetune(start(), **PLAIN_ROWS, monitor=noisy, generator=generator, **options)


@pytest.mark.parametrize("at", range(1, 5))
@pytest.mark.parametrize("after", [False, True])
def test_plain_finetuning_resumes_after_its_last_epoch(at: int, after: bool, tmp_path: Path) -> None:
    expected, epochs = plain(spawn(5)), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "write", dying(Checkpoint.write, at, after=after))
        with pytest.raises(Killed):
            plain(spawn(5), checkpoint=tmp_path / "state", on_epoch=epochs.append)
    done = plain(spawn(5), checkpoint=tmp_path / "state", on_epoch=epochs.append)
    assert done.record == expected.record
    assert torch.equal(parameters(done.model), parameters(expected.model))
    skipped = at if after else None  # interrupted after the write, before the callback
    assert [e.epoch for e in epochs] == [e for e in range(1, 5) if e != skipped]


def parameters(model: Classifier) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.unwrap().parameters()])


def test_plain_finetuning_rejects_the_state_of_another(tmp_path: Path) -> None:
    plain(spawn(5), checkpoint=tmp_path / "state")
    with pytest.raises(ValueError, match="another retraining, which differs in generator"):
        plain(spawn(6), checkpoint=tmp_path / "state")
