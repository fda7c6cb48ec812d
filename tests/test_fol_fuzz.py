"""FOL-Fuzz keeps the fuzzers' laws, is the algorithm run one seed at a time, and always ends."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from operant import Classifier, Samples, spawn
from operant.generate import FOLFuzz
from operant.measure import first_order_loss, zero_order_loss
from operant.testing import LAWS, check_fuzzer, toy_classifier, toy_seeds

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from _single import fol_fuzz_one

RELEASED = FOLFuzz(radius=0.5, norm="l2", step="gradient", iters=2, variant="released", rows_per_seed=20)
OPTIONS = {
    "linf": FOLFuzz(radius=0.3, rows_per_seed=40),
    "l2": FOLFuzz(radius=2.0, norm="l2", rows_per_seed=30),
    "paper's xi": FOLFuzz(radius=0.3, xi=1e-18, rows_per_seed=20),
    "raw gradient": FOLFuzz(radius=0.3, step="gradient", learning_rate=0.3, weight=0.2),
    "no FOL": FOLFuzz(radius=0.3, weight=0.0, rows_per_seed=20),
    "few rows": FOLFuzz(radius=0.3, rows_per_seed=12, iters=20),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_laws_of_fuzzers_hold(name: str) -> None:
    check_fuzzer(OPTIONS[name])


@pytest.mark.parametrize("law", [law for law in LAWS if law.__name__ != "cases_stay_in_bounds_and_ball"])
def test_the_released_variant_keeps_every_law_but_the_ball(law) -> None:
    law(RELEASED, model := toy_classifier(), toy_seeds(model))


@pytest.mark.parametrize("name", OPTIONS)
def test_the_batch_is_the_algorithm_run_one_seed_at_a_time(name: str) -> None:
    fuzzer, model = OPTIONS[name], toy_classifier()
    seeds = toy_seeds(model, n=9)
    suite = fuzzer(model, seeds, generator=spawn(3))
    u = torch.rand(len(seeds), fuzzer.rows_per_seed, generator=spawn(3)) + 0.5
    module, total = model.unwrap().eval(), 0
    for row in range(len(seeds)):
        expected = fol_fuzz_one(fuzzer, module, seeds.x[row : row + 1], int(seeds.labels[row]), u[row].double())
        got = suite[suite.seed == seeds.ids[row]]
        assert got["branch"].tolist() == [case.branch for case in expected]
        for case, x, fol, threshold in zip(expected, got.x, got["fol"], got["threshold"], strict=True):
            assert torch.allclose(case.x[0], x, atol=1e-9)
            assert case.fol == pytest.approx(float(fol), rel=1e-5)
            assert case.threshold == pytest.approx(float(threshold), rel=1e-5, abs=1e-12)
        total += len(expected)
    assert total > 0


@pytest.fixture(scope="module")
def suite(lenet, digits28):
    return FOLFuzz(radius=0.2)(lenet, digits28.test[:200], generator=spawn(0))


def test_cases_meet_what_they_were_accepted_for(lenet, suite) -> None:
    assert len(suite) > 300
    assert set(suite["branch"].tolist()) == {"rise", "small"}
    assert bool((suite.distances("linf") <= 0.2 + 1e-6).all())
    assert torch.equal(suite.prediction, lenet.predict(suite.x))
    assert bool((suite.prediction != suite.label).all())
    fol = first_order_loss(lenet, suite.x, suite.label, x0=suite.x0, radius=0.2)
    assert torch.allclose(fol, suite["fol"], rtol=1e-3, atol=1e-4)
    assert torch.allclose(zero_order_loss(lenet, suite.x, suite.label), suite["loss"], rtol=1e-3, atol=1e-4)
    rise = torch.from_numpy(suite["branch"] == "rise")
    assert bool((suite["fol"][rise] >= suite["threshold"][rise]).all())
    assert bool((suite["fol"][~rise] < suite["threshold"][~rise]).all())


def test_fol_of_rising_cases_never_falls_along_a_seed(suite) -> None:
    rising = suite[torch.from_numpy(suite["branch"] == "rise")]
    for seed in rising.seed.unique():
        assert bool((rising["fol"][rising.seed == seed].diff() >= 0).all())


def test_the_second_branch_needs_a_quantile(lenet, digits28) -> None:
    paper = FOLFuzz(radius=0.2, xi=1e-18)(lenet, digits28.test[:100], generator=spawn(0))
    assert set(paper["branch"].tolist()) == {"rise"}


def test_the_released_program_lets_cases_leave_the_ball(lenet, digits28) -> None:
    far = FOLFuzz(radius=0.05, norm="l2", step="gradient", iters=2, variant="released", learning_rate=1.0)
    cases = far(lenet, digits28.test[:100], generator=spawn(0))
    relative = cases.distances("l2") / cases.x0.flatten(1).norm(dim=1)
    assert set(cases["branch"].tolist()) == {"flip"}
    assert float(relative.max()) > 0.05


class Module(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


ANY_MODEL = {
    "flat": lambda x: 1e-300 * x.flatten(1)[:, :3] + torch.tensor([0.0, 2.0, 1.0], dtype=x.dtype),
    "steps and a slope": lambda x: (x.flatten(1)[:, :3] * 9).round() + 1e-300 * x.flatten(1)[:, :3],
    "linear": lambda x: 5 * x.flatten(1)[:, :3],
    "huge": lambda x: 1e6 * x.flatten(1)[:, :3],
}


@pytest.mark.parametrize("name", ANY_MODEL)
@given(
    seed=st.integers(0, 99),
    rows=st.integers(2, 40),
    iters=st.integers(1, 9),
    step=st.sampled_from(["steepest", "gradient"]),
)
@settings(max_examples=8)
def test_the_search_ends_for_any_model(name: str, seed: int, rows: int, iters: int, step: str) -> None:
    asked = 0

    def counted(x: Tensor) -> Tensor:
        nonlocal asked
        asked += len(x)
        return ANY_MODEL[name](x)

    x = torch.rand(20, 2, 3, dtype=torch.float64, generator=spawn(seed))
    model = Classifier(Module(counted))
    seeds = Samples(x, model.predict(x))
    model.check_gradients(x)
    asked = 0
    fuzzer = FOLFuzz(radius=0.3, rows_per_seed=rows, iters=iters, step=step)
    suite = fuzzer(model, seeds, generator=spawn(seed))
    assert asked <= len(seeds) * (rows + 2) + 16 * rows  # 16: smaller batches are padded
    assert suite.attempted == len(seeds)
    if name == "flat":
        assert len(suite) == 0


def test_misread_seeds_are_skipped_and_counted(lenet, digits28) -> None:
    some = digits28.test[:40]
    wrong = Samples(some.x, torch.where(torch.arange(40) < 15, (some.labels + 1) % 10, some.labels))
    right = len(lenet.correct(wrong))
    suite = FOLFuzz(radius=0.2, rows_per_seed=10)(lenet, wrong, generator=spawn(0))
    assert suite.attempted == right
    assert suite.skipped == 40 - right


def test_bad_options_and_seeds_are_rejected(lenet, digits28) -> None:
    for options, words in (
        ({"radius": 0.0}, "radius must be positive"),
        ({"norm": "l1"}, "norm must be"),
        ({"xi": "q5"}, "quantile such as"),
        ({"xi": -1.0}, "xi must be 0 or more"),
        ({"k": 0}, "at least 1"),
        ({"iters": 0}, "at least 1"),
        ({"weight": -1.0}, "weight must be"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"rows_per_seed": 1}, "rows_per_seed"),
        ({"step": "raw"}, "step must be"),
        ({"variant": "theirs"}, "variant"),
        ({"variant": "released"}, "raw gradients and L2"),
    ):
        with pytest.raises(ValueError, match=words):
            FOLFuzz(**{"radius": 0.3, **options})
    none_right = Samples(digits28.test.x[:20], (lenet.predict(digits28.test.x[:20]) + 1) % 10)
    with pytest.raises(ValueError, match="none of the 20"):
        FOLFuzz(radius=0.3)(lenet, none_right, generator=spawn(0))
