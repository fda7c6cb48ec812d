"""KuK's generations against plain passes: the module in NCHW, its dropout on, over every member of every population.

CPU time, one thread, both in this process. Populations of 100 around each of 50 seeds, T = 50 passes, LeNet-5 trained
on the embedded digits at 28x28. ``kuk_generation`` is a whole step (breeding, a look at all members, VRO) at its worst:
dropout behind every layer, where little can run once for all passes, and VRO needed of every member.
``kuk_generation_fc`` is the same with dropout behind the hidden dense layers only. ``kuk_search_LL`` and so on are
whole searches with the paper's settings and that dropout, against plain passes over every population that they look
at; there VRO is asked for where fitness needs it.

    python benchmarks/kuk.py [--quick]
"""

import _timing  # isort: skip  # first: it sets what torch reads when it is imported

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from operant import Classifier, Samples, load_digits, spawn
from operant.data import Dataset
from operant.generate.uncertainty import UncertaintyFuzz
from operant.measure import Thresholds
from operant.networks import LeNet5, fit, initialise

PLACES = {"kuk_generation": ("conv1", "conv2", "fc1", "fc2"), "kuk_generation_fc": ("fc1", "fc2")}
WORST = Thresholds(low_pcs=0.0, high_pcs=0.0, low_vro=1.0, high_vro=1.0)  # HH: all on the last line, none ever done
LIMIT = 2.0  # GiB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 seeds, one repeat, short searches, under 50 s")
    quick = parser.parse_args().quick
    digits, seeds = load_digits(size=28), 8 if quick else 50
    ratios, rows = {}, []
    for name, places in PLACES.items():
        module = trained(digits, places)
        some = Classifier(module).correct(digits.test)[:seeds]
        ours, plain = generation(module, some, repeats=1 if quick else 3)
        ratios[name] = plain / ours
        rows.append([name, str(100 * len(some)), f"{ours:.2f}", f"{plain:.2f}", f"{plain / ours:.1f}"])
    columns = ["", "members", "Operant CPU s a generation", "plain CPU s", "ratio"]
    _timing.show(f"One generation, {seeds} seeds x 100, T = 50", columns, rows)
    ratios |= searches(module, some, plain / (100 * len(some)), generations=8 if quick else 50)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"most memory held: {peak:.2f} GiB")
    if peak > LIMIT:
        raise SystemExit(f"memory must stay below {LIMIT} GiB")
    _timing.finish("kuk", ratios)


def trained(digits: Dataset, places: tuple[str, ...]) -> nn.Module:
    start = initialise(lambda: LeNet5(dropout=0.25, dropout_after=places), generator=spawn(0, "weights"))
    return fit(start, digits.train, epochs=4, batch_size=32, generator=spawn(0, "training"), progress=False).module


def generation(module: nn.Module, seeds: Samples, *, repeats: int) -> tuple[float, float]:
    """CPU seconds of one generation, ours and by plain passes.

    Ours is half of a search that is two generations long; its first and last judgements are counted in.
    """
    model, fuzz = Classifier(module), UncertaintyFuzz(pattern="HH", generations=1, thresholds=WORST)
    model.prepare(seeds.x)
    x = seeds.x.repeat_interleave(fuzz.population, 0)
    for part in module.eval().modules():
        part.train(isinstance(part, nn.Dropout))

    def plain() -> list[Tensor]:
        with torch.no_grad():
            return [torch.cat([module(part).argmax(1) for part in x.split(256)]) for _ in range(fuzz.passes)]

    runs: dict[str, Callable[[], object]] = {
        "operant": lambda: fuzz(model, seeds, generator=spawn(0, "fuzz")),
        "plain": plain,
    }
    seconds = _timing.cpu_times(runs, repeats=repeats)
    return seconds["operant"] / 2, seconds["plain"]


def searches(module: nn.Module, seeds: Samples, plain: float, *, generations: int) -> dict[str, float]:
    """Whole searches; a seed's population is looked at in every generation until it leaves.

    ``plain`` is CPU seconds of plain passes over one member.
    """
    model, ratios, rows = Classifier(module), {}, []
    model.prepare(seeds.x)
    base = UncertaintyFuzz(pattern="LL", generations=generations)
    for pattern in ("LL", "HH", "HL", "LH"):
        start = time.process_time()
        suite = replace(base, pattern=pattern)(model, seeds, generator=spawn(0, "fuzz"))
        seconds = time.process_time() - start
        members = int((suite["generation"] + 1).sum()) * base.population
        ratios[f"kuk_search_{pattern}"] = members * plain / seconds
        counts = [str(int(suite[name].sum())) for name in ("reached", "confirmed")]
        rows.append([pattern, *counts, str(members), f"{seconds:.1f}", f"{members * plain:.1f}"])
        rows[-1].append(f"{members * plain / seconds:.1f}")
    columns = ["", "reached", "confirmed", "members in all", "Operant CPU s", "plain passes CPU s", "ratio"]
    _timing.show(f"Searches, {len(seeds)} seeds, {generations} generations, dropout in dense layers", columns, rows)
    return ratios


if __name__ == "__main__":
    main()
