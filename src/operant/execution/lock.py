"""The lock of a run folder: one process at a time, also after a crash."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from operant.files import read_regular
from operant.results import locked, write_atomically

LOCK = "lock"


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that holds a lock: its id, its machine, and its start time, since process ids are reused."""

    pid: int
    host: str
    started: str


def take_lock(folder: Path) -> Holder:
    """Lock a folder for this process; the lock of a dead process is replaced.

    `locked` is released by the operating system when a process dies, so if two processes find the lock of a dead one,
    only one of them replaces it.
    """
    file, me = folder / LOCK, Holder(pid=os.getpid(), host=socket.gethostname(), started=_start_time(os.getpid()) or "")
    with locked(folder):
        if file.exists():
            _check_holder_is_dead(folder, file)
            file.unlink()
        try:
            write_atomically(file, json.dumps(asdict(me)).encode() + b"\n", overwrite=False)
        except FileExistsError:
            raise ValueError(f"another run has just started in {folder}; wait until it ends") from None
        except BaseException:
            file.unlink(missing_ok=True)  # it may already have its final name
            raise
    return me


def release_lock(folder: Path, holder: Holder) -> None:
    """Unlock a folder if ``holder`` still holds the lock."""
    file = folder / LOCK
    with suppress(OSError, ValueError), locked(folder):
        if _read_holder(file) == holder and holder.pid == os.getpid():  # a forked child is not the holder
            file.unlink()


def _check_holder_is_dead(folder: Path, file: Path) -> None:
    try:
        holder = _read_holder(file)
    except (ValueError, OSError):
        raise ValueError(f"{file} is damaged; if no run uses this folder, delete it and run again") from None
    if holder.host != socket.gethostname():
        raise ValueError(
            f"{folder} is in use by process {holder.pid} on {holder.host}, which cannot be checked from here; if that "
            f"run is dead, delete {file} and run again"
        )
    started = _start_time(holder.pid)
    if started == "" or (started is not None and holder.started in (started, "")):
        who = "this process" if holder.pid == os.getpid() else f"process {holder.pid}"
        raise ValueError(
            f"{folder} is in use by {who}; wait until that run ends, stop it, or choose another folder. If that "
            f"process does not run Operant, delete {file}"
        )


def _read_holder(file: Path) -> Holder:
    try:
        page = json.loads(read_regular(file))
        return Holder(pid=int(page["pid"]), host=str(page["host"]), started=str(page["started"]))
    except (TypeError, LookupError, OverflowError, RecursionError) as error:
        raise ValueError(f"{file} names no process ({error})") from None


def _start_time(pid: int) -> str | None:
    """When a process of this machine started; None if it is dead, empty if the system does not say."""
    if pid < 1:
        return None  # no process has such an id; to `os.kill` it means a group of processes
    if os.name != "posix":
        return ""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass  # another user's, and alive
    with suppress(OSError, IndexError):
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return None if state in ("Z", "X") else f"{rest[18]} ticks after boot {boot}"
    with suppress(OSError):
        return subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout.strip()
    return ""
