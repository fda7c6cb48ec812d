"""The state of a retraining in a file, so that an interrupted one resumes after its last finished epoch."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from operant.files import check_regular
from operant.model import Classifier, copy_module
from operant.model.hashing import described, tensors_of
from operant.results import write_atomically
from operant.retrain.training import TrainableModel
from operant.rng import restore_streams, stream_states
from operant.suite.shards import digest

KIND = "operant retraining, format 1"
STATE_KEYS = {torch.optim.SGD: ("momentum_buffer",), torch.optim.Adam: ("step", "exp_avg", "exp_avg_sq")}


E = TypeVar("E")  # a finished epoch: a frozen dataclass with at least ``epoch``, its number, and ``kept``


class Checkpoint(Generic[E]):
    """The state after each epoch in one file; without a path, nothing is saved.

    The constructor restores an existing file: weights, averaged weights, optimiser, generator and history. Call
    `resume_streams` to restore the global random streams, once they belong to the retraining.

    ``identity``, the options and inputs by name, identifies the retraining; the file of another is rejected. The
    history consists of values of the type ``entry``.
    """

    def __init__(
        self,
        path: str | Path | None,
        identity: Mapping[str, object],
        entry: type[E],
        *,
        trainable: TrainableModel,
        average: nn.Module | None,
        generator: torch.Generator,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.trainable, self.average, self.generator = trainable, average, generator
        self.history: list[E] = []  # finished epochs
        self.kept: Classifier | None = None  # the best model so far; None for the original one
        self._entry, self._streams = entry, dict[str, Tensor]()
        if self.path is not None:
            self._identity = {name: described(value) for name, value in identity.items()}
            if self.path.exists():
                self._resume(self.path)

    def write(self, kept: Classifier | None) -> None:
        """Write the state and the best model so far; if interrupted, the file still holds the epoch before."""
        if self.path is None:
            return
        tensors = _prefixed("trainable", tensors_of(self.trainable.module)) | self._optimiser()
        if self.average is not None:
            tensors |= _prefixed("average", tensors_of(self.average))
        if kept is not None:
            tensors |= _prefixed("kept", tensors_of(kept.unwrap()))
        tensors |= _prefixed("streams", {"generator": self.generator.get_state(), **stream_states()})
        state = json.dumps({"identity": self._identity, "history": [_page(e) for e in self.history]})
        apart = {name: v.detach().cpu().clone(memory_format=torch.contiguous_format) for name, v in tensors.items()}
        metadata = {"kind": KIND, "state": state, "digest": _digest(apart, state)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, save(apart, metadata))

    def resume_streams(self) -> None:
        """Restore the generator and the global random streams after the last finished epoch."""
        if self._streams:
            with self._fitting():
                self.generator.set_state(self._streams["generator"])
                restore_streams(self._streams)

    def _resume(self, path: Path) -> None:
        tensors, state = _read(path)
        if state["identity"] != self._identity:
            names = {**state["identity"], **self._identity}
            other = [name for name in names if state["identity"].get(name) != self._identity.get(name)]
            differs = f"{path} holds the state of another retraining, which differs in {', '.join(other)}"
            raise ValueError(f"{differs}; call with the same arguments to resume it, or delete it to start again")
        with self._fitting():
            self._restore_all(tensors, state)

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Name the file in errors: a correct checksum does not make its content right."""
        try:
            yield
        except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            raise ValueError(f"{self.path} does not fit this retraining ({error}); delete it to restart") from None

    def _restore_all(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        self.history += _entries(state["history"], self._entry)
        _restore(self.trainable.module, _below("trainable", tensors))
        if self.average is not None:
            _restore(self.average, _below("average", tensors))
        best = _below("kept", tensors)
        if bool(best) != any(_page(epoch)["kept"] for epoch in self.history):
            raise ValueError("it must hold the best weights if, and only if, an epoch was kept")
        if best:
            module = copy_module(self.trainable.module)
            _restore(module, best)
            self.kept = self.trainable.classifier(module)
        self._restore_optimiser(_below("optimiser", tensors))
        self._streams = _below("streams", tensors)
        self.generator.set_state(self._streams["generator"])

    def _optimiser(self) -> dict[str, Tensor]:
        """The optimiser's tensors for each parameter: momentum, or moments and their number of steps."""
        state = self.trainable.optimizer.state
        return {
            f"optimiser/{key}/{name}": value
            for name, p in self.trainable.module.named_parameters()
            for key, value in state.get(p, {}).items()
            if isinstance(value, Tensor)
        }

    def _restore_optimiser(self, tensors: Mapping[str, Tensor]) -> None:
        parameters = dict(self.trainable.module.named_parameters())
        keys = STATE_KEYS[type(self.trainable.optimizer)]
        for name in {name.partition("/")[2] for name in tensors}:
            p = parameters[name]
            for key in keys:
                value = tensors[f"{key}/{name}"]
                shape, dtype = ((), torch.float32) if key == "step" else (p.shape, p.dtype)
                if value.shape != shape or value.dtype != dtype:
                    raise ValueError(f"{key} of {name} must be {dtype} of shape {tuple(shape)}, got {_kind(value)}")
                if key != "step":  # fused steps need the memory layout of the parameter
                    value = torch.empty_like(p, requires_grad=False).copy_(value)
                self.trainable.optimizer.state[p][key] = value.to(p.device)


def finished_epochs(path: str | Path) -> int:
    """Number of epochs whose state a file holds; 0 if there is no such file, or it is of another kind."""
    try:
        with safe_open(path, "pt") as opened:
            return len(json.loads((opened.metadata() or {})["state"])["history"])
    except (OSError, SafetensorError, ValueError, LookupError, RuntimeError, TypeError, RecursionError):
        return 0  # whoever resumes from it says what is wrong with it


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    return digest({name: values.flatten() for name, values in tensors.items()}, text)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the state of a file; raises ValueError if they are not what was written."""
    restart = "delete it to restart the retraining"
    check_regular(path)
    try:
        with safe_open(path, "pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, LookupError, RuntimeError, TypeError) as error:
        raise ValueError(f"{path} is damaged or not the state of a retraining ({error}); {restart}") from None
    if metadata.get("kind") != KIND:
        raise ValueError(f'{path} is not the state of a retraining: its kind is not "{KIND}"; move it, or {restart}')
    if _digest(tensors, metadata.get("state", "")) != metadata.get("digest"):
        raise ValueError(f"{path} has changed since it was written (its checksum differs); {restart}")
    try:
        state: dict[str, Any] = json.loads(metadata["state"])
        if not isinstance(state["identity"], dict) or not isinstance(state["history"], list):
            raise ValueError("it has no identity or no history")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not the state of a retraining ({error}); {restart}") from None
    return tensors, state


@torch.no_grad()
def _restore(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    for name, old in tensors_of(module).items():
        new = tensors[name]
        if new.shape != old.shape or new.dtype != old.dtype:
            raise ValueError(f"{name} must be {_kind(old)}, got {_kind(new)}")
        old.copy_(new)


def _kind(values: Tensor) -> str:
    return f"{values.dtype} of shape {tuple(values.shape)}"


def _entries(pages: list[Any], entry: type[E]) -> list[E]:
    """The finished epochs, with every value of its type."""
    epochs, types = [entry(**page) for page in pages], get_type_hints(entry)
    for number, epoch in enumerate(epochs, 1):
        values = _page(epoch)
        if values["epoch"] != number or not all(type(value) is types[name] for name, value in values.items()):
            raise ValueError(f"its epoch {number} is {epoch!s:.80}")
    return epochs


def _page(epoch: Any) -> dict[str, Any]:
    return asdict(epoch)


def options_of(options: Any) -> dict[str, object]:
    """The fields of a dataclass of options that identify a retraining: all but ``progress``."""
    return {f.name: getattr(options, f.name) for f in fields(options) if f.name != "progress"}


def _prefixed(word: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{word}/{name}": values for name, values in tensors.items()}


def _below(word: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(f"{word}/"): v for n, v in tensors.items() if n.startswith(f"{word}/")}
