"""The study of seeds runs, resumes, and its designs agree with exact results."""

import json
import math
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from operant import Classifier, Samples, Suite, results, spawn
from operant.assess.estimators import estimate
from operant.cli import app
from operant.conditions import Recipe
from operant.profile import Priors, RiskMap, fit_risk
from operant.seeds import draw
from operant_studies.seeds import risk as risk_module
from operant_studies.seeds.claims import ten_times
from operant_studies.seeds.outcome import ArmResult, SeedsOutcome, ratio_of_rmse
from operant_studies.seeds.risk import FEW, find_priors, make_user_inputs, rate_pool
from operant_studies.seeds.settings import RISK_MAP, SETUPS, SeedsSources, setting_of
from operant_studies.seeds.setups import make_setup, zipf_rows
from operant_studies.seeds.trials import (
    BY_MAP,
    DEFAULT,
    DESIGNS,
    ONCE,
    OPERATIONAL,
    SIMPLE,
    ArmTrials,
    DrawArm,
    PoolFacts,
    deepest,
    facts_of,
    grid,
    root_mean_square,
    run_trials,
    top,
)
from operant_studies.seeds.unit import SeedsUnit
from operant_studies.shared import Mean

SMOKE = ["study", "seeds", "--scale", "smoke", "--workers", "1"]


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("study") / "seeds"
    done = CliRunner().invoke(app, [*SMOKE, "--out", str(out)])
    assert done.exit_code == 0, done.output
    return out


# The page


@pytest.mark.slow
def test_the_page_answers_every_question(study: Path) -> None:
    page = (study / "seeds.md").read_text()
    for words in ("What held", "What is possible", "Which default", "stands for the field", "Rankings", "What was run"):
        assert words in page
    for words in ("The risk map finds more than the margin", "What the risk map knows"):
        assert words in page
    for label in SETUPS.values():
        assert page.count(f"### {label}, plain network") == (
            2 if label.endswith(("labelled pool", "broad pool")) else 1
        )
    verdicts = [line.split("|")[-2].strip() for line in page.splitlines() if line.endswith("** |")]
    assert len(verdicts) == 3 * 4 + 4 + 5 * 2
    assert set(verdicts) <= {"**held**", "**not held**", "**not decided**"}
    assert "nan" not in page.lower()
    for picture in ("seeds-designs.svg", "seeds-weightings.svg"):
        assert "<svg" in (study / picture).read_text()
        assert picture in page
    numbers = json.loads((study / "seeds.json").read_text())
    assert set(numbers) == {f"{name}-plain" for name in SETUPS}
    assert len(numbers["zipf-pool-plain"]["weightings"][0]["ways"]) == 14
    for each in numbers.values():
        assert [one["seed"] for one in each["risk maps"]] == [0, 1]
        assert all(0 < one["pmi"] < 1 and one["learned"] for one in each["risk maps"])
        assert any((arm["design"], arm["score"]) == ("top", RISK_MAP) for arm in each["arms"])


@pytest.mark.slow
def test_the_study_resumes(study: Path) -> None:
    page = (study / "seeds.md").read_bytes()
    lost = study / "steps" / "zipf-field-plain" / "with-dsa.json"
    kept = study / "steps" / "zipf-field-plain" / "with-margin.json"
    before, written = results.load(lost, ArmTrials), kept.stat().st_mtime_ns
    lost.unlink()
    done = CliRunner().invoke(app, [*SMOKE, "--out", str(study)])
    assert done.exit_code == 0, done.output
    assert torch.equal(results.load(lost, ArmTrials).found, before.found), "a recomputed step must be the same"
    assert kept.stat().st_mtime_ns == written
    assert (study / "seeds.md").read_bytes() == page


def test_impossible_runs_give_a_message(tmp_path: Path) -> None:
    images = {f"x_{part}": np.zeros((3, 28, 28), dtype=np.uint8) for part in ("train", "test")}
    labels = {f"y_{part}": np.arange(3) for part in ("train", "test")}
    data = tmp_path / "data"
    data.mkdir()
    for name in ("mnist", "usps"):
        np.savez(data / f"{name}.npz", **images, **labels)
    for arguments, words in (
        (["--scale", "paper"], "scale must be smoke or small"),
        (["--scale", "small"], "needs mnist; name its folder with --data"),
        (["--scale", "small", "--data", str(tmp_path)], "no mnist under"),
        (["--scale", "small", "--data", str(data)], "mnist_lenet5_plain.safetensors"),
    ):
        done = CliRunner().invoke(app, ["study", "seeds", *arguments, "--out", str(tmp_path / "out")])
        assert done.exit_code == 2
        assert words in " ".join(done.output.split())


