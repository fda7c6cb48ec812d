"""A run's folder: one run at a time, one set of settings, and finished steps that are not worked out twice."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeVar

from operant import results
from operant.execution.lock import GUARD, LOCK, Holder, release_lock, take_lock
from operant.model import Classifier
from operant.model.hashing import fingerprint, hash_of
from operant.networks import load_weights, save_weights
from operant.results import TEMPORARY, write_atomically
from operant.suite import Suite
from operant.suite.verdicts import COLUMNS as SAID

RUN, TIMING = "run.json", "timing.jsonl"
MODEL, CASES = "model", "cases"  # what a run has come to
FULL = (errno.ENOSPC, errno.EDQUOT)
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
T = TypeVar("T")
V = TypeVar("V")


class Damaged(ValueError):
    """Something finished cannot be read as it was written."""


class DiskFull(OSError):
    """There was no room to write; what was finished before is whole."""


class RunFolder:
    """Everything a run has finished, so that it can be stopped at any moment and gone on with.

    Use it as ``with RunFolder(...) as run:``. Only one process at a time can be in there, and only with the settings
    that the folder was begun with. A finished step is sealed: a small hidden file beside it tells the hash of its
    files. What has no seal was not finished, and is worked out again; what differs from its seal is refused.

    Args:
        path: the folder; made if it is not there.
        signature: by name, as text, what the run is made of; see `signature_of`. Without it the folder is opened as it
            was begun.
    """

    def __init__(self, path: str | Path, *, signature: Mapping[str, str] | None = None) -> None:
        self.path, self.signature = Path(path), None if signature is None else dict(signature)
        self._holder: Holder | None = None

    def __enter__(self) -> RunFolder:
        if self.signature is None and not (self.path / RUN).exists():
            raise ValueError(f"{self.path} holds no run; name the folder of one")
        make_folder(self.path)
        with self.writing("the lock"):
            self._holder = take_lock(self.path)
        try:
            with self.writing(RUN):
                self._key = hash_of(json.dumps(self._sign(), sort_keys=True).encode())
            self._sweep()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._holder is not None:
            self._sweep()
            release_lock(self.path, self._holder)
            self._holder = None

    # Steps: read if they are there, else worked out, written, and read back

    def step(self, name: str, kind: type[T], work: Callable[[], T]) -> T:
        """A result, in ``name.json``; always as it is read from disk, so that a run that is gone on with sees the same.

        Args:
            name: of the step; ``/`` makes folders.
            kind: the dataclass that ``work`` returns.
            work: works it out.
        """

        def load(path: Path) -> T:
            return results.load(path, kind)

        return self.kept(f"{name}.json", work, save=results.save, load=load)

    def drop(self, name: str) -> None:
        """Remove a result that is no longer so; nothing if there is none."""
        _drop(self._place(f"{name}.json"))

    def clear(self, name: str) -> None:
        """Remove a folder of chunks that nobody needs any more; nothing if there is none."""
        _remove(self._place(name))

    def renew(self, name: str, value: object) -> None:
        """A result in ``name.json``, in place of one that may be there."""
        self.drop(name)
        self.step(name, type(value), lambda: value)

    def suite(self, name: str, work: Callable[[], Suite]) -> Suite:
        """A suite, in the folder ``name``."""
        return self.kept(name, work, save=self._save_suite, load=_open_suite)

    def weights(self, name: str, model: Classifier, work: Callable[[], Classifier]) -> Classifier:
        """A model like ``model`` with weights of its own, in ``name.safetensors``."""
        return self.kept(
            f"{name}.safetensors",
            work,
            save=lambda value, path: save_weights(value.unwrap(), path),
            load=lambda path: model.rewrap(load_weights(model.unwrap(), path)),
        )

    def kept(
        self, file: str, work: Callable[[], V], *, save: Callable[[V, Path], object], load: Callable[[Path], T]
    ) -> T:
        """Anything that can be saved at a path: a file, with others beside it as `results.save` has them, or a folder.

        profile = run.kept("profile.json", fit, save=Profile.save, load=load_profile)
        """
        main = self._place(file)
        if finished(main):
            self._check(main)
        else:
            with self.timed(file):
                value = work()
            with self.writing(file):
                _unseal(main)
                if main.is_dir():  # files are replaced in one stroke
                    _remove(main)
                main.parent.mkdir(parents=True, exist_ok=True)
                save(value, main)
                self._seal(main)
        _draft_of(main).unlink(missing_ok=True)
        return _load(main, load)

    def draft(self, name: str) -> Path:
        """A file for what `step` of this name has done so far; removed when the step is finished, and not before."""
        return _draft_of(self._place(f"{name}.json"))

    def has(self, name: str) -> bool:
        """Whether a step, suite or weights of this name are finished."""
        return any(finished(self._place(file)) for file in (name, f"{name}.json", f"{name}.safetensors"))

    def room(self) -> Path:
        """A new place in the folder to write a suite to, in any process, before `adopt` gives it its name."""
        return self.path / f".{uuid.uuid4().hex[:12]}{TEMPORARY}"

    def adopt(self, name: str, room: Path) -> Suite:
        """Make what was written to ``room`` the suite of this name, in one stroke."""
        return self.kept(name, lambda: room, save=os.rename, load=_open_suite)

    # Beside the steps

    def deliver(self, model: Classifier, suite: Suite | None) -> None:
        """Put what the run has come to where it is easily found, in place of what it had come to before."""
        _unseal(self._place(f"{MODEL}.safetensors"))
        self.weights(MODEL, model, lambda: model)
        _drop(self._place(CASES))
        if suite is not None:
            self.suite(CASES, lambda: suite)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Note how long something took; no part of what a run is compared by, and not worth stopping for."""
        began = time.monotonic()
        try:
            yield
        finally:
            if seconds := round(time.monotonic() - began, 2):
                with suppress(OSError), open(self.path / TIMING, "a", encoding="utf-8") as file:
                    file.write(json.dumps({name: seconds}) + "\n")

    def times(self) -> dict[str, float]:
        """Seconds that things took in all, by name."""
        total: dict[str, float] = {}
        with suppress(OSError):
            for line in (self.path / TIMING).read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(ValueError, TypeError, AttributeError):  # a line that a kill has cut off
                    for name, seconds in json.loads(line).items():
                        total[name] = total.get(name, 0.0) + float(seconds)
        return total

    def digest(self) -> str:
        """A hash of all but timing, lock, reports and verdicts: equal digests, equal runs, bit for bit."""
        apart = (TIMING, LOCK, GUARD, *(file.name for file in self.path.glob("report.*")))
        files = [f for f in _files(self.path) if f.name not in apart and not f.match("verdicts-*.jsonl")]
        named = sorted((file.relative_to(self.path).as_posix(), fingerprint(file)) for file in files)
        return hash_of(*(part.encode() for pair in named for part in pair))

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Say what a full disk or a folder that cannot be written means for the run."""
        try:
            yield
        except OSError as error:
            if error.errno in FULL:
                raise DiskFull(
                    f"the disk is full: {name} could not be written to {self.path}. What was finished before is kept "
                    "there; make room and run again with the same folder to go on from here"
                ) from error
            if error.errno in REFUSED:
                raise ValueError(
                    f"{name} could not be written to {self.path} ({error.strerror}); make the folder writable, or "
                    "choose another"
                ) from error
            raise

    # What the folder is

    def _place(self, file: str) -> Path:
        """Where a file of this name is; names lead nowhere else, and not to the folder's own files."""
        if self._holder is None:
            raise ValueError(f"{self.path} is not open; use it as `with RunFolder(...) as run:`")
        plain = all(re.fullmatch(r"\w[\w.-]*", part) for part in file.split("/"))
        if not plain or file in (RUN, TIMING, LOCK):
            raise ValueError(
                f"a step's name must be words of letters, digits, '-' and '_' joined by '/', and neither run nor lock, "
                f"got {file!r}"
            )
        return self.path / file

    def _sign(self) -> dict[str, str]:
        """What the run is made of, as it was begun or is begun now; refuse to mix two runs."""
        file = self.path / RUN
        if not file.exists():
            assert self.signature is not None
            write_atomically(file, json.dumps(self.signature, indent=2).encode() + b"\n")
            return self.signature
        try:
            old = {str(name): str(text) for name, text in json.loads(file.read_bytes()).items()}
        except (OSError, ValueError, AttributeError, RecursionError):
            raise Damaged(
                f"{file} is damaged; delete it and run again: what was finished with the same settings is kept"
            ) from None
        new = old if self.signature is None else self.signature
        if changed := [name for name in {**old, **new} if old.get(name) != new.get(name)]:
            what = "; ".join(_change(name, old.get(name, "nothing"), new.get(name, "nothing")) for name in changed)
            raise ValueError(
                f"{self.path} holds a run with other settings: {what}. Put them back as they were, or choose a new "
                "folder"
            )
        return old

    def _sweep(self) -> None:
        """Remove what writers left that were killed: whoever holds the lock is the only one."""
        for left in list(self.path.rglob(f".*{TEMPORARY}")):
            with suppress(OSError):  # of no harm
                _remove(left)

    def _save_suite(self, suite: Suite, main: Path) -> None:
        room = self.room()
        save_suite(suite, room)
        os.rename(room, main)

    # Seals

    def _seal(self, main: Path) -> None:
        page = {"run": self._key, "files": _fingerprints(main)}
        write_atomically(_seal_of(main), json.dumps(page, indent=2, sort_keys=True).encode() + b"\n")

    def _check(self, main: Path) -> None:
        again = "to have it worked out again"
        try:
            page = json.loads(_seal_of(main).read_bytes())
            run, files = str(page["run"]), dict(page["files"])
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            raise Damaged(f"{_seal_of(main)}, the seal of {main}, is damaged; delete it {again}") from None
        if run != self._key:
            raise Damaged(f"{main} was made with other settings; delete it {again}, or choose a new folder")
        found = _fingerprints(main)
        for name in sorted({**files, **found}):
            if files.get(name) != found.get(name):
                what = "is missing" if name not in found else "has changed" if name in files else "does not belong here"
                raise Damaged(f"a finished step cannot be read: {main.parent / name} {what}; delete {main} {again}")


