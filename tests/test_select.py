"""Which cases to retrain with: brute force on small inputs, and laws."""

from collections import Counter
from fractions import Fraction
from functools import partial
from itertools import combinations, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from operant.measure import gini as gini_impurity
from operant.rng import spawn
from operant.select import be_st, gini, km_st, random

by_rank = partial(km_st, by="rank")
EVERY = {
    "km_st": km_st,
    "km_st k=3": lambda values, n, *, generator: km_st(values, n, k=min(3, n), generator=generator),
    "km_st by rank": by_rank,
    "km_st by rank k=3": lambda values, n, *, generator: by_rank(values, n, k=min(3, n), generator=generator),
    "be_st": be_st,
    "gini": gini,
    "random": random,
}
some_values = st.lists(st.integers(-3, 12), min_size=1, max_size=9)


def draws(select, values, n, times, **options) -> list[frozenset[int]]:
    """What is chosen, as sets, in many runs from one stream."""
    generator = spawn(0, "draws")
    tensor = torch.as_tensor(values, dtype=torch.float64)
    return [frozenset(select(tensor, n, generator=generator, **options).tolist()) for _ in range(times)]


def near(share: float, truth: float, times: int) -> bool:
    """Within five standard errors, and a little more for rare events."""
    return abs(share - truth) <= 5 * (truth * (1 - truth) / times) ** 0.5 + 1 / times


# For all of them


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=40), data=st.data())
def test_exactly_n_different_rows(name, values, data):
    n = data.draw(st.integers(1, len(values)))
    rows = EVERY[name](torch.tensor(values, dtype=torch.float64), n, generator=spawn(0))
    assert rows.dtype == torch.int64
    assert len(rows) == n == len(rows.unique())
    assert 0 <= int(rows.min()) <= int(rows.max()) < len(values)


@pytest.mark.parametrize("name", EVERY)
def test_same_generator_same_rows_and_no_global_stream(name):
    values, before = torch.rand(500, generator=spawn(1)), torch.random.get_rng_state()
    first, second = (EVERY[name](values, 60, generator=spawn(2)) for _ in range(2))
    other = EVERY[name](values, 60, generator=spawn(3))
    assert torch.equal(first, second)
    assert torch.equal(before, torch.random.get_rng_state())
    assert set(first.tolist()) == set(other.tolist()) or name not in ("be_st", "gini")  # no ties, nothing to draw


@pytest.mark.parametrize("name", EVERY)
def test_all_cases_are_chosen_when_all_are_asked_for(name):
    values = torch.tensor([0.0, 0.0, 0.0, 7.0, 3.0, 3.0, 1e-18])
    assert EVERY[name](values, 7, generator=spawn(0)).sort().values.tolist() == list(range(7))


@pytest.mark.parametrize("name", EVERY)
def test_equal_values_are_equally_likely(name):
    times = 1500
    chosen = Counter(i for rows in draws(EVERY[name], [0.0] * 6, 2, times) for i in rows)
    assert all(near(chosen[i] / times, 2 / 6, times) for i in range(6)), chosen


@pytest.mark.parametrize("name", EVERY)
def test_the_order_of_the_cases_does_not_matter(name):
    values, order, times = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 5.0, 9.0]), [6, 2, 0, 7, 5, 1, 3, 4], 1500
    straight = Counter(i for rows in draws(EVERY[name], values, 4, times) for i in rows)
    shuffled = Counter(order[i] for rows in draws(EVERY[name], values[order], 4, times) for i in rows)
    assert all(abs(straight[i] - shuffled[i]) <= 5 * (2 * times / 4) ** 0.5 for i in range(8)), (straight, shuffled)


# KM-ST against brute force


def exact_sections(values: list[int], k: int) -> list[int]:
    low, high = min(values), max(values)
    return [0 if low == high else min(int(Fraction((v - low) * k, high - low)), k - 1) for v in values]


def fairest(counts: list[int], n: int) -> set[tuple[int, ...]]:
    """Every way to take n from the sections that is as even as they allow, found by trying all."""
    ways = [way for way in product(*(range(min(c, n) + 1) for c in counts)) if sum(way) == n]
    best = min(sum(t * t for t in way) for way in ways)
    return {way for way in ways if sum(t * t for t in way) == best}


