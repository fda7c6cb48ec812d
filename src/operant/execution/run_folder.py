"""The folder of a run: one process at a time, one set of settings, and finished steps that are never computed twice."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeVar

from operant import results
from operant.execution.lock import LOCK, Holder, release_lock, take_lock
from operant.execution.signature import difference
from operant.execution.timing import TIMING, Stopwatch, read_times
from operant.files import read_regular
from operant.model import Classifier
from operant.model.hashing import fingerprint, hash_of
from operant.networks import load_weights, save_weights
from operant.results import LOCK_FILE, TEMPORARY, write_atomically
from operant.suite import Suite
from operant.suite.verdicts import COLUMNS as VERDICT_COLUMNS

RUN = "run.json"
MODEL, CASES = "model", "cases"  # the final model and the cases it learned from
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
T = TypeVar("T")
V = TypeVar("V")


class Damaged(ValueError):
    """A finished step differs from what was written."""


class DiskFull(OSError):
    """The disk is full; everything that was finished before is intact."""


class RunFolder:
    """The finished steps of a run, which can be interrupted and resumed at any point.

    Use it as ``with RunFolder(...) as run:``. Only one process at a time can use the folder, and only with the settings
    that the run was started with. A finished step has a seal: a small hidden file beside it with the hashes of its
    files. A step without a seal was not finished and is computed again; a step that differs from its seal is rejected.

    Args:
        path: the folder; created if it does not exist.
        signature: settings of the run, by name, as text; see `signature_of`. Without it an existing run is opened
            whatever its settings.
        stopwatch: of the session, if it began before the folder is opened.
    """

    def __init__(
        self, path: str | Path, *, signature: Mapping[str, str] | None = None, stopwatch: Stopwatch | None = None
    ) -> None:
        self.path, self.signature = Path(path), None if signature is None else dict(signature)
        self.stopwatch = Stopwatch() if stopwatch is None else stopwatch
        self._holder: Holder | None = None

    def __enter__(self) -> RunFolder:
        if self.signature is None and not (self.path / RUN).exists():
            raise ValueError(f"{self.path} contains no run; give the folder of one")
        make_folder(self.path)
        with self.writing("the lock"):
            self._holder = take_lock(self.path)
        try:
            with self.writing(RUN):
                self._key = hash_of(json.dumps(self._check_signature(), sort_keys=True).encode())
            self._remove_leftovers()
            self.stopwatch.write_to(self.path / TIMING)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._holder is not None:
            self.stopwatch.lap()
            self._remove_leftovers()
            release_lock(self.path, self._holder)
            self._holder = None

    # Steps: read if they exist, else computed, written and read back

    def step(self, name: str, kind: type[T], work: Callable[[], T]) -> T:
        """Compute a result and save it in ``name.json``, or read it if it is finished.

        It is always read back from disk, so that a resumed run sees the same values.

        Args:
            name: of the step; ``/`` makes folders.
            kind: the dataclass that ``work`` returns.
            work: computes it.
        """

        def load(path: Path) -> T:
            return results.load(path, kind)

        return self.cached(f"{name}.json", work, save=results.save, load=load)

    def suite(self, name: str, work: Callable[[], Suite]) -> Suite:
        """A suite in the folder ``name``: computed and saved, or read."""
        return self.cached(name, work, save=self._save_suite, load=_open_suite)

    def weights(self, name: str, model: Classifier, work: Callable[[], Classifier]) -> Classifier:
        """``model`` with other weights: computed and saved in ``name.safetensors``, or read."""
        return self.cached(
            f"{name}.safetensors",
            work,
            save=lambda value, path: save_weights(value.unwrap(), path),
            load=lambda path: model.rewrap(load_weights(model.unwrap(), path)),
        )

    def cached(
        self, file: str, work: Callable[[], V], *, save: Callable[[V, Path], object], load: Callable[[Path], T]
    ) -> T:
        """Anything that can be saved at a path: a folder, or a file with others beside it as `results.save` writes.

        profile = run.cached("profile.json", fit, save=Profile.save, load=load_profile)
        """
        main = self._path_of(file)
        if finished(main):
            self._check_seal(main)
        else:
            with self.timed(file):
                value = work()
            with self.writing(file):
                _remove_seal(main)
                if main.is_dir():  # a file is replaced atomically
                    _remove(main)
                main.parent.mkdir(parents=True, exist_ok=True)
                save(value, main)
                self._write_seal(main)
        _draft_of(main).unlink(missing_ok=True)
        return _load(main, load)

    def replace(self, name: str, value: object) -> None:
        """Write a result to ``name.json`` in place of any earlier one."""
        self.drop(name)
        self.step(name, type(value), lambda: value)

    def drop(self, name: str) -> None:
        """Remove a result that is no longer valid, if it exists."""
        _drop(self._path_of(f"{name}.json"))

    def clear(self, name: str) -> None:
        """Remove a folder of chunks that is no longer needed, if it exists."""
        _remove(self._path_of(name))

    def draft(self, name: str) -> Path:
        """A file for the intermediate state of the step ``name``; removed when the step is finished."""
        return _draft_of(self._path_of(f"{name}.json"))

    def has(self, name: str) -> bool:
        """Whether a step, suite or weights of this name are finished."""
        return any(finished(self._path_of(file)) for file in (name, f"{name}.json", f"{name}.safetensors"))

    def stage(self) -> Path:
        """A new temporary path where any process can write a suite before `commit` gives it its name."""
        return self.path / f".{uuid.uuid4().hex[:12]}{TEMPORARY}"

    def commit(self, name: str, staged: Path) -> Suite:
        """Rename a staged suite to its final name, atomically."""
        return self.cached(name, lambda: staged, save=os.rename, load=_open_suite)

    # Beside the steps

    def deliver(self, model: Classifier, suite: Suite | None) -> None:
        """Write the final model and cases to the top of the folder, in place of earlier ones."""
        _remove_seal(self._path_of(f"{MODEL}.safetensors"))
        self.weights(MODEL, model, lambda: model)
        _drop(self._path_of(CASES))
        if suite is not None:
            self.suite(CASES, lambda: suite)

    def timed(self, name: str) -> AbstractContextManager[None]:
        """Record how long a block takes; see `Stopwatch`."""
        return self.stopwatch.timed(name)

    def times(self) -> dict[str, float]:
        """Seconds by part, over all sessions."""
        return read_times(self.path / TIMING)

    def digest(self) -> str:
        """A hash of everything except timing, lock, reports and verdicts: equal digests mean bit-identical runs."""
        excluded = (TIMING, LOCK, LOCK_FILE, *(file.name for file in self.path.glob("report.*")))
        files = [f for f in _files(self.path) if f.name not in excluded and not f.match("verdicts-*.jsonl")]
        named = sorted((file.relative_to(self.path).as_posix(), fingerprint(file)) for file in files)
        return hash_of(*(part.encode() for pair in named for part in pair))

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Turn a full disk or a read-only folder into a clear error."""
        try:
            yield
        except OSError as error:
            if error.errno in DISK_FULL:
                raise DiskFull(
                    f"the disk is full: {name} could not be written to {self.path}. Finished work is saved there; free "
                    "some space and run again with the same folder to resume"
                ) from error
            if error.errno in NOT_WRITABLE:
                raise ValueError(
                    f"{name} could not be written to {self.path} ({error.strerror}); make the folder writable, or "
                    "choose another"
                ) from error
            raise

    # Paths, settings, seals

    def _path_of(self, file: str) -> Path:
        """The path of a step's file; names cannot leave the folder or overwrite its own files."""
        if self._holder is None:
            raise ValueError(f"{self.path} is not open; use it as `with RunFolder(...) as run:`")
        plain = all(re.fullmatch(r"\w[\w.-]*", part) for part in file.split("/"))
        if not plain or file in (RUN, TIMING, LOCK):
            raise ValueError(
                f"a step's name must consist of letters, digits, '-', '_' and '/', and be neither run nor lock, got "
                f"{file!r}"
            )
        return self.path / file

    def _check_signature(self) -> dict[str, str]:
        """The settings of the run, written now or checked against those it was started with."""
        file = self.path / RUN
        if not file.exists():
            assert self.signature is not None
            write_atomically(file, json.dumps(self.signature, indent=2).encode() + b"\n")
            return self.signature
        try:
            old = {str(name): str(text) for name, text in json.loads(read_regular(file)).items()}
        except (OSError, ValueError, AttributeError, RecursionError):
            raise Damaged(f"{file} is damaged; delete it and run again with the same settings to resume") from None
        new = old if self.signature is None else self.signature
        if changed := [name for name in {**old, **new} if old.get(name) != new.get(name)]:
            what = "; ".join(difference(name, old.get(name, "nothing"), new.get(name, "nothing")) for name in changed)
            raise ValueError(
                f"{self.path} contains a run with other settings: {what}. Restore them, or choose a new folder"
            )
        return old

    def _remove_leftovers(self) -> None:
        """Remove temporary files of killed writers; safe, since the lock keeps other processes out."""
        for left in list(self.path.rglob(f".*{TEMPORARY}")):
            with suppress(OSError):  # harmless
                _remove(left)

    def _save_suite(self, suite: Suite, main: Path) -> None:
        staged = self.stage()
        save_suite(suite, staged)
        os.rename(staged, main)

    def _write_seal(self, main: Path) -> None:
        page = {"run": self._key, "files": _fingerprints(main)}
        write_atomically(_seal_of(main), json.dumps(page, indent=2, sort_keys=True).encode() + b"\n")

    def _check_seal(self, main: Path) -> None:
        again = "to compute it again"
        try:
            page = json.loads(read_regular(_seal_of(main)))
            run, files = str(page["run"]), page["files"]
            if not isinstance(files, dict):
                raise ValueError
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            raise Damaged(f"{_seal_of(main)}, the seal of {main}, is damaged; delete it {again}") from None
        if run != self._key:
            raise Damaged(f"{main} was made with other settings; delete it {again}, or choose a new folder")
        found = _fingerprints(main)
        for name in sorted({**files, **found}):
            if files.get(name) != found.get(name):
                what = "is missing" if name not in found else "has changed" if name in files else "does not belong here"
                raise Damaged(f"a finished step cannot be read: {main.parent / name} {what}; delete {main} {again}")


