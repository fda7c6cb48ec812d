"""Attacks against Foolbox and the Adversarial Robustness Toolbox, and gradients against plain torch.

CPU time, one thread, all in this process; a ratio above 1 means Operant is faster. Foolbox gets the faster of 512 and
256 inputs at a time. Ratios named ``_frozen`` also hand it a module whose parameters were frozen by hand, which is one
of the things Operant does by itself.

    python benchmarks/attacks.py [--quick]
"""

import _timing  # isort: skip  # first: it sets what torch reads when it is imported

import argparse
from collections.abc import Callable
from functools import partial

import foolbox
import torch
from art.attacks.evasion import DeepFool as ArtDeepFool
from art.attacks.evasion import FastGradientMethod, ProjectedGradientDescentPyTorch
from art.estimators.classification import PyTorchClassifier
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

from operant import Classifier, Samples, load_digits
from operant.generate import FGSM, PGD, CarliniWagner, DeepFool
from operant.model import value_and_gradient
from operant.networks import LeNet5, fit, initialise
from operant.rng import spawn
from operant.types import Fuzzer
from operant_studies.networks import ResNet20

RADIUS = 0.2
SMALL_RADIUS = 0.1  # at which a good part of the seeds withstands, so that fewer rows leave early
Outcome = tuple[float, float]  # success, mean L2 distance of the successes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, under 50 s")
    quick = parser.parse_args().quick
    repeats = 2 if quick else 5
    ratios = lenet(quick=quick, repeats=repeats)
    ratios |= resnet_gradient(repeats=2 * repeats)
    foreign(repeats=1 if quick else repeats)
    _timing.finish("attacks", ratios)


def lenet(*, quick: bool, repeats: int) -> dict[str, float]:
    """Each attack on a LeNet-5 trained on the digits, 512 inputs of 28x28."""
    digits = load_digits(size=28)
    start = initialise(LeNet5, generator=spawn(0, "weights"))
    module = fit(start, digits.train, epochs=4, batch_size=32, generator=spawn(0, "training"), progress=False).module
    model = Classifier(module)
    accuracy = float((model.predict(digits.test.x) == digits.test.y).float().mean())
    print(f"LeNet-5, accuracy on test digits {accuracy:.3f}")
    seeds = Samples.concat([digits.test, digits.train])[:512]
    attacks, cw = foolbox.attacks, {"steps": 100, "binary_search_steps": 1, "initial_const": 10.0}
    pgd = attacks.LinfPGD(steps=10, rel_stepsize=0.25)
    compare = partial(against_foolbox, model, batches=[256] if quick else [256, 512])
    ratios = compare("fgsm", seeds, FGSM(radius=RADIUS), attacks.LinfFastGradientAttack(), RADIUS, repeats=2 * repeats)
    ratios |= compare("pgd10", seeds, PGD(radius=RADIUS), pgd, RADIUS, repeats=repeats)
    ratios |= compare("pgd10_early", seeds, PGD(radius=RADIUS, stop_early=True), pgd, RADIUS, repeats=repeats)
    small = PGD(radius=SMALL_RADIUS, stop_early=True)
    ratios |= compare("pgd10_early_small_radius", seeds, small, pgd, SMALL_RADIUS, repeats=repeats)
    few = 1 if quick else repeats
    ratios |= compare(
        "deepfool", seeds[:256] if quick else seeds, DeepFool(), attacks.L2DeepFoolAttack(), None, repeats=few
    )
    some = seeds[:32] if quick else seeds[:128]
    ratios |= compare("cw", some, CarliniWagner(**cw), attacks.L2CarliniWagnerAttack(**cw), None, repeats=few)
    return ratios | against_art(model, seeds, deepfool_inputs=0 if quick else 32, repeats=repeats)


