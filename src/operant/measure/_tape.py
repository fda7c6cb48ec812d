"""Records the calls of a forward pass up to a given point, so that this part need not be computed again."""

import weakref
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from operant.measure._masks import Args, Function, Kwargs


class TapeMismatch(Exception):
    """The recorded calls cannot replace the actual ones; the message says why."""


class Slot(int):
    """Stands for a tensor on the tape, by its number."""


@dataclass(frozen=True)
class Call:
    """A function with its arguments and result, slots in place of tensors.

    A call that neither takes a tensor nor returns anything sets a state (`set_grad_enabled`) and is repeated each time.
    """

    function: Function
    arguments: Any
    result: Any = None
    sets_state: bool = False


class Tape:
    """The calls of one pass up to an end point: recorded once, then played back by position.

    Every call played back must be the recorded one: the same function, the identical tensors, equal numbers. No tensor
    may be changed in place after the end point, and no tensor from outside at any time. Otherwise `TapeMismatch`.

    Tensors that nothing uses at the end point are freed, as in a pass without tape: only played-back calls take them.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.reason = ""  # for a mismatch; stored because a module may swallow the exception
        self._end: Call | None = None
        self._position = 0
        self._seen: list[weakref.ref[Tensor]] = []  # by slot, while recording
        self._kept: list[Tensor] = []  # by slot, afterwards
        self._numbers: dict[int, int] = {}  # from id to slot; the id of a freed tensor may be reused
        self._watched: list[tuple[Tensor, int]] = []  # with the version they must keep
        self._random_state = torch.get_rng_state()

    @property
    def ended(self) -> bool:
        return self._end is not None

    def rewind(self) -> None:
        """Begin the next pass."""
        self._position = 0

    def call(self, function: Function, args: Args, kwargs: Kwargs) -> Any:
        """The function's result: computed while recording, read from the tape later."""
        return self._play(function, args, kwargs) if self.ended else self._record(function, args, kwargs)

    def end(self, function: Function, args: Args, kwargs: Kwargs) -> None:
        """Mark the end point by a call that is not itself on the tape."""
        if self._end is not None:
            if self._position < len(self.calls) or not self._same(function, (args, kwargs), self._end):
                self._fail(f"{_name(function)} came earlier than in the first pass, or with another input")
            return
        self._end = Call(function, self._described((args, kwargs)))
        if not torch.equal(self._random_state, torch.get_rng_state()):
            self._fail("the module draws its own random numbers")
        self._keep_living_tensors()
        self.check()

    def check(self) -> None:
        """Raise if a tensor was changed in place."""
        if any(_version(tensor) != version for tensor, version in self._watched):
            self._fail("the module changes earlier results or its own state in place")

    def _record(self, function: Function, args: Args, kwargs: Kwargs) -> Any:
        arguments = self._described((args, kwargs))
        out = function(*args, **kwargs)
        if isinstance(out, (list, dict, set, np.ndarray)):
            self._fail(f"{_name(function)} returns a {type(out).__name__}, which could be changed unnoticed")
        for value in out if isinstance(out, tuple) else ():
            if isinstance(value, Tensor):
                self._slot(value, computed=True)
        result = self._slot(out, computed=True) if isinstance(out, Tensor) else out
        self.calls.append(Call(function, arguments, result, sets_state=out is None and not _any_slot(arguments)))
        return out

    def _play(self, function: Function, args: Args, kwargs: Kwargs) -> Any:
        if self._position == len(self.calls):
            self._fail(f"{_name(function)} came where the first pass had a dropout")
        call = self.calls[self._position]
        if not self._same(function, (args, kwargs), call):
            self._fail(f"{_name(function)} came where the first pass had {_name(call.function)}, or with another input")
        self._position += 1
        if call.sets_state:
            return function(*args, **kwargs)
        return self._kept[call.result] if isinstance(call.result, Slot) else call.result

    def _fail(self, reason: str) -> NoReturn:
        self.reason = reason
        raise TapeMismatch(reason)

    def _described(self, nest: Any) -> Any:
        """The nest with slots in place of tensors."""
        if isinstance(nest, Tensor):
            return self._slot(nest, computed=False)
        if isinstance(nest, (tuple, list)):
            return tuple([self._described(value) for value in nest])
        if isinstance(nest, dict):
            return {key: self._described(value) for key, value in nest.items()}
        return nest

    def _slot(self, tensor: Tensor, *, computed: bool) -> Slot:
        """The tensor's slot. A new tensor that was not computed here comes from outside: it is held and watched."""
        number = self._numbers.get(id(tensor))
        if number is not None and self._seen[number]() is tensor:
            return Slot(number)
        self._numbers[id(tensor)] = number = len(self._seen)
        self._seen.append(weakref.ref(tensor))
        if not computed:
            self._watched.append((tensor, _version(tensor)))
        return Slot(number)

    def _keep_living_tensors(self) -> None:
        """Hold the tensors still in use, and an empty one in place of each that was freed."""
        alive = [seen() for seen in self._seen]
        self._kept = [torch.empty(0) if tensor is None else tensor for tensor in alive]
        outside = {id(tensor) for tensor, _ in self._watched}
        self._watched += [(t, _version(t)) for t in alive if t is not None and id(t) not in outside]

    def _same(self, function: Function, arguments: Any, call: Call) -> bool:
        try:
            return function == call.function and self._fits(arguments, call.arguments)
        except Exception:  # arguments of any type may come, including types that cannot be compared
            return False

    def _fits(self, nest: Any, described: Any) -> bool:
        """Whether the nest holds the identical tensors and equal values that were described."""
        kind = type(described)
        if kind is Slot:
            return nest is self._kept[described]
        if kind is dict:
            return nest.keys() == described.keys() and self._fits(tuple(nest.values()), tuple(described.values()))
        if kind is not tuple:
            return nest is described or bool(nest == described)
        return len(nest) == len(described) and all(map(self._fits, nest, described))


def _version(tensor: Tensor) -> int:
    """Torch's count of in-place changes; 0 for inference-mode tensors, which cannot be changed outside that mode."""
    return 0 if tensor.is_inference() else tensor._version


def _any_slot(nest: Any) -> bool:
    if isinstance(nest, dict):
        return any(map(_any_slot, nest.values()))
    return isinstance(nest, Slot) or (isinstance(nest, tuple) and any(map(_any_slot, nest)))


def _name(function: Function) -> str:
    return getattr(function, "__name__", str(function))
