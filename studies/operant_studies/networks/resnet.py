"""ResNet-20 for small colour images, with shortcuts that need no parameters."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from operant.networks.dropout import Layers, dropout_layers
from operant.validation import check_at_least
from operant_studies.networks.convolutions import initialise_convolutions


class ResidualBlock(nn.Module):
    """Two convolutions added to their own input: ``relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x))``.

    If the block halves the image and adds channels, the shortcut takes every second pixel and fills the new channels
    with zeros, half of them before and half after the old ones.
    """

    def __init__(self, inward: int, outward: int, *, stride: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inward, outward, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outward)
        self.relu1 = nn.ReLU()
        self.dropout = nn.Dropout(dropout) if dropout else None
        self.conv2 = nn.Conv2d(outward, outward, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outward)
        self.relu2 = nn.ReLU()
        self.stride, self.new_channels = stride, outward - inward

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu1(self.bn1(self.conv1(x)))
        if self.dropout is not None:
            h = self.dropout(h)
        h = self.bn2(self.conv2(h))
        out: Tensor = self.relu2(h + self.shortcut(x))
        return out

    def shortcut(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            return x
        before = self.new_channels // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.new_channels - before))


class ResNet20(nn.Sequential):
    """The CIFAR ResNet with 20 layers: a convolution, three stages of three blocks, mean over pixels, logits.

    Args:
        channels: channels of an input; height and width are free.
        classes: number of classes.
        dropout: share of values dropped in training.
        dropout_after: places of dropout: after ``layer1 layer2 layer3`` or ``pool``; ``block`` is between the two
            convolutions of every block.

    >>> sum(p.numel() for p in ResNet20().parameters())
    269722

    References:
        | Deep Residual Learning for Image Recognition (He et al., 2016), section 4.2, shortcut option A
        | https://arxiv.org/abs/1512.03385
    """

    def __init__(
        self, *, channels: int = 3, classes: int = 10, dropout: float = 0.0, dropout_after: Sequence[str] = ()
    ) -> None:
        check_at_least(1, channels=channels)
        check_at_least(2, classes=classes)
        drop = dropout_layers(dropout, dropout_after, known=("layer1", "layer2", "layer3", "pool", "block"))
        between = dropout if "block" in dropout_after else 0.0

        def stage(inward: int, outward: int, stride: int) -> nn.Sequential:
            shapes = [(inward, stride), (outward, 1), (outward, 1)]
            return nn.Sequential(*(ResidualBlock(i, outward, stride=s, dropout=between) for i, s in shapes))

        layers: Layers = {
            "conv1": nn.Conv2d(channels, 16, 3, padding=1, bias=False),
            "bn1": nn.BatchNorm2d(16),
            "relu": nn.ReLU(),
            "layer1": stage(16, 16, 1),
            **drop("layer1"),
            "layer2": stage(16, 32, 2),
            **drop("layer2"),
            "layer3": stage(32, 64, 2),
            **drop("layer3"),
            "pool": nn.AdaptiveAvgPool2d(1),
            "flatten": nn.Flatten(),
            **drop("pool"),
            "linear": nn.Linear(64, classes),
        }
        super().__init__(OrderedDict(layers))
        initialise_convolutions(self)
