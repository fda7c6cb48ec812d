"""LeNet-5 as RobOT uses it: two convolutions that keep the size, two poolings, three dense layers."""

from collections.abc import Sequence

from torch import Tensor, nn

from operant.networks._dropout import dropout_layers


class LeNet5(nn.Module):
    """LeNet-5 with ReLU for square images of any size from 4 on; logits out.

    Layers run in the order they are listed, each under its own name: ``conv1 relu_conv1 pool1 conv2 relu_conv2 pool2
    flatten fc1 relu_fc1 fc2 relu_fc2 fc3``. What a layer says after its ReLU is tapped at ``relu_conv1`` and so on.

    Args:
        channels, size: an input is ``(channels, size, size)``.
        classes: how many to tell apart.
        dropout: share of values dropped while training.
        dropout_after: behind which layers' ReLU dropout sits: any of ``conv1 conv2 fc1 fc2``.

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
        super().__init__()
        if channels < 1 or classes < 2 or size < 4:
            raise ValueError(
                "LeNet5 needs channels of at least 1, classes of at least 2 and size of at least 4, "
                f"got {channels}, {classes} and {size}"
            )
        drop = dropout_layers(dropout, dropout_after, known=("conv1", "conv2", "fc1", "fc2"))
        layers: dict[str, nn.Module] = {
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
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x
