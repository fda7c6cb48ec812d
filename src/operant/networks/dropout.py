"""Dropout at named places of a network."""

from collections.abc import Callable, Sequence

from torch import nn

from operant.validation import check_from_below

Layers = dict[str, nn.Module]


def dropout_layers(rate: float, after: Sequence[str], *, known: Sequence[str]) -> Callable[[str], Layers]:
    """A function from a place to its dropout layer, ``{"dropout_fc1": ...}``, or to an empty dict."""
    if isinstance(after, str):
        raise ValueError(f"dropout_after must be several names, got the single string {after!r}; write ({after!r},)")
    if unknown := [name for name in after if name not in known]:
        raise ValueError(f"dropout_after must name places among {', '.join(known)}; got {', '.join(unknown)}")
    check_from_below(0, 1, dropout=rate)
    if rate > 0 and not after:
        raise ValueError(f"dropout={rate} needs a place; give dropout_after some of {', '.join(known)}")
    if rate == 0 and after:
        raise ValueError(f"dropout_after={tuple(after)} needs a rate; give dropout=0.5, say, or leave both out")
    return lambda place: {f"dropout_{place}": nn.Dropout(rate)} if place in after else {}
