"""Gradients with respect to inputs, and whether a model has any."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from operant.model.errors import NoGradients, explained, first_line, is_out_of_memory, no_gradients
from operant.rng import normal_like, spawn


def value_and_gradient(objective: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """The objective's value and gradient at each row of ``x``.

    >>> v, g = value_and_gradient(lambda z: (z**2).sum(1), torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
    >>> v.tolist(), g.tolist()
    ([5.0, 9.0], [[2.0, 4.0], [6.0, 0.0]])
    """
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        values = objective(z)
        if not values.requires_grad:  # a constant
            return values, torch.zeros_like(x)
        (gradient,) = torch.autograd.grad(values.sum(), z, allow_unused=True, materialize_grads=True)
    return values.detach(), gradient


def rows_with_gradient(logits: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """The number of rows at which some logit has a gradient that is neither zero nor NaN.

    The gradient is that of a random mixture of the logits, since the gradient of a loss also vanishes where the model
    is certain. Raises `NoGradients` if the logits have no gradient anywhere or the module runs only without gradients,
    and `ModuleFails` if it does not run at all.
    """
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        try:
            values = logits(z)
            if not values.requires_grad:
                raise no_gradients("its logits do not depend on them differentiably")
            weights = normal_like(values[0].detach(), generator=spawn(0, "gradients"))
            (g,) = torch.autograd.grad((values * weights).sum(), z, allow_unused=True, materialize_grads=True)
        except Exception as error:  # the user's code may raise anything
            if is_out_of_memory(error) or isinstance(error, NoGradients):
                raise
            with torch.no_grad(), explained(x):
                logits(x.detach())  # a module that fails without gradients too has another problem
            raise no_gradients(f"{type(error).__name__}: {first_line(error)}") from error
    return int((g.isfinite() & (g != 0)).flatten(1).any(1).sum())
