"""Laws of suites: rows and columns in memory, and what is on disk."""

import errno
import itertools
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from operant import results
from operant.data import Samples
from operant.rng import spawn
from operant.suite import Suite, add_columns, seed_pool, shards, verdicts
from operant.suite import suite as suite_module
from operant.suite.shards import LazyRows, read_file

SHAPES = [(3,), (1, 2, 2), (2, 3, 1, 2)]
TYPES = [torch.float16, torch.float32, torch.float64]
quick = settings(max_examples=25)
numbers = st.floats(width=32) | st.sampled_from([np.nan, np.inf, -np.inf, -0.0])
words = st.text(max_size=4)


def some_suite(
    n: int = 7,
    *,
    seed: int = 0,
    shape: Sequence[int] = (1, 2, 2),
    dtype: torch.dtype = torch.float32,
    n_seeds: int = 4,
    **columns: Any,
) -> Suite:
    """A suite of random cases; every seed after the first two appears twice among the seeds."""
    g = spawn(seed, "suite")
    x = torch.rand((n_seeds, *shape), generator=g).to(dtype)
    seeds = Samples(torch.cat([x, x[2:]]), torch.cat([torch.arange(n_seeds), torch.arange(n_seeds)[2:]]))
    origin = torch.randint(len(seeds), (n,), generator=g)
    return Suite.of(
        torch.rand((n, *shape), generator=g).to(dtype),
        seeds=seeds,
        origin=origin,
        prediction=torch.randint(3, (n,), generator=g),
        method=[f"m{i % 2}" for i in range(n)],
        columns=columns,
        skipped=1,
    )


@st.composite
def suites(draw: st.DrawFn, shape: Sequence[int] | None = None) -> Suite:
    """Suites of any size, shape and type, with up to three columns of any content."""
    n = draw(st.integers(0, 9))
    made = some_suite(
        n,
        seed=draw(st.integers(0, 2**32)),
        shape=shape or draw(st.sampled_from(SHAPES)),
        dtype=draw(st.sampled_from(TYPES)),
        n_seeds=draw(st.integers(1, 5)),
    )
    if draw(st.booleans()):
        dtype = draw(st.sampled_from(TYPES))
        made = made.with_columns(number=torch.tensor(draw(st.lists(numbers, min_size=n, max_size=n)), dtype=dtype))
    if draw(st.booleans()) and n:
        made = made.with_columns(word=draw(st.lists(words, min_size=n, max_size=n)))
    return made


def same_rows(a: Suite, b: Suite) -> bool:
    """Bitwise the same but for the counts, which choosing rows leaves alone and joining adds up."""
    return a.digest() == replace(b, attempted=a.attempted, skipped=a.skipped).digest()


# In memory ------------------------------------------------------------------------------------------------------------


@quick
@given(st.integers(0, 2**32), st.integers(0, 12), st.sampled_from(SHAPES), st.sampled_from(TYPES), st.data())
def test_each_case_has_its_seed(
    seed: int, n: int, shape: tuple[int, ...], dtype: torch.dtype, data: st.DataObject
) -> None:
    g = spawn(seed)
    pool = torch.rand((5, *shape), generator=g).to(dtype)
    pick = torch.tensor(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=9)))
    seeds = Samples(pool[pick], torch.arange(len(pick)))  # the same input again, under another label even
    origin = torch.randint(len(seeds), (n,), generator=g)
    x = torch.rand((n, *shape), generator=g).to(dtype)
    made = Suite.of(x, seeds=seeds, origin=origin, prediction=origin % 2, method="m", skipped=1)
    assert torch.equal(made.x0, seeds.x[origin])
    assert torch.equal(made.x, x)
    assert torch.equal(made.label, seeds.labels[origin])
    assert torch.equal(made.seed, seeds.ids[origin])
    assert torch.equal(made.prediction, origin % 2)
    assert made.method.tolist() == ["m"] * n
    assert torch.equal(made.seeds.ids, made.seed.unique())  # each once, and only those in use
    assert (made.attempted, made.skipped) == (len(seeds) - 1, 1)


def test_seeds_may_bring_their_own_ids() -> None:
    x = torch.rand(3, 3)[[0, 1, 2, 0]]
    seeds = Samples(x, torch.arange(4), torch.tensor([30, -2, 7, 30]))
    origin = torch.tensor([3, 1, 0, 2, 1])
    made = Suite.of(torch.rand(5, 3), seeds=seeds, origin=origin, prediction=origin, method="m")
    assert torch.equal(made.x0, seeds.x[origin])
    assert made.seeds.ids.tolist() == [-2, 7, 30]


@quick
@given(suites(), st.lists(st.integers(0, 9), max_size=3))
def test_joining_the_slices_gives_the_whole(whole: Suite, cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), 10]
    parts = [whole[a:b] for a, b in itertools.pairwise(edges)]
    assert same_rows(Suite.concat(parts), whole)
    assert Suite.concat([whole]).digest() == whole.digest()


@quick
@given(st.data())
def test_joining_is_associative_and_adds_up_the_counts(data: st.DataObject) -> None:
    a, b, c = (data.draw(suites(shape=(2,))) for _ in range(3))
    flat = Suite.concat([a, b, c])
    assert flat.digest() == Suite.concat([a, Suite.concat([b, c])]).digest()
    assert flat.digest() == Suite.concat([Suite.concat([a, b]), c]).digest()
    assert flat.attempted == a.attempted + b.attempted + c.attempted
    assert torch.equal(flat.x0, torch.cat([a.x0, b.x0, c.x0]))


