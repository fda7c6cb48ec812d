"""Where dropout sits in a network: one way to ask for it and to refuse a wrong wish."""

from collections.abc import Callable, Sequence

from torch import nn


def dropout_layers(rate: float, after: Sequence[str], *, known: Sequence[str]) -> Callable[[str], dict[str, nn.Module]]:
    """A function from a place to the dropout layer that sits there, ``{"dropout_fc1": ...}``, or to nothing."""
    if isinstance(after, str):
        raise ValueError(f"dropout_after must be several names, got the single string {after!r}; write ({after!r},)")
    if unknown := [name for name in after if name not in known]:
        raise ValueError(f"dropout_after must name places among {', '.join(known)}; got {', '.join(unknown)}")
    if not 0 <= rate < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {rate}")
    if rate > 0 and not after:
        raise ValueError(f"dropout={rate} needs a place; give dropout_after some of {', '.join(known)}")
    if rate == 0 and after:
        raise ValueError(f"dropout_after={tuple(after)} needs a rate; give dropout=0.5, say, or leave both out")
    return lambda place: {f"dropout_{place}": nn.Dropout(rate)} if place in after else {}
