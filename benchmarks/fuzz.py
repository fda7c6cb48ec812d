"""Searches over all seeds in one batch, against the same algorithms written one seed at a time in eager torch.

CPU time, one thread, both in this process, on the same seeds with the same random numbers. For FOL-Fuzz the ratio is
failures per CPU second, Operant's divided by the other's. For HDA's genetic search (1000 members, 100 generations) it
is CPU time per failing seed, the other's divided by Operant's, which ends a seed's search once it has ten failures; on
seeds of the steepest loss, as HDA chooses them, and on seeds drawn at random, of which many withstand to the end. For
DeepHunter and TensorFuzz it is CPU time per iteration (`_rivals.py`), for feature fuzzing CPU time per test
(`_semantic.py`). MNIST with ``--data DIR`` (a folder with mnist.npz), else the embedded digits at 28x28.

    python benchmarks/fuzz.py [--quick] [--data DIR]
"""

import _timing  # isort: skip  # first: it sets what torch reads when it is imported

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from _rivals import deephunter_vs_single, tensorfuzz_vs_single
from _semantic import semantic_vs_single
from _single import fol_fuzz_one
from _single_hda import hda_one
from operant import Classifier, Samples, load, load_digits, spawn
from operant.generate import FOLFuzz, hda
from operant.networks import LeNet5, fit, initialise
from operant.seeds import gradient_risk, risk_of

FUZZER = FOLFuzz(radius=0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer seeds and one repeat, under 50 s")
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    options = parser.parse_args()
    data = load("mnist", options.data) if options.data else load_digits(size=28)
    module = train(data.train[:20_000], epochs=2 if options.data else 4)
    seeds = Classifier(module).correct(data.test[:2_000])
    repeats, ours, theirs = (1, 128, 16) if options.quick else (3, 512, 64)
    what = "MNIST" if options.data else "digits"
    ratios = {"folfuzz_vs_single": compare(module, seeds[:ours], what, theirs=theirs, repeats=repeats)}
    many = seeds[: 256 if options.quick else 512]
    ratios["deephunter_vs_single"] = deephunter_vs_single(module, data.train[:2_000], many, what, repeats=repeats)
    ratios["tensorfuzz_vs_single"] = tensorfuzz_vs_single(module, many, what, repeats=repeats)
    ratios["semantic_vs_single"] = semantic_vs_single(module, data.train, what, theirs=theirs, repeats=repeats)
    steep = seeds[risk_of(Classifier(module), seeds, gradient_risk, labelled=True).argsort(descending=True)]
    repeats, n = (1, 2) if options.quick else (2, 8)
    ratios["genetic_vs_hda"] = compare_hda(module, steep[:n], f"{what}, steepest seeds", repeats=repeats)
    if not options.quick:
        ratios["genetic_vs_hda_random"] = compare_hda(module, seeds[:n], f"{what}, random seeds", repeats=1)
    _timing.finish("fuzz", ratios)


def train(samples: Samples, *, epochs: int) -> nn.Module:
    start = initialise(LeNet5, generator=spawn(0, "weights"))
    return fit(start, samples, epochs=epochs, batch_size=32, generator=spawn(0, "training"), progress=False).module


def compare(module: nn.Module, seeds: Samples, what: str, *, theirs: int, repeats: int) -> float:
    """The batch works on all seeds, the loop on the first few: it takes that long."""
    model, rates, rows = Classifier(module), {"batch": 0.0, "one at a time": 0.0}, []
    for _ in range(repeats):
        results = {"batch": batched(model, seeds), "one at a time": singly(module, seeds, theirs)}
        rates = {name: max(rates[name], result[0] / result[2]) for name, result in results.items()}
    for name, (cases, broken, seconds, n) in results.items():
        rows.append([name, str(n), str(cases), f"{broken:.1%}", f"{seconds:.2f}", f"{rates[name]:.1f}"])
    same = batched(model, seeds[:theirs])
    rows.append(["batch, those seeds", str(theirs), str(same[0]), f"{same[1]:.1%}", f"{same[2]:.2f}", ""])
    if abs(same[1] - results["one at a time"][1]) > 0.02:
        raise SystemExit(
            f"the two break different shares of the same seeds: {same[1]:.1%} and {results['one at a time'][1]:.1%}"
        )
    columns = ["", "seeds", "failures", "seeds broken", "CPU s, last run", "failures / CPU s, best"]
    _timing.show(f"FOL-Fuzz, LeNet-5, {what}, radius {FUZZER.radius}", columns, rows)
    return rates["batch"] / rates["one at a time"]


def batched(model: Classifier, seeds: Samples) -> tuple[int, float, float, int]:
    """Failures, share of seeds broken, CPU seconds, seeds."""
    start = time.process_time()
    suite = FUZZER(model, seeds, generator=spawn(0, "fuzz"))
    return len(suite), len(suite.seed.unique()) / len(seeds), time.process_time() - start, len(seeds)


def singly(module: nn.Module, seeds: Samples, n: int) -> tuple[int, float, float, int]:
    u = torch.rand(len(seeds), FUZZER.rows_per_seed, generator=spawn(0, "fuzz")) + 0.5
    start = time.process_time()
    found = [fol_fuzz_one(FUZZER, module, seeds.x[row : row + 1], int(seeds.labels[row]), u[row]) for row in range(n)]
    broken = sum(bool(cases) for cases in found) / n
    return sum(map(len, found)), broken, time.process_time() - start, n


def compare_hda(module: nn.Module, seeds: Samples, what: str, *, repeats: int) -> float:
    """Both must break the same seeds."""
    model, whole = Classifier(module), hda()
    early = replace(whole, stop_after=whole.keep)
    found: dict[str, list[int]] = {}

    def bred() -> None:
        suite = early(model, seeds, generator=spawn(0, "hda"))
        found["batch, early end"] = [int((suite.seed == one).sum()) for one in seeds.ids]

    def singly_bred() -> None:
        names = torch.randint(2**62, (len(seeds),), generator=spawn(0, "hda")).tolist()
        rows = zip(seeds.x.split(1), seeds.labels.tolist(), names, strict=True)
        cases = [hda_one(whole, module, x0, y, torch.Generator().manual_seed(name)) for x0, y, name in rows]
        found["one at a time"] = [len(some) for some in cases]

    runs: dict[str, Callable[[], None]] = {"batch, early end": bred, "one at a time": singly_bred}
    seconds = _timing.cpu_times(runs, repeats=repeats)
    broken = {name: [count > 0 for count in counts] for name, counts in found.items()}
    if broken["batch, early end"] != broken["one at a time"] or not any(broken["one at a time"]):
        raise SystemExit(f"the two must break the same seeds, and one at least: {broken}")
    rows = [
        [name, str(len(seeds)), str(sum(broken[name])), str(sum(found[name])), f"{seconds[name]:.2f}",
         f"{seconds[name] / sum(broken[name]):.2f}"] for name in runs
    ]  # fmt: skip
    columns = ["", "seeds", "failing seeds", "failures", "CPU s, best", "CPU s / failing seed"]
    _timing.show(f"HDA, LeNet-5, {what}, radius {whole.radius}", columns, rows)
    return seconds["one at a time"] / seconds["batch, early end"]


if __name__ == "__main__":
    main()