@quick
@given(suites(), st.data())
def test_choosing_rows_composes(whole: Suite, data: st.DataObject) -> None:
    n = len(whole)
    first = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=torch.bool)
    m = int(first.sum())
    second = torch.tensor(data.draw(st.lists(st.booleans(), min_size=m, max_size=m)), dtype=torch.bool)
    rows = first.nonzero().flatten()[second]
    chosen = whole[first][second]
    assert chosen.digest() == whole[rows].digest() == whole[rows - n].digest() == whole[rows.tolist()].digest()
    assert chosen.digest() == whole[first.numpy()][second.tolist()].digest()
    assert torch.equal(chosen.x0, whole.x0[rows])
    assert chosen.attempted == whole.attempted


@quick
@given(suites(), st.data())
def test_positions_may_repeat_and_reverse(whole: Suite, data: st.DataObject) -> None:
    n = len(whole)
    rows = data.draw(st.lists(st.integers(-n, n - 1), max_size=12)) if n else []
    chosen = whole[rows]
    assert torch.equal(chosen.x, whole.x[rows])
    assert torch.equal(chosen.x0, whole.x0[rows])
    assert chosen.method.tolist() == [whole.method[i] for i in rows]
    for name, values in whole.columns.items():
        assert [str(v) for v in chosen[name]] == [str(values[i]) for i in rows]


@quick
@given(suites())
def test_failures_are_the_cases_that_went_wrong(whole: Suite) -> None:
    wrong = whole.prediction != whole.label
    assert whole.failures().digest() == whole[wrong].digest()
    assert len(whole.failures()) + len(whole[~wrong]) == len(whole)
    assert whole.failures().failures().digest() == whole.failures().digest()


def test_samples_are_labelled_inputs() -> None:
    made = some_suite(9)
    samples = made.samples()
    assert torch.equal(samples.x, made.x)
    assert torch.equal(samples.labels, made.label)


@quick
@given(st.integers(0, 2**32), st.sampled_from(SHAPES), st.integers(0, 6))
def test_distances_match_numpy(seed: int, shape: tuple[int, ...], n: int) -> None:
    made = some_suite(n, seed=seed, shape=shape, dtype=torch.float64)
    moved = (made.x - made.x0).flatten(1).numpy()
    for norm, order in (("linf", np.inf), ("l2", 2)):
        np.testing.assert_allclose(made.distances(norm), [np.linalg.norm(row, order) for row in moved], rtol=1e-12)


def test_every_number_becomes_a_float_and_strings_stay() -> None:
    made = some_suite(
        3,
        ints=[1, 2, 3],
        bits=torch.tensor([True, False, True]),
        small=np.array([1, 2, 3], dtype=np.uint8),
        foreign=np.array([1.5, 2.5, 3.5], dtype=">f4"),
        single=torch.tensor([1.0, 2.0, 3.0]),
        half=torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16),
        numpys_half=np.array([1, 2, 3], dtype=np.float16),
        words=["a", "", "längere Wörter"],
        codes=np.array([b"x", b"y", b"z"]),
    )
    assert made["ints"].dtype == made["bits"].dtype == made["small"].dtype == made["foreign"].dtype == torch.float64
    assert made["single"].dtype == torch.float32
    assert made["half"].dtype == made["numpys_half"].dtype == torch.float64
    assert made["bits"].tolist() == [1.0, 0.0, 1.0]
    assert made["foreign"].tolist() == [1.5, 2.5, 3.5]
    assert made["words"].tolist() == ["a", "", "längere Wörter"]
    assert made["codes"].tolist() == ["x", "y", "z"]


def test_with_columns_replaces_and_leaves_the_original_alone() -> None:
    made = some_suite(3, a=[1, 2, 3])
    more = made.with_columns(a=["x", "y", "z"], self=[0, 0, 1])
    assert list(made.columns) == ["a"]
    assert made["a"].tolist() == [1, 2, 3]
    assert more["a"].tolist() == ["x", "y", "z"]
    assert more["self"].tolist() == [0, 0, 1]


def test_columns_that_are_missing_are_filled() -> None:
    a = some_suite(2, seed=1, fol=torch.tensor([1.0, 2.0]), fine=torch.ones(2, dtype=torch.float64))
    b = some_suite(3, seed=2, word=["u", "v", "w"])
    joined = Suite.concat([a, b])
    np.testing.assert_array_equal(joined["fol"], [1, 2, np.nan, np.nan, np.nan])
    assert joined["word"].tolist() == ["", "", "u", "v", "w"]
    assert joined["fol"].dtype == torch.float32
    assert joined["fine"].dtype == torch.float64


def test_the_columns_of_an_empty_suite_are_dropped() -> None:
    """Nor in their types: whichever way such suites are joined in, the result is the same."""
    half, single = (some_suite(0, only=torch.empty(0, dtype=t), word=[]) for t in (torch.float16, torch.float32))
    rows = some_suite(3, word=["a", "b", "c"])
    joined = Suite.concat([half, rows, single])
    assert list(joined.columns) == ["word"]
    assert joined["word"].tolist() == ["a", "b", "c"]
    assert joined.digest() == Suite.concat([half, Suite.concat([rows, single])]).digest()
    assert joined.digest() == Suite.concat([Suite.concat([half, rows]), single]).digest()
    assert list(Suite.concat([half, single]).columns) == ["only", "word"]


def test_missing_numbers_have_the_same_bits_wherever_they_stand() -> None:
    """Half-precision NaNs beside single ones, at every place of a vector register."""
    half = some_suite(17, a=torch.full((17,), torch.nan, dtype=torch.float16))
    single = some_suite(2, a=torch.full((2,), torch.nan))
    bits = Suite.concat([half, some_suite(3), single])["a"].view(torch.int64)
    assert bits.unique().tolist() == [0x7FF8000000000000]


