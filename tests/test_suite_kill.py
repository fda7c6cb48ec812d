"""A writer killed with SIGKILL at any moment leaves a suite that opens and holds every finished shard.

Run as a script this file is the writer: it imports everything once and then forks one process a round, so that ten
kills do not cost ten imports of torch.
"""

import os
import random
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from operant.data import Samples
from operant.rng import spawn
from operant.suite import Suite, add_columns

KILLS = 10
ROWS = 800  # about two and a half megabytes a shard: long enough to be killed while writing


def shard(k: int) -> Suite:
    """The content of shard number k, the same for every writer."""
    g = spawn(0, "shard", k)
    seeds = Samples(torch.rand(50, 1, 28, 28, generator=g), torch.arange(50) % 10, torch.arange(50) + 50 * k)
    origin = torch.arange(ROWS) % 50
    x = torch.rand(ROWS, 1, 28, 28, generator=g)
    return Suite.of(x, seeds=seeds, origin=origin, prediction=origin % 7, method="m")


def write(folder: Path) -> None:
    """Go on where the folder stands, forever: a shard, then a new generation of a column for all rows."""
    k = len(Suite.open(folder)) // ROWS if (folder / "manifest.json").exists() else 0
    while True:
        cases = shard(k)
        print(f"starting shard {k}", flush=True)
        cases.append_to(folder)
        print(f"finished shard {k}", flush=True)
        k += 1
        print(f"starting columns {k}", flush=True)
        add_columns(folder, shards_then=[k] * (ROWS * k))
        print(f"finished columns {k}", flush=True)


def fork_writers(folder: Path) -> None:
    """One writer for each line on the standard input, one after the other; they also print when they flush a file."""
    flush = os.fsync

    def flush_aloud(descriptor: int) -> None:
        is_file = not stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if is_file:
            print("flushing", flush=True)
        flush(descriptor)
        if is_file:
            print("flushed", flush=True)

    os.fsync = flush_aloud
    for _ in sys.stdin:
        if (child := os.fork()) == 0:
            print(f"writer {os.getpid()}", flush=True)
            write(folder)
        os.waitpid(child, 0)
        print("gone", flush=True)


def one_round(server: "subprocess.Popen[str]", moment: str, nth: int, delay: float) -> list[str]:
    """Start a writer, kill it ``delay`` seconds after it prints a moment for the ``nth`` time; returns its output."""
    assert server.stdin is not None
    assert server.stdout is not None
    print("go", file=server.stdin, flush=True)
    output = map(str.strip, server.stdout)
    pid = int(next(output).removeprefix("writer "))
    said: list[str] = []
    while sum(s.startswith(moment) for s in said) < nth:
        said.append(next(output))
        assert said[-1] != "gone", "the writer must not stop by itself"
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    said += iter(output.__next__, "gone")
    return [s for s in said if not s.startswith("flush")]


def last(said: list[str], what: str) -> int:
    """The newest number that was reported as started or finished; -1 if none was."""
    return max((int(s.split()[-1]) for s in said if s.startswith(what)), default=-1)


def check(folder: Path, said: list[str], seen: int) -> int:
    """The suite opens without a warning and holds what was finished, and the write under way whole or not at all."""
    if not (folder / "manifest.json").exists():  # killed before there was a suite
        assert last(said, "finished") == -1
        return 0
    suite = Suite.open(folder)
    count, rest = divmod(len(suite), ROWS)
    assert rest == 0
    assert last(said, "finished shard") < count <= last(said, "starting shard") + 1
    for k in range(seen, count):
        part = suite[k * ROWS : (k + 1) * ROWS]
        assert replace(part, columns={}, attempted=50).digest() == shard(k).digest()
    if last(said, "finished columns") >= 0:
        generation = suite["shards_then"].reshape(count, ROWS)
        newest = int(generation.nan_to_num(0).max())
        assert last(said, "finished columns") <= newest <= last(said, "starting columns")
        assert bool((generation[:newest] == newest).all())  # one generation, for every row there was
        assert bool(generation[newest:].isnan().all())
    return count


@pytest.mark.slow
def test_a_killed_writer_loses_no_finished_shard(tmp_path: Path) -> None:
    chance, folder = random.Random(20), tmp_path / "suite"
    said: list[str] = []
    count = interrupted = 0
    command = [sys.executable, __file__, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        for _ in range(KILLS):
            moment = chance.choice(["starting", "flushing", "flushed"])
            said += one_round(server, moment, chance.randint(1, 4), chance.choice([0, 0.001, 0.01]) * chance.random())
            interrupted += said[-1].startswith("starting")
            count = check(folder, said, seen=count)
        server.communicate()
    assert server.returncode == 0
    assert interrupted > 0  # or the moments were not chosen well
    assert count > 0
    assert shard(count).append_to(folder).name == f"shard-{count:06d}.safetensors"
    assert check(folder, [*said, f"starting shard {count}", f"finished shard {count}"], seen=0) == count + 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    fork_writers(Path(sys.argv[1]))
