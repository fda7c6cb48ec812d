"""Laws of results: what is saved comes back as it was, and nothing else is taken for it."""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from operant.results import TEMPORARY, load, save, write_atomically

quick = settings(max_examples=50)


@dataclass(frozen=True, kw_only=True)
class Interval:
    low: float
    high: float
    confidence: float = 0.95


@dataclass(frozen=True, kw_only=True)
class Everything:
    name: str
    count: int
    ratio: float
    sure: bool
    norm: Literal["linf", "l2", 2]
    interval: Interval
    perhaps: Interval | None
    maybe: float | None
    values: Tensor
    maybe_values: Tensor | None
    pair: tuple[int, str]
    many: tuple[float, ...]
    nested: tuple[tuple[Interval, ...], ...]
    listed: list[Interval | None]
    sequence: Sequence[str]
    by_name: dict[str, float]
    by_class: dict[int, Tensor]
    deep: Mapping[str, dict[str, tuple[Tensor, ...]]]
    length: int = field(init=False, default=3)


def same(a: Any, b: Any) -> bool:
    """Equal in type and value, tensors bit for bit, NaN equal to NaN."""
    if type(a) is not type(b):
        return False
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b) if a == a else b != b
    return bool(a == b)


texts = st.text(max_size=5)
intervals = st.builds(Interval, low=st.floats(), high=st.floats(), confidence=st.floats(0, 1))
types = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.uint8])
tensors = st.builds(
    lambda shape, dtype, seed: (10 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    types,
    st.integers(0, 99),
)
everything = st.builds(
    Everything,
    name=st.text(),
    count=st.integers(),
    ratio=st.floats(),
    sure=st.booleans(),
    norm=st.sampled_from(["linf", "l2", 2]),
    interval=intervals,
    perhaps=st.none() | intervals,
    maybe=st.none() | st.floats(),
    values=tensors,
    maybe_values=st.none() | tensors,
    pair=st.tuples(st.integers(), texts),
    many=st.lists(st.floats(), max_size=3).map(tuple),
    nested=st.lists(st.lists(intervals, max_size=2).map(tuple), max_size=2).map(tuple),
    listed=st.lists(st.none() | intervals, max_size=2),
    sequence=st.lists(texts, max_size=3).map(tuple),
    by_name=st.dictionaries(texts, st.floats(), max_size=3),
    by_class=st.dictionaries(st.integers(), tensors, max_size=2),
    deep=st.dictionaries(
        st.sampled_from(["a", "a.b", ".", "é"]),
        st.dictionaries(st.sampled_from(["b", "b.c", "c"]), st.lists(tensors, max_size=2).map(tuple), max_size=3),
        max_size=3,
    ),
)


def small(**changes: Any) -> Everything:
    made = Everything(
        name="n",
        count=1,
        ratio=0.5,
        sure=True,
        norm="l2",
        interval=Interval(low=0.0, high=1.0),
        perhaps=None,
        maybe=None,
        values=torch.arange(6.0).reshape(2, 3),
        maybe_values=None,
        pair=(1, "a"),
        many=(),
        nested=(),
        listed=[],
        sequence=(),
        by_name={},
        by_class={},
        deep={},
    )
    return replace(made, **changes)


@quick
@given(everything)
def test_save_and_load_is_the_identity(result: Everything) -> None:
    with tempfile.TemporaryDirectory() as folder, mock.patch("os.fsync"):
        path = Path(folder) / "new" / "result.json"
        save(result, path)
        assert same(load(path, Everything), result)
        save(load(path, Everything), path)
        assert same(load(path, Everything), result)
        assert len(list(path.parent.iterdir())) == 2  # the page, its tensors, nothing left behind


@quick
@given(intervals)
def test_results_without_tensors_are_one_readable_page(result: Interval) -> None:
    with tempfile.TemporaryDirectory() as folder, mock.patch("os.fsync"):
        path = Path(folder) / "interval.json"
        save(result, str(path))
        assert same(load(str(path), Interval), result)
        page = json.loads(path.read_text(), parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
        assert page["format"] == 1
        assert page["type"] == "Interval"
        assert list(page["value"]) == ["low", "high", "confidence"]
        assert [p.name for p in path.parent.iterdir()] == ["interval.json"]


def test_values_come_back_as_declared(tmp_path: Path) -> None:
    """An int for a float, a list for a tuple, numpy's float and a parameter are taken for what the field says."""
    given_so = small(
        ratio=3,
        maybe=np.float64(2.5),
        many=[1, 2],
        listed=(None,),
        values=nn.Parameter(torch.rand(2, 3).T),
        by_name={"a": 1},
    )
    save(given_so, tmp_path / "r.json")
    back = load(tmp_path / "r.json", Everything)
    expected = small(
        ratio=3.0, maybe=2.5, many=(1.0, 2.0), listed=[None], values=given_so.values.detach(), by_name={"a": 1.0}
    )
    assert same(back, expected)
    assert not back.values.requires_grad


def test_tensors_that_share_memory_come_back(tmp_path: Path) -> None:
    x = torch.arange(6.0)
    result = small(values=x, maybe_values=x[2:], by_class={0: x, 1: x.expand(2, 6)})
    save(result, tmp_path / "r.json")
    assert same(load(tmp_path / "r.json", Everything), result)


def test_keys_with_dots_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    one, two, three = (torch.full((2,), float(i)) for i in range(3))
    result = small(deep={"a": {"b.c": (one,)}, "a.b": {"c": (two,)}, "": {"": (three,)}})
    save(result, tmp_path / "r.json")
    assert same(load(tmp_path / "r.json", Everything), result)


@dataclass(frozen=True)
class EitherOr:
    value: int | str | None


@dataclass(frozen=True)
class Loose:
    value: Any


@dataclass(frozen=True)
class LooseTuple:
    value: tuple  # type: ignore[type-arg]


@dataclass(frozen=True)
class ByTruth:
    value: dict[bool, int]


@dataclass(frozen=True, kw_only=True)
class Special(Interval):
    more: int = 0


UNFIT = {
    "a union": (EitherOr(3), "a field may hold one type or None"),
    "anything but JSON values": (Loose(3j), "value is declared typing.Any"),
    "a tuple of anything": (LooseTuple((3,)), "value is declared <class 'tuple'>"),
    "keys that are neither words nor numbers": (ByTruth({True: 1}), "value is declared dict[bool, int]"),
    "no dataclass": ({"a": 1}, "a result must be a dataclass, got {'a': 1}"),
    "a class": (Interval, "a result must be a dataclass"),
    "an array": (small(values=np.zeros(3)), "values is declared <class 'torch.Tensor'> and holds array"),
    "numpy's int": (small(count=np.int64(3)), "count is declared <class 'int'>"),
    "a truth for a number": (small(count=True), "count is declared <class 'int'> and holds True"),
    "a number for a truth": (small(sure=1), "sure is declared <class 'bool'> and holds 1"),
    "a word outside the list": (small(norm="l1"), "norm is declared"),
    "a number like a word in the list": (small(norm=2.0), "norm is declared"),
    "None": (small(ratio=None), "ratio is declared <class 'float'> and holds None"),
    "a word for a number": (small(ratio="inf"), "ratio is declared <class 'float'> and holds 'inf'"),
    "too many items": (small(pair=(1, "a", 2)), "has 2 items, got 3"),
    "an inner value": (small(interval=Interval(low="0", high=1.0)), "interval.low is declared"),
    "a subclass": (small(interval=Special(low=0.0, high=1.0)), "interval is declared"),
    "an inner item": (small(deep={"a": {"b": (torch.ones(1), 2)}}), "deep.a.b.1 is declared"),
    "number keys for words": (small(by_name={1: 2.0}), "by_name is declared"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_what_could_not_be_read_again_is_not_written(what: str, tmp_path: Path) -> None:
    result, sentence = UNFIT[what]
    path = tmp_path / "r.json"
    save(small(), path)
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises((TypeError, ValueError)) as error:
        save(result, path)
    assert sentence in str(error.value)
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Damage to the page itself."""

    def apply(path: Path) -> None:
        page = json.loads(path.read_text())
        change(page)
        path.write_text(json.dumps(page))

    return apply


def on_tensors(change: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Damage to the file of tensors."""
    return lambda path: change(next(path.parent.glob("*.safetensors")))


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_text(""),
    "cut": lambda path: path.write_text(path.read_text()[:-20]),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "too deep": lambda path: path.write_text("[" * 100_000),
    "a list": lambda path: path.write_text("[]"),
    "another type": edit(lambda page: page.update(type="Assessment")),
    "another format": edit(lambda page: page.update(format=2)),
    "no format": edit(lambda page: page.pop("format")),
    "no value": edit(lambda page: page.pop("value")),
    "a value of another kind": edit(lambda page: page.update(value=[1])),
    "a field too few": edit(lambda page: page["value"].pop("name")),
    "a field too many": edit(lambda page: page["value"].update(surprise=1)),
    "a computed field": edit(lambda page: page["value"].update(length=4)),
    "a word for a number": edit(lambda page: page["value"].update(ratio="high")),
    "a number in quotes": edit(lambda page: page["value"].update(ratio="0.5")),
    "a number for a word": edit(lambda page: page["value"].update(name=3)),
    "a float for an int": edit(lambda page: page["value"].update(count=1.5)),
    "a truth for an int": edit(lambda page: page["value"].update(count=True)),
    "nothing for a number": edit(lambda page: page["value"].update(ratio=None)),
    "a word outside the list": edit(lambda page: page["value"].update(norm="l1")),
    "a list for a dataclass": edit(lambda page: page["value"].update(interval=[0, 1])),
    "a dict for a tuple": edit(lambda page: page["value"].update(many={})),
    "an item too few": edit(lambda page: page["value"].update(pair=[1])),
    "a key that is no number": edit(lambda page: page["value"].update(by_class={"one": {"tensor": "values"}})),
    "an unknown tensor": edit(lambda page: page["value"].update(values={"tensor": "other"})),
    "a tensor without a name": edit(lambda page: page["value"].update(values={})),
    "no word of tensors": edit(lambda page: page.pop("tensors")),
    "tensors elsewhere": lambda path: (
        shutil.move(next(path.parent.glob("*.safetensors")), path.parent.parent),
        edit(lambda page: page.update(tensors="../" + page["tensors"]))(path),
    ),
    "tensors of no name": edit(lambda page: page.update(tensors=7)),
    "missing tensors": on_tensors(lambda file: file.unlink()),
    "empty tensors": on_tensors(lambda file: file.write_bytes(b"")),
    "truncated tensors": on_tensors(lambda file: file.write_bytes(file.read_bytes()[:-4])),
    "altered tensors": on_tensors(lambda file: file.write_bytes(file.read_bytes()[:-4] + b"\1\2\3\4")),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_file_is_rejected_by_name(what: str, tmp_path: Path) -> None:
    path = tmp_path / "results" / "r.json"
    save(small(), path)
    assert same(load(path, Everything), small())
    DAMAGE[what](path)
    with pytest.raises(ValueError, match="r.json is not a format-1 Everything: .*; (write|run the step that made) it"):
        load(path, Everything)


@quick
@given(st.integers(0, 10**6))
def test_a_page_cut_at_any_length_is_rejected(where: int) -> None:
    with tempfile.TemporaryDirectory() as folder, mock.patch("os.fsync"):
        path = Path(folder) / "r.json"
        save(small(), path)
        content = path.read_bytes().rstrip()
        path.write_bytes(content[: where % len(content)])
        with pytest.raises(ValueError, match="r.json is not a format-1 Everything"):
            load(path, Everything)


def test_another_type_is_named(tmp_path: Path) -> None:
    save(Interval(low=0.0, high=1.0), tmp_path / "r.json")
    with pytest.raises(ValueError, match="is not a format-1 Everything: it holds format 1 Interval; run the step"):
        load(tmp_path / "r.json", Everything)
    with pytest.raises(FileNotFoundError, match="nowhere.json"):
        load(tmp_path / "nowhere.json", Everything)


def test_only_the_tensors_of_the_result_itself_are_replaced(tmp_path: Path) -> None:
    """Neighbours with similar names keep their files, whatever signs the names hold."""
    names = ["r.json", "r", "r.result", "r[1].json", "r1.json", "other.r.json"]
    for i, name in enumerate(names):
        save(small(count=i, values=torch.full((2,), float(i))), tmp_path / name)
    foreign = tmp_path / "r.json.embedding123.safetensors"
    foreign.write_bytes(b"mine")
    for i, name in enumerate(names):
        save(small(count=-i, values=torch.full((3,), float(i))), tmp_path / name)
    for i, name in enumerate(names):
        assert same(load(tmp_path / name, Everything), small(count=-i, values=torch.full((3,), float(i))))
    assert foreign.read_bytes() == b"mine"
    assert len(list(tmp_path.iterdir())) == 2 * len(names) + 1
    save(small(values=torch.zeros(1), maybe_values=None), tmp_path / "r.json")
    assert len(list(tmp_path.glob("r.json.*.safetensors"))) == 2


@pytest.mark.parametrize("broken", ["os.replace", "os.fsync"])
def test_a_save_that_fails_leaves_the_old_result(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "r.json"
    save(small(), path)
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    with mock.patch(broken, side_effect=OSError("disk full")), pytest.raises(OSError, match="disk full"):
        save(small(count=2, values=torch.zeros(4)), path)
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_save_killed_between_its_files_leaves_the_old_result(tmp_path: Path) -> None:
    path, written = tmp_path / "r.json", []

    def dies_second(temporary: Path, final: Path) -> None:
        written.append(final)
        if len(written) == 2:
            raise KeyboardInterrupt
        os.rename(temporary, final)

    save(small(), path)
    with mock.patch("os.replace", dies_second), pytest.raises(KeyboardInterrupt):
        save(small(count=2, values=torch.zeros(4)), path)
    assert same(load(path, Everything), small())
    save(small(count=3, values=torch.zeros(5)), path)
    assert same(load(path, Everything), small(count=3, values=torch.zeros(5)))
    assert len(list(tmp_path.iterdir())) == 2  # what the killed save left is gone


def test_files_are_as_private_as_the_user_wants(tmp_path: Path) -> None:
    for mask in (0o022, 0o077):
        before = os.umask(mask)
        try:
            write_atomically(tmp_path / "file", b"content")
        finally:
            os.umask(before)
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~mask


def test_writing_over_a_file_can_be_ruled_out(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old", overwrite=False)
    with pytest.raises(FileExistsError):
        write_atomically(path, b"new", overwrite=False)
    assert path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_old_leftovers_are_swept(tmp_path: Path) -> None:
    old, young, foreign = (tmp_path / name for name in (f".a{TEMPORARY}", f".b{TEMPORARY}", ".c.tmp"))
    for file in (old, young, foreign):
        file.write_text("left")
    os.utime(old, (0, 0))
    os.utime(foreign, (0, 0))
    write_atomically(tmp_path / "file", b"")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([young.name, foreign.name, "file"])


def test_old_folders_are_their_owners_and_stop_nobody(tmp_path: Path) -> None:
    left = tmp_path / f".a{TEMPORARY}"
    left.mkdir()
    (left / "shard").write_text("half")
    os.utime(left, (0, 0))
    for name in ("one", "two"):
        write_atomically(tmp_path / name, name.encode())
        assert (tmp_path / name).read_text() == name
    assert (left / "shard").read_text() == "half"


def test_what_cannot_be_swept_stops_nobody(tmp_path: Path) -> None:
    left = tmp_path / f".a{TEMPORARY}"
    left.write_text("left")
    os.utime(left, (0, 0))
    unlink = Path.unlink

    def failing_unlink(path: Path, **options: bool) -> None:
        if path == left:
            raise PermissionError(13, "Permission denied")
        unlink(path, **options)

    with mock.patch.object(Path, "unlink", failing_unlink):
        write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


@dataclass(frozen=True)
class Page:
    values: dict[str, Any]


def test_values_declared_any_round_trip_if_json_has_them(tmp_path):
    page = Page({"a": [1, 2.5, None, "x"], "b": {"c": [True]}})
    save(page, tmp_path / "page.json")
    assert load(tmp_path / "page.json", Page) == page
    save(Page({"a": ((1, 2), 3)}), tmp_path / "page.json")
    assert load(tmp_path / "page.json", Page) == Page({"a": [[1, 2], 3]})  # tuples come back as lists
    for wrong in ({"a": float("nan")}, {"a": torch.ones(1)}, {"a": {3: 4}}):
        with pytest.raises(TypeError, match=r"values.a is declared typing.Any"):
            save(Page(wrong), tmp_path / "page.json")