def test_precisions_mix_to_the_finer_one() -> None:
    a, b = some_suite(3, seed=1), some_suite(4, seed=2, dtype=torch.float64)
    joined = Suite.concat([a, b])
    rows = torch.tensor([5, 0, 3])
    assert joined[rows].x.dtype == joined.x.dtype == joined.x0.dtype == torch.float64
    assert torch.equal(joined.x, torch.cat([a.x.double(), b.x]))
    assert torch.equal(joined[rows].x, joined.x[rows])
    nothing = some_suite(0, dtype=torch.float64)
    assert Suite.concat([nothing, a, nothing]).x.dtype == torch.float32  # no rows, no say


def test_the_digest_sees_every_part() -> None:
    made = some_suite(4, a=[1.0, 2.0, 3.0, 4.0], b=["u", "v", "w", "x"])
    others = [
        replace(made, rows=LazyRows([made.x + 1])),
        replace(made, rows=LazyRows([made.x.double()])),
        replace(made, label=made.label + 1),
        replace(made, prediction=made.prediction + 1),
        replace(made, method=np.array(["m0", "m1", "m0", "m0"])),
        replace(made, attempted=made.attempted + 1),
        replace(made, skipped=made.skipped + 1),
        made.with_columns(a=[1.0, 2.0, 3.0, 5.0]),
        made.with_columns(a=torch.tensor([1.0, 2.0, 3.0, 4.0])),
        made.with_columns(b=["u", "v", "w", "y"]),
        made.with_columns(c=[0, 0, 0, 0]),
        made[[1, 0, 2, 3]],
        made[:3],
    ]
    assert len({s.digest() for s in [made, *others]}) == 1 + len(others)


def test_it_prints_what_it_holds() -> None:
    made = some_suite(6, fol=[0] * 6)
    failing, seeds = len(made.failures()), len(made.seeds)
    assert repr(made) == f"Suite(6 cases from {seeds} seeds, {failing} failures, columns fol)"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x": torch.rand(4, 3)}, "must match"),
        ({"x": torch.rand(5, 4)}, "must match"),
        ({"origin": torch.zeros(4).long()}, "must match"),
        ({"prediction": torch.zeros(6).long()}, "must match"),
        ({"method": ["a"] * 4}, "must match"),
        ({"origin": torch.ones(5, dtype=torch.bool)}, "origins must be integers"),
        ({"origin": torch.ones(5)}, "origins must be integers"),
        ({"seeds": Samples(torch.rand(2, 3))}, "no labels"),
        (
            {"seeds": Samples(torch.rand(2, 3), torch.arange(2), torch.tensor([8, 8]))},
            "two different seeds have the id 8",
        ),
        ({"columns": {"a": [1, 2]}}, "column a must hold one value for each of 5 rows, got shape (2,)"),
        ({"columns": {"a": torch.rand(5, 1)}}, "column a must hold one value for each of 5 rows, got shape (5, 1)"),
        ({"columns": {"a": np.zeros(5, dtype=complex)}}, "column a must hold numbers or strings, got complex128"),
        ({"columns": {"a": torch.zeros(5, dtype=torch.cfloat)}}, "column a must hold numbers or strings"),
        ({"columns": {"a": [None] * 5}}, "column a must hold numbers or strings, got object"),
        ({"columns": {"method": ["m"] * 5}}, "a column cannot be named method"),
        ({"columns": {"label": torch.rand(5)}}, "a column cannot be named label"),
    ],
)
def test_what_does_not_fit_is_rejected(change: dict[str, Any], sentence: str) -> None:
    good: dict[str, Any] = {
        "x": torch.rand(5, 3),
        "seeds": Samples(torch.rand(2, 3), torch.arange(2)),
        "origin": torch.tensor([0, 1, 0, 1, 1]),
        "prediction": torch.zeros(5).long(),
        "method": "m",
    }
    Suite.of(good.pop("x"), **good)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        Suite.of(**{"x": torch.rand(5, 3), **good, **change})


def test_suites_that_cannot_be_joined_are_rejected() -> None:
    with pytest.raises(ValueError, match="nothing to join"):
        Suite.concat([])
    with pytest.raises(ValueError, match="share one input shape"):
        Suite.concat([some_suite(shape=(3,)), some_suite(shape=(4,))])
    with pytest.raises(ValueError, match="column a holds numbers in one suite and strings in another"):
        Suite.concat([some_suite(1, a=[1]), some_suite(1, a=["x"])])
    ours, theirs = (
        Suite.of(
            torch.rand(2, 3),
            seeds=Samples(torch.rand(2, 3), torch.arange(2), torch.arange(2)),  # ids that count rows clash
            origin=torch.arange(2),
            prediction=torch.zeros(2),
            method="m",
        )
        for _ in range(2)
    )
    with pytest.raises(ValueError, match="two different seeds have the id 0"):
        Suite.concat([ours, theirs])


def test_class_names_are_kept_only_if_they_name_every_label() -> None:
    def labelled(y: list[int], *classes: str) -> Suite:
        seeds = Samples(torch.rand(len(y), 2, generator=spawn(*y)), torch.tensor(y), classes=classes)
        return Suite.of(
            seeds.x, seeds=seeds, origin=torch.arange(len(y)), prediction=torch.zeros(len(y)).long(), method=""
        )

    named, plain, more = labelled([0, 1, 1], "cat", "dog"), labelled([1, 0]), labelled([1, 2])
    assert Suite.concat([named, plain]).seeds.classes == ("cat", "dog")
    assert Suite.concat([named, more]).seeds.classes == ()


def test_questions_without_an_answer_are_rejected() -> None:
    made = some_suite(4, a=[1, 2, 3, 4])
    with pytest.raises(KeyError, match="no column named b; this suite has a"):
        made["b"]
    with pytest.raises(ValueError, match="norm must be"):
        made.distances("l1")
    with pytest.raises(TypeError, match="single index"):
        made[0]
    for rows in ([4], [-5], [0, 9]):
        with pytest.raises(IndexError):
            made[rows]


