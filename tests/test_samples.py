"""Where samples come from: names, groups, occurrences and class names."""

from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from operant import Samples, spawn
from operant.data import content_ids, samples

FROZEN = [[1, 3, 5, 6, 7, 8, 10, 12], [0, 2, 4, 9, 11, 16, 21, 22]]  # ids of the two roles, before there were groups
KINDS = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def pool_of(kinds, *, source="a", grouped=True):
    """Inputs with many copies: rows of one kind are equal; groups and names depend on the row."""
    return Samples(
        torch.tensor(kinds, dtype=torch.float32)[:, None].repeat(1, 2),
        torch.tensor(kinds),
        names=[f"{source}/{row}.png" for row in range(len(kinds))],
        groups=[f"scene {row % 3}" if row % 4 else "" for row in range(len(kinds))] if grouped else None,
        classes=("zero", "one", "two", "three", "four", "five"),
    )


def columns(part):
    rows = [part.x.tolist(), part.labels.tolist(), part.ids.tolist(), part.occurrence.tolist()]
    return [*zip(*rows, part.names or (), part.groups or (), strict=True)], part.classes


def uses(part):
    return list(zip(part.ids.tolist(), part.occurrence.tolist(), strict=True))


@given(KINDS, st.randoms(use_true_random=False))
def test_indexing_indexes_every_column(kinds, random):
    pool = pool_of(kinds)
    rows = random.sample(range(len(pool)), random.randint(0, len(pool)))
    everything, classes = columns(pool)
    assert columns(pool[rows]) == ([everything[i] for i in rows], classes)
    mask = torch.tensor([i in rows for i in range(len(pool))])
    assert columns(pool[mask]) == ([everything[i] for i in sorted(rows)], classes)
    assert columns(pool[1::2]) == (everything[1::2], classes)


@given(KINDS, st.integers(0, 12), st.booleans())
def test_concat_undoes_a_cut(kinds, at, grouped):
    pool = replace(pool_of(kinds), groups=pool_of(kinds).groups if grouped else None)
    joined = Samples.concat([pool[:at], pool[at:]])
    assert (joined.groups is None) == (not grouped)
    assert str(joined) == str(pool)
    assert uses(joined) == uses(pool)
    assert (joined.names, joined.groups, joined.classes) == (pool.names, pool.groups, pool.classes)


def occurrences(ids):
    """The oracle: a counter per id."""
    seen: dict[int, int] = defaultdict(int)
    numbers = []
    for i in ids:
        numbers.append(seen[i])
        seen[i] += 1
    return numbers


@given(KINDS)
def test_occurrence_counts_equal_inputs_in_order(kinds):
    pool = Samples(pool_of(kinds).x)
    assert pool.occurrence.tolist() == occurrences(pool.ids.tolist())


@given(st.lists(st.tuples(KINDS, st.integers(0, 2**20)), min_size=1, max_size=5))
def test_an_id_and_its_occurrence_name_one_use_after_any_operations(steps):
    pool = pool_of(steps[0][0])
    for kinds, seed in steps:
        generator = spawn(seed)
        pool = Samples.concat([pool, pool_of(kinds, source=str(seed))[::2], pool[:3]])
        pool = pool[torch.randint(len(pool), (20,), generator=generator)]  # with repetition
        pool = Samples.concat(list(pool.split(a=0.5, b=0.5).values())).to("cpu").with_labels(pool.labels)
        assert len(set(uses(pool))) == len(pool)
        assert len(pool.names) == len(pool.groups) == len(pool)


def test_the_first_use_of_an_id_keeps_its_occurrence():
    pool = Samples(torch.zeros(4, 1))
    assert pool[[3, 1, 3, 0, 1]].occurrence.tolist() == [3, 1, 4, 0, 5]
    assert Samples.concat([pool[2:], pool]).occurrence.tolist() == [2, 3, 0, 1, 4, 5]


