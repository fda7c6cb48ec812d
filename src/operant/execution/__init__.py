"""Work that is kept and resumed: run folders and their lock, chunks, and engines that run independent work items."""

from operant.execution.engines import Engine, WorkerDied, pool, serial
from operant.execution.events import Event, EventHandler
from operant.execution.interrupt import Interrupted
from operant.execution.run_folder import Damaged, DiskFull, RunFolder
from operant.execution.timing import Stopwatch

__all__ = [
    "Damaged",
    "DiskFull",
    "Engine",
    "Event",
    "EventHandler",
    "Interrupted",
    "RunFolder",
    "Stopwatch",
    "WorkerDied",
    "pool",
    "serial",
]