def finished(main: Path) -> bool:
    """Whether a part of a run is there with the seal that says that all of it is."""
    return main.exists() and _seal_of(main).exists()


def save_suite(suite: Suite, place: Path) -> None:
    """Write a suite to a new place, or nothing."""
    try:
        suite.save(place)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)  # room is what a full disk needs
        raise


def _load(main: Path, load: Callable[[Path], T]) -> T:
    try:
        return load(main)
    except (ValueError, OSError) as error:
        raise Damaged(f"a finished step cannot be read: {error}. Delete {main} to have it worked out again") from error


def _open_suite(main: Path) -> Suite:
    """A suite as it was written, without what people have said of its cases since."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they would say is said below
        suite = Suite.open(main)
    if suite.rejected:
        raise ValueError("; ".join(suite.rejected))
    return replace(suite, columns={name: v for name, v in suite.columns.items() if name not in SAID})


def make_folder(folder: Path) -> None:
    """Make a folder, or say why it cannot be one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ValueError(f"{folder} must be a folder, and is a file; choose another") from None
    except OSError as error:
        raise ValueError(f"the folder {folder} cannot be made ({error.strerror}); choose another") from None


def _drop(main: Path) -> None:
    """Remove something finished; first its seal, so that at no moment it seems whole and is not."""
    _unseal(main)
    _remove(main)