@given(KINDS, st.integers(0, 1000), st.floats(0.1, 0.9))
def test_a_split_never_separates_a_group_and_later_data_follows_it(kinds, seed, share):
    pool = pool_of(kinds * 4)
    roles = {"learning": share, "proof": 1 - share}
    parts = pool.split(**roles)
    role = {group: name for name, part in parts.items() for group in part.groups if group}
    for name, part in parts.items():
        assert all(role[group] == name for group in part.groups if group)
    assert sum(map(len, parts.values())) == len(pool)
    later = Samples(torch.rand(9, 2, generator=spawn(seed)), groups=[f"scene {i % 3}" for i in range(9)])
    for name, part in later.split(**roles).items():
        assert all(role.get(group, name) == name for group in part.groups)


@given(KINDS, st.floats(0.1, 0.9))
def test_without_groups_a_split_goes_by_id(kinds, share):
    pool = pool_of(kinds)
    plain, none = replace(pool, groups=None), replace(pool, groups=("",) * len(pool))
    for role, part in plain.split(a=share, b=1 - share).items():
        assert uses(none.split(a=share, b=1 - share)[role]) == uses(part)


def test_a_split_by_id_is_the_one_of_earlier_versions():
    parts = Samples(torch.zeros(1000, 1), ids=torch.arange(1000)).split(profile=0.5, assessment=0.5)
    assert [part.ids[:8].tolist() for part in parts.values()] == FROZEN


def test_shares_of_a_split_by_group_are_met():
    pool = Samples(torch.zeros(20000, 1), groups=[str(i // 2) for i in range(20000)])
    assert len(pool.split(a=0.3, b=0.7)["a"]) == pytest.approx(6000, abs=400)


def test_ids_are_those_of_one_pass(monkeypatch):
    x = torch.randn(50, 3, 4, generator=spawn(0))
    x[3] = -0.0
    whole = content_ids(x)
    monkeypatch.setattr(samples, "HASHED_BYTES", 7 * 48)
    assert torch.equal(content_ids(x), whole)
    assert torch.equal(content_ids(x.transpose(1, 2).contiguous().transpose(1, 2)), whole)
    assert whole.tolist() == [int(content_ids(row[None])) for row in x]


def test_repr_tells_the_number_of_groups():
    pool = pool_of([0, 1, 2, 3])
    assert str(pool) == "Samples(4 x (2,), 4 classes, 4 groups)"
    assert str(Samples(pool.x)) == "Samples(4 x (2,), no labels)"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"names": ["a"]}, "names must be 3 strings, one per input, got 1 values"),
        ({"names": "abc"}, "names must be 3 strings, one per input, got 'abc'"),
        ({"groups": [1, 2, 3]}, "groups must be 3 strings"),
        ({"occurrence": [0, 1]}, "occurrence must be int64 of shape (3,)"),
        ({"ids": torch.tensor([1, 1, 2]), "occurrence": [1, 1, 1]}, "two rows have the same id and occurrence"),
        ({"classes": "cat"}, "classes must be the name of each label"),
        ({"y": [0, 2, 1], "classes": ("cat", "dog")}, "classes must name every label up to 2, got 2 names"),
    ],
)
def test_bad_provenance_is_rejected_with_a_sentence(options, sentence):
    with pytest.raises(ValueError) as error:
        Samples(torch.rand(3, 2), **options)
    assert sentence in str(error.value)


def test_labels_of_different_classes_are_not_mixed_up():
    cats, dogs = (Samples(torch.rand(2, 2), [0, 0], classes=(name,)) for name in ("cat", "dog"))
    with pytest.raises(ValueError, match="samples to join must have the same classes, got cat and dog"):
        Samples.concat([cats, dogs])
    assert Samples.concat([cats.with_labels(None), dogs]).classes == ()
    assert Samples.concat([cats, replace(cats, classes=())]).classes == ("cat",)