@quick
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.data())
def test_rows_behave_like_one_tensor(lengths: list[int], data: st.DataObject) -> None:
    """`take`, `choose`, `join` and `all` of parts against the same on one concatenated tensor."""
    parts = [torch.rand(n, 2) for n in lengths]
    whole, rows = torch.cat(parts), LazyRows(parts)
    positions = st.lists(st.integers(0, len(whole) - 1), max_size=6) if len(whole) else st.just([])
    for _ in range(3):
        picked = torch.tensor(data.draw(positions), dtype=torch.int64)
        assert torch.equal(rows.take(picked), whole[picked])
        joined = LazyRows.join([rows.choose(picked), LazyRows(parts), rows])
        expected = torch.cat([whole[picked], torch.cat(parts), whole])
        assert len(joined) == len(expected)
        assert joined.shape == (2,)
        assert torch.equal(joined.take(torch.arange(len(expected))), expected)
        assert torch.equal(joined.all(), expected)
        assert torch.equal(joined.all(), expected)
        rows, whole = rows.choose(torch.arange(len(whole)).flip(0)), whole.flip(0)


def test_joining_suites_of_the_same_seeds_keeps_the_seeds_once() -> None:
    made = some_suite(20)
    joined = Suite.concat([made] * 5)
    assert len(joined.pool.rows.parts) == 1
    assert joined.pool.rows.parts[0] is made.pool.rows.parts[0]


# On disk --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def no_flushing() -> Iterator[None]:
    """These laws are about content; waiting for the disk would only make them slow."""
    with mock.patch("os.fsync"):
        yield


def shard_files(path: Path) -> list[Path]:
    return sorted(path.glob("shard-*.safetensors"))


@contextmanager
def in_shards_of(rows: int) -> Iterator[None]:
    with mock.patch.object(suite_module, "ROWS_PER_SHARD", rows), mock.patch.object(seed_pool, "COMPARED_ROWS", rows):
        yield


