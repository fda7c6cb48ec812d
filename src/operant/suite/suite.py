"""Cases as columns, in memory and on disk."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from operant.data import Samples, row_index
from operant.suite.columns import joined_column, new_columns, rows_of
from operant.suite.seed_pool import SeedPool, chosen_names
from operant.suite.shards import (
    FORMAT,
    Column,
    LazyRows,
    Strings,
    checked_columns,
    digest,
    numbered,
    pack,
    read_file,
    read_manifest,
    unpack,
    write_manifest,
    write_next,
)
from operant.suite.verdicts import CaseIndex, Part, VerdictReader, columns_of, is_part, key_lookup, newest
from operant.validation import check_between, check_from_below, check_one_of

ROWS_PER_SHARD = 4096
"""`Suite.save` writes longer suites as several shards."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Suite:
    """Generated cases, one per row.

    Build one with `Suite.of`; read one with `Suite.open`. A case has the label and id of its seed; each seed's input is
    stored once. Further columns hold one float or short string per row: ``suite["fol"]``.

    Attributes:
        label: true label of the case, from its seed.
        seed: id of the seed that the case was generated from.
        prediction: the model's prediction in the fuzzer's final pass.
        method: how the case was generated.
        columns: further columns by name.
        attempted: number of seeds that the fuzzer tried; selecting rows does not change it.
        skipped: number of seeds that it did not try (a targeted attack skips seeds of the target class).
        classes: the name of each label, from the seeds; empty if labels have only numbers.
        rejected: one message per damaged file that `open` left out.
    """

    rows: LazyRows
    label: Tensor
    seed: Tensor
    prediction: Tensor
    method: Strings
    pool: SeedPool
    columns: Mapping[str, Column] = field(default_factory=dict)
    attempted: int = 0
    skipped: int = 0
    classes: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()

    @staticmethod
    def of(
        x: Tensor,
        *,
        seeds: Samples,
        origin: Tensor,
        prediction: Tensor,
        method: str | Sequence[str] | Strings,
        columns: Mapping[str, Any] | None = None,
        skipped: int = 0,
    ) -> Suite:
        """A suite of cases that were generated from ``seeds``.

        Args:
            x: cases ``(N, *shape)``.
            seeds: labelled seeds.
            origin: row of each case's seed in ``seeds``.
            prediction: predicted class of each case.
            method: name of the method, for all cases or one per case.
            columns: further columns, one value per case.
            skipped: number of seeds that were not tried.
        """
        n = len(x)
        methods = np.array([method] * n if isinstance(method, str) else method, dtype=np.str_)
        if x.shape[1:] != seeds.shape or not len(origin) == len(prediction) == len(methods) == n:
            got = f"{tuple(x.shape)}, {len(origin)}, {len(prediction)} and {len(methods)}"
            needed = "cases, origins, predictions and methods must match"
            raise ValueError(f"{needed}: got {got} for seeds of shape {tuple(seeds.shape)}")
        if origin.dtype == torch.bool or origin.is_floating_point():
            raise ValueError(f"origins must be integers, got {origin.dtype}")
        origin = row_index(origin.cpu(), len(seeds))
        used = origin.unique()
        label, ids = seeds.labels.cpu(), seeds.ids.cpu()
        return Suite(
            rows=LazyRows([x.detach().cpu().contiguous()]),
            label=label[origin],
            seed=ids[origin],
            prediction=prediction.cpu().long(),
            method=methods,
            pool=SeedPool.of(
                LazyRows([seeds.x.detach().cpu()[used]]), label[used], ids[used], chosen_names(seeds.names, used)
            ),
            columns=new_columns(columns or {}, n),
            attempted=len(seeds) - skipped,
            skipped=skipped,
            classes=seeds.classes,
        )

    def __len__(self) -> int:
        return len(self.label)

    def __repr__(self) -> str:
        columns = f", columns {', '.join(self.columns)}" if self.columns else ""
        failing = int((self.prediction != self.label).sum())
        return f"Suite({len(self)} cases from {len(self.pool.ids)} seeds, {failing} failures{columns})"

    def __getitem__(self, key: Any) -> Any:
        """A column by name, or a suite of the rows given by slice, mask or positions."""
        if isinstance(key, str):
            if key not in self.columns:
                raise KeyError(f"no column named {key}; this suite has {', '.join(self.columns) or 'none'}")
            return self.columns[key]
        rows = row_index(key, len(self)).cpu()
        return replace(
            self,
            rows=LazyRows([self.rows.take(rows)]),
            label=self.label[rows],
            seed=self.seed[rows],
            prediction=self.prediction[rows],
            method=self.method[rows.numpy()],
            columns={name: rows_of(values, rows) for name, values in self.columns.items()},
            pool=self.pool.only(self.seed[rows]),
        )

    @property
    def x(self) -> Tensor:
        """The cases ``(N, *shape)``; read from disk on first access."""
        return self.rows.all()

    @property
    def x0(self) -> Tensor:
        """The seed of each case, ``(N, *shape)``."""
        return self.pool.take(self.seed)

    @property
    def seeds(self) -> Samples:
        """The seeds, each once, sorted by id."""
        return Samples(
            self.pool.rows.all(), self.pool.label, self.pool.ids, names=self.pool.names, classes=self.classes
        )

    @property
    def seed_names(self) -> list[str]:
        """Where the seed of each case comes from, such as ``"cat/0001.png"``; empty if that is not known."""
        if self.pool.names is None:
            return [""] * len(self)
        return [self.pool.names[place] for place in torch.searchsorted(self.pool.ids, self.seed).tolist()]

    def failures(self) -> Suite:
        """The cases that the model misclassified."""
        failing: Suite = self[self.prediction != self.label]
        return failing

    def operational(self, level: float = 0.05, mass_quantile: float = 0.1) -> Suite:
        """The operational failures (natural, and where the field is dense), ranked by mass times naturalness.

        Args:
            level: minimum ``naturalness``, a p-value.
            mass_quantile: minimum ``quantile``, the density quantile of a failure among field inputs.
        """
        check_between(0, 1, level=level)
        check_from_below(0, 1, mass_quantile=mass_quantile)
        if missing := [name for name in ("naturalness", "quantile", "mass") if name not in self.columns]:
            lacking = f"operational failures need columns that this suite lacks: {', '.join(missing)}"
            raise ValueError(f"{lacking}; OperationalFuzz adds them, or use with_columns")
        failing = self.failures()
        if len(failing) == 0:
            raise ValueError(f"there must be failures to choose from, got none in {len(self)} cases; search longer")
        kept = failing[(failing["naturalness"] >= level) & (failing["quantile"] >= mass_quantile)]
        ranked: Suite = kept[(kept["mass"] * kept["naturalness"]).argsort(descending=True, stable=True)]
        return ranked

    def valid(self) -> Suite:
        """The cases that people judged valid with ``operant triage``, without an opposing verdict."""
        if "verdict" not in self.columns:
            raise ValueError("nobody has judged these cases; run `operant triage` to judge them")
        valid: Suite = self[self["verdict"] == "valid"]
        return valid

    def samples(self) -> Samples:
        """The cases as labelled samples, for retraining."""
        return Samples(self.x, self.label)

    def distances(self, norm: str) -> Tensor:
        """Distance of each case from its seed, in the norm ``"linf"`` or ``"l2"``."""
        check_one_of(("linf", "l2"), norm=norm)
        difference = (self.x - self.x0).flatten(1)
        return difference.abs().amax(1) if norm == "linf" else difference.norm(dim=1)

    def with_columns(self, /, **columns: Any) -> Suite:
        """The same suite with further columns; existing names are replaced."""
        return replace(self, columns={**self.columns, **new_columns(columns, len(self))})

    @staticmethod
    def concat(suites: Sequence[Suite]) -> Suite:
        """All rows in order. Columns that some suite lacks are filled with NaN, or with the empty string.

        The columns of empty suites are dropped, unless all suites are empty; so are class names that differ, or that do
        not name every label.
        """
        if not suites:
            raise ValueError("nothing to join: concat needs at least one suite")
        if len({s.rows.shape for s in suites}) > 1:
            raise ValueError(f"suites must share one input shape, got {[tuple(s.rows.shape) for s in suites]}")
        filled = [s for s in suites if len(s)] or suites
        names = dict.fromkeys(name for s in filled for name in s.columns)
        classes = list(dict.fromkeys(s.classes for s in suites if s.classes))
        pool = SeedPool.concat([s.pool for s in suites])
        return Suite(
            rows=LazyRows.join([s.rows for s in suites]),
            label=torch.cat([s.label for s in suites]),
            seed=torch.cat([s.seed for s in suites]),
            prediction=torch.cat([s.prediction for s in suites]),
            method=np.concatenate([s.method for s in suites]),
            pool=pool,
            columns={name: joined_column(name, [(s.columns, len(s)) for s in filled]) for name in names},
            attempted=sum(s.attempted for s in suites),
            skipped=sum(s.skipped for s in suites),
            classes=classes[0] if len(classes) == 1 and bool((pool.label < len(classes[0])).all()) else (),
            rejected=tuple(message for s in suites for message in s.rejected),
        )

    def digest(self) -> str:
        """A hash of the whole suite: equal digests mean bit-identical suites."""
        tensors, words = self._packed()
        return digest(tensors, json.dumps(words, sort_keys=True))

    def save(self, path: str | Path) -> Path:
        """Write the suite to a new folder, in shards of at most 4096 rows."""
        path = Path(path)
        if path.exists() and any(path.iterdir()):
            raise ValueError(f"{path} already holds files; choose a new folder, or use append_to")
        for start in range(0, max(len(self), 1), ROWS_PER_SHARD):
            part: Suite = self[start : start + ROWS_PER_SHARD]
            (part if start == 0 else replace(part, attempted=0, skipped=0)).append_to(path)
        return path

    def append_to(self, path: str | Path) -> Path:
        """Add these rows to a suite on disk as one shard, atomically."""
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        shape = list(self.rows.shape)
        if not (path / "manifest.json").exists():
            write_manifest(path, shape)
        if (known := read_manifest(path)) != shape:
            raise ValueError(f"{path} holds cases of shape {tuple(known)}, these have {tuple(shape)}")
        return write_next(path, "shard", *self._packed())

    @staticmethod
    def open(path: str | Path) -> Suite:
        """Read a suite; the inputs stay on disk until they are accessed.

        Damaged or foreign files are left out with a warning and listed in `rejected`. A folder without a finished shard
        gives an empty suite. Verdicts from ``operant triage`` are in the columns ``verdict`` (``"disputed"`` if people
        disagree), ``verdict_by``, ``verdict_at`` and ``tags``.
        """
        _, suite = _open(Path(path))
        for message in suite.rejected:
            warnings.warn(f"left out: {message}", stacklevel=2)
        return suite

    def _packed(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {"x": self.x, "label": self.label, "seed": self.seed, "prediction": self.prediction}
        tensors |= {"seeds.x": self.pool.rows.all(), "seeds.y": self.pool.label, "seeds.ids": self.pool.ids}
        columns, vocabulary = pack({"method": self.method, **self.columns})
        words = {"vocabulary": vocabulary, "attempted": self.attempted, "skipped": self.skipped}
        if self.pool.names is not None:
            words["seeds.names"] = list(self.pool.names)
        if self.classes:
            words["classes"] = list(self.classes)
        return tensors | columns, words


def add_columns(path: str | Path, /, **columns: Any) -> None:
    """Add columns to a suite on disk, one value per row of `Suite.open`; they replace older columns of the same name.

    They are written atomically to one new file beside the shards. No file is ever rewritten.
    """
    shards, suite = _open(Path(path))
    tensors, vocabulary = pack(new_columns(columns, len(suite)))
    covered = [[shard.file.name, shard.digest, len(shard.suite)] for shard in shards]
    write_next(Path(path), "columns", tensors, {"vocabulary": vocabulary, "shards": covered})


def open_with_index(path: str | Path) -> tuple[Suite, CaseIndex]:
    """A suite, and the index of its cases that verdict logs are read and written with."""
    shards, suite = _open(Path(path))
    return suite, _index(shards, suite)


@dataclass(frozen=True, kw_only=True)
class _Shard:
    file: Path
    digest: str
    suite: Suite


def _open(path: Path) -> tuple[list[_Shard], Suite]:
    """The readable shards of a folder, and the suite they make together."""
    shape = read_manifest(path)
    if not numbered(path, "shard"):
        return [], _empty(shape)
    rejected: list[str] = []
    shards = _with_sidecars(path, _shards(path, shape, rejected), rejected)
    if not shards:
        raise ValueError(f"{path} has no readable shard: {'; '.join(rejected)}")
    shards, suite = _joined_shards(shards, rejected)
    return shards, _with_verdicts(path, shards, replace(suite, rejected=tuple(rejected)))


def _with_verdicts(path: Path, shards: list[_Shard], suite: Suite) -> Suite:
    """The suite with columns for its verdicts, if there are any; damaged verdicts are left out with a warning."""
    reader = VerdictReader(path)
    judgements = newest(reader.new_judgements(_index(shards, suite)))
    for message in reader.rejected:
        warnings.warn(f"left out: {message}", stacklevel=4)
    return suite.with_columns(**columns_of(judgements.values(), len(suite))) if judgements else suite


def _index(shards: list[_Shard], suite: Suite) -> CaseIndex:
    parts: list[Part] = [(shard.file.name, shard.digest, len(shard.suite)) for shard in shards]
    return CaseIndex(parts=parts, rows_of_key=key_lookup(suite.rows, suite.seed))


def _shards(path: Path, shape: list[int], rejected: list[str]) -> list[_Shard]:
    """All readable shards; adds a message to ``rejected`` for every other."""
    shards = []
    for file in numbered(path, "shard").values():
        try:
            tensors, words, checksum = read_file(file, "shard")
            suite = _unpacked(file, tensors, words, shape)
        except ValueError as error:
            rejected.append(str(error))
        else:
            shards.append(_Shard(file=file, digest=checksum, suite=suite))
    return shards


def _unpacked(file: Path, tensors: dict[str, Tensor], words: dict[str, Any], shape: list[int]) -> Suite:
    """The suite in a shard; a correct checksum does not make its content right, so everything is checked."""
    try:
        columns = checked_columns(tensors, words)
    except ValueError as error:
        raise ValueError(f"{file} is not a shard of a format-{FORMAT} suite: {error}; move it elsewhere") from None
    if any(list(tensors[name].shape[1:]) != shape for name in ("x", "seeds.x")):
        raise ValueError(f"{file} does not hold cases of shape {tuple(shape)}; move it elsewhere")
    names = tuple(words["seeds.names"]) if "seeds.names" in words else None
    return Suite(
        rows=LazyRows([tensors["x"]]),
        label=tensors["label"],
        seed=tensors["seed"],
        prediction=tensors["prediction"],
        method=np.asarray(columns.pop("method")),
        pool=SeedPool(LazyRows([tensors["seeds.x"]]), tensors["seeds.y"], tensors["seeds.ids"], names),
        columns=columns,
        attempted=words["attempted"],
        skipped=words["skipped"],
        classes=tuple(words.get("classes", ())),
    )


def _with_sidecars(path: Path, shards: list[_Shard], rejected: list[str]) -> list[_Shard]:
    """The shards with the columns that `add_columns` wrote, oldest first; damaged files are skipped."""
    known = {(shard.file.name, shard.digest): shard for shard in shards}
    for file in numbered(path, "columns").values():
        try:
            known |= _with_columns(file, known)
        except ValueError as error:
            rejected.append(str(error))
    return list(known.values())


def _with_columns(file: Path, known: Mapping[tuple[str, str], _Shard]) -> dict[tuple[str, str], _Shard]:
    """The shards, by name and digest, that a file of `add_columns` adds columns to."""
    tensors, words, _ = read_file(file, "columns")
    changed = {}
    try:
        columns, start = unpack(tensors, words.get("vocabulary")), 0
        for name, of, n in _covered(words.get("shards")):
            if shard := known.get((name, of)):
                part = {column: values[start : start + n] for column, values in columns.items()}
                changed[name, of] = replace(shard, suite=shard.suite.with_columns(**part))
            start += n
    except ValueError as error:
        raise ValueError(f"{file} does not fit the shards it names ({error}); move it elsewhere") from None
    return changed


def _covered(parts: Any) -> list[Part]:
    """The shards that a file of columns names, checked."""
    if not isinstance(parts, list) or not all(is_part(part) for part in parts):
        raise ValueError(f"its shards must be a list of name, checksum and number of rows, got {parts!r:.80}")
    return [(name, of, n) for name, of, n in parts]


def _joined_shards(shards: list[_Shard], rejected: list[str]) -> tuple[list[_Shard], Suite]:
    """All shards as one suite; if some contradict each other, only those that fit the ones before them."""
    try:
        return shards, Suite.concat([shard.suite for shard in shards])
    except ValueError:
        kept, suite = shards[:1], shards[0].suite
    for shard in shards[1:]:
        try:
            suite = Suite.concat([suite, shard.suite])
            kept.append(shard)
        except ValueError as error:
            rejected.append(f"{shard.file} does not fit the shards before it ({error}); move it elsewhere")
    return kept, suite


def _empty(shape: list[int]) -> Suite:
    x, none = LazyRows([torch.empty(0, *shape)]), torch.empty(0, dtype=torch.int64)
    method = np.array([], dtype=np.str_)
    return Suite(rows=x, label=none, seed=none, prediction=none, method=method, pool=SeedPool(x, none, none))
