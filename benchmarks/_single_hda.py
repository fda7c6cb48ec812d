"""HDA's genetic search as one would write it first: one seed at a time, eager torch, every generation bred.

The rival of `fuzz.py`: the same operators, settings and random numbers as `operant.generate.hda`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from operant.generate import GeneticMove

Logits = Callable[[Tensor], Tensor]


@torch.no_grad()
def hda_one(options: GeneticMove, logits: Logits, x0: Tensor, y: int, stream: torch.Generator) -> Tensor:
    """The cases of one seed ``x0`` of shape ``(1, *shape)``: its failures nearest to it, at most ``keep``."""
    flat = x0.flatten(1)
    members = into_ball(
        options, flat + options.start * torch.randn(options.population, flat.shape[1], generator=stream), flat
    )
    for generation in range(options.generations + 1):
        out = logits(members.view(-1, *x0.shape[1:]))
        others = out.clone()
        others[:, y] = -torch.inf
        margin = others.amax(1) - out[:, y]
        wrong = margin > 1e-4 * out.abs().amax(1)
        quality = -(members - flat).square().mean(1)
        if generation < options.generations:
            late = float(wrong.double().mean()) >= options.switch
            fitness = scaled(margin.double()) + (options.weight * scaled(quality.double()) if late else 0.0)
            fitness, best = fitness.topk(options.elites)
            children = bred(options, members[best], fitness, stream)
            members = torch.cat([members[best], into_ball(options, children, flat)])
    rows = quality.masked_fill(~wrong, -torch.inf).topk(options.keep).indices
    return members[rows[wrong[rows]]].view(-1, *x0.shape[1:])


def bred(options: GeneticMove, elites: Tensor, fitness: Tensor, stream: torch.Generator) -> Tensor:
    """Children of two elites each, some of their genes mutated."""
    n, size = options.population, elites.shape[1]
    pairs = torch.multinomial(fitness.softmax(0), 2 * n, replacement=True, generator=stream)
    first, second = pairs.view(2, -1)
    f1, f2 = fitness[first] + 1e-12, fitness[second] + 1e-12
    u = torch.rand(n, size, generator=stream)
    children = torch.where(u < (f1 / (f1 + f2)).to(u)[:, None], elites[first], elites[second])
    mutants = round(options.mutation_rate * n * size)
    place = torch.randint(n * size, (mutants,), generator=stream)
    children.view(-1).index_add_(0, place, options.mutation * torch.randn(mutants, generator=stream))
    return children


def into_ball(options: GeneticMove, x: Tensor, x0: Tensor) -> Tensor:
    return (x0 + (x - x0).clamp(-options.radius, options.radius)).clamp(0, 1)


def scaled(values: Tensor) -> Tensor:
    return (values - values.min()) / (values.max() - values.min()).clamp_min(1e-12)