@quick
@given(suites(), st.sampled_from([2, 3, 4096]))
def test_save_and_open_is_the_identity(made: Suite, rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder, in_shards_of(rows):
        path = made.save(Path(folder) / "new" / "suite")
        again = Suite.open(path)
        assert len(shard_files(path)) == max(1, -(-len(made) // rows))
        assert again.digest() == made.digest()
        assert again[1:4].digest() == made[1:4].digest()
        assert torch.equal(again.x0, made.x0)
        assert again.rejected == ()
        copy = again.save(Path(folder) / "copy")
        assert Suite.open(copy).digest() == made.digest()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_every_precision_comes_back(dtype: torch.dtype, tmp_path: Path) -> None:
    made = some_suite(5, dtype=dtype, a=torch.rand(5).to(dtype))
    again = Suite.open(made.save(tmp_path))
    assert again.x.dtype == again.x0.dtype == dtype
    assert again.digest() == made.digest()


def test_columns_that_share_memory_are_written_twice(tmp_path: Path) -> None:
    values = torch.rand(4)
    made = some_suite(4, a=values, b=values).with_columns(c=values.flip(0).flip(0)[:])
    every_other = made.with_columns(d=torch.rand(8)[::2])
    again = Suite.open(every_other.save(tmp_path))
    assert again.digest() == every_other.digest()
    assert again["a"].tolist() == again["b"].tolist()


@quick
@given(st.lists(suites(shape=(3,)), min_size=1, max_size=4))
def test_appending_is_joining(made: list[Suite]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = [one.append_to(folder) for one in made]
        assert files == shard_files(Path(folder))
        assert Suite.open(folder).digest() == Suite.concat(made).digest()


def test_a_suite_can_be_written_while_it_is_read(tmp_path: Path) -> None:
    made = some_suite(6)
    made.append_to(tmp_path)
    opened = Suite.open(tmp_path)
    opened[:2].append_to(tmp_path)
    opened.append_to(tmp_path)
    assert Suite.open(tmp_path).digest() == Suite.concat([made, made[:2], made]).digest()


@quick
@given(suites(shape=(3,)), st.data())
def test_the_newest_column_wins(made: Suite, data: st.DataObject) -> None:
    n = len(made)
    with tempfile.TemporaryDirectory() as folder, in_shards_of(2):
        made.save(Path(folder))
        for generation in range(3):
            names = data.draw(st.sets(st.sampled_from("abc"), min_size=1))
            texts = data.draw(st.booleans())
            values = [f"g{generation}"] * n if texts and n else torch.arange(n) + 10.0 * generation
            columns = dict.fromkeys(sorted(names), values)
            add_columns(folder, **columns)
            made = made.with_columns(**columns)
            assert Suite.open(folder).digest() == made.digest()


def test_rows_appended_after_a_column_do_not_have_it(tmp_path: Path) -> None:
    a, b = some_suite(3, seed=1, own=[1, 2, 3]), some_suite(2, seed=2, own=[4, 5])
    a.append_to(tmp_path)
    add_columns(tmp_path, own=[7, 8, 9], late=["u", "v", "w"])
    b.append_to(tmp_path)
    again = Suite.open(tmp_path)
    assert again["own"].tolist() == [7, 8, 9, 4, 5]
    assert again["late"].tolist() == ["u", "v", "w", "", ""]


def test_adding_columns_rewrites_nothing(tmp_path: Path) -> None:
    with in_shards_of(2):
        some_suite(5).save(tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    for i in range(3):
        add_columns(tmp_path, fol=torch.full((5,), float(i)))
    assert all(file.read_bytes() == content for file, content in before.items())
    assert len(list(tmp_path.iterdir())) == len(before) + 3


def test_opening_reads_no_inputs_until_they_are_asked_for(tmp_path: Path) -> None:
    with in_shards_of(100):
        some_suite(1000, n_seeds=500).save(tmp_path)
    opened = Suite.open(tmp_path)
    for rows in (opened.rows, opened.pool.rows):
        parts = rows.parts
        assert len(parts) == 10
        assert all(_is_mapped(part, tmp_path) for part in parts)
        few = opened[[3, 500, 999]]
        assert len(few.x0) == 3
        assert len(opened.failures()) > 0
        assert "1000 cases" in repr(opened)
        assert rows.parts is parts
    assert opened.x.shape == (1000, 1, 2, 2)
    assert len(opened.rows.parts) == 1


def _is_mapped(values: Tensor, folder: Path) -> bool:
    """Whether a tensor's memory is a file of the folder (where the system shows it)."""
    if not sys.platform.startswith("linux"):
        return True
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(address, 16) for address in line.split()[0].split("-"))
        if start <= values.data_ptr() < end:
            return str(folder) in line
    return False


def test_a_suite_of_which_no_shard_was_finished_is_empty(tmp_path: Path) -> None:
    made = some_suite(3)
    made.append_to(tmp_path).unlink()
    opened = Suite.open(tmp_path)
    assert len(opened) == 0
    assert opened.x.shape == (0, 1, 2, 2)
    assert len(opened.x0) == 0
    assert opened.rejected == ()
    made.append_to(tmp_path)
    assert Suite.open(tmp_path).digest() == made.digest()


# What is rejected on disk ---------------------------------------------------------------------------------------------


def open_damaged(path: Path, damaged: Path) -> Suite:
    """Open a suite with one damaged file: a warning and `rejected` must name it, and nothing else."""
    with pytest.warns(UserWarning, match="left out: ") as warned:
        opened = Suite.open(path)
    assert len(warned) == len(opened.rejected) == 1
    assert str(damaged) in opened.rejected[0] in str(warned[0].message)
    return opened


@pytest.fixture
def three(tmp_path: Path) -> tuple[Path, list[Suite]]:
    """A suite of three shards on disk, and the shards."""
    made = [some_suite(n, seed=n, a=torch.rand(n), b=["u"] * n) for n in (3, 2, 4)]
    for one in made:
        one.append_to(tmp_path)
    return tmp_path, made


FOREIGN: dict[str, Callable[[Path, bytes], object]] = {
    "empty": lambda file, _: file.write_bytes(b""),
    "text": lambda file, _: file.write_text("not a shard"),
    "zeros": lambda file, content: file.write_bytes(bytes(len(content))),
    "zeros at the end": lambda file, content: file.write_bytes(content[:-16] + bytes(16)),
    "more": lambda file, content: file.write_bytes(content + b"\0"),
    "twice": lambda file, content: file.write_bytes(content * 2),
    "a huge header": lambda file, content: file.write_bytes(b"\xff" * 8 + content[8:]),
    "foreign safetensors": lambda file, _: save_file({"x": torch.rand(3, 1, 2, 2)}, file),
    "foreign safetensors with words": lambda file, _: save_file({"x": torch.rand(3)}, file, {"operant": "suite shard"}),
    "a later format": lambda file, content: file.write_bytes(content.replace(b'"format":"1"', b'"format":"2"')),
    "no words": lambda file, content: file.write_bytes(content.replace(b'"words"', b'"sword"')),
    "no digest": lambda file, content: file.write_bytes(content.replace(b'"digest"', b'"tigest"')),
    "another type": lambda file, content: file.write_bytes(content.replace(b'"F32"', b'"I32"', 1)),
    "a folder": lambda file, _: (file.unlink(), file.mkdir()),
    "a dangling link": lambda file, _: (file.unlink(), file.symlink_to("nowhere")),
}


@pytest.mark.parametrize("how", FOREIGN)
@pytest.mark.parametrize("which", [0, 2])
def test_one_damaged_shard_is_named_and_the_others_open(three: tuple[Path, list[Suite]], how: str, which: int) -> None:
    path, made = three
    file = shard_files(path)[which]
    FOREIGN[how](file, file.read_bytes())
    others = Suite.concat([one for i, one in enumerate(made) if i != which])
    assert open_damaged(path, file).digest() == others.digest()


CRAFTED: dict[str, Callable[[dict[str, Tensor], dict[str, Any]], object]] = {
    "no x": lambda tensors, _: tensors.pop("x"),
    "no seeds": lambda tensors, _: tensors.pop("seeds.x"),
    "no method": lambda tensors, _: tensors.pop("column.method"),
    "no vocabulary": lambda _, words: words.pop("vocabulary"),
    "a list as vocabulary": lambda _, words: words.update(vocabulary=[1]),
    "a number as word": lambda _, words: words["vocabulary"].update(method=[1, 2]),
    "method of numbers": lambda tensors, _: tensors.update({"column.method": torch.rand(len(tensors["x"]))}),
    "method without words": lambda _, words: words["vocabulary"].pop("method"),
    "words beyond the vocabulary": lambda tensors, _: tensors["column.method"].fill_(7),
    "negative words": lambda tensors, _: tensors["column.method"].fill_(-9),
    "no attempted": lambda _, words: words.pop("attempted"),
    "endless attempted": lambda _, words: words.update(attempted=float("inf")),
    "negative skipped": lambda _, words: words.update(skipped=-1),
    "floating labels": lambda tensors, _: tensors.update(label=tensors["label"].float()),
    "short predictions": lambda tensors, _: tensors.update(prediction=tensors["prediction"][:1]),
    "a number as x": lambda tensors, _: tensors.update(x=torch.tensor(1.0)),
    "complex x": lambda tensors, _: tensors.update(x=tensors["x"].to(torch.complex64)),
    "unknown seeds": lambda tensors, _: tensors["seed"].add_(1),
    "seeds twice": lambda tensors, _: tensors.update({n: torch.cat([tensors[n]] * 2) for n in tensors if "seeds" in n}),
    "seeds of another shape": lambda tensors, _: tensors.update({"seeds.x": tensors["seeds.x"].flatten(1)}),
    "a number as names": lambda _, words: words.update({"seeds.names": 5}),
    "no list of names": lambda _, words: words.update({"seeds.names": None}),
    "a string as names": lambda tensors, words: words.update({"seeds.names": "n" * len(tensors["seeds.ids"])}),
    "names of numbers": lambda tensors, words: words.update({"seeds.names": [1] * len(tensors["seeds.ids"])}),
    "too few names": lambda tensors, words: words.update({"seeds.names": ["a"] * (len(tensors["seeds.ids"]) - 1)}),
    "too many names": lambda tensors, words: words.update({"seeds.names": ["a"] * (len(tensors["seeds.ids"]) + 1)}),
    "a number as classes": lambda _, words: words.update(classes=5),
    "no list of classes": lambda _, words: words.update(classes=None),
    "a string as classes": lambda _, words: words.update(classes="abcdefghij"),
    "classes of numbers": lambda _, words: words.update(classes=list(range(10))),
    "too few classes for seeds": lambda tensors, words: (tensors["seeds.y"].fill_(8), words.update(classes=["a"] * 8)),
    "too few classes for cases": lambda tensors, words: (tensors["label"].fill_(8), words.update(classes=["a"] * 8)),
    "negative labels": lambda tensors, _: tensors["seeds.y"].fill_(-1),
    "a short column": lambda tensors, _: tensors.update({"column.a": torch.rand(1)}),
    "a wide column": lambda tensors, _: tensors.update({"column.a": torch.rand(2, 2)}),
    "a column of bfloat16": lambda tensors, _: tensors.update({"column.a": tensors["column.a"].bfloat16()}),
}  # fmt: skip


def rewrite(file: Path, tensors: dict[str, Tensor], text: str) -> None:
    """A file of a suite with the checksum that belongs to its content."""
    word = file.name.partition("-")[0]
    metadata = {"operant": f"suite {word}", "format": "1", "words": text, "digest": shards.digest(tensors, text)}
    save_file(tensors, file, metadata)


@pytest.mark.parametrize("how", CRAFTED)
@pytest.mark.parametrize("which", [0, 2])
def test_a_wrong_shard_with_a_correct_checksum_is_named_and_the_others_open(
    three: tuple[Path, list[Suite]], how: str, which: int
) -> None:
    path, made = three
    file = shard_files(path)[which]
    tensors, words, _ = read_file(file, "shard")
    tensors = {name: values.clone() for name, values in tensors.items()}
    CRAFTED[how](tensors, words)
    rewrite(file, {name: values.clone() for name, values in tensors.items()}, json.dumps(words))
    others = Suite.concat([one for i, one in enumerate(made) if i != which])
    assert open_damaged(path, file).digest() == others.digest()


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", "[" * 100_000])
def test_metadata_that_is_no_object_is_named(three: tuple[Path, list[Suite]], text: str) -> None:
    path, _ = three
    file = shard_files(path)[0]
    tensors, _, _ = read_file(file, "shard")
    rewrite(file, {name: values.clone() for name, values in tensors.items()}, text)
    assert len(open_damaged(path, file)) == 6


@pytest.mark.parametrize(
    "shards_named", [None, 7, [7], [["a", "b"]], [["a", "b", float("inf")]], [["a", "b", -1]], [[[], {}, 1]], "abc"]
)
def test_columns_that_name_no_shards_are_left_out(three: tuple[Path, list[Suite]], shards_named: Any) -> None:
    path, made = three
    add_columns(path, c=torch.arange(9))
    file = path / "columns-000000.safetensors"
    tensors, words, _ = read_file(file, "columns")
    rewrite(
        file, {name: values.clone() for name, values in tensors.items()}, json.dumps({**words, "shards": shards_named})
    )
    assert open_damaged(path, file).digest() == Suite.concat(made).digest()


SHAPES_OF_NOTHING = (
    "[]", "[-1]", "[Infinity]", "[1e999]", "[NaN]", "[9223372036854775807, 2]", "[true]", '["2"]', "7", "null", "[1.5]",
    "[" * 100_000, '{"0": 1}', f"[{10**400}]",
)  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES_OF_NOTHING)
def test_crafted_manifests_are_rejected_by_name(tmp_path: Path, shape: str) -> None:
    (tmp_path / "manifest.json").write_text(f'{{"suite": 1, "shape": {shape}}}')
    with pytest.raises(ValueError, match=r"manifest.json is not the manifest of a format-1 suite; move"):
        Suite.open(tmp_path)


@pytest.mark.parametrize(
    "change", [{2: float("inf")}, {2: 1.5}, {2: "0"}, {0: 10**400}, {0: float("nan")}, {5: 7}, {2: None}, {4: []}]
)
def test_crafted_verdicts_are_left_out(three: tuple[Path, list[Suite]], change: dict[int, Any]) -> None:
    path, _ = three
    known = [(f.name, read_file(f, "shard")[2], len(read_file(f, "shard")[0]["x"])) for f in shard_files(path)]
    good = [1e9, "Ada", 1, "key", "valid", [], 0]
    bad = [change.get(i, value) for i, value in enumerate(good)]
    header = verdicts.header_of(known, {})
    (path / "verdicts-000000.jsonl").write_bytes(b"".join(map(verdicts.line_of, (header, good, bad))))
    with pytest.warns(UserWarning, match="line 3 of .*verdicts-000000.jsonl is not a verdict"):
        suite = Suite.open(path)
    assert suite["verdict"].tolist() == ["", "valid", *[""] * 7]


def test_a_log_that_announces_more_rows_than_its_shard_judges_none_of_them(three: tuple[Path, list[Suite]]) -> None:
    """The rows were computed from the announced numbers, and did not exist."""
    path, made = three
    known = [(f.name, read_file(f, "shard")[2], 10**9) for f in shard_files(path)]
    lines = (verdicts.header_of(known, {}), [1e9, "Ada", 10**8, "key", "valid", [], 0])
    (path / "verdicts-000000.jsonl").write_bytes(b"".join(map(verdicts.line_of, lines)))
    assert Suite.open(path).digest() == Suite.concat(made).digest()


@quick
@given(st.integers(0, 10**9))
def test_a_shard_cut_at_any_length_is_rejected(where: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, second = some_suite(4, a=[1, 2, 3, 4]), some_suite(3, seed=1)
        file = first.append_to(folder)
        second.append_to(folder)
        content = file.read_bytes()
        file.write_bytes(content[: where % len(content)])
        assert open_damaged(Path(folder), file).digest() == second.digest()


@quick
@given(st.integers(0, 10**9), st.integers(1, 255))
def test_a_suite_with_any_byte_of_a_shard_changed_opens_without_it(where: int, flip: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, second = some_suite(4, a=[1, 2, 3, 4], b=["u", "v", "ü", ""]), some_suite(3, seed=1)
        file = first.append_to(folder)
        second.append_to(folder)
        with changed_byte(file, where, flip) as seen:
            opened = open_damaged(Path(folder), file) if seen else Suite.open(folder)
        assert opened.digest() == (second if seen else Suite.concat([first, second])).digest()


@pytest.mark.parametrize("word", ["shard", "columns"])
def test_no_byte_of_a_file_can_change_unseen(tmp_path: Path, word: str) -> None:
    """Every position once: length of the header, header, tensors."""
    some_suite(2, shape=(2,), b=["u", "ü"]).append_to(tmp_path)
    add_columns(tmp_path, a=[1, 2])
    file = tmp_path / f"{word}-000000.safetensors"
    unchanged = read_file(file, word)[1:]
    for where in range(file.stat().st_size):
        with changed_byte(file, where, 1 + where * 37 % 255) as seen:
            if seen:
                with pytest.raises(ValueError, match=file.name):
                    read_file(file, word)
            else:
                assert read_file(file, word)[1:] == unchanged
    assert read_file(file, word)[1:] == unchanged


@contextmanager
def changed_byte(file: Path, where: int, flip: int) -> Iterator[bool]:
    """Flip bits of one byte for a while; returns whether that must be detected.

    It need not where one of the blanks that pad the header turns into another blank.
    """
    content = file.read_bytes()
    where %= len(content)
    with open(file, "r+b", buffering=0) as raw:
        raw.seek(where)
        raw.write(bytes([content[where] ^ flip]))
        yield not (content[where] == 0x20 and content[where] ^ flip in b"\t\n\r")
        raw.seek(where)
        raw.write(content[where : where + 1])


def test_a_suite_without_a_readable_shard_is_rejected(three: tuple[Path, list[Suite]]) -> None:
    path, _ = three
    for file in shard_files(path):
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="has no readable shard: .*shard-000000.*shard-000001.*shard-000002"):
        Suite.open(path)


def test_columns_in_place_of_a_shard_are_rejected(three: tuple[Path, list[Suite]]) -> None:
    path, made = three
    add_columns(path, late=torch.zeros(9))
    file = path / "shard-000003.safetensors"
    (path / "columns-000000.safetensors").rename(file)
    assert open_damaged(path, file).digest() == Suite.concat(made).digest()


def test_shards_of_other_suites_are_rejected(three: tuple[Path, list[Suite]], tmp_path_factory: Any) -> None:
    """Another shape, strings where numbers were, an id that stands for another seed: the shard that does not fit."""
    path, made = three
    clash = Samples(made[0].seeds.x + 1, made[0].seeds.y, made[0].seeds.ids)
    n = len(clash)
    strangers = [
        some_suite(2, shape=(3,)),
        some_suite(2, a=["x", "y"]),
        Suite.of(clash.x, seeds=clash, origin=torch.arange(n), prediction=torch.arange(n), method="m"),
    ]
    for stranger in strangers:
        elsewhere = stranger.append_to(tmp_path_factory.mktemp("other"))
        file = elsewhere.rename(path / "shard-000003.safetensors")
        opened = open_damaged(path, file)
        assert opened.digest() == Suite.concat(made).digest()
        add_columns(path, a=torch.arange(9.0))  # one value for each row that open shows
        file.unlink()
        (path / "columns-000000.safetensors").unlink()


def test_the_shape_comes_from_the_manifest_not_from_the_first_shard(three: tuple[Path, list[Suite]]) -> None:
    path, made = three
    stranger = some_suite(2, shape=(3,)).append_to(path / "elsewhere")
    first = stranger.rename(shard_files(path)[0])
    assert open_damaged(path, first).digest() == Suite.concat(made[1:]).digest()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}", b'{"suite": 2, "shape": [3]}', b'{"suite": 1}'])
@pytest.mark.parametrize("use", [Suite.open, lambda path: some_suite().append_to(path), add_columns])
def test_a_foreign_manifest_is_rejected(tmp_path: Path, content: bytes, use: Callable[[Path], object]) -> None:
    some_suite().append_to(tmp_path)
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(ValueError, match="manifest.json is not the manifest of a format-1 suite"):
        use(tmp_path)


def test_folders_that_are_no_suites_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a suite: it has no manifest.json"):
        Suite.open(tmp_path)
    with pytest.raises(ValueError, match="nowhere is not a suite"):
        Suite.open(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="already holds files; choose a new folder, or use append_to"):
        some_suite().save(tmp_path)


def test_rows_and_columns_that_do_not_fit_a_suite_are_rejected(three: tuple[Path, list[Suite]]) -> None:
    path, made = three
    before = sorted(path.iterdir())
    with pytest.raises(ValueError, match=r"holds cases of shape \(1, 2, 2\), these have \(3,\)"):
        some_suite(shape=(3,)).append_to(path)
    with pytest.raises(ValueError, match="column late must hold one value for each of 9 rows"):
        add_columns(path, late=torch.zeros(8))
    with pytest.raises(ValueError, match="cannot be named method"):
        add_columns(path, method=["m"] * 9)
    assert sorted(path.iterdir()) == before
    assert Suite.open(path).digest() == Suite.concat(made).digest()


def test_a_damaged_sidecar_leaves_the_older_values(three: tuple[Path, list[Suite]]) -> None:
    path, _ = three
    for i in range(3):
        add_columns(path, late=torch.full((9,), float(i)), **{f"only{i}": torch.zeros(9)})
    newest = path / "columns-000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:-3])
    opened = open_damaged(path, newest)
    assert opened["late"].tolist() == [1.0] * 9
    assert "only2" not in opened.columns
    assert "only1" in opened.columns
    with pytest.raises(ValueError, match="shard-000007.safetensors is not the shard file"):
        read_file((path / "columns-000000.safetensors").rename(path / "shard-000007.safetensors"), "shard")


def test_deleting_a_sidecar_frees_no_number_that_is_taken(three: tuple[Path, list[Suite]]) -> None:
    path, _ = three
    for i in range(3):
        add_columns(path, late=torch.full((9,), float(i)))
    kept = {i: (path / f"columns-00000{i}.safetensors").read_bytes() for i in (1, 2)}
    (path / "columns-000000.safetensors").unlink()
    add_columns(path, late=torch.full((9,), 3.0))
    assert all((path / f"columns-00000{i}.safetensors").read_bytes() == content for i, content in kept.items())
    assert Suite.open(path)["late"].tolist() == [3.0] * 9


def test_columns_of_a_deleted_shard_do_not_go_to_its_successor(three: tuple[Path, list[Suite]]) -> None:
    path, made = three
    add_columns(path, late=torch.ones(9))
    shard_files(path)[2].unlink()
    successor = some_suite(4, seed=77)
    assert successor.append_to(path).name == "shard-000002.safetensors"
    np.testing.assert_array_equal(Suite.open(path)["late"], [1.0] * 5 + [np.nan] * 4)
    shard_files(path)[2].unlink()
    made[2].append_to(path)  # the very same shard again
    assert Suite.open(path)["late"].tolist() == [1.0] * 9


# How it is written ----------------------------------------------------------------------------------------------------


def test_leftovers_of_a_killed_writer_are_ignored_and_the_old_ones_removed(three: tuple[Path, list[Suite]]) -> None:
    path, made = three
    torn = shard_files(path)[0].read_bytes()[:100]
    young = path / f".shard-000003.safetensors.0123456789ab{results.TEMPORARY}"
    old = path / f".columns-000000.safetensors.ba9876543210{results.TEMPORARY}"
    foreign = path / ".somebody.tmp"
    for file in (young, old, foreign):
        file.write_bytes(torn)
        os.utime(file, (0, 0))
    os.utime(young)
    assert Suite.open(path).digest() == Suite.concat(made).digest()
    made[0].append_to(path)
    assert young.exists()
    assert foreign.exists()
    assert not old.exists()
    assert Suite.open(path).digest() == Suite.concat([*made, made[0]]).digest()


def test_a_shard_that_is_there_is_never_overwritten(three: tuple[Path, list[Suite]]) -> None:
    """Two writers see the same next number: the slower one takes the one after it."""
    path, made = three
    before = {file: file.read_bytes() for file in shard_files(path)}
    stale = [{0: shard_files(path)[0]}, {}]
    honest = shards.numbered

    def looks_late(folder: Path, word: str) -> dict[int, Path]:
        return stale.pop() if stale else honest(folder, word)

    with mock.patch.object(shards, "numbered", looks_late):
        assert made[0].append_to(path).name == "shard-000003.safetensors"
    assert not stale
    assert all(file.read_bytes() == content for file, content in before.items())
    assert Suite.open(path).digest() == Suite.concat([*made, made[0]]).digest()


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    some_suite(0).append_to(tmp_path)
    parts = [some_suite(1, seed=i, who=[i]) for i in range(12)]
    threads = [
        threading.Thread(target=lambda mine: [p.append_to(tmp_path) for p in mine], args=[parts[i::3]])
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened = Suite.open(tmp_path)
    assert sorted(opened["who"].tolist()) == list(range(12))
    assert (
        opened[opened["who"].argsort()].digest()
        == replace(Suite.concat(parts), attempted=opened.attempted, skipped=opened.skipped).digest()
    )


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP])
def test_file_systems_without_links_will_do(three: tuple[Path, list[Suite]], number: int) -> None:
    path, made = three
    with mock.patch("os.link", side_effect=OSError(number, "no links here")):
        made[1].append_to(path)
        with pytest.raises(FileExistsError):
            results.write_atomically(shard_files(path)[0], b"", overwrite=False)
    assert Suite.open(path).digest() == Suite.concat([*made, made[1]]).digest()
    assert not list(path.glob(f".*{results.TEMPORARY}"))


def test_a_write_that_fails_leaves_no_trace(three: tuple[Path, list[Suite]]) -> None:
    path, made = three
    before = sorted(path.iterdir())
    with (
        mock.patch("os.fsync", side_effect=OSError(errno.ENOSPC, "disk full")),
        pytest.raises(OSError, match="disk full"),
    ):
        made[0].append_to(path)
    assert sorted(path.iterdir()) == before
    assert Suite.open(path).digest() == Suite.concat(made).digest()


def test_numbers_beyond_six_digits_are_still_in_order(three: tuple[Path, list[Suite]]) -> None:
    path, made = three
    shard_files(path)[2].rename(path / "shard-999999.safetensors")
    assert made[0].append_to(path).name == "shard-1000000.safetensors"
    assert Suite.open(path).digest() == Suite.concat([*made, made[0]]).digest()
