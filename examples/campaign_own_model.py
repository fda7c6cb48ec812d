"""Your own PyTorch network through a whole campaign, to a report that opens in a browser.

python examples/campaign_own_model.py [FOLDER]     FOLDER is where all of it goes; a new temporary one unless given
"""

import sys
import tempfile
from functools import partial

from torch import nn

from operant import Classifier, Samples, load_digits, spawn
from operant.campaign import Campaign
from operant.conditions import Recipe, apply, normal, uniform
from operant.data import labels_of
from operant.generate import ConditionMove, GradientMove
from operant.networks import fit, initialise
from operant.report import write_report


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 24, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(216, 10))


folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
parts = load_digits().train.split(train=0.4, field=0.6)
start = initialise(network, generator=spawn(0, "weights"))
model = Classifier(fit(start, parts["train"], epochs=12, learning_rate=4e-3, generator=spawn(0, "training")).module)

camera = Recipe(severities={"rotation": normal(8), "gaussian_noise": uniform(0, 0.15)})  # stands for your field
seen = apply(parts["field"].x, camera.draw(len(parts["field"]), generator=spawn(0, "field")))
field, oracle = Samples(seen), labels_of(Samples(seen, parts["field"].y))  # inputs without labels, and who knows them

moves = {"camera": partial(ConditionMove, recipe=camera), "gradient": partial(GradientMove, radius=0.3)}
campaign = Campaign(requirement=0.2, moves=moves, rounds=1, seeds_per_round=100)
print(campaign(model, train=parts["train"], clean=load_digits().test, field=field, labeller=oracle, folder=folder))
print(f"report: {write_report(folder)}")
