"""One page that shows cases beside the seeds they came from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from jinja2 import Environment, StrictUndefined, Template
from torch import Tensor

from operant.formatting import percent
from operant.results import write_atomically
from operant.suite import Suite
from operant.suite.drawing import CLIPPED, FACTORS, MAX_SMALL, Values, colours, data_uri, is_picture, shades

LARGEST_CHANGES = 5  # values shown of a case that is not an image


@dataclass(frozen=True, kw_only=True)
class Card:
    """One case as the page shows it: images, or the values that changed."""

    failing: bool
    label: str
    prediction: str
    pictures: tuple[str, ...]  # seed, case and difference, as data URIs
    changes: tuple[tuple[str, str, str], ...]  # name, value in the seed, value in the case
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Group:
    """The cases of one method: counts, mean distances, and the cards that are shown."""

    method: str
    about: str
    cases: int
    failures: int
    linf: str
    l2: str
    factor: int  # differences are multiplied by it
    cards: tuple[Card, ...]


def write_gallery(
    suite: Suite,
    path: str | Path,
    *,
    title: str = "Cases",
    intro: str = "",
    about: Mapping[str, str] | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    classes: Sequence[str] | None = None,
    limit: int = 24,
) -> Path:
    """Write one HTML file that shows seed, case and difference of a suite's cases, method by method.

    The file contains everything and loads nothing. Failures come first, otherwise cases are in the suite's order.
    Inputs are images ``(1, height, width)`` or ``(3, height, width)``; of inputs with one dimension the values that
    changed most are shown instead.

    Args:
        suite: the cases; `Suite.concat` joins those of several attacks.
        path: the file to write; an existing one is replaced.
        title: of the page.
        intro: a paragraph below the title.
        about: a short description by method.
        bounds: smallest and largest value of a pixel, the model's `bounds`.
        classes: the name of each label (default: the suite's, or its number).
        limit: maximum number of cases shown per method.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    shape = tuple(suite.rows.shape)
    _check_shape(shape)
    names = _names(suite, classes)
    methods = [str(method) for method in dict.fromkeys(suite.method)]
    groups = [
        _group(suite[suite.method == method], (about or {}).get(method, ""), names, bounds, limit) for method in methods
    ]
    channels = shape[0] if len(shape) == 3 else 0
    page = _template().render(title=title, intro=intro, groups=groups, channels=channels, small=max(shape) <= MAX_SMALL)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode())
    return path


def _check_shape(shape: tuple[int, ...]) -> None:
    if not is_picture(shape) and len(shape) != 1:
        raise ValueError(
            f"a gallery shows images (1, height, width) or (3, height, width) and rows of values (width,), got cases "
            f"of shape {shape}; build a suite of inputs in one of these shapes"
        )


def _names(suite: Suite, classes: Sequence[str] | None) -> Sequence[str]:
    """The name of every label."""
    most = int(torch.cat([suite.label, suite.prediction]).max()) if len(suite) else -1
    if classes is None:
        return suite.classes if len(suite.classes) > most else [str(label) for label in range(most + 1)]
    if len(classes) <= most:
        raise ValueError(f"classes must name every label up to {most}, got {len(classes)} names; add the missing ones")
    return classes


def _template() -> Template:
    text = (resources.files("operant.report") / "gallery.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["percent"] = percent
    return environment.from_string(text)


def _group(part: Suite, about: str, names: Sequence[str], bounds: tuple[float, float], limit: int) -> Group:
    failures = part.failures()
    order = (part.prediction == part.label).long().argsort(stable=True)  # failures first
    shown: Suite = part[order[:limit]]
    factor = amplification(shown, bounds) if _pictured(shown) else 1
    return Group(
        method=str(part.method[0]),
        about=about,
        cases=len(part),
        failures=len(failures),
        linf=_mean(failures.distances("linf")),
        l2=_mean(failures.distances("l2")),
        factor=factor,
        cards=_cards(shown, names, bounds, factor),
    )


def _cards(shown: Suite, names: Sequence[str], bounds: tuple[float, float], factor: int) -> tuple[Card, ...]:
    nothing: list[tuple[()]] = [()] * len(shown)
    rows = zip(
        shown.label.tolist(),
        shown.prediction.tolist(),
        pictures_of(shown, bounds, factor) if _pictured(shown) else nothing,
        nothing if _pictured(shown) else largest_changes(shown),
        _facts(shown),
        strict=True,
    )
    return tuple(
        Card(
            failing=label != prediction,
            label=names[label],
            prediction=names[prediction],
            pictures=pictures,
            changes=changes,
            facts=facts,
        )
        for label, prediction, pictures, changes, facts in rows
    )


def _mean(distances: Tensor) -> str:
    return f"{float(distances.mean()):#.3g}".removesuffix(".") if len(distances) else "-"


def _facts(shown: Suite) -> list[tuple[tuple[str, str], ...]]:
    """Distances and columns of each case."""
    seeds = {} if shown.pool.names is None else {"seed": np.array(shown.seed_names)}
    columns = {**seeds, "L∞": shown.distances("linf"), "L2": shown.distances("l2"), **shown.columns}
    values = [
        [_number(v) for v in column.tolist()] if isinstance(column, Tensor) else [str(v) for v in column]
        for column in columns.values()
    ]
    return [
        tuple((name, value) for name, value in zip(columns, row, strict=True) if value)
        for row in zip(*values, strict=True)
    ]


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3g}"  # NaN: the method does not have this column


# Images


def _pictured(suite: Suite) -> bool:
    return len(suite.rows.shape) == 3


def pictures_of(shown: Suite, bounds: tuple[float, float], factor: int) -> list[tuple[str, ...]]:
    """Seed, case and difference of each case."""
    x0, x = _unit(shown.x0, bounds), _unit(shown.x, bounds)
    images = (shades(x0), shades(x), colours(factor * (x - x0)))
    return list(zip(*([data_uri(pixels) for pixels in batch] for batch in images), strict=True))


def amplification(shown: Suite, bounds: tuple[float, float]) -> int:
    """The largest factor that leaves nearly all differences within the colour range."""
    change = np.abs(_unit(shown.x, bounds) - _unit(shown.x0, bounds))
    large = 0.99 * float(np.quantile(change, 1 - CLIPPED))
    return max((factor for factor in FACTORS if factor * large <= 1), default=1)


def _unit(x: Tensor, bounds: tuple[float, float]) -> Values:
    """Inputs scaled from bounds to 0..1, channels last."""
    low, high = bounds
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"bounds must be two finite numbers, the smaller first, to draw images, got {bounds}")
    unit: Values = ((x.double() - low) / (high - low)).movedim(1, -1).numpy()
    if not (unit.min() >= -1e-3 and unit.max() <= 1 + 1e-3):
        raise ValueError(
            f"pixels must lie within bounds {bounds}, got values from {float(x.min()):.4g} to {float(x.max()):.4g}; "
            "give the model's bounds"
        )
    return unit


# Rows of values


def largest_changes(shown: Suite) -> list[tuple[tuple[str, str, str], ...]]:
    """The values of each case that changed most, largest change first."""
    before, after = shown.x0.flatten(1), shown.x.flatten(1)
    places = (after - before).abs().topk(min(LARGEST_CHANGES, before.shape[1]), dim=1).indices
    old, new = before.gather(1, places).tolist(), after.gather(1, places).tolist()
    return [
        tuple((f"value {i}", f"{a:.4g}", f"{b:.4g}") for i, a, b in zip(*row, strict=True) if a != b)
        for row in zip(places.tolist(), old, new, strict=True)
    ]