@settings(max_examples=150, deadline=None)
@given(values=some_values, data=st.data())
def test_km_st_takes_from_sections_as_brute_force_does(values, data):
    n = data.draw(st.integers(1, len(values)))
    k = data.draw(st.integers(1, min(n, 5)))
    section = exact_sections(values, k)
    rows = km_st(torch.tensor(values), n, k=k, generator=spawn(data.draw(st.integers(0, 9))))
    taken = Counter(section[i] for i in rows.tolist())
    assert tuple(taken[s] for s in range(k)) in fairest([section.count(s) for s in range(k)], n)


def test_km_st_is_uniform_over_all_that_brute_force_allows():
    values, n, k, times = [0, 0, 1, 5, 6, 10], 3, 2, 4000  # sections of three each: 2 + 1 or 1 + 2
    section = exact_sections(values, k)
    allowed = [
        frozenset(rows)
        for rows in combinations(range(6), n)
        if tuple(sum(section[i] == s for i in rows) for s in range(k)) in {(1, 2), (2, 1)}
    ]
    found = Counter(draws(km_st, values, n, times, k=k))
    assert set(found) == set(allowed)
    assert all(near(found[rows] / times, 1 / len(allowed), times) for rows in allowed)


@settings(max_examples=30, deadline=None)
@given(k=st.integers(1, 20), each=st.integers(1, 15), seed=st.integers(0, 99))
def test_km_st_is_uniform_over_rich_sections(k, each, seed):
    """Algorithm 2 as it is written: n / k from every section, though most cases are in the lowest."""
    values = torch.cat([torch.rand(2000, generator=spawn(seed)) * (1 / k), torch.linspace(0, 1, 40 * k + 1)])
    rows = km_st(values, k * each, k=k, generator=spawn(seed))
    section = (values[rows].double() * k).long().clamp_max(k - 1)  # the values reach from 0 to 1
    assert section.bincount(minlength=k).tolist() == [each] * k


def test_km_st_fills_up_evenly_when_a_section_is_short():
    values = torch.tensor([0.0] * 20 + [5.0] * 3 + [10.0] * 20)
    taken = Counter(values[km_st(values, 23, k=3, generator=spawn(0))].tolist())
    assert taken == {0.0: 10, 5.0: 3, 10.0: 10}


def test_km_st_of_one_section_is_random_and_of_constant_values_too():
    times = 1500
    for values in ([1.0, 2.0, 3.0, 50.0], [4.0] * 4):
        chosen = Counter(draws(km_st, values, 2, times, k=1 if values[0] == 1 else 2))
        assert len(chosen) == 6
        assert all(near(count / times, 1 / 6, times) for count in chosen.values())


def test_km_st_has_ten_sections_unless_told_or_as_many_as_cases():
    values = torch.linspace(0, 1, 1001)
    rows = km_st(values, 50, generator=spawn(0))
    assert torch.equal(rows, km_st(values, 50, k=10, generator=spawn(0)))
    few = km_st(values, 4, generator=spawn(0))
    assert torch.equal(few, km_st(values, 4, k=4, generator=spawn(0)))


def test_km_st_stands_huge_and_tiny_ranges():
    for scale in (1e299, 1e-310):
        values = torch.tensor([-1.0, -0.9, -0.8, 0.9, 1.0], dtype=torch.float64) * scale
        taken = values[km_st(values, 4, k=2, generator=spawn(0))]
        assert int((taken < 0).sum()) == int((taken > 0).sum()) == 2


# KM-ST by rank, as the released program has it


@settings(max_examples=100, deadline=None)
@given(m=st.integers(1, 30), data=st.data())
def test_km_st_by_rank_takes_whole_blocks_and_a_part_of_one(m, data):
    n, k = data.draw(st.integers(1, m)), data.draw(st.integers(1, m))
    values = torch.randperm(m, generator=spawn(m)).double()
    chosen = set(values[by_rank(values, n, k=k, generator=spawn(n, k))].long().tolist())
    blocks = [set(part.tolist()) for part in torch.arange(m).tensor_split(k)]
    assert sum(0 < len(block & chosen) < len(block) for block in blocks) <= 1


def test_km_st_by_rank_draws_every_block_equally():
    times = 4000
    values = [v**3 for v in range(12)]  # ranks matter, not distances
    found = Counter(draws(by_rank, values, 6, times, k=4))
    blocks = [frozenset(range(i, i + 3)) for i in range(0, 12, 3)]
    expected = {a | b for a, b in combinations(blocks, 2)}
    assert set(found) == expected
    assert all(near(found[rows] / times, 1 / 6, times) for rows in expected)


