"""How long a suite of 100 000 cases takes to open for triage, and a verdict at the server.

Cases of 28 x 28 pixels from 10 000 seeds. Opening is everything until the first rows can be shown: reading and checking
all files, drawing the sample, the first list and its rows. Verdicts go through HTTP to a real server, one after
another; each is flushed to disk before it is answered, so the disk has its part in them.

    python benchmarks/triage.py [--quick]
"""

import _timing  # isort: skip  # first: it sets what torch reads when it is imported

import argparse
import http.client
import json
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import uvicorn

from operant import Samples, Suite, spawn
from operant.suite import ROWS_PER_SHARD
from operant.triage import open_desk
from operant.triage.desk import RequestFields
from operant.triage.server import _listen, make_app

TOKEN = "benchmark"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 000 cases and 50 verdicts")
    quick = parser.parse_args().quick
    cases, verdicts = (10_000, 50) if quick else (100_000, 300)
    with TemporaryDirectory() as place:
        path = Path(place) / "suite"
        write(path, cases)
        first = opening(path)
        times = sorted(marking(path, verdicts))
        again = opening(path)
    rows = [
        ["open, until the first rows are there", f"{first:.2f} s", "2 s"],
        ["open again, with these verdicts", f"{again:.2f} s", "2 s"],
        ["a verdict, median", f"{1000 * statistics.median(times):.1f} ms", "50 ms"],
        ["a verdict, 99 of 100", f"{1000 * times[int(0.99 * len(times))]:.1f} ms", "50 ms"],
    ]
    _timing.show(f"Triage of {cases} cases, {verdicts} verdicts, wall-clock time", ["what", "takes", "at most"], rows)
    _timing.finish("triage", {"open": 2 / first, "verdict": 0.05 / statistics.median(times)})


def write(path: Path, cases: int) -> None:
    """A shard at a time, each with 400 seeds of its own."""
    for start in range(0, cases, ROWS_PER_SHARD):
        n, g = min(ROWS_PER_SHARD, cases - start), spawn(0, "shard", start)
        ids = torch.arange(400) + start
        seeds = Samples(torch.rand(400, 1, 28, 28, generator=g), torch.arange(400) % 10, ids)
        origin = torch.arange(n) % 400
        x = (seeds.x[origin] + 0.1 * torch.rand(n, 1, 28, 28, generator=g)).clamp(0, 1)
        columns = {"naturalness": torch.rand(n, generator=g), "mass": torch.rand(n, generator=g)}
        prediction = torch.randint(10, (n,), generator=g)
        Suite.of(x, seeds=seeds, origin=origin, prediction=prediction, method="m", columns=columns).append_to(path)


def opening(path: Path) -> float:
    start = time.perf_counter()
    desk = open_desk(path)
    desk.about()
    key = desk.arrange(RequestFields({"order": "sample"}))["key"]
    desk.rows(RequestFields({"key": key, "count": 30}))
    desk.state(RequestFields({}))
    return time.perf_counter() - start


def marking(path: Path, verdicts: int) -> list[float]:
    """Seconds for each verdict, from sending it to having its answer."""
    times = []
    headers = {"X-Operant-Token": TOKEN, "Content-Type": "application/json"}
    with serving(path) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for i in range(verdicts):
            page = {"row": 97 * i % 10_000, "by": "me", "verdict": ("valid", "invalid")[i % 2], "tags": ["dark"]}
            start = time.perf_counter()
            connection.request("POST", "/api/mark", json.dumps(page), headers)
            answer = connection.getresponse()
            answer.read()
            times.append(time.perf_counter() - start)
            assert answer.status == 200
        connection.close()
    return times


@contextmanager
def serving(path: Path) -> Iterator[int]:
    listening = _listen(0)
    config = uvicorn.Config(make_app(open_desk(path), TOKEN), log_level="warning", ws="none", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


if __name__ == "__main__":
    main()
