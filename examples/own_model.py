"""Your own PyTorch network: train it, check it with the doctor, attack it, save the failures.

python examples/own_model.py [FOLDER]     FOLDER: where the suite is saved (default: a new temporary one)
"""

import sys
import tempfile
from pathlib import Path

from torch import nn

from operant import PGD, Classifier, Suite, load_digits, spawn
from operant.networks import fit, initialise


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )


folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()) / "suite"
digits = load_digits()
start = initialise(network, generator=spawn(0, "weights"))
model = Classifier(fit(start, digits.train, epochs=5, generator=spawn(0, "training")).module)

for finding in model.doctor(digits.test):
    print(finding)
seeds = model.correct(digits.test)
print(f"{len(seeds)} of {len(digits.test)} test digits are classified correctly; {'; '.join(model.notes)}")

suite = PGD(radius=0.1, stop_early=True)(model, seeds, generator=spawn(0, "pgd"))
failures = Suite.open(suite.save(folder)).failures()
print(f"{len(failures)} of {suite.attempted} seeds have a failure within 0.1; the suite is in {folder}")
