"""LeNet-5 as in RobOT: two convolutions that keep the size, two poolings, three dense layers."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from operant.networks.dropout import Layers, dropout_layers
from operant.validation import check_at_least


class LeNet5(nn.Sequential):
    """LeNet-5 with ReLU for square images of any size from 4 on; returns logits.

    Layers run in the order they are listed, each under its own name: ``conv1 relu_conv1 pool1 conv2 relu_conv2 pool2
    flatten fc1 relu_fc1 fc2 relu_fc2 fc3``.

    Args:
        channels, size: an input is ``(channels, size, size)``.
        classes: number of classes.
        dropout: share of values dropped in training.
        dropout_after: layers whose ReLU is followed by dropout: any of ``conv1 conv2 fc1 fc2``.

    >>> LeNet5(size=8, dropout=0.5, dropout_after=["fc1", "fc2"]).dropout_fc2
    Dropout(p=0.5, inplace=False)

    References:
        | RobOT: Robustness-Oriented Testing for Deep Learning Systems (Wang et al., 2021)
        | https://arxiv.org/abs/2102.05913
    """

    def __init__(
        self,
        *,
        channels: int = 1,
        classes: int = 10,
        size: int = 28,
        dropout: float = 0.0,
        dropout_after: Sequence[str] = (),
    ) -> None:
        check_at_least(1, channels=channels)
        check_at_least(2, classes=classes)
        check_at_least(4, size=size)
        drop = dropout_layers(dropout, dropout_after, known=("conv1", "conv2", "fc1", "fc2"))
        layers: Layers = {
            "conv1": nn.Conv2d(channels, 6, 5, padding=2),
            "relu_conv1": nn.ReLU(),
            **drop("conv1"),
            "pool1": nn.MaxPool2d(2),
            "conv2": nn.Conv2d(6, 16, 5, padding=2),
            "relu_conv2": nn.ReLU(),
            **drop("conv2"),
            "pool2": nn.MaxPool2d(2),
            "flatten": nn.Flatten(),
            "fc1": nn.Linear(16 * (size // 4) ** 2, 120),
            "relu_fc1": nn.ReLU(),
            **drop("fc1"),
            "fc2": nn.Linear(120, 84),
            "relu_fc2": nn.ReLU(),
            **drop("fc2"),
            "fc3": nn.Linear(84, classes),
        }
        super().__init__(OrderedDict(layers))
