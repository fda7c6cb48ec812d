"""Laws of randomness: streams are named by paths, draws have the shape and range asked for, ids mix evenly."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from operant.rng import global_streams, mix, normal_like, spawn, uniform_like

quick = settings(max_examples=60)
seeds = st.integers(-(2**70), 2**70)
paths = st.lists(st.integers() | st.text(max_size=4), max_size=4)
ids = st.integers(-(2**63), 2**63 - 1)


def stream(seed: int, *path: int | str) -> list[float]:
    return torch.rand(4, generator=spawn(seed, *path)).tolist()


@quick
@given(seeds, paths)
def test_the_same_path_gives_the_same_stream(seed: int, path: list[int | str]) -> None:
    assert stream(seed, *path) == stream(seed, *path)


@quick
@given(seeds, seeds, paths, paths)
def test_different_paths_give_different_streams(a: int, b: int, there: list[int | str], here: list[int | str]) -> None:
    assert (stream(a, *here) == stream(b, *there)) == ((a, here) == (b, there))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b"), ("ab",)),
        (("a", "b"), ("b", "a")),
        (("a", "b"), ("a, b",)),
        (("a", "b"), ('a", "b',)),
        ((1, "2"), ("1", 2)),
        ((1, 2), (12,)),
        (("",), ()),
        ((0,), ()),
        ((0, 1), (1, 0)),
        ((-1,), (1,)),
        (("é",), ("e\N{COMBINING ACUTE ACCENT}",)),
    ],
)
def test_similar_paths_give_different_streams(one: tuple[int | str, ...], other: tuple[int | str, ...]) -> None:
    assert stream(0, *one) != stream(0, *other)
    assert stream(0, "x", *one) != stream(0, "x", *other)


def test_streams_of_neighbouring_chunks_are_unrelated() -> None:
    draws = torch.stack([torch.rand(200, generator=spawn(7, "chunk", i)) for i in range(100)]).numpy()
    assert stats.kstest(draws.ravel(), "uniform").pvalue > 1e-4
    between = np.corrcoef(draws)[np.triu_indices(100, 1)]
    assert np.abs(between).max() < 6 / np.sqrt(200)
    assert stats.kstest(draws[:, 0], "uniform").pvalue > 1e-4  # the first draws of all streams


def test_whatever_counts_as_an_integer_names_the_same_stream() -> None:
    expected = stream(3, 5, "a")
    assert expected == stream(np.int64(3), np.int32(5), np.str_("a")) == stream(torch.tensor(3), torch.tensor(5), "a")
    for wrong in (1.0, None, ("a",)):
        with pytest.raises(TypeError):
            spawn(0, wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            spawn(wrong)  # type: ignore[arg-type]


def test_the_name_of_a_stream_never_changes() -> None:
    """Whatever machine and version: runs must be repeatable."""
    assert spawn(0).initial_seed() == 5621864261735219286
    assert spawn(7, "round", 1, "ü").initial_seed() == 4734909316287901210


@quick
@given(
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    st.floats(-1000, 1000),
    st.floats(0, 1000),
    seeds,
)
def test_uniform_numbers_have_the_shape_type_and_range(
    shape: list[int], dtype: torch.dtype, low: float, width: float, seed: int
) -> None:
    x, high = torch.zeros(shape, dtype=dtype), low + width
    drawn = uniform_like(x, low, high, generator=spawn(seed))
    assert drawn.shape == x.shape
    assert drawn.dtype == dtype
    ends = torch.tensor([low, high], dtype=dtype)  # as the type represents them
    assert bool(((drawn >= ends[0]) & (drawn <= ends[1])).all())
    assert torch.equal(drawn, uniform_like(x, low, high, generator=spawn(seed)))


@pytest.mark.parametrize(
    ("low", "high"), [(723.2394721427556, 723.2395287929043), (-94.15800802913418, -94.15800149366643)]
)
def test_rounding_never_leaves_the_range(low: float, high: float) -> None:
    """Ranges that are narrow against their distance from 0: there the plain formula does leave them."""
    ends = torch.tensor([low, high])
    plain = low + (high - low) * torch.rand(4000, generator=spawn(0))
    assert bool((plain > ends[1]).any())
    drawn = uniform_like(torch.empty(4000), low, high, generator=spawn(0))
    assert bool(((drawn >= ends[0]) & (drawn <= ends[1])).all())


def test_uniform_and_normal_numbers_follow_their_laws() -> None:
    x = torch.empty(50, 40, 5, dtype=torch.float64)
    u = uniform_like(x, -0.3, 0.1, generator=spawn(1)).flatten().numpy()
    z = normal_like(x, generator=spawn(1)).flatten().numpy()
    assert stats.kstest(u, stats.uniform(-0.3, 0.4).cdf).pvalue > 1e-4
    assert stats.kstest(z, "norm").pvalue > 1e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_every_precision_sees_one_stream(dtype: torch.dtype) -> None:
    x = torch.empty(7, 3)
    for draw in (lambda t: uniform_like(t, -1, 1, generator=spawn(2)), lambda t: normal_like(t, generator=spawn(2))):
        assert draw(x.to(dtype)).dtype == dtype
        assert torch.equal(draw(x.to(dtype)), draw(x).to(dtype))


def finaliser(number: int) -> int:
    """Splitmix64's finaliser in plain integers of 64 bits."""
    z = number % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


@quick
@given(st.lists(ids, max_size=20))
def test_mixing_is_the_finaliser_of_splitmix64(numbers: list[int]) -> None:
    expected = [(finaliser(i) >> 11) / 2**53 for i in numbers]
    assert mix(torch.tensor(numbers, dtype=torch.int64)).tolist() == expected


def test_the_finaliser_is_the_published_one() -> None:
    """The first numbers of splitmix64 started at 0: its state grows by the golden ratio, the finaliser mixes it."""
    golden = 0x9E3779B97F4A7C15
    assert [finaliser(golden * i) for i in (1, 2, 3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize("start", [0, 1 << 40, -50_000, -(1 << 63)])
@pytest.mark.parametrize("step", [1, 1024])
def test_consecutive_ids_mix_to_uniform_numbers(start: int, step: int) -> None:
    u = mix(start + step * torch.arange(100_000))
    assert u.dtype == torch.float64
    assert bool(((u >= 0) & (u < 1)).all())
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-4
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 6 / np.sqrt(len(u))


@quick
@given(st.lists(ids, max_size=10), st.data())
def test_mixing_depends_on_the_id_alone(numbers: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(numbers))))
    whole = torch.tensor(numbers, dtype=torch.int64)
    assert torch.equal(mix(whole)[order], mix(whole[order]))


def test_global_streams_are_seeded_from_the_generator_and_put_back():
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    draws = []
    for seed in (1, 1, 2):
        with global_streams(torch.Generator().manual_seed(seed)):
            draws.append((torch.rand(3).tolist(), np.random.rand(3).tolist()))  # noqa: NPY002
    assert draws[0] == draws[1] != draws[2]
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002