def against_foolbox(
    model: Classifier,
    name: str,
    seeds: Samples,
    ours: Fuzzer,
    theirs: Callable[..., tuple[Tensor, ...]],
    radius: float | None,
    *,
    batches: list[int],
    repeats: int,
) -> dict[str, float]:
    """One of our attacks against Foolbox's, in each way of running Foolbox."""
    cases: dict[str, Tensor] = {}

    def run_ours() -> None:
        cases["operant"] = ours(model, seeds, generator=spawn(0, name)).x

    def run_theirs(label: str, wrapped: foolbox.PyTorchModel, batch: int) -> None:
        torch.random.manual_seed(0)
        parts = zip(seeds.x.split(batch), seeds.labels.split(batch), strict=True)
        cases[label] = torch.cat([theirs(wrapped, x, y, epsilons=radius)[1] for x, y in parts])

    free, frozen = (foolbox.PyTorchModel(model.unwrap().requires_grad_(g), bounds=(0, 1)) for g in (True, False))
    ways = {f"foolbox, {b} a batch": (free, b) for b in batches}
    by_hand = {f"foolbox, {b} a batch, frozen by hand": (frozen, b) for b in batches}
    runs: dict[str, Callable[[], None]] = {"operant": run_ours}
    runs |= {label: partial(run_theirs, label, *way) for label, way in (ways | by_hand).items()}
    times = _timing.cpu_times(runs, repeats=repeats)
    outcomes = {label: outcome(model, seeds, x) for label, x in cases.items()}
    rows = [
        [label, f"{outcomes[label][0]:.4f}", f"{outcomes[label][1]:.4f}", f"{t:.3f}", f"{t / times['operant']:.2f}"]
        for label, t in times.items()
    ]
    _timing.show(f"{name}, {len(seeds)} inputs", ["", "success", "mean L2", "CPU s", "times Operant's"], rows)
    return {
        f"{name}_vs_foolbox": min(times[label] for label in ways) / times["operant"],
        f"{name}_vs_foolbox_frozen": min(times[label] for label in by_hand) / times["operant"],
    }


def against_art(model: Classifier, seeds: Samples, *, deepfool_inputs: int, repeats: int) -> dict[str, float]:
    """FGSM, PGD and DeepFool (on few inputs, it is slow) of the Adversarial Robustness Toolbox."""
    art = PyTorchClassifier(
        model=model.unwrap().requires_grad_(False),
        loss=nn.CrossEntropyLoss(),
        input_shape=(1, 28, 28),
        nb_classes=10,
        clip_values=(0.0, 1.0),
        device_type="cpu",
    )
    step = RADIUS / 4
    pgd = {"eps": RADIUS, "eps_step": step, "max_iter": 10, "num_random_init": 1}
    pairs = {
        "fgsm": (FGSM(radius=RADIUS), FastGradientMethod(art, eps=RADIUS, batch_size=512), seeds),
        "pgd10": (
            PGD(radius=RADIUS),
            ProjectedGradientDescentPyTorch(art, batch_size=256, verbose=False, **pgd),
            seeds,
        ),
        "deepfool": (DeepFool(), ArtDeepFool(art, batch_size=32, epsilon=0.02, verbose=False), seeds[:deepfool_inputs]),
    }
    ratios, rows = {}, []
    for name, (ours, theirs, some) in pairs.items():
        if len(some) == 0:
            continue
        one_hot = torch.eye(10)[some.labels].numpy()
        runs = {
            "operant": partial(ours, model, some, generator=spawn(0, name)),
            "art": partial(theirs.generate, x=some.x.numpy(), y=one_hot),
        }
        times = _timing.cpu_times(runs, repeats=1 if name == "deepfool" else repeats)
        ratios[f"{name}_vs_art"] = times["art"] / times["operant"]
        rows.append(
            [name, str(len(some)), f"{times['operant']:.3f}", f"{times['art']:.3f}", f"{ratios[f'{name}_vs_art']:.2f}"]
        )
    _timing.show("Adversarial Robustness Toolbox", ["attack", "inputs", "Operant CPU s", "ART CPU s", "ratio"], rows)
    return ratios


