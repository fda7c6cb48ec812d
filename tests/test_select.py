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
from operant.select import GAINS_PER_STEP, be_st, gini, km_st, operational, random

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
@settings(max_examples=40)
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


@settings(max_examples=150)
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


@settings(max_examples=30)
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


def test_km_st_has_ten_sections_by_default_or_as_many_as_cases():
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


@settings(max_examples=100)
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


@settings(max_examples=150)
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


# Operational: coverage of mass


def coverage(codes: Tensor, values: Tensor, rows: list[int], *, width: float, shared: bool, covered=None) -> float:
    """What the chosen rows cover beyond what was covered before, pair by pair."""
    z, before = codes.double().tolist(), [] if covered is None else covered.double().tolist()

    def near(a: list[float], b: list[float]) -> float:
        return max(0.0, 1 - sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) / width**2)

    total = 0.0
    for i, w in enumerate(values.tolist()):
        share = w / sum(near(z[i], other) for other in z) if shared else w
        old = max((near(z[i], other) for other in before), default=0.0)
        total += share * (max([old, *(near(z[i], z[j]) for j in rows)]) - old)
    return total


def cloud(m: int, d: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Codes, some of them copies, and weights, some of them 0."""
    codes = torch.randn(m, d, generator=spawn(seed, "codes"))
    codes[m // 2 : m // 2 + m // 5] = codes[: m // 5]
    return codes, (torch.rand(m, generator=spawn(seed, "weights")) - 0.1).clamp_min(0)


@pytest.mark.parametrize("shared", [True, False])
@settings(max_examples=40)
@given(m=st.integers(2, 12), seed=st.integers(0, 50), width=st.floats(0.3, 3), known=st.integers(0, 3), data=st.data())
def test_operational_takes_the_largest_gain_at_every_step(shared, m, seed, width, known, data):
    codes, values = cloud(m, 2, seed=seed)
    values[0] += 0.1
    n = data.draw(st.integers(1, m))
    covered = codes[m - known :] + 0.3 if known else None
    options = {"width": width, "shared": shared, "covered": covered}
    rows = operational(values, n, codes=codes, generator=spawn(seed), **options).tolist()
    worth = partial(coverage, codes, values, **options)
    for i in range(n):
        best = max(worth([*rows[:i], j]) for j in range(m))
        assert worth(rows[: i + 1]) == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert len(set(rows)) == n


def test_operational_is_near_the_best_choice_that_brute_force_finds():
    for seed in range(10):
        codes, values = cloud(9, 2, seed=seed)
        worth = partial(coverage, codes, values, width=1.0, shared=True)
        best = max(worth(list(rows)) for rows in combinations(range(9), 3))
        chosen = operational(values, 3, codes=codes, width=1.0, generator=spawn(0)).tolist()
        assert worth(chosen) >= (1 - 1 / 2.718281828) * best


def test_operational_with_many_cases_is_the_greedy_choice():
    """More cases than are looked at together, so that bounds do their work."""
    m, width = 6 * GAINS_PER_STEP, 1.0
    codes, values = cloud(m, 3, seed=1)
    rows = operational(values, 40, codes=codes, width=width, shared=False, generator=spawn(0))
    near = (1 - torch.cdist(codes.double(), codes.double()) ** 2 / width**2).clamp_min(0)
    cover = torch.zeros(m, dtype=torch.float64)
    for row in rows.tolist():
        gains = (near - cover).clamp_min(0) @ values.double()
        assert float(gains[row]) == pytest.approx(float(gains.amax()), rel=1e-9)
        cover = torch.maximum(cover, near[row])


def test_operational_does_not_depend_on_tiles(monkeypatch):
    codes, values = torch.randn(150, 3, generator=spawn(0)), torch.rand(150, generator=spawn(1))
    first = operational(values, 30, codes=codes, covered=codes[:7] + 0.1, generator=spawn(0))
    monkeypatch.setattr("operant.select.MAX_PAIRS", 300)
    monkeypatch.setattr("operant.select.GAINS_PER_STEP", 3)
    assert torch.equal(first, operational(values, 30, codes=codes, covered=codes[:7] + 0.1, generator=spawn(0)))


def test_operational_of_cases_far_apart_takes_the_largest_values():
    values, codes = torch.rand(50, generator=spawn(0)), 10.0 * torch.arange(50)[:, None]
    for options in ({"codes": codes, "width": 1.0}, {"codes": codes, "width": 1e-9}, {}):
        rows = operational(values, 12, generator=spawn(1), **options)
        assert rows.tolist() == values.argsort(descending=True)[:12].tolist()


@pytest.mark.parametrize("width", [None, 0.5])
@pytest.mark.parametrize("shared", [True, False])
def test_copies_of_what_is_chosen_come_last(width, shared):
    corners = torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0], [5.0, 5.0]])
    codes, values = corners.repeat(10, 1), torch.tensor([9.0, 3.0, 2.0, 1.0]).repeat(10)
    rows = operational(values, 6, codes=codes, width=width, shared=shared, generator=spawn(0))
    assert (rows[:4] % 4).tolist() == [0, 1, 2, 3]
    assert (rows[4:] % 4).tolist() == [0, 0]  # then by weight


def test_cases_of_one_cell_share_its_mass_unless_each_has_its_own():
    crowd, pair = torch.zeros(20, 2), torch.tensor([[9.0, 9.0], [9.0, 9.0]])
    codes, values = torch.cat([crowd, pair]), torch.cat([torch.full((20,), 1.0), torch.full((2,), 2.0)])
    first = {
        shared: int(operational(values, 1, codes=codes, width=1.0, shared=shared, generator=spawn(0))) >= 20
        for shared in (True, False)
    }
    assert first == {True: True, False: False}  # a cell of mass 2 before one of mass 1; twenty cases before two


def test_what_is_covered_already_brings_nothing():
    codes, values = torch.tensor([[0.0], [0.1], [4.0], [8.0]]), torch.tensor([10.0, 9.0, 2.0, 1.0])
    options = {"codes": codes, "width": 1.0, "generator": spawn(0)}
    assert set(operational(values, 2, **options).tolist()) == {0, 2}
    assert set(operational(values, 2, covered=torch.tensor([[0.05]]), **options).tolist()) == {2, 3}
    half = operational(values, 1, covered=torch.tensor([[0.9]]), **options)  # 10 · .81 is covered, 9 · .36 of the rest
    assert int(half) in (0, 1)


def test_a_case_reaches_as_far_as_it_takes_to_stand_for_its_share():
    """Five clumps and five to choose: one from each, though some clumps have all the largest values."""
    centres = 10 * torch.eye(5)
    codes = centres.repeat_interleave(20, 0) + 0.1 * torch.randn(100, 5, generator=spawn(0))
    values = 1 + torch.arange(100).float() / 100
    chosen = operational(values, 5, codes=codes, generator=spawn(1))
    assert sorted((chosen // 20).tolist()) == [0, 1, 2, 3, 4]
    assert sorted((gini(values, 5, generator=spawn(1)) // 20).tolist()) == [4] * 5


@pytest.mark.parametrize("n", [1, 7, 40])
def test_the_scale_of_codes_and_values_does_not_matter(n):
    codes, values = cloud(40, 3, seed=4)
    plain = operational(values, n, codes=codes, generator=spawn(0))
    for factor in (2.0**-40, 2.0**40):
        scaled = operational(values * factor, n, codes=codes * factor, generator=spawn(0))
        assert torch.equal(plain, scaled)
    assert torch.equal(plain, operational(values, n, codes=codes.double(), generator=spawn(0)))


def test_equal_codes_and_one_case_will_do():
    values = torch.tensor([1.0, 3.0, 2.0])
    rows = operational(values, 3, codes=torch.ones(3, 4), generator=spawn(0))
    assert sorted(rows.tolist()) == [0, 1, 2]
    assert operational(values[:1], 1, codes=torch.ones(1, 4), generator=spawn(0)).tolist() == [0]


def test_operational_same_generator_same_rows_and_ties_at_random():
    codes, values, before = torch.eye(6), torch.ones(6), torch.random.get_rng_state()
    runs = [operational(values, 2, codes=codes, generator=spawn(seed)).tolist() for seed in (0, 0, *range(1, 40))]
    assert runs[0] == runs[1]
    assert len({i for rows in runs for i in rows}) == 6
    assert torch.equal(before, torch.random.get_rng_state())


# Invalid arguments

three = torch.tensor([1.0, 2.0, 3.0])


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    ("values", "n", "sentence"),
    [
        (three, 4, "n must be from 1 to 3, got 4; there are 3 cases"),
        (three, 0, "n must be from 1 to 3, got 0"),
        (three, -1, "got -1"),
        (torch.tensor([]), 1, "values must not be empty"),
        (torch.tensor([1.0, torch.nan, torch.nan]), 1, "got NaN or infinity for 2 of 3 cases"),
        (torch.tensor([1.0, -torch.inf]), 1, "got NaN or infinity for 1 of 2 cases"),
        (torch.ones(3, 1), 1, "one number per case, got shape (3, 1)"),
        (torch.tensor(1.0), 1, "one number per case, got shape ()"),
        ([1.0, 2.0], 1, "one number per case, got a list"),
    ],
)
def test_bad_input_is_rejected(name, values, n, sentence):
    with pytest.raises(ValueError) as error:
        EVERY[name](values, n, generator=spawn(0))
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"k": 3}, "k must be from 1 to 2, got 3; there are 3 cases, of which 2 are chosen"),
        ({"k": 0}, "got 0"),
        ({"k": 4, "by": "rank"}, "k must be from 1 to 3, got 4"),
        ({"k": 0, "by": "rank"}, "got 0"),
        ({"by": "ranks"}, "by must be one of range, rank, got 'ranks'"),
    ],
)
def test_bad_options_of_km_st_are_rejected(options, sentence):
    with pytest.raises(ValueError) as error:
        km_st(three, 2, generator=spawn(0), **options)
    assert sentence in str(error.value)


def test_values_of_any_type_will_do():
    for dtype in (torch.float16, torch.float32, torch.int32, torch.bool):
        values: Tensor = torch.tensor([0, 1, 0, 1]).to(dtype).requires_grad_(dtype.is_floating_point)
        assert sorted(gini(values, 2, generator=spawn(0)).tolist()) == [1, 3]


@pytest.mark.parametrize(
    ("values", "n", "options", "sentence"),
    [
        (torch.zeros(3), 1, {}, "all 3 values are 0"),
        (torch.tensor([1.0, -1.0, -2.0]), 1, {}, "values must be 0 or more, got 2 of 3 below"),
        (three, 4, {"codes": torch.ones(3, 2)}, "n must be from 1 to 3, got 4; there are 3 cases"),
        (three, 1, {"codes": torch.ones(2, 2)}, "codes must be a tensor (3, dimensions), one row per case"),
        (three, 1, {"codes": torch.ones(3)}, "got shape (3,)"),
        (three, 1, {"codes": [[1.0]] * 3}, "got a list"),
        (three, 1, {"codes": torch.full((3, 2), torch.nan)}, "codes must be finite, got NaN or infinity in 3 of 3"),
        (three, 1, {"codes": torch.ones(3, 2), "covered": torch.ones(4, 3)}, "covered must be a tensor (M, 2)"),
        (three, 1, {"codes": torch.ones(3, 2), "covered": torch.full((1, 2), torch.inf)}, "in 1 of 1 rows"),
        (three, 1, {"codes": torch.ones(3, 2), "width": 0.0}, "width must be positive and finite, got"),
        (three, 1, {"width": 1.0}, "covered and width are about distances; give codes too"),
        (three, 1, {"covered": torch.ones(1, 2)}, "give codes too"),
    ],
)
def test_bad_input_of_operational_is_rejected(values, n, options, sentence):
    with pytest.raises(ValueError) as error:
        operational(values, n, generator=spawn(0), **options)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("values", "n", "sentence"),
    [
        (three, 0, "n must be from 1 to 3, got 0"),
        (torch.tensor([]), 1, "values must not be empty"),
        (torch.tensor([1.0, torch.nan]), 1, "got NaN or infinity for 1 of 2 cases"),
        (torch.ones(3, 1), 1, "one number per case, got shape (3, 1)"),
    ],
)
def test_bad_values_of_operational_are_rejected_as_everywhere(values, n, sentence):
    with pytest.raises(ValueError) as error:
        operational(values, n, generator=spawn(0))
    assert sentence in str(error.value)