def finished(main: Path) -> bool:
    """Whether a part of a run exists together with the seal that says it is complete."""
    return main.exists() and _seal_of(main).exists()


def has_finished_work(folder: Path) -> bool:
    """Whether a run's folder holds anything that was computed: a finished step of a round, or estimated conditions."""
    return any(folder.glob("*/**/.*.seal"))  # the seal of the run's description is in the folder itself


def require_existing(place: Path) -> Callable[[], NoReturn]:
    """A ``work`` function for steps that must already be finished: raises an error that says what to do."""

    def fail() -> NoReturn:
        raise Damaged(f"a finished part of the run is missing in {place}; delete that folder to compute it again")

    return fail


def save_suite(suite: Suite, path: Path) -> None:
    """Write a suite to a new path; if that fails, leave nothing behind."""
    try:
        suite.save(path)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)  # frees space on a full disk
        raise


def make_folder(folder: Path) -> None:
    """Create a folder, or raise an error that says why it cannot be created."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ValueError(f"{folder} must be a folder, but is a file; choose another") from None
    except OSError as error:
        raise ValueError(f"the folder {folder} cannot be created ({error.strerror}); choose another") from None


def _load(main: Path, load: Callable[[Path], T]) -> T:
    try:
        return load(main)
    except (ValueError, OSError) as error:
        raise Damaged(f"a finished step cannot be read: {error}. Delete {main} to compute it again") from error


def _open_suite(main: Path) -> Suite:
    """A suite as it was written, without the verdicts that people added later."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # damaged shards are an error below
        suite = Suite.open(main)
    if suite.rejected:
        raise ValueError("; ".join(suite.rejected))
    return replace(suite, columns={name: v for name, v in suite.columns.items() if name not in VERDICT_COLUMNS})


def _drop(main: Path) -> None:
    """Remove a finished step, its seal first, so that it never looks complete when it is not."""
    _remove_seal(main)
    _remove(main)


def _remove_seal(main: Path) -> None:
    _seal_of(main).unlink(missing_ok=True)


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def _files(place: Path) -> list[Path]:
    """All files of a folder except temporary ones; or a file and those that `results.save` wrote beside it."""
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
