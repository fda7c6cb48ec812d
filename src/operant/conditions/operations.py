"""Image operations: each takes a batch of images and one parameter per row, and returns a batch.

Images are ``(n, channels, height, width)`` in [0, 1] before and after; three channels are red, green and blue. A
parameter is a tensor ``(n,)``; at 0 the image is returned exactly. Each row is computed from that row alone, in a fixed
order of operations, so that it is the same in any batch. `operant.conditions.recipe` combines the operations.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate, pad

from operant.conditions._fields import clouds, normals, uniforms

# The quantisation tables of the JPEG standard's Annex K, for brightness and for colour.
LUMINANCE = """16 11 10 16  24  40  51  61    12 12 14 19  26  58  60  55    14 13 16 24  40  57  69  56
               14 17 22 29  51  87  80  62    18 22 37 56  68 109 103  77    24 35 55 64  81 104 113  92
               49 64 78 87 103 121 120 101    72 92 95 98 112 100 103  99"""
CHROMINANCE = """17 18 24 47 99 99 99 99   18 21 26 66 99 99 99 99   24 26 56 99 99 99 99 99   47 66 99 99 99 99 99 99
                 99 99 99 99 99 99 99 99   99 99 99 99 99 99 99 99   99 99 99 99 99 99 99 99  99 99 99 99 99 99 99 99"""
YCBCR = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))
RGB = ((1.0, 0.0, 1.402), (1.0, -0.344136, -0.714136), (1.0, 1.772, 0.0))
FOG_POINTS = 8  # per side of the grid on which a fog is drawn before it is enlarged


def column(values: Tensor, x: Tensor) -> Tensor:
    """One value per row, with the dimensions and type of the images ``x``."""
    return values.to(x).view(-1, 1, 1, 1)


# Geometry


def displace(x: Tensor, dx: Tensor, dy: Tensor, *, padding: str = "border") -> Tensor:
    """Each pixel takes the value found ``dx`` pixels to its right and ``dy`` below; both fit ``(n, height, width)``.

    Values between pixels are bilinear; where both are 0, it is exactly the pixel's own value.
    """
    h, w = x.shape[2:]
    across = (torch.arange(w).to(x) * 2 + 1) / w - 1 + dx * (2 / w)
    down = ((torch.arange(h).to(x) * 2 + 1) / h - 1)[:, None] + dy * (2 / h)
    grid = torch.stack([across.expand(len(x), h, w), down.expand(len(x), h, w)], -1)
    moved = grid_sample(x, grid, mode="bilinear", padding_mode=padding, align_corners=False)
    still = ((dx == 0) & (dy == 0))[:, None]
    if not bool(still.any()):
        return moved
    return torch.where(still, x.detach() + (moved - moved.detach()), moved)  # exact values, and their gradients


def warp(
    x: Tensor,
    *,
    rotation: Tensor,
    scale: Tensor,
    shear: Tensor,
    shift_x: Tensor,
    shift_y: Tensor,
    padding: str = "border",
) -> Tensor:
    """Scale, shear, rotate about the middle, then shift, in one resampling.

        output(u) = x(eˢᶜᵃˡᵉ⁻¹ · shear⁻¹ · rotation⁻¹ · (u - shift)),  u from the middle of the image        (1)

    Args:
        x: images.
        rotation: in degrees, counter-clockwise.
        scale: log of the factor; positive is larger.
        shear: lean of the picture as a share of its height: its bottom moves right, its top left.
        shift_x: to the right, as a share of the width.
        shift_y: downwards, as a share of the height.
        padding: values outside the image: ``"border"``, ``"reflection"`` or ``"zeros"``.
    """
    h, w = x.shape[2:]
    angle, k, shrink = rotation.double().deg2rad(), shear.double(), (-scale.double()).exp()
    cos, sin = angle.cos(), angle.sin()
    rows = (((cos - k * sin) * shrink, (-sin - k * cos) * shrink), (sin * shrink, cos * shrink))
    (a, b), (c, d) = (tuple(v.to(x).view(-1, 1, 1) for v in row) for row in rows)
    tx, ty = (shift_x.to(x) * w).view(-1, 1, 1), (shift_y.to(x) * h).view(-1, 1, 1)
    u = torch.arange(w).to(x) - (w - 1) / 2
    v = (torch.arange(h).to(x) - (h - 1) / 2)[:, None]
    dx = (a - 1) * u + b * v - (a * tx + b * ty)  # (1), less u
    dy = c * u + (d - 1) * v - (c * tx + d * ty)
    return displace(x, dx, dy, padding=padding)


def occlude(x: Tensor, size: Tensor, *, seeds: Tensor) -> Tensor:
    """A grey box over the image, with sides of this share; the seed gives its place and its shade."""
    place = uniforms(seeds, (3,), "box").to(x)
    size = size.to(x)
    hidden = torch.ones_like(x[:, :1])
    for n, axis in zip(x.shape[2:], (0, 1), strict=True):
        start, pixel = (place[:, axis] * (1 - size) * n)[:, None], torch.arange(n).to(x)
        end = start + size[:, None] * n
        share = (torch.minimum(pixel + 1, end) - torch.maximum(pixel, start)).clamp(0, 1)  # of each pixel under it
        hidden = hidden * (share[:, None, :, None] if axis == 0 else share[:, None, None, :])
    return (x + hidden * (column(place[:, 2], x) - x)).clamp(0, 1)


# Light and air of the scene


def shadow(x: Tensor, depth: Tensor, *, seeds: Tensor) -> Tensor:
    """This share of the light taken away within a soft-edged ellipse; the seed gives its place, size and edge.

    x · (1 - depth · m),  m from 1 inside to 0 outside of an ellipse with its centre in the image        (1)
    """
    place = uniforms(seeds, (6,), "ellipse")
    turn, edge = math.pi * place[:, 4], 0.5 + 0.8 * place[:, 5]
    half = 0.5 + 0.7 * place[:, 2:4]  # of its axes, where half of the image's side is 1
    down, across = ((2 * place[:, i] - 1).to(x).view(-1, 1, 1) for i in (0, 1))
    ways = ((turn.cos() / half[:, 0], turn.sin() / half[:, 0]), (-turn.sin() / half[:, 1], turn.cos() / half[:, 1]))
    v, u = (_centred(n, x) for n in x.shape[2:])
    v, u = v[:, None] - down, u - across
    (a, b), (c, d) = (tuple(way.to(x).view(-1, 1, 1) for way in pair) for pair in ways)
    far = ((a * u + b * v).square() + (c * u + d * v).square())[:, None]  # 1 on the ellipse
    inside = ((1 - far) / column(edge, x) + 0.5).clamp(0, 1)
    return x * (1 - column(depth, x) * (inside * inside * (3 - 2 * inside)))  # (1)


def fog(x: Tensor, thickness: Tensor, *, seeds: Tensor) -> Tensor:
    """Replace this share of the light by that of a bright haze; the seed gives its clouds."""
    coarse = clouds(seeds, (FOG_POINTS, FOG_POINTS), "haze", roughness=0.6).to(x)
    return veil(x, thickness, interpolate(coarse, size=x.shape[2:], mode="bilinear", align_corners=True))


def veil(x: Tensor, share: Tensor, cloud: Tensor) -> Tensor:
    """Replace a share of the light by that of a haze, brightest where ``cloud`` is 1."""
    haze = 0.55 + 0.45 * cloud
    return (x + column(share, x) * (haze - x)).clamp(0, 1)


def _centred(n: int, x: Tensor) -> Tensor:
    """The places of ``n`` pixels, from -1 for the first to 1 for the last; 0 for a single one."""
    return (2 * torch.arange(n).to(x) - (n - 1)) / max(1, n - 1)


# Sharpness


def defocus(x: Tensor, radius: Tensor) -> Tensor:
    """Out of focus: every point becomes a disk of this radius in pixels."""
    order = radius.detach().argsort()
    parts = [rows for rows in order.tensor_split(4) if len(rows) > 0]  # small disks need fewer steps than large ones
    return torch.cat([_disk_means(x[rows], radius[rows]) for rows in parts])[order.argsort()]


def _disk_means(x: Tensor, radius: Tensor) -> Tensor:
    radius = radius.double()[:, None, None]
    reach = math.floor(float(radius.detach().max())) + 1
    k = torch.arange(-reach, reach + 1, dtype=torch.float64, device=radius.device)
    disk = (1 + radius - torch.hypot(k[:, None], k)).clamp(0, 1)
    total, share = torch.zeros_like(x), torch.zeros_like(radius)
    wide = pad(x, (reach,) * 4, mode="replicate")
    for i, j in (disk.detach() > 0).any(0).nonzero().tolist():
        weight = disk[:, i : i + 1, j : j + 1]
        total += wide[:, :, i:, j:][:, :, : x.shape[2], : x.shape[3]] * column(weight, x)
        share = share + weight
    return (total / column(share, x)).clamp(0, 1)


def blur(x: Tensor, sigma: Tensor) -> Tensor:
    """Convolution with a Gaussian of standard deviation ``sigma`` in pixels, truncated at four of them."""
    s = sigma.double().clamp_min(1e-3)[:, None]
    reach = (4 * s.detach() + 0.5).floor()
    k = torch.arange(int(reach.max()) + 1, dtype=torch.float64, device=s.device)
    weights = (-(k**2) / (2 * s**2)).exp() * (k <= reach)
    weights = weights / (2 * weights.cumsum(1)[:, -1:] - 1)  # cumulative sums: trailing zeros change nothing
    return _smooth(_smooth(x, weights, 3), weights, 2).clamp(0, 1)


def _smooth(x: Tensor, weights: Tensor, dim: int) -> Tensor:
    """Weighted sums along one dimension; the same weights on both sides, outermost last."""
    n, reach = x.shape[dim], weights.shape[1] - 1
    wide = pad(x, (reach, reach, 0, 0) if dim == 3 else (0, 0, reach, reach), mode="replicate")
    total = x * column(weights[:, 0], x)
    for k in range(1, reach + 1):
        both = wide.narrow(dim, reach - k, n) + wide.narrow(dim, reach + k, n)
        total += both * column(weights[:, k], x)
    return total


def motion_blur(x: Tensor, length: Tensor, angle: Tensor) -> Tensor:
    """The mean of the images during a movement by ``length`` pixels in the direction of ``angle`` degrees.

    The number of positions depends only on the size of the image: a quarter of its side, at least 9.
    """
    places = max(9, max(x.shape[2:]) // 4) | 1
    turn = angle.double().deg2rad()
    along = [(length.double() * f(turn)).to(x).view(-1, 1, 1) for f in (torch.cos, torch.sin)]
    if along[0].requires_grad:  # the order in which gradients are summed decides their last bits: keep it
        along = [way.expand(-1, *x.shape[2:]) for way in along]
    change = torch.zeros_like(x)
    for k in range(places):
        t = k / (places - 1) - 0.5
        change += displace(x, along[0] * t, -along[1] * t) - x
    return (x + change / places).clamp(0, 1)


def downsample(x: Tensor, lost: Tensor) -> Tensor:
    """Averaged down by this share of the sides, and enlarged bilinearly to the original size."""

    def resample(part: Tensor, size: tuple[int, int]) -> Tensor:
        small = interpolate(part, size=size, mode="area")
        return interpolate(small, size=part.shape[2:], mode="bilinear", align_corners=False)

    return _by_size(x, lost, resample)


def pixelate(x: Tensor, lost: Tensor) -> Tensor:
    """Pixels replaced by the means of blocks, so that this share of the resolution is lost."""
    return _by_size(x, lost, lambda part, size: _blocks(_blocks(part, size[0], 2), size[1], 3))


def _blocks(x: Tensor, count: int, dim: int) -> Tensor:
    n = x.shape[dim]
    block = torch.arange(n, device=x.device) * count // n
    total = torch.zeros_like(x).index_add(dim, block, x)
    members = block.bincount(minlength=n).clamp_min(1).to(x)
    return (total / members.view(-1, *[1] * (3 - dim))).index_select(dim, block)


def _by_size(x: Tensor, lost: Tensor, resample: Callable[[Tensor, tuple[int, int]], Tensor]) -> Tensor:
    """Resample rows that shrink to the same size together; rows that keep their size are unchanged."""
    h, w = x.shape[2:]
    kept = 1 - lost.detach().double().cpu()
    sizes = torch.stack([(kept * h).round().clamp_min(1), (kept * w).round().clamp_min(1)], 1).long()
    present, member = sizes.unique(dim=0, return_inverse=True)
    parts, order = [], []
    for i, (height, width) in enumerate(present.tolist()):
        rows = (member == i).nonzero().flatten().to(x.device)
        parts.append(x[rows] if (height, width) == (h, w) else resample(x[rows], (height, width)))
        order.append(rows)
    return torch.cat(parts)[torch.cat(order).argsort()].clamp(0, 1)


# Light


def vignette(x: Tensor, loss: Tensor) -> Tensor:
    """``x · (1 - loss · r²)``, where r is the distance from the middle, 1 in the corners."""
    v, u = (_centred(n, x) for n in x.shape[2:])
    return x * (1 - column(loss, x) * (v.square()[:, None] + u.square()) / 2)


def expose(x: Tensor, log_gain: Tensor) -> Tensor:
    """``x`` times ``exp(log_gain)``: negative is darker."""
    return (x * column(log_gain.double().exp(), x)).clamp(0, 1)


def warm(x: Tensor, log_gain: Tensor) -> Tensor:
    """Red times ``exp(log_gain)`` and blue divided by it: positive is warmer light."""
    red, green, blue = _colours(x, "warmth")
    gain = log_gain.double()
    return torch.cat([red * column(gain.exp(), x), green, blue * column((-gain).exp(), x)], 1).clamp(0, 1)


def tint(x: Tensor, log_gain: Tensor) -> Tensor:
    """Green times ``exp(log_gain)``: negative is magenta."""
    red, green, blue = _colours(x, "tint")
    return torch.cat([red, green * column(log_gain.double().exp(), x), blue], 1).clamp(0, 1)


def saturate(x: Tensor, log_factor: Tensor) -> Tensor:
    """Distances of the colours from the pixel's grey of equal brightness times ``exp(log_factor)``."""
    red, green, blue = _colours(x, "saturation")
    grey = YCBCR[0][0] * red + YCBCR[0][1] * green + YCBCR[0][2] * blue
    return (x + (x - grey) * column(log_factor.double().expm1(), x)).clamp(0, 1)


