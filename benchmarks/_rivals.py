"""DeepHunter and TensorFuzz as one would write them first, one input at a time, against the batched searches.

Both work on the same seeds, in this process, on one thread. The ratio is CPU time per iteration (one mutant made, run,
and judged), the loop's divided by the batch's. They draw different random numbers, so that only the failures and the
coverage they reach can be compared: from the same seeds the coverage must be about the same, for batches so small that
the queue learns of what was covered as soon as the loop's does.
"""

import random
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

import _timing
from operant import Classifier, Samples, spawn
from operant.generate.baselines._image_mutations import AFFINE, NAMES, RANGES, change_geometry, change_pixels
from operant.generate.baselines.deephunter import DeepHunter
from operant.generate.baselines.tensorfuzz import TensorFuzz
from operant.measure import KMNC, fit_ranges

AGREE = 0.3  # by which share the two may differ in what they cover; from run to run TensorFuzz alone differs by a fifth
FEWEST = 32  # seeds of the loop: with fewer, chance alone moves what is covered by more
SMALL = 4  # inputs a batch, where it is compared with the loop
Result = tuple[int, float, int]
"""Failures, coverage, iterations."""


def deephunter_vs_single(module: nn.Module, train: Samples, seeds: Samples, what: str, *, repeats: int) -> float:
    """The batch works on all seeds, the loop on the first eighth of them: it takes that long."""
    model = Classifier(module)
    ranges = fit_ranges(model, train)
    options = DeepHunter(criterion=lambda _model, _x: KMNC(ranges=ranges, k=100), rows_per_seed=20)
    some = seeds[: max(FEWEST, len(seeds) // 8)]
    return _compare(f"DeepHunter (KMNC), LeNet-5, {what}", options, model, seeds, some, deephunter_one, repeats)


def tensorfuzz_vs_single(module: nn.Module, seeds: Samples, what: str, *, repeats: int) -> float:
    """The batch works on all seeds, the loop on the first eighth of them."""
    options = TensorFuzz(radius=0.3, rows_per_seed=20)
    some = seeds[: max(FEWEST, len(seeds) // 8)]
    model = Classifier(module)
    return _compare(f"TensorFuzz, LeNet-5, {what}", options, model, seeds, some, tensorfuzz_one, repeats)


def _compare(
    title: str,
    options: DeepHunter | TensorFuzz,
    model: Classifier,
    seeds: Samples,
    some: Samples,
    one: Callable[[DeepHunter | TensorFuzz, Classifier, Samples], Result],
    repeats: int,
) -> float:
    runs = {
        "batch": lambda: _batched(options, model, seeds),
        "one at a time": lambda: one(options, model, some),
        f"batches of {SMALL}, those seeds": lambda: _batched(replace(options, at_once=SMALL), model, some),
    }
    results: dict[str, Result] = {}
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.process_time()
            results[name] = run()
            best[name] = min(best[name], (time.process_time() - start) / results[name][2])
    rows = [
        [name, str(n), str(failures), f"{covered:.4g}", f"{1000 * best[name]:.3f}"]
        for name, (failures, covered, n) in results.items()
    ]
    _timing.show(title, ["", "iterations", "failures", "covered", "CPU ms / iteration, best"], rows)
    covered = [results[name][1] for name in list(runs)[1:]]
    if abs(covered[0] - covered[1]) > AGREE * max(covered):
        raise SystemExit(f"the two must cover about the same from the same seeds, got {covered[0]} and {covered[1]}")
    return best["one at a time"] / best["batch"]


def _batched(options: DeepHunter | TensorFuzz, model: Classifier, seeds: Samples) -> Result:
    found = options.explore(model, seeds, generator=spawn(0, "rivals"))
    return len(found.suite), float(found.coverage[0, -1]), round(float(found.rows[-1]) * len(seeds))


# One input at a time


@torch.no_grad()
def deephunter_one(options: DeepHunter, model: Classifier, seeds: Samples) -> Result:
    """Algorithms 1 and 2 of the paper with a list for a queue."""
    draw, module = random.Random(0), model.unwrap().eval()
    criterion = options.criterion(model, seeds.x)
    taps = tapped(module, criterion.neurons.layers)
    covered = torch.zeros(criterion.size, dtype=torch.bool)
    queue, failures, place, iterations = [], 0, 0, 0

    def look(x: Tensor) -> tuple[int, Tensor]:
        logits = module(x)
        values = [logits.softmax(1) if name == "softmax" else taps[name] for name in criterion.neurons.layers]
        hits = criterion.hits(torch.cat([v.flatten(2).mean(2) if v.ndim > 2 else v for v in values], 1))[0]
        return int(logits.argmax()), hits[hits >= 0]

    for x, y in zip(seeds.x.split(1), seeds.labels.tolist(), strict=True):
        covered[look(x)[1]] = True
        queue.append({"x": x, "y": y, "reference": x, "before": (0, 0.0), "turned": False, "taken": 0})
    while iterations < (options.rows_per_seed - 1) * len(seeds):
        item = queue[place % len(queue)]
        place += 1
        if draw.random() >= max(options.p_min, 1 - item["taken"] / options.gamma):
            continue
        item["taken"] += 1
        mutant = mutated(options, item, draw)
        if mutant is None:
            continue
        iterations += 1
        label, hits = look(mutant["x"])
        if label != item["y"]:
            failures += 1
        elif not bool(covered[hits].all()):
            covered[hits] = True
            queue.append(mutant)
    return failures, float(covered.float().mean()), iterations + len(seeds)


def mutated(options: DeepHunter, item: dict, draw: random.Random) -> dict | None:
    """The first valid one of so many random transformations."""
    for _ in range(options.tries):
        name = draw.choice(NAMES[:4] if item["turned"] else NAMES)
        value = torch.tensor([draw.uniform(*RANGES[name])], dtype=torch.float64)
        if name in AFFINE:
            second = torch.tensor([draw.uniform(*RANGES["translation"])], dtype=torch.float64)
            x = change_geometry(item["x"], torch.tensor([NAMES.index(name)]), value, second)
            before = distance(item["x"], item["reference"])
            return item | {"x": x, "reference": x, "before": before, "turned": True, "taken": 0}
        x = change_pixels(item["x"], name, value, seeds=torch.tensor([draw.getrandbits(53)]))
        l0, linf = distance(x, item["reference"])
        if item["before"][0] + l0 < options.alpha * x.numel() or max(item["before"][1], linf) < options.beta:
            return item | {"x": x, "taken": 0}
    return None


def distance(a: Tensor, b: Tensor) -> tuple[int, float]:
    change = a - b
    return int((change != 0).sum()), float(change.abs().max())


def tapped(module: nn.Module, layers: tuple[str, ...]) -> dict[str, Tensor]:
    """A dict that holds each layer's output after a pass."""
    taps: dict[str, Tensor] = {}
    parts = dict(module.named_modules())
    for name in layers:
        if name in parts:
            parts[name].register_forward_hook(lambda _m, _i, output, name=name: taps.__setitem__(name, output))
    return taps


@torch.no_grad()
def tensorfuzz_one(options: TensorFuzz, model: Classifier, seeds: Samples) -> Result:
    """The corpus as a list, the kept logits as a growing tensor."""
    draw, noise, module = random.Random(0), torch.Generator().manual_seed(0), model.unwrap().eval()
    corpus, kept, failures, iterations = [], torch.zeros(0, model.classes(seeds.x)), 0, 0

    def is_new(z: Tensor) -> bool:
        return len(kept) == 0 or float((kept - z).norm(dim=1).min()) > options.threshold

    for x, y in zip(seeds.x.split(1), seeds.labels.tolist(), strict=True):
        z = module(x)
        corpus.append((x, x, y))
        kept = torch.cat([kept, z]) if is_new(z) else kept
    while iterations < (options.rows_per_seed - 1) * len(seeds):
        x, x0, y = draw.choice([*corpus[-options.recent :], draw.choice(corpus)])
        moved = x + options.std * torch.randn(x.shape, generator=noise)
        x = (x0 + (moved - x0).clamp(-options.radius, options.radius)).clamp(*model.bounds)
        z = module(x)
        iterations += 1
        if int(z.argmax()) != y:
            failures += 1
        elif is_new(z):
            kept = torch.cat([kept, z])
            corpus.append((x, x0, y))
    return failures, float(len(kept)), iterations + len(seeds)
