"""What can go wrong with a module, as errors of one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

OUT_OF_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "not enough memory", "cannot allocate memory")


class NotLogits(ValueError):
    """The module returned something other than logits ``(N, classes)``."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; wrap it")
        self.problem = problem

    def __reduce__(self) -> tuple[type[NotLogits], tuple[str]]:
        return NotLogits, (self.problem,)  # the default would add "wrap it" again in every process it passes


class WrongChannels(ValueError):
    """``mean`` or ``std`` does not fit the channels of the inputs."""


class ModuleFails(ValueError):
    """The module cannot run, or raised an error, which is then the cause of this one."""


class NoGradients(ValueError):
    """The logits do not change with the inputs, as far as their gradients tell."""


@contextmanager
def explained(x: Tensor) -> Iterator[None]:
    """Turn an error of the module on the inputs ``x`` into a sentence; running out of memory stays what it is."""
    try:
        yield
    except (NotLogits, WrongChannels, ModuleFails):
        raise
    except Exception as error:  # the user's code may raise anything
        if is_out_of_memory(error):
            raise
        raise ModuleFails(
            f"the module fails on inputs of shape {tuple(x.shape[1:])} and type {x.dtype} "
            f"({type(error).__name__}: {first_line(error)}); give the shape and type that it was trained on"
        ) from error


def no_gradients(why: str) -> NoGradients:
    """The error for a search or measure that follows gradients which the module does not have."""
    return NoGradients(
        f"gradients are needed here, and the module has none with respect to these inputs: {why}; look for detach, "
        "no_grad, argmax, rounding or numpy in its forward pass, or use a search without gradients"
    )


def how_to_wrap(value: object) -> str:
    """How to make a module from a function, as the end of a sentence; empty for classes and what cannot be called."""
    if isinstance(value, type) or not callable(value):
        return ""
    return (
        "; a function from inputs to logits must be wrapped in a module: class Wrapped(nn.Module) with "
        "def forward(self, x): return function(x), then use Wrapped()"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """torch raises a plain RuntimeError when the CPU allocator fails, so its text is all there is to go by."""
    if not isinstance(error, (MemoryError, RuntimeError)):
        return False
    return isinstance(error, MemoryError) or any(part in str(error).lower() for part in OUT_OF_MEMORY_TEXTS)


def first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
