"""Cases as columns, in memory and on disk."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from operant._shards import FORMAT, Column, Strings, digest, pack, read_shard, unpack, write_shard
from operant.data import Samples, row_index
from operant.results import write_atomically

ROWS_PER_SHARD = 4096


class Rows:
    """Cases that may still be on disk: `take` reads only what is asked for."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self.parts = tuple(parts)

    def all(self) -> Tensor:
        if len(self.parts) > 1:
            self.parts = (torch.cat(self.parts),)
        return self.parts[0]

    def take(self, rows: Tensor) -> Tensor:
        ends = torch.tensor([len(p) for p in self.parts]).cumsum(0)
        rows = torch.where(rows < 0, rows + ends[-1], rows)
        place = torch.bucketize(rows, ends, right=True)
        out = torch.empty((len(rows), *self.parts[0].shape[1:]), dtype=self.parts[0].dtype)
        for i in place.unique().tolist():
            here = place == i
            out[here] = self.parts[i][rows[here] - int(ends[i]) + len(self.parts[i])]
        return out


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Suite:
    """Generated cases, one a row.

    Build one with `Suite.of`; read one with `Suite.open`. A case carries its seed's label and id; each seed's input is
    kept once. Further columns hold one float or short string a row: ``suite["fol"]``.

    Attributes:
        label: what the case should be, from its seed.
        seed: the id of the seed a case came from.
        prediction: what the model said in the fuzzer's final pass.
        method: how the case was made.
        columns: further columns by name.
        seeds: the seeds' inputs, each once.
        attempted: seeds the fuzzer worked on.
        skipped: seeds it did not (a targeted attack skips seeds of the target class).
        refused: damaged files that `open` left out, a sentence each.
    """

    rows: Rows
    label: Tensor
    seed: Tensor
    prediction: Tensor
    method: Strings
    seeds: Samples
    columns: Mapping[str, Column] = field(default_factory=dict)
    attempted: int = 0
    skipped: int = 0
    refused: tuple[str, ...] = ()

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
        """A suite from cases and the rows of ``seeds`` they started from.

        Args:
            x: cases ``(N, *shape)``.
            seeds: labelled seeds.
            origin: for each case, its seed's row in ``seeds``.
            prediction: the model's answer for each case.
            method: one word for all cases, or one each.
            columns: further columns, one value a case.
            skipped: how many of the seeds were not worked on.
        """
        n = len(x)
        if x.shape[1:] != seeds.shape or len(origin) != n or len(prediction) != n:
            raise ValueError(
                f"cases, origins and predictions must match: got {tuple(x.shape)}, {len(origin)} and {len(prediction)} "
                f"for seeds of shape {tuple(seeds.shape)}"
            )
        origin = origin.cpu()
        used = origin.unique()
        return Suite(
            rows=Rows([x.detach().cpu().contiguous()]),
            label=seeds.labels.cpu()[origin],
            seed=seeds.ids[origin],
            prediction=prediction.cpu().long(),
            method=np.array([method] * n if isinstance(method, str) else method, dtype=np.str_),
            seeds=_each_once(Samples(seeds.x.detach().cpu()[used], seeds.labels.cpu()[used], seeds.ids[used])),
            columns={name: _column(name, values, n) for name, values in (columns or {}).items()},
            attempted=len(seeds) - skipped,
            skipped=skipped,
        )

    def __len__(self) -> int:
        return len(self.label)

    def __repr__(self) -> str:
        columns = f", columns {', '.join(self.columns)}" if self.columns else ""
        failing = int((self.prediction != self.label).sum())
        return f"Suite({len(self)} cases from {len(self.seeds)} seeds, {failing} failures{columns})"

    def __getitem__(self, key: Any) -> Any:
        """A column by name, or the suite of the rows chosen by slice, mask or positions."""
        if isinstance(key, str):
            if key not in self.columns:
                raise KeyError(f"no column named {key}; this suite has {', '.join(self.columns) or 'none'}")
            return self.columns[key]
        rows = row_index(key, len(self))
        return replace(
            self,
            rows=Rows([self.rows.take(rows)]),
            label=self.label[rows],
            seed=self.seed[rows],
            prediction=self.prediction[rows],
            method=self.method[rows.numpy()],
            columns={
                name: values[rows if isinstance(values, Tensor) else rows.numpy()]
                for name, values in self.columns.items()
            },
            seeds=self.seeds[torch.isin(self.seeds.ids, self.seed[rows])],
        )

    @property
    def x(self) -> Tensor:
        """The cases ``(N, *shape)``; read from disk when first asked for."""
        return self.rows.all()

    @property
    def x0(self) -> Tensor:
        """Each case's seed, row by row."""
        order = self.seeds.ids.argsort()
        return self.seeds.x[order[torch.searchsorted(self.seeds.ids[order], self.seed)]]

    def failures(self) -> Suite:
        """The cases that the model got wrong."""
        failing: Suite = self[self.prediction != self.label]
        return failing

    def samples(self) -> Samples:
        """The cases as labelled inputs, to retrain with."""
        return Samples(self.x, self.label)

    def distances(self, norm: str) -> Tensor:
        """How far each case is from its seed, in ``"linf"`` or ``"l2"``."""
        if norm not in ("linf", "l2"):
            raise ValueError(f'norm must be "linf" or "l2", got {norm!r}')
        difference = (self.x - self.x0).flatten(1)
        return difference.abs().amax(1) if norm == "linf" else difference.norm(dim=1)

    def with_columns(self, **columns: Any) -> Suite:
        """The same suite with further columns (a name that exists is replaced)."""
        new = {name: _column(name, values, len(self)) for name, values in columns.items()}
        return replace(self, columns={**self.columns, **new})

    @staticmethod
    def concat(suites: Sequence[Suite]) -> Suite:
        """All rows in order. A column some suite lacks is filled there with NaN, or with the empty string."""
        if not suites:
            raise ValueError("nothing to join: concat needs at least one suite")
        if len({s.seeds.shape for s in suites}) > 1:
            raise ValueError(f"suites must share one input shape, got {[tuple(s.seeds.shape) for s in suites]}")
        names = dict.fromkeys(name for s in suites for name in s.columns)
        return Suite(
            rows=Rows([part for s in suites for part in s.rows.parts]),
            label=torch.cat([s.label for s in suites]),
            seed=torch.cat([s.seed for s in suites]),
            prediction=torch.cat([s.prediction for s in suites]),
            method=np.concatenate([s.method for s in suites]),
            seeds=_each_once(Samples.concat([s.seeds for s in suites])),
            columns={name: _joined(name, suites) for name in names},
            attempted=sum(s.attempted for s in suites),
            skipped=sum(s.skipped for s in suites),
            refused=tuple(sentence for s in suites for sentence in s.refused),
        )

    def digest(self) -> str:
        """A hash of everything in the suite: equal digests, equal suites, bit for bit."""
        tensors, words = self._packed()
        return digest(tensors, json.dumps(words, sort_keys=True))

    def save(self, path: str | Path) -> Path:
        """Write the suite to a new folder, in shards of a few thousand rows."""
        path = Path(path)
        if path.exists() and any(path.iterdir()):
            raise ValueError(f"{path} already holds files; choose a new folder, or use append_to")
        for start in range(0, max(len(self), 1), ROWS_PER_SHARD):
            part: Suite = self[start : start + ROWS_PER_SHARD]
            (part if start == 0 else replace(part, attempted=0, skipped=0)).append_to(path)
        return path

    def append_to(self, path: str | Path) -> Path:
        """Add these rows to a suite on disk as one shard: there whole once this returns, absent before."""
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        shape = list(self.seeds.shape)
        if not (path / "manifest.json").exists():
            write_atomically(path / "manifest.json", json.dumps({"suite": FORMAT, "shape": shape}).encode() + b"\n")
        if (known := _manifest(path)["shape"]) != shape:
            raise ValueError(f"{path} holds cases of shape {tuple(known)}, these have {tuple(shape)}")
        numbers = [int(m[1]) for p in path.iterdir() if (m := re.fullmatch(r"shard-(\d+)\.safetensors", p.name))]
        file = path / f"shard-{max(numbers, default=-1) + 1:06d}.safetensors"
        write_shard(file, *self._packed())
        return file

    @staticmethod
    def open(path: str | Path) -> Suite:
        """Read a suite; the cases themselves stay on disk until they are asked for.

        A damaged or foreign file is left out with a warning that names it, and stands in `refused`.
        """
        refused: list[str] = []
        suites = [suite for _, suite in _shards(Path(path), refused)]
        if not suites:
            raise ValueError(f"{path} has no readable shard: {'; '.join(refused) or 'none was finished'}")
        for sentence in refused:
            warnings.warn(f"left out: {sentence}", stacklevel=2)
        return replace(Suite.concat(suites), refused=tuple(refused))

    def _packed(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {"x": self.x, "label": self.label, "seed": self.seed, "prediction": self.prediction}
        tensors |= {"seeds.x": self.seeds.x, "seeds.y": self.seeds.labels, "seeds.ids": self.seeds.ids}
        columns, vocabulary = pack({"method": self.method, **self.columns})
        words = {"vocabulary": vocabulary, "attempted": self.attempted, "skipped": self.skipped}
        return {name: values.contiguous() for name, values in (tensors | columns).items()}, words


def add_columns(path: str | Path, **columns: Any) -> None:
    """Give a suite on disk further columns, one value for each row that `Suite.open` shows; the newest wins.

    Each shard gets a sidecar file; no file is ever rewritten.
    """
    shards = _shards(Path(path), [])
    total = sum(len(suite) for _, suite in shards)
    checked = {name: _column(name, values, total) for name, values in columns.items()}
    start = 0
    for file, suite in shards:
        rows = slice(start, start + len(suite))
        tensors, vocabulary = pack({name: values[rows] for name, values in checked.items()})
        number = len(list(file.parent.glob(f"{file.stem}.columns-*.safetensors")))
        sidecar = file.with_name(f"{file.stem}.columns-{number:06d}.safetensors")
        write_shard(sidecar, tensors, {"vocabulary": vocabulary})
        start += len(suite)


def _shards(path: Path, refused: list[str]) -> list[tuple[Path, Suite]]:
    """Every readable shard with its sidecars; what could not be read is told in ``refused``."""
    _manifest(path)
    found = []
    for file in sorted(path.glob("shard-??????.safetensors")):
        try:
            suite = _read(file)
        except ValueError as error:
            refused.append(str(error))
            continue
        for sidecar in sorted(path.glob(f"{file.stem}.columns-*.safetensors")):
            try:
                tensors, words = read_shard(sidecar)
                suite = suite.with_columns(**unpack(tensors, words["vocabulary"]))
            except ValueError as error:
                refused.append(str(error))
        found.append((file, suite))
    return found


def _read(file: Path) -> Suite:
    tensors, words = read_shard(file)
    columns = unpack(tensors, words["vocabulary"])
    method = columns.pop("method")
    assert not isinstance(method, Tensor)
    return Suite(
        rows=Rows([tensors["x"]]),
        label=tensors["label"],
        seed=tensors["seed"],
        prediction=tensors["prediction"],
        method=method,
        seeds=Samples(tensors["seeds.x"], tensors["seeds.y"], tensors["seeds.ids"]),
        columns=columns,
        attempted=words["attempted"],
        skipped=words["skipped"],
    )


def _manifest(path: Path) -> dict[str, Any]:
    file = path / "manifest.json"
    if not file.exists():
        raise ValueError(f"{path} is not a suite: it has no manifest.json; give the folder that Suite.save wrote")
    try:
        page = json.loads(file.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError):
        page = None
    if not isinstance(page, dict) or page.get("suite") != FORMAT:
        raise ValueError(f"{file} is not the manifest of a format-{FORMAT} suite; move the folder elsewhere")
    return page


def _each_once(seeds: Samples) -> Samples:
    """Every seed once, in the order of first appearance."""
    ids, inverse = seeds.ids.unique(return_inverse=True)
    first = torch.full((len(ids),), len(seeds)).scatter_reduce(0, inverse, torch.arange(len(seeds)), "amin")
    return seeds[first.sort().values]


def _column(name: str, values: Any, n: int) -> Column:
    """One column, checked: strings as they are, every number as a float."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.shape != (n,):
        raise ValueError(f"column {name} must hold one value for each of {n} rows, got shape {array.shape}")
    if array.dtype.kind in "US":
        return array.astype(np.str_)
    return torch.as_tensor(array if array.dtype.kind == "f" else array.astype(np.float64))


def _joined(name: str, suites: Sequence[Suite]) -> Column:
    kinds = {isinstance(s.columns[name], Tensor) for s in suites if name in s.columns}
    if len(kinds) > 1:
        raise ValueError(f"column {name} holds numbers in one suite and strings in another; rename one of them")
    if kinds == {True}:
        return torch.cat([torch.as_tensor(s.columns.get(name, torch.full((len(s),), torch.nan))) for s in suites])
    return np.concatenate([np.asarray(s.columns.get(name, np.full(len(s), ""))) for s in suites])
