"""A tape of the calls a module makes up to some point of its forward pass, so that this part need not run again."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

Function = Callable[..., Any]


class Diverged(Exception):
    """The tape cannot stand for the calls; the message says why."""


@dataclass(frozen=True)
class Slot:
    """A tensor the tape knows, by number."""

    number: int


@dataclass(frozen=True)
class Call:
    """A function, what it was given and what it gave, with slots in place of tensors.

    One that neither took a tensor nor gave anything sets a state (`set_grad_enabled`), and is made again each time.
    """

    function: Function
    given: Any
    gave: Any = None
    sets_state: bool = False


class Tape:
    """The calls of one pass up to an end point: recorded once, then played back by position.

    Every call played back must be the recorded one: the same function, the very same tensors, equal numbers. No tensor
    may be changed in place once the end point is reached, and none from outside at any time. Else `Diverged`.

    Tensors that nothing uses any more at the end point are let go, as in a pass without tape: only calls that are
    played back would read them, and those do not look.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.reason = ""  # of having diverged; kept, because a module may swallow the exception
        self._end: Call | None = None
        self._position = 0
        self._seen: list[weakref.ref[Tensor]] = []  # by slot, while recording
        self._kept: list[Tensor] = []  # by slot, afterwards
        self._numbers: dict[int, int] = {}  # from id to slot; another tensor may have taken a dead one's id
        self._watched: list[tuple[Tensor, int]] = []  # with the version they must keep
        self._random_state = torch.get_rng_state()

    @property
    def ended(self) -> bool:
        return self._end is not None

    def rewind(self) -> None:
        """Begin the next pass."""
        self._position = 0

    def call(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the function gives: computed while recording, read from the tape later."""
        return self._play(function, args, kwargs) if self.ended else self._record(function, args, kwargs)

    def end(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The end point, marked by a call that itself is not on the tape."""
        if self._end is not None:
            if self._position < len(self.calls) or not self._same(function, (args, kwargs), self._end):
                self._diverge(f"{_name(function)} came earlier than in the first pass, or with another input")
            return
        self._end = Call(function, self._described((args, kwargs)))
        if not torch.equal(self._random_state, torch.get_rng_state()):
            self._diverge("the module draws random numbers of its own")
        self._keep_what_lives()
        self.check()

    def check(self) -> None:
        """Refuse to go on if a tensor was changed in place."""
        if any(_version(tensor) != version for tensor, version in self._watched):
            self._diverge("the module changes in place what it has computed before, or its own state")

    def _record(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = self._described((args, kwargs))
        out = function(*args, **kwargs)
        if isinstance(out, (list, dict, set, np.ndarray)):
            self._diverge(f"{_name(function)} gives a {type(out).__name__}, which could be changed unseen")
        for value in out if isinstance(out, tuple) else ():
            if isinstance(value, Tensor):
                self._slot(value, made_here=True)
        gave = self._slot(out, made_here=True) if isinstance(out, Tensor) else out
        self.calls.append(Call(function, given, gave, sets_state=out is None and not _any_slot(given)))
        return out

    def _play(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._position == len(self.calls):
            self._diverge(f"{_name(function)} came where the first pass had a dropout")
        call = self.calls[self._position]
        if not self._same(function, (args, kwargs), call):
            self._diverge(
                f"{_name(function)} came where the first pass had {_name(call.function)}, or with another input"
            )
        self._position += 1
        if call.sets_state:
            return function(*args, **kwargs)
        return self._kept[call.gave.number] if isinstance(call.gave, Slot) else call.gave

    def _diverge(self, reason: str) -> NoReturn:
        self.reason = reason
        raise Diverged(reason)

    # What it knows of tensors

    def _described(self, nest: Any) -> Any:
        """The same nest with slots in place of tensors."""
        if isinstance(nest, Tensor):
            return self._slot(nest, made_here=False)
        if isinstance(nest, (tuple, list)):
            return tuple([self._described(value) for value in nest])
        if isinstance(nest, dict):
            return {key: self._described(value) for key, value in nest.items()}
        return nest

    def _slot(self, tensor: Tensor, *, made_here: bool) -> Slot:
        """The tensor's slot; a new one for a tensor never seen, which is held and watched if it comes from outside."""
        number = self._numbers.get(id(tensor))
        if number is not None and self._seen[number]() is tensor:
            return Slot(number)
        self._numbers[id(tensor)] = number = len(self._seen)
        self._seen.append(weakref.ref(tensor))
        if not made_here:
            self._watched.append((tensor, _version(tensor)))
        return Slot(number)

    def _keep_what_lives(self) -> None:
        """Hold what is still in use, and something empty in place of what is not."""
        alive = [seen() for seen in self._seen]
        self._kept = [torch.empty(0) if tensor is None else tensor for tensor in alive]
        outside = {id(tensor) for tensor, _ in self._watched}
        self._watched += [(t, _version(t)) for t in alive if t is not None and id(t) not in outside]

    def _same(self, function: Function, given: Any, call: Call) -> bool:
        try:
            return function == call.function and self._fits(given, call.given)
        except Exception:  # arguments may be of any kind, also of one that cannot be compared
            return False

    def _fits(self, nest: Any, described: Any) -> bool:
        """Whether these are the very tensors, and equal values, that were described."""
        kind = type(described)
        if kind is Slot:
            return nest is self._kept[described.number]
        if kind is dict:
            return nest.keys() == described.keys() and self._fits(tuple(nest.values()), tuple(described.values()))
        if kind is not tuple:
            return nest is described or bool(nest == described)
        return len(nest) == len(described) and all(map(self._fits, nest, described))


def _version(tensor: Tensor) -> int:
    """Counts changes in place; tensors of inference mode cannot be changed outside of it, and do not count."""
    return 0 if tensor.is_inference() else tensor._version


def _any_slot(nest: Any) -> bool:
    if isinstance(nest, dict):
        return any(map(_any_slot, nest.values()))
    return isinstance(nest, Slot) or (isinstance(nest, tuple) and any(map(_any_slot, nest)))


def _name(function: Function) -> str:
    return getattr(function, "__name__", str(function))
