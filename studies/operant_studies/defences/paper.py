"""The paper's Tables 6 and 7: success of each defence on common and on uncommon data."""

from __future__ import annotations

from operant_studies.defences import settings as s

AVERAGE, LARGEST = 0.35, 0.79  # drops of success: the abstract, and Zhang (2020), section 2.3
STOPPED = 0.9  # success on common data of all defences but one on the three smaller models

TABLES: dict[str, dict[str, tuple[float, float]]] = {
    "nin": {
        s.CLASSIFIER: (0.944, 0.255),
        s.MUTATION: (0.975, 0.055),
        s.DISTILLATION: (0.93, 0.786),
        s.SMOOTHING: (0.936, 0.762),
        s.SQUEEZING: (0.905, 0.663),
    },
    "resnet20": {
        s.CLASSIFIER: (0.958, 0.159),
        s.MUTATION: (0.985, 0.101),
        s.DISTILLATION: (0.913, 0.773),
        s.SMOOTHING: (0.921, 0.748),
        s.SQUEEZING: (0.881, 0.637),
    },
    "lenet5": {
        s.CLASSIFIER: (0.986, 0.303),
        s.MUTATION: (0.97, 0.390),
        s.DISTILLATION: (0.985, 0.963),
        s.SMOOTHING: (0.981, 0.934),
        s.SQUEEZING: (0.973, 0.327),
    },
    "mobilenet": {s.MUTATION: (0.865, 0.549), s.TRANSFORMS: (0.702, 0.660), s.DEFLECTION: (0.782, 0.688)},
}
UNCOMMON = {"nin": 615, "resnet20": 552, "lenet5": 491, "mobilenet": 395}


def drops() -> dict[str, list[float]]:
    """The drop of success in each cell of both tables, by model.

    The abstract's average is near the mean over models of their cells.

    >>> means = [sum(cells) / len(cells) for cells in drops().values()]
    >>> print(f"{sum(means) / len(means):.3f} {max(max(cells) for cells in drops().values()):.3f}")
    0.357 0.920
    """
    return {name: [common - uncommon for common, uncommon in rows.values()] for name, rows in TABLES.items()}
