"""A tabular model: scale each column to [0, 1], so that the radius is a share of its range."""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import minmax_scale
from torch import nn

from operant import Classifier, Samples, spawn
from operant.generate import PGD, DeepFool
from operant.networks import fit, initialise


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))


table = load_breast_cancer()
x = torch.from_numpy(minmax_scale(table.data)).float()
parts = Samples(x, torch.from_numpy(table.target)).split(train=0.7, test=0.3)

start = initialise(network, generator=spawn(0, "weights"))
trained = fit(start, parts["train"], epochs=30, learning_rate=3e-3, generator=spawn(0, "training")).module
model = Classifier(trained)
print(*model.doctor(parts["test"]) or ["the doctor found nothing"], sep="\n")

seeds = model.correct(parts["test"])
for attack in (PGD(radius=0.05), DeepFool()):
    found = attack(model, seeds, generator=spawn(0, "attack")).failures()
    print(f"{found.method[0]}: {len(found)} of {len(seeds)} fail, mean distance {found.distances('l2').mean():.3f}")

change = (found.x - found.x0).abs().mean(0)
print("columns that change most in the failures of the last attack, as shares of their range:")
for column in change.argsort(descending=True)[:5]:
    print(f"  {table.feature_names[column]:24} {float(change[column]):.3f}")
