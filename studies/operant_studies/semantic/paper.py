"""Numbers of the paper's Tables 2 and 3."""

from __future__ import annotations

TABLE_2 = {  # percent of tests that detect the fault, from the first class and from the second
    "wolf or husky by snow or grass": (68, 36),
    "palace or castle by clear or cloudy sky": (67, 73),
    "screen or monitor by on or off": (48, 32),
    "screwdriver or ballpoint pen by slope": (21, 9),
    "coffee mug or cup by side of the handle": (15, 16),
    "alp or volcano by saturation": (94, 88),
    "German shepherd or golden retriever by tongue": (25, 34),
    "orange or lemon by leaves": (69, 11),
}
LEAST = min(min(both) for both in TABLE_2.values()) / 100
MOST = max(max(both) for both in TABLE_2.values()) / 100

TABLE_3 = {  # accuracy of robust classifiers in percent: pixel perturbations, the paper's own
    ("EfficientNet-B4", "Engstrom et al."): (56, 27),
    ("EfficientNet-B4", "Wong et al."): (53, 24),
    ("ResNet50", "Engstrom et al."): (36, 25),
    ("ResNet50", "Wong et al."): (32, 22),
}

VALID_SEEDS = 0.7  # not the paper's: the required share of seeds with a valid test