def _unseal(main: Path) -> None:
    _seal_of(main).unlink(missing_ok=True)


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def _change(name: str, old: str, new: str) -> str:
    """What is different, as far as it can be told shortly."""
    a, b = (re.findall(r"[^,(){}\[\]]+", text) for text in (old, new))
    same = len(a) == len(b)
    pairs = [(x.strip(), y.strip()) for x, y in zip(a, b, strict=True) if x != y] if same else [(old, new)]
    told = ", ".join(dict.fromkeys(f"{x} -> {y}" for x, y in pairs))  # each once, in order
    return f"{name} ({told})" if len(told) <= 160 else name


def gone(place: Path) -> Callable[[], NoReturn]:
    """Work that a finished part of a run must have done before: says what to do where it is missing."""

    def refuse() -> NoReturn:
        raise Damaged(
            f"a finished part of the run is missing in {place}; delete that folder to have it worked out again"
        )

    return refuse


def _files(place: Path) -> list[Path]:
    """The files of a folder and its folders but temporary ones; or a file and what `results.save` wrote beside it."""
    if place.is_dir():
        files = (file for file in place.rglob("*") if file.is_file())
        return [f for f in files if not any(part.endswith(TEMPORARY) for part in f.relative_to(place).parts)]
    beside = re.escape(place.name) + r"(\.[0-9a-f]{12}\.safetensors)?"
    return [file for file in place.parent.iterdir() if re.fullmatch(beside, file.name)]


def _fingerprints(main: Path) -> dict[str, str]:
    return {file.relative_to(main.parent).as_posix(): fingerprint(file) for file in _files(main)}


def _seal_of(main: Path) -> Path:
    return main.with_name(f".{main.name}.seal")


def _draft_of(main: Path) -> Path:
    return main.with_name(f".{main.name}.draft")