def resnet_gradient(*, repeats: int) -> dict[str, float]:
    """Forward pass and input gradient of ResNet-20, batches of 64, against eager ``loss.backward()``."""
    module = initialise(ResNet20, generator=spawn(0, "resnet")).eval()
    model = Classifier(module)
    x = torch.rand(64, 3, 32, 32, generator=spawn(0, "images"))
    y = torch.arange(64) % 10

    def eager() -> Tensor:
        z = x.clone().requires_grad_()
        cross_entropy(module(z), y, reduction="sum").backward()
        module.zero_grad()
        assert z.grad is not None
        return z.grad

    def ours() -> Tensor:
        return value_and_gradient(lambda z: cross_entropy(model.logits(z), y, reduction="none"), x)[1]

    difference = float((ours() - eager()).abs().max() / eager().abs().max())
    times = _timing.cpu_times({"operant": ours, "eager": eager}, repeats=max(repeats, 4))
    ratio = times["eager"] / times["operant"]
    rows = [
        [
            f"{times['operant']:.3f}",
            f"{times['eager']:.3f}",
            f"{ratio:.2f}",
            f"{difference:.1e}",
            "; ".join(model.notes),
        ]
    ]
    columns = ["Operant CPU s", "eager CPU s", "ratio", "largest difference", "notes"]
    _timing.show("ResNet-20, forward and input gradient, 64 inputs", columns, rows)
    return {"resnet20_grad_vs_eager": ratio}


class Tabular(nn.Sequential):
    """A multilayer perceptron on twenty columns."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(20, 64), nn.ReLU(), nn.BatchNorm1d(64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)
        )


class Branching(nn.Module):
    """A GELU network whose forward pass takes another way for some inputs, and so cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second, self.last = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = gelu(self.norm(self.first(x)))
        for _ in range(2 if h.shape[-1] > 16 else 1):
            h = gelu(self.second(h))
            if bool(h.detach().abs().amax() > 1e6):
                h = h / 2
        return self.last(h.mean((2, 3)))


def foreign(*, repeats: int) -> None:
    """Modules that were not written for Operant: is folding used, does the doctor agree, and how fast is PGD-10."""
    modules: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
        "tabular MLP": (Tabular, (20,), 256),
        "GELU with control flow": (Branching, (3, 32, 32), 64),
        "EfficientNet-Lite0": (lambda: EfficientNet.from_name("efficientnet-lite0"), (3, 96, 96), 8),
    }
    rows = []
    for name, (factory, shape, n) in modules.items():
        module = initialise(factory, generator=spawn(0, name)).eval()
        model = Classifier(module)
        x = torch.rand(n, *shape, generator=spawn(0, name, "inputs"))
        seeds = Samples(x, model.predict(x))
        wrapped = foolbox.PyTorchModel(module, bounds=(0, 1))
        theirs = foolbox.attacks.LinfPGD(steps=10, rel_stepsize=0.25)
        runs = {
            "operant": partial(PGD(radius=0.02), model, seeds, generator=spawn(0, "pgd")),
            "foolbox": partial(theirs, wrapped, seeds.x, seeds.labels, epsilons=0.02),
        }
        times = _timing.cpu_times(runs, repeats=repeats)
        findings = ", ".join(f.name for f in model.doctor(seeds)) or "healthy"
        rows.append([name, "; ".join(model.notes), findings, f"{times['foolbox'] / times['operant']:.2f}"])
    _timing.show("Modules not written for it", ["module", "notes", "doctor", "PGD-10 against Foolbox"], rows)


def outcome(model: Classifier, seeds: Samples, cases: Tensor) -> Outcome:
    failing = model.predict(cases) != seeds.labels
    return float(failing.float().mean()), float((cases - seeds.x)[failing].flatten(1).norm(dim=1).mean())


if __name__ == "__main__":
    main()
