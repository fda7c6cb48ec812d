"""Valid files of every format that the package reads, and random changes to them; shared by `test_fuzzed_files.py`.

Run as a script, it is the child process that reads changed files: ``file_fuzzing.py FOLDER READER FIRST COUNT``. It
prints every file before reading it, so that the last line names the file that ended it.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import re
import resource
import signal
import socket
import struct
import sys
import tempfile
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from scipy.io import savemat
from torch import Tensor, nn

from operant import Classifier, Samples, results, spawn
from operant.campaign.config import load_config
from operant.campaign.init import search_folder
from operant.campaign.records import CampaignInfo, Round
from operant.cli.assess import _read_history
from operant.conditions import Recipe, normal, uniform
from operant.data import load, read_samples
from operant.data.formats import (
    pictures_in,
    read_cifar_binary,
    read_cifar_python,
    read_idx,
    read_image_folder,
    read_npz,
    read_pictures,
    read_svhn,
)
from operant.data.groups import with_groups
from operant.data.label_files import labels_from_npz, labels_from_table
from operant.data.label_folder import LabelFolder, LabelsMissing, classes_in
from operant.execution.round_state import LabelBatch
from operant.execution.run_folder import RunFolder
from operant.model.hashing import fingerprint
from operant.networks import load_weights, save_weights
from operant.profile import load_profile
from operant.profile.fit_conditions import FittedConditions, Parameter
from operant.report import gather, load_evidence
from operant.retrain import Finetune
from operant.retrain._checkpoint import _digest as checkpoint_digest
from operant.suite import Suite, add_columns, open_with_index, shards
from operant.suite.verdicts import _checksum
from operant.triage.sampling import valid_share
from operant.triage.verdicts import VerdictStore
from report_folder import FINDING, SETTINGS, campaign_folder, classifier, failures

MAX_MEMORY = 2**30  # bytes above what the process needs before it reads
MAX_SECONDS = 10  # of processor time; a busy machine is slow
MAX_WAIT = 120  # seconds in all, for a reader that blocks
Random = random.Random
Change = Callable[[bytes, Random], bytes]

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (3, 8, 8), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
FIELD = Samples(torch.from_numpy(GREY).float().unsqueeze(1) / 255, torch.tensor([0, 1, 2]))
NAMED = replace(FIELD, names=("monday/0001.png", "monday/0002.png", "tuesday/0001.png"))


# Changes to bytes ----------------------------------------------------------------------------------------------------

SIZES = (0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)


def flip(content: bytes, r: Random) -> bytes:
    """Some bits changed."""
    changed = bytearray(content)
    for _ in range(r.choice((1, 1, 2, 8)) if content else 0):
        changed[place(content, r)] ^= 1 << r.randrange(8)
    return bytes(changed)


def cut(content: bytes, r: Random) -> bytes:
    return content[: r.randrange(len(content) + 1)]


def double(content: bytes, r: Random) -> bytes:
    """A part of the file twice."""
    start, end = sorted(place(content, r) for _ in range(2))
    return content[:end] + content[start:end] * r.choice((1, 1, 50)) + content[end:]


def insert(content: bytes, r: Random) -> bytes:
    n, at = r.choice((1, 4, 8, 64, 4096)), place(content, r)
    return content[:at] + r.choice((bytes(n), b"\xff" * n, r.randbytes(n))) + content[at:]


def remove(content: bytes, r: Random) -> bytes:
    at = place(content, r)
    return content[:at] + content[at + r.choice((1, 4, 8, 64)) :]


def number(content: bytes, r: Random) -> bytes:
    """Another number in a header: 1, 2, 4 or 8 bytes at a multiple of their size, in either byte order."""
    width = r.choice((1, 2, 4, 8))
    at = place(content, r) // width * width
    value = r.choice((*SIZES, r.getrandbits(8 * width))) % 2 ** (8 * width)
    return content[:at] + value.to_bytes(width, r.choice(("little", "big"))) + content[at + width :]


def digits(content: bytes, r: Random) -> bytes:
    """Another number in a text."""
    found = list(re.finditer(rb"\d+", content[:20000]))
    if not found:
        return flip(content, r)
    one = r.choice(found)
    new = r.choice((b"0", b"-1", b"1e999", b"NaN", b"9" * 20, b"9" * 5000, b"%d" % r.choice(SIZES)))
    return content[: one.start()] + new + content[one.end() :]


def place(content: bytes, r: Random) -> int:
    """A position in the file, half of the time near its start or its end, where headers are."""
    near = min(len(content), 200)
    at = r.choice((r.randrange(near + 1), len(content) - r.randrange(near + 1), *(r.randrange(len(content) + 1),) * 2))
    return min(at, max(len(content) - 1, 0))


BYTES: tuple[Change, ...] = (flip, cut, double, insert, remove, number, digits)


def any_of(*changes: Change) -> Change:
    return lambda content, r: r.choice(changes)(content, r)


any_bytes = any_of(*BYTES)


# Changes to text -----------------------------------------------------------------------------------------------------

DEEP = "[" * 100_000
NEW_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 10**30, -(10**30), 2**31, 0.5, float("inf"), float("-inf"), float("nan"), "", "x",
    "\ud800", "\0", "../../x", [], {}, [None], [[]], [0, 0], {"a": 1}, "3", DEEP,
)  # fmt: skip


def change_json(content: bytes, r: Random) -> bytes:
    """Another value, key or list in a JSON file, which stays JSON."""
    page = json.loads(content)
    holders = list(_holders(page))
    if not holders:
        return json.dumps(r.choice(NEW_VALUES)).encode()
    for _ in range(r.choice((1, 1, 3))):
        holder = r.choice(holders)
        if not holder:
            continue
        key = r.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        how = r.randrange(6)
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder, dict):
            holder[r.choice(("", "x", "shape", *map(str, holder)))] = holder.pop(key)
        elif how == 2 and isinstance(holder, list):
            holder.append(holder[key])
        else:
            holder[key] = r.choice(NEW_VALUES)
    text = json.dumps(page if r.random() > 0.02 else r.choice(NEW_VALUES))
    return text.replace(f'"{DEEP}"', DEEP).encode()


def _holders(page: Any) -> Iterator[Any]:
    """The lists and dicts in a value."""
    if isinstance(page, dict | list):
        yield page
        for value in page.values() if isinstance(page, dict) else page:
            yield from _holders(value)


TOML_VALUES = (
    "nan", "inf", "-inf", "-1", "0", "1e999", "9" * 5000, '""', '"x"', "[]", "{}", "true", "1979-05-27", "[1, [2]]",
    "{a = 1}", "[" * 5000 + "]" * 5000, "{a = " * 300 + "1" + "}" * 300, "[" * 400 + "]" * 400,
    '"\\u0000"', "10000000000",
)  # fmt: skip


def change_toml(content: bytes, r: Random) -> bytes:
    """Another value or line in a TOML file, or another encoding."""
    lines = content.decode().splitlines()
    at, how = r.randrange(len(lines)), r.randrange(5)
    if how == 0:
        lines.insert(at, r.choice(lines))
    elif how == 1:
        del lines[at]
    elif how == 2 and r.random() < 0.2:
        return content.decode().encode(r.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig")))
    else:
        lines[at] = f"{lines[at].partition('=')[0]}= {r.choice(TOML_VALUES)}"
    return "\n".join(lines).encode()


# Changes inside a checksum -------------------------------------------------------------------------------------------


def inside_gzip(content: bytes, r: Random) -> bytes:
    return gzip.compress(any_bytes(gzip.decompress(content), r), 1)


def inside_zip(content: bytes, r: Random) -> bytes:
    """An npz file whose arrays are changed, with correct checksums."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = r.choice(list(parts))
    parts[name] = any_bytes(parts[name], r)
    file = io.BytesIO()
    kinds = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
    with zipfile.ZipFile(file, "w", r.choice(kinds)) as archive:
        for part, values in parts.items():
            archive.writestr(r.choice((part, part, "z.npy", "")) or "x", values)
    return file.getvalue()