def test_small_has_the_promised_size() -> None:
    small = setting_of("small")
    assert (small.draws, small.repetitions, small.networks) == (200, 100, ("plain", "robust"))
    assert sum(len(grid(small, score)) for score in small.scores) == 180
    assert small.cases == 5_000


@pytest.mark.slow
def test_the_risk_map_resumes_with_the_same_values(study: Path) -> None:
    unit = SeedsUnit(setting_of("smoke"), "zipf-pool", "plain", None, study / "steps")
    before, conditions = unit.rated(1), study / "steps" / "zipf-pool" / "conditions-1.json"
    written = conditions.stat().st_mtime_ns
    (study / "steps" / "zipf-pool-plain" / "risk-1.json").unlink()
    assert torch.equal(unit.rated(1).values, before.values)
    assert conditions.stat().st_mtime_ns == written
    assert not torch.equal(unit.rated(0).values, before.values), "other seeds give other maps"
    assert bool(((before.values > 0) & (before.values < 1)).all())


@pytest.mark.slow
def test_the_best_of_the_grid_is_drawn_afresh(study: Path) -> None:
    outcome = SeedsOutcome(setting_of("smoke"), "zipf-pool", "plain", study / "steps")
    allowed = [t for t in outcome.grid if t.rmse.upper <= outcome.facts.simple_rmse]
    best = max(allowed, key=lambda t: t.mass.value)
    assert outcome.best.arm == best.arm
    assert not torch.equal(outcome.best.found, best.found)


# Baselines, by enumeration of all samples


@pytest.fixture
def tiny() -> tuple[torch.Tensor, torch.Tensor]:
    """Masses of six inputs, and which of them fail."""
    mass = torch.tensor([0.3, 0.05, 0.25, 0.1, 0.2, 0.1], dtype=torch.float64)
    return mass, torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0], dtype=torch.float64)


def test_simple_sampling_is_known_exactly(tiny) -> None:
    mass, failed = tiny
    facts = facts_of(failed, mass, {}, 2)
    found = [float((mass * failed)[list(pair)].sum()) for pair in combinations(range(6), 2)]
    errors = [6 / 2 * value - facts.pmi for value in found]
    assert facts.pmi == pytest.approx(0.45)
    assert facts.simple_found == pytest.approx(np.mean(found))
    assert facts.simple_rmse == pytest.approx(math.sqrt(np.mean(np.square(errors))))
    assert facts.heaviest == pytest.approx(max(found))


def test_operational_sampling_is_known_exactly(tiny) -> None:
    mass, failed = tiny
    facts = facts_of(failed, mass, {}, 2)
    found = squares = 0.0
    for i, j in product(range(6), repeat=2):
        chance = float(mass[i] * mass[j])
        found += chance * sum(float(mass[k] * failed[k]) for k in {i, j})
        squares += chance * (float(failed[i] + failed[j]) / 2 - facts.pmi) ** 2
    assert facts.operational_found == pytest.approx(found)
    assert facts.operational_rmse == pytest.approx(math.sqrt(squares))


def test_rankings_with_and_without_the_profile() -> None:
    mass, risk = torch.tensor([8.0, 4, 4, 1], dtype=torch.float64) / 17, torch.tensor([1.0, 2, 4, 8.5])
    ranking = facts_of(torch.ones(4), mass, {"any": risk}, 2).rankings[0]
    assert ranking.correlation < 0.5
    assert ranking.shared == 0.5
    same = facts_of(torch.ones(4), torch.full((4,), 0.25, dtype=torch.float64), {"any": risk}, 2).rankings[0]
    assert (same.correlation, same.shared) == (1, 1)


# Trials


