"""MobileNets v1 and v2: a 3x3 filter for each channel by itself, and 1x1 convolutions that mix the channels."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal, TypeVar

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from operant.networks._dropout import dropout_layers

M = TypeVar("M", bound=nn.Module)
Padding = Literal["even", "same"]
Layers = dict[str, nn.Module]

V1_STAGES = ((64, 1, 1), (128, 2, 2), (256, 2, 2), (512, 6, 2), (1024, 2, 2))  # channels, blocks, first one's stride
V2_STAGES = (  # times the channels inside a block, channels, blocks, first one's stride: table 2 of the paper
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class MobileNetV1(nn.Module):
    """A convolution, 13 blocks of a depthwise and a 1x1 convolution in five stages, mean over pixels, logits.

    Layers are named as in `MobileNetV2`: ``features.0`` is the first convolution, ``features.K.conv.0`` and
    ``features.K.conv.1`` are those of block K.

    Args:
        channels: of an input; height and width are free, 224 in the paper.
        classes: how many to tell apart.
        width: what the paper's channels are multiplied by.
        first_stride: of the first convolution; 1 keeps more of images as small as 32.
        batch_norm: whether convolutions are followed by batch norm; without it they have biases, as after `folded`.
        padding: ``even`` for one zero on every side, ``same`` for TensorFlow's (see `PadSame`).
        dropout: share of values dropped while training.
        dropout_after: where dropout sits: behind ``stage1`` to ``stage5`` or ``pool``, and ``block`` for between the
            two convolutions of every block.

    >>> sum(p.numel() for p in MobileNetV1().parameters())
    4231976

    References:
        | MobileNets: Efficient Convolutional Neural Networks for Mobile Vision Applications (Howard et al., 2017)
        | https://arxiv.org/abs/1704.04861
    """

    def __init__(
        self,
        *,
        channels: int = 3,
        classes: int = 1000,
        width: float = 1.0,
        first_stride: int = 2,
        batch_norm: bool = True,
        padding: Padding = "even",
        dropout: float = 0.0,
        dropout_after: Sequence[str] = (),
    ) -> None:
        super().__init__()
        _check("MobileNetV1", channels=channels, classes=classes, width=width, first_stride=first_stride)
        drop = dropout_layers(dropout, dropout_after, known=(*_stages(V1_STAGES), "pool", "block"))
        convolve = _Convolve(batch_norm=batch_norm, padding=padding, activation=nn.ReLU)
        wide = max(int(32 * width), 8)
        features = convolve(0, channels, wide, stride=first_stride)
        number = 0
        for stage, (outward, blocks, first) in zip(_stages(V1_STAGES), V1_STAGES, strict=True):
            outward = max(int(outward * width), 8)
            for stride in [first] + [1] * (blocks - 1):
                depthwise = convolve(0, wide, wide, stride=stride, groups=wide)
                mixing = convolve(1, wide, outward, kernel=1)
                number, wide = number + 1, outward
                features[str(number)] = MobileNetBlock(depthwise | drop("block") | mixing, adds=False)
            features |= drop(stage)
        _assemble(self, features, drop("pool"), nn.Linear(wide, classes))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x


class MobileNetV2(nn.Module):
    """A convolution, 17 inverted residuals in seven stages, a 1x1 convolution, mean over pixels, logits.

    An inverted residual widens the channels by 1x1, filters each by itself, narrows them by 1x1 without an activation,
    and adds its own input where the shapes agree. ``features.0`` is the first convolution, ``features.K`` block K with
    its convolutions ``features.K.conv.0``, ``.1`` and ``.2`` (the first block does not widen and has two), and
    ``features.18`` the last convolution. Behind convolution J come ``bnJ`` and ``reluJ``, where it has them.

    One class serves training and weights whose batch norm is folded already. For TensorFlow's ImageNet weights, which
    expect inputs ``x / 127.5 - 1``, build ``MobileNetV2(batch_norm=False, padding="same")`` and wrap it in
    ``Classifier(..., mean=0.5, std=0.5)``, given images in [0, 1].

    Args:
        channels: of an input; height and width are free, 224 in the paper.
        classes: how many to tell apart.
        width: what the paper's channels are multiplied by, then rounded to multiples of 8; the last convolution is
            never made narrower.
        first_stride: of the first convolution; 1 keeps more of images as small as 32.
        batch_norm: whether convolutions are followed by batch norm; without it they have biases, as after `folded`.
        padding: ``even`` for one zero on every side, ``same`` for TensorFlow's (see `PadSame`).
        dropout: share of values dropped while training.
        dropout_after: where dropout sits: behind ``stage1`` to ``stage7``, ``last`` or ``pool``, and ``block`` for
            behind the depthwise convolution of every block.

    >>> sum(p.numel() for p in MobileNetV2().parameters())
    3504872

    References:
        | MobileNetV2: Inverted Residuals and Linear Bottlenecks (Sandler et al., 2018)
        | https://arxiv.org/abs/1801.04381
    """

    def __init__(
        self,
        *,
        channels: int = 3,
        classes: int = 1000,
        width: float = 1.0,
        first_stride: int = 2,
        batch_norm: bool = True,
        padding: Padding = "even",
        dropout: float = 0.0,
        dropout_after: Sequence[str] = (),
    ) -> None:
        super().__init__()
        _check("MobileNetV2", channels=channels, classes=classes, width=width, first_stride=first_stride)
        drop = dropout_layers(dropout, dropout_after, known=(*_stages(V2_STAGES), "last", "pool", "block"))
        convolve = _Convolve(batch_norm=batch_norm, padding=padding, activation=nn.ReLU6)
        wide, last = _by_eight(32 * width), _by_eight(1280 * max(width, 1))
        features = convolve(0, channels, wide, stride=first_stride)
        number = 1
        for stage, (times, outward, blocks, first) in zip(_stages(V2_STAGES), V2_STAGES, strict=True):
            outward = _by_eight(outward * width)
            for stride in [first] + [1] * (blocks - 1):
                inner, at = times * wide, int(times > 1)
                widening = convolve(0, wide, inner, kernel=1) if at else {}
                depthwise = convolve(at, inner, inner, stride=stride, groups=inner)
                narrowing = convolve(at + 1, inner, outward, kernel=1, active=False)
                adds = stride == 1 and wide == outward
                features[str(number)] = MobileNetBlock(widening | depthwise | drop("block") | narrowing, adds=adds)
                number, wide = number + 1, outward
            features |= drop(stage)
        features |= convolve(number, wide, last, kernel=1) | drop("last")
        _assemble(self, features, drop("pool"), nn.Linear(last, classes))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x


def folded(network: M) -> M:
    """A copy of a MobileNet that computes the same without batch norm, in evaluation mode.

    It has the layers and names of a network that was built with ``batch_norm=False``, so that weights can be exchanged.
    """
    copy = deepcopy(network).eval()
    norms = [name for name, m in copy.named_modules() if isinstance(m, nn.BatchNorm2d)]
    if not norms:
        raise ValueError(f"this {type(network).__name__} has no batch norm to fold; it was built with batch_norm=False")
    for name in norms:
        parent, _, norm = name.rpartition(".")
        row, conv = copy.get_submodule(parent), norm.removeprefix("bn")
        setattr(row, conv, fuse_conv_bn_eval(row.get_submodule(conv), row.get_submodule(norm)))  # type: ignore[type-var, arg-type]
        delattr(row, norm)
    return copy


class MobileNetBlock(nn.Module):
    """Convolutions in a row, and their input added to what they give if the block adds."""

    def __init__(self, layers: Layers, *, adds: bool) -> None:
        super().__init__()
        self.conv = _row(layers)
        self.adds = adds

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.adds else out


class PadSame(nn.Module):
    """Zeros around an image as TensorFlow's "same" puts them for a 3x3 filter that moves by two pixels.

    One right and below; an image of odd size gets one left and above as well.
    """

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        return F.pad(x, (width % 2, 1, height % 2, 1))


# How they are put together


@dataclass(frozen=True, kw_only=True)
class _Convolve:
    """Writes a convolution with what belongs to it, named by its number: ``pad0 0 bn0 relu0``."""

    batch_norm: bool
    padding: Padding
    activation: type[nn.Module]

    def __post_init__(self) -> None:
        if self.padding not in ("even", "same"):
            raise ValueError(f"padding must be 'even' or 'same', got {self.padding!r}")

    def __call__(
        self,
        at: int,
        inward: int,
        outward: int,
        *,
        kernel: int = 3,
        stride: int = 1,
        groups: int = 1,
        active: bool = True,
    ) -> Layers:
        uneven = self.padding == "same" and stride == 2  # at stride 1 both paddings are the same
        around = 0 if uneven else kernel // 2
        bias = not self.batch_norm
        conv = nn.Conv2d(inward, outward, kernel, stride=stride, padding=around, groups=groups, bias=bias)
        return {
            **({f"pad{at}": PadSame()} if uneven else {}),
            str(at): conv,
            **({f"bn{at}": nn.BatchNorm2d(outward)} if self.batch_norm else {}),
            **({f"relu{at}": self.activation()} if active else {}),
        }


def _assemble(network: nn.Module, features: Layers, behind_pool: Layers, classifier: nn.Linear) -> None:
    """Give a network its layers in the order they run, and first weights that keep the scale of what passes."""
    pooling: Layers = {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    for name, layer in ({"features": _row(features)} | pooling | behind_pool | {"classifier": classifier}).items():
        network.add_module(name, layer)
    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def _row(layers: Layers) -> nn.Sequential:
    row = nn.Sequential()
    for name, layer in layers.items():
        row.add_module(name, layer)
    return row


def _stages(table: Sequence[object]) -> tuple[str, ...]:
    return tuple(f"stage{i}" for i in range(1, len(table) + 1))


def _by_eight(channels: float) -> int:
    """The nearest multiple of 8 that is not more than a tenth too small.

    >>> _by_eight(96 * 0.75), _by_eight(11)
    (72, 16)
    """
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8


def _check(name: str, *, channels: int, classes: int, width: float, first_stride: int) -> None:
    if channels < 1 or classes < 2:
        raise ValueError(f"{name} needs channels of at least 1 and classes of at least 2, got {channels} and {classes}")
    if not 0 < width < float("inf"):
        raise ValueError(f"width must be a positive factor, got {width}; 1.0 is the paper's")
    if first_stride not in (1, 2):
        raise ValueError(f"first_stride must be 1 or 2, got {first_stride}")
