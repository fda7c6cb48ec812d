"""How reliable is a model in use? A bound from a few labels, without searching or retraining anything."""

from torch import nn

from operant import Classifier, Samples, load_digits, spawn
from operant.assess import assess_reliability, plan
from operant.data import content_ids, labels_of
from operant.networks import fit, initialise
from operant.profile import fit_profile


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 24, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(216, 10))


parts = load_digits().train.split(train=0.3, profile=0.2, assessment=0.5)  # the last two stand for field data
start = initialise(network, generator=spawn(0, "weights"))
model = Classifier(fit(start, parts["train"], epochs=12, learning_rate=4e-3, generator=spawn(0, "training")).module)
profile = fit_profile(Samples(parts["profile"].x), generator=spawn(0, "profile"))

requirement = 0.2
print(plan(requirement, expected=0.08))  # before any label is bought
told = assess_reliability(
    model,
    profile,
    labels_of(parts["assessment"]),  # people are asked by LabelFolder instead
    pool=Samples(parts["assessment"].x),
    labels=200,
    used=content_ids(parts["train"].x),
    generator=spawn(0, "assessment"),
)
print(told)
print({True: "met", False: "not met", None: "cannot be told yet"}[told.meets(requirement)])