def test_km_st_by_rank_has_a_thousand_blocks_and_takes_fewer_cases_than_blocks():
    values = torch.rand(60_000, generator=spawn(0))
    rows = by_rank(values, 600, generator=spawn(1))
    assert torch.equal(rows, by_rank(values, 600, k=1000, generator=spawn(1)))
    ranks = values.argsort().argsort()[rows]
    assert sorted(Counter((ranks // 60).tolist()).values()) == [60] * 10


# BE-ST, DeepGini


@settings(max_examples=150, deadline=None)
@given(values=some_values, data=st.data())
def test_be_st_and_gini_take_the_ends_that_sorting_shows(values, data):
    n = data.draw(st.integers(1, len(values)))
    ordered, small = sorted(values), n // 2
    tensor = torch.tensor(values)
    ends = sorted(tensor[be_st(tensor, n, generator=spawn(0))].tolist())
    assert ends == ordered[:small] + ordered[len(values) - (n - small) :]
    assert tensor[gini(tensor, n, generator=spawn(0))].tolist() == ordered[::-1][:n]


def test_an_odd_case_of_be_st_comes_from_the_top():
    assert sorted(be_st(torch.arange(10), 3, generator=spawn(0)).tolist()) == [0, 8, 9]
    assert be_st(torch.arange(10), 1, generator=spawn(0)).tolist() == [9]


def test_ties_at_the_edge_of_be_st_are_broken_fairly():
    times = 1500  # one of three zeros at the bottom, the nine and one of two fives at the top
    chosen = Counter(i for rows in draws(be_st, [0, 0, 0, 3, 5, 5, 9], 3, times) for i in rows)
    assert chosen[6] == times
    assert chosen[3] == 0
    assert all(near(chosen[i] / times, 1 / 3, times) for i in (0, 1, 2))
    assert all(near(chosen[i] / times, 1 / 2, times) for i in (4, 5))


def test_gini_takes_the_least_certain():
    probs = torch.tensor([[0.98, 0.01, 0.01], [0.4, 0.3, 0.3], [0.5, 0.5, 0.0], [0.9, 0.1, 0.0]])
    assert gini(gini_impurity(probs), 2, generator=spawn(0)).tolist() == [1, 2]


# Refusals

three = torch.tensor([1.0, 2.0, 3.0])


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    ("values", "n", "sentence"),
    [
        (three, 4, "n must be from 1 to the number of cases (3), got 4"),
        (three, 0, "n must be from 1 to the number of cases (3), got 0"),
        (three, -1, "got -1"),
        (torch.tensor([]), 1, "there are no cases to choose from"),
        (torch.tensor([1.0, torch.nan, torch.nan]), 1, "got NaN or infinity for 2 of 3 cases"),
        (torch.tensor([1.0, -torch.inf]), 1, "got NaN or infinity for 1 of 2 cases"),
        (torch.ones(3, 1), 1, "one number per case, got shape (3, 1)"),
        (torch.tensor(1.0), 1, "one number per case, got shape ()"),
        ([1.0, 2.0], 1, "one number per case, got a list"),
    ],
)
def test_bad_input_is_refused(name, values, n, sentence):
    with pytest.raises(ValueError) as error:
        EVERY[name](values, n, generator=spawn(0))
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"k": 3}, "k must be from 1 to the number of cases to choose (2), got 3"),
        ({"k": 0}, "got 0"),
        ({"k": 4, "by": "rank"}, "k must be from 1 to the number of cases there are (3), got 4"),
        ({"k": 0, "by": "rank"}, "got 0"),
        ({"by": "ranks"}, 'by must be "range" or "rank", got \'ranks\''),
    ],
)
def test_bad_options_of_km_st_are_refused(options, sentence):
    with pytest.raises(ValueError) as error:
        km_st(three, 2, generator=spawn(0), **options)
    assert sentence in str(error.value)


def test_values_of_any_type_will_do():
    for dtype in (torch.float16, torch.float32, torch.int32, torch.bool):
        values: Tensor = torch.tensor([0, 1, 0, 1]).to(dtype).requires_grad_(dtype.is_floating_point)
        assert sorted(gini(values, 2, generator=spawn(0)).tolist()) == [1, 3]
