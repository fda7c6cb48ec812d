"""Your own PyTorch network through a whole campaign, to a report that opens in a browser.

python examples/campaign_own_model.py [FOLDER]     FOLDER: where everything is kept (default: a new temporary one)
"""

import sys
import tempfile

from torch import nn

from operant import Campaign, Classifier, Samples, labels_of, load_digits, spawn, write_report
from operant.conditions import Recipe, apply, normal, uniform
from operant.networks import fit, initialise


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 24, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(216, 10))


# Your model and data; here, a network trained on clean digits and a camera that rotates them and adds noise.
digits = load_digits()
parts = digits.train.split(train=0.4, field=0.6)
start = initialise(network, generator=spawn(0, "weights"))
module = fit(start, parts["train"], epochs=12, learning_rate=4e-3, generator=spawn(0, "training")).module
camera = Recipe(severities={"rotation": normal(8), "gaussian_noise": uniform(0, 0.15)})
x = apply(parts["field"].x, camera.draw(len(parts["field"]), generator=spawn(0, "field")))

# The campaign. It searches with conditions that are known, here; `operant.profile.fit_conditions` estimates them.
folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
result = Campaign(requirement=0.2, rounds=1, seeds_per_round=100)(
    Classifier(module),
    train=parts["train"],
    clean=digits.test,
    field=Samples(x),
    labeller=labels_of(Samples(x, parts["field"].y)),
    folder=folder,
    recipe=camera,
)
print(result, f"report: {write_report(folder)}", sep="\n")
