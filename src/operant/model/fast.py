"""Faster copies of a module that compute the same function: batch norm folded, pooling before ReLU, channels last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils import parametrize
from torch.nn.utils.fusion import fuse_conv_bn_eval

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)


@dataclass(frozen=True, kw_only=True)
class FastCopy:
    name: str
    module: nn.Module
    channels_last: bool
    notes: tuple[str, ...]


def fast_copies(module: nn.Module, *, images: bool) -> Iterator[FastCopy]:
    """Candidates, fastest first. The caller must compare their logits with the module's before using one."""
    folded, note = fold_batch_norm(module)
    if folded is not None:
        yield from _both_orders("batch norm folded", folded, note, images=images)
        note = "batch norm not folded: the folded copy was not used"
    yield from _both_orders("parameters frozen", module, note, images=images)


def _both_orders(name: str, module: nn.Module, note: str, *, images: bool) -> Iterator[FastCopy]:
    pooled = pool_before_relu(module)
    if pooled is not None:
        yield from _both_layouts(f"{name}, pooling before ReLU", pooled, note, images=images)
    yield from _both_layouts(name, module, note, images=images)


def _both_layouts(name: str, module: nn.Module, note: str, *, images: bool) -> Iterator[FastCopy]:
    if images and any(isinstance(m, nn.Conv2d) for m in module.modules()):
        last = deepcopy(module)
        for part in last.modules():
            if isinstance(part, nn.Conv2d):
                part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        yield FastCopy(name=f"{name}, channels last", module=last, channels_last=True, notes=(note,))
    yield FastCopy(name=name, module=module, channels_last=False, notes=(note,))


def fold_batch_norm(module: nn.Module) -> tuple[nn.Module | None, str]:
    """A copy with every safe conv + batch-norm pair folded, or None; and a note on what was done.

    torch.fx only *finds* the pairs. The copy keeps all names; an `Identity` replaces each batch norm, so hooks still
    fire.
    """
    norms = [m for m in module.modules() if isinstance(m, BATCH_NORMS)]
    if not norms:
        return None, "no batch norm to fold"
    try:
        graph = _traced(module)
    except Exception as error:  # user code under symbolic tracing may raise anything
        return None, f"batch norm not folded: the module cannot be traced ({type(error).__name__})"
    copy = deepcopy(module)
    pairs = _pairs(copy, graph, lambda m: isinstance(m, CONVOLUTIONS), _has_running_statistics)
    for conv_name, norm_name in pairs:
        conv, norm = copy.get_submodule(conv_name), copy.get_submodule(norm_name)
        _replace(copy, conv_name, fuse_conv_bn_eval(conv, norm))  # type: ignore[type-var, arg-type]
        _replace(copy, norm_name, nn.Identity())
    copy.requires_grad_(False)
    note = f"{len(pairs)} of {len(norms)} batch norms folded"
    return (copy if pairs else None), note


def pool_before_relu(module: nn.Module) -> nn.Module | None:
    """A copy with every ReLU + max-pooling pair swapped, which is equal and cheaper; None if there is none."""
    if not any(isinstance(m, MAX_POOLS) for m in module.modules()):
        return None
    try:
        graph = _traced(module)
    except Exception:  # user code under symbolic tracing may raise anything
        return None
    copy = deepcopy(module)
    pairs = _pairs(copy, graph, lambda m: type(m) is nn.ReLU, lambda m: type(m) in MAX_POOLS and not m.return_indices)
    for relu_name, pool_name in pairs:
        _replace(copy, relu_name, nn.Identity())
        _replace(copy, pool_name, nn.Sequential(copy.get_submodule(pool_name), nn.ReLU()))
    return copy if pairs else None


def _traced(module: nn.Module) -> fx.Graph:
    return _Tracer().trace(deepcopy(module))  # a throw-away copy: tracing may leave symbols in the module


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, qualified_name: str) -> bool:
        """Also treat convolutions of other libraries as leaves; the comparison of logits catches any that differ."""
        return isinstance(m, (*CONVOLUTIONS, *BATCH_NORMS)) or super().is_leaf_module(m, qualified_name)


def _has_running_statistics(module: nn.Module) -> bool:
    return type(module) in BATCH_NORMS and module.running_mean is not None


def _pairs(
    module: nn.Module, graph: fx.Graph, first: Callable[[Any], bool], second: Callable[[Any], bool]
) -> list[tuple[str, str]]:
    """Names of consecutive modules that can be merged: only the second uses the output of the first.

    Each is called once, has one name, no hooks and no parametrisation, and nothing else reads its tensors.
    """
    calls = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    names = Counter(id(m) for _, m in module.named_modules(remove_duplicate=False))

    def untouched(name: str) -> bool:
        m = module.get_submodule(name)
        hooks = m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks
        alone = calls.count(name) == 1 and name not in read and names[id(m)] == 1
        return alone and not m.training and not hooks and not parametrize.is_parametrized(m)

    pairs = []
    for node in graph.nodes:
        before = node.args[0] if node.op == "call_module" and node.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) != 1:
            continue
        one, two = str(before.target), str(node.target)
        if first(module.get_submodule(one)) and second(module.get_submodule(two)) and untouched(one) and untouched(two):
            pairs.append((one, two))
    return pairs


def _replace(root: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(root.get_submodule(parent), child, new)
