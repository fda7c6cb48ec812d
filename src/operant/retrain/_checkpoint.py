"""The state of a retraining in a file, so that one that was killed goes on after its last finished epoch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from operant.data import Samples
from operant.model import Classifier, copy_module
from operant.model.hashing import described, tensors_of
from operant.results import write_atomically
from operant.retrain._loop import FinetuneEpoch, Learner
from operant.rng import restore_streams, stream_states
from operant.suite.shards import digest

KIND = "operant retraining, format 1"


class Checkpoint:
    """The state after each epoch in one file; without a path, none is kept.

    Made before the first epoch, it puts everything as the file has it: weights, averaged weights, optimiser, generator
    and history. The global random streams follow with `resume_streams`, once they are the retraining's own.

    Args:
        path: of the file; whether it is there decides whether the retraining begins or goes on.
        belongs: tells what the retraining is made of, by name, as text; the file of another one is refused.
        average: averaged weights, if there are any.

    Attributes:
        history: the finished epochs.
        kept: the best model so far, or the original one.
    """

    def __init__(
        self,
        path: str | Path | None,
        belongs: Callable[[], Mapping[str, str]],
        *,
        learner: Learner,
        average: nn.Module | None,
        generator: torch.Generator,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.belongs = {} if path is None else dict(belongs())
        self.learner, self.average, self.generator = learner, average, generator
        self.history: list[FinetuneEpoch] = []
        self.kept = learner.model
        self._streams: dict[str, Tensor] = {}
        if self.path is not None and self.path.exists():
            self._resume(self.path)

    def write(self, kept: Classifier) -> None:
        """Put the state on disk; a kill at any moment leaves that of the epoch before, or this one."""
        if self.path is None:
            return
        tensors = _prefixed("learner", tensors_of(self.learner.module)) | self._optimiser()
        if self.average is not None:
            tensors |= _prefixed("average", tensors_of(self.average))
        if kept is not self.learner.model:
            tensors |= _prefixed("kept", tensors_of(kept.unwrap()))
        tensors |= _prefixed("streams", {"generator": self.generator.get_state(), **stream_states()})
        words = json.dumps({"belongs": self.belongs, "history": [asdict(e) for e in self.history]})
        apart = {name: v.detach().cpu().clone(memory_format=torch.contiguous_format) for name, v in tensors.items()}
        metadata = {"kind": KIND, "words": words, "digest": _digest(apart, words)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, save(apart, metadata))

    def resume_streams(self) -> None:
        """Put the generator and the global random streams as they were after the last finished epoch."""
        if self._streams:
            self.generator.set_state(self._streams["generator"])
            restore_streams(self._streams)

    def _resume(self, path: Path) -> None:
        tensors, words = _read(path)
        if words["belongs"] != self.belongs:
            names = {**words["belongs"], **self.belongs}
            other = [name for name in names if words["belongs"].get(name) != self.belongs.get(name)]
            raise ValueError(
                f"{path} holds the state of another retraining, which differs in {', '.join(other)}; go on with what "
                "it was begun with, or delete it to begin anew"
            )
        self.history += [FinetuneEpoch(**e) for e in words["history"]]
        _put(self.learner.module, _below("learner", tensors))
        if self.average is not None:
            _put(self.average, _below("average", tensors))
        if best := _below("kept", tensors):
            module = copy_module(self.learner.module)
            _put(module, best)
            self.kept = self.learner.classifier(module)
        self._put_optimiser(_below("optimiser", tensors))
        self._streams = _below("streams", tensors)
        self.generator.set_state(self._streams["generator"])

    def _optimiser(self) -> dict[str, Tensor]:
        """What the optimiser remembers of each parameter: moments and how many steps they are of, or momentum."""
        state = self.learner.optimizer.state
        return {
            f"optimiser/{key}/{name}": value
            for name, p in self.learner.module.named_parameters()
            for key, value in state.get(p, {}).items()
            if isinstance(value, Tensor)
        }

    def _put_optimiser(self, tensors: Mapping[str, Tensor]) -> None:
        parameters = dict(self.learner.module.named_parameters())
        for name, value in tensors.items():
            key, _, of = name.partition("/")
            p = parameters[of]
            if value.shape == p.shape:  # in memory as the parameter is: fused steps go through both side by side
                value = torch.empty_like(p, dtype=value.dtype, requires_grad=False).copy_(value)
            self.learner.optimizer.state[p][key] = value.to(p.device)


def belonging(
    options: Any, model: Classifier, generator: torch.Generator, *drawn: Tensor | None, **samples: Samples
) -> dict[str, str]:
    """What a retraining is made of, by name, as text that is the same whenever that is; the rest decides nothing.

    Args:
        options: a dataclass of settings and a monitor.
        drawn: chances of the rows, and the seeds, if they matter.
    """
    return {
        **{f.name: described(getattr(options, f.name)) for f in fields(options) if f.name != "progress"},
        "model": described(model),
        **{name: described(some) for name, some in samples.items()},
        "weights or seeds": described(drawn),
        "generator": described(generator.get_state()),
    }


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    return digest({name: values.flatten() for name, values in tensors.items()}, text)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and words as they were written, or a sentence that names the file."""
    anew = "delete it to begin the retraining anew"
    try:
        with safe_open(path, "pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is torn or not the state of a retraining ({error}); {anew}") from None
    if metadata.get("kind") != KIND:
        raise ValueError(f'{path} is not the state of a retraining: it is no "{KIND}"; move it elsewhere, or {anew}')
    if _digest(tensors, metadata.get("words", "")) != metadata.get("digest"):
        raise ValueError(f"{path} has changed since it was written (its checksum differs); {anew}")
    words: dict[str, Any] = json.loads(metadata["words"])
    return tensors, words


@torch.no_grad()
def _put(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    for name, old in tensors_of(module).items():
        old.copy_(tensors[name])


def _prefixed(word: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{word}/{name}": values for name, values in tensors.items()}


def _below(word: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(f"{word}/"): v for n, v in tensors.items() if n.startswith(f"{word}/")}
