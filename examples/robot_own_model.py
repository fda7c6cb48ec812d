"""RobOT on your own network: fuzz, choose cases and retrain until it is robust enough or the rounds are spent.

python examples/robot_own_model.py [FOLDER]     FOLDER: of the run, which is resumed if it exists (default: a new one)
"""

import sys
import tempfile

from torch import nn

from operant import Classifier, load_digits, spawn
from operant.generate import FGSM, PGD, FOLFuzz
from operant.networks import fit, initialise
from operant.retrain import Finetune
from operant.robot import RobOT


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 24, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(216, 10))


folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
digits = load_digits()
parts = digits.train.split(train=0.8, validation=0.2)
start = initialise(network, generator=spawn(0, "weights"))
model = Classifier(fit(start, parts["train"], epochs=12, learning_rate=4e-3, generator=spawn(0, "training")).module)

harden = RobOT(
    fuzz=FOLFuzz(radius=0.1, rows_per_seed=20),
    attacks={"fgsm": FGSM(radius=0.1), "pgd": PGD(radius=0.1, steps=5)},
    requirement=0.75,
    rounds=2,
    seeds_per_round=200,
    cases_per_round=300,
    max_drop=0.02,
    retrainer=Finetune(epochs=4),
)
hardened = harden(model, parts["train"], validation=parts["validation"], test=digits.test, folder=folder, seed=0)
print(hardened)
