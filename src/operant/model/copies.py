"""Copies of modules, also of scripted ones."""

from __future__ import annotations

import copyreg
import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit._script import RecursiveScriptModule
from torch.jit._trace import TopLevelTracedModule
from torch.utils.hooks import RemovableHandle


def copy_module(module: nn.Module) -> nn.Module:
    """A deep copy that also works after a forward pass has left non-leaf tensors in the module."""
    memo: dict[int, Any] = {}
    for part in module.modules():
        if isinstance(part, torch.jit.ScriptModule):  # its own deep copy cannot be frozen
            memo[id(part)] = _from_bytes(_to_bytes(part))
        for value in _tensors(vars(part)):
            if not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return deepcopy(module, memo)


def freeze(module: nn.Module) -> nn.Module:
    """The module itself, in evaluation mode and without gradients of its parameters; also if it is scripted."""
    for parameter in module.parameters():
        parameter.requires_grad_(False)  # ScriptModules have no requires_grad_
    return module.eval()


def on_output(part: nn.Module, name: str, hook: Callable[[nn.Module, Any, Any], Any]) -> RemovableHandle:
    """Have ``hook(layer, inputs, output)`` called whenever the layer ``part``, called ``name``, has run."""
    if isinstance(part, torch.jit.ScriptModule):
        raise ValueError(
            f"layer {name} belongs to a scripted or traced module, whose layers cannot be read; give the Python module "
            "that it was made from"
        )
    return part.register_forward_hook(hook)


def is_scripted(module: nn.Module) -> bool:
    """Whether the module or a part of it is scripted or traced."""
    return any(isinstance(part, torch.jit.ScriptModule) for part in module.modules())


def _to_bytes(module: torch.jit.ScriptModule) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch would rather have modules exported
        torch.jit.save(module, buffer)
    return buffer.getvalue()


def _from_bytes(content: bytes) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module: nn.Module = torch.jit.load(io.BytesIO(content))
    return module


def _reduced(module: torch.jit.ScriptModule) -> tuple[Any, tuple[bytes]]:
    return _from_bytes, (_to_bytes(module),)


for _kind in (RecursiveScriptModule, TopLevelTracedModule):
    copyreg.pickle(_kind, _reduced)  # torch does not send them to other processes


def _tensors(nest: Any) -> Iterator[Tensor]:
    """All tensors in a nest of dicts, lists, tuples and sets."""
    pending, seen = [nest], set()
    while pending:
        value = pending.pop()
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (Mapping, list, tuple, set)) and id(value) not in seen:
            seen.add(id(value))
            pending.extend(value.values() if isinstance(value, Mapping) else value)