def inside_mat(content: bytes, r: Random) -> bytes:
    """A MATLAB file whose elements are changed and compressed again."""
    size = int.from_bytes(content[132:136], "little")
    first = zlib.compress(any_bytes(zlib.decompress(content[136 : 136 + size]), r))
    return content[:132] + len(first).to_bytes(4, "little") + first + content[136 + size :]


def inside_png(content: bytes, r: Random) -> bytes:
    """A PNG file with changed chunks and correct checksums."""
    chunks, at = [], 8
    while at < len(content):
        size = int.from_bytes(content[at : at + 4], "big")
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + size]))
        at += 12 + size
    i = r.randrange(len(chunks))
    chunks[i] = (chunks[i][0], any_bytes(chunks[i][1], r))
    packed = [struct.pack(">I", len(v)) + kind + v + struct.pack(">I", zlib.crc32(kind + v)) for kind, v in chunks]
    return content[:8] + b"".join(packed)


def change_header(content: bytes, r: Random) -> bytes:
    """A safetensors file with another JSON header of the correct length."""
    size = int.from_bytes(content[:8], "little")
    header = change_json(content[8 : 8 + size], r)
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def change_tensors(tensors: dict[str, Tensor], r: Random) -> None:
    """Remove, convert, reshape or change one of the tensors."""
    name = r.choice(list(tensors))
    old = tensors[name]
    if (how := r.randrange(6)) == 0:
        del tensors[name]
    elif how == 1:
        kinds = (torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64)
        tensors[name] = old.to(r.choice((*kinds, torch.float64, torch.float8_e5m2)))
    elif how == 2:
        flat = old.reshape(-1)
        tensors[name] = r.choice((flat, old[None], flat[:1], flat[:0], flat[:1].sum()))
    elif how == 3:
        tensors[r.choice(("column.x", "column.method", "z", *tensors))] = old.clone()
    elif how == 4:
        tensors[name] = torch.full_like(old, r.choice((0, -1, 1, 2**30))) if old.dtype != torch.bool else ~old
    elif old.is_floating_point():
        tensors[name] = torch.full_like(old, r.choice((float("nan"), float("inf"))))
    else:
        tensors[name] = old.flip(0) if old.ndim else old + 1


