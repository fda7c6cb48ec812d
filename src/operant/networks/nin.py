"""Network in Network for small images: small perceptrons slide over the image, and class maps are averaged."""

from collections.abc import Sequence

from torch import Tensor, nn

from operant.networks._dropout import dropout_layers

PLACES = ("conv1", "mlp1a", "mlp1b", "pool1", "conv2", "mlp2a", "mlp2b", "pool2", "conv3", "mlp3a")


class NIN(nn.Module):
    """Three blocks, each a convolution and two of 1x1 behind it; the last gives one map a class, whose mean is a logit.

    Layers run in the order they are listed, each under its own name: ``conv1 mlp1a mlp1b pool1 conv2 mlp2a mlp2b pool2
    conv3 mlp3a mlp3b pool3 flatten``. Behind every convolution but ``mlp3b`` comes its ReLU, ``relu_conv1`` and so on,
    with batch norm ``bn_conv1`` before it if asked for. The paper trains with ``dropout=0.5, dropout_after=("pool1",
    "pool2")`` and without batch norm, which makes few epochs go further. Sizes are those of the authors' program for
    CIFAR-10, whose second pooling takes means; unlike there, class maps are not cut at zero, so that a class with a
    negative logit can still learn.

    Args:
        channels: of an input; height and width are free.
        classes: how many to tell apart.
        width: channels of the widest layers; two in the first block have 5/6 and 1/2 of it.
        batch_norm: whether every convolution but the last is normalised over its batch.
        dropout: share of values dropped while training.
        dropout_after: behind which poolings, or which layers' ReLU, dropout sits: any of ``conv1 mlp1a mlp1b pool1
            conv2 mlp2a mlp2b pool2 conv3 mlp3a``.

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
        super().__init__()
        if channels < 1 or classes < 2 or width < 2:
            raise ValueError(
                "NIN needs channels of at least 1, classes of at least 2 and width of at least 2, "
                f"got {channels}, {classes} and {width}"
            )
        drop = dropout_layers(dropout, dropout_after, known=PLACES)

        def layer(name: str, inward: int, outward: int, kernel: int) -> dict[str, nn.Module]:
            return {
                name: nn.Conv2d(inward, outward, kernel, padding=kernel // 2, bias=not batch_norm),
                **({f"bn_{name}": nn.BatchNorm2d(outward)} if batch_norm else {}),
                f"relu_{name}": nn.ReLU(),
                **drop(name),
            }

        narrower, half = 5 * width // 6, width // 2
        layers: dict[str, nn.Module] = {
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
        for name, part in layers.items():
            self.add_module(name, part)
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight)
                if part.bias is not None:
                    nn.init.zeros_(part.bias)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x
