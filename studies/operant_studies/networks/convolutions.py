"""Initial weights of convolutions."""

from torch import nn


def initialise_convolutions(network: nn.Module) -> None:
    """Draw the weights of all convolutions by Kaiming's rule and set their biases to zero."""
    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
