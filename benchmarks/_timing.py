"""What every benchmark shares: one thread, CPU time, interleaved repeats, ratios, a last line of JSON.

Import this before torch.
"""

import os

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

import json
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from rich.console import Console
from rich.table import Table

torch.set_num_threads(1)


def cpu_times(runs: Mapping[str, Callable[[], object]], *, repeats: int) -> dict[str, float]:
    """Best CPU seconds of each, run in turn so that all see the same machine; the first round also warms up."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - start)
    return best


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console(width=140).print(table)


def finish(name: str, ratios: Mapping[str, float]) -> None:
    """The last line, for machines."""
    print(json.dumps({"benchmark": name, "ratios": {key: round(value, 2) for key, value in ratios.items()}}))