@pytest.fixture(scope="module")
def made_up() -> tuple[Samples, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A pool, which of it fails, masses, and a risk that knows something of failing."""
    u = torch.rand(4, 500, generator=spawn(0, "made up"), dtype=torch.float64)
    mass = u[0] ** 3
    return Samples(u[3, :, None]), (u[1] < 0.1).double(), mass / mass.sum(), 0.05 + u[2] * (1 + (u[1] < 0.1))


@pytest.mark.parametrize("design", DESIGNS)
def test_trials_count_each_input_once_and_estimate_as_the_estimators_do(made_up, design: str) -> None:
    pool, failed, mass, risk = made_up
    arm = DrawArm(design=design, score="any")
    trials = run_trials([arm], pool, failed, mass, {"any": risk}, draws=60, repetitions=3, path=("here",))
    for r in range(3):
        weights = arm.weights(mass, {"any": risk})
        drawn = draw(pool, weights, 60, design=design, generator=spawn(r, "here", str(arm)), mass=mass)
        rows = set(drawn.indices[failed[drawn.indices] > 0].tolist())
        assert float(trials.failures[0, r]) == len(rows)
        assert float(trials.found[0, r]) == pytest.approx(float(mass[list(rows)].sum()))
        assert float(trials.estimates[0, r]) == pytest.approx(estimate(drawn, failed[drawn.indices]).estimate)


def test_baselines_agree_with_the_formulas(made_up) -> None:
    pool, failed, mass, _ = made_up
    facts = facts_of(failed, mass, {}, 60)
    trials = run_trials([SIMPLE, OPERATIONAL], pool, failed, mass, {}, draws=60, repetitions=300, path=("here",))
    for row, found, rmse in (
        (0, facts.simple_found, facts.simple_rmse),
        (1, facts.operational_found, facts.operational_rmse),
    ):
        values, errors = trials.found[row], trials.estimates[row] - facts.pmi
        assert abs(float(values.mean()) - found) < 5 * float(values.std()) / math.sqrt(300)
        assert float(errors.square().mean().sqrt()) == pytest.approx(rmse, rel=0.3)


def test_a_top_list_has_no_estimate(made_up) -> None:
    pool, failed, mass, risk = made_up
    trials = run_trials([top("any")], pool, failed, mass, {"any": risk}, draws=20, repetitions=2, path=())
    assert bool(trials.estimates.isnan().all())
    best = (mass * risk).topk(20).indices
    assert float(trials.found[0, 0]) == pytest.approx(float((mass * failed)[best].sum()))


def test_arms_differ_in_their_weights(made_up) -> None:
    _, _, mass, risk = made_up
    risks = {"any": risk}
    assert torch.equal(OPERATIONAL.weights(mass, risks), mass)
    assert torch.equal(ONCE.weights(mass, risks), mass)
    assert bool((SIMPLE.weights(mass, risks) == 1).all())
    alone = deepest("any").weights(mass, risks)
    assert torch.allclose(alone, risk / risk.sum())
    without = DrawArm(design="pps", score="any", profile=False).weights(mass, risks)
    assert torch.allclose(without, 0.8 * alone + 0.2 / len(mass))


def test_arms_have_unique_names() -> None:
    small = setting_of("small")
    arms = [SIMPLE, OPERATIONAL, ONCE]
    for score in small.scores:
        arms += [*grid(small, score), *grid(small, score, profile=False), deepest(score)]
        arms += [top(score), top(score, profile=False)]
    assert len({str(arm) for arm in arms}) == len(arms), "names of arms seed random numbers"
    assert DEFAULT in grid(small, "margin")
    assert BY_MAP in grid(small, RISK_MAP)


# Set-ups and verdicts


def test_zipf_draws_the_first_classes_most() -> None:
    setup = make_setup("zipf-pool", SeedsSources(setting_of("smoke"), None), 0)
    assert setup.field is not None
    assert setup.fresh is not None
    shares = torch.bincount(setup.fresh.labels, minlength=10) / len(setup.fresh)
    law = 1 / torch.arange(1.0, 11)
    assert torch.allclose(shares, law / law.sum(), atol=0.07)
    assert not bool(torch.isin(setup.field.ids, setup.fresh.ids).any())


@pytest.mark.parametrize("name", SETUPS)
def test_the_risk_map_sees_no_label_of_the_field(name: str) -> None:
    sources = SeedsSources(setting_of("smoke"), None)
    setup = make_setup(name, sources, 0)
    inputs = make_user_inputs(name, sources, setup, 0)
    assert inputs.field.y is None
    roles = [inputs.clean, inputs.labelled, inputs.seeds]
    for a, b in combinations(roles, 2):
        assert not bool(torch.isin(a.ids, b.ids).any()), "no image has two roles"
    if name == "usps-field":
        assert torch.equal(inputs.field.x, setup.pool.x), "there is no other USPS"
    elif setup.field is None:
        assert not bool(torch.isin(inputs.field.ids, setup.pool.ids).any())
    else:
        assert torch.equal(inputs.field.x, setup.field.x), "conditions and profile come from the same inputs"


def test_images_of_a_made_field_have_no_other_role() -> None:
    sources = SeedsSources(setting_of("smoke"), None)
    train = sources.known.train
    inputs = make_user_inputs("zipf-pool", sources, make_setup("zipf-pool", sources, 0), 0)
    used = train[zipf_rows(train.labels, sources.setting.field, spawn(0, "zipf", "field")).unique()]
    roles = Samples.concat([inputs.clean, inputs.labelled, inputs.seeds])
    assert not bool(torch.isin(roles.ids, used.ids).any())
    assert len(roles) + len(used) == len(train)


def test_without_conditions_the_seeds_themselves_are_the_cases() -> None:
    sources = SeedsSources(setting_of("smoke"), None)
    model, setup = sources.network("plain"), make_setup("usps-pool", sources, 0)
    inputs = make_user_inputs("usps-pool", sources, setup, 0)
    priors = find_priors(model, inputs, None, generator=spawn(0))
    rate = partial(rate_pool, model, setup, inputs, Recipe(severities={}), priors, cases=200)
    risk = rate(generator=spawn(1))
    assert risk.values.shape == (len(setup.pool),)
    assert 0 <= risk.distance <= 1
    assert torch.equal(rate(generator=spawn(1)).values, risk.values)


def test_cases_of_wider_conditions_come_from_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Suite, Suite]] = []

    def fit(model: Classifier, cases: Suite, *, wider: Suite, priors: Priors) -> RiskMap:
        seen.append((cases, wider))
        return fit_risk(model, cases, wider=wider, priors=priors)

    monkeypatch.setattr(risk_module, "fit_risk", fit)
    sources = SeedsSources(setting_of("smoke"), None)
    model, setup = sources.network("plain"), make_setup("usps-pool", sources, 0)
    inputs = make_user_inputs("usps-pool", sources, setup, 0)
    priors = find_priors(model, inputs, None, generator=spawn(0))
    rate_pool(model, setup, inputs, FEW, priors, cases=200, generator=spawn(1))
    ((cases, wider),) = seen
    assert (len(cases), len(wider)) == (200, 100)
    assert not bool(torch.isin(wider.seed, cases.seed).any())
    assert set(cases.columns) < set(wider.columns)


def tried(found: list[float], errors: list[float]) -> ArmResult:
    facts = facts_of(torch.ones(4), torch.full((4,), 0.25, dtype=torch.float64), {}, 2)
    facts = replace(facts, simple_found=1.0, simple_rmse=1.0)
    assert isinstance(facts, PoolFacts)
    values = torch.tensor([found, found, errors], dtype=torch.float64)
    return ArmResult(DEFAULT, values[0], values[1], values[2], facts)


def test_ten_times_needs_both() -> None:
    many, few, unsure = [11.0, 12, 11, 12] * 5, [3.0, 4, 3, 4] * 5, [5.0, 15, 6, 16] * 5
    small, large = [0.5, -0.5, 0.4, -0.4] * 5, [3.0, -3, 2, -2] * 5
    assert ten_times(tried(many, small)) == "held"
    assert ten_times(tried(few, small)) == "not held"
    assert ten_times(tried(many, large)) == "not held"
    assert ten_times(tried(unsure, small)) == "not decided"


def test_rmse_has_a_bootstrap_interval() -> None:
    errors = torch.randn(400, generator=spawn(0), dtype=torch.float64)
    rmse = root_mean_square(errors)
    assert isinstance(rmse, Mean)
    assert rmse.value == pytest.approx(float(errors.square().mean().sqrt()))
    assert rmse.lower < rmse.value < rmse.upper
    assert rmse.upper - rmse.lower == pytest.approx(2 * 1.96 / math.sqrt(800), rel=0.3)
    ratio = ratio_of_rmse(tried([1.0] * 400, (3 * errors).tolist()), tried([1.0] * 400, errors.tolist()))
    assert ratio.lower < ratio.value == pytest.approx(3)
    assert ratio.lower > 2