def inside_shard(content: bytes, r: Random) -> bytes:
    """A file of a suite with other tensors or words, and the digest that belongs to them."""
    size = int.from_bytes(content[:8], "little")
    metadata, tensors = json.loads(content[8 : 8 + size])["__metadata__"], load_tensors(content)
    if r.random() < 0.5:
        change_tensors(tensors, r)
    else:
        metadata["words"] = change_json(metadata["words"].encode(), r).decode()
    apart = {name: values.clone() for name, values in tensors.items()}
    return bytes(save_tensors(apart, metadata | {"digest": shards.digest(apart, metadata["words"])}))


def inside_weights(content: bytes, r: Random) -> bytes:
    tensors = load_tensors(content)
    change_tensors(tensors, r)
    return bytes(save_tensors({name: values.clone() for name, values in tensors.items()}))


def inside_log(content: bytes, r: Random) -> bytes:
    """A log of verdicts with a changed line and its checksum."""
    lines = content.split(b"\n")[:-1]
    at = r.randrange(len(lines))
    text = change_json(lines[at].partition(b" ")[2], r)
    lines[at] = _checksum(text) + b" " + text
    return b"\n".join([*lines, b""])


# Readers -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How to write a folder with a valid file, how to change the file, and how to read the folder.

    Attributes:
        file: the file to change, below the folder.
        after: called with the folder after a change, to write the checksums that are in other files.
        named: whether a message must name the file; False where one file can only contradict another.
    """

    write: Callable[[Path], object]
    file: str
    read: Callable[[Path], object]
    change: Change = any_bytes
    after: Callable[[Path], object] = lambda _: None
    named: bool = True


def put(file: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_bytes(content)


def of_file(read: Callable[[Path], object], file: str) -> Callable[[Path], object]:
    return lambda folder: read(folder / file)


def idx(array: np.ndarray[Any, Any]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def cifar(protocol: int) -> bytes:
    return pickle.dumps({b"labels": [3, 4], b"data": COLOUR.reshape(2, -1), b"filenames": [b"a", b"b"]}, protocol)


def mat(**options: Any) -> bytes:
    file = io.BytesIO()
    savemat(file, {"X": COLOUR.transpose(1, 2, 3, 0), "y": np.array([[1], [10]]), "more": "text"}, **options)
    return file.getvalue()


def picture(kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(COLOUR[0]).save(file, kind, **options)
    return file.getvalue()


def write_pictures(name: str, content: bytes, folder: Path) -> None:
    for label in ("cat", "dog"):
        (folder / label).mkdir(exist_ok=True)
        (folder / label / name).write_bytes(content)


def pictures(kind: str, change: Change = any_bytes, **options: Any) -> Reader:
    name = f"x.{kind.lower()}"
    write = partial(write_pictures, name, picture(kind, **options))

    def read(folder: Path) -> None:
        read_pictures(pictures_in(folder / "cat"))
        read_image_folder(folder, size=(4, 4))

    return Reader(write=write, file=f"cat/{name}", read=read, change=change)


def write_labels(folder: Path, inputs: Samples = FIELD) -> None:
    try:
        LabelFolder(folder=folder, classes=3, names=("a", "b", "c"))(inputs)
    except LabelsMissing:
        table = folder / "labels.csv"
        table.write_text(re.sub(",$", ",1", table.read_text(), flags=re.MULTILINE))


def read_labels(folder: Path) -> None:
    """A request for labels, through every reader of the table."""
    request(LabelFolder(folder=folder, classes=3))
    names = {f"a/{row}.png": i for row, i in enumerate(FIELD.ids.tolist())}
    for class_names in ((), ("a", "b", "c"), ("1", "2", "3")):
        request(labels_from_table(folder / "labels.csv", classes=3, names=names, class_names=class_names))


def read_named_labels(folder: Path) -> None:
    labels = LabelFolder(folder=folder, classes=3)
    outside = set(folder.parent.rglob("*")) - set(folder.rglob("*"))
    request(labels, NAMED)
    labels.stored(NAMED.ids)
    labels.files()
    assert set(folder.parent.rglob("*")) - set(folder.rglob("*")) == outside, "it wrote outside its folder"


def request(labeller: Callable[[Samples], object], inputs: Samples = FIELD) -> None:
    """That labels are missing is a correct answer."""
    with suppress(LabelsMissing):
        labeller(inputs)


def copies(write: Callable[[Path], None]) -> Callable[[Path], None]:
    """The same writer, which computes its files once per process."""

    @cache
    def made() -> dict[str, bytes]:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder))
            return {str(file.relative_to(folder)): content for file, content in contents(Path(folder)).items()}

    def copy(folder: Path) -> None:
        for name, content in made().items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    return copy


def with_names(suite: Suite) -> Suite:
    """The suite with names of its seeds and classes."""
    names = tuple(f"seeds/{i}.png" for i in range(len(suite.pool.ids)))
    return replace(suite, pool=replace(suite.pool, names=names), classes=("ant", "bee", "cat", "dog"))


@copies
def write_suite(folder: Path) -> None:
    made = with_names(failures(8))
    made[:5].save(folder / "suite")
    made[5:].append_to(folder / "suite")
    add_columns(folder / "suite", score=torch.arange(8), word=list("abcdefgh"))
    suite, known = open_with_index(folder / "suite")
    store = VerdictStore(folder / "suite", suite, known, plan={"of": "all", "n": 4})
    for row, verdict in enumerate(("valid", "invalid", "unsure", "valid")):
        store.mark(row, "Ada", verdict, ("blurred",) * (row % 2))


def read_suite(folder: Path) -> None:
    suite = Suite.open(folder / "suite")
    assert len(suite.x) == len(suite.x0) == len(suite.seed)
    assert len(suite.rejected) == len([*suite.rejected])
    repr(suite)
    suite.digest()
    suite.failures().samples()
    assert len(suite.seeds) == len(suite.pool.ids)
    assert len(suite.seed_names) == len(suite)
    valid_share(folder / "suite")


def suite_file(file: str, *changes: Change) -> Reader:
    return Reader(write=write_suite, file=f"suite/{file}", read=read_suite, change=any_of(any_bytes, *changes))


@copies
def write_run(folder: Path) -> None:
    campaign_folder(folder / "run", n=10, observers=())
    (folder / "run" / "timing.jsonl").write_text('{"info.json": 0.5}\n{"round-000/suite": 2.25}\n')
    holder = {"pid": 2**30, "host": socket.gethostname(), "started": "never"}
    (folder / "run" / "lock").write_text(json.dumps(holder))


def read_run(folder: Path) -> None:
    """Every step of the run, as a resumed campaign reads it."""

    def missing() -> Any:
        raise ValueError(f"a step is missing in {folder}")

    with RunFolder(folder / "run", signature=SETTINGS) as run:
        run.step("info", CampaignInfo, missing)
        run.cached("round-000/profile.json", missing, save=lambda *_: None, load=load_profile)
        for number in (0, 1):
            run.step(f"round-{number:03d}/labels-000", LabelBatch, missing)
            str(run.step(f"round-{number:03d}/round", Round, missing))
        run.suite("round-001/cases", missing)
        run.weights("round-001/weights", classifier(), missing)
        run.times()
        run.digest()


def read_report(folder: Path) -> None:
    gather(folder / "run")


def seal(file: str, folder: Path) -> None:
    """Write the seal that belongs to a changed step."""
    main = folder / "run" / file
    path = main.with_name(f".{main.name}.seal")
    page = json.loads(path.read_bytes())
    page["files"][main.name] = fingerprint(main)
    path.write_text(json.dumps(page))


def run_file(file: str, *changes: Change, sealed: bool = False) -> Reader:
    after = partial(seal, file) if sealed else lambda _: None
    change = any_of(*changes) if sealed else any_of(any_bytes, *changes)
    return Reader(write=write_run, file=f"run/{file}", read=read_run, change=change, after=after)


def report_file(file: str, change: Change) -> Reader:
    """A step as `operant report` reads it: without its seal, so that its values may contradict other files."""
    return Reader(write=write_run, file=f"run/{file}", read=read_report, change=change, named=False)


def write_evidence(folder: Path) -> None:
    write_run(folder)
    results.save(gather(folder / "run"), folder / "report.json")


def write_profile(folder: Path) -> None:
    write_run(folder)
    results.save(load_stored(folder / "run" / "round-000" / "profile.json"), folder / "profile.json")


def load_stored(path: Path) -> Any:
    from operant.profile.fitting import _StoredProfile

    return results.load(path, _StoredProfile)


def rename_tensors(folder: Path) -> None:
    """Give a changed file of tensors the name that its content demands, and write that name into the JSON file."""
    file = next(folder.glob("profile.json.*.safetensors"))
    renamed = f"profile.json.{results._hash(file.read_bytes())}.safetensors"
    file.rename(folder / renamed)
    page = json.loads((folder / "profile.json").read_bytes())
    (folder / "profile.json").write_text(json.dumps(page | {"tensors": renamed}))


def write_profile_with_plain_name(folder: Path) -> None:
    """`rename_tensors` expects one file of tensors, whose name is free to change."""
    write_profile(folder)
    file = next(folder.glob("profile.json.*.safetensors"))
    file.rename(folder / "profile.json.tensors.safetensors")


@copies
def write_conditions(folder: Path) -> None:
    write_run(folder)
    with RunFolder(folder / "run" / "conditions", signature=SETTINGS) as run:
        run.step("estimated", FittedConditions, lambda: CONDITIONS)


CONDITIONS = FittedConditions(
    recipe=Recipe(severities={"rotation": normal(12), "blur": uniform(0, 1.5, absent=0.5)}),
    parameters=(Parameter(condition="rotation", name="std", value=12.0, lower=9.5, upper=15.0, limits=(0.0, 45.0)),),
    before=1.5, after=0.25, floor=0.125, floor_high=0.25, priors=(0.5, 0.5), confidence=0.95, findings=(FINDING,),
)  # fmt: skip


def read_conditions(folder: Path) -> None:
    """As a resumed campaign reads them, and as the report does."""

    def missing() -> FittedConditions:
        raise ValueError(f"the conditions are missing in {folder}")

    with RunFolder(folder / "run" / "conditions", signature=SETTINGS) as run:
        found = run.step("estimated", FittedConditions, missing)
    str(found)
    found.recipe.draw(5, generator=spawn(0))
    gather(folder / "run")


def read_history(folder: Path) -> None:
    number, history = _read_history(folder, 50, 1)
    assert history[number] == [50, 1]
    assert all(len(entry) in (2, 3) and all(type(value) is int for value in entry) for entry in history)


ROWS = Samples(torch.rand(30, 3, generator=spawn(0, "rows")), torch.arange(30) % 4)


class Interrupted(Exception):
    """A retraining that stops after its first epoch."""


def retrain(folder: Path, on_epoch: Callable[[object], object] | None = None) -> None:
    torch.random.manual_seed(0)
    str(
        Finetune(epochs=2, batch_size=8, learning_rate=0.01, progress=False)(
            Classifier(network(), strict=True),
            ROWS[:10],
            ROWS[10:20],
            validation=ROWS[20:],
            max_drop=1.0,
            generator=spawn(0, "retraining"),
            checkpoint=folder / "state.safetensors",
            on_epoch=on_epoch,
        ).record
    )


@copies
def write_checkpoint(folder: Path) -> None:
    def stop(_: object) -> None:
        raise Interrupted

    with suppress(Interrupted):
        retrain(folder, stop)


def inside_checkpoint(content: bytes, r: Random) -> bytes:
    """The state of a retraining with other tensors or another history, and the digest that belongs to them."""
    size = int.from_bytes(content[:8], "little")
    metadata, tensors = json.loads(content[8 : 8 + size])["__metadata__"], load_tensors(content)
    if r.random() < 0.6:
        change_tensors(tensors, r)
    else:
        state = json.loads(metadata["state"])
        history = change_json(json.dumps(state["history"]).encode(), r)
        metadata["state"] = json.dumps(state | {"history": "HISTORY"}).replace('"HISTORY"', history.decode())
    apart = {name: values.clone() for name, values in tensors.items()}
    return bytes(save_tensors(apart, metadata | {"digest": checkpoint_digest(apart, metadata["state"])}))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def torch_file() -> bytes:
    file = io.BytesIO()
    torch.save(network().state_dict(), file)
    return file.getvalue()


def read_weights(folder: Path, file: str = "net.safetensors") -> None:
    module = load_weights(network(), folder / file)
    assert all(bool(values.isfinite().all()) for values in module.state_dict().values())


CONFIG = b"""[model]
module = "net.py:build"
weights = "net.safetensors"
bounds = [0.0, 1.0]
mean = 0.5
[data]
train = "train.npz"
field = ["field/*.npz", "more"]
size = [28, 28]
classes = ["a", "b"]
[labels]
folder = "to_label"
[requirement]
pmi = 0.01
[budget]
rounds = 3
[conditions]
rotation = {normal = 12, low = -30.0}
blur = {uniform = [0, 1.5], absent = 0.5}
[generate]
radii = [0.5, 1.0]
[retrain]
cap = 10
[run]
seed = 3
"""


def read_mnist(folder: Path) -> object:
    return load("mnist", folder)


def write_mnist(folder: Path) -> None:
    for prefix in ("train", "t10k"):
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(GREY))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.arange(3, dtype=np.uint8))))


IMAGES_AND_LABELS = npz(x=GREY, y=np.arange(3))
READERS: dict[str, Reader] = {
    "idx": Reader(write=put("a", idx(GREY)), file="a", read=of_file(read_idx, "a")),
    "idx gz": Reader(
        write=put("a", gzip.compress(idx(GREY))), file="a", read=of_file(read_idx, "a"),
        change=any_of(any_bytes, inside_gzip),
    ),
    "mnist": Reader(
        write=write_mnist, file="t10k-labels-idx1-ubyte.gz", read=read_mnist, change=any_of(any_bytes, inside_gzip)
    ),
    "npz": Reader(
        write=put("a.npz", npz(x=GREY, y=np.arange(3), z=np.ones((3, 2), dtype=">f8", order="F"))),
        file="a.npz", read=of_file(read_npz, "a.npz"), change=any_of(any_bytes, inside_zip),
    ),
    "samples": Reader(
        write=put("a.npz", IMAGES_AND_LABELS), file="a.npz",
        read=lambda folder: (read_samples(folder / "a.npz"), search_folder(folder)),
        change=any_of(any_bytes, inside_zip),
    ),
    "cifar python 2": Reader(write=put("a", cifar(2)), file="a", read=of_file(read_cifar_python, "a")),
    "cifar python 4": Reader(write=put("a", cifar(4)), file="a", read=of_file(read_cifar_python, "a")),
    "cifar binary": Reader(
        write=put("a", b"".join(bytes([3]) + c.tobytes() for c in COLOUR)), file="a",
        read=of_file(read_cifar_binary, "a"),
    ),
    "svhn": Reader(write=put("a", mat()), file="a", read=of_file(read_svhn, "a")),
    "svhn compressed": Reader(
        write=put("a", mat(do_compression=True)), file="a", read=of_file(read_svhn, "a"),
        change=any_of(any_bytes, inside_mat),
    ),
    "png": pictures("PNG", any_of(any_bytes, inside_png)),
    "jpeg": pictures("JPEG"),
    "jpeg progressive": pictures("JPEG", progressive=True),
    "tiff": pictures("TIFF"),
    "tiff lzw": pictures("TIFF", compression="tiff_lzw"),
    "tiff deflate": pictures("TIFF", compression="tiff_adobe_deflate"),
    "webp": pictures("WEBP", lossless=True),
    "bmp": pictures("BMP"),
    "ppm": pictures("PPM"),
    "label table": Reader(write=write_labels, file="labels.csv", read=read_labels),
    "label npz": Reader(
        write=put("a.npz", npz(x=GREY, y=np.arange(3))), file="a.npz",
        read=lambda folder: request(labels_from_npz(folder / "a.npz", classes=3)), change=any_of(any_bytes, inside_zip),
    ),
    "label classes": Reader(
        write=write_labels, file="classes.json", read=classes_in, change=any_of(any_bytes, change_json)
    ),
    "label inputs": Reader(
        write=partial(write_labels, inputs=NAMED), file="inputs.json", read=read_named_labels,
        change=any_of(any_bytes, change_json, change_json),
    ),
    "groups": Reader(
        write=put("groups.csv", b"file,group\nmonday/0001.png,a\n0002.png,a\ntuesday/0001.png,b\n"), file="groups.csv",
        read=lambda folder: with_groups(NAMED, folder / "groups.csv").split(a=0.5, b=0.5),
    ),
    "samples in groups": Reader(
        write=put("a.npz", npz(x=GREY, y=np.arange(3), groups=np.array(["a", "a", "b"]))), file="a.npz",
        read=lambda folder: read_samples(folder / "a.npz").split(a=0.5, b=0.5), change=any_of(any_bytes, inside_zip),
    ),
    "assessments": Reader(
        write=put("history.json", b"[[25, 0], [50, 0], [50, 1]]\n"), file="history.json",
        read=read_history, change=any_of(any_bytes, change_json, change_json),
    ),
    "retraining": Reader(
        write=write_checkpoint, file="state.safetensors", read=retrain,
        change=any_of(any_bytes, change_header, inside_checkpoint, inside_checkpoint, inside_checkpoint),
    ),
    "conditions": Reader(
        write=write_conditions, file="run/conditions/estimated.json", read=read_conditions,
        after=partial(seal, "conditions/estimated.json"), change=any_of(any_bytes, change_json, change_json),
    ),
    "suite manifest": suite_file("manifest.json", change_json, change_json),
    "suite shard": suite_file("shard-000001.safetensors", change_header, inside_shard, inside_shard, inside_shard),
    "suite columns": suite_file("columns-000000.safetensors", change_header, inside_shard, inside_shard, inside_shard),
    "suite verdicts": suite_file("verdicts-000000.jsonl", inside_log, inside_log),
    "run signature": run_file("run.json", change_json),
    "run lock": run_file("lock", change_json, change_json),
    "run timing": run_file("timing.jsonl"),
    "run seal": run_file("round-000/.round.json.seal", change_json),
    "run info": run_file("info.json", any_bytes, change_json, change_json, sealed=True),
    "run round": run_file("round-001/round.json", any_bytes, change_json, change_json, sealed=True),
    "run labels": run_file("round-000/labels-000.json", any_bytes, change_json, change_json, sealed=True),
    "run weights": run_file("round-001/weights.safetensors", any_bytes, change_header, inside_weights, sealed=True),
    "report of info": report_file("info.json", change_json),
    "report of round": report_file("round-001/round.json", change_json),
    "report of cases": report_file("round-001/cases/shard-000000.safetensors", inside_shard),
    "evidence": Reader(
        write=write_evidence, file="report.json", read=of_file(load_evidence, "report.json"),
        change=any_of(any_bytes, change_json, change_json),
    ),
    "profile": Reader(
        write=write_profile, file="profile.json", read=of_file(load_profile, "profile.json"),
        change=any_of(any_bytes, change_json, change_json),
    ),
    "profile tensors": Reader(
        write=write_profile_with_plain_name, file="profile.json.tensors.safetensors",
        read=of_file(load_profile, "profile.json"), after=rename_tensors,
        change=any_of(any_bytes, change_header, inside_weights, inside_weights),
    ),
    "weights": Reader(
        write=lambda folder: save_weights(network(), folder / "net.safetensors"), file="net.safetensors",
        read=read_weights, change=any_of(any_bytes, change_header, inside_weights),
    ),
    "weights of torch": Reader(
        write=put("net.pt", torch_file()), file="net.pt", read=partial(read_weights, file="net.pt")
    ),
    "weights of torch without suffix": Reader(
        write=put("net", torch_file()), file="net", read=partial(read_weights, file="net")
    ),
    "configuration": Reader(
        write=put("operant.toml", CONFIG), file="operant.toml", read=load_config,
        change=any_of(any_bytes, change_toml, change_toml),
    ),
}  # fmt: skip


# The child process ---------------------------------------------------------------------------------------------------


def problem(reader: Reader, folder: Path) -> str:
    """What is wrong with how a changed file was read; empty if nothing is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(folder)
    except (ValueError, OSError) as error:
        text = str(error)
        if (reader.named and str(folder) not in text) or len(text.split()) < 4:
            return f"the message is no sentence that names the file: {type(error).__name__}: {text:.300}"
        if "allocate" in text or "MemoryError" in text:
            return f"it needed more than {MAX_MEMORY} bytes: {text:.300}"
    except Exception:
        return traceback.format_exc()
    return ""


