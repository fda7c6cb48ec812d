"""Mutants: copies of a network with a few weights or neurons changed."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from operant.validation import check_above_to, check_one_of

Weights = dict[str, Tensor]
"""Parameters by name."""

KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def mutate(module: nn.Module, *, operator: str, rate: float, generator: torch.Generator) -> Weights:
    """The parameters, by name, in which one mutant differs from the network; the network is not changed.

    A neuron is an output of a dense layer or a channel of a convolution, with the weights that lead into it.

    - ``NAI``, neuron activation inverse: flip the sign of chosen neurons.
    - ``WS``, weight shuffle: shuffle the weights into each chosen neuron.
    - ``NS``, neuron switch: swap chosen neurons in pairs, within their layer.
    - ``GF``, Gaussian fuzz: add noise with their layer's standard deviation to chosen weights.

    Neurons are chosen among all except those of the last layer, whose outputs are classes. The public program redraws
    weights for ``GF`` around the layer's mean; here noise is added to the weight, as the paper describes.

    Args:
        module: with dense layers or convolutions.
        rate: share of the neurons or weights to choose; at least one is chosen.

    The reference is that of `operant.defend.fit_mutation_detector`.
    """
    check_one_of(OPERATORS, operator=operator)
    check_above_to(0, 1, rate=rate)
    parameters: Weights = dict(module.named_parameters())
    names = [name for name, part in module.named_modules() if isinstance(part, KINDS)]
    names = [name for name in names if _weight(name) in parameters]
    if operator != "GF":
        names = names[:-1]
    if not names:
        what = "weights" if operator == "GF" else "hidden neurons"
        raise ValueError(f"{operator} changes {what}, but this network has none in dense layers or convolutions")
    return OPERATORS[operator]({name: parameters[_weight(name)] for name in names}, parameters, rate, generator)


def _weight(name: str) -> str:
    return f"{name}.weight" if name else "weight"


def _inverted(layers: Weights, parameters: Weights, rate: float, generator: torch.Generator) -> Weights:
    mutant: Weights = {}
    for name, rows in _neurons(layers, rate, generator).items():
        for part in _parts(name, parameters):
            mutant[part] = parameters[part].detach().clone()
            mutant[part][rows] *= -1
    return mutant


def _shuffled(layers: Weights, parameters: Weights, rate: float, generator: torch.Generator) -> Weights:
    mutant: Weights = {}
    for name, rows in _neurons(layers, rate, generator).items():
        w = layers[name].detach().clone()
        some = w[rows].flatten(1)
        order = torch.rand(some.shape, generator=generator, device=generator.device).argsort(1).to(w.device)
        w[rows] = some.gather(1, order).view_as(w[rows])
        mutant[_weight(name)] = w
    return mutant


def _switched(layers: Weights, parameters: Weights, rate: float, generator: torch.Generator) -> Weights:
    wide = {name: w for name, w in layers.items() if len(w) > 1}
    if not wide:
        raise ValueError("NS swaps neurons of one layer, but no hidden layer of this network has two")
    sizes = torch.tensor([float(len(w)) for w in wide.values()])
    pairs = max(1, round(rate * float(sizes.sum()) / 2))
    chosen = torch.multinomial(sizes, pairs, replacement=True, generator=generator)
    mutant: Weights = {}
    for place, name in enumerate(wide):
        order = torch.arange(len(wide[name]))
        for _ in range(int((chosen == place).sum())):
            pair = torch.randperm(len(order), generator=generator)[:2]
            order[pair] = order[pair.flip(0)]
        for part in _parts(name, parameters) if bool((chosen == place).any()) else ():
            mutant[part] = parameters[part].detach()[order.to(parameters[part].device)]
    return mutant


def _fuzzed(layers: Weights, parameters: Weights, rate: float, generator: torch.Generator) -> Weights:
    total = sum(w.numel() for w in layers.values())
    hit = torch.rand(total, generator=generator) < rate
    hit[torch.randint(total, (), generator=generator)] = True
    noise = torch.zeros(total)
    noise[hit] = torch.randn(int(hit.sum()), generator=generator)
    parts = noise.split([w.numel() for w in layers.values()])
    return {
        _weight(name): w.detach() + part.view_as(w).to(w) * w.detach().std(correction=0)
        for (name, w), part in zip(layers.items(), parts, strict=True)
    }


OPERATORS: Mapping[str, Callable[[Weights, Weights, float, torch.Generator], Weights]] = {
    "NAI": _inverted,
    "GF": _fuzzed,
    "WS": _shuffled,
    "NS": _switched,
}


def _neurons(layers: Weights, rate: float, generator: torch.Generator) -> dict[str, Tensor]:
    """The chosen neurons of each layer; layers without any are left out."""
    sizes = [len(w) for w in layers.values()]
    chosen = torch.randperm(sum(sizes), generator=generator)[: max(1, round(rate * sum(sizes)))]
    hit = torch.zeros(sum(sizes), dtype=torch.bool)
    hit[chosen] = True
    rows = {name: part.nonzero().flatten() for name, part in zip(layers, hit.split(sizes), strict=True)}
    return {name: some.to(layers[name].device) for name, some in rows.items() if len(some)}


def _parts(name: str, parameters: Weights) -> list[str]:
    """The weight of a layer, and its bias if it has one."""
    bias = _weight(name).removesuffix("weight") + "bias"
    return [_weight(name), *([bias] if bias in parameters else [])]
