"""How reliable is a model in the field? A bound from a few labels, without search or retraining."""

from torch import nn

from operant import Classifier, Samples, assess_reliability, fit_profile, labels_of, load_digits, spawn
from operant.assess import plan
from operant.data import content_ids
from operant.networks import fit, initialise


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 24, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(216, 10))


parts = load_digits().train.split(train=0.3, profile=0.2, assessment=0.5)  # the last two stand for field data
start = initialise(network, generator=spawn(0, "weights"))
model = Classifier(fit(start, parts["train"], epochs=12, learning_rate=4e-3, generator=spawn(0, "training")).module)
profile = fit_profile(Samples(parts["profile"].x), generator=spawn(0, "profile"))

requirement = 0.2
print(plan(requirement, expected=0.08))  # before any label is bought
assessment = assess_reliability(
    model,
    profile,
    labels_of(parts["assessment"]),  # LabelFolder asks people instead
    pool=Samples(parts["assessment"].x),
    labels=200,
    used=content_ids(parts["train"].x),
    generator=spawn(0, "assessment"),
)
print(assessment)
print({True: "met", False: "not met", None: "undecided"}[assessment.meets(requirement)])