def fuzz(reader: Reader, folder: Path, original: dict[Path, bytes], r: Random) -> str:
    """Change the file, read it, and restore the folder; the problem, if there is one."""
    (folder / reader.file).write_bytes(reader.change(original[folder / reader.file], r))
    reader.after(folder)
    found = problem(reader, folder)
    restore(folder, original)
    return found


def pipe(reader: Reader, folder: Path, original: dict[Path, bytes]) -> str:
    """Replace the file by a pipe without a writer, from which a read would never return."""
    path = folder / reader.file
    path.unlink()
    os.mkfifo(path)
    found = problem(reader, folder)
    path.unlink(missing_ok=True)
    restore(folder, original)
    return found


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def restore(folder: Path, original: dict[Path, bytes]) -> None:
    now = contents(folder)
    for file in now.keys() - original.keys():
        file.unlink()
    for file, content in original.items():
        if now.get(file) != content:
            file.write_bytes(content)


def limit_memory() -> None:
    """Allow this process `MAX_MEMORY` bytes more than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MAX_MEMORY, most))


def main(place: str, names: str, first: int, count: int) -> None:
    """Fuzz some readers. A file's line is followed by its problem; a signal ends a reader that takes too long."""
    torch.set_num_threads(1)
    for name in names.split(","):
        reader, folder = READERS[name], Path(place, re.sub(r"\W", "-", name))
        folder.mkdir(parents=True)
        reader.write(folder)
        original = contents(folder)
        reader.after(folder)
        assert (found := problem(reader, folder)) == "", f"the valid file of {name} is refused: {found}"
        restore(folder, original)
        limit_memory()
        signal.alarm(MAX_WAIT)
        print(f"{name}, a pipe: {pipe(reader, folder, original) or 'ok'}", flush=True)
        for seed in range(first, first + count):
            print(f"{name}, seed {seed}:", end=" ", flush=True)
            signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
            signal.alarm(MAX_WAIT)
            print(fuzz(reader, folder, original, Random(f"{name}/{seed}")) or "ok", flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
