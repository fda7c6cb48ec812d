"""Attack your own network in several ways, and measure the share of inputs that withstands all attacks."""

from torch import nn

from operant import Classifier, load_digits, spawn
from operant.assess import empirical_robustness
from operant.generate import BIM, FGSM, PGD, DeepFool
from operant.networks import fit, initialise


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 24, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(216, 10))


digits = load_digits()
start = initialise(network, generator=spawn(0, "weights"))
model = Classifier(fit(start, digits.train, epochs=12, learning_rate=4e-3, generator=spawn(0, "training")).module)
print(*model.doctor(digits.test) or ["the doctor found nothing"], sep="\n")

seeds = model.correct(digits.test)[:200]
attacks = {
    "FGSM within 0.1": FGSM(radius=0.1),
    "PGD within 0.1": PGD(radius=0.1),
    "nearest failure by BIM": BIM(radius=1.0, minimal=True),
    "nearest failure by DeepFool": DeepFool(),
}
for name, attack in attacks.items():
    suite = attack(model, seeds, generator=spawn(0, name))
    failures = suite.failures()
    print(f"{name}: {len(failures)} of {len(suite)}, L2 distance {failures.distances('l2').median():.3f}")

within = {name: attack for name, attack in attacks.items() if "within" in name}
print(empirical_robustness(model, digits.test, within, generator=spawn(0, "robustness")))