def _colours(x: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """The red, green and blue channel."""
    if x.shape[1] != 3:
        raise ValueError(f"{name} needs images with three channels, got {x.shape[1]}; remove it from the recipe")
    return x[:, :1], x[:, 1:2], x[:, 2:]


def brighten(x: Tensor, by: Tensor) -> Tensor:
    """``x + by``."""
    return (x + column(by, x)).clamp(0, 1)


def contrast(x: Tensor, log_factor: Tensor) -> Tensor:
    """Distances from the mean of each image times ``exp(log_factor)``."""
    mean = x.double().mean((1, 2, 3), keepdim=True).to(x)
    return (x + (x - mean) * column(log_factor.double().expm1(), x)).clamp(0, 1)


def gamma(x: Tensor, log_exponent: Tensor) -> Tensor:
    """``x`` to the power of ``exp(log_exponent)``: positive is darker; the gradient at black is set to 0."""
    exponent = column(log_exponent.double().exp(), x.double())
    lit = x > 0
    power = torch.where(lit, x, 1.0).double() ** exponent
    return torch.where(lit, power, 0.0).to(x).clamp(0, 1)


# Noise


def gaussian_noise(x: Tensor, std: Tensor, *, seeds: Tensor) -> Tensor:
    """``x + std · z`` with z standard normal in every channel of every pixel."""
    z = normals(seeds, tuple(x.shape[1:]), "gaussian").to(x)
    return (x + column(std, x) * z).clamp(0, 1)


def shot_noise(x: Tensor, std: Tensor, *, seeds: Tensor) -> Tensor:
    """``x + std · √x · z``: mean and variance of photon counts, where white is ``1 / std²`` photons."""
    z = normals(seeds, tuple(x.shape[1:]), "shot").to(x)
    root = torch.where(x > 0, x, 1.0).sqrt() * (x > 0)  # a finite gradient at black
    return (x + column(std, x) * root * z).clamp(0, 1)


def impulse_noise(x: Tensor, share: Tensor, *, seeds: Tensor) -> Tensor:
    """Set this share of all values to black or white, half each."""
    shape = tuple(x.shape[1:])
    hit = uniforms(seeds, shape, "where").to(x.device) < share.detach().double().view(-1, 1, 1, 1)
    return torch.where(hit, (uniforms(seeds, shape, "which") < 0.5).to(x), x)


# Compression


def jpeg(x: Tensor, strength: Tensor) -> Tensor:
    """Cosine coefficients of 8 by 8 blocks rounded to multiples of ``strength`` times the JPEG standard's table.

    Strength 1 is quality 50 in most programs, 0.5 is quality 75, 5 is quality 10. Three channels are rounded as
    brightness and two colours, at full resolution; other channels each as brightness. Gradients ignore the rounding.
    """
    h, w = x.shape[2:]
    rgb = x.shape[1] == 3
    z = pad(x, (0, -w % 8, 0, -h % 8), mode="replicate") * 255
    z = _mixed(z, YCBCR) if rgb else z
    z = torch.cat([z[:, :1] - 128, z[:, 1:]], 1) if rgb else z - 128
    tables = [LUMINANCE, CHROMINANCE, CHROMINANCE] if rgb else [LUMINANCE]
    table = torch.stack([torch.tensor([float(v) for v in t.split()]).view(8, 8) for t in tables])[:, None, :, None]
    step = (strength.to(x).view(-1, 1, 1, 1, 1, 1) * table.to(x)).clamp_min(1e-6)
    basis = _cosines(x)
    blocks = z.view(*z.shape[:2], z.shape[2] // 8, 8, z.shape[3] // 8, 8)
    coefficients = _transformed(_transformed(blocks, basis, 3), basis, 5) / step
    rounded = (coefficients + (coefficients.round() - coefficients).detach()) * step
    z = _transformed(_transformed(rounded, basis.T, 3), basis.T, 5).reshape(z.shape)
    z = _mixed(torch.cat([z[:, :1] + 128, z[:, 1:]], 1), RGB) if rgb else z + 128
    return torch.where(column(strength, x) == 0, x, (z[:, :, :h, :w] / 255).clamp(0, 1))


def _mixed(x: Tensor, matrix: tuple[tuple[float, ...], ...]) -> Tensor:
    """Linear combinations of three channels, added in a fixed order."""
    return torch.stack([x[:, 0] * a + x[:, 1] * b + x[:, 2] * c for a, b, c in matrix], 1)


def _cosines(x: Tensor) -> Tensor:
    """The orthonormal basis of the discrete cosine transform, one vector per row."""
    k = torch.arange(8, dtype=torch.float64)
    basis = (math.pi / 8 * k[:, None] * (k + 0.5)).cos() / 2
    return torch.cat([basis[:1] / math.sqrt(2), basis[1:]]).to(x)


def _transformed(blocks: Tensor, matrix: Tensor, dim: int) -> Tensor:
    """The matrix times the blocks along one dimension, added in a fixed order, unlike a matrix product."""
    shape = [8 if d == dim else 1 for d in range(blocks.ndim)]
    total = torch.zeros_like(blocks)
    for k in range(8):
        total += matrix[:, k].reshape(shape) * blocks.select(dim, k).unsqueeze(dim)
    return total
