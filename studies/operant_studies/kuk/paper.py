"""The paper's Tables 3, 4 and 5, by model.

Its text has two other numbers: 0.293 for the benign VRO of LeNet-5, where Table 4 has 0.312, and all 200 seeds for HH
of ResNet-20, where Table 5 has 192. We use the tables.
"""

from __future__ import annotations

ATTACKS = ("BIM", "C&W", "DeepFool", "FGSM")
TOOLS = ("DeepHunter-KMNC", "DeepHunter-NC", "TensorFuzz")
SEEDS = 200  # of each cell of Table 5

TABLE_3: dict[str, dict[str, tuple[float, ...]]] = {  # AUC-ROC of PCS, VRO, VR, PE and MI, percent
    "lenet5": {
        "BIM": (99.98, 99.06, 90.72, 83.56, 81.52),
        "C&W": (100.00, 99.08, 90.23, 82.86, 81.61),
        "DeepFool": (99.44, 98.31, 93.47, 86.46, 84.78),
        "FGSM": (99.98, 98.74, 95.52, 90.09, 87.36),
    },
    "nin": {
        "BIM": (99.95, 99.46, 88.57, 86.73, 86.95),
        "C&W": (99.90, 99.44, 87.93, 85.99, 86.48),
        "DeepFool": (99.79, 99.18, 91.44, 88.64, 88.51),
        "FGSM": (99.43, 98.80, 93.97, 91.69, 91.54),
    },
    "resnet20": {
        "BIM": (99.97, 98.20, 86.74, 84.62, 85.10),
        "C&W": (99.88, 98.28, 85.87, 83.93, 84.59),
        "DeepFool": (99.80, 97.85, 88.02, 85.70, 86.23),
        "FGSM": (99.23, 97.28, 90.74, 88.25, 88.24),
    },
    "mobilenet": {
        "BIM": (99.95, 86.67, 84.25, 68.77, 68.37),
        "C&W": (96.80, 84.49, 82.73, 67.80, 67.35),
        "DeepFool": (79.36, 77.47, 77.13, 74.03, 72.32),
        "FGSM": (97.79, 87.93, 86.49, 72.75, 71.84),
    },
}

TABLE_4: dict[str, dict[str, tuple[str, str]]] = {  # mean / variance of PCS and of VRO
    "lenet5": {
        "benign": ("0.990 / 0.004", "0.312 / 0.017"),
        "BIM": ("0.018 / 0.001", "0.733 / 0.008"),
        "C&W": ("0.002 / 8.865e-06", "0.735 / 0.008"),
        "DeepFool": ("0.186 / 0.114", "0.697 / 0.009"),
        "FGSM": ("0.012 / 1e-4", "0.716 / 0.009"),
        "DeepHunter-KMNC": ("0.561 / 0.119", "0.631 / 0.019"),
        "DeepHunter-NC": ("0.592 / 0.112", "0.625 / 0.020"),
        "TensorFuzz": ("0.579 / 0.111", "0.630 / 0.020"),
    },
    "nin": {
        "benign": ("0.953 / 0.023", "0.054 / 0.016"),
        "BIM": ("0.007 / 0.0004", "0.777 / 0.025"),
        "C&W": ("0.013 / 0.0003", "0.777 / 0.027"),
        "DeepFool": ("0.027 / 0.007", "0.720 / 0.026"),
        "FGSM": ("0.083 / 0.005", "0.679 / 0.029"),
        "DeepHunter-KMNC": ("0.571 / 0.113", "0.380 / 0.065"),
        "DeepHunter-NC": ("0.608 / 0.110", "0.352 / 0.063"),
        "TensorFuzz": ("0.384 / 0.093", "0.615 / 0.039"),
    },
    "resnet20": {
        "benign": ("0.945 / 0.026", "0.072 / 0.023"),
        "BIM": ("0.005 / 0.0002", "0.865 / 0.010"),
        "C&W": ("0.016 / 0.0005", "0.869 / 0.010"),
        "DeepFool": ("0.023 / 0.006", "0.850 / 0.010"),
        "FGSM": ("0.096 / 0.006", "0.828 / 0.012"),
        "DeepHunter-KMNC": ("0.548 / 0.108", "0.398 / 0.080"),
        "DeepHunter-NC": ("0.574 / 0.109", "0.388 / 0.080"),
        "TensorFuzz": ("0.392 / 0.093", "0.457 / 0.062"),
    },
    "mobilenet": {
        "benign": ("0.788 / 0.082", "0.337 / 0.062"),
        "BIM": ("0.002 / 1.598e-05", "0.679 / 0.015"),
        "C&W": ("0.085 / 0.020", "0.652 / 0.017"),
        "DeepFool": ("0.415 / 0.135", "0.596 / 0.054"),
        "FGSM": ("0.059 / 0.002", "0.696 / 0.016"),
        "DeepHunter-KMNC": ("0.601 / 0.160", "0.454 / 0.080"),
        "DeepHunter-NC": ("0.659 / 0.119", "0.451 / 0.077"),
        "TensorFuzz": ("0.614 / 0.126", "0.551 / 0.083"),
    },
}

# By pattern and kind: how many of 200 seeds reached it, and the mean PCS and VRO of these
TABLE_5: dict[str, dict[tuple[str, str], tuple[int, float, float]]] = {
    "lenet5": {
        ("LL", "benign"): (124, 0.067, 0.324),
        ("LL", "adversarial"): (18, 0.030, 0.343),
        ("HH", "benign"): (130, 0.947, 0.720),
        ("HH", "adversarial"): (46, 0.903, 0.803),
        ("LH", "benign"): (172, 0.082, 0.609),
        ("HL", "adversarial"): (1, 0.99, 0.339),
    },
    "nin": {
        ("LL", "benign"): (176, 0.065, 0.095),
        ("LL", "adversarial"): (22, 0.065, 0.204),
        ("HH", "benign"): (10, 0.960, 0.846),
        ("HH", "adversarial"): (184, 0.922, 0.910),
        ("LH", "benign"): (58, 0.073, 0.666),
        ("HL", "adversarial"): (165, 0.981, 0.245),
    },
    "resnet20": {
        ("LL", "benign"): (168, 0.065, 0.105),
        ("LL", "adversarial"): (32, 0.064, 0.224),
        ("HH", "benign"): (11, 0.960, 0.851),
        ("HH", "adversarial"): (181, 0.921, 0.910),
        ("LH", "benign"): (67, 0.058, 0.655),
        ("HL", "adversarial"): (93, 0.978, 0.253),
    },
    "mobilenet": {
        ("LL", "benign"): (83, 0.234, 0.348),
        ("LL", "adversarial"): (5, 0.192, 0.348),
        ("HH", "benign"): (70, 0.845, 0.714),
        ("HH", "adversarial"): (11, 0.784, 0.785),
        ("LH", "benign"): (152, 0.092, 0.719),
        ("HL", "adversarial"): (74, 0.915, 0.328),
    },
}


def reached(subject: str, pattern: str) -> float:
    """The share of seeds from which the paper reached a pattern."""
    return sum(cell[0] for (of, _), cell in TABLE_5[subject].items() if of == pattern) / SEEDS


def mean_of(subject: str, method: str, measure: str) -> float:
    """A mean of Table 4: of ``"pcs"`` or ``"vro"``.

    >>> mean_of("resnet20", "benign", "vro")
    0.072
    """
    return float(TABLE_4[subject][method][measure == "vro"].split(" / ")[0])
