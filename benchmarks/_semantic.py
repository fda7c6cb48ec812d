"""Feature fuzzing as one would write it first, one latent at a time, against the batched search.

Both move the same layers of the same generator from the same latents, in this process, on one thread. The ratio is CPU
time per test, the loop's divided by the batch's. Nothing is random about the search, so that both must find the same
tests.
"""

import time

import torch
from torch import Tensor, nn

import _timing
from operant import Classifier, Samples, spawn
from operant.generate import FeatureFuzz, FeatureSource
from operant.networks import fit_cvae

AGREE = 0.05  # share of seeds on which the two may differ in whether they fail: rounding decides where it is close
SEEDS = 256


def semantic_vs_single(module: nn.Module, train: Samples, what: str, *, theirs: int, repeats: int) -> float:
    """The batch works on 256 seeds, the loop on the first few: it takes that long."""
    model, source = Classifier(module), source_of(train)
    seeds = source.seeds(SEEDS, model=model, generator=spawn(0, "semantic"))
    fuzz = FeatureFuzz(source=source, budget=8.0, confidence=1.0, trust=True)
    some, best = seeds[:theirs], {"batch": float("inf"), "one at a time": float("inf")}
    for _ in range(repeats):
        start = time.process_time()
        suite = fuzz(model, seeds, generator=spawn(0, "fuzz"))
        best["batch"] = min(best["batch"], (time.process_time() - start) / len(seeds))
        start = time.process_time()
        failing = singly(fuzz, module, some)
        best["one at a time"] = min(best["one at a time"], (time.process_time() - start) / len(some))
    ours = (suite["margin"] > fuzz.confidence)[:theirs]
    if int((ours != failing).sum()) > max(1, AGREE * len(some)):  # one may differ by rounding
        raise SystemExit(f"the two fail on different seeds: {int(ours.sum())} and {int(failing.sum())} of {len(some)}")
    counts = {
        "batch": (len(seeds), int((suite["margin"] > fuzz.confidence).sum())),
        "one at a time": (theirs, int(failing.sum())),
    }
    rows = [[name, str(n), str(k), f"{1000 * best[name]:.2f}"] for name, (n, k) in counts.items()]
    _timing.show(f"feature fuzzing, LeNet-5, {what}", ["", "seeds", "failing", "CPU ms / test, best"], rows)
    return best["one at a time"] / best["batch"]


def source_of(train: Samples) -> FeatureSource:
    """A conditional VAE that has seen little: speed does not depend on how good it is."""
    few = train[:5000]
    return FeatureSource.of(fit_cvae(few, epochs=10, width=16, generator=spawn(0, "source"), progress=False))


def singly(fuzz: FeatureFuzz, module: nn.Module, seeds: Samples) -> Tensor:
    """Which of the seeds end with a test that fails."""
    latents = fuzz.source.recall(seeds)
    rows = zip(latents.x.split(1), latents.labels.split(1), seeds.labels.tolist(), strict=True)
    return torch.tensor([one(fuzz, module, z, c, y) for z, c, y in rows])


def one(fuzz: FeatureFuzz, module: nn.Module, z: Tensor, c: Tensor, y: int) -> bool:
    """Walk down the loss in the features of one image until the model fails on it."""
    generator = fuzz.source.module
    spreads = fuzz.source.spread(fuzz._layers())
    p = {name: torch.zeros(1, *values.shape, requires_grad=True) for name, values in spreads.items()}
    hooks = [
        generator.get_submodule(name).register_forward_hook(
            lambda _m, _i, out, name=name: out + spreads[name] * p[name]
        )
        for name in spreads
    ]
    try:
        for _ in range(fuzz.steps):
            margin = margin_of(module(generator(z, c)), y)
            if float(margin.detach()) > fuzz.confidence:
                return True
            gradients = torch.autograd.grad(margin, list(p.values()))
            walk(p, gradients, 2.5 * fuzz.budget / fuzz.steps, fuzz.budget)
        with torch.no_grad():
            return float(margin_of(module(generator(z, c)), y)) > fuzz.confidence
    finally:
        for hook in hooks:
            hook.remove()


def margin_of(logits: Tensor, y: int) -> Tensor:
    others = torch.cat([logits[0, :y], logits[0, y + 1 :]])
    return others.max() - logits[0, y]


@torch.no_grad()
def walk(p: dict[str, Tensor], gradients: tuple[Tensor, ...], length: float, budget: float) -> None:
    """One step of this length in all layers together, and back into the ball."""
    norm = torch.cat([g.flatten() for g in gradients]).norm().clamp_min(1e-12)
    for values, g in zip(p.values(), gradients, strict=True):
        values += length * g / norm
    size = float(torch.cat([values.flatten() for values in p.values()]).norm())
    for values in p.values():
        values *= min(1.0, budget / max(size, 1e-12))
