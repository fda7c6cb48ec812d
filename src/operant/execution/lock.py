"""The lock of a run folder: one process at a time, also after a crash."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from operant.results import write_atomically

try:
    import fcntl
except ImportError:  # not on every system
    fcntl = None  # type: ignore[assignment]

LOCK, GUARD = "lock", ".lock.guard"


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who works in a folder: a process, on which machine, and when it began, as process numbers are used again."""

    pid: int
    host: str
    started: str


def take_lock(folder: Path) -> Holder:
    """Be the only one in a folder; the lock of a process that is gone is taken over.

    Taking goes through a gate that the system itself opens again when a process dies, so that of two processes that
    find a dead one's lock only one replaces it.
    """
    file, me = folder / LOCK, Holder(pid=os.getpid(), host=socket.gethostname(), started=_began(os.getpid()) or "")
    with _gate(folder):
        if file.exists():
            _refuse_unless_gone(folder, file)
            file.unlink()
        try:
            write_atomically(file, json.dumps(asdict(me)).encode() + b"\n", overwrite=False)
        except FileExistsError:
            raise ValueError(f"another run has just begun in {folder}; wait until it ends") from None
        except BaseException:
            file.unlink(missing_ok=True)  # it may have got its name already
            raise
    return me


def release_lock(folder: Path, holder: Holder) -> None:
    """Leave a folder; only whoever holds the lock can."""
    file = folder / LOCK
    with suppress(OSError, ValueError), _gate(folder):
        if _read_holder(file) == holder and holder.pid == os.getpid():  # a forked child is not the holder
            file.unlink()


def _refuse_unless_gone(folder: Path, file: Path) -> None:
    try:
        holder = _read_holder(file)
    except (ValueError, OSError):
        raise ValueError(f"{file} is damaged; if no run works in this folder, delete it and run again") from None
    if holder.host != socket.gethostname():
        raise ValueError(
            f"{folder} is in use by process {holder.pid} on {holder.host}, which cannot be asked from here; if that "
            f"run is dead, delete {file} and run again"
        )
    began = _began(holder.pid)
    if began == "" or (began is not None and holder.started in (began, "")):
        who = "this very process" if holder.pid == os.getpid() else f"process {holder.pid}"
        raise ValueError(f"{folder} is in use by {who}; wait until that run ends, or stop it, or choose another folder")


def _read_holder(file: Path) -> Holder:
    try:
        page = json.loads(file.read_bytes())
        return Holder(pid=int(page["pid"]), host=str(page["host"]), started=str(page["started"]))
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{file} names no process ({error})") from None


def _began(pid: int) -> str | None:
    """When a process of this machine began; None if it is gone, empty if the system does not tell."""
    if os.name != "posix":
        return ""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass  # somebody else's, and alive
    with suppress(OSError, IndexError):
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return None if state in ("Z", "X") else f"{rest[18]} ticks after boot {boot}"
    with suppress(OSError):
        return subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout.strip()
    return ""


@contextmanager
def _gate(folder: Path) -> Iterator[None]:
    """One process of this machine at a time; where the file system knows no such thing, everyone."""
    with open(folder / GUARD, "ab") as gate:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(gate, fcntl.LOCK_EX)
        yield
