"""Network in Network for small images: 1x1 convolutions after every convolution, and averaged class maps."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from operant.networks.dropout import Layers, dropout_layers
from operant.validation import check_at_least
from operant_studies.networks.convolutions import initialise_convolutions

PLACES = ("conv1", "mlp1a", "mlp1b", "pool1", "conv2", "mlp2a", "mlp2b", "pool2", "conv3", "mlp3a")


class NIN(nn.Sequential):
    """Three blocks of a convolution and two 1x1 convolutions; a logit is the mean of the last block's map of a class.

    Layers run in the order they are listed, each under its own name: ``conv1 mlp1a mlp1b pool1 conv2 mlp2a mlp2b pool2
    conv3 mlp3a mlp3b pool3 flatten``. Every convolution but ``mlp3b`` has its ReLU, ``relu_conv1`` and so on, and, with
    ``batch_norm``, ``bn_conv1`` before it. The paper trains with ``dropout=0.5, dropout_after=("pool1",
    "pool2")`` and without batch norm; batch norm needs fewer epochs. Sizes are those of the authors' program for
    CIFAR-10, whose second pooling takes means. Unlike there, class maps have no ReLU, so that a class with a negative
    logit can still learn.

    Args:
        channels: channels of an input; height and width are free.
        classes: number of classes.
        width: channels of the widest layers; two in the first block have 5/6 and 1/2 of it.
        batch_norm: whether batch norm follows every convolution but the last.
        dropout: share of values dropped in training.
        dropout_after: poolings, or layers whose ReLU, dropout follows: any of ``conv1 mlp1a mlp1b pool1 conv2 mlp2a
            mlp2b pool2 conv3 mlp3a``.

    >>> sum(p.numel() for p in NIN().parameters())
    966986

    References:
        | Network In Network (Lin et al., 2014)
        | https://arxiv.org/abs/1312.4400
    """

    def __init__(
        self,
        *,
        channels: int = 3,
        classes: int = 10,
        width: int = 192,
        batch_norm: bool = False,
        dropout: float = 0.0,
        dropout_after: Sequence[str] = (),
    ) -> None:
        check_at_least(1, channels=channels)
        check_at_least(2, classes=classes, width=width)
        drop = dropout_layers(dropout, dropout_after, known=PLACES)

        def layer(name: str, inward: int, outward: int, kernel: int) -> Layers:
            return {
                name: nn.Conv2d(inward, outward, kernel, padding=kernel // 2, bias=not batch_norm),
                **({f"bn_{name}": nn.BatchNorm2d(outward)} if batch_norm else {}),
                f"relu_{name}": nn.ReLU(),
                **drop(name),
            }

        narrower, half = 5 * width // 6, width // 2
        layers: Layers = {
            **layer("conv1", channels, width, 5),
            **layer("mlp1a", width, narrower, 1),
            **layer("mlp1b", narrower, half, 1),
            "pool1": nn.MaxPool2d(3, stride=2, padding=1),
            **drop("pool1"),
            **layer("conv2", half, width, 5),
            **layer("mlp2a", width, width, 1),
            **layer("mlp2b", width, width, 1),
            "pool2": nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
            **drop("pool2"),
            **layer("conv3", width, width, 3),
            **layer("mlp3a", width, width, 1),
            "mlp3b": nn.Conv2d(width, classes, 1),
            "pool3": nn.AdaptiveAvgPool2d(1),
            "flatten": nn.Flatten(),
        }
        super().__init__(OrderedDict(layers))
        initialise_convolutions(self)
