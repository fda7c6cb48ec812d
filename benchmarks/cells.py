"""What drawing inputs from cells costs beside the model: 1000 cells, 1000 inputs from each, LeNet-5.

``cells_per_forward`` is the CPU time of `local_failures` over that of the bare forward passes of as many inputs.

    python benchmarks/cells.py [--quick]
"""

import _timing  # isort: skip  # first: it sets what torch reads when it is imported

import argparse

import torch

from operant import Classifier, Samples, load_digits, spawn
from operant.assess import Ball, local_failures
from operant.networks import LeNet5, initialise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 cells, under 50 s")
    cells = 100 if parser.parse_args().quick else 1000
    digits = load_digits(size=28).train
    seeds = digits[torch.arange(cells) % len(digits)]
    model = Classifier(initialise(LeNet5, generator=spawn(0)))
    some = Ball(radius=0.1)(seeds.x[:100].repeat(100, 1, 1, 1), generator=spawn(1))

    def bare() -> None:
        for _ in range(cells * 1000 // len(some)):
            model.predict(some)

    def whole() -> None:
        local_failures(model, Samples(seeds.x, seeds.y), Ball(radius=0.1), samples=1000, generator=spawn(2))

    times = _timing.cpu_times({"bare": bare, "cells": whole}, repeats=2)
    rows = [
        [f"{cells} cells, 1000 inputs from each", f"{times['cells']:.1f}"],
        [f"forward passes of {cells * 1000} inputs", f"{times['bare']:.1f}"],
    ]
    _timing.show("Cells", ["", "CPU s"], rows)
    _timing.finish("cells", {"cells_per_forward": times["cells"] / times["bare"]})


if __name__ == "__main__":
    main()
