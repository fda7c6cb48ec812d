"""Rounds: predictions and attacks in chunks are the same on any engine, and finished ones are only read."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from operant import Classifier, Samples, spawn
from operant.activity import showing
from operant.execution.chunked_fuzzing import ChunkedFuzzer, ChunkedFuzzing, InMemory
from operant.execution.engines import Engine, serial
from operant.execution.events import Event, ignore
from operant.execution.interrupt import Interrupted
from operant.execution.round_state import RoundState
from operant.execution.run_folder import RunFolder
from operant.generate import PGD
from operant.retrain import Finetune

SOME = Samples(torch.rand(70, 3, generator=spawn(0, "some")), torch.arange(70) % 2)


def model() -> Classifier:
    network = nn.Linear(3, 2)
    network.weight.data = torch.tensor([[1.0, -1.0, 0.5], [0.0, 0.2, -0.3]])
    network.bias.data = torch.tensor([-0.1, 0.1])
    return Classifier(network)


def backwards(work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """An engine that runs the last item first."""
    yield from reversed([(i, work(item)) for i, item in enumerate(items)])


def idle(work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """An engine for when nothing is left to do."""
    assert not list(items)
    yield from ()


def pressing(work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """An engine during whose second item Ctrl-C is pressed."""
    for i, item in enumerate(items):
        if i == 1:
            signal.raise_signal(signal.SIGINT)
        yield i, work(item)


def state(run: RunFolder, engine: Engine) -> RoundState:
    return RoundState(run, model(), clean=SOME[:5], max_drop=1.0, seed=0, engine=engine, on_event=ignore)


def test_a_resumed_retraining_reports_how_far_it_is_before_it_trains(tmp_path: Path) -> None:
    seen: list[tuple[int, tuple[str, ...]]] = []

    def retrain(stop: int) -> None:
        def on_event(event: Event) -> None:
            assert watcher is not None
            seen.append((event.done, tuple(work.what for work in watcher.running)))
            if event.done == stop:
                raise KeyboardInterrupt

        with showing(None) as watcher, RunFolder(tmp_path, signature={}) as run:
            rounds = state(run, serial)
            rounds.on_event, rounds.learned = on_event, SOME[5:10]
            retrainer = Finetune(epochs=4, batch_size=16)
            rounds.retrain(retrainer, SOME[10:], monitor=None, generator=rounds.spawn("retrain"))

    with pytest.raises(KeyboardInterrupt):
        retrain(stop=2)
    assert [done for done, _ in seen] == [0, 1, 2]
    seen.clear()
    retrain(stop=-1)
    assert [done for done, _ in seen] == [2, 3, 4, 4]
    assert seen[0][1] == ()
    assert "training" in seen[1][1]


@pytest.mark.parametrize("engine", [serial, backwards])
@pytest.mark.parametrize("chunk", [1, 16, 70, 100])
def test_predictions_are_the_models_and_are_computed_once(tmp_path: Path, engine: Engine, chunk: int) -> None:
    expected = model().predict(SOME.x)
    with RunFolder(tmp_path, signature={}) as run:
        assert torch.equal(state(run, engine).predictions(SOME, chunk=chunk), expected)
        assert torch.equal(state(run, idle).predictions(SOME, chunk=chunk), expected)
        assert len(list((tmp_path / "round-000").glob("predictions-*.json"))) == -(-70 // chunk)


def test_finished_predictions_are_read(tmp_path: Path) -> None:
    with RunFolder(tmp_path, signature={}) as run:
        first = state(run, serial).predictions(SOME, chunk=16)
        (tmp_path / "round-000" / "predictions-002.json").unlink()
        asked: list[int] = []

        def counting(work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
            for i, item in enumerate(items):
                asked.append(len(item))
                yield i, work(item)

        assert torch.equal(state(run, counting).predictions(SOME, chunk=16), first)
    assert asked == [16]


def test_no_inputs_give_no_predictions(tmp_path: Path) -> None:
    with RunFolder(tmp_path, signature={}) as run:
        assert len(state(run, serial).predictions(SOME[:0], chunk=4)) == 0


def test_predictions_of_other_inputs_are_rejected(tmp_path: Path) -> None:
    with RunFolder(tmp_path, signature={}) as run:
        state(run, serial).predictions(SOME[:20], chunk=10)
        with pytest.raises(ValueError, match=r"predictions-000.json in .* belongs to other inputs"):
            state(run, serial).predictions(SOME[10:30], chunk=10)


def test_ctrl_c_keeps_finished_predictions(tmp_path: Path) -> None:
    with RunFolder(tmp_path, signature={}) as run:
        with pytest.raises(Interrupted, match="Run again with the same folder"):
            state(run, pressing).predictions(SOME, chunk=16)
        assert len(list((tmp_path / "round-000").glob("predictions-*.json"))) == 2
        assert torch.equal(state(run, serial).predictions(SOME, chunk=16), model().predict(SOME.x))


# Attacks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [7, 35, 200])
def test_a_chunked_attack_is_the_same_on_any_engine(tmp_path: Path, size: int) -> None:
    attack = PGD(radius=0.3, steps=3)
    found = []
    with RunFolder(tmp_path, signature={}) as run:
        kept = state(run, backwards)

        def on_disk(work: ChunkedFuzzing) -> Any:
            return kept.run_chunks("attack", work)

        for way in (InMemory(serial), InMemory(backwards), on_disk):
            chunked = ChunkedFuzzer(fuzz=attack, size=size, run=way)
            found.append(chunked(model(), SOME, generator=spawn(3)))
    for suite in found[1:]:
        assert torch.equal(suite.x, found[0].x)
        assert torch.equal(suite.seed, found[0].seed)
    assert found[0].attempted == len(SOME)
    assert float((found[0].x - found[0].x0).abs().max()) <= 0.3 + 1e-6


def test_each_chunk_has_random_numbers_of_its_own() -> None:
    twice = Samples(torch.cat([SOME.x[:8], SOME.x[:8]]), torch.cat([SOME.labels[:8]] * 2), torch.arange(16))
    chunked = ChunkedFuzzer(fuzz=PGD(radius=0.2, steps=1, step_size=1e-6), size=8, run=InMemory(serial))
    suite = chunked(model(), twice, generator=spawn(4))
    x = {int(seed): row for seed, row in zip(suite.seed, suite.x, strict=True)}
    both = [i for i in range(8) if i in x and i + 8 in x]
    assert both
    assert not any(torch.equal(x[i], x[i + 8]) for i in both)
