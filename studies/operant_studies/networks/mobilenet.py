"""MobileNets v1 and v2: a 3x3 filter per channel, and 1x1 convolutions that mix the channels."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal, TypeVar

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from operant.networks.dropout import Layers, dropout_layers
from operant.validation import check_at_least, check_one_of, check_positive
from operant_studies.networks.convolutions import initialise_convolutions

M = TypeVar("M", bound=nn.Module)
Padding = Literal["even", "same"]

V1_STAGES = ((64, 1, 1), (128, 2, 2), (256, 2, 2), (512, 6, 2), (1024, 2, 2))  # channels, blocks, first stride
V2_STAGES = (  # expansion factor, channels, blocks, first stride: table 2 of the paper
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _stages(table: Sequence[object]) -> tuple[str, ...]:
    return tuple(f"stage{i}" for i in range(1, len(table) + 1))


class PadSame(nn.Module):
    """TensorFlow's "same" zero padding for a 3x3 filter of stride 2.

    One zero right and below; an image of odd size also gets one left and above.
    """

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        return F.pad(x, (width % 2, 1, height % 2, 1))


@dataclass(frozen=True, kw_only=True)
class _Convolve:
    """Builds a convolution with its padding, batch norm and activation, named by its number: ``pad0 0 bn0 relu0``."""

    batch_norm: bool
    padding: Padding
    activation: type[nn.Module]

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


class MobileNetV1(nn.Sequential):
    """A convolution, 13 blocks of a depthwise and a 1x1 convolution in five stages, mean over pixels, logits.

    Layers are named as in `MobileNetV2`: ``features.0`` is the first convolution, ``features.K.conv.0`` and
    ``features.K.conv.1`` are those of block K.

    Args:
        channels: channels of an input; height and width are free, 224 in the paper.
        classes: number of classes.
        width: factor on the paper's numbers of channels.
        first_stride: stride of the first convolution; 1 keeps more of images as small as 32.
        batch_norm: whether batch norm follows the convolutions; otherwise they have biases, as after `folded`.
        padding: ``even`` for one zero on every side, ``same`` for TensorFlow's (see `PadSame`).
        dropout: share of values dropped in training.
        dropout_after: places of dropout: after ``stage1`` to ``stage5`` or ``pool``; ``block`` is between the two
            convolutions of every block.

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
        _check_options(channels, classes, width, first_stride, padding)
        places = (*_stages(V1_STAGES), "pool", "block")
        drop = dropout_layers(dropout, dropout_after, known=places)
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
        super().__init__(_with_logits(features, wide, classes, drop))
        initialise_convolutions(self)


class MobileNetV2(nn.Sequential):
    """A convolution, 17 inverted residuals in seven stages, a 1x1 convolution, mean over pixels, logits.

    An inverted residual adds channels by a 1x1 convolution, filters each channel, reduces the channels by a 1x1
    convolution without activation, and adds its input if the shapes agree. ``features.0`` is the first convolution,
    ``features.K`` block K with its convolutions ``features.K.conv.0``, ``.1`` and ``.2`` (the first block has two), and
    ``features.18`` the last convolution. ``bnJ`` and ``reluJ`` belong to convolution J.

    The class serves training and weights whose batch norm is already folded. For TensorFlow's ImageNet weights, which
    expect inputs ``x / 127.5 - 1``, build ``MobileNetV2(batch_norm=False, padding="same")`` and wrap it in
    ``Classifier(..., mean=0.5, std=0.5)`` for images in [0, 1].

    Args:
        channels, classes, first_stride, batch_norm, padding, dropout: as in `MobileNetV1`.
        width: factor on the paper's numbers of channels, then rounded to multiples of 8; the last convolution never
            has fewer channels than in the paper.
        dropout_after: places of dropout: after ``stage1`` to ``stage7``, ``last`` or ``pool``; ``block`` is after the
            depthwise convolution of every block.

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
        _check_options(channels, classes, width, first_stride, padding)
        places = (*_stages(V2_STAGES), "last", "pool", "block")
        drop = dropout_layers(dropout, dropout_after, known=places)
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
        super().__init__(_with_logits(features, last, classes, drop))
        initialise_convolutions(self)


def _check_options(channels: int, classes: int, width: float, first_stride: int, padding: str) -> None:
    check_at_least(1, channels=channels)
    check_at_least(2, classes=classes)
    check_positive(advice="1.0 is the paper's", width=width)
    check_one_of((1, 2), first_stride=first_stride)
    check_one_of(("even", "same"), padding=padding)


def _with_logits(
    features: Layers, wide: int, classes: int, drop: Callable[[str], Layers]
) -> OrderedDict[str, nn.Module]:
    """The features, their mean over pixels and the logits."""
    pooling: Layers = {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), **drop("pool")}
    return OrderedDict({"features": _sequential(features), **pooling, "classifier": nn.Linear(wide, classes)})


def folded(network: M) -> M:
    """A copy of a MobileNet in evaluation mode with batch norm folded into the convolutions.

    It has the layer names of a network built with ``batch_norm=False``, so that weights can be exchanged.
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
    """Convolutions in a row; if ``adds``, their input is added to their output."""

    def __init__(self, layers: Layers, *, adds: bool) -> None:
        super().__init__()
        self.conv = _sequential(layers)
        self.adds = adds

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.adds else out


def _sequential(layers: Layers) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def _by_eight(channels: float) -> int:
    """The nearest multiple of 8 that is at most a tenth too small.

    >>> _by_eight(96 * 0.75), _by_eight(11)
    (72, 16)
    """
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8
